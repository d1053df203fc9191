"""Stage 1: which arcs every representative chunk takes (Shah et al., NSDI 2023, section 5.1).

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
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taccl.synth.connections import add_balance, add_opened, preferred
from taccl.synth.greedy import Hop
from taccl.synth.problem import Options
from taccl.synth.routes import Arc, Demand, Network
from taccl.topology import Rank

if TYPE_CHECKING:
    from taccl.synth.highs import Model

HORIZON_TICKS = 20_000
"""Times in the model are scaled to about this many ticks, rounded up."""

Routes = tuple[tuple[Arc, ...], ...]
"""The arcs of every demand, parents before children."""


@dataclass
class _Variables:
    use: dict[tuple[int, Arc], str] = field(default_factory=dict)
    reach: dict[tuple[int, Rank], str] = field(default_factory=dict)


def route(network: Network, known: list[Hop], options: Options, seconds: float) -> list[Routes]:
    """Return up to four routings, the best of the relaxation first; may be empty.

    ``known`` is a complete routing with planned times; it sets the horizon and is the hint.
    """
    from taccl.synth import milp

    horizon = max((hop.end for hop in known), default=0)
    if not horizon:
        return []
    tick = max(1, -(-horizon // HORIZON_TICKS))
    ticks = {link: -(-time // tick) for link, time in network.duration.items()}
    limit = sum(ticks[hop.arc.link] for hop in known) if network.point_to_point else 0
    limit = max(limit, max(-(-hop.end // tick) for hop in known) + len(known))
    model = milp.new_model()
    x = _Variables()
    makespan = milp.whole(model, "makespan", 0, limit)
    for number, demand in enumerate(network.demands):
        for arc in demand.arcs:
            x.use[number, arc] = milp.binary(model, _name(number, arc))
        if network.point_to_point:
            _flow(model, x, number, demand)
            _length(model, x, number, demand, ticks, makespan)
        else:
            _arrive(model, x, number, demand)
            _causality(model, x, number, demand, ticks, (makespan, limit))
    _capacity(model, network, x, tick, makespan)
    _hops(model, network, x)
    opened = add_opened(model, network, x.use)
    wishes = preferred(network, opened, max(1, 1000 * max(ticks.values()) // 100))
    wishes += add_balance(model, network, x.use, tick, limit)
    _objective(model, x, ticks, makespan, wishes)
    answer = milp.race(model, options, seconds, _hint(known, network))
    options.report(f"routing: {answer.status.value}, {len(answer.pool)} routings ({answer.winner})")
    return [_read(network, values) for values in answer.pool]


def _name(number: int, arc: Arc) -> str:
    return f"use_{number}_{arc.link}"


def _flow(model: "Model", x: _Variables, number: int, demand: Demand) -> None:
    from taccl.synth import milp

    balance: dict[Rank, list[tuple[str, int]]] = defaultdict(list)
    for arc in demand.arcs:
        balance[arc.head].append((x.use[number, arc], 1))
        balance[arc.tail].append((x.use[number, arc], -1))
    for rank, terms in sorted(balance.items()):
        if rank not in demand.roots:
            milp.exactly(model, terms, int(rank in demand.targets))


def _length(
    model: "Model",
    x: _Variables,
    number: int,
    demand: Demand,
    ticks: dict[int, int],
    makespan: str,
) -> None:
    from taccl.synth import milp

    terms = [(x.use[number, arc], ticks[arc.link]) for arc in demand.arcs]
    if terms:
        milp.at_most(model, [*terms, (makespan, -1)], 0)


def _arrive(model: "Model", x: _Variables, number: int, demand: Demand) -> None:
    from taccl.synth import milp

    entering: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in demand.arcs:
        entering[arc.head].append(arc)
    for rank, arcs in sorted(entering.items()):
        terms = [(x.use[number, arc], 1) for arc in arcs]
        if rank in demand.targets:
            milp.exactly(model, terms, 1)
        else:
            milp.at_most(model, terms, 1)
    for arc in demand.arcs:
        if arc.tail not in demand.roots and arc.tail not in demand.targets:
            into = [(x.use[number, other], -1) for other in entering[arc.tail]]
            milp.at_most(model, [(x.use[number, arc], 1), *into], 0)


def _causality(
    model: "Model",
    x: _Variables,
    number: int,
    demand: Demand,
    ticks: dict[int, int],
    horizon: tuple[str, int],
) -> None:
    from taccl.synth import milp

    makespan, limit = horizon
    for rank in sorted({arc.head for arc in demand.arcs}):
        reach = milp.whole(model, f"reach_{number}_{rank}", 0, limit)
        x.reach[number, rank] = reach
        milp.at_most(model, [(reach, 1), (makespan, -1)], 0)
    for arc in demand.arcs:
        time = ticks[arc.link]
        terms = [(x.reach[number, arc.head], -1), (x.use[number, arc], limit + time)]
        if arc.tail not in demand.roots:
            terms.append((x.reach[number, arc.tail], 1))
        milp.at_most(model, terms, limit)


def _capacity(
    model: "Model",
    network: Network,
    x: _Variables,
    tick: int,
    makespan: str,
) -> None:
    from taccl.synth import milp

    loads: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (_, arc), use in x.use.items():
        for orbit, busy in network.uses[arc.link]:
            loads[orbit].append((use, -(-busy // tick)))
    for _, terms in sorted(loads.items()):
        milp.at_most(model, [*terms, (makespan, -1)], 0)


def _hops(model: "Model", network: Network, x: _Variables) -> None:
    """Limit the hops of every path, where the arcs alone don't."""
    from taccl.synth import milp

    extra = network.problem.logical.max_extra_hops
    if not extra:
        return
    for number, demand in enumerate(network.demands):
        if network.point_to_point:
            taken = [(x.use[number, arc], 1) for arc in demand.arcs]
            if taken:
                milp.at_most(model, taken, demand.hops[demand.targets[0]] + extra)
            continue
        most = {arc.head: demand.hops[arc.head] + extra for arc in demand.arcs}
        depth = {
            rank: milp.whole(model, f"depth_{number}_{rank}", 1, limit)
            for rank, limit in sorted(most.items())
        }
        for arc in demand.arcs:
            terms = [(depth[arc.head], -1), (x.use[number, arc], most.get(arc.tail, 0) + 1)]
            if arc.tail not in demand.roots:
                terms.append((depth[arc.tail], 1))
            milp.at_most(model, terms, most.get(arc.tail, 0))


