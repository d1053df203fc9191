"""Algorithms in steps inside servers and across: fewer and longer messages between servers.

All need servers of equal size. A rank's local number is its place in its server; ranks of one
number, one in each server, form a rail.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from taccl.model.problem import Problem
from taccl.synth.templates.rings import tour
from taccl.synth.templates.steps import (
    HALVES,
    Links,
    Step,
    best_links,
    blocks,
    halves,
    linked,
    pair_block,
    servers,
)
from taccl.synth.templates.trees import PERSONAL, doubled, is_inward, on_tree
from taccl.topology.graph import Rank

Lanes = Sequence[Sequence[Rank]]
"""The ranks of every server, by local number."""


def _lanes(problem: Problem) -> Lanes | None:
    """Return the servers of a machine that has several of several ranks, all of one size."""
    lanes = servers(problem)
    return lanes if lanes is not None and len(lanes) > 1 and len(lanes[0]) > 1 else None


def hierarchical(problem: Problem) -> Iterator[Iterator[Step]]:
    """Gather along every rail, then what each rail has inside every server.

    Inside, ranks send to all others where they have links, else round a ring. The second way sends
    few messages: to the first rank of each server, from first to first, and to all inside.
    ReduceScatter plays it backwards; AllReduce is one after the other.

    With a root: a binomial tree over the ranks of its local number, and in every server another, or
    a chain where that has no links.
    """
    lanes = _lanes(problem)
    if lanes is None:
        return
    if problem.collective.name in (*PERSONAL, "broadcast", "reduce"):
        hops = _over_servers(problem, lanes)
        steps = None if hops is None else on_tree(problem, hops)
        if steps is not None:
            yield steps
    if problem.collective.name not in HALVES:
        return
    links = best_links(problem)
    for gather in (_along_rails(problem, lanes, links), _by_leaders(problem, lanes)):
        back = [(chunks, dst, src, True) for chunks, src, dst, _ in gather]
        if (problem.collective.name == "reducescatter" or linked(links, gather)) and (
            problem.collective.name == "allgather" or linked(links, back)
        ):
            yield halves(problem, gather)


def _over_servers(problem: Problem, lanes: Lanes) -> list[tuple[Rank, Rank]] | None:
    """Return the (parent, child) hops of a tree over servers from the root's, and in each.

    None where a server has neither a binomial tree nor a chain.
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
    return hops


def _along_rails(problem: Problem, lanes: Lanes, links: Links) -> list[Step]:
    """Return an AllGather that sends every chunk to one rank of every other server."""
    own, count = blocks(problem), len(lanes)
    steps: list[Step] = [
        (own[rank], rank, lanes[(server + shift) % count][lane], False)
        for shift in range(1, count)
        for server, ranks in enumerate(lanes)
        for lane, rank in enumerate(ranks)
    ]
    rail = {rank: [other[lane] for other in lanes] for ranks in lanes
            for lane, rank in enumerate(ranks)}  # fmt: skip
    for hops in zip(*(_inside(problem, ranks, links) for ranks in lanes), strict=True):
        for origin, src, dst in hops:
            steps.append((tuple(c for rank in rail[origin] for c in own[rank]), src, dst, False))
    return steps


def _inside(problem: Problem, ranks: Sequence[Rank], links: Links) -> list[tuple[Rank, Rank, Rank]]:
    """Return (origin, from, to) hops of an AllGather in a server: all pairs, else a ring."""
    width = len(ranks)
    if not all((a, b) in links for a in ranks for b in ranks if a != b):
        ring = tour(problem, ranks[0], within=ranks)
        if ring is not None:
            return [
                (ring[(place - hop) % width], ring[place], ring[(place + 1) % width])
                for hop in range(width - 1)
                for place in range(width)
            ]
    return [
        (ranks[place], ranks[place], ranks[(place + shift) % width])
        for shift in range(1, width)
        for place in range(width)
    ]


