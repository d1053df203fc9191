"""Engine ``taccl``: routing, then ordering, then contiguity and exact times.

The stages of Shah et al. (NSDI 2023, section 5), on orbit representatives. Stage 1 hands over
several routings, as its relaxation can't tell which schedules best; stage 2 orders each by every
rule and with several message sizes; stage 3 improves the best of them exactly. Where routes and
order fit one model, that is solved as well. A greedy schedule stands ready from the
start, so there is always an answer.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl.collectives.slots import DEFAULT_LAYOUT, LAYOUTS
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, Result, Status, reduces_and_spreads
from taccl.model.routes import Arc, Network, Routes, build_network
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.exact.model import flows_of, flows_of_networks
from taccl.synth.exact.solve import MAX_INTERVALS, improve_order, solve_model
from taccl.synth.greedy import Hop, greedy_routes, is_complete
from taccl.synth.list_scheduler import PRIORITIES, order
from taccl.synth.plan import Adjacency, Message, Plan, in_turn, plan_decisions, plan_routes, rows_of
from taccl.synth.staged.reduction import exchanged, partners_of
from taccl.synth.staged.routing import from_root, networks, route
from taccl.timing.deadline import Deadline
from taccl.topology.symmetry import make_group

MESSAGE_LENGTHS = (2, 4, 8, 1 << 30)
MAX_BATCHED = 100_000
"""Sends, over all orbits, up to which batches are looked for."""

MAX_UNFOLDED = 20_000
"""Sends, over all orbits, up to which they are ordered one by one."""

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

    A small problem is routed again without it; of a larger one, and where a sketch asks for the
    symmetry, the routes are kept and only order and messages are decided for every chunk by
    itself. Time that is left goes into the best schedule, which may be one that was known before.

    Raises
    ------
    NoScheduleError
        When the sketch leaves a chunk without a path to a target.
    """
    clock = options.begin(options.solver_share)
    if problem.topology.num_ranks == 1:
        return Result(Status.OPTIMAL, _nothing(problem), (), "taccl", 0.0)
    candidates = _solve(problem, options, clock.share(0.5))
    free = _without_symmetry(problem)
    if candidates[0].makespan > options.floor and free is not None and clock.left:
        candidates += _solve(free, options, clock.share(0.6), kept=1)
    elif candidates[0].makespan > options.floor and len(problem.group) > 1 and options.batch:
        candidates += _unfolded(problem, candidates[:2], options, clock.share(0.6))
    candidates += _known(problem, options)
    best = min(candidates, key=lambda candidate: candidate.makespan)
    if not options.deterministic:
        best = _polished(best, options, clock)
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif best.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, best.schedule, (), "taccl", clock.spent)


def _known(problem: Problem, options: Options) -> Iterator[Candidate]:
    """Yield what was found elsewhere, with its plan; sums may be exchanged there, and have none."""
    for schedule in options.known:
        if not (problem.collective.reduces or schedule.packs):
            orbits = replace(problem, group=make_group(problem.topology, schedule.generators))
            yield Candidate(schedule, plan_decisions(orbits, rows_of(schedule.decisions())))


def _unfolded(
    problem: Problem, candidates: Sequence[Candidate], options: Options, clock: Deadline
) -> list[Candidate]:
    """Order the routes of all orbits chunk by chunk: images may travel in other messages.

    A rotation carries neighbours past the end of a buffer, where they are none.
    """
    free = replace(problem, group=make_group(problem.topology, ()))
    found: list[Candidate] = []
    for candidate in candidates:
        small = candidate.schedule.num_sends <= MAX_UNFOLDED
        if small and not candidate.plan.exchanges and clock.left:
            rows = rows_of(candidate.schedule.expand().decisions())
            found += ordered(plan_decisions(free, rows), options, clock)
    return _improved(found, options, clock, 1)


