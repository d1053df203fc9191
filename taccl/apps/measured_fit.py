"""Costs of programs fitted to measured times, each drawn towards what was known before.

Least squares on the logarithm of the ratio of replayed and measured time, of which large ones count
less (soft L1), and on how far each cost is from its prior, in units of how sure that is. So a cost
that no row tells stays what it was, and more costs than rows do no harm, but are told.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.apps.measured import Run, replayed
from taccl.topology.graph import ProgramCosts
from taccl.units import PS_PER_US

TRUSTED = 0.04
"""Relative error of a measured time that counts as one."""

STEP = 0.02
"""Change of a logarithm from which slopes are taken: times are whole picoseconds."""

LEAST_WIRE = {"LL": 2.0, "LL128": 128 / 120}
"""Bytes on the wire for each byte of data: flags beside the words alone."""

FAR = 2.5
"""How far the logarithm of a cost may move."""

MOST_CALLS = 12

Vector = NDArray[np.float64]


class Unknown(NamedTuple):
    """One cost that is fitted.

    `name`: what results call it.
    `get`, `put`: its value in costs, and costs with another; above 0.
    `sure`: how far its logarithm may be off, as far as was known before.
    `most`, `least`: the largest and the smallest value.
    """

    name: str
    get: Callable[[ProgramCosts], float]
    put: Callable[[ProgramCosts, float], ProgramCosts]
    sure: float
    most: float = math.inf
    least: float = 0.0


def _of_protocol(
    protocol: str, field: str, unit: float, sure: float, least: float = 0.0
) -> Unknown:
    def put(costs: ProgramCosts, value: float) -> ProgramCosts:
        changed: Any = {field: _number(field, value * unit)}
        row = replace(costs.protocols[protocol], **changed)
        return replace(costs, protocols={**costs.protocols, protocol: row})

    name = f"{protocol} {field.replace('_', ' ')}"
    return Unknown(
        name, lambda costs: float(getattr(costs.protocols[protocol], field)) / unit, put, sure,
        least=least,
    )  # fmt: skip


def _of_machine(field: str, unit: float, sure: float, most: float = math.inf) -> Unknown:
    def put(costs: ProgramCosts, value: float) -> ProgramCosts:
        changed: Any = {field: _number(field, value * unit)}
        return replace(costs, **changed)

    name = field.replace("_", " ")
    return Unknown(name, lambda costs: float(getattr(costs, field)) / unit, put, sure, most)


def _number(field: str, value: float) -> int | Fraction:
    """Return a value as costs have it: times whole, factors and betas as fractions."""
    if field in ("launch", "alpha", "alpha_across", "flag"):
        return round(value)
    return Fraction(value).limit_denominator(1_000_000)


def unknowns(costs: ProgramCosts, runs: Sequence[Run]) -> tuple[Unknown, ...]:
    """Return the costs that may be fitted: those of `costs` that are not 0, and `runs` can have."""
    used = {program.protocol for run in runs for program in run.programs}
    across = any(run.topology.num_servers > 1 for run in runs)
    found = [
        _of_machine("inside", 1, 0.15, 1.0), _of_machine("across", 1, 0.15, 1.0),
        _of_machine("copy_beta", 1, 1.0), _of_machine("reduce_beta", 1, 1.0),
        _of_machine("flag", PS_PER_US, 1.0),
    ]  # fmt: skip
    for protocol in sorted(used & costs.protocols.keys()):
        found += [
            _of_protocol(protocol, "launch", PS_PER_US, 0.7),
            _of_protocol(protocol, "alpha", PS_PER_US, 0.7),
            _of_protocol(protocol, "alpha_across", PS_PER_US, 0.7),
            _of_protocol(protocol, "block_beta", 1, 0.4),
        ]
        if protocol != "Simple":
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
    """

    costs: ProgramCosts
    rows: int
    moved: Mapping[str, tuple[float, float]]

    @property
    def supported(self) -> bool:
        """Whether there are three rows for each cost that they moved."""
        return self.rows >= 3 * sum(abs(far) > 0.5 for _, far in self.moved.values())


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
    known = np.log([each.get(prior) for each in free])
    sure = np.array([each.sure for each in free])
    rows = 0

    def costs_at(values: Vector) -> ProgramCosts:
        costs = prior
        for each, value in zip(free, np.exp(values).tolist(), strict=True):
            costs = each.put(costs, value)
        return costs

    def residuals(values: Vector) -> Vector:
        nonlocal rows
        found = [row for run in chosen for row in replayed(run, costs_at(values))]
        rows = sum(row.replayed is not None for row in found)
        off = [math.log(row.replayed / row.measured) for row in found if row.replayed]
        return np.concatenate([np.array(off) / TRUSTED, (values - known) / sure])

    most = np.log([each.most for each in free])
    low = np.maximum(known - FAR, [math.log(each.least or 1e-300) for each in free])
    high = np.minimum(known + FAR, np.where(np.isfinite(most), most, np.inf))
    start = np.clip(known, low + 1e-3, high - 1e-3)
    solved = least_squares(
        residuals, start, bounds=(low, high),
        loss="soft_l1", diff_step=STEP, max_nfev=MOST_CALLS,
    )  # fmt: skip
    costs = costs_at(solved.x)
    moved = {
        each.name: (each.get(costs), float(far))
        for each, far in zip(free, (solved.x - known) / sure, strict=True)
    }
    return Fit(costs, rows, moved)
