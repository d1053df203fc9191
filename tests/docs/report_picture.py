"""docs/report.svg: a picture of a report, made of the parts of a real one.

Halving and doubling on two DGX-A100: a textbook algorithm, so that the picture is the same on every
machine.
"""

from collections.abc import Iterator

from taccl.apps.comparison import Model
from taccl.apps.programs import Target, textbook_program
from taccl.collectives import build_collective
from taccl.replay.cost import model_of
from taccl.replay.nccl import Settings, machine_of
from taccl.replay.sweep import sweep
from taccl.report.chart import BOUND, STYLE, Line, chart, style_of
from taccl.report.graph import heat_colour, loaded_svg
from taccl.report.html import Data, timeline_data
from taccl.report.played import play
from taccl.report.tables import verdict
from taccl.report.text import escaped
from taccl.topology.file import load_topology
from taccl.units import gigabytes_per_second

SIZE, SIZES = 1_000_000, (62_464, 250_112, 1_000_000, 4_000_000, 16_000_000)
TRACKS = 14
"""Of the timeline: the first ones."""

FILLS = ("#2f81c7", "#2f9e63", "#b7791f")
"""Of receives, sends and local work, as in page.css."""

LEFT, WIDE, HIGH = 24, 1120, 790
"""Pixels: the margin, the page without it, and its height."""


def report_picture() -> str:
    """Return the picture."""
    topology, target = load_topology("dgx-a100", nodes=2), Target("portable")
    collective = build_collective("allreduce", topology.num_ranks, 1)
    program = textbook_program(topology, collective, "halving-doubling", SIZE, target)
    model = model_of("portable", 4)
    rows = sweep([("", program)], topology, SIZES, model)
    row = next(row for row in rows if row.size == SIZE)
    played = play(program, topology, SIZE, model)
    nccl = Model(topology, machine_of(topology, Settings()), "allreduce").time
    said = verdict([row], lambda _collective, size: nccl(size))
    lines = [
        Line(program.name, style_of(0), tuple((r.size, r.algbw or 0) for r in rows)),
        Line("NCCL by its own model", style_of(-1, "2 3"), tuple(
            (size, gigabytes_per_second(size, nccl(size) or 0)) for size in SIZES
        )),
        Line("bound: no program is faster", BOUND, tuple(
            (r.size, gigabytes_per_second(r.size, r.bound or 0)) for r in rows
        )),
    ]  # fmt: skip
    picture = loaded_svg(topology, played.trace.edge_busy, row.time or 0)
    said, rest = said[: said.index("; NCCL") + 1], said[said.index("; NCCL") + 2 :]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE + 48} {HIGH}"'
        f' width="{WIDE + 48}" height="{HIGH}" role="img"'
        ' aria-label="A report: verdict, bandwidth by size, topology by load, timeline.">',
        f"<style>{STYLE}\n.h {{ font-size: 15px; font-weight: 600; fill: #24292f; }}</style>",
        f'<rect x="1" y="1" width="{WIDE + 46}" height="{HIGH - 2}" rx="8" fill="#ffffff"'
        ' stroke="#d0d7de"/>',
        f'<text class="h" style="font-size:20px" x="{LEFT}" y="38">allreduce on dgx-a100</text>',
        f'<text class="h" x="{LEFT}" y="66">{escaped(said)}</text>',
        f'<text class="h" x="{LEFT}" y="88">{escaped(rest)}</text>',
        *_headed("Bandwidth of allreduce by size", LEFT, 124),
        _placed(chart("algbw, GB/s", SIZES, lines), LEFT, 134, 600, 345),
        *_headed("Topology by load", LEFT + 660, 124),
        *_scale(LEFT + 660, 140),
        _placed(picture, LEFT + 660, 158, 440, 370),
        *_headed("Timeline", LEFT, 470),
        *_timeline(timeline_data(played)),
        "</svg>",
    ]) + "\n"  # fmt: skip


def _headed(text: str, x: float, y: float) -> Iterator[str]:
    yield f'<text class="h" x="{x}" y="{y}">{text}</text>'


def _placed(picture: str, x: float, y: float, width: float, height: float) -> str:
    """Return a picture as a part of another one, as large as it may be."""
    head, _, body = picture.partition(">")
    box = head.split('viewBox="')[1].split('"')[0]
    kind = head.split('class="')[1].split('"')[0]
    return (
        f'<svg class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}"'
        f' preserveAspectRatio="xMinYMin">{body}'
    )


def _scale(x: float, y: float) -> Iterator[str]:
    yield f'<text x="{x}" y="{y + 10}">busy 0%</text>'
    for step in range(21):
        fill = heat_colour(step / 20)
        yield f'<rect x="{x + 56 + 10 * step}" y="{y}" width="10" height="12" fill="{fill}"/>'
    yield f'<text x="{x + 274}" y="{y + 10}">100% of the time</text>'


def _timeline(data: Data) -> Iterator[str]:
    top, high, gutter = 486, 20, 180
    scale = (WIDE - gutter) / data["time"]
    for number, (rank, block) in enumerate(data["tracks"][:TRACKS]):
        y = top + number * high
        yield f'<text x="{LEFT}" y="{y + 14}">{escaped(f"{rank}, {block}")}</text>'
    spans, path = data["spans"], set(data["path"])
    for span, track in enumerate(spans["track"]):
        if track >= TRACKS:
            continue
        x = LEFT + gutter + spans["start"][span] * scale
        wide, y = max(spans["length"][span] * scale - 1, 1), top + track * high
        fill = FILLS[spans["kind"][span]]
        yield f'<rect x="{x:.1f}" y="{y + 2}" width="{wide:.1f}" height="15" fill="{fill}"/>'
        if span in path:
            yield f'<rect x="{x:.1f}" y="{y + 14}" width="{wide:.1f}" height="3" fill="#d1242f"/>'
