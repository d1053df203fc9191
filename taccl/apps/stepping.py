"""Training steps on a topology: what one takes, what if, by which policy, and against what.

The collectives of a workload have their prices, and are played with its passes
(:mod:`taccl.training`). A collective is priced alone, on its group's part of the topology. The
algorithm of a call is a classical one by name, an engine's, the best of the classical ones, the
one that a library has for its size, what NCCL expects, a bound, or a latency and a bus bandwidth
(``alpha=10us,busbw=120GB/s``). Programs are made at sizes a factor of four apart, and replayed at
each call's own; what switches copy and add has no program, and its schedule is timed. Groups whose
parts of the topology are alike share what is found for one of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from taccl.collectives import build_collective, busbw_factor
from taccl.errors import InputError, LoweringError, NoScheduleError
from taccl.files import Document, read_document
from taccl.files.read import FieldPath
from taccl.report.steps import Policy, Stepped, What
from taccl.topology.edit import among
from taccl.topology.file import unreachable_pair
from taccl.topology.graph import EdgeId, Rank, Topology, whole
from taccl.training.operations import (
    Call,
    Meeting,
    Work,
    expanded,
    meetings_of,
    period_of,
    read_work,
    with_policy,
)
from taccl.training.simulation import Cost, Step, played
from taccl.training.workload import Workload
from taccl.units import Time, parse_beta, parse_time

if TYPE_CHECKING:
    from taccl.apps.programs import Target
    from taccl.model.schedule import Schedule
    from taccl.msccl.program import Program

TRIED = 3
"""Classical algorithms that are replayed: those whose textbook schedules end first."""

WAYS = ("best", "nccl", "bound")
"""What a collective may run by that is neither an algorithm, an engine, a library nor a table."""

LARGEST = 1 << 45
"""Bytes for which a program is made; it serves more."""

MANY_MOVES = 2000
"""Chunks times ranks above which the first program that runs stands for all of a schedule."""

COPIES = (1, 8)
"""Of a program, the second where costs are measured."""

Engine = Callable[[Topology, str, int, str], "Program | None"]

Alone = tuple[Time, tuple[Time, ...]]
"""Picoseconds that a call takes, and for how long it holds each edge of its group's part."""


@dataclass(eq=False)
class Algorithm:
    """An algorithm of a collective at about a size: its schedule, and programs made of it.

    `make`: makes them, once they are asked for; none: nothing could be made, and why.
    `schedule`: None where only programs are known.
    """

    make: "Callable[[], tuple[tuple[Program, ...], str]]"
    schedule: "Schedule | None" = None

    @cached_property
    def made(self) -> "tuple[tuple[Program, ...], str]":
        """The programs, or the reason why there are none."""
        return self.make()

    def at(self, topology: Topology, size: int) -> "Schedule | None":
        """Return the schedule on a `topology` at so many bytes."""
        from taccl.model.schedule import timed_anew

        return None if self.schedule is None else timed_anew(self.schedule, topology, size)


class Part(NamedTuple):
    """A group's part of a topology, and its edges there.

    Parts of one `form` are alike; those of one `shape` are but for what their edges cost.
    """

    topology: Topology
    edges: tuple[EdgeId, ...]
    form: int
    shape: int


