"""Programs of XML files: replayed size by size, judged, with what nccl-tests counts as ``#wrong``.

Under a scenario their rows stand beside those of the undisturbed machine. Beside them the bounds
of a collective.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from taccl.apps.inputs import ELEMENT_BYTES, read_program
from taccl.bounds import ANY, POINT_TO_POINT, any_bounds, best, fixed_bounds
from taccl.bounds.port_contention import KIND, port_contention_bound
from taccl.collectives import Collective, chunk_size_of
from taccl.errors import InputError, TacclWarning
from taccl.files import read_text
from taccl.model.problem import Bound
from taccl.model.schedule import Schedule, timed_anew
from taccl.model.schedule_file import read_schedule
from taccl.msccl.interpret import count_wrong, interpret
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml
from taccl.mscclpp.plan import Plan
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import (
    Load,
    Outcome,
    Setup,
    check_up,
    disturbed,
    mean_time,
    on_ranks,
    percentile,
    weakened,
)
from taccl.replay.interpreter import Trace
from taccl.replay.plans import replay_plan
from taccl.replay.scenario import Scenario, read_scenario
from taccl.replay.sweep import Disturbed, Row, bounds_of, row_of, sweep
from taccl.replay.timing import traces
from taccl.report.explain import Explanation, explain
from taccl.report.played import Played, play, play_plan
from taccl.report.tables import Bounded
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.verify import require_valid

SECONDS = 2.0
"""What a bound for one size may take, about."""

MAX_WORK = 100_000
"""Chunks that steps move in some seconds, above which a program is not followed."""

_NOT_FOLLOWED = frozenset({"unknown collective", "chunks", "size"})
"""Rules of :func:`taccl.msccl.interpret.interpret` that say that nothing was looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program leaves in the outputs.

    The part of the counted buffer's size that is `wrong` on all ranks together is in chunks, of
    which the buffer has `chunks`, in the worst of the modes that the program claims; None: not
    known, as it was not followed, or as it depends on which threadblock is first. The first thing
    that is wrong is `told` in words; empty: nothing is known to be.
    """

    wrong: int | None
    chunks: int
    told: str = ""

    def elements(self, size: int) -> int | None:
        """Return how many elements are wrong at a size in bytes."""
        return None if self.wrong is None else self.wrong * size // self.chunks // ELEMENT_BYTES


def answer_of(program: Program) -> Answer:
    """Run a program on symbolic chunks in every mode that it claims."""
    chunks = program.chunks_per_loop
    unknown = Answer(None, chunks)
    if sum(step.count for _, block in program.blocks() for step in block.steps) > MAX_WORK:
        return unknown
    claims = ((True, program.in_place), (False, program.out_of_place))
    modes = [in_place for in_place, claimed in claims if claimed]
    findings = [found for mode in modes for found in interpret(program, in_place=mode)]
    if any(finding.rule in _NOT_FOLLOWED for finding in findings):
        return unknown
    if not findings:
        return Answer(0, chunks)
    unsure = [finding for finding in findings if finding.rule != "result"]
    if unsure:
        return Answer(None, chunks, str(unsure[0]))
    counts = [count_wrong(program, in_place=mode) or 0 for mode in modes]
    return Answer(max(counts), chunks, str(findings[0]))


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how programs are replayed: the network, and the constants of the runtime.

    What `route` and `protocol_costs` say, :func:`taccl.replay.interpreter.replay` does.
    """

    topology: Topology
    model: ReplayModel
    route: bool = False
    protocol_costs: bool = False

    def play(self, what: Program | Plan, size: int) -> Played:
        """Return a replay of a program or plan, `what`, at a `size`, with all its spans."""
        if isinstance(what, Plan):
            return play_plan(what, self.topology, size, self.model)
        with warnings.catch_warnings():
            # The rows have warned of routed pairs already.
            warnings.simplefilter("ignore", TacclWarning)
            return play(
                what, self.topology, size, self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip

    def explain(self, what: Program | Plan, played: Played, row: Row) -> Explanation:
        """Return where the time of a replay of `what`, `played`, goes, whose result is a `row`."""

        def again(topology: Topology) -> Trace:
            if isinstance(what, Plan):
                return replay_plan(what, topology, row.size, self.model)
            (trace,) = traces(
                what, topology, [row.size], self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip
            return trace

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TacclWarning)
            return explain(played, row, again)


def evaluate(files: Sequence[str], sizes: Sequence[int], setting: Setting) -> tuple[Row, ...]:
    """Replay the programs of XML `files` in a `setting` at `sizes` in bytes, file by file.

    Raises InputError when a file can't be read or is for another number of ranks; ProgramError when
    a file is no program, or its connections have no links.
    """
    topology = setting.topology
    programs = [(file, read_program(file)) for file in files]
    for file, program in programs:
        if program.num_ranks != topology.num_ranks:
            raise InputError(
                f"is for {program.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=file,
                field="ngpus",
                fix="give the topology it was made for (--nodes)",
            )
    rows = sweep(
        programs, topology, sizes, setting.model,
        route=setting.route, protocol_costs=setting.protocol_costs,
    )  # fmt: skip
    answers = {file: answer_of(program) for file, program in programs}
    found = []
    for row in rows:
        answer = answers[row.file]
        told = (row.note, "" if row.time is None else answer.told)
        note = "; ".join(filter(None, told))
        found.append(replace(row, wrong=answer.elements(row.size), note=note))
    return tuple(found)


def bounds_for(
    logical: LogicalTopology, collective: Collective, size: int, *, grown: bool = False
) -> Bounded:
    """Return the bounds for any algorithm, for a chunk count without batches, and for a sketch.

    The `logical` network is as the sketch restricts it, the `collective` cut into chunks, and
    `size` the bytes of the counted buffer. With `grown` a bound of kind growth is looked for as
    well, which takes from seconds to minutes.

    Raises NoScheduleError when some rank can't be reached from another.
    """
    topology = logical.topology
    free = whole(topology)
    known = any_bounds(free, collective, size, world=POINT_TO_POINT, seconds=SECONDS)
    if grown:
        least = best(known).time
        raised = port_contention_bound(topology, collective.name, size, least)
        known += (Bound(KIND, known[0].world, raised),) if raised > least else ()
    able = topology.copies_or_adds
    return Bounded(
        topology, collective.name, collective.chunks_per_rank, size,
        any_bounds(free, collective, size, world=ANY) if able else known,
        fixed_bounds(free, collective, chunk_size_of(collective, size)),
        () if logical.name is None else any_bounds(logical, collective, size, seconds=SECONDS),
        known if able else (),
    )  # fmt: skip


def load_scenario(
    path: str | None, topology: Topology, *, detailed: bool = False
) -> Scenario | None:
    """Return the scenario, of a `topology`, in the file at `path`; None without a path.

    Where it is to be `detailed`, single messages are shown, which only static scenarios allow.

    Raises InputError when the file can't be used, or no single run can stand for the scenario.
    """
    if path is None:
        return None
    scenario = read_scenario(path, topology)
    if detailed and not scenario.is_static:
        raise InputError(
            f"{scenario.name} has more than shares and factors that hold throughout, so"
            " --trace, --html and --explain can't show what it does",
            field="--scenario",
            fix="leave them out, or use a scenario of shares and factors",
        )
    return scenario


def left_of(scenario: Scenario, setting: Setting) -> Setting:
    """Return the `setting` with the bandwidths that a `scenario` leaves throughout."""
    return replace(setting, topology=weakened(setting.topology, scenario))


def under(scenario: Scenario, setting: Setting, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows of files as a `scenario` makes them.

    In the `setting` programs run as `rows` tell of the undisturbed machine: all sizes of the first
    file, then of the next.

    Raises InputError when a program needs an edge that is down, or another of the scenario can't be
    used; ProgramError when one of these is none, or does not fit the topology.
    """
    setup = Setup(setting.topology, setting.model, scenario, setting.route, setting.protocol_costs)
    also = _others(setup)
    found: list[Row] = []
    with warnings.catch_warnings():
        # The plain rows have warned of routed pairs already.
        warnings.simplefilter("ignore", TacclWarning)
        for file, of_file in groupby(rows, key=lambda row: row.file):
            program, plain = read_program(file), list(of_file)
            outcomes = _outcomes(setup, program, [row.size for row in plain], also)
            # The bound is the undisturbed machine's.
            bounds = {
                row.size: None if row.bound is None else (row.bound_kind, row.bound)
                for row in plain
            }
            for row, outcome in zip(plain, outcomes, strict=True):
                others = (mean_time(times) for times in outcome.others)
                made = row_of(outcome.trace, program, setup.topology, bounds.get, file)
                drawn = outcome.times if setup.scenario.is_random else ()
                disturbance = Disturbed(
                    setup.scenario.name, row.time, percentile(drawn, 50), percentile(drawn, 99),
                    setup.scenario.runs, max(filter(None, others), default=None),
                    (percentile(outcome.background, 50), percentile(outcome.background, 99)),
                )  # fmt: skip
                found.append(
                    replace(made, wrong=row.wrong, engine=row.engine, disturbed=disturbance)
                )
    return tuple(found)


def _others(setup: Setup) -> list[Program]:
    """Return the other programs of a scenario, each on its ranks of the machine."""
    found, ranks, document = [], setup.topology.num_ranks, setup.scenario.document
    for number, one in enumerate(setup.scenario.also):
        path = str(Path(document.file or "").parent / one.program)
        try:
            text = read_text(path)
        except InputError as error:
            raise document.error(
                f"{path[:200]} {error.problem}", ("also", number, "program"),
                "give the path of an MSCCL XML file, relative to the scenario's",
            ) from None  # fmt: skip
        program = read_xml(text, file=path)
        on = range(ranks) if one.ranks is None else one.ranks
        if program.num_ranks != len(on):
            told = f"{setup.topology.name} has" if one.ranks is None else "ranks names"
            raise document.error(
                f"is for {program.num_ranks} ranks, {told} {len(on)}", ("also", number, "program"),
                "give a program for as many, or the ranks that run it (ranks: 0-7)",
            )  # fmt: skip
        found.append(on_ranks(program, on, ranks))
    return found


def _outcomes(
    setup: Setup, program: Program, sizes: Sequence[int], also: Sequence[Program]
) -> list[Outcome]:
    """Replay a program at all sizes; what is only another topology by the faster replay."""
    if setup.scenario.is_static:
        check_up(program, setup.topology, setup.scenario, route=setup.route)
        found = traces(
            program, setup.network, sizes, setup.model,
            route=setup.route, protocol_costs=setup.protocol_costs,
        )  # fmt: skip
        return [Outcome(trace, () if trace.time is None else (trace.time,)) for trace in found]
    outcomes = []
    for size in sizes:
        loads = [Load(program, size)]
        for other, told in zip(also, setup.scenario.also, strict=True):
            # By default with as many whole chunks.
            unit = other.chunks_per_loop * setup.model.element_bytes
            loads.append(Load(other, told.size or size - size % unit or unit, told.start))
        outcomes.append(disturbed(setup, loads))
    return outcomes


def is_schedule(path: str) -> bool:
    """Tell whether a file at `path` is a schedule, by how it begins.

    Raises InputError when it can't be read.
    """
    start = read_text(path).lstrip()[:200]
    return start.startswith("{") and '"schedule/' in start


def at_size(schedule: Schedule, topology: Topology, size: int, file: str | None = None) -> Schedule:
    """Return the decisions of a `schedule` timed anew on a `topology`, and judged.

    The topology has the same links, and arcs where there are fans, at any costs; `size` is in bytes
    of the counted buffer. Errors name the `file` it is from.

    Raises InputError when it has others, ScheduleError when the schedule is wrong.
    """
    pairs = [(schedule.topology.links, topology.links)]
    if len(schedule.fans):
        pairs.append((schedule.topology.arcs, topology.arcs))
    columns = ("src", "dst", "edge_start", "edge_ids")
    if not all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in pairs
        for name in columns
    ):
        raise InputError(
            f"its links are those of {schedule.topology.name}, and not those of {topology.name}",
            file=file, field="topology", fix="give the topology it was made for; costs may differ",
        )  # fmt: skip
    made = timed_anew(schedule, topology, size)
    require_valid(made)
    return made


def timed_schedules(
    files: Sequence[str], topology: Topology, sizes: Sequence[int]
) -> Iterator[tuple[Row, Schedule]]:
    """Yield a row for each schedule of some `files` at each of some `sizes` in bytes, and it there.

    Where a schedule has fans, switches of the `topology` copy and add as it says; without fans the
    bound is that of messages from rank to rank.

    Raises InputError when a file can't be read or is for another machine; ScheduleError when what
    it says is wrong.
    """
    for file in files:
        schedule = read_schedule(file)
        fused = len(schedule.fans) > 0
        machine = topology if fused else topology.point_to_point()
        bound = bounds_of(machine, schedule.collective, world=ANY if fused else POINT_TO_POINT)
        for size in sizes:
            made = at_size(schedule, machine, size, file)
            proved = bound(size)
            row = Row(
                schedule.collective.name, machine.name, machine.num_ranks, size, made.makespan,
                file=file, program="schedule", alpha_rule=machine.alpha_rule_stated,
                costs=machine.costs, bound=proved[1] if proved else None,
                bound_kind=proved[0] if proved else "", wrong=0, note="makespan of the schedule",
            )  # fmt: skip
            yield row, made
