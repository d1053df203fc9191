"""The replay of programs on a machine that a scenario disturbs.

The rules are those of interpreter.py, and so are the times where nothing is disturbed. In addition

- background senders ask for their edges as threadblocks do, after those of the programs at one
  instant, each message when it is due or, if later, when the one before it has left;
- a threadblock of a late rank begins its first step late;
- what a slow rank sends, and its local work, take a multiple of their time, rounded up;
- a message is as fast as its edges are when it starts;
- a random delay of a message is more alpha: under the rule ``occupy`` it holds the edges, too. A
  connection delivers in order, so a message never arrives before the one sent before it;
- other programs have threadblocks, connections and FIFOs of their own. Of sends that a rank asks
  for at one instant those of the first program are served first, then those of the second.

The k-th message of a connection has the k-th delay of the connection's own stream of random
numbers, whatever else happens, so that programs and sizes are compared under the same luck. Delays
are whole picoseconds, the same on every machine: no floating point is involved.

Programs and background senders stand side by side as one set of threadblocks and connections.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from random import Random

from taccl.errors import InputError
from taccl.files import Document
from taccl.msccl.program import Gpu, Program
from taccl.replay.compile import (
    MAX_MESSAGES,
    ROUTED,
    Connection,
    Flight,
    columns_of,
    count_messages,
    split,
    why_not,
    wire,
)
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel
from taccl.replay.interpreter import (
    DUE,
    KINDS,
    LINK,
    WORKED,
    Action,
    Block,
    Compiled,
    Run,
    Trace,
    compile_program,
    deadlock,
    standstill,
)
from taccl.replay.scenario import Change, DistributionRecord, Flow, Scenario, ScenarioFile, bind
from taccl.topology.graph import EdgeId, Rank, Topology
from taccl.units import Time, ceil_time

ENDLESS = 1 << 62
"""Iterations of a background sender, and slots of its connection, which nobody empties."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """What runs side by side.

    The blocks of `compiled` are ordered by rank, then the first program's, the second's; the
    background's are last, one for each of the `flows`. `group_of_block` and `group_of_connection`
    say whose each is: the number of the program, of which there are `programs`, or one more than
    the last for the background.
    """

    compiled: Compiled
    group_of_block: tuple[int, ...]
    group_of_connection: tuple[int, ...]
    programs: int
    flows: tuple[Flow, ...] = ()

    @property
    def first_flow(self) -> int:
        """The block of the first background sender; as many as there are blocks when none."""
        return len(self.compiled.blocks) - len(self.flows)


def assemble(parts: Sequence[Compiled], flows: Sequence[Flow], topology: Topology) -> Assembly:
    """Put programs, compiled as ``parts`` on ``topology``, beside the background ``flows``."""
    parts = (*parts, _background(flows, topology))
    everyone = sorted(
        (block.rank, number, block.id) for number, part in enumerate(parts) for block in part.blocks
    )
    place = {key: index for index, key in enumerate(everyone)}
    blocks: dict[int, Block] = {}
    connections: list[Connection] = []
    senders: list[int | None] = []
    receivers: list[int | None] = []
    for number, part in enumerate(parts):
        # At the end, the number of a block that does not exist.
        places = [*(place[block.rank, number, block.id] for block in part.blocks), len(everyone)]
        block_at: dict[int | None, int | None] = {None: None, **dict(enumerate(places))}
        wire_at: dict[int | None, int | None] = {None: None}
        wire_at |= {old: old + len(connections) for old in range(len(part.connections))}
        for where, block in zip(places, part.blocks, strict=False):
            full, last = (
                tuple(
                    step._replace(needs=tuple((places[other], at) for other, at in step.needs))
                    for step in steps
                )
                for steps in (block.full, block.last)
            )
            blocks[where] = replace(
                block, full=full, last=last,
                receives_on=wire_at[block.receives_on], sends_on=wire_at[block.sends_on],
            )  # fmt: skip
        connections += part.connections
        senders += [block_at[block] for block in part.senders]
        receivers += [block_at[block] for block in part.receivers]
    compiled = Compiled(
        tuple(blocks[index] for index in range(len(everyone))), tuple(connections),
        tuple(senders), tuple(receivers), tuple(slots for part in parts for slots in part.slots),
        max(part.width for part in parts),
    )  # fmt: skip
    return Assembly(
        compiled,
        tuple(number for _, number, _ in everyone),
        tuple(number for number, part in enumerate(parts) for _ in part.connections),
        len(parts) - 1,
        tuple(flows),
    )


def _background(flows: Sequence[Flow], topology: Topology) -> Compiled:
    """Return the background as a program: each sender repeats one message for ever."""
    rank, blocks, connections = topology.num_ranks, [], []
    for number, flow in enumerate(flows):
        betas = ((edge, topology.edges[edge].beta) for edge in flow.edges)
        held = tuple((edge, beta) for edge, beta in betas if beta is not None)
        wire = Connection(rank, rank, number, ROUTED, flow.overhead, flow.overhead, held)
        message = Action(
            needs=(), receives=False, flight=wire.flight(flow.size), local=0, posts=-1,
            step=0, size=flow.size,
        )  # fmt: skip
        connections.append(wire)
        blocks.append(Block(rank, number, None, number, (message,), (message,), ENDLESS))
    count = len(blocks)
    return Compiled(
        tuple(blocks), tuple(connections), tuple(range(count)), (None,) * count,
        (ENDLESS,) * count, 1,
    )  # fmt: skip


def slowed(flight: Flight, factor: Fraction) -> Flight:
    """Return a ``flight`` that takes ``factor`` times its time, at least 1, rounded up."""
    releases = tuple((ceil_time(factor, time), edges) for time, edges in flight.releases)
    return Flight(ceil_time(factor, flight.arrival), releases)


def delayed(flight: Flight, delay: Time, *, occupies: bool) -> Flight:
    """Return a ``flight`` with a ``delay`` of more latency, in picoseconds.

    Where it ``occupies``, the edges are held for the delay, too.
    """
    releases = flight.releases
    if occupies:
        releases = tuple((time + delay if edges else time, edges) for time, edges in releases)
    return Flight(flight.arrival + delay, releases)


_BITS = 64


class Stream:
    """Delays that are drawn one after the other.

    `delay` is what is drawn, and `key` what the stream is for; equal keys give equal delays.
    """

    def __init__(self, delay: DistributionRecord, key: str) -> None:
        self.delay = delay
        self.random = Random(key)

    def draw(self) -> Time:
        """Return the next delay."""
        mean = self.delay.mean
        if self.delay.distribution == "uniform":
            return self.random.randrange(2 * mean + 1)
        return mean * self._exponential() >> _BITS

    def _exponential(self) -> int:
        """Return an exponential number of mean 1 in units of ``2 ** -64``.

        References
        ----------
        J. von Neumann, "Various techniques used in connection with random digits", 1951: the
        first of a falling run of uniform numbers is kept when the run has odd length; every run
        that is not kept adds one.
        """
        whole = 0
        while True:
            first = last = self.random.getrandbits(_BITS)
            length = 1
            while (following := self.random.getrandbits(_BITS)) < last:
                last = following
                length += 1
            if length % 2:
                return (whole << _BITS) + first
            whole += 1


MAX_IN_ALL_RUNS = 2 * MAX_MESSAGES
"""Messages and pieces of local work in all runs together: about a minute."""

MAX_BACKGROUND = 1_000_000
"""Background messages in one run."""


@dataclass(frozen=True, slots=True)
class Load:
    """A program at a size that it can run at, and when it starts."""

    program: Program
    size: int
    start: Time = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What programs do under a scenario.

    `trace` is the first program's, over all runs: mean time, messages, mean time of its messages on
    each edge. `times` and `others` are picoseconds of the first and of each other program in each
    run, launch included, from its own start; empty where it does not end. `background` has those
    of the messages of others that begin meanwhile, in all runs, from when they are due to when they
    are there.
    """

    trace: Trace
    times: tuple[Time, ...] = ()
    others: tuple[tuple[Time, ...], ...] = ()
    background: tuple[Time, ...] = ()


