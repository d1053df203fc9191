"""Where the time of a program goes: its critical path, its bottleneck, and what would help.

The critical path is the chain of spans from the start to the last arrival, each of which waited
for the one before it. The time from the start of a span to the start of the next is charged to
what the first one did (alpha and bandwidth of its message, or local work); but where the next one
did not follow it in the data or in the threadblock, to what made it wait: an edge that the message
held, a dependency on it, or the FIFO slot that it freed. So the parts add up to the time, to the
picosecond. A queue on one edge is then a chain of waits, and the time in it is queueing. Of several
critical paths one is told.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from taccl.bounds import any_of
from taccl.replay.interpreter import Span, Trace, Why
from taccl.replay.sweep import Row
from taccl.report.played import Played
from taccl.report.text import one_line, us
from taccl.topology.graph import Topology
from taccl.units import Time, counted, exact_us, format_size

PARTS = (
    "launch", "alpha", "bandwidth", "queueing for a link", "waiting for a dependency",
    "waiting for a FIFO slot", "local work",
)  # fmt: skip
"""What the time is split into."""

_CHARGED = {
    Why.LINK: "queueing for a link",
    Why.DEPENDENCE: "waiting for a dependency",
    Why.SLOT: "waiting for a FIFO slot",
}

Replay = Callable[[Topology], Trace]
"""Replays the same program at the same size on a topology with the same edges."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the time, in picoseconds, by a name of PARTS.

    To it `count` spans of the critical path are charged: every span is charged to one part, but
    alpha and bandwidth are those of the same messages. Of the time `alpha` is alpha (or overhead)
    of messages; the rest of it is their bytes.
    """

    name: str
    time: Time
    count: int
    alpha: Time = 0


@dataclass(frozen=True, slots=True)
class Faster:
    """What the same program takes, in picoseconds, where some edges of its topology are faster.

    The `bottleneck` is the edge that is then held longest, for `utilisation` of that time.
    """

    time: Time
    bottleneck: str
    utilisation: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a program's time goes at one size.

    `row`: the result that is explained.
    `why_not`: why there is nothing but the result; empty otherwise.
    `parts`: in the order of PARTS; they add up to the row's time.
    `path`: the first and last span of the critical path, in words, and how many it has.
    `faster`: with a bottleneck of twice the bandwidth; None without a bottleneck.
    `alpha_on`, `overhead_on`, `beta_on`: names of the edges whose alpha, whose own overhead, and
    whose beta the critical path pays.
    `local_on`: which of launch, copy and reduce it pays.
    `off`: names of the edges that carry messages, but of which the critical path pays nothing.
    `off_faster`: with half the alpha, overhead and beta of all of those; None when there are none.
    `unused`: names of the edges that carry nothing: without ``route`` they can't change anything.
    """

    row: Row
    why_not: str = ""
    parts: tuple[Part, ...] = ()
    path: tuple[str, str, int] = ("", "", 0)
    faster: Faster | None = None
    alpha_on: tuple[str, ...] = ()
    overhead_on: tuple[str, ...] = ()
    beta_on: tuple[str, ...] = ()
    local_on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    off_faster: Faster | None = None
    unused: tuple[str, ...] = ()

    def columns(self) -> dict[str, object]:
        """Return the fields as JSON names them; one without parts has only the first."""
        row, faster, off = self.row, self.faster, self.off_faster
        first: dict[str, object] = {
            "file": row.file, "program": row.program, "size_bytes": row.size,
            "time_us": us(row.time),
            "note": self.why_not or row.note,
        }  # fmt: skip
        if self.why_not or row.time is None:
            return first
        return first | {
            "time_ps": row.time,
            "parts": [
                {
                    "part": part.name,
                    "time_ps": part.time,
                    "spans": part.count,
                    "alpha_ps": part.alpha,
                }
                for part in self.parts
            ],
            "path": {"first": self.path[0], "last": self.path[1], "spans": self.path[2]},
            "bottleneck": row.bottleneck,
            "utilisation": row.utilisation,
            "twice_as_fast_us": faster and us(faster.time),
            "then_bottleneck": faster and faster.bottleneck,
            "then_utilisation": faster and faster.utilisation,
            "alpha_on_path": list(self.alpha_on),
            "overhead_on_path": list(self.overhead_on),
            "beta_on_path": list(self.beta_on),
            "local_on_path": list(self.local_on),
            "edges_off_path": list(self.off),
            "off_path_twice_as_fast_us": off and us(off.time),
            "edges_unused": list(self.unused),
            "bound_us": us(row.bound),
            "bound_kind": row.bound_kind,
            "gap": row.gap,
        }


