"""At which edge to count the messages of each link: its first, its last, or its slowest.

One edge of every link is a set of gates that nothing on these links can pass by. Which choice
makes the tightest gates depends on the machine: where two ranks share a NIC the port of the NIC,
behind a narrow uplink the uplink.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.distances import IntArray
from taccl.bounds.gates import Gate, Gates
from taccl.bounds.net import Net

NONE = -1
"""Instead of an edge, where a link crosses no resource."""


def first_resource(net: Net) -> IntArray:
    """Return the first edge of every link that is a resource."""
    return _picked(net, _resources(net), last=False)


def last_resource(net: Net) -> IntArray:
    """Return the last edge of every link that is a resource."""
    return _picked(net, _resources(net), last=True)


def slowest_first(net: Net) -> IntArray:
    """Return the slowest edge of every link, the first of equals."""
    return _picked(net, _slowest(net), last=False)


def slowest_last(net: Net) -> IntArray:
    """Return the slowest edge of every link, the last of equals."""
    return _picked(net, _slowest(net), last=True)


COVERS: tuple[Callable[[Net], IntArray], ...] = (
    first_resource, last_resource, slowest_first, slowest_last,
)  # fmt: skip


def counted_at(net: Net, cover: IntArray, rows: NDArray[np.bool_]) -> Gates | None:
    """Return the edges that messages on some links are counted at as gates; None: some have none.

    Like :meth:`Net.gates`, for very many edges at once.
    """
    links = np.flatnonzero(rows)
    edges = cover[links]
    if not len(edges) or edges.min() == NONE:
        return None
    links = links[np.argsort(edges, kind="stable")]
    edges, at = np.unique(cover[links], return_index=True)
    late = net.late(links, cover[links])
    overhead = net.overhead[links] if net.chunk is not None else np.zeros_like(late)
    columns = np.stack([
        np.minimum.reduceat(late, at), np.minimum.reduceat(overhead, at), net.wire_id[edges],
    ])  # fmt: skip
    kinds, counts = np.unique(columns, axis=1, return_counts=True)
    return tuple(sorted(
        (Gate(start, net.wires[wire] + extra), count)
        for (start, extra, wire), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    ))  # fmt: skip


def _resources(net: Net) -> NDArray[np.bool_]:
    resource = np.zeros(len(net.topology.edges), dtype=np.bool_)
    resource[list(net.busy)] = True
    chosen: NDArray[np.bool_] = resource[net.edges]
    return chosen


def _slowest(net: Net) -> NDArray[np.bool_]:
    busy = np.full(len(net.topology.edges), -1.0)
    for edge, time in net.busy.items():
        busy[edge] = float(time)
    times = busy[net.edges]
    if not len(times):
        return np.zeros(0, dtype=np.bool_)
    most = np.repeat(np.maximum.reduceat(times, net.first[:-1]), np.diff(net.first))
    chosen: NDArray[np.bool_] = (times == most) & (times >= 0)
    return chosen


def _picked(net: Net, chosen: NDArray[np.bool_], *, last: bool) -> IntArray:
    """Return for every link the first (last) of its chosen edges."""
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))[chosen]
    edges = net.edges[chosen]
    found = np.full(len(net.src), NONE, dtype=np.int64)
    if last:
        found[owner] = edges  # of repeated places numpy keeps the last
    else:
        found[owner[::-1]] = edges[::-1]
    return found
