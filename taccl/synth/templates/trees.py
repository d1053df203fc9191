"""Classical algorithms for collectives with a root.

Reductions play the broadcast's tree backwards. Chunks follow one another through chain and tree,
so that with k of them a chain of n ranks takes n - 2 + k messages in a row. A scatter sends to each
child of a tree what the ranks below it need, and a gather plays that backwards. An AllReduce is a
reduction to one rank, here the root, and a broadcast from it.

Two binary trees that share the work: what is a leaf of one is (almost) no leaf of the other.

Each tree takes half of the data, in pieces that follow one another up and down.

References
----------
Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009);
NCCL, src/graph/trees.cc.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isqrt

from taccl.model.problem import Problem
from taccl.synth.templates.rings import tour
from taccl.synth.templates.steps import Step, best_links, blocks, linked, servers, shards
from taccl.topology.graph import Rank

Tree = dict[Rank, Rank]
"""Every rank but the root, parents first, and its parent."""


def parents(count: int) -> list[int]:
    """Return the parents of places 1, 2 ... of a tree in order, whose root is place 0.

    Place 0 has one child; below it the odd places are leaves.
    """
    above = []
    for place in range(1, count):
        bit = place & -place
        up = (place ^ bit) | (bit << 1)
        above.append(up if up < count else place ^ bit)
    return above


def two_trees(order: Sequence[Rank], *, same_root: bool) -> tuple[Tree, Tree]:
    """Return two trees over ranks in an order: the second mirrored, or shifted if that can't be.

    Parameters
    ----------
    same_root
        Whether the first rank is the root of both; else the second has another.
    """
    fixed, rest = (list(order[:1]), list(order[1:])) if same_root else ([], list(order))
    other = rest[::-1] if len(rest) % 2 == 0 else [*rest[1:], *rest[:1]]
    return _tree(order), _tree([*fixed, *other])


def _tree(order: Sequence[Rank]) -> Tree:
    above = parents(len(order))
    depth = {0: 0}
    for place in sorted(range(1, len(order)), key=lambda p: -(p & -p)):
        depth[place] = depth[above[place - 1]] + 1
    places = sorted(range(1, len(order)), key=lambda p: (depth[p], p))
    return {order[place]: order[above[place - 1]] for place in places}


def double_binary_tree(problem: Problem) -> Iterator[Iterator[Step]]:
    """Sum up and spread down two trees: all of a half at once, piece by piece, or in between."""
    collective = problem.collective
    if collective.name not in ("allreduce", "broadcast", "reduce") or collective.num_ranks == 1:
        return
    links = best_links(problem)
    shares = shards(range(collective.num_chunks), 2)
    longest = max(len(share) for share in shares)
    for trees in _choices(problem):
        for pieces in sorted({1, isqrt(longest), longest}):
            steps = [
                step
                for _, step in sorted(
                    (
                        timed
                        for tree, share in zip(trees, shares, strict=True)
                        for number, piece in enumerate(
                            shards(share, max(1, min(pieces, len(share))))
                        )
                        for timed in _waves(collective.name, tree, piece, number)
                    ),
                    key=lambda timed: timed[0],
                )
            ]
            if not linked(links, steps):
                break
            yield iter(steps)


def _choices(problem: Problem) -> Iterator[tuple[Tree, Tree]]:
    """Yield two trees over all ranks in order, and over servers with a tree or a chain in each."""
    n, root = problem.topology.num_ranks, problem.collective.root
    first = root or 0
    yield two_trees([(first + i) % n for i in range(n)], same_root=root is not None)
    lanes = servers(problem)
    if lanes is None or len(lanes) in (1, n):
        return
    width, home, lane = len(lanes[0]), 0, 0
    for number, ranks in enumerate(lanes):
        if first in ranks:
            home, lane = number, ranks.index(first)
    across = two_trees([*range(home, len(lanes)), *range(home)], same_root=root is not None)
    doors = (lane, lane if root is not None else (lane + width // 2) % width)
    yield _nested(across[0], lanes, doors[0]), _nested(across[1], lanes, doors[1])


def _nested(across: Tree, lanes: Sequence[Sequence[Rank]], lane: int) -> Tree:
    """Return a tree over servers by the ranks of one local number, with a chain inside each."""
    tree = {lanes[server][lane]: lanes[above][lane] for server, above in across.items()}
    for ranks in lanes:
        inside = [*ranks[lane:], *ranks[:lane]]
        tree |= dict(zip(inside[1:], inside, strict=False))
    return tree


def _waves(
    name: str, tree: Tree, chunks: tuple[int, ...], number: int
) -> Iterator[tuple[int, Step]]:
    """Yield (wave, step) of one piece: sums as late as they are deep, spread below the root."""
    if not chunks:
        return
    depth = {rank: _depth(tree, rank) for rank in tree}
    height = max(depth.values())
    for rank, above in tree.items():
        if name != "broadcast":
            yield number + height - depth[rank], (chunks, rank, above, True)
        if name != "reduce":
            down = depth[rank] - 1 + (height if name == "allreduce" else 0)
            yield number + down, (chunks, above, rank, False)


def _depth(tree: Tree, rank: Rank) -> int:
    depth = 0
    while rank in tree:
        rank, depth = tree[rank], depth + 1
    return depth


PERSONAL = ("gather", "scatter")
"""What has chunks of its own for every rank."""


def chain(problem: Problem) -> Iterator[Step] | None:
    """Every rank passes on what it received to the next of a chain that starts at the root.

    A scatter sends first what goes farthest, and a gather what is nearest.
    """
    root = _root_of(problem, "broadcast", "reduce", "allreduce", "gather", "scatter")
    if root is None:
        return None
    name = problem.collective.name
    order = tour(problem, root, closed=False, backwards=is_inward(problem))
    if order is None:
        return None
    if name in PERSONAL:
        return _passed_along(problem, [order])
    if name != "allreduce":
        return _along(problem, list(_flood_order(problem, [order])))
    links = best_links(problem)
    return _there_and_back(problem, order) if set(pairwise(order)) <= links.keys() else None


def _there_and_back(problem: Problem, order: Sequence[Rank]) -> Iterator[Step]:
    """Yield an AllReduce on a chain: a broadcast's waves backwards, and behind them forwards.

    One by one: an AllReduce has as many chunks as ranks or more, and they may be too many.
    """
    last = problem.collective.num_chunks - 1
    for chunk, parent, child in _flood_order(problem, [order], backwards=True):
        yield (last - chunk,), child, parent, True
    for chunk, parent, child in _flood_order(problem, [order]):
        yield (chunk,), parent, child, False


def double_chain(problem: Problem) -> Iterator[Step] | None:
    """Chunks go round a ring from the root, every other one the other way round.

    Those of a gather or scatter go the shorter way.
    """
    root = _root_of(problem, "broadcast", "reduce", "gather", "scatter")
    if root is None or problem.collective.num_chunks < 2:
        return None
    order, links = tour(problem, root, backwards=is_inward(problem)), best_links(problem)
    if order is None:
        return None
    around = list(pairwise((*order, order[0])))
    if any((a, b) not in links or (b, a) not in links for a, b in around):
        return None
    other = (order[0], *order[:0:-1])
    if problem.collective.name in PERSONAL:
        half = len(order) // 2
        return _passed_along(problem, [order[: half + 1], other[: len(order) - half]])
    return _along(problem, list(_flood_order(problem, [order, other])))


def _passed_along(problem: Problem, chains: Sequence[Sequence[Rank]]) -> Iterator[Step]:
    """Return the steps of a scatter along chains from the root, or of a gather: the same turned."""
    own, longest = blocks(problem), max(map(len, chains))
    steps: list[Step] = [
        (own[chain[end]], chain[hop], chain[hop + 1], False)
        for wave in range(longest - 1)
        for chain in chains
        for hop in range(min(wave + 1, len(chain) - 1))
        for end in (len(chain) - 1 - (wave - hop),)
        if end > hop
    ]
    return _turned(problem, steps)


def _turned(problem: Problem, steps: Sequence[Step]) -> Iterator[Step]:
    """Return a scatter's steps, backwards for a gather."""
    if problem.collective.name == "scatter":
        return iter(steps)
    return ((chunks, dst, src, False) for chunks, src, dst, _ in reversed(steps))


