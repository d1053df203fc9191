"""A topology drawn: as a picture (SVG), as a graph for Graphviz (DOT), as a matrix of links.

Two edges of equal cost in both directions are drawn as one line; parallel ones are counted. The
ranks of a server stand on a circle round its switches (many that are wired directly: where their
distances put them), its NICs below them, and what belongs to no server below all. The SVG refers
to nothing outside itself; names in both are escaped. The colours of load go from blue (never held)
over green and yellow to red (held all the time); ``page_traffic.js`` draws with the same formula.

The matrix is in the manner of ``nvidia-smi topo -m``, with a legend. A cell is a letter for the
class of the path and its GB/s: ``S450``. Like NV# it says what joins the two, not how far apart
they are in hops of a ring.

Of what a sketch leaves of a topology the words, and a network that can be drawn: there,
servers are joined by the links that the sketch leaves, straight from rank to rank: the relays.
Inside servers it shows the edges that some open link crosses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import cycle
from math import ceil, cos, pi, sin, sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.report.text import aligned, escaped, printable
from taccl.topology.file import MAX_TOLD
from taccl.topology.graph import Edge, LogicalTopology, Topology
from taccl.topology.structure import FREE, gigabytes, homes, rank_rates, slowest_edges
from taccl.topology.symmetry import Group
from taccl.units import Time, counted, format_time, microseconds

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
IDLE = "#c0c7ce"
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
        text: next(turns) if "GB/s" in text else IDLE
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
        drawn.append((heat_colour(share) if busy[edge] else IDLE, told))
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


MAX_RANKS = 32
"""Ranks of a matrix that can be read."""

MAX_KINDS = 2
"""Kinds of parallel links that a cell names."""

CLASSES = (
    ("L", "a direct link"),
    ("S", "over switches"),
    ("N", "over NICs and switches to another server"),
)
"""Letter and meaning of every class of links, by its number."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Links of one class, bandwidth, latency and number of edges.

    The matrix calls one of them `cell`, of which the letter is `about`. Its slowest edge has the
    `rate` in GB/s, None: no edge has a bandwidth; `alpha` is in picoseconds. There are so many
    `links`, of which from `least` to `most` leave a rank; `example` has the ends of the first.
    """

    cell: str
    about: str
    rate: Fraction | None
    alpha: int
    edges: int
    links: int
    least: int
    most: int
    example: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Matrix:
    """The links of a topology by kind."""

    topology: Topology

    @cached_property
    def _columns(self) -> tuple[NDArray[np.int64], tuple[Fraction, ...]]:
        """Class, place of the slowest edge, alpha and number of edges of every link; all betas."""
        topology = self.topology
        table, (slowest, betas) = topology.links, slowest_edges(topology)
        hops = np.diff(table.edge_start)
        server = np.array(topology.server_of, dtype=np.int64)
        away = server[table.src] != server[table.dst]
        number = np.where(hops == 1, 0, np.where(away, 2, 1))
        return np.stack([number, slowest, table.alpha, hops]).astype(np.int64), betas

    @cached_property
    def _kinds(self) -> tuple[tuple[Kind, ...], NDArray[np.int64]]:
        """All kinds, the fastest of each class first, and the kind of every link."""
        columns, betas = self._columns
        rows, kind_of = np.unique(columns, axis=1, return_inverse=True)
        kind_of = kind_of.reshape(-1)
        table, size = self.topology.links, self.topology.num_ranks
        counts = np.bincount(kind_of)
        ordered = np.argsort(kind_of, kind="stable")
        firsts = ordered[np.cumsum(counts) - counts]
        # How many of a kind leave a rank; ranks that none leaves have no key.
        keys, each = np.unique(kind_of.astype(np.int64) * size + table.src, return_counts=True)
        start = np.searchsorted(keys, np.arange(len(counts)) * size)
        all_send = np.diff(start, append=len(keys)) == size
        least = np.where(all_send, np.minimum.reduceat(each, start), 0)
        most = np.maximum.reduceat(each, start)
        spans = np.stack([counts, least, most, table.src[firsts], table.dst[firsts]]).T.tolist()
        kinds = []
        for row, (links, fewest, largest, src, dst) in zip(rows.T.tolist(), spans, strict=True):
            letter, place, alpha, edges = row
            rate = None if place == FREE else gigabytes(betas[place])
            name, about = CLASSES[letter]
            cell = f"{name}{'free' if rate is None else f'{float(rate):.4g}'}"
            kinds.append(Kind(
                cell, about, rate, alpha, edges, links, fewest, largest, (src, dst)
            ))  # fmt: skip
        return tuple(kinds), kind_of

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of links; the fastest of each class first."""
        return self._kinds[0] if len(self.topology.links) else ()

    def cell(self, src: int, dst: int) -> str:
        """Return ``X``, ``.`` for no link, ``S450``, or ``2xL25`` for two links."""
        if src == dst:
            return "X"
        links = list(self.topology.links_between(src, dst))
        if not links:
            return "."
        kinds, kind_of = self._kinds
        found = Counter(kinds[kind].cell for kind in kind_of[links].tolist())
        names = [cell if n == 1 else f"{n}x{cell}" for cell, n in found.items()]
        return "+".join([*names[:MAX_KINDS], *["..."] * (len(names) > MAX_KINDS)])

    def cells(self) -> list[list[str]] | None:
        """Return all cells, row by row; None for more ranks than can be read."""
        ranks = range(self.topology.num_ranks)
        if len(ranks) > MAX_RANKS:
            return None
        return [[self.cell(src, dst) for dst in ranks] for src in ranks]

    @cached_property
    def unlinked(self) -> int:
        """How many pairs of ranks have no link."""
        table, size = self.topology.links, self.topology.num_ranks
        pairs = np.unique(table.src.astype(np.int64) * size + table.dst)
        return size * (size - 1) - len(pairs)


