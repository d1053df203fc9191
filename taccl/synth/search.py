"""One search around one incumbent: what is asked, until when, what is found, and whose turn it is.

An engine runs along a series of chunk counts, more and more as long as they pay, whether it runs
alone or as one of several. Engine ``auto`` runs all of them in one time limit, and the best by the
given score wins. :func:`opening` comes before everything: classical algorithms in the textbook's
order, so that there is something to write whenever the time ends.

In ``auto`` classical algorithms come first, the most promising of them; then every engine that
searches has a short turn. After that, turns go to whom more chunks may pay, the one that found the
best before all others, and to whoever may improve the best schedule, which all of them start from:
the exact engine as its hint, the staged one as what it polishes, the guided one as routes to
improve. So a turn that wins nothing is not repeated before somebody else has won. A problem that is
too large for an engine (``LARGE``, ``HUGE``, ``COUNTED``) is left out, and a gap below ``ENOUGH``
to the bound ends the search. Where work is counted, every engine goes along the series of chunk
counts with a quarter of the work.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from types import MappingProxyType

from taccl.errors import InputError, NoAlgorithmError, NoScheduleError, OutOfTimeError
from taccl.model.problem import Candidate, Options, Problem, Result, Status, reduces_and_spreads
from taccl.model.routes import build_network
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.exact.engine import exact, pairs_of
from taccl.synth.exact.solve import MAX_INTERVALS
from taccl.synth.flow.engine import flow, trees_are_alike
from taccl.synth.greedy import greedy_routes
from taccl.synth.guided.engine import guided
from taccl.synth.message_coalescing import in_groups, in_one_piece
from taccl.synth.plan import in_turns, rows_of_routes
from taccl.synth.staged import staged
from taccl.synth.templates.classical import CLASSICAL, likely_way, run_classical, textbook_schedule
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.timing.deadline import Deadline
from taccl.units import Time
from taccl.verify import verify

Engine = Callable[[Problem, Options], Result]

RESERVE = 0.15
"""Share of the time limit kept for lowering, judging and writing."""


HOPELESS = Fraction(3, 2)
"""Times the best score: a classical schedule is not lowered that is expected to take longer."""

UNLIKELY = Fraction(11, 10)
"""Times what the best way of an algorithm is expected to take, by measured costs: a way that is
expected to take longer is not lowered."""

FIRST, SLICED_FIRST = 0.1, 0.35
"""Of the time limit, for the classical algorithms before the engines; the rest come after them.

The second is for programs that pass on slices of a message, of which schedules know nothing.
"""


@dataclass(frozen=True, eq=False)
class Series:
    """One collective at one size, cut into different numbers of chunks.

    `counts` are chunks for each rank, in the order in which they are tried; `task` returns the
    problem of a count, and the options for so many seconds; nothing can be below `floor`
    picoseconds, whatever the count. A `long` series is one of a collective that gains by many
    chunks: its first count gets less of the time. `overhead` returns the seconds that a score
    takes.
    """

    counts: tuple[int, ...]
    task: Callable[[int, float], tuple[Problem, Options]]
    floor: Time = 0
    long: bool = False
    overhead: Callable[[], float] = lambda: 0.0
    sliced: bool = False

    def pays(self, scores: Sequence[Time]) -> bool:
        """Tell whether to go on: long or sliced, two counts of it may bring nothing, else one."""
        since_best = len(scores) - scores.index(min(scores))
        return since_best <= 1 + (self.long or self.sliced)

    def share(self, number: int) -> float:
        """Return how much of the time left the count of a number gets."""
        if len(self.counts) == 1:
            return 1.0
        if number:
            return 0.4
        return 0.3 if self.long else 0.75


@dataclass(frozen=True, eq=False)
class Attempt:
    """What an `engine` made of one count of `chunks` for each rank, in `seconds` with its scoring.

    `result` and `score` (picoseconds) are None where there is no schedule, the score also where it
    can't be lowered; `error` is why there is none, and `reason` why a schedule is out of the
    running.
    """

    engine: str
    chunks: int
    result: Result | None
    score: Time | None
    error: NoScheduleError | None = None
    reason: str | None = None
    seconds: float = 0.0

    @property
    def time(self) -> Time | None:
        """Picoseconds of what is in the running."""
        return None if self.reason else self.score

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What was compared."""
        if self.result is None or self.result.schedule is None:
            reason = None if self.error is None else self.error.problem
            return (Candidate(self.engine, self.chunks, None, None, reason),)
        if self.result.candidates:
            return self.result.candidates
        makespan = self.result.schedule.makespan
        return (Candidate(self.result.engine, self.chunks, makespan, self.time, self.reason),)


