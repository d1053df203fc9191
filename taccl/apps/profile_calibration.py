"""From times that nccl-tests measured to the measured costs of a topology, and to a file with them.

What programs cost is fitted as :mod:`taccl.apps.measured_fit` does it: from what was known before,
within bounds, drawn towards it. Each file is a table; how far off it is when the costs are fitted
to the other files alone is told, and so is a fit that moves more costs than the rows support.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from taccl.apps.inputs import read_program
from taccl.apps.measured import Run, RunRecord, programs_of, replayed, summed_up
from taccl.apps.measured_fit import ROWS_FOR_EACH, Fit, fit
from taccl.apps.networks import MachineOptions, load_machine
from taccl.errors import InputError, ProgramError
from taccl.files import shown
from taccl.imports.nccl_tests import Measured, read_runs
from taccl.report.text import aligned, one_line
from taccl.topology.core_form import topology_document
from taccl.topology.file import document_of, document_text, load_topology
from taccl.topology.graph import ProgramCosts, Topology
from taccl.units import PS_PER_US, counted

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
