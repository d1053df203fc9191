"""Which algorithm is fastest at which size: classical ones and files, beside NCCL's own model.

Every program is lowered once and replayed at all sizes, and at those between them at which the
fastest changes. The times of NCCL's model, a contender for each algorithm and protocol, win
nothing, as another model counts other things (see :mod:`taccl.replay.nccl`); what NCCL would run is
the fastest of those that it allows itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise, product
from math import isqrt, lcm
from pathlib import Path

from taccl.apps.evaluation import answer_of
from taccl.apps.inputs import ELEMENT_BYTES, charged, read_input, unit_of
from taccl.apps.programs import Target, serves, textbook_programs
from taccl.bounds import ANY
from taccl.collectives import COLLECTIVES, Collective, alone, has_xml
from taccl.errors import InputError, LoweringError
from taccl.model.problem import problem_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Program, errors_of
from taccl.mscclpp.interpret import judge_plan, root_of
from taccl.mscclpp.plan import Plan
from taccl.replay.cost import ReplayModel, floor_networks, measured_costs, model_of
from taccl.replay.nccl import (
    VERSION,
    Choice,
    Machine,
    Settings,
    choices,
    described,
    fastest,
    machine_of,
)
from taccl.replay.plans import replay_plan
from taccl.replay.sweep import BoundAt, Row, bounds_of, measured_bounds_of, row_of
from taccl.replay.timing import traces
from taccl.report.comparison import HERE, Comparison, Contender, Crossover, Modelled
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.synth.templates.nccl_kernels import KERNELS
from taccl.topology.graph import Topology, whole
from taccl.units import Time

CLOSE = 100
"""A crossover is known when the sizes around it differ by one part in so many."""

Times = Mapping[str, Time | None]
"""Times of contenders by name; None: it can't run."""


def first_of(times: Times, before: str | None = None) -> str | None:
    """Return who takes least of the `times`; of equals the one `before`, else the first."""
    found = {name: time for name, time in times.items() if time is not None}
    least = min(found.values(), default=None)
    if before in found and found[before] == least:
        return before
    return next((name for name, time in found.items() if time == least), None)


def find_crossovers(
    sizes: Sequence[int], step: int, times_at: Callable[[int], Times]
) -> Iterator[Crossover]:
    """Yield where the first changes between `sizes`, in bytes, which ascend.

    Where it changes between two, sizes between, multiples of `step`, are tried until the change is
    known to a hundredth; what comes and goes between two sizes with one winner is not seen. The
    times at a size in bytes are those of `times_at`.
    """

    def between(low: int, high: int, first: str, last: str) -> Iterator[Crossover]:
        middle = isqrt(low * high) // step * step
        if first == last:
            return
        if (high - low) * CLOSE <= low or not low < middle < high:
            yield Crossover(high, first, last)
            return
        inner = first_of(times_at(middle), first) or first
        yield from between(low, middle, first, inner)
        yield from between(middle, high, inner, last)

    now = first_of(times_at(sizes[0])) if sizes else None
    for low, high in pairwise(sizes):
        then = first_of(times_at(high), now)
        if now is not None and then is not None:
            yield from between(low, high, now, then)
        now = then


NCCL = f"NCCL {VERSION} (modelled)"

CHANNELS = (4, 16, 32)
"""Of NCCL's kernels: it takes fewer for small sizes than for large ones."""

MODELLED = "its own formula, launch of the kernel included; not a replay"


