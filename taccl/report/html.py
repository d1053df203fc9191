"""One page about replayed programs: results, where the time goes, timeline, chunks and links.

The page needs nothing but itself: style, script and data are in it, and its content security
policy lets the browser fetch nothing and run no other script. Names come from files that anybody
may have written, so every text is escaped here or set as text by the script. What the script draws
is a replay (or a schedule) as tracks and columns of spans: columns of numbers instead of an object
for each span, deflated, keep a page of 100 000 spans at about a megabyte, and the script looks only
at what is visible.
"""

import base64
import contextlib
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

import taccl
from taccl.errors import InputError
from taccl.model.problem import Candidate
from taccl.model.schedule import Schedule, Send
from taccl.replay.interpreter import Why
from taccl.replay.sweep import Row
from taccl.report.chart import BOUND, Line, chart, style_of
from taccl.report.explain import Explanation
from taccl.report.graph import heat_colour, heat_scale, lines_of, loaded_svg
from taccl.report.played import Played, link_text
from taccl.report.tables import NcclTime, best_of_engines, verdict
from taccl.report.text import escaped, number_text, us_text
from taccl.report.whereabouts import program_where, schedule_where
from taccl.timing.retiming import fan_uses
from taccl.topology.graph import Topology
from taccl.units import Time, counted, format_size, gigabytes_per_second

BAR = "of the time"
"""The column of bars."""

_KINDS = dict.fromkeys(
    ("ranks", "size", "time us", "bound us", "gap", "algbw GB/s", "busbw GB/s", "used", "busy us",
     "spans", "GB/s", "share", "chunks", "program us", "schedule us", "against the fastest",
     "of it alpha us", "over best", "classical us", "over classical", "bound over classical",
     "NCCL us (its model)"),
    "number",
) | {BAR: "bar"}  # fmt: skip


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return `rows` of cells under the `names` of their columns; empty columns are left out.

    Every cell is escaped, but those of :data:`BAR`, which are HTML already.
    """
    lines = [
        [str(cell) if name == BAR else escaped(cell) for name, cell in zip(names, row, strict=True)]
        for row in rows
    ]
    filled = [number for number in range(len(names)) if any(line[number] for line in lines)]
    names = [names[number] for number in filled]
    lines = [[line[number] for number in filled] for line in lines]
    kinds = [_KINDS.get(name, "text") for name in names]
    head = "".join(
        f'<th scope="col" class="{kind}">{escaped(name)}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def bar(time: Time, whole: Time | None, *, heat: bool = False) -> tuple[str, str]:
    """Return the share of `time` in `whole`, both picoseconds, as a number and as a bar.

    With `heat` the bar has the colour of load.
    """
    share = min(time / whole, 1.0) if whole else 0.0
    style = f"width:{share:.2%}"
    if heat:
        style += f";background:{heat_colour(share)}"
    return f"{share:.1%}", f'<div class="track"><div class="fill" style="{style}"></div></div>'


MAX_TOP = 12
"""Rows of the table of edges that are seen at once."""

MAX_DRAWN = 3000
"""Lines of the picture of a topology: more would make the page too large."""

MAX_EDGES = 1000
"""Rows of the table of edges: the busiest."""


def load(topology: Topology, held: Sequence[Time], time: Time | None) -> Iterator[str]:
    """Yield the picture of a `topology`, the map of pairs and the table of edges.

    Each edge is `held` for so many picoseconds, of the `time` in picoseconds that a program takes.
    """
    yield "<h3>Topology by load</h3>"
    drawn = 0
    with contextlib.suppress(InputError):  # more lines than any picture may have
        drawn = len(lines_of(topology))
    if 0 < drawn <= MAX_DRAWN:
        yield heat_scale()
        yield f'<div class="scroll">{loaded_svg(topology, held, time or 0)}</div>'
        yield (
            '<p class="hint">A line has the colour of its busiest edge; grey ones carry nothing.'
            " Point at a line for numbers.</p>"
        )
    else:
        yield '<p class="hint">There are too many edges for a picture.</p>'
    yield f"""<h3>Heat map of links</h3>