def _objective(
    model: "Model",
    x: _Variables,
    ticks: dict[int, int],
    makespan: str,
    wishes: list[tuple[str, int]],
) -> None:
    from taccl.synth import milp

    scale = max(1, sum(ticks[arc.link] for _, arc in x.use) // 500)
    terms = [(makespan, 1000), *wishes]
    terms += [(use, -(-ticks[arc.link] // scale)) for (_, arc), use in x.use.items()]
    milp.minimise(model, terms)


def _hint(known: list[Hop], network: Network) -> dict[str, int]:
    taken = {_name(hop.demand, hop.arc): 1 for hop in known}
    every = (_name(n, arc) for n, demand in enumerate(network.demands) for arc in demand.arcs)
    return {name: taken.get(name, 0) for name in every}


def _read(network: Network, chosen: Mapping[str, int]) -> Routes:
    """Return the arcs that a solution takes, in order from the roots."""
    routes = []
    for number, demand in enumerate(network.demands):
        arcs = [arc for arc in demand.arcs if chosen.get(_name(number, arc), 0) == 1]
        routes.append(from_root(demand, reached(demand.roots, arcs)))
    return tuple(routes)


def reached(roots: Sequence[Rank], arcs: Sequence[Arc]) -> dict[Rank, Arc]:
    """Return the arc by which each rank is first reached from the roots.

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


def from_root(demand: Demand, taken: dict[Rank, Arc]) -> tuple[Arc, ...]:
    """Return the arcs of a tree (given by head) that lead to targets, parents first."""
    ordered: list[Arc] = []
    placed = set(demand.roots)
    for target in demand.targets:
        path: list[Arc] = []
        rank = target
        while rank not in placed and rank in taken and len(path) <= len(taken):
            path.append(taken[rank])
            rank = taken[rank].tail
        ordered.extend(reversed(path))
        placed.update(arc.head for arc in path)
    return tuple(ordered)
