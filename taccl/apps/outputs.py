"""What ``synthesize``, ``convert`` and ``evaluate`` write and print of programs and schedules.

XML, schedule JSON, summary and ``--json``; beside these traces, pages and explanations.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from taccl.apps.evaluation import Setting
from taccl.apps.inputs import asked_collective, read_input, read_program, unit_of
from taccl.apps.programs import BETWEEN_SERVERS, Target, lowering_of, serves
from taccl.apps.request import Request, Synthesis
from taccl.bounds import any_of
from taccl.collectives import COLLECTIVES, Collective, has_xml
from taccl.errors import InputError, ScheduleError
from taccl.files import check_apart, check_outputs, read_bytes, read_text, write_all_atomic
from taccl.model.problem import Candidate
from taccl.model.schedule import Schedule
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.msccl.interpret import interpret
from taccl.msccl.program import Program
from taccl.msccl.runtimes import LOADED_BY, deployment, deployment_lines
from taccl.msccl.xml import read_xml, write_xml
from taccl.mscclpp.interpret import is_plan
from taccl.replay.cost import model_of
from taccl.replay.nccl import Settings, fastest, machine_of
from taccl.replay.sweep import Row, bounds_of, row_of
from taccl.replay.timing import traces
from taccl.report.explain import Explanation, explanation_text
from taccl.report.export_chakra import chakra_traces
from taccl.report.html import View, page, schedule_data, timeline_data
from taccl.report.played import Played, chrome_trace, schedule_trace
from taccl.report.tables import NcclTime, candidate_lines, candidate_rows, columns_of
from taccl.report.text import us
from taccl.synth.search import turns_of
from taccl.topology.graph import Topology
from taccl.units import Time, counted, format_size, format_time, gigabytes_per_second, microseconds
from taccl.verify import require_valid


def _nothing_to_write() -> InputError:
    return InputError(
        "--runtime none stops at the schedule, so there is no XML to write",
        field="-o",
        fix="use --schedule OUT.json, or another --runtime",
    )


def check_target(request: Request, output: Path | None) -> None:
    """Raise before a long search when no runtime, or not the one asked for, has the program.

    The `request` says what is to be searched for; its program is to be written to `output`, None:
    nowhere.

    Raises InputError when the runtime has no XML for the collective, or only for another mode or
    protocol.
    """
    target = request.target
    collective = asked_collective(request.collective, request.logical.topology, request.root)
    if target is None:
        if output is not None:
            raise _nothing_to_write()
        return
    if output is not None and request.is_timed:
        raise InputError(
            "no program waits for a chunk: runtimes start one when all its input is there",
            field="-o",
            fix="use --schedule OUT.json; taccl convert makes a program that sends in its order",
        )
    if output is not None:
        _check_served(target, collective)
    target.protocols(collective.name, request.logical.topology)
    if collective.name not in COLLECTIVES and target.modes in ("inplace", "both"):
        raise InputError(
            f"{collective.name} in place would overwrite what is still to be read",
            field=f"--{target.modes}",
            fix="use --outofplace",
        )


def _check_served(target: Target, collective: Collective) -> None:
    if not serves(target.runtime, collective):
        elsewhere = has_xml(collective.name)
        raise InputError(
            f"there is no XML of {collective.name}"
            + (f" for {target.runtime}" if elsewhere else " that a runtime could rely on"),
            field="-o",
            fix="use --schedule OUT.json" + (", or --runtime msccl" if elsewhere else ""),
        )
    loaded_by_msccl = "msccl" in LOADED_BY.get(target.runtime, (target.runtime,))
    if loaded_by_msccl and collective.name == "alltoall" and target.modes == "inplace":
        raise InputError(
            "msccl runs alltoall out of place, whatever the file says",
            field="--inplace",
            fix="use --both, or --runtime executor or rccl",
        )


def caution(collective: Collective) -> str | None:
    """Return what a person should know of a collective's XML file."""
    if collective.is_timed:
        return "the program does not wait for chunks: call it when all its input is there"
    if collective.root is None:
        return None
    return (
        f"no runtime checks the root: this file is for root {collective.root}, and calls with any"
        " root select it"
    )


