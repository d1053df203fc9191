"""The replay of a program on a machine that a scenario disturbs.

The rules are those of interpreter.py, and so are the times where nothing is disturbed. In addition

- background senders ask for their edges as threadblocks do, after those of the programs at one
  instant, each message when it is due or, if later, when the one before it has left;
- a threadblock of a late rank begins its first step late;
- what a slow rank sends, and its local work, take a multiple of their time, rounded up;
- a message is as fast as its edges are when it starts;
- a random delay of a message is more alpha: under the rule ``occupy`` it holds the edges, too. A
  connection delivers in order, so a message never arrives before the one sent before it;
- a second program has threadblocks, connections and FIFOs of its own. Of sends that a rank asks for
  at one instant those of the first program are served first.

The k-th message of a connection has the k-th delay of the connection's own stream of random
numbers, whatever else happens, so that programs and sizes are compared under the same luck.

Programs and background senders stand side by side as one set of threadblocks and connections.
Random delays are whole picoseconds, the same on every machine: no floating point is involved.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from random import Random

from taccl.msccl.program import Program
from taccl.replay.compile import (
    MAX_MESSAGES,
    ROUTED,
    Action,
    Block,
    Compiled,
    Connection,
    Flight,
    compile_program,
    count_messages,
    why_not,
    wire,
)
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel
from taccl.replay.interpreter import DUE, KINDS, LINK, WORKED, Run, deadlock, standstill
from taccl.replay.scenario import Change, Delay, Flow, Scenario
from taccl.replay.trace import Trace
from taccl.topology.graph import EdgeId, Topology
from taccl.units import Time, ceil_time

ENDLESS = 1 << 62
"""Iterations of a background sender, and slots of its connection, which nobody empties."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """What runs side by side.

    Parameters
    ----------
    compiled
        Threadblocks by rank, then the first program's, the second's; the background's last.
    group_of_block, group_of_connection
        Whose each is: the number of the program; of the background one more than the last.
    programs
        How many there are.
    flows
        The background senders, one for each of the last blocks.
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
    """Put compiled programs and background senders side by side.

    Parameters
    ----------
    parts
        The programs, compiled on the topology.
    flows
        The background senders.
    topology
        The machine.
    """
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
        places = [place[block.rank, number, block.id] for block in part.blocks]
        move = _Move((*places, len(everyone)), len(connections))
        blocks |= zip(places, map(move.moved, part.blocks), strict=True)
        connections += part.connections
        senders += map(move.block, part.senders)
        receivers += map(move.block, part.receivers)
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


@dataclass(frozen=True, slots=True)
class _Move:
    """How the numbers of a part become those of the whole.

    Parameters
    ----------
    places
        Where its blocks are; at the end, the number of a block that does not exist.
    connections
        How many there are before its own.
    """

    places: tuple[int, ...]
    connections: int

    def block(self, number: int | None) -> int | None:
        return None if number is None else self.places[number]

    def connection(self, number: int | None) -> int | None:
        return None if number is None else number + self.connections

    def moved(self, block: Block) -> Block:
        return replace(
            block,
            receives_on=self.connection(block.receives_on),
            sends_on=self.connection(block.sends_on),
            full=tuple(map(self._action, block.full)),
            last=tuple(map(self._action, block.last)),
        )

    def _action(self, action: Action) -> Action:
        if not action.needs:
            return action
        needs = tuple((self.places[other], position) for other, position in action.needs)
        return action._replace(needs=needs)


def _background(flows: Sequence[Flow], topology: Topology) -> Compiled:
    """Return the background as a program: each sender repeats one message for ever."""
    connections = tuple(_connections(flows, topology))
    blocks = []
    for number, (flow, connection) in enumerate(zip(flows, connections, strict=True)):
        message = Action(
            needs=(), receives=False, flight=connection.flight(flow.size), local=0, posts=-1,
            step=0, size=flow.size,
        )  # fmt: skip
        steps = (message,)
        blocks.append(Block(topology.num_ranks, number, None, number, steps, steps, ENDLESS))
    numbers = tuple(range(len(blocks)))
    return Compiled(
        tuple(blocks), connections, numbers, (None,) * len(blocks), (ENDLESS,) * len(blocks), 1
    )


