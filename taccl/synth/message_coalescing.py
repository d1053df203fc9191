"""What may go together in one message: parts of one chunk, or chunks made one after another.

**Parts**: fine cuts fill a pipeline early and pay alpha often. Here every chunk of a schedule is
cut into parts that take the chunk's routes, all parts are list-scheduled one by one, and then
messages that follow each other on a link become one wherever the later arrival of the first is
within its slack. So the first and the last messages stay small. First the earliest of these pairs
are joined and all messages list-scheduled anew, for several shares of them; then all others that
may, in the order there is.

**Pieces** are chunks that are made, or used, one after another. Each on its own starts as soon as
it may, and pays every latency anew; all together wait for the last. In between lie the ways to cut
the sequence of pieces into groups: a group goes the way that is best for all data at once, with its
pieces side by side in every message, as soon as its last piece is made. What a group takes is asked
of the clock, as if groups did not overlap; the few best ways are then timed exactly.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from taccl.collectives import COLLECTIVES, build_collective
from taccl.collectives.chunks import places_in
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.list_scheduler import (
    decide,
    load_of,
    message_graph,
    message_uses,
    messages_by_start,
)
from taccl.synth.plan import Adjacency, Message, Plan, plan_decisions, rows_of
from taccl.timing.retiming import reversed_uses, starts_in_order
from taccl.units import Time

Pair = tuple[Message, Message]

ROUNDS = 8
"""Times that messages are joined and scheduled anew."""

PREFIXES = 8
"""Parts of the pairs, by their start, of which the first ones are joined at once."""

MOST_ROWS = 200_000
"""Sends, over all orbits, up to which neighbours are looked for."""


def coarser(problem: Problem, parts: int) -> Problem | None:
    """Return the same problem in chunks of so many; None where there is none."""
    collective = problem.collective
    if collective.is_timed or collective.name not in COLLECTIVES:
        return None
    if collective.chunks_per_rank % parts:
        return None
    coarse = build_collective(
        collective.name,
        collective.num_ranks,
        collective.chunks_per_rank // parts,
        collective.root if COLLECTIVES[collective.name].has_root else None,
    )
    return replace(problem, collective=coarse, chunk_size=problem.chunk_size * parts)


def cut_and_joined(
    problem: Problem,
    coarse: Schedule,
    parts: int,
    report: Callable[[str], None],
    over: Callable[[], bool],
) -> Schedule:
    """Return a schedule of a `problem` on the routes of one with larger chunks.

    The problem has the symmetries of the `coarse` schedule, which is one of :func:`coarser`, one
    chunk to a message, without exchanges; each of its chunks is `parts` of the problem's. A line of
    progress goes to `report`; when it is `over`, joining stops with what there is.
    """
    rows = [
        (chunk * parts + part, link, reduce)
        for chunk, link, reduce in rows_of(coarse.decisions())
        for part in range(parts)
    ]
    plan = plan_decisions(problem, rows)
    singles: list[Message] = [(number,) for number in range(len(plan.moves))]
    messages = _dispatched(plan, singles, report)
    best = _timed(plan, messages)
    if len(rows) * len(problem.group) > MOST_ROWS:
        return best
    adjacency = Adjacency(plan)
    messages, best = _early(plan, (messages, best), adjacency, report, over)
    for _ in range(ROUNDS):
        if over():
            break
        before = len(messages)
        for pairs in _in_groups(plan, _pairs(plan, adjacency, messages, best)):
            messages, best = _tried(plan, adjacency, (messages, best), pairs, over)
        if len(messages) == before:
            break
    return best


def _early(
    plan: Plan,
    first: tuple[list[Message], Schedule],
    adjacency: Adjacency,
    report: Callable[[str], None],
    over: Callable[[], bool],
) -> tuple[list[Message], Schedule]:
    """Join the pairs that start first, and order all anew: as many as make it the fastest.

    What comes last is to stay in parts, as nothing fills the time that it waits for.
    """
    found = first
    at_first = _pairs(plan, adjacency, *first)
    for share in range(1, PREFIXES + 1):
        messages, best = first
        pairs = at_first
        for _ in range(ROUNDS):
            if over():
                return found
            kept = pairs[: len(pairs) * share // PREFIXES]
            joined = _in_turn(plan, _join(adjacency, messages, kept))
            if not joined or len(joined) == len(messages):
                break
            ordered = _dispatched(plan, joined, report)
            schedule = _timed(plan, ordered)
            if schedule.makespan > best.makespan:
                break
            messages, best = ordered, schedule
            if best.makespan < found[1].makespan:
                found = messages, best
            pairs = _pairs(plan, adjacency, messages, best)
    return found


def _dispatched(
    plan: Plan, messages: Sequence[Message], report: Callable[[str], None]
) -> list[Message]:
    """Return messages in the order in which a list scheduler sends them."""
    return messages_by_start(load_of(plan, messages), report)[0]


def _tried(
    plan: Plan,
    adjacency: Adjacency,
    before: tuple[list[Message], Schedule],
    pairs: Sequence[Pair],
    over: Callable[[], bool],
) -> tuple[list[Message], Schedule]:
    """Join as many pairs as slack allows: all, or each half by itself."""
    messages, best = before
    todo = [list(pairs)]
    while todo and not over():
        group = todo.pop()
        joined = _in_turn(plan, _join(adjacency, messages, group))
        if len(joined) == len(messages):
            continue
        schedule = _timed(plan, joined) if joined else None
        if schedule is not None and schedule.makespan <= best.makespan:
            messages, best = joined, schedule
        elif len(group) > 1:
            todo += [group[len(group) // 2 :], group[: len(group) // 2]]
    return messages, best


def _join(
    adjacency: Adjacency, messages: Sequence[Message], pairs: Sequence[Pair]
) -> list[Message]:
    """Return the messages with pairs joined, where both sides are still there."""
    known = dict.fromkeys(messages)
    following = {one: other for one, other in pairs if one in known and other in known}
    gone: set[Message] = set()
    joined = []
    for message in messages:
        if message in gone:
            continue
        other = following.get(message)
        if other is not None and other not in gone and adjacency.together(message + other):
            gone.add(other)
            joined.append(message + other)
        else:
            joined.append(message)
    return joined


def _in_groups(plan: Plan, pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the pairs by the busiest resource of their link, the busiest first."""
    load: dict[int, int] = defaultdict(int)  # picoseconds by resource
    for move in plan.moves:
        for resource, held in plan.costs(move.link, 1)[1]:
            load[resource] += held
    groups: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        uses = plan.costs(plan.moves[pair[0][0]].link, 1)[1]
        groups[max((load[resource] for resource, _ in uses), default=0)].append(pair)
    return [groups[peak] for peak in sorted(groups, reverse=True)]


