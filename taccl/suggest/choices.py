"""What a suggestion says besides relays and symmetry: chunks, links, switches, hops, limits."""

from bisect import bisect_left
from collections import defaultdict
from fractions import Fraction

import numpy as np

from taccl.sketch.restrict import Mask, fewest_hops, joined_ranks
from taccl.suggest.machine import Choice, Machine, listed, quoted, rate
from taccl.units import Time, format_size, format_time

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
    link = _slowest_needed(machine, allowed)
    time, alpha = machine.chunk_time(link), int(machine.topology.links.alpha[link])
    load = _load(machine, allowed)
    count = 1
    while count < MAX_CHUNKS and _is_worth(2 * count, depth, time, load * alpha):
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


def _is_worth(count: int, depth: int, time: Time, load: int) -> bool:
    """Tell whether ``count`` pieces, a power of two, are nearer to the best number than half."""
    return count * count * load <= 2 * (depth - 1) * time


def _slowest_needed(machine: Machine, allowed: Mask) -> int:
    """Return a link of the slowest kind that remains."""
    links = np.flatnonzero(allowed)
    return int(links[np.argmax(machine.link_class[links])])


def _load(machine: Machine, allowed: Mask) -> int:
    """Return how many chunks each way into a rank carries, if they are used alike."""
    return max(1, round(machine.collective.num_chunks / _ports(machine, allowed)))


def _ports(machine: Machine, allowed: Mask) -> int:
    """Return the fewest different last edges of the links into a rank: what it receives by."""
    table, edges = machine.topology.links, len(machine.topology.edges)
    last = table.edge_ids[table.edge_start[1:] - 1]
    ways = np.unique(table.dst[allowed].astype(np.int64) * edges + last[allowed]) // edges
    return int(np.unique(ways, return_counts=True)[1].min(initial=machine.topology.num_ranks))


def links(machine: Machine) -> Choice:
    """Return which slow links inside servers to close, where faster ones do their work."""
    inside = ~machine.across
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
    return ~machine.across & (machine.link_class >= first) & ~_has_faster(machine, first)


def _has_faster(machine: Machine, first: int) -> Mask:
    """Return which links join a pair of ranks that a faster parallel link joins, too."""
    table = machine.topology.links
    ends = table.src.astype(np.int64) * machine.topology.num_ranks + table.dst
    fast = np.unique(ends[machine.link_class < first])
    return np.asarray(np.isin(ends, fast))


def _lost(machine: Machine, closed: Mask, before: dict[int, Fraction]) -> Fraction | None:
    """Return the largest part of the bandwidth into a GPU that goes; None: too much is closed."""
    kept = ~machine.across & ~closed
    # Not machine.hops, which keeps what it finds: these links are asked for once.
    hops = fewest_hops(joined_ranks(machine.topology, kept))
    same = machine.server[:, None] == machine.server
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
        slowest = max(table.edges_of(link), key=lambda edge: int(machine.edge_class[edge]))
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
        pair = int(machine.local[src]), int(machine.local[dst])
        by_server[int(machine.server[src])].add(pair)
    alike = {frozenset(pairs) for pairs in by_server.values()}
    if len(alike) != 1 or len(by_server) != len(machine.servers):
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
    """Return whether links through a switch should have few or many different ends."""
    found = _inner_switches(machine, allowed)
    if not found:
        return Choice("switches: no link that is used inside a server goes through a switch.")
    names = sorted(found)
    link = found[names[0]]
    time, alpha = machine.chunk_time(link), int(machine.topology.links.alpha[link])
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
        (f"switches: {{{', '.join(f'{quoted(name)}: {policy}' for name in named)}}}",),
    )


def _inner_switches(machine: Machine, allowed: Mask) -> dict[str, int]:
    """Return the names (without server) of switches inside servers, each with a link through it."""
    topology, table = machine.topology, machine.topology.links
    heads = topology.edge_table.head[table.edge_ids]
    crossed = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    wanted = (~machine.across & allowed)[crossed] & (heads >= topology.num_ranks)
    vertices, first = np.unique(heads[wanted], return_index=True)
    found: dict[str, int] = {}
    for vertex, link in zip(vertices.tolist(), crossed[wanted][first].tolist(), strict=True):
        name = topology.vertex_name(vertex)
        prefix, slash, rest = name.partition("/")
        own = slash and prefix[:1] == "s" and prefix[1:].isdigit()
        found.setdefault(rest if own else name, link)
    return found


def paths(machine: Machine, allowed: Mask) -> Choice:
    """Return how long paths may be."""
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
    if _all_alike(machine, allowed):
        return Choice(
            f"max_extra_hops: all links cost the same, so no detour is faster than one of the paths"
            f" with the fewest hops (up to {depth}).",
            ("max_extra_hops: 0",),
        )
    return Choice(
        f"max_extra_hops: not limited; paths have up to {depth} hops, and as links differ, a longer"
        " way over fast ones may be the better."
    )


def _all_alike(machine: Machine, allowed: Mask) -> bool:
    kinds = np.stack([machine.link_class, machine.topology.links.alpha])[:, allowed]
    return bool(np.unique(kinds, axis=1).shape[1] == 1)


def limits(machine: Machine, allowed: Mask) -> Choice:
    """Return what to say of the connections of a GPU."""
    peers = _most_peers(machine, allowed)
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


def _most_peers(machine: Machine, allowed: Mask) -> int:
    table, n = machine.topology.links, machine.topology.num_ranks
    ends = np.unique(table.src[allowed].astype(np.int64) * n + table.dst[allowed])
    return int(max(np.bincount(ends // n, minlength=n).max(), np.bincount(ends % n).max()))
