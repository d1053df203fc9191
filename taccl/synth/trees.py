"""Two binary trees that share the work: what is a leaf of one is (almost) no leaf of the other.

Each tree takes half of the data, in pieces that follow one another up and down.

References
----------
Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009);
NCCL, src/graph/trees.cc.
"""

from collections.abc import Iterator, Sequence
from math import isqrt

from taccl.synth.problem import Problem
from taccl.synth.steps import Step, best_links, linked, servers, shards
from taccl.topology import Rank

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
