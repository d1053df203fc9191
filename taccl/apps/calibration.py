"""From times that nccl-tests measured to the costs of a topology, and to a file that has them.

A calibration is told as text and as JSON: every size before and after, and what has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import numpy as np

from taccl.apps.fitting import (
    BETWEEN,
    FITTED,
    NOT_TOLD,
    TOLD,
    TOLD_IF,
    Fit,
    Fitted,
    Part,
    Sample,
    Unknown,
    costly_document,
)
from taccl.apps.inputs import read_program
from taccl.apps.networks import MachineOptions, asked_collective, load_collective, load_machine
from taccl.apps.programs import Target, textbook_program
from taccl.collectives import Collective
from taccl.errors import InputError, did_you_mean
from taccl.imports.nccl_tests import Measured, Point, read_runs
from taccl.msccl.program import Program
from taccl.replay.cost import model_of
from taccl.synth.templates.classical import CLASSICAL
from taccl.topology.file import document_of, document_text, topology_from_document
from taccl.topology.graph import Topology
from taccl.units import MAX_SIZE, Time, format_size, microseconds

MIN_SIZES = 3


def samples_of(
    runs: Sequence[Measured], program: Program, element_bytes: int, *, out_of_place: bool = False
) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
    """Return the sizes that the program can be fitted to, and in words what was left out.

    The `runs` are of one collective, and of the `program` with elements of `element_bytes`;
    `out_of_place` tells which of the two columns counts.

    Raises InputError when they are too few.
    """
    unit = program.chunks_per_loop * element_bytes
    found: list[Sample] = []
    left: list[str] = []
    for run in runs:
        for point in run.points:
            reason = _unusable(point, program, unit, out_of_place=out_of_place)
            if reason:
                left.append(f"{point.size} bytes: {reason}")
            else:
                group = point.out_of_place if out_of_place else point.in_place
                time = 0 if group is None else group.time
                found.append(Sample(run.file, point.size, point.size - point.size % unit, time))
    sizes = {sample.replayed for sample in found}
    if len(sizes) < MIN_SIZES:
        column = "out of place" if out_of_place else "in place"
        why = f" ({left[0]})" if left else ""
        more = f"give at least {MIN_SIZES}, from small to large: -b 1K -e 256M -f 4"
        points = [point for run in runs for point in run.points]
        if not out_of_place and not any(point.in_place for point in points):
            more = "add --out-of-place: there is nothing in place"
        raise InputError(
            f"has {len(sizes)} sizes measured {column} that {program.name} serves{why}",
            file=runs[0].file,
            fix=more,
        )
    return tuple(found), tuple(left)


def _unusable(point: Point, program: Program, unit: int, *, out_of_place: bool) -> str:
    group = point.out_of_place if out_of_place else point.in_place
    if group is None:
        return "not measured"
    if group.wrong:
        return f"{group.wrong} elements were wrong"
    if point.size < unit:
        return f"less than one chunk each, {unit} bytes"
    if not program.min_bytes <= point.size <= program.max_bytes:
        return f"{program.name} is for {program.min_bytes} to {program.max_bytes} bytes"
    return ""


@dataclass(frozen=True, slots=True)
class Question:
    """What is calibrated, from what: a topology, and outputs of nccl-tests, `measured` on it.

    The `topology` is a file, a shipped name or a short form; `nodes`, `fabric` and `alpha_rule`
    change it as everywhere. What was measured is the `collective`, None: as the files say, of the
    file `program` or the classical `algorithm`, in the column that `out_of_place` says. Constants
    are those of the `runtime`, and `fitted` are kinds of unknowns, of FITTED.
    """

    topology: str
    measured: tuple[str, ...]
    nodes: int | None = None
    fabric: str | None = None
    alpha_rule: str | None = None
    collective: str | None = None
    program: str | None = None
    algorithm: str = "ring"
    runtime: str = "executor"
    fitted: tuple[str, ...] = FITTED
    out_of_place: bool = False


@dataclass(frozen=True, eq=False)
class Calibration:
    """The answer: a topology before and after, and what its replays took, in picoseconds.

    By collective, `parts` are what was measured; `fitted` are the unknowns, `left_out` measured
    sizes that were not used, and why, and `text` is the file that is written.
    """

    parts: tuple[Part, ...]
    before: Topology
    after: Topology
    times_before: tuple[Time, ...]
    times_after: tuple[Time, ...]
    fitted: tuple[Fitted, ...]
    left_out: tuple[str, ...]
    text: str

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was measured: that of all parts, one after the other."""
        return tuple(sample for part in self.parts for sample in part.samples)

    def error(self, *, after: bool) -> float:
        """Return the root mean square of the relative errors."""
        times = self.times_after if after else self.times_before
        pairs = zip(times, self.samples, strict=True)
        errors = [time / sample.time - 1 for time, sample in pairs]
        return float(np.sqrt(np.mean(np.square(errors))))


