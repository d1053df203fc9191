"""MSCCL++ plans: made from schedules and XML programs, judged, replayed, and written.

Of the plans that a program can become (with signals or with packets, in one piece or as a
pipeline) the one that takes least by replay is written, and none that is not judged right. What
switches copy and add becomes a plan without a program between.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from taccl.apps.inputs import read_program
from taccl.apps.programs import Target, lowering_of
from taccl.bounds import ANY, POINT_TO_POINT
from taccl.errors import InputError, LoweringError
from taccl.files import check_apart, read_text, write_all_atomic
from taccl.lowering.lower import modes_served
from taccl.lowering.plans import (
    FanOptions,
    Guards,
    PlanOptions,
    asks,
    fan_plan,
    guards_of,
    rejoined,
    short_starts,
    sliced,
    unjudged_plan,
)
from taccl.model.schedule import Schedule
from taccl.model.schedule_file import read_schedule
from taccl.msccl.program import Program, errors_of
from taccl.msccl.run import maximal_run, places
from taccl.mscclpp.interpret import ROOTED, is_plan, judge_plan
from taccl.mscclpp.plan import MAX_BUFFER, NEWEST, Plan
from taccl.mscclpp.structure import MAX_THREADS, VECTOR, counted_chunks
from taccl.mscclpp.text import write_plan
from taccl.replay.cost import (
    ReplayModel,
    least_costs,
    measured_costs,
    model_of,
    of_plans,
    sharing_of_plan,
)
from taccl.replay.interpreter import Trace, replay
from taccl.replay.plans import replay_plan
from taccl.replay.sweep import Row, bounds_of, measured_bounds_of, row_of
from taccl.replay.timing import Timing
from taccl.topology.graph import Topology
from taccl.units import Time, format_time
from taccl.verify import require_valid

PIPELINES = tuple(1 << power for power in range(14, 23))
"""Bytes of a chunk that an iteration of a pipeline may move: all threads move 16 KiB at once."""

PIPED = 64
"""Times the size for which it takes least, up to which a pipeline serves."""

STARTS = 8
"""Parts of a chunk, one of which is the start of a message that is sent as two."""

GAINED = Fraction(1, 4)
"""Of the time that a word takes: what a message gains that does not wait for it, at least."""

SLICES = 8
"""Parts of a chunk, at most, for which threadblocks do their lists one after the other."""

GROUPS = (2, 4, 8)
"""Threadblocks that may share the work of one of the program's, and pieces of what ports send."""

MOST_BLOCKS = 64
"""Threadblocks of a rank that such groups may have in all: the rest of a GPU computes."""

WORTH_A_GROUP = 0.02
"""Of the time that twice the threadblocks have to save, at least."""

ALIGNMENT = 16
"""Bytes of which a chunk is a multiple: the reader's default."""

SMALL = 1 << 20
"""Bytes of a chunk up to which packets, which are twice the bytes, are tried."""