def explain(played: Played, row: Row, replay: Replay) -> Explanation:
    """Return where the time of a replay goes: `played` has every message, `row` is its result.

    What would help is found by a `replay` of the program on a changed machine.
    """
    trace, topology = played.trace, played.topology
    if trace.time is None:
        return Explanation(row, trace.reason)
    path, legs = trace.critical_path, list(_legs(played))
    parts = [("launch", topology.local.launch, 0)]  # name, picoseconds, of which alpha
    for leg in legs:
        if leg.span.link is None:
            parts.append(("local work", leg.time, 0))
            continue
        wire = played.connection(leg.span)
        alpha = min(wire.alpha if leg.arrives else wire.overhead, leg.time)
        if leg.why in _CHARGED:
            parts.append((_CHARGED[leg.why], leg.time, alpha))
        else:
            parts += [("alpha", alpha, alpha), ("bandwidth", leg.time - alpha, 0)]
    times: Counter[str] = Counter()
    alphas: Counter[str] = Counter()
    counts: Counter[str] = Counter(name for name, time, _ in parts if time or name != "launch")
    for name, time, alpha in parts:
        times[name] += time
        alphas[name] += alpha
    paid = _parameters(played, legs)
    senders = {(each.gpu, each.threadblock): each for each in trace.spans if each.link is not None}
    used = {edge for span in senders.values() for edge in played.crossed(span)}
    off = used - paid.alpha - paid.overhead - paid.beta
    unused = set(range(len(topology.edges))) - used
    names = [edge.name for edge in topology.edges]

    def named(edges: Collection[int]) -> tuple[str, ...]:
        return tuple(names[edge] for edge in sorted(edges))

    ends = [played.place(trace.spans[number]) for number in (*path[:1], *path[-1:])] or ["", ""]
    bottleneck = trace.busiest_edge
    return Explanation(
        row,
        parts=tuple(Part(name, times[name], counts[name], alphas[name]) for name in PARTS),
        path=(ends[0], ends[1], len(path)),
        faster=None if bottleneck is None else _faster(topology, {bottleneck}, replay),
        alpha_on=named(paid.alpha),
        overhead_on=named(paid.overhead),
        beta_on=named(paid.beta),
        local_on=tuple(sorted(paid.local)),
        off=named(off),
        off_faster=_faster(topology, off, replay, latency=True) if off else None,
        unused=named(unused),
    )


class _Leg(NamedTuple):
    """What a span of the critical path takes, up to the start of the next one or to the end.

    ``after`` is the id of the next one, which began for the reason ``why``; ``arrives`` tells
    whether a message is followed to its arrival or only to the release of an edge.
    """

    span: Span
    time: Time
    why: Why | None
    arrives: bool
    after: Span | None


def _legs(played: Played) -> Iterator[_Leg]:
    """Yield the legs of the critical path, which begins at the end of the launch."""
    spans, path = played.trace.spans, played.trace.critical_path
    for number, after in pairwise(path):
        why = spans[after].why
        time = spans[after].start - spans[number].start
        yield _Leg(spans[number], time, why, why is Why.ARRIVAL, spans[after])
    if path:
        last = spans[path[-1]]
        finish = max(last.end, last.arrival or 0)
        yield _Leg(last, finish - last.start, None, finish == last.arrival, None)


@dataclass(frozen=True, slots=True)
class _Paid:
    """Ids of the edges whose parameters the path pays, and the local costs."""

    alpha: set[int] = field(default_factory=set)
    overhead: set[int] = field(default_factory=set)
    beta: set[int] = field(default_factory=set)
    local: set[str] = field(default_factory=set)


