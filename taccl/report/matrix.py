"""Which ranks have links, as a matrix in the manner of ``nvidia-smi topo -m``, and a legend.

A cell is a letter for the class of the path and its GB/s: ``S450``. Like NV# it says what joins the
two, not how far apart they are in hops of a ring.

Of what a sketch leaves of a topology the words, and a network that graph.py can draw: there,
servers are joined by the links that the sketch leaves, straight from rank to rank: the relays.
Inside servers it shows the edges that some open link crosses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.report.text import aligned
from taccl.topology.file import MAX_TOLD
from taccl.topology.graph import Edge, LogicalTopology, Topology
from taccl.topology.structure import FREE, gigabytes, rank_rates, slowest_edges
from taccl.topology.symmetry import Group
from taccl.units import microseconds

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