def _flood_order(
    problem: Problem, chains: Sequence[Sequence[Rank]], *, backwards: bool = False
) -> Iterator[tuple[int, Rank, Rank]]:
    """Yield (chunk, parent, child) hops of chains that take the chunks in turn, in waves."""
    k, hops = problem.collective.num_chunks, len(chains[0]) - 1
    turn = -1 if backwards else 1
    for wave in range(hops + k)[::turn]:
        for hop in range(hops)[::-turn]:
            for number in range(len(chains))[::turn]:
                chunk = (wave - hop) * len(chains) + number
                if 0 <= chunk < k:
                    yield chunk, chains[number][hop], chains[number][hop + 1]


def binomial(problem: Problem) -> Iterator[Step] | None:
    """In every round each rank that has a chunk sends it half as far as in the round before."""
    root = _root_of(problem, "broadcast", "reduce", "allreduce", "gather", "scatter")
    if root is None:
        return None
    n = problem.topology.num_ranks
    return on_tree(problem, doubled([(root + place) % n for place in range(n)]))


def doubled(ranks: Sequence[Rank]) -> list[tuple[Rank, Rank]]:
    """Return the (parent, child) hops of a binomial tree from the first of some ranks."""
    n = len(ranks)
    return [
        (ranks[near], ranks[near + distance])
        for distance in (1 << i for i in reversed(range((n - 1).bit_length())))
        for near in range(0, n - distance, 2 * distance)
    ]


