"""What a sketch makes of a topology: in words, and as a network that graph.py can draw.

In the picture, servers are joined by the links that the sketch leaves, straight from rank to rank:
the relays. Inside servers it shows the edges that some open link crosses.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from taccl.topology.graph import Edge, LogicalTopology, Topology
from taccl.topology.symmetry import Group

MAX_SHOWN = 24
"""Items of a list that are printed."""

MAX_TURNS = 4
"""Generators that are printed."""


def rows(logical: LogicalTopology, group: Group) -> Iterator[tuple[str, str]]:
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


def picture(logical: LogicalTopology) -> Topology:
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
