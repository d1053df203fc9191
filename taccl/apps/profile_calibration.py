"""From times that nccl-tests measured to the measured costs of a topology, and to a file with them.

What programs cost is fitted from what was known before, within bounds: least squares on the
logarithm of the ratio of replayed and measured time, of which large ones count less (soft L1), and
on how far each cost is from its prior, in units of how sure that is. So a cost that no row tells
stays what it was, and more costs than rows do no harm, but are told. Each file is a table; how far
off it is when the costs are fitted to the other files alone is told.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.apps.inputs import MachineOptions, load_machine, read_program
from taccl.apps.measured import Run, RunRecord, programs_of, replayed, summed_up
from taccl.errors import InputError, ProgramError
from taccl.files import shown
from taccl.imports.nccl_tests import Measured, read_runs
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.replay.plans import protocol_of
from taccl.report.text import aligned, one_line
from taccl.topology.core_form import topology_document
from taccl.topology.file import document_of, document_text, load_topology
from taccl.topology.graph import ProgramCosts, Topology
from taccl.units import PS_PER_US, counted

TRUSTED = 0.04
"""Relative error of a measured time that counts as one."""

STEP = 0.02
"""Change of a logarithm from which slopes are taken: times are whole picoseconds."""

ORIGIN = 10.0
"""Where the solver has the logarithm 0: its steps are parts of its numbers, never of 0."""

LEAST_WIRE = {"LL": 2.0, "LL128": 128 / 120}
"""Bytes on the wire for each byte of data: flags beside the words alone."""

FAR = 4.0
"""How far the logarithm of a cost may move."""

MOST_CALLS = 12

ROWS_FOR_EACH = 3
"""Measured rows for each cost that is moved, below which a fit is not called a good one."""

Vector = NDArray[np.float64]


class Unknown(NamedTuple):
    """One cost that is fitted, as a factor of what was known of it.

    `name`: what results call it.
    `get`, `scale`: its value in costs, above 0, and costs in which it is so many times as much.
    `sure`: how far the logarithm of the factor may be from 0, as far as was known before.
    `most`, `least`: the largest and the smallest value.
    """

    name: str
    get: Callable[[ProgramCosts], float]
    scale: Callable[[ProgramCosts, float], ProgramCosts]
    sure: float
    most: float = math.inf
    least: float = 0.0


def _of_protocol(
    protocol: str, field: str, unit: float, sure: float, least: float = 0.0
) -> Unknown:
    def scale(costs: ProgramCosts, factor: float) -> ProgramCosts:
        old = costs.protocols[protocol]
        changed: Any = {field: _number(field, float(getattr(old, field)) * factor)}
        return replace(costs, protocols={**costs.protocols, protocol: replace(old, **changed)})

    name = f"{protocol} {field.replace('_', ' ')}"
    return Unknown(
        name, lambda costs: float(getattr(costs.protocols[protocol], field)) / unit, scale, sure,
        least=least,
    )  # fmt: skip


def _of_machine(field: str, unit: float, sure: float, most: float = math.inf) -> Unknown:
    def scale(costs: ProgramCosts, factor: float) -> ProgramCosts:
        changed: Any = {field: _number(field, float(getattr(costs, field)) * factor)}
        return replace(costs, **changed)

    name = field.replace("_", " ")
    return Unknown(name, lambda costs: float(getattr(costs, field)) / unit, scale, sure, most)


def _number(field: str, value: float) -> int | Fraction:
    """Return a value as costs have it: times whole, factors and betas as fractions."""
    if field in ("launch", "alpha", "alpha_across", "flag"):
        return round(value)
    return Fraction(value).limit_denominator(1_000_000)


def unknowns(costs: ProgramCosts, runs: Sequence[Run]) -> tuple[Unknown, ...]:
    """Return the costs that may be fitted: those of `costs` that are not 0, and `runs` can have.

    The `runs` are all of programs, or all of plans, whose costs these are then.
    """
    used = {
        one.protocol if isinstance(one, Program) else protocol_of(one)
        for run in runs for one in run.programs if not isinstance(one, Schedule)
    }  # fmt: skip
    across = any(run.topology.num_servers > 1 for run in runs)
    found = [
        _of_machine("inside", 1, 0.15, 1.0), _of_machine("across", 1, 0.15, 1.0),
        _of_machine("copy_beta", 1, 1.0), _of_machine("reduce_beta", 1, 1.0),
        _of_machine("flag", PS_PER_US, 1.0),
    ]  # fmt: skip
    for protocol in sorted(used & costs.protocols.keys()):
        found += [
            _of_protocol(protocol, field, PS_PER_US, 0.7)
            for field in ("launch", "alpha", "alpha_across")
        ]
        found.append(_of_protocol(protocol, "block_beta", 1, 0.4))
        if protocol in LEAST_WIRE:
            found.append(_of_protocol(protocol, "wire", 1, 0.15, LEAST_WIRE[protocol]))
    return tuple(
        each for each in found if each.get(costs) > 0 and (across or "across" not in each.name)
    )


@dataclass(frozen=True, eq=False)
class Fit:
    """Costs fitted to rows.

    `costs`: the fitted ones.
    `rows`: how many rows they were fitted to.
    `moved`: by cost: its value, and by how much of what was not known before the rows moved it.
    `free`: what was fitted, in the order of ``moved``.
    """

    costs: ProgramCosts
    rows: int
    moved: Mapping[str, tuple[float, float]]
    free: tuple[Unknown, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """The costs that the rows tell: those that they moved by half of what was not known."""
        return tuple(name for name, (_, far) in self.moved.items() if abs(far) > 0.5)

    @property
    def supported(self) -> bool:
        """Whether there are enough rows for the costs that they moved."""
        return self.rows >= ROWS_FOR_EACH * len(self.told)


def fit(runs: Sequence[Run], prior: ProgramCosts, keep: Callable[[int], bool] | None = None) -> Fit:
    """Return the costs that come nearest to the measured times of `runs`.

    `runs`: of one machine.
    `prior`: what was known before.
    `keep`: which rows of a run are fitted to, by their number from the smallest size on; None: all.
    """
    from scipy.optimize import least_squares

    chosen = []
    for run in runs:
        times = sorted(run.record.times.items())
        kept = {s: t for number, (s, t) in enumerate(times) if keep is None or keep(number)}
        if kept and run.programs:
            record = run.record.model_copy(update={"times": kept})
            chosen.append(replace(run, record=record))
    free = unknowns(prior, chosen)
    known = [each.get(prior) for each in free]
    sure = np.array([each.sure for each in free])
    rows = 0

    def costs_at(values: Vector) -> ProgramCosts:
        costs = prior
        for each, factor in zip(free, np.exp(values - ORIGIN).tolist(), strict=True):
            costs = each.scale(costs, factor)
        return costs

    def residuals(values: Vector) -> Vector:
        nonlocal rows
        found = [row for run in chosen for row in replayed(run, costs_at(values))]
        rows = sum(row.replayed is not None for row in found)
        off = [math.log(row.replayed / row.measured) for row in found if row.replayed]
        return np.concatenate([np.array(off) / TRUSTED, (values - ORIGIN) / sure])

    limits = [
        (each.least / value, each.most / value) for each, value in zip(free, known, strict=True)
    ]
    low, high = np.clip(np.log(np.maximum(np.array(limits), 1e-300)), -FAR, FAR).T
    start = np.clip(0.0, low + 1e-3, high - 1e-3)
    solved = least_squares(
        residuals, start + ORIGIN, bounds=(low + ORIGIN, high + ORIGIN),
        loss="soft_l1", diff_step=STEP / ORIGIN, max_nfev=MOST_CALLS,
    )  # fmt: skip
    costs = costs_at(solved.x)
    moved = {
        each.name: (each.get(costs), float(far))
        for each, far in zip(free, (solved.x - ORIGIN) / sure, strict=True)
    }
    return Fit(costs, rows, moved, free)


KERNELS_KNOWN = ("nccl", "ring", "tree", "pairs")
"""What may have run where no program is given; ``nccl``: the faster one of ring and tree."""

PRIOR_OF = MappingProxyType({
    "v100": "dgx2", "a100": "dgx-a100", "h100": "dgx-h100", "h200": "dgx-h100", "h800": "dgx-h100",
    "b200": "gb200-nvl72", "gb200": "gb200-nvl72", "mi250": "mi250", "mi300x": "mi300x",
})  # fmt: skip
"""The shipped machine whose measured costs are the start for a topology that has none, by GPU."""


@dataclass(frozen=True, slots=True)
class ProfileQuestion:
    """What is calibrated, from what: a topology, and outputs of nccl-tests, `measured` on it.

    `topology`, `nodes`, `fabric`: the machine, as the command line names it.
    `collective`: what was measured, where the files do not say it.
    `program`: the MSCCL XML file that ran; None: NCCL's kernel `algorithm`, of KERNELS_KNOWN, on so
    many `channels`.
    `prior`: a topology whose measured costs are the start; None: its own, else those of its GPU.
    """

    topology: str
    measured: tuple[str, ...]
    nodes: int | None = None
    fabric: str | None = None
    collective: str | None = None
    program: str | None = None
    algorithm: str = "nccl"
    channels: int = 16
    prior: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A file of the fit: errors of its rows `before` and `after` it, and `left` out of it.

    They are parts of what was measured; nothing is left out of a single table.
    """

    file: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    left: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ProfileCalibration:
    """The answer: the `fit` from `prior` costs, its `tables`, and the `text` of the new file."""

    topology: Topology
    prior: ProgramCosts
    fit: Fit
    tables: tuple[Table, ...]
    text: str