def _timed(plan: Plan, messages: Sequence[Message]) -> Schedule:
    return plan.problem.timed(decide(plan, messages))


def _in_turn(plan: Plan, messages: Sequence[Message]) -> list[Message]:
    """Return messages as they stand, but each after all that it needs; none if they form a ring."""
    graph = message_graph(plan, messages)
    missing = [len(waiting) for waiting in graph.waiting]
    heap = [number for number, count in enumerate(missing) if count == 0]
    found = []
    while heap:
        number = heapq.heappop(heap)
        found.append(messages[number])
        for child in graph.children[number]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(heap, child)
    return found if len(found) == len(messages) else []


def _pairs(
    plan: Plan, adjacency: Adjacency, messages: Sequence[Message], schedule: Schedule
) -> list[Pair]:
    """Return messages that follow each other on a link, and could be one within their slack."""
    first = np.cumsum([0, *(len(message) for message in messages[:-1])])
    start, end = schedule.start[first].tolist(), schedule.end[first].tolist()
    graph, uses = message_graph(plan, messages), message_uses(plan, messages)
    last = max(end)
    # Backwards in time each message starts as soon as it may after those that need it: it may
    # arrive so much later with all others in this order, and nothing ending after the last of all.
    waits = [[(child, True) for child in children] for children in graph.children]
    backwards = starts_in_order(reversed_uses(uses), waits, range(len(messages) - 1, -1, -1))
    start_by = (last - np.array(backwards, dtype=np.int64) - uses.arrival).tolist()
    slack = [
        min((start_by[child] for child in children), default=last) - end[number]
        for number, children in enumerate(graph.children)
    ]
    ready = [max((end[n] for n in waiting), default=0) for waiting in graph.waiting]
    by_link: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        move = plan.moves[message[0]]
        by_link[move.link, move.reduce].append(number)
    found = []
    for (link, _), numbers in by_link.items():
        for one, other in pairwise(numbers):
            both = messages[one] + messages[other]
            late = plan.costs(link, len(both))[0] - plan.costs(link, len(messages[one]))[0]
            if ready[other] <= start[one] and late <= slack[one] and adjacency.together(both):
                found.append((start[one], messages[one], messages[other]))
    return [(one, other) for _, one, other in sorted(found)]