@dataclass(frozen=True, slots=True)
class Model:
    """NCCL's model of one collective on one machine.

    The `machine` is what NCCL's model knows of the `topology`, `collective` a name of COLLECTIVES,
    or another, which it does not know.
    """

    topology: Topology
    machine: Machine
    collective: str

    def time(self, size: int) -> Time | None:
        """Return what NCCL expects of what it would run; None where it has no model."""
        choice = fastest(self.machine, self.collective, size)
        return None if choice is None else choice.time

    def chosen(self, sizes: Sequence[int]) -> tuple[str, ...]:
        """Return what NCCL would run at each size; nothing where it has no model."""
        found = (fastest(self.machine, self.collective, size) for size in sizes)
        return tuple(choice.way for choice in found if choice is not None)

    def contender(self, sizes: Sequence[int]) -> Contender:
        """Return what NCCL expects at each size of what it would run."""
        found = (fastest(self.machine, self.collective, size) for size in sizes)
        rows = [
            self._row(size, NCCL, choice)
            for size, choice in zip(sizes, found, strict=True)
            if choice is not None
        ]
        return Contender(NCCL, "nccl", tuple(rows), MODELLED)

    def ways(self, sizes: Sequence[int]) -> tuple[Contender, ...]:
        """Return what NCCL expects of each algorithm and protocol that it has."""
        by_way = zip(*(choices(self.machine, self.collective, size) for size in sizes), strict=True)
        return tuple(self._way(sizes, found) for found in by_way)

    def switches(self, sizes: Sequence[int], step: int) -> tuple[Crossover, ...]:
        """Return from which sizes on, multiples of ``step``, NCCL would run something else."""
        return tuple(find_crossovers(sizes, step, self._allowed))

    def _allowed(self, size: int) -> Times:
        found = choices(self.machine, self.collective, size)
        return {each.way: each.time for each in found if self.machine.allows(each.protocol)}

    def _way(self, sizes: Sequence[int], found: Sequence[Choice]) -> Contender:
        name = f"NCCL {VERSION} {found[0].way} (modelled)"
        refused = not self.machine.allows(found[0].protocol)
        rows = [
            self._row(size, name, each, "NCCL runs LL128 over NVLink only; " if refused else "")
            for size, each in zip(sizes, found, strict=True)
        ]
        return Contender(name, "nccl-way", tuple(rows), MODELLED, short=found[0].way)

    def _row(self, size: int, name: str, choice: Choice, refused: str = "") -> Row:
        return Row(
            self.collective, self.topology.name, self.topology.num_ranks, size, choice.time,
            engine=name,
            note=f"modelled: {refused}{choice.way}, {choice.base / 1e6:g} us of it at any size",
        )  # fmt: skip


Play = Callable[[Sequence[int]], list[Row]]
"""From sizes to results."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is compared: a collective, uncut, on a topology, at `sizes` in bytes, ascending.

    MSCCL XML `files` do the same. Constants and limits are those of a `runtime` of RUNTIMES, `nccl`
    has inputs of NCCL's model that are given, and `report` is called with what is being done. Where
    costs are `measured`, programs are charged those of the topology, and NCCL's kernels are, too.
    """

    topology: Topology
    collective: Collective
    sizes: Sequence[int]
    files: Sequence[str] = ()
    runtime: str = "executor"
    nccl: Settings = field(default_factory=Settings)
    report: Callable[[str], None] = lambda _line: None
    measured: bool = False

    @property
    def model(self) -> ReplayModel:
        """The constants of the replay."""
        return replace(model_of(self.runtime), measured=self.measured)

    @cached_property
    def bound(self) -> BoundAt:
        """What no program can beat, by size; without programs, no schedule."""
        collective = self.collective
        if collective.is_timed:  # programs do not wait for chunks
            collective = collective.timed()
        if self.measured:
            floors = floor_networks(self.topology, measured_costs(self.topology))
            return measured_bounds_of(floors, collective)
        if self.topology.copies_or_adds:
            return bounds_of(self.topology, collective, world=ANY)
        most = max(self.model.message_bytes.values()) if has_xml(collective.name) else None
        return bounds_of(self.topology, collective, message_bytes=most)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """What can win: one or more programs of one algorithm, of which the fastest counts.

    Each program has one of `plays`, and `name`, `kind` and `note` are those of a Contender. The
    bytes of a buffer must be a multiple of `divisor`.
    """

    name: str
    kind: str
    plays: tuple[Play, ...]
    divisor: int
    note: str = ""

    def rows(self, sizes: Sequence[int]) -> tuple[Row, ...]:
        """Return the best result at every size."""
        by_size = zip(*(play(sizes) for play in self.plays), strict=True)
        return tuple(
            min(rows, key=lambda row: (row.time is None, row.time or 0)) for rows in by_size
        )


