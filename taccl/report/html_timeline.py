"""What the page's timeline draws: a replay (or a schedule) as tracks and columns of spans.

Columns of numbers instead of an object for each span keep a page of 100 000 spans at a few
megabytes; the script looks only at what is visible.
"""

import json
from typing import Any

from taccl.report.labels import block_label, chunks_text, link_text
from taccl.report.played import Played, Wait
from taccl.schedule import Schedule, Send
from taccl.sim.trace import Span
from taccl.units import Time

MAX_SPANS = 200_000
"""A page shows this many spans, the first ones; a browser takes no more."""

RECEIVES, SENDS, WORKS = range(3)

Columns = dict[str, list[int]]
Data = dict[str, Any]
"""JSON; the script is what reads it."""

_NAMES = (
    "track", "step", "iteration", "kind", "start", "length", "arrival", "size", "link", "wait",
    "why",
)  # fmt: skip
_WHYS = tuple(Wait)


def timeline_data(played: Played) -> Data:
    """Return what the script draws for a replay; times in picoseconds from the launch."""
    trace, shift = played.trace, played.topology.local.launch
    tracks = {where: number for number, where in enumerate(sorted(played.blocks))}
    links: dict[str, int] = {}
    columns: Columns = {name: [] for name in _NAMES}
    for number, span in enumerate(trace.spans[:MAX_SPANS]):
        text = "" if span.link is None else link_text(played, span)
        _append(columns, (
            tracks[span.gpu, span.threadblock], span.step, span.iteration, _kind(played, span),
            span.start + shift, span.end - span.start,
            -1 if span.arrival is None else span.arrival + shift, span.size,
            -1 if span.link is None else links.setdefault(text, len(links)),
            -1 if span.waited_for is None else span.waited_for,
            _WHYS.index(played.waits[number]),
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
    }


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
    for message in messages:
        first, track = message[0], tracks[message[0].link]
        size = len(message) * schedule.chunk_size
        held = {edge: topology.busy(first.link, edge, size) for edge in table.edges_of(first.link)}
        for edge, time in held.items():
            edge_busy[edge] += time
        if len(columns["track"]) == MAX_SPANS:
            continue
        chunks = ", ".join(str(send.chunk) for send in message)
        steps[track].append(["reduce" if first.reduce else "send", f"chunks {chunks}"])
        _append(columns, (
            track, len(steps[track]) - 1, 0, SENDS, first.start, max(held.values(), default=0),
            first.end, int(size), track, -1, 0,
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


def script_json(data: object) -> str:
    """Return JSON that can't end the script element it stands in, whatever its texts hold."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
