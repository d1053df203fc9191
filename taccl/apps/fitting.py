"""The replay fitted to measured times: least squares on the relative error of every size.

The unknowns are factors of the alphas and of the betas of each class of edges, the launch, and the
costs of local work, none below 0. A single run tells only some of them apart: a ring has as many
steps at every size, so launch and alpha look alike; runs of two collectives, of which one has twice
the steps, tell more. So each unknown is drawn weakly towards what the topology says, launch and
local work a little less weakly, and the result tells which of them the runs determine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.apps.costs import CLASSES, Costs, EdgeCosts, classes_of, costly, without_alpha
from taccl.errors import InputError
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel
from taccl.replay.timing import traces
from taccl.topology.graph import Topology
from taccl.units import Time

FITTED = ("alpha", "beta", "launch", "local")
"""Kinds of unknowns."""

PULL: Mapping[str, float] = MappingProxyType({
    "alpha": 1e-3, "beta": 1e-3, "launch": 3e-2, "local": 3e-2
})  # fmt: skip
"""How much a doubling of an unknown counts, as a relative error of one size."""

STEP = 1e-3
"""By how much an unknown is moved to see what follows."""

INSIDE_BOUND = 0.1
"""Where unknowns start that the topology says are 0."""

TELLING = 0.02
"""Relative change of all times together, of what only a doubling of one unknown can explain, from
which on the runs determine it."""

TOLD, TOLD_IF, NOT_TOLD = "yes", "if those not told apart are right", "no"

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured size.

    Parameters
    ----------
    file
        Where it is from.
    size
        Bytes, as measured.
    replayed
        Bytes that are replayed for it: whole chunks.
    time
        Measured picoseconds.
    """

    file: str
    size: int
    replayed: int
    time: Time


@dataclass(frozen=True, eq=False)
class Part:
    """What was measured of one collective.

    Parameters
    ----------
    collective
        Its name.
    program
        What is replayed for it.
    samples
        What that should take.
    """

    collective: str
    program: Program
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """One number that is fitted, in units of its own.

    Parameters
    ----------
    kind
        One of FITTED.
    what
        The class of edges, or the local work.
    start
        Where the topology is.
    least
        The bound.
    """

    kind: str
    what: str
    start: float
    least: float = 0.0

    @property
    def name(self) -> str:
        """What results call it."""
        words = {"alpha": f"alpha {self.what}", "beta": f"bandwidth {self.what}"}
        return words.get(self.kind, self.what)


@dataclass(frozen=True, slots=True)
class Fitted:
    """An unknown after the fit.

    Parameters
    ----------
    unknown
        Which.
    value
        In its own units: a factor for alpha and beta.
    determined
        TOLD, TOLD_IF or NOT_TOLD: whether the runs tell it from all others.
    """

    unknown: Unknown
    value: float
    determined: str


