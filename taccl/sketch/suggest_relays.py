"""Which GPUs talk to other servers: those nearest the NICs, one for each NIC where GPUs share it.

A chunk that meets others of its NIC at one sender can travel with them as one message. Senders and
receivers are different GPUs where a NIC has several, so that each has its links inside the server
for one direction (Shah et al., NSDI 2023, section 4).

What a suggestion looks at in a machine: servers, how fast links are, what NICs they share.
"""

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.files import plain_text_is_safe
from taccl.sketch.restrict import Mask, fewest_hops, joined_ranks
from taccl.topology.graph import Edge, Topology
from taccl.units import Time, ceil_time, format_time

WIDTH = 100
"""Letters in a line."""

NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One part of a sketch.

    Parameters
    ----------
    why
        The reason, with numbers of the machine; becomes a comment above it.
    lines
        YAML; empty: the part is left out, and the comment says why.
    """

    why: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Machine:
    """A topology and what is to be done on it.

    Parameters
    ----------
    topology
        The network.
    collective
        One chunk for each rank (and pair).
    size
        Bytes of the buffer that nccl-tests counts.
    """

    topology: Topology
    collective: Collective
    size: int
    _known: dict[bytes, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @cached_property
    def servers(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every server; a rank's place there is its local number."""
        found: dict[int, list[int]] = defaultdict(list)
        for rank, server in enumerate(self.topology.server_of):
            found[server].append(rank)
        return tuple(tuple(found[server]) for server in sorted(found))

    @cached_property
    def local(self) -> NDArray[np.int64]:
        """The local number of every rank."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for ranks in self.servers:
            number[list(ranks)] = np.arange(len(ranks))
        return number

    @cached_property
    def server(self) -> NDArray[np.int64]:
        """The server of every rank, counted from 0 in their order."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for at, ranks in enumerate(self.servers):
            number[list(ranks)] = at
        return number

    @cached_property
    def across(self) -> Mask:
        """Whether each link joins two servers."""
        table = self.topology.links
        return np.asarray(self.server[table.src] != self.server[table.dst])

    @cached_property
    def betas(self) -> tuple[Fraction, ...]:
        """The different betas of edges, fastest first; 0 is free."""
        return tuple(sorted({edge.beta or Fraction(0) for edge in self.topology.edges}))

    @cached_property
    def edge_class(self) -> NDArray[np.int64]:
        """The position in ``betas`` of every edge."""
        at = {beta: number for number, beta in enumerate(self.betas)}
        return np.array(
            [at[edge.beta or Fraction(0)] for edge in self.topology.edges], dtype=np.int64
        )

    @cached_property
    def link_class(self) -> NDArray[np.int64]:
        """The position in ``betas`` of the slowest edge of every link."""
        table = self.topology.links
        if not len(table):
            return np.zeros(0, dtype=np.int64)
        return np.maximum.reduceat(self.edge_class[table.edge_ids], table.edge_start[:-1])

    def beta(self, link: int) -> Fraction:
        """Return the beta of the slowest edge of a link, in ps for each byte."""
        return self.betas[int(self.link_class[link])]

    def chunk_time(self, link: int) -> Time:
        """Return what the bytes of a chunk take on a link, in picoseconds."""
        return ceil_time(self.beta(link), self.chunk_size)

    @property
    def chunk_size(self) -> Fraction:
        """Bytes of a chunk when each rank (and pair) has one."""
        return Fraction(self.size, self.collective.chunks_in_size)

    @cached_property
    def point_to_point(self) -> bool:
        """Whether every chunk goes from one rank to one other."""
        sets = self.collective.rank_sets
        ends = {*self.collective.source_set.tolist(), *self.collective.target_set.tolist()}
        return all(len(sets[number]) == 1 for number in ends)

    def hops(self, allowed: Mask) -> NDArray[np.int64]:
        """Return the fewest hops over some links from every rank to every other.

        Where there is no way it is the number of ranks.
        """
        key = allowed.tobytes()
        if key not in self._known:
            self._known[key] = fewest_hops(joined_ranks(self.topology, allowed))
        return self._known[key]


def rate(beta: Fraction) -> str:
    """Return a beta as a bandwidth in GB/s: ``21.74 GB/s``."""
    return f"{float(1000 / beta):.4g} GB/s" if beta else "no limit"


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as a YAML flow list: ``[0, 2]``; neighbours as a range: ``0-15``."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return f"[{', '.join(map(str, ordered))}]"


def flow(head: str, items: Sequence[str], tail: str) -> list[str]:
    """Return items between brackets in lines that are not too long, below each other.

    Parameters
    ----------
    head
        Up to the opening bracket.
    items
        What stands between commas; none is broken.
    tail
        The closing bracket.
    """
    kept = (item.replace(" ", NO_BREAK) for item in items)
    text = head.replace(" ", NO_BREAK) + ", ".join(kept) + tail
    wrapped = textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(NO_BREAK, " ") for line in wrapped]


