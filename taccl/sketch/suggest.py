"""A sketch for a machine: what its links, switches and NICs say about good algorithms.

What a suggestion says besides relays and symmetry: chunks, links, switches, hops, limits.

The symmetry of a suggestion: found, kept by sketch and collective, and verified.

Put a suggestion together, part by part, and try it: what is written loads and applies.

Parts are chosen in an order in which each can look at what the parts before it left: links, ways
between servers, switches, chunks, paths, symmetry. Where the best way between servers cuts a rank
off, the next one is taken.
"""

import textwrap
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from taccl.collectives import Collective
from taccl.errors import InputError, NoScheduleError
from taccl.files import parse_document
from taccl.sketch import apply_sketch
from taccl.sketch.native import Sketch, offset_permutation, read_native
from taccl.sketch.restrict import Mask, fewest_hops, joined_ranks
from taccl.sketch.suggest_relays import (
    WIDTH,
    Choice,
    Machine,
    flow,
    internode,
    listed,
    quoted,
    rate,
)
from taccl.topology.graph import LogicalTopology, Permutation, Topology
from taccl.topology.symmetry import Group, free_group, make_group, powers
from taccl.topology.symmetry_search import largest_order, search_group
from taccl.units import format_size, format_time

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

    Parameters
    ----------
    machine
        The topology, the collective and the size.
    allowed
        Mask of the links that are left.
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
    table = machine.topology.links
    ends = table.src.astype(np.int64) * machine.topology.num_ranks + table.dst
    fast = np.unique(ends[machine.link_class < first])
    return ~machine.across & (machine.link_class >= first) & ~np.isin(ends, fast)


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
    """Return whether links through a switch should have few or many different ends.

    Parameters
    ----------
    machine
        The topology, the collective and the size.
    allowed
        Mask of the links that are left.
    """
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
    """Return how long paths may be.

    Parameters
    ----------
    machine
        The topology, the collective and the size.
    allowed
        Mask of the links that are left.
    """
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
    """Return what to say of the connections of a GPU.

    Parameters
    ----------
    machine
        The topology, the collective and the size.
    allowed
        Mask of the links that are left.
    """
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
    """Return the symmetry to ask for.

    Parameters
    ----------
    logical
        The topology under the rest of the sketch with ``symmetry: auto``.
    collective
        What has to have the symmetry, too.
    """
    topology = logical.topology
    declared = _declared(logical, collective)
    found = declared
    wanted = largest_order(topology)
    undeclared = not topology.rotations
    if undeclared or (len(declared) < wanted and topology.num_ranks <= MAX_SEARCHED):
        searched = (
            search_group(topology, lambda each: keeps(logical, collective, each))
            if collective.root is None
            else make_group(topology, ())  # what moves every rank moves the root
        )
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


def _declared(logical: LogicalTopology, collective: Collective) -> Group:
    """Return the group of the declared rotations as far as sketch and collective keep them."""
    kept: list[Permutation] = []
    for rotation in logical.symmetry:
        every = (power for power in powers(rotation) if keeps(logical, collective, power))
        kept.extend(power for power, _ in zip(every, range(1), strict=False))
    return free_group(logical.topology, kept)


def keeps(logical: LogicalTopology, collective: Collective, permutation: Permutation) -> bool:
    """Tell whether a collective and the links and senders of a sketch have a symmetry.

    Parameters
    ----------
    logical
        The network, as the sketch restricts it.
    collective
        What is done.
    permutation
        Where every rank goes.
    """
    try:
        collective.image(permutation)
    except InputError:
        return False
    image = np.array(permutation, dtype=np.int64)
    joined = joined_ranks(logical.topology, logical.allowed)
    if not np.array_equal(joined[np.ix_(image, image)], joined):
        return False
    return all(
        logical.leave_by.get(permutation[rank]) == frozenset(permutation[s] for s in senders)
        for rank, senders in logical.leave_by.items()
    )


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
    """Return a sketch for a machine as YAML; comments say why each part is as it is.

    Parameters
    ----------
    topology
        The network.
    collective
        What the sketch is for, with one chunk for each rank (and pair).
    size
        Bytes of the buffer that nccl-tests counts.

    Raises
    ------
    NoScheduleError
        When the links of the topology leave a rank that can't be reached.
    """
    machine = Machine(topology, collective, size)
    closed = links(machine)
    way, logical = _joined(machine, closed)
    allowed = logical.allowed
    parts = [
        chunks(machine, allowed), closed, switches(machine, allowed), way, paths(machine, allowed),
        symmetry(logical, collective), limits(machine, allowed),
    ]  # fmt: skip
    text = _text(machine, parts)
    apply_sketch(topology, _read(text))
    return text


def _joined(machine: Machine, closed: Choice) -> tuple[Choice, LogicalTopology]:
    """Return the first way to join the servers that leaves nobody out, and what remains then."""
    refused: NoScheduleError | None = None
    for way in internode(machine):
        try:
            sketch = _read(_text(machine, [closed, way, AUTO]))
            return way, apply_sketch(machine.topology, sketch)
        except NoScheduleError as error:
            refused = refused or error
    raise refused or NoScheduleError("no way joins the servers")


def _read(text: str) -> Sketch:
    return read_native(parse_document(text, "the suggested sketch"))


def _text(machine: Machine, parts: Sequence[Choice]) -> str:
    topology, collective = machine.topology, machine.collective
    count = len(machine.servers)
    servers = f"{count} servers" if count > 1 else "1 server"
    head = (
        f"A sketch for {collective.name} of {format_size(machine.size)} on {topology.name} with"
        f" {servers}, {topology.num_ranks} ranks, by taccl sketch suggest. Change what you know"
        " better."
    )
    half = MAX_NAME // 2 - 4
    names = topology.name[:half].strip(), collective.name[:half].strip()
    name = f"{names[0]}-x{count}-{names[1]}"
    lines = [*_comment(head), "taccl: sketch/1", f"name: {quoted(name)}"]
    for part in parts:
        lines += ["", *_comment(part.why), *part.lines]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


__all__ = ["suggest_sketch"]
