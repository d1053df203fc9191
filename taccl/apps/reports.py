"""What ``evaluate`` and ``synthesize`` write beside their results: traces, pages, explanations."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taccl.apps.evaluation import Setting
from taccl.apps.inputs import read_input
from taccl.apps.request import Synthesis
from taccl.errors import InputError
from taccl.files import check_outputs, read_bytes, write_all_atomic
from taccl.model.problem import Candidate
from taccl.model.schedule import Schedule
from taccl.replay.cost import model_of
from taccl.replay.nccl import Settings, fastest, machine_of
from taccl.replay.sweep import Row, bounds_of, row_of
from taccl.replay.timing import traces
from taccl.report.explain import Explanation, explanation_text
from taccl.report.html import View, page, schedule_data, timeline_data
from taccl.report.played import Played
from taccl.report.tables import NcclTime, columns_of
from taccl.report.trace import chrome_trace, schedule_trace
from taccl.topology.graph import Topology
from taccl.units import Time, format_time, microseconds

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
    bound = bounds_of(topology, schedule.collective, message_bytes=target.message_bytes)
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
