"""A sketch for a machine: what its links, switches and NICs say about good algorithms.

Parts are chosen in an order in which each can look at what the parts before it left: links, ways
between servers, switches, chunks, paths, symmetry. Where the best way between servers cuts a rank
off, the next one is taken. In the end what is written is tried: it loads and applies.

Between servers talk the GPUs nearest the NICs, one for each NIC where GPUs share it. A chunk that
meets others of its NIC at one sender can travel with them as one message. Senders and receivers are
different GPUs where a NIC has several, so that each has its links inside the server for one
direction (Shah et al., NSDI 2023, section 4).
"""

import textwrap
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.errors import InputError, NoScheduleError
from taccl.files import parse_document
from taccl.sketch import apply_sketch
from taccl.sketch.native import Sketch, offset_permutation, read_native
from taccl.sketch.restrict import (
    Locals,
    Mask,
    fewest_hops,
    joined_ranks,
    keeps_sketch,
    switch_in_server,
)
from taccl.topology.file import flow_text
from taccl.topology.graph import Edge, LogicalTopology, Permutation, Topology
from taccl.topology.structure import FREE, slowest_edges
from taccl.topology.symmetry import free_group, kept_powers, largest_order, make_group, search_group
from taccl.units import Time, ceil_time, format_size, format_time

WIDTH = 100
"""Letters in a line."""

NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One part of a sketch.

    `why` is the reason, with numbers of the machine, and becomes a comment above the YAML `lines`;
    without any the part is left out, and the comment says why.
    """

    why: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Machine:
    """A topology and what is to be done on it.

    The `collective` has one chunk for each rank (and pair) of the `topology`; `size` is bytes of
    the buffer that nccl-tests counts.
    """

    topology: Topology
    collective: Collective
    size: int
    _known: dict[bytes, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @cached_property
    def places(self) -> Locals:
        """The servers, and the local number of every rank."""
        return Locals(self.topology)

    @cached_property
    def betas(self) -> tuple[Fraction, ...]:
        """The different betas of edges, fastest first, after 0, which is free."""
        return (Fraction(0), *slowest_edges(self.topology)[1])

    @cached_property
    def link_class(self) -> NDArray[np.int64]:
        """The position in ``betas`` of the slowest edge of every link."""
        return slowest_edges(self.topology)[0] - FREE

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
    """Return ``items``, none broken, in lines below each other between ``head`` and ``tail``."""
    kept = (item.replace(" ", NO_BREAK) for item in items)
    text = head.replace(" ", NO_BREAK) + ", ".join(kept) + tail
    wrapped = textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(NO_BREAK, " ") for line in wrapped]


MAX_OPEN = 24
"""Ranks up to which the search may choose where the chunk of a pair leaves its server."""

MAX_NAMED = 6
"""Relays that a comment names."""


@dataclass(frozen=True, slots=True)
class _Gateways:
    """What the servers have in common: for gateway k, in order, the GPUs nearest to it."""

    out: tuple[tuple[int, ...], ...]
    into: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]


def internode(machine: Machine) -> Iterator[Choice]:
    """Yield ways to join the servers, the best first; the last restricts nothing."""
    if len(machine.topology.servers) == 1:
        yield Choice("internode: not needed, there is one server.")
        return
    gateways = _common_gateways(machine)
    pairs = None if gateways is None else _pairs(machine, gateways)
    if gateways is not None and pairs:
        direct = pairs == {gpu: (gpu,) for gpu in range(len(machine.topology.servers[0]))}
        # A chunk may leave by its own GPU or by that of its target's number.
        either = direct and machine.point_to_point and machine.topology.num_ranks <= MAX_OPEN
        rows = [f"{one}: [{', '.join(map(str, to))}]" for one, to in pairs.items()]
        lines = ["  relays: direct-map"] if direct else flow("  relays: {", rows, "}")
        if not either:
            senders = enumerate(_senders(machine, gateways, pairs))
            lines += flow("  chunk_to_relay: {", [f"{gpu}: {one}" for gpu, one in senders], "}")
        why = _why(machine, gateways, pairs, direct=direct, either=either)
        yield Choice(why, ("internode:", *lines))
    yield Choice(
        "internode: the servers are joined in different ways, so every GPU may send to every GPU"
        " of the other servers that it has a link to.",
        ("internode:", "  relays: fully-connected"),
    )


def _common_gateways(machine: Machine) -> _Gateways | None:
    """Return the gateways of every server, where all servers have alike ones; else None."""
    topology, table, places = machine.topology, machine.topology.links, machine.places
    sides: list[tuple[tuple[int, ...], ...]] = []
    for sending in (False, True):
        # By server and gateway: the beta and alpha of every local GPU's fastest link through it.
        costs: dict[tuple[int, int], dict[int, tuple[Fraction, int]]] = defaultdict(dict)
        for link in places.across.nonzero()[0].tolist():
            rank = int((table.src if sending else table.dst)[link])
            path = [topology.edges[edge] for edge in table.edges_of(link)]
            key = int(places.server[rank]), _gateway(machine, path, sending=sending)
            cost, gpu = (machine.beta(link), int(table.alpha[link])), int(places.number[rank])
            costs[key][gpu] = min(cost, costs[key].get(gpu, cost))
        found = set()
        for server in range(len(topology.servers)):
            gpus = [by_gpu for (place, _), by_gpu in sorted(costs.items()) if place == server]
            best = [min(by_gpu.values()) for by_gpu in gpus]
            near = tuple(
                tuple(sorted(gpu for gpu, cost in by_gpu.items() if cost == least))
                for by_gpu, least in zip(gpus, best, strict=True)
            )
            found.add((near, tuple(tuple(sorted(by_gpu)) for by_gpu in gpus)))
        if len(found) > 1:
            return None
        sides += found.pop()
    if len({len(ranks) for ranks in topology.servers}) > 1:
        return None
    into, _, out, users = sides
    return _Gateways(out, into, users)


def _gateway(machine: Machine, path: Sequence[Edge], *, sending: bool) -> int:
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


def _pairs(machine: Machine, gateways: _Gateways) -> dict[int, tuple[int, ...]]:
    """Return the receivers of every sender, in local numbers; empty: links are missing."""
    table = machine.topology.links
    joined = {
        (int(machine.places.number[table.src[link]]), int(machine.places.number[table.dst[link]]))
        for link in machine.places.across.nonzero()[0].tolist()
    }
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    found: dict[int, list[int]] = defaultdict(list)
    for number, near in enumerate(gateways.out):
        sender = min(near, key=lambda gpu: (sends[gpu], receives[gpu], gpu))
        sends[sender] += 1
        into = gateways.into[number % len(gateways.into)]
        # The same gateway of the other server, unless rails or wires lead elsewhere.
        every = (*into, *(gpu for gpus in gateways.into for gpu in gpus))
        receivers = [gpu for gpu in every if (sender, gpu) in joined]
        if not receivers:
            return {}
        preferred = [gpu for gpu in receivers if gpu in into] or receivers
        receiver = min(preferred, key=lambda gpu: (receives[gpu], sends[gpu], gpu))
        receives[receiver] += 1
        if receiver not in found[sender]:
            found[sender].append(receiver)
    return {sender: tuple(sorted(found[sender])) for sender in sorted(found)}


def _senders(
    machine: Machine, gateways: _Gateways, pairs: Mapping[int, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the sender of every local GPU: of a gateway that it uses, else the nearest."""
    table, ranks = machine.topology.links, machine.topology.servers[0]
    hops = machine.hops(~machine.places.across)
    speed = {
        (int(machine.places.number[table.src[link]]), int(machine.places.number[table.dst[link]])):
        machine.beta(link)
        for link in (~machine.places.across).nonzero()[0].tolist()
        if table.src[link] in ranks
    }  # fmt: skip
    load: Counter[int] = Counter()
    chosen: dict[int, int] = {}
    for gpu in sorted(range(len(ranks)), key=lambda gpu: (gpu not in pairs, gpu)):
        shared = {one for near in gateways.out if gpu in near for one in near if one in pairs}
        chosen[gpu] = min(
            [gpu] if gpu in pairs else shared or pairs,
            key=lambda sender: (
                hops[ranks[gpu], ranks[sender]], load[sender],
                speed.get((gpu, sender), Fraction(0)), sender,
            ),
        )  # fmt: skip
        load[chosen[gpu]] += 1
    return tuple(chosen[gpu] for gpu in range(len(ranks)))


