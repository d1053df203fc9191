"""One page about replayed programs: results, where the time goes, timeline, chunks and links.

The page needs nothing but itself: style, script and data are in it, and its content security
policy lets the browser fetch nothing and run no other script. Names come from files that anybody
may have written, so every text is escaped here or set as text by the script.
"""

import base64
import hashlib
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import taccl
from taccl.report.explain import Explanation
from taccl.report.html_timeline import MAX_SPANS, Data, packed
from taccl.sim.sweep import Row
from taccl.topology import Topology
from taccl.units import Time, format_size, microseconds

BAR = "of the time"
"""The column of bars."""

MAX_NAMES = 40
"""Names of edges in a sentence."""

SCRIPTS = ("page_timeline.js", "page_chunks.js", "page_traffic.js", "page.js")
"""Parts of the one script, in order."""

MAX_EDGES = 1000
"""Rows of the table of edges: the busiest."""


@dataclass(frozen=True, eq=False)
class View:
    """One program at the size that the page shows in detail.

    Parameters
    ----------
    row
        Its result.
    topology
        Where it ran.
    timeline
        What the script draws; None: it can't run, and the row's note says why.
    edge_busy
        How long each edge was held.
    explanation
        Where its time goes; None: unknown.
    facts
        (name, value) pairs for the summary.
    """

    row: Row
    topology: Topology
    timeline: Data | None = None
    edge_busy: tuple[Time, ...] = ()
    explanation: Explanation | None = None
    facts: tuple[tuple[str, str], ...] = ()


def page(title: str, rows: Sequence[Row], views: Sequence[View]) -> str:
    """Return the HTML of a page: all rows in a table, and each view in detail."""
    script, style = _script(), _static("page.css")
    body = [
        f"<h1>{_text(title)}</h1>",
        '<p class="hint">Times are modelled, not measured: a replay under the alpha-beta cost model'
        f" by taccl {_text(taccl.__version__)}.</p>",
        "<h2>Summary</h2>",
        _table(_SUMMARY, [_summary(view.row) for view in views]),
        "<h2>By size</h2>",
        _table(_BY_SIZE, [_by_size(row) for row in rows]),
        *_choice(views),
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
        f" img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_hash(script)}'\">",
        '<link rel="icon" href="data:,">',
        f"<title>{_text(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        *body,
        f'<script id="data" type="text/plain">{data}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]) + "\n"  # fmt: skip


def _static(name: str) -> str:
    return files("taccl.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(_static(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _text(text: object) -> str:
    """Return a text as HTML: escaped, without controls and what UTF-8 can't hold."""
    whole = str(text).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() else " " for c in whole))


_SUMMARY = (
    "program", "file", "collective", "topology", "ranks", "alpha rule", "size", "time us",
    "bound us", "bound", "gap", "algbw GB/s", "busbw GB/s",
)  # fmt: skip
_BY_SIZE = (
    "program", "size", "time us", "algbw GB/s", "busbw GB/s", "bound us", "gap", "bottleneck",
    "used", "note",
)  # fmt: skip
_KINDS = dict.fromkeys(
    ("ranks", "size", "time us", "bound us", "gap", "algbw GB/s", "busbw GB/s", "used", "busy us",
     "spans", "GB/s", "share"),
    "number",
) | {BAR: "bar"}  # fmt: skip


