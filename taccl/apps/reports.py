"""What ``evaluate`` and ``synthesize`` write beside their results: traces, pages, explanations."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taccl.apps.comparison import Model
from taccl.apps.evaluation import read_program
from taccl.apps.synthesis import Synthesis
from taccl.errors import InputError, TacclWarning
from taccl.files import check_output, read_bytes, write_all_atomic
from taccl.model.problem import Candidate
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.nccl import Settings, machine_of
from taccl.replay.sweep import Row, bounds_of, row_of
from taccl.replay.timing import traces
from taccl.replay.trace import Trace
from taccl.report.explain import Explanation, explain, explanation_text
from taccl.report.html import View, page, schedule_data, timeline_data
from taccl.report.played import Played, play
from taccl.report.tables import NcclTime, columns_of
from taccl.report.trace import chrome_trace
from taccl.topology.graph import Topology
from taccl.units import format_time, microseconds

EXPLAINED_FORMATS: Mapping[str, str] = {"table": "", "nccl-tests": "# "}
"""Formats that an explanation in words can follow, with what begins its lines."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``evaluate`` gives beside its rows.

    Parameters
    ----------
    trace, html
        Files to write.
    explain
        Whether to explain.
    form
        The format of the rows.
    """

    trace: Path | None = None
    html: Path | None = None
    explain: bool = False
    form: str = "table"

    def check(self, files: Sequence[str]) -> None:
        """Raise before any work when something can't be given.

        Raises
        ------
        InputError
            When a file can't be written, a trace is asked for several programs, or the format
            has no place for an explanation.
        """
        _check_file("--trace", self.trace, files)
        _check_file("--html", self.html, (*files, *([self.trace] if self.trace else ())))
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


def _check_file(option: str, path: Path | None, others: Sequence[str | Path]) -> None:
    """Raise when a file can't be written, or is one of the others."""
    if path is None:
        return
    check_output(path, field=option)
    if os.path.realpath(path) in map(os.path.realpath, others):
        raise InputError(
            "is also the name of another file of this command",
            file=str(path),
            field=option,
            fix="use another name",
        )


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how programs are replayed.

    Parameters
    ----------
    topology, model
        The network, and the constants of the runtime.
    route, protocol_costs
        As :func:`taccl.replay.interpreter.replay` takes them.
    """

    topology: Topology
    model: ReplayModel
    route: bool = False
    protocol_costs: bool = False

    def play(self, program: Program, size: int) -> Played:
        """Return a replay with all its spans."""
        with warnings.catch_warnings():
            # The rows have warned of routed pairs already.
            warnings.simplefilter("ignore", TacclWarning)
            return play(
                program, self.topology, size, self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip

    def explain(self, played: Played, row: Row) -> Explanation:
        """Return where the time of a replay goes."""

        def again(topology: Topology) -> Trace:
            (trace,) = traces(
                played.program, topology, [row.size], self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip
            return trace

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TacclWarning)
            return explain(played, row, again)


def evaluation_text(
    wanted: Wanted,
    written: str,
    files: Sequence[str],
    rows: Sequence[Row],
    setting: Setting,
) -> str:
    """Write the trace and the page, and return what is printed: the rows, then explanations.

    Parameters
    ----------
    written
        The rows in ``wanted.form``.
    rows
        All sizes of the first file, then of the next; the last size is the one told in detail.
    """
    if not (wanted.trace or wanted.html or wanted.explain):
        return written
    per_file = len(rows) // len(files)
    shown = rows[per_file - 1 :: per_file]
    played = [setting.play(read_program(row.file), row.size) for row in shown]
    told = wanted.html or wanted.explain
    found = [setting.explain(*pair) for pair in zip(played, shown, strict=True)] if told else []
    texts: dict[str | Path, str] = {}
    if wanted.trace is not None:
        texts[wanted.trace] = chrome_trace(played[0])
    if wanted.html is not None:
        views = [
            _view(each, one, _made_with(setting, one.row.file))
            for each, one in zip(played, found, strict=True)
        ]
        title = f"taccl evaluate on {setting.topology.name}"
        texts[wanted.html] = page(title, rows, views, _nccl(setting.topology))
    write_all_atomic(texts)
    return _with_explanations(wanted, written, rows, found) if wanted.explain else written


def _with_explanations(
    wanted: Wanted, written: str, rows: Sequence[Row], found: Sequence[Explanation]
) -> str:
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


def _nccl(topology: Topology) -> NcclTime:
    """Return what NCCL's model expects, its inputs estimated from the topology."""
    machine = machine_of(topology, Settings())
    return lambda collective, size: Model(topology, machine, collective).time(size)


def _made_with(setting: Setting, file: str) -> tuple[tuple[str, str], ...]:
    """Return what a page says of its inputs, so that its numbers can be had again."""
    options = {"--route": setting.route, "--protocol-costs": setting.protocol_costs}
    return (
        ("sha256 of the file", hashlib.sha256(read_bytes(file)).hexdigest()),
        ("constants", setting.model.name),
        ("rules", setting.topology.rules_stated),
        ("options", ", ".join(name for name, given in options.items() if given) or "none"),
    )


def _view(
    played: Played,
    found: Explanation,
    facts: tuple[tuple[str, str], ...],
    candidates: Sequence[Candidate] = (),
) -> View:
    runs = played.trace.time is not None
    return View(
        found.row,
        played.topology,
        timeline_data(played) if runs else None,
        played.trace.edge_busy,
        found,
        facts,
        tuple(candidates),
    )


def check_report(report: Path | None, *others: Path | None) -> None:
    """Raise before a long search when the page of ``synthesize --report`` can't be written.

    Raises
    ------
    InputError
        When it can't be written, or is one of the other outputs.
    """
    _check_file("--report", report, [other for other in others if other is not None])


def write_report(found: Synthesis, report: Path | None) -> list[Path]:
    """Write the page of ``synthesize --report``; return its path, if one was asked for."""
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
        timeline, edge_busy = schedule_data(schedule)
        view = View(
            row, topology, timeline, edge_busy, facts=_facts(found),
            candidates=tuple(found.candidates),
        )  # fmt: skip
        return page(title, [row], [view], _nccl(topology))
    setting = Setting(topology, model_of(target.runtime, target.element_bytes))
    bound = bounds_of(topology, schedule.collective, message_bytes=target.message_bytes)
    sizes = _sizes(program, found.size, target.element_bytes)
    replayed = traces(program, topology, sizes, setting.model)
    rows = [row_of(trace, program, topology, bound) for trace in replayed]
    played = setting.play(program, found.size)
    row = row_of(played.trace, program, topology, bound)
    view = _view(played, setting.explain(played, row), _facts(found), found.candidates)
    return page(title, rows, [view], _nccl(topology))


def _sizes(program: Program, size: int, element_bytes: int) -> list[int]:
    """Return the size, and others around it that the program serves, in whole chunks."""
    unit = program.chunks_per_loop * element_bytes
    around = (size // 4, size // 2, size, 2 * size, 4 * size)
    # Rounded up, as the smallest size served need not cut into whole chunks.
    whole = (-(-each // unit) * unit for each in around)
    served = {each for each in whole if program.min_bytes <= each <= program.max_bytes}
    return sorted(served | {size})


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
