"""One candidate of a search: its text, and what is known of its programs once it has run.

A candidate is one search for a schedule, with everything that its result depends on, as plain text
(JSON): any executor can carry it to any machine, and two tasks whose texts have one hash have one
result. Running it makes the schedule, its programs by the lowering's own choices, each judged, and
replays each at all sizes in every protocol. A protocol changes no step (but LL on rccl, where no
step may wait for a send): it says how many bytes a message holds, how many messages a connection
holds, and how many bytes go over the wire for each byte of data. What LL saves in latency is not in
the model, only what it costs.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import taccl
from taccl.apps.inputs import charged, logical_group
from taccl.apps.programs import Lowering, Scorer, Target
from taccl.bounds import POINT_TO_POINT, any_bounds, best, fixed_floor
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import (
    LoweringError,
    NoScheduleError,
    ScheduleError,
    SolverUnavailableError,
    TacclError,
)
from taccl.files import parse_document
from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import has_open_sends
from taccl.msccl.program import Program
from taccl.msccl.run import largest_safe_size
from taccl.msccl.runtimes import RUNTIMES
from taccl.msccl.xml import read_xml, write_xml
from taccl.replay.timing import traces
from taccl.sketch import apply_sketch
from taccl.sketch.native import read_native
from taccl.sketch.taccl_json import is_taccl_json, read_taccl_json
from taccl.synth.search import solve
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.topology.file import topology_from_document
from taccl.topology.graph import LogicalTopology, whole
from taccl.units import Time, counted
from taccl.verify import require_valid

PACKAGES = ("ortools", "highspy", "numpy", "scipy", "numba", "igraph")
"""What results depend on, beside this program."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One candidate: the schedule of a `collective` of COLLECTIVES, and copies of its program.

    The `engine` of ENGINES or CLASSICAL searches for `size` bytes in `chunks` for each rank (and
    pair), with a `sketch` by its place, None: the whole topology, for `effort` seconds, or work
    counted in the place of seconds. The `seed` is for the solvers; with `batch` chunks may travel
    together, in one message. There are so many `instances`; 0: as many as the replay finds worth
    it.
    """

    collective: str
    engine: str
    size: int
    chunks: int = 1
    sketch: int | None = None
    instances: int = 0
    effort: float = 0.0
    seed: int = 0
    batch: bool = True

    @property
    def is_classical(self) -> bool:
        """Whether it is a classical algorithm, and no search."""
        return self.engine in CLASSICAL

    def told(self, sketches: Sequence[str] = ()) -> str:
        """Return the candidate in words."""
        words = [self.engine, f"{counted(self.chunks, 'chunk')} a rank"]
        if not self.batch:
            words.append("one to a message")
        if self.sketch is not None and self.sketch < len(sketches):
            words.append(f"sketch {sketches[self.sketch]}")
        if self.instances > 1:
            words.append(f"{self.instances} instances")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Machine:
    """The network that a candidate is for: texts of a topology, in the core form, and a sketch."""

    topology: str
    sketch: str | None = None

    @property
    def digest(self) -> str:
        """The hash of both."""
        return digest_of([self.topology, self.sketch])


@dataclass(frozen=True, slots=True)
class Setting:
    """What all candidates of a run share.

    The `machines` are the network without a sketch, then under each sketch, by `names`. At `sizes`
    in bytes, ascending, every program is replayed, for a `runtime` of RUNTIMES and each of
    `protocols`, the preferred one first. Searches that are `deterministic` count work instead of
    seconds. Where costs are `measured`, programs are charged those of the machine.
    """

    machines: tuple[Machine, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    runtime: str
    protocols: tuple[str, ...] = ("Simple", "LL128", "LL")
    deterministic: bool = True
    measured: bool = False

    def task(self, spec: Spec) -> str:
        """Return a candidate as text, with all that its result depends on."""
        machine = self.machines[0 if spec.sketch is None else spec.sketch + 1]
        return canonical({
            "spec": asdict(spec),
            "topology": machine.topology,
            "sketch": machine.sketch,
            "sizes": list(self.sizes),
            "runtime": self.runtime,
            "protocols": list(self.protocols),
            "deterministic": self.deterministic,
            "measured": self.measured,
            "versions": versions(),
            "code": code_digest(),
        })  # fmt: skip


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value's JSON text."""
    return key_of(canonical(value))