def _parameters(played: Played, legs: list[_Leg]) -> _Paid:
    """Return what the critical path pays: times are sums of these parameters alone."""
    paid = _Paid()
    topology = played.topology
    if topology.local.launch:
        paid.local.add("launch")
    for leg in legs:
        if leg.span.link is None:
            if leg.time:
                paid.local.add("reduce" if played.step(leg.span).adds else "copy")
            continue
        for number in played.crossed(leg.span):
            edge = topology.edges[number]
            if leg.arrives or (edge.overhead is None and topology.edge_overhead(edge)):
                paid.alpha.update([number] if edge.alpha else ())
            elif edge.overhead:
                paid.overhead.add(number)
        wire = played.connection(leg.span)
        if leg.why is Why.LINK and leg.after is not None:  # what the next message waited for
            awaited = {edge for edge, _ in played.connection(leg.after).held}
            holds = played.holds(leg.span)
            paid.beta.update(edge for edge, time in holds if edge in awaited and time == leg.time)
        else:  # the slowest
            paid.beta.update(edge for edge, beta in wire.held if beta == wire.max_beta)
    return paid


def _faster(
    topology: Topology, changed: Collection[int], replay: Replay, *, latency: bool = False
) -> Faster | None:
    """Return what the program does when some edges have half the beta, and half the latency."""
    edges = list(topology.edges)
    for number in changed:
        edge = edges[number]
        half = replace(edge, beta=None if edge.beta is None else edge.beta / 2)
        if latency:
            overhead = None if edge.overhead is None else edge.overhead // 2
            half = replace(half, alpha=edge.alpha // 2, overhead=overhead)
        edges[number] = half
    trace = replay(replace(topology, edges=tuple(edges)))
    if trace.time is None:
        return None
    busiest = trace.busiest_edge
    if busiest is None:
        return Faster(trace.time, "", 0.0)
    held = trace.edge_busy[busiest]
    return Faster(trace.time, edges[busiest].name, held / trace.time if held else 0.0)


SHOWN_NAMES = 6
"""Names of edges in the text; the JSON has them all."""


def explanation_text(found: Explanation) -> str:
    """Return an explanation in words, a line each."""
    row = found.row
    who = one_line(row.file or row.program)
    head = f"{who} at {format_size(row.size)} on {one_line(row.topology)}"
    if row.time is None:
        return f"{head}: can't run: {one_line(found.why_not or row.note)}"
    if found.why_not:
        return f"{head}: {exact_us(row.time)} us, can't be explained: {one_line(found.why_not)}"
    first, last, count = found.path
    lines = [f"{head}: {exact_us(row.time)} us"]
    if count:
        lines.append(f"  critical path: {count} spans, from {first} to {last}")
    width = max(len(exact_us(part.time)) for part in found.parts)
    for part in found.parts:
        share = part.time / row.time if row.time else 0.0
        same = "the same " if part.name == "bandwidth" else ""
        spans = ""
        if part.count and part.name != "launch":
            spans = f"  in {same}{counted(part.count, 'span')}"
        if part.alpha and part.name != "alpha":
            spans += f", {exact_us(part.alpha)} us of it alpha"
        time = exact_us(part.time).rjust(width)
        lines.append(f"    {part.name:<25}{time} us  {share:6.1%}{spans}")
    if row.bottleneck and found.faster is not None:
        then = found.faster
        lines += [
            f"  bottleneck: edge {one_line(row.bottleneck)}, busy {row.utilisation or 0:.1%} of the"
            " time",
            f"  with twice its bandwidth: {_changed(then, row.time)}; then edge"
            f" {one_line(then.bottleneck)} is busy {then.utilisation:.1%} of the time",
        ]
    paid = {
        "alpha on the critical path": _names(found.alpha_on),
        "overhead on the critical path": found.overhead_on and _names(found.overhead_on),
        "beta on the critical path": _names(found.beta_on),
        "local costs on the critical path": ", ".join(found.local_on) or "none",
        "used, but off the critical path": _names(found.off),
        "with all of those twice as fast": found.off_faster
        and _changed(found.off_faster, row.time),
        "not used at all": found.unused and _names(found.unused),
    }
    lines += [f"  {what}: {told}" for what, told in paid.items() if told]
    if row.bound is not None:
        gap = "" if row.gap is None else f", gap {row.gap:.1%}"
        lines.append(
            f"  bound for {any_of(row.bound_kind)}: {exact_us(row.bound)} us"
            f" ({row.bound_kind}){gap}"
        )
    if row.note:
        lines.append(f"  note: {one_line(row.note)}")
    return "\n".join(lines)


def _changed(faster: Faster, time: Time) -> str:
    change = (faster.time - time) / time if time else 0.0
    return f"{exact_us(faster.time)} us ({change:+.1%})"


def _names(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    shown = ", ".join(one_line(name) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{len(names)} ({shown}{more})"
