"""A calibration as text and as JSON: every size before and after, and what has changed.

From measured times to the costs of a topology, and to a file that has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import numpy as np

from taccl.apps.comparison import textbook_program
from taccl.apps.costs import BETWEEN, costly_document
from taccl.apps.evaluation import read_program
from taccl.apps.fitting import FITTED, NOT_TOLD, TOLD, TOLD_IF, Fit, Fitted, Part, Sample
from taccl.apps.programs import Target
from taccl.apps.request import asked_collective, load_collective, load_machine
from taccl.collectives import Collective
from taccl.errors import InputError, did_you_mean
from taccl.files import read_document
from taccl.imports.nccl_tests import Measured, Point, read_measured
from taccl.msccl.program import Program
from taccl.replay.cost import model_of
from taccl.synth.templates.classical import CLASSICAL
from taccl.topology.file import document_text, shipped_file, topology_from_document
from taccl.topology.graph import LocalCosts, Topology
from taccl.topology.shapes import is_short_form
from taccl.units import MAX_SIZE, Time, format_size, gigabytes_per_second, microseconds

MIN_SIZES = 3


def read_runs(
    files: Sequence[str], collective: str | None, topology: Topology
) -> dict[str, tuple[Measured, ...]]:
    """Return the runs by the collective that was measured, checked against the topology.

    Raises
    ------
    InputError
        When a file is no output of nccl-tests, or they do not fit together or the topology.
    """
    runs = tuple(read_measured(file) for file in files)
    told = list(dict.fromkeys(run.collective for run in runs if run.collective))
    found: dict[str, list[Measured]] = {}
    for run in runs:
        named = collective or run.collective or (told[0] if len(told) == 1 else None)
        if named is None:
            raise InputError(
                "does not say which collective it is of", file=run.file, field="--collective",
                fix="give --collective, such as --collective allreduce",
            )  # fmt: skip
        run.check(named, topology.num_ranks)
        if run.dtype != runs[0].dtype:
            raise InputError(
                f"is a run of {run.dtype}, {files[0]} of {runs[0].dtype}", file=run.file,
                fix="calibrate from runs of one data type",
            )  # fmt: skip
        found.setdefault(named, []).append(run)
    return {name: tuple(of_name) for name, of_name in found.items()}


def samples_of(
    runs: Sequence[Measured], program: Program, element_bytes: int, *, out_of_place: bool = False
) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
    """Return the sizes that the program can be fitted to, and in words what was left out.

    Raises
    ------
    InputError
        When they are too few.
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


def classical_program(
    topology: Topology, collective: Collective, algorithm: str, sizes: Sequence[int], target: Target
) -> Program:
    """Return the program of a classical algorithm, the fastest one at the middle one of the sizes.

    Raises
    ------
    InputError
        When there is none.
    """
    if algorithm not in CLASSICAL:
        raise InputError(
            f"unknown algorithm {algorithm[:40]!r}", field="--algorithm",
            fix=f"{did_you_mean(algorithm, CLASSICAL)}use one of {', '.join(CLASSICAL)}, or"
            " --program FILE.xml",
        )  # fmt: skip
    middle = sorted(sizes)[len(sizes) // 2]
    return textbook_program(topology, collective, algorithm, middle, target)[0]


@dataclass(frozen=True, slots=True)
class Question:
    """What is calibrated, from what.

    Parameters
    ----------
    topology
        A file, a shipped name or a short form.
    measured
        Outputs of nccl-tests.
    nodes, fabric, alpha_rule
        As everywhere.
    collective
        What was measured; None: as the files say.
    program, algorithm
        The file that was run, or the classical algorithm.
    runtime
        Whose constants.
    fitted
        Kinds of unknowns, of FITTED.
    out_of_place
        Which of the two columns.
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
    """The answer.

    Parameters
    ----------
    parts
        What was measured, by collective.
    before, after
        The topology, and the one of the file that is written.
    times_before, times_after
        Replayed picoseconds of each sample.
    fitted
        The unknowns.
    left_out
        Measured sizes that were not used, and why.
    text
        The file.
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

    Raises
    ------
    InputError
        When a file can't be used, or they do not fit together.
    ProgramError
        When the program does not fit the topology.
    """
    topology = load_machine(
        question.topology, nodes=question.nodes, fabric=question.fabric,
        alpha_rule=question.alpha_rule,
    )  # fmt: skip
    asked = question.collective and load_collective(question.collective)
    runs = read_runs(
        question.measured, asked.name if isinstance(asked, Collective) else asked, topology
    )
    parts: list[Part] = []
    left: list[str] = []
    for name, of_name in runs.items():
        part, unused = _part(question, topology, asked or load_collective(name), of_name)
        parts.append(part)
        left += unused
    (element_bytes,) = {run.element_bytes for of_name in runs.values() for run in of_name}
    fit = Fit(
        topology, model_of(question.runtime, element_bytes), tuple(parts), question.fitted
    )  # fmt: skip
    costs, fitted = fit.solve()
    label = f"{topology.name[:180]}-calibrated"
    document = costly_document(_document(question), topology, costs, label)
    if question.alpha_rule is not None:
        document["alpha_rule"] = question.alpha_rule
    after = topology_from_document(document)
    found = Calibration(
        fit.parts, topology, after, fit.times(topology), fit.times(after), fitted, tuple(left), ""
    )
    return replace(found, text=document_text(document, _comments(found, question)))


def _part(
    question: Question, topology: Topology, asked: str | Collective, runs: Sequence[Measured]
) -> tuple[Part, tuple[str, ...]]:
    """Return what was measured of one collective, and in words what was left out."""
    collective = asked_collective(asked, topology)
    program = _program(question, topology, collective, runs)
    samples, left = samples_of(
        runs, program, runs[0].element_bytes, out_of_place=question.out_of_place
    )
    return Part(collective.name, program, samples), left


def _program(
    question: Question, topology: Topology, collective: Collective, runs: Sequence[Measured]
) -> Program:
    """Return the program that was run.

    Raises
    ------
    InputError
        When it is for other ranks or another collective, or there is no such algorithm.
    """
    if question.program is None:
        sizes = [point.size for run in runs for point in run.points]
        target = Target(
            question.runtime, min_bytes=1, max_bytes=MAX_SIZE,
            element_bytes=runs[0].element_bytes,
        )  # fmt: skip
        return classical_program(topology, collective, question.algorithm, sizes, target)
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


def _document(question: Question) -> Mapping[str, object]:
    """Return the fields of the topology's file, as the options change them."""
    if is_short_form(question.topology):
        return {}
    path = shipped_file(question.topology, "topologies", "topology")
    value = read_document(path).value
    fields = dict(value) if isinstance(value, dict) else {}
    if question.nodes is not None and "node" in fields:
        fields["count"] = question.nodes
    fabric = fields.get("fabric")
    if question.fabric is not None and isinstance(fabric, dict):
        kept = {key: fabric[key] for key in fabric if key != "spine"}
        fields["fabric"] = {**kept, "kind": question.fabric}
    return fields


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


def link_costs(topology: Topology, *, across: bool) -> tuple[float, float] | None:
    """Return alpha (us) and bandwidth (GB/s) of the first link inside, or between, servers."""
    table, server = topology.links, topology.server_of
    for link in range(len(table)):
        differ = server[int(table.src[link])] != server[int(table.dst[link])]
        if differ == across:
            beta = table.max_beta(link)
            rate = gigabytes_per_second(10**9, int(beta * 10**9)) if beta else 0.0
            return microseconds(int(table.alpha[link])), rate
    return None


NOTES: Mapping[str, str] = MappingProxyType({
    TOLD: "", TOLD_IF: f"  ({TOLD_IF})", NOT_TOLD: "  (not told apart by these runs)"
})  # fmt: skip


def calibration_json(found: Calibration, output: str | None) -> dict[str, object]:
    """Return what ``--json`` prints."""
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
        "parameters": list(map(dict, _parameters(found))),
        "left_out": list(found.left_out),
        "output": output,
    }


