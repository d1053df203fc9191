"""Rules on numbers: units that look wrong, what no hardware has, what differs from its kind."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction

from taccl.lint.facts import Facts, Raw, listed
from taccl.topology import Edge
from taccl.topology_rates import FREE, gigabytes, rank_rates
from taccl.units import PS_PER_US, format_time

SLOWEST = Fraction(1, 10)
"""GB/s below which a bandwidth is likely to be in other units: 1 Gb/s Ethernet is 0.125."""

FASTEST_RANK = Fraction(1800)
"""GB/s of the fastest GPU in one direction: NVLink 6, 3.6 TB/s in both."""

FASTEST_NIC = Fraction(100)
"""GB/s of the fastest NIC in one direction: 800 Gb/s."""

MOST_RANK = FASTEST_RANK + 2 * FASTEST_NIC
"""GB/s of all edges of a rank: its links to GPUs, and PCIe and a NIC beside them."""

LONGEST = 1000 * PS_PER_US
"""Picoseconds of a link's alpha above which its unit is likely to be wrong: a millisecond."""

FEW = 2
"""How many times slower than the median of its server a rank may be: a corner of a mesh is."""

MUCH = 8
"""How many times slower than the median of its kind an edge may be."""

LATE = 20
"""How many times the median alpha of its kind an edge may have."""


def _rate(value: Fraction) -> str:
    return f"{float(value):.4g} GB/s"


