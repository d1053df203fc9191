"""Pages: of replayed programs (results, time, timeline, chunks, links), and of a library.

A page needs nothing but itself: style, script and data are in it, and its content security
policy lets the browser fetch nothing and run no other script. Names come from files that anybody
may have written, so every text is escaped here or set as text by the script. What the script draws
is a replay (or a schedule) as tracks and columns of spans: columns of numbers instead of an object
for each span, deflated, keep a page of 100 000 spans at about a megabyte, and the script looks only
at what is visible.

**Where each chunk is over time.** What a step moves does not depend on when it runs, as a program
without races gives the same data in every order. So one run without times says it for all
iterations, and the page's script adds the times of the spans. Sums are known by how many of a
chunk's sources are in them.
"""

import base64
import contextlib
import hashlib
import heapq
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

import taccl
from taccl.collectives import Collective
from taccl.errors import InputError
from taccl.model.problem import Candidate
from taccl.model.schedule import Schedule, Send
from taccl.msccl.expected import Cell, Mode, expected_of, mode_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Finding, Op, Program, Slot
from taccl.msccl.run import MAX_WORK, maximal_run, places, work_of
from taccl.replay.interpreter import Why
from taccl.replay.sweep import Row
from taccl.report.chart import BOUND, Line, chart, style_of
from taccl.report.explain import Explanation
from taccl.report.graph import heat_colour, heat_scale, lines_of, loaded_svg
from taccl.report.played import Played, link_text
from taccl.report.tables import NcclTime, best_of_engines, verdict
from taccl.report.text import escaped, number_text, page_head, us_text
from taccl.timing.retiming import fan_uses
from taccl.topology.graph import Topology
from taccl.units import Time, counted, format_size, gigabytes_per_second

MAX_CELLS = 300_000
"""Ranks times chunks that a page shows."""

NOTHING = -1
"""Content of a cell that holds no chunk, or a mixture of several."""

Where = dict[str, Any]
"""JSON; the script is what reads it."""


class Content(NamedTuple):
    """A chunk, and the sources that are in it, as bits."""

    chunk: int
    sources: int


Contents = Sequence[Content | None]


@dataclass(frozen=True, slots=True)
class _Moved:
    """Cells that a step writes, what it writes there, and what it sends."""

    cells: list[int]
    writes: Contents
    sends: Contents


def program_where(program: Program) -> Where | None:
    """Return what the script shows of a program; None when it can't be followed."""
    if work_of(program) > MAX_WORK:
        return None
    collective = expected_of(program, find_root(program) or 0)
    if isinstance(collective, Finding):
        return None
    if collective.num_ranks * collective.num_chunks > MAX_CELLS:
        return None
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop,
        in_place=not program.out_of_place,
    )  # fmt: skip
    memory = _Memory(mode)
    start = _inputs(collective)
    for rank, offset, content in start:
        memory.write(rank, [Slot(Buffer.INPUT, offset)], [content])
    cells = memory.numbers
    numbered = [
        (rank, cells[rank][memory.mode.cell(rank, Slot(Buffer.INPUT, offset))], content)
        for rank, offset, content in start
    ]
    effects, codes = _effects(program, memory), _Codes.of(collective)
    blocks = sorted((rank, block.id, block) for rank, block in program.blocks())
    return {
        **_head(collective, numbered),
        "steps": [
            [codes.moved(effects.get((rank, number, at))) for at in range(len(block.steps))]
            for rank, number, block in blocks
        ],
        "ranks": [rank for rank, _, _ in blocks],
        "senders": [-1 if b.recv_from is None else b.recv_from for _, _, b in blocks],
        "receivers": [-1 if b.send_to is None else b.send_to for _, _, b in blocks],
        "cells": max(map(len, memory.numbers.values()), default=0),
        "sent": False,
    }  # fmt: skip


class _Landing(NamedTuple):
    """A message on its way: what it brings where and when, and the list of what is then there."""

    time: Time
    number: int
    rank: int
    contents: list[Content]
    adds: list[bool]
    writes: list[int]


