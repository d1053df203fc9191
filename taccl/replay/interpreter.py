"""What a runtime's interpreter does with a program on a network, in exact integer picoseconds.

Every threadblock is a sequential process that runs its steps once for each slice of the chunks,
with no barrier between slices. A message waits, in this order, for the flags its step depends on,
for its arrival (a receive), for a free FIFO slot (a send), and then for its link.

At every instant, after all completions and whatever they enable in zero time, one pass goes
through the waiting sends in order of (request time, sender rank, threadblock); each one whose
edges are all free starts. A waiting send holds nothing. The pass looks only at sends that can
have changed: each blocked send is parked at one busy edge, and only those parked at edges freed
in this instant, and new requests, are merged in order. A send parked at an edge that is still
busy can't start, and while a freed edge stays free its whole queue has been looked at.

Where messages share edges, no send waits for a link. A message travels in slices, each a flow over
all edges of its connection. At every instant after all else, each edge is split equally among its
flows, and the rate of a flow is the least of its shares and of what its threadblock moves; it has
arrived alpha after its end, and alpha holds nothing. What a step posts is seen a latency later.

Only the receive, then its local work, then the search for a slot follow one another: reducing
does not wait for the slot of the outgoing message.

A replay tells when each message and piece of local work ran, and what it waited for; one that stops
before its end says who waits for what.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from taccl.msccl.program import RECEIVES, SENDS, Program
from taccl.replay.compile import (
    Columns,
    Connection,
    End,
    Flight,
    Split,
    among_peers,
    columns_of,
    split,
    why_not,
)
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel, Sharing, local_time, sharing_of
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import Time


class Why(Enum):
    """By which rule a span did not begin earlier."""

    NOTHING = "nothing"
    ORDER = "the step before it"
    ARRIVAL = "the arrival of its message"
    DEPENDENCE = "a dependency"
    SLOT = "a FIFO slot"
    LINK = "a busy edge"


class Span(NamedTuple):
    """One message sent, one message received, or one piece of local work.

    A step that receives and sends has two spans for each message: the receiving one (arrival and
    local work) and the sending one. Times count from the end of the launch.

    `gpu`, `threadblock`, `step`: whose; ``step`` is the position in the threadblock (the last of a
    fused reduction).
    `iteration`: which slice of every chunk.
    `start`, `end`: a sent message from its start to the release of its last edge; else the local
    work.
    `size`: bytes.
    `link`: the link it was sent on; -1 for a message that was routed over several; None when
    nothing was sent.
    `arrival`: when a sent message was at its destination; None when nothing was sent.
    `waited_for`: id (position in ``Trace.spans``) of the span that ended last of what it needed.
    `why`: what that span had that this one needed.
    """

    gpu: int
    threadblock: int
    step: int
    iteration: int
    start: Time
    end: Time
    size: int
    link: int | None
    arrival: Time | None
    waited_for: int | None
    why: Why


@dataclass(frozen=True, slots=True)
class Trace:
    """A replay of one program at one size.

    `program`: the program's name.
    `size`: bytes of the counted buffer.
    `time`: picoseconds, launch included; None: the program can't run at this size.
    `reason`: why ``time`` is None; empty otherwise.
    `in_range`: whether the size lies in the range the program declares.
    `messages`: messages sent.
    `edge_busy`: how long each edge of the topology was held.
    `spans`: in order of start; empty unless asked for.
    `extrapolated`: iterations that were not followed, as they repeat those before them exactly.
    """

    program: str
    size: int
    time: Time | None
    reason: str = ""
    in_range: bool = True
    messages: int = 0
    edge_busy: tuple[Time, ...] = ()
    spans: tuple[Span, ...] = ()
    extrapolated: int = 0

    @property
    def critical_path(self) -> tuple[int, ...]:
        """Ids of the spans up to the last one to finish; each waited for the one before it."""
        if not self.spans:
            return ()
        ends = [max(span.end, span.arrival or 0) for span in self.spans]
        last: int | None = ends.index(max(ends))
        path = []
        while last is not None:
            path.append(last)
            last = self.spans[last].waited_for
        return tuple(reversed(path))

    @property
    def busiest_edge(self) -> int | None:
        """The edge that was held longest, the first of equals; None when none was."""
        edge = max(range(len(self.edge_busy)), key=lambda e: (self.edge_busy[e], -e), default=None)
        return edge if edge is not None and self.edge_busy[edge] > 0 else None


class Action(NamedTuple):
    """One message, or one piece of local work, of a threadblock.

    It needs the flags of `needs`, (block, position) pairs, takes a message if it `receives`, works
    for `local` picoseconds, and sends one with the course `flight`, or None. When it is done it
    posts the position `posts`; -1: nothing. `step` and `size` are for the trace. Where edges are
    shared, its message travels in `slices`.
    """

    needs: tuple[tuple[int, int], ...]
    receives: bool
    flight: Flight | None
    local: Time
    posts: int
    step: int
    size: int
    slices: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """One threadblock, ready to run.

    It is threadblock `id` of a `rank`, whose connections `receives_on` and `sends_on` are indices,
    or None. It runs its list `iterations` times: `full` in every iteration but the last, which is
    `last`.
    """

    rank: int
    id: int
    receives_on: int | None
    sends_on: int | None
    full: tuple[Action, ...]
    last: tuple[Action, ...]
    iterations: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program at one size, or several programs side by side.

    `blocks` of a program are ascending by (rank, threadblock id), the order in which contested
    edges are served; their indices point into `connections`. `senders` and `receivers` are the
    blocks at the ends of a connection, None where no step uses it, and `slots` is how many messages
    it holds. `width` is above every position: flags count ``iteration * width + position``.
    `sharing` says how messages share edges, if they do.
    """

    blocks: tuple[Block, ...]
    connections: tuple[Connection, ...]
    senders: tuple[int | None, ...]
    receivers: tuple[int | None, ...]
    slots: tuple[int, ...]
    width: int
    sharing: Sharing | None = None