def on_tree(problem: Problem, hops: Sequence[tuple[Rank, Rank]]) -> Iterator[Step] | None:
    """Return the steps on a tree of (parent, child) hops; None where links or ranks are missing.

    Chunks that all want follow one another; the halves of an AllReduce send all of them at once.
    """
    name, links, collective = problem.collective.name, best_links(problem), problem.collective
    up = [(child, parent) for parent, child in hops]
    needed = [*(up if is_inward(problem) else hops), *(hops if name == "allreduce" else ())]
    reached = len({child for _, child in hops}) == problem.topology.num_ranks - 1
    if not reached or any(one not in links for one in needed):
        return None
    if name in PERSONAL:
        own, below = blocks(problem), {child: [child] for _, child in hops}
        for parent, child in reversed(hops):
            below.get(parent, []).extend(below[child])
        return _turned(
            problem,
            [
                (tuple(c for rank in sorted(below[child]) for c in own[rank]), parent, child, False)
                for parent, child in hops
            ],
        )
    if name == "allreduce":
        everything = tuple(range(collective.num_chunks))
        sums: list[Step] = [(everything, *ends, True) for ends in reversed(up)]
        return iter([*sums, *((everything, *ends, False) for ends in hops)])
    return _along(problem, [(c, *ends) for c in range(collective.num_chunks) for ends in hops])


def over_servers(problem: Problem, lanes: Sequence[Sequence[Rank]]) -> Iterator[Step] | None:
    """Return the steps on a tree over servers from the root's, and another in each of them.

    None where a server has neither a binomial tree nor a chain.

    Parameters
    ----------
    lanes
        The ranks of every server, all of one number.
    """
    root, links, inward = problem.collective.root or 0, best_links(problem), is_inward(problem)
    home = next(number for number, ranks in enumerate(lanes) if root in ranks)
    lane = lanes[home].index(root)
    heads = [ranks[lane] for ranks in (*lanes[home:], *lanes[:home])]
    hops = doubled(heads)
    for head in heads:
        ranks = next(some for some in lanes if head in some)
        inside = doubled([*ranks[lane:], *ranks[:lane]])
        if any(((b, a) if inward else (a, b)) not in links for a, b in inside):
            order = tour(problem, head, closed=False, backwards=inward, within=ranks)
            if order is None:
                return None
            inside = list(pairwise(order))
        hops += inside
    return on_tree(problem, hops)


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
    n = problem.topology.num_ranks
    return on_tree(problem, [(root, (root + shift) % n) for shift in range(1, n)])


def is_inward(problem: Problem) -> bool:
    """Tell whether chunks go to the root (first)."""
    return problem.collective.reduces or problem.collective.name == "gather"


def _root_of(problem: Problem, *names: str) -> Rank | None:
    """Return the root of a collective of these names; of one that has none, rank 0."""
    return (problem.collective.root or 0) if problem.collective.name in names else None


def _along(problem: Problem, hops: list[tuple[int, Rank, Rank]]) -> Iterator[Step]:
    """Return (chunk, parent, child) hops as steps; sums take them backwards, the last first."""
    if problem.collective.reduces:
        return (((chunk,), child, parent, True) for chunk, parent, child in reversed(hops))
    return (((chunk,), parent, child, False) for chunk, parent, child in hops)