def _land(landing: _Landing, held: dict[tuple[int, int], int], codes: "_Codes") -> None:
    for content, adds in zip(landing.contents, landing.adds, strict=True):
        place = landing.rank, content.chunk
        held[place] = content.sources | (held.get(place, 0) if adds else 0)
        landing.writes.extend(codes.all([Content(content.chunk, held[place])]))


def schedule_where(
    schedule: Schedule, used: Sequence[int], messages: Sequence[Sequence[Send]]
) -> Where | None:
    """Return what the script shows of a `schedule`; its tracks are the links `used`, in order.

    The `messages` are the sends of each, by start; the k-th of a link is its track's step k.
    """
    collective, table = schedule.collective, schedule.topology.links
    codes = _Codes.of(collective)
    cells = collective.num_ranks * collective.num_chunks
    if len(schedule.fans) or cells > MAX_CELLS or sum(map(len, messages)) > MAX_WORK:
        return None
    start = _inputs(collective)
    held = {(rank, content.chunk): content.sources for rank, _, content in start}
    coming: list[_Landing] = []
    steps: dict[int, list[list[list[int]]]] = {link: [] for link in used}
    for number, message in enumerate(messages):
        link, now = message[0].link, message[0].start
        while coming and coming[0].time <= now:
            _land(heapq.heappop(coming), held, codes)
        src, dst = int(table.src[link]), int(table.dst[link])
        sent = [Content(send.chunk, held.get((src, send.chunk), 0)) for send in message]
        writes: list[int] = []
        steps[link].append([[send.chunk for send in message], writes, codes.all(sent)])
        adds = [send.reduce for send in message]
        heapq.heappush(coming, _Landing(message[0].end, number, dst, sent, adds, writes))
    while coming:
        _land(heapq.heappop(coming), held, codes)
    return {
        **_head(collective, [(rank, content.chunk, content) for rank, _, content in start]),
        "steps": [steps[link] for link in used],
        "ranks": [int(table.dst[link]) for link in used],
        "senders": [int(table.src[link]) for link in used],
        "receivers": [int(table.dst[link]) for link in used],
        "cells": collective.num_chunks,
        "sent": True,
    }


@dataclass(slots=True)
class _Memory:
    """What is where; cells are numbered, rank by rank, as they come up."""

    mode: Mode
    content: dict[tuple[int, Cell], Content | None] = field(default_factory=dict)
    numbers: dict[int, dict[Cell, int]] = field(default_factory=dict)

    def read(self, rank: int, slots: Iterable[Slot]) -> list[Content | None]:
        return [self.content.get((rank, self.mode.cell(rank, slot))) for slot in slots]

    def write(self, rank: int, slots: Iterable[Slot], values: Contents) -> list[int]:
        """Write values and return the numbers of their cells."""
        known, found = self.numbers.setdefault(rank, {}), []
        for slot, value in zip(slots, values, strict=False):
            cell = self.mode.cell(rank, slot)
            self.content[rank, cell] = value
            found.append(known.setdefault(cell, len(known)))
        return found


def _effects(program: Program, memory: _Memory) -> dict[tuple[int, int, int], _Moved]:
    """Run a program and return what each step that finishes moves."""
    run = maximal_run(program)
    where = places(run)
    sent: dict[int, Contents] = {}
    found: dict[tuple[int, int, int], _Moved] = {}
    for number in run.order:
        place = where[number]
        block = run.blocks[place.block][1]
        step = block.steps[place.step]
        if step.op is Op.NOP:
            continue
        parts: list[Contents] = [sent[run.sender[number]]] if step.receives else []
        if step.source is not None:
            parts.append(memory.read(place.rank, _slots(step.source, step.count)))
        if step.op is Op.REDUCE:
            parts.append(memory.read(place.rank, _slots(step.dst, step.count)))
        values = [_added(terms) for terms in zip(*parts, strict=False)]
        targets = _slots(step.target, step.count)
        cells = memory.write(place.rank, targets, values)
        if step.sends:
            sent[number] = values
        found[place.rank, block.id, place.step] = _Moved(
            cells, values if cells else (), values if step.sends else ()
        )
    return found