def compile_program(
    columns: Columns,
    cut: Split,
    local: LocalCosts,
    factor: Fraction = Fraction(1),
    sharing: Sharing | None = None,
) -> Compiled:
    """Return what each threadblock does at one size, message by message.

    `columns` are the program on its topology, `cut` is how the size is cut, `local` what local work
    costs, and `factor` bytes on the wire for each byte of data; `sharing` is what is charged
    instead where messages share edges.
    """
    kind_of, marks = columns.kind_of.tolist(), columns.marks.tolist()
    needs_from, needs = columns.needs_from.tolist(), list(map(tuple, columns.needs.tolist()))
    wired = [
        tuple(None if number < 0 else number for number in column.tolist())
        for column in (columns.inbound, columns.outbound, columns.senders, columns.receivers)
    ]
    inbound, outbound, senders, receivers = wired
    flights: dict[tuple[int, int], Flight] = {}
    works: dict[tuple[int, int], Time] = {}

    def actions(block: int, part: int) -> Iterator[Action]:
        number = outbound[block]
        for step in range(*columns.begins[block : block + 2].tolist()):
            kind, (position, posts) = columns.kinds[kind_of[step]], divmod(marks[step], 2)
            waits = tuple(needs[needs_from[step] : needs_from[step + 1]])
            receives, flight = kind.op in RECEIVES, None
            for start in range(0, max(1, kind.chunks), cut.chunks):
                size = part * min(cut.chunks, kind.chunks - start)
                slices = 1 if sharing is None else sharing.slices_of(size)
                if number is not None and kind.op in SENDS:
                    if (number, size) not in flights:
                        wire = columns.connections[number]
                        flights[number, size] = (
                            wire.flight(size if factor == 1 else factor * size)
                            if sharing is None
                            else shared_flight(wire, size, sharing)
                        )
                    flight = flights[number, size]
                if (kind_of[step], size) not in works:
                    works[kind_of[step], size] = local_time(
                        kind.op, local, Fraction(size, slices), kind.sources
                    )
                work, is_last = works[kind_of[step], size], start + cut.chunks >= kind.chunks
                flag = position if posts and is_last else -1
                yield Action(waits, receives, flight, work, flag, position, size, slices)
                waits = ()

    return Compiled(
        tuple(
            Block(
                *end, inbound[number], outbound[number],
                tuple(actions(number, cut.full)) if cut.iterations > 1 else (),
                tuple(actions(number, cut.last)), cut.iterations,
            )
            for number, end in enumerate(columns.ends)
        ),
        columns.connections, senders, receivers,
        (cut.slots,) * len(columns.connections), columns.width, sharing,
    )  # fmt: skip


def shared_flight(wire: Connection, size: int, sharing: Sharing) -> Flight:
    """Return the course of each slice of a message of ``size`` bytes on a ``wire`` it shares."""
    alpha, work = sharing.flow(size, across=wire.across)
    return Flight(alpha, ((0, tuple(edge for edge, _ in wire.held)),), work)