def along(name: str, engine: Engine, series: Series, clock: Deadline) -> Iterator[Attempt]:
    """Yield what the `engine` of a `name` makes of a `series`; the last may be a failure.

    Once a count can't be served or lowered, none that is larger is tried, as that would not fit
    either. But some algorithms exist from two chunks on: these are tried with the second count,
    too. Each count gets a share of what is left on the `clock`.
    """
    scores: list[Time] = []
    most = math.inf
    for number, count in enumerate(series.counts):
        if count >= most:
            continue
        left = clock.left
        # Twice the chunks take twice as long to lower.
        least = 1.0 if clock.counted is not None else 1.0 + 2 * series.overhead()
        if scores and (left < least or not series.pays(scores)):
            return
        problem, options = series.task(count, max(0.5, series.share(number) * left))
        if number and (left <= 0 or options.stop.is_set()):
            return
        attempt = attempted(name, engine, problem, options)
        yield attempt
        if attempt.score is not None:
            scores.append(attempt.score)
        elif number or not isinstance(attempt.error, NoAlgorithmError):
            most = count


def attempted(name: str, engine: Engine, problem: Problem, options: Options) -> Attempt:
    """Run the `engine` of a `name` once on a `problem` with `options`, and score what it gives."""
    clock, chunks = Deadline(), problem.collective.chunks_per_rank
    options.starts(name)
    try:
        result = engine(problem, options)
    except NoScheduleError as error:
        return Attempt(name, chunks, None, None, error, seconds=clock.spent)
    if result.schedule is not None and problem.collective.is_timed:
        result = replace(result, schedule=_in_time(engine, problem, options, result.schedule))
    schedule = result.schedule
    if schedule is None:
        late = OutOfTimeError("no schedule was found in time", fix="raise --time-limit")
        return Attempt(name, chunks, None, None, late, seconds=clock.spent)
    score = schedule.makespan if options.score is None else options.score(schedule)
    reason = options.refusal(schedule)
    if score is None:
        reason = reason or "it can't be lowered"
    else:
        options.report(f"{result.engine}, {chunks} chunks a rank: {score / 1e6:.2f} us")
    return Attempt(name, chunks, result, score, reason=reason, seconds=clock.spent)


def _in_time(engine: Engine, problem: Problem, options: Options, schedule: Schedule) -> Schedule:
    """Return the best of an engine's schedule, its chunks in order of time, and groups of pieces.

    Engines may decide as if all chunks were ready at once. What the `engine` makes of them in one
    piece comes first here, for as long as it had for the `schedule`.
    """
    orbits, found = replace(problem, group=schedule.group), [schedule]
    with suppress(ValueError):  # exchanges wait for each other in a ring
        found += map(orbits.timed, in_turns(orbits, schedule.decisions()))
    whole = in_one_piece(problem) if options.batch else None
    if whole is not None:
        alone = replace(options, floor=0, fixed_floor=Options.fixed_floor, score=None, known=())
        with suppress(NoScheduleError):
            one = engine(whole, replace(alone, refusal=Options.refusal)).schedule
            found += () if one is None else in_groups(problem, one)
    better = sorted((one for one in found if one.makespan < schedule.makespan), key=_makespan)
    return next((one for one in better if not verify(one, problem.logical)), schedule)


