"""What pages and traces call threadblocks, steps, spans and links."""

from taccl.msccl.program import Slot, Step, Threadblock
from taccl.report.played import Played
from taccl.sim.connect import ROUTED
from taccl.sim.trace import Span


def block_label(block: Threadblock) -> str:
    """Return what a threadblock is for."""
    parts = [f"tb {block.id}"]
    if block.send_to is not None:
        parts.append(f"to {block.send_to}")
    if block.recv_from is not None:
        parts.append(f"from {block.recv_from}")
    return f"{' '.join(parts)}, channel {block.channel}"


def span_label(played: Played, span: Span) -> str:
    """Return the op, and for a message which way it goes."""
    op, block = played.op(span).value, played.blocks[span.gpu, span.threadblock]
    if span.link is not None:
        return f"{op} to {block.send_to}"
    return f"{op} from {block.recv_from}" if played.receives(span) else op


def chunks_text(step: Step) -> str:
    """Return which chunks a step reads and writes, such as ``i[2..3] -> o[2..3]``."""
    ends = [_slots(slot, step.count) for slot in (step.src, step.dst) if slot is not None]
    return " -> ".join(ends)


def _slots(slot: Slot, count: int) -> str:
    last = f"..{slot.offset + count - 1}" if count > 1 else ""
    return f"{slot.buffer.value}[{slot.offset}{last}]"


def link_text(played: Played, span: Span) -> str:
    """Return the ranks of a message and the edges it crosses."""
    wire = played.connection(span)
    edges = ", ".join(played.topology.edges[edge].name for edge in played.crossed(span))
    routed = "routed over " if span.link == ROUTED else ""
    return f"{wire.src} to {wire.dst} ({routed}{edges})"
