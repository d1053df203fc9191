"""Which moves may travel as one message: runs of chunks adjacent at both ends.

The test is that of :class:`taccl.slots.Slots`, asked for every image of the representatives, so
that a batch found here is one that the lowering can write as one step.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from taccl.schedule import Decisions, message_groups
from taccl.slots import DEFAULT_LAYOUT, Slots, place_chunks
from taccl.synth.plan import Plan, plan_decisions, rows_of
from taccl.synth.problem import Problem

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MAX_CANDIDATES = 2500

Message = tuple[int, ...]
"""Moves that travel together, in the order of their places."""


def adjacent(problem: Problem, decisions: Decisions) -> Decisions:
    """Return decisions whose messages are runs of chunks that are adjacent at both ends.

    What travels together in one collective may not in another: a ReduceScatter keeps its partial
    sums in scratch, and only those that it has; an AllReduce keeps them where all chunks are.

    Parameters
    ----------
    problem
        With the symmetries of the decisions, which have no exchanges.
    """
    groups = message_groups(decisions.batch)
    if all(len(rows) == 1 for rows in groups):
        return decisions
    adjacency = Adjacency(plan_decisions(problem, rows_of(decisions)))
    batch = np.zeros(len(decisions.batch), dtype=np.int32)
    message = -1
    for rows in groups:
        run: list[int] = []
        for row in rows:
            run.append(row)
            if len(run) == 1 or not adjacency.together(run):
                message, run = message + 1, [row]
            batch[row] = message
    return replace(decisions, batch=batch)


class Adjacency:
    """Where every image of every move reads and writes, with scratch in one of LAYOUTS."""

    def __init__(self, plan: Plan, layout: str = DEFAULT_LAYOUT) -> None:
        self.plan = plan
        self.layout = layout
        problem = plan.problem
        self._chunks: list[list[int]] = []
        self._ends: list[list[tuple[int, int]]] = []
        table = problem.topology.links
        for number, element in enumerate(problem.group.elements):
            image = problem.collective.image(element)
            links = problem.group.link_image(number, [move.link for move in plan.moves])
            self._chunks.append([int(image[move.chunk]) for move in plan.moves])
            self._ends.append([(int(table.src[k]), int(table.dst[k])) for k in links])

    @cached_property
    def slots(self) -> Slots:
        """The places of all chunks under the plan's routes."""
        hops = (
            (chunk, src, dst)
            for chunks, ends in zip(self._chunks, self._ends, strict=True)
            for chunk, (src, dst) in zip(chunks, ends, strict=True)
        )
        ranks = range(self.plan.problem.topology.num_ranks)
        return place_chunks(self.plan.problem.collective, hops, dict.fromkeys(ranks, self.layout))

    @property
    def relays(self) -> bool:
        """Whether any rank has chunks in scratch, so that the layout matters."""
        return any(self.slots.scratch_chunks)

    def together(self, message: Sequence[int]) -> bool:
        """Tell whether all images of these moves, in this order, can travel as one step."""
        moves = self.plan.moves
        arrived = [bool(moves[number].needs) for number in message]
        reduce = moves[message[0]].reduce
        for chunks, ends in zip(self._chunks, self._ends, strict=True):
            src, dst = ends[message[0]]
            if not self.slots.adjacent(
                [chunks[number] for number in message], src, dst, arrived, reduce=reduce
            ):
                return False
        return True

    def runs(self) -> Iterator[Message]:
        """Yield maximal runs of moves on one link of which each pair of neighbours is adjacent."""
        by_link: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, move in enumerate(self.plan.moves):
            by_link[move.link, move.reduce].append(number)
        for numbers in by_link.values():
            numbers.sort(key=self._place)
            run = [numbers[0]]
            for number in numbers[1:]:
                if self.together((run[-1], number)):
                    run.append(number)
                else:
                    yield tuple(run)
                    run = [number]
            yield tuple(run)

    def _place(self, number: int) -> tuple[str, int, int]:
        chunk, (src, dst) = self._chunks[0][number], self._ends[0][number]
        held = self.slots.held(chunk, dst)
        if self.plan.moves[number].reduce or held is None:
            read = self.slots.readable(chunk, src, arrived=bool(self.plan.moves[number].needs))
            return (read[0].buffer, read[0].offset, chunk)
        return (held.buffer, held.offset, chunk)

    def pieces(self, longest: int) -> list[Message]:
        """Cut every run into messages of at most so many chunks."""
        messages = []
        for run in self.runs():
            start = 0
            while start < len(run):
                stop = min(start + longest, len(run))
                while stop > start + 1 and not self.together(run[start:stop]):
                    stop -= 1
                messages.append(run[start:stop])
                start = stop
        return messages

    def candidates(self) -> list[Message]:
        """Return single moves and the messages of several that an optimiser may choose from."""
        found: dict[Message, None] = {(n,): None for n in range(len(self.plan.moves))}
        runs = list(self.runs())
        for length in LENGTHS:
            for run in runs:
                for start in range(len(run) - length + 1):
                    if len(found) > MAX_CANDIDATES:
                        return list(found)
                    part = run[start : start + length]
                    if self.together(part):
                        found[part] = None
        for run in runs:
            if len(run) > 1 and self.together(run):
                found[run] = None
        return list(found)
