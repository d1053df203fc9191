"""Trees and chains: classical algorithms for collectives with a root, and double binary trees.

Reductions play the broadcast's tree backwards. Chunks follow one another through chain and tree,
so that with k of them a chain of n ranks takes n - 2 + k messages in a row. A scatter sends to each
child of a tree what the ranks below it need, and a gather plays that backwards. An AllReduce is a
reduction to one rank, here the root, and a broadcast from it.

Of two binary trees each takes half of the data, in pieces that follow one another up and down: what
is a leaf of one is (almost) no leaf of the other.

References
----------
Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009);
Traeff: Round-optimal n-block broadcast schedules in logarithmic time (2023), for the skips of a
circle, on which :func:`circulated` chooses chunks by a simpler rule;
NCCL, src/graph/trees.cc.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isqrt
from types import MappingProxyType

from taccl.model.problem import Problem
from taccl.synth.templates.steps import (
    Step,
    best_links,
    blocks,
    linked,
    ranks_by_server,
    shards,
    tour,
)
from taccl.topology.graph import Rank

Tree = dict[Rank, Rank]
"""Every rank but the root, parents first, and its parent."""


SPREADS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "in turn": (1, 1), "by trees": (1, 3), "sent back": (2, 2),
})  # fmt: skip
"""How chunks come to all in a server, and of how many servers, and ranks in one, at least.