def _why_not_simple(program: Program) -> str:
    """Return which protocol a program has where none was asked for, and why."""
    return (
        f"{program.protocol}: a {program.collective} between servers hangs with Simple; of"
        f" {' and '.join(BETWEEN_SERVERS)} the faster by replay"
    )


def xml_files(program: Program, runtime: str, output: Path) -> dict[str | Path, str]:
    """Return the files of a `program`: two where the runtimes spell its collective differently.

    The `runtime` is a name of RUNTIMES; `output` is the path of the first file.
    """
    texts: dict[str | Path, str] = {output: write_xml(program, runtime)}
    if runtime == "portable" and program.collective == "reducescatter":
        texts[output.with_suffix(f".msccl{output.suffix}")] = write_xml(program, "msccl")
    return texts


def xml_text(found: Synthesis, warn: Callable[[str], None]) -> str:
    """Return the XML of what was `found`; `warn` is called where it is not for all runtimes.

    Raises InputError when there is no program.
    """
    target = found.request.target
    if found.program is None or target is None:
        raise _nothing_to_write()
    text, *others = xml_files(found.program, target.runtime, Path("out.xml")).values()
    if others:
        warn("this is the file for executor and rccl: msccl wants another, with --runtime msccl")
    return text


def write_outputs(found: Synthesis, output: Path | None, schedule: Path | None) -> list[Path]:
    """Write all that was asked for of what was `found`, or nothing; return the paths.

    The XML goes to `output` and the schedule to `schedule`, where these are not None.
    """
    texts: dict[str | Path, str] = {}
    target = found.request.target
    if output is not None:
        if found.program is None or target is None:
            raise _nothing_to_write()
        texts.update(xml_files(found.program, target.runtime, output))
    if schedule is not None:
        check_apart(schedule, texts, field="--schedule")
        texts[schedule] = schedule_text(
            found.schedule, engine=found.result.engine, seed=found.request.seed
        )
    if texts:
        write_all_atomic(texts)
    return [Path(path) for path in texts]


def convert(
    path: Path,
    target: Target,
    size: int,
    output: Path | None,
    warn: Callable[[str], None] = lambda _text: None,
) -> Mapping[str | Path, str]:
    """Lower a schedule file, judge the program, and write it (or return it without an output).

    The schedule lies at `path`; the XML goes to `output`, and `target` says what program is wanted.
    Of `size` bytes as many are taken as make whole chunks. What a person should know of the file,
    `warn` is called with.

    Raises InputError when the schedule file can't be used; ScheduleError when the schedule or its
    program is wrong; LoweringError when the program does not fit the runtime.
    """
    if output is not None:
        check_apart(output, [path], field="-o")
    schedule = read_schedule(str(path))
    require_valid(schedule)
    collective = schedule.collective
    _check_served(target, collective)
    task = lowering_of(schedule, target, size, "schedule")
    if not task.size:
        chunks = collective.chunks_in_size
        raise InputError(
            f"{size} bytes are less than one element for each of {chunks} chunks",
            field="--size",
            fix=f"use at least {target.divisor(chunks)} bytes",
        )
    program = task.settled().proved()
    texts = xml_files(program, target.runtime, output or Path("out.xml"))
    if output is not None:
        write_all_atomic(texts)
    if target.protocol == "auto" and program.protocol != "Simple":
        warn(f"protocol {_why_not_simple(program)}")
    if text := caution(collective):
        warn(text)
    return texts


CONVERSIONS: Mapping[str, Callable[[Program, int], list[bytes]]] = MappingProxyType({
    "chakra": chakra_traces,
})  # fmt: skip
"""Into what else than XML and plans a program is converted: files of all ranks at a size."""


