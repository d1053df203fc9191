"""A replayed program or plan, with what its reports ask of it, and as Chrome trace JSON.

The names are what pages and traces call threadblocks, steps, spans and links.

Traces are opened by chrome://tracing and ui.perfetto.dev. A process is a rank and a thread one of
its threadblocks; one more process has a thread for every edge that was held, and a counter of the
bytes on their way over it. Arrows lead from each message's sending span to the span that received
it. The form is the Trace Event Format: ``X`` spans, ``M`` names, ``C`` counters, ``s`` and ``f``
ends of arrows, times in microseconds. One event a line, in a fixed order: equal replays are equal
bytes. An end of an arrow belongs to the span that was last begun on its thread, so it directly
follows it: spans may take no time.
"""

import json
import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from taccl.errors import TacclWarning
from taccl.model.schedule import Schedule
from taccl.msccl.program import RECEIVES, Op, Program, Step, Threadblock
from taccl.mscclpp.plan import OPERATIONS, Plan, PlanOp
from taccl.replay.compile import ROUTED, Connection, connect, wire
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel
from taccl.replay.interpreter import Span, Trace, replay
from taccl.replay.plans import replay_plan
from taccl.report.text import us
from taccl.topology.graph import Topology
from taccl.units import Time, ceil_time, microseconds


@dataclass(frozen=True, slots=True)
class Deed:
    """A step of a threadblock as reports show it.

    `op`: its name.
    `chunks`: which it reads and writes, in words.
    `count`: how many it moves.
    `receives`: whether it takes a message before it does anything else.
    `adds`: whether its local work is a sum.
    """

    op: str
    chunks: str
    count: int
    receives: bool
    adds: bool


@dataclass(frozen=True, slots=True)
class Thread:
    """A threadblock as reports show it.

    `name`: what it is called.
    `steps`: what it does, in order.
    `source`: whom it receives from; None: from nobody, or from several.
    """

    name: str
    steps: tuple[Deed, ...]
    source: int | None = None


@dataclass(frozen=True, eq=False)
class Played:
    """A program or plan replayed at one size, every span of it.

    `name`, `num_ranks`: of the program.
    `topology`, `trace`: where it ran, and what it did.
    `threads`: threadblocks by (rank, id).
    `wires`: connections by (rank, threadblock, link), as spans have them.
    `received`: from the id of each span that sends to that of the span that receives its message,
    where there is one.
    `program`: of XML; None: it is a plan.
    `factor`: bytes on the wire for each byte of data.
    """

    name: str
    num_ranks: int
    topology: Topology
    trace: Trace
    threads: Mapping[tuple[int, int], Thread]
    wires: Mapping[tuple[int, int, int], Connection]
    received: Mapping[int, int]
    program: Program | None = None
    factor: Fraction = Fraction(1)

    def step(self, span: Span) -> Deed:
        """Return the step that a span belongs to."""
        return self.threads[span.gpu, span.threadblock].steps[span.step]

    def receives(self, span: Span) -> bool:
        """Tell whether a span takes a message: the first of the two of a fused step."""
        return span.link is None and self.step(span).receives

    def connection(self, span: Span) -> Connection:
        """Return the connection that a span sends on."""
        return self.wires[span.gpu, span.threadblock, cast("int", span.link)]

    def holds(self, span: Span) -> Iterator[tuple[int, Time]]:
        """Yield (edge, how long) for what a message holds from its start on: a signal nothing."""
        wire = self.connection(span)
        for edge, beta in wire.held if span.size else ():
            yield edge, wire.overhead + ceil_time(beta, self.factor * span.size)

    def crossed(self, span: Span) -> tuple[int, ...]:
        """Return the edges that a message crosses; of a routed one those that it holds."""
        if span.link is None or span.link == ROUTED:
            return tuple(edge for edge, _ in self.connection(span).held)
        return self.topology.links.edges_of(span.link)

    def place(self, span: Span) -> str:
        """Return what a reader calls a span."""
        return f"rank {span.gpu} threadblock {span.threadblock} step {span.step}"


