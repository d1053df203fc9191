"""What a program does, without a topology: whom it serves, its shape, what every pair exchanges.

Amounts are exact: a chunk is the share 1 / nchunksperloop of the counted buffer, and ``cnt``
chunks of every sending step go over the pair.
"""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from taccl.msccl.program import RECEIVES, SENDS, Op, Program
from taccl.msccl.runtimes import UNLIMITED
from taccl.report.text import aligned
from taccl.units import format_size

MAX_PAIRS = 64
"""Pairs that the text lists; JSON has all."""


@dataclass(frozen=True, slots=True)
class RankShape:
    """One rank of a program: its threadblocks, their channels, and steps, nops included.

    Out is what it sends, in what it receives. Connections are ends, (peer, channel) pairs; chunks
    are those that its steps move, `chunks_local` those that it copies or reduces in its own memory,
    and `scratch_chunks` is its scratch.
    """

    rank: int
    threadblocks: int
    steps: int
    channels: tuple[int, ...]
    connections_out: int
    connections_in: int
    peers_out: int
    peers_in: int
    chunks_out: int
    chunks_in: int
    chunks_local: int
    scratch_chunks: int


@dataclass(frozen=True, slots=True)
class Pair:
    """What goes from one rank to another: channels, sending steps, chunks."""

    src: int
    dst: int
    channels: tuple[int, ...]
    steps: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A program at a glance; ``size`` is the counted size amounts are for, None: only shares."""

    program: Program
    ranks: tuple[RankShape, ...]
    pairs: tuple[Pair, ...]
    ops: tuple[tuple[str, int], ...]
    size: int | None

    def bytes_of(self, chunks: int) -> int | None:
        """Return how many bytes so many chunks are, or None without a size."""
        return None if self.size is None else chunks * (self.size // self.program.chunks_per_loop)

    def amount(self, chunks: int) -> str:
        """Return so many chunks as text: their bytes with a size, else their number."""
        return str(chunks) if self.size is None else format_size(self.bytes_of(chunks) or 0)


def inspect_program(program: Program, size: int | None = None) -> Shape:
    """Return the shape of a `program` at a `size` in bytes, which is cut to whole chunks.

    Without a size amounts are chunks.
    """
    ops = Counter(step.op for _, block in program.blocks() for step in block.steps)
    chunks, ranks = program.chunks_per_loop, []
    for gpu in program.gpus:
        moved: Counter[str] = Counter()
        for block in gpu.threadblocks:
            for step in block.steps:
                moved["out"] += step.count * (step.op in SENDS)
                moved["in"] += step.count * (step.op in RECEIVES)
                moved["local"] += step.count * (step.op in {Op.COPY, Op.REDUCE})
        outs = {(b.send_to, b.channel) for b in gpu.threadblocks if b.send_to is not None}
        ins = {(b.recv_from, b.channel) for b in gpu.threadblocks if b.recv_from is not None}
        ranks.append(RankShape(
            gpu.rank, len(gpu.threadblocks), sum(len(b.steps) for b in gpu.threadblocks),
            tuple(sorted({channel for _, channel in outs | ins})), len(outs), len(ins),
            len({peer for peer, _ in outs}), len({peer for peer, _ in ins}),
            moved["out"], moved["in"], moved["local"], gpu.scratch_chunks,
        ))  # fmt: skip
    channels: dict[tuple[int, int], set[int]] = defaultdict(set)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, block in program.blocks():
        if block.send_to is not None:
            channels[rank, block.send_to].add(block.channel)
            counts = [step.count for step in block.steps if step.op in SENDS]
            sent[rank, block.send_to] += counts
    return Shape(
        program,
        tuple(ranks),
        tuple(
            Pair(*pair, tuple(sorted(channels[pair])), len(counts), sum(counts))
            for pair, counts in sorted(sent.items())
        ),
        tuple((op.value, ops[op]) for op in Op if ops[op]),
        None if size is None else size - size % chunks or chunks,
    )


def as_record(shape: Shape) -> dict[str, object]:
    """Return everything as plain values."""
    program = shape.program
    return {
        "name": program.name,
        "collective": program.collective,
        "protocol": program.protocol,
        "ranks": program.num_ranks,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
        "min_bytes": program.min_bytes,
        "max_bytes": None if program.max_bytes >= UNLIMITED else program.max_bytes,
        "chunks": program.chunks_per_loop,
        "channels": program.channels,
        "threadblocks": program.num_threadblocks,
        "steps": program.num_steps,
        "ops": dict(shape.ops),
        "size_bytes": shape.size,
        "per_rank": [
            asdict(rank)
            | {
                "channels": list(rank.channels),
                "bytes_out": shape.bytes_of(rank.chunks_out),
                "bytes_in": shape.bytes_of(rank.chunks_in),
            }
            for rank in shape.ranks
        ],
        "pairs": [
            asdict(pair) | {"channels": list(pair.channels), "bytes": shape.bytes_of(pair.chunks)}
            for pair in shape.pairs
        ],
    }


def as_text(shape: Shape) -> str:
    """Return what a person reads: the head, a table of ranks, a table of pairs."""
    program = shape.program
    modes = [("in place", program.in_place), ("out of place", program.out_of_place)]
    served = " and ".join(word for word, on in modes if on) or "no mode"
    open_ended = program.max_bytes >= UNLIMITED
    span = " bytes and more" if open_ended else f" to {program.max_bytes} bytes"
    unit = "chunks" if shape.size is None else "bytes"
    ranks = [(
        "rank", "threadblocks", "steps", "channels", "sends to", "receives from", "ends out+in",
        f"{unit} out", f"{unit} in", "chunks local", "scratch",
    )]  # fmt: skip
    ranks += [
        (
            str(rank.rank), str(rank.threadblocks), str(rank.steps), str(len(rank.channels)),
            str(rank.peers_out), str(rank.peers_in),
            f"{rank.connections_out}+{rank.connections_in}",
            shape.amount(rank.chunks_out), shape.amount(rank.chunks_in),
            str(rank.chunks_local), str(rank.scratch_chunks),
        )
        for rank in shape.ranks
    ]  # fmt: skip
    largest = sorted(shape.pairs, key=lambda pair: -pair.chunks)[:MAX_PAIRS]
    pairs = [("pair", "channels", "sends", unit)]
    pairs += [
        (
            f"{pair.src}->{pair.dst}", str(len(pair.channels)), str(pair.steps),
            shape.amount(pair.chunks),
        )
        for pair in sorted(largest, key=lambda pair: (pair.src, pair.dst))
    ]  # fmt: skip
    lines = [
        f"{program.name or 'no name'}: {program.collective} of {program.num_ranks} ranks,"
        f" {program.protocol}",
        f"  serves        {served}, {program.min_bytes}{span}",
        f"  chunks        {program.chunks_per_loop}, each 1/{program.chunks_per_loop} of the size"
        + ("" if shape.size is None else f": {shape.bytes_of(1)} of {shape.size} bytes"),
        f"  channels      {program.channels}",
        f"  threadblocks  up to {program.num_threadblocks} a rank, with up to"
        f" {program.num_steps} steps",
        f"  steps         {', '.join(f'{count} {op}' for op, count in shape.ops) or 'none'}",
        "",
        *(f"  {line}" for line in aligned(ranks)),
        "",
        *(f"  {line}" for line in aligned(pairs)),
    ]
    more = len(shape.pairs) - MAX_PAIRS
    if more > 0:
        lines.append(f"and {more} pairs with no more (--json lists all)")
    return "\n".join(lines)
