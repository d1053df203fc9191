"""A replayed program with what its reports ask of it: connections, receivers, edges held, names.

The names are what pages and traces call threadblocks, steps, spans and links.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from taccl.errors import TacclWarning
from taccl.msccl.program import RECEIVES, Op, Program, Step, Threadblock
from taccl.replay.compile import ROUTED, Connection, wire
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel
from taccl.replay.interpreter import replay
from taccl.replay.trace import Span, Trace
from taccl.topology.graph import Topology
from taccl.units import Time, ceil_time


@dataclass(frozen=True, eq=False)
class Played:
    """A program replayed at one size.

    Parameters
    ----------
    program, topology
        What ran where.
    trace
        With its spans.
    factor
        Bytes on the wire for each byte of data.
    route
        Whether pairs without a link send over other ranks.
    """

    program: Program
    topology: Topology
    trace: Trace
    factor: Fraction = Fraction(1)
    route: bool = False

    @cached_property
    def blocks(self) -> Mapping[tuple[int, int], Threadblock]:
        """Threadblocks by (rank, id)."""
        return {(rank, block.id): block for rank, block in self.program.blocks()}

    @cached_property
    def connections(self) -> Mapping[tuple[int, int, int], Connection]:
        """Connections by (source, destination, channel)."""
        with warnings.catch_warnings():
            # The replay has warned of routed pairs already.
            warnings.simplefilter("ignore", TacclWarning)
            wiring = wire(self.program, self.topology, route=self.route)
        return {(c.src, c.dst, c.channel): c for c in wiring.connections}

    @cached_property
    def received(self) -> Mapping[int, int]:
        """From the id of each span that sends to that of the span that receives its message."""
        sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        spans = self.trace.spans
        for number, span in enumerate(spans):
            if span.link is not None:
                wire_ = self.connection(span)
                sent[wire_.src, wire_.dst, wire_.channel].append(number)
        found: dict[int, int] = {}
        for number, span in enumerate(spans):
            block = self.blocks[span.gpu, span.threadblock]
            if self.receives(span) and block.recv_from is not None:
                # A connection is a FIFO with one block at either end: the k-th receives the k-th.
                found[sent[block.recv_from, span.gpu, block.channel].popleft()] = number
        return found

    def step(self, span: Span) -> Step:
        """Return the step that a span belongs to."""
        return self.blocks[span.gpu, span.threadblock].steps[span.step]

    def op(self, span: Span) -> Op:
        """Return the op of the step that a span belongs to."""
        return self.step(span).op

    def receives(self, span: Span) -> bool:
        """Tell whether a span takes a message: the first of the two of a fused step."""
        return span.link is None and self.op(span) in RECEIVES

    def connection(self, span: Span) -> Connection:
        """Return the connection that a span sends on."""
        block = self.blocks[span.gpu, span.threadblock]
        return self.connections[span.gpu, block.send_to, block.channel]  # type: ignore[index]

    def holds(self, span: Span) -> Iterator[tuple[int, Time]]:
        """Yield (edge, how long) for what a message holds from its start on."""
        wire_ = self.connection(span)
        for edge, beta in wire_.held:
            yield edge, wire_.overhead + ceil_time(beta, self.factor * span.size)

    def crossed(self, span: Span) -> tuple[int, ...]:
        """Return the edges that a message crosses; of a routed one those that it holds."""
        if span.link is None or span.link == ROUTED:
            return tuple(edge for edge, _ in self.connection(span).held)
        return self.topology.links.edges_of(span.link)

    def where(self, span: Span) -> str:
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
    return Played(program, topology, trace, factor, route)


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
    op, block = played.op(span).value, played.blocks[span.gpu, span.threadblock]
    if span.link is not None:
        return f"{op} to {block.send_to}"
    return f"{op} from {block.recv_from}" if played.receives(span) else op


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
