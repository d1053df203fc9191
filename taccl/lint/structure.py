"""Rules on what is there: reachable ranks, symmetries, directions, what is of no use."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.lint.facts import Facts, Raw, listed
from taccl.symmetry import check_symmetry
from taccl.topology_file import unreachable_pair
from taccl.topology_rates import unlike


def unreachable(facts: Facts) -> Iterator[Raw]:
    """Find a rank that another can't reach."""
    lost = unreachable_pair(facts.topology)
    if lost is not None:
        src, dst = lost
        yield (
            f"rank {dst}", f"rank {dst} can't be reached from rank {src}",
            f"add edges, wires or a fabric that lead from rank {src} to rank {dst}", (),
        )  # fmt: skip


def no_symmetry(facts: Facts) -> Iterator[Raw]:
    """Find declared rotations that are no symmetries."""
    for number, rotation in enumerate(facts.topology.rotations):
        try:
            check_symmetry(facts.topology, rotation)
        except InputError as error:
            fix = "correct the permutation, or make what it maps onto each other alike"
            yield f"rotations[{number}]", f"is no symmetry: {error.problem}", fix, ()


def one_way(facts: Facts) -> Iterator[Raw]:
    """Find pairs of ranks with links in one direction only."""
    there, back = _both_ways(facts)
    lonely = np.setdiff1d(there, back).tolist()
    if lonely:
        problem = f"{len(lonely)} pairs have links in one direction only"
        fix = "remove both: false, or leave it if the machine is so"
        link = int(np.flatnonzero(there == lonely[0])[0])
        yield facts.pairs(lonely), problem, fix, facts.topology.links.edges_of(link)


def _both_ways(facts: Facts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pair of every link, and the same turned round."""
    table, size = facts.topology.links, facts.topology.num_ranks
    src, dst = table.src.astype(np.int64), table.dst.astype(np.int64)
    return src * size + dst, dst * size + src


def uneven(facts: Facts) -> Iterator[Raw]:
    """Find pairs of ranks whose two directions have other links."""
    table, (place, _) = facts.topology.links, facts.slowest
    there, back = _both_ways(facts)
    keys = unlike(*(np.stack([key, place, table.alpha]) for key in (there, back))).tolist()
    if keys:
        link = int(np.flatnonzero(there == keys[0])[0])
        problem = "bandwidth, alpha or number of links are not the same in the other direction"
        fix = "give both directions the same numbers, or leave it if the machine is so"
        yield facts.pairs(keys), problem, fix, table.edges_of(link)


def unused_switch(facts: Facts) -> Iterator[Raw]:
    """Find switches none of whose edges is on a link, but for farther ways to other servers."""
    topology = facts.topology
    idle = {v for v in facts.idle if not topology.switches[v - topology.num_ranks].across_servers}
    names = [topology.vertex_name(vertex) for vertex in sorted(idle)]
    if names:
        touching = (e.id for e in topology.edges if {e.tail, e.head} & idle)
        problem = "no shortest way between two ranks crosses it"
        fix = "join it to the ranks or switches that it serves, or remove it"
        yield listed("switch", names), problem, fix, tuple(touching)[:1]


def unused_edge(facts: Facts) -> Iterator[Raw]:
    """Find edges on no link, but for those of switches of no use."""
    edges = [facts.topology.edges[e] for e in facts.unused]
    found = [e for e in edges if e.tail not in facts.idle and e.head not in facts.idle]
    if found:
        problem = f"{len(found)} edges are on no shortest way between two ranks"
        fix = "remove them, or join what they lead to; a direct edge hides ways over switches"
        yield facts.edges(found), problem, fix, (found[0].id,)


def duplicate(facts: Facts) -> Iterator[Raw]:
    """Find edges with the ends and costs of another."""
    seen: set[tuple[int, int, int]] = set()
    found = []
    table = facts.topology.edge_table
    for edge, cost in zip(facts.topology.edges, table.cost.tolist(), strict=True):
        key = (edge.tail, edge.head, cost)
        if key in seen:
            found.append(edge)
        seen.add(key)
    if found:
        problem = "another edge has the same ends and the same costs"
        fix = "leave it if there are two cables; else remove one"
        yield facts.edges(found), problem, fix, (found[0].id,)