@dataclass(frozen=True, eq=False)
class Fit:
    """A topology, programs, and what was measured of them.

    Parameters
    ----------
    topology, model
        Where and how they are replayed.
    parts
        Programs, and what each should give.
    fitted
        Kinds of unknowns, of FITTED.
    """

    topology: Topology
    model: ReplayModel
    parts: tuple[Part, ...]
    fitted: Sequence[str] = FITTED

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The class of each edge."""
        return classes_of(self.topology)

    @cached_property
    def bare(self) -> frozenset[str]:
        """Classes without any alpha, which are given one."""
        return without_alpha(self.topology, self.classes)

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Those of all parts, one after the other."""
        return tuple(sample for part in self.parts for sample in part.samples)

    @property
    def second(self) -> Time:
        """The unit of times: the shortest that was measured."""
        return max(min(sample.time for sample in self.samples), 1)

    @property
    def beta(self) -> Fraction:
        """The unit of local work for each byte: the beta of the fastest edge."""
        return min((e.beta for e in self.topology.edges if e.beta), default=Fraction(1))

    @cached_property
    def unknowns(self) -> tuple[Unknown, ...]:
        """What is fitted, in the order of vectors."""
        found, local = list[Unknown](), self.topology.local
        for name in CLASSES:
            if name in self.classes:
                found.append(Unknown("alpha", name, 0.0 if name in self.bare else 1.0))
                found.append(Unknown("beta", name, 1.0, 1e-3))
        found.append(Unknown("launch", "launch", local.launch / self.second))
        found.append(Unknown("local", "copy", float(local.copy_beta / self.beta)))
        found.append(Unknown("local", "reduce", float(local.reduce_beta / self.beta)))
        return tuple(unknown for unknown in found if unknown.kind in self.fitted)

    def costs(self, values: Sequence[float]) -> Costs:
        """Return what a vector stands for; alphas and times are whole picoseconds."""
        found = {
            (unknown.kind, unknown.what): Fraction(round(value * 10**9), 10**9)
            for unknown, value in zip(self.unknowns, values, strict=True)
        }
        edges = {}
        for name in CLASSES:
            alpha = found.get(("alpha", name))
            change = EdgeCosts(beta=found.get(("beta", name)) or Fraction(1))
            if name in self.bare:
                # Even, as half of it goes to each edge of a switch.
                change = replace(change, added=2 * round((alpha or 0) * self.second / 2))
            elif alpha is not None:
                change = replace(change, alpha=alpha)
            edges[name] = change
        local = self.topology.local
        if ("launch", "launch") in found:
            local = replace(local, launch=round(found["launch", "launch"] * self.second))
        if ("local", "copy") in found:
            copy, reduce = (found["local", what] * self.beta for what in ("copy", "reduce"))
            local = replace(local, copy_beta=copy, reduce_beta=reduce)
        return Costs(local, edges)

    def times(self, topology: Topology) -> tuple[Time, ...]:
        """Return the replayed time of each sample.

        Raises InputError when a program does not run at its size.
        """
        found: list[Time] = []
        for part in self.parts:
            times: dict[int, Time] = {}
            sizes = sorted({sample.replayed for sample in part.samples})
            for trace in traces(part.program, topology, sizes, self.model):
                if trace.time is None:
                    raise InputError(
                        f"{part.program.name} can't be replayed at {trace.size} bytes:"
                        f" {trace.reason}",
                        field="--program",
                        fix="leave that size out of the measured file",
                    )
                times[trace.size] = trace.time
            found += [times[sample.replayed] for sample in part.samples]
        return tuple(found)

    def errors(self, topology: Topology) -> Vector:
        """Return how much more the replay takes than what was measured, as a part of that."""
        pairs = zip(self.times(topology), self.samples, strict=True)
        return np.array([time / sample.time - 1 for time, sample in pairs])

    def solve(self) -> tuple[Costs, tuple[Fitted, ...]]:
        """Return the costs that fit best, and how well each unknown is known.

        Launch and local work that the runs do not tell from the rest stay as they are.
        """
        everything = np.arange(len(self.unknowns))
        values = self._least_squares(everything)
        free = self._free(_slopes(self._model, values), everything)
        if len(free) < len(everything):
            values = self._least_squares(free)
        slopes = _slopes(self._model, values)
        strictly, given = (_telling(slopes, each) > TELLING for each in (everything, free))
        words = [
            TOLD if yes else TOLD_IF if perhaps else NOT_TOLD
            for yes, perhaps in zip(strictly.tolist(), given.tolist(), strict=True)
        ]
        fitted = tuple(map(Fitted, self.unknowns, values.tolist(), words))
        return self.costs(values.tolist()), fitted

    def _free(self, slopes: Vector, everything: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return which unknowns are fitted: those of edges, and others while all can be told apart.

        Of two others that only look like one another the one that matters more is fitted.
        """
        edges = np.array([u.kind in ("alpha", "beta") for u in self.unknowns], np.bool_)
        free = np.flatnonzero(edges | (_telling(slopes, everything) > TELLING))
        others = [number for number in everything.tolist() if number not in free]
        for number in sorted(others, key=lambda n: -float(np.linalg.norm(slopes[:, n]))):
            wider = np.array([*free, number])
            if (_telling(slopes, wider)[wider[~edges[wider]]] > TELLING).all():
                free = wider
        return np.sort(free)

    def _model(self, values: Vector) -> Vector:
        return self.errors(costly(self.topology, self.classes, self.costs(values.tolist())))

    def _least_squares(self, free: NDArray[np.intp]) -> Vector:
        """Return all unknowns, those fitted that are free, the others as they are."""
        from scipy.optimize import least_squares

        start = np.array([u.start for u in self.unknowns])
        least = np.array([u.least for u in self.unknowns])
        pull = np.array([PULL[u.kind] for u in self.unknowns])

        def whole(values: Vector) -> Vector:
            full = start.copy()
            full[free] = values
            return full

        def residuals(values: Vector) -> Vector:
            return np.concatenate([self._model(whole(values)), (pull * (whole(values) - start))])

        def slopes(values: Vector) -> Vector:
            return np.vstack([_slopes(self._model, whole(values)), np.diag(pull)])[:, free]

        if not len(free):
            return start
        bounds = (least[free], np.full(len(free), np.inf))
        # From the bound itself the first step would be tiny, and the last.
        inside = np.maximum(start, INSIDE_BOUND)[free]
        answer = least_squares(residuals, inside, jac=slopes, bounds=bounds, max_nfev=60)
        moved = np.abs(whole(answer.x) - start) >= STEP
        return np.where(moved, whole(answer.x), start)


def _slopes(model: Callable[[Vector], Vector], values: Vector) -> Vector:
    """Return how the errors change with each unknown, a column each."""
    at = model(values)
    columns = []
    for number in range(len(values)):
        moved = values.copy()
        step = STEP * max(1.0, abs(float(values[number])))
        moved[number] += step
        columns.append((model(moved) - at) / step)
    return np.array(columns).T.reshape(len(at), len(values))


def _telling(slopes: Vector, free: NDArray[np.intp]) -> Vector:
    """Return of each free unknown how much it matters that the other ones can't make up."""
    found = np.zeros(slopes.shape[1])
    for number in free.tolist():
        column, others = slopes[:, number], slopes[:, free[free != number]]
        rest = column - others @ np.linalg.lstsq(others, column, rcond=1e-6)[0]
        found[number] = np.linalg.norm(rest)
    return found
