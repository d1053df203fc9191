"""From a request to a verified schedule and its program: chunk counts, search, judges, bounds.

Several chunk counts are tried where the user gave none, while each is better than the one before;
candidates are compared by the replay of their programs. With a sketch, only what respects it
competes; what that costs is found by a short search without it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import chain, permutations
from statistics import median
from threading import Event
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from taccl.apps.inputs import (
    DEFAULT_SIZE,
    asked_collective,
    charged,
    floors_of,
    logical_group,
    size_of_chunks,
)
from taccl.apps.programs import (
    FILLING,
    TOO_LONG,
    Lowering,
    Proved,
    Scorer,
    Target,
    common_size,
    serves,
)
from taccl.apps.request import Request, Synthesis
from taccl.apps.warmup import compile_ahead
from taccl.bounds import ANY, any_bounds, best, fixed_bounds, fixed_floor
from taccl.bounds.net import check_times
from taccl.collectives import COLLECTIVES, PIECES, WAVES, Collective, alone, chunk_size_of
from taccl.errors import InputError, NoScheduleError, OutOfTimeError
from taccl.model.problem import Bound, Candidate, Options, Problem, Result, Status
from taccl.model.routes import arcs_of, wanted_of
from taccl.model.schedule import Schedule
from taccl.msccl.runtimes import RUNTIMES
from taccl.prices.trees import can_be_packed, least_even
from taccl.replay.cost import beta_of_peers, measured_costs
from taccl.synth.search import (
    ENGINES,
    FEW_MESSAGES,
    RESERVE,
    Attempt,
    Search,
    Series,
    along,
    chosen,
    is_enough,
    opening,
    portfolio,
    solve,
)
from taccl.synth.steps_rounds import chunks_per_rank
from taccl.synth.templates.classical import CLASSICAL, first_way
from taccl.synth.templates.rings import rings_at_once
from taccl.timing.deadline import Deadline, Either, TimeUp, forget, kept
from taccl.timing.jit import seldom_collected
from taccl.topology.graph import LogicalTopology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import require_valid

CHUNK_COUNTS = (1, 2, 4)
"""What ``--chunks auto`` tries, in order, for collectives from files."""

ROUNDS = (8, 16, 32)
"""More chunks for each rank, for a pipeline between servers whose switches add."""

MOST = 8
"""Chunk counts up to which the one with the least bound is looked for."""

QUICK = 3000
"""Messages whose program is made and judged in about a second."""

SENDS = 8
"""Of them are judged while a message is made and replayed, about."""

ITERATION = 1 << 22
"""Bytes of a message in an iteration of a program, about."""

NEAR = Fraction(4, 3)
"""Times what the fastest is expected to take, up to which others are tried before the engines."""

NEAR_IN_PIECES = 2
"""The same where it is not asked in as many chunks as the engines begin with."""

SOME_LINKS = 64
"""Links whose median stands for all."""

MOST_PIECES = 128
"""Chunks of one root's data, at most, that pass through chains and trees."""

TREES = 24
"""Chunks of one root's data that are trees enough where slices of each follow one another."""

QUARTERS_EARLY = (1, 4, 2, 8)
"""Chunk counts of what all get from all across servers, and these where quarters are LONG."""

PIECES_FIRST = (4, 8, 2, 1)
"""Chunk counts where threadblocks add, or pass on, one chunk while the next one arrives."""

PIECE = 1024
"""Bytes of such a chunk, at least."""

SLOW_SUMS: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "reducescatter": (12, 10, 8, 6, 5),
    "allreduce": (8, 5),
})  # fmt: skip
"""Chunk counts with which programs between servers still have steps enough, the most first.

Threadblocks that add to one place wait for one another, so much shorter the smaller its chunk is.
"""

WORTH_ADDING = Fraction(3, 2)
"""Times a flag, that adding such a chunk takes at least."""

ROUND_SERVERS: Mapping[str, tuple[int, ...]] = MappingProxyType({"hierarchical-ring": (2, 4)})
"""Algorithms that go round rings in servers, and their chunk counts.

What has crossed goes round while the rest crosses, and every hop takes a step.
"""

LIKELY_ACROSS = ("hierarchical", "hierarchical-ring")
"""Algorithms that come first between servers where nothing tells which does."""

PARTS_ACROSS = (4, 2)
"""Chunk counts of a hierarchical AllReduce of many ranks: parts of it cross between servers."""

PART_ACROSS = 15_000
"""Bytes of such a chunk, at least."""

SEVERAL_RINGS: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]] = MappingProxyType({
    "allgather": (("ring", (4, 3)), ("ring", (16, 8))),
    "reducescatter": (("ring", (4, 3)), ("ring", (16, 8))),
    "allreduce": (("ring", (4, 3)), ("hierarchical", (2,))),
})  # fmt: skip
"""What takes several rings where they pay, and chunks of a rank: on one server, and on more.

Rings take equal shares of the chunks, through all ranks or (hierarchical) through a server's. Where
these are in servers, first there are as many as their lanes let be at once.
"""