def calibrate_profile(question: ProfileQuestion) -> ProfileCalibration:
    """Fit the measured costs of a topology to measured times.

    Raises InputError when a file can't be used, or there is nothing to start from.
    """
    topology = load_machine(question.topology, MachineOptions(question.nodes, question.fabric))
    prior = _prior(question, topology)
    runs: list[Run] = []
    for name, measured in read_runs(
        question.measured, question.collective, topology.num_ranks
    ).items():
        for one in measured:
            runs += _runs_of(one, name, question, topology, prior)
    found = fit(runs, prior)
    files = list(dict.fromkeys(run.table for run in runs))
    tables = []
    for file in files:
        own = [run for run in runs if run.table == file]
        others = [run for run in runs if run.table != file]
        left = _errors(own, fit(others, prior).costs) if others else ()
        tables.append(Table(file, _errors(own, prior), _errors(own, found.costs), left))
    names = ", ".join(ascii(Path(file).name)[1:-1][:80] for file in question.measured[:4])
    untold = ", ".join(name for name in found.moved if name not in found.told)
    source = f"calibrated by taccl from {names}; {verdict(found)}; not told by them: {untold}"
    costs = replace(found.costs, source=source[:1000])
    known = dict(document_of(question.topology, question.nodes, question.fabric))
    fields = known or topology_document(topology)
    fields["measured"] = topology_document(replace(topology, measured=costs))["measured"]
    fields["name"] = f"{topology.name[:180]}-calibrated"
    made = ProfileCalibration(topology, prior, found, tuple(tables), "")
    return replace(made, text=document_text(fields, [f"{topology.name}, {verdict(found)}."]))