def _makespan(schedule: Schedule) -> Time:
    return schedule.makespan


SEARCHES: Mapping[str, Engine] = MappingProxyType({
    "flow": flow,
    "guided": guided,
    "exact": exact,
    "taccl": staged,
})  # fmt: skip
"""Engines that search, in turn."""

QUARTER = 1 / len(SEARCHES)
"""Of counted work, for each of them."""

TURN = 0.12
"""Of the time limit, for the first turn of an engine; where engines leave theirs, for more."""

NEXT = 0.2
"""Of the time limit, for every turn after its first."""

QUICK, WIDE = 0.1, 2
"""Of the time limit: an engine whose turn took no more goes on before others begin, unless its best
is so many times the best score. One that won over all before may take as much as a later turn."""

CLOSE = Fraction(5, 4)
"""Times the best score: an engine further from it gets no more chunks before others."""

KNOWN = 2
"""Schedules of a chunk count that the next engine starts from."""

ENOUGH = Fraction(1, 200)
"""A gap to the bound below which nothing more is searched for."""

LARGE = 20 * MAX_INTERVALS
"""Pairs of a representative chunk and a link, above which no model is tried."""

HUGE = 5_000_000
"""The same for the staged engine, if there is a schedule already: it would route for minutes
before it can look at the clock."""

COUNTED = 400
"""The same where work is counted: making a model small counts for nothing and can take minutes."""

PAIR = 1e-4
"""Seconds that it takes to let two chunks follow each other on a link in a model of messages."""

SHORTEST = 1.0
"""Seconds of a turn, at least, if so many are left."""

WORTH_MORE = 0.1
"""Of the time limit: with less left, no more turn begins once every engine had one."""


@dataclass(eq=False)
class Search:
    """One search: what is asked, when it ends, and what is found; engines take turns in it.

    The `series` has problems by chunk count, and the `clock` the end, or the work that each part
    may count; `reserve` seconds are kept for what comes after it. `found` is what came of it so
    far, failures included: whoever ends the search has it. `ranking` has classical algorithms,
    those first whose textbook schedules are known to end first (of a series that is sliced: those
    alone that come before the engines), and `own_counts` chunk counts that some of them try, in
    place of those of the series; `opened` are picoseconds of what was there before the search,
    which is no attempt; None: nothing.
    """

    series: Series
    clock: Deadline
    found: list[Attempt] = field(default_factory=list)
    reserve: float = 0.0
    ranking: Sequence[str] = ()
    own_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    opened: Time | None = None

    def __post_init__(self) -> None:
        self.seconds = self.clock.left - self.reserve

    @property
    def best(self) -> Attempt | None:
        """The best so far of what is in the running."""
        timed = [attempt for attempt in self.found if attempt.time is not None]
        return min(timed, key=lambda attempt: attempt.time or 0, default=None)

    @property
    def over(self) -> bool:
        """Tell whether what is found is good enough, or there is no time for more."""
        best = self.best
        return self.spent or (best is not None and is_enough(best.time or 0, self.series.floor))

    @property
    def spent(self) -> bool:
        """Tell whether there is no time for more, or nothing is better than what is found."""
        if self.clock.stop.is_set() and any(one.result is not None for one in self.found):
            return True
        best = self.best
        if best is None:
            return False
        return is_enough(best.time or 0, self.series.floor, 0) or self.clock.left <= self.reserve

    @property
    def spare(self) -> float:
        """Seconds left for one more search, less what its lowering and judging take."""
        return self.clock.left - self.reserve - self.series.overhead()

    def known(self, chunks: int) -> tuple[Schedule, ...]:
        """Return the best schedules of a chunk count, for the next engine to start from.

        Engines route over links: what switches copy and add is no start for them.
        """
        rows = {
            id(one.result.schedule): (one.time, one.result.schedule)
            for one in self.found
            if one.chunks == chunks and one.time is not None and one.result is not None
        }
        ranked = sorted(rows.values(), key=lambda row: row[0] or 0)[:KNOWN]
        return tuple(one for _, one in ranked if one is not None and not len(one.fans))

    def task(self, chunks: int, seconds: float) -> tuple[Problem, Options]:
        """Return the problem of a chunk count, and options that have what is known of it."""
        problem, options = self.series.task(chunks, seconds)
        return problem, replace(options, known=self.known(chunks))

    def take(self, attempts: Iterator[Attempt]) -> None:
        """Take attempts as long as more are of use."""
        for attempt in attempts:
            self.found.append(attempt)
            if self.over:
                return


