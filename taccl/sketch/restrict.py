"""Which links a sketch leaves, and by which senders chunks leave their server.

The order of the rules: patterns with local numbers deny first; then relays, which say exactly
what joins the servers and so open their own links again and close all others; then patterns in
global ranks, which can close a single link of a relay; last, ``allow`` opens.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.sketch.native import Pattern, Sketch
from taccl.topology.graph import Topology
from taccl.topology.taccl_costs import DIRECT_MAP, FULLY_CONNECTED

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Locals:
    """A topology with the local number of every rank: its position in its server."""

    topology: Topology

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every server."""
        servers: dict[int, list[int]] = defaultdict(list)
        for rank, server in enumerate(self.topology.server_of):
            servers[server].append(rank)
        return tuple(tuple(servers[server]) for server in sorted(servers))

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """The local number of every rank."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for ranks in self.members:
            number[list(ranks)] = np.arange(len(ranks))
        return number

    @property
    def size(self) -> int:
        """GPUs of the largest server."""
        return max(map(len, self.members))

    @cached_property
    def across(self) -> Mask:
        """Whether each link joins two servers."""
        server = np.array(self.topology.server_of)
        table = self.topology.links
        return np.asarray(server[table.src] != server[table.dst])

    def joined(self, pairs: Mask) -> Mask:
        """Return which links go from a local number a to a local number b with pairs[a, b]."""
        table = self.topology.links
        return np.asarray(pairs[self.number[table.src], self.number[table.dst]])


def allowed_links(sketch: Sketch, places: Locals) -> Mask:
    """Return which links of a topology a sketch leaves open.

    Parameters
    ----------
    sketch
        What is to be respected.
    places
        The topology with its local numbers.

    Raises
    ------
    InputError
        When the sketch names GPUs or links that the topology does not have.
    """
    allowed = np.ones(len(places.topology.links), dtype=np.bool_)
    denied = [(p, _matches(sketch, "deny", i, p, places)) for i, p in enumerate(sketch.deny)]
    for pattern, links in denied:
        if pattern.scope is not None:
            allowed &= ~links
    if len(places.members) > 1:
        _apply_relays(sketch, places, allowed)
    for pattern, links in denied:
        if pattern.scope is None:
            allowed &= ~links
    for index, pattern in enumerate(sketch.allow):
        allowed |= _matches(sketch, "allow", index, pattern, places)
    return allowed


def _matches(sketch: Sketch, part: str, index: int, pattern: Pattern, places: Locals) -> Mask:
    """Return which links a pattern is about."""
    local = pattern.scope is not None
    size = places.size if local else places.topology.num_ranks
    for end, numbers in (("from", pattern.src), ("to", pattern.dst)):
        if numbers is not None and max(numbers) >= size:
            what = "GPU" if local else "rank"
            raise sketch.error(
                f"there is no {what} {max(numbers)} in {places.topology.name}", part, index, end,
                fix=f"use {what}s from 0 to {size - 1}",
            )  # fmt: skip
    ends = [np.zeros(size, dtype=np.bool_) for _ in range(2)]
    for named, numbers in zip(ends, (pattern.src, pattern.dst), strict=True):
        named[list(range(size) if numbers is None else numbers)] = True
    table = places.topology.links
    at = (places.number[table.src], places.number[table.dst]) if local else (table.src, table.dst)
    links = ends[0][at[0]] & ends[1][at[1]]
    if local:
        links &= places.across if pattern.scope == "across" else ~places.across
    return links


def _apply_relays(sketch: Sketch, places: Locals, allowed: Mask) -> None:
    """Keep of the links between servers those that the relays name, and no others."""
    if sketch.relays is None or sketch.relays == FULLY_CONNECTED:
        return
    pairs = np.zeros((places.size, places.size), dtype=np.bool_)
    if sketch.relays == DIRECT_MAP:
        np.fill_diagonal(pairs, val=True)
    else:
        _fill_pairs(sketch, places, pairs)
    kept = places.joined(pairs) & places.across
    allowed[places.across] = kept[places.across]
    if isinstance(sketch.relays, tuple):
        _check_pairs_exist(sketch, places, kept)


def _fill_pairs(sketch: Sketch, places: Locals, pairs: Mask) -> None:
    for sender, receivers in sketch.relays if isinstance(sketch.relays, tuple) else ():
        for gpu in (sender, *receivers):
            if gpu >= places.size:
                raise sketch.error(
                    f"there is no GPU {gpu} in a server of {places.size}", "relays", sender,
                    fix=f"use GPUs from 0 to {places.size - 1}",
                )  # fmt: skip
        pairs[sender, list(receivers)] = True


def _check_pairs_exist(sketch: Sketch, places: Locals, kept: Mask) -> None:
    """Refuse a relay that has no link between any two servers."""
    table = places.topology.links
    found = set(
        zip(
            places.number[table.src[kept]].tolist(), places.number[table.dst[kept]].tolist(),
            strict=True,
        )
    )  # fmt: skip
    for sender, receivers in sketch.relays if isinstance(sketch.relays, tuple) else ():
        for receiver in receivers:
            if (sender, receiver) not in found:
                raise sketch.error(
                    f"no GPU {sender} has a link to a GPU {receiver} of another server in"
                    f" {places.topology.name}", "relays", sender,
                    fix="name GPUs that the fabric joins",
                )  # fmt: skip


def senders_of(sketch: Sketch, places: Locals) -> dict[int, frozenset[int]]:
    """Return for every rank the senders that its chunks leave its server by.

    Parameters
    ----------
    sketch
        What is to be respected.
    places
        The topology with its local numbers.

    Raises
    ------
    InputError
        When the sketch names GPUs that the topology does not have, or that are no senders.
    """
    if len(places.members) == 1:
        return {}
    named = dict(sketch.relays) if isinstance(sketch.relays, tuple) else None
    for gpu, senders in sketch.chunk_to_relay:
        for number in (gpu, *senders):
            if number >= places.size:
                raise sketch.error(
                    f"there is no GPU {number} in a server of {places.size}", "chunk_to_relay",
                    fix=f"use GPUs from 0 to {places.size - 1}",
                )  # fmt: skip
        strangers = [sender for sender in senders if named is not None and sender not in named]
        if strangers:
            raise sketch.error(
                f"the chunks of GPU {gpu} should leave by GPU {strangers[0]}, which is no sender",
                "chunk_to_relay",
                fix=f"use one of the senders {', '.join(map(str, named or ()))}",
            )
    return {
        ranks[gpu]: frozenset(ranks[sender] for sender in senders if sender < len(ranks))
        for ranks in places.members
        for gpu, senders in sketch.chunk_to_relay
        if gpu < len(ranks)
    }


def joined_ranks(topology: Topology, links: Mask) -> Mask:
    """Return which rank has one of some links to which, as a matrix.

    Parameters
    ----------
    topology
        The machine.
    links
        Mask of the links.
    """
    table = topology.links
    joined = np.zeros((topology.num_ranks,) * 2, dtype=np.bool_)
    joined[table.src[links], table.dst[links]] = True
    return joined


def fewest_hops(joined: Mask) -> NDArray[np.int64]:
    """Return the fewest hops from every rank to every other; their number where there is no way."""
    ranks = len(joined)
    reached = np.eye(ranks, dtype=np.bool_)
    fewest = np.where(reached, 0, ranks)
    ways, step = joined.astype(np.float32), 0
    while True:
        step += 1
        new = (reached.astype(np.float32) @ ways > 0) & ~reached
        if not new.any():
            return fewest
        fewest[new] = step
        reached |= new