def _polished(candidate: Candidate, options: Options, clock: Deadline) -> Candidate:
    """Spend the time that is left: on messages and order, then on routes as well."""
    schedule, plan = candidate.schedule, candidate.plan
    if plan.exchanges:  # no model has them
        return candidate
    if schedule.makespan > options.floor and clock.left > 1:
        seconds = clock.left / 2
        schedule, _ = improve_order(
            schedule, plan, options, seconds, options.floor, layout=candidate.layout
        )
    problem, count = plan.problem, len(plan.problem.representatives)
    few = count <= MAX_INTERVALS and (not options.batch or count**2 <= MAX_MESSAGES)
    if schedule.makespan <= options.floor or clock.left <= 1 or not few:
        return replace(candidate, schedule=schedule)
    flows = flows_of(problem)
    work = flows.size * (len(flows.flows) if options.batch else 1)
    if flows.size <= MAX_INTERVALS and work <= MAX_MESSAGES:
        decisions = solve_model(flows, schedule, options, clock.left, options.floor).decisions
        if decisions is not None:
            found = retime(problem.collective, problem.group, problem.chunk_size, decisions)
            if found.makespan < schedule.makespan:
                options.report(
                    f"routes and messages: {schedule.makespan / 1e6:.2f} ->"
                    f" {found.makespan / 1e6:.2f} us"
                )
                return Candidate(found, plan_decisions(problem, rows_of(decisions)))
    return replace(candidate, schedule=schedule)


def _nothing(problem: Problem) -> Schedule:
    return retime(problem.collective, problem.group, problem.chunk_size, Decisions.of([]))


def _without_symmetry(problem: Problem) -> Problem | None:
    """Return the problem with all chunks as representatives, where that is small enough.

    A symmetry that a sketch asks for is kept.
    """
    arcs = int(problem.logical.allowed.sum()) * problem.collective.num_chunks
    if len(problem.group) == 1 or problem.logical.symmetry_asked or arcs > MAX_INTERVALS:
        return None
    return replace(problem, group=make_group(problem.topology, ()))


def _solve(
    problem: Problem, options: Options, clock: Deadline, kept: int = KEPT
) -> list[Candidate]:
    if options.deterministic:
        kept = min(kept, 2)
    if reduces_and_spreads(problem.collective):
        return _allreduce(problem, options, clock, kept)
    found = _one_way(problem, options, clock, reverse=problem.collective.reduces)
    return _improved(found, options, clock, kept)


def _allreduce(problem: Problem, options: Options, clock: Deadline, kept: int) -> list[Candidate]:
    """Return candidates that reduce along one set of trees and gather along another, pipelined."""
    half = replace(options, floor=0)
    halves = [
        _improved(
            _one_way(problem, half, clock.share(0.6 * share), reverse=reverse),
            half,
            clock.share(share),
            kept,
        )[:2]
        for reverse, share in ((True, 1 / 3), (False, 1 / 2))
    ]
    joint = _joined(problem, halves, options, clock)
    joint += _exchanged(problem, options, clock)
    return _improved(joint, options, clock, kept)


def _exchanged(problem: Problem, options: Options, clock: Deadline) -> list[Candidate]:
    """Return candidates whose trees have two roots that exchange their sums."""
    found: list[Candidate] = []
    for partners in partners_of(problem):
        plan = exchanged(problem, partners, _greedy_forest) if clock.left else None
        if plan is not None and len(plan.moves) <= MAX_EXCHANGED:
            found += ordered(plan, options, clock)[:1]
    return found


def _greedy_forest(network: Network) -> Routes | None:
    hops = greedy_routes(network)
    return _routes_of(network, hops) if is_complete(network, hops) else None


def _in_sequence(plan: Plan, first: Schedule, second: Schedule) -> Candidate:
    """Return both halves as they are, one after the other but for what can start earlier."""
    problem = plan.problem
    shift = int(first.batch.max()) + 1 if len(first) else 0
    rows = list(first.decisions().rows())
    rows += [(c, k, batch + shift, r) for c, k, batch, r in second.decisions().rows()]
    decisions = Decisions.of(rows)
    return Candidate(retime(problem.collective, problem.group, problem.chunk_size, decisions), plan)


def _one_way(
    problem: Problem, options: Options, clock: Deadline, *, reverse: bool
) -> list[Candidate]:
    """Return candidates for chunks that flow from their roots, or to them, from every variant."""
    found: list[Candidate] = []
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
        found += ordered(plan_routes(network, _routes_of(network, hops)), options, clock)
        goal = max(options.floor, options.fixed_floors.get(_half(network), 0))
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
                found += _as_planned(problem, exact, options)
    return found


def _half(network: Network) -> str:
    """Return the collective that the network's trees make up alone."""
    if reduces_and_spreads(network.problem.collective):
        return "reducescatter" if network.reverse else "allgather"
    return network.problem.collective.name


def _as_planned(problem: Problem, decisions: Decisions, options: Options) -> list[Candidate]:
    """Return the schedule of decisions as they are, and other orders of their routes."""
    plan = plan_decisions(problem, rows_of(decisions))
    schedule = retime(problem.collective, problem.group, problem.chunk_size, decisions)
    return [Candidate(schedule, plan), *ordered(plan, options)]