@dataclass(eq=False)
class CallCosts:
    """What calls take on a `topology`, each found once.

    `via`: by what algorithm, where a call itself does not say it.
    `library`: from a collective and a size to the file that a library has for it, None: NCCL runs,
    and the number of ranks that it is for.
    `runtime`, `measured`: for whose constants programs are made and replayed, and whether they are
    charged what was measured there, or alpha-beta.
    `engine`: from a topology, a collective, bytes and the name of an engine to its program; None:
    engines can't be asked.
    `report`: is called with progress.
    """

    topology: Topology
    via: str = "best"
    library: Callable[[str, int], tuple[Path | None, int]] | None = None
    runtime: str = "executor"
    measured: bool = False
    engine: Engine | None = None
    report: Callable[[str], None] = lambda _line: None
    _parts: dict[tuple[Rank, ...], Part] = field(default_factory=dict)
    _forms: dict[object, int] = field(default_factory=dict)
    _alone: dict[tuple[int, Call], Alone] = field(default_factory=dict)
    _algorithms: dict[tuple[object, ...], tuple[Algorithm, ...]] = field(default_factory=dict)
    _ends: dict[tuple[tuple[Meeting, Time], ...], list[Time]] = field(default_factory=dict)

    @cached_property
    def target(self) -> "Target":
        """For whom programs are made."""
        from taccl.apps.programs import Target

        return Target(self.runtime, measured=self.measured)

    def cost(self, meeting: Meeting) -> Cost:
        """Return what a collective takes that all groups of a `meeting` call at once.

        Raises InputError when there is no such algorithm; NoScheduleError when ranks of a group
        can't reach one another.
        """
        loads = [0] * len(self.topology.edges)
        longest = 0
        for members in meeting.instances:
            time, held = self.alone(members, meeting.call)
            longest = max(longest, time)
            for edge, load in zip(self.part(members).edges, held, strict=True):
                loads[edge] += load
        return Cost.of(longest, loads)

    def part(self, members: tuple[Rank, ...]) -> Part:
        """Return what `members` of a group have of the topology."""
        if members not in self._parts:
            part, edges = among(self.topology, members)
            shape: tuple[object, ...] = (
                part.num_ranks, tuple((edge.tail, edge.head) for edge in part.edges),
                tuple(part.server_of.index(server) for server in part.server_of),
            )  # fmt: skip
            costs = (
                tuple((edge.alpha, edge.overhead, edge.beta) for edge in part.edges),
                tuple(replace(switch, name="") for switch in part.switches),
            )
            form, alike = (
                self._forms.setdefault(what, len(self._forms)) for what in ((shape, costs), shape)
            )
            self._parts[members] = Part(part, edges, form, alike)
        return self._parts[members]

    def alone(self, members: tuple[Rank, ...], call: Call) -> Alone:
        """Return what a `call` of a group with these `members` takes, with no other at once."""
        part = self.part(members)
        if len(members) == 1 or not call.size:
            return 0, (0,) * len(part.edges)
        if apart := unreachable_pair(part.topology):
            here, there = (members[rank] for rank in apart)
            raise InputError(
                f"rank {here} reaches rank {there} of group {call.group} only through other ranks",
                field="groups", fix="take ranks that links or switches join",
            )  # fmt: skip
        key = part.form, call._replace(group="")
        if key not in self._alone:
            via = call.via or self.via
            ways: Mapping[str, Callable[[Part, Call, str], Alone]] = {
                "library": self._by_library, "nccl": self._by_nccl, "bound": self._by_bound,
                "alpha": self._by_table, "busbw": self._by_table,
            }  # fmt: skip
            way = ways.get(via.partition("=")[0], self._by_program)
            self._alone[key] = way(part, call, via)
        return self._alone[key]

    def on(self, topology: Topology) -> "CallCosts":
        """Return what the same programs take on a `topology` that differs only in its costs."""
        return CallCosts(
            topology, self.via, self.library, self.runtime, self.measured, self.engine, self.report,
            _forms=self._forms, _algorithms=self._algorithms,
        )  # fmt: skip

    # Ways to find it

    def _by_program(self, part: Part, call: Call, via: str) -> Alone:
        """Replay programs of one or several algorithms."""
        return self._quickest(self._algorithms_of(part, call, via), part.topology, call.size)[1]

    def _algorithms_of(self, part: Part, call: Call, via: str) -> tuple[Algorithm, ...]:
        """Return algorithms for a call of about its size, of which the quickest counts."""
        least = 64 * part.topology.num_ranks
        size = 1 << (min(max(call.size, least), LARGEST).bit_length() + 1) // 2 * 2
        key = part.shape, call.collective, size, via
        if key not in self._algorithms:
            self.report(f"{call.collective} by {via} on {part.topology.num_ranks} ranks")
            self._algorithms[key] = self._made(part.topology, call.collective, size, via)
        return self._algorithms[key]

    def program(self, members: tuple[Rank, ...], call: Call) -> "tuple[Program, int]":
        """Return the program that a `call` of these `members` runs, and at how many bytes.

        Raises as :meth:`alone` does, and InputError where it has none.
        """
        part = self.part(members)
        via = call.via or self.via
        known: tuple[Algorithm, ...] = ()
        if via == "library":
            known = self._served(part, call)
        elif has_programs(via):
            known = self._algorithms_of(part, call, via)
        if not known:
            raise InputError(
                f"{call.collective} of {call.size} bytes by {via} has no program",
                field="--together", fix="use --together fluid, or an algorithm",
            )  # fmt: skip
        best, _ = self._quickest(known, part.topology, call.size)
        if best is None:
            raise InputError(
                f"{call.collective} of {call.size} bytes is copied and added by switches, as no"
                " program says", field="--together",
                fix="use --together fluid, or --in-network off",
            )  # fmt: skip
        return best, whole_units(best, call.size)

    def _made(
        self, topology: Topology, collective: str, size: int, via: str
    ) -> tuple[Algorithm, ...]:
        """Return algorithms for a collective of about so many bytes; the quickest counts."""
        from taccl.model.problem import problem_of
        from taccl.synth.search import opening
        from taccl.synth.templates.classical import CLASSICAL, classical_schedules

        found = build_collective(collective, topology.num_ranks, 1)
        problem = problem_of(topology, found, size)
        if via in CLASSICAL:
            made = [(via, one) for one in classical_schedules(problem, via, batch=True)]
        elif via == "best":
            made = list(islice(opening(problem, batch=True), TRIED))
        else:
            solved = None if self.engine is None else self.engine(topology, collective, size, via)
            return () if solved is None else (Algorithm(lambda: ((solved,), "")),)
        if not made:
            raise NoScheduleError(
                f"{via} can't do {collective} on {topology.num_ranks} ranks of {topology.name}:"
                " it does not exist there",
                fix="give --in-network on where the topology file says that switches copy and add"
                if asks_switches(via) else "use --via auto",
            )  # fmt: skip
        # With measured costs a replay may end before the schedule.
        return tuple(
            Algorithm(partial(self._lowered, name, one, size), None if self.measured else one)
            for name, one in made
        )

    def _lowered(
        self, name: str, schedule: "Schedule", size: int
    ) -> "tuple[tuple[Program, ...], str]":
        """Return the programs of a schedule by protocol and number of copies, or why not."""
        from taccl.apps.programs import lowering_of

        collective, topology = schedule.collective, schedule.topology
        target = replace(self.target, min_bytes=1, max_bytes=1 << 50)
        protocols = target.protocols(collective.name, topology) if self.measured else ()
        kept: list[Program] = []
        reason = ""
        # Variants of programs this large take seconds, and gain little.
        many = collective.num_chunks * topology.num_ranks > MANY_MOVES
        # With measured costs a threadblock may be slower than its links: copies share its work.
        for copies in COPIES if self.measured else COPIES[:1]:
            quick = replace(target, measured=False, instances=copies)
            try:
                program, _ = lowering_of(schedule, quick, size, name, lambda: many).best
            except LoweringError as error:
                reason = error.problem
                continue
            kept += [replace(program, protocol=one) for one in protocols or (program.protocol,)]
        return tuple(kept), reason

    def _quickest(
        self, known: Sequence[Algorithm], topology: Topology, size: int
    ) -> "tuple[Program | None, Alone]":
        """Return the program that takes least at so many bytes, or the next that it can have.

        Programs are made in order of when their schedules end, until one ends before the next
        schedule does. None: switches copy and add, and it ends when its schedule does.
        """
        from taccl.replay.timing import traces

        best: tuple[Program | None, Alone] | None = None
        reason = "there is no program"
        timed = ((one, one.at(topology, size)) for one in known)
        for algorithm, own in sorted(timed, key=lambda pair: pair[1].makespan if pair[1] else 0):
            if own and best is not None and best[1][0] <= own.makespan:
                break
            if own and len(own.fans):
                best = None, (own.makespan, own.edge_busy)
                break
            programs, why = algorithm.made
            reason = why or reason
            for program in programs:
                whole_size = whole_units(program, size)
                (trace,) = traces(program, topology, [whole_size], self.target.model)
                reason = trace.reason or reason
                if trace.time is not None and (best is None or trace.time < best[1][0]):
                    best = program, (trace.time, trace.edge_busy)
        if best is None and known and not any(one.made[0] for one in known):
            raise NoScheduleError(
                f"nothing could be lowered for {topology.num_ranks} ranks of {topology.name}:"
                f" {reason}", fix="use --via auto",
            )  # fmt: skip
        if best is None:
            raise InputError(
                f"nothing runs at {size} bytes: {reason}", field="--via",
                fix="use another algorithm",
            )  # fmt: skip
        return best

    def together(self, running: Sequence[tuple[Meeting, Time]]) -> list[Time]:
        """Return when collectives end that begin at given times, by replay of all their programs.

        Raises InputError where one has no program, or all together have too many messages.
        """
        from taccl.replay.disturbed import Load, Setup, ends_together, on_ranks
        from taccl.replay.scenario import ScenarioFile, bind

        key = tuple(running)
        if key not in self._ends:
            scenario = ScenarioFile(taccl="scenario/1", name="together")
            empty = bind(scenario, Document({}, None), self.topology)
            rows = []
            for number, (meeting, start) in enumerate(running):
                for members in meeting.instances:
                    if len(members) > 1:
                        program, size = self.program(members, meeting.call)
                        everywhere = on_ranks(program, members, self.topology.num_ranks)
                        rows.append((number, Load(everywhere, size, start)))
            setup = Setup(self.topology, self.target.model, empty)
            found = [start for _, start in running]
            ends = ends_together(setup, [load for _, load in rows])
            for (number, _), end in zip(rows, ends, strict=True):
                found[number] = max(found[number], end)
            self._ends[key] = found
        return self._ends[key]

    def _by_library(self, part: Part, call: Call, _via: str) -> Alone:
        """Replay the file that a library has for a size; where it has none, NCCL runs."""
        programs = self._served(part, call)
        if not programs:
            return self._by_nccl(part, call, "nccl")
        return self._quickest(programs, part.topology, call.size)[1]

    def _served(self, part: Part, call: Call) -> tuple[Algorithm, ...]:
        """Return the program of the file that a library has for a size, if it has one."""
        from taccl.apps.inputs import read_program

        if self.library is None:
            raise InputError("is not given", field="--library", fix="name a directory")
        file, ranks = self.library(call.collective, call.size)
        if ranks != part.topology.num_ranks:
            raise InputError(
                f"is for {ranks} ranks, and group {call.group} has {part.topology.num_ranks}",
                field="--library", fix="give calls of this group another algorithm (via:)",
            )  # fmt: skip
        if file is None:
            return ()
        key = part.shape, str(file)
        if key not in self._algorithms:
            program = read_program(file)
            self._algorithms[key] = (Algorithm(lambda: ((program,), "")),)
        return self._algorithms[key]

    def _by_nccl(self, part: Part, call: Call, _via: str) -> Alone:
        """Return what NCCL's own formulas expect."""
        from taccl.replay.nccl import fastest, machine_of

        choice = fastest(machine_of(part.topology), call.collective, call.size)
        if choice is None:
            raise InputError(
                f"NCCL has no model of {call.collective}", field="--via", fix="use best"
            )
        return choice.time, self._traffic(part, call, choice.time)

    def _by_bound(self, part: Part, call: Call, _via: str) -> Alone:
        """Return the least that any algorithm takes."""
        from taccl.bounds import ANY, any_bounds, best

        collective = build_collective(call.collective, part.topology.num_ranks, 1)
        time = best(any_bounds(whole(part.topology), collective, call.size, world=ANY)).time
        return time, self._traffic(part, call, time)

    def _by_table(self, part: Part, call: Call, via: str) -> Alone:
        """Return what a latency and a bus bandwidth say."""
        alpha, beta = read_table(via)
        factor = busbw_factor(call.collective, part.topology.num_ranks)
        time = alpha + int(call.size * factor * beta)
        return time, self._traffic(part, call, time)

    def _traffic(self, part: Part, call: Call, time: Time) -> tuple[Time, ...]:
        """Return for how long edges are held where no program says it: what a rank has to send.

        Edges that leave a rank, or enter it, share that evenly; no edge is held for longer than
        the call takes.
        """
        topology = part.topology
        size = call.size * busbw_factor(call.collective, topology.num_ranks)
        ways = (
            [0] * (topology.num_ranks + len(topology.switches)),
            [0] * (topology.num_ranks + len(topology.switches)),
        )
        for edge in topology.edges:
            ways[0][edge.tail] += 1
            ways[1][edge.head] += 1
        held = []
        for edge in topology.edges:
            out, into = edge.tail < topology.num_ranks, edge.head < topology.num_ranks
            share = ways[0][edge.tail] if out else ways[1][edge.head]
            beta = edge.beta if out or into else None
            held.append(0 if beta is None else min(time, int(size * beta / share)))
        return tuple(held)


