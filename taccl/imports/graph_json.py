"""A plain JSON graph: ``{nodes: [{id, type}], edges: [{src, dst, bandwidth_GBps, alpha_us}]}``.

Ranks are the nodes that are not switches, in order. Switches keep their ids as names, but numbers
become switch-N. Edges are directed, one record each. A ``beta``
says exactly what no decimal bandwidth does, and counts instead of it. Where a graph counts links
instead of giving bandwidths (SCCL), the bandwidth of one link must be given. Where ranks name no
host, servers are inferred.

Which ranks of a plain graph share a server, where the graph does not say.

Edges between servers are slower and take longer than those inside. What holds together without
the slowest edges is a server, but only where nothing speaks against it: algorithms in steps inside
servers and across rest on this.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.read import warn_ignored
from taccl.topology.file import topology_from_document
from taccl.topology.graph import Edge, Topology
from taccl.units import beta_text

SLOWER = 2
"""How many times as slow, at least, edges between servers are as any inside."""

MUCH_SLOWER = 4
"""The same where no edge has a latency."""

INFERRED = (
    "servers: inferred, as the file names none: what holds together without the slowest edges;"
    " give nodes a host to say otherwise"
)
"""What the topology file says of servers that were inferred."""


def inferred_servers(topology: Topology) -> list[list[int]]:
    """Return the ranks of every server, or nothing where the graph does not clearly have several.

    It has where the edges of the least bandwidth have the largest latencies, too, all join
    different groups, and leave groups of one size, of two ranks at least.
    """
    betas = {edge.beta for edge in topology.edges if edge.beta is not None}
    slowest = max(betas, default=None)
    cut = [edge for edge in topology.edges if edge.beta is not None and edge.beta == slowest]
    kept = [edge for edge in topology.edges if edge.beta is None or edge.beta != slowest]
    if not cut or not _stand_apart(cut, kept):
        return []
    import networkx as nx  # it takes a quarter of a second

    joined = nx.empty_graph(topology.num_ranks + len(topology.switches))
    joined.add_edges_from((edge.tail, edge.head) for edge in kept)
    groups = list(nx.connected_components(joined))  # by the least vertex, as these are in order
    group = {vertex: number for number, members in enumerate(groups) for vertex in members}
    if any(group[edge.tail] == group[edge.head] for edge in cut):
        return []
    ranks = [sorted(v for v in members if v < topology.num_ranks) for members in groups]
    servers = [members for members in ranks if members]
    sizes = {len(members) for members in servers}
    return servers if len(servers) > 1 and len(sizes) == 1 and 1 not in sizes else []


def _stand_apart(cut: Sequence[Edge], kept: Sequence[Edge]) -> bool:
    """Tell whether some edges are clearly slower than the others."""
    times = [edge.beta for edge in kept if edge.beta is not None]
    slow = cut[0].beta
    if not times or slow is None:
        return False
    if not any(edge.alpha for edge in (*cut, *kept)):
        return slow >= MUCH_SLOWER * max(times)
    later = min(edge.alpha for edge in cut) > max(edge.alpha for edge in kept)
    return later and slow >= SLOWER * max(times)


_CAPACITY = re.compile(r"band|capacity|bw|bps|speed|rate|links|latency|alpha|delay", re.IGNORECASE)
"""Keys that look like a capacity or a latency; one that is not understood is not ignored."""

_SAID_TWICE = ("bandwidth_GiBps",)
"""The same bandwidth in another unit, beside ``bandwidth_GBps``."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What a graph file may leave open.

    `link_bandwidth` is picoseconds for each byte of one link, for edges that count links; with
    `allow_free`, edges without bandwidth and alpha are free.
    """

    link_bandwidth: Fraction | None = None
    allow_free: bool = False


class NodeRecord(FileModel):
    """A rank, or a switch."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    id: int | str
    type: Annotated[str, Field(examples=["gpu"])] = "gpu"
    host: int | str | None = None
    across: Literal["servers"] | None = None


class EdgeRecord(FileModel):
    """A directed edge."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    src: int | str
    dst: int | str
    bandwidth_gb_per_s: Annotated[
        float | None, Field(gt=0, examples=[25], alias="bandwidth_GBps")
    ] = None
    alpha_us: Annotated[float | None, Field(ge=0, examples=[0.7])] = None
    links: Annotated[int | None, Field(ge=1, le=1024, examples=[2])] = None
    beta: Annotated[str | None, Field(max_length=200, examples=["46us/MB"])] = None


class GraphJsonFile(FileModel):
    """A graph of nodes and directed edges."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    name: str | None = None
    nodes: Annotated[list[NodeRecord], Field(min_length=1, max_length=200_000)]
    edges: Annotated[list[EdgeRecord], Field(max_length=4_000_000)]


def is_graph_json(value: object) -> bool:
    """Tell whether a document is a graph of this form."""
    return isinstance(value, dict) and "nodes" in value and "edges" in value