def _rows(found: Calibration) -> Iterator[tuple[Part, Sample, Time, Time]]:
    """Yield each sample with its part and its replayed times."""
    parts = (part for part in found.parts for _ in part.samples)
    yield from zip(parts, found.samples, found.times_before, found.times_after, strict=True)


def calibration_text(found: Calibration, output: str | None) -> str:
    """Return what is printed for people."""
    lines = []
    for part, rows in groupby(_rows(found), key=lambda row: row[0]):
        lines += [
            f"{part.collective} on {found.before.name}, {found.before.num_ranks} ranks, replayed as"
            f" {part.program.name} ({found.before.rules_stated})",
            f"{'size':>12}  {'measured us':>12}  {'before us':>12}  {'error':>8}"
            f"  {'after us':>12}  {'error':>8}",
        ]
        lines += [_line(sample, before, after) for _, sample, before, after in rows]
    lines.append(
        f"error (root mean square)  {found.error(after=False):.2%} before,"
        f" {found.error(after=True):.2%} after"
    )
    lines += [_shown(entry) for entry in _parameters(found)]
    lines += [f"left out  {text}" for text in found.left_out[:8]]
    if len(found.left_out) > 8:
        lines.append(f"left out  and {len(found.left_out) - 8} more")
    if output is not None:
        lines.append(f"wrote {output}")
    return "\n".join(lines)


def _line(sample: Sample, before: Time, after: Time) -> str:
    errors = [f"{time / sample.time - 1:+.1%}" for time in (before, after)]
    times = [f"{microseconds(time):.6g}" for time in (sample.time, before, after)]
    return (
        f"{format_size(sample.size):>12}  {times[0]:>12}  {times[1]:>12}  {errors[0]:>8}"
        f"  {times[2]:>12}  {errors[1]:>8}"
    )


def _parameters(found: Calibration) -> Iterator[Mapping[str, object]]:
    for each in found.fitted:
        before, after = (_value(each, topology) for topology in (found.before, found.after))
        yield {
            "name": each.unknown.name,
            "unit": "us" if each.unknown.kind in ("alpha", "launch") else "GB/s",
            "before": before,
            "after": after,
            "determined": each.determined,
        }


def _value(fitted: Fitted, topology: Topology) -> float | None:
    """Return a cost in its unit: of edges, that of the first link of their class; None: free."""
    unknown, local = fitted.unknown, topology.local
    if unknown.kind in ("alpha", "beta"):
        costs = link_costs(topology, across=unknown.what == BETWEEN)
        if costs is None:
            return None
        return costs[0] if unknown.kind == "alpha" else costs[1] or None
    return _local(local, unknown.what)


def _local(local: LocalCosts, what: str) -> float | None:
    if what == "launch":
        return microseconds(local.launch)
    beta = local.copy_beta if what == "copy" else local.reduce_beta
    return gigabytes_per_second(10**12, int(beta * 10**12)) if beta else None


def _shown(entry: Mapping[str, object]) -> str:
    values = [
        "free" if value is None else f"{value:.6g} {entry['unit']}"
        for value in (entry["before"], entry["after"])
    ]
    note = NOTES[str(entry["determined"])]
    return f"{entry['name']!s:<24}  {values[0]} -> {values[1]}{note}"