def mean_time(times: Sequence[Time]) -> Time | None:
    """Return the mean, rounded to the nearest picosecond."""
    return (2 * sum(times) + len(times)) // (2 * len(times)) if times else None


def percentile(times: Sequence[Time], percent: int) -> Time | None:
    """Return the least of ``times`` that ``percent`` percent (0 to 100) of them do not exceed."""
    ordered = sorted(times)
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1] if ordered else None


def weakened(topology: Topology, scenario: Scenario) -> Topology:
    """Return ``topology`` with what ``scenario`` leaves of its bandwidths throughout."""
    edges = tuple(
        edge if edge.beta is None else replace(
            edge, beta=edge.beta / scenario.factors.get(edge.id, Fraction(1))
        )
        for edge in topology.edges
    )  # fmt: skip
    return topology.with_costs(edges)


def check_up(program: Program, topology: Topology, scenario: Scenario, *, route: bool) -> None:
    """Refuse a ``program`` that sends over an edge of ``topology`` that is down in ``scenario``.

    ``route`` is as for :func:`taccl.replay.interpreter.replay`.

    Raises InputError with the place of the edge in the scenario's file, and the connection that
    needs it.
    """
    if not scenario.down:
        return
    wiring = wire(program, topology, route=route)
    for each, sender in zip(wiring.connections, wiring.senders, strict=True):
        routed = each.link == ROUTED
        crossed = dict(each.held) if routed else topology.links.edges_of(each.link)
        needed = [edge for edge in crossed if edge in scenario.down]
        if sender is not None and needed:
            raise scenario.document.error(
                f"edge {topology.edges[needed[0]].name} is down, and {program.name} needs it:"
                f" threadblock {sender[1]} of rank {each.src} sends to rank {each.dst} on"
                f" channel {each.channel}",
                scenario.down[needed[0]],
                "make a program for the machine without that edge, or write a factor",
            )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Setup:
    """Where and how programs run; ``route`` and ``protocol_costs`` as in interpreter.py."""

    topology: Topology
    model: ReplayModel
    scenario: Scenario
    route: bool = False
    protocol_costs: bool = False

    @cached_property
    def network(self) -> Topology:
        """The topology with what is left of its bandwidths throughout."""
        return weakened(self.topology, self.scenario)

    def factor(self, program: Program) -> Fraction:
        """Return the bytes on the wire for each byte of data."""
        return PROTOCOL_FACTOR[program.protocol] if self.protocol_costs else Fraction(1)

    def compile(self, load: Load) -> Compiled:
        """Return a program on the weakened topology, with the local work of slow ranks."""
        columns = columns_of(load.program, self.network, route=self.route)
        cut = split(load.program, load.size, self.model)
        made = compile_program(columns, cut, self.network.local, self.factor(load.program))
        if not self.scenario.slow:
            return made
        blocks = []
        for block in made.blocks:
            slow = self.scenario.slow.get(block.rank, Fraction(1))
            full, last = (
                tuple(step._replace(local=ceil_time(slow, step.local)) for step in steps)
                for steps in (block.full, block.last)
            )
            blocks.append(replace(block, full=full, last=last))
        return replace(made, blocks=tuple(blocks))

    def why_not(self, loads: Sequence[Load]) -> str:
        """Return why the programs can't be replayed; empty when they can."""
        for number, load in enumerate(loads):
            reason = why_not(load.program, load.size, self.model)
            if reason:
                return f"{load.program.name}: {reason}" if number else reason
        runs = self.scenario.runs
        total = runs * sum(count_messages(e.program, e.size, self.model) for e in loads)
        if total > MAX_IN_ALL_RUNS:
            return (
                f"needs {total} messages and copies in {runs} runs, of which at most"
                f" {MAX_IN_ALL_RUNS} are followed"
            )
        return ""


