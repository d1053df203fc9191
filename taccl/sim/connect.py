"""Which link every connection of a program uses.

XML names only a peer and a channel. The connections of a pair, in order of channel, use the links
of the pair in turn: the i-th takes link ``i mod L``. Connections are what threadblocks name as
their ends, whether or not a step uses them.
"""

import heapq
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from taccl.errors import ProgramError, TacclWarning
from taccl.msccl.program import RECEIVES, SENDS, Program, Threadblock
from taccl.topology import Topology
from taccl.units import Time, ceil_time

End = tuple[int, int]
"""Rank and threadblock id."""

ROUTED = -1
"""Stands for a link where a message is routed over several."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One FIFO from a rank to a rank, with what a message on it costs.

    Parameters
    ----------
    src, dst, channel
        What the XML calls it.
    link
        The link it uses, or ``ROUTED``.
    alpha, overhead
        Of the link, or summed over the route, in picoseconds.
    max_beta
        The slowest edge's, in picoseconds for each byte.
    held
        Edges a message holds, each with its beta.
    """

    src: int
    dst: int
    channel: int
    link: int
    alpha: Time
    overhead: Time
    max_beta: Fraction
    held: tuple[tuple[int, Fraction], ...]

    def flight(self, size: Fraction | int) -> "Flight":
        """Return what a message of ``size`` bytes does to the network."""
        times: dict[Time, list[int]] = {}
        for edge, beta in self.held:
            times.setdefault(self.overhead + ceil_time(beta, size), []).append(edge)
        releases = tuple((time, tuple(times[time])) for time in sorted(times)) or ((0, ()),)
        return Flight(self.alpha + ceil_time(self.max_beta, size), releases)


@dataclass(frozen=True, slots=True)
class Flight:
    """The course of one message after its start.

    Parameters
    ----------
    arrival
        When it is at its destination.
    releases
        (when, edges released then), ascending; the last one frees the sending threadblock.
    """

    arrival: Time
    releases: tuple[tuple[Time, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """All connections of a program.

    Parameters
    ----------
    connections
        Ascending by (src, dst, channel).
    senders, receivers
        For each connection the threadblock with steps at that end, or None.
    """

    connections: tuple[Connection, ...]
    senders: tuple[End | None, ...]
    receivers: tuple[End | None, ...]


def wire(program: Program, topology: Topology, *, route: bool = False) -> Wiring:
    """Return the connections of a program on a topology.

    Parameters
    ----------
    route
        Whether a pair without a link uses the shortest path through other ranks, whose edges a
        message holds all at once; warns once a pair.

    Raises
    ------
    ProgramError
        When the rank counts differ, a pair has no link, or two threadblocks share one end.
    """
    if program.num_ranks != topology.num_ranks:
        raise ProgramError(
            f"{program.name} has {program.num_ranks} ranks, {topology.name} has"
            f" {topology.num_ranks}",
            fix="use the topology the program was made for, or another --nodes",
        )
    named: dict[tuple[int, int, int], End] = {}
    senders: dict[tuple[int, int, int], End] = {}
    receivers: dict[tuple[int, int, int], End] = {}
    for rank, block in program.blocks():
        for key, sends in _ends(rank, block):
            named.setdefault(key, (rank, block.id))
            if any(step.op in (SENDS if sends else RECEIVES) for step in block.steps):
                _claim(senders if sends else receivers, key, (rank, block.id))
    found: list[Connection] = []
    keys = sorted(named)
    for (src, dst), group in itertools.groupby(keys, key=lambda key: key[:2]):
        channels = [key[2] for key in group]
        found.extend(_pair(topology, (src, dst), channels, named, route=route))
    return Wiring(
        tuple(found),
        tuple(senders.get(key) for key in keys),
        tuple(receivers.get(key) for key in keys),
    )


def _ends(rank: int, block: Threadblock) -> Iterator[tuple[tuple[int, int, int], bool]]:
    if block.send_to is not None:
        yield (rank, block.send_to, block.channel), True
    if block.recv_from is not None:
        yield (block.recv_from, rank, block.channel), False


def _claim(ends: dict[tuple[int, int, int], End], key: tuple[int, int, int], end: End) -> None:
    if key in ends:
        src, dst, channel = key
        raise ProgramError(
            f"rank {end[0]}: threadblocks {ends[key][1]} and {end[1]} share one end of the"
            f" connection {src} -> {dst} on channel {channel}",
            fix="give each threadblock of a peer its own channel",
        )
    ends[key] = end


def _pair(
    topology: Topology,
    pair: tuple[int, int],
    channels: list[int],
    named: dict[tuple[int, int, int], End],
    *,
    route: bool,
) -> Iterator[Connection]:
    src, dst = pair
    inside = 0 <= src < topology.num_ranks and 0 <= dst < topology.num_ranks
    links = topology.links_between(src, dst) if inside else ()
    paths: list[tuple[int, ...]] = [(link,) for link in links]
    if not paths and route and inside:
        paths = _route(topology, src, dst)
    if not paths:
        rank, block = named[src, dst, channels[0]]
        raise ProgramError(
            f"{topology.name} has no link from rank {src} to rank {dst}, which threadblock {block}"
            f" of rank {rank} uses",
            fix="use the topology the program was made for, or --route to go through other ranks",
        )
    for position, channel in enumerate(channels):
        yield _connection(topology, (src, dst, channel), paths[position % len(paths)])


def _connection(topology: Topology, key: tuple[int, int, int], path: tuple[int, ...]) -> Connection:
    table = topology.links
    edges = dict.fromkeys(edge for link in path for edge in table.edges_of(link))
    betas = [(edge, topology.edges[edge].beta) for edge in edges]
    held = tuple((edge, beta) for edge, beta in betas if beta is not None)
    return Connection(
        *key,
        link=path[0] if len(path) == 1 else ROUTED,
        alpha=sum(int(table.alpha[link]) for link in path),
        overhead=sum(int(table.overhead[link]) for link in path),
        max_beta=max((beta for _, beta in held), default=Fraction(0)),
        held=held,
    )


def _route(topology: Topology, src: int, dst: int) -> list[tuple[int, ...]]:
    """Return the path of fewest links, then least alpha, then lowest ids; empty when none."""
    table = topology.links
    heap: list[tuple[int, Time, tuple[int, ...], int]] = [(0, 0, (), src)]
    done: set[int] = set()
    while heap:
        hops, alpha, path, rank = heapq.heappop(heap)
        if rank == dst and path:
            warnings.warn(
                f"{topology.name} has no link from rank {src} to rank {dst}; messages are routed"
                f" through rank {', '.join(str(int(table.src[link])) for link in path[1:])}",
                TacclWarning,
                stacklevel=2,
            )
            return [path]
        if rank in done:
            continue
        done.add(rank)
        for link in table.leaving(rank):
            step = (hops + 1, alpha + int(table.alpha[link]), (*path, link), int(table.dst[link]))
            heapq.heappush(heap, step)
    return []