def _slots(slot: Slot | None, count: int) -> list[Slot]:
    if slot is None:
        return []
    return [Slot(slot.buffer, slot.offset + index) for index in range(count)]


def _added(terms: Sequence[Content | None]) -> Content | None:
    """Return the sum of contents: None unless all are parts of one chunk."""
    known = [term for term in terms if term is not None]
    if len(known) < len(terms) or len({term.chunk for term in known}) != 1:
        return None
    sources = 0
    for term in known:
        sources |= term.sources
    return Content(known[0].chunk, sources)


def _inputs(collective: Collective) -> list[tuple[int, int, Content]]:
    """Return (rank, offset of its input, content): of a chunk that is copied any source is all."""
    found = []
    for chunk in range(collective.num_chunks):
        for position, rank in enumerate(collective.sources(chunk)):
            sources = 1 << position if collective.reduces else 1
            found.append((rank, collective.input_offset(chunk, rank), Content(chunk, sources)))
    return found


def _head(collective: Collective, start: Iterable[tuple[int, int, Content]]) -> Where:
    """Return names, what is there at the start, and what is wanted in the end."""
    chunks, codes = range(collective.num_chunks), _Codes.of(collective)
    return {
        "num_ranks": collective.num_ranks,
        "names": [
            f"sum {chunk} of {len(sources)} ranks" if collective.reduces
            else f"input {collective.input_offset(chunk, sources[0])} of rank {sources[0]}"
            for chunk in chunks for sources in [collective.sources(chunk)]
        ],
        "base": codes.base,
        "full": list(codes.full),
        "start": [[rank, cell, *codes.all([content])] for rank, cell, content in start],
        "wanted": [list(collective.targets(chunk)) for chunk in chunks],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Codes:
    """Writes a content as one number: the chunk times ``base``, plus the sources that are in it.

    ``full`` says how many sources each chunk has, 1 where they are copied; ``base`` is above all.
    """

    full: tuple[int, ...]
    base: int

    @staticmethod
    def of(collective: Collective) -> "_Codes":
        chunks = range(collective.num_chunks)
        full = tuple(len(collective.sources(c)) if collective.reduces else 1 for c in chunks)
        return _Codes(full, max(full, default=1) + 1)

    def all(self, contents: Contents) -> list[int]:
        return [
            NOTHING if each is None
            else each.chunk * self.base + min(each.sources.bit_count(), self.full[each.chunk])
            for each in contents
        ]  # fmt: skip

    def moved(self, moved: _Moved | None) -> list[list[int]]:
        """Return [cells, what is written to them, what is sent]."""
        if moved is None:
            return [[], [], []]
        return [moved.cells, self.all(moved.writes), self.all(moved.sends)]


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


_NUMBER = "{:.6g}".format
_SIZES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "size": ("size_bytes", format_size),
    "time us": ("time_us", _NUMBER),
    "bound us": ("bound_us", _NUMBER),
    "gap": ("gap", "{:.1%}".format),
    "over best": ("over_best", _NUMBER),
    "classical": ("classical", str),
    "classical us": ("classical_us", _NUMBER),
    "over classical": ("over_classical", _NUMBER),
    "bound over classical": ("bound_over_classical", _NUMBER),
    "NCCL us (its model)": ("nccl_us", _NUMBER),
    "file": ("file", str),
}
"""Columns of the table of sizes: the field of the index, and how it is written."""

_TIMES = (
    ("this library", "time_us", style_of(0)),
    ("the best classical algorithm", "classical_us", style_of(1)),
    ("NCCL by its own model", "nccl_us", style_of(-1, "2 3")),
    ("bound: no program is faster", "bound_us", BOUND),
)
"""Lines of the chart of bandwidth: name, field of the index in microseconds, style."""

_SHARES = (
    ("this library", "over_classical", style_of(0)),
    ("bound: no program is faster", "bound_over_classical", BOUND),
)
"""Lines of the chart of times as shares of the best classical algorithm's."""


