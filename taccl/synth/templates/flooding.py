"""Flooding: in rounds, every rank passes on to its neighbours all that is new to them.

On links that do not join all pairs of ranks a chunk needs as many hops as its target is away. It
goes over a tree of fewest hops; which of the trees is up to where the other chunks go: in every
round a chunk takes the link on whose busiest edge it would be over first. All chunks that take a
link in one round are one message, which ranks pack. So a collective takes as many latencies as the
farthest target is away: on a ring of n ranks with h = floor(n/2), each with S bytes, an AllGather
h (alpha + beta S), an AlltoAll h alpha + h (h+1)/2 beta S.

An AllGather floods from every rank, a ReduceScatter is that backwards; the chunks of an AllReduce
are summed up at ranks in the middle, from which no other is far, and flood from there, or at their
owners, so that every NIC is used. In an AlltoAll the messages for a rank are relayed, all that are
for ranks behind a neighbour together. With waves, pieces of a rank leave one round after another.
To other servers a chunk goes from its root alone, to the ranks at the same place there.

References
----------
Dalal, Metcalfe: Reverse path forwarding of broadcast packets (1978), for trees of fewest hops.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import permutations, product

from taccl.model.problem import Problem
from taccl.synth.templates.steps import GATHER_FAMILY, Links, Step, best_links, compose_allreduce
from taccl.topology.graph import EdgeId, LinkId, Rank

FLOODED = (*GATHER_FAMILY, "alltoall", "broadcast", "reduce", "gather", "scatter")
"""The collectives that flooding does."""

MOST_HOPS = 300_000
"""Hops of all chunks of an AlltoAll together, above which their ways take long to choose."""


def flooding(problem: Problem) -> Iterator[Iterator[Step]]:
    """Yield the steps of a `problem`: everything at once, and in waves where there are pieces.

    None where all pairs of ranks have links, or a rank can't be reached.
    """
    collective, links = problem.collective, best_links(problem)
    n, name = collective.num_ranks, collective.name
    if name not in FLOODED or len(links) == n * (n - 1):
        return
    turned = {(dst, src): link for (src, dst), link in links.items()}
    home, servers = list(problem.topology.server_of), problem.topology.servers
    rails = {pair for ranks in zip(*servers, strict=False) for pair in permutations(ranks, 2)}
    if len(set(map(len, servers))) > 1 or not rails <= links.keys():
        home = [0] * n  # those at one place of all servers have no links
    away = [_distances(home, graph) for graph in (links, turned)]
    if any(n in hops for graph in away for hops in graph):
        return
    if name == "alltoall" and sum(map(sum, away[0])) * collective.chunks_per_rank > MOST_HOPS:
        return
    if name == "allreduce":
        reach = [max(*there, *back) for there, back in zip(*away, strict=True)]
        middle = [rank for rank in range(n) if reach[rank] == min(reach)]
        owners = collective.owner.tolist()
        choices = [[middle[owner % len(middle)] for owner in owners]]
        choices += [owners] if len(middle) < n else []
    else:
        ends = collective.targets if collective.reduces else collective.sources
        choices = [[ends(chunk)[0] for chunk in range(collective.num_chunks)]]
    for in_waves, roots in product((False, True)[: 1 + bool(collective.index.any())], choices):
        if not collective.reduces:
            yield _flood(problem, links, home, away[0], roots, in_waves=in_waves)
            continue
        sums = list(_flood(problem, turned, home, away[1], roots, in_waves=in_waves))
        spread = _flood(problem, links, home, away[0], roots, in_waves=in_waves)
        if name == "reduce":
            yield ((chunks, dst, src, True) for chunks, src, dst, _ in reversed(sums))
        else:
            yield compose_allreduce(problem, list(spread) if name == "allreduce" else [], sums)


def _distances(home: list[int], links: Links) -> list[list[int]]:
    """Return the hops from each rank to each, as many as there are ranks where there is no way.

    From the rank itself one hop leads to every rank at its place of other servers, its `home` being
    one of them; `links` are taken inside servers.
    """
    n, following = len(home), defaultdict[Rank, list[Rank]](list)
    for src, dst in sorted(links):
        if home[src] == home[dst]:
            following[src].append(dst)
    places = [[rank for rank in range(n) if home[rank] == each] for each in sorted(set(home))]
    found = []
    for root in range(n):
        place = places[home[root]].index(root)
        others = [ranks[place] for ranks in places if root not in ranks]
        hops = [n] * n
        hops[root] = 0
        for rank in others:
            hops[rank] = 1
        queue = deque([root, *others])
        while queue:
            rank = queue.popleft()
            for peer in following[rank]:
                if hops[peer] > hops[rank] + 1:
                    hops[peer] = hops[rank] + 1
                    queue.append(peer)
        found.append(hops)
    return found


def _flood(
    problem: Problem,
    links: Links,
    home: list[int],
    away: list[list[int]],
    roots: list[Rank],
    *,
    in_waves: bool,
) -> Iterator[Step]:
    """Yield the messages that take every chunk from its root, round by round.

    Ways are chosen from the last round to the first: who relays is known by then. The hops between
    ranks are `away`, `home` are their servers, and pieces leave one after the other where they go
    `in_waves`.
    """
    collective, before = problem.collective, defaultdict[Rank, list[Rank]](list)
    for src, dst in sorted(links):
        before[dst].append(src)
    first = collective.index.tolist() if in_waves else [0] * collective.num_chunks
    wanted: dict[int, set[tuple[int, Rank]]] = defaultdict(set)
    for chunk, root in enumerate(roots):
        ends = collective.sources(chunk) if collective.reduces else collective.targets(chunk)
        for rank in set(ends) - {root}:
            wanted[first[chunk] + away[root][rank]].add((chunk, rank))
    topology, table = problem.topology, problem.topology.links
    # How long a message holds a link's edges, and what each chunk adds on every edge.
    costs: dict[LinkId, tuple[int, list[tuple[EdgeId, int]]]] = {}
    for link in links.values():
        overhead = int(table.overhead[link])
        held = (
            (edge, topology.busy(link, edge, problem.chunk_size)) for edge in table.edges_of(link)
        )
        costs[link] = overhead, [(edge, busy - overhead) for edge, busy in held if busy]
    rounds = []
    for number in range(max(wanted, default=0), 0, -1):
        load: dict[EdgeId, int] = defaultdict(int)
        messages: dict[tuple[Rank, Rank], list[int]] = {}
        choices = []
        for chunk, rank in wanted.pop(number, ()):
            root = roots[chunk]
            hops = away[root]
            nearer = [
                peer
                for peer in before[rank]
                if hops[peer] == hops[rank] - 1 and (home[peer] == home[rank] or peer == root)
            ]
            choices.append((len(nearer), chunk, rank, nearer))
        for _, chunk, rank, nearer in sorted(choices):
            ways = []
            for peer in nearer:
                overhead, edges = costs[links[peer, rank]]
                begun = 0 if (peer, rank) in messages else overhead
                over = max((load[edge] + begun + busy for edge, busy in edges), default=0)
                ways.append((over, begun, peer))
            _, begun, peer = min(ways)
            for edge, busy in costs[links[peer, rank]][1]:
                load[edge] += begun + busy
            messages.setdefault((peer, rank), []).append(chunk)
            if peer != roots[chunk]:
                wanted[number - 1].add((chunk, peer))
        rounds.append(messages)
    for messages in reversed(rounds):
        for (src, dst), chunks in messages.items():
            yield tuple(sorted(chunks)), src, dst, False