def is_enough(time: Time, floor: Time, gap: Fraction | int = ENOUGH) -> bool:
    """Tell whether ``time`` is so close to the bound ``floor`` that no more is searched for.

    It may be above by a ``gap``, a part of the bound.
    """
    return time <= floor * (1 + gap)


def portfolio(search: Search) -> list[Attempt]:
    """Run everything on a search; return what came of it, failures included."""
    promising = replace(search.series, task=partial(_promising, search))
    clock = search.clock.share(1 - RESERVE)
    lanes = dict.fromkeys((*search.ranking, *CLASSICAL), promising)
    for name, counts in search.own_counts.items():
        lanes[name] = replace(promising, counts=tuple(counts))
    classical = {
        name: along(name, partial(run_classical, name, patient=False), series, clock)
        for name, series in lanes.items()
    }
    if search.series.task(search.series.counts[0], 1.0)[0].topology.copies_or_adds:
        # Few rows and most of the gain: all their rounds are tried before anything else.
        for name in [each for each in classical if each in IN_NETWORK]:
            search.take(classical.pop(name))
            if search.over:
                return search.found
    first, share = classical, FIRST
    if near := search.series.sliced and bool(search.ranking):
        share = SLICED_FIRST
        first = {name: classical.pop(name) for name in search.ranking if name in classical}
    _advance(search, first, share, more=bool(SEARCHES), near=near)
    if search.clock.counted is None:
        _take_turns(search)
    else:
        for name in SEARCHES:
            if search.over:
                break
            series = replace(search.series, task=search.task)
            counted = replace(search.clock, counted=(1 - RESERVE) * QUARTER * search.seconds)
            search.take(along(name, _fitting(search, name), series, counted))
    _advance(search, first | classical, 1.0)
    return search.found


@dataclass(eq=False)
class _Player:
    """The engine of a `name` that takes turns, so many of them yet, the last for some `seconds`.

    `scores` are its best, by chunk count in the order in which they were tried, and it was `asked`
    to improve these best attempts. Its last turn may have `won`: over the best before.
    """

    name: str
    scores: dict[int, Time] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    turns: int = 0
    seconds: float = 0.0
    won: bool = False

    def following(self, series: Series) -> int | None:
        """Return the next chunk count that may pay; None: none does."""
        scores = list(self.scores.values())
        untried = [count for count in series.counts if count not in self.scores]
        return untried[0] if untried and series.pays(scores) else None

    def goes_on(self, search: "Search") -> bool:
        """Tell whether its turn was short, it is not far from the best, and has more chunks.

        If it won, and more chunks than its last are next, the turn may have been a long one.
        """
        best = search.best
        if best is None or best.time is None or not self.scores:
            return False
        count = self.following(search.series)
        if count is None:
            return False
        longer = self.won and count > next(reversed(self.scores))
        is_short = self.seconds <= (NEXT if longer else QUICK) * search.seconds
        return is_short and min(self.scores.values()) <= WIDE * best.time


