"""Large-neighbourhood search: better routes and order from a schedule, a few chunks at a time.

The model is that of the exact engine (model.py). Most flows keep the links that they have,
only their order is open; those of a few chunk orbits may take any link. Which ones is drawn anew
each time: chunks that arrive last, chunks that share the busiest resource, or any. The number of
open chunks grows while the solver proves that they can't be better, and shrinks while it runs out
of time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from taccl.model.problem import Options, Problem, reduces_and_spreads
from taccl.model.schedule import Schedule, retime
from taccl.synth.exact.model import Flow, Flows, flows_of
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


@dataclass(frozen=True)
class _Routed:
    """A schedule and the links that each flow takes in it."""

    schedule: Schedule
    links: Mapping[tuple[int, bool], tuple[int, ...]]


def improve_routes(
    problem: Problem, known: Schedule, options: Options, seconds: float, floor: Time
) -> Schedule:
    """Return the best schedule found, or the known one.

    Parameters
    ----------
    known
        A schedule on the problem's orbits, one chunk to a message.
    seconds
        Wall clock, or counted work.
    floor
        A lower bound in picoseconds: a schedule that reaches it ends the search.
    """
    flows = _searched(problem, known)
    if flows is None:
        return known
    clock = replace(options, time_limit=seconds).begin()
    best = _routed(problem, known)
    random = Random(options.seed)
    count = FEWEST
    for number in range(ROUNDS if options.deterministic else 1 << 30):
        left = clock.left
        if best.schedule.makespan <= floor or left < 1:
            break
        chosen = _choose(best, flows, random, number, count)
        part = seconds / ROUNDS if options.deterministic else max(2.0, SHARE * left)
        single = replace(options, batch=False, report=_silent)
        found = solve_model(
            _opened(flows, best, chosen), best.schedule, single, min(part, left), floor, twice=False
        )
        better = None
        if found.decisions is not None:
            better = retime(problem.collective, problem.group, problem.chunk_size, found.decisions)
        if better is not None and better.makespan < best.schedule.makespan:
            options.report(
                f"routes of {len(chosen)} chunks: {best.schedule.makespan / 1e6:.2f} ->"
                f" {better.makespan / 1e6:.2f} us"
            )
            best = _routed(problem, better)
        elif found.proved:
            count = min(count + 1, MOST, len(flows.flows))
        else:
            count = max(count - 1, FEWEST)
    return best.schedule


def _silent(line: str) -> None:
    """Report nothing."""


def _searched(problem: Problem, known: Schedule) -> Flows | None:
    """Return the flows of a problem, where a model can hold them and the schedule."""
    same = known.generators == problem.group.generators
    if not same or known.batches or not FEWEST < len(known) <= MAX_FIXED:
        return None
    flows = flows_of(problem)
    links = _routed(problem, known).links
    # An exchange has two roots for a chunk, which the flows do not have.
    alike = all(
        _is_tree(flows, flow, links.get((flow.chunk, flow.summed), ())) for flow in flows.flows
    )
    return flows if alike and flows.flows else None


def _is_tree(flows: Flows, flow: Flow, links: Sequence[int]) -> bool:
    """Tell whether some links are one tree from (to) one root of a flow, or several fixed ones."""
    ends = [flows.ends_of(link) for link in links]
    fed = [src if flow.summed else dst for src, dst in ends]
    others = {dst if flow.summed else src for src, dst in ends} - set(fed)
    return len(set(fed)) == len(fed) and (not flow.chosen or len(others) <= 1)


def _routed(problem: Problem, schedule: Schedule) -> _Routed:
    links: dict[tuple[int, bool], list[int]] = defaultdict(list)
    sums_only = problem.collective.reduces and not reduces_and_spreads(problem.collective)
    rows = (schedule.chunk.tolist(), schedule.link.tolist(), schedule.reduce.tolist())
    for chunk, link, adds in zip(*rows, strict=True):
        links[chunk, adds or sums_only].append(link)
    return _Routed(schedule, {key: tuple(sorted(some)) for key, some in links.items()})


def _choose(best: _Routed, flows: Flows, random: Random, number: int, count: int) -> frozenset[int]:
    """Return the chunks whose routes are open."""
    chunks = sorted({flow.chunk for flow in flows.flows})
    order = [_last, _busiest, _any][number % 3](best, flows, chunks, random)
    links = max(len(flow.links) for flow in flows.flows)
    return frozenset(list(dict.fromkeys(order))[: max(1, min(count, MAX_OPEN // max(1, links)))])


def _any(_best: _Routed, _flows: Flows, chunks: list[int], random: Random) -> Iterator[int]:
    yield from random.sample(chunks, len(chunks))


def _last(best: _Routed, _flows: Flows, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield a chunk that arrives last, then others late ones first, with some noise."""
    ends: dict[int, Time] = defaultdict(int)
    for chunk, end in zip(best.schedule.chunk.tolist(), best.schedule.end.tolist(), strict=True):
        ends[chunk] = max(ends[chunk], end)
    late = best.schedule.makespan
    first = [chunk for chunk in chunks if ends[chunk] == late]
    yield random.choice(first or chunks)
    yield from sorted(chunks, key=lambda chunk: late - ends[chunk] + random.random() * late / 4)


def _busiest(best: _Routed, flows: Flows, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield chunks that cross one busy resource, in random order."""
    load: dict[int, Time] = defaultdict(int)
    users: dict[int, list[int]] = defaultdict(list)
    for chunk, link in zip(best.schedule.chunk.tolist(), best.schedule.link.tolist(), strict=True):
        for resource, held in flows.problem.cost(link, 1)[1]:
            load[resource] += held
            users[resource].append(chunk)
    resources = sorted(load, key=lambda resource: (-load[resource], resource))
    crossing = sorted(set(users[random.choice(resources[: max(1, len(resources) // 4)])]))
    yield from random.sample(crossing, len(crossing))
    yield from random.sample(chunks, len(chunks))


def _opened(flows: Flows, best: _Routed, chosen: frozenset[int]) -> Flows:
    """Return the flows with all links for the chosen chunks, and the links they have for others."""
    return Flows(
        flows.problem,
        tuple(
            flow
            if flow.chunk in chosen
            else replace(flow, links=best.links.get((flow.chunk, flow.summed), ()))
            for flow in flows.flows
        ),
    )
