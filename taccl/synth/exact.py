"""Routes and order at once, for small problems (CP-SAT).

Sets        d demands (representative chunks), a arcs of a demand, r ranks, o resource orbits
Variables   use[d,a] ∈ {0,1}     demand d takes arc a
            start[d,a]           when it does, in ticks
            reach[d,r]           when the chunk has arrived at rank r
            depth[d,r]           arcs from the root (only where hops are limited)
            makespan
Minimise    makespan
Subject to  (arrive)      a target is entered exactly once, any other rank at most once
            (leave)       only ranks that are entered, and the root, are left
            (causality)   start[d,a] ≥ reach[d,tail], reach[d,head] = start[d,a] + duration
                          where use[d,a]
            (no overlap)  on every resource orbit, the intervals of used arcs do not overlap
            (load)        Σ use·busy ≤ makespan on every resource orbit (redundant)
            (own first)   a sender's foreign chunks leave its server after its own, where a sketch
                          says so
            (bound)       makespan ≥ a lower bound proved elsewhere

A reduction is the mirror image in time, so there an arc holds its resources at the end of its
interval. One chunk to a message: batches are left to stage 3.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taccl.synth.greedy import Hop
from taccl.synth.problem import Options
from taccl.synth.routes import Arc, Demand, Network
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from taccl.topology import Rank

MAX_TICKS = 1 << 16
MAX_INTERVALS = 2500


@dataclass
class _Variables:
    use: "dict[tuple[int, Arc], cp_model.IntVar]" = field(default_factory=dict)
    start: "dict[tuple[int, Arc], cp_model.IntVar]" = field(default_factory=dict)
    reach: "dict[tuple[int, Rank], cp_model.IntVar]" = field(default_factory=dict)


@dataclass(frozen=True)
class _Scale:
    """Picoseconds in a tick, and the horizon in ticks."""

    tick: Time
    horizon: int

    def up(self, time: Time) -> int:
        return -(-time // self.tick)


def fits(network: Network) -> bool:
    """Tell whether the model is small enough to be worth trying."""
    return 0 < sum(len(demand.arcs) for demand in network.demands) <= MAX_INTERVALS


def schedule_exactly(
    network: Network, known: Sequence[Hop], options: Options, seconds: float, floor: Time
) -> list[Hop] | None:
    """Return the best routing found with its times in order of start, or None.

    Parameters
    ----------
    known
        A complete routing with planned times: hint and horizon.
    floor
        A proven lower bound in picoseconds.
    """
    from ortools.sat.python import cp_model

    from taccl.synth.milp import new_solver, solve_watched

    scale = _scale(network, known)
    model = cp_model.CpModel()
    x = _Variables()
    makespan = model.new_int_var(min(floor // scale.tick, scale.horizon), scale.horizon, "makespan")
    for number, demand in enumerate(network.demands):
        _reach(model, x, number, demand, scale)
        _arrive(model, network, x, number, demand, scale)
        _hops(model, network, x, number, demand)
        for target in demand.targets:
            model.add(makespan >= x.reach[number, target])
    _resources(model, network, x, scale, makespan)
    _own_first(model, network, x, scale)
    model.minimize(makespan)
    _hint(model, network, x, known, scale)
    solver = new_solver(options, seconds, workers=max(2, options.workers))
    status = solve_watched(solver, model, None, options.stop.is_set)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return sorted(
        (
            Hop(start * scale.tick, (start + scale.up(network.duration[arc.link])) * scale.tick,
                number, arc)
            for (number, arc), use in x.use.items()
            if solver.value(use)
            for start in (solver.value(x.start[number, arc]),)
        ),
        key=lambda hop: (hop.start, hop.end),
    )  # fmt: skip


def _scale(network: Network, known: Sequence[Hop]) -> _Scale:
    times = {network.duration[link] for link in network.links}
    times |= {busy for uses in network.uses.values() for _, busy in uses}
    end = max(hop.end for hop in known)
    tick = max(1, math.gcd(*times), -(-end // MAX_TICKS))
    return _Scale(tick, -(-end // tick) + len(known))


def _reach(
    model: "cp_model.CpModel", x: _Variables, number: int, demand: Demand, scale: _Scale
) -> None:
    for rank in sorted({demand.root, *(arc.head for arc in demand.arcs)}):
        latest = 0 if rank == demand.root else scale.horizon
        x.reach[number, rank] = model.new_int_var(0, latest, f"reach_{number}_{rank}")
    for arc in demand.arcs:
        x.use[number, arc] = model.new_bool_var(f"use_{number}_{arc.link}")
        x.start[number, arc] = model.new_int_var(0, scale.horizon, f"start_{number}_{arc.link}")


def _arrive(
    model: "cp_model.CpModel",
    network: Network,
    x: _Variables,
    number: int,
    demand: Demand,
    scale: _Scale,
) -> None:
    entering: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    for arc in demand.arcs:
        entering[arc.head].append(x.use[number, arc])
    for rank, uses in sorted(entering.items()):
        if rank in demand.targets:
            model.add_exactly_one(uses)
        else:
            model.add_at_most_one(uses)
    for arc in demand.arcs:
        use, start = x.use[number, arc], x.start[number, arc]
        if arc.tail != demand.root and arc.tail not in demand.targets:
            model.add_bool_or([use.negated(), *entering[arc.tail]])
        length = scale.up(network.duration[arc.link])
        model.add(start >= x.reach[number, arc.tail]).only_enforce_if(use)
        model.add(x.reach[number, arc.head] == start + length).only_enforce_if(use)


def _hops(
    model: "cp_model.CpModel", network: Network, x: _Variables, number: int, demand: Demand
) -> None:
    extra = network.problem.logical.max_extra_hops
    if extra is None:
        return
    depth = {
        rank: model.new_int_var(0, demand.hops[rank] + extra, f"depth_{number}_{rank}")
        for rank in sorted({demand.root, *(arc.head for arc in demand.arcs)})
    }
    for arc in demand.arcs:
        step = model.add(depth[arc.head] >= depth[arc.tail] + 1)
        step.only_enforce_if(x.use[number, arc])


def _resources(
    model: "cp_model.CpModel",
    network: Network,
    x: _Variables,
    scale: _Scale,
    makespan: "cp_model.IntVar",
) -> None:
    intervals: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    loads: dict[int, list[cp_model.LinearExprT]] = defaultdict(list)
    for (number, arc), use in x.use.items():
        length = scale.up(network.duration[arc.link])
        for orbit, busy in network.uses[arc.link]:
            held = scale.up(busy)
            shift = length - held if network.reverse else 0
            intervals[orbit].append(
                model.new_optional_fixed_size_interval_var(
                    x.start[number, arc] + shift, held, use, ""
                )
            )
            loads[orbit].append(held * use)
    for orbit in sorted(intervals):
        model.add_no_overlap(intervals[orbit])
        model.add(sum(loads[orbit]) <= makespan)


def _own_first(model: "cp_model.CpModel", network: Network, x: _Variables, scale: _Scale) -> None:
    problem = network.problem
    if not problem.logical.own_chunks_first or network.reverse:
        return
    server, orbit = problem.topology.server_of, problem.group.rank_orbit
    latest: dict[int, cp_model.IntVar] = {}
    foreign = []
    for (number, arc), use in x.use.items():
        if server[arc.tail] == server[arc.head]:
            continue
        sender = int(orbit[arc.tail])
        if sender not in latest:
            latest[sender] = model.new_int_var(0, scale.horizon, f"latest_own_{sender}")
        if arc.tail == network.demands[number].root:
            model.add(latest[sender] >= x.start[number, arc]).only_enforce_if(use)
        else:
            foreign.append((number, arc, sender))
    for number, arc, sender in foreign:
        waits = model.add(x.start[number, arc] >= latest[sender])
        waits.only_enforce_if(x.use[number, arc])


def _hint(
    model: "cp_model.CpModel",
    network: Network,
    x: _Variables,
    known: Sequence[Hop],
    scale: _Scale,
) -> None:
    """Hint the known routing, with starts in ticks that respect rounded durations."""
    free: dict[int, int] = defaultdict(int)
    at: dict[tuple[int, Rank], int] = defaultdict(int)
    taken = {}
    for hop in known:
        length = scale.up(network.duration[hop.arc.link])
        uses = network.uses[hop.arc.link]
        shift = [length - scale.up(busy) if network.reverse else 0 for _, busy in uses]
        waits = [free[orbit] - late for (orbit, _), late in zip(uses, shift, strict=True)]
        start = max([0, at[hop.demand, hop.arc.tail], *waits])
        for (orbit, busy), late in zip(uses, shift, strict=True):
            free[orbit] = start + late + scale.up(busy)
        at[hop.demand, hop.arc.head] = start + length
        taken[hop.demand, hop.arc] = start
    for key, use in x.use.items():
        model.add_hint(use, key in taken)
        if key in taken:
            model.add_hint(x.start[key], taken[key])
    for place, reach in x.reach.items():
        if place in at:
            model.add_hint(reach, at[place])