def _take_turns(search: Search) -> None:
    """Let engines take turns: each one, then more chunks for who is close, then who can improve."""
    series = search.series
    players = [_Player(name) for name in SEARCHES]
    while players and not search.over:
        fresh = [player for player in players if not player.turns]
        going_on = (player for player in players if player.goes_on(search))
        if fresh:
            player = next(going_on, fresh[0])
            count = (player.scores and player.following(series)) or series.counts[0]
            # There must be something at all before others have their part.
            least = 0.0 if search.best or search.opened else SHORTEST
            share = NEXT if player.won else TURN
            seconds = max(share * search.seconds, search.spare / (len(fresh) + 2), least)
        else:
            if search.spare < WORTH_MORE * search.seconds:
                return
            player, count = _next(search, players)
            seconds = max(NEXT * search.seconds, SHORTEST)
        attempt = _turn(search, player, count, min(seconds, max(0.5, search.spare)))
        if attempt.score is None and not (
            isinstance(attempt.error, NoAlgorithmError) and not player.scores and count < 2
        ):
            players.remove(player)


def _next(search: Search, players: Sequence[_Player]) -> tuple[_Player, int]:
    """Return whose turn it is, and with which chunk count."""
    best = search.best
    if best is None:
        player = min(players, key=lambda player: player.turns)
        return player, player.following(search.series) or search.series.counts[0]
    # Fewer chunks than it tried last come after what others make of more.
    wide = [
        (
            count < max(player.scores, default=0), player.name != best.engine,
            min(player.scores.values(), default=0), player.turns, count, n,
        )
        for n, player in enumerate(players)
        if (count := player.following(search.series)) is not None
    ]  # fmt: skip
    close = [row for row in wide if row[2] <= CLOSE * (best.time or 0)]
    if close:
        *_, count, number = min(close)
        return players[number], count
    idle = [player for player in players if id(best) not in player.asked]
    if not idle and wide:
        *_, count, number = min(wide)
        return players[number], count
    player = min(idle or players, key=lambda one: (one.turns, one.name != best.engine))
    return player, best.chunks


def _turn(search: Search, player: _Player, count: int, seconds: float) -> Attempt:
    """Have an engine search for some seconds, from what is known and another seed each time."""
    problem, options = search.task(count, seconds)
    options = replace(options, seed=options.seed + (player.turns if count in player.scores else 0))
    attempt = attempted(player.name, _fitting(search, player.name), problem, options)
    player.turns, player.seconds = player.turns + 1, attempt.seconds
    if attempt.score is not None:
        player.scores[count] = min(attempt.score, player.scores.get(count, attempt.score))
    before = search.best
    search.found.append(attempt)
    player.won = before is not None and search.best is not before
    if before is not None and search.best is before and before.chunks == count:
        player.asked.add(id(before))
    return attempt


def _fitting(search: Search, name: str) -> Engine:
    """Return an engine that refuses problems too large for its share of the time."""
    engine = SEARCHES[name]

    def fitting(problem: Problem, options: Options) -> Result:
        if name == "exact" and not _is_small(problem, options, search.spare / 2):
            raise OutOfTimeError("left out: its model is too large for its share of the time")
        if name == "flow" and (search.best or search.opened) and trees_are_alike(problem):
            raise OutOfTimeError("left out: a rank has one port inside its server, for any tree")
        if name == "taccl" and search.best and pairs_of(problem) > HUGE:
            raise OutOfTimeError("left out: it would route for longer than its share of the time")
        return engine(problem, options)

    return fitting


def _advance(
    search: Search, lanes: dict[str, Iterator[Attempt]], share: float, *, more: bool = False,
    near: bool = False,
) -> None:  # fmt: skip
    """Take attempts from all series in turn, until the time, or what is found, ends it.

    Those that were the best so far come first.

    Of those that are expected to be nearly as fast as one another (a `near` series) one that is
    close to the bound ends none: they take little time, and which is first is chance.
    """
    clock, scores = search.clock.share(share), dict[str, Time]()
    while lanes:
        for name, lane in sorted(lanes.items(), key=lambda one: scores.get(one[0], 0)):
            late = clock.over
            is_over = search.over and (search.spent or late or not near)
            if is_over or (late and (search.best or (more and not search.clock.over))):
                return
            attempt = next(lane, None)
            if attempt is None:
                del lanes[name]
            else:
                search.found.append(attempt)
                if attempt.time is not None:
                    scores[name] = min(attempt.time, scores.get(name, attempt.time))