def quoted(text: str) -> str:
    """Return a name as YAML, in quotes unless it needs none."""
    # Other readers of YAML take these words for truth values.
    plain = re.fullmatch(r"(?!(?i:yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9_.-]*", text)
    return text if plain and plain_text_is_safe(text) else json.dumps(text)


Near = Mapping[int, tuple[int, ...]]
"""For every door of a server (its rank-side edge or switch) the local GPUs nearest to it."""

MAX_OPEN = 24
"""Ranks up to which the search may choose where the chunk of a pair leaves its server."""

MAX_NAMED = 6
"""Relays that a comment names."""


@dataclass(frozen=True, slots=True)
class _Doors:
    """What the servers have in common: for door k, in order, the GPUs nearest to it."""

    out: tuple[tuple[int, ...], ...]
    into: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]


def internode(machine: Machine) -> Iterator[Choice]:
    """Yield ways to join the servers, the best first; the last restricts nothing."""
    if len(machine.servers) == 1:
        yield Choice("internode: not needed, there is one server.")
        return
    doors = _common_doors(machine)
    pairs = None if doors is None else _pairs(machine, doors)
    if doors is not None and pairs:
        yield _relays(machine, doors, pairs)
    yield Choice(
        "internode: the servers are joined in different ways, so every GPU may send to every GPU"
        " of the other servers that it has a link to.",
        ("internode:", "  relays: fully-connected"),
    )


def _common_doors(machine: Machine) -> _Doors | None:
    """Return the doors of every server, where all servers have alike ones; else None."""
    found = set()
    for sending in (True, False):
        costs = _door_costs(machine, sending=sending)
        for server in range(len(machine.servers)):
            near, users = _nearest(costs, server)
            found.add((sending, near, users))
    if len(found) != 2 or len({len(ranks) for ranks in machine.servers}) > 1:
        return None
    into, out = (next(one for one in found if one[0] is way) for way in (False, True))
    return _Doors(out[1], into[1], out[2])


Costs = dict[tuple[int, int], dict[int, tuple[Fraction, int]]]
"""By server and door: for every local GPU the beta and alpha of its fastest link through it."""


def _door_costs(machine: Machine, *, sending: bool) -> Costs:
    topology, table = machine.topology, machine.topology.links
    costs: Costs = defaultdict(dict)
    for link in machine.across.nonzero()[0].tolist():
        rank = int((table.src if sending else table.dst)[link])
        path = [topology.edges[edge] for edge in table.edges_of(link)]
        key = int(machine.server[rank]), _door(machine, path, sending=sending)
        cost, gpu = (machine.beta(link), int(table.alpha[link])), int(machine.local[rank])
        costs[key][gpu] = min(cost, costs[key].get(gpu, cost))
    return costs


def _door(machine: Machine, path: Sequence[Edge], *, sending: bool) -> int:
    """Return what a path leaves (or enters) a server by: the edge of a NIC to what joins servers.

    Where nothing says what joins servers, it is the first switch as ``-1 - vertex``, or a wire.
    """
    n, switches = machine.topology.num_ranks, machine.topology.switches
    own: list[Edge] = []
    for edge in path if sending else path[::-1]:
        own.append(edge)
        far = edge.head if sending else edge.tail
        if far >= n and switches[far - n].across_servers:
            return next((one.id for one in reversed(own) if one.beta), edge.id)
    far = own[0].head if sending else own[0].tail
    return own[0].id if far < n else -1 - far


