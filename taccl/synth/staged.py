"""Engine ``taccl``: routing, then ordering, then contiguity and exact times.

The stages of Shah et al. (NSDI 2023, section 5), on orbit representatives. Stage 1 hands over
several routings, as its relaxation can't tell which schedules best; stage 2 orders each by every
rule and with several message sizes; stage 3 improves the best of them exactly. A greedy schedule
stands ready from the start, so there is always an answer.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from taccl.errors import NoScheduleError
from taccl.schedule import Decisions, Schedule, retime
from taccl.synth.batching import Adjacency, Message
from taccl.synth.contiguity import improve
from taccl.synth.greedy import Hop, greedy_routes, is_complete
from taccl.synth.ordering import PRIORITIES, order
from taccl.synth.plan import Plan, plan_decisions, plan_routes, rows_of
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.routes import Network
from taccl.synth.routing import Routes, from_root, route
from taccl.synth.variants import networks

MESSAGE_LENGTHS = (1, 2, 4, 8, 1 << 30)
KEPT = 4
"""Candidates that stage 3 improves."""


@dataclass(frozen=True)
class Candidate:
    """A schedule and the plan it orders."""

    schedule: Schedule
    plan: Plan

    @property
    def makespan(self) -> int:
        """Picoseconds."""
        return self.schedule.makespan


@dataclass(frozen=True)
class Clock:
    """When the engine must be done."""

    deadline: float
    options: Options

    @property
    def left(self) -> float:
        """Seconds left; 0 once the user interrupts."""
        if self.options.stop.is_set():
            return 0.0
        return max(0.0, self.deadline - time.monotonic())


def staged(problem: Problem, options: Options) -> Result:
    """Solve a problem in three stages.

    Raises
    ------
    NoScheduleError
        When the sketch leaves a chunk without a path to a target.
    """
    began = time.monotonic()
    clock = Clock(began + options.time_limit, options)
    if problem.topology.num_ranks == 1:
        return Result(Status.OPTIMAL, _nothing(problem), (), "taccl", 0.0)
    candidates = (
        _allreduce(problem, options, clock)
        if problem.collective.name == "allreduce"
        else _one_way(problem, options, clock, reverse=problem.collective.reduces)
    )
    best = candidates[0]
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif best.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, best.schedule, (), "taccl", time.monotonic() - began)


def _nothing(problem: Problem) -> Schedule:
    return retime(problem.collective, problem.group, problem.chunk_size, Decisions.of([]))


def _one_way(problem: Problem, options: Options, clock: Clock, *, reverse: bool) -> list[Candidate]:
    """Return improved candidates of a collective whose chunks flow one way, the best first."""
    found = []
    for plan in _plans(problem, options, clock, reverse=reverse):
        found.extend(ordered(plan, options))
        if clock.left == 0.0:
            break
    return _improved(found, options, clock)


def _allreduce(problem: Problem, options: Options, clock: Clock) -> list[Candidate]:
    """Return candidates that reduce along one set of trees and gather along another, pipelined."""
    halves: dict[bool, list[Candidate]] = {}
    for reverse in (True, False):
        half = Clock(time.monotonic() + clock.left / 3, options)
        found: list[Candidate] = []
        for plan in _plans(problem, options, half, reverse=reverse):
            found.extend(ordered(plan, options))
        halves[reverse] = _distinct(found)[:2]
    joint: list[Candidate] = []
    for reduction in halves[True]:
        for gather in halves[False]:
            rows = rows_of(reduction.schedule.decisions()) + rows_of(gather.schedule.decisions())
            joint.extend(ordered(plan_decisions(problem, rows), options))
    return _improved(joint, options, clock)


def _plans(problem: Problem, options: Options, clock: Clock, *, reverse: bool) -> Iterator[Plan]:
    """Yield the plans of the greedy and of stage 1, for every variant."""
    for name, network in networks(problem, reverse=reverse):
        hops = greedy_routes(network)
        if not is_complete(network, hops):
            if name == "any way":
                raise NoScheduleError(
                    "no path within the allowed hops serves every chunk",
                    fix="raise max_extra_hops in the sketch",
                )
            continue
        yield plan_routes(network, _routes_of(network, hops))
        seconds = min(clock.left / 5, 8.0)
        if seconds > 0.2:
            options.report(f"{problem.collective.name}: routing, {name}")
            for routes in route(network, hops, options, seconds):
                yield plan_routes(network, routes)


def _routes_of(network: Network, hops: list[Hop]) -> Routes:
    taken: list[dict[int, object]] = [{} for _ in network.demands]
    for hop in hops:
        taken[hop.demand][hop.arc.head] = hop.arc
    return tuple(
        from_root(demand, arcs)  # type: ignore[arg-type]
        for demand, arcs in zip(network.demands, taken, strict=True)
    )


def ordered(plan: Plan, options: Options) -> list[Candidate]:
    """Return the schedules of a plan by every rule and message length, the best first."""
    problem = plan.problem
    found: dict[int, Candidate] = {}
    adjacency = Adjacency(plan) if options.batch else None
    seen = set()
    for length in MESSAGE_LENGTHS:
        if length == 1 or adjacency is None:
            messages: list[Message] = [(number,) for number in range(len(plan.moves))]
        else:
            messages = adjacency.pieces(length)
        if tuple(messages) in seen:
            continue
        seen.add(tuple(messages))
        for rule in PRIORITIES:
            decisions = order(plan, messages, rule)
            if decisions is not None:
                schedule = retime(problem.collective, problem.group, problem.chunk_size, decisions)
                found.setdefault(schedule.makespan, Candidate(schedule, plan))
    return [found[makespan] for makespan in sorted(found)][:KEPT]


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """Return the best candidate of every plan, the best first."""
    best: dict[int, Candidate] = {}
    for candidate in candidates:
        known = best.get(id(candidate.plan))
        if known is None or candidate.makespan < known.makespan:
            best[id(candidate.plan)] = candidate
    return sorted(best.values(), key=lambda candidate: candidate.makespan)


def _improved(candidates: list[Candidate], options: Options, clock: Clock) -> list[Candidate]:
    """Improve the best candidates of different plans by stage 3; return all, the best first."""
    kept = _distinct(candidates)[:KEPT]
    result: list[Candidate] = []
    for number, candidate in enumerate(kept):
        if result and min(c.makespan for c in result) <= options.floor:
            break
        seconds = min(clock.left / (len(kept) - number), 10.0)
        schedule, _ = improve(candidate.schedule, candidate.plan, options, seconds, options.floor)
        options.report(
            f"contiguity: {candidate.makespan / 1e6:.2f} -> {schedule.makespan / 1e6:.2f} us"
        )
        result.append(Candidate(schedule, candidate.plan))
    return sorted(result, key=lambda candidate: candidate.makespan)
