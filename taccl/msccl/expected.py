"""What a program should do: its collective, the memory before it, and what is wrong after it.

An in-place call has one user buffer, so chunks of input and output are one memory cell there: input
chunk x of a rank is its chunk ``x + shift`` and so is output chunk x, with the shifts of
:func:`mode_of`; out of place the two buffers are disjoint (``mscclInPlaceTotalCountHelper``,
``mscclInternalSchedulerSelectAlgo``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.msccl.program import Buffer, Finding, Program, Slot
from taccl.msccl.run import MAX_WORK, Place, Run, places

Cell = tuple[str, int]
"""A memory cell of a rank: ``i``, ``o``, ``s`` or ``user``, and an offset in chunks."""


_LETTER: Mapping[Buffer, str] = {buffer: buffer.value for buffer in Buffer}


class Mode(NamedTuple):
    """How a call places its buffers.

    With `in_place`, input and output share one buffer, into which they start after `input_shift`
    and `output_shift` chunks, one entry a rank.
    """

    in_place: bool
    input_shift: tuple[int, ...]
    output_shift: tuple[int, ...]

    def cell(self, rank: int, slot: Slot) -> Cell:
        """Return the memory cell of a slot."""
        if not self.in_place or slot.buffer is Buffer.SCRATCH:
            return _LETTER[slot.buffer], slot.offset
        shifts = self.input_shift if slot.buffer is Buffer.INPUT else self.output_shift
        return "user", slot.offset + shifts[rank]

    def cells(self, rank: int, slot: Slot | None, count: int) -> list[Cell]:
        """Return the memory cells of so many chunks from a slot on; none where there is none."""
        if slot is None:
            return []
        letter, first = self.cell(rank, slot)
        return [(letter, offset) for offset in range(first, first + count)]


def mode_of(collective: str, num_ranks: int, chunks_per_loop: int, *, in_place: bool) -> Mode:
    """Return how calls of `collective` place their buffers, in one mode.

    `num_ranks` and `chunks_per_loop` (chunks of the counted buffer) are those of the program;
    `in_place`: input and output lie in one buffer.
    """
    nothing = (0,) * num_ranks
    own = tuple(rank * chunks_per_loop // num_ranks for rank in range(num_ranks))
    input_shift = own if collective == "allgather" else nothing
    output_shift = own if collective == "reducescatter" else nothing
    return Mode(in_place, input_shift, output_shift)


Value = tuple[tuple[int, int], ...]
"""Input chunks added up: (rank, offset in its input), ascending."""

UNDEFINED: Value = ((-1, -1),)
"""What is made of memory that nobody wrote."""

_KNOWN = tuple(name for name, kind in COLLECTIVES.items() if kind.xml_name)
_ANY_COUNT = ("allreduce", "broadcast", "reduce")
"""Collectives whose chunks ranks need not share evenly."""


def expected_of(program: Program, root: int = 0) -> Collective | Finding:
    """Return what name and chunk count of `program` say it does; a finding when they say nothing.

    `root` is a rank, for collectives that have one.
    """
    name = program.collective
    if name not in _KNOWN:
        return Finding(
            "unknown collective",
            f"what {name} should do is not known, so it can't be checked",
            fix=f"known are {', '.join(_KNOWN)}",
        )
    ranks, chunks = program.num_ranks, program.chunks_per_loop
    if chunks < 1 or (chunks % ranks and name not in _ANY_COUNT):
        return Finding(
            "chunks", f"{chunks} chunks can't be shared by {ranks} ranks",
            fix="make nchunksperloop a multiple of ngpus",
        )  # fmt: skip
    if chunks * ranks > MAX_WORK:
        return Finding(
            "size", f"{chunks} chunks on {ranks} ranks are too many to follow",
            fix="lower --chunks or --instances",
        )  # fmt: skip
    if COLLECTIVES[name].has_root:
        return build_collective(name, ranks, chunks, root)
    return _with_chunks(build_collective(name, ranks, -(-chunks // ranks)), chunks)


def everything(program: Program) -> Collective:
    """Return a collective in which every rank has a full input and a full output."""
    ranks, chunks = program.num_ranks, program.chunks_per_loop
    return _with_chunks(build_collective("allreduce", ranks, -(-chunks // ranks)), chunks)


def _with_chunks(collective: Collective, chunks: int) -> Collective:
    """Return an all-reduce of so many chunks, which ranks need not share evenly; others as is."""
    if collective.name != "allreduce" or collective.num_chunks == chunks:
        return collective
    return replace(
        collective,
        source_set=collective.source_set[:chunks], target_set=collective.target_set[:chunks],
        input_at=collective.input_at[:chunks], output_at=collective.output_at[:chunks],
        owner=collective.owner[:chunks], index=collective.index[:chunks],
    )  # fmt: skip


def value_of(collective: Collective, chunk: int) -> Value:
    """Return what targets of `chunk`, an id, should have in the end of `collective`.

    Copies of one chunk are one value, that of the first source.
    """
    sources = collective.sources(chunk)
    named = sources if collective.reduces else sources[:1]
    return tuple((rank, collective.input_offset(chunk, rank)) for rank in named)


def inputs_of(collective: Collective, mode: Mode) -> dict[tuple[int, Cell], Value]:
    """Return the memory before the first step of `collective`, its buffers placed by `mode`."""
    memory: dict[tuple[int, Cell], Value] = {}
    for chunk in range(collective.num_chunks):
        whole = value_of(collective, chunk)
        for rank in collective.sources(chunk):
            offset = collective.input_offset(chunk, rank)
            value = ((rank, offset),) if collective.reduces else whole
            memory[rank, mode.cell(rank, Slot(Buffer.INPUT, offset))] = value
    return memory


def room_of(collective: Collective, mode: Mode) -> Sequence[Mapping[str, int]]:
    """Return the chunks of the buffers that every rank passes to `collective` in `mode`.

    Scratch is the runtime's own.
    """
    sizes = zip(collective.input_sizes, collective.output_sizes, strict=True)
    if not mode.in_place:
        return [{"i": inputs, "o": outputs} for inputs, outputs in sizes]
    shifts = zip(mode.input_shift, mode.output_shift, strict=True)
    return [
        {"user": max(before + inputs if inputs else 0, after + outputs if outputs else 0)}
        for (inputs, outputs), (before, after) in zip(sizes, shifts, strict=True)
    ]


Owned = tuple[int, Cell]
"""A rank and a cell of its memory."""


class Wrong(NamedTuple):
    """An output that is not what it should be."""

    rank: int
    offset: int
    cell: Cell
    wanted: Value
    found: Value | None


def wrong_outputs(
    memory: Mapping[Owned, Value], mode: Mode, collective: Collective
) -> Iterator[Wrong]:
    """Yield the outputs of `collective` that are wrong, chunk by chunk.

    `memory` is what each cell of each rank holds in the end, by a call of `mode`.
    """
    for chunk in range(collective.num_chunks):
        wanted = value_of(collective, chunk)
        for rank in collective.targets(chunk):
            offset = collective.output_offset(chunk, rank)
            cell = mode.cell(rank, Slot(Buffer.OUTPUT, offset))
            found = memory.get((rank, cell))
            if found != wanted:
                yield Wrong(rank, offset, cell, wanted, found)


def result_findings(run: Run, mode: Mode, wrong: Sequence[Wrong]) -> Iterator[Finding]:
    """Yield a finding for every `wrong` output, at the last step of `run` that wrote it, if any.

    `mode` is how the call placed its buffers.
    """
    lacking = {(one.rank, one.cell) for one in wrong}
    writers: dict[Owned, Place] = {}
    where = places(run) if wrong else []
    for number in reversed(run.order if wrong else []):
        place = where[number]
        step = run.blocks[place.block][1].steps[place.step]
        for cell in mode.cells(place.rank, step.target, step.count):
            if (place.rank, cell) in lacking:
                writers.setdefault((place.rank, cell), place)
        if len(writers) == len(lacking):
            break
    for one in wrong:
        last = writers.get((one.rank, one.cell))
        yield Finding(
            "result",
            f"output {one.offset} should be {_words(one.wanted)}, and is {_words(one.found)}",
            one.rank,
            None if last is None else run.blocks[last.block][1].id,
            None if last is None else last.step,
            "receive or copy it there" if last is None else "correct what it writes there, or"
            " what comes before and after it",
        )  # fmt: skip


def _words(value: Value | None) -> str:
    """Return a value such as ``input 3 of ranks 0, 1 (twice) and 2``."""
    if value is None:
        return "never written"
    if value is UNDEFINED or value == UNDEFINED:
        return "made of undefined data"
    times = Counter(value)
    parts: dict[int, list[str]] = {}
    for rank, offset in sorted(times):
        count = times[rank, offset]
        again = {1: "", 2: " (twice)"}.get(count, f" ({count} times)")
        parts.setdefault(offset, []).append(f"{rank}{again}")
    return " + ".join(
        f"input {offset} of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        for offset, ranks in parts.items()
    )
