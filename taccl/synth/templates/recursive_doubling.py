"""Algorithms in which ranks exchange what they hold at one time: for small buffers.

A step without chunks (:data:`LANDED`) closes a round: what was sent in it is part of what its
receivers send only from the next round on.

Algorithms with about log2(n) rounds: halving and doubling, and Bruck's.

References
----------
Thakur, Rabenseifner, Gropp (2005), sections 4.1 and 4.5; Bruck, Ho, Kipnis, Upfal, Weathersby:
Efficient algorithms for all-to-all communications in multiport message-passing systems (1997).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from taccl.model.problem import Problem
from taccl.synth.templates.steps import (
    HALVES,
    LANDED,
    Step,
    best_links,
    bits,
    blocks,
    halves,
    linked,
    pair_block,
    shards,
)
from taccl.topology.graph import Rank


def halving_doubling(problem: Problem) -> Iterator[Iterator[Step]]:
    """Exchange with the rank that differs in one bit, twice as much (half as much) each time.

    AllGather doubles, first between servers and then from the lowest bit, so that what a rank
    holds lies side by side; ReduceScatter plays it backwards; AllReduce is one after the other.
    Where ranks are no power of two, the first ones are folded: each even one leaves its part to
    its neighbour. A Broadcast scatters shares by halving the ranks each time, and then doubles; a
    Reduce plays that backwards.
    """
    n, name, links = problem.topology.num_ranks, problem.collective.name, best_links(problem)
    if name in ("broadcast", "reduce") and n > 1 and problem.collective.num_chunks > 1:
        spread = [step for step in _halved_and_doubled(problem) if step[0]]
        back: list[Step] = [(c, dst, src, True) for c, src, dst, _ in reversed(spread)]
        if linked(links, spread if name == "broadcast" else back):
            yield iter(spread if name == "broadcast" else back)
    if name not in HALVES or n == 1:
        return
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    folded = [(2 * pair, 2 * pair + 1) for pair in range(extra)]
    active = [*(odd for _, odd in folded), *range(2 * extra, n)]
    steps = list(_folded(problem, active, folded))
    if linked(links, steps) and linked(links, [(c, b, a, r) for c, a, b, r in steps]):
        yield iter(steps)


def _folded(
    problem: Problem, active: Sequence[Rank], folded: Sequence[tuple[Rank, Rank]]
) -> Iterator[Step]:
    """Yield the steps of all phases; ``folded`` are (rank, the active one that acts for it)."""
    name, own = problem.collective.name, blocks(problem)
    acting = dict(folded)
    everything = tuple(range(problem.collective.num_chunks))
    if name == "allreduce" and folded:
        held = shards(everything, len(active))
    else:
        held = [own[rank] for rank in active]
        for even, odd in folded:
            held[active.index(odd)] = (*own[even], *own[odd])
    doubled = list(_doubling(problem, active, held))
    if name == "allreduce":
        yield from ((everything, even, odd, True) for even, odd in acting.items())
        yield from halves(problem, doubled)
        yield from ((everything, odd, even, False) for even, odd in acting.items())
        return
    gather: list[Step] = [(own[even], even, odd, False) for even, odd in folded]
    gather += doubled
    gather += [
        (tuple(c for c in everything if c not in own[even]), odd, even, False)
        for even, odd in folded
    ]
    yield from halves(problem, gather)


def _doubling(
    problem: Problem, active: Sequence[Rank], shares: Sequence[tuple[int, ...]]
) -> Iterator[Step]:
    server = problem.topology.server_of
    turns = sorted(
        bits(len(active)), key=lambda bit: (server[active[0]] == server[active[bit]], bit)
    )
    held = [sorted(chunks) for chunks in shares]
    for bit in turns:
        for place, chunks in enumerate(held):
            if chunks:
                yield tuple(chunks), active[place], active[place ^ bit], False
        held = [sorted([*chunks, *held[place ^ bit]]) for place, chunks in enumerate(held)]


def _halved_and_doubled(problem: Problem) -> Iterator[Step]:
    """Yield a Broadcast: shares to as many ranks as a power of two, from there to all.

    What a rank has already is not sent to it: some steps are empty. The others get all from a
    partner at the end.
    """
    n, root = problem.topology.num_ranks, problem.collective.root or 0
    power = 1 << (n.bit_length() - 1)
    everything = tuple(range(problem.collective.num_chunks))
    shares = shards(everything, power)
    ranks = [(root + place) % n for place in range(n)]
    has: list[set[int]] = [set(everything), *(set[int]() for _ in range(n - 1))]
    for bit in reversed(bits(power)):
        for near in range(0, power, 2 * bit):
            chunks = tuple(c for share in shares[near + bit : near + 2 * bit] for c in share)
            has[near + bit] |= set(chunks)
            yield chunks, ranks[near], ranks[near + bit], False
    for bit in bits(power):
        for place in range(power):
            peer, first = place ^ bit, place & ~(bit - 1)
            chunks = tuple(
                c for share in shares[first : first + bit] for c in share if c not in has[peer]
            )
            has[peer] |= set(chunks)
            yield chunks, ranks[place], ranks[peer], False
    for place in range(power, n):
        yield everything, ranks[place - power], ranks[place], False


def bruck(problem: Problem) -> Iterator[Iterator[Step]]:
    """Send to the rank 1, 2, 4 ... places away, in ceil(log2(n)) rounds, for any n.

    AllGather sends all that a rank holds, as far as the receiver lacks it. AlltoAll sends what has
    that bit in the distance that it must go. Ranks pack what is sent (Bruck, Ho, Kipnis, Upfal and
    Weathersby 1997).
    """
    n, name, links = problem.topology.num_ranks, problem.collective.name, best_links(problem)
    if name not in (*HALVES, "alltoall") or n == 1:
        return
    distances = [1 << i for i in range((n - 1).bit_length())]
    if name == "alltoall":
        steps = [step for far in distances for step in _rotated(problem, far)]
    else:
        own = blocks(problem)
        steps = [
            (
                tuple(c for i in range(min(far, n - far)) for c in own[(rank + i) % n]),
                rank, (rank - far) % n, False,
            )
            for far in distances
            for rank in range(n)
        ]  # fmt: skip
        back = [(c, b, a, r) for c, a, b, r in steps] if name != "allgather" else []
        if not linked(links, back):
            return
        steps = list(halves(problem, steps))
    if linked(links, steps):
        yield iter(steps)


def _rotated(problem: Problem, far: int) -> Iterator[Step]:
    """Yield the messages of the round that takes chunks by so many places."""
    n = problem.topology.num_ranks
    for rank in range(n):
        chunks = [
            chunk
            for distance in range(far, n)
            if distance & far
            for source in ((rank - distance % far) % n,)
            for chunk in pair_block(problem, source, (source + distance) % n)
        ]
        yield tuple(chunks), rank, (rank + far) % n, False


MAX_TRIED = 5
"""Ranks up to which one shot is tried where messages have to wait: each try times all again."""


def recursive_doubling(problem: Problem) -> Iterator[Step] | None:
    """AllReduce: everyone exchanges its whole sum with the rank that differs in one bit.

    Where ranks are no power of two, those beyond the largest one give their values to a partner
    first and get the sum from it at the end (Thakur, Rabenseifner, Gropp 2005, section 4.5).

    AlltoAll, for a power of two of ranks: everyone gives to that rank what is for ranks which have
    that bit as it has; so chunks cross a hypercube along its edges.
    """
    n, name = problem.topology.num_ranks, problem.collective.name
    power = 1 << (n.bit_length() - 1)
    if name not in ("allreduce", "alltoall") or (name == "alltoall" and n > power):
        return None
    server = problem.topology.server_of
    turns = sorted(bits(power), key=lambda bit: (server[0] != server[bit], bit))
    pairs = [(rank, rank - power) for rank in range(power, n)]
    needed = [(rank, rank ^ bit) for rank in range(power) for bit in turns]
    links = best_links(problem)
    if any(pair not in links for pair in (*needed, *pairs, *((b, a) for a, b in pairs))):
        return None
    if name == "alltoall":
        return _crossing_rounds(problem, turns)
    return _doubling_rounds(problem, pairs, turns, power)


def _doubling_rounds(
    problem: Problem, pairs: list[tuple[int, int]], turns: list[int], power: int
) -> Iterator[Step]:
    everything = tuple(range(problem.collective.num_chunks))
    for rank, partner in pairs:
        yield everything, rank, partner, True
    yield LANDED
    for bit in turns:
        for rank in range(power):
            yield everything, rank, rank ^ bit, True
        yield LANDED
    for rank, partner in pairs:
        yield everything, partner, rank, False


def _crossing_rounds(problem: Problem, turns: list[int]) -> Iterator[Step]:
    """Yield the rounds of an AlltoAll; in each, chunks get one more bit of their end right."""
    n, done = problem.topology.num_ranks, 0
    for bit in turns:
        for rank in range(n):
            peer = rank ^ bit
            chunks = tuple(
                chunk
                for src in range(n)
                if (src ^ rank) & ~done == 0
                for dst in range(n)
                if (dst ^ peer) & (done | bit) == 0
                for chunk in pair_block(problem, src, dst)
            )
            yield chunks, rank, peer, False
        done |= bit


def one_shot(problem: Problem) -> Iterator[Step] | None:
    """AllReduce: everyone sends its whole buffer to everyone, and sums all by itself.

    A value must have left for everyone before another is added to it, so that on shared ports
    this exists under the rule ``delay`` only, for buffers that are sent within one alpha. Few ranks
    may hold messages back for that; many are not tried.
    """
    n = problem.topology.num_ranks
    links = best_links(problem)
    if problem.collective.name != "allreduce":
        return None
    if any((a, b) not in links for a in range(n) for b in range(n) if a != b):
        return None
    pairs = [(rank, (rank + shift) % n) for shift in range(1, n) for rank in range(n)]
    if n > MAX_TRIED and not _leaves_in_time(problem, [links[pair] for pair in pairs]):
        return None
    everything = tuple(range(problem.collective.num_chunks))
    return iter([*((everything, *pair, True) for pair in pairs), LANDED])


def _leaves_in_time(problem: Problem, sequence: Sequence[int]) -> bool:
    """Tell whether each rank's last message over these links starts before any gets there."""
    topology = problem.topology
    size = problem.collective.num_chunks * problem.chunk_size
    table = topology.links
    free: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    first: dict[int, int] = {}
    for link in sequence:
        edges = [e for e in table.edges_of(link) if topology.edges[e].beta is not None]
        start = max((free[edge] for edge in edges), default=0)
        free |= {edge: start + topology.busy(link, edge, size) for edge in edges}
        src, dst = int(table.src[link]), int(table.dst[link])
        last[src] = max(last[src], start)
        end = start + topology.arrival(link, size)
        first[dst] = min(first.get(dst, end), end)
    return all(last[rank] < end for rank, end in first.items())
