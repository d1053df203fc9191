"""From times that nccl-tests measured to the costs of a topology, and to a file that has them.

A calibration is told as text and as JSON: every size before and after, and what has changed.

The replay is fitted to the measured times: least squares on the relative error of every size. The
unknowns are factors of the alphas and of the betas of each class of edges, the launch, and the
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
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.apps.inputs import (
    MachineOptions,
    asked_collective,
    load_collective,
    load_machine,
    read_program,
)
from taccl.apps.programs import Target, textbook_program
from taccl.collectives import Collective
from taccl.errors import InputError, did_you_mean
from taccl.imports.nccl_tests import Measured, Point, read_runs
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.timing import traces
from taccl.synth.templates.classical import CLASSICAL
from taccl.topology.core_form import topology_document
from taccl.topology.file import document_of, document_text, topology_from_document
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import (
    MAX_BETA,
    MAX_SIZE,
    MAX_TIME,
    MIN_BETA,
    Time,
    beta_text,
    exact_us,
    format_size,
    microseconds,
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