def compare(question: Question) -> Comparison:
    """Replay everything at every size.

    Raises InputError when a file can't be read, or does something else; ProgramError when a file is
    no program, or its connections have no links.
    """
    topology, collective = question.topology, question.collective
    files = [_file(question, file) for file in dict.fromkeys(question.files)]
    absent: dict[str, str] = {}
    candidates = [*_algorithms(question, absent), *_kernels(question, absent), *files]
    # Sizes at which all candidates run; those too small for that as they are.
    step = lcm(*(candidate.divisor for candidate in candidates))
    sizes = tuple(dict.fromkeys(size - size % step or size for size in question.sizes))
    # A file goes without its folder where no other has its name.
    shorts = {c.name: Path(c.name).name if c.kind == "file" else c.name for c in candidates}
    taken = Counter(shorts.values())
    contenders: list[Contender] = []
    for number, c in enumerate(candidates, 1):
        question.report(f"replaying {c.name} ({number} of {len(candidates)})")
        short = shorts[c.name] if taken[shorts[c.name]] == 1 else ""
        contenders.append(Contender(c.name, c.kind, c.rows(sizes), c.note, short))
    question.report("looking for crossovers")
    race = _Race([c for c in candidates if not c.note], contenders, sizes)
    model = Model(topology, machine_of(topology, question.nccl), collective.name)
    chosen, modelled = model.chosen(sizes), None

    def beside(size: int) -> Times:
        least = race.least(size)
        return {} if least is None else {HERE: least, NCCL: model.time(size)}

    if chosen:
        contenders.append(model.contender(sizes))
        modelled = Modelled(
            model.ways(sizes), chosen, model.switches(sizes, step),
            tuple(find_crossovers(sizes, step, beside)), described(model.machine),
            topology.num_servers,
        )  # fmt: skip
    else:
        absent[NCCL] = f"it has no model of {collective.name}"
    return Comparison(
        collective.name, topology.name, topology.num_ranks,
        "measured costs" if question.measured else topology.rules_stated,
        question.runtime, sizes, tuple(map(question.bound, sizes)), tuple(contenders),
        tuple(find_crossovers(sizes, step, race.times)), tuple(absent.items()), modelled,
    )  # fmt: skip


class _Race:
    """Times of all candidates that can win, at any size, each replayed once."""

    def __init__(
        self, racing: Sequence[_Candidate], contenders: Sequence[Contender], sizes: Sequence[int]
    ) -> None:
        self.racing = racing
        names = {candidate.name for candidate in racing}
        self.known: dict[int, Times] = {
            size: {c.name: c.time(place) for c in contenders if c.name in names}
            for place, size in enumerate(sizes)
        }

    def times(self, size: int) -> Times:
        """Return the time of each candidate."""
        if size not in self.known:
            self.known[size] = {c.name: c.rows([size])[0].time for c in self.racing}
        return self.known[size]

    def least(self, size: int) -> int | None:
        """Return the time of the fastest."""
        times = (time for time in self.times(size).values() if time is not None)
        return min(times, default=None)


def _file(question: Question, file: str) -> _Candidate:
    """Return the candidate of a file, out of the race when its result is wrong."""
    name = f"./{file}" if file in CLASSICAL else file
    what = read_input(file)
    find = partial(root_of, what) if isinstance(what, Plan) else partial(find_root, what)
    _check(question, file, what.num_ranks, what.collective, find)
    if isinstance(what, Plan):
        told = next(map(str, errors_of(judge_plan(what))), "")
        play: Play = partial(_plan_rows, question, what, file)
    else:
        told, play = answer_of(what).told, _replayed(question, what, file=file)
    return _Candidate(name, "file", (play,), unit_of(what), told)


def _check(
    question: Question, file: str, ranks: int, collective: str, root: Callable[[], int | None]
) -> None:
    """Raise when a file does something else than is asked."""
    asked = question.collective
    problems: list[tuple[str, object, object]] = [("ngpus", ranks, question.topology.num_ranks)]
    if asked.name in COLLECTIVES:
        problems.append(("coll", collective, asked.name))
    if asked.root is not None and collective == asked.name:
        problems.append(("root", root(), asked.root))
    for name, found, wanted in problems:
        if found != wanted:
            raise InputError(
                f"should be {wanted} as asked, got {found}", file=file, field=name,
                fix="leave the file out, or ask for what it does",
            )  # fmt: skip