def key_of(task: str) -> str:
    """Return the name of a task's result: the SHA-256 of its text."""
    return hashlib.sha256(task.encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return the hash of this package's source files."""
    found = hashlib.sha256()
    root = Path(taccl.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    found = {"taccl": taccl.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


MOST_ITERATIONS = 64
"""Messages that a chunk may be cut into for LL to be replayed: its twice the bytes can't win."""

OTHER_VERSION = "a worker has another version of taccl"


@dataclass(frozen=True, slots=True)
class Played:
    """One program in one protocol of PROTOCOLS, with its time in picoseconds at every size.

    Its file is `xml`, packed; its protocol and range are still to be set. It can't run where a time
    is None, and can't deadlock up to `safe`, a size of the run, in bytes; those of a buffer must be
    a multiple of `divisor`. It has so many `steps` and `threadblocks` in all, of so many
    `instances`.
    """

    xml: str
    protocol: str
    times: tuple[Time | None, ...]
    safe: int
    divisor: int
    steps: int
    threadblocks: int
    instances: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate, by its `spec`: its programs, `played`.

    Where there is none the `reason` says why, and `failed` whether a process was lost, and not an
    answer given; if `passing`, another try may end otherwise: a worker was lost, or had no memory,
    or was ended. The `makespan` of the schedule is in picoseconds, at the size it was made for.
    """

    spec: Spec
    played: tuple[Played, ...] = ()
    makespan: Time = 0
    reason: str = ""
    failed: bool = False
    passing: bool = False

    def text(self) -> str:
        """Return it as JSON."""
        return canonical(asdict(self))


def read_outcome(text: str) -> Outcome:
    """Return the outcome that a text says."""
    fields = json.loads(text)
    played = tuple(Played(**{**one, "times": tuple(one["times"])}) for one in fields.pop("played"))
    return Outcome(**{**fields, "spec": Spec(**fields["spec"]), "played": played})


def run_task(task: str) -> str:
    """Run a candidate; every executor calls this, in whatever process."""
    fields = json.loads(task)
    spec = Spec(**fields["spec"])
    if fields["code"] != code_digest():
        return Outcome(spec, reason=OTHER_VERSION, failed=True).text()
    try:
        asked = _Asked(
            spec, _network(fields["topology"], fields["sketch"]), tuple(fields["sizes"]),
            fields["runtime"], tuple(fields["protocols"]), deterministic=fields["deterministic"],
            measured=fields["measured"],
        )  # fmt: skip
        return _outcome(asked).text()
    except (ScheduleError, SolverUnavailableError) as error:
        return Outcome(spec, reason=str(error), failed=True).text()
    except TacclError as error:
        return Outcome(spec, reason=error.problem).text()
    except MemoryError:
        return Outcome(spec, reason="out of memory", failed=True, passing=True).text()


@lru_cache(maxsize=8)
def _network(topology: str, sketch: str | None) -> LogicalTopology:
    network = topology_from_document(parse_document(topology, "topology").value)
    if sketch is None:
        return whole(network, network.rotations)
    document = parse_document(sketch, "sketch")
    read = read_taccl_json if is_taccl_json(document.value) else read_native
    return apply_sketch(network, read(document))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A task, read."""

    spec: Spec
    logical: LogicalTopology
    sizes: tuple[int, ...]
    runtime: str
    protocols: tuple[str, ...]
    deterministic: bool
    measured: bool


def _outcome(asked: _Asked) -> Outcome:
    """Return what became of a candidate; raise why it has no program."""
    spec = asked.spec
    instances = spec.instances or (1 if spec.is_classical else None)
    target = Target(
        asked.runtime, instances=instances, min_bytes=asked.sizes[0], max_bytes=asked.sizes[-1]
    ).within(asked.logical.channels)
    single = build_collective(spec.collective, asked.logical.topology.num_ranks, 1)
    if asked.measured:
        target = replace(target, measured=True, instances=None)
        known = target.protocols(spec.collective, asked.logical.topology)
        asked = replace(asked, logical=charged(asked.logical, single, spec.size, known))
    collective = single.cut(spec.chunks)
    group = logical_group(asked.logical, single)
    chunks = collective.chunks_in_size
    size = target.whole_size(spec.size, chunks) or target.divisor(chunks)
    chunk_size = chunk_size_of(collective, size)
    problem = Problem(asked.logical, collective, chunk_size, group, target.most_peers)
    scorer = Scorer(target, size, lambda _told: None)
    schedules = list(_schedules(asked, problem, size, scorer))
    played: list[Played] = []
    refused: TacclError | None = None
    for schedule in schedules:
        try:
            lowering = scorer.lowering(schedule, spec.engine)
            played += _played(asked, lowering) if lowering is not None else ()
        except (LoweringError, ScheduleError) as error:
            refused = refused or error
    if not played:
        raise refused or LoweringError("no program runs at any size")
    return Outcome(spec, tuple(played), min(one.makespan for one in schedules))


def _schedules(asked: _Asked, problem: Problem, size: int, scorer: Scorer) -> Iterator[Schedule]:
    """Yield the schedules of a candidate: the variants of a classical algorithm, or one."""
    spec = asked.spec
    if spec.is_classical:
        found = classical_schedules(problem.without_symmetry, spec.engine, batch=True)
        if not found:
            raise NoScheduleError(f"not for {spec.collective}, or not on these links")
        yield from found
        return
    options = Options(
        time_limit=spec.effort,
        batch=spec.batch,
        seed=spec.seed,
        workers=1,
        deterministic=asked.deterministic,
        floor=best(any_bounds(asked.logical, problem.collective, size, world=POINT_TO_POINT)).time,
        fixed_floor=fixed_floor(asked.logical, problem.collective, problem.chunk_size),
        score=scorer.score,
    )
    schedule = solve(problem, spec.engine, options).schedule
    if schedule is None:
        raise NoScheduleError("no schedule was found in time")
    require_valid(schedule, asked.logical)
    yield schedule


def _played(asked: _Asked, lowering: Lowering) -> Iterator[Played]:
    """Yield the best program of a schedule in every protocol, judged and replayed at all sizes."""
    lowering = lowering.settled()
    judged = lowering.proved()
    model, limits = lowering.target.model, RUNTIMES[asked.runtime]
    low, high = asked.sizes[0], asked.sizes[-1]
    for protocol in asked.protocols:
        own = judged
        if protocol in limits.open_sends and has_open_sends(judged):
            # Its steps must not wait for sends, so it is another program.
            target = replace(lowering.target, protocol=protocol)
            try:
                own = replace(lowering, target=target, made=None).proved()
            except LoweringError:
                continue
        program = replace(own, protocol=protocol, max_bytes=high)
        safe = most = largest_safe_size(program, asked.runtime, low, high)
        if protocol == "LL":
            longest = limits.message_bytes[protocol] * program.chunks_per_loop
            most = min(safe, MOST_ITERATIONS * longest)
        sizes = [size for size in asked.sizes if size <= most]
        found = traces(
            program, asked.logical.topology, sizes, model, protocol_costs=not model.measured
        )
        times = [*(trace.time for trace in found), *[None] * (len(asked.sizes) - len(sizes))]
        packed = base64.b85encode(zlib.compress(write_xml(own, asked.runtime).encode()))
        yield Played(
            packed.decode(), protocol, tuple(times), safe,
            lowering.target.divisor(lowering.schedule.collective.chunks_in_size),
            sum(len(block.steps) for _, block in program.blocks()),
            sum(len(gpu.threadblocks) for gpu in program.gpus), lowering.target.copies,
        )  # fmt: skip


@lru_cache(maxsize=64)
def program_of(played: Played, runtime: str) -> Program:
    """Return the program of a result, `played`, in its protocol, from XML of a `runtime`."""
    text = zlib.decompress(base64.b85decode(played.xml)).decode()
    return replace(read_xml(text, runtime=runtime), protocol=played.protocol)