<div class="traffic">
{heat_scale()}
<div class="scroll"><canvas role="img" aria-label="From ranks to ranks"></canvas></div>
<p class="status" aria-live="polite">Colour: how much of the time the messages of a pair hold the
edge that they hold longest. Point at a cell for numbers.</p>
</div>"""
    yield "<h3>Load of the edges</h3>"
    used = [edge for edge, busy in enumerate(held) if busy]
    used.sort(key=lambda edge: (-held[edge], edge))
    lines = []
    for number in used[:MAX_EDGES]:
        edge = topology.edges[number]
        rate = f"{float(1000 / edge.beta):.4g}" if edge.beta else ""
        texts = (edge.name, topology.vertex_name(edge.tail), topology.vertex_name(edge.head), rate)
        share = bar(held[number], time, heat=True)
        lines.append([*texts, us_text(held[number]), *share])
    yield table(_EDGE_COLUMNS, lines[:MAX_TOP])
    more = len(lines) - MAX_TOP
    if more > 0:
        rest = table(_EDGE_COLUMNS, lines[MAX_TOP:])
        yield f"<details><summary>{more} more edges</summary>{rest}</details>"
    idle = len(topology.edges) - len(used)
    cut = f" The busiest {MAX_EDGES} of {len(used)} are shown." if len(used) > MAX_EDGES else ""
    yield f'<p class="hint">{idle} of {len(topology.edges)} edges carry nothing.{cut}</p>'


_EDGE_COLUMNS = ("edge", "from", "to", "GB/s", "busy us", "share", BAR)

MAX_SPANS = 200_000
"""A page shows this many spans, the first ones; a browser takes no more."""

RECEIVES, SENDS, WORKS = range(3)

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
    tracks = {where: number for number, where in enumerate(sorted(played.threads))}
    links: dict[str, int] = {}
    texts: dict[tuple[int, int, int | None], int] = {}
    rows: list[tuple[int, ...]] = []
    # What each span moves of its step, as (first chunk, chunks): messages cut long steps.
    keys = [
        (span.gpu, span.threadblock, span.step, span.iteration, span.link is None)
        for span in trace.spans
    ]
    whole: Counter[tuple[int, int, int, int, bool]] = Counter()
    for key, span in zip(keys, trace.spans, strict=True):
        whole[key] += span.size
    begun: Counter[tuple[int, int, int, int, bool]] = Counter()
    for key, span in zip(keys[:MAX_SPANS], trace.spans, strict=False):
        count, bytes_ = played.step(span).count, max(1, whole[key])
        part = begun[key] * count // bytes_, span.size * count // bytes_
        begun[key] += span.size
        wire = (span.gpu, span.threadblock, span.link)
        if span.link is not None and wire not in texts:
            texts[wire] = links.setdefault(link_text(played, span), len(links))
        kind = RECEIVES if played.receives(span) else WORKS
        rows.append((
            tracks[span.gpu, span.threadblock], span.step, span.iteration,
            kind if span.link is None else SENDS,
            span.start + shift, span.end - span.start,
            -1 if span.arrival is None else span.arrival + shift, span.size,
            texts.get(wire, -1), -1 if span.waited_for is None else span.waited_for,
            _WHYS.index(span.why), *part,
        ))  # fmt: skip
    threads = [played.threads[where] for where in tracks]
    return {
        "time": trace.time,
        "launch": shift,
        "total": len(trace.spans),
        "tracks": [
            [f"rank {rank}", thread.name]
            for (rank, _), thread in zip(tracks, threads, strict=True)
        ],
        "steps": [[[step.op, step.chunks] for step in thread.steps] for thread in threads],
        "links": list(links),
        "whys": [why.value for why in _WHYS],
        "path": [number for number in trace.critical_path if number < MAX_SPANS],
        "spans": {name: [row[at] for row in rows] for at, name in enumerate(_NAMES)},
        "where": None if played.program is None else program_where(played.program),
        "traffic": _traffic(played.topology, (
            (wire.src, wire.dst, span.size, played.holds(span))
            for span in trace.spans if span.link is not None
            for wire in [played.connection(span)]
        )),
    }  # fmt: skip


Crossing = tuple[int, int, int, Iterable[tuple[int, Time]]]
"""Source, destination, bytes, and what a message holds for how long."""


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

    A track is a link and a span a message, from its start to the release of its last edge. A fan is
    a track, too, and what it carries in a batch is a span.
    """
    topology, table = schedule.topology, schedule.topology.links
    full = schedule.expand()
    found: dict[tuple[int, int], list[Send]] = {}
    for send in full.sends():
        found.setdefault((send.batch, send.link), []).append(send)
    fused = _held_by_fans(full)
    messages = sorted(found.values(), key=lambda m: (m[0].start, m[0].end, m[0].link))
    used = sorted({message[0].link for message in messages})
    tracks = {link: number for number, link in enumerate(used)}
    rows: list[tuple[int, ...]] = []
    steps: list[list[list[str]]] = [[] for _ in used]
    crossings: list[Crossing] = []
    for message in messages:
        first, track = message[0], tracks[message[0].link]
        size = len(message) * schedule.chunk_size
        if first.link < len(table):
            edges = table.edges_of(first.link)
            held = {edge: topology.busy(first.link, edge, size) for edge in edges}
            ends = (int(table.src[first.link]), int(table.dst[first.link]))
            crossings.append((*ends, int(size), held.items()))
        else:
            held = fused[first.batch]
        if len(rows) == MAX_SPANS:
            continue
        chunks = ", ".join(str(send.chunk) for send in message)
        steps[track].append(["reduce" if first.reduce else "send", f"chunks {chunks}"])
        rows.append((
            track, len(steps[track]) - 1, 0, SENDS, first.start, max(held.values(), default=0),
            first.end, int(size), track, -1, 0, 0, len(message),
        ))  # fmt: skip
    heads, names = (
        zip(*(_ends_told(schedule, link) for link in used), strict=True) if used else ((), ())
    )
    return {
        "time": schedule.makespan,
        "launch": 0,
        "total": len(messages),
        "tracks": [list(pair) for pair in zip(heads, names, strict=True)],
        "steps": steps,
        "links": [f"{head} {name}" for head, name in zip(heads, names, strict=True)],
        "whys": [why.value for why in _WHYS],
        "path": [],
        "spans": {name: [row[at] for row in rows] for at, name in enumerate(_NAMES)},
        "where": schedule_where(schedule, used, messages),
        "traffic": _traffic(topology, crossings),
    }, schedule.edge_busy