def _table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; cells are HTML already, and columns without any text are left out."""
    filled = [number for number in range(len(names)) if any(line[number] for line in lines)]
    names = [names[number] for number in filled]
    lines = [[line[number] for number in filled] for line in lines]
    kinds = [_KINDS.get(name, "text") for name in names]
    head = "".join(
        f'<th scope="col" class="{kind}">{_text(name)}</th>'
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


def _summary(row: Row) -> list[str]:
    return [
        *(_text(text) for text in (
            row.program, row.file, row.collective, row.topology, row.ranks, row.rules,
            format_size(row.size),
        )),
        _time(row), _us(row.bound), _text(row.bound_kind), _number(row.gap, ".1%"),
        _number(row.algbw, ".3f"), _number(row.busbw, ".3f"),
    ]  # fmt: skip


def _by_size(row: Row) -> list[str]:
    return [
        _text(row.file or row.program), _text(format_size(row.size)), _time(row),
        _number(row.algbw, ".3f"), _number(row.busbw, ".3f"), _us(row.bound),
        _number(row.gap, ".1%"), _text(row.bottleneck), _number(row.utilisation, ".0%"),
        _text(row.note),
    ]  # fmt: skip


def _time(row: Row) -> str:
    return "can&#x27;t run" if row.time is None else _us(row.time)


def _us(time: Time | None) -> str:
    return "" if time is None else f"{microseconds(time):.6g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _choice(views: Sequence[View]) -> Iterator[str]:
    if len(views) > 1:
        options = "".join(
            f'<option value="{number}">{_text(_name(view))}</option>'
            for number, view in enumerate(views)
        )
        yield f'<p><label>In detail: <select id="choice">{options}</select></label></p>'


def _name(view: View) -> str:
    return view.row.file or view.row.program


def _view(number: int, view: View) -> str:
    title = f"{_name(view)} at {format_size(view.row.size)}"
    parts = [f'<section data-view="{number}">', f"<h2>{_text(title)}</h2>"]
    if view.facts:
        parts.append(_table(("what", "value"), [[_text(n), _text(v)] for n, v in view.facts]))
    if view.row.note:
        why = "can't run: " if view.row.time is None else ""
        parts.append(f'<p class="note">{_text(why + view.row.note)}</p>')
    if view.row.time is not None and view.explanation is not None and view.explanation.why_not:
        parts.append(f'<p class="note">Not in detail: {_text(view.explanation.why_not)}</p>')
    if view.timeline is not None:
        if view.explanation is not None:
            parts += _explained(view.explanation)
        parts += [_timeline(view.timeline), _chunks(view.timeline), _traffic(), _edges(view)]
    return "\n".join([*parts, "</section>"])


def _explained(found: Explanation) -> Iterator[str]:
    yield "<h3>Where the time goes</h3>"
    time = found.row.time
    lines = [
        [
            _text(part.name),
            _us(part.time),
            _us(part.alpha),
            str(part.count),
            *_bar(part.time, time),
        ]
        for part in found.parts
    ]
    head = ("part of the critical path", "time us", "of it alpha us", "spans", "share", BAR)
    yield _table(head, lines)
    if found.row.bottleneck and found.faster is not None:
        then = found.faster
        yield (
            f"<p>Bottleneck: edge {_text(found.row.bottleneck)}, held"
            f" {found.row.utilisation or 0:.1%} of the time. With twice its bandwidth the program"
            f" would take {_us(then.time)} us, and edge {_text(then.bottleneck)} would be held"
            f" {then.utilisation:.1%} of that.</p>"
        )
    overhead = (("whose own overhead the critical path pays", found.overhead_on),)
    for words, names in (
        ("whose alpha the critical path pays", found.alpha_on),
        *(overhead if found.overhead_on else ()),
        ("whose beta the critical path pays", found.beta_on),
        ("used, but not paid by the critical path", found.off),
    ):
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        shown = f": {', '.join(names[:MAX_NAMES])}{more}" if names else ""
        yield f"<p>{len(names)} edges {words}{_text(shown)}</p>"
    if found.off_faster is not None:
        yield (
            "<p>With half the alpha and beta of all edges that it does not pay, the program would"
            f" take {_us(found.off_faster.time)} us.</p>"
        )


def _bar(time: Time, whole: Time | None, *, heat: bool = False) -> tuple[str, str]:
    """Return a share as a number and as a bar, of a load from blue (idle) to red (always held)."""
    share = min(time / whole, 1.0) if whole else 0.0
    style = f"width:{share:.2%}"
    if heat:
        style += f";background:hsl({round(210 * (1 - share))} 70% 45%)"
    return f"{share:.1%}", f'<div class="track"><div class="fill" style="{style}"></div></div>'


def _timeline(data: Data) -> str:
    total = data["total"]
    cut = f" The first {MAX_SPANS} of {total} spans are shown." if total > MAX_SPANS else ""
    return f"""<h3>Timeline</h3>
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


def _chunks(data: Data) -> str:
    head = "<h3>Where each chunk is</h3>"
    if data["where"] is None:
        return (
            f'{head}\n<p class="hint">What this program should do is not known, or too large.</p>'
        )
    return f"""{head}
<div class="chunks">
<div class="tools">
<button type="button" data-go="first">start</button>
<button type="button" data-go="back">back</button>
<button type="button" data-go="on">on</button>
<button type="button" data-go="last">end</button>
<button type="button" data-go="play">play</button>
<input type="range" min="0" value="0" aria-label="Time, step by step">
<label>slice <select></select></label>
<span><span class="key send"></span> there</span>
<span><span class="key work"></span> a part of the sum</span>
<span><span class="key receive"></span> on its way</span>
<span><span class="key wanted"></span> wanted</span>
</div>
<p class="status" aria-live="polite"></p>
<div class="scroll"><canvas tabindex="0" role="img" aria-label="Ranks by chunks"></canvas></div>
<p class="hint">A row is a rank and a column a chunk. Click: how it came there.</p>
<dl class="detail"><dt>chunk</dt><dd>none selected</dd></dl>
</div>"""


def _traffic() -> str:
    return """<h3>Heat map of links</h3>
<div class="traffic">
<div class="scroll"><canvas role="img" aria-label="From ranks to ranks"></canvas></div>
<p class="status" aria-live="polite">Colour: how much of the time the messages of a pair hold the
edge that they hold longest, from blue (never) to red (always). Point at a cell for numbers.</p>
</div>"""


def _edges(view: View) -> str:
    used = [edge for edge, busy in enumerate(view.edge_busy) if busy]
    used.sort(key=lambda edge: (-view.edge_busy[edge], edge))
    topology = view.topology
    lines = []
    for number in used[:MAX_EDGES]:
        edge, busy = topology.edges[number], view.edge_busy[number]
        ends = (topology.vertex_name(edge.tail), topology.vertex_name(edge.head))
        rate = f"{float(1000 / edge.beta):.4g}" if edge.beta else ""
        lines.append([
            _text(edge.name), *(_text(end) for end in ends), rate, _us(busy),
            *_bar(busy, view.row.time, heat=True),
        ])  # fmt: skip
    names = ("edge", "from", "to", "GB/s", "busy us", "share", BAR)
    idle = len(topology.edges) - len(used)
    cut = f" The busiest {MAX_EDGES} of {len(used)} are shown." if len(used) > MAX_EDGES else ""
    return (
        f"<h3>Load of the edges</h3>\n{_table(names, lines)}\n"
        f'<p class="hint">{idle} of {len(topology.edges)} edges carry nothing.{cut}</p>'
    )
