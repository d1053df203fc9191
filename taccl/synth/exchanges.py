"""Algorithms in which ranks exchange what they hold at one time: for small buffers.

A step without chunks (:data:`LANDED`) closes a round: what was sent in it is part of what its
receivers send only from the next round on.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from taccl.synth.problem import Problem
from taccl.synth.steps import LANDED, Step, best_links, bits, pair_block

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
