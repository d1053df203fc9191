"""Messages of several chunks, made while they are dispatched: whatever is ready travels together.

A message that waits for all of its chunks leaves its link idle; one that takes what has arrived
by then does not, and grows by itself where a link is busy. So time goes from event to event as in
dispatch_loop.py, and each time a link is free the chunk with the longest way left takes along
those beside it, at both ends, that are there. What ends at a link's head lies elsewhere than what
is sent on from there, so it comes last, apart, and nothing has to wait for it.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from taccl.synth.batching import Adjacency, Message
from taccl.synth.plan import Plan

if TYPE_CHECKING:
    from taccl.units import Time


NOTHING = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """How long messages may grow.

    Parameters
    ----------
    busiest, others
        Chunks in a message over the busiest resources, and over the rest.
    """

    busiest: int
    others: int


class Runs:
    """The moves of a plan as runs of neighbours, and which of them hold the busiest resources."""

    def __init__(self, adjacency: Adjacency) -> None:
        self.adjacency, self.plan = adjacency, adjacency.plan
        self.runs = [tuple(run) for run in adjacency.runs()]
        self.place = {
            move: (number, at)
            for number, run in enumerate(self.runs)
            for at, move in enumerate(run)
        }
        self.children: list[list[int]] = [[] for _ in self.plan.moves]
        self.later: list[list[int]] = [[] for _ in self.plan.moves]
        for number, move in enumerate(self.plan.moves):
            for before in move.needs:
                self.children[before].append(number)
            for before in (*move.follows, *move.reads_first):
                self.later[before].append(number)
        self.busiest = _busiest(self.plan)

    def limit(self, move: int, limits: Limits) -> int:
        """Return how many chunks may travel with a move."""
        return limits.busiest if self.plan.moves[move].link in self.busiest else limits.others

    def around(self, move: int, ready: Sequence[bool], limits: Limits) -> Message:
        """Return a move and what is ready beside it, on both sides in turn, up to the limit."""
        number, at = self.place[move]
        run, most = self.runs[number], self.limit(move, limits)
        first, stop = at, at + 1
        while stop < len(run) and stop - first < most and ready[run[stop]]:
            stop += 1
        while first > 0 and stop - first < most and ready[run[first - 1]]:
            first -= 1
        while stop - first > 1 and not self.adjacency.together(run[first:stop]):
            if stop - 1 > at:
                stop -= 1
            else:
                first += 1
        return run[first:stop]


def _busiest(plan: Plan) -> frozenset[int]:
    """Return the links that hold a resource at least nine tenths as long as any is held."""
    load: dict[int, Time] = defaultdict(int)
    for move in plan.moves:
        for resource, held in plan.costs(move.link, 1)[1]:
            load[resource] += held
    most = max(load.values(), default=0)
    heavy = {resource for resource, held in load.items() if 10 * held >= 9 * most}
    return frozenset(
        move.link
        for move in plan.moves
        if any(resource in heavy for resource, _ in plan.costs(move.link, 1)[1])
    )


def gathered(runs: Runs, limits: Limits, before: Sequence[int]) -> list[Message]:
    """Return the messages of a plan without symmetry, in the order of their starts.

    Parameters
    ----------
    before
        Of every move: smaller goes first.

    Raises
    ------
    ValueError
        When moves wait for each other in a ring.
    """
    state = _State(runs, before)
    state.offer(number for number, missing in enumerate(state.missing) if not missing)
    while True:
        state.start_all(limits)
        if not state.events:
            break
        state.advance()
    if sum(map(len, state.sent)) < len(runs.plan.moves):
        raise ValueError("messages wait for each other in a ring")
    return state.sent


class _State:
    """What is sent so far, what could be, and what happens next."""

    def __init__(self, runs: Runs, before: Sequence[int]) -> None:
        self.runs, self.before = runs, before
        moves = runs.plan.moves
        self.missing = [len(m.needs) + len(m.follows) + len(m.reads_first) for m in moves]
        self.ready = [False] * len(moves)
        self.queues: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.resources = {
            link: tuple(resource for resource, _ in runs.plan.costs(link, 1)[1])
            for link in {move.link for move in moves}
        }
        self.free: dict[int, Time] = defaultdict(int)
        self.waiting: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
        self.next: list[tuple[tuple[int, int], int, int]] = []
        self.fresh: set[int] = set()
        self.events: list[tuple[Time, int, int]] = []
        self.sent: list[Message] = []
        self.now: Time = 0

    def offer(self, moves: Iterable[int]) -> None:
        """Queue moves that wait for nothing."""
        for move in moves:
            link = self.runs.plan.moves[move].link
            self.ready[move] = True
            heapq.heappush(self.queues[link], (self.before[move], move))
            self.fresh.add(link)

    def settle(self, moves: Sequence[int]) -> None:
        """Count down what some moves wait for, once for each time they are given."""
        for move in moves:
            self.missing[move] -= 1
        self.offer([move for move in dict.fromkeys(moves) if not self.missing[move]])

    def top(self, link: int) -> tuple[int, int] | None:
        """Return the first of the moves that wait for a link."""
        queue = self.queues[link]
        while queue and not self.ready[queue[0][1]]:
            heapq.heappop(queue)
        return queue[0] if queue else None

    def start_all(self, limits: Limits) -> None:
        """Start what can start now, the first by preference first."""
        while True:
            for link in self.fresh:
                if top := self.top(link):
                    heapq.heappush(self.next, (top, link, NOTHING))
            self.fresh.clear()
            if not self.next:
                return
            (_, move), link, origin = heapq.heappop(self.next)
            if self.ready[move] and not self.blocked(link, (self.before[move], move)):
                self.start(self.runs.around(move, self.ready, limits))
            if origin != NOTHING:
                self.come_up(origin)

    def blocked(self, link: int, top: tuple[int, int]) -> bool:
        """Tell whether a link is busy; then it waits for the resource that is free last."""
        free = self.free
        last = max(self.resources[link], key=lambda one: free[one], default=None)
        if last is None or free[last] <= self.now:
            return False
        heapq.heappush(self.waiting[last], (top, link))
        return True

    def come_up(self, resource: int) -> None:
        """Let the first of those that wait for a resource be tried, if the resource is free."""
        waiting = self.waiting[resource]
        while waiting and self.free[resource] <= self.now:
            _, link = heapq.heappop(waiting)
            if top := self.top(link):
                heapq.heappush(self.next, (top, link, resource))
                return

    def start(self, message: Message) -> None:
        """Start a message."""
        number = len(self.sent)
        link = self.runs.plan.moves[message[0]].link
        arrival, uses = self.runs.plan.costs(link, len(message))
        self.sent.append(message)
        for move in message:
            self.ready[move] = False
        for resource, held in uses:
            self.free[resource] = self.now + held
            heapq.heappush(self.events, (self.now + held, 1, resource))
        self.fresh.add(link)
        heapq.heappush(self.events, (self.now + arrival, 0, number))
        self.settle(list(chain.from_iterable(self.runs.later[move] for move in message)))

    def advance(self) -> None:
        """Go to the next instant at which anything happens, and let it happen."""
        self.now = self.events[0][0]
        while self.events and self.events[0][0] == self.now:
            _, kind, number = heapq.heappop(self.events)
            if kind:
                self.come_up(number)
            else:
                arrived = self.sent[number]
                self.settle(list(chain.from_iterable(self.runs.children[m] for m in arrived)))