def _plan_rows(question: Question, plan: Plan, file: str, sizes: Sequence[int]) -> list[Row]:
    """Return the rows of a plan at some sizes."""
    found = (replay_plan(plan, question.topology, size, question.model) for size in sizes)
    return [row_of(trace, plan, question.topology, question.bound, file) for trace in found]


def _replayed(question: Question, program: Program, *, file: str = "", engine: str = "") -> Play:
    def play(sizes: Sequence[int]) -> list[Row]:
        found = traces(program, question.topology, sizes, question.model)
        rows = (row_of(trace, program, question.topology, question.bound, file) for trace in found)
        return [replace(row, engine=engine) for row in rows]

    return play


def _algorithms(question: Question, absent: dict[str, str]) -> Iterator[_Candidate]:
    """Yield the classical algorithms that exist, and note why others do not."""
    topology, collective = question.topology, question.collective
    kind = COLLECTIVES.get((alone(collective) or collective).name)
    many = kind is not None and (kind.has_root or collective.members is not None)
    counts = kind.chunk_counts if kind is not None and many else (1,)
    reference = question.sizes[len(question.sizes) // 2]
    target = Target(question.runtime, min_bytes=min(question.sizes), max_bytes=max(question.sizes))
    protocols: Sequence[str] = ()
    if question.measured:
        target = replace(target, measured=True)
        protocols = target.protocols(collective.name, topology)
        topology = charged(whole(topology), collective, reference, protocols).topology
    for name in CLASSICAL if kind is not None else ():
        question.report(f"lowering {name}")
        plays: list[Play] = []
        most, reason = 1, ""
        for count in counts:
            cut, made = collective.cut(count), list[Play]()
            if serves(question.runtime, collective) and name not in IN_NETWORK:
                programs, refused = textbook_programs(topology, cut, name, reference, target)
                made = [
                    _replayed(question, replace(program, protocol=protocol), engine=name)
                    for program, _ in programs
                    for protocol in protocols or (program.protocol,)
                ]
                reason = refused or reason
            elif classical_schedules(problem_of(topology, cut, reference), name, batch=True):
                made = [_scheduled(question, cut, name)]
            most = lcm(most, cut.chunks_in_size) if made else most
            plays += made
        if not plays:
            absent[name] = reason or f"not for {collective.name}, or not on these links"
        else:
            yield _Candidate(name, "algorithm", tuple(plays), most * ELEMENT_BYTES)


def _kernels(question: Question, absent: dict[str, str]) -> Iterator[_Candidate]:
    """Yield NCCL's kernels as programs, of the protocol that is fastest at each size."""
    topology, collective = question.topology, question.collective
    costs = topology.measured
    if not question.measured or costs is None:
        return
    for name, make in KERNELS.items():
        programs: list[Program] = []
        reason = f"not for {collective.name}"
        for protocol, channels in product(costs.protocols, CHANNELS):
            try:
                program = make(topology, collective.name, channels, protocol)
            except LoweringError as error:
                reason = error.problem
                continue
            if program is not None:
                programs.append(program)
        if not programs:
            absent[f"nccl-{name}"] = reason
            continue
        plays = tuple(_replayed(question, program, engine=name) for program in programs)
        divisor = lcm(*(program.chunks_per_loop for program in programs)) * ELEMENT_BYTES
        yield _Candidate(f"nccl-{name}", "nccl", plays, divisor)


def _scheduled(question: Question, collective: Collective, name: str) -> Play:
    """Return the schedule of an algorithm that no file can hold, timed at each size."""

    def play(sizes: Sequence[int]) -> list[Row]:
        topology, rows = question.topology, []
        for size in sizes:
            problem, found = problem_of(topology, collective, size), question.bound(size)
            best = classical_schedules(problem, name, batch=True)[0]
            rows.append(Row(
                collective.name, topology.name, topology.num_ranks, size, best.makespan,
                engine=name, bound=found[1] if found else None,
                bound_kind=found[0] if found else "", note="makespan of the schedule",
            ))  # fmt: skip
        return rows

    return play
