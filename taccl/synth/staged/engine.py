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
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from taccl.collectives.slots import DEFAULT_LAYOUT, LAYOUTS
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, Result, Status, reduces_and_spreads
from taccl.model.routes import build_network, hops_from
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.exact.model import flows_of, flows_of_networks
from taccl.synth.exact.solve import MAX_INTERVALS, improve_order, solve_model
from taccl.synth.greedy import greedy_routes, is_complete, routes_of
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
from taccl.synth.staged.routing import networks, route
from taccl.timing.deadline import Deadline
from taccl.topology.symmetry import make_group

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
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif best.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, best.schedule, (), "taccl", clock.spent)


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
    goal = max(options.floor, options.fixed_floors.get(collective, 0))
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
