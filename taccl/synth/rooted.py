"""Classical algorithms for collectives with a root.

Reductions play the broadcast's tree backwards. Chunks follow one another through chain and tree,
so that with k of them a chain of n ranks takes n - 2 + k messages in a row.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from taccl.synth.problem import Problem
from taccl.synth.rings import tour
from taccl.synth.steps import Step, best_links
from taccl.topology import Rank


def chain(problem: Problem) -> Iterator[Step] | None:
    """Every rank passes on what it received to the next of a chain that starts at the root."""
    root = _root_of(problem, "broadcast", "reduce")
    if root is None:
        return None
    order = tour(problem, root, closed=False, backwards=problem.collective.reduces)
    return None if order is None else _along(problem, _waves(problem, [order]))


def double_chain(problem: Problem) -> Iterator[Step] | None:
    """Chunks go round a ring from the root, every other one the other way round."""
    root = _root_of(problem, "broadcast", "reduce")
    if root is None or problem.collective.num_chunks < 2:
        return None
    order, links = tour(problem, root, backwards=problem.collective.reduces), best_links(problem)
    if order is None:
        return None
    around = list(pairwise((*order, order[0])))
    if any((a, b) not in links or (b, a) not in links for a, b in around):
        return None
    other = (order[0], *order[:0:-1])
    return _along(problem, _waves(problem, [order, other]))


def _waves(problem: Problem, chains: Sequence[Sequence[Rank]]) -> list[tuple[int, Rank, Rank]]:
    """Return (chunk, parent, child) hops of chains that take the chunks in turn, in waves."""
    k, hops = problem.collective.num_chunks, len(chains[0]) - 1
    return [
        (chunk, chain[hop], chain[hop + 1])
        for wave in range(hops + k)
        for hop in reversed(range(hops))
        for number, chain in enumerate(chains)
        for chunk in ((wave - hop) * len(chains) + number,)
        if 0 <= chunk < k
    ]


def binomial(problem: Problem) -> Iterator[Step] | None:
    """In every round each rank that has a chunk sends it half as far as in the round before."""
    root = _root_of(problem, "broadcast", "reduce")
    if root is None:
        return None
    n, links = problem.topology.num_ranks, best_links(problem)
    rounds = [
        ((root + near) % n, (root + near + distance) % n)
        for distance in (1 << i for i in reversed(range((n - 1).bit_length())))
        for near in range(0, n - distance, 2 * distance)
    ]
    for parent, child in rounds:
        if ((child, parent) if problem.collective.reduces else (parent, child)) not in links:
            return None
    chunks = range(problem.collective.num_chunks)
    return _along(problem, [(chunk, *ends) for chunk in chunks for ends in rounds])


def scatter_allgather(problem: Problem) -> Iterator[Step] | None:
    """Each chunk goes to one rank of the root's server, on to its counterparts, then to all there.

    So every rank sends a share over every NIC and every port. Servers pass a chunk on in a chain.
    """
    root = _root_of(problem, "broadcast", "reduce")
    lanes = None if root is None else _lanes(problem, root)
    if root is None or lanes is None or problem.collective.num_chunks < 2:
        return None
    chunks = range(problem.collective.num_chunks)
    width = len(lanes[0])
    doors = [(chunk, [lane[chunk % width] for lane in lanes]) for chunk in chunks]
    hops = [(chunk, root, door[0]) for chunk, door in doors if door[0] != root]
    hops += [(chunk, *pair) for chunk, door in doors for pair in pairwise(door)]
    hops += [
        (chunk, here, lane[(chunk + shift) % width])
        for shift in range(1, width)
        for chunk, door in doors
        for here, lane in zip(door, lanes, strict=True)
        if lane[(chunk + shift) % width] != root
    ]
    links = best_links(problem)
    for _, parent, child in hops:
        if ((child, parent) if problem.collective.reduces else (parent, child)) not in links:
            return None
    return _along(problem, hops)


def _lanes(problem: Problem, root: Rank) -> list[list[Rank]] | None:
    """Return the ranks of every server, the root's first; None where they differ in number."""
    members: dict[int, list[Rank]] = {problem.topology.server_of[root]: []}
    for rank, server in enumerate(problem.topology.server_of):
        members.setdefault(server, []).append(rank)
    lanes = list(members.values())
    return lanes if len({len(lane) for lane in lanes}) == 1 else None


def direct(problem: Problem) -> Iterator[Step] | None:
    """One rank after the other sends to (receives from) the root all that is theirs at once."""
    root = _root_of(problem, "gather", "scatter")
    if root is None:
        return None
    n, links, k = (
        problem.topology.num_ranks,
        best_links(problem),
        problem.collective.chunks_per_rank,
    )
    inward = problem.collective.name == "gather"
    peers = [(root + shift) % n for shift in range(1, n)]
    ends = [(peer, root) if inward else (root, peer) for peer in peers]
    if any(pair not in links for pair in ends):
        return None
    blocks = [tuple(range(peer * k, (peer + 1) * k)) for peer in peers]
    return ((block, *pair, False) for block, pair in zip(blocks, ends, strict=True))


def _root_of(problem: Problem, *names: str) -> Rank | None:
    return problem.collective.root if problem.collective.name in names else None


def _along(problem: Problem, hops: list[tuple[int, Rank, Rank]]) -> Iterator[Step]:
    """Return (chunk, parent, child) hops as steps; sums take them backwards, the last first."""
    if problem.collective.reduces:
        return (((chunk,), child, parent, True) for chunk, parent, child in reversed(hops))
    return (((chunk,), parent, child, False) for chunk, parent, child in hops)