def _prior(question: ProfileQuestion, topology: Topology) -> ProgramCosts:
    name = question.prior or PRIOR_OF.get(topology.gpu or "")
    if question.prior is None and topology.measured is not None:
        return topology.measured
    costs = None if name is None else load_topology(name).measured
    if costs is None:
        raise InputError(
            f"{shown(name or topology.name)} has no measured costs to start from",
            field="--prior", fix="name a machine like it that has: --prior dgx-h100",
        )  # fmt: skip
    return costs


def _runs_of(
    measured: Measured, collective: str, question: ProfileQuestion, topology: Topology,
    prior: ProgramCosts,
) -> list[Run]:  # fmt: skip
    """Return what a file has in place and out of place."""
    found: list[Run] = []
    for place in ("in", "out"):
        groups = [
            (point.size, point.in_place if place == "in" else point.out_of_place)
            for point in measured.points
        ]
        times = {
            size: group.time / PS_PER_US for size, group in groups if group and not group.wrong
        }
        record = RunRecord(
            collective=collective, what=question.program or question.algorithm, place=place,
            algorithm=question.algorithm if question.program is None else "files",
            channels=question.channels, protocols=list(prior.protocols), times=times,
        )  # fmt: skip
        if found:
            found.append(replace(found[0], record=record))
        elif times:
            programs = (
                programs_of(record, topology, None)
                if question.program is None
                else (read_program(question.program),)
            )
            if not programs:
                raise InputError(
                    f"{question.algorithm} has no kernel for {collective}", field="--algorithm",
                    fix=f"use one of {', '.join(KERNELS_KNOWN)}, or --program FILE.xml",
                )  # fmt: skip
            found.append(Run(measured.file, topology.name, record, topology, programs))
    return [run for run in found if run.record.times]


