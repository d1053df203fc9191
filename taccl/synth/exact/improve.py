"""Large-neighbourhood search: better routes and order from a schedule, a few chunks at a time.

The model is that of the exact engine (model.py). Most flows keep the links that they have,
only their order is open; those of a few chunk orbits may take any link. Which ones is drawn anew
each time: chunks that arrive last, chunks that share the busiest resource, or any. The number of
open chunks grows while the solver proves that they can't be better, and shrinks while it runs out
of time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random

from taccl.model.problem import Options, Problem, reduces_and_spreads
from taccl.model.schedule import Schedule
from taccl.synth.exact.model import Flows, flows_of
from taccl.synth.exact.solve import solve_model
from taccl.units import Time

MAX_FIXED = 6000
"""Sends up to which their order is worth a model."""

MAX_OPEN = 2500
"""Pairs of an open flow and a link up to which routes are worth a model."""

FEWEST, MOST = 2, 15
SHARE = 0.15
"""Of the time that is left, for one neighbourhood."""

ROUNDS = 12
"""Neighbourhoods, where work is counted instead of time."""


def improve_routes(
    problem: Problem, known: Schedule, options: Options, seconds: float, floor: Time
) -> Schedule:
    """Return the best schedule found for a `problem` in some `seconds`, or the `known` one.

    The known schedule is on the problem's orbits, one chunk to a message. The time is by the clock,
    or counted work; a schedule that reaches the lower bound `floor`, in picoseconds, ends the
    search. `options` tell how to search.
    """
    flows = _searched(problem, known)
    if flows is None:
        return known
    chunks = sorted({flow.chunk for flow in flows.flows})
    most = max(1, *(len(flow.links) for flow in flows.flows))
    clock = replace(options, time_limit=seconds).begin()
    single = replace(options, batch=False, report=lambda _: None)
    best, taken = known, _links(problem, known)
    random = Random(options.seed)
    count = FEWEST
    for number in range(ROUNDS if options.deterministic else 1 << 30):
        left = clock.left
        if best.makespan <= floor or left < 1:
            break
        if number % 3 == 0:
            order: Iterable[int] = _last(best, chunks, random)
        elif number % 3 == 1:
            order = _busiest(problem, best, chunks, random)
        else:
            order = random.sample(chunks, len(chunks))
        chosen = frozenset(list(dict.fromkeys(order))[: max(1, min(count, MAX_OPEN // most))])
        part = seconds / ROUNDS if options.deterministic else max(2.0, SHARE * left)
        opened = tuple(
            flow
            if flow.chunk in chosen
            else replace(flow, links=taken.get((flow.chunk, flow.summed), ()))
            for flow in flows.flows
        )
        found = solve_model(
            Flows(problem, opened), best, single, min(part, left), floor, twice=False
        )
        better = None if found.decisions is None else problem.timed(found.decisions)
        if better is not None and better.makespan < best.makespan:
            options.report(
                f"routes of {len(chosen)} chunks: {best.makespan / 1e6:.2f} ->"
                f" {better.makespan / 1e6:.2f} us"
            )
            best, taken = better, _links(problem, better)
        elif found.proved:
            count = min(count + 1, MOST, len(flows.flows))
        else:
            count = max(count - 1, FEWEST)
    return best


def _searched(problem: Problem, known: Schedule) -> Flows | None:
    """Return the flows of a problem, where a model can hold them and the schedule."""
    same = known.generators == problem.group.generators
    if not same or known.batches or not FEWEST < len(known) <= MAX_FIXED:
        return None
    flows = flows_of(problem)
    links = _links(problem, known)
    # An exchange has two roots for a chunk, which the flows do not have.
    for flow in flows.flows:
        # One tree from (to) one root, or several fixed ones.
        ends = [flows.ends_of(link) for link in links.get((flow.chunk, flow.summed), ())]
        fed = [src if flow.summed else dst for src, dst in ends]
        others = {dst if flow.summed else src for src, dst in ends} - set(fed)
        if len(set(fed)) < len(fed) or (flow.chosen and len(others) > 1):
            return None
    return flows if flows.flows else None


def _links(problem: Problem, schedule: Schedule) -> Mapping[tuple[int, bool], tuple[int, ...]]:
    """Return the links that each flow takes in a schedule."""
    links: dict[tuple[int, bool], list[int]] = defaultdict(list)
    sums_only = problem.collective.reduces and not reduces_and_spreads(problem.collective)
    rows = (schedule.chunk.tolist(), schedule.link.tolist(), schedule.reduce.tolist())
    for chunk, link, adds in zip(*rows, strict=True):
        links[chunk, adds or sums_only].append(link)
    return {key: tuple(sorted(some)) for key, some in links.items()}


def _last(best: Schedule, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield a chunk that arrives last, then others late ones first, with some noise."""
    ends: dict[int, Time] = defaultdict(int)
    for chunk, end in zip(best.chunk.tolist(), best.end.tolist(), strict=True):
        ends[chunk] = max(ends[chunk], end)
    late = best.makespan
    first = [chunk for chunk in chunks if ends[chunk] == late]
    yield random.choice(first or chunks)
    yield from sorted(chunks, key=lambda chunk: late - ends[chunk] + random.random() * late / 4)


def _busiest(problem: Problem, best: Schedule, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield chunks that cross one busy resource, in random order."""
    load: dict[int, Time] = defaultdict(int)
    users: dict[int, list[int]] = defaultdict(list)
    for chunk, link in zip(best.chunk.tolist(), best.link.tolist(), strict=True):
        for resource, held in problem.cost(link, 1)[1]:
            load[resource] += held
            users[resource].append(chunk)
    resources = sorted(load, key=lambda resource: (-load[resource], resource))
    crossing = sorted(set(users[random.choice(resources[: max(1, len(resources) // 4)])]))
    yield from random.sample(crossing, len(crossing))
    yield from random.sample(chunks, len(chunks))