def convert_to(kind: str, path: Path, target: Target, size: int, prefix: Path) -> list[Path]:
    """Write the program of a schedule or XML file as files of another tool, and return which.

    The file lies at `path`; `kind` is one of CONVERSIONS, and `target` says what program a schedule
    becomes. Of `size` bytes as many are taken as make whole chunks. The files are `prefix` and the
    number of the rank.

    Raises InputError when a file can't be used; ScheduleError when the schedule or program is
    wrong; LoweringError when the program does not fit the runtime.
    """
    if is_plan(read_text(path)):
        schedule = read_schedule(str(path))
        require_valid(schedule)
        program = lowering_of(schedule, target, size, "schedule").settled().proved()
    else:
        program = read_program(path)
        modes = ((True, program.in_place), (False, program.out_of_place))
        findings = [
            finding for mode, claimed in modes if claimed
            for finding in interpret(program, in_place=mode)
        ]  # fmt: skip
        if findings:
            raise ScheduleError(f"program {program.name}", findings)
    whole = size - size % unit_of(program)
    if not whole:
        raise InputError(
            f"{size} bytes are less than one element for each chunk", field="--size",
            fix=f"use at least {unit_of(program)} bytes",
        )  # fmt: skip
    made = CONVERSIONS[kind](program, whole)
    files: dict[str | Path, bytes] = {
        Path(f"{prefix}.{rank}.et"): one for rank, one in enumerate(made)
    }
    for file in files:
        check_apart(file, [path], field="-o")
    write_all_atomic(files)
    return list(map(Path, files))


def loading(texts: Mapping[str | Path, str], runtime: str) -> list[str]:
    """Return how written files, `texts` by path, are loaded by a `runtime`, for people."""
    path, text = next(iter(texts.items()))
    return deployment_lines(read_xml(text, runtime=runtime), runtime, Path(path))


def report(found: Synthesis, written: list[Path], output: Path | None = None) -> dict[str, object]:
    """Return the fields of ``synthesize --json`` for what was `found`, and the files `written`.

    The XML is at `output`; None: there is none, and nothing to load.
    """
    schedule, program, request = found.schedule, found.program, found.request
    chunk_bytes = schedule.chunk_size
    fixed, proved, free = found.bound_fixed, found.bound_engine, found.free
    return {
        "collective": schedule.collective.name,
        "topology": schedule.topology.name,
        "ranks": schedule.topology.num_ranks,
        "size_bytes": request.size,
        "replay_size_bytes": None if program is None else found.size,
        "chunk_bytes": int(chunk_bytes) if chunk_bytes.denominator == 1 else float(chunk_bytes),
        "chunks_per_rank": schedule.collective.chunks_per_rank,
        "engine": found.result.engine,
        "status": found.status.value,
        "makespan_us": microseconds(schedule.makespan),
        "replay_us": us(found.replay),
        "bound_us": microseconds(found.bound.time),
        "bound_kind": found.bound.kind,
        "bound_fixed_us": fixed and microseconds(fixed.time),
        "bound_sketch_us": us(max((bound.time for bound in found.sketched), default=None)),
        "bound_engine_us": us(proved),
        "gap": found.gap,
        "gap_fixed": found.gap_fixed,
        "algbw_gbps": found.algbw,
        "busbw_gbps": found.busbw,
        "seconds": round(found.seconds, 3),
        "ended_by": found.ended,
        "turns": [
            {
                "engine": one.engine,
                "chunks_per_rank": one.chunks,
                "seconds": round(one.seconds, 3),
                "score_us": us(one.time),
                "won_us": us(won),
            }
            for one, won in turns_of(found.attempts)
        ],
        "compile_seconds": round(found.compiled, 3),
        "seed": request.seed,
        "profile": "measured" if found.request.measured else "alpha-beta",
        "alpha_rule": schedule.topology.alpha_rule_stated,
        "costs": schedule.topology.costs,
        "sends": schedule.num_sends,
        "protocol": None if program is None else program.protocol,
        "threadblocks": None if program is None else program.num_threadblocks,
        "channels": None if program is None else program.channels,
        "steps": None if program is None else program.num_steps,
        "verified": True,
        "sketch_cost": found.sketch_cost,
        "free_us": us(None if free is None else free.score),
        "candidates": candidate_rows(found.candidates),
        "output": [str(path) for path in written],
        "deploy": None
        if program is None or request.target is None or output is None
        else deployment(program, request.target.runtime, output),
    }


LARGE_GAP = 0.25
"""From which on a summary says what may help."""