def _held_by_fans(full: Schedule) -> dict[int, dict[int, Time]]:
    """Return how long each batch of fans of an expanded schedule holds which edges."""
    rows = np.flatnonzero(full.link >= len(full.topology.links))
    numbers, batch = np.unique(full.batch[rows], return_inverse=True)
    fan = full.link[rows] - len(full.topology.links)
    uses = fan_uses(full.group, full.chunk_size, batch, fan, full.fans)
    return {
        number: dict(zip(
            uses.resource[first:end].tolist(), uses.held[first:end].tolist(), strict=True
        ))
        for number, first, end in zip(
            numbers.tolist(), uses.first[:-1], uses.first[1:], strict=True
        )
    }  # fmt: skip


def _ends_told(schedule: Schedule, link: int) -> tuple[str, str]:
    """Return where a link or fan begins, and where it leads over which edges."""
    topology, table = schedule.topology, schedule.topology.links
    if link < len(table):
        edges = ", ".join(topology.edges[edge].name for edge in table.edges_of(link))
        return f"rank {int(table.src[link])}", f"to {int(table.dst[link])} ({edges})"
    sources, targets = schedule.fans.ranks(link - len(table))
    turn = topology.vertex_name(schedule.fans[link - len(table)].turn)
    first, last = (
        f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        for ranks in (sources, targets)
    )
    return first, f"to {last} (turn {turn})"


