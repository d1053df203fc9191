"""How soon a gather can end where ports and doors take one message after the other.

The other bounds see amounts, or one piece of data, and never both: where the latency of a message
is about as long as its data, they say little. Here a server is looked at whose ranks have one port
each, and all that comes in passes a few doors: what has come in late must still be doubled inside,
in few large messages or many small ones, beside what else ports have to carry. Whether a time is
too short for that is asked of a linear program (growth_program.py, growth_prices.py), and which is
the longest such time by halving. That takes seconds, so it is asked for only where it may count.

A ReduceScatter is an AllGather on the network turned round, read backwards: each message holds its
ports as long, though at the other end of its way.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from taccl.bounds.growth_prices import share_at_most
from taccl.bounds.growth_program import Grid, Port, Server, program_of
from taccl.topology import EdgeId, LinkId, Rank, Topology
from taccl.units import Time

KIND = "growth"
"""The kind of bound."""

GATHERS = ("allgather", "reducescatter")
"""Collectives that the bound is for."""

POINTS, FINEST = 100, 16
"""Cells of the time, and cells of a message's overhead, at most."""

WINDOWS = 7
"""Classes of what comes in."""

MOST_RANKS = 128
"""Above this programs get too large."""

TRIES = 4
"""Times that are asked for, unless said otherwise."""


def too_short(topology: Topology, collective: str, size: int, time: Time) -> bool:
    """Tell whether it is proved that no algorithm takes ``time`` picoseconds or less.

    Parameters
    ----------
    collective
        One of GATHERS; of others nothing is proved.
    size
        Bytes of the buffer.
    """
    return any(_is_short(server, time) for server in _servers(topology, collective, size))


def growth(topology: Topology, collective: str, size: int, low: Time, tries: int = TRIES) -> Time:
    """Return the best bound that was found, in picoseconds, or the one that is known.

    Parameters
    ----------
    low
        A bound that is known.
    tries
        How many times are asked for beyond those that are proved to be too short.
    """
    for server in _servers(topology, collective, size):
        low = _raised(server, low, tries)
    return low


def _raised(server: Server, low: Time, tries: int) -> Time:
    """Return what one server proves: upwards until a time is not too short, then by halving."""
    high = None
    while tries:
        time = 3 * low // 2 if high is None else (low + high) // 2
        if not low < time:
            break
        if _is_short(server, time):
            low = time + 1
        else:
            high = time
        tries -= high is not None
    return low


def _is_short(server: Server, time: Time) -> bool:
    grid = _grid(server, time)
    if grid is None:
        return False
    share = share_at_most(program_of(server, grid))
    return share is not None and share < 1


def _grid(server: Server, time: Time) -> Grid | None:
    """Return the cells for a time; None where a message is too short for them."""
    overhead = min(server.inner.overhead, server.outer.overhead)
    parts = max(2, min(FINEST, overhead * POINTS // max(1, time)))
    cell = (overhead - 1) // parts
    if cell < 1 or time // cell > POINTS:
        return None
    last = (time - 1) // cell + 1
    first = server.outer.overhead // cell
    if first > last:
        return None
    count = min(WINDOWS, last + 1 - first)
    windows = [first + (last + 1 - first) * part // count for part in range(count + 1)]
    return Grid(cell, last, tuple(windows))


def _servers(topology: Topology, collective: str, size: int) -> list[Server]:
    """Return one server of each kind; none where some server is not as the program wants it."""
    if collective not in GATHERS or topology.num_ranks > MOST_RANKS:
        return []
    network = topology.reversed() if collective == "reducescatter" else topology
    members: dict[int, list[Rank]] = defaultdict(list)
    for rank, server in enumerate(network.server_of):
        members[server].append(rank)
    found = [(len(ranks), *_ports_of(network, ranks)) for ranks in members.values()]
    if len(found) < 2:
        return []
    known = [(n, inner, doors) for n, inner, doors in found if inner is not None and doors]
    if len(known) < len(found):
        return []
    chunk = Fraction(size, network.num_ranks)
    sender = _fastest([inner for _, inner, _ in known], chunk)
    fed = _fastest([doors.port for _, _, doors in known], chunk)
    feeding = max(doors.feeding for _, _, doors in known)
    return list(dict.fromkeys(
        Server(
            n, network.num_ranks - n, doors.number, _fastest([inner], chunk),
            _fastest([doors.port], chunk), sender, fed, feeding,
        )
        for n, inner, doors in known
    ))  # fmt: skip


class Wire(NamedTuple):
    """Picoseconds for a message, at least, and for a byte of it."""

    overhead: Time
    beta: Fraction


class Doors(NamedTuple):
    """How many edges lead into a server, the fastest of them, and how many lead to one rank."""

    number: int
    port: Wire
    feeding: int


def _fastest(wires: Sequence[Wire], chunk: Fraction) -> Port:
    beta = min(wire.beta for wire in wires)
    return Port(min(wire.overhead for wire in wires), beta * chunk)


def _ports_of(topology: Topology, ranks: Sequence[Rank]) -> tuple[Wire | None, Doors | None]:
    """Return the port of a server's ranks, None where one has not just one; and its doors."""
    inside, table = set(ranks), topology.links
    received: dict[Rank, list[LinkId]] = defaultdict(list)
    sent: dict[Rank, list[LinkId]] = defaultdict(list)
    come: list[LinkId] = []
    for link, (src, dst) in enumerate(zip(table.src.tolist(), table.dst.tolist(), strict=True)):
        if dst in inside and src in inside:
            sent[src].append(link)
            received[dst].append(link)
        elif dst in inside:
            come.append(link)
    betas = [_shared(topology, side[rank]) for side in (sent, received) for rank in ranks]
    links = [link for side in sent.values() for link in side]
    known = [beta for beta in betas if beta is not None]
    port = None
    if links and len(known) == len(betas):
        port = Wire(int(table.overhead[links].min()), min(known))
    return port, _doors(topology, come)


def _shared(topology: Topology, links: Sequence[LinkId]) -> Fraction | None:
    """Return the time of a byte on the slowest edge that all of some links cross, if any."""
    edges = [set(topology.links.edges_of(link)) for link in links]
    betas = [topology.edges[edge].beta for edge in set.intersection(*edges)] if edges else []
    return max((beta for beta in betas if beta is not None), default=None)


def _doors(topology: Topology, links: Sequence[LinkId]) -> Doors | None:
    """Return the doors: of every link the slowest edge, of equals the nearest to its end."""
    doors: dict[EdgeId, Fraction] = {}
    of_rank: dict[Rank, set[EdgeId]] = defaultdict(set)
    for link in links:
        edges = [
            (beta, place, edge)
            for place, edge in enumerate(topology.links.edges_of(link))
            if (beta := topology.edges[edge].beta) is not None
        ]
        if not edges:
            return None
        beta, _, door = max(edges)
        doors[door] = beta
        of_rank[int(topology.links.dst[link])].add(door)
    if not doors:
        return None
    wire = Wire(int(topology.links.overhead[list(links)].min()), min(doors.values()))
    return Doors(len(doors), wire, max(map(len, of_rank.values())))