def _promising(search: Search, count: int, seconds: float) -> tuple[Problem, Options]:
    """Return a task whose score does not lower what would take much longer than the best.

    Nor what takes longer than another one of the task does in a program, or is expected to where
    programs pass on slices. Its makespan is taken for its score then, and it is out of the running.
    """
    problem, options = search.series.task(count, seconds)
    score = options.score
    if score is None:
        return problem, options

    sliced, scores, hopes = search.series.sliced, list[Time](), list[Time]()

    @cache
    def why_hopeless(schedule: Schedule) -> str | None:
        known = search.opened if search.best is None else search.best.time
        expected = options.expects(schedule)
        if known is not None and expected > HOPELESS * known:
            return "not replayed: it is expected to take much longer than the best"
        if sliced:
            hopes.append(expected)
        late = expected > UNLIKELY * min(hopes, default=expected)
        if late or (not sliced and any(time < schedule.makespan for time in scores)):
            return "not replayed: another way of the algorithm is expected to be faster"
        return None

    def promising(schedule: Schedule) -> Time | None:
        found = schedule.makespan if why_hopeless(schedule) else score(schedule)
        scores.extend(() if found is None else (found,))
        return found

    def refusal(schedule: Schedule) -> str | None:
        return why_hopeless(schedule) or options.refusal(schedule)

    return problem, replace(options, score=promising, refusal=refusal)


def _is_small(problem: Problem, options: Options, seconds: float) -> bool:
    """Tell whether the exact engine's model is small, and made in a part of some seconds."""
    pairs, links = pairs_of(problem), int(problem.logical.allowed.sum())
    if options.deterministic or not options.batch:
        return pairs <= (COUNTED if options.deterministic else LARGE)
    every = problem.collective.num_chunks
    chunks = every if every * links <= MAX_INTERVALS else len(problem.representatives)
    return pairs <= LARGE and links * chunks**2 * PAIR <= seconds


def turns_of(found: Sequence[Attempt]) -> Iterator[tuple[Attempt, Time | None]]:
    """Yield attempts with the picoseconds that each won over the best before; None: the first."""
    best: Time | None = None
    for one in found:
        won = None if best is None or one.time is None else max(0, best - one.time)
        yield one, won
        if one.time is not None:
            best = one.time if best is None else min(best, one.time)


def chosen(found: Sequence[Attempt], *, stopped: bool = False) -> Result:
    """Return the best of all attempts, with what the others prove and all that was compared.

    Where nothing could be lowered, the first schedule without a score. The attempts `found` are of
    one search, which the user may have `stopped`.

    Raises NoScheduleError when there is no schedule.
    """
    made = [(one, one.result) for one in found if one.result is not None]
    if not made:
        # The engine that knows most of what can't be served is the last; that an algorithm does
        # not exist says least.
        errors = [attempt.error for attempt in found if attempt.error is not None]
        errors.sort(key=lambda error: not isinstance(error, NoAlgorithmError))
        raise errors[-1] if errors else NoScheduleError("no schedule was found")
    timed = [row for row in made if row[0].time is not None]
    best, result = min(timed, key=lambda row: row[0].time or 0, default=made[0])
    alike = [one.result for one in found if one.result is not None and one.chunks == best.chunks]
    proved = dict.fromkeys(bound for one in alike for bound in one.bounds)
    status = Status.INTERRUPTED if stopped else result.status
    listed = [one for one in found if not isinstance(one.error, NoAlgorithmError)]
    rows = dict.fromkeys(candidate for one in listed for candidate in one.candidates)
    return replace(result, status=status, bounds=tuple(proved), candidates=tuple(rows))


def auto(problem: Problem, options: Options) -> Result:
    """Run everything on one ``problem`` within ``options``; return the best by score.

    Raises NoScheduleError when no candidate exists.
    """
    clock = options.begin()

    def task(_count: int, seconds: float) -> tuple[Problem, Options]:
        return problem, replace(options, time_limit=seconds)

    series = Series((problem.collective.chunks_per_rank,), task, options.floor)
    result = chosen(portfolio(Search(series, clock)), stopped=options.stop.is_set())
    return replace(result, seconds=clock.spent)


