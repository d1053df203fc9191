"""Moves and what must precede them: a routing without an order yet.

A move is one representative chunk crossing one link. It needs every arrival of its chunk at its
source that was planned before it; where values are summed, an arrival must also not overwrite
what an earlier move still reads. :func:`plan_routes` makes the moves of a routing,
:func:`plan_decisions` those of any decisions.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from taccl.schedule import Decisions
from taccl.synth.problem import Problem
from taccl.synth.routes import Network, resource_times
from taccl.synth.routing import Routes
from taccl.units import Time


class Move(NamedTuple):
    """One representative chunk crossing one link.

    ``needs`` are moves that must have arrived, ``reads_first`` moves that must have started
    before this one ends, ``follows`` moves that must be decided first: a sketch wants them
    started first, or they bring the value that this one adds to.
    """

    chunk: int
    link: int
    reduce: bool
    needs: tuple[int, ...]
    reads_first: tuple[int, ...]
    follows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The moves of a problem, parents before children.

    Parameters
    ----------
    problem
        Whose.
    moves
        What is sent.
    exchanges
        Moves that send what their rank holds without what another brings there, by that other:
        the two sides of an exchange name each other.
    """

    problem: Problem
    moves: tuple[Move, ...]
    exchanges: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def tail_time(self) -> tuple[Time, ...]:
        """For every move, the time from its start to the last arrival that needs it."""
        tail = [self.costs(move.link, 1)[0] for move in self.moves]
        after = list(tail)
        for number in range(len(self.moves) - 1, -1, -1):
            for parent in self.moves[number].needs:
                after[parent] = max(after[parent], tail[parent] + after[number])
        return tuple(after)

    def costs(self, link: int, chunks: int) -> tuple[Time, tuple[tuple[int, Time], ...]]:
        """Return (arrival time, (resource orbit, time held)...) of a message on a link."""
        memo = self._memo
        if (link, chunks) not in memo:
            size = chunks * self.problem.chunk_size
            memo[link, chunks] = (
                self.problem.topology.arrival(link, size),
                resource_times(self.problem, link, chunks),
            )
        return memo[link, chunks]

    @cached_property
    def _memo(self) -> dict[tuple[int, int], tuple[Time, tuple[tuple[int, Time], ...]]]:
        return {}


def plan_decisions(problem: Problem, rows: Sequence[tuple[int, int, bool]]) -> Plan:
    """Return the plan of (chunk, link, reduce) rows given in a valid sequence."""
    table = problem.topology.links
    sources, targets = table.src.tolist(), table.dst.tolist()
    arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    reduces = problem.collective.reduces
    own = _own_first(problem, rows)
    copied: dict[tuple[int, int], int] = {}
    moves = []
    for number, (chunk, link, reduce) in enumerate(rows):
        src, dst = sources[link], targets[link]
        needs = tuple(arrived[chunk, src])
        earlier = tuple(sent[chunk, dst]) if reduces else ()
        follows = own.get(number, ())
        if reduces and reduce and (chunk, dst) in copied:
            follows = (*follows, copied[chunk, dst])
        elif not reduce:
            copied.setdefault((chunk, dst), number)
        moves.append(Move(chunk, link, reduce, needs, earlier, follows))
        arrived[chunk, dst].append(number)
        sent[chunk, src].append(number)
    return Plan(problem, tuple(moves))


def _own_first(
    problem: Problem, rows: Sequence[tuple[int, int, bool]]
) -> dict[int, tuple[int, ...]]:
    """Return, for foreign chunks that leave a server, the sender's own moves that go first."""
    if not problem.logical.own_chunks_first or problem.collective.reduces:
        return {}
    topology = problem.topology
    table, server, orbit = topology.links, topology.server_of, problem.group.rank_orbit
    own: dict[int, list[int]] = defaultdict(list)
    foreign: dict[int, int] = {}
    for number, (chunk, link, _) in enumerate(rows):
        src, dst = int(table.src[link]), int(table.dst[link])
        if server[src] != server[dst]:
            if int(problem.collective.owner[chunk]) == src:
                own[int(orbit[src])].append(number)
            else:
                foreign[number] = int(orbit[src])
    return {number: tuple(own[sender]) for number, sender in foreign.items()}


def rows_of_routes(network: Network, routes: Routes) -> list[tuple[int, int, bool]]:
    """Return (chunk, link, reduce) rows of a routing in a valid sequence.

    A reduction plays the trees backwards: children before parents. Where a rank has no value of
    its own, the first to arrive is a copy and the others add to it.
    """
    rows = [
        (demand.chunk, arc.link)
        for demand, arcs in zip(network.demands, routes, strict=True)
        for arc in arcs
    ]
    if not network.reverse:
        return [(chunk, link, False) for chunk, link in rows]
    collective, dst = network.problem.collective, network.problem.topology.links.dst
    holds: set[tuple[int, int]] = set()
    summed = []
    for chunk, link in reversed(rows):
        here = (chunk, int(dst[link]))
        summed.append((chunk, link, here in holds or collective.is_source(*here)))
        holds.add(here)
    return summed


def plan_routes(network: Network, routes: Routes) -> Plan:
    """Return the plan of one routing."""
    return plan_decisions(network.problem, rows_of_routes(network, routes))


def rows_of(decisions: Decisions) -> list[tuple[int, int, bool]]:
    """Return the (chunk, link, reduce) rows of decisions, without their batches."""
    return [(chunk, link, reduce) for chunk, link, _, reduce in decisions.rows()]


def in_turn(problem: Problem, rows: Sequence[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Return the rows of a reduction, each addition after the copy that it adds to.

    In order of starts, an addition from far away may stand before the copy that arrives first.
    """
    collective, dst = problem.collective, problem.topology.links.dst
    waiting: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    begun: set[tuple[int, int]] = set()
    ordered = []
    for row in rows:
        chunk, link, reduce = row
        here = (chunk, int(dst[link]))
        if reduce and here not in begun and not collective.is_source(*here):
            waiting.setdefault(here, []).append(row)
            continue
        begun.add(here)
        ordered += [row, *waiting.pop(here, ())]
    return ordered
