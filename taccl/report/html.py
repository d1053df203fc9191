"""One page about replayed programs: results, where the time goes, timeline, chunks and links.

The page needs nothing but itself: style, script and data are in it, and its content security
policy lets the browser fetch nothing and run no other script. Names come from files that anybody
may have written, so every text is escaped here or set as text by the script.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import taccl
from taccl.report.candidates import best_of_engines
from taccl.report.diagram import BOUND, Line, chart, style_of
from taccl.report.explain import Explanation
from taccl.report.html_load import load
from taccl.report.html_table import BAR, bar, table, text_of, us
from taccl.report.html_timeline import MAX_SPANS, Data, packed
from taccl.report.verdict import NcclTime, verdict
from taccl.sim.sweep import Row
from taccl.synth.problem import Candidate
from taccl.topology import Topology
from taccl.units import Time, format_size, gigabytes_per_second

MAX_NAMES = 4
"""Names of edges in a sentence: the busiest."""

SCRIPTS = ("page_timeline.js", "page_chunks.js", "page_traffic.js", "page.js")
"""Parts of the one script, in order."""


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
    candidates
        What it was compared with when it was searched for.
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

    Parameters
    ----------
    title
        Of the page.
    rows
        Results at all sizes.
    views
        Each program at one size.
    nccl
        What NCCL's own model expects, for the verdict and the chart.
    """
    script, style = _script(), _static("page.css")
    said = verdict([view.row for view in views], nccl) if views else ""
    body = [
        f"<h1>{text_of(title)}</h1>",
        *([f'<p class="verdict">{text_of(said)}</p>'] if said else ()),
        '<p class="hint">Times are modelled, not measured: a replay under the alpha-beta cost model'
        f" by taccl {text_of(taccl.__version__)}.</p>",
        "<h2>Summary</h2>",
        table(_SUMMARY, [_summary(view.row) for view in views]),
        "<h2>By size</h2>",
        table(_BY_SIZE, [_by_size(row) for row in rows]),
        *_rates(rows, nccl),
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
        f"<title>{text_of(title)}</title>",
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


_SUMMARY = (
    "program", "file", "collective", "topology", "ranks", "alpha rule", "size", "time us",
    "bound us", "bound", "gap", "algbw GB/s", "busbw GB/s",
)  # fmt: skip
_BY_SIZE = (
    "program", "size", "time us", "algbw GB/s", "busbw GB/s", "bound us", "gap", "bottleneck",
    "used", "note",
)  # fmt: skip


def _summary(row: Row) -> list[str]:
    return [
        *(text_of(text) for text in (
            row.program, row.file, row.collective, row.topology, row.ranks, row.rules,
            format_size(row.size),
        )),
        _time(row), us(row.bound), text_of(row.bound_kind), _number(row.gap, ".1%"),
        _number(row.algbw, ".3f"), _number(row.busbw, ".3f"),
    ]  # fmt: skip


def _by_size(row: Row) -> list[str]:
    return [
        text_of(row.file or row.program), text_of(format_size(row.size)), _time(row),
        _number(row.algbw, ".3f"), _number(row.busbw, ".3f"), us(row.bound),
        _number(row.gap, ".1%"), text_of(row.bottleneck), _number(row.utilisation, ".0%"),
        text_of(row.note),
    ]  # fmt: skip


def _time(row: Row) -> str:
    return "can&#x27;t run" if row.time is None else us(row.time)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


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
        lines += [
            Line("NCCL by its own model", style_of(-1, "2 3"), _rate_points(expected)),
            Line("bound: no program is faster", BOUND, _rate_points(bounds)),
        ]
        drawn = [line for line in lines if line.points]
        if drawn:
            yield f"<h3>Bandwidth of {text_of(collective)} by size</h3>"
            yield chart("algbw, GB/s", sizes, drawn)


def _rate_points(times: Mapping[int, Time | None]) -> tuple[tuple[int, float], ...]:
    return tuple(
        (size, gigabytes_per_second(size, time)) for size, time in sorted(times.items()) if time
    )


def _choice(views: Sequence[View]) -> Iterator[str]:
    if len(views) > 1:
        options = "".join(
            f'<option value="{number}">{text_of(_name(view.row))}</option>'
            for number, view in enumerate(views)
        )
        yield f'<p><label>In detail: <select id="choice">{options}</select></label></p>'


def _name(row: Row) -> str:
    return row.file or row.program


def _view(number: int, view: View) -> str:
    title = f"{_name(view.row)} at {format_size(view.row.size)}"
    parts = [f'<section data-view="{number}">', f"<h2>{text_of(title)}</h2>"]
    if view.facts:
        parts.append(table(("what", "value"), [[text_of(n), text_of(v)] for n, v in view.facts]))
    parts += _candidates(view.candidates)
    if view.row.note:
        why = "can't run: " if view.row.time is None else ""
        parts.append(f'<p class="note">{text_of(why + view.row.note)}</p>')
    if view.row.time is not None and view.explanation is not None and view.explanation.why_not:
        parts.append(f'<p class="note">Not in detail: {text_of(view.explanation.why_not)}</p>')
    if view.timeline is not None:
        if view.explanation is not None:
            parts += _explained(view.explanation, _held(view))
        parts += [_timeline(view.timeline), _chunks(view.timeline)]
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
                text_of(one.engine), text_of(one.chunks), us(one.score), us(one.makespan),
                f"{one.score / fastest:.2f} x" if one.score and fastest else "",
                text_of(one.reason or ""),
            ]
            for one in best
        ],
    )  # fmt: skip
    yield (
        f'<p class="hint">The best of each engine, of {len(candidates)} candidates. A chunk count'
        " is for each rank; the time of a program is that of its replay.</p>"
    )


def _held(view: View) -> Mapping[str, Time]:
    """Return for how long each edge was held, by its name."""
    names = (edge.name for edge in view.topology.edges)
    return dict(zip(names, view.edge_busy, strict=False))


def _explained(found: Explanation, held: Mapping[str, Time]) -> Iterator[str]:
    yield "<h3>Where the time goes</h3>"
    time = found.row.time
    lines = [
        [
            text_of(part.name),
            us(part.time),
            us(part.alpha),
            str(part.count),
            *bar(part.time, time),
        ]
        for part in found.parts
    ]
    head = ("part of the critical path", "time us", "of it alpha us", "spans", "share", BAR)
    yield table(head, lines)
    if found.row.bottleneck and found.faster is not None:
        then = found.faster
        yield (
            f"<p>Bottleneck: edge {text_of(found.row.bottleneck)}, busy"
            f" {found.row.utilisation or 0:.1%} of the time. With twice its bandwidth the program"
            f" would take {us(then.time)} us, and edge {text_of(then.bottleneck)} would be busy"
            f" {then.utilisation:.1%} of that.</p>"
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
        many = "1 edge" if len(names) == 1 else f"{len(names)} edges"
        yield f"<p>{many} {words}{text_of(shown)}</p>"
    if found.off_faster is not None:
        yield (
            "<p>With half the alpha and beta of all edges that it does not pay, the program would"
            f" take {us(found.off_faster.time)} us.</p>"
        )


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