def _median(values: Iterable[Fraction | int], *, low: bool = False) -> Fraction:
    """Return the middle value; of two, the one that makes fewer others look slow."""
    ordered = sorted(map(Fraction, values))
    return ordered[(len(ordered) - low) // 2]


def slow_bandwidth(facts: Facts) -> Iterator[Raw]:
    """Find bandwidths that are likely to be in another unit."""
    found = [e for e in facts.topology.edges if e.beta is not None and e.beta * SLOWEST > 1000]
    if found:
        least = min(gigabytes(e.beta) for e in found if e.beta is not None)
        problem = f"{_rate(least)} is less than {_rate(SLOWEST)}, which no machine has"
        fix = "check the unit: 25GB/s, 200Gb/s or 46us/MB; a plain number is GB/s"
        yield facts.edges(found), problem, fix, (found[0].id,)


def fast_rank(facts: Facts) -> Iterator[Raw]:
    """Find ranks that send or receive more than any GPU."""
    rates = [max(pair) for pair in zip(*rank_rates(facts.topology), strict=True)]
    found = [rank for rank, rate in enumerate(rates) if rate > MOST_RANK]
    if found:
        yield (
            listed("rank", list(map(str, found))),
            f"{_rate(max(rates))} in one direction is more than any GPU has"
            f" ({_rate(FASTEST_RANK)} of NVLink 6, {_rate(2 * FASTEST_NIC)} beside it)",
            "give what goes in one direction: data sheets add up both, and count bits as Gb/s",
            facts.edges_of(found[0]),
        )  # fmt: skip


def fast_nic(facts: Facts) -> Iterator[Raw]:
    """Find edges between servers that are faster than the NICs of all ranks that use them."""
    topology, home = facts.topology, facts.homes
    first = topology.num_ranks
    touch = {
        (min(edge.tail, edge.head), max(edge.tail, edge.head))
        for edge in topology.edges
        if min(edge.tail, edge.head) < first
    }
    users = Counter(vertex for _, vertex in touch)
    found = []
    for edge in topology.edges:
        if edge.beta is None or min(edge.tail, edge.head) < first:
            continue
        for near, far in ((edge.tail, edge.head), (edge.head, edge.tail)):
            outside = topology.switches[far - first].across_servers or home[far] is not None
            if home[near] is not None and home[far] != home[near] and outside:
                if gigabytes(edge.beta) > FASTEST_NIC * max(1, users[near]):
                    found.append(edge)
                break
    if found:
        most = max(gigabytes(e.beta) for e in found if e.beta is not None)
        yield (
            facts.edges(found),
            f"{_rate(most)} between servers is more than any NIC has ({_rate(FASTEST_NIC)})",
            "check the unit: NICs are sold by bits, 400Gb/s is 50GB/s; give every NIC its entry",
            (found[0].id,),
        )  # fmt: skip


def long_latency(facts: Facts) -> Iterator[Raw]:
    """Find links whose latency is likely to be in another unit."""
    alpha = facts.topology.links.alpha
    chosen = alpha > LONGEST
    if chosen.any():
        where, edges = facts.links_at(chosen)
        problem = f"an alpha of {format_time(int(alpha.max()))} is more than 1 ms"
        slowest = max(edges, key=lambda edge: facts.topology.edges[edge].alpha)
        yield where, problem, "check the unit: 0.7us or 700ns; a plain number is us", (slowest,)


def no_latency(facts: Facts) -> Iterator[Raw]:
    """Find links on which no edge has a latency."""
    chosen = facts.topology.links.alpha == 0
    if chosen.any():
        where, edges = facts.links_at(chosen)
        fix = "give an alpha; without one, many small messages are as good as a large one"
        yield where, f"{int(chosen.sum())} links have no alpha", fix, edges


def free_path(facts: Facts) -> Iterator[Raw]:
    """Find links on which no edge has a bandwidth."""
    chosen = facts.slowest[0] == FREE
    if chosen.any():
        where, edges = facts.links_at(chosen)
        count = f"{int(chosen.sum())} of {len(chosen)} links"
        problem = f"{count} have no bandwidth anywhere: messages of any size cross in no time"
        yield where, problem, "give one of the edges on the way a bandwidth", edges


def slow_rank(facts: Facts) -> Iterator[Raw]:
    """Find ranks that send or receive much less than the others of their server."""
    topology = facts.topology
    members: dict[int, list[int]] = defaultdict(list)
    for rank, server in enumerate(topology.server_of):
        members[server].append(rank)
    for what, rates in zip(("send", "receive"), rank_rates(topology), strict=True):
        found, of_all = [], _median(rates, low=True)
        for ranks in members.values():
            own = len(ranks) > 2
            median = _median((rates[r] for r in ranks), low=True) if own else of_all
            found += [(rank, median) for rank in ranks if 0 < rates[rank] * FEW < median]
        if found:
            rank, median = found[0]
            yield (
                listed("rank", [str(rank) for rank, _ in found]),
                f"can {what} {_rate(rates[rank])}, the median of its server is {_rate(median)}",
                "check the bandwidths of its edges for a typing error, or a missing edge",
                facts.edges_of(rank),
            )  # fmt: skip


def _kinds(facts: Facts) -> Iterator[list[Edge]]:
    """Yield edges that are likely to be alike: ports of a switch, wires inside or between servers.

    Edges between switches belong to the switch that they enter.
    """
    first, home = facts.topology.num_ranks, facts.homes
    kinds: dict[tuple[str, int], list[Edge]] = defaultdict(list)
    for edge in facts.topology.edges:
        if edge.head >= first:
            kinds["into", edge.head].append(edge)
        elif edge.tail >= first:
            kinds["out of", edge.tail].append(edge)
        else:
            kinds["wire", int(home[edge.tail] == home[edge.head])].append(edge)
    yield from (edges for edges in kinds.values() if len(edges) > 2)


def slow_edge(facts: Facts) -> Iterator[Raw]:
    """Find edges that are much slower or later than others of their kind."""
    slow, late = [], []
    for edges in _kinds(facts):
        betas = [edge.beta for edge in edges if edge.beta is not None]
        beta = _median(betas) if len(betas) > 2 else None
        alpha = _median([edge.alpha for edge in edges])
        for edge in edges:
            if beta is not None and edge.beta is not None and edge.beta > beta * MUCH:
                slow.append((edge, f"{_rate(gigabytes(edge.beta))}, the median of its kind is"
                                   f" {_rate(gigabytes(beta))}"))  # fmt: skip
            if edge.alpha > alpha * LATE > 0:
                late.append((edge, f"an alpha of {format_time(edge.alpha)}, the median of its kind"
                                   f" is {format_time(int(alpha))}"))  # fmt: skip
    for found in (slow, late):
        if found:
            fix = "check the number for a typing error, or leave it if the machine is so"
            where = facts.edges([edge for edge, _ in found])
            yield where, found[0][1], fix, (found[0][0].id,)