def packed(data: object) -> str:
    """Return JSON as base64 of its deflated text, which can't end an element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


MAX_NAMES = 4
"""Names of edges in a sentence: the busiest."""

SCRIPTS = ("page_timeline.js", "page_chunks.js", "page_traffic.js", "page.js")
"""Parts of the one script, in order."""


@dataclass(frozen=True, eq=False)
class View:
    """One program at the size that the page shows in detail: its result, and where it ran.

    The script draws the `timeline`; None: it can't run, and the row's note says why. Each edge was
    held for `edge_busy` picoseconds; `explanation` tells where the time goes, None: unknown. The
    summary has `facts`, (name, value) pairs, and `candidates` are what it was compared with when it
    was searched for.
    """

    row: Row
    topology: Topology
    timeline: Data | None = None
    edge_busy: tuple[Time, ...] = ()
    explanation: Explanation | None = None
    facts: tuple[tuple[str, str], ...] = ()
    candidates: tuple[Candidate, ...] = ()


def page(
    title: str,
    rows: Sequence[Row],
    views: Sequence[View],
    nccl: NcclTime = lambda _collective, _size: None,
) -> str:
    """Return the HTML of a page: a verdict, all rows as a table and a chart, and each view.

    It has a `title`, `rows` at all sizes, and `views`, each of a program at one size; `nccl` is
    what NCCL's own model expects, for the verdict and the chart.
    """
    folder = files("taccl.report")
    *scripts, style = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in (*SCRIPTS, "page.css")
    )
    parts = "\n".join(scripts)
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    options = "".join(
        f'<option value="{number}">{escaped(_name(view.row))}</option>'
        for number, view in enumerate(views)
    )
    said = verdict([view.row for view in views], nccl) if views else ""
    body = [
        f"<h1>{escaped(title)}</h1>",
        *([f'<p class="verdict">{escaped(said)}</p>'] if said else ()),
        '<p class="hint">Times are modelled, not measured: a replay under the alpha-beta cost model'
        f" by taccl {escaped(taccl.__version__)}.</p>",
        "<h2>Summary</h2>",
        table([*_SUMMARY], ([of(view.row) for of in _SUMMARY.values()] for view in views)),
        "<h2>By size</h2>",
        table([*_BY_SIZE], ([of(row) for of in _BY_SIZE.values()] for row in rows)),
        *_rates(rows, nccl),
        *(
            [f'<p><label>In detail: <select id="choice">{options}</select></label></p>']
            if len(views) > 1
            else ()
        ),
        *(_view(number, view) for number, view in enumerate(views)),
    ]
    data = packed([view.timeline for view in views])
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        f" img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">",
        '<link rel="icon" href="data:,">',
        f"<title>{escaped(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        *body,
        f'<script id="data" type="text/plain">{data}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]) + "\n"  # fmt: skip


_SUMMARY: Mapping[str, Callable[[Row], object]] = {
    "program": lambda row: row.program,
    "file": lambda row: row.file,
    "collective": lambda row: row.collective,
    "topology": lambda row: row.topology,
    "ranks": lambda row: row.ranks,
    "alpha rule": lambda row: row.rules,
    "size": lambda row: format_size(row.size),
    "time us": lambda row: us_text(row.time, "can't run"),
    "bound us": lambda row: us_text(row.bound),
    "bound": lambda row: row.bound_kind,
    "gap": lambda row: number_text(row.gap, ".1%"),
    "algbw GB/s": lambda row: number_text(row.algbw, ".3f"),
    "busbw GB/s": lambda row: number_text(row.busbw, ".3f"),
}
_BY_SIZE: Mapping[str, Callable[[Row], object]] = {
    "program": lambda row: _name(row),
    **{name: _SUMMARY[name]
       for name in ("size", "time us", "algbw GB/s", "busbw GB/s", "bound us", "gap")},
    "bottleneck": lambda row: row.bottleneck,
    "used": lambda row: number_text(row.utilisation, ".0%"),
    "note": lambda row: row.note,
}  # fmt: skip


def _rates(rows: Sequence[Row], nccl: NcclTime) -> Iterator[str]:
    """Yield for each collective with several sizes a chart of algbw by size."""
    for collective in dict.fromkeys(row.collective for row in rows):
        mine = [row for row in rows if row.collective == collective]
        sizes = sorted({row.size for row in mine})
        if len(sizes) < 2:
            continue
        bounds = {row.size: row.bound for row in mine if row.bound}
        expected = {size: nccl(collective, size) for size in sizes}
        names = dict.fromkeys(map(_name, mine))
        lines = [
            Line(name, style_of(turn), tuple(
                (row.size, row.algbw) for row in mine if row.algbw and name == _name(row)
            ))
            for turn, name in enumerate(names)
        ]  # fmt: skip
        for name, style, times in (
            ("NCCL by its own model", style_of(-1, "2 3"), expected),
            ("bound: no program is faster", BOUND, bounds),
        ):
            known = [(size, time) for size, time in sorted(times.items()) if time]
            points = tuple((size, gigabytes_per_second(size, time)) for size, time in known)
            lines.append(Line(name, style, points))
        drawn = [line for line in lines if line.points]
        if drawn:
            yield f"<h3>Bandwidth of {escaped(collective)} by size</h3>"
            yield chart("algbw, GB/s", sizes, drawn)


def _name(row: Row) -> str:
    return row.file or row.program


_TIMELINE = """<h3>Timeline</h3>
<div class="tools">
<button type="button" data-do="in">zoom in</button>
<button type="button" data-do="out">zoom out</button>
<button type="button" data-do="all">all</button>
<button type="button" data-do="lower">lower rows</button>
<button type="button" data-do="taller">taller rows</button>
<label>go to <select class="ranks"></select></label>
<span><span class="key receive"></span> receive</span>
<span><span class="key send"></span> send</span>
<span><span class="key work"></span> local work</span>
<span><span class="key path"></span> critical path</span>
</div>
<canvas tabindex="0" role="img" aria-label="Timeline of spans by track"></canvas>
<p class="hint">Wheel: zoom (over the names: scroll). Drag: move. Click on a span: what it is.
Keys: + - 0, arrows, page up and down, n and p for the next and
previous span, w for what it waited for.{cut}</p>
<dl class="detail" aria-live="polite"><dt>span</dt><dd>none selected</dd></dl>
<noscript><p class="note">The timeline needs JavaScript.</p></noscript>"""

_NO_CHUNKS = (
    '<p class="hint">Where chunks are is not shown: what this program should do is not known, or it'
    " is too large, or a plan of MSCCL++.</p>"
)

_CHUNKS = """<div class="chunks">
<div class="tools">
<button type="button" data-go="first">start</button>
<button type="button" data-go="back">back</button>
<button type="button" data-go="on">on</button>
<button type="button" data-go="last">end</button>
<button type="button" data-go="play">play</button>
<input type="range" min="0" value="0" aria-label="Time, step by step">
<label>slice <select class="slices"></select></label>
<label>chunks to a column <select class="each"></select></label>
<span><span class="key send"></span> there</span>
<span><span class="key work"></span> a part of the sum</span>
<span><span class="key receive"></span> on its way</span>
<span><span class="key wanted"></span> wanted</span>
</div>
<p class="status" aria-live="polite"></p>
<div class="scroll"><canvas tabindex="0" role="img" aria-label="Ranks by chunks"></canvas></div>
<p class="hint">A row is a rank, a column a chunk or several that follow one
another; the stronger the colour, the more of them are there. Click: how they came there.</p>
<dl class="detail"><dt>chunk</dt><dd>none selected</dd></dl>
</div>"""


def _view(number: int, view: View) -> str:
    title = f"{_name(view.row)} at {format_size(view.row.size)}"
    parts = [f'<section data-view="{number}">', f"<h2>{escaped(title)}</h2>"]
    if view.facts:
        parts.append(table(("what", "value"), view.facts))
    parts += _candidates(view.candidates)
    if view.row.note:
        why = "can't run: " if view.row.time is None else ""
        parts.append(f'<p class="note">{escaped(why + view.row.note)}</p>')
    if view.row.time is not None and view.explanation is not None and view.explanation.why_not:
        parts.append(f'<p class="note">Not in detail: {escaped(view.explanation.why_not)}</p>')
    if view.timeline is not None:
        if view.explanation is not None:
            names = (edge.name for edge in view.topology.edges)
            held = dict(zip(names, view.edge_busy, strict=False))
            parts += _explained(view.explanation, held)
        total = view.timeline["total"]
        cut = f" The first {MAX_SPANS} of {total} spans are shown." if total > MAX_SPANS else ""
        parts.append(_TIMELINE.replace("{cut}", cut))
        parts.append("<h3>Where each chunk is</h3>")
        parts.append(_NO_CHUNKS if view.timeline["where"] is None else _CHUNKS)
        parts += load(view.topology, view.edge_busy, view.row.time)
    return "\n".join([*parts, "</section>"])


def _candidates(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield a table of the best candidate of each engine, the fastest first."""
    best = best_of_engines(candidates)
    if len(best) < 2:
        return
    yield "<h3>Candidates</h3>"
    fastest = best[0].score
    yield table(
        ("engine", "chunks", "program us", "schedule us", "against the fastest", "why not"),
        [
            [
                one.engine, one.chunks, us_text(one.score), us_text(one.makespan),
                f"{one.score / fastest:.2f} x" if one.score and fastest else "",
                one.reason or "",
            ]
            for one in best
        ],
    )  # fmt: skip
    yield (
        f'<p class="hint">The best of each engine, of {len(candidates)} candidates. A chunk count'
        " is for each rank; the time of a program is that of its replay.</p>"
    )


