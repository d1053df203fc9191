"""Engine ``taccl``: routing, then ordering, then contiguity and exact times.

The stages of Shah et al. (NSDI 2023, section 5), on orbit representatives. Stage 1 hands over
several routings, as its relaxation can't tell which schedules best; stage 2 orders each by every
rule and with several message sizes; stage 3 improves the best of them exactly. Where routes and
order fit one model, that is solved as well. A greedy schedule stands ready from the
start, so there is always an answer.

**Reduction.** AllReduce along two trees that meet in an exchange.

Every chunk gets two roots, its owner and a neighbour of it. Each sums what its half of the ranks
hold, the two send each other their sums at one time, and each spreads the total in its half. That
is one hop less than one root takes, and on a ring an eighth less traffic on the busiest link (7
messages in each direction where 4 hops up and 4 down are 8). The trees of the reduction need not
mirror those of the gather.

**Stage 1**, routing (section 5.1): which arcs every representative chunk takes.

Sets        d demands (representative chunks), a arcs of a demand, r ranks, o resource orbits
Variables   use[d,a] ∈ {0,1}    demand d takes arc a
            reach[d,r] ≥ 0      when the chunk has arrived at rank r (several targets only)
            depth[d,r] ≥ 1      hops from the root (only where a path may be longer than needed)
            open[p] ∈ {0,1}     pair p of ranks exchanges anything (only where that counts)
            extreme ≥ 0         load of the busiest or least busy resource inside servers
            makespan ≥ 0
Minimise    1000·makespan + Σ use·duration / scale ± few or many connections ± 10·extreme
Subject to  (arrive)     several targets: every target is entered exactly once, other ranks at
                         most once, and only ranks that are entered are left
            (flow)       one target: a path from the root to it
            (causality)  reach[d,head] ≥ reach[d,tail] + duration   where use[d,a]
            (length)     a path takes no longer than the makespan
            (capacity)   Σ use·busy ≤ makespan, for every resource orbit
            (hops)       a path has no more hops than the sketch allows
            (opened)     use[d,a] ≤ open[pair of a]; distinct peers of a rank within the limit
            (balance)    extreme ≥ (minmax) or ≤ (maxmin) Σ use·busy on every resource inside

Only links that exist and that the sketch allows have variables, only representatives are routed,
and no constant stands for "never": the horizon is the makespan of a known schedule. The optimum
is a relaxation (sends may overlap); stages 2 and 3 find what it costs.

The MILP does not see what batching saves. Restricted to one way of crossing servers
(``ROUTE_RESTRICTIONS``) it finds trees and paths whose chunks share links, which stage 3 then sends
as few messages. So it is asked once for every restriction.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from taccl.collectives.slots import DEFAULT_LAYOUT, LAYOUTS
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, Result, Status, reduces_and_spreads, result_of
from taccl.model.routes import (
    Arc,
    Demand,
    Network,
    Routes,
    build_network,
    connections,
    counterpart,
    hops_from,
)
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.exact.model import flows_of, flows_of_networks
from taccl.synth.exact.solve import MAX_INTERVALS, improve_order, solve_model
from taccl.synth.greedy import Hop, from_root, greedy_routes, is_complete, routes_of
from taccl.synth.list_scheduler import PRIORITIES, order
from taccl.synth.plan import (
    Adjacency,
    Message,
    Move,
    Plan,
    in_turn,
    plan_decisions,
    plan_routes,
    rows_of,
    rows_of_routes,
)
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Rank, Topology
from taccl.topology.symmetry import make_group

if TYPE_CHECKING:
    from taccl.synth.milp import Model

Uses = Mapping[tuple[int, Arc], str]
"""(demand, arc) to the name of the variable that says whether it is taken."""

Terms = list[tuple[str, int]]

WEIGHT = {"uc-min": 1, "uc-max": -1}
BALANCE = {"minmax": 1, "maxmin": -1}

HORIZON_TICKS = 20_000
"""Times in the model are scaled to about this many ticks, rounded up."""


def route(network: Network, known: list[Hop], options: Options, seconds: float) -> list[Routes]:
    """Return up to four routings of a `network`, the best of the relaxation first; may be empty.

    The `known` hops are a complete routing with planned times in picoseconds: the horizon, and the
    hint. The `options` are for the solvers; the `seconds` are wall clock, or counted work.
    """
    from taccl.synth import milp

    horizon = max((hop.end for hop in known), default=0)
    if not horizon:
        return []
    tick = max(1, -(-horizon // HORIZON_TICKS))
    ticks = {link: -(-time // tick) for link, time in network.duration.items()}
    limit = sum(ticks[hop.arc.link] for hop in known) if network.point_to_point else 0
    limit = max(limit, max(-(-hop.end // tick) for hop in known) + len(known))
    model = milp.Model()
    model.continuous("makespan", 0, limit)
    uses: dict[tuple[int, Arc], str] = {}
    for number, demand in enumerate(network.demands):
        for arc in demand.arcs:
            uses[number, arc] = model.binary(f"use_{number}_{arc.link}")
        if network.point_to_point:
            _add_path(model, uses, number, demand, ticks)
        else:
            _add_tree(model, uses, number, demand, ticks, limit)
    loads: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        for orbit, busy in network.uses[arc.link]:
            loads[orbit].append((use, -(-busy // tick)))
    for _, terms in sorted(loads.items()):
        model.at_most([*terms, ("makespan", -1)], 0)
    _limit_hops(model, uses, network)
    scale = max(1, sum(ticks[arc.link] for _, arc in uses) // 500)
    model.objective.extend([
        ("makespan", 1000),
        *_add_connections(model, uses, network, max(1, 1000 * max(ticks.values()) // 100)),
        *_add_balance(model, uses, network, tick, limit),
        *((use, -(-ticks[arc.link] // scale)) for (_, arc), use in uses.items()),
    ])  # fmt: skip
    hint = dict.fromkeys(uses.values(), 0) | {uses[hop.demand, hop.arc]: 1 for hop in known}
    answer = milp.race(model, options, seconds, hint)
    options.report(f"routing: {answer.status.value}, {len(answer.pool)} routings ({answer.winner})")
    return [
        tuple(
            from_root(demand, reached(demand.roots, [
                arc for arc in demand.arcs if values.get(uses[number, arc], 0) == 1
            ]))
            for number, demand in enumerate(network.demands)
        )
        for values in answer.pool
    ]  # fmt: skip


def _add_path(
    model: "Model", uses: Uses, number: int, demand: Demand, ticks: Mapping[int, int]
) -> None:
    """Add (flow) and (length) for a demand with one target."""
    balance: dict[Rank, Terms] = defaultdict(list)
    for arc in demand.arcs:
        balance[arc.head].append((uses[number, arc], 1))
        balance[arc.tail].append((uses[number, arc], -1))
    for rank, terms in sorted(balance.items()):
        if rank not in demand.roots:
            model.exactly(terms, int(rank in demand.targets))
    if demand.arcs:
        length = [(uses[number, arc], ticks[arc.link]) for arc in demand.arcs]
        model.at_most([*length, ("makespan", -1)], 0)


def _add_tree(
    model: "Model", uses: Uses, number: int, demand: Demand, ticks: Mapping[int, int], limit: int
) -> None:
    """Add (arrive) and (causality) for a demand with several targets."""
    entering: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in demand.arcs:
        entering[arc.head].append(arc)
    for rank, arcs in sorted(entering.items()):
        once = model.exactly if rank in demand.targets else model.at_most
        once([(uses[number, arc], 1) for arc in arcs], 1)
    for arc in demand.arcs:
        if arc.tail not in demand.roots and arc.tail not in demand.targets:
            into = [(uses[number, other], -1) for other in entering[arc.tail]]
            model.at_most([(uses[number, arc], 1), *into], 0)
    reach = {}
    for rank in sorted(entering):
        reach[rank] = model.continuous(f"reach_{number}_{rank}", 0, limit)
        model.at_most([(reach[rank], 1), ("makespan", -1)], 0)
    for arc in demand.arcs:
        time = ticks[arc.link]
        terms = [(reach[arc.head], -1), (uses[number, arc], limit + time)]
        if arc.tail not in demand.roots:
            terms.append((reach[arc.tail], 1))
        model.at_most(terms, limit)


def _limit_hops(model: "Model", uses: Uses, network: Network) -> None:
    """Add (hops), where the arcs alone don't limit every path."""
    extra = network.problem.logical.max_extra_hops
    if not extra:
        return
    for number, demand in enumerate(network.demands):
        if network.point_to_point:
            taken = [(uses[number, arc], 1) for arc in demand.arcs]
            if taken:
                model.at_most(taken, demand.hops[demand.targets[0]] + extra)
            continue
        most = {arc.head: demand.hops[arc.head] + extra for arc in demand.arcs}
        depth = {
            rank: model.continuous(f"depth_{number}_{rank}", 1, limit)
            for rank, limit in sorted(most.items())
        }
        for arc in demand.arcs:
            terms = [(depth[arc.head], -1), (uses[number, arc], most.get(arc.tail, 0) + 1)]
            if arc.tail not in demand.roots:
                terms.append((depth[arc.tail], 1))
            model.at_most(terms, most.get(arc.tail, 0))


