"""Routes without a linear program: every chunk on a fastest way, the least busy of these.

For what is too large to be solved as a flow in time.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.synth.flow_program import Commodity, Floats, Net, Way
from taccl.topology import Rank


def shortest_ways(
    network: Net, allowed: NDArray[np.bool_], commodities: list[Commodity]
) -> list[tuple[int, Way]]:
    """Return one fastest way for every chunk, chosen so that busy resources stay light.

    Parameters
    ----------
    allowed
        Which arcs chunks may take, by the commodities' kind.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    """
    load = np.zeros(network.arcs.num_resources)
    uses = [tuple(network.uses(arc)) for arc in range(len(network.arcs))]
    chosen: list[tuple[int, Way]] = []
    for one in commodities:
        entering = _entering(network, allowed[one.kind], one.root)
        for rank, chunks in one.chunks.items():
            if rank not in entering:
                raise NoScheduleError(
                    "some chunk can't be served: no allowed path",
                    fix="allow more links in the sketch, or join these ranks in the topology",
                )
            for chunk in chunks:
                way: list[int] = []
                at = rank
                while at != one.root:
                    arc = min(
                        entering[at],
                        key=lambda arc: max((load[k] + held for k, held in uses[arc]), default=0.0),
                    )
                    way.append(arc)
                    at = int(network.tail[arc])
                for arc in way:
                    for resource, held in uses[arc]:
                        load[resource] += held
                chosen.append((chunk, tuple(reversed(way))))
    return chosen


def _entering(network: Net, allowed: NDArray[np.bool_], root: Rank) -> dict[Rank, list[int]]:
    """Return for every rank that can be reached the last arcs of the fastest ways from the root."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    # Picoseconds: whole numbers, so that equal ways are equal. One more for each hop, so that free
    # links make no rings.
    time: Floats = network.arcs.arrival().astype(np.float64) + 1
    arcs = np.flatnonzero(allowed)
    order = arcs[np.lexsort((time[arcs], network.head[arcs], network.tail[arcs]))]
    pairs = network.tail[order].astype(np.int64) * network.num_ranks + network.head[order]
    first = order[np.unique(pairs, return_index=True)[1]]
    graph = coo_array(
        (time[first], (network.tail[first], network.head[first])),
        shape=(network.num_ranks, network.num_ranks),
    ).tocsr()
    away: Floats = dijkstra(graph, indices=root)
    reached = np.isfinite(away[network.tail[arcs]])
    arcs = arcs[reached]
    last = arcs[away[network.tail[arcs]] + time[arcs] == away[network.head[arcs]]]
    found: dict[Rank, list[int]] = defaultdict(list)
    for arc in last.tolist():
        found[int(network.head[arc])].append(arc)
    return found