RING_MESSAGES = 800
"""Messages of several rings for each second of the time limit, of which sums count twice: of more,
lowering would take all of it."""

RING_PIECE = 240_000
"""Bytes of such a chunk, at least."""

FEW_RANKS = 16
"""Ranks up to which programs of so many chunks are soon made, replayed and judged."""

LONG = 8
"""Times the alpha of a link, at least, that a chunk is on it."""

OPENING = 0.1
"""Share of the time after which what is known must do for the first answer."""

SECOND = 0.1
"""Share of the time, at most, for the bounds of these counts."""

MAX_RANKS = 64
"""Ranks up to which the least bound is looked for."""

RESERVED = 0.06
"""Share of the time limit that the search leaves for judging and writing, at least."""

GRACE = 0.04
"""Share of the time limit after its end at which judging is given up."""

HASTE = 2.0
"""Seconds for a first answer, at least; for judging once the user has interrupted, and where
nothing else was judged in time."""

PROVING = 0.2
"""Share of the time limit that a bound for the one size may take, beside the search."""

LATE = 0.8
"""Share of the time limit that a search used which its clock ended: engines leave a reserve."""

MANY_SENDS = 200_000
"""From which on it is said that they take time."""

FREE = 0.1
"""Share of the time limit for the search without the sketch that is asked for."""


@seldom_collected()
def synthesize(request: Request) -> Synthesis:
    """Find, verify, lower and judge the best schedule for a request.

    Raises NoScheduleError when no schedule exists (or, as OutOfTimeError, none was found in time);
    LoweringError when no schedule fits the runtime; ScheduleError when a judge objects to what was
    found, which is a bug in an engine.
    """
    over = Event()
    try:
        return _synthesized(request, over)
    finally:
        over.set()


def _synthesized(request: Request, over: Event) -> Synthesis:
    """Return what :func:`synthesize` does; it is `over` when that ends."""
    compiled = compile_ahead(request.report, request.stop)
    clock = Deadline.after((1 - RESERVED) * request.time_limit, spent=request.spent)
    collective = asked_collective(request.collective, request.logical.topology, request.root)
    request = _completed(request, collective)
    scorer = _scorer(request, clock)
    found: list[Attempt] = []
    free: Candidate | None = None
    further: Future[tuple[Bound, ...]] | None = None
    # However short the time is, a first answer is awaited for that long.
    early = max(scorer.clock, Deadline.after(HASTE), key=lambda deadline: deadline.end)
    try:
        with kept(early):
            begun = _open(request, collective, scorer)
        scorer.clock.end = min(scorer.clock.end, early.end)  # the user may be in a hurry
        with kept(scorer.clock):
            if request.engine == "auto":  # a single engine may be over at once
                further = _proving(request, collective, over)
            _search(request, collective, scorer, found, begun)
            free = _without_sketch(request, collective, chosen(found))
    except TimeUp as up:
        if up.deadline is not early and up.deadline is not scorer.clock:
            raise
        forget(up.deadline)
        found = [one for one in found if one.result is not None]
    except NoScheduleError as error:
        if scorer.opened is None or not isinstance(error, OutOfTimeError):
            # A sketch may know which of its fields are in conflict.
            why = request.logical.why_unserved
            raise (None if why is None else why(collective)) or error from None
        found = []
    scorer.catch_up()
    # What scored best may be of an engine that was ended before it gave it back.
    first = scorer.best or (None if found else scorer.opened)
    least = min((one.time for one in found if one.time is not None), default=None)
    if first is not None and (least is None or first.time < least):
        chunks = first.schedule.collective.chunks_per_rank
        result = Result(Status.TIME_LIMIT, first.schedule, (), first.engine, 0.0)
        found.append(Attempt(first.engine, chunks, result, first.time))
    if not found:
        raise _nothing(request, collective)
    result = chosen(found, stopped=request.stop.is_set())
    schedule, opened = result.schedule, scorer.opened
    known = opened is not None and opened.schedule is schedule
    late = schedule is None or (not known and scorer.refusal(schedule) == TOO_LONG)
    if opened is not None and late:
        request.report(f"no program of {result.engine} in time: {opened.engine} it is")
        schedule, known = opened.schedule, True
        result = Result(Status.TIME_LIMIT, schedule, (), opened.engine, 0.0)
    if schedule is None or not (known or scorer.score(schedule) is not None):
        lowering = None if schedule is None else scorer.lowering(schedule, result.engine)
        if lowering is not None:
            lowering.proved()  # its error says which limit is in the way
        raise OutOfTimeError("no schedule was found", fix="raise --time-limit")
    result, proved = _proved(request, result, schedule, scorer)
    answer = _answer(request, result, schedule, proved, scorer.clock)
    near = request.stop.is_set() or is_enough(answer.time, answer.bound.time)
    answer = answer if further is None or near else _raised(answer, further)
    return replace(answer, free=free, attempts=tuple(found), compiled=compiled)


