"""Rules on messages and resources: duration, start, adjacency, one message at a time on an edge."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.slots import INPUT, OUTPUT, SCRATCH, Slots
from taccl.verify.sends import MAX_FINDINGS, Finding, Int64, Sends, microseconds_text


def message(sends: Sends) -> Iterator[Finding]:
    """Check that a batch is one message and lasts alpha + ceil(max beta * its bytes)."""
    schedule, first = sends.schedule, sends.first[sends.message]
    for column, what in (
        (schedule.link, "link"), (schedule.start, "start"), (schedule.end, "end"),
        (schedule.reduce, "reduce flag"),
    ):  # fmt: skip
        yield from sends.findings(
            column != column[first], f"has another {what} than its batch, which is one message"
        )
    yield from _twice_in_a_message(sends)
    rows = sends.first
    expected = _durations(sends, schedule.link[rows])
    took = schedule.end[rows] - schedule.start[rows]
    for number in np.flatnonzero(took != expected)[:MAX_FINDINGS].tolist():
        row = int(rows[number])
        yield (
            row,
            (
                f"{sends.name(row)} takes {microseconds_text(int(took[number]))}; its message of"
                f" {sends.carried[number]} chunks takes {microseconds_text(int(expected[number]))}"
            ),
        )


def _twice_in_a_message(sends: Sends) -> Iterator[Finding]:
    order = np.lexsort((sends.schedule.chunk, sends.message))
    chunk, number = sends.schedule.chunk[order], sends.message[order]
    again = (chunk[1:] == chunk[:-1]) & (number[1:] == number[:-1])
    wrong = np.zeros(len(order), dtype=np.bool_)
    wrong[order[1:][again]] = True
    yield from sends.findings(wrong, "is twice in one message")


def _durations(sends: Sends, link: NDArray[np.int32]) -> Int64:
    """Return the time from start to arrival of every message."""
    table = sends.schedule.topology.links
    betas, of_edge = _numbered_betas(sends)
    # The betas are numbered in ascending order: the largest number is the largest beta.
    slowest = np.maximum.reduceat(of_edge[table.edge_ids], table.edge_start[:-1])
    return table.alpha[link] + _transfers(sends, betas, slowest[link], sends.carried)


def _numbered_betas(sends: Sends) -> tuple[list[Fraction], Int64]:
    """Return the distinct betas, ascending, and the number of every edge's beta."""
    of_edge = [edge.beta or Fraction(0) for edge in sends.schedule.topology.edges]
    betas = sorted(set(of_edge))
    number = {beta: i for i, beta in enumerate(betas)}
    return betas, np.array([number[beta] for beta in of_edge], dtype=np.int64)