def _advice(found: Synthesis) -> list[str]:
    """Return what ended a search whose gap is large, and what to do, in words."""
    if found.gap is None or found.gap < LARGE_GAP:
        return []
    limit, engine = found.request.time_limit, found.request.engine
    if found.ended == "user":
        return ["  note        the search was interrupted, and the gap is large: let it run longer"]
    if found.ended == "clock":
        return [
            f"  note        the clock ended the search, and the gap is large: give it more than"
            f" {limit:g} s (--time-limit)" + ("" if engine == "auto" else ", or use --engine auto")
        ]
    other = (
        "more --chunks, or --batch none" if engine == "auto" else "--engine auto, which tries all"
    )
    return [
        f"  note        nothing was left to try, and the gap is large: try {other}; the bound"
        " may also be lower than what can be reached"
    ]


def summary(found: Synthesis, written: list[Path], output: Path | None = None) -> str:
    """Return what people are told, of `found`, `written` and `output` as in :func:`report`."""
    schedule, program, bound = found.schedule, found.program, found.bound
    target = found.request.target
    collective = schedule.collective
    holds_for = any_of(bound.kind, bound.world)
    charged = "measured costs" if found.request.measured else schedule.topology.rules_stated
    lines = [
        f"{collective.name} on {schedule.topology.name}, {collective.num_ranks} ranks,"
        f" {format_size(found.request.size)} in {counted(collective.chunks_per_rank, 'chunk')}"
        f" for each rank ({charged})",
        f"  engine      {found.result.engine} ({found.status_told}, {found.seconds:.1f} s)",
        f"  schedule    {format_time(schedule.makespan)}, {counted(schedule.num_sends, 'send')}"
        + (", some in batches" + schedule.packs * " that ranks pack" if schedule.batches else ""),
    ]
    if collective.is_timed:
        times = (collective.ready, collective.tail, collective.late)
        ready, tail, late = (0 if one is None else int(one.max()) for one in times)
        lines.append(
            f"  times       chunks are ready by {format_time(ready + late)}, and worked on for"
            f" {format_time(tail)} once they are there, which the schedule's time includes"
        )
    if program is not None and found.replay is not None:
        lines.append(
            f"  program     {format_time(found.replay)} by replay at {found.size} bytes,"
            f" up to {counted(program.num_threadblocks, 'threadblock')} a rank,"
            f" {counted(program.channels, 'channel')}, up to {counted(program.num_steps, 'step')}"
        )
        if found.request.measured:
            lines.append(f"  protocol    {program.protocol}, which takes least")
        elif target is not None and target.protocol == "auto" and program.protocol != "Simple":
            lines.append(f"  protocol    {_why_not_simple(program)}")
        modes = ["in place"] * program.in_place + ["out of place"] * program.out_of_place
        lines.append(
            f"  serves      {' and '.join(modes)}, {program.min_bytes} to {program.max_bytes} bytes"
        )
    lines.append(
        f"  bandwidth   algbw {found.algbw:.3f} GB/s, busbw {found.busbw:.3f} GB/s"
        f" (at most {gigabytes_per_second(found.size, bound.time):.3f} algbw by {holds_for})"
    )
    gap = "no gap known" if found.gap is None else f"gap {found.gap:.1%}"
    lines.append(f"  bound       {format_time(bound.time)} ({bound.kind}, {holds_for}), {gap}")
    fixed, gap_fixed = found.bound_fixed, found.gap_fixed
    if fixed is not None and gap_fixed is not None:
        lines.append(
            f"              {format_time(fixed.time)} ({fixed.kind}, this chunk count, no"
            f" batches), gap {gap_fixed:.1%}"
        )
    lines += _advice(found)
    free, cost = found.free, found.sketch_cost
    if free is not None and free.score is not None and cost is not None:
        words = "no faster schedule was found without the sketch"
        if cost > 0:
            words = f"costs {cost:.1%}: {format_time(free.score)} without it"
        by = f"{free.engine}, {counted(free.chunks, 'chunk')}, a short search"
        lines.append(f"  sketch      {words} ({by})")
    lines += [
        f"  {'candidates' if number == 0 else '':<12}{line}"
        for number, line in enumerate(candidate_lines(found.candidates))
    ]
    lines += [f"  wrote       {path}" for path in written]
    if program is not None and target is not None and output is not None:
        lines += deployment_lines(program, target.runtime, output)
    return "\n".join(lines)