def _nearest(
    costs: Costs, server: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return for every door of a server, in order, its nearest GPUs and all that use it."""
    near, users = [], []
    for (place, _), by_gpu in sorted(costs.items()):
        if place == server:
            best = min(by_gpu.values())
            near.append(tuple(sorted(gpu for gpu, cost in by_gpu.items() if cost == best)))
            users.append(tuple(sorted(by_gpu)))
    return tuple(near), tuple(users)


def _pairs(machine: Machine, doors: _Doors) -> dict[int, tuple[int, ...]]:
    """Return the receivers of every sender, in local numbers; empty: links are missing."""
    table = machine.topology.links
    joined = {
        (int(machine.local[table.src[link]]), int(machine.local[table.dst[link]]))
        for link in machine.across.nonzero()[0].tolist()
    }
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    found: dict[int, list[int]] = defaultdict(list)
    for number, near in enumerate(doors.out):
        sender = min(near, key=lambda gpu: (sends[gpu], receives[gpu], gpu))
        sends[sender] += 1
        into = doors.into[number % len(doors.into)]
        # The same door of the other server, unless rails or wires lead elsewhere.
        every = (*into, *(gpu for gpus in doors.into for gpu in gpus))
        receivers = [gpu for gpu in every if (sender, gpu) in joined]
        if not receivers:
            return {}
        preferred = [gpu for gpu in receivers if gpu in into] or receivers
        receiver = min(preferred, key=lambda gpu: (receives[gpu], sends[gpu], gpu))
        receives[receiver] += 1
        if receiver not in found[sender]:
            found[sender].append(receiver)
    return {sender: tuple(sorted(found[sender])) for sender in sorted(found)}


def _relays(machine: Machine, doors: _Doors, pairs: Mapping[int, tuple[int, ...]]) -> Choice:
    size = len(machine.servers[0])
    senders = _senders(machine, doors, pairs)
    direct = pairs == {gpu: (gpu,) for gpu in range(size)}
    lines = ["internode:"]
    if direct:
        lines.append("  relays: direct-map")
    else:
        rows = [f"{one}: [{', '.join(map(str, to))}]" for one, to in pairs.items()]
        lines += flow("  relays: {", rows, "}")
    if not _left_open(machine, direct=direct):
        rows = [f"{gpu}: {one}" for gpu, one in enumerate(senders)]
        lines += flow("  chunk_to_relay: {", rows, "}")
    return Choice(_why(machine, doors, pairs, direct=direct), tuple(lines))


def _left_open(machine: Machine, *, direct: bool) -> bool:
    """Tell whether a chunk may leave by any GPU: by its own, or by that of its target's number."""
    return direct and machine.point_to_point and machine.topology.num_ranks <= MAX_OPEN


def _senders(
    machine: Machine, doors: _Doors, pairs: Mapping[int, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the sender of every local GPU: of a door that it uses, else the nearest."""
    table, ranks = machine.topology.links, machine.servers[0]
    hops = machine.hops(~machine.across)
    speed = {
        (int(machine.local[table.src[link]]), int(machine.local[table.dst[link]])):
        machine.beta(link)
        for link in (~machine.across).nonzero()[0].tolist()
        if table.src[link] in ranks
    }  # fmt: skip
    load: Counter[int] = Counter()
    chosen: dict[int, int] = {}
    shares = {
        gpu: {sender for near in doors.out if gpu in near for sender in near if sender in pairs}
        for gpu in range(len(ranks))
    }
    for gpu in sorted(range(len(ranks)), key=lambda gpu: (gpu not in pairs, gpu)):
        if gpu in pairs:
            best = gpu
        else:
            best = min(
                sorted(shares[gpu]) or sorted(pairs),
                key=lambda sender: (
                    hops[ranks[gpu], ranks[sender]], load[sender],
                    speed.get((gpu, sender), Fraction(0)), sender,
                ),
            )  # fmt: skip
        chosen[gpu] = best
        load[best] += 1
    return tuple(chosen[gpu] for gpu in range(len(ranks)))


def _why(
    machine: Machine, doors: _Doors, pairs: Mapping[int, tuple[int, ...]], *, direct: bool
) -> str:
    topology, table = machine.topology, machine.topology.links
    link = int(machine.across.nonzero()[0][0])
    cost = f"{rate(machine.beta(link))} and {format_time(int(table.alpha[link]))}"
    count = len(doors.out)
    inside = (~machine.across).nonzero()[0]
    wide = ""
    if len(inside):
        fastest = min(machine.betas[int(c)] for c in machine.link_class[inside])
        wide = f" (a link inside a server: {rate(fastest)})"
    if direct:
        told = (
            "A chunk may cross first and go on inside the other server, or the other way round, as"
            " suits the search."
            if _left_open(machine, direct=direct)
            else "Its own chunks leave by it: all ways are used alike, and no chunk waits for"
            " another GPU."
        )
        return (
            f"internode: each of the {len(pairs)} GPUs of a server has a way out of its own, of"
            f" {cost}{wide}. So each sends to the GPU with its number in the other servers. {told}"
        )
    ways = "one way" if count == 1 else f"{count} ways"
    head = f"internode: a server of {topology.name} has {ways} out, of {cost} each{wide}"
    named = [f"{one} to {', '.join(map(str, to))}" for one, to in pairs.items()]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    told = "; ".join(named[:MAX_NAMED]) + more
    shared = max(map(len, doors.users))
    if shared == 1:
        return (
            f"{head}, each for one GPU. So these send and receive ({told}), and the chunks of other"
            " GPUs leave by the nearest of them."
        )
    alpha = format_time(int(table.alpha[link]))
    return (
        f"{head}, which up to {shared} GPUs share. One GPU nearest to each sends, another receives"
        f" where there are two ({told}). What meets at a sender can go as one message: one alpha of"
        f" {alpha} and not up to {shared}. A chunk leaves by the sender of its GPU's own way out,"
        " else by the nearest one."
    )