def matrix_text(topology: Topology) -> str:
    """Return the matrix, if it can be read, and the legend: a line for each of the first kinds."""
    matrix = Matrix(topology)
    cells = matrix.cells()
    lines = []
    if cells is not None:
        width = 1 + max([3, *(len(cell) for row in cells for cell in row)])
        head = "".join(str(dst).rjust(width) for dst in range(len(cells)))
        grid = ("".join(cell.rjust(width) for cell in row) for row in cells)
        lines = ["rank".ljust(5) + head, *(f"{src:<5}{row}" for src, row in enumerate(grid)), ""]
    rows = [("cell", "alpha", "links", "per rank", "path")]
    for kind in matrix.kinds[:MAX_TOLD]:
        each = str(kind.least) if kind.least == kind.most else f"{kind.least}-{kind.most}"
        crossed = "" if kind.edges < 3 else f", {kind.edges} edges"
        path = f"{kind.about}{crossed}, such as {kind.example[0]} -> {kind.example[1]}"
        rows.append((kind.cell, f"{microseconds(kind.alpha):g} us", str(kind.links), each, path))
    if matrix.unlinked:
        rows.append((".", "-", f"{matrix.unlinked} pairs", "", "no link: other ranks forward"))
    lines += aligned(rows, str.ljust)
    if len(matrix.kinds) > MAX_TOLD:
        lines.append(f"... and {len(matrix.kinds) - MAX_TOLD} more kinds: see --json")
    lines.append("numbers in cells are GB/s of the slowest edge; 2xL25 is two links")
    if cells is None:
        lines.append(f"no matrix is printed above {MAX_RANKS} ranks")
    return "\n".join(lines)


def topology_fields(topology: Topology, digest: str) -> dict[str, object]:
    """Return what ``topology show --json`` prints of a `topology` whose hash is `digest`."""
    matrix, (sends, receives) = Matrix(topology), rank_rates(topology)
    members: dict[int, list[int]] = {}
    for rank, server in enumerate(topology.server_of):
        members.setdefault(server, []).append(rank)
    return {
        "name": topology.name,
        "ranks": topology.num_ranks,
        "servers": [members[server] for server in sorted(members)],
        "switches": [switch.name for switch in topology.switches],
        "edges": len(topology.edges),
        "links": len(topology.links),
        "alpha_rule": topology.alpha_rule_stated,
        "costs": topology.costs,
        "rotations": len(topology.rotations),
        "digest": digest,
        "send_gbps": [float(rate) for rate in sends],
        "receive_gbps": [float(rate) for rate in receives],
        "paths": [
            {
                "cell": kind.cell, "path": kind.about,
                "bandwidth_gbps": None if kind.rate is None else float(kind.rate),
                "alpha_us": microseconds(kind.alpha), "edges": kind.edges, "links": kind.links,
                "from_a_rank": [kind.least, kind.most], "example": list(kind.example),
            }
            for kind in matrix.kinds
        ],
        "unlinked_pairs": matrix.unlinked,
        "matrix": matrix.cells(),
    }  # fmt: skip


MAX_SHOWN = 24
"""Items of a list that are printed."""

MAX_TURNS = 4
"""Generators that are printed."""


