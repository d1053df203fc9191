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
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.replay.plans import protocol_of
from taccl.topology.graph import ProgramCosts
from taccl.units import PS_PER_US

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
