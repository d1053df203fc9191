"""What a replay tells: when each message and piece of local work ran, and what it waited for."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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
