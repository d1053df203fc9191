"""Rules on data that is summed: every contribution reaches every target exactly once."""

from collections.abc import Iterator
from itertools import pairwise

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
    contributions of all sources.
    """
    full = sends.full
    if not full.collective.reduces:
        return
    rows = np.argsort(full.chunk, kind="stable")
    bounds = np.searchsorted(full.chunk[rows], np.arange(full.collective.num_chunks + 1))
    found = 0
    for chunk, (low, high) in enumerate(pairwise(bounds.tolist())):
        for finding in _follow(sends, chunk, rows[low:high].tolist()):
            yield finding
            found += 1
            if found >= MAX_FINDINGS:
                return


def _follow(sends: Sends, chunk: int, rows: list[int]) -> Iterator[Finding]:
    full = sends.full
    sources = full.collective.sources(chunk)
    value = {rank: 1 << place for place, rank in enumerate(sources)}
    carried: dict[int, int] = {}
    last: dict[int, tuple[int, bool]] = {}
    for time, event, row in _events(sends, rows):
        src, dst = int(sends.src[row]), int(sends.dst[row])
        if event != ARRIVE:
            carried[row] = value.get(src, 0)
            if not carried[row]:
                yield row, f"{sends.name(row)} starts where nothing of the chunk is"
        if event == READ:
            continue
        brought, there, adds = carried.pop(row, 0), value.get(dst, 0), bool(full.reduce[row])
        wrong = (_wrong_sum if adds else _wrong_copy)(sources, brought, there)
        if wrong:
            yield row, f"{sends.name(row)} {wrong}"
        before = last.get(dst)
        if event == ARRIVE and before and before[0] == time and not (adds and before[1]):
            yield (
                row,
                (
                    f"{sends.name(row)} arrives together with another value at"
                    f" {microseconds_text(time)}, and one of them replaces the other"
                ),
            )
        if event == ARRIVE:
            last[dst] = (time, adds)
        value[dst] = there | brought if adds else brought
    whole = (1 << len(sources)) - 1
    for rank in full.collective.targets(chunk):
        lacking = whole & ~value.get(rank, 0)
        if lacking:
            yield None, f"chunk {chunk} at rank {rank} ends without {_values(sources, lacking)}"


def _events(sends: Sends, rows: list[int]) -> list[tuple[int, int, int]]:
    events = []
    for row in rows:
        start, end = int(sends.full.start[row]), int(sends.full.end[row])
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