def _why(
    machine: Machine,
    gateways: _Gateways,
    pairs: Mapping[int, tuple[int, ...]],
    *,
    direct: bool,
    either: bool,
) -> str:
    topology, table = machine.topology, machine.topology.links
    link = int(machine.places.across.nonzero()[0][0])
    cost = f"{rate(machine.beta(link))} and {format_time(int(table.alpha[link]))}"
    count = len(gateways.out)
    inside = (~machine.places.across).nonzero()[0]
    wide = ""
    if len(inside):
        fastest = min(machine.betas[int(c)] for c in machine.link_class[inside])
        wide = f" (a link inside a server: {rate(fastest)})"
    if direct:
        told = (
            "A chunk may cross first and go on inside the other server, or the other way round, as"
            " suits the search."
            if either
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
    shared = max(map(len, gateways.users))
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


SLOW = 3
"""A link inside a server is slow when the fastest there is at least so many times as fast."""

MOST_LOST = 4
"""Of the bandwidth into a GPU at most one part in so many may be closed."""

MAX_TRIED = 16
"""Bandwidths from which on links are tried to be closed, where servers differ."""

MAX_PATTERNS = 256
"""Rules that close links; where it takes more, none is written."""

MAX_CHUNKS = 8
MAX_ROUTED = 20_000
"""Chunks times links, up to which chunks are cut further."""

LARGE = 4
"""Through a switch: bytes that take so many alphas are a large chunk."""

MAX_SWITCHES = 4
"""Switches inside a server that a sketch names one by one."""

MAX_PEERS = 32
"""Peers of a GPU from which on the connections are worth a word: channels of the runtimes."""


def chunks(machine: Machine, allowed: Mask) -> Choice:
    """Return into how many chunks to cut: what pipelining saves against the alphas it costs.

    A chain of D hops that carries L chunks over each link takes (kL + D - 1)(alpha + t/k) when
    each is cut in k, least for k^2 = (D - 1) t / (L alpha).

    ``allowed`` is the mask of the links of the ``machine`` that are left.
    """
    size = format_size(machine.chunk_size)
    if machine.point_to_point:
        return Choice(
            f"chunks_per_rank: a chunk is what one rank has for another, {size}; cut further, each"
            " part would pay its own alpha.",
            ("chunks_per_rank: 1",),
        )
    hops = machine.hops(allowed)
    depth = int(hops[hops < machine.topology.num_ranks].max(initial=0))
    remaining = np.flatnonzero(allowed)
    link = int(remaining[np.argmax(machine.link_class[remaining])])  # of the slowest kind
    time, alpha = machine.chunk_time(link), int(machine.topology.links.alpha[link])
    table, edges = machine.topology.links, len(machine.topology.edges)
    last = table.edge_ids[table.edge_start[1:] - 1]
    ways = np.unique(table.dst[allowed].astype(np.int64) * edges + last[allowed]) // edges
    ports = np.unique(ways, return_counts=True)[1].min(initial=machine.topology.num_ranks)
    load = max(1, round(machine.collective.num_chunks / int(ports)))  # chunks through each
    count = 1
    # Twice as many, as long as that is nearer to the best number than half of it.
    while count < MAX_CHUNKS and (2 * count) ** 2 * load * alpha <= 2 * (depth - 1) * time:
        count *= 2
    most = max(1, MAX_ROUTED // max(1, int(allowed.sum())))
    note = f" More than {most} would make the search long." if count > most else ""
    while count > most:
        count //= 2
    if depth <= 1:
        return Choice(
            f"chunks_per_rank: every GPU has a link to every other, so no chunk of {size} has to"
            f" wait for the whole of it to arrive on its way; each further part would pay an alpha"
            f" of {format_time(alpha)} of its own.",
            ("chunks_per_rank: 1",),
        )
    return Choice(
        f"chunks_per_rank: a chunk of {size} takes {format_time(time)} on a link of"
        f" {rate(machine.beta(link))}, and each message an alpha of {format_time(alpha)}. Paths"
        f" have up to {depth} hops and a link carries about {load} chunks: k pieces are best where"
        f" k^2 is about {max(0, depth - 1)} x {format_time(time)} / ({load} x"
        f" {format_time(alpha)}).{note}",
        (f"chunks_per_rank: {max(1, count)}",),
    )


def links(machine: Machine) -> Choice:
    """Return which slow links inside servers to close, where faster ones do their work."""
    inside = ~machine.places.across
    classes = machine.link_class[inside]
    if not inside.any():
        return Choice("links: no server has a link inside, so none is closed.")
    fastest, slowest = (machine.betas[int(end)] for end in (classes.min(), classes.max()))
    if slowest < SLOW * fastest:
        return Choice(
            f"links: those inside a server have {_range(fastest, slowest)}, less than {SLOW} times"
            " apart, so all are used."
        )
    refused = "the server would fall apart, or a GPU lose more than a quarter of what it receives"
    slow = [c for c in np.unique(classes).tolist() if machine.betas[c] >= SLOW * fastest]
    before = _entering(machine, inside)
    # What is closed shrinks from class to class: from the first that loses little, all do.
    start = bisect_left(
        slow, x=True, key=lambda c: _lost(machine, _closed(machine, c), before) is not None
    )
    for first in slow[start : start + MAX_TRIED]:
        closed = _closed(machine, first)
        lines = _patterns(machine, closed)
        if lines is None:
            refused = "the servers differ, or it would take too many rules"
            continue
        lost = _lost(machine, closed, before) or Fraction(0)
        return Choice(
            f"links: {int(closed.sum())} links inside servers of"
            f" {_range(machine.betas[first], slowest)} are closed, as others have up to"
            f" {rate(fastest)}. All GPUs of a server still reach each other, and each loses at"
            f" most {float(lost):.0%} of the bandwidth it receives by.",
            ("links:", "  deny:", *(f"    - {line}" for line in lines)),
        )
    return Choice(
        f"links: those inside a server have {_range(fastest, slowest)}, but without the slow ones"
        f" {refused}, so all are used."
    )


def _range(fast: Fraction, slow: Fraction) -> str:
    return rate(fast) if fast == slow else f"{rate(slow)} to {rate(fast)}"


def _closed(machine: Machine, first: int) -> Mask:
    """Return the links inside servers from a class on, but for those that a faster one is beside.

    The slower the class, the fewer.
    """
    table = machine.topology.links
    ends = table.src.astype(np.int64) * machine.topology.num_ranks + table.dst
    fast = np.unique(ends[machine.link_class < first])
    return ~machine.places.across & (machine.link_class >= first) & ~np.isin(ends, fast)


def _lost(machine: Machine, closed: Mask, before: dict[int, Fraction]) -> Fraction | None:
    """Return the largest part of the bandwidth into a GPU that goes; None: too much is closed."""
    kept = ~machine.places.across & ~closed
    # Not machine.hops, which keeps what it finds: these links are asked for once.
    hops = fewest_hops(joined_ranks(machine.topology, kept))
    same = machine.places.server[:, None] == machine.places.server
    if (hops[same] >= machine.topology.num_ranks).any():
        return None
    after = _entering(machine, kept)
    lost = max(1 - after.get(rank, Fraction(0)) / rate for rank, rate in before.items())
    return lost if lost * MOST_LOST <= 1 else None


def _entering(machine: Machine, links: Mask) -> dict[int, Fraction]:
    """Return the bandwidth into every rank, in bytes a ps: of the slowest edges, each once."""
    table = machine.topology.links
    edges: dict[int, set[int]] = defaultdict(set)
    for link in np.flatnonzero(links).tolist():
        slowest = max(table.edges_of(link), key=lambda edge: table.betas[edge])
        edges[int(table.dst[link])].add(slowest)
    return {
        rank: sum((1 / table.betas[e] for e in found if table.betas[e]), Fraction(0)) or Fraction(1)
        for rank, found in edges.items()
    }


def _patterns(machine: Machine, closed: Mask) -> list[str] | None:
    """Return rules that close some links of every server alike; None: there are none."""
    table = machine.topology.links
    by_server: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for link in np.flatnonzero(closed).tolist():
        src, dst = int(table.src[link]), int(table.dst[link])
        pair = int(machine.places.number[src]), int(machine.places.number[dst])
        by_server[int(machine.places.server[src])].add(pair)
    alike = {frozenset(pairs) for pairs in by_server.values()}
    if len(alike) != 1 or len(by_server) != len(machine.topology.servers):
        return None
    receivers: dict[int, list[int]] = defaultdict(list)
    for src, dst in sorted(next(iter(alike))):
        receivers[src].append(dst)
    senders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for src, found in receivers.items():
        senders[tuple(found)].append(src)
    lines = [
        f"{{from: {listed(src)}, to: {listed(dst)}, within: servers}}"
        for dst, src in senders.items()
    ]
    return lines if len(lines) <= MAX_PATTERNS else None


def switches(machine: Machine, allowed: Mask) -> Choice:
    """Return whether ``allowed`` links of a ``machine`` through a switch get few or many ends."""
    topology, table = machine.topology, machine.topology.links
    heads = topology.edge_table.head[table.edge_ids]
    crossed = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    wanted = (~machine.places.across & allowed)[crossed] & (heads >= topology.num_ranks)
    vertices, first = np.unique(heads[wanted], return_index=True)
    found: dict[str, int] = {}  # a link through each
    for vertex, link in zip(vertices.tolist(), crossed[wanted][first].tolist(), strict=True):
        found.setdefault(switch_in_server(topology.vertex_name(vertex)), link)
    if not found:
        return Choice("switches: no link that is used inside a server goes through a switch.")
    names = sorted(found)
    link = found[names[0]]
    time, alpha = machine.chunk_time(link), int(table.alpha[link])
    large, small = time >= LARGE * alpha, time <= alpha
    policy = "uc-min" if large else "uc-max" if small else "free"
    told = {
        "uc-min": "bytes weigh more, so few connections are kept busy with long messages",
        "uc-max": "alphas weigh more, so many connections make short paths",
        "free": "neither weighs much more, so the search may choose",
    }[policy]
    named = names if len(names) <= MAX_SWITCHES else ["*"]
    count = "" if len(names) == 1 else f" (one of {len(names)} switches)"
    return Choice(
        f"switches: through {names[0]}{count} a chunk of {format_size(machine.chunk_size)} takes"
        f" {format_time(time)} at {rate(machine.beta(link))} and {format_time(alpha)} of alpha:"
        f" {told}.",
        (f"switches: {{{', '.join(f'{flow_text(name)}: {policy}' for name in named)}}}",),
    )


def paths(machine: Machine, allowed: Mask) -> Choice:
    """Return how long paths over the ``allowed`` links of a ``machine`` may be."""
    hops = machine.hops(allowed)
    depth = int(hops[hops < machine.topology.num_ranks].max(initial=0))
    if depth <= 1:
        if machine.point_to_point:
            return Choice(
                "max_extra_hops: every GPU has a link to every other, and a second hop would only"
                " use more of the same links.",
                ("max_extra_hops: 0",),
            )
        return Choice("max_extra_hops: not limited; every GPU has a link to every other.")
    if machine.point_to_point:
        return Choice(
            f"on_shortest_paths: paths have up to {depth} hops; a chunk with one target gains"
            " nothing from GPUs that are on no path with the fewest hops, and the search has less"
            " to look at.",
            ("on_shortest_paths: true",),
        )
    kinds = np.stack([machine.link_class, machine.topology.links.alpha])[:, allowed]
    if np.unique(kinds, axis=1).shape[1] == 1:
        return Choice(
            f"max_extra_hops: all links cost the same, so no detour is faster than one of the paths"
            f" with the fewest hops (up to {depth}).",
            ("max_extra_hops: 0",),
        )
    return Choice(
        f"max_extra_hops: not limited; paths have up to {depth} hops, and as links differ, a longer"
        " way over fast ones may be the better."
    )


def limits(machine: Machine, allowed: Mask) -> Choice:
    """Return what to say of a GPU's connections over the ``allowed`` links of a ``machine``."""
    table, n = machine.topology.links, machine.topology.num_ranks
    ends = np.unique(table.src[allowed].astype(np.int64) * n + table.dst[allowed])
    peers = int(max(np.bincount(ends // n, minlength=n).max(), np.bincount(ends % n).max()))
    if peers <= MAX_PEERS:
        return Choice(
            f"limits: none is needed: a GPU has links to at most {peers} others, and the runtimes"
            f" have {MAX_PEERS} channels."
        )
    return Choice(
        f"limits: none is set, though a GPU has links to {peers} others and the runtimes have"
        f" {MAX_PEERS} channels; where a program does not fit, write limits:"
        " {connections_per_gpu: 16}."
    )


MAX_SEARCHED = 256
"""Ranks up to which symmetries are searched for where some are declared."""

MAX_ROW = 512
"""Ranks up to which a permutation is written out."""

MAX_TOLD = 3
"""Generators that a comment names."""


def symmetry(logical: LogicalTopology, collective: Collective) -> Choice:
    """Return the symmetry to ask for, one that the ``collective`` has, too.

    ``logical`` is the topology under the rest of the sketch with ``symmetry: auto``.
    """
    topology = logical.topology
    own = partial(keeps, logical, collective)
    declared = free_group(topology, kept_powers(logical.symmetry, own))
    found = declared
    wanted = largest_order(topology)
    undeclared = not topology.rotations
    if undeclared or (len(declared) < wanted and topology.num_ranks <= MAX_SEARCHED):
        # What moves every rank moves the root, if there is one.
        alike = collective.root is None
        searched = search_group(topology, own) if alike else make_group(topology, ())
        found = max(declared, searched, key=len)
    if len(found) == 1:
        return Choice(
            "symmetry: none was found that moves every GPU and every link and that the sketch and"
            f" {collective.name} have, so every chunk is routed by itself."
        )
    told = "; ".join(_told(generator) for generator in found.generators[:MAX_TOLD])
    more = f" and {len(found.generators) - MAX_TOLD} more"
    told += more if len(found.generators) > MAX_TOLD else ""
    origin = "found" if undeclared or len(found) > len(declared) else "declared by the topology"
    why = (
        f"symmetry: {len(found)} symmetries, {origin} and verified, generated by {told}. They move"
        f" every GPU and every link, so one in {len(found)} chunks is routed and its images follow."
    )
    rows = [_row(generator) for generator in found.generators]
    if len(found) == len(declared) or undeclared or topology.num_ranks > MAX_ROW:
        return Choice(why, ("symmetry: auto",))
    lines = [line for row in rows for line in flow("  - [", [str(rank) for rank in row], "]")]
    return Choice(why, ("symmetry:", *lines))


def keeps(logical: LogicalTopology, collective: Collective, permutation: Permutation) -> bool:
    """Tell whether a ``collective`` and the sketch of ``logical`` keep a ``permutation``."""
    try:
        collective.require_image(permutation)
    except InputError:
        return False
    return keeps_sketch(logical.topology, logical.allowed, logical.leave_by, permutation)


def _row(permutation: Permutation) -> Permutation:
    """Return a permutation as [offset, block] where it is a turn of blocks."""
    n, offset = len(permutation), permutation[0]
    for block in range(offset + 1, n + 1):
        if n % block == 0 and offset_permutation(offset, block, n) == permutation:
            return (offset, block)
    return permutation


def _told(permutation: Permutation) -> str:
    """Return a permutation in words."""
    row, n = _row(permutation), len(permutation)
    if len(row) == 2 and n > 2:
        offset, block = row
        where = "" if block == n else f" inside every {block} ranks"
        return f"rank r to r + {offset}{where}"
    moved = ", ".join(f"{rank} to {to}" for rank, to in enumerate(permutation[:4]))
    return f"rank {moved} ..."


MAX_NAME = 100
"""Letters of the name of a sketch."""

AUTO = Choice("", ("symmetry: auto",))


def suggest_sketch(topology: Topology, collective: Collective, size: int) -> str:
    """Return a sketch for a ``topology`` as YAML; comments say why each part is as it is.

    The ``collective`` has one chunk for each rank (and pair), and a buffer, the one that nccl-tests
    counts, of ``size`` bytes.

    Raises NoScheduleError when the links of the topology leave a rank that can't be reached.
    """
    machine = Machine(topology, collective, size)
    closed = links(machine)
    refused: NoScheduleError | None = None
    for way in internode(machine):
        try:
            logical = apply_sketch(topology, _read(_text(machine, [closed, way, AUTO])))
        except NoScheduleError as error:  # it leaves somebody out: the next one
            refused = refused or error
        else:
            break
    else:
        raise refused or NoScheduleError("no way joins the servers")
    allowed = logical.allowed
    parts = [
        chunks(machine, allowed), closed, switches(machine, allowed), way, paths(machine, allowed),
        symmetry(logical, collective), limits(machine, allowed),
    ]  # fmt: skip
    text = _text(machine, parts)
    apply_sketch(topology, _read(text))
    return text


def _read(text: str) -> Sketch:
    return read_native(parse_document(text, "the suggested sketch"))


def _text(machine: Machine, parts: Sequence[Choice]) -> str:
    topology, collective = machine.topology, machine.collective
    count = len(machine.topology.servers)
    servers = f"{count} servers" if count > 1 else "1 server"
    head = (
        f"A sketch for {collective.name} of {format_size(machine.size)} on {topology.name} with"
        f" {servers}, {topology.num_ranks} ranks, by taccl sketch suggest. Change what you know"
        " better."
    )
    half = MAX_NAME // 2 - 4
    names = topology.name[:half].strip(), collective.name[:half].strip()
    name = f"{names[0]}-x{count}-{names[1]}"
    lines = [*_comment(head), "taccl: sketch/1", f"name: {flow_text(name)}"]
    for part in parts:
        lines += ["", *_comment(part.why), *part.lines]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
