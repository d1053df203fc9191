"""A replayed program or plan with what its reports ask of it: connections, edges held, names.

The names are what pages and traces call threadblocks, steps, spans and links.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from taccl.errors import TacclWarning
from taccl.msccl.program import RECEIVES, Op, Program, Step, Threadblock
from taccl.mscclpp.plan import OPERATIONS, Plan, PlanOp
from taccl.replay.compile import ROUTED, Connection, connect, wire
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel
from taccl.replay.interpreter import Span, Trace, replay
from taccl.replay.plans import replay_plan
from taccl.topology.graph import Topology
from taccl.units import Time, ceil_time


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