def calibrate(question: Question) -> Calibration:
    """Fit the costs of a topology to measured times.

    Raises InputError when a file can't be used, or they do not fit together; ProgramError when the
    program does not fit the topology.
    """
    options = MachineOptions(question.nodes, question.fabric, alpha_rule=question.alpha_rule)
    topology = load_machine(question.topology, options)
    asked = question.collective and load_collective(question.collective)
    runs = read_runs(
        question.measured,
        asked.name if isinstance(asked, Collective) else asked,
        topology.num_ranks,
    )
    parts: list[Part] = []
    left: list[str] = []
    for name, of_name in runs.items():
        collective = asked_collective(asked or load_collective(name), topology)
        program = _program(question, topology, collective, of_name)
        samples, unused = samples_of(
            of_name, program, of_name[0].element_bytes, out_of_place=question.out_of_place
        )
        parts.append(Part(collective.name, program, samples))
        left += unused
    (element_bytes,) = {run.element_bytes for of_name in runs.values() for run in of_name}
    fit = Fit(
        topology, model_of(question.runtime, element_bytes), tuple(parts), question.fitted
    )  # fmt: skip
    costs, fitted = fit.solve()
    label = f"{topology.name[:180]}-calibrated"
    document = costly_document(
        document_of(question.topology, question.nodes, question.fabric), topology, costs, label
    )
    if question.alpha_rule is not None:
        document["alpha_rule"] = question.alpha_rule
    after = topology_from_document(document)
    found = Calibration(
        fit.parts, topology, after, fit.times(topology), fit.times(after), fitted, tuple(left), ""
    )
    return replace(found, text=document_text(document, _comments(found, question)))