@dataclass(slots=True)
class Flow:
    """A slice on its way.

    `edges`: that it shares.
    `left`: work that was left when it got its rate.
    `rate`: work in a picosecond.
    `since`, `ends`: when it got its rate, and when it ends at that.
    """

    edges: tuple[int, ...]
    left: int
    rate: int
    since: Time
    ends: Time


class Wait(NamedTuple):
    """What a threadblock waits for.

    At position `step` it waits for the flag of `need`, a (block, position); where that is None, for
    a message if it is `receiving`, else for a free slot.
    """

    step: int
    need: tuple[int, int] | None
    receiving: bool


@dataclass(frozen=True, slots=True)
class Standstill:
    """The end of a replay.

    `ends` has (rank, threadblock id) of each block, `inbound` and `outbound` the connections of a
    block, `senders` and `receivers` the blocks of one of the `connections`, None or -1: none.
    `waits` says of each block that has not finished what it waits for.
    """

    ends: Sequence[End]
    connections: Sequence[Connection]
    inbound: Sequence[int | None]
    outbound: Sequence[int | None]
    senders: Sequence[int | None]
    receivers: Sequence[int | None]
    waits: Mapping[int, Wait]


def deadlock(end: Standstill) -> str:
    """Return who waits for what, starting at the first threadblock that can't go on.

    Empty when all have finished.
    """
    parts: list[str] = []
    seen: set[int] = set()
    block: int | None = min(end.waits, default=None)
    while block is not None and block not in seen and len(parts) < 4:
        seen.add(block)
        text, block = _wait(end, block)
        parts.append(text)
    stuck = len(end.waits)
    more = f" ({stuck} threadblocks in all)" if stuck > len(parts) else ""
    return f"deadlock: {'; '.join(parts)}{more}" if parts else ""


def _wait(end: Standstill, block: int) -> tuple[str, int | None]:
    """Return what a stuck threadblock waits for, in words, and the one that should provide it."""
    rank, threadblock = end.ends[block]
    step, need, receiving = end.waits[block]
    text = f"rank {rank} threadblock {threadblock} step {step} waits for"
    other: int | None
    if need is not None:
        other, position = need
        if other == len(end.ends):
            return f"{text} a threadblock that does not exist", None
        text += f" step {position} of threadblock {end.ends[other][1]}"
        ending = "which has finished without posting it"
    else:
        number = end.inbound[block] if receiving else end.outbound[block]
        if number is None or number < 0:
            return f"{text} ever", None
        wire = end.connections[number]
        if receiving:
            text += f" a message from rank {wire.src} on channel {wire.channel}"
            other, ending = end.senders[number], "which sends no more"
        else:
            text += f" a free slot to rank {wire.dst} on channel {wire.channel}"
            other, ending = end.receivers[number], "which receives no more"
    if other is None or other not in end.waits:
        return f"{text}, {ending}", None
    return text, other


NEEDS, RECEIVE, WORK, SLOT, LINK, DONE = range(6)
ARRIVED, RELEASED, WORKED, DUE, SEEN = range(5)
KINDS = 5


