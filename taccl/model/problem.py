"""What an engine is asked and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from threading import Event

from taccl.collectives import Collective, chunk_size_of
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.timing.deadline import Deadline
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.topology.symmetry import Group, make_group
from taccl.units import Time


class Status(Enum):
    """How a solve ended; the value is what ``--json`` prints."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on time.

    `kind` is ``latency``, ``port``, ``cut``, ``flow``, ``reduce`` ..., `time` is picoseconds, and
    `world` is what it holds for: ``any`` algorithm, chunking and batching; ``point-to-point``: any
    whose messages are from rank to rank, where switches can do more; ``fixed``: this chunk
    count with one chunk per message; ``sketch``: any algorithm on the sketch's logical topology;
    ``engine``: the problem as the engine was given it, with its sketch, chunk count and batching;
    ``trees``: the same, of algorithms that sum each chunk along one tree and spread it along one.
    """

    kind: str
    world: str
    time: Time


@dataclass(frozen=True, eq=False)
class Problem:
    """One collective on one logical topology with one chunk size.

    `logical` is the network as the sketch restricts it, `collective` what is to be done with chunks
    of `chunk_size` bytes, exact, and `group` has the symmetries to use by substitution: verified,
    acting freely. A program has threadblocks for `most_peers` peers of a rank; None: for any.
    """

    logical: LogicalTopology
    collective: Collective
    chunk_size: Fraction
    group: Group
    most_peers: int | None = None

    @property
    def topology(self) -> Topology:
        """The physical network."""
        return self.logical.topology

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """One chunk of every orbit."""
        return self.group.chunk_orbits(self.collective)

    @cached_property
    def without_symmetry(self) -> "Problem":
        """The same problem, in which every chunk and link stands for itself."""
        return replace(self, group=make_group(self.topology, ()))

    def cost(self, link: int, chunks: int) -> tuple[Time, tuple[tuple[int, Time], ...]]:
        """Return picoseconds to the arrival of a message, and for how many it holds what.

        The message is of so many `chunks` on a `link`. Returned are the time from start to arrival,
        and (resource orbit, time held)...
        """
        if (link, chunks) not in self._costs:
            topology, orbit, size = self.topology, self.group.edge_orbit, chunks * self.chunk_size
            held = tuple(
                (int(orbit[edge]), topology.busy(link, edge, size))
                for edge in topology.links.edges_of(link)
                if topology.edges[edge].beta is not None
            )
            self._costs[link, chunks] = (topology.arrival(link, size), held)
        return self._costs[link, chunks]

    @cached_property
    def _costs(self) -> dict[tuple[int, int], tuple[Time, tuple[tuple[int, Time], ...]]]:
        return {}

    def timed(self, decisions: Decisions) -> Schedule:
        """Return the schedule of decisions on these orbits, each message as early as it may start.

        Raises ValueError when messages wait for each other in a ring.
        """
        return retime(self.collective, self.group, self.chunk_size, decisions)


def problem_of(
    topology: Topology, collective: Collective, size: int, most_peers: int | None = None
) -> Problem:
    """Return the problem of a `collective` of `size` bytes on all of a `topology`'s links.

    Its program has threadblocks for `most_peers` peers of a rank; None: for any.
    """
    group = make_group(topology, ())
    return Problem(whole(topology), collective, chunk_size_of(collective, size), group, most_peers)


def reduces_and_spreads(collective: Collective) -> bool:
    """Tell whether sums are wanted elsewhere than where they are made (at the chunks' owners)."""
    return collective.reduces and any(
        len(collective.rank_sets[number]) > 1 for number in set(collective.target_set.tolist())
    )


@dataclass(frozen=True)
class Options:
    """How long and how an engine may search.

    `time_limit`: seconds.
    `seed`, `workers`, `deterministic`: for the solvers; deterministic counts work instead of
    seconds.
    `batch`: whether chunks may travel together.
    `floor`: a lower bound proved elsewhere, in picoseconds: a schedule that reaches it ends the
    search.
    `fixed_floor`: called with the name of a collective, the lower bound for one chunk to a message,
    in picoseconds; the first call may take seconds.
    `score`: what a schedule really costs (the replay of its program), in picoseconds; None when it
    can't be lowered. The portfolio chooses by it.
    `refusal`: why a schedule has no score.
    `expects`: what a schedule is expected to cost before it has a score, in picoseconds.
    `rounds`: steps, rounds and chunks, for engine ``exact`` to answer SCCL's question instead.
    `known`: schedules of this problem that were found before, the best first: where to start from.
    `starts`: called with the name of an engine before it runs.
    `stop`: set when the user interrupts or time is up: hand over the best so far.
    `report`: called with a line of progress.
    """

    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    batch: bool = True
    floor: Time = 0
    fixed_floor: Callable[[str], Time] = lambda _collective: 0
    score: "Callable[[Schedule], Time | None] | None" = None
    refusal: "Callable[[Schedule], str | None]" = lambda _schedule: None
    expects: "Callable[[Schedule], Time]" = lambda schedule: schedule.makespan
    rounds: tuple[int, int, int] | None = None
    known: "tuple[Schedule, ...]" = ()
    starts: Callable[[str], None] = lambda _name: None
    stop: Event = field(default_factory=Event)
    report: Callable[[str], None] = lambda _line: None

    def begin(self, counted: float | None = None) -> Deadline:
        """Return the deadline of a search that begins now.

        Where work is counted, one step of the search may take `counted` seconds; None: all.
        """
        deadline = Deadline.after(self.time_limit)
        work = (self.time_limit if counted is None else counted) if self.deterministic else None
        return replace(deadline, counted=work, stop=self.stop)

    @property
    def solver_share(self) -> float:
        """Seconds for each solver of a search with many, where work is counted."""
        return max(0.5, self.time_limit / 12)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that was compared.

    `engine` found it, with so many `chunks` for each rank. `makespan` is that of the schedule, in
    picoseconds (None: there is none), `score` what it really costs, in picoseconds; None: it is out
    of the running, and `reason` says why.
    """

    engine: str
    chunks: int
    makespan: Time | None
    score: Time | None
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What an engine found.

    `status` is how the solve of an `engine` ended, `schedule` the best schedule, or None, and
    `bounds` are lower bounds that it proved, in `seconds` of wall clock. `candidates` are what was
    chosen from, where that was more than one.
    """

    status: Status
    schedule: "Schedule | None"
    bounds: tuple[Bound, ...]
    engine: str
    seconds: float
    candidates: tuple[Candidate, ...] = ()


def result_of(engine: str, schedule: "Schedule", options: Options, seconds: float) -> Result:
    """Return what an `engine` that proves nothing has found: a `schedule`, in so many `seconds`.

    It is optimal where it ends by the floor of the `options`, interrupted where these stop it.
    """
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif schedule.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, schedule, (), engine, seconds)


def candidate_of(engine: str, schedule: "Schedule", options: Options) -> Candidate:
    """Return a `schedule` of an `engine` as a candidate, with its score or why it has none.

    `options` say what it scores and why it is refused.
    """
    chunks = schedule.collective.chunks_per_rank
    score = schedule.makespan if options.score is None else options.score(schedule)
    reason = options.refusal(schedule)
    if score is None and reason is None:
        reason = "it can't be lowered"
    return Candidate(engine, chunks, schedule.makespan, None if reason else score, reason)
