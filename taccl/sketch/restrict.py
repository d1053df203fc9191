"""Which links a sketch leaves, and by which senders chunks leave their server.

The order of the rules: patterns with local numbers deny first; then relays, which say exactly
what joins the servers and so open their own links again and close all others; then patterns in
global ranks, which can close a single link of a relay; last, ``allow`` opens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.sketch.native import Pattern, Sketch
from taccl.topology.graph import Permutation, Topology
from taccl.topology.taccl_costs import DIRECT_MAP, FULLY_CONNECTED

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Locals:
    """A topology with the local number of every rank: its position in its server."""

    topology: Topology

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """The local number of every rank."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for ranks in self.topology.servers:
            number[list(ranks)] = np.arange(len(ranks))
        return number

    @cached_property
    def server(self) -> NDArray[np.int64]:
        """The position in ``topology.servers`` of every rank's server."""
        return np.unique(self.topology.server_of, return_inverse=True)[1]

    @property
    def size(self) -> int:
        """GPUs of the largest server."""
        return max(map(len, self.topology.servers))

    @cached_property
    def across(self) -> Mask:
        """Whether each link joins two servers."""
        table = self.topology.links
        return np.asarray(self.server[table.src] != self.server[table.dst])

    def check(self, sketch: Sketch, gpus: Iterable[int], part: str, *rest: str | int) -> None:
        """Refuse local numbers in a part of a sketch that no server has.

        Raises InputError with the place in the sketch; ``rest`` goes on from the part.
        """
        for gpu in gpus:
            if gpu >= self.size:
                raise sketch.error(
                    f"there is no GPU {gpu} in a server of {self.size}", part, *rest,
                    fix=f"use GPUs from 0 to {self.size - 1}",
                )  # fmt: skip


def allowed_links(sketch: Sketch, places: Locals) -> Mask:
    """Return which links of a topology, given as its ``places``, a ``sketch`` leaves open.

    Raises InputError when the sketch names GPUs or links that the topology does not have.
    """
    allowed = np.ones(len(places.topology.links), dtype=np.bool_)
    denied = [(p, _matches(sketch, "deny", i, p, places)) for i, p in enumerate(sketch.deny)]
    for pattern, links in denied:
        if pattern.scope is not None:
            allowed &= ~links
    if len(places.topology.servers) > 1:
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
    relays = () if isinstance(sketch.relays, str) else sketch.relays
    pairs = np.eye(places.size, dtype=np.bool_) & (sketch.relays == DIRECT_MAP)
    for sender, receivers in relays:
        places.check(sketch, (sender, *receivers), "relays", sender)
        pairs[sender, list(receivers)] = True
    table, number = places.topology.links, places.number
    kept = pairs[number[table.src], number[table.dst]] & places.across
    allowed[places.across] = kept[places.across]
    joined = np.zeros_like(pairs)
    joined[number[table.src[kept]], number[table.dst[kept]]] = True
    for sender, receivers in relays:
        for receiver in receivers:
            if not joined[sender, receiver]:
                raise sketch.error(
                    f"no GPU {sender} has a link to a GPU {receiver} of another server in"
                    f" {places.topology.name}", "relays", sender,
                    fix="name GPUs that the fabric joins",
                )  # fmt: skip


def senders_of(sketch: Sketch, places: Locals) -> dict[int, frozenset[int]]:
    """Return for every rank the senders that its chunks leave its server by under a ``sketch``.

    ``places`` are those of the topology.

    Raises InputError when the sketch names GPUs that the topology does not have, or that are no
    senders.
    """
    if len(places.topology.servers) == 1:
        return {}
    named = dict(sketch.relays) if isinstance(sketch.relays, tuple) else None
    for gpu, senders in sketch.chunk_to_relay:
        places.check(sketch, (gpu, *senders), "chunk_to_relay")
        strangers = [sender for sender in senders if named is not None and sender not in named]
        if strangers:
            raise sketch.error(
                f"the chunks of GPU {gpu} should leave by GPU {strangers[0]}, which is no sender",
                "chunk_to_relay",
                fix=f"use one of the senders {', '.join(map(str, named or ()))}",
            )
    return {
        ranks[gpu]: frozenset(ranks[sender] for sender in senders if sender < len(ranks))
        for ranks in places.topology.servers
        for gpu, senders in sketch.chunk_to_relay
        if gpu < len(ranks)
    }


def keeps_sketch(
    topology: Topology,
    allowed: Mask,
    leave_by: Mapping[int, frozenset[int]],
    permutation: Permutation,
) -> bool:
    """Tell whether what a sketch restricts has the symmetry that takes r to ``permutation[r]``.

    That are the ``allowed`` links of the ``topology``, and the senders that ranks ``leave_by``.
    """
    table, ranks = topology.links, topology.num_ranks
    src, dst = table.src[allowed].astype(np.int64), table.dst[allowed].astype(np.int64)
    image = np.array(permutation, dtype=np.int64)
    pairs, images = src * ranks + dst, image[src] * ranks + image[dst]
    # Links are in order of their ends.
    return np.array_equal(np.sort(images), pairs) and all(
        leave_by.get(permutation[rank]) == frozenset(permutation[s] for s in senders)
        for rank, senders in leave_by.items()
    )


def switch_in_server(name: str) -> str:
    """Return the ``name`` of a switch without its server: ``s0/nvswitch`` is nvswitch."""
    prefix, slash, rest = name.partition("/")
    return rest if slash and prefix[:1] == "s" and prefix[1:].isdigit() else name


def joined_ranks(topology: Topology, links: Mask) -> Mask:
    """Return which rank of a ``topology`` has one of some ``links``, a mask, to which: a matrix."""
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