def replay(
    program: Program,
    topology: Topology,
    size: int,
    model: ReplayModel,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> Trace:
    """Return what a program does at one size.

    `program`: what is run.
    `topology`: the machine.
    `size`: bytes of the buffer that nccl-tests counts.
    `model`: the runtime's constants.
    `route`: send over the shortest path through ranks where a pair has no link.
    `protocol_costs`: charge the bytes that LL and LL128 add.

    Raises ProgramError when the program does not fit the topology.
    """
    in_range = program.min_bytes <= size <= program.max_bytes
    reason = why_not(program, size, model)
    if reason:
        return Trace(program.name, size, None, reason, in_range)
    columns, cut = columns_of(program, topology, route=route), split(program, size, model)
    factor = PROTOCOL_FACTOR[program.protocol] if protocol_costs else Fraction(1)
    sharing = sharing_of(topology, program.protocol) if model.measured else None
    if sharing is not None:
        sharing = among_peers(sharing, topology, columns.connections)
    local = topology.local if sharing is None else sharing.local
    compiled = compile_program(columns, cut, local, factor, sharing)
    run = Run(compiled, len(topology.edges), keep_spans=True)
    run.to_end()
    reason = deadlock(standstill(run))
    time = None if reason else run.now + local.launch
    return Trace(
        program.name, size, time, reason, in_range,
        run.messages, tuple(run.edge_busy), tuple(run.spans),
    )  # fmt: skip


class Run:
    """The state of one replay; blocks, connections and edges are indices everywhere.

    `compiled` is what runs on a topology of `num_edges`; every message is recorded if `keep_spans`
    is set.
    """

    def __init__(self, compiled: Compiled, num_edges: int, *, keep_spans: bool) -> None:
        blocks, connections = len(compiled.blocks), len(compiled.connections)
        self.compiled = compiled
        self.keep = keep_spans
        self.now: Time = 0
        self.heap: list[tuple[Time, int]] = []
        self.woken = list(range(blocks - 1, -1, -1))
        self.phase = [NEEDS] * blocks
        self.actions = [self._list(i, 0) for i in range(blocks)]
        self.position = [0] * blocks
        self.iteration = [0] * blocks
        self.need = [0] * blocks
        self.flag = [-1] * (blocks + 1)
        self.flag_waiters: list[list[tuple[int, int]]] = [[] for _ in range(blocks + 1)]
        self.inbound = [b.receives_on for b in compiled.blocks]
        self.outbound = [b.sends_on for b in compiled.blocks]
        self.available = [0] * connections
        self.taken = [0] * connections
        self.released = [0] * connections
        self.flying: list[Flight | None] = [None] * connections
        self.requested: list[int] = []
        self.freed: list[int] = []
        self.busy = [False] * num_edges
        self.parked: list[list[int]] = [[] for _ in range(num_edges)]
        self.edge_busy = [0] * num_edges
        self.slice = [0] * blocks
        self.flows: dict[int, Flow] = {}
        self.users = [0] * num_edges
        self.messages = 0
        self.spans: list[Span] = []
        self.cause: list[int | None] = [None] * blocks
        self.why = [Why.NOTHING] * blocks
        self.current: list[int | None] = [None] * blocks
        self.edge_span: list[int | None] = [None] * num_edges
        self.in_flight: list[deque[int]] = [deque() for _ in range(connections)]
        self.handlers = {
            NEEDS: self._await_flags, RECEIVE: self._await_arrival, SLOT: self._await_slot
        }  # fmt: skip
        for index in range(blocks):
            if not self.actions[index]:
                self.phase[index] = DONE

    def _list(self, block: int, iteration: int) -> tuple[Action, ...]:
        owner = self.compiled.blocks[block]
        return owner.last if iteration == owner.iterations - 1 else owner.full

    def goes_on(self) -> bool:
        """Tell, before time moves, whether what is still to come matters."""
        return True

    def course(self, block: int, flight: Flight) -> Flight:
        """Return the course of the message that a block starts now."""
        del block
        return flight

    def to_end(self) -> None:
        """Run until nothing moves any more."""
        heap, woken = self.heap, self.woken
        while True:
            while woken or (heap and heap[0][0] == self.now):
                if woken:
                    self._advance(woken.pop())
                else:
                    self._complete_event(heapq.heappop(heap)[1])
            ended = [number for number, flow in self.flows.items() if flow.ends == self.now]
            for number in ended:
                self._end_flow(number)
            if ended:
                continue
            if self.requested or self.freed:
                if self.compiled.sharing is None:
                    self._start_waiting_sends()
                else:
                    self._share(self.compiled.sharing)
            elif (heap or self.flows) and self.goes_on():
                self.now = min(
                    [*(flow.ends for flow in self.flows.values()), *(time for time, _ in heap[:1])]
                )
            else:
                return

    def _complete_event(self, code: int) -> None:
        index, kind = divmod(code, KINDS)
        if kind == ARRIVED:
            self.available[index] += 1
            span = self.in_flight[index].popleft() if self.keep else None
            receiver = self.compiled.receivers[index]
            first = self.available[index] == 1
            if first and receiver is not None and self.phase[receiver] == RECEIVE:
                self._wake(receiver, span, Why.ARRIVAL)
        elif kind == RELEASED:
            self._release(index)
        elif kind == SEEN:
            flag, block = divmod(index, len(self.flag))
            self._show(block, flag)
        else:
            if kind == WORKED:
                self.phase[index] = SLOT
            self.woken.append(index)

    def _advance(self, block: int) -> None:
        while (handler := self.handlers.get(self.phase[block])) and handler(block):
            pass

    def _await_flags(self, block: int) -> bool:
        needs = self.actions[block][self.position[block]].needs
        base = self.iteration[block] * self.compiled.width
        for number in range(self.need[block], len(needs)):
            other, position = needs[number]
            if self.flag[other] < base + position:
                self.need[block] = number
                self.flag_waiters[other].append((base + position, block))
                return False
        self.need[block] = 0
        self.phase[block] = RECEIVE
        return True

    def _await_arrival(self, block: int) -> bool:
        action = self.actions[block][self.position[block]]
        if action.receives:
            connection = self.inbound[block]
            if connection is None or self.available[connection] == 0:
                return False
            self.available[connection] -= 1
        if self.keep and (action.receives or action.flight is None):
            self._record(block, self.now + action.local, None, None)
        if action.local:
            self.phase[block] = WORK
            heapq.heappush(self.heap, (self.now + action.local, block * KINDS + WORKED))
            return False
        self.phase[block] = SLOT
        return True

    def _await_slot(self, block: int) -> bool:
        if self.actions[block][self.position[block]].flight is None:
            self._finish_action(block)
            return True
        connection = self.outbound[block]
        if connection is None:
            return False
        if self.slice[block] == 0:
            if self.taken[connection] >= self.compiled.slots[connection]:
                return False
            self.taken[connection] += 1
        self.phase[block] = LINK
        self.requested.append(self.now * len(self.phase) + block)
        return False

    def _finish_action(self, block: int) -> None:
        """Go to the next slice; after the last free the slot, post, and go to the next action."""
        action, connection = self.actions[block][self.position[block]], self.inbound[block]
        self.slice[block] += 1
        if self.slice[block] < action.slices:
            self.phase[block] = RECEIVE
            return
        self.slice[block] = 0
        if action.receives and connection is not None:
            sender = self.compiled.senders[connection]
            full = self.taken[connection] == self.compiled.slots[connection]
            self.taken[connection] -= 1
            if full and sender is not None and self.phase[sender] == SLOT:
                self._wake(sender, self.current[block], Why.SLOT)
        if action.posts >= 0:
            flag = self.iteration[block] * self.compiled.width + action.posts
            sharing = self.compiled.sharing
            if sharing is not None and sharing.flag:
                code = (flag * len(self.flag) + block) * KINDS + SEEN
                heapq.heappush(self.heap, (self.now + sharing.flag, code))
            else:
                self._show(block, flag)
        self.cause[block], self.why[block] = self.current[block], Why.ORDER
        self.position[block] += 1
        if self.position[block] < len(self.actions[block]):
            self.phase[block] = NEEDS
            return
        self.position[block] = 0
        self.iteration[block] += 1
        if self.iteration[block] < self.compiled.blocks[block].iterations:
            self.phase[block] = NEEDS
            self.actions[block] = self._list(block, self.iteration[block])
        else:
            self.phase[block] = DONE

    def _show(self, block: int, flag: int) -> None:
        waiters, self.flag[block] = self.flag_waiters[block], flag
        self.flag_waiters[block] = [waiter for waiter in waiters if waiter[0] > flag]
        for goal, waiter in waiters:
            if goal <= flag:
                self._wake(waiter, self.current[block], Why.DEPENDENCE)

    def _wake(self, block: int, cause: int | None, why: Why) -> None:
        self.cause[block], self.why[block] = cause, why
        self.woken.append(block)

    def _release(self, connection: int) -> None:
        sender, flight = self.compiled.senders[connection], self.flying[connection]
        if sender is None or flight is None:
            return
        number = self.released[connection]
        for edge in flight.releases[number][1]:
            self.busy[edge] = False
            self.freed.append(edge)
        self.released[connection] += 1
        if number + 1 == len(flight.releases):
            self._finish_action(sender)
            self.woken.append(sender)

    def _share(self, sharing: Sharing) -> None:
        """Begin the flows that are asked for, and give each flow its rate."""
        for key in self.requested:
            block = key % len(self.phase)
            connection = self.outbound[block]
            flight = self.actions[block][self.position[block]].flight
            if connection is None or flight is None:
                continue
            edges = flight.releases[0][1]
            self.flying[connection] = flight
            self.flows[connection] = Flow(edges, flight.work, 0, self.now, self.now)
            for edge in edges:
                self.users[edge] += 1
                if self.users[edge] == 1:
                    self.edge_busy[edge] -= self.now
            self.messages += self.slice[block] == 0
            if self.keep:
                self._record(block, self.now, self.compiled.connections[connection].link, self.now)
                self.in_flight[connection].append(len(self.spans) - 1)
        self.requested, self.freed = [], []
        for flow in self.flows.values():
            shares = [max(1, int(sharing.capacity[e]) // self.users[e]) for e in flow.edges]
            rate = min([sharing.block_rate, *shares])
            if rate != flow.rate:
                flow.left = max(0, flow.left - flow.rate * (self.now - flow.since))
                flow.rate, flow.since = rate, self.now
                flow.ends = self.now - (-flow.left // rate)

    def _end_flow(self, connection: int) -> None:
        flow, flight = self.flows.pop(connection), self.flying[connection]
        sender = self.compiled.senders[connection]
        if flight is None or sender is None:
            return
        for edge in flow.edges:
            self.users[edge] -= 1
            if self.users[edge] == 0:
                self.edge_busy[edge] += self.now
        self.freed.extend(flow.edges)
        arrival = self.now + flight.arrival
        if self.keep:
            number = self.current[sender]
            if number is not None:
                self.spans[number] = self.spans[number]._replace(end=self.now, arrival=arrival)
        heapq.heappush(self.heap, (arrival, connection * KINDS + ARRIVED))
        self._finish_action(sender)
        self.woken.append(sender)

    def _start_waiting_sends(self) -> None:
        """Go once through the waiting sends that may have become able to start, in order."""
        queue = [(key, -1) for key in self.requested]
        queue += [(self.parked[e][0], e) for e in dict.fromkeys(self.freed) if self.parked[e]]
        self.requested, self.freed = [], []
        heapq.heapify(queue)
        while queue:
            key, edge = heapq.heappop(queue)
            if edge >= 0:
                if self.busy[edge]:
                    continue
                heapq.heappop(self.parked[edge])
            self._start_or_park(key, edge)
            if edge >= 0 and self.parked[edge] and not self.busy[edge]:
                heapq.heappush(queue, (self.parked[edge][0], edge))

    def _start_or_park(self, key: int, freed_edge: int) -> None:
        block = key % len(self.phase)
        connection = self.outbound[block]
        flight = self.actions[block][self.position[block]].flight
        if connection is None or flight is None:
            return
        busy = self.busy
        for _, edges in flight.releases:
            for edge in edges:
                if busy[edge]:
                    heapq.heappush(self.parked[edge], key)
                    return
        flight = self.flying[connection] = self.course(block, flight)
        if self.keep:
            if freed_edge >= 0:
                self.cause[block], self.why[block] = self.edge_span[freed_edge], Why.LINK
            link = self.compiled.connections[connection].link
            end = self.now + flight.releases[-1][0]
            self._record(block, end, link, self.now + flight.arrival)
            self.in_flight[connection].append(len(self.spans) - 1)
        self.messages += 1
        self.released[connection] = 0
        heapq.heappush(self.heap, (self.now + flight.arrival, connection * KINDS + ARRIVED))
        for duration, edges in flight.releases:
            heapq.heappush(self.heap, (self.now + duration, connection * KINDS + RELEASED))
            for edge in edges:
                busy[edge] = True
                self.edge_busy[edge] += duration
                self.edge_span[edge] = self.current[block]

    def _record(self, block: int, end: Time, link: int | None, arrival: Time | None) -> None:
        owner = self.compiled.blocks[block]
        action = self.actions[block][self.position[block]]
        self.spans.append(Span(
            owner.rank, owner.id, action.step, self.iteration[block], self.now, end,
            action.size, link, arrival, self.cause[block], self.why[block],
        ))  # fmt: skip
        self.current[block] = self.cause[block] = len(self.spans) - 1
        self.why[block] = Why.ORDER


def standstill(run: Run) -> Standstill:
    """Return what is left of a run that has ended: who is done, and who waits for what."""
    compiled, waits = run.compiled, {}
    for block, phase in enumerate(run.phase):
        if phase != DONE:
            action = run.actions[block][run.position[block]]
            # Of blocks that begin later, some wait for no flag.
            flags = action.needs[run.need[block] :] if phase == NEEDS else ()
            waits[block] = Wait(action.step, next(iter(flags), None), phase == RECEIVE)
    return Standstill(
        [(block.rank, block.id) for block in compiled.blocks], compiled.connections,
        run.inbound, run.outbound, compiled.senders, compiled.receivers, waits,
    )  # fmt: skip