def _connections(flows: Sequence[Flow], topology: Topology) -> Iterator[Connection]:
    for number, flow in enumerate(flows):
        betas = ((edge, topology.edges[edge].beta) for edge in flow.edges)
        held = tuple((edge, beta) for edge, beta in betas if beta is not None)
        slowest = max((beta for _, beta in held), default=Fraction(0))
        yield Connection(
            topology.num_ranks, topology.num_ranks, number, ROUTED, flow.overhead, flow.overhead,
            slowest, held,
        )  # fmt: skip


def slowed_time(time: Time, factor: Fraction) -> Time:
    """Return a multiple of a time, rounded up.

    Parameters
    ----------
    time
        Picoseconds.
    factor
        At least 1.
    """
    return ceil_time(factor, time)


def slowed_work(compiled: Compiled, slow: Sequence[Fraction]) -> Compiled:
    """Return a program in which the local work of each rank takes a multiple of its time.

    Parameters
    ----------
    compiled
        The program.
    slow
        Factor of each rank, at least 1.
    """

    def actions(steps: tuple[Action, ...], factor: Fraction) -> tuple[Action, ...]:
        return tuple(step._replace(local=slowed_time(step.local, factor)) for step in steps)

    blocks = tuple(
        block if slow[block.rank] == 1 else replace(
            block,
            full=actions(block.full, slow[block.rank]),
            last=actions(block.last, slow[block.rank]),
        )
        for block in compiled.blocks
    )  # fmt: skip
    return replace(compiled, blocks=blocks)


def slowed(flight: Flight, factor: Fraction) -> Flight:
    """Return the course of a message that takes a multiple of its time.

    Parameters
    ----------
    flight
        Arrival and releases of edges, in picoseconds from the start.
    factor
        At least 1.
    """
    releases = tuple((slowed_time(time, factor), edges) for time, edges in flight.releases)
    return Flight(slowed_time(flight.arrival, factor), releases)


def delayed(flight: Flight, delay: Time, *, occupies: bool) -> Flight:
    """Return the course of a message with more latency, which may hold its edges, too.

    Parameters
    ----------
    flight
        Arrival and releases of edges, in picoseconds from the start.
    delay
        Picoseconds.
    occupies
        Whether the edges are held for the delay, too.
    """
    releases = flight.releases
    if occupies:
        releases = tuple((time + delay if edges else time, edges) for time, edges in releases)
    return Flight(flight.arrival + delay, releases)


_BITS = 64