def _explained(found: Explanation, held: Mapping[str, Time]) -> Iterator[str]:
    yield "<h3>Where the time goes</h3>"
    time = found.row.time
    lines = [
        [part.name, *map(us_text, (part.time, part.alpha)), part.count, *bar(part.time, time)]
        for part in found.parts
    ]
    head = ("part of the critical path", "time us", "of it alpha us", "spans", "share", BAR)
    yield table(head, lines)
    if found.row.bottleneck and found.faster is not None:
        then = found.faster
        yield (
            f"<p>Bottleneck: edge {escaped(found.row.bottleneck)}, busy"
            f" {found.row.utilisation or 0:.1%} of the time. With twice its bandwidth the program"
            f" would take {us_text(then.time)} us, and edge {escaped(then.bottleneck)} would be"
            f" busy {then.utilisation:.1%} of that.</p>"
        )
    overhead = (("whose own overhead the critical path pays", found.overhead_on),)
    for words, names in (
        ("whose alpha the critical path pays", found.alpha_on),
        *(overhead if found.overhead_on else ()),
        ("whose beta the critical path pays", found.beta_on),
        ("used, but not paid by the critical path", found.off),
    ):
        top = sorted(names, key=lambda name: -held.get(name, 0))[:MAX_NAMES]
        which = ", the busiest" if len(names) > MAX_NAMES else ""
        shown = f"{which}: {', '.join(top)}" if names else ""
        yield f"<p>{counted(len(names), 'edge')} {words}{escaped(shown)}</p>"
    if found.off_faster is not None:
        yield (
            "<p>With half the alpha and beta of all edges that it does not pay, the program would"
            f" take {us_text(found.off_faster.time)} us.</p>"
        )