EXPLAINED_FORMATS: Mapping[str, str] = {"table": "", "nccl-tests": "# "}
"""Formats that an explanation in words can follow, with what begins its lines."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``evaluate`` gives beside its rows: files, an explanation, and the form of the rows."""

    trace: Path | None = None
    html: Path | None = None
    explain: bool = False
    form: str = "table"

    def check(self, files: Sequence[str]) -> None:
        """Raise before any work on `files` when something can't be given.

        Raises InputError when a file can't be written, a trace is asked for several programs, or
        the format has no place for an explanation.
        """
        check_outputs([("--trace", self.trace), ("--html", self.html)], files)
        if self.trace is not None and len(files) != 1:
            raise InputError(
                f"a trace is of one program, got {len(files)} files",
                field="--trace",
                fix="give one XML file",
            )
        if self.explain and self.form not in (*EXPLAINED_FORMATS, "json"):
            raise InputError(
                f"an explanation would end up between the rows of --format {self.form}",
                field="--explain",
                fix="use --format table or --json",
            )


def evaluation_text(
    wanted: Wanted, written: str, files: Sequence[str], rows: Sequence[Row], setting: Setting
) -> str:
    """Write the trace and the page, and return what is printed: the rows, then explanations.

    What is `wanted` says what to write and print; `written` has the rows in its form. The `rows` of
    the programs in `files` are all sizes of the first, then of the next, replayed as the `setting`
    says; the last size is the one told in detail.
    """
    if not (wanted.trace or wanted.html or wanted.explain):
        return written
    per_file = len(rows) // len(files)
    shown = rows[per_file - 1 :: per_file]
    read = [read_input(row.file) for row in shown]
    played = [setting.play(what, row.size) for what, row in zip(read, shown, strict=True)]
    told = wanted.html or wanted.explain
    found = [
        setting.explain(*each) for each in zip(read, played, shown, strict=True)
    ] if told else []  # fmt: skip
    texts: dict[str | Path, str] = {}
    if wanted.trace is not None:
        texts[wanted.trace] = chrome_trace(played[0])
    if wanted.html is not None:
        options = {"--route": setting.route, "--protocol-costs": setting.protocol_costs}
        views = [
            _view(each, one, (
                # What a page says of its inputs, so that its numbers can be had again.
                ("sha256 of the file", hashlib.sha256(read_bytes(one.row.file)).hexdigest()),
                ("constants", setting.model.name),
                ("rules", setting.topology.rules_stated),
                ("options", ", ".join(name for name, on in options.items() if on) or "none"),
            ))
            for each, one in zip(played, found, strict=True)
        ]  # fmt: skip
        title = f"taccl evaluate on {setting.topology.name}"
        texts[wanted.html] = page(title, rows, views, _nccl(setting.topology))
    write_all_atomic(texts)
    if not wanted.explain:
        return written
    if wanted.form == "json":
        report = {
            "rows": [columns_of(row) for row in rows],
            "explanations": [each.columns() for each in found],
        }
        return json.dumps(report, indent=1) + "\n"
    start = EXPLAINED_FORMATS[wanted.form]
    lines = "\n\n".join(explanation_text(each) for each in found).split("\n")
    text = "\n".join(f"{start}{line}".rstrip() for line in lines)
    return f"{written.rstrip()}\n{start.rstrip()}\n{text}\n"


def write_schedules(wanted: Wanted, timed: Sequence[tuple[Row, Schedule]]) -> None:
    """Write the trace and the page that are `wanted` of schedules, each at the last of its sizes.

    `timed` has all sizes of the first, then of the next; a trace is of the only one.
    """
    rows = [row for row, _ in timed]
    last = {row.file: (row, schedule) for row, schedule in timed}.values()
    texts: dict[str | Path, str] = {}
    if wanted.trace is not None:
        ((_, schedule),) = last
        texts[wanted.trace] = schedule_trace(schedule)
    if wanted.html is not None:
        views = [
            _schedule_view(row, schedule, (
                ("sha256 of the file", hashlib.sha256(read_bytes(row.file)).hexdigest()),
                ("rules", schedule.topology.rules_stated),
            ))
            for row, schedule in last
        ]  # fmt: skip
        topology = views[0].topology
        title = f"taccl evaluate on {topology.name}"
        texts[wanted.html] = page(title, rows, views, _nccl(topology))
    write_all_atomic(texts)