def _transfers(sends: Sends, betas: list[Fraction], beta: Int64, carried: Int64) -> Int64:
    """Return ceil(beta * chunks * chunk size) in exact arithmetic, once for each combination."""
    width = int(carried.max()) + 1 if len(carried) else 1
    codes, where = np.unique(beta * width + carried, return_inverse=True)
    times = []
    for code in codes.tolist():
        exact = betas[code // width] * (code % width) * sends.schedule.chunk_size
        times.append(-(-exact.numerator // exact.denominator))
    return np.array(times, dtype=np.int64)[where]


def start(sends: Sends) -> Iterator[Finding]:
    """Check that nothing starts before time 0."""
    yield from sends.findings(sends.schedule.start < 0, "starts before time 0")


def adjacency(sends: Sends) -> Iterator[Finding]:
    """Check that the chunks of a batch lie side by side where they are read and written.

    A schedule that packs copies them there.
    """
    rows = np.flatnonzero(sends.carried[sends.message] > 1)
    if not len(rows) or sends.schedule.packs:
        return
    slots = sends.schedule.slots()
    rows = rows[np.argsort(sends.message[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(sends.message[rows])) + 1
    found = 0
    for batch in np.split(rows, cuts):
        if found < MAX_FINDINGS and not _side_by_side(sends, slots, batch.tolist()):
            found += 1
            chunks = ", ".join(str(c) for c in sorted(sends.schedule.chunk[batch].tolist())[:10])
            row = int(batch[0])
            yield (
                row,
                (
                    f"{sends.name(row)} travels with chunks that are not adjacent at both ends"
                    f" (chunks {chunks})"
                ),
            )


def needs_no_adjacency(sends: Sends) -> bool:
    """Tell whether no message has several chunks, or ranks pack: no adjacency is judged then."""
    return sends.schedule.packs or bool((sends.carried == 1).all())


def _side_by_side(sends: Sends, slots: Slots, rows: list[int]) -> bool:
    src, dst = int(sends.src[rows[0]]), int(sends.dst[rows[0]])
    reduce = bool(sends.schedule.reduce[rows[0]])
    chunks, fed = sends.schedule.chunk[rows].tolist(), sends.fed[rows].tolist()
    places = [
        {place.buffer: place.offset for place in slots.readable(chunk, src, arrived=arrived)}
        for chunk, arrived in zip(chunks, fed, strict=True)
    ]
    for buffer in (INPUT, OUTPUT, SCRATCH):
        offsets = [place[buffer] for place in places if buffer in place]
        if len(offsets) < len(rows):
            continue
        order = sorted(range(len(rows)), key=offsets.__getitem__)
        in_order, arrived = [chunks[i] for i in order], [fed[i] for i in order]
        if slots.adjacent(in_order, src, dst, arrived, reduce=reduce):
            return True
    return False


def resource(sends: Sends) -> Iterator[Finding]:
    """Check that every edge with a bandwidth carries one message at a time.

    A message holds each edge for its link's overhead plus the bytes at that edge's own beta. Among
    representatives, messages whose edges lie in one orbit meet in some image.
    """
    schedule, table = sends.schedule, sends.schedule.topology.links
    by_start = np.argsort(schedule.start[sends.first], kind="stable")
    link = schedule.link[sends.first[by_start]]
    lengths = (table.edge_start[link + 1] - table.edge_start[link]).astype(np.int64)
    owner = np.repeat(by_start.astype(np.int32), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    edge = table.edge_ids[np.repeat(table.edge_start[link], lengths) + within]
    del within
    is_resource = np.array([e.beta is not None for e in schedule.topology.edges], dtype=np.bool_)
    kept = np.flatnonzero(is_resource[edge])
    kept = kept[np.argsort(sends.edge_orbit[edge[kept]], kind="stable")]
    edge, owner = edge[kept], owner[kept]
    del kept
    yield from _overlaps(sends, edge, owner)


def _overlaps(sends: Sends, edge: NDArray[np.int32], owner: NDArray[np.int32]) -> Iterator[Finding]:
    """Find neighbours that overlap among holds sorted by orbit of edge and then by start."""
    schedule, table = sends.schedule, sends.schedule.topology.links
    betas, of_edge = _numbered_betas(sends)
    rows = sends.first[owner]
    hold = table.overhead[schedule.link[rows]]
    hold += _transfers(sends, betas, of_edge[edge], sends.carried[owner])
    begin = schedule.start[rows]
    if not hold.all():
        # An interval of length 0 holds nothing.
        some = np.flatnonzero(hold)
        edge, rows, begin, hold = edge[some], rows[some], begin[some], hold[some]
    orbit = sends.edge_orbit[edge]
    met = np.flatnonzero((orbit[1:] == orbit[:-1]) & (begin[:-1] + hold[:-1] > begin[1:]))
    for at in met[:MAX_FINDINGS].tolist():
        earlier, later = int(rows[at]), int(rows[at + 1])
        needed, element = int(edge[at + 1]), 0
        if sends.orbits is not None:
            element = sends.orbits.element_between(int(edge[at]), needed)
        until = microseconds_text(int(begin[at] + hold[at]))
        yield (
            later,
            (
                f"{sends.name(later)} needs edge {schedule.topology.edges[needed].name},"
                f" which {sends.name(earlier, element)} holds until {until}"
            ),
        )
