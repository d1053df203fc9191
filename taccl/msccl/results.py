"""Which outputs of a program are wrong in the end, what they hold, and which step wrote it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from taccl.collectives import Collective
from taccl.msccl.aliasing import Cell, Mode
from taccl.msccl.expected import UNDEFINED, Value, value_of
from taccl.msccl.findings import Finding
from taccl.msccl.program import Buffer, Slot
from taccl.msccl.run import Place, Run, places

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
    """Yield the outputs that are wrong, chunk by chunk."""
    for chunk in range(collective.num_chunks):
        wanted = value_of(collective, chunk)
        for rank in collective.targets(chunk):
            offset = collective.output_offset(chunk, rank)
            cell = mode.cell(rank, Slot(Buffer.OUTPUT, offset))
            found = memory.get((rank, cell))
            if found != wanted:
                yield Wrong(rank, offset, cell, wanted, found)


def result_findings(run: Run, mode: Mode, wrong: Sequence[Wrong]) -> Iterator[Finding]:
    """Yield a finding for every wrong output, at the step that wrote it last, if one did."""
    writers = _writers(run, mode, {(one.rank, one.cell) for one in wrong})
    for one in wrong:
        place = writers.get((one.rank, one.cell))
        yield Finding(
            "result",
            f"output {one.offset} should be {_words(one.wanted)}, and is {_words(one.found)}",
            one.rank,
            None if place is None else run.blocks[place.block][1].id,
            None if place is None else place.step,
            "receive or copy it there" if place is None else "correct what it writes there, or"
            " what comes before and after it",
        )  # fmt: skip


def _writers(run: Run, mode: Mode, cells: Collection[Owned]) -> dict[Owned, Place]:
    """Return the last step that wrote each of some cells."""
    where = places(run) if cells else []
    found: dict[Owned, Place] = {}
    for number in reversed(run.order if cells else []):
        place = where[number]
        step = run.blocks[place.block][1].steps[place.step]
        if step.target is None:
            continue
        buffer, first = step.target
        for offset in range(first, first + step.count):
            cell = place.rank, mode.cell(place.rank, Slot(buffer, offset))
            if cell in cells:
                found.setdefault(cell, place)
        if len(found) == len(cells):
            break
    return found


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