def whole_units(program: "Program", size: int) -> int:
    """Return `size` in bytes, or the next that a `program` can have."""
    from taccl.apps.inputs import unit_of

    unit = unit_of(program)
    return -(-size // unit) * unit


def quicker(topology: Topology, times: int = 2) -> tuple[Topology, str]:
    """Return a `topology` whose slowest kind of edges is so many `times` as fast, and its name.

    These are the edges between servers; of one server all.
    """
    server = topology.server_of
    joined = topology.num_servers > 1
    inside = {
        edge
        for number in range(len(topology.links))
        for link in [topology.link(number)]
        if joined and server[link.src] == server[link.dst]
        for edge in link.edges
    }
    edges = [
        edge if edge.beta is None or edge.id in inside
        else replace(edge, beta=Fraction(edge.beta, times))
        for edge in topology.edges
    ]  # fmt: skip
    what = "links between servers" if joined else "links"
    return topology.with_costs(edges), what


def read_table(via: str) -> tuple[Time, Fraction]:
    """Return the latency and the picoseconds for each byte in a text: alpha=10us,busbw=120GB/s.

    Raises InputError when it is no such text.
    """
    pieces = via.split(",")
    given = dict(piece.partition("=")[::2] for piece in pieces)
    fix = "write alpha=10us,busbw=120GB/s"
    if set(given) != {"alpha", "busbw"} or len(pieces) > len(given):
        raise InputError(
            f"should be a latency and a bus bandwidth, got {via[:80]!r}", field="--via", fix=fix
        )
    try:
        return parse_time(given["alpha"]), parse_beta(given["busbw"])
    except InputError as error:
        raise InputError(error.problem, field="--via", fix=error.fix or fix) from None


def check_via(via: str, *, library: bool) -> None:
    """Refuse a `via` that names neither an algorithm, an engine, nor another way.

    There may be a `library`.

    Raises InputError.
    """
    if "=" in via:
        read_table(via)
        return
    if via in WAYS or (library and via == "library"):
        return
    from taccl.synth.search import engine_names

    known = (*WAYS, *(("library",) if library else ()), *engine_names())
    if via not in known:
        raise InputError(
            f"there is no {via[:80]!r}", field="--via",
            fix=f"use alpha=10us,busbw=120GB/s, or one of {', '.join(known)}",
        )  # fmt: skip


def asks_switches(via: str) -> bool:
    """Tell whether a `via` names an algorithm of switches that copy and add."""
    if "=" in via or via in WAYS:
        return False
    from taccl.synth.templates.in_network import IN_NETWORK

    return via in IN_NETWORK


def has_programs(via: str) -> bool:
    """Tell whether a `via` runs programs, which can be replayed side by side."""
    return "=" not in via and via not in ("nccl", "bound")


BUCKETS = (1 << 20, 25 << 20, 100 << 20, None)
ORDERS = (("fifo", None, "step"), ("priority", 4 << 20, "layer"))
OVERLAPS = ("backward", "none")
"""What a sweep tries."""


class Price(NamedTuple):
    """What collectives take.

    `cost`: from a collective that groups call at once to what it takes.
    `together`: from collectives, and when each begins, to when each ends; None: they share edges as
    fluids.
    """

    cost: Callable[[Meeting], Cost]
    together: Callable[[Sequence[tuple[Meeting, Time]]], Sequence[Time]] | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a workload.

    `files`: a workload file, or another tool's: a table of layers (CSV), SimAI's text (.txt), or
    Chakra traces (.et), one for all ranks or one each.
    `topology`: where it runs.
    `profile`, `via`: how results name what messages are charged, and the algorithm.
    `price`: what collectives take.
    `what_ifs`: the same under other conditions, by what these are.
    `against`: the same by another algorithm, by its name.
    `steps`: steps that are played.
    `sweep`: whether policies are tried.
    `library`: whether there is one that calls may ask for.
    """

    files: tuple[str, ...]
    topology: Topology
    profile: str
    via: str
    price: Price
    what_ifs: Mapping[str, Price] = field(default_factory=dict)
    against: Mapping[str, Price] = field(default_factory=dict)
    steps: int = 6
    sweep: bool = False
    library: bool = False


READERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    ".csv": ("workloads", "read_layer_table"),
    ".et": ("chakra", "read_chakra"),
    ".txt": ("workloads", "read_simai"),
})  # fmt: skip
"""By the suffix of a file, the module and function that read it; others are workload files."""

MANY = (".et",)
"""Of these there may be several: one for each rank."""


def load_work(files: Sequence[str], ranks: int, *, library: bool) -> Workload | Work:
    """Return the workload in some `files`, or the work of traces, for so many `ranks`.

    Calls may ask for a `library` if there is one.

    Raises InputError when a file can't be used, or is for another number of ranks.
    """
    kind = Path(files[0]).suffix.lower()
    if len(files) > 1 and kind not in MANY:
        raise InputError(
            f"is one of {len(files)} files", file=files[1],
            fix=f"give one workload, or traces ({', '.join(MANY)})",
        )  # fmt: skip
    if kind in READERS:
        module, function = READERS[kind]
        read = getattr(import_module(f"taccl.imports.{module}"), function)
        imported: Workload | Work = read(files if kind in MANY else files[0], ranks)
        return imported
    document = read_document(files[0])
    found = read_work(document)
    for path, via in _ways(found):
        try:
            check_via(via, library=library)
        except InputError as error:
            raise document.error(error.problem, path, error.fix or "use best") from None
    told = found.record.ranks if isinstance(found, Workload) else found.ranks
    if told != ranks:
        raise document.error(
            f"is {told}, and the topology has {ranks} ranks", ("ranks",),
            "change one of them, or give --nodes",
        )  # fmt: skip
    return found


def _ways(found: Workload | Work) -> Iterator[tuple[FieldPath, str]]:
    """Yield the algorithms that calls of a workload ask for themselves, and where."""
    if not isinstance(found, Workload):
        asked = {one.call.via for own in found.operations for one in own if one.call is not None}
        yield from ((("ops",), via) for via in sorted(asked) if via)
        return
    record = found.record
    for number, sync in enumerate(record.sync):
        if sync.via is not None:
            yield ("sync", number, "via"), sync.via
    for number, layer in enumerate(found.layers):
        for place, call in enumerate(layer.comm):
            if call.via is not None:
                yield ("layers", number, "comm", place, "via"), call.via


def step(question: Question) -> Stepped:
    """Return what a step of a workload takes, and all else that the `question` asks.

    Raises InputError when something in it can't be used.
    """
    found = load_work(question.files, question.topology.num_ranks, library=question.library)
    steps = question.steps
    if isinstance(found, Workload):
        steps = max(steps, 4 * period_of(found.record))
    work = expanded(found, steps) if isinstance(found, Workload) else found

    nothing = Cost.of(0, [0] * len(question.topology.edges))
    conditions = {"communication took no time": Price(lambda _: nothing), **question.what_ifs}
    policies: tuple[Policy, ...] = ()
    if question.sweep and isinstance(found, Workload):
        policies = tuple(sorted(_swept(question, found, steps), key=lambda one: one.step.time))
    return Stepped(
        work, question.topology.name, question.profile, question.via, under(work, question.price),
        tuple(What(name, under(work, price)) for name, price in conditions.items()),
        next((What(name, under(work, price)) for name, price in question.against.items()), None),
        policies,
    )  # fmt: skip


def under(work: Work, price: Price) -> Step:
    """Return what a step of some `work` takes at a `price`.

    Raises InputError when operations wait for one another for ever, or a call can't run.
    """
    known: dict[Meeting, Cost] = {}
    found: dict[tuple[int, int], Cost] = {}
    for (number, own), meeting in meetings_of(work).items():
        if own == meeting.first:
            if meeting not in known:
                known[meeting] = price.cost(meeting)
            found[number, own] = known[meeting]
    if price.together is None:
        return played(work, found)
    replay, meeting_of = price.together, {id(cost): meeting for meeting, cost in known.items()}
    return played(
        work, found, lambda running: replay([(meeting_of[id(cost)], at) for cost, at in running])
    )


def _swept(question: Question, workload: Workload, steps: int) -> Iterator[Policy]:
    """Yield policies with what a step takes."""
    for bucket, (order, partition, wait), overlap in product(BUCKETS, ORDERS, OVERLAPS):
        if overlap == "none" and order == "priority":
            continue
        changed = with_policy(
            workload, bucket=bucket, order=order, partition=partition, wait=wait, overlap=overlap
        )
        work = expanded(changed, steps)
        one = under(work, question.price)
        yield Policy(bucket, order, partition, wait, overlap, one)