def _errors(runs: Sequence[Run], costs: ProgramCosts) -> tuple[float, ...]:
    rows = [row for run in runs for row in replayed(run, costs) if row.replayed]
    if not rows:
        raise ProgramError(
            f"nothing that may have run takes the sizes of {runs[0].table}",
            fix="give the program that was run (--program), or the sizes that it serves",
        )
    return tuple(row.error for row in rows)


def verdict(found: Fit) -> str:
    """Return in a sentence whether the rows of a fit support it."""
    moved = found.told
    words = f"{counted(found.rows, 'row')} moved {counted(len(moved), 'cost')}"
    if found.supported:
        return f"supported: {words}"
    return (
        f"not supported: {words}, and at least {ROWS_FOR_EACH} rows for each are needed;"
        " measure more sizes and collectives"
    )


def profile_text(found: ProfileCalibration, output: str | None) -> str:
    """Return what is printed of what was `found`; `output` is the file that was written."""
    head = ("file", "rows", "error before", "after", "left out")
    rows = [
        (
            one_line(each.file),
            str(len(each.after)),
            *map(_told, (each.before, each.after, each.left)),
        )
        for each in found.tables
    ]
    changes = [
        (name, f"{unknown.get(found.prior):.4g}", f"{value:.4g}", f"{far:+.1f}")
        for unknown, (name, (value, far)) in zip(
            found.fit.free, found.fit.moved.items(), strict=True
        )
    ]
    lines = [
        f"{found.topology.name}, {found.topology.num_ranks} ranks: what programs cost (measured);"
        " errors are medians and ninth deciles",
        *aligned([head, *rows]),
        *aligned([("cost", "before", "after", "moved"), *changes]),
        verdict(found.fit),
    ]
    return "\n".join([*lines, *([f"wrote {output}"] if output is not None else [])])


def _told(errors: Sequence[float]) -> str:
    return "-" if not errors else ", ".join(f"{value:.1%}" for value in summed_up(errors).values())


def profile_json(found: ProfileCalibration, output: str | None) -> dict[str, object]:
    """Return what ``--json`` prints of what was `found`; `output` is the file that was written."""

    def told(errors: Sequence[float]) -> dict[str, float] | None:
        return (
            {key.replace(" ", "_"): value for key, value in summed_up(errors).items()}
            if errors
            else None
        )

    return {
        "topology": found.topology.name,
        "ranks": found.topology.num_ranks,
        "tables": [
            {
                "file": each.file, "rows": len(each.after), "error_before": told(each.before),
                "error_after": told(each.after), "error_left_out": told(each.left),
            }
            for each in found.tables
        ],
        "costs": {
            name: {"before": unknown.get(found.prior), "after": value, "moved": far}
            for unknown, (name, (value, far)) in zip(
                found.fit.free, found.fit.moved.items(), strict=True
            )
        },
        "rows": found.fit.rows,
        "supported": found.fit.supported,
        "verdict": verdict(found.fit),
        "output": output,
    }  # fmt: skip
