"""Where the time of a program goes: its critical path, its bottleneck, and what would help.

The critical path is the chain of spans from the start to the last arrival, each of which waited
for the one before it. The time from the start of a span to the start of the next is charged to
what the first one did (alpha and bandwidth of its message, or local work); but where the next one
did not follow it in the data or in the threadblock, to what made it wait: an edge that the message
held, a dependence on it, or the FIFO slot that it freed. So the parts add up to the time, to the
picosecond. A queue on one edge is then a chain of waits, and the time in it is queueing. Of several
critical paths one is told.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from taccl.report.played import Played, Wait
from taccl.sim.sweep import Row
from taccl.sim.trace import Span, Trace
from taccl.topology import Topology
from taccl.units import PS_PER_US, Time, format_size, microseconds

PARTS = (
    "launch", "alpha", "bandwidth", "queueing for a link", "waiting for a dependence",
    "waiting for a FIFO slot", "local work",
)  # fmt: skip
"""What the time is split into."""

SHOWN_NAMES = 6
"""Names of edges in the text; the JSON has them all."""

_CHARGED = {
    Wait.LINK: "queueing for a link",
    Wait.DEPENDENCE: "waiting for a dependence",
    Wait.SLOT: "waiting for a FIFO slot",
}

Replay = Callable[[Topology], Trace]
"""Replays the same program at the same size on a topology with the same edges."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the time.

    Parameters
    ----------
    name
        One of PARTS.
    time
        Picoseconds.
    count
        Spans of the critical path that are charged to it.
    """

    name: str
    time: Time
    count: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a program's time goes at one size.

    Parameters
    ----------
    row
        The result that is explained.
    parts
        In the order of PARTS; they add up to the row's time.
    path
        The first and last span of the critical path, in words, and how many it has.
    faster
        Picoseconds with a bottleneck of twice the bandwidth; None without a bottleneck.
    alpha_on, beta_on
        Names of the edges whose alpha and whose beta the critical path pays for.
    off
        Names of the edges that carry messages, but none of the critical path.
    """

    row: Row
    parts: tuple[Part, ...] = ()
    path: tuple[str, str, int] = ("", "", 0)
    faster: Time | None = None
    alpha_on: tuple[str, ...] = ()
    beta_on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()

    def columns(self) -> dict[str, object]:
        """Return the fields as JSON names them; a program that can't run has only the first."""
        row = self.row
        first: dict[str, object] = {
            "file": row.file, "program": row.program, "size_bytes": row.size,
            "time_us": None if row.time is None else microseconds(row.time), "note": row.note,
        }  # fmt: skip
        if row.time is None:
            return first
        return first | {
            "time_ps": row.time,
            "parts": [
                {"part": part.name, "time_ps": part.time, "spans": part.count}
                for part in self.parts
            ],
            "path": {"first": self.path[0], "last": self.path[1], "spans": self.path[2]},
            "bottleneck": row.bottleneck,
            "utilisation": row.utilisation,
            "twice_as_fast_us": None if self.faster is None else microseconds(self.faster),
            "alpha_on_path": list(self.alpha_on),
            "beta_on_path": list(self.beta_on),
            "edges_off_path": list(self.off),
            "bound_us": None if row.bound is None else microseconds(row.bound),
            "bound_kind": row.bound_kind,
            "gap": row.gap,
        }


def explain(played: Played, row: Row, replay: Replay) -> Explanation:
    """Return where the time of a replay goes; ``row`` is its result."""
    trace = played.trace
    path = trace.critical_path
    if trace.time is None:
        return Explanation(row)
    parts = [("launch", played.topology.local.launch), *_charges(played, path)]
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter(name for name, time in parts if time)
    for name, time in parts:
        times[name] += time
    alpha_on, beta_on, off = _parameters(played, path)
    names = [edge.name for edge in played.topology.edges]
    ends = [played.where(trace.spans[number]) for number in (*path[:1], *path[-1:])] or ["", ""]
    return Explanation(
        row,
        tuple(Part(name, times[name], counts[name]) for name in PARTS),
        (ends[0], ends[1], len(path)),
        _with_faster_bottleneck(played, replay),
        *(tuple(names[edge] for edge in sorted(edges)) for edges in (alpha_on, beta_on, off)),
    )