ON_SWITCHES = 8
"""Threadblocks that share what switches copy and add: as many as MSCCL++'s own plans have."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What plan is wanted.

    `size`: bytes of the counted buffer, for which it takes least.
    `protocol`: ``Simple``: signals, ``LL``: packets, or ``auto``.
    `version`: of MSCCL++.
    `modes`: whether calls are in place, each a plan of its own.
    `model`: the constants of the replay.
    `min_bytes`, `max_bytes`: sizes that a plan without a program is for; None: from a quarter of
    the size to four times it.
    """

    size: int
    protocol: str = "auto"
    version: str = NEWEST
    modes: tuple[bool, ...] = (True, False)
    model: ReplayModel = field(default_factory=lambda: model_of("executor"))
    min_bytes: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, and what it takes by replay."""

    plan: Plan
    trace: Trace

    @property
    def time(self) -> Time:
        """How long it takes by replay, in picoseconds."""
        return self.trace.time or 0

    def __str__(self) -> str:
        """Return the mode of calls, the time, and what tells that data has come."""
        mode = "in place" if self.plan.in_place else "out of place"
        by = "packets" if self.plan.protocol == "LL" else "signals"
        by += " on switch channels" * any(rank.groups for rank in self.plan.ranks)
        return f"{mode}, {format_time(self.time)} by replay, with {by}"


Form = tuple[Program, PlanOptions]
"""A program, and how it becomes a plan."""

Maker = Callable[[Program, PlanOptions, Guards], list[Made]]
"""What makes the plan of a form with guards, if there is one and it runs."""


def told(made: Sequence[Made]) -> list[str]:
    """Return what plans, `made`, take by replay, and what they ask of machine and calls."""
    asked = dict.fromkeys(text for one in made for text in asks(one.plan))
    return [*(f"plan        {one}" for one in made), *(f"needs       {text}" for text in asked)]


def _most_bytes(plan: Plan) -> int:
    """Return the largest size of a plan: offsets are below 4 GiB."""
    largest = max(
        max(rank.input_chunks, rank.output_chunks, 4 * rank.scratch_chunks) for rank in plan.ranks
    )
    return min(plan.max_bytes, MAX_BUFFER // largest * counted_chunks(plan, plan.ranks[0]))


def best_fan_plan(schedule: Schedule, wanted: Wanted, name: str, *, in_place: bool) -> Made:
    """Return the plan of what switches copy and add that takes least at the wanted size.

    `schedule`: of fans.
    `wanted`: what plan.
    `name`: of it.
    `in_place`: the mode of calls.

    Raises LoweringError when no plan is right, or a row has no operation.
    """
    collective, size = schedule.collective, wanted.size
    chunk = size // collective.num_chunks
    # All threads of a threadblock move so many bytes at once; more of them serve what is more.
    share = size // (1 if collective.root is not None else collective.num_ranks)
    blocks = max(1, min(ON_SWITCHES, share // (MAX_THREADS * VECTOR)))
    options = FanOptions(
        name, in_place, version=wanted.version, blocks=1 << (blocks.bit_length() - 1),
        min_bytes=size // 4 if wanted.min_bytes is None else wanted.min_bytes,
        max_bytes=min(MAX_BUFFER, 4 * size if wanted.max_bytes is None else wanted.max_bytes),
    )  # fmt: skip
    kinds = {"auto": (False, True)[: 1 + (chunk <= SMALL)], "Simple": (False,), "LL": (True,)}
    found, failed = list[Made](), list[LoweringError]()
    for packets in kinds[wanted.protocol]:
        try:
            plan = fan_plan(schedule, replace(options, packets=packets))
        except LoweringError as error:
            failed.append(error)
            continue
        plan = replace(plan, max_bytes=_most_bytes(plan))
        trace = replay_plan(plan, schedule.topology, size, wanted.model)
        if trace.time is None:
            failed.append(LoweringError(trace.reason, fix="use another size"))
        else:
            found.append(Made(plan, trace))
    if not found:
        raise failed[0]
    return min(found, key=lambda one: one.time)


def best_plan(program: Program, topology: Topology, wanted: Wanted, *, in_place: bool) -> Made:
    """Return the plan of a program that takes least at the wanted size.

    `program`: any XML program of the `topology`.
    `wanted`: what plan.
    `in_place`: the mode of calls.

    Raises LoweringError when no plan of the program is right, or it does not serve the size.
    """
    if not program.min_bytes <= wanted.size <= program.max_bytes:
        raise LoweringError(
            f"{program.name} is for {program.min_bytes}..{program.max_bytes} bytes, not for"
            f" {wanted.size}",
            fix="give a --size in that range, or make a program of another one",
        )
    program = rejoined(program, topology)
    chunk = wanted.size // program.chunks_per_loop
    servers = tuple(topology.server_of)
    plain = PlanOptions(servers, in_place, version=wanted.version)
    failed: list[LoweringError] = []

    def made(source: Program, options: PlanOptions, guards: Guards) -> list[Made]:
        """Return the plan of a source with options, not judged yet, if there is one and it runs."""
        try:
            plan = unjudged_plan(source, options, guards)
        except LoweringError as error:
            failed.append(error)
            return []
        # Iterations of a pipeline are counted in 16 bits.
        most = _most_bytes(plan)
        plan = replace(plan, max_bytes=min(most, PIPED * wanted.size) if options.unit else most)
        trace = replay_plan(plan, topology, wanted.size, wanted.model)
        return [] if trace.time is None else [Made(plan, trace)]

    found: list[Made] = []
    if wanted.protocol in ("auto", "Simple"):
        forms, whole = _in_one_piece(program, topology, wanted, plain, made)
        found = list(whole.values()) + _in_parts(program, wanted, forms, whole, made)
    least = min((one.time for one in found), default=math.inf)
    if wanted.protocol == "LL" or (
        wanted.protocol == "auto"
        and chunk <= SMALL
        and _least_of_packets(program, topology, wanted) < least
    ):
        found += _with_packets(program, wanted, replace(plain, packets=True), made)
    # To judge a plan takes longer than to replay it.
    for one in sorted(found, key=lambda one: one.time):
        wrong = errors_of(judge_plan(one.plan, wanted.version))
        if not wrong:
            return one
        failed.append(LoweringError(
            f"no plan of {program.name} was found that is right: {wrong[0]}",
            fix="use another engine, or fewer chunks",
        ))  # fmt: skip
    raise (
        failed[0]
        if failed
        else LoweringError(
            f"no plan of {program.name} runs at {wanted.size} bytes", fix="use another size"
        )
    )


def _in_one_piece(
    program: Program, topology: Topology, wanted: Wanted, plain: PlanOptions, made: Maker
) -> tuple[dict[Form, Guards], dict[Form, Made]]:
    """Return the forms of a program with signals that are tried, the `plain` one first, and plans.

    The `topology`, what is `wanted` and what is `made` are those of :func:`best_plan`.
    """
    forms, whole = dict[Form, Guards](), dict[Form, Made]()

    def tried(source: Program, options: PlanOptions) -> None:
        form = source, options
        if form not in forms:
            forms[form] = guards_of(*form)
            whole.update((form, own) for own in made(*form, forms[form]))

    def hurried(haste: Haste) -> PlanOptions:
        return replace(plain, early=haste.early, late=haste.late, heard=haste.heard)

    def fastest() -> Time:
        return min((one.time for one in whole.values()), default=0)

    haste = hurried_messages(program, topology, wanted)
    tried(program, plain)
    tried(program, hurried(haste))
    if haste.pressed:
        cut = short_starts(program, haste.pressed, STARTS)
        tried(cut, hurried(hurried_messages(cut, topology, wanted)))
    if haste.ready and fastest() > haste.time:
        tried(program, replace(hurried(haste), early=haste.early | haste.ready))
        tried(program, replace(hurried(haste), early=haste.urgent | haste.ready))
    if haste.slices <= SLICES:
        for power in range((haste.slices - 1).bit_length()):
            before = fastest()
            if before <= haste.time:
                break
            cut = sliced(program, 2 << power)
            tried(cut, hurried(hurried_messages(cut, topology, wanted)))
            if fastest() == before:
                break
    return forms, whole


def _in_parts(
    program: Program, wanted: Wanted, forms: Mapping[Form, Guards], whole: Mapping[Form, Made],
    made: Maker,
) -> list[Made]:  # fmt: skip
    """Return plans whose work threadblocks share, and pipelines.

    Of what is given, `forms` are tried, plain first, and `whole` their plans.
    """
    found, groups = list[Made](), [1]
    plain, chunk = next(iter(forms))[1], wanted.size // program.chunks_per_loop
    if whole and wanted.model.measured:
        # By alpha and beta a threadblock is as fast as its link.
        form = min(whole, key=lambda form: whole[form].time)
        best = whole[form]
        most = MOST_BLOCKS // max(len(gpu.threadblocks) for gpu in program.gpus)
        for group in (group for group in GROUPS if group <= most):
            shared = made(form[0], replace(form[1], group=group), forms[form])
            if not shared or shared[0].time > (1 - WORTH_A_GROUP) * best.time:
                break
            (best,) = shared
            found.append(best)
            groups.append(group)
    piped: list[Made] = []
    while groups and not piped:
        group = groups.pop()
        for unit in (unit for unit in reversed(PIPELINES) if chunk > unit * group):
            finer = made(program, replace(plain, unit=unit, group=group), forms[program, plain])
            if not finer or (piped and finer[-1].time >= piped[-1].time):
                # More iterations only add alphas.
                break
            piped += finer
    return found + piped


def _least_of_packets(program: Program, topology: Topology, wanted: Wanted) -> float:
    """Return picoseconds that the packets of a program take at least, on its busiest edge.

    By alpha and beta 0: those replays are short. Without costs of packets there is no such plan.
    """
    if not wanted.model.measured:
        return 0.0
    charged = of_plans(topology)
    if "LL" not in measured_costs(charged).protocols:
        return math.inf
    timing = Timing(replace(program, protocol="LL"), charged, wanted.model)
    return timing.least(wanted.size, MOST_BLOCKS)


def _with_packets(
    program: Program, wanted: Wanted, packets: PlanOptions, made: Maker
) -> list[Made]:
    """Return plans of a program with `packets`, as :func:`_in_one_piece` does."""
    guards = guards_of(program, packets)
    found = made(program, packets, guards)
    # By alpha and beta each piece holds a port for an alpha.
    if found and wanted.model.measured and len(set(packets.servers)) > 1:
        for pieces in GROUPS:
            finer = made(program, replace(packets, pieces=pieces), guards)
            if not finer or finer[0].time >= found[-1].time:
                break
            found += finer
    return found


class Haste(NamedTuple):
    """Messages of a program, by the number of their step, that words and answers would delay.

    `early`: those that begin before their receiver could say that the call has begun there.
    `ready`: those that could begin then, or a message later, but wait for their turn at a port,
    where those that wait for that word lose it; there is time for an answer to them.
    `urgent`: those of the early ones that gain more than a part of a word, GAINED, or that there
    is time for an answer to: with signals messages come later than by flags, and so do answers.
    `late`: those that come when there is no time for an answer.
    `heard`: steps that receive, each with an earlier one of its threadblock that begins when the
    message is there: who answers it need not wait for what that step waits for.
    `pressed`: those of which a start may go before that word, as there is time for its answer.
    `slices`: in which it moves each chunk, one after the other.
    `time`: that the program takes, in picoseconds.
    """

    early: frozenset[int]
    ready: frozenset[int]
    urgent: frozenset[int]
    late: frozenset[int]
    heard: frozenset[tuple[int, int]]
    pressed: frozenset[int]
    slices: int
    time: Time


def hurried_messages(program: Program, topology: Topology, wanted: Wanted) -> Haste:
    """Return the messages of a program for which there is no time for words.

    The times are those of the `program` as XML, replayed on the `topology` at the `wanted` size, as
    quick as plans are.
    """
    charged = of_plans(topology) if wanted.model.measured else topology
    told = replay(program, charged, wanted.size, wanted.model)
    if told.time is None:
        # It waits for FIFOs, which a plan does not have.
        none = frozenset[int]()
        return Haste(none, none, none, none, frozenset(), none, 1, 0)
    run = maximal_run(program)
    run_places = places(run)
    numbers = {
        (place.rank, run.blocks[place.block][1].id, place.step): number
        for number, place in enumerate(run_places)
    }
    server, table = topology.server_of, topology.links
    sharing = sharing_of_plan(charged, "Simple") if wanted.model.measured else None
    launch = topology.local.launch if sharing is None else sharing.local.launch
    steps = [run.blocks[place.block][1].steps[place.step] for place in run_places]
    # A message has been read when it is copied or added, whatever is sent on then.
    over, ended = dict[int, int](), dict[int, int]()
    begun, arrived = dict[int, int](), dict[int, int]()
    for span in told.spans:
        number = numbers[span.gpu, span.threadblock, span.step]
        begun.setdefault(number, span.start)
        ended[number] = max(ended.get(number, 0), span.end)
        arrived[number] = max(arrived.get(number, 0), span.arrival or 0)
        if span.link is None or not (steps[number].receives and steps[number].sends):
            over[number] = max(over.get(number, 0), span.end)
    read = {sender: over[taken] for taken, sender in run.sender.items() if taken in over}
    early, ready, urgent, late, pressed = (set[int]() for _ in range(5))
    for span in told.spans:
        if span.link is None or span.link < 0 or span.arrival is None:
            continue
        src, dst = int(table.src[span.link]), int(table.dst[span.link])
        word = int(table.alpha[(*topology.links_between(dst, src), span.link)[0]])
        if sharing is not None:
            word = sharing.alpha_across if server[src] != server[dst] else sharing.alpha
        number = numbers[span.gpu, span.threadblock, span.step]
        answer = launch + word - told.time
        # It may cost as much to be told in the end that a message has been read.
        first, last = word - span.start, max(0, read[number] + answer)
        if last < first and not span.iteration:
            early.add(number)
            if first - last > GAINED * word:
                urgent.add(number)
        before = (number - 1 if span.step else -1, run.released_by.get(number, -1))
        asked = span.start if steps[number].receives else max(ended.get(one, 0) for one in before)
        if not last and asked < word + span.end - span.start and not span.iteration:
            ready.add(number)
        # Two messages hold the link for one more overhead.
        held = 0 if wanted.model.measured else int(table.overhead[span.link])
        if held < min(first, last) and not span.iteration:
            pressed.add(number)
        if span.arrival + answer > 0:
            late.add(number)
    heard = set[tuple[int, int]]()
    for taken, sender in run.sender.items():
        first = taken
        while run_places[first].step and begun.get(first - 1, 0) >= arrived[sender]:
            first -= 1
        if first < taken:
            heard.add((taken, first))
    return Haste(
        frozenset(early), frozenset(ready - early), frozenset(urgent | ready & early),
        frozenset(late), frozenset(heard), frozenset(pressed),
        1 + max((span.iteration for span in told.spans), default=0), told.time,
    )  # fmt: skip


def programs_of(
    path: Path, topology: Topology | None, wanted: Wanted
) -> tuple[Program | Schedule, Topology]:
    """Return the program and machine of a schedule, or of an XML file for a `topology`.

    The file lies at `path`; a schedule becomes a program for what is `wanted`, but for one of what
    switches copy and add.

    Raises InputError when the file can't be used; ScheduleError when the schedule is wrong;
    ProgramError when the XML is no program.
    """
    if not is_plan(read_text(path)):
        if topology is None:
            raise InputError(
                "is needed with an XML file: it says which ranks share a server",
                field="--topology", fix="give the machine that the file is for",
            )  # fmt: skip
        program = read_program(path)
        if program.num_ranks != topology.num_ranks:
            raise InputError(
                f"is for {program.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=str(path), field="ngpus", fix="give the topology it was made for (--nodes)",
            )  # fmt: skip
        return program, topology
    schedule = read_schedule(str(path))
    require_valid(schedule)
    if len(schedule.fans):
        return schedule, schedule.topology
    task = lowering_of(schedule, Target("executor"), wanted.size, "schedule")
    if not task.size:
        raise InputError(
            f"{wanted.size} bytes are less than one element for each chunk", field="--size",
            fix="use a larger size",
        )  # fmt: skip
    return task.settled().proved(), topology or schedule.topology


def plan_texts(
    source: Program | Schedule, topology: Topology, wanted: Wanted, file: Path,
    name: str = "schedule",
) -> tuple[dict[str | Path, str], list[Made]]:  # fmt: skip
    """Return plans of a program or of a schedule of fans, by where they go, and what they take.

    A plan is for one mode of calls: of the modes `wanted`, the first that the `source` serves goes
    to `file`, and the other has its mode in its name. The `topology` is the source's machine, and a
    schedule's plan is called after `name`, an engine.

    Raises InputError when it serves none of the modes; LoweringError when no plan is right.
    """
    if isinstance(source, Program):
        collective, chunks = source.collective, source.chunks_per_loop
        served = {True: source.in_place, False: source.out_of_place}
    else:
        collective, chunks = source.collective.name, source.collective.num_chunks
        served = dict(zip((True, False), modes_served(source.collective), strict=True))
        name = f"{collective}-{topology.name}-{name}-k{source.collective.chunks_per_rank}"
    modes = [mode for mode in wanted.modes if served[mode]]
    if not modes:
        raise InputError(
            f"{collective} does not serve that mode here", field="--inplace", fix="leave it out"
        )
    unit = chunks * ALIGNMENT
    whole = replace(wanted, size=wanted.size - wanted.size % unit or unit)
    made = [
        best_plan(source, topology, whole, in_place=mode) if isinstance(source, Program)
        else best_fan_plan(source, whole, name, in_place=mode)
        for mode in modes
    ]  # fmt: skip
    texts: dict[str | Path, str] = {}
    for number, one in enumerate(made):
        mode = "inplace" if one.plan.in_place else "outofplace"
        place = file if not number else file.with_name(f"{file.stem}-{mode}{file.suffix}")
        texts[place] = write_plan(replace(one.plan, name=f"{one.plan.name}-{mode}"))
    return texts, made


def fan_time(wanted: Wanted, schedule: Schedule, size: int) -> Time:
    """Return what the plan of a `schedule` of fans takes, at `size` bytes, in its slower mode.

    Raises LoweringError when there is none of what is `wanted`.
    """
    _, made = plan_texts(schedule, schedule.topology, replace(wanted, size=size), Path("plan.json"))
    return max(one.time for one in made)


def convert(
    path: Path, topology: Topology | None, wanted: Wanted, output: Path | None
) -> tuple[Mapping[str | Path, str], list[Made]]:
    """Make plans of a schedule or XML file, and write them (or return them without an output).

    The file lies at `path`, and its `topology` is needed for XML; what is `wanted`, and where it is
    written, `output` being the first, is as for :func:`plan_texts`.

    Raises InputError when the file can't be used; ScheduleError when the schedule is wrong;
    LoweringError when no plan is right.
    """
    if output is not None:
        check_apart(output, [path], field="-o")
    source, machine = programs_of(path, topology, wanted)
    texts, made = plan_texts(source, machine, wanted, output or Path("plan.json"))
    if output is not None:
        write_all_atomic(texts)
    return texts, made


def plan_rows(
    plans: Mapping[str, Plan], topology: Topology, sizes: Sequence[int], model: ReplayModel
) -> tuple[Row, ...]:
    """Replay plans at all sizes, and return their rows, judged.

    `plans` are those of files by name, `sizes` bytes of the counted buffer; `topology` and `model`
    are where they run, and with which constants.

    Raises InputError when a plan is for another number of ranks; ProgramError when ranks that use
    a channel have no link.
    """
    found = []
    for file, plan in plans.items():
        if plan.num_ranks != topology.num_ranks:
            raise InputError(
                f"is for {plan.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=file, field="gpus", fix="give the topology it was made for (--nodes)",
            )  # fmt: skip
        findings = errors_of(judge_plan(plan))
        root = 0 if plan.collective in ROOTED else None
        # What switches copy and add is beside what no such algorithm can beat.
        world = ANY if any(rank.groups for rank in plan.ranks) else POINT_TO_POINT
        bound = bounds_of(topology, plan.collective, root, world=world)
        if model.measured:
            # Of one plan some threadblocks may signal, and others send packets.
            least = least_costs(topology, measured_costs(of_plans(topology)))
            bound = measured_bounds_of([least], plan.collective, root, world=world)
        for size in sizes:
            trace = replay_plan(plan, topology, size, model)
            row = row_of(trace, plan, topology, bound, file)
            if model.measured:
                row = replace(row, alpha_rule="measured", costs="measured")
            told = str(findings[0]) if findings and trace.time is not None else ""
            found.append(replace(
                row, wrong=None if findings else 0, note="; ".join(filter(None, (row.note, told)))
            ))  # fmt: skip
    return tuple(found)