def library_page(index: Mapping[str, Any]) -> str:
    """Return the page of a library with this index, as ``index.json`` holds it."""
    topology = index["topology"]
    title = f"Library for {topology['name']}, {topology['ranks']} ranks, {index['runtime']}"
    parts = [
        *page_head(title),
        *(f'<p class="verdict">{escaped(_verdict(found))}</p>' for found in index["collectives"]),
        f'<p class="hint">{escaped(index["model"])}</p>',
    ]
    if index["nccl_model"]:
        parts.append(f'<p class="hint">{escaped(index["nccl_model"])}</p>')
    for found in index["collectives"]:
        parts += _collective(found)
    budget = {name: value for name, value in index["budget"].items() if value is not None}
    facts = [
        *(f"{name}: {value}" for name, value in budget.items()),
        f"seed: {index['seed']}",
        *(f"{name} {value}" for name, value in index["versions"].items()),
        f"topology sha256 {topology['sha256']}",
    ]
    parts.append("<h2>How it was made</h2><ul>")
    parts += [f"<li>{escaped(fact)}</li>" for fact in facts]
    parts.append("</ul></body></html>\n")
    return "\n".join(parts)


def _verdict(found: Mapping[str, Any]) -> str:
    """Return in a sentence what was won for one collective."""
    sizes = found["sizes"]
    served = [one for one in found["ranges"] if one["file"]]
    shares = [size["over_classical"] for size in sizes if size["over_classical"]]
    gaps = [size["gap"] for size in sizes if size["gap"] is not None]
    ends = [format_size(sizes[place]["size_bytes"]) for place in (0, -1)]
    parts = [f"{found['collective']}, {' to '.join(ends)}: {counted(len(served), 'file')}"]
    if shares:
        parts.append(
            f"{1 / max(shares):.2f} to {1 / min(shares):.2f} times as fast as the best classical"
            " algorithm"
        )
    if gaps:
        parts.append(f"{min(gaps):.1%} to {max(gaps):.1%} above the bound")
    return "; ".join(parts) + "."


def _collective(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the part of one collective."""
    yield f"<h2>{escaped(found['collective'])}</h2>"
    sizes = found["sizes"]
    if len(sizes) > 1:
        places = [size["size_bytes"] for size in sizes]
        rates = [
            Line(name, style, tuple(
                (size["size_bytes"], size["size_bytes"] / size[key] / 1e3)
                for size in sizes if size[key]
            ))
            for name, key, style in _TIMES
        ]  # fmt: skip
        shares = [
            Line(name, style, tuple(
                (size["size_bytes"], size[key]) for size in sizes if size[key] is not None
            ))
            for name, key, style in _SHARES
        ]  # fmt: skip
        yield "<h3>Bandwidth by size</h3>"
        yield chart("algbw, GB/s", places, [line for line in rates if line.points])
        yield "<h3>Time beside the best classical algorithm</h3>"
        yield chart("time as a share of the best classical algorithm's", places, shares, share=True)
    rows = [
        (
            f"{format_size(one['min_bytes'])} to {format_size(one['max_bytes'])}",
            one["file"] or one["served_by"],
            " ".join(str(one[name]) for name in ("engine", "protocol") if one.get(name)),
            one.get("chunks") or "",
            one["why"],
        )
        for one in found["ranges"]
    ]
    yield table(("sizes", "file", "made by", "chunks", "why"), rows)
    yield "<h3>At every size</h3>"
    columns = _SIZES.values()
    yield table([*_SIZES], (
        ["-" if size[key] is None else form(size[key]) for key, form in columns]
        for size in found["sizes"]
    ))  # fmt: skip
    counts = found["candidates"]
    yield (
        f"<p>{counts['searched']} searches and {counts['classical']} classical algorithms made"
        f" {counts['programs']} programs; {counts['without_program']} searches made none,"
        f" {len(counts['failed'])} failed.</p>"
    )
    if counts["failed"]:
        lost = [(one["candidate"], one["reason"]) for one in counts["failed"]]
        yield table(("failed candidate", "reason"), lost)
