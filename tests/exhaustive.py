"""A slow, literal simulation of a schedule, to check the verifier against.

It shares no code with the verifier, nor with the code that computes times: costs are added up
from the edges, values are multisets of contributions, and events are played one by one.
"""

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import groupby, permutations

from taccl.model.schedule import Schedule, Send
from taccl.topology.graph import Topology

Value = tuple[tuple[int, int], ...]
"""(contributor, how often), ascending; empty: nothing is there."""


def sound(schedule: Schedule) -> bool:
    """Tell whether durations, resources and the data at the end of a schedule are all right."""
    messages: dict[int, list[Send]] = defaultdict(list)
    for send in schedule.sends():
        messages[send.batch].append(send)
    return (
        all(_is_one_message(schedule, sends) for sends in messages.values())
        and _resources_are_exclusive(schedule, messages)
        and _data_is_right(schedule)
    )


def _edge_overhead(topology: Topology, edge_id: int) -> int:
    edge = topology.edges[edge_id]
    if edge.overhead is not None:
        return edge.overhead
    return {"occupy": edge.alpha, "delay": 0}[topology.alpha_rule]


def _ceil(exact: Fraction) -> int:
    whole = int(exact)
    return whole if whole == exact else whole + 1


def _is_one_message(schedule: Schedule, sends: list[Send]) -> bool:
    """One link, one interval, distinct chunks, and alpha + ceil(max beta * bytes)."""
    if len({(send.link, send.start, send.end, send.reduce) for send in sends}) != 1:
        return False
    edges = [schedule.topology.edges[e] for e in schedule.topology.link(sends[0].link).edges]
    size = schedule.chunk_size * len(sends)
    slowest = max(_ceil((edge.beta or 0) * size) for edge in edges)
    duration = sum(edge.alpha for edge in edges) + slowest
    chunks = {send.chunk for send in sends}
    first = sends[0]
    return len(chunks) == len(sends) and first.start >= 0 and first.end - first.start == duration


def _resources_are_exclusive(schedule: Schedule, messages: dict[int, list[Send]]) -> bool:
    topology = schedule.topology
    held: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for sends in messages.values():
        edges = topology.link(sends[0].link).edges
        overhead = sum(_edge_overhead(topology, edge) for edge in edges)
        for edge in edges:
            beta = topology.edges[edge].beta
            if beta is not None:
                time = overhead + _ceil(beta * schedule.chunk_size * len(sends))
                held[edge].append((sends[0].start, sends[0].start + time))
    return not any(
        a[0] < b[1] and b[0] < a[1]
        for intervals in held.values()
        for i, a in enumerate(intervals)
        for b in intervals[:i]
        if a[0] < a[1] and b[0] < b[1]
    )


def _data_is_right(schedule: Schedule) -> bool:
    """Play all events; every target must end with the value the collective promises."""
    collective = schedule.collective
    state: dict[tuple[int, int], Value] = {}
    for chunk in range(collective.num_chunks):
        for rank in collective.sources(chunk):
            state[chunk, rank] = ((rank if collective.reduces else -1, 1),)
    sends = list(schedule.sends())
    flying: dict[int, Value] = {}
    for time in sorted({t for send in sends for t in (send.start, send.end)}):
        landing = [i for i, s in enumerate(sends) if s.end == time and s.start < time]
        if not _land(schedule, sends, landing, state, flying):
            return False
        for i, send in enumerate(sends):
            if send.start == time:
                flying[i] = state.get((send.chunk, schedule.topology.link(send.link).src), ())
                if not flying[i] or (
                    send.end == time and not _land(schedule, sends, [i], state, flying)
                ):
                    return False
    return all(
        state.get((chunk, rank), ()) == _promised(schedule, chunk)
        for chunk in range(collective.num_chunks)
        for rank in collective.targets(chunk)
    )


def _promised(schedule: Schedule, chunk: int) -> Value:
    sources = schedule.collective.sources(chunk)
    return tuple((rank, 1) for rank in sources) if schedule.collective.reduces else ((-1, 1),)


def _land(
    schedule: Schedule, sends: list[Send], rows: list[int],
    state: dict[tuple[int, int], Value], flying: dict[int, Value],
) -> bool:  # fmt: skip
    """Let messages arrive; False when the result depends on their order in the instant."""

    def place(row: int) -> tuple[int, int]:
        return sends[row].chunk, schedule.topology.link(sends[row].link).dst

    for where, group in groupby(sorted(rows, key=lambda row: (*place(row), row)), key=place):
        results = set()
        for order in permutations(group):
            value = state.get(where, ())
            for row in order:
                value = _sum(value, flying[row]) if sends[row].reduce else flying[row]
            results.add(value)
        if len(results) > 1:
            return False
        state[where] = results.pop()
    return True


def _sum(a: Value, b: Value) -> Value:
    total: Counter[int] = Counter(dict(a))
    total.update(dict(b))
    return tuple(sorted(total.items()))