FEW_MESSAGES = (
    "hierarchical", "two-step", "halving-doubling", "double-binary-tree", "scatter-allgather",
    "all-pairs", "bruck", "direct", "binomial", "flooding", "chain",
)  # fmt: skip
"""Algorithms with few messages, which are lowered and judged soonest; the best guess first."""

MANY_CHUNKS = 20_000
"""Chunks at all ranks together, above which one algorithm is timed exactly before the others."""

MOST_CLOCKED = 40_000
"""Sends of such a problem, at least, up to which a clock tells which; else the first is it."""


def opening(
    problem: Problem, *, batch: bool, over: Callable[[], bool] = lambda: False
) -> Iterable[tuple[str, Schedule]]:
    """Return algorithms by name, with exact schedules: the least makespan first where all are made.

    The symmetries of the `problem` are not used; with `batch` chunks may travel together. Of a
    large problem, they are made as they are asked for. Once one is made, `over` tells whether no
    more are.
    """
    collective, bare = problem.collective, problem.without_symmetry
    is_large = collective.num_chunks * collective.num_ranks > MANY_CHUNKS
    if is_large:
        ways = ((name, likely_way(bare, name)) for name in FEW_MESSAGES)
        likely = ((*way, name) for name, way in ways if way is not None)
        clocked = collective.least_sends <= MOST_CLOCKED
        made = (
            (name, textbook_schedule(bare, name, batch=batch, way=way))
            for _, way, name in (sorted(likely, key=lambda one: one[0]) if clocked else likely)
        )
    else:
        names = dict.fromkeys((*FEW_MESSAGES, *CLASSICAL))
        made = ((name, textbook_schedule(bare, name, batch=batch)) for name in names)
    found = ((name, schedule) for name, schedule in made if schedule is not None)
    if is_large:
        return found
    some: list[tuple[str, Schedule]] = []
    for one in found:
        some.append(one)
        if over():
            break
    return sorted(some, key=lambda one: one[1].makespan) or _greedy(bare)


def _greedy(problem: Problem) -> list[tuple[str, Schedule]]:
    """Return what greedy routes make of a problem for which there is no textbook; or nothing."""
    sums = problem.collective.reduces
    phases = ((True,) if sums else ()) + (
        (False,) if not sums or reduces_and_spreads(problem.collective) else ()
    )
    rows: list[tuple[int, int, bool]] = []
    with suppress(NoScheduleError):
        for reverse in phases:
            network = build_network(problem, reverse=reverse)
            hops = greedy_routes(network)
            routes = tuple(
                tuple(hop.arc for hop in hops if hop.demand == n)
                for n in range(len(network.demands))
            )
            rows += rows_of_routes(network, routes)
        decisions = Decisions.of([(*row[:2], n, row[2]) for n, row in enumerate(rows)])
        return [("greedy", problem.timed(decisions))]
    return []


ENGINES: Mapping[str, Engine] = MappingProxyType({
    "auto": auto,
    "guided": guided,
    "flow": flow,
    "taccl": staged,
    "exact": exact,
})  # fmt: skip


def engine_names() -> tuple[str, ...]:
    """Return every name that ``--engine`` takes."""
    return (*ENGINES, *CLASSICAL)


def solve(problem: Problem, engine: str, options: Options) -> Result:
    """Run an engine of ENGINES or an algorithm of CLASSICAL on a problem.

    Raises InputError when there is no such engine; NoScheduleError when no schedule exists or none
    was found in time.
    """
    if engine in ENGINES:
        return ENGINES[engine](problem, options)
    if engine in CLASSICAL:
        return run_classical(engine, problem, options)
    raise InputError(
        f"unknown engine {engine[:40]!r}",
        field="--engine",
        fix=f"use one of {', '.join(engine_names())}",
    )
