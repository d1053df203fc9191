"""The model of the exact engine: routes, order, roots and batches at once (CP-SAT).

Sets        f flows (flows.py), l links of a flow, r ranks, o resource orbits
Variables   use[f,l] ∈ {0,1}       the flow's chunk takes link l
            start[f,l], end[f,l]   when its message starts and has arrived, in ticks
            lead[f,l] ∈ {0,1}      it is the first chunk of its message (batches only)
            next[f,g,l] ∈ {0,1}    chunk g follows chunk f in one message (exact_batches.py)
            avail[f,r]             when the chunk, or the sum of what has come, is at rank r
            root[c,r] ∈ {0,1}      chunk c is summed at rank r (only where that is free)
            depth[f,r]             links between the root and r (only where that matters)
            open[p] ∈ {0,1}        pair p of ranks exchanges anything (only where limited)
            makespan
Minimise    makespan
Subject to  (arrive)      copied: a target that is no root is entered once, others at most once,
                          and only ranks that are entered, and roots, are left
            (leave)       summed: a source that is no root is left once, others at most once, and
                          only if they are entered; only roots, and ranks that are left, are
                          entered
            (causality)   use[f,l]: start ≥ avail[f,src], avail[f,dst] ≥ end
            (turn)        the copied flow of a chunk starts at its root when its sum is there
            (no overlap)  on every resource orbit the messages do not overlap
            (load)        the time they hold a resource is at most the makespan (redundant)
            (own first)   a sender's foreign chunks leave its server after its own, where a sketch
                          says so
            (peers)       distinct peers of a rank within the sketch's limit
            (bound)       makespan ≥ a lower bound proved elsewhere

For data that is copied, and for sums at one root, no schedule of these chunks is faster than the
optimum. For sums that are spread it is the best of all that sum on a tree and spread on a tree.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taccl.errors import OutOfTimeError
from taccl.synth.connections import connections
from taccl.synth.exact_neighbours import Neighbours
from taccl.synth.flows import Flow, Flows
from taccl.synth.routes import build_network
from taccl.topology import Rank
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_HORIZON = 1 << 40
"""Ticks; beyond it times are rounded up, and nothing is proved."""

Key = tuple[int, int]
"""A flow and a link."""


@dataclass(frozen=True)
class Scale:
    """Picoseconds in a tick, the horizon in ticks, and whether every time is whole ticks."""

    tick: Time
    horizon: int
    exact: bool

    def up(self, time: Time) -> int:
        """Return the ticks of a time."""
        return -(-time // self.tick)


@dataclass
class Variables:
    """The variables of one model, by (flow, link) and by (flow, rank)."""

    makespan: "cp_model.IntVar"
    use: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    start: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    end: "dict[Key, cp_model.LinearExprT]" = field(default_factory=dict)
    avail: "dict[tuple[int, Rank], cp_model.IntVar]" = field(default_factory=dict)
    root: "dict[tuple[int, Rank], cp_model.IntVar]" = field(default_factory=dict)
    lead: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    next: "dict[tuple[int, int, int], cp_model.IntVar]" = field(default_factory=dict)
    left: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """What the constraints are built from, and what tells whether to give up building."""

    model: "cp_model.CpModel"
    flows: Flows
    x: Variables
    scale: Scale
    intervals: "dict[int, list[cp_model.IntervalVar]]"
    loads: "dict[int, list[cp_model.LinearExprT]]"
    over: Callable[[], bool]

    def look(self) -> None:
        """Look at the clock.

        Raises
        ------
        OutOfTimeError
            When the model is not worth to be completed.
        """
        if self.over():
            raise OutOfTimeError("the model is not written down in time", fix="raise --time-limit")


def make_scale(flows: Flows, horizon: Time, longest: int) -> Scale:
    """Return ticks in which all durations are whole, where the horizon allows that.

    Parameters
    ----------
    horizon
        A makespan that is reached already, in picoseconds.
    longest
        The most chunks of a message.
    """
    times: set[Time] = set()
    for link in flows.links:
        for chunks in range(1, longest + 1):
            duration, uses = flows.cost(link, chunks)
            times.update([duration, *(busy for _, busy in uses)])
    unit = math.gcd(*times) or 1
    tick = max(unit, -(-horizon // MAX_HORIZON))
    return Scale(tick, -(-horizon // tick), tick == unit)


def build(
    flows: Flows,
    scale: Scale,
    floor: Time,
    together: Neighbours | None,
    over: Callable[[], bool] = lambda: False,
) -> Parts:
    """Return the whole model.

    Parameters
    ----------
    floor
        A proven lower bound in picoseconds.
    together
        Which chunks may travel together; None: each travels alone.
    over
        Asked all the time: whether to give up.

    Raises
    ------
    OutOfTimeError
        When it is over.
    """
    from ortools.sat.python import cp_model

    from taccl.synth.exact_batches import add_batches

    model = cp_model.CpModel()
    low = min(-(-floor // scale.tick), scale.horizon)
    x = Variables(model.new_int_var(low, scale.horizon, "makespan"))
    parts = Parts(model, flows, x, scale, defaultdict(list), defaultdict(list), over)
    for number, flow in enumerate(flows.flows):
        parts.look()
        _add_flow(parts, number, flow)
    batched = add_batches(parts, together) if together else set()
    for key in x.use:
        if key not in batched:
            _add_single(parts, key)
    for number, flow in enumerate(flows.flows):
        parts.look()
        _causality(parts, number, flow)
        (_leave if flow.summed else _arrive)(parts, number, flow)
        _depth(parts, number, flow)
    _turn(parts)
    for orbit in sorted(parts.intervals):
        model.add_no_overlap(parts.intervals[orbit])
        model.add(sum(parts.loads[orbit]) <= x.makespan)
    _own_first(parts)
    _peers(parts)
    model.minimize(x.makespan)
    return parts


def _add_flow(parts: Parts, number: int, flow: Flow) -> None:
    model, x, horizon = parts.model, parts.x, parts.scale.horizon
    ranks = {rank for link in flow.links for rank in parts.flows.ends_of(link)}
    for rank in sorted({*flow.roots, *ranks}):
        known = not flow.summed and not flow.chosen and rank in flow.roots
        still = known and not parts.flows.problem.collective.reduces
        x.avail[number, rank] = model.new_int_var(0, 0 if still else horizon, "")
        if flow.chosen and rank in flow.roots and (flow.chunk, rank) not in x.root:
            x.root[flow.chunk, rank] = model.new_bool_var("")
    if flow.chosen and flow.summed:
        model.add_exactly_one([x.root[flow.chunk, rank] for rank in flow.roots])
    for link in flow.links:
        x.use[number, link] = model.new_bool_var("")
        x.start[number, link] = model.new_int_var(0, horizon, "")


def _add_single(parts: Parts, key: Key) -> None:
    """Make a chunk on a link a message of its own."""
    model, x, scale = parts.model, parts.x, parts.scale
    duration, uses = parts.flows.cost(key[1], 1)
    x.end[key] = x.start[key] + scale.up(duration)
    for orbit, busy in uses:
        held = scale.up(busy)
        parts.intervals[orbit].append(
            model.new_optional_fixed_size_interval_var(x.start[key], held, x.use[key], "")
        )
        parts.loads[orbit].append(held * x.use[key])


def _causality(parts: Parts, number: int, flow: Flow) -> None:
    model, x = parts.model, parts.x
    for link in flow.links:
        key = (number, link)
        src, dst = parts.flows.ends_of(link)
        model.add(x.start[key] >= x.avail[number, src]).only_enforce_if(x.use[key])
        model.add(x.avail[number, dst] >= x.end[key]).only_enforce_if(x.use[key])
        model.add(x.makespan >= x.end[key]).only_enforce_if(x.use[key])


def _sides(
    parts: Parts, number: int, flow: Flow
) -> "tuple[dict[Rank, list[cp_model.IntVar]], dict[Rank, list[cp_model.IntVar]]]":
    """Return the uses of the links into and out of every rank."""
    into: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    out: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    for link in flow.links:
        src, dst = parts.flows.ends_of(link)
        out[src].append(parts.x.use[number, link])
        into[dst].append(parts.x.use[number, link])
    return into, out


def _is_root(parts: Parts, flow: Flow, rank: Rank) -> "list[cp_model.LiteralT]":
    """Return what is true when a rank is the root: nothing, a literal, or True."""
    if rank not in flow.roots:
        return []
    return [parts.x.root[flow.chunk, rank]] if flow.chosen else [True]


def _arrive(parts: Parts, number: int, flow: Flow) -> None:
    model, x = parts.model, parts.x
    into, _ = _sides(parts, number, flow)
    for rank in sorted({*into, *flow.ends}):
        entered = [*into[rank], *_is_root(parts, flow, rank)]
        if rank in flow.ends:
            model.add_exactly_one(entered)
        else:
            model.add_at_most_one(entered)
    for link in flow.links:
        src = parts.flows.ends_of(link)[0]
        if src not in flow.ends:
            held = [*into[src], *_is_root(parts, flow, src)]
            model.add_bool_or([x.use[number, link].negated(), *held])


def _leave(parts: Parts, number: int, flow: Flow) -> None:
    model, x = parts.model, parts.x
    into, out = _sides(parts, number, flow)
    for rank in sorted({*out, *flow.ends}):
        left = [*out[rank], *_is_root(parts, flow, rank)]
        if rank in flow.ends:
            model.add_exactly_one(left)
        else:
            model.add_at_most_one(left)
    for link in flow.links:
        src, dst = parts.flows.ends_of(link)
        if dst not in flow.ends:
            on = [*out[dst], *_is_root(parts, flow, dst)]
            model.add_bool_or([x.use[number, link].negated(), *on])
        if src not in flow.ends:
            model.add_bool_or([x.use[number, link].negated(), *into[src]])


def _turn(parts: Parts) -> None:
    """Join the two flows of every chunk that is summed and then spread."""
    x, flows = parts.x, parts.flows.flows
    spread = {flow.chunk: n for n, flow in enumerate(flows) if not flow.summed}
    for number, flow in enumerate(flows):
        if not flow.summed or flow.chunk not in spread:
            continue
        for rank in flow.roots:
            here, there = x.avail[number, rank], x.avail[spread[flow.chunk], rank]
            waits = parts.model.add(there >= here)
            waits.only_enforce_if(_is_root(parts, flow, rank))


def _depth(parts: Parts, number: int, flow: Flow) -> None:
    """Order the ranks of a way where hops are limited, or where links take no time at all."""
    model, x = parts.model, parts.x
    free = any(parts.flows.cost(link, 1)[0] == 0 for link in flow.links)
    if flow.hops is None and not free:
        return
    ranks = {rank for link in flow.links for rank in parts.flows.ends_of(link)}
    depth = {
        rank: model.new_int_var(0, len(ranks) if flow.hops is None else flow.hops[rank], "")
        for rank in sorted(ranks)
    }
    for link in flow.links:
        src, dst = parts.flows.ends_of(link)
        near, far = (dst, src) if flow.summed else (src, dst)
        model.add(depth[far] >= depth[near] + 1).only_enforce_if(x.use[number, link])


def _own_first(parts: Parts) -> None:
    problem = parts.flows.problem
    if not problem.logical.own_chunks_first or problem.collective.reduces:
        return
    model, x = parts.model, parts.x
    server, orbit = problem.topology.server_of, problem.group.rank_orbit
    latest: dict[int, cp_model.IntVar] = {}
    foreign = []
    for key, use in x.use.items():
        src, dst = parts.flows.ends_of(key[1])
        if server[src] == server[dst]:
            continue
        sender = int(orbit[src])
        if sender not in latest:
            latest[sender] = model.new_int_var(0, parts.scale.horizon, "")
        if src in parts.flows.flows[key[0]].roots:
            model.add(latest[sender] >= x.start[key]).only_enforce_if(use)
        else:
            foreign.append((key, sender))
    for key, sender in foreign:
        model.add(x.start[key] >= latest[sender]).only_enforce_if(x.use[key])


def _peers(parts: Parts) -> None:
    problem = parts.flows.problem
    limit = problem.logical.connections_per_rank
    if limit is None:
        return
    connection = connections(build_network(problem))
    open_ = {n: parts.model.new_bool_var("") for n in sorted(set(connection.values()))}
    for (_, link), use in parts.x.use.items():
        parts.model.add_implication(use, open_[connection[link]])
    table = problem.topology.links
    for rank in sorted(set(problem.group.rank_orbit.tolist())):
        for here, there in ((table.src, table.dst), (table.dst, table.src)):
            peers = {int(there[k]): n for k, n in connection.items() if here[k] == rank}
            parts.model.add(sum(open_[n] for n in peers.values()) <= limit)
