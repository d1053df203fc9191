"""The replay fitted to measured times: least squares on the relative error of every size.

The unknowns are factors of the alphas and of the betas of each class of edges, the launch, and the
costs of local work, none below 0. A single run tells only some of them apart: a ring has as many
steps at every size, so launch and alpha look alike; runs of two collectives, of which one has twice
the steps, tell more. So each unknown is drawn weakly towards what the topology says, launch and
local work a little less weakly, and the result tells which of them the runs determine.

**Costs.** Other costs for a topology: those of its edges by class, and of the work inside ranks.

A class is *inside* servers or *between* them; an edge that only messages between servers cross
belongs to the second. Alphas and bandwidths of a class change by one factor, so that a doubled
wire stays twice as fast. A class whose alphas are all 0 gets one added instead: a whole one for
each wire, half of it for each edge of a switch. What :func:`costly` does to the edges,
:func:`costly_document` does to the fields of a file, so that servers and fabric stay what they are.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel
from taccl.replay.timing import traces
from taccl.topology.core_form import topology_document
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import (
    MAX_BETA,
    MAX_TIME,
    MIN_BETA,
    Time,
    beta_text,
    exact_us,
    parse_beta,
    parse_time,
)

Fields = dict[str, object]

INSIDE, BETWEEN = "inside servers", "between servers"
CLASSES = (INSIDE, BETWEEN)


@dataclass(frozen=True, slots=True)
class EdgeCosts:
    """How the costs of a class of edges change.

    Each alpha (and overhead) is multiplied with `alpha`, each beta with `beta`; `added` are
    picoseconds of alpha for a whole crossing, where all alphas are 0.
    """

    alpha: Fraction = Fraction(1)
    beta: Fraction = Fraction(1)
    added: Time = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """How the costs of a topology change: of the edges of each class, and what local work costs."""

    local: LocalCosts
    edges: Mapping[str, EdgeCosts] = field(default_factory=dict)

    def of(self, name: str) -> EdgeCosts:
        """Return the change of a class."""
        return self.edges.get(name, EdgeCosts())


def classes_of(topology: Topology) -> tuple[str, ...]:
    """Return the class of each edge."""
    table, server = topology.links, np.array(topology.server_of)
    owner = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    inside = np.zeros(len(topology.edges), np.bool_)
    used = inside.copy()
    same = server[table.src] == server[table.dst]
    used[table.edge_ids] = True
    inside[table.edge_ids[same[owner]]] = True
    return tuple(
        BETWEEN if crossed and not within else INSIDE
        for crossed, within in zip(used.tolist(), inside.tolist(), strict=True)
    )


def without_alpha(topology: Topology, classes: Sequence[str]) -> frozenset[str]:
    """Return which `classes` of the edges of a `topology` have no edge with an alpha."""
    pairs = zip(classes, topology.edges, strict=True)
    return frozenset(classes) - {name for name, edge in pairs if edge.alpha}


def _crossings(topology: Topology, classes: Sequence[str]) -> Iterator[Fraction]:
    """Yield which part of an added alpha each edge gets: of a fabric only the fabric's edges."""
    first = topology.num_ranks
    across = {first + i for i, switch in enumerate(topology.switches) if switch.across_servers}
    for edge, name in zip(topology.edges, classes, strict=True):
        ends = (edge.tail, edge.head)
        if edge.beta is None or (name == BETWEEN and across and across.isdisjoint(ends)):
            yield Fraction(0)
        else:
            direct = (ends[0] >= first) == (ends[1] >= first) and across.isdisjoint(ends)
            yield Fraction(1) if direct else Fraction(1, 2)


def costly(topology: Topology, classes: Sequence[str], costs: Costs) -> Topology:
    """Return a `topology`, whose edges are of these `classes`, with other `costs`."""
    edges = []
    parts = _crossings(topology, classes)
    for edge, name, part in zip(topology.edges, classes, parts, strict=True):
        change = costs.of(name)
        alpha = round(edge.alpha * change.alpha) + round(change.added * part)
        overhead = edge.overhead and min(round(edge.overhead * change.alpha), alpha)
        beta = edge.beta and edge.beta * change.beta
        edges.append(replace(edge, alpha=alpha, overhead=overhead, beta=beta))
    return topology.with_costs(edges, costs.local)