def _charges(played: Played, path: tuple[int, ...]) -> Iterator[tuple[str, Time]]:
    """Yield (part, picoseconds) along the critical path, which begins at the end of the launch."""
    spans = played.trace.spans
    for number, after in pairwise(path):
        span, time = spans[number], spans[after].start - spans[number].start
        why = played.waits[after]
        if span.link is None:
            yield "local work", time
        elif why in _CHARGED:
            yield _CHARGED[why], time
        else:
            yield from _message(played, span, time, arrives=why is Wait.ARRIVAL)
    if path:
        last = spans[path[-1]]
        finish = max(last.end, last.arrival or 0)
        if last.link is None:
            yield "local work", finish - last.start
        else:
            yield from _message(played, last, finish - last.start, arrives=finish == last.arrival)


def _message(
    played: Played, span: Span, time: Time, *, arrives: bool
) -> Iterator[tuple[str, Time]]:
    """Split the time to a message's arrival, or to the release of its last edge."""
    wire = played.connection(span)
    alpha = min(wire.alpha if arrives else wire.overhead, time)
    yield "alpha", alpha
    yield "bandwidth", time - alpha


def _parameters(played: Played, path: tuple[int, ...]) -> tuple[set[int], set[int], set[int]]:
    """Return the edges whose alpha, and whose beta, the path pays for, and the used edges off it.

    Of the edges of a message only the slowest have a beta that counts.
    """
    alpha_on: set[int] = set()
    beta_on: set[int] = set()
    held: set[int] = set()
    edges = played.topology.edges
    for number in path:
        span = played.trace.spans[number]
        if span.link is None:
            continue
        wire = played.connection(span)
        crossed = played.crossed(span)
        held.update(crossed)
        alpha_on.update(edge for edge in crossed if edges[edge].alpha)
        beta_on.update(edge for edge, beta in wire.held if beta == wire.max_beta)
    used = {edge for edge, busy in enumerate(played.trace.edge_busy) if busy}
    return alpha_on, beta_on, used - held


def _with_faster_bottleneck(played: Played, replay: Replay) -> Time | None:
    number = played.trace.busiest_edge
    if number is None:
        return None
    edges = list(played.topology.edges)
    beta = edges[number].beta
    edges[number] = replace(edges[number], beta=None if beta is None else beta / 2)
    return replay(replace(played.topology, edges=tuple(edges))).time


def explanation_text(found: Explanation) -> str:
    """Return an explanation in words, a line each."""
    row = found.row
    who = _one_line(row.file or row.program)
    head = f"{who} at {format_size(row.size)} on {_one_line(row.topology)}"
    if row.time is None:
        return f"{head}: can't run: {_one_line(row.note)}"
    first, last, count = found.path
    lines = [f"{head}: {_exact(row.time)} us"]
    if count:
        lines.append(f"  critical path: {count} spans, from {first} to {last}")
    width = max(len(_exact(part.time)) for part in found.parts)
    for part in found.parts:
        share = part.time / row.time if row.time else 0.0
        spans = "" if not part.count or part.name == "launch" else f"  in {_plural(part.count)}"
        time = _exact(part.time).rjust(width)
        lines.append(f"    {part.name:<25}{time} us  {share:6.1%}{spans}")
    lines += _bottleneck_text(found)
    lines.append(f"  alpha on the critical path: {_names(found.alpha_on)}")
    lines.append(f"  beta on the critical path: {_names(found.beta_on)}")
    lines.append(f"  used, but off the critical path: {_names(found.off)}")
    if row.bound is not None:
        gap = "" if row.gap is None else f", gap {row.gap:.1%}"
        lines.append(f"  bound for any algorithm: {_exact(row.bound)} us ({row.bound_kind}){gap}")
    if row.note:
        lines.append(f"  note: {_one_line(row.note)}")
    return "\n".join(lines)


def _bottleneck_text(found: Explanation) -> Iterator[str]:
    row = found.row
    if not row.bottleneck or row.time is None or found.faster is None:
        return
    held = f"held {row.utilisation or 0:.1%} of the time"
    yield f"  bottleneck: edge {_one_line(row.bottleneck)}, {held}"
    change = (found.faster - row.time) / row.time if row.time else 0.0
    yield f"  with twice its bandwidth: {_exact(found.faster)} us ({change:+.1%})"


def _exact(time: Time) -> str:
    """Return microseconds with every picosecond."""
    whole, rest = divmod(time, PS_PER_US)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def _plural(count: int) -> str:
    return "1 span" if count == 1 else f"{count} spans"


def _names(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    shown = ", ".join(_one_line(name) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{len(names)} ({shown}{more})"


def _one_line(text: str) -> str:
    """Return a name from a file so that it can't disturb a terminal."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line)
