"""AllReduce along two trees that meet in an exchange.

Every chunk gets two roots, its owner and a neighbour of it. Each sums what its half of the ranks
hold, the two send each other their sums at one time, and each spreads the total in its half. That
is one hop less than one root takes, and on a ring an eighth less traffic on the busiest link (7
messages in each direction where 4 hops up and 4 down are 8). The trees of the reduction need not
mirror those of the gather.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from taccl.errors import NoScheduleError
from taccl.model.problem import Problem
from taccl.model.routes import build_network, hops_from
from taccl.synth.greedy import greedy_routes, is_complete, routes_of
from taccl.synth.plan import Move, Plan, plan_decisions, rows_of_routes

Partners = tuple[tuple[int, int], ...]
"""For every representative chunk the links from its owner to its partner, and back."""

MOST_PARTNERS = 6
"""Neighbours that are tried as partners, the nearest first."""


def partners_of(problem: Problem) -> Iterator[Partners]:
    """Yield choices of a partner for every representative chunk: the i-th nearest of its owner."""
    table, allowed = problem.topology.links, problem.logical.allowed
    collective = problem.collective
    if not np.array_equal(collective.source_set, collective.target_set):
        return  # some root would have nothing to send before the other's sum comes
    options: list[list[tuple[int, int]]] = []
    for chunk in problem.representatives:
        owner = int(collective.owner[chunk])
        found: dict[tuple[object, ...], tuple[int, int]] = {}
        for there in table.leaving(owner):
            peer = int(table.dst[there])
            back = [link for link in table.between(peer, owner) if allowed[link]]
            if not (allowed[there] and back and collective.is_source(chunk, peer)):
                continue
            orbits = _orbits(problem, there), _orbits(problem, back[0])
            if not set(orbits[0]) & set(orbits[1]):  # else one side waits for the other
                cost = problem.topology.arrival(there, problem.chunk_size)
                found.setdefault((cost, *orbits), (there, back[0]))
        options.append([found[key] for key in sorted(found)][:MOST_PARTNERS])
    for number in range(min(map(len, options), default=0)):
        yield tuple(option[number] for option in options)
    # Chunks of one owner may take different partners.
    if any(a != b for a, b in pairwise(options)) or len(options) < 2 or not options[0]:
        return
    yield tuple(options[0][number % len(options[0])] for number in range(len(options)))


def _orbits(problem: Problem, link: int) -> tuple[int, ...]:
    orbit = problem.group.edge_orbit
    return tuple(int(orbit[edge]) for edge in problem.topology.links.edges_of(link))


def exchanged(problem: Problem, partners: Partners) -> Plan | None:
    """Return the moves of an AllReduce with two roots for every chunk, on greedy trees.

    The `partners` are one choice of :func:`partners_of` for the `problem`, the AllReduce. None
    where some rank can't be reached from the roots.
    """
    table, rows = problem.topology.links, []
    for reverse in (True, False):
        try:
            network = build_network(problem, reverse=reverse)
        except NoScheduleError:
            return None
        demands = []
        for demand, (there, _) in zip(network.demands, partners, strict=True):
            roots = tuple(sorted((*demand.roots, int(table.dst[there]))))
            arcs = tuple(arc for arc in demand.arcs if arc.head not in roots)
            targets = tuple(rank for rank in demand.targets if rank not in roots)
            hops = hops_from(roots, arcs)
            demands.append(replace(demand, roots=roots, targets=targets, arcs=arcs, hops=hops))
        network = replace(network, demands=tuple(demands))
        taken = greedy_routes(network)
        if not is_complete(network, taken):
            return None
        rows.append(rows_of_routes(network, routes_of(network, taken)))
    up, down = rows
    meet = [
        (chunk, link, True)
        for chunk, links in zip(problem.representatives, partners, strict=True)
        for link in links
    ]
    plan = plan_decisions(problem, [*up, *meet, *down])
    return _meeting(plan, range(len(up), len(up) + len(meet)))


def _meeting(plan: Plan, meet: range) -> Plan:
    """Let both sides of every exchange send what they hold without the other's."""
    moves: list[Move] = list(plan.moves)
    both = {number: meet.start + ((number - meet.start) ^ 1) for number in meet}
    for number in meet:
        # Neither may go before both can: what came late to one side would hold up the other's.
        sides = (plan.moves[number], plan.moves[both[number]])
        needs, reads, follows = (
            tuple(sorted({move for some in before for move in some} - {number, both[number]}))
            for before in zip(*(side[3:] for side in sides), strict=True)
        )
        moves[number] = moves[number]._replace(needs=needs, reads_first=reads, follows=follows)
    for number in range(meet.stop, len(moves)):
        move = moves[number]
        met = tuple(both[n] for n in move.needs if n in both)
        moves[number] = move._replace(follows=(*move.follows, *met))
    return Plan(plan.problem, tuple(moves), exchanges=both)