def costly_document(
    document: Mapping[str, object], topology: Topology, costs: Costs, name: str
) -> dict[str, object]:
    """Return a topology file with other `costs`, in the form of servers where it has it.

    The `document` is the file that `topology` is from, with the costs of the file; in another form
    it becomes a graph. The new one is called `name`.
    """
    if not document.keys() & {"node", "nodes"}:
        graph = topology_document(costly(topology, classes_of(topology), costs))
        return {**graph, "name": name}
    made: dict[str, object] = {**copy.deepcopy(dict(document)), "name": name}
    bare = without_alpha(topology, classes_of(topology))
    for part in _parts(made):
        change = costs.of(part.name)
        if change == EdgeCosts():
            continue
        for key in part.keys:
            value = part.fields.get(key)
            if value not in (None, "none"):
                part.fields[key] = (
                    rate_text(parse_beta(value) * change.beta)
                    if key == "bandwidth"
                    else time_text(round(parse_time(value) * change.alpha))
                )
        if part.crossing and part.name in bare:
            part.fields["alpha"] = time_text(change.added)
    rates = {"copy_bandwidth": costs.local.copy_beta, "reduce_bandwidth": costs.local.reduce_beta}
    local: Fields = {key: rate_text(beta) for key, beta in rates.items() if beta}
    if costs.local.launch:
        local["launch"] = time_text(costs.local.launch)
    if local or "local" in made:
        made["local"] = local
    return made


_ALL = ("alpha", "overhead", "bandwidth")


@dataclass(frozen=True, slots=True)
class _Part:
    """A record of a file that has costs, `fields`, and the `name` of the class of its edges.

    The fields that are costs are `keys`. A `crossing` gets an alpha where the class has none.
    """

    fields: Fields
    name: str
    keys: Sequence[str] = _ALL
    crossing: bool = True


def _parts(document: Fields) -> Iterator[_Part]:
    nodes = document.get("nodes") or [document.get("node")]
    for node in nodes if isinstance(nodes, list) else ():
        for fields in _listed(node, "wires", "switches"):
            yield _Part(fields, INSIDE)
        for nic in _listed(node, "nics"):
            yield _Part(nic, BETWEEN, ("bandwidth",), crossing=False)
            yield from (_Part(pcie, BETWEEN, crossing=False) for pcie in _nested(nic, "pcie"))
    for fabric in _nested(document, "fabric"):
        yield _Part(fabric, BETWEEN, ("alpha", "overhead"))
        yield from (_Part(uplink, BETWEEN) for uplink in _nested(fabric, "spine", "uplink"))


def _listed(node: object, *names: str) -> Iterator[Fields]:
    for name in names:
        entries = node.get(name) if isinstance(node, dict) else None
        yield from (entry for entry in entries or () if isinstance(entry, dict))


def _nested(fields: Fields, *names: str) -> Iterator[Fields]:
    """Yield the records below some names; one that is only a bandwidth becomes a record."""
    for name in names:
        value = fields.get(name)
        if value is not None and not isinstance(value, dict):
            value = fields[name] = {"bandwidth": value}
        if isinstance(value, dict):
            yield value


def time_text(time: Time) -> str:
    """Return a time as a file says it: ``0.7us``, exactly."""
    return f"{exact_us(min(time, MAX_TIME))}us"


def rate_text(beta: Fraction) -> str:
    """Return a beta as a bandwidth of six digits."""
    beta = min(max(beta, MIN_BETA), MAX_BETA)
    text = f"{float(1000 / beta):.6g}GB/s"
    return text if "e" not in text else beta_text(beta)


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
    """One measured `size` in bytes, in a `file`: it took `time` picoseconds.

    What is replayed for it are `replayed` bytes, whole chunks.
    """

    file: str
    size: int
    replayed: int
    time: Time


@dataclass(frozen=True, eq=False)
class Part:
    """What was measured of one collective: what its program, which is replayed, should take."""

    collective: str
    program: Program
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """One number that is fitted, of a `kind` of FITTED, in units of its own, from `least` on.

    It is of `what`, the class of edges or the local work, and the topology is at `start`.
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
    """An unknown after the fit: its value in its own units, a factor for alpha and beta.

    Whether the runs tell it from all others, `determined` says: TOLD, TOLD_IF or NOT_TOLD.
    """

    unknown: Unknown
    value: float
    determined: str


@dataclass(frozen=True, eq=False)
class Fit:
    """A topology, programs, and what was measured of them: `fitted` are kinds of FITTED."""

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