def first_schedules(
    problem: Problem, options: Options, clock: Deadline | None = None
) -> list[Schedule]:
    """Return what the greedy heuristic finds at once, the best first.

    With a clock, of the ways to order it only those that there is time for, but at least one.

    Raises
    ------
    NoScheduleError
        When the sketch leaves a chunk without a path to a target.
    """
    two_ways = reduces_and_spreads(problem.collective)
    halves = []
    for reverse in (True, False) if two_ways else (problem.collective.reduces,):
        network = build_network(problem, reverse=reverse)
        hops = greedy_routes(network)
        if not is_complete(network, hops):
            return []
        halves.append(ordered(plan_routes(network, _routes_of(network, hops)), options, clock)[:1])
    found = _joined(problem, halves, options, clock) if two_ways else halves[0]
    return [candidate.schedule for candidate in sorted(found, key=lambda one: one.makespan)]


def _joined(
    problem: Problem,
    halves: Sequence[Sequence[Candidate]],
    options: Options,
    clock: Deadline | None = None,
) -> list[Candidate]:
    """Return every reduction followed by every gather, pipelined and one after the other."""
    joint: list[Candidate] = []
    for reduction, gather in itertools.product(*halves):
        summed = rows_of(reduction.schedule.decisions())
        turned = in_turn(problem, summed)
        plan = plan_decisions(problem, [*turned, *rows_of(gather.schedule.decisions())])
        joint.extend(ordered(plan, options, clock))
        if turned == summed:
            joint.append(_in_sequence(plan, reduction.schedule, gather.schedule))
    return joint


def _routes_of(network: Network, hops: list[Hop]) -> Routes:
    taken: list[dict[int, Arc]] = [{} for _ in network.demands]
    for hop in hops:
        taken[hop.demand][hop.arc.head] = hop.arc
    return tuple(
        from_root(demand, arcs) for demand, arcs in zip(network.demands, taken, strict=True)
    )


def ordered(plan: Plan, options: Options, clock: Deadline | None = None) -> list[Candidate]:
    """Return the schedules of a plan by every rule and message length, the best first.

    With a clock, only those that there is time for, but at least one.
    """
    found: dict[int, Candidate] = {}
    for layout, messages in _groupings(plan, options):
        for rule in PRIORITIES:
            if found and (options.stop.is_set() or (clock is not None and not clock.left)):
                break
            schedule = _scheduled(plan, messages, rule)
            if schedule is not None:
                found.setdefault(schedule.makespan, Candidate(schedule, plan, layout))
    return [found[makespan] for makespan in sorted(found)][:KEPT]


def _scheduled(plan: Plan, messages: Sequence[Message], rule: str) -> Schedule | None:
    """Return the schedule of messages by a rule; None when they wait for each other in a ring."""
    problem, decisions = plan.problem, order(plan, messages, rule)
    if decisions is None:
        return None
    try:
        return retime(problem.collective, problem.group, problem.chunk_size, decisions)
    except ValueError:
        if not plan.exchanges:
            raise
        return None  # two exchanges hold each other up


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


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """Return the best candidate of every plan, the best first."""
    best: dict[int, Candidate] = {}
    for candidate in candidates:
        known = best.get(id(candidate.plan))
        if known is None or candidate.makespan < known.makespan:
            best[id(candidate.plan)] = candidate
    return sorted(best.values(), key=lambda candidate: candidate.makespan)


def _improved(
    candidates: list[Candidate], options: Options, clock: Deadline, kept: int
) -> list[Candidate]:
    """Improve the best candidates of different plans by stage 3; return them, the best first."""
    chosen = _distinct(candidates)[:kept]
    result: list[Candidate] = []
    for number, candidate in enumerate(chosen):
        if result and min(c.makespan for c in result) <= options.floor:
            break
        if candidate.plan.exchanges:
            result.append(candidate)
            continue
        seconds = min(clock.left / (len(chosen) - number), 8.0)
        schedule, _ = improve_order(
            candidate.schedule,
            candidate.plan,
            options,
            seconds,
            options.floor,
            layout=candidate.layout,
        )
        options.report(
            f"contiguity: {candidate.makespan / 1e6:.2f} -> {schedule.makespan / 1e6:.2f} us"
        )
        result.append(replace(candidate, schedule=schedule))
    return sorted(result, key=lambda candidate: candidate.makespan)
