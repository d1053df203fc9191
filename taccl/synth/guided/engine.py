"""Engine ``guided``: price-guided list scheduling on orbit representatives, compiled.

What a resource is worth comes from an optimal fractional packing or is taught by what runs load;
thousands of runs (search.py) then grow the trees of all chunks together, each by the earliest
arrival among the arcs that are cheap enough (tree_list_scheduler.py). The decisions of the best run
are kept without sends that lead to no target. A reduction is such a run on reversed arcs, played
backwards. Runs decide nothing but routes and order; retime() gives the times.

Where chunks may travel together, grid programs and block gathers come first; single chunks may be
cut and joined again, and their routes improved a few at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.chunks import equals_before
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, Result, Status, reduces_and_spreads, result_of
from taccl.model.routes import (
    Arcs,
    Wanted,
    arcs_of,
    build_network,
    is_restricted,
    wanted_in,
    wanted_of,
)
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.prices.packing import pack
from taccl.synth.exact.solve import improve_routes
from taccl.synth.greedy import shortest
from taccl.synth.guided.recursive_block_gather import coalesced
from taccl.synth.guided.search import Effort, Floats, Found, compiled, search, taught_prices
from taccl.synth.guided.tree_list_scheduler import (
    MOST_PAIRS,
    Begin,
    Field,
    Numbers,
    Times,
    field_of,
)
from taccl.synth.message_coalescing import MOST_ROWS, coarser, cut_and_joined
from taccl.synth.plan import in_turn, plan_decisions, rows_of
from taccl.synth.staged import networks, ordered
from taccl.synth.templates.classical import KINDS, grid_schedules
from taccl.synth.time_reversal import mirrored, played_backwards
from taccl.timing.deadline import Deadline
from taccl.timing.occupancy import free_after
from taccl.timing.retiming import uses_of
from taccl.topology.links import MOST_LINKS
from taccl.topology.symmetry import kinds_of_links, make_group
from taccl.units import Time

MANY_LINKS = 1_000_000
"""Links above which trees take some of those that are alike."""

NEAR = Fraction(401, 400)
"""Times the bound: of so many links it is of edges, knows no whole chunks, and this is near."""

PACKED = 40_000
"""Pairs of a representative chunk and an arc up to which prices are those of the packing."""


def one_way(
    problem: Problem,
    options: Options,
    clock: Deadline,
    *,
    reverse: bool,
    begin: Begin | None = None,
) -> list[Schedule]:
    """Return the best schedule for chunks that flow from their roots, or to them.

    `problem`, `options`: what is asked.
    `clock`: when to end.
    `reverse`: whether chunks flow to their roots and are summed.
    `begin`: when chunks and resources are there; None: from the start.

    Raises NoScheduleError when the sketch leaves a chunk without a path to a target.
    """
    arcs = arcs_of(problem, reverse=reverse, links=_links_of(problem))
    variants = list(_wants(arcs, options))
    best: Schedule | None = None
    for (wanted, hops), turn in zip(variants, clock.turns(len(variants)), strict=True):
        if best is not None and options.stop.is_set():
            break
        if len(arcs) * len(wanted.chunk) > MOST_PAIRS[not _goes_everywhere(wanted)]:
            raise NoScheduleError(
                f"{len(wanted.chunk)} chunks and {len(arcs)} links are too many for engine guided",
                fix="declare symmetries of the topology, use fewer --chunks, or another engine",
            )
        field = field_of(arcs, wanted, begin, hops)
        found = _searched(arcs, wanted, field, options, turn)
        if found is not None:
            decisions = _decisions(arcs, wanted, found)
            schedule = retime(problem.collective, problem.group, problem.chunk_size, decisions)
            if best is None or schedule.makespan < best.makespan:
                best = schedule
                options.report(f"{_half(arcs)}: {best.makespan / 1e6:.2f} us under guidance")
    if best is None:
        build_network(problem, reverse=reverse)  # says which rank can't be reached
        raise NoScheduleError(
            "no path within the allowed hops serves every chunk",
            fix="raise max_extra_hops in the sketch",
        )
    return [best]


def _links_of(problem: Problem) -> NDArray[np.int64]:
    """Return the links that trees may take: all, or of very many alike a rank's those at distances.

    From each rank they lead, of those of one kind, to ranks as many places away as a power of two,
    both ways round. So trees are as shallow, and load the same resources. All where some rank would
    not be reached by these from another one.
    """
    links = np.flatnonzero(problem.logical.allowed)
    if len(links) <= MANY_LINKS or problem.logical.name is not None:
        return links
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    table, (kinds, first) = problem.topology.links, problem.group.link_kinds
    if len(first) > problem.topology.num_ranks:  # there is hardly a symmetry: by costs
        kinds, first = kinds_of_links(table, problem.topology.edge_table.cost)
    src, dst = table.src[links], table.dst[links]
    key = src.astype(np.int64) * len(first) + kinds[links]
    every = np.bincount(key)
    near, places = np.bincount(key[dst < src], minlength=len(every))[key], every[key] + 1
    ahead = (equals_before(key) - near) % (places - 1) + 1
    away = np.minimum(ahead, places - ahead)
    kept: NDArray[np.int64] = links[away & (away - 1) == 0]
    ranks, ones = problem.topology.num_ranks, np.ones(len(kept), dtype=np.bool_)
    network = csr_array((ones, (table.src[kept], table.dst[kept])), shape=(ranks, ranks))
    parts, _ = connected_components(network, connection="strong")
    return kept if parts == 1 else links


def _goes_everywhere(wanted: Wanted) -> bool:
    return bool((wanted.targets | wanted.roots).all())


def _wants(arcs: Arcs, options: Options) -> Iterator[tuple[Wanted, Numbers | None]]:
    """Yield what the chunks need and the hops they may make, by variants where a sketch asks."""
    problem, logical = arcs.problem, arcs.problem.logical
    if logical.name is None and logical.connections_per_rank is None and not is_restricted(problem):
        yield wanted_of(arcs), None
        return
    extra = logical.max_extra_hops
    for name, network in networks(problem, reverse=arcs.reverse, options=options):
        limits: Numbers | None = None
        if extra is not None:
            limits = np.zeros((len(network.demands), problem.topology.num_ranks), dtype=np.int32)
            for row, demand in zip(limits, network.demands, strict=True):
                row[list(demand.hops)] = np.array(list(demand.hops.values())) + extra
        yield wanted_in(arcs, network), limits
        if extra and name == "any way":
            # A detour to one rank may use up the hops that another needs.
            yield wanted_in(arcs, shortest(network)), None


def _searched(
    arcs: Arcs, wanted: Wanted, field: Field, options: Options, clock: Deadline
) -> Found | None:
    grow = compiled(options.report)
    prices: list[Floats] = []
    proved = 0
    pairs = len(arcs) * len(wanted.chunk)
    if pairs <= PACKED:
        try:
            packing = pack(arcs, wanted, seconds=1e9 if options.deterministic else clock.patience)
        except NoScheduleError:
            return None
        prices.append(packing.prices)
        proved = packing.bound
    near = NEAR if len(arcs.problem.topology.links) > MOST_LINKS else 1
    goal = cache(lambda: int(near * max(options.floor, options.fixed_floor(_half(arcs)), proved)))
    prices.append(taught_prices(arcs, field, grow))
    runs = int(min(250 * options.time_limit, 3e6 * options.time_limit / max(1, pairs)))
    effort = Effort(
        goal=goal,
        clock=clock,
        runs=max(8, runs) if options.deterministic else 1 << 40,
        seed=options.seed,
        workers=options.workers,
    )
    return search(arcs, field, prices, grow, effort)


def _half(arcs: Arcs) -> str:
    """Return the collective that the trees on some arcs make up alone."""
    collective = arcs.problem.collective
    if reduces_and_spreads(collective):
        return "reducescatter" if arcs.reverse else "allgather"
    return collective.name


def _decisions(arcs: Arcs, wanted: Wanted, found: Found) -> Decisions:
    """Return what a run decided: without sends that lead to no target, turned where reversed."""
    kept = _needed(arcs, wanted, found)
    chunk, arc = wanted.chunk[found.chunk[kept]], found.arc[kept]
    link, count = arcs.link[arc], len(arc)
    if not arcs.reverse:
        none = np.zeros(count, dtype=np.bool_)
        return Decisions(chunk, link, np.arange(count, dtype=np.int32), none)
    end = found.start[kept] + arcs.arrival()[arc]
    order = np.lexsort((-np.arange(count), -end))
    collective, dst = arcs.problem.collective, arcs.problem.topology.links.dst
    holds: set[tuple[int, int]] = set()
    rows = []
    for c, k in zip(chunk[order].tolist(), link[order].tolist(), strict=True):
        here = (c, int(dst[k]))
        rows.append((c, k, here in holds or collective.is_source(*here)))
        holds.add(here)
    rows = in_turn(arcs.problem, rows)
    return Decisions.of([(c, k, batch, reduce) for batch, (c, k, reduce) in enumerate(rows)])


def _needed(arcs: Arcs, wanted: Wanted, found: Found) -> Times:
    """Return the sends of a run that lead to some target, in its order."""
    if _goes_everywhere(wanted):
        return np.arange(len(found.chunk))
    needed = wanted.targets.copy()
    tail, head = arcs.tail[found.arc].tolist(), arcs.head[found.arc].tolist()
    kept = []
    for number in range(len(tail) - 1, -1, -1):
        chunk = found.chunk[number]
        if needed[chunk, head[number]]:
            needed[chunk, tail[number]] = True
            kept.append(number)
    return np.array(kept[::-1], dtype=np.int64)


PATIENCE = ((16, 1.0), (64, 2.0), (256, 5.0), (1 << 30, 15.0))
"""Ranks, and the seconds after which a search that wins nothing more ends."""

NARROW = 1.01
"""Times the bound: above that, routes are improved a few chunks at a time."""

COUNTED = 0.25
"""Of the time limit, for that where work is counted instead of time."""

LONGER = 0.3
"""Of the time for improvement, for more runs."""

PROMISING = 1.25
"""Times the least makespan: above that, a schedule is not worth a replay."""

STEPWISE = 0.15
"""Of the time limit, for more than one schedule of every kind of grid program."""

COALESCING = 0.3
"""Of the time limit, at most, for beginning such kinds, and for block gathers after them."""

BUILT = 0.5
"""Seconds, at least, for each of these two: cut off, they leave nothing."""

JOINED = 4000
"""Sends of representatives up to which both phases of an allreduce are ordered in one list."""

PARTS = (2, 3)
"""Into how many larger chunks are cut, to be sent as one where nothing waits for it."""

CUTTING = 0.35
"""Of the time limit, kept for that where chunks can be cut."""

SEARCHED = 0.4
"""Of the time for chunks that are cut, for the routes of the larger ones."""


def guided(problem: Problem, options: Options) -> Result:
    """Solve a ``problem`` within ``options`` by guided runs.

    Raises NoScheduleError when the sketch leaves a chunk without a path to a target.
    """
    if problem.topology.num_ranks > 1:
        compiled(options.report)
    clock = options.begin()
    if problem.topology.num_ranks == 1:
        empty = retime(problem.collective, problem.group, problem.chunk_size, Decisions.of([]))
        return Result(Status.OPTIMAL, empty, (), "guided", 0.0)
    found: list[Schedule] = []
    for batched in _batched(problem, options) if options.batch else ():
        found += batched
        if batched and options.score is not None and not options.deterministic:
            # So that it counts if time is up before the end.
            options.score(min(found, key=options.expects))
    few = problem.collective.num_chunks * problem.topology.num_ranks <= MOST_ROWS
    cut = options.batch and few and _coarser(problem)
    kept = CUTTING * options.time_limit if cut else 0.0
    rest = clock.within(clock.left - kept, _patience(problem))
    if not (found and (rest.over or _is_best(found, problem, options))):
        if found and options.fixed_floor(problem.collective.name) >= min(map(_makespan, found)):
            rest = rest.share(0.1)  # one chunk to a message can't win, but by fewer steps
        found += _solve(problem, options, rest)
    if not (options.stop.is_set() or _is_best(found, problem, options)):
        rest = clock.within(clock.left - kept)
        found += _improved(problem, found, options, rest.share(0.7 if options.batch else 1.0))
    if options.batch and not (options.stop.is_set() or _is_best(found, problem, options)):
        found += _cut(problem, options, clock.within(clock.left, _patience(problem)))
    best = _chosen(found, options, clock)
    return result_of("guided", best, options, clock.spent)


def _batched(problem: Problem, options: Options) -> Iterator[list[Schedule]]:
    """Yield schedules in which chunks travel together from the start, those soon made first."""
    found: list[Schedule] = []
    early = replace(options, time_limit=max(BUILT, STEPWISE * options.time_limit)).begin()
    begun = replace(options, time_limit=max(2 * BUILT, COALESCING * options.time_limit)).begin()
    for kind in KINDS:
        if not (found and begun.over):
            least = min(map(_makespan, found), default=None)
            worth = None if least is None else int(PROMISING * least)
            found += grid_schedules(problem, kind, options.report, lambda: early.over, worth)
    yield found
    late = replace(options, time_limit=max(BUILT, COALESCING * options.time_limit)).begin()
    schedule = coalesced(problem, compiled(options.report), lambda: late.over)
    yield [] if schedule is None else [schedule]


def _improved(
    problem: Problem, found: Sequence[Schedule], options: Options, clock: Deadline
) -> list[Schedule]:
    """Return better schedules than the best one of single chunks, where the gap is wide."""
    found = [*found, *options.known]
    single = min((one for one in found if not one.batches), key=_makespan, default=None)
    if options.deterministic:
        clock = replace(options, time_limit=COUNTED * options.time_limit).begin()
    goal = max(options.floor, options.fixed_floor(problem.collective.name))
    if single is None or single.makespan <= NARROW * goal or clock.left <= 1:
        return []
    if len(problem.topology.links) > MANY_LINKS:
        return []  # making a model of them takes minutes
    if min(map(_makespan, found)) < single.makespan:
        return []
    orbits = replace(problem, group=make_group(problem.topology, single.generators))
    better = [single]
    if not options.deterministic:
        others = replace(options, batch=False, seed=options.seed + 1)
        better += _solve(orbits, others, clock.within(LONGER * clock.left, LONGER * clock.left))
    best = min((one for one in better if not one.batches), key=_makespan)
    orbits = replace(problem, group=make_group(problem.topology, best.generators))
    if best.makespan > NARROW * goal and clock.left > 1:
        better.append(improve_routes(orbits, best, options, clock.left, goal))
    return [one for one in better if one.makespan < single.makespan]


def _cut(problem: Problem, options: Options, clock: Deadline) -> list[Schedule]:
    """Return schedules on the routes of larger chunks, in messages small where that counts."""
    mirror = mirrored(problem)
    if mirror is not None:
        gathers = _cut(mirror.problem, options, clock)
        return [played_backwards(problem, mirror.link, gather) for gather in gathers]
    found: list[Schedule] = []
    wide = _coarser(problem)
    for (parts, coarse), turn in zip(wide, clock.turns(len(wide)), strict=True):
        if clock.over:
            break
        alone = replace(options, batch=False, floor=0)
        single = _solve(coarse, alone, turn.share(SEARCHED))
        best = min(single, key=_makespan)
        orbits = replace(problem, group=make_group(problem.topology, best.generators))
        found.append(cut_and_joined(orbits, best, parts, options.report, lambda: clock.over))
    return found


def _coarser(problem: Problem) -> list[tuple[int, Problem]]:
    """Return the problems in larger chunks, and of how many chunks theirs are."""
    return [(parts, coarse) for parts in PARTS if (coarse := coarser(problem, parts)) is not None]


def _makespan(schedule: Schedule) -> Time:
    return schedule.makespan


def _patience(problem: Problem) -> float:
    ranks = problem.topology.num_ranks
    return next(seconds for most, seconds in PATIENCE if ranks <= most)


def _is_best(found: Sequence[Schedule], problem: Problem, options: Options) -> bool:
    goal = max(options.floor, 0 if options.batch else options.fixed_floor(problem.collective.name))
    return min(schedule.makespan for schedule in found) <= goal


def _chosen(found: Sequence[Schedule], options: Options, clock: Deadline) -> Schedule:
    """Return the schedule with the best score, or the least makespan where none can be scored.

    A score can take seconds: after the deadline one is enough. What takes
    much longer than another is scored only where none of the others can be: they may need more
    threadblocks or steps than there are.
    """
    by_time = sorted(found, key=options.expects if options.score else _makespan)
    if options.score is None or len(by_time) == 1:
        return by_time[0]
    known: list[tuple[Time, Schedule]] = []
    for schedule in by_time:
        if known and (clock.over or schedule.makespan > PROMISING * by_time[0].makespan):
            break
        score = options.score(schedule)
        known += [] if score is None else [(score, schedule)]
    return min(known, key=lambda one: one[0])[1] if known else by_time[0]


def _solve(problem: Problem, options: Options, clock: Deadline) -> list[Schedule]:
    """Return the best schedules of single chunks; in the order that a sketch asks for."""
    if reduces_and_spreads(problem.collective):
        found = _joined(problem, options, clock)
    else:
        reverse = problem.collective.reduces
        found = one_way(problem, options, clock, reverse=reverse)
    if problem.logical.own_chunks_first:
        best = min(found, key=_makespan)
        plan = plan_decisions(problem, rows_of(best.decisions()))
        found = [candidate.schedule for candidate in ordered(plan, options)[:2]]
    return found


def _joined(problem: Problem, options: Options, clock: Deadline) -> list[Schedule]:
    """Return reductions followed by gathers that start as soon as their sums are complete."""
    half = replace(options, floor=0)
    found = []
    turns = clock.turns(2)
    for summed in one_way(problem, half, next(turns), reverse=True):
        begin = _begin_after(problem, summed)
        for spread in one_way(problem, half, next(turns), reverse=False, begin=begin):
            first, second = summed.decisions(), spread.decisions()
            after = int(first.batch.max(initial=-1)) + 1
            rows = [*first.rows(), *((c, k, after + b, r) for c, k, b, r in second.rows())]
            found.append(problem.timed(Decisions.of(rows)))
            if len(first.chunk) + len(second.chunk) <= JOINED:
                # In one list, sums of some chunks may overlap with gathers of others.
                turned = in_turn(problem, rows_of(first))
                plan = plan_decisions(problem, [*turned, *rows_of(second)])
                found += [one.schedule for one in ordered(plan, replace(half, batch=False))[:1]]
    return found


def _begin_after(problem: Problem, summed: Schedule) -> Begin:
    """Return when every chunk is summed at its owner, and every resource done with the sums."""
    arcs = arcs_of(problem, links=_links_of(problem))
    table, collective = problem.topology.links, problem.collective
    ready = np.zeros(collective.num_chunks, dtype=np.int64)
    ends = table.dst[summed.link] == collective.owner[summed.chunk]
    np.maximum.at(ready, summed.chunk[ends], summed.end[ends])
    _, first, chunks = np.unique(summed.batch, return_index=True, return_counts=True)
    uses = uses_of(problem.group, problem.chunk_size, summed.link[first], chunks)
    free = free_after(uses, summed.start[first], len(problem.topology.edges))[arcs.resources]
    return Begin(ready[np.array(problem.representatives)], free)
