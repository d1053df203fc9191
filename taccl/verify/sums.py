"""Rules on data that is summed: every contribution reaches every target exactly once."""

from collections.abc import Iterator

import numpy as np

from taccl.verify.sends import MAX_FINDINGS, Finding, Sends, microseconds_text

ARRIVE, PASS, READ = range(3)
"""What happens at one instant, in this order: messages end; messages without duration pass, in
order of rows; messages start, and carry what their source then holds."""


def summed(sends: Sends) -> Iterator[Finding]:
    """Follow the contributions that make up each (chunk, rank), from event to event.

    The value of a source is at first its own contribution. A send carries the value that its
    source has at its start, with every arrival that ended by then. A reducing arrival adds, and
    must bring contributions that are not there; any other arrival replaces, and must hold all
    that it replaces and more. Two arrivals of a chunk at a rank in one instant, of which one
    replaces, have no defined outcome and are refused. In the end every target has the
    contributions of all sources. Representatives are followed where they move one chunk of an
    orbit; what then happens at its ranks happens to its images at theirs.
    """
    schedule = sends.schedule
    if not schedule.collective.reduces:
        return
    rows = np.argsort(sends.turned.chunk, kind="stable")
    moved = sends.turned.chunk[rows]
    low, high = (np.searchsorted(moved, sends.chunks, side) for side in ("left", "right"))
    found = 0
    for chunk, first, end in zip(*(c.tolist() for c in (sends.chunks, low, high)), strict=True):
        for finding in _follow(sends, chunk, rows[first:end].tolist()):
            yield finding
            found += 1
            if found >= MAX_FINDINGS:
                return


def one_order(sends: Sends) -> bool:
    """Tell whether the order of rows matters to no sum, or is that of its images, too.

    It matters to messages without duration; those of one chunk must then be images by one element.
    """
    if not sends.schedule.collective.reduces or (sends.schedule.end > sends.schedule.start).all():
        return True
    pairs = np.stack([sends.turned.chunk.astype(np.int64), sends.turned.element])
    return len(np.unique(pairs, axis=1)[0]) == len(np.unique(pairs[0]))


def _follow(sends: Sends, chunk: int, rows: list[int]) -> Iterator[Finding]:
    schedule = sends.schedule
    sources = schedule.collective.sources(chunk)
    value = {rank: 1 << place for place, rank in enumerate(sources)}
    carried: dict[int, int] = {}
    last: dict[int, tuple[int, bool]] = {}
    for time, event, row in _events(sends, rows):
        src, dst = int(sends.turned.src[row]), int(sends.turned.dst[row])
        if event != ARRIVE:
            carried[row] = value.get(src, 0)
            if not carried[row]:
                yield _finding(sends, row, "starts where nothing of the chunk is")
        if event == READ:
            continue
        brought, there, adds = carried.pop(row, 0), value.get(dst, 0), bool(schedule.reduce[row])
        wrong = (_wrong_sum if adds else _wrong_copy)(sources, brought, there)
        if wrong:
            yield _finding(sends, row, wrong)
        before = last.get(dst)
        if event == ARRIVE and before and before[0] == time and not (adds and before[1]):
            yield _finding(
                sends, row, f"arrives together with another value at {microseconds_text(time)},"
                " and one of them replaces the other",
            )  # fmt: skip
        if event == ARRIVE:
            last[dst] = (time, adds)
        value[dst] = there | brought if adds else brought
    whole = (1 << len(sources)) - 1
    for rank in schedule.collective.targets(chunk):
        lacking = whole & ~value.get(rank, 0)
        if lacking:
            yield None, f"chunk {chunk} at rank {rank} ends without {_values(sources, lacking)}"


def _finding(sends: Sends, row: int, why: str) -> Finding:
    """Return a finding on the image of a send that was followed."""
    element = int(sends.turned.element[row])
    return sends.expanded_row(row, element), f"{sends.name(row, element)} {why}"


def _events(sends: Sends, rows: list[int]) -> list[tuple[int, int, int]]:
    events = []
    for row in rows:
        start, end = int(sends.schedule.start[row]), int(sends.schedule.end[row])
        if end <= start:
            events.append((start, PASS, row))
        else:
            events += [(start, READ, row), (end, ARRIVE, row)]
    return sorted(events)


def _wrong_sum(sources: tuple[int, ...], brought: int, there: int) -> str:
    if brought & there:
        return f"counts twice {_values(sources, brought & there)}"
    return "" if there else "is added where nothing of the chunk is"


def _wrong_copy(sources: tuple[int, ...], brought: int, there: int) -> str:
    if there & ~brought:
        return f"replaces a sum and loses {_values(sources, there & ~brought)}"
    return "brings nothing new" if brought == there else ""


def _values(sources: tuple[int, ...], mask: int) -> str:
    ranks = [str(rank) for place, rank in enumerate(sources) if mask >> place & 1]
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    what = "the value of rank" if len(ranks) == 1 else "the values of ranks"
    return f"{what} {', '.join(ranks[:10])}{more}"