def _by_leaders(problem: Problem, lanes: Lanes) -> list[Step]:
    """Return an AllGather in which only the first ranks of the servers talk across."""
    own, count = blocks(problem), len(lanes)
    whole = [tuple(c for rank in ranks for c in own[rank]) for ranks in lanes]
    steps: list[Step] = [
        (own[rank], rank, ranks[0], False) for ranks in lanes for rank in ranks[1:]
    ]
    steps += [
        (whole[server], ranks[0], lanes[(server + shift) % count][0], False)
        for shift in range(1, count)
        for server, ranks in enumerate(lanes)
    ]
    everything = range(problem.collective.num_chunks)
    steps += [
        (tuple(c for c in everything if c not in own[rank]), ranks[0], rank, False)
        for ranks in lanes
        for rank in ranks[1:]
    ]
    return steps


def two_step(problem: Problem) -> Iterator[Iterator[Step]]:
    """AlltoAll: to the rank with the destination's local number, then across on that rail.

    So a rank talks to as many ranks as its server has and as there are servers; what it sends
    across to one of them lies side by side there.
    """
    lanes = _lanes(problem)
    if problem.collective.name != "alltoall" or lanes is None:
        return
    steps = [*_to_rails(problem, lanes), *_across_rails(problem, lanes), *_at_home(problem, lanes)]
    if linked(best_links(problem), steps):
        yield iter(steps)


def _to_rails(problem: Problem, lanes: Lanes) -> Iterator[Step]:
    width = len(lanes[0])
    for shift in range(1, width):
        for server, ranks in enumerate(lanes):
            for lane, rank in enumerate(ranks):
                to = (lane + shift) % width
                away = [others[to] for number, others in enumerate(lanes) if number != server]
                yield _blocks_between(problem, [rank], away), rank, ranks[to], False


def _across_rails(problem: Problem, lanes: Lanes) -> Iterator[Step]:
    for shift in range(1, len(lanes)):
        for server, ranks in enumerate(lanes):
            for here, there in zip(ranks, lanes[(server + shift) % len(lanes)], strict=True):
                yield _blocks_between(problem, ranks, [there]), here, there, False


def _at_home(problem: Problem, lanes: Lanes) -> Iterator[Step]:
    """Yield what stays in its server."""
    width = len(lanes[0])
    for shift in range(1, width):
        for ranks in lanes:
            for lane, rank in enumerate(ranks):
                peer = ranks[(lane + shift) % width]
                yield pair_block(problem, rank, peer), rank, peer, False


def three_step(problem: Problem) -> Iterator[Iterator[Step]]:
    """AlltoAll: to a gateway of the server, across to the other server's, and on to all there.

    Two servers share one connection; the ranks of a server take turns as gateways. The second way
    shares all ranks out among the other servers, each a gateway for part of its server.
    """
    lanes = _lanes(problem)
    if problem.collective.name != "alltoall" or lanes is None:
        return
    pairs = [
        (server, (server + shift) % len(lanes))
        for shift in range(1, len(lanes))
        for server in range(len(lanes))
    ]
    for doors in sorted({1, max(1, len(lanes[0]) // (len(lanes) - 1))}):
        staged = [one for pair in pairs for one in _by_gateways(problem, lanes, pair, doors)]
        staged.sort(key=lambda one: one[0])
        steps = [*(step for _, step in staged), *_at_home(problem, lanes)]
        if linked(best_links(problem), steps):
            yield iter(steps)


def _by_gateways(
    problem: Problem, lanes: Lanes, pair: tuple[int, int], doors: int
) -> Iterator[tuple[int, Step]]:
    """Yield (stage, step) of what goes from one server to another by so many gateways."""
    ranks, peers = lanes[pair[0]], lanes[pair[1]]
    width, first = len(ranks), sum(pair) * doors
    served: dict[int, list[Rank]] = {}
    for lane, rank in enumerate(ranks):
        served.setdefault((first + (lane - first) % doors) % width, []).append(rank)
    for number, own in served.items():
        out, into = ranks[number], peers[number]
        for rank in own:
            if rank != out:
                yield 0, (_blocks_between(problem, [rank], peers), rank, out, False)
        yield 1, (_blocks_between(problem, own, peers), out, into, False)
        for peer in peers:
            if peer != into:
                yield 2, (_blocks_between(problem, own, [peer]), into, peer, False)


def _blocks_between(
    problem: Problem, sources: Sequence[Rank], targets: Sequence[Rank]
) -> tuple[int, ...]:
    return tuple(c for src in sources for dst in targets for c in pair_block(problem, src, dst))