class Stream:
    """Delays that are drawn one after the other.

    Parameters
    ----------
    delay
        What is drawn.
    key
        What the stream is for; equal keys give equal delays.
    """

    def __init__(self, delay: Delay, key: str) -> None:
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

    Parameters
    ----------
    trace
        The first program's, over all runs: mean time, messages, mean time of its messages on
        each edge.
    times, others
        Picoseconds of the first and of the second program in each run, launch included, each
        from its own start; empty where it does not end.
    """

    trace: Trace
    times: tuple[Time, ...] = ()
    others: tuple[Time, ...] = ()


def mean_time(times: Sequence[Time]) -> Time | None:
    """Return the mean, rounded to the nearest picosecond."""
    return (2 * sum(times) + len(times)) // (2 * len(times)) if times else None


def percentile(times: Sequence[Time], percent: int) -> Time | None:
    """Return the least of the times that so many percent of them do not exceed.

    Parameters
    ----------
    times
        Picoseconds.
    percent
        0 to 100.
    """
    ordered = sorted(times)
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1] if ordered else None


def weakened(topology: Topology, scenario: Scenario) -> Topology:
    """Return the topology with what a scenario leaves of its bandwidths throughout.

    Parameters
    ----------
    topology
        The machine.
    scenario
        What disturbs it.
    """
    edges = tuple(
        edge if edge.beta is None else replace(
            edge, beta=edge.beta / scenario.factors.get(edge.id, Fraction(1))
        )
        for edge in topology.edges
    )  # fmt: skip
    return topology.with_costs(edges)


def check_up(program: Program, topology: Topology, scenario: Scenario, *, route: bool) -> None:
    """Refuse a program that sends over an edge that is down.

    Parameters
    ----------
    program
        What is run.
    topology
        The machine.
    scenario
        What disturbs it.
    route
        As for :func:`taccl.replay.interpreter.replay`.

    Raises
    ------
    InputError
        With the place of the edge in the scenario's file, and the connection that needs it.
    """
    if not scenario.down:
        return
    wiring = wire(program, topology, route=route)
    for each, sender in zip(wiring.connections, wiring.senders, strict=True):
        needed = [edge for edge in _crossed(each, topology) if edge in scenario.down]
        if sender is not None and needed:
            raise scenario.document.error(
                f"edge {topology.edges[needed[0]].name} is down, and {program.name} needs it:"
                f" threadblock {sender[1]} of rank {each.src} sends to rank {each.dst} on"
                f" channel {each.channel}",
                scenario.down[needed[0]],
                "make a program for the machine without that edge, or write a factor",
            )  # fmt: skip


def _crossed(connection: Connection, topology: Topology) -> tuple[EdgeId, ...]:
    if connection.link == ROUTED:
        return tuple(edge for edge, _ in connection.held)
    return topology.links.edges_of(connection.link)


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
        made = compile_program(
            load.program, self.network, load.size, self.model,
            route=self.route, protocol_costs=self.protocol_costs,
        )  # fmt: skip
        slow = [
            self.scenario.slow.get(rank, Fraction(1)) for rank in range(self.topology.num_ranks)
        ]
        return slowed_work(made, slow) if self.scenario.slow else made

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
    """Replay one or two programs under a scenario, in all its runs.

    Parameters
    ----------
    setup
        The machine, the scenario and the runtime's constants.
    loads
        One or two programs, with their sizes and starts.

    Raises
    ------
    InputError
        When a program needs an edge that is down.
    ProgramError
        When a program does not fit the topology.
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
    for number in range(setup.scenario.runs):
        run = DisturbedRun(together, setup, loads, number)
        run.to_end()
        reason = reason or run.reason(0)
        messages = run.sent
        busy = [old + new for old, new in zip(busy, run.own_busy, strict=True)]
        for group, load in enumerate(loads):
            if not run.reason(group):
                times[group].append(run.ended[group] - load.start + launch)
    trace = replace(
        failed, time=None if reason else mean_time(times[0]), reason=reason, messages=messages,
        edge_busy=tuple(total // setup.scenario.runs for total in busy),
    )  # fmt: skip
    return Outcome(trace, () if reason else tuple(times[0]), tuple(times[1]) if times[1:] else ())


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
            slowest = max(beta for _, beta in held)
            self.flights[key] = replace(wired, held=held, max_beta=slowest).flight(size)
        return self.flights[key]


class DisturbedRun(Run):
    """One run of programs under a scenario; see the module's text for what is added.

    Parameters
    ----------
    together
        What runs.
    setup, loads
        How, and the programs.
    number
        Which of the runs.
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
        starts = _starts(setup, number)
        self.due = [
            starts[block.rank] + loads[group].start if group < len(loads) else 0
            for block, group in zip(blocks, together.group_of_block, strict=True)
        ]
        self.due[self.first_flow :] = [flow.start for flow in together.flows]
        self.ended = [load.start for load in loads] + [0]
        self.own_busy = [0] * len(setup.topology.edges)
        self.sent = 0
        self.background = 0
        self.few = sum(len(flow.edges) + 2 for flow in together.flows)

    def reason(self, group: int) -> str:
        """Return why a program did not end; empty when it did."""
        if self.background > MAX_BACKGROUND:
            return f"the background sends more than {MAX_BACKGROUND} messages meanwhile"
        other = self.together.group_of_block
        end = standstill(self)
        return deadlock(
            replace(end, is_done=lambda block: other[block] != group or end.is_done(block))
        )

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


def _starts(setup: Setup, number: int) -> Mapping[int, Time]:
    """Return when each rank may begin; the background, which has a rank of its own, at once."""
    scenario, ranks = setup.scenario, range(setup.topology.num_ranks)
    starts = {rank: scenario.late.get(rank, 0) for rank in ranks}
    if scenario.start_delay is not None:
        for rank in ranks:
            key = f"{scenario.seed} {number} start {rank}"
            starts[rank] += Stream(scenario.start_delay, key).draw()
    return {**starts, setup.topology.num_ranks: 0}