def disturbed(setup: Setup, loads: Sequence[Load]) -> Outcome:
    """Replay programs side by side, the ``loads``, in all runs of the scenario of a ``setup``.

    Raises InputError when a program needs an edge that is down; ProgramError when a program does
    not fit the topology.
    """
    first = loads[0]
    in_range = first.program.min_bytes <= first.size <= first.program.max_bytes
    for load in loads:
        check_up(load.program, setup.topology, setup.scenario, route=setup.route)
    reason = setup.why_not(loads)
    failed = Trace(first.program.name, first.size, None, reason, in_range)
    if reason:
        return Outcome(failed)
    launch = setup.topology.local.launch
    together = assemble(
        [setup.compile(load) for load in loads], setup.scenario.flows, setup.network
    )
    times: list[list[Time]] = [[] for _ in loads]
    busy = [0] * len(setup.topology.edges)
    messages = 0
    background: list[Time] = []
    for number in range(setup.scenario.runs):
        run = DisturbedRun(together, setup, loads, number)
        run.to_end()
        reason = reason or run.reason(0)
        messages = run.sent
        background += run.latencies
        busy = [old + new for old, new in zip(busy, run.own_busy, strict=True)]
        for group, load in enumerate(loads):
            if not run.reason(group):
                times[group].append(run.ended[group] - load.start + launch)
    trace = replace(
        failed, time=None if reason else mean_time(times[0]), reason=reason, messages=messages,
        edge_busy=tuple(total // setup.scenario.runs for total in busy),
    )  # fmt: skip
    first_times, *others = map(tuple, times)
    if reason:
        return Outcome(trace, (), tuple(others))
    return Outcome(trace, first_times, tuple(others), tuple(background))


def ends_together(setup: Setup, loads: Sequence[Load]) -> list[Time]:
    """Return when each of several programs ends, the `loads`, which run at once in a `setup`.

    Times are picoseconds from the start of the replay, launch included.

    Raises InputError when a program can't run at its size, or does not end.
    """
    if reason := setup.why_not(loads):
        raise _not_together(reason)
    parts = [setup.compile(load) for load in loads]
    run = DisturbedRun(assemble(parts, (), setup.network), setup, loads, 0)
    run.to_end()
    if reason := next(filter(None, map(run.reason, range(len(loads)))), ""):
        raise _not_together(reason)
    return [end + setup.topology.local.launch for end in run.ended[: len(loads)]]


def _not_together(reason: str) -> InputError:
    return InputError(f"programs can't be replayed side by side: {reason}", fix="send less")


class _Rates:
    """What changes leave of the bandwidth of edges, as time goes on."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.times = sorted({change.at for change in changes})
        self.factors: list[dict[EdgeId, Fraction]] = [{}]
        for time in self.times:
            now = {change.edge: change.factor for change in changes if change.at == time}
            self.factors.append({**self.factors[-1], **now})
        self.flights: dict[tuple[int, int, Fraction], Flight] = {}

    def flight(self, time: Time, number: int, wired: Connection, size: Fraction) -> Flight | None:
        """Return the course of a message on connection ``number``; None: as without changes."""
        factors = self.factors[period := bisect_right(self.times, time)]
        if not any(edge in factors for edge, _ in wired.held):
            return None
        key = (period, number, size)
        if key not in self.flights:
            held = tuple((edge, beta / factors.get(edge, 1)) for edge, beta in wired.held)
            self.flights[key] = replace(wired, held=held).flight(size)
        return self.flights[key]


class DisturbedRun(Run):
    """One run of programs under a scenario; see the module's text for what is added.

    `together` runs as `setup` and the `loads` of the programs say; `number` is which of the runs it
    is.
    """

    def __init__(
        self, together: Assembly, setup: Setup, loads: Sequence[Load], number: int
    ) -> None:
        super().__init__(together.compiled, len(setup.topology.edges), keep_spans=False)
        scenario, blocks = setup.scenario, together.compiled.blocks
        self.together, self.scenario = together, scenario
        self.first_flow = together.first_flow
        self.occupies = setup.topology.alpha_rule_stated == "occupy"
        self.rates = _Rates(scenario.changes) if scenario.changes else None
        factors = [*(setup.factor(load.program) for load in loads), Fraction(1)]
        self.wire_factor = [factors[group] for group in together.group_of_block]
        self.slow = [scenario.slow.get(block.rank, Fraction(1)) for block in blocks]
        delay, groups = scenario.message_delay, together.group_of_connection
        self.streams = [
            Stream(delay, f"{scenario.seed} {number} message {group} {c.src} {c.dst} {c.channel}")
            if delay is not None and group < together.programs
            else None
            for c, group in zip(together.compiled.connections, groups, strict=True)
        ]
        self.latest = [0] * len(together.compiled.connections)
        ranks = range(setup.topology.num_ranks)
        starts = [scenario.late.get(rank, 0) for rank in ranks]
        if scenario.start_delay is not None:
            for rank in ranks:
                key = f"{scenario.seed} {number} start {rank}"
                starts[rank] += Stream(scenario.start_delay, key).draw()
        self.due = [
            starts[block.rank] + loads[group].start if group < len(loads) else 0
            for block, group in zip(blocks, together.group_of_block, strict=True)
        ]
        self.due[self.first_flow :] = [flow.start for flow in together.flows]
        self.ended = [load.start for load in loads] + [0]
        self.own_busy = [0] * len(setup.topology.edges)
        self.sent = 0
        self.background = 0
        self.latencies: list[Time] = []
        self.few = sum(len(flow.edges) + 2 for flow in together.flows)

    def reason(self, group: int) -> str:
        """Return why a program did not end; empty when it did."""
        if self.background > MAX_BACKGROUND:
            return f"the background sends more than {MAX_BACKGROUND} messages meanwhile"
        end, whose = standstill(self), self.together.group_of_block
        waits = {block: wait for block, wait in end.waits.items() if whose[block] == group}
        return deadlock(replace(end, waits=waits))

    def goes_on(self) -> bool:
        """Tell whether anything of the programs is still to come."""
        if self.background > MAX_BACKGROUND:
            return False
        if not self.together.flows or len(self.heap) > self.few:
            return True
        if any(self._whose(code) < self.together.programs for _, code in self.heap):
            return True
        return any(phase == LINK for phase in self.phase[: self.first_flow])

    def course(self, block: int, flight: Flight) -> Flight:
        """Return the course of a message as fast as its edges and its sender are now."""
        number = self.outbound[block]
        if number is None:
            return flight
        group = self.together.group_of_connection[number]
        if self.rates is not None:
            size = self.actions[block][self.position[block]].size * self.wire_factor[block]
            wired = self.compiled.connections[number]
            flight = self.rates.flight(self.now, number, wired, size) or flight
        if self.slow[block] != 1:
            flight = slowed(flight, self.slow[block])
        stream = self.streams[number]
        if stream is not None:
            flight = delayed(flight, stream.draw(), occupies=self.occupies)
        if self.now + flight.arrival < self.latest[number]:
            flight = Flight(self.latest[number] - self.now, flight.releases)
        self.latest[number] = self.now + flight.arrival
        if block >= self.first_flow:
            self.latencies.append(self.now + flight.arrival - self.due[block])
        if group == 0:
            self.sent += 1
            for duration, edges in flight.releases:
                for edge in edges:
                    self.own_busy[edge] += duration
        return flight

    def _whose(self, code: int) -> int:
        """Return the group that an event belongs to."""
        index, kind = divmod(code, KINDS)
        of_block = kind in (WORKED, DUE)
        return (self.together.group_of_block if of_block else self.together.group_of_connection)[
            index
        ]

    def _complete_event(self, code: int) -> None:
        self.ended[self._whose(code)] = self.now
        super()._complete_event(code)

    def _await_flags(self, block: int) -> bool:
        """Wait for the time to begin, or until the next background message is due."""
        if self.now < self.due[block]:
            heapq.heappush(self.heap, (self.due[block], block * KINDS + DUE))
            return False
        return super()._await_flags(block)

    def _finish_action(self, block: int) -> None:
        super()._finish_action(block)
        if block >= self.first_flow:
            self.due[block] += self.together.flows[block - self.first_flow].period
            self.background += 1


@dataclass(frozen=True, slots=True)
class Placed:
    """A `program` of a group at a `size` in bytes that starts at a time (ps).

    Its rank r runs on rank ``ranks[r]`` of the machine.
    """

    program: Program
    ranks: tuple[Rank, ...]
    size: int
    start: Time = 0


def on_ranks(program: Program, ranks: Sequence[Rank], num_ranks: int) -> Program:
    """Return a `program` whose rank r is ``ranks[r]`` of `num_ranks`; the others have no steps."""
    gpus = [Gpu(rank, 0, 0, 0) for rank in range(num_ranks)]
    for gpu in program.gpus:
        blocks = (
            replace(
                block,
                send_to=None if block.send_to is None else ranks[block.send_to],
                recv_from=None if block.recv_from is None else ranks[block.recv_from],
            )
            for block in gpu.threadblocks
        )
        rank = ranks[gpu.rank]
        gpus[rank] = replace(gpu, rank=rank, threadblocks=tuple(blocks))
    return replace(program, gpus=tuple(gpus))


def times_together(
    placed: Sequence[Placed], topology: Topology, model: ReplayModel
) -> tuple[Time, ...]:
    """Return what each of some programs takes from its own start when all run at once.

    `model` has the constants of the runtime; times are picoseconds, launch included.

    Raises InputError when they do not end; ProgramError when connections have no links on the
    `topology`.
    """
    record = ScenarioFile(taccl="scenario/1", name="groups")
    nothing = bind(record, Document({}, None), topology)
    loads = [
        Load(on_ranks(one.program, one.ranks, topology.num_ranks), one.size, one.start)
        for one in placed
    ]
    ends = ends_together(Setup(topology, model, nothing), loads)
    return tuple(end - one.start for end, one in zip(ends, placed, strict=True))