def _schedule_view(
    row: Row,
    schedule: Schedule,
    facts: tuple[tuple[str, str], ...],
    candidates: Sequence[Candidate] = (),
) -> View:
    timeline, edge_busy = schedule_data(schedule)
    return View(
        row, schedule.topology, timeline, edge_busy, facts=facts, candidates=tuple(candidates)
    )


def _nccl(topology: Topology) -> NcclTime:
    """Return what NCCL's model expects, its inputs estimated from the topology."""
    machine = machine_of(topology, Settings())

    def time(collective: str, size: int) -> Time | None:
        choice = fastest(machine, collective, size)
        return None if choice is None else choice.time

    return time


def _view(
    played: Played,
    found: Explanation,
    facts: tuple[tuple[str, str], ...],
    candidates: Sequence[Candidate] = (),
) -> View:
    timeline = None if played.trace.time is None else timeline_data(played)
    return View(
        found.row, played.topology, timeline, played.trace.edge_busy, found, facts,
        tuple(candidates),
    )  # fmt: skip


def write_report(found: Synthesis, report: Path | None) -> list[Path]:
    """Write the page of ``synthesize --report`` on what was `found`; return the path `report`."""
    if report is None:
        return []
    write_all_atomic({report: synthesis_page(found)}, field="--report")
    return [report]


def synthesis_page(found: Synthesis) -> str:
    """Return the page of ``synthesize --report``: the program, or the schedule without one."""
    schedule, program, target = found.schedule, found.program, found.request.target
    topology = schedule.topology
    title = f"{schedule.collective.name} on {topology.name}"
    if program is None or target is None:
        row = Row(
            schedule.collective.name, topology.name, topology.num_ranks, found.size, found.time,
            program=f"{title}, schedule", engine=found.result.engine,
            alpha_rule=topology.alpha_rule_stated, costs=topology.costs, bound=found.bound.time,
            bound_kind=found.bound.kind,
        )  # fmt: skip
        view = _schedule_view(row, schedule, _facts(found), found.candidates)
        return page(title, [row], [view], _nccl(topology))
    setting = Setting(topology, model_of(target.runtime, target.element_bytes))
    most = target.message_bytes(schedule.collective.name, topology)
    bound = bounds_of(topology, schedule.collective, message_bytes=most)
    # The size, and others around it that the program serves, in whole chunks: rounded up, as the
    # smallest size served need not cut into whole chunks.
    unit = program.chunks_per_loop * target.element_bytes
    around = (found.size // 4, found.size // 2, found.size, 2 * found.size, 4 * found.size)
    whole = (-(-size // unit) * unit for size in around)
    served = {size for size in whole if program.min_bytes <= size <= program.max_bytes}
    sizes = sorted(served | {found.size})
    replayed = traces(program, topology, sizes, setting.model)
    rows = [row_of(trace, program, topology, bound) for trace in replayed]
    played = setting.play(program, found.size)
    row = row_of(played.trace, program, topology, bound)
    view = _view(played, setting.explain(program, played, row), _facts(found), found.candidates)
    return page(title, rows, [view], _nccl(topology))


def _facts(found: Synthesis) -> tuple[tuple[str, str], ...]:
    schedule, request = found.schedule, found.request
    fixed, sketch = found.bound_fixed, request.logical.name
    facts = [
        ("engine", found.result.engine),
        ("status", found.status_told),
        ("chunks for each rank", str(schedule.collective.chunks_per_rank)),
        ("makespan of the schedule", format_time(schedule.makespan)),
        ("sends", str(schedule.num_sends)),
        ("seed", str(request.seed)),
    ]
    if sketch is not None:
        facts.append(("sketch", sketch))
    if found.sketch_cost is not None:
        facts.append(("cost of the sketch", f"{found.sketch_cost:.1%}"))
    if fixed is not None:
        bound = f"{microseconds(fixed.time):.6g} us ({fixed.kind})"
        facts.append(("bound for this chunk count", bound))
    return tuple(facts)