def _add_connections(model: "Model", uses: Uses, network: Network, unit: int) -> Terms:
    """Add (opened); return the terms that make few or many connections a little cheaper.

    Nothing is added where neither a policy nor a limit asks for it.
    """
    logical, group = network.problem.logical, network.problem.group
    if not logical.switch_policy and logical.connections_per_rank is None:
        return []
    connection = connections(network)
    carried: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        carried[connection[arc.link]].append((use, -1))
    opened = {number: model.binary(f"open_{number}") for number in sorted(carried)}
    for number, terms in sorted(carried.items()):
        model.at_most([(opened[number], 1), *terms], 0)
        for use, _ in terms:
            model.at_most([(use, 1), (opened[number], -1)], 0)
    table, most = network.problem.topology.links, logical.connections_per_rank
    for rank in sorted(set(group.rank_orbit.tolist())) if most is not None else ():
        for here, there in ((table.src, table.dst), (table.dst, table.src)):
            peers = {int(there[k]): number for k, number in connection.items() if here[k] == rank}
            terms = [(opened[number], 1) for _, number in sorted(peers.items()) if number in opened]
            if most is not None and len(terms) > most:
                model.at_most(terms, most)
    weights = {link: WEIGHT.get(policy_of(network, link), 0) for link in opened}
    return [(opened[link], weight * unit) for link, weight in weights.items() if weight]


