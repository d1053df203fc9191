"""What a program should do: its collective, the inputs it starts from, the buffers it may use."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.msccl.aliasing import Cell, Mode
from taccl.msccl.findings import Finding
from taccl.msccl.program import Buffer, Program, Slot

Value = tuple[tuple[int, int], ...]
"""Input chunks added up: (rank, offset in its input), ascending."""

UNDEFINED: Value = ((-1, -1),)
"""What is made of memory that nobody wrote."""

MAX_WORK = 3_000_000
"""Chunks that steps move, above which a program is not followed (no runtime holds that many)."""

_KNOWN = tuple(name for name, kind in COLLECTIVES.items() if kind.xml_name)
_ANY_COUNT = ("allreduce", "broadcast", "reduce")
"""Collectives whose chunks ranks need not share evenly."""


def work_of(program: Program) -> int:
    """Return how many chunks the steps of a program move."""
    return sum(step.count for _, block in program.blocks() for step in block.steps)


def expected_of(program: Program, root: int = 0) -> Collective | Finding:
    """Return what a program's name and chunk count say it does; a finding when they say nothing."""
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
    """Return what a target should have; copies of one chunk are one value, that of the first."""
    sources = collective.sources(chunk)
    named = sources if collective.reduces else sources[:1]
    return tuple((rank, collective.input_offset(chunk, rank)) for rank in named)


def inputs_of(collective: Collective, mode: Mode) -> dict[tuple[int, Cell], Value]:
    """Return the memory before the first step."""
    memory: dict[tuple[int, Cell], Value] = {}
    for chunk in range(collective.num_chunks):
        whole = value_of(collective, chunk)
        for rank in collective.sources(chunk):
            offset = collective.input_offset(chunk, rank)
            value = ((rank, offset),) if collective.reduces else whole
            memory[rank, mode.cell(rank, Slot(Buffer.INPUT, offset))] = value
    return memory


def room_of(collective: Collective, mode: Mode) -> Sequence[Mapping[str, int]]:
    """Return the chunks of the buffers that every rank passes; scratch is the runtime's own."""
    sizes = zip(collective.input_sizes, collective.output_sizes, strict=True)
    if not mode.in_place:
        return [{"i": inputs, "o": outputs} for inputs, outputs in sizes]
    shifts = zip(mode.input_shift, mode.output_shift, strict=True)
    return [
        {"user": max(before + inputs if inputs else 0, after + outputs if outputs else 0)}
        for (inputs, outputs), (before, after) in zip(sizes, shifts, strict=True)
    ]