By who has it first, one rank after the other; down trees; or, those that the root sends over its
own NIC, from the next server.
"""

FEW_RAILS = 32
"""Rails whose chunks go down trees, at most: the root has as many peers in its server."""


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

    The first of the `order` is the root of the first tree, and of both with `same_root`; else the
    second has another.
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
            timed = [
                one
                for tree, share in zip(trees, shares, strict=True)
                for number, piece in enumerate(shards(share, max(1, min(pieces, len(share)))))
                for one in _piece(collective.name, tree, piece, number)
            ]
            steps = [step for _, step in sorted(timed, key=lambda one: one[0])]
            if not linked(links, steps):
                break
            yield iter(steps)


def _choices(problem: Problem) -> Iterator[tuple[Tree, Tree]]:
    """Yield two trees over all ranks in order, and over servers with a tree or a chain in each."""
    n, root = problem.topology.num_ranks, problem.collective.root
    first = root or 0
    yield two_trees([(first + i) % n for i in range(n)], same_root=root is not None)
    by_server = ranks_by_server(problem)
    if by_server is None or len(by_server) in (1, n):
        return
    width = len(by_server[0])
    home = next(number for number, ranks in enumerate(by_server) if first in ranks)
    local = by_server[home].index(first)
    order = [*range(home, len(by_server)), *range(home)]
    gateways = (local, local if root is not None else (local + width // 2) % width)
    across = two_trees(order, same_root=root is not None)
    one, other = (
        {by_server[server][gateway]: by_server[above][gateway] for server, above in tree.items()}
        for tree, gateway in zip(across, gateways, strict=True)
    )
    for tree, gateway in zip((one, other), gateways, strict=True):
        for ranks in by_server:
            inside = [*ranks[gateway:], *ranks[:gateway]]
            tree |= dict(zip(inside[1:], inside, strict=False))
    yield one, other


def _piece(
    name: str, tree: Tree, chunks: tuple[int, ...], number: int
) -> Iterator[tuple[int, Step]]:
    """Yield (time, step) of one piece: sums as late as they are deep, spread below the root."""
    depth: dict[Rank, int] = {}
    for rank, above in tree.items():
        depth[rank] = depth.get(above, 0) + 1
    height = max(depth.values())
    for rank, above in tree.items() if chunks else ():
        if name != "broadcast":
            yield number + height - depth[rank], (chunks, rank, above, True)
        if name != "reduce":
            down = depth[rank] - 1 + (height if name == "allreduce" else 0)
            yield number + down, (chunks, above, rank, False)


PERSONAL = ("gather", "scatter")
"""What has chunks of its own for every rank."""


def chain(problem: Problem) -> Iterator[Iterator[Step]]:
    """Every rank passes on what it received to the next of a chain that starts at the root.

    A scatter sends first what goes farthest, and a gather what is nearest.
    """
    root = _root_of(problem, "broadcast", "reduce", "allreduce", "gather", "scatter")
    if root is None:
        return
    name, links = problem.collective.name, best_links(problem)
    order = tour(problem, root, closed=False, backwards=is_inward(problem))
    if order is None or (name == "allreduce" and not set(pairwise(order)) <= links.keys()):
        return
    if name in PERSONAL:
        yield _passed_along(problem, [order])
    elif name == "allreduce":
        # One by one: it has as many chunks as ranks or more, and they may be too many to list.
        last = problem.collective.num_chunks - 1
        sums, spread = (_flood_order(problem, [order], backwards=turn) for turn in (True, False))
        yield itertools.chain(
            (((last - chunk,), child, parent, True) for chunk, parent, child in sums),
            (((chunk,), parent, child, False) for chunk, parent, child in spread),
        )
    else:
        yield _along(problem, list(_flood_order(problem, [order])))


def double_chain(problem: Problem) -> Iterator[Iterator[Step]]:
    """Chunks go round a ring from the root, every other one the other way round.

    Those of a gather or scatter go the shorter way.
    """
    root = _root_of(problem, "broadcast", "reduce", "gather", "scatter")
    if root is None or problem.collective.num_chunks < 2:
        return
    order, links = tour(problem, root, backwards=is_inward(problem)), best_links(problem)
    around = list(pairwise((*order, order[0]))) if order else []
    if order is None or any((a, b) not in links or (b, a) not in links for a, b in around):
        return
    other = (order[0], *order[:0:-1])
    if problem.collective.name in PERSONAL:
        half = len(order) // 2
        yield _passed_along(problem, [order[: half + 1], other[: len(order) - half]])
    else:
        yield _along(problem, list(_flood_order(problem, [order, other])))


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


def binomial(problem: Problem) -> Iterator[Iterator[Step]]:
    """In every round each rank that has a chunk sends it half as far as in the round before.

    Of several chunks that all want, it sends one that the rank so far ahead lacks.
    """
    root = _root_of(problem, "broadcast", "reduce", "allreduce", "gather", "scatter")
    if root is None:
        return
    n, chunks = problem.topology.num_ranks, problem.collective.num_chunks
    order = [(root + place) % n for place in range(n)]
    if problem.collective.name in ("broadcast", "reduce") and chunks > 1:
        hops = [(chunk, order[a], order[b]) for chunk, a, b in circulated(n, chunks)]
        steps = list(_along(problem, hops))
        if linked(best_links(problem), steps):
            yield iter(steps)
            if problem.topology.num_servers == 1:
                return
    yield from on_tree(problem, doubled(order))


def circulated(count: int, chunks: int) -> list[tuple[int, int, int]]:
    """Return the (chunk, from, to) hops of a broadcast of some chunks from place 0 of a circle.

    In round r all send so far ahead: the half of `count`, the half of that, ... 1, and again. Each
    passes on the newest chunk that the other lacks, the first place one chunk after the other. No
    broadcast takes less than `chunks` - 1 + ceil(log2 count) rounds: nor does this where the count
    is a power of two, and up to three more elsewhere (all counts up to 200 were tried).
    """
    ahead, hops = [-(-count // 2)], list[tuple[int, int, int]]()
    while ahead[-1] > 1:
        ahead.append(-(-ahead[-1] // 2))
    everything = (1 << chunks) - 1
    held = [everything, *[0] * (count - 1)]
    for number in itertools.count() if count > 1 else ():
        if all(one == everything for one in held):
            break
        before = list(held)
        for place in range(count):
            to = (place + ahead[number % len(ahead)]) % count
            has = before[place] if place else 1 << min(number, chunks - 1)
            lacks = has & ~before[to]
            if lacks:
                newest = lacks.bit_length() - 1
                hops.append((newest, place, to))
                held[to] |= 1 << newest
    return hops


def doubled(ranks: Sequence[Rank]) -> list[tuple[Rank, Rank]]:
    """Return the (parent, child) hops of a binomial tree from the first of some ranks."""
    n = len(ranks)
    return [
        (ranks[near], ranks[near + distance])
        for distance in (1 << i for i in reversed(range((n - 1).bit_length())))
        for near in range(0, n - distance, 2 * distance)
    ]


def on_tree(problem: Problem, hops: Sequence[tuple[Rank, Rank]]) -> Iterator[Iterator[Step]]:
    """Yield the steps of a `problem` on a tree of (parent, child) `hops`, if it has all links.

    Chunks that all want follow one another; the halves of an AllReduce send all of them at once.
    """
    name, links, collective = problem.collective.name, best_links(problem), problem.collective
    up = [(child, parent) for parent, child in hops]
    needed = [*(up if is_inward(problem) else hops), *(hops if name == "allreduce" else ())]
    reached = len({child for _, child in hops}) == problem.topology.num_ranks - 1
    if not reached or any(one not in links for one in needed):
        return
    if name in PERSONAL:
        own, below = blocks(problem), {child: [child] for _, child in hops}
        for parent, child in reversed(hops):
            below.get(parent, []).extend(below[child])
        yield _turned(
            problem,
            [
                (tuple(c for rank in sorted(below[child]) for c in own[rank]), parent, child, False)
                for parent, child in hops
            ],
        )
    elif name == "allreduce":
        everything = tuple(range(collective.num_chunks))
        sums: list[Step] = [(everything, *ends, True) for ends in reversed(up)]
        yield iter([*sums, *((everything, *ends, False) for ends in hops)])
    else:
        yield _along(problem, [(c, *ends) for c in range(collective.num_chunks) for ends in hops])


def over_servers(problem: Problem, by_server: Sequence[Sequence[Rank]]) -> Iterator[Iterator[Step]]:
    """Yield the steps on a tree over servers from the root's, and another in each of them.

    The `problem` is a collective with a root, or an AllReduce; `by_server` are the ranks of every
    server, all of one number. None where a server has neither a binomial tree nor a chain.
    """
    root, links, inward = problem.collective.root or 0, best_links(problem), is_inward(problem)
    home = next(number for number, ranks in enumerate(by_server) if root in ranks)
    local = by_server[home].index(root)
    order = (*by_server[home:], *by_server[:home])
    hops = doubled([ranks[local] for ranks in order])
    for ranks in order:
        inside = doubled([*ranks[local:], *ranks[:local]])
        if any(((b, a) if inward else (a, b)) not in links for a, b in inside):
            path = tour(problem, ranks[local], closed=False, backwards=inward, within=ranks)
            if path is None:
                return
            inside = list(pairwise(path))
        hops += inside
    yield from on_tree(problem, hops)


def scatter_allgather(problem: Problem) -> Iterator[Iterator[Step]]:
    """Each chunk goes to one rank of the root's server, on to its counterparts, then to all there.

    So every rank sends a share over every NIC and every port, and the root each chunk once inside:
    those of its own rail it leaves to the others in turn, or all of the next server send them back
    to their counterparts, so that the root and each of these has one share less inside. Servers
    pass a chunk on in a chain, and chunks that follow one another take different NICs. Who has a
    chunk sends it to all in its server one after the other, or (of FEW_RAILS rails at most) down a
    binomial tree.
    """
    root, by_server = _root_of(problem, "broadcast", "reduce"), ranks_by_server(problem)
    if root is None or by_server is None or problem.collective.num_chunks < 2:
        return
    by_server.sort(key=lambda ranks: root not in ranks)
    width, own = len(by_server[0]), by_server[0].index(root)
    # The root's own rail is none where it leads nowhere.
    alone = len(by_server) == 1 < width
    rails = [place for place in _spaced(problem, by_server) if not (alone and place == own)]
    for how, (servers, ranks) in SPREADS.items():
        if len(by_server) >= servers and width >= ranks:
            steps = list(_along(problem, _by_rails(problem, by_server, rails, how)))
            if linked(best_links(problem), steps):
                yield iter(steps)


def _by_rails(
    problem: Problem, by_server: Sequence[Sequence[Rank]], rails: list[int], how: str
) -> list[tuple[int, Rank, Rank]]:
    """Return the (chunk, parent, child) hops of :func:`scatter_allgather`, in waves.

    The root is in the first of `by_server`, `rails` are places in all of them, and `how` is one of
    SPREADS.
    """
    root, width, by_tree = problem.collective.root or 0, len(by_server[0]), how == "by trees"
    own, others = by_server[0].index(root), itertools.cycle(range(1, max(2, width)))
    if by_tree and len(rails) > FEW_RAILS:
        rails = [rails[number * len(rails) // FEW_RAILS] for number in range(FEW_RAILS)]
    timed: list[tuple[tuple[int, int], tuple[int, Rank, Rank]]] = []
    for chunk in range(problem.collective.num_chunks):
        wave, place = chunk // len(rails), rails[chunk % len(rails)]
        rail = [ranks[place] for ranks in by_server]
        spread = list(rail)
        returned = how == "sent back" and place == own
        if width > 1 and not returned:
            spread[0] = by_server[0][(own + next(others)) % width] if place == own else rail[0]
            timed.append(((wave, 0), (chunk, root, spread[0])))
        for hop, pair in enumerate(pairwise(rail), 1):
            timed.append(((wave + hop, 0), (chunk, *pair)))
        for hop, (here, ranks) in enumerate(zip(spread, by_server, strict=True), 1):
            if returned and hop == 1:
                # In the wave after that in which it is spread in the next server.
                ends = (pair for pair in zip(by_server[1], ranks, strict=True) if root not in pair)
                timed += [((wave + 3, turn), (chunk, *pair)) for turn, pair in enumerate(ends, 1)]
                continue
            at = ranks.index(here)
            circle = [one for one in (*ranks[at:], *ranks[:at]) if one != root]
            pairs = doubled(circle) if by_tree else [(here, to) for to in circle[1:]]
            timed += [
                ((wave + hop, turn), (chunk, *pair)) for turn, pair in enumerate(pairs, 1)
            ]  # fmt: skip
    return [hop for _, hop in sorted(timed, key=lambda one: one[0])]


def _spaced(problem: Problem, by_server: Sequence[Sequence[Rank]]) -> list[int]:
    """Return the places of a server, those that share a NIC as far from each other as may be."""
    links, turns, spaced = best_links(problem), Counter[object](), list[tuple[int, int]]()
    for place, pair in enumerate(zip(*by_server[:2], strict=True)):
        edges = tuple(problem.topology.links.edges_of(links[pair])) if pair in links else place
        spaced.append((turns[edges], place))
        turns[edges] += 1
    return [place for _, place in sorted(spaced)]


def direct(problem: Problem) -> Iterator[Iterator[Step]]:
    """One rank after the other sends to (receives from) the root all that is theirs at once."""
    root = _root_of(problem, "gather", "scatter")
    if root is not None:
        n = problem.topology.num_ranks
        yield from on_tree(problem, [(root, (root + shift) % n) for shift in range(1, n)])


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