def _proving(
    request: Request, collective: Collective, over: Event
) -> Future[tuple[Bound, ...]]:  # fmt: skip
    """Begin to prove the bounds of a `request` that take longer, beside the search.

    Not at once, as it may soon be `over`. Their programs are solved without Python's lock.
    """
    bare = whole(request.logical.topology)
    _program_bounds(request, bare, collective, request.size)  # the others are kept for later

    def proved() -> tuple[Bound, ...]:
        if over.wait(OPENING * request.time_limit):
            return ()
        seconds = PROVING * request.time_limit
        return _program_bounds(request, bare, collective, request.size, seconds)

    pool = ThreadPoolExecutor(1)
    further = pool.submit(proved)
    pool.shutdown(wait=False)
    return further


def _raised(answer: Synthesis, further: Future[tuple[Bound, ...]]) -> Synthesis:
    """Return an answer with the best of `further` bounds, if it is larger and there in time.

    They are for the size that was asked for. A schedule for fewer bytes, with all of its times
    longer by what there are more, is one for that size: so no more than that is lost.
    """
    request = answer.request
    with suppress(TimeoutError):
        made = best(further.result(PROVING * request.time_limit))
        raised = replace(made, time=made.time * min(request.size, answer.size) // request.size)
        if raised.time > answer.bound.time:
            return replace(answer, bounds=(*answer.bounds, raised))
    return answer


def _cut(request: Request, collective: Collective, count: int) -> Collective:
    """Return a collective in so many chunks for each rank, as producer and consumer handle them."""
    return collective.cut(count).paced(request.ready_over, request.needed_over)


def _completed(request: Request, collective: Collective) -> Request:
    """Return a request with the size and the program that it leaves open."""
    chunk_size, size, count = request.logical.topology.chunk_size, request.size, request.chunks
    if collective.size is not None:
        if size not in (0, collective.size):
            raise InputError(
                f"the file says how many bytes there are, {collective.size} in the largest buffer,"
                f" got {size}",
                field="--size",
                fix="leave --size out",
            )
        size = collective.size
    elif not size and chunk_size is not None:
        count = count or request.logical.chunks_per_rank or 1
        size = size_of_chunks(chunk_size, collective.chunks_in_size * count)
    request = replace(request, size=size or DEFAULT_SIZE, chunks=count)
    if request.is_timed:
        if (request.ready_over and collective.ready is not None) or (
            request.needed_over and collective.tail is not None
        ):
            raise InputError(
                "the file says when its chunks are ready or needed",
                field="--ready-over" if request.ready_over else "--needed-over",
                fix="leave the option out",
            )
        if request.target is not None:
            request.report("no program waits for a chunk to be ready: schedule only")
        pieces = 1 if collective.is_timed else PIECES
        return replace(
            request, chunks=count or request.logical.chunks_per_rank or pieces, target=None
        )
    if request.target is not None:  # before anything is looked at that takes long
        runtime = request.target.runtime
        room = RUNTIMES[runtime].max_nodes - 1  # MAX_NODES of its xml.cc
        if collective.num_ranks > room:
            raise InputError(
                f"{runtime} reads files for {room} ranks at most, got {collective.num_ranks}",
                field="TOPOLOGY",
                fix="use --runtime none for the schedule alone, or fewer --nodes",
            )
    if request.measured:
        target = None if request.target is None else replace(request.target, measured=True)
        known = target.protocols(collective.name, request.logical.topology) if target else ()
        logical = charged(request.logical, collective, request.size, known)
        request = replace(request, logical=logical, target=target)
    target = request.target
    if target is None:
        return request
    target.size_range(request.size)  # an empty one is told before the search
    if serves(target.runtime, collective):
        return request
    request.report(f"{target.runtime} has no XML for {collective.name}: schedule only")
    return replace(request, target=None)


def _program_bounds(
    request: Request, logical: LogicalTopology, collective: Collective, size: int,
    seconds: float = 0.0,
) -> tuple[Bound, ...]:  # fmt: skip
    """Return the bounds for what is made at so many bytes: programs, or schedules alone.

    With `seconds` that it may take, the one as well that holds for a single size.
    """
    target = request.target
    if target is None:  # a schedule may hold what no XML can
        return any_bounds(logical, collective, size, world=ANY, seconds=seconds)
    if not target.measured:
        most = target.message_bytes(collective.name, logical.topology)
        return any_bounds(logical, collective, size, most, request.world, seconds)
    found = []
    floors = floors_of(logical.topology, plans=request.plans is not None)
    for floor in floors:
        network, launch = replace(logical, topology=floor), floor.local.launch
        share = seconds / len(floors)
        bounds = any_bounds(network, collective, size, world=request.world, seconds=share)
        found.append(tuple(replace(bound, time=bound.time + launch) for bound in bounds))
    return min(found, key=lambda bounds: best(bounds).time)


def _scorer(request: Request, clock: Deadline) -> Scorer:
    """Return what scores the schedules of a request that is to be searched until a deadline."""
    target = request.target
    target = None if target is None else target.within(request.logical.channels)
    last = clock.began + (1 + GRACE) * request.time_limit
    counted = request.time_limit if request.deterministic else None
    end = math.inf if request.deterministic else clock.end
    clock = replace(clock, end=end, counted=counted, stop=request.stop)
    return Scorer(
        target, request.size, request.report, clock=clock, logical=request.logical, last=last,
        plans=request.plans,
    )  # fmt: skip


def _nothing(request: Request, collective: Collective) -> OutOfTimeError:
    """Return the error of a search that ended without a schedule."""
    if request.stop.is_set():
        return OutOfTimeError("interrupted before there was a schedule", fix="let it run longer")
    problem = f"no schedule was found within {request.time_limit:g} s"
    least = collective.least_sends
    if least > MANY_SENDS:
        problem += f": one for {collective.num_ranks} ranks has at least {least} sends"
    return OutOfTimeError(problem, fix="raise --time-limit")


class _Begun(NamedTuple):
    """Algorithms in the order in which to try them, and what :func:`counts_of` returned."""

    ranking: Sequence[str] = ()
    known: tuple[tuple[int, ...], bool] | None = None


def _open(request: Request, collective: Collective, scorer: Scorer) -> _Begun:
    """Have something scored and judged before the first bound is proved, for engines to search.

    The algorithms to try are those first whose schedules are known to end first; with measured
    costs, those whose programs are expected to, and not those that would take much longer.
    """
    if request.engine not in ENGINES or request.deterministic or request.steps:
        return _Begun()
    logical = request.logical
    known, count = None, request.chunks or logical.chunks_per_rank or 1
    if collective.root is not None:
        known = counts_of(request, collective, scorer.clock)
        count = known[0][0]
    elif request.target is not None:
        _least_bytes(request.target, request.size, collective, count)
    cut = _cut(request, collective, count)
    group = make_group(logical.topology, ())
    problem = Problem(logical, cut, chunk_size_of(cut, request.size), group, request.most_peers)
    check_times(logical.topology, problem.chunk_size)
    clock = scorer.clock.share(OPENING)
    made = opening(problem, batch=request.batch, over=lambda: clock.over)

    def doubles(one: tuple[str, Schedule]) -> int:
        # Messages are replayed in iterations, each of a part of them; each send is judged.
        work = one[1].num_messages * (1 + int(one[1].chunk_size) // ITERATION)
        work = max(work, one[1].num_sends // SENDS)
        return (work // QUICK).bit_length()

    # The first answer is one that does not take seconds to lower, to replay and to judge.
    soon = sorted(made, key=doubles) if isinstance(made, list) else made
    first: list[str] = []
    for name, schedule in soon:
        scorer.starts(name)
        if scorer.open(schedule):
            first = [name]
            break
    if request.engine != "auto":
        scorer.best = None  # only an answer where the engine has none
    if not isinstance(made, list):
        if request.measured and first and request.engine == "auto":
            scorer.score(schedule)  # other instances of it are soon made
        return _Begun([*first, *(name for name in FEW_MESSAGES if name not in first)], known)
    ranking = {name: schedule for name, schedule in made if name in CLASSICAL}
    if not (request.measured and request.engine == "auto"):
        return _Begun(list(ranking), known)
    known = known or counts_of(request, collective, scorer.clock)
    finer = _cut(request, collective, known[0][0])
    times = {name: scorer.expects(schedule) for name, schedule in ranking.items()}
    if finer.chunks_per_rank > cut.chunks_per_rank:
        # What goes on in pieces, or is added by pieces, gains by them.
        near = [name for name in times if times[name] <= NEAR_IN_PIECES * min(times.values())]
        size = chunk_size_of(finer, request.size)
        pieces = replace(problem, collective=finer, chunk_size=size)
        for name in near:
            if ways := first_way(pieces, name, batch=request.batch):
                times[name] = min(map(scorer.expects, ways))
    most = NEAR * min(times.values(), default=0)
    soonest = [name for name in sorted(times, key=times.__getitem__) if times[name] <= most]
    own = _own_counts(request, collective, known[0], soonest) or soonest
    if set(first) & set(soonest) & set(own):  # else what goes round several rings comes first
        scorer.score(ranking[first[0]])  # other instances of it are soon made
    return _Begun(soonest, known)


def _search(
    request: Request, collective: Collective, scorer: Scorer, found: list[Attempt], begun: _Begun
) -> None:
    """Add what engines make of the chunk counts to what is found."""
    ranking, known = begun
    known = known or counts_of(request, collective, scorer.clock)
    own = {} if request.engine != "auto" else _own_counts(request, collective, known[0], ranking)
    series = series_of(request, collective, scorer, known, chain(*own.values()))
    if request.engine == "auto":
        reserve = 0.0 if request.logical.name is None else FREE * request.time_limit
        opened = None if scorer.best is None else scorer.best.time
        ranking = (*own, *(name for name in ranking if name not in own))
        portfolio(Search(series, scorer.clock, found, reserve, ranking, own, opened))
        return

    def engine(problem: Problem, options: Options) -> Result:
        return solve(problem, request.engine, options)

    seconds = (1 - RESERVE) * request.time_limit
    clock = replace(scorer.clock, end=scorer.clock.began + seconds)
    if request.deterministic:
        clock.counted = seconds
    found.extend(along(request.engine, engine, series, clock))


def _own_counts(
    request: Request, collective: Collective, counts: Sequence[int], ranking: Sequence[str]
) -> Mapping[str, Sequence[int]]:
    """Return the chunk counts that algorithms try in place of the `counts` of engines.

    They are some of the `ranking`, in its order, or belong before it.
    """
    topology, parts = request.logical.topology, collective.chunks_in_size
    if not request.measured or request.target is None or len(counts) == 1:
        return {}
    across = topology.num_servers > 1
    if not _all_near(request):
        # It takes many threadblocks to fill wires that don't join all with all, which makespans
        # don't tell, and each of several rings has wires of its own.
        name, rings = SEVERAL_RINGS.get(collective.name, (("", ()),) * 2)[across]
        most = request.size // (RING_PIECE * parts)
        messages = (collective.num_ranks - 1) * parts * (1 + collective.reduces)
        most = min(most, int(RING_MESSAGES * request.time_limit) // messages)
        if name and most > 1 and not (name == "ring" and across):
            # What rails sum goes round rings with the chunks of as many ranks.
            servers = topology.num_servers
            shared = servers if name == "hierarchical" and not servers & (servers - 1) else 1
            at_once = rings_at_once(topology)
            rings = (at_once // math.gcd(at_once, shared), *rings)
        rings = tuple(dict.fromkeys(count for count in rings if 1 < count <= most))
        return {name: rings} if rings else {}
    if not across or collective.num_ranks > MAX_RANKS:
        return {}
    spreads = collective.name == "allreduce"
    if collective.num_ranks > FEW_RANKS:
        pays = spreads and request.size >= PART_ACROSS * PARTS_ACROSS[0] * parts
        return {"hierarchical": PARTS_ACROSS} if pays and "hierarchical" in ranking else {}
    costs, some = measured_costs(topology), SLOW_SUMS.get(collective.name, ())
    adding = costs.reduce_beta / FILLING
    if spreads and 2 * adding < beta_of_peers(topology):
        some = ()  # it adds some chunks while it spreads others
    unit = request.target.divisor(parts)
    some = tuple(count for count in some if request.size % (FILLING * unit * count) == 0) or some
    least = WORTH_ADDING * costs.flag * parts
    count = next((count for count in some if adding * request.size >= least * count), 0)
    finer = (count, *(n for n in counts if n < count)) if count else counts
    # Where work is counted nothing is ranked.
    tried = {name: ROUND_SERVERS.get(name, finer) for name in ranking or LIKELY_ACROSS}
    fit = {name: tuple(n for n in own if n * unit <= request.size) for name, own in tried.items()}
    return {name: own for name, own in fit.items() if own}


def _without_sketch(request: Request, collective: Collective, result: Result) -> Candidate | None:
    """Return the best that a short search finds for a result's chunk count without the sketch."""
    topology = request.logical.topology
    if request.engine != "auto" or request.logical.name is None or request.stop.is_set():
        return None
    if result.schedule is None:
        return None
    count = result.schedule.collective.chunks_per_rank
    free = replace(request, logical=whole(topology, topology.rotations), chunks=count)
    clock = Deadline.after(FREE * request.time_limit)
    scorer = _scorer(replace(free, time_limit=FREE * request.time_limit), clock)
    try:
        found = chosen(portfolio(Search(series_of(free, collective, scorer), scorer.clock)))
    except NoScheduleError:
        return None
    scored = [candidate for candidate in found.candidates if candidate.score is not None]
    return min(scored, key=lambda candidate: candidate.score or 0, default=None)


def _proved(
    request: Request, result: Result, found: Schedule, scorer: Scorer
) -> tuple[Result, Proved | None]:
    """Prove what was found within what is left of the time; else give what was proved before."""
    judged = scorer.judged
    last = Deadline(math.inf if request.deterministic else scorer.last)
    if request.stop.is_set():
        last = last.within(HASTE)
    elif judged is None:
        last = max(last, Deadline.after(HASTE), key=lambda deadline: deadline.end)
    try:
        with kept(last):
            if judged is None or judged.schedule is not found:
                require_valid(found, request.logical)
            lowering = scorer.lowering(found, result.engine)
            if lowering is None:
                return result, None
            settled = _settled(lowering, scorer.clock)
            if judged is None or judged.task.best is not settled.made:
                judged = Proved(found, result.engine, settled.proved(), settled)
            return result, judged
    except TimeUp as up:
        if up.deadline is not last:
            raise
        forget(last)
    judged = scorer.judged
    if judged is None:
        raise OutOfTimeError(
            f"a schedule was found ({result.engine}), and no time was left to judge it",
            fix=("let it run longer" if request.stop.is_set() else "raise --time-limit")
            + ("" if request.target is None else ", or use --runtime none"),
        )
    request.report(f"no time was left to judge {result.engine}: {judged.engine} it is")
    status = result.status if request.stop.is_set() else Status.TIME_LIMIT
    return replace(result, schedule=judged.schedule, engine=judged.engine, status=status), judged


def _settled(lowering: Lowering, clock: Deadline) -> Lowering:
    """Return a lowering with the instances that are worth it, as far as the search has time."""
    try:
        with kept(clock):
            return lowering.settled()
    except TimeUp as up:
        if up.deadline is not clock:
            raise
        forget(clock)
        return replace(lowering, target=replace(lowering.target, instances=1))


def _answer(
    request: Request, result: Result, found: Schedule, proved: Proved | None, clock: Deadline
) -> Synthesis:
    """Return all that is said of a schedule: the one that was found, or the one that was proved."""
    logical, bare = request.logical, whole(request.logical.topology)
    schedule, program, time, size = found, None, None, request.size
    if proved is not None:
        schedule, program = proved.schedule, proved.program
        time, size = proved.task.best[1], proved.task.size
    collective = schedule.collective
    bounds = _program_bounds(
        request if program is not None else replace(request, target=None), bare, collective, size
    )
    seconds, reached = clock.spent, schedule.makespan if time is None else time
    if request.stop.is_set():
        ended = "user"
    elif is_enough(reached, best(bounds).time):
        ended = "bound"
    else:
        ended = "clock" if clock.over or seconds >= LATE * request.time_limit else "search"
    return Synthesis(
        replace(request, chunks=collective.chunks_per_rank), result, schedule, program, time, size,
        bounds, fixed_bounds(bare, collective, schedule.chunk_size),
        () if logical.name is None else _program_bounds(request, logical, collective, size),
        result.candidates, None, seconds, ended,
    )  # fmt: skip


def counts_of(
    request: Request, collective: Collective, clock: Deadline
) -> tuple[tuple[int, ...], bool]:
    """Return the chunk counts of a `request`, in order, and whether many may pay.

    The `collective` is what is asked for, uncut. Of the `clock` a share goes into bounds.

    Raises InputError when not even the first count leaves a whole element for every chunk.
    """
    logical = request.logical
    asked = request.chunks or logical.chunks_per_rank
    if request.steps and asked:
        asked = chunks_per_rank(collective.name, collective.num_ranks, asked)
    counts: tuple[int, ...] = CHUNK_COUNTS
    if asked:
        counts = (asked,)
    elif collective.name in COLLECTIVES:
        counts = COLLECTIVES[collective.name].chunk_counts
        if logical.topology.copies_or_adds and logical.topology.num_servers > 1:
            counts = tuple(sorted({*counts, *ROUNDS}))
    elif (inside := alone(collective)) is not None:
        # Who relays works on one chunk while the next arrives.
        counts = COLLECTIVES[inside.name].chunk_counts
    long, rooted = len(counts) > len(CHUNK_COUNTS) + 1, collective.root is not None
    if len(counts) > 1 and not long:
        counts = _early(request, collective, counts)
        counts = _with_least_bound(request, collective, counts, clock.share(SECOND))
    elif long and rooted and not logical.topology.copies_or_adds:
        counts = _pipelined(request, collective, clock.share(2 * SECOND))
    if len(counts) > 1 and not long and _pieces_pay(request, collective):
        counts = PIECES_FIRST
    if request.target is not None:
        unit = _least_bytes(request.target, request.size, collective, counts[0]) // counts[0]
        counts = tuple(count for count in counts if count * unit <= request.size)
        if request.measured and request.target.instances is None:
            # Sizes may be decimal: a megabyte is 5^6 times 2^6 bytes. Where chunks can't be cut
            # into shares of enough instances, up to half as many more are taken that can.
            if counts == PIECES_FIRST:
                near = (range(count, count + count // 2 + 1) for count in counts)
                filled = (
                    (more for more in some if request.size % (FILLING * more * unit) == 0)
                    for some in near
                )
                counts = tuple(dict.fromkeys(map(next, filled, counts)))
            # It takes several instances to fill a link: those come first that halve their chunks,
            # or leave a rest in any case, so that instances may be chosen.
            whole = (
                count for count in counts
                if request.size % (2 * count * unit) == 0 or request.size % (count * unit)
            )  # fmt: skip
            counts = tuple(dict.fromkeys((next(whole, counts[0]), *counts)))
    return counts, long


def _early(request: Request, collective: Collective, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return `counts` with what is likely to be good second, if one is known to be.

    Where quarters are long between servers, one is spread there while the next one crosses. Where
    ranks have as many neighbours as on a hypercube, each of as many parts begins with another one.
    """
    table, home = request.logical.topology.links, np.array(request.logical.topology.server_of)
    if counts != WAVES:
        return counts
    quarter = Fraction(request.size, 4 * collective.chunks_in_size)
    across = request.logical.allowed & (home[table.src] != home[table.dst])
    if _long(request, np.flatnonzero(across)[:SOME_LINKS].tolist(), quarter):
        return QUARTERS_EARLY
    ranks, pairs = collective.num_ranks, np.unique(np.stack([table.src, table.dst]), axis=1)
    near = np.bincount(pairs[0], minlength=ranks)
    if across.any() or ranks != request.logical.topology.num_ranks or (1 << near != ranks).any():
        return counts
    return tuple(dict.fromkeys((1, int(near[0]), *counts)))


def _long(request: Request, links: Sequence[int], chunk: Fraction) -> int:
    """Return how many of some `links` a `chunk`, in bytes, is on for long beside their alphas."""
    topology = request.logical.topology
    alpha = topology.links.alpha
    return sum(topology.arrival(link, chunk) > (1 + LONG) * int(alpha[link]) for link in links)


def _all_near(request: Request) -> bool:
    """Tell whether all ranks of every server are next to one another."""
    home, table = request.logical.topology.server_of, request.logical.topology.links
    ends = ((int(table.src[link]), int(table.dst[link])) for link in request.logical.links())
    near = {(src, dst) for src, dst in ends if home[src] == home[dst]}
    return len(near) == sum(home[a] == home[b] for a, b in permutations(range(len(home)), 2))


def _pieces_pay(request: Request, collective: Collective) -> bool:
    """Tell whether several chunks a rank are likely to win over one by measured costs.

    A threadblock adds, or passes on between servers, a chunk while the next one arrives. Where
    ranks of a server are not next to one another, they need more instances before more chunks.
    """
    topology, ranks = request.logical.topology, collective.num_ranks
    passes_on = collective.reduces or (collective.name == "allgather" and topology.num_servers > 1)
    large = request.size >= PIECE * PIECES_FIRST[0] * collective.chunks_in_size
    if not (request.measured and passes_on and large and ranks <= FEW_RANKS):
        return False
    return _all_near(request)


def _least_bytes(target: Target, size: int, collective: Collective, count: int) -> int:
    """Return the bytes of one element for each chunk of so many a rank.

    Raises InputError when there are less.
    """
    least = count * target.divisor(collective.chunks_in_size)
    if size < least:
        raise InputError(
            f"{size} bytes are less than one element for each of"
            f" {count * collective.chunks_in_size} chunks",
            field="--size",
            fix=f"use at least {least} bytes or fewer --chunks",
        )
    return least


def series_of(
    request: Request, collective: Collective, scorer: Scorer,
    known: tuple[tuple[int, ...], bool] | None = None, own: Iterable[int] = (),
) -> Series:  # fmt: skip
    """Return the problems of a `request`, with its size, by chunk count.

    The `collective` is what is asked for, uncut, and `known` what :func:`counts_of` returned; None:
    it is asked here. The `scorer` of their schedules learns the one size, in bytes, at which
    programs of all counts are compared, also of those that algorithms have of their `own`.

    Raises InputError when not even the first count leaves a whole element for every chunk.
    """
    logical, target = request.logical, scorer.target
    group = logical_group(logical, collective)
    counts, long = known or counts_of(request, collective, scorer.clock)
    single = len(counts) == 1
    if target is not None:
        every = tuple(dict.fromkeys((*counts, *own)))
        scorer.common = common_size(target, request.size, collective.chunks_in_size, every)

    @cache
    def problem_of(count: int) -> tuple[Problem, Options]:
        cut = _cut(request, collective, count)
        problem = Problem(logical, cut, chunk_size_of(cut, request.size), group, request.most_peers)
        return problem, _options(request, problem, scorer)

    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem, options = problem_of(count)
        return problem, replace(options, time_limit=seconds)

    problem, options = problem_of(counts[0])
    at = scorer.common or request.size
    floor = best(_program_bounds(request, logical, problem.collective, at)).time
    if single and not request.measured and not logical.topology.copies_or_adds:
        # Another count may have a lower bound for one chunk to a message.
        floor = max(floor, options.floor)
    return Series(counts, task, floor, long, lambda: scorer.slowest, request.measured)


def _pipelined(
    request: Request, collective: Collective, clock: Deadline
) -> tuple[int, ...]:  # fmt: skip
    """Return the chunk counts of what the root of a `collective` has, the likely best first.

    They are powers of two. A tree of depth d passes on k chunks of together B bytes in (d - 1 + k)
    (alpha + beta B / k), about least for k = sqrt(d beta B / alpha). The counts next to it follow
    as long as they pay. Where links are alike and the root has p ports, the second is that of p
    trees, less deep, with a power of two for each. Programs cut chunks themselves that are longer
    than a message: where ranks of one server have links to few others, fewer come first of all
    then, at which trees share the links evenly, as far as the `clock` lets that be found; on
    several servers so many that a message holds each, all NICs carry as many, and the size divides.
    """
    topology, links = request.logical.topology, list(request.logical.links())
    some = links[:: 1 + len(links) // SOME_LINKS]
    alpha = max(1, median(int(topology.links.alpha[link]) for link in some))
    bytes_time = median(topology.arrival(link, request.size) for link in some) - alpha
    depth = (topology.num_ranks - 1).bit_length()
    least = max(1.0, math.sqrt(max(1, depth) * bytes_time / alpha))

    def nearest(unit: int, least: float) -> list[int]:
        counts = (unit << n for n in range(MOST_PIECES.bit_length()) if unit << n <= MOST_PIECES)
        return sorted(counts, key=lambda count: (abs(math.log2(count / least)), count))

    leaving = [link for link in links if topology.links.src[link] == (collective.root or 0)]
    ports = len({topology.links.edges_of(link)[0] for link in leaving})
    first, *others = nearest(1, least)
    message = request.size
    if request.target is not None and not request.measured:
        message = request.target.message_bytes(collective.name, topology)
    if request.size > first * message:
        ranks, width = topology.num_ranks, max(map(len, topology.servers))
        if width == ranks and len(links) < ranks * (ranks - 1) and first > TREES:
            return tuple(dict.fromkeys((_even(request, collective, clock), first, *others)))
        fewest = width * math.ceil(Fraction(request.size, width * message))
        whole = [
            count for count in range(fewest, MOST_PIECES + 1, width)
            if request.target is not None and request.size % request.target.divisor(count) == 0
        ]  # fmt: skip
        if width < ranks and whole:
            return tuple(dict.fromkeys((whole[0], first, *others)))
    if ports == 1 or len({topology.arrival(one, request.size) for one in (*some, *leaving)}) > 1:
        return first, *others
    # A tree in which each rank that has a chunk passes it on by all ports.
    trees = math.log(topology.num_ranks, ports + 1) * bytes_time / alpha
    second = nearest(ports, math.sqrt(ports * max(1.0, trees)))[:1]
    return tuple(dict.fromkeys((first, *second, *others)))


def _even(request: Request, collective: Collective, clock: Deadline) -> int:
    """Return the least count, up to TREES, at which trees of whole chunks share links evenly.

    It is TREES where that was not found until the `clock` ended it, or not all are served along all
    links.

    Raises NoScheduleError when the `collective` can't be made along the links of the `request`.
    """
    group, cut = make_group(request.logical.topology, ()), collective.cut(1)
    problem = Problem(request.logical, cut, chunk_size_of(cut, request.size), group)
    arcs = arcs_of(problem, reverse=collective.reduces)
    phases = [(arcs, wanted_of(arcs))]
    if can_be_packed(phases, clock):
        with suppress(OutOfTimeError):
            return least_even(phases, TREES, clock)
    return TREES


def _with_least_bound(
    request: Request, collective: Collective, counts: tuple[int, ...], clock: Deadline
) -> tuple[int, ...]:
    """Return the counts, with the one that has the least bound without batches second, if it pays.

    It does where whole chunks share links evenly that have different speeds, or do not divide the
    chunks. It has to be more than a hundredth below what is tried before. It is third where
    another is second: batches pay there. With measured costs it comes after all that are smaller:
    instances cut chunks, too.
    """
    if collective.name not in COLLECTIVES or collective.num_ranks > MAX_RANKS or request.steps:
        return counts
    bounds = {}
    for count in sorted({*counts, *range(1, MOST + 1)}, key=lambda one: (one not in counts, one)):
        if clock.over:
            return counts
        cut = collective.cut(count)
        found = fixed_bounds(request.logical, cut, chunk_size_of(cut, request.size))
        bounds[count] = best(found).time
    least = min(bounds, key=lambda count: (bounds[count], count))
    before = counts[: counts.index(least)] if least in counts else counts
    close = 101 * bounds[least] >= 100 * min((bounds[count] for count in before), default=0)
    if close or least in counts[:2]:
        return counts
    others = [count for count in counts if count != least]
    if request.measured:
        place = sum(count < least for count in others)
    else:
        place = 1 if counts[:2] == WAVES[:2] else 2
    # Halves share the links as well, and where they are long, too, they are passed on sooner.
    half = Fraction(request.size, 2 * least * collective.chunks_in_size)
    links = list(request.logical.links())[:SOME_LINKS]
    halved = not request.measured and 2 * least <= max(counts)
    halved = halved and 2 * _long(request, links, half) > len(links)
    others[place:place] = (2 * least, least) if halved else (least,)
    return tuple(others)


def _options(request: Request, problem: Problem, scorer: Scorer) -> Options:
    """Return how engines may search a problem, for the default time."""
    own, logical = problem.collective, problem.logical
    floors = any_bounds(logical, own, request.size, world=request.world)
    if not request.batch:
        floors += fixed_bounds(logical, own, problem.chunk_size)
    return Options(
        seed=request.seed,
        workers=request.workers,
        deterministic=request.deterministic,
        batch=request.batch,
        floor=best(floors).time,
        fixed_floor=fixed_floor(logical, own, problem.chunk_size),
        rounds=(*request.steps, request.chunks or 1) if request.steps else None,
        score=scorer.score,
        refusal=scorer.refusal,
        expects=scorer.expects,
        starts=scorer.starts,
        stop=Either(request.stop, scorer.clock.passed),
        report=request.report,
    )
