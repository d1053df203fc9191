"""How long an MSCCL++ plan takes: it becomes columns, and the replay of XML programs times them.

A plan is unrolled first, without times: threadblocks take their operations in order, the k-th wait
on a channel is matched with the k-th signal, packets with who writes them. What comes out are
processes, each with a list of actions that wait for actions of others, without a cycle; the kernel
of the replay (interpreter.py, or events.py where there are many) gives them times, by the rules
that it has for threadblocks, connections and edges. The processes are

- of each threadblock, its local work;
- of each threadblock and direction to or from a peer, the messages that it sends or reads there
  through memory; of each port channel, the transfers in its queue;
- the far end of each of these, where what has come is counted;
- of each barrier, its meetings.

**Messages.** A put, or a store of an operation that sends, is one message of the bytes it moves
(packets: twice as many, half of them flags). Through memory the threadblock is busy until its last
edge is released, and where data lies side by side (put, ppkt, get) operands follow one another;
operations that work on all operands at once have all their messages under way at once. A port
channel does its transfers in the order in which they were asked for, and who asks goes on. What is
read crosses the link from its owner, and the threadblock waits for its arrival.

**Switch channels.** Where the topology's switches copy and add, operations that come at one time
flow together, as a batch of fans does; a threadblock is busy until the last edge is
released. With measured costs such a batch is charged NVLS's (or LL's) efficiency and, once, its
alpha, holds no edge, and takes at least as long as one threadblock takes for the largest. Where
switches can't, there is a message for each of the others in the group.

**Signals.** A signal that directly follows a put to that peer, or a store over a switch, comes with
it: with its last bytes, and not before it is given. "Directly" means that between the two one
threadblock has waited for nobody and done no local work. Any other signal pays alpha, not before
what is before it on its channel, and holds no edge, like the FIFO credits of an XML program, which
are the same stores and cost nothing at all; the threadblock does not wait for it.

**Local work** costs what the replay of XML charges: copy and the unpacking of packets as a copy,
sums by the operands that are added to the first. A put is read and lands without any: that is what
a plan saves. Fences cost nothing, and barriers and semaphores the flag of measured costs.

**Links.** Messages from a rank to a rank use the pair's links in turn, by the channel that they
belong to; a store that names no channel belongs to the one that the threadblock signals on. Where
links go one way only, signals against them take the same alpha.

Approximated: who gets a semaphore that several threadblocks give, and in which order threadblocks
use one channel, is settled before there are times. A plan that is right depends only on the first.

**Fans.** What operations that flow together bring is added up edge by edge
(:mod:`taccl.timing.retiming`), engines and what goes through the switch for its own sender
included, and all last as long as the busiest edge.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain
from math import lcm
from typing import NamedTuple

import numpy as np

from taccl.errors import ProgramError
from taccl.msccl.program import Buffer, Op
from taccl.mscclpp.interpret import MAX_PARTS, partners
from taccl.mscclpp.plan import (
    MAX_ITERATIONS,
    MOVES_IN_PIPELINE,
    OPERATIONS,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    Side,
    Takes,
)
from taccl.mscclpp.structure import accepts, counted_chunks
from taccl.replay import events
from taccl.replay.compile import (
    MAX_MESSAGES,
    OPS,
    ROUTED,
    Columns,
    Connection,
    Split,
    among_peers,
    classes_of,
    connect,
    kinds_of,
)
from taccl.replay.cost import ReplayModel, Sharing, charged_network, of_plans, sharing_of_plan
from taccl.replay.events import machine_of
from taccl.replay.interpreter import Run, Span, Trace, Why, compile_program
from taccl.replay.timing import SPENT, WORTH_COMPILED, is_loaded, run_machine
from taccl.synth.templates.in_network import tree
from taccl.timing.retiming import fan_uses
from taccl.topology.fans import Fan, FanTable, make_fans, wrong_fan
from taccl.topology.graph import Rank, Topology
from taccl.topology.symmetry import make_group


class Flow(NamedTuple):
    """What an operation moves: `size` bytes on a `fan`."""

    fan: Fan
    size: int


@lru_cache(maxsize=1 << 12)
def fan_of(
    topology: Topology, rank: Rank, sources: tuple[Rank, ...], targets: tuple[Rank, ...]
) -> Fan | None:
    """Return the fan of an operation of a `rank` on a switch channel of a `topology`.

    It reads the sum of `sources`, or what the rank has (none), and stores it at `targets`. None
    where the switches can't.
    """
    into = tree(topology, rank, [one for one in sources if one != rank], inward=True)
    out = tree(topology, rank, [one for one in targets if one != rank], inward=False)
    if out is None or (sources and into is None):
        return None
    fan = Fan(rank, (into or ()) if sources else (), out)
    return None if wrong_fan(topology, fan) else fan


def together(flows: Sequence[Flow], topology: Topology) -> list[list[int]]:
    """Return which `flows`, by their positions, share edges of a `topology` with which."""
    found: list[tuple[set[int], list[int]]] = []
    for place, flow in enumerate(flows):
        own = {edge for arc in (*flow.fan.into, *flow.fan.out) for edge in
               topology.arcs.edges_of(arc)}  # fmt: skip
        joined = [place]
        for one in [one for one in found if one[0] & own]:
            found.remove(one)
            own, joined = own | one[0], one[1] + joined
        found.append((own, sorted(joined)))
    return [places for _, places in found]


@lru_cache(maxsize=64)
def _table(topology: Topology, fans: tuple[Fan, ...]) -> FanTable:
    return make_fans(topology, fans)


def connection_of(flows: Sequence[Flow], topology: Topology) -> Connection:
    """Return what a message of all bytes of `flows`, which flow together, does to a `topology`."""
    fans = _table(topology, tuple(dict.fromkeys(flow.fan for flow in flows)))
    number = {fan: place for place, fan in enumerate(fans)}
    uses = fan_uses(
        make_group(topology, ()), Fraction(1), np.zeros(len(flows), np.int64),
        np.array([number[flow.fan] for flow in flows], np.int64), fans,
        np.array([flow.size for flow in flows], np.int64),
    )  # fmt: skip
    size = max(1, sum(flow.size for flow in flows))
    held = uses.held.tolist()
    longest = max(held, default=0)
    turn, reached = flows[0].fan.turn, fans.ranks(0)
    other = next(rank for rank in (*reached[1], *reached[0]) if rank != turn)
    return Connection(
        turn, other, 0, ROUTED, int(uses.arrival[0]) - longest, 0,
        tuple(zip(uses.resource.tolist(), (Fraction(time, size) for time in held), strict=True)),
    )  # fmt: skip


WHOLE = Split(1, 1 << 62, 1, 1, 1 << 62)
"""How the actions of a plan are cut: not at all. A chunk is a byte, and nobody waits for room."""

MOST_AWAITED = 4
"""Actions that a threadblock may have to wait for before they are gathered in one."""

_SEND, _RECEIVE, _COPY, _ADD = map(OPS.index, (Op.SEND, Op.RECV, Op.COPY, Op.REDUCE))

_ONE_BY_ONE = frozenset({"put", "pws", "pwsf", "ppkt", "get"})
"""Operations whose operands lie side by side, and are moved one after the other."""

_WITH_PACKETS = frozenset(
    name for name, takes in OPERATIONS.items()
    if takes.reads_packets >= 0 or takes.writes_packets >= 0
)  # fmt: skip

Point = Mapping[int, int]
"""What has to be over: by process, one of its actions, and so all before it. Never changed."""

_START: Point = {}

_WORK, _SENDS, _RECEIVES, _MEETS = range(4)
"""What a process of a threadblock does; of equal requests the first one is served first."""


class Turn(NamedTuple):
    """An operation, as it is done once.

    `op`: what is done.
    `block`: the threadblock.
    `step`: its position in the threadblock, or that of its pipeline.
    `part`: which iteration of the pipeline.
    `unit`: bytes of an iteration; 0: it is in no pipeline.
    """

    op: PlanOp
    block: int
    step: int
    part: int
    unit: int


class Act(NamedTuple):
    """An action of a process.

    `op`: what it costs, by its place in ``OPS``.
    `size`: bytes.
    `sources`: of a sum: how many are added.
    `needs`: what it waits for.
    `turn`: what it is done for; None where nobody wants to be told of it.
    """

    op: int
    size: int
    sources: int
    needs: Point
    turn: Turn | None


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """What takes its actions in order.

    `number`: position among all.
    `key`: rank, threadblock, what it does, and its number: by these, ascending, requests of one
    time are served.
    `acts`: its actions.
    """

    number: int
    key: tuple[int, int, int, int]
    acts: list[Act] = field(default_factory=list)

    def then(
        self, op: int, size: int, needs: Point, turn: Turn | None = None, sources: int = 1
    ) -> int:
        """Add an action, and return which one it is.

        `op`, `size` (bytes), `needs`, `turn` and `sources` are those of :class:`Act`.
        """
        self.acts.append(Act(op, size, sources, needs, turn))
        return len(self.acts) - 1


@dataclass(slots=True, eq=False)
class Lane:
    """Messages of one sender to one rank, one after the other.

    `src`, `dst`: ranks.
    `position`: of its channel among those of the pair; it decides on the link.
    `sender`, `receiver`: processes at its ends: each message is an action of the first, and each
    that somebody waits for, with all before it, of the second.
    `carries`: whether any message has data.
    `wire`: what its messages do to the network; None: they take a link.
    `state`: the state of the threadblock after the last data; None: something has come since.
    `after`: what was over for that threadblock then.
    `told`: channels that were signalled on since.
    """

    src: int
    dst: int
    position: int
    sender: Process
    receiver: Process
    carries: bool = False
    wire: Connection | None = None
    state: tuple[int, int, int] | None = None
    after: Point = field(default_factory=dict)
    told: set[tuple[int, str, int]] = field(default_factory=set)


class Sent(NamedTuple):
    """A message on a `lane`, its `number` there, and what must be over, `also`, for its signal."""

    lane: Lane
    number: int
    also: Point


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What a threadblock has stored over a switch last, and whom that has reached.

    `come`: what is over when it has come.
    `reached`: ranks.
    `state`, `after`, `told`: as in :class:`Lane`.
    """

    come: "Sent | Point"
    reached: frozenset[int]
    state: tuple[int, int, int]
    after: Point
    told: set[tuple[int, str, int]] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Thread:
    """A threadblock while a plan is unrolled.

    `rank`, `number`, `block`: which one.
    `work`: the process of its local work.
    `turns`: what it still does after the `turn` that it is at; None: it is over.
    `point`: what is over before that.
    `pauses`: how often it has waited for others or done local work.
    `waits`: what it waits for, in words; empty: for nothing.
    `met`: whether it stands at a barrier that it has been counted at.
    `piece`: which piece of an operation on packets it is at.
    `flow`: what it moves over a switch, and waits for others to; None: nothing.
    `flown`: what is over when that has come, and when it is free again; None: it has not begun.
    `stored`: what it has stored over a switch last; None: nothing.
    """

    rank: int
    number: int
    block: PlanBlock
    work: Process
    turns: Iterator[Turn]
    turn: Turn | None
    point: Point = field(default_factory=dict)
    pauses: int = 0
    waits: str = ""
    met: bool = False
    piece: int = 0
    flow: Flow | None = None
    flown: "tuple[Sent | Point, Point] | None" = None
    stored: Stored | None = None

    @property
    def state(self) -> tuple[int, int, int]:
        """Equal at two operations between which it has neither waited nor worked."""
        return self.rank, self.number, self.pauses

    def learn(self, point: Point) -> None:
        """Take in that something is over, for which it has waited: a `point`."""
        self.point, self.pauses = _both(self.point, point), self.pauses + 1