MOST_PIECES = 12
"""Pieces of which all ways to cut them are looked at; of more, groups of equal length."""

BEST = 6
"""Ways that are timed exactly."""


def in_one_piece(problem: Problem) -> Problem | None:
    """Return the same with the pieces of every rank in one chunk, ready at once.

    None where times do not go by pieces.
    """
    collective, pieces = problem.collective, problem.collective.chunks_per_rank
    if collective.name not in COLLECTIVES or pieces == 1 or not collective.is_timed:
        return None
    for column in (collective.ready, collective.tail):
        if column is not None and (np.ptp(column.reshape(-1, pieces), axis=0) > 0).any():
            return None
    root = collective.root if COLLECTIVES[collective.name].has_root else None
    whole = build_collective(collective.name, collective.num_ranks, 1, root)
    return replace(problem, collective=whole, chunk_size=problem.chunk_size * pieces)


def in_groups(problem: Problem, one: Schedule) -> Iterator[Schedule]:
    """Yield schedules of a `problem` that take `one` of :func:`in_one_piece` group by group."""
    orbits = replace(problem, group=one.group)
    collective, pieces = problem.collective, problem.collective.chunks_per_rank
    ready, tail = (
        [0] * pieces if column is None else column[:pieces].tolist()
        for column in (collective.ready, collective.tail)
    )
    single = replace(orbits, collective=one.collective)
    decisions, messages = one.decisions(), len(np.unique(one.batch))
    took = [
        replace(single, chunk_size=problem.chunk_size * length).timed(decisions).makespan
        for length in range(1, pieces + 1)
    ]

    def cost(cuts: Sequence[int]) -> Time:
        end = last = 0
        for first, stop in pairwise(cuts):
            end = max(end, max(ready[first:stop])) + took[stop - first - 1]
            last = max(last, end + max(tail[first:stop]))
        return last

    ways: list[tuple[int, ...]] = [
        (*range(0, pieces, length), pieces) for length in range(1, pieces + 1)
    ]
    if pieces <= MOST_PIECES:
        inner = range(1, pieces)
        ways = [(0, *cuts, pieces) for n in range(pieces) for cuts in combinations(inner, n)]
    for cuts in sorted(ways, key=cost)[:BEST]:
        yield orbits.timed(_together(decisions, messages, cuts, pieces))


def _together(decisions: Decisions, messages: int, cuts: Sequence[int], pieces: int) -> Decisions:
    """Return decisions of whole chunks for the pieces of one group after the other."""
    rows, count = len(decisions.chunk), len(cuts) - 1
    length = np.repeat(np.diff(cuts), rows)
    row = np.repeat(np.tile(np.arange(rows), count), length)
    group = np.repeat(np.repeat(np.arange(count), rows), length)
    start = np.cumsum(length) - length
    piece = np.array(cuts)[group] + places_in(length)
    batch = np.unique(decisions.batch, return_inverse=True)[1][row] + group * messages
    visible_from = None
    if decisions.visible_from is not None:
        # A row of a group is seen from the first row on that follows from one that saw it.
        firsts = np.append(start, len(row)).reshape(-1)
        later = group * rows + decisions.visible_from[row]
        visible_from = firsts[np.minimum(later, (group + 1) * rows)].astype(np.int32)
    return Decisions(
        (decisions.chunk[row] * pieces + piece).astype(np.int32), decisions.link[row],
        batch.astype(np.int32), decisions.reduce[row], visible_from,
        # Pieces of several chunks lie apart where others of the chunks stay behind.
        decisions.packs or (count > 1 and messages < rows),
    )  # fmt: skip
