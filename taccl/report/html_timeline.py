"""What the page's script draws: a replay (or a schedule) as tracks and columns of spans.

Columns of numbers instead of an object for each span, deflated, keep a page of 100 000 spans at
about a megabyte; the script looks only at what is visible.
"""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from taccl.report.labels import block_label, chunks_text, link_text
from taccl.report.played import Played
from taccl.report.whereabouts import program_where, schedule_where
from taccl.schedule import Schedule, Send
from taccl.sim.trace import Span, Why
from taccl.topology import Topology
from taccl.units import Time

MAX_SPANS = 200_000
"""A page shows this many spans, the first ones; a browser takes no more."""

RECEIVES, SENDS, WORKS = range(3)

Columns = dict[str, list[int]]
Data = dict[str, Any]
"""JSON; the script is what reads it."""

_NAMES = (
    "track", "step", "iteration", "kind", "start", "length", "arrival", "size", "link", "wait",
    "why", "part", "parts",
)  # fmt: skip
_WHYS = tuple(Why)


def timeline_data(played: Played) -> Data:
    """Return what the script draws for a replay; times in picoseconds from the launch."""
    trace, shift = played.trace, played.topology.local.launch
    tracks = {where: number for number, where in enumerate(sorted(played.blocks))}
    links: dict[str, int] = {}
    texts: dict[tuple[int, int, int | None], int] = {}
    columns: Columns = {name: [] for name in _NAMES}
    parts = _parts(played)
    for span in trace.spans[:MAX_SPANS]:
        wire = (span.gpu, span.threadblock, span.link)
        if span.link is not None and wire not in texts:
            texts[wire] = links.setdefault(link_text(played, span), len(links))
        _append(columns, (
            tracks[span.gpu, span.threadblock], span.step, span.iteration, _kind(played, span),
            span.start + shift, span.end - span.start,
            -1 if span.arrival is None else span.arrival + shift, span.size,
            texts.get(wire, -1), -1 if span.waited_for is None else span.waited_for,
            _WHYS.index(span.why), *next(parts),
        ))  # fmt: skip
    blocks = [played.blocks[where] for where in tracks]
    return {
        "time": trace.time,
        "launch": shift,
        "total": len(trace.spans),
        "tracks": [
            [f"rank {rank}", block_label(block)]
            for (rank, _), block in zip(tracks, blocks, strict=True)
        ],
        "steps": [[[step.op.value, chunks_text(step)] for step in block.steps] for block in blocks],
        "links": list(links),
        "whys": [why.value for why in _WHYS],
        "path": [number for number in trace.critical_path if number < MAX_SPANS],
        "spans": columns,
        "where": program_where(played.program),
        "traffic": _traffic(played.topology, _crossings(played)),
    }


def _parts(played: Played) -> Iterator[tuple[int, int]]:
    """Yield (first chunk, chunks) of its step that each span moves: messages cut long steps."""
    keys = [
        (span.gpu, span.threadblock, span.step, span.iteration, span.link is None)
        for span in played.trace.spans
    ]
    whole: Counter[tuple[int, int, int, int, bool]] = Counter()
    for key, span in zip(keys, played.trace.spans, strict=True):
        whole[key] += span.size
    begun: Counter[tuple[int, int, int, int, bool]] = Counter()
    for key, span in zip(keys, played.trace.spans, strict=True):
        count = played.step(span).count
        yield begun[key] * count // whole[key], span.size * count // whole[key]
        begun[key] += span.size


Crossing = tuple[int, int, int, Iterable[tuple[int, Time]]]
"""Source, destination, bytes, and what a message holds for how long."""


def _crossings(played: Played) -> Iterator[Crossing]:
    for span in played.trace.spans:
        if span.link is not None:
            wire = played.connection(span)
            yield wire.src, wire.dst, span.size, played.holds(span)


def _traffic(topology: Topology, crossings: Iterable[Crossing]) -> list[list[int | str]]:
    """Return, for each pair of ranks, messages, bytes, and the edge that they hold longest.

    A row is [source, destination, messages, bytes, picoseconds, name of the edge].
    """
    counts: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    held: dict[tuple[int, int], Counter[int]] = {}
    for src, dst, size, edges in crossings:
        counts[src, dst] += 1
        sizes[src, dst] += size
        of_pair = held.setdefault((src, dst), Counter())
        for edge, time in edges:
            of_pair[edge] += time
    rows: list[list[int | str]] = []
    for pair in sorted(counts):
        times = held[pair]
        edge = min(times, key=lambda each: (-times[each], each), default=-1)
        busiest = (times[edge], topology.edges[edge].name) if times else (0, "")
        rows.append([*pair, counts[pair], sizes[pair], *busiest])
    return rows


def schedule_data(schedule: Schedule) -> tuple[Data, tuple[Time, ...]]:
    """Return what the script draws for a schedule, and how long each edge is held.

    A track is a link and a span a message, from its start to the release of its last edge.
    """
    topology, table = schedule.topology, schedule.topology.links
    messages = _messages(schedule)
    used = sorted({message[0].link for message in messages})
    tracks = {link: number for number, link in enumerate(used)}
    columns: Columns = {name: [] for name in _NAMES}
    steps: list[list[list[str]]] = [[] for _ in used]
    edge_busy = [0] * len(topology.edges)
    crossings: list[Crossing] = []
    for message in messages:
        first, track = message[0], tracks[message[0].link]
        size = len(message) * schedule.chunk_size
        held = {edge: topology.busy(first.link, edge, size) for edge in table.edges_of(first.link)}
        for edge, time in held.items():
            edge_busy[edge] += time
        ends = (int(table.src[first.link]), int(table.dst[first.link]))
        crossings.append((*ends, int(size), held.items()))
        if len(columns["track"]) == MAX_SPANS:
            continue
        chunks = ", ".join(str(send.chunk) for send in message)
        steps[track].append(["reduce" if first.reduce else "send", f"chunks {chunks}"])
        _append(columns, (
            track, len(steps[track]) - 1, 0, SENDS, first.start, max(held.values(), default=0),
            first.end, int(size), track, -1, 0, 0, len(message),
        ))  # fmt: skip
    heads = [f"rank {int(table.src[link])}" for link in used]
    names = [
        f"to {int(table.dst[link])}"
        f" ({', '.join(topology.edges[edge].name for edge in table.edges_of(link))})"
        for link in used
    ]
    return {
        "time": schedule.makespan,
        "launch": 0,
        "total": len(messages),
        "tracks": [list(pair) for pair in zip(heads, names, strict=True)],
        "steps": steps,
        "links": [f"{head} {name}" for head, name in zip(heads, names, strict=True)],
        "whys": [why.value for why in _WHYS],
        "path": [],
        "spans": columns,
        "where": schedule_where(schedule, used, messages),
        "traffic": _traffic(topology, crossings),
    }, tuple(edge_busy)


def _messages(schedule: Schedule) -> list[list[Send]]:
    """Return the sends of all messages, in order of start and link."""
    found: dict[int, list[Send]] = {}
    for send in schedule.expand().sends():
        found.setdefault(send.batch, []).append(send)
    return sorted(found.values(), key=lambda m: (m[0].start, m[0].end, m[0].link))


def _append(columns: Columns, values: tuple[int, ...]) -> None:
    for name, value in zip(_NAMES, values, strict=True):
        columns[name].append(value)


def _kind(played: Played, span: Span) -> int:
    if span.link is not None:
        return SENDS
    return RECEIVES if played.receives(span) else WORKS


def packed(data: object) -> str:
    """Return JSON as base64 of its deflated text, which can't end an element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()