def _both(one: Point, other: Point) -> Point:
    """Return what is over when both are."""
    if not one or not other:
        return one or other
    found = dict(one)
    for process, act in other.items():
        if found.get(process, -1) < act:
            found[process] = act
    return found


def replay_plan(
    plan: Plan, topology: Topology, size: int, model: ReplayModel, *, keep_spans: bool = False
) -> Trace:
    """Return what a plan does at one size.

    `plan`: what is run; what it names is there.
    `topology`: the machine.
    `size`: bytes of the buffer that nccl-tests counts.
    `model`: the runtime's constants, of which only the profile matters; with measured costs plans
    are charged as :func:`taccl.replay.cost.sharing_of_plan` says.
    `keep_spans`: whether messages and local work are told one by one; then nothing is compiled.
    Their threadblocks and steps are those of the plan, and packets have all their bytes.

    A call of a size that the executor refuses has no time, and says why.

    Raises ProgramError when the plan has another number of ranks, or ranks that use a channel have
    no link, or the model asks for measured costs that the topology does not have.
    """
    protocol = protocol_of(plan)
    if model.measured:
        topology = of_plans(topology)
    sharing = sharing_of_plan(topology, protocol) if model.measured else None
    local = topology.local if sharing is None else sharing.local
    if plan.num_ranks != topology.num_ranks:
        raise ProgramError(
            f"{plan.name} has {plan.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
            fix="use the topology the plan was made for, or another --nodes",
        )
    reason = accepts(plan, size)
    if reason:
        return Trace(plan.name, size, None, reason, in_range=False)
    reason = _unfit(plan, size)
    if reason:
        return Trace(plan.name, size, None, reason)
    script = Script(plan, size, topology)
    if sharing is not None and topology.measured is not None:
        script.network = charged_network(topology, protocol)
        script.sharing = sharing
        costs, chunk = topology.measured, max(script.chunk)
        script.told = int(costs.flag / local.copy_beta) if local.copy_beta else 0
        # Threads forward their packets as they come: no more coarsely than messages of LL.
        messages = -(-chunk // model.of_protocol("LL")[0])
        script.cut(max(1, min(messages * costs.slices, chunk // sharing.slice_bytes)))
    reason = script.run()
    if reason:
        return Trace(plan.name, size, None, reason)
    processes = sorted(script.processes, key=lambda process: process.key)
    columns = _columns(script.lanes, processes, topology)
    if sharing is not None:
        sharing = among_peers(sharing, topology, columns.connections)
    if not keep_spans:
        SPENT.messages += len(columns.kind_of)
    if not keep_spans and (is_loaded() or SPENT.messages >= WORTH_COMPILED):
        machine = machine_of(columns, WHOLE, local, sharing=sharing)
        if machine is not None:
            run_machine(machine, steady=False)
            return Trace(
                plan.name, size, int(machine.counter[events.NOW]) + local.launch,
                messages=int(machine.counter[events.SENT]),
                edge_busy=tuple(machine.edges[:, events.HELD].tolist()),
            )  # fmt: skip
    compiled = compile_program(columns, WHOLE, local, sharing=sharing)
    run = Run(compiled, len(topology.edges), keep_spans=keep_spans)
    run.to_end()
    return Trace(
        plan.name, size, run.now + local.launch, messages=run.messages,
        edge_busy=tuple(run.edge_busy), spans=tuple(_told(run.spans, processes)),
    )  # fmt: skip


def protocol_of(plan: Plan) -> str:
    """Return whose costs a `plan` has: LL with packets, NVLS on switches, Simple with signals."""
    names = {
        op.name for rank in plan.ranks for block in rank.blocks for outer in block.ops
        for op in (outer, *outer.inner)
    }  # fmt: skip
    if names & _WITH_PACKETS:
        return "LL"
    return "NVLS" if any(rank.groups for rank in plan.ranks) else "Simple"


def _unfit(plan: Plan, size: int) -> str:
    """Return why a plan can't be followed at a size that it accepts; empty if it can."""
    work = 0
    for rank, record in enumerate(plan.ranks):
        chunk = size // counted_chunks(plan, record)
        for op in chain.from_iterable(block.ops for block in record.blocks):
            turns = 1
            if op.name == "pipeline":
                turns = -(-op.chunks * chunk // op.unit) if op.unit else 0
                if not op.unit or turns > MAX_ITERATIONS:
                    return (
                        f"a pipeline of rank {rank} needs {turns} iterations of {op.unit} bytes,"
                        f" the kernel counts at most {MAX_ITERATIONS}"
                    )
            work += turns * max(1, len(op.inner))
    if work > MAX_MESSAGES:
        return f"needs {work} operations, the replay follows at most {MAX_MESSAGES}"
    return ""


def _turns(block: PlanBlock, number: int, chunk: int) -> Iterator[Turn]:
    """Yield what a numbered threadblock does, pipelines unrolled; chunks have so many bytes."""
    for step, op in enumerate(block.ops):
        if op.name != "pipeline":
            yield Turn(op, number, step, 0, 0)
            continue
        for part in range(-(-op.chunks * chunk // op.unit)):
            for inner in op.inner:
                yield Turn(inner, number, step, part, op.unit)


class Script:
    """A plan at one size, unrolled without times.

    `plan`: what is run.
    `size`: bytes of the counted buffer, which all chunks divide.
    `network`: whose switches copy and add.

    The `processes` and `lanes` are there once it is run. `told` are bytes that are copied while
    what a threadblock has done becomes known to another, `cuts` the pieces of a chunk in operations
    on packets, each of which goes on as soon as its packets come.
    """

    def __init__(self, plan: Plan, size: int, network: Topology) -> None:
        self.plan, self.told, self.cuts, self.network = plan, 0, 1, network
        self.sharing: Sharing | None = None
        self.pool: list[Thread] = []
        self.flows: dict[object, Process | Lane] = {}
        self.processes: list[Process] = []
        self.lanes: dict[tuple[int, ...], Lane] = {}
        self.chunk = [size // counted_chunks(plan, record) for record in plan.ranks]
        self.partner = partners(plan)
        self.signals: dict[tuple[int, str, int], list[Sent | Point]] = {}
        self.waited: dict[tuple[int, str, int], int] = {}
        self.released = {
            (rank, number): deque([_START] * value)
            for rank, record in enumerate(plan.ranks)
            for number, value in enumerate(record.semaphores)
        }
        self.met: dict[tuple[int, int], list[Thread]] = {}
        self.meetings: dict[tuple[int, int], Process] = {}
        self.packets: dict[tuple[int, Buffer, int], Sent | Point] = {}
        self.sleepers: dict[object, list[Thread]] = {}
        self.position_of: dict[tuple[int, str, int], int] = {}
        for rank, record in enumerate(plan.ranks):
            counts = [0] * plan.num_ranks
            for kind in ("memory", "port"):
                for position, channel in enumerate(record.channels.get(kind, ())):
                    self.position_of[rank, kind, position] = counts[channel.peer]
                    counts[channel.peer] += 1
        self.threads: list[Thread] = []
        for rank, record in enumerate(plan.ranks):
            for number, block in enumerate(record.blocks):
                turns, work = (
                    _turns(block, number, self.chunk[rank]),
                    self._process(rank, number, _WORK),
                )
                first = next(turns, None)
                self.threads.append(Thread(rank, number, block, work, turns, first))
        self.own_positions: dict[tuple[int, int], dict[int, int]] = {}
        self.parts = lcm(*(
            op.tbg.tbg_size
            for thread in self.threads
            for outer in thread.block.ops
            for op in (outer, *outer.inner)
            if op.tbg is not None and op.tbg.tbg_size and op.name in _WITH_PACKETS
        ))  # fmt: skip
        self.awake = deque(self.threads)

    def cut(self, cuts: int) -> None:
        """Have operations on packets done in so many pieces a chunk, before anything is run."""
        self.cuts, self.parts = cuts, self.parts * cuts

    def run(self) -> str:
        """Unroll it, and return why it can't come to its end; empty if it does."""
        if self.parts > MAX_PARTS * self.cuts:
            parts = self.parts // self.cuts
            return f"groups cut packets into {parts} parts, at most {MAX_PARTS} are followed"
        while self.awake or self.pool:
            if not self.awake:
                self._flow()
            thread = self.awake.popleft()
            while thread.turn is not None:
                do = _STEPS.get(thread.turn.op.name, Script.move)
                if not do(self, thread, thread.turn):
                    break
                thread.waits, thread.met = "", False
                thread.turn = next(thread.turns, None)
        stuck = [thread for thread in self.threads if thread.turn is not None]
        texts = [
            f"rank {thread.rank} threadblock {thread.number} step {thread.turn.step} waits for"
            f" {thread.waits}"
            for thread in stuck[:4]
            if thread.turn is not None
        ]
        more = f" ({len(stuck)} threadblocks in all)" if len(stuck) > len(texts) else ""
        return f"deadlock: {'; '.join(texts)}{more}" if stuck else ""

    # What there is

    def _process(self, rank: int, block: int, what: int) -> Process:
        number = len(self.processes)
        self.processes.append(Process(number, (rank, block, what, number)))
        return self.processes[-1]

    def _lane(
        self, thread: Thread, src: int, dst: int, port: int = -1, *, bare: bool = False
    ) -> Lane:
        """Return the lane of a threadblock from a rank to a rank, or that of a port channel.

        Signals that come with no data, `bare` ones, have a lane of their own.
        """
        key = (thread.rank, port) if port >= 0 else (thread.rank, thread.number, src, dst)
        key = (bare, *key)
        if key not in self.lanes:
            peer = dst if src == thread.rank else src
            position = (
                self.position_of[thread.rank, "port", port]
                if port >= 0
                else self._positions(thread).get(peer, 0)
            )
            self.lanes[key] = Lane(
                src, dst, position, self._process(thread.rank, thread.number, _SENDS),
                self._process(thread.rank, thread.number, _RECEIVES),
            )  # fmt: skip
        return self.lanes[key]

    def _positions(self, thread: Thread) -> dict[int, int]:
        """Return to which of a pair's channels messages through memory belong, by peer."""
        key = thread.rank, thread.number
        if key not in self.own_positions:
            own = thread.block.channels.get("memory", ())
            channels = self.plan.ranks[thread.rank].channels.get("memory", ())
            named = [
                own[number]
                for outer in thread.block.ops
                for op in (outer, *outer.inner)
                if op.name == "signal" and op.channel_type == "memory"
                for number in op.channels
            ]
            # What comes first in `named` counts most.
            self.own_positions[key] = {
                channels[position].peer: self.position_of[thread.rank, "memory", position]
                for position in (*own[::-1], *named[::-1])
            }
        return self.own_positions[key]

    def _channels(self, thread: Thread, op: PlanOp) -> list[tuple[int, str, int]]:
        """Return the memory or port channels that an operation names."""
        kind = op.channel_type
        if kind not in ("memory", "port"):
            return []
        own = thread.block.channels.get(kind, ())
        return [(thread.rank, kind, own[number]) for number in op.channels]

    def _homes(self, thread: Thread, op: PlanOp, operand: Operand) -> Iterable[tuple[int, Buffer]]:
        """Return the buffers that an operand is of, and their ranks."""
        record = self.plan.ranks[thread.rank]
        if operand.side is Side.LOCAL:
            return () if operand.buffer is None else ((thread.rank, operand.buffer),)
        if operand.side is Side.REMOTE:
            found = record.remotes[thread.block.remotes[op.channel_type][operand.ref]]
            return ((found.rank, found.buffer),)
        group = record.groups[thread.block.channels["switch"][operand.ref]]
        return ((rank, group.buffer) for rank in group.ranks)

    def _size(self, thread: Thread, turn: Turn, operand: Operand) -> int:
        """Return how many bytes of an operand are moved."""
        size, tbg = operand.size * self.chunk[thread.rank], turn.op.tbg
        if tbg is not None and tbg.tbg_size > 1:
            grain = max(1, self.plan.alignment)
            each, more = divmod(size // grain, tbg.tbg_size)
            size = (each + (tbg.tb_id < more)) * grain
        if turn.unit and turn.op.name in MOVES_IN_PIPELINE:
            size = max(0, min(size - turn.part * turn.unit, turn.unit))
        pieces = self._pieces(turn.op)
        return size * (thread.piece + 1) // pieces - size * thread.piece // pieces

    def _places(self, thread: Thread, op: PlanOp, operand: Operand) -> range:
        """Return the packets of a piece of an operand, counted in the parts that they are cut into.

        They are cut by groups, and where messages travel in slices.
        """
        begin, whole = operand.index * self.parts, operand.size * self.parts
        if op.tbg is not None and op.tbg.tbg_size > 1:
            share, count = op.tbg
            begin, whole = begin + whole * share // count, whole // count
        pieces = self._pieces(op)
        return range(
            begin + whole * thread.piece // pieces, begin + whole * (thread.piece + 1) // pieces
        )

    # What is done

    def _wake(self, key: object) -> None:
        self.awake.extend(self.sleepers.pop(key, ()))

    def _sleep(self, thread: Thread, key: object, text: str) -> bool:
        self.sleepers.setdefault(key, []).append(thread)
        thread.waits = text
        return False

    def _needs(self, thread: Thread) -> Point:
        """Return what the next action of a threadblock waits for."""
        if len(thread.point) > MOST_AWAITED:
            thread.point = {thread.work.number: thread.work.then(_COPY, 0, thread.point)}
        return thread.point

    def _send(self, thread: Thread, lane: Lane, size: int, turn: Turn) -> int:
        """Send a message on a lane, and return which one it is."""
        lane.state = None
        return lane.sender.then(_SEND, size, self._needs(thread), turn)

    def _come(self, sent: Sent | Point) -> Point:
        """Return what is over when a message has come."""
        if not isinstance(sent, Sent):
            return sent
        receiver = sent.lane.receiver
        while len(receiver.acts) <= sent.number:
            receiver.then(_RECEIVE, 0, _START)
        return _both({receiver.number: sent.number}, sent.also)

    def nothing(self, thread: Thread, turn: Turn) -> bool:
        """Go past an operation that takes no time: of a `thread` its `turn`."""
        del thread, turn
        return True

    def barrier(self, thread: Thread, turn: Turn) -> bool:
        """Tell whether all others have come to the barrier of a `thread`, at its `turn`."""
        if thread.met:
            return True
        key = thread.rank, turn.op.barrier
        met = self.met.setdefault(key, [])
        met.append(thread)
        if len(met) < turn.op.blocks:
            thread.waits = (
                f"{turn.op.blocks} threadblocks at barrier {turn.op.barrier}, {len(met)} of which"
                " have come"
            )
            return False
        del self.met[key]
        if key not in self.meetings:
            self.meetings[key] = self._process(thread.rank, thread.number, _MEETS)
        meeting, point = self.meetings[key], _START
        for one in met:
            point = _both(point, self._needs(one))
        over = {meeting.number: meeting.then(_COPY, self.told, point)}
        for one in met:
            one.point, one.pauses, one.met = over, one.pauses + 1, True
        self.awake.extend(one for one in met if one is not thread)
        return True

    def acquire(self, thread: Thread, turn: Turn) -> bool:
        """Take the semaphores of a `turn` of a `thread`; tell whether they could be taken."""
        keys = [(thread.rank, number) for number in turn.op.semaphores]
        for key in keys:
            if len(self.released[key]) < keys.count(key):
                return self._sleep(thread, key, f"semaphore {key[1]}")
        for key in keys:
            thread.learn(self.released[key].popleft())
        return True

    def release(self, thread: Thread, turn: Turn) -> bool:
        """Give the semaphores of a `turn` of a `thread` back."""
        for number in turn.op.semaphores:
            point = self._needs(thread)
            if self.told:
                tells = self._process(thread.rank, thread.number, _MEETS)
                point = {tells.number: tells.then(_COPY, self.told, point)}
            self.released[thread.rank, number].append(point)
            self._wake((thread.rank, number))
        return True

    def signal(self, thread: Thread, turn: Turn) -> bool:
        """Signal on the channels of a `turn` of a `thread`."""
        for channel in self._channels(thread, turn.op):
            self._signal(thread, turn, channel)
        return True

    def _signal(self, thread: Thread, turn: Turn, channel: tuple[int, str, int]) -> None:
        rank, kind, position = channel
        peer = self.plan.ranks[rank].channels[kind][position].peer
        lane = self._lane(thread, rank, peer, position if kind == "port" else -1)
        stored = thread.stored
        if lane.state == thread.state and channel not in lane.told:
            lane.told.add(channel)
            also = _START if thread.point is lane.after else self._needs(thread)
            sent: Sent | Point = Sent(lane, len(lane.sender.acts) - 1, also)
        elif kind == "memory" and stored is not None and (
            stored.state == thread.state and peer in stored.reached and channel not in stored.told
        ):  # fmt: skip
            stored.told.add(channel)
            also = _START if thread.point is stored.after else self._needs(thread)
            sent = _both(self._come(stored.come), also)
        else:
            before = {lane.sender.number: len(lane.sender.acts) - 1} if lane.sender.acts else _START
            needs = _both(self._needs(thread), before if kind == "port" else _START)
            lane = self._lane(thread, rank, peer, position if kind == "port" else -1, bare=True)
            sent = Sent(lane, lane.sender.then(_SEND, 0, needs, turn), _START)
        there = self.partner.get(channel)
        if there is not None:
            self.signals.setdefault(there, []).append(sent)
            self._wake(there)

    def wait(self, thread: Thread, turn: Turn) -> bool:
        """Wait on the channels of a `turn` of a `thread`; tell whether signals are on the way."""
        channels = self._channels(thread, turn.op)
        for channel in channels:
            there = self.waited.get(channel, 0) + channels.count(channel)
            if len(self.signals.get(channel, ())) < there:
                rank, kind, position = channel
                peer = self.plan.ranks[rank].channels[kind][position].peer
                return self._sleep(thread, channel, f"a signal of rank {peer}")
        for channel in channels:
            number = self.waited.get(channel, 0)
            self.waited[channel] = number + 1
            thread.learn(self._come(self.signals[channel][number]))
        return True

    def move(self, thread: Thread, turn: Turn) -> bool:
        """Do a `turn` of a `thread` that moves data; tell whether its packets are on the way."""
        takes = OPERATIONS[turn.op.name]
        while thread.piece < self._pieces(turn.op):
            first = takes.reads_packets
            if first >= 0 and not self._take_packets(thread, turn.op, first):
                return False
            if not self._flows(thread, turn):
                return False
            if thread.flown is None:
                self._move_piece(thread, turn, takes)
            else:
                self._store(thread, turn, takes)
            thread.piece += 1
        thread.piece = 0
        return True

    def _pieces(self, op: PlanOp) -> int:
        """Return in how many pieces an operation is done: threads wait for their own packets.

        Each of its chunks is cut alike. What a port channel moves is asked for once, when all
        packets have come.
        """
        if self.sharing is None or op.name not in _WITH_PACKETS or op.channel_type == "port":
            return 1
        return self.cuts * max(operand.size for operand in (*op.sources, *op.targets))

    def _move_piece(self, thread: Thread, turn: Turn, takes: Takes) -> None:
        """Move one piece of what an operation moves."""
        op = turn.op
        far = [one for one in op.sources if one.side is not Side.LOCAL]
        if far:
            self._read(thread, turn, far)
        ways, work = len(op.sources), -1
        if op.name in ("copy", "cpkt", "upkt") or (takes.adds and ways == 1 and not far):
            work = _COPY
        elif takes.adds and ways > 1:
            work = _ADD
        if work >= 0:
            size = self._size(thread, turn, op.sources[0]) if op.sources else 0
            if not takes.adds:
                size = sum(self._size(thread, turn, one) for one in op.sources)
            act = thread.work.then(work, size, self._needs(thread), turn, max(1, ways - 1))
            thread.point, thread.pauses = {thread.work.number: act}, thread.pauses + 1
        self._write(thread, turn, takes.writes_packets)

    def _flows(self, thread: Thread, turn: Turn) -> bool:
        """Tell whether an operation may go on: not on a switch that has not moved it yet."""
        if thread.flown is not None:
            return True
        op, sums = turn.op, turn.op.sources[0].side is Side.SWITCH if turn.op.sources else False
        if not op.targets or op.targets[0].side is not Side.SWITCH:
            return True
        sources, targets = (
            tuple(sorted({rank for one in ends for rank, _ in self._homes(thread, op, one)}))
            for ends in (op.sources if sums else (), op.targets)
        )
        fan = fan_of(self.network, thread.rank, sources, targets)
        if fan is None:
            return True
        # Packets count twice, and measured costs of LL say so themselves.
        twice = op.name in _WITH_PACKETS and self.sharing is None
        thread.flow = Flow(fan, self._size(thread, turn, op.targets[0]) * (1 + twice))
        thread.waits = "a switch"
        self.pool.append(thread)
        return False

    def _flow(self) -> None:
        """Have all that waits for switches flow, together where it shares edges."""
        waiting, self.pool = self.pool, []
        flows = [thread.flow for thread in waiting if thread.flow is not None]
        for places in together(flows, self.network):
            threads, own = [waiting[place] for place in places], [flows[place] for place in places]
            first, point = threads[0], _START
            for thread in threads:
                point = _both(point, self._needs(thread))
            wire, size = connection_of(own, self.network), max(1, sum(flow.size for flow in own))
            flown: tuple[Sent | Point, Point]
            if self.sharing is None:
                key: object = first.rank, first.number, wire
                lane = self.flows.get(key)
                if not isinstance(lane, Lane):
                    lane = self.flows[key] = Lane(
                        wire.src, wire.dst, 0, self._process(first.rank, first.number, _SENDS),
                        self._process(first.rank, first.number, _RECEIVES), wire=wire,
                    )  # fmt: skip
                    self.lanes[-1, len(self.flows)] = lane
                number = lane.sender.then(_SEND, size, point, first.turn)
                flown = Sent(lane, number, _START), {lane.sender.number: number}
            else:
                limit = self.sharing
                # One threadblock takes so long for its part.
                slowest = Fraction(max(flow.size for flow in own)) * limit.wire / limit.block_rate
                busy = Fraction(wire.flight(size).releases[-1][0])
                time = limit.alpha + max(busy, slowest)
                work = self._process(first.rank, first.number, _WORK)
                beta = limit.local.copy_beta
                number = work.then(_COPY, int(time / beta) if beta else 0, point, first.turn)
                flown = {work.number: number}, {work.number: number}
            for thread in threads:
                thread.flow, thread.flown = None, flown
            self.awake.extend(threads)

    def _store(self, thread: Thread, turn: Turn, takes: Takes) -> None:
        """Note what an operation has stored over a switch."""
        if thread.flown is None:
            return
        (come, thread.point), thread.flown = thread.flown, None
        (target,) = turn.op.targets
        homes = list(self._homes(thread, turn.op, target))
        for rank, buffer in homes if takes.writes_packets == 0 else ():
            for place in self._places(thread, turn.op, target):
                self.packets[rank, buffer, place] = come
                self._wake((rank, buffer, place))
        reached = frozenset(rank for rank, _ in homes)
        thread.stored = Stored(come, reached, thread.state, thread.point)

    def _take_packets(self, thread: Thread, op: PlanOp, first: int) -> bool:
        """Wait for the packets that an operation reads; tell whether they are on the way."""
        lanes: dict[Lane, int] = {}
        point = _START
        for operand in op.sources[first:]:
            for rank, buffer in self._homes(thread, op, operand):
                for place in self._places(thread, op, operand):
                    key = rank, buffer, place
                    if key not in self.packets:
                        return self._sleep(
                            thread, key, f"packet {place // self.parts} in buffer {buffer.value}"
                            f" of rank {rank}",
                        )  # fmt: skip
                    packet = self.packets[key]
                    if isinstance(packet, Sent):
                        lanes[packet.lane] = max(lanes.get(packet.lane, -1), packet.number)
                    else:
                        point = _both(point, packet)
        for lane, index in lanes.items():
            point = _both(point, self._come(Sent(lane, index, _START)))
        thread.learn(point)
        return True

    def _read(self, thread: Thread, turn: Turn, far: Sequence[Operand]) -> None:
        """Read operands from other ranks."""
        point, in_turn = _START, turn.op.name in _ONE_BY_ONE
        for operand in far:
            size = self._size(thread, turn, operand)
            for rank, _ in self._homes(thread, turn.op, operand):
                if rank == thread.rank:
                    continue
                lane = self._lane(thread, rank, thread.rank)
                lane.carries = True
                index = self._send(thread, lane, size, turn)
                point = _both(point, self._come(Sent(lane, index, _START)))
                if in_turn:
                    thread.point = point
        thread.learn(point)

    def _write(self, thread: Thread, turn: Turn, first: int) -> None:
        """Write the targets of an operation; those from the first one on are packets."""
        op = turn.op
        channels = self._channels(thread, op) if op.channel_type == "port" else []
        point, in_turn = _START, op.name in _ONE_BY_ONE
        used: list[Lane] = []
        for number, operand in enumerate(op.targets):
            packets = 0 <= first <= number
            size = self._size(thread, turn, operand) * (2 if packets else 1)
            for rank, buffer in self._homes(thread, op, operand):
                sent: Sent | Point = thread.point
                if rank != thread.rank or operand.side is Side.REMOTE:
                    channel = channels[min(number, len(channels) - 1)] if channels else None
                    lane = self._lane(thread, thread.rank, rank, channel[2] if channel else -1)
                    sent = Sent(lane, self._send(thread, lane, size, turn), _START)
                    lane.carries = True
                    used.append(lane)
                    if channel is None:
                        point = _both(point, {lane.sender.number: sent.number})
                        if in_turn:
                            thread.point, point = point, _START
                if packets:
                    for place in self._places(thread, op, operand):
                        self.packets[rank, buffer, place] = sent
                        self._wake((rank, buffer, place))
        if point:
            thread.point = point
        for lane in used:
            lane.state, lane.after, lane.told = thread.state, thread.point, set()
        if op.name in ("pws", "pwsf"):
            for channel in channels:
                self._signal(thread, turn, channel)
        if op.name == "pwsf" and channels:
            for lane in used:
                index = len(lane.sender.acts) - 1
                thread.learn(self._come(Sent(lane, index, _START)))


_STEPS: Mapping[str, Callable[[Script, Thread, Turn], bool]] = {
    "nop": Script.nothing, "flush": Script.nothing, "barrier": Script.barrier,
    "sem_acquire": Script.acquire, "sem_release": Script.release,
    "signal": Script.signal, "rlxsignal": Script.signal,
    "wait": Script.wait, "rlxwait": Script.wait,
}  # fmt: skip
"""By operation, what unrolls it and tells whether its threadblock goes on; all others move data."""


def _columns(
    lanes: Mapping[tuple[int, ...], Lane], processes: Sequence[Process], topology: Topology
) -> Columns:
    """Return the columns of processes, in this order, whose messages are on some lanes.

    Their blocks have the position of the process for a rank, and threadblock 0.
    """
    place = np.zeros(len(processes), np.int32)
    place[[process.number for process in processes]] = np.arange(len(processes))
    wires, connections = _connected(lanes.values(), topology)
    inbound, outbound = np.full(len(processes), -1, np.int32), np.full(len(processes), -1, np.int32)
    senders, receivers = np.full(len(wires), -1, np.int32), np.full(len(wires), -1, np.int32)
    for number, lane in enumerate(wires):
        senders[number] = place[lane.sender.number]
        outbound[senders[number]] = number
        if lane.receiver.acts:
            receivers[number] = place[lane.receiver.number]
            inbound[receivers[number]] = number
    classes, class_of, held = classes_of(connections)
    lengths = np.fromiter((len(process.acts) for process in processes), np.int64, len(processes))
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    owner = np.repeat(np.arange(len(processes)), lengths)
    acts = list(chain.from_iterable(process.acts for process in processes))
    count = len(acts)
    op = np.fromiter((act.op for act in acts), np.int64, count)
    link_class = np.full(count, -1)
    sends = op == _SEND
    link_class[sends] = class_of[outbound[owner[sends]]]
    kinds, kind_of = kinds_of(
        op, link_class,
        np.fromiter((act.size for act in acts), np.int64, count),
        np.fromiter((act.sources for act in acts), np.int64, count),
    )  # fmt: skip
    needs_from = [0, *accumulate(len(act.needs) for act in acts)]
    awaited = chain.from_iterable(act.needs for act in acts)
    needs = np.zeros((needs_from[-1], 2), np.int32)
    needs[:, 0] = place[np.fromiter(awaited, np.int64, needs_from[-1])]
    awaited = chain.from_iterable(act.needs.values() for act in acts)
    needs[:, 1] = np.fromiter(awaited, np.int32, needs_from[-1])
    return Columns(
        tuple((number, 0) for number in range(len(processes))), connections,
        inbound, outbound, senders, receivers, begins, kinds, kind_of,
        np.bincount(kind_of, minlength=len(kinds)),
        (2 * (np.arange(count) - begins[owner]) + 1).astype(np.int32),
        np.array(needs_from, np.int32), needs, classes, class_of,
        np.cumsum([0, *map(len, held)]),
        np.fromiter(chain.from_iterable(held), np.int32),
        len(topology.edges), int(lengths.max(initial=0)) + 1,
    )  # fmt: skip


def _connected(
    lanes: Iterable[Lane], topology: Topology
) -> tuple[list[Lane], tuple[Connection, ...]]:
    """Return lanes in order of their ends, and the connection of each.

    Channels that carry data use the links of a pair in turn; others stay on those or take theirs.

    Raises ProgramError where a lane has no link.
    """
    wires = sorted(lanes, key=lambda lane: (lane.src, lane.dst, lane.position, lane.sender.key))
    turns: dict[tuple[int, int], dict[int, int]] = {}
    for lane in wires:
        if lane.carries and lane.wire is None:
            own = turns.setdefault((lane.src, lane.dst), {})
            own.setdefault(lane.position, len(own))
    made: dict[tuple[int, int, int, bool], Connection] = {}
    for lane in wires:
        key = lane.src, lane.dst, lane.position
        if lane.wire is None and (*key, lane.carries) not in made:
            links = topology.links_between(*key[:2])
            back = () if lane.carries else topology.links_between(lane.dst, lane.src)
            turn = turns.get(key[:2], {}).get(lane.position, lane.position)
            if links or back:
                wire = connect(topology, key, ((links or back)[turn % len(links or back)],))
                if not lane.carries:
                    wire = replace(wire, overhead=0, held=())
                made[*key, lane.carries] = wire
            else:
                raise ProgramError(
                    f"{topology.name} has no link from rank {lane.src} to rank {lane.dst}, which"
                    f" threadblock {lane.sender.key[1]} of rank {lane.sender.key[0]} uses",
                    fix="use the topology the plan was made for",
                )
    return wires, tuple(
        lane.wire or made[lane.src, lane.dst, lane.position, lane.carries] for lane in wires
    )  # fmt: skip


def _told(spans: Iterable[Span], processes: Sequence[Process]) -> Iterator[Span]:
    """Yield spans of processes as those of threadblocks of the plan.

    What only counts arrivals or gathers what is over is left out: who has waited for that has
    waited for what that waited for.
    """
    seen: list[tuple[int | None, Why | None]] = []
    origin: list[tuple[int, int]] = []
    for span in spans:
        process = processes[span.gpu]
        before, through, why = span.waited_for, None, span.why
        if before is not None:
            before, through = seen[before]
            why = through or why
        turn = process.acts[span.step].turn
        if turn is None:
            seen.append((before, why))
            continue
        here = process.key[0], turn.block
        if why is Why.DEPENDENCE and before is not None and origin[before] == here:
            why = Why.ORDER
        seen.append((len(origin), None))
        origin.append(here)
        yield span._replace(
            gpu=here[0], threadblock=here[1], step=turn.step, iteration=turn.part,
            waited_for=before, why=Why.NOTHING if before is None else why,
        )  # fmt: skip