def sketch_rows(logical: LogicalTopology, group: Group) -> Iterator[tuple[str, str]]:
    """Yield (what, value) of a topology as a sketch restricts it, `logical`, and its symmetries.

    The `group` has those that are used.
    """
    topology = logical.topology
    table, allowed = topology.links, logical.allowed
    server = np.array(topology.server_of)
    across = server[table.src] != server[table.dst]
    yield "links allowed", f"{int(allowed.sum())} of {len(table)}"
    for what, kind in (("denied inside", ~across), ("denied between", across)):
        closed = np.flatnonzero(kind & ~allowed)
        if len(closed):
            yield what, f"{len(closed)} of {int(kind.sum())}: {_pairs(topology, closed.tolist())}"
    relays = np.flatnonzero(across & allowed)
    if len(relays):
        yield "between servers", _pairs(topology, relays.tolist())
    by_senders: dict[frozenset[int], list[int]] = defaultdict(list)
    for rank, senders in sorted(logical.leave_by.items()):
        by_senders[senders].append(rank)
    for senders, ranks in list(by_senders.items())[:MAX_SHOWN]:
        yield "leave by", f"{_some(sorted(senders))}: chunks of {_some(ranks)}"
    if len(by_senders) > MAX_SHOWN:
        yield "leave by", f"... and {len(by_senders) - MAX_SHOWN} more senders"
    n = topology.num_ranks
    ends = np.unique(table.src[allowed].astype(np.int64) * n + table.dst[allowed])
    peers = []
    for side, far in (("to", ends // n), ("from", ends % n)):
        count = np.bincount(far, minlength=n)
        low, high = int(count.min()), int(count.max())
        peers.append(f"{side} {low}" if low == high else f"{side} {low} to {high}")
    yield "peers of a rank", ", ".join(peers)
    yield "symmetries", f"{len(group)} act freely"
    for turn in group.generators[:MAX_TURNS]:
        yield "generator", _some(turn)
    for switch, policy in logical.switch_policy.items():
        yield f"switch {switch}", policy
    limits = {
        "chunks per rank": logical.chunks_per_rank,
        "extra hops": logical.max_extra_hops,
        "shortest paths": "ranks on them only" if logical.on_shortest_paths else None,
        "connections": logical.connections_per_rank,
        "channels": logical.channels,
        "own chunks": "first" if logical.own_chunks_first else None,
        "balance": logical.balance,
    }
    yield from ((what, str(value)) for what, value in limits.items() if value is not None)


def _some(numbers: Sequence[int]) -> str:
    more = f" ... ({len(numbers)})" if len(numbers) > MAX_SHOWN else ""
    return " ".join(map(str, numbers[:MAX_SHOWN])) + more


def _pairs(topology: Topology, links: Sequence[int]) -> str:
    table = topology.links
    ends = dict.fromkeys((int(table.src[link]), int(table.dst[link])) for link in links)
    shown = " ".join(f"{src}->{dst}" for src, dst in list(ends)[:MAX_SHOWN])
    more = f" and {len(ends) - MAX_SHOWN} more" if len(ends) > MAX_SHOWN else ""
    return shown + more


def sketch_picture(logical: LogicalTopology) -> Topology:
    """Return the network of what a sketch leaves, for :mod:`taccl.report.graph`."""
    topology = logical.topology
    table, n = topology.links, topology.num_ranks
    links: list[tuple[int, int, Edge]] = []
    inside: set[int] = set()
    for link in logical.links():
        src, dst = int(table.src[link]), int(table.dst[link])
        path = [topology.edges[edge] for edge in table.edges_of(link)]
        if topology.server_of[src] == topology.server_of[dst]:
            inside.update(edge.id for edge in path)
        else:
            beta = table.max_beta(link) or None
            name = f"{src}->{dst} over {', '.join(edge.name for edge in path)}"
            whole = Edge(0, src, dst, int(table.alpha[link]), None, beta, name)
            links.append((src, dst, whole))
    kept = [topology.edges[edge] for edge in sorted(inside)]
    used = sorted({end for edge in kept for end in (edge.tail, edge.head) if end >= n})
    place = {vertex: n + number for number, vertex in enumerate(used)}
    edges = [
        (place.get(edge.tail, edge.tail), place.get(edge.head, edge.head), edge) for edge in kept
    ]
    return Topology(
        f"{logical.name or 'no sketch'} on {topology.name}", n,
        tuple(topology.switches[vertex - n] for vertex in used),
        tuple(
            Edge(number, tail, head, edge.alpha, edge.overhead, edge.beta, edge.name)
            for number, (tail, head, edge) in enumerate([*edges, *links])
        ),
        topology.server_of,
    )  # fmt: skip
