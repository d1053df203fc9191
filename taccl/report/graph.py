"""A topology as a picture (SVG) or as a graph for Graphviz (DOT): ranks by server, switches, edges.

Two edges of equal cost in both directions are drawn as one line; parallel ones are counted. The
ranks of a server stand on a circle round its switches (many that are wired directly: where their
distances put them), its NICs below them, and what belongs to no server below all. The SVG refers
to nothing outside itself; names in both are escaped. The colours of load go from blue (never held)
over green and yellow to red (held all the time); ``page_traffic.js`` draws with the same formula.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, cos, pi, sin, sqrt
from types import MappingProxyType

from taccl.errors import InputError
from taccl.report.text import escaped, printable
from taccl.topology.graph import Topology
from taccl.topology.structure import homes
from taccl.units import Time, counted, format_time

STEPS = 20
"""Patches of a scale."""


def heat_colour(share: float) -> str:
    """Return the colour of an edge that is held for a share (0 to 1) of the time, as CSS."""
    return f"hsl({round(210 * (1 - min(share, 1.0)))} 70% 45%)"


def heat_scale() -> str:
    """Return the scale of these colours as an element of a page."""
    patches = "".join(
        f'<span class="patch" style="background:{heat_colour(step / STEPS)}"></span>'
        for step in range(STEPS + 1)
    )
    return (
        '<p class="scale" role="img" aria-label="Colours of load, from 0% blue to 100% red">'
        f"<span>busy 0%</span>{patches}<span>100% of the time</span></p>"
    )


MAX_LINES = 20_000
"""Lines of a picture, above which nothing can be seen in it."""

MAX_LABELS = 24
"""Lines up to which each has its bandwidth beside it; all have it in the legend."""

COLOURS = ("#1f6feb", "#d1495b", "#2e9e6b", "#b8860b", "#8250df", "#0a8ea0", "#c2542d")
FREE = "#c0c7ce"
"""The colour of lines without a bandwidth."""

MIN_WIRED, MAX_WIRED = 9, 128
"""Ranks of a server without switches that are placed by distance: a mesh looks like one."""

RANK, GAP, MARGIN, HEAD = 13, 40, 50, 70
"""Pixels: radius of a rank, between servers, around, and for the title."""

STYLE = """.topology text { font: 12px "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
.topology .title { font-size: 15px; }
.topology .rank { fill: #ffffff; stroke: #24292f; stroke-width: 1.5; }
.topology .switch { fill: #eaeef2; stroke: #57606a; }
.topology .server { fill: #f6f8fa; stroke: #d0d7de; }
.topology .wire { fill: none; stroke-width: 1.5; }
.topology .label { font-size: 10px; text-anchor: middle; }
.topology .middle { text-anchor: middle; }"""
"""Scoped, as the styles of a picture inside a page are styles of the whole page."""

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """What joins two vertices, as one line; of a line both ways, `tail` is the smaller one.

    The `text` says how many edges there are, bandwidth and alpha; `names` and `edges`, the numbers,
    are of all of them.
    """

    tail: int
    head: int
    both: bool
    text: str
    names: tuple[str, ...]
    edges: tuple[int, ...]


def lines_of(topology: Topology) -> tuple[Line, ...]:
    """Return the lines of a topology, in order of their vertices.

    Raises InputError when there are too many to be seen.
    """
    between: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, edge in enumerate(topology.edges):
        between[edge.tail, edge.head].append(number)
    costs = {}
    for ends, found in between.items():
        kinds = Counter((topology.edges[n].beta, topology.edges[n].alpha) for n in found)
        parts = []
        for (beta, alpha), count in kinds.items():
            many = f"{count}x" if count > 1 else ""
            rate = "" if beta is None else f"{float(1000 / beta):.4g} GB/s"
            delay = format_time(alpha) if alpha else ""
            parts.append(many + (", ".join(filter(None, (rate, delay))) or "free"))
        costs[ends] = " + ".join(parts)
    lines = []
    for (tail, head), found in sorted(between.items()):
        text = costs[tail, head]
        both = costs.get((head, tail)) == text
        if not both or tail < head:
            edges = (*found, *(between[head, tail] if both else ()))
            names = tuple(topology.edges[number].name for number in edges)
            lines.append(Line(tail, head, both, text, names, edges))
    if len(lines) > MAX_LINES:
        raise InputError(
            f"a picture of {topology.name} would have {len(lines)} lines, more than {MAX_LINES}",
            fix="lower --nodes",
        )
    return tuple(lines)


def dot(topology: Topology) -> str:
    """Return the topology for Graphviz, one cluster for each server.

    Raises InputError when there is too much to be drawn.
    """
    lines, at_home = lines_of(topology), homes(topology)
    text = [f"digraph {_quoted(topology.name)} {{", "  node [shape=box, style=rounded];"]
    members: dict[int | None, list[int]] = defaultdict(list)
    for vertex, server in enumerate(at_home):
        members[server].append(vertex)
    for server, vertices in members.items():
        indent = "  " if server is None else "    "
        named = [
            f"{indent}v{vertex} [label={_quoted(topology.vertex_name(vertex))}"
            f"{', shape=circle' if vertex < topology.num_ranks else ''}];"
            for vertex in vertices
        ]
        if server is not None:
            named = [
                f"  subgraph cluster_{server} {{", f'    label="server {server}";', *named, "  }",
            ]  # fmt: skip
        text += named
    for line in lines:
        ways = ", dir=both" if line.both else ""
        text.append(f"  v{line.tail} -> v{line.head} [label={_quoted(line.text)}{ways}];")
    return "\n".join([*text, "}"]) + "\n"


def _quoted(text: str) -> str:
    """Return a string of the DOT language."""
    shown = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown}"'


def svg(topology: Topology) -> str:
    """Return a picture of the topology, its lines coloured by what they cost.

    Raises InputError when there is too much to be drawn.
    """
    lines = lines_of(topology)
    turns = cycle(COLOURS)
    colours = {
        text: next(turns) if "GB/s" in text else FREE
        for text in dict.fromkeys(line.text for line in lines)
    }
    drawn = [(colours[line.text], line.text) for line in lines]
    return _picture(topology, lines, drawn, colours, ' xmlns="http://www.w3.org/2000/svg"')


def loaded_svg(topology: Topology, busy: Sequence[Time], time: Time) -> str:
    """Return a picture of a `topology`, its lines coloured by how long their busiest edge is held.

    Each edge is `busy` for so many picoseconds, of the `time` in picoseconds that a program takes.

    Raises InputError when there is too much to be drawn.
    """
    lines = lines_of(topology)
    drawn = []
    for line in lines:
        edge = max(line.edges, key=lambda number: busy[number])
        share = busy[edge] / time if time else 0.0
        told = f"edge {topology.edges[edge].name} busy {share:.1%} of the time; {line.text}"
        drawn.append((heat_colour(share) if busy[edge] else FREE, told))
    return _picture(topology, lines, drawn)


def _picture(
    topology: Topology,
    lines: Sequence[Line],
    drawn: Sequence[tuple[str, str]],
    legend: Mapping[str, str] = MappingProxyType({}),
    attributes: str = "",
) -> str:
    """Return a picture; ``drawn`` has the colour and the words of each line."""
    boxes, places = _placed(topology, homes(topology), lines)
    width = max(460.0, *(x + MARGIN for x, _ in places), *(box[0] + box[2] + 20 for box in boxes))
    below = max([y for _, y in places] + [box[1] + box[3] for box in boxes]) + MARGIN
    height = below + 18 * len(legend) + 10
    title = (
        f"{topology.name}: {topology.num_ranks} ranks in {counted(topology.num_servers, 'server')},"
        f" {len(topology.edges)} edges"
    )
    parts = [
        f'<svg{attributes} class="topology" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escaped(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text class="title" x="20" y="26">{escaped(title)}</text>',
    ]
    for number, (left, top, wide, tall) in enumerate(boxes):
        parts.append(
            f'<rect class="server" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}"'
            f' height="{tall:.1f}" rx="8"/><text x="{left + 10:.1f}" y="{top + 18:.1f}">'
            f"server {number}</text>"
        )
    labels = []
    for line, (colour, words) in zip(lines, drawn, strict=True):
        (x1, y1), (x2, y2) = places[line.tail], places[line.head]
        ends = " <-> " if line.both else " -> "
        what = ends.join(map(topology.vertex_name, (line.tail, line.head)))
        told = escaped(f"{what}: {words} ({', '.join(line.names[:8])})")
        parts.append(
            f'<path class="wire" stroke="{colour}"'
            f' d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"><title>{told}</title></path>'
        )
        rate = line.text.partition(",")[0]
        if "GB/s" in rate and len(lines) <= MAX_LABELS and len(legend) > 1:
            labels.append(
                f'<text class="label" x="{(x1 + x2) / 2:.1f}" y="{(y1 + y2) / 2 - 3:.1f}">'
                f"{escaped(rate.removesuffix(' GB/s'))}</text>"
            )
    parts += labels
    for vertex, (x, y) in enumerate(places):
        name = escaped(topology.vertex_name(vertex))
        if vertex < topology.num_ranks:
            parts.append(f'<circle class="rank" cx="{x:.1f}" cy="{y:.1f}" r="{RANK}"/>')
            parts.append(f'<text class="middle" x="{x:.1f}" y="{y + 4:.1f}">{name}</text>')
            continue
        short = name.rpartition("/")[2]
        parts.append(
            f'<rect class="switch" x="{x - 12:.1f}" y="{y - 9:.1f}" width="24" height="18" rx="3">'
            f"<title>{name}</title></rect>"
        )
        parts.append(f'<text class="label" x="{x:.1f}" y="{y + 20:.1f}">{short}</text>')
    for number, (text, colour) in enumerate(legend.items()):
        y = below + 18 * number
        parts.append(f'<path class="wire" stroke="{colour}" d="M20 {y - 4:.0f}h28"/>')
        parts.append(f'<text x="56" y="{y:.0f}">{escaped(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


Box = tuple[float, float, float, float]
"""x, y, width, height."""


def _placed(
    topology: Topology, at_home: Sequence[int | None], lines: Sequence[Line]
) -> tuple[list[Box], list[Place]]:
    """Return the box of every server, and the place of every vertex."""
    doors = {vertex for line in lines if at_home[line.tail] != at_home[line.head]
             for vertex in (line.tail, line.head) if vertex >= topology.num_ranks}  # fmt: skip
    ranks: dict[int, list[int]] = defaultdict(list)
    inner: dict[int, list[int]] = defaultdict(list)
    nics: dict[int, list[int]] = defaultdict(list)
    for vertex, server in enumerate(at_home):
        if server is not None:
            kind = ranks if vertex < topology.num_ranks else nics if vertex in doors else inner
            kind[server].append(vertex)
    radius = max(80.0, max(map(len, ranks.values())) * (RANK + 9) / pi)
    widest = max([2 * radius, *(24.0 * len(found) for found in nics.values())]) + 2 * RANK + 30
    tall = 2 * radius + 2 * RANK + 50 + (95 if nics else 0)
    columns = ceil(sqrt(len(ranks)))
    places: dict[int, Place] = {}
    boxes: list[Box] = []
    for number, server in enumerate(sorted(ranks)):
        row, column = divmod(number, columns)
        left, top = 20 + column * (widest + GAP), HEAD + row * (tall + GAP)
        boxes.append((left, top, widest, tall))
        centre = (left + widest / 2, top + 30 + RANK + radius)
        wired = not inner[server] and MIN_WIRED <= len(ranks[server]) <= MAX_WIRED
        spread = _by_distance if wired else _circle
        places |= spread(ranks[server], centre, radius, lines)
        places |= _circle(
            inner[server], centre, 0 if len(inner[server]) == 1 else radius / 2, lines
        )
        places |= _row(nics[server], left + widest / 2, top + tall - 80, 24, 45)
    shared = [vertex for vertex, server in enumerate(at_home) if server is None]
    bottom = max(box[1] + box[3] for box in boxes)
    places |= _row(shared, 20 + (columns * (widest + GAP) - GAP) / 2, bottom + 60, 90)
    return boxes, [places[vertex] for vertex in range(len(at_home))]


def _circle(
    vertices: Sequence[int], centre: Place, radius: float, _lines: Sequence[Line]
) -> Mapping[int, Place]:
    turns = {vertex: 2 * pi * n / len(vertices) - pi / 2 for n, vertex in enumerate(vertices)}
    return {
        vertex: (centre[0] + radius * cos(turn), centre[1] + radius * sin(turn))
        for vertex, turn in turns.items()
    }


def _by_distance(
    vertices: Sequence[int], centre: Place, radius: float, lines: Sequence[Line]
) -> Mapping[int, Place]:
    """Return places whose distances are about those in hops (Kamada and Kawai 1989)."""
    import networkx as nx
    import numpy as np

    wires: nx.Graph[int] = nx.Graph()
    wires.add_nodes_from(vertices)
    inside = set(vertices)
    wires.add_edges_from(
        (line.tail, line.head) for line in lines if {line.tail, line.head} <= inside
    )
    if not nx.is_connected(wires):
        return _circle(vertices, centre, radius, lines)
    begin = nx.spectral_layout(wires)  # from a circle a mesh stays folded
    with np.errstate(divide="ignore", invalid="ignore"):  # two may begin at one place
        found = nx.kamada_kawai_layout(wires, pos=begin, scale=radius, center=centre)
    return {vertex: (float(x), float(y)) for vertex, (x, y) in found.items()}


def _row(
    vertices: Sequence[int], middle: float, y: float, step: float, drop: float = 0
) -> Mapping[int, Place]:
    """Return places in a row, every other one a little lower."""
    first = max(20.0, middle - step * (len(vertices) - 1) / 2)
    return {
        vertex: (first + step * number, y + drop * (number % 2))
        for number, vertex in enumerate(vertices)
    }