def _add_balance(model: "Model", uses: Uses, network: Network, tick: int, limit: int) -> Terms:
    """Add (balance); return its term of the objective: a hundredth of what the makespan weighs."""
    topology, sign = network.problem.topology, BALANCE.get(network.problem.logical.balance or "")
    if sign is None:
        return []
    loads: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        if topology.server_of[arc.tail] == topology.server_of[arc.head]:
            for orbit, busy in network.uses[arc.link]:
                loads[orbit].append((use, sign * -(-busy // tick)))
    extreme = model.continuous("extreme_load", 0, limit)
    for _, terms in sorted(loads.items()):
        model.at_most([*terms, (extreme, -sign)], 0)
    return [(extreme, sign * 10)]


def policy_of(network: Network, link: int) -> str:
    """Return the connection policy of a `link`: that of a switch on its path, or ``free``.

    The sketch of the problem of the `network` has the policies.
    """
    topology = network.problem.topology
    policy = network.problem.logical.switch_policy
    for edge in topology.links.edges_of(link):
        name = topology.vertex_name(topology.edges[edge].head)
        found = policy.get(name) or policy.get(name.partition("/")[2])
        if found:
            return found
    src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
    if topology.server_of[src] == topology.server_of[dst]:
        return policy.get("*", "free")
    return "free"


def reached(roots: Sequence[Rank], arcs: Sequence[Arc]) -> dict[Rank, Arc]:
    """Return the arc by which each rank is first reached from the `roots` by some `arcs`.

    A path of a solution that is not the best one may pass a ring, and enter a rank twice.
    """
    leaving: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in arcs:
        leaving[arc.tail].append(arc)
    taken: dict[Rank, Arc] = {}
    ranks = deque(roots)
    while ranks:
        for arc in leaving[ranks.popleft()]:
            if arc.head not in taken and arc.head not in roots:
                taken[arc.head] = arc
                ranks.append(arc.head)
    return taken


COUNTED = Options(time_limit=4.0, deterministic=True, workers=1)

SECONDS, PART = 2.0, 1 / 3
"""For the routing that a sketch's limits or preferences ask for, and of all the time, at most."""

MAX_PREFERRED = 2500
"""Arcs up to which preferred routes are found first."""

Gateways = Mapping[int, set[int]]
"""For every first or last edge of a path between servers, the ranks that share its NIC."""

Filter = Callable[[Topology, Gateways, Demand, Arc], bool]


def _crosses(topology: Topology, arc: Arc) -> bool:
    return topology.server_of[arc.tail] != topology.server_of[arc.head]


def _direct_map(topology: Topology, _gateways: Gateways, _demand: Demand, arc: Arc) -> bool:
    """Servers are crossed only between GPUs of the same local number."""
    if not _crosses(topology, arc):
        return True
    return counterpart(topology, arc.tail, topology.server_of[arc.head]) == arc.head


def _cross_first(topology: Topology, gateways: Gateways, demand: Demand, arc: Arc) -> bool:
    """Only the root's own GPU sends to other servers, to its counterparts.

    A chunk for another server makes no hop in the one that it leaves.
    """
    server, home = topology.server_of, topology.server_of[demand.root]
    if not _crosses(topology, arc):
        leaves = len(demand.targets) == 1 and server[demand.targets[0]] != home
        return server[arc.head] != home or not leaves
    return arc.tail in demand.roots and _direct_map(topology, gateways, demand, arc)


def _one_gateway(topology: Topology, gateways: Gateways, _demand: Demand, arc: Arc) -> bool:
    """Of the GPUs that share a NIC, the first sends and the last receives.

    These are the paper's relays: chunks that meet at one sender can travel as one message.
    """
    if not _crosses(topology, arc):
        return True
    link = topology.link(arc.link)
    return link.src == min(gateways[link.edges[0]]) and link.dst == max(gateways[link.edges[-1]])


def _gateways_of(topology: Topology) -> Gateways:
    table, edges = topology.links, topology.edges
    users: dict[int, set[int]] = defaultdict(set)
    shared: dict[int, int] = {}
    for link in range(len(table)):
        src, dst = int(table.src[link]), int(table.dst[link])
        if topology.server_of[src] != topology.server_of[dst]:
            path = table.edges_of(link)
            for edge, vertex, rank in (
                (path[0], edges[path[0]].head, src),
                (path[-1], edges[path[-1]].tail, dst),
            ):
                shared[edge] = vertex if vertex >= topology.num_ranks else -1 - edge
                users[shared[edge]].add(rank)
    return {edge: users[vertex] for edge, vertex in shared.items()}


ROUTE_RESTRICTIONS: Mapping[str, Filter] = MappingProxyType({
    "any way": lambda *_: True,
    "direct map": _direct_map,
    "cross first": _cross_first,
    "one gateway": _one_gateway,
})  # fmt: skip


def networks(
    problem: Problem, *, reverse: bool = False, options: Options = COUNTED
) -> Iterator[tuple[str, Network]]:
    """Yield the network of every route restriction under which all targets can be reached.

    Where the sketch limits connections, all of them share one choice of connections, made by the
    routing MILP, so that whatever is found on them keeps the limit. Where it prefers some routes
    to others, the routes that the MILP prefers come first, and win where they are as fast. The
    `problem` and `reverse` are as for :func:`taccl.model.routes.build_network`; the `options` are
    for that MILP.

    Raises NoScheduleError when the targets can't be reached under the sketch at all.
    """
    logical = problem.logical
    full = build_network(problem, reverse=reverse)
    if logical.connections_per_rank is not None:
        full = _within_connections(full, options)
    small = sum(len(demand.arcs) for demand in full.demands) <= MAX_PREFERRED
    policies = {policy_of(full, link) for link in set(connections(full).values())} if small else ()
    if small and (logical.balance is not None or not WEIGHT.keys().isdisjoint(policies)):
        for routes in _routed(full, options)[:1]:
            yield "as sketched", full.with_arcs(map(sorted, routes))
    gateways = _gateways_of(problem.topology)
    seen = set()
    for name, keeps in ROUTE_RESTRICTIONS.items():
        narrow = full.with_arcs(
            [arc for arc in demand.arcs if keeps(problem.topology, gateways, demand, arc)]
            for demand in full.demands
        )
        arcs = tuple(demand.arcs for demand in narrow.demands)
        if arcs not in seen and all(
            reached(demand.roots, demand.arcs).keys() >= set(demand.targets)
            for demand in narrow.demands
        ):
            yield name, narrow
        seen.add(arcs)


def _routed(network: Network, options: Options) -> list[Routes]:
    """Return routings of a network as the sketch asks for them, the best first; may be empty."""
    seconds = min(SECONDS, PART * options.time_limit)
    return route(network, greedy_routes(network), options, seconds)


def _within_connections(network: Network, options: Options) -> Network:
    """Return the network with the connections of one routing that keeps the sketch's limit.

    The two phases of an AllReduce share the connections of its gather.
    """
    problem = network.problem
    reduction = reduces_and_spreads(problem.collective) and network.reverse
    model = build_network(problem) if reduction else network
    found = _routed(model, options)
    if not found:
        raise NoScheduleError(
            f"no {problem.logical.connections_per_rank} connections for each GPU were found that"
            " serve every chunk",
            fix="raise connections_per_gpu in the sketch",
        )
    connection = connections(model)
    opened = {connection[arc.link] for arcs in found[0] for arc in arcs}
    if reduction:
        closed = (k for k in problem.logical.links() if connection.get(k) not in opened)
        return build_network(problem, reverse=True, closed=closed)
    return network.with_arcs(
        [arc for arc in demand.arcs if connection[arc.link] in opened] for demand in network.demands
    )


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


MESSAGE_LENGTHS = (2, 4, 8, 1 << 30)
MAX_BATCHED = 100_000
"""Sends, over all orbits, up to which batches are looked for."""

MAX_EXCHANGED = 20_000
"""Sends of representatives up to which trees with two roots are ordered."""

MAX_MESSAGES = 250_000
"""Optional sends times chunks up to which messages are modelled with the routes: a larger model is
not presolved in the time that is left."""

KEPT = 4
"""Candidates that stage 3 improves."""


@dataclass(frozen=True)
class Candidate:
    """A schedule, the plan it orders, and the layout of scratch that its messages need."""

    schedule: Schedule
    plan: Plan
    layout: str = DEFAULT_LAYOUT

    @property
    def makespan(self) -> int:
        """Picoseconds."""
        return self.schedule.makespan


def staged(problem: Problem, options: Options) -> Result:
    """Solve a problem in three stages, on orbits first and then without symmetry.

    A small problem is routed again without it, where no sketch asks for the symmetry. Time that is
    left goes into the best schedule, which may be one that was known before. The `options` tell how
    long and how to search for the `problem`, and what is known.

    Raises NoScheduleError when the sketch leaves a chunk without a path to a target.
    """
    clock = options.begin(options.solver_share)
    if problem.topology.num_ranks == 1:
        return Result(Status.OPTIMAL, problem.timed(Decisions.of([])), (), "taccl", 0.0)
    candidates = _solve(problem, options, clock.share(0.5))
    if candidates[0].makespan > options.floor and len(problem.group) > 1:
        free = problem.without_symmetry
        arcs = int(problem.logical.allowed.sum()) * problem.collective.num_chunks
        if arcs <= MAX_INTERVALS and not problem.logical.symmetry_asked and clock.left:
            candidates += _solve(free, options, clock.share(0.6), kept=1)
    for schedule in options.known:
        # Sums may be exchanged there, which has no plan.
        if not (problem.collective.reduces or schedule.packs):
            orbits = replace(problem, group=make_group(problem.topology, schedule.generators))
            plan = plan_decisions(orbits, rows_of(schedule.decisions()))
            candidates.append(Candidate(schedule, plan))
    best = min(candidates, key=lambda candidate: candidate.makespan)
    if not options.deterministic:
        best = _polished(best, options, clock)
    return result_of("taccl", best.schedule, options, clock.spent)


def _polished(candidate: Candidate, options: Options, clock: Deadline) -> Candidate:
    """Spend the time that is left: on messages and order, then on routes as well."""
    schedule, plan, problem = candidate.schedule, candidate.plan, candidate.plan.problem
    if plan.exchanges:  # no model has them
        return candidate
    if schedule.makespan > options.floor and clock.left > 1:
        schedule, _ = improve_order(
            schedule, plan, options, clock.left / 2, options.floor, layout=candidate.layout
        )
    count = len(problem.representatives)
    few = count <= MAX_INTERVALS and (not options.batch or count**2 <= MAX_MESSAGES)
    if schedule.makespan <= options.floor or clock.left <= 1 or not few:
        return replace(candidate, schedule=schedule)
    flows = flows_of(problem)
    work = flows.size * (len(flows.flows) if options.batch else 1)
    if flows.size <= MAX_INTERVALS and work <= MAX_MESSAGES:
        decisions = solve_model(flows, schedule, options, clock.left, options.floor).decisions
        found = schedule if decisions is None else problem.timed(decisions)
        if decisions is not None and found.makespan < schedule.makespan:
            options.report(
                f"routes and messages: {schedule.makespan / 1e6:.2f} ->"
                f" {found.makespan / 1e6:.2f} us"
            )
            return Candidate(found, plan_decisions(problem, rows_of(decisions)))
    return replace(candidate, schedule=schedule)


def _solve(
    problem: Problem, options: Options, clock: Deadline, kept: int = KEPT
) -> list[Candidate]:
    """Return the candidates that stage 3 improved, the best first.

    Sums that are spread go along one set of trees and come back along another, pipelined, or meet
    in an exchange between two roots.
    """
    if options.deterministic:
        kept = min(kept, 2)
    if not reduces_and_spreads(problem.collective):
        found = _one_way(problem, options, clock, reverse=problem.collective.reduces)
        return _improved(found, options, clock, kept)
    alone = replace(options, floor=0)
    phases = []
    for reverse, share in ((True, 1 / 3), (False, 1 / 2)):
        found = _one_way(problem, alone, clock.share(0.6 * share), reverse=reverse)
        phases.append(_improved(found, alone, clock.share(share), kept)[:2])
    joint = _joined(problem, phases, options, clock)
    for partners in partners_of(problem):
        plan = exchanged(problem, partners) if clock.left else None
        if plan is not None and len(plan.moves) <= MAX_EXCHANGED:
            joint += ordered(plan, options, clock)[:1]
    return _improved(joint, options, clock, kept)


def _one_way(
    problem: Problem, options: Options, clock: Deadline, *, reverse: bool
) -> list[Candidate]:
    """Return candidates for chunks that flow from their roots, or to them, on every network."""
    found: list[Candidate] = []
    collective = problem.collective.name
    if reduces_and_spreads(problem.collective):
        collective = "reducescatter" if reverse else "allgather"
    goal = max(options.floor, options.fixed_floor(collective))
    for name, network in networks(problem, reverse=reverse, options=options):
        if found and not clock.left:
            break
        hops = greedy_routes(network)
        if not is_complete(network, hops):
            if name == "any way":
                raise NoScheduleError(
                    "no path within the allowed hops serves every chunk",
                    fix="raise max_extra_hops in the sketch",
                )
            continue
        found += ordered(plan_routes(network, routes_of(network, hops)), options, clock)
        if not options.batch and min(c.makespan for c in found) <= goal:
            return found
        seconds = min(clock.left / 5, 8.0)
        if seconds < 0.2:
            continue
        options.report(f"{problem.collective.name}: routing {name}")
        for routes in route(network, hops, options, seconds):
            found += ordered(plan_routes(network, routes), options, clock)
        flows = flows_of_networks([network])
        best = min(found, key=lambda candidate: candidate.makespan)
        if flows.size <= MAX_INTERVALS and best.makespan > goal:
            single = replace(options, batch=False)
            seconds = min(clock.left / 4, 8.0)
            exact = solve_model(flows, best.schedule, single, seconds, goal).decisions
            if exact is not None:
                plan = plan_decisions(problem, rows_of(exact))
                found += [Candidate(problem.timed(exact), plan), *ordered(plan, options)]
    return found


def first_schedules(
    problem: Problem, options: Options, clock: Deadline | None = None
) -> list[Schedule]:
    """Return what the greedy heuristic finds for a `problem` at once, the best first.

    The `options` tell whether chunks may travel together. Of the ways to order it only those are
    tried that the `clock` has time for, but at least one; None: all.

    Raises NoScheduleError when the sketch leaves a chunk without a path to a target.
    """
    two_ways = reduces_and_spreads(problem.collective)
    phases = []
    for reverse in (True, False) if two_ways else (problem.collective.reduces,):
        network = build_network(problem, reverse=reverse)
        hops = greedy_routes(network)
        if not is_complete(network, hops):
            return []
        phases.append(ordered(plan_routes(network, routes_of(network, hops)), options, clock)[:1])
    found = _joined(problem, phases, options, clock) if two_ways else phases[0]
    return [candidate.schedule for candidate in sorted(found, key=lambda one: one.makespan)]


def _joined(
    problem: Problem,
    phases: Sequence[Sequence[Candidate]],
    options: Options,
    clock: Deadline | None = None,
) -> list[Candidate]:
    """Return every reduction followed by every gather, pipelined and one after the other."""
    joint: list[Candidate] = []
    for reduction, gather in itertools.product(*phases):
        first, second = (one.schedule.decisions() for one in (reduction, gather))
        turned = in_turn(problem, rows_of(first))
        plan = plan_decisions(problem, [*turned, *rows_of(second)])
        joint.extend(ordered(plan, options, clock))
        if turned == rows_of(first):
            after = int(first.batch.max(initial=-1)) + 1
            rows = [*first.rows(), *((c, k, after + batch, r) for c, k, batch, r in second.rows())]
            joint.append(Candidate(problem.timed(Decisions.of(rows)), plan))
    return joint


def ordered(plan: Plan, options: Options, clock: Deadline | None = None) -> list[Candidate]:
    """Return the schedules of a `plan` by every rule and message length, the best first.

    The `options` tell whether chunks may travel together. Only those schedules are made that the
    `clock` has time for, but at least one; None: all.
    """
    found: dict[int, Candidate] = {}
    for layout, messages in _groupings(plan, options):
        for rule in PRIORITIES:
            if found and (options.stop.is_set() or (clock is not None and not clock.left)):
                break
            decisions = order(plan, messages, rule)
            if decisions is None:
                continue
            try:
                schedule = plan.problem.timed(decisions)
            except ValueError:
                if not plan.exchanges:
                    raise
                continue  # two exchanges hold each other up
            found.setdefault(schedule.makespan, Candidate(schedule, plan, layout))
    return [found[makespan] for makespan in sorted(found)][:KEPT]


def _groupings(plan: Plan, options: Options) -> Iterator[tuple[str, list[Message]]]:
    """Yield different ways to group the moves into messages, and the layout that allows them."""
    singles: list[Message] = [(number,) for number in range(len(plan.moves))]
    yield DEFAULT_LAYOUT, singles
    if not options.batch or len(plan.moves) * len(plan.problem.group) > MAX_BATCHED:
        return
    seen = {tuple(singles)}
    for layout in LAYOUTS:
        adjacency = Adjacency(plan, layout)
        if layout != DEFAULT_LAYOUT and not adjacency.relays:
            break
        for length in MESSAGE_LENGTHS:
            messages = adjacency.pieces(length)
            if tuple(messages) not in seen:
                seen.add(tuple(messages))
                yield layout, messages


def _improved(
    candidates: list[Candidate], options: Options, clock: Deadline, kept: int
) -> list[Candidate]:
    """Improve the best candidates of different plans by stage 3; return them, the best first."""
    plans: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.makespan):
        plans.setdefault(id(candidate.plan), candidate)
    chosen = list(plans.values())[:kept]
    result: list[Candidate] = []
    for number, candidate in enumerate(chosen):
        if result and min(c.makespan for c in result) <= options.floor:
            break
        if candidate.plan.exchanges:
            result.append(candidate)
            continue
        seconds = min(clock.left / (len(chosen) - number), 8.0)
        schedule, _ = improve_order(
            candidate.schedule, candidate.plan, options, seconds, options.floor,
            layout=candidate.layout,
        )  # fmt: skip
        options.report(
            f"contiguity: {candidate.makespan / 1e6:.2f} -> {schedule.makespan / 1e6:.2f} us"
        )
        result.append(replace(candidate, schedule=schedule))
    return sorted(result, key=lambda candidate: candidate.makespan)
