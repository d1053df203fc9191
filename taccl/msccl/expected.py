"""What a program should do: its collective, the memory before it, and what is wrong after it.

An in-place call has one user buffer, so chunks of input and output are one memory cell there: input
chunk x of a rank is its chunk ``x + shift`` and so is output chunk x, with the shifts of
:func:`mode_of`; out of place the two buffers are disjoint (``mscclInPlaceTotalCountHelper``,
``mscclInternalSchedulerSelectAlgo``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.msccl.program import Buffer, Finding, Program, Slot
from taccl.msccl.run import MAX_WORK, Ints, Place, Run

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


class Ends(NamedTuple):
    """Who holds chunks, or wants them: one entry for each chunk and rank, chunk by chunk.

    `first` has (chunks + 1,) entries: where those of each begin. By entry: `chunk`, `rank`, and
    `offset` in its input or output.
    """

    first: Ints
    chunk: Ints
    rank: Ints
    offset: Ints


def inputs_of(collective: Collective) -> Ends:
    """Return where the sources of `collective` have their chunks."""
    return _ends(collective, collective.source_set, collective.input_at, collective.input_elsewhere)


def outputs_of(collective: Collective) -> Ends:
    """Return where the targets of `collective` want their chunks."""
    return _ends(
        collective, collective.target_set, collective.output_at, collective.output_elsewhere
    )


def _ends(
    collective: Collective,
    sets: NDArray[np.int32],
    at: NDArray[np.int32],
    elsewhere: Mapping[tuple[int, int], int],
) -> Ends:
    ranks_of = [np.array(ranks, dtype=np.int64) for ranks in collective.rank_sets]
    lengths = np.array([len(ranks) for ranks in ranks_of], dtype=np.int64)[sets]
    chunk = np.repeat(np.arange(len(sets)), lengths)
    parts = [ranks_of[number] for number in sets.tolist()]
    rank = np.concatenate(parts) if parts else chunk
    offset = at.astype(np.int64)[chunk]
    if elsewhere:
        asked = zip(chunk.tolist(), rank.tolist(), offset.tolist(), strict=True)
        offset = np.array([elsewhere.get((one, of), usual) for one, of, usual in asked])
    return Ends(np.append(0, np.cumsum(lengths)), chunk, rank, offset)


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


class Wrong(NamedTuple):
    """An output of `rank` at `offset` that is not what it should be.

    `wanted` and `found` say how often each input, (rank, offset), was added up; None: the output
    was never written, and nothing: it was made of undefined data. `writer` is the last step that
    wrote it; None: none did.
    """

    rank: int
    offset: int
    wanted: Mapping[tuple[int, int], int]
    found: Mapping[tuple[int, int], int] | None
    writer: Place | None


def result_findings(run: Run, wrong: Iterable[Wrong]) -> Iterator[Finding]:
    """Yield a finding for every `wrong` output of `run`."""
    for one in wrong:
        last = one.writer
        yield Finding(
            "result",
            f"output {one.offset} should be {_words(one.wanted)}, and is {_words(one.found)}",
            one.rank,
            None if last is None else run.blocks[last.block][1].id,
            None if last is None else last.step,
            "receive or copy it there" if last is None else "correct what it writes there, or"
            " what comes before and after it",
        )  # fmt: skip


def _words(times: Mapping[tuple[int, int], int] | None) -> str:
    """Return a value such as ``input 3 of ranks 0, 1 (twice) and 2``."""
    if times is None:
        return "never written"
    if not times:
        return "made of undefined data"
    parts: dict[int, list[str]] = {}
    for rank, offset in sorted(times):
        count = times[rank, offset]
        often = f"{count}" if count < MOST_TIMES else "very many"
        again = {1: "", 2: " (twice)"}.get(count, f" ({often} times)")
        parts.setdefault(offset, []).append(f"{rank}{again}")
    return " + ".join(
        f"input {offset} of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        for offset, ranks in parts.items()
    )


MOST_TIMES = 1 << 40
"""How often an input is counted in a sum, at most: k steps can add it up 2 ** k times."""
