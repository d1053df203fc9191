"""Flooding: in rounds, every rank passes on to its neighbours all that is new to them.

On links that do not join all pairs of ranks a chunk needs as many hops as its target is away. It
goes over a tree of fewest hops; which of the trees is up to where the other chunks go: in every
round a chunk takes the link on whose busiest edge it would be over first. All chunks that take a
link in one round are one message, which ranks pack. So a collective takes as many latencies as the
farthest target is away: on a ring of n ranks with h = floor(n/2), each with S bytes, an AllGather
h (alpha + beta S), an AlltoAll h alpha + h (h+1)/2 beta S.

An AllGather floods from every rank, a ReduceScatter is that backwards; the chunks of an AllReduce
are summed up at ranks in the middle, from which no other is far, and flood from there, or at their
owners, so that every NIC is used. Where 2^d ranks form a cube, and no other is more than h hops
away from all of them, chunks are summed up at the nearest, doubled along the d directions of the
cube (chunks take them in different orders), and flood from all 2^d: a 4 x 4 mesh so takes 2h + d =
6 latencies, as many as the farthest corner is hops away, where one rank in the middle takes 8. In
an AlltoAll the messages for a rank are relayed, all that are for ranks behind a neighbour together.
With waves, pieces of a rank leave one round after another.
To other servers a chunk goes from its root alone, to the ranks at the same place there.

References
----------
Dalal, Metcalfe: Reverse path forwarding of broadcast packets (1978), for trees of fewest hops.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

from taccl.model.problem import Problem
from taccl.synth.templates.steps import GATHER_FAMILY, ROUND_BARRIER, Links, Order, Step, best_links
from taccl.topology.graph import EdgeId, LinkId, Rank

FLOODED = (*GATHER_FAMILY, "alltoall", "broadcast", "reduce", "gather", "scatter")
"""The collectives that flooding does."""

Cube = Order
"""The ranks of a cube: those whose places differ in one bit have links; one rank is one, too."""

Rounds = list[dict[tuple[Rank, Rank], list[int]]]
"""The chunks of each message, by its ends, in every round."""

MOST_SIDES, MOST_CUBES = 3, 64
"""Directions of a cube, and cubes of as many that are looked at."""

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
        yield from _meeting(problem, links, turned, home, away)
        return
    ends = collective.targets if collective.reduces else collective.sources
    starts = [(ends(chunk)[0],) for chunk in range(collective.num_chunks)]
    flows, hops = (turned, away[1]) if collective.reduces else (links, away[0])
    pieces = collective.index.tolist()
    for first in ([0] * len(pieces), pieces)[: 1 + any(pieces)]:
        rounds = _flood(problem, flows, home, hops, starts, first)
        spread = [
            (tuple(sorted(chunks)), *pair, False)
            for messages in rounds for pair, chunks in messages.items()
        ]  # fmt: skip
        if collective.reduces:
            yield ((chunks, dst, src, True) for chunks, src, dst, _ in reversed(spread))
        else:
            yield iter(spread)


def _meeting(
    problem: Problem, links: Links, turned: Links, home: list[int], away: list[list[list[int]]]
) -> Iterator[Iterator[Step]]:
    """Yield the steps of an AllReduce: sums meet in the middle, at their owners, or on cubes.

    `links` and those `turned` round have as many hops as `away` says, `home` are servers.
    """
    collective = problem.collective
    reach = [max(*there, *back) for there, back in zip(*away, strict=True)]
    middle = [(rank,) for rank, far in enumerate(reach) if far == min(reach)]
    choices: list[Sequence[Cube]] = [middle]
    if len(middle) < len(home):
        choices.append([(rank,) for rank in range(len(home))])
    if len(set(home)) == 1 and (cubes := _cubes(links, reach, away)):
        choices.append(cubes)
    pieces, owners = collective.index.tolist(), collective.owner.tolist()
    for first, meets in product(([0] * len(pieces), pieces)[: 1 + any(pieces)], choices):
        starts = [meets[owner % len(meets)] for owner in owners]
        sides = (len(meets[0]) - 1).bit_length()
        # What is summed first leaves first: it is the last in time turned round.
        late = [max(first) - number for number in first]
        sums = _flood(problem, turned, home, away[1], starts, late)
        spread = _flood(problem, links, home, away[0], starts, first)
        rounds: dict[int, dict[tuple[Rank, Rank, bool], list[int]]] = defaultdict(dict)
        for number, messages in enumerate(reversed(sums)):
            for (src, dst), chunks in messages.items():
                rounds[number].setdefault((dst, src, True), []).extend(chunks)
        last = len(sums) - max(first)
        for chunk, (owner, cube) in enumerate(zip(owners, starts, strict=True)):
            for side in range(sides):
                bit = 1 << (side + owner // len(meets)) % sides
                exchanged = rounds[last + first[chunk] + side]
                for place, rank in enumerate(cube):
                    exchanged.setdefault((rank, cube[place ^ bit], True), []).append(chunk)
        for number, messages in enumerate(spread):
            for (src, dst), chunks in messages.items():
                rounds[last + sides + number].setdefault((src, dst, False), []).extend(chunks)
        yield (
            step for number in sorted(rounds)
            for step in (
                *((tuple(sorted(row)), *ends) for ends, row in rounds[number].items()),
                ROUND_BARRIER,
            )
        )  # fmt: skip


def _cubes(links: Links, reach: list[int], away: list[list[list[int]]]) -> list[Cube]:
    """Return the cubes of ranks on which sums are over in the fewest rounds; none: not sooner.

    Sooner than in the middle, that is. Two ranks of a cube that differ in one bit of their places
    have `links` both ways; others are so many hops `away`, and from each all are in `reach`.
    """
    near: dict[Rank, list[Rank]] = defaultdict(list)
    for src, dst in sorted(links):
        if (dst, src) in links:
            near[src].append(dst)
    grown: list[Cube] = [(rank,) for rank in sorted(near, key=lambda rank: reach[rank])]
    best, found = (2 * min(reach), -MOST_SIDES - 1), list[Cube]()
    for sides in range(1, MOST_SIDES + 1):
        larger: dict[frozenset[Rank], Cube] = {}
        for cube in grown:
            for other in _alongside(cube, (), near):
                larger.setdefault(frozenset(cube + other), cube + other)
            if len(larger) > MOST_CUBES:
                break
        grown = list(larger.values())
        for cube in grown:
            far = max(
                max(map(min, zip(*(hops[rank] for rank in cube), strict=True))) for hops in away
            )
            if (sides + 2 * far, -sides) < best:
                best, found = (sides + 2 * far, -sides), []
            if (sides + 2 * far, -sides) == best:
                found.append(cube)
    return found


def _alongside(cube: Cube, other: Cube, near: Mapping[Rank, Sequence[Rank]]) -> Iterator[Cube]:
    """Yield each cube next to a `cube`, each rank `near` its own, that begins with an `other`."""
    place = len(other)
    if place == len(cube):
        yield other
        return
    before = [other[place ^ 1 << bit] for bit in range(place.bit_length()) if place >> bit & 1]
    for rank in near[cube[place]]:
        if rank not in cube and rank not in other and all(rank in near[each] for each in before):
            yield from _alongside(cube, (*other, rank), near)


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
    starts: Sequence[Cube],
    first: Sequence[int],
) -> Rounds:
    """Return the messages that take every chunk from the ranks it starts at, by round, from 1.

    Ways are chosen from the last round to the first: who relays is known by then. The hops between
    ranks are `away`, `home` are their servers, and of each chunk `first` has the rounds before it
    leaves where it `starts`.
    """
    collective, before = problem.collective, defaultdict[Rank, list[Rank]](list)
    for src, dst in sorted(links):
        before[dst].append(src)
    hops_from = {start: [min(of) for of in zip(*(away[rank] for rank in start), strict=True)]
                 for start in set(starts)}  # fmt: skip
    wanted: dict[int, set[tuple[int, Rank]]] = defaultdict(set)
    for chunk, start in enumerate(starts):
        ends = collective.sources(chunk) if collective.reduces else collective.targets(chunk)
        for rank in set(ends) - set(start):
            wanted[first[chunk] + hops_from[start][rank]].add((chunk, rank))
    topology, table = problem.topology, problem.topology.links
    # How long a message holds a link's edges, and what each chunk adds on every edge.
    costs: dict[LinkId, tuple[int, list[tuple[EdgeId, int]]]] = {}
    for link in links.values():
        overhead = int(table.overhead[link])
        held = (
            (edge, topology.busy(link, edge, problem.chunk_size)) for edge in table.edges_of(link)
        )
        costs[link] = overhead, [(edge, busy - overhead) for edge, busy in held if busy]
    rounds: Rounds = []
    for number in range(max(wanted, default=0), 0, -1):
        load: dict[EdgeId, int] = defaultdict(int)
        messages: dict[tuple[Rank, Rank], list[int]] = {}
        choices = []
        for chunk, rank in wanted.pop(number, ()):
            hops = hops_from[starts[chunk]]
            nearer = [
                peer
                for peer in before[rank]
                if hops[peer] == hops[rank] - 1 and (home[peer] == home[rank] or not hops[peer])
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
            if peer not in starts[chunk]:
                wanted[number - 1].add((chunk, peer))
        rounds.append(messages)
    return rounds[::-1]