def _program(
    question: Question, topology: Topology, collective: Collective, runs: Sequence[Measured]
) -> Program:
    """Return the program that was run."""
    if question.program is None:
        if question.algorithm not in CLASSICAL:
            raise InputError(
                f"unknown algorithm {question.algorithm[:40]!r}", field="--algorithm",
                fix=f"{did_you_mean(question.algorithm, CLASSICAL)}use one of"
                f" {', '.join(CLASSICAL)}, or --program FILE.xml",
            )  # fmt: skip
        sizes = sorted(point.size for run in runs for point in run.points)
        target = Target(
            question.runtime, min_bytes=1, max_bytes=MAX_SIZE,
            element_bytes=runs[0].element_bytes,
        )  # fmt: skip
        middle = sizes[len(sizes) // 2]
        return textbook_program(topology, collective, question.algorithm, middle, target)
    program = read_program(question.program)
    problems: list[tuple[str, object, object]] = [
        ("ngpus", program.num_ranks, topology.num_ranks),
        ("coll", program.collective, collective.name),
    ]
    for name, found, wanted in problems:
        if found != wanted:
            raise InputError(
                f"should be {wanted} as measured, got {found}", file=question.program, field=name,
                fix="give the program that was run",
            )  # fmt: skip
    return program


def _comments(found: Calibration, question: Question) -> list[str]:
    """Return what the file says about itself."""
    names = ", ".join(ascii(Path(file).name)[1:-1][:80] for file in question.measured[:4])
    more = f" and {len(question.measured) - 4} more" if len(question.measured) > 4 else ""
    column = "out of place" if question.out_of_place else "in place"
    unsure = ", ".join(e.unknown.name for e in found.fitted if e.determined == NOT_TOLD)
    programs = ", ".join(ascii(part.program.name)[1:-1] for part in found.parts)
    lines = [
        f"{ascii(found.before.name)[1:-1]}, calibrated by taccl from {names}{more}:"
        f" {len(found.samples)} sizes {column},",
        f"replayed as {programs} ({question.runtime}). Root mean square of"
        f" the relative errors: {found.error(after=False):.2%} before,"
        f" {found.error(after=True):.2%} after.",
    ]
    return [*lines, f"Not told apart by these runs: {unsure}."] if unsure else lines


NOTES: Mapping[str, str] = MappingProxyType({
    TOLD: "", TOLD_IF: f"  ({TOLD_IF})", NOT_TOLD: "  (not told apart by these runs)"
})  # fmt: skip


def calibration_json(found: Calibration, output: str | None) -> dict[str, object]:
    """Return what ``--json`` prints of what was `found`; `output` is the file that was written."""
    return {
        "collective": ", ".join(part.collective for part in found.parts),
        "topology": found.before.name,
        "ranks": found.before.num_ranks,
        "alpha_rule": found.before.alpha_rule_stated,
        "program": ", ".join(part.program.name for part in found.parts),
        "rows": [
            {
                "file": sample.file,
                "collective": part.collective,
                "size_bytes": sample.size,
                "measured_us": microseconds(sample.time),
                "before_us": microseconds(before),
                "before_error": before / sample.time - 1,
                "after_us": microseconds(after),
                "after_error": after / sample.time - 1,
            }
            for part, sample, before, after in _rows(found)
        ],
        "error_before": found.error(after=False),
        "error_after": found.error(after=True),
        "parameters": _parameters(found),
        "left_out": list(found.left_out),
        "output": output,
    }


def _rows(found: Calibration) -> Iterator[tuple[Part, Sample, Time, Time]]:
    """Yield each sample with its part and its replayed times."""
    parts = (part for part in found.parts for _ in part.samples)
    yield from zip(parts, found.samples, found.times_before, found.times_after, strict=True)


def calibration_text(found: Calibration, output: str | None) -> str:
    """Return what is printed of what was `found`; `output` is the file that was written."""
    lines = []
    for part, rows in groupby(_rows(found), key=lambda row: row[0]):
        lines += [
            f"{part.collective} on {found.before.name}, {found.before.num_ranks} ranks, replayed as"
            f" {part.program.name} ({found.before.rules_stated})",
            f"{'size':>12}  {'measured us':>12}  {'before us':>12}  {'error':>8}"
            f"  {'after us':>12}  {'error':>8}",
        ]
        for _, sample, *times in rows:
            line = f"{format_size(sample.size):>12}  {microseconds(sample.time):>12.6g}"
            for time in times:
                line += f"  {microseconds(time):>12.6g}  {time / sample.time - 1:>+8.1%}"
            lines.append(line)
    lines.append(
        f"error (root mean square)  {found.error(after=False):.2%} before,"
        f" {found.error(after=True):.2%} after"
    )
    for entry in _parameters(found):
        before, after = (
            "free" if entry[key] is None else f"{entry[key]:.6g} {entry['unit']}"
            for key in ("before", "after")
        )
        note = NOTES[str(entry["determined"])]
        lines.append(f"{entry['name']!s:<24}  {before} -> {after}{note}")
    lines += [f"left out  {text}" for text in found.left_out[:8]]
    if len(found.left_out) > 8:
        lines.append(f"left out  and {len(found.left_out) - 8} more")
    if output is not None:
        lines.append(f"wrote {output}")
    return "\n".join(lines)


def _parameters(found: Calibration) -> list[dict[str, object]]:
    return [
        {
            "name": each.unknown.name,
            "unit": "us" if each.unknown.kind in ("alpha", "launch") else "GB/s",
            "before": _value(each.unknown, found.before),
            "after": _value(each.unknown, found.after),
            "determined": each.determined,
        }
        for each in found.fitted
    ]


def _value(unknown: Unknown, topology: Topology) -> float | None:
    """Return a cost in its unit: of edges, that of the first link of their class; None: free."""
    local, table, server = topology.local, topology.links, np.array(topology.server_of)
    if unknown.what == "launch":
        return microseconds(local.launch)
    beta = local.copy_beta if unknown.what == "copy" else local.reduce_beta
    if unknown.kind in ("alpha", "beta"):
        crosses = server[table.src] != server[table.dst]
        of_class = np.flatnonzero(crosses == (unknown.what == BETWEEN))
        if not len(of_class):
            return None
        if unknown.kind == "alpha":
            return microseconds(int(table.alpha[of_class[0]]))
        beta = table.max_beta(int(of_class[0]))
    return float(1000 / beta) if beta else None