def read_graph_json(document: Document, options: GraphOptions) -> Topology:
    """Return the topology of a graph, the `document`; `options` say what it does not.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, GraphJsonFile)
    vertices = _vertices(record, document)
    switches = [str(name) for name in vertices.values() if isinstance(name, str)]
    ends = Counter((edge.src, edge.dst) for edge in record.edges)
    edges = [
        _edge(edge, index, vertices, document, options, parallel=ends[edge.src, edge.dst] > 1)
        for index, edge in enumerate(record.edges)
    ]
    names = list(record.model_extra or {})
    for what, rows in (("nodes", record.nodes), ("edges", record.edges)):
        names += sorted({f"{what}[].{key}" for row in rows for key in row.model_extra or {}})
    warn_ignored(document.file, [shown(name) for name in names])
    core: dict[str, object] = {
        "taccl": "topology/1",
        "name": record.name or Path(document.file or "graph").stem,
        "ranks": len(vertices) - len(switches),
        "switches": [
            {"name": vertices[node.id], "across": node.across}
            for node in record.nodes
            if isinstance(vertices[node.id], str)
        ],
        "edges": edges,
    }
    if _names_hosts(record):
        named: dict[object, list[int]] = defaultdict(list)
        gpus = (node for node in record.nodes if node.type.lower() != "switch")
        for rank, node in enumerate(gpus):
            named[node.host].append(rank)
        return topology_from_document({**core, "servers": list(named.values())}, document.file)
    topology = topology_from_document(core, document.file)
    servers = inferred_servers(topology)
    if not servers:
        return topology
    return topology_from_document({**core, "servers": servers}, document.file)


def graph_comments(document: Document, topology: Topology) -> tuple[str, ...]:
    """Return what the file of `topology` says that the graph in `document` does not."""
    named = _names_hosts(fit_model(document, GraphJsonFile))
    return () if named or len(set(topology.server_of)) < 2 else (INFERRED,)


def _vertices(record: GraphJsonFile, document: Document) -> dict[int | str, int | str]:
    """Return for every node its rank, or its name as a switch."""
    vertices: dict[int | str, int | str] = {}
    named = {
        node.id for node in record.nodes if isinstance(node.id, str) and not node.id.isdecimal()
    }
    taken = set(named)
    ranks = 0
    for index, node in enumerate(record.nodes):
        if node.id in vertices:
            raise document.error(
                f"there are two nodes {shown(node.id)}", ("nodes", index, "id"),
                "give every node an id of its own",
            )  # fmt: skip
        if node.type.lower() != "switch":
            vertices[node.id] = ranks
            ranks += 1
            continue
        name = node.id if node.id in named else f"switch-{node.id}"
        while name in taken and node.id not in named:
            name = f"{name}-"
        taken.add(name)
        vertices[node.id] = name
    return vertices


def _edge(
    edge: EdgeRecord,
    index: int,
    vertices: Mapping[int | str, int | str],
    document: Document,
    options: GraphOptions,
    *,
    parallel: bool,
) -> dict[str, object]:
    place = ("edges", index)
    for end, node in (("src", edge.src), ("dst", edge.dst)):
        if node not in vertices:
            raise document.error(
                f"there is no node {shown(node)}", (*place, end), "use the id of a node"
            )
    _check_understood(edge, place, document, options)
    found: dict[str, object] = {"from": vertices[edge.src], "to": vertices[edge.dst], "both": False}
    if edge.beta is not None:
        found["bandwidth"] = edge.beta
    elif edge.bandwidth_gb_per_s is not None:
        found["bandwidth"] = f"{edge.bandwidth_gb_per_s!r}GB/s"
    elif edge.links is not None and options.link_bandwidth is not None:
        found["bandwidth"] = beta_text(options.link_bandwidth / edge.links)
    if edge.alpha_us is not None:
        found["alpha"] = f"{edge.alpha_us!r}us"
    if parallel:
        found["name"] = f"edge-{index}"
    return found


def _check_understood(
    edge: EdgeRecord, place: Sequence[str | int], document: Document, options: GraphOptions
) -> None:
    """Refuse an edge whose capacity is missing or said in a way that is not understood."""
    strange = [
        key
        for key in edge.model_extra or {}
        if _CAPACITY.search(key)
        and not (key in _SAID_TWICE and edge.bandwidth_gb_per_s is not None)
    ]
    if strange:
        raise document.error(
            f"{shown(strange[0])} is not understood", (*place, strange[0]),
            "give bandwidth_GBps (1e9 bytes a second) and alpha_us",
        )  # fmt: skip
    if (
        edge.links is not None
        and edge.bandwidth_gb_per_s is None
        and options.link_bandwidth is None
    ):
        raise document.error(
            f"counts {edge.links} links without saying how fast one is", (*place, "links"),
            "give --link-bandwidth, such as 25GB/s",
        )  # fmt: skip
    given = (edge.bandwidth_gb_per_s, edge.alpha_us, edge.links, edge.beta)
    free = all(number is None for number in given)
    if free and not options.allow_free:
        raise document.error(
            "has neither bandwidth_GBps nor alpha_us", place,
            "give one, or --allow-free if it costs nothing",
        )  # fmt: skip


def _names_hosts(record: GraphJsonFile) -> bool:
    """Tell whether all ranks say on which host they are."""
    return all(node.host is not None for node in record.nodes if node.type.lower() != "switch")
