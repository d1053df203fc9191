"""One rank, or server, of each kind: the rotations that a topology declares make the others equal.

A bound that is the largest of many, one for each rank, is the same at all images of a rank. So to
look at one of each orbit only is always allowed (whatever is left out, the rest still holds), and
loses nothing where the rotations are true symmetries. Sums over all ranks need the proof that
:func:`proved_orbits` asks for.
"""

from dataclasses import dataclass

import numpy as np

from taccl.bounds.crossing import is_uniform
from taccl.bounds.distances import IntArray
from taccl.bounds.net import Net
from taccl.collectives import Collective
from taccl.errors import TacclError
from taccl.links import MAX_PATHS
from taccl.symmetry import smallest_of_orbit
from taccl.symmetry_images import edge_image, vertex_image


def one_of_each(net: Net, collective: Collective) -> tuple[int, ...]:
    """Return the ranks to look at: one of each orbit where the collective treats ranks alike.

    With a root, which comes first, one of each orbit at each distance from it.
    """
    ranks, root = np.arange(net.num_ranks), collective.root
    if not is_whole(net) or (root is None and not is_uniform(collective)):
        return tuple(ranks.tolist())
    orbit = rank_orbit(net)
    if root is None:
        return tuple(np.unique(orbit).tolist())
    ways = (net.distance_from(root), net.distance_from(root, backwards=True))
    columns = np.stack([orbit, *ways, ranks == root])
    kept: list[int] = np.unique(columns, axis=1, return_index=True)[1].tolist()
    return (root, *sorted(rank for rank in kept if rank != root))


def servers_of(net: Net, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the servers that the given ranks are in, each as its ranks."""
    members: dict[int, list[int]] = {}
    for rank, server in enumerate(net.topology.server_of):
        members.setdefault(server, []).append(rank)
    chosen = sorted({net.topology.server_of[rank] for rank in ranks})
    return [tuple(members[server]) for server in chosen]


def is_whole(net: Net) -> bool:
    """Tell whether all links of the topology are allowed."""
    return len(net.src) == len(net.topology.links)


def rank_orbit(net: Net) -> IntArray:
    """Return the smallest rank that the declared rotations take each rank to, or it to them."""
    images = [np.array(rotation, dtype=np.int64) for rotation in net.topology.rotations]
    return smallest_of_orbit(images, net.num_ranks).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Orbits:
    """Ranks and edges that are equal, proved.

    Parameters
    ----------
    rank, edge
        For each rank (edge) the smallest that it is equal to.
    """

    rank: IntArray
    edge: IntArray


def proved_orbits(net: Net) -> Orbits:
    """Return the orbits under the declared rotations that are symmetries of the allowed links.

    Where links are left out (by a sketch, or as too many between two ranks) none are.
    """
    ranks, edges = [], []
    for rotation in net.topology.rotations if is_whole(net) and _has_all_paths(net) else ():
        try:
            row = vertex_image(net.topology, rotation)
        except TacclError:
            continue
        ranks.append(row[: net.num_ranks].astype(np.int64))
        edges.append(edge_image(net.topology, row).astype(np.int64))
    return Orbits(
        smallest_of_orbit(ranks, net.num_ranks).astype(np.int64),
        smallest_of_orbit(edges, len(net.topology.edges)).astype(np.int64),
    )


def is_same_on(values: IntArray, orbit: IntArray) -> bool:
    """Tell whether equal things have equal values."""
    return bool(np.array_equal(values, values[orbit]))


def _has_all_paths(net: Net) -> bool:
    """Tell whether no two ranks have so many links that some were left out."""
    if not len(net.src):
        return True
    _, counts = np.unique(net.src * net.num_ranks + net.dst, return_counts=True)
    return bool(counts.max() < MAX_PATHS)