def play(
    program: Program,
    topology: Topology,
    size: int,
    model: ReplayModel,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> Played:
    """Replay a `program` on a `topology` at one `size`, every message told.

    The size is in bytes of the counted buffer, the `model` has the constants of the runtime, and
    `route` and `protocol_costs` are those of :func:`taccl.replay.interpreter.replay`.

    Raises ProgramError when the program does not fit the topology.
    """
    trace = replay(program, topology, size, model, route=route, protocol_costs=protocol_costs)
    factor = PROTOCOL_FACTOR[program.protocol] if protocol_costs else Fraction(1)
    with warnings.catch_warnings():
        # The replay has warned of routed pairs already.
        warnings.simplefilter("ignore", TacclWarning)
        wiring = wire(program, topology, route=route)
    connections = {(c.src, c.dst, c.channel): c for c in wiring.connections}
    blocks = {(rank, block.id): block for rank, block in program.blocks()}
    wires = {
        (rank, number, connection.link): connection
        for (rank, number), block in blocks.items()
        if block.send_to is not None
        for connection in (connections[rank, block.send_to, block.channel],)
    }
    threads = {
        where: Thread(block_label(block), tuple(
            Deed(
                step.op.value, chunks_text(step), step.count, step.op in RECEIVES,
                step.op not in (Op.COPY, Op.RECV),
            )
            for step in block.steps
        ), block.recv_from)
        for where, block in blocks.items()
    }  # fmt: skip
    return Played(
        program.name, program.num_ranks, topology, trace, threads, wires,
        _received(trace, blocks), program, factor,
    )  # fmt: skip


def _received(trace: Trace, blocks: Mapping[tuple[int, int], Threadblock]) -> dict[int, int]:
    sent: dict[tuple[int, int | None, int], deque[int]] = defaultdict(deque)
    for number, span in enumerate(trace.spans):
        if span.link is not None:
            block = blocks[span.gpu, span.threadblock]
            sent[span.gpu, block.send_to, block.channel].append(number)
    found: dict[int, int] = {}
    for number, span in enumerate(trace.spans):
        block = blocks[span.gpu, span.threadblock]
        receives = span.link is None and block.steps[span.step].op in RECEIVES
        if receives and block.recv_from is not None:
            # A connection is a FIFO with one block at either end: the k-th receives the k-th.
            found[sent[block.recv_from, span.gpu, block.channel].popleft()] = number
    return found


def play_plan(plan: Plan, topology: Topology, size: int, model: ReplayModel) -> Played:
    """Replay a `plan` on a `topology` at one `size`, every message told.

    The size is in bytes of the counted buffer, and the `model` is that of
    :func:`taccl.replay.plans.replay_plan`.

    Raises ProgramError when the plan does not fit the topology.
    """
    trace = replay_plan(plan, topology, size, model, keep_spans=True)
    threads = {}
    for rank, record in enumerate(plan.ranks):
        for number, block in enumerate(record.blocks):
            peers = [
                f"{kind} {', '.join(str(record.channels[kind][one].peer) for one in own)}"
                for kind, own in block.channels.items()
                if own and kind != "switch"
            ]
            label = " ".join([f"tb {number}", *peers])
            threads[rank, number] = Thread(label, tuple(map(_deed, block.ops)))
    table = topology.links
    wires = {
        (span.gpu, span.threadblock, span.link): connect(
            topology, (int(table.src[span.link]), int(table.dst[span.link]), 0), (span.link,)
        )
        for span in trace.spans
        if span.link is not None
    }
    return Played(plan.name, plan.num_ranks, topology, trace, threads, wires, {})


def _deed(op: PlanOp) -> Deed:
    inner = op.inner or (op,)
    texts = [
        ", ".join(
            f"{one.buffer.value if one.buffer is not None else one.side.value}[{one.index}"
            f"{f'..{one.index + one.size - 1}' if one.size > 1 else ''}]"
            for one in operands
        )
        for operands in (op.sources, op.targets)
        if operands
    ]
    if op.inner:
        texts = [", ".join(each.name for each in op.inner)]
    count = max((one.size for each in inner for one in (*each.sources, *each.targets)), default=0)
    adds = any(OPERATIONS[each.name].adds for each in inner)
    return Deed(op.name, " -> ".join(texts), max(count, 1), receives=False, adds=adds)


def block_label(block: Threadblock) -> str:
    """Return what a threadblock is for."""
    parts = [f"tb {block.id}"]
    if block.send_to is not None:
        parts.append(f"to {block.send_to}")
    if block.recv_from is not None:
        parts.append(f"from {block.recv_from}")
    return f"{' '.join(parts)}, channel {block.channel}"


def span_label(played: Played, span: Span) -> str:
    """Return the op of a `span` of a replay, `played`, and for a message which way it goes."""
    op = played.step(span).op
    if span.link is not None:
        return f"{op} to {played.connection(span).dst}"
    source = played.threads[span.gpu, span.threadblock].source
    return f"{op} from {source}" if played.receives(span) else op


def chunks_text(step: Step) -> str:
    """Return which chunks a step reads and writes, such as ``i[2..3] -> o[2..3]``."""
    last = step.count - 1
    return " -> ".join(
        f"{slot.buffer.value}[{slot.offset}{f'..{slot.offset + last}' if last > 0 else ''}]"
        for slot in (step.src, step.dst)
        if slot is not None
    )


def link_text(played: Played, span: Span) -> str:
    """Return the ranks of a message, a `span` of `played`, and the edges that it crosses."""
    wire = played.connection(span)
    edges = ", ".join(played.topology.edges[edge].name for edge in played.crossed(span))
    routed = "routed over " if span.link == ROUTED else ""
    return f"{wire.src} to {wire.dst} ({routed}{edges})"


Event = dict[str, object]

BUSY, FLYING = range(2)


def chrome_trace(played: Played) -> str:
    """Return the JSON text of a replay; of a program that can't run, one without spans."""
    return trace_text(head_of(played), events_of(played))


def schedule_trace(schedule: Schedule) -> str:
    """Return the JSON text of a schedule: a process a rank that sends, a thread a link it uses.

    What switches copy or add is a thread for each fan, in a process of their own.
    """
    full, table = schedule.expand(), schedule.topology.links
    ranks, messages = schedule.topology.num_ranks, defaultdict(list)
    for send in full.sends():
        messages[send.batch, send.link].append(send)
    events: list[Event] = []
    used = sorted({link for _, link in messages})
    senders = {link: int(table.src[link]) if link < len(table) else ranks for link in used}
    for pid in sorted(set(senders.values())):
        name = "switches" if pid == ranks else f"rank {pid}"
        events.append(metadata("process_name", pid, 0, {"name": name}))
    for link, pid in senders.items():
        name = f"fan {link - len(table)}" if pid == ranks else f"to {int(table.dst[link])}"
        events.append(metadata("thread_name", pid, link, {"name": name}))
    for (batch, link), message in sorted(messages.items(), key=lambda one: one[1][0].start):
        first, kind = message[0], "reduce" if message[0].reduce else "send"
        chunks = ", ".join(str(send.chunk) for send in message)
        where = (senders[link], link)
        told: Event = {"size_bytes": int(len(message) * full.chunk_size), "batch": batch}
        events.append(_span(
            f"{kind} {chunks}", kind, where, (first.start, first.end - first.start), told
        ))  # fmt: skip
    head = {
        "collective": schedule.collective.name, "topology": schedule.topology.name,
        "time_us": us(schedule.makespan), "alpha_rule": schedule.topology.alpha_rule_stated,
    }  # fmt: skip
    return trace_text(head, events)


def head_of(played: Played) -> dict[str, object]:
    """Return what a trace says of itself when it is a replay."""
    return {
        "program": played.name,
        "topology": played.topology.name,
        "size_bytes": played.trace.size,
        "time_us": us(played.trace.time),
        "launch_us": microseconds(played.topology.local.launch),
        "alpha_rule": played.topology.alpha_rule_stated,
        **({"costs": played.topology.costs} if played.topology.costs else {}),
        "note": played.trace.reason,
    }


def trace_text(head: Mapping[str, object], events: Iterable[Event]) -> str:
    """Return the JSON text of a trace: what it says of itself, and its events, one a line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return (
        f'{{"displayTimeUnit":"ns",\n"otherData":{json.dumps(head)},\n'
        f'"traceEvents":[\n{lines}\n]}}\n'
    )


def metadata(kind: str, pid: int, tid: int, args: Mapping[str, object]) -> Event:
    """Return the event that tells the name or place of a process `pid`, or of its thread `tid`.

    `kind` is ``process_name``, ``thread_name`` or ``process_sort_index``, and `args` has its value.
    """
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def events_of(played: Played) -> Iterator[Event]:
    """Yield the events of a replay."""
    edges = played.topology.edges
    named = [
        (number, edges[number].name) for number, busy in enumerate(played.trace.edge_busy) if busy
    ]
    blocks: dict[int, list[tuple[int, str]]] = {rank: [] for rank in range(played.num_ranks)}
    for (rank, block), thread in played.threads.items():
        blocks[rank].append((block, thread.name))
    processes = [
        *((rank, f"rank {rank}", own) for rank, own in blocks.items()),
        (played.num_ranks, "edges", named),
    ]
    for pid, process, threads in processes:
        facts: list[tuple[str, int, Event]] = [
            ("process_name", 0, {"name": process}),
            ("process_sort_index", 0, {"sort_index": pid}),
        ]
        facts += [("thread_name", tid, {"name": name}) for tid, name in threads]
        for kind, tid, args in facts:
            yield metadata(kind, pid, tid, args)
    shift = played.topology.local.launch
    if shift and played.trace.spans:
        for rank, own in blocks.items():
            if own:
                yield _span("launch", "launch", (rank, own[0][0]), (0, shift), {})
    arrows: dict[int, Event] = {}
    spans = played.trace.spans
    for number, ends in enumerate(sorted(played.received.items())):
        for phase, end, more in zip("sf", ends, ({}, {"bp": "e"}), strict=True):
            span = spans[end]
            arrows[end] = {
                "name": "message", "cat": "message", "ph": phase, "id": number,
                "ts": microseconds(span.start + shift), "pid": span.gpu, "tid": span.threadblock,
                **more,
            }  # fmt: skip
    for number, span in enumerate(spans):
        yield _of_threadblock(played, number, span, shift)
        if number in arrows:
            yield arrows[number]
    for span in spans:
        if span.link is not None:
            label = link_text(played, span)
            for edge, held in played.holds(span):
                where = (played.num_ranks, edge)
                told: Event = {"size_bytes": span.size, "by": played.place(span)}
                yield _span(label, "edge", where, (span.start + shift, held), told)
    yield from _counters(played, shift)


def _of_threadblock(played: Played, number: int, span: Span, shift: Time) -> Event:
    step = played.step(span)
    args: Event = {
        "span": number,
        "step": span.step,
        "op": step.op,
        "chunks": step.chunks,
        "size_bytes": span.size,
        "iteration": span.iteration,
    }
    if span.link is not None:
        args["link"] = link_text(played, span)
    if span.arrival is not None:
        args["arrival_us"] = microseconds(span.arrival + shift)
    args["waited_for"] = span.why.value
    if span.waited_for is not None:
        before = played.trace.spans[span.waited_for]
        args["waited_for"] = f"{span.why.value}: {played.place(before)}"
        args["waited_for_span"] = span.waited_for
    times = (span.start + shift, span.end - span.start)
    kind = "send" if span.link is not None else "receive" if played.receives(span) else "local"
    return _span(span_label(played, span), kind, (span.gpu, span.threadblock), times, args)


def _counters(played: Played, shift: Time) -> Iterator[Event]:
    """Yield how many bytes are on their way over each edge, and whether it is held, by changes."""
    changes: dict[int, dict[Time, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for span in played.trace.spans:
        if span.link is None:
            continue
        arrival = span.end if span.arrival is None else span.arrival
        for edge, held in played.holds(span):
            of_edge = changes[edge]
            of_edge[span.start][BUSY] += 1
            of_edge[span.start + held][BUSY] -= 1
            of_edge[span.start][FLYING] += span.size
            of_edge[arrival][FLYING] -= span.size
    for edge in sorted(changes):
        busy = flying = 0
        for time in sorted(changes[edge]):
            busy += changes[edge][time][BUSY]
            flying += changes[edge][time][FLYING]
            yield {
                "name": f"edge {played.topology.edges[edge].name}", "cat": "edge", "ph": "C",
                "ts": microseconds(time + shift), "pid": played.num_ranks, "tid": edge,
                "args": {"busy": busy, "bytes in flight": flying},
            }  # fmt: skip


def _span(
    name: str, kind: str, where: tuple[int, int], times: tuple[Time, Time], args: Event
) -> Event:
    return {
        "name": name, "cat": kind, "ph": "X", "ts": microseconds(times[0]),
        "dur": microseconds(times[1]), "pid": where[0], "tid": where[1], "args": args,
    }  # fmt: skip
