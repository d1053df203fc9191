"""Apply a sketch to a topology: the links that remain, and what engines should respect.

The order of the rules: patterns with local numbers deny first; then relays, which say exactly
what joins the servers and so open their own links again and close all others; then patterns in
global ranks, which can close a single link of a relay; last, ``allow`` opens.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.files import field_name
from taccl.sketch.native import Pattern, Sketch, offset_permutation
from taccl.topology import LogicalTopology, Permutation, Topology
from taccl.topology_original import DIRECT_MAP, FULLY_CONNECTED

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Locals:
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


def apply_sketch(topology: Topology, sketch: Sketch) -> LogicalTopology:
    """Return a topology as a sketch restricts it.

    Raises
    ------
    InputError
        When the sketch names what the topology does not have.
    NoScheduleError
        When the allowed links leave a rank that can't be reached.
    """
    places = _Locals(topology)
    if sketch.servers is not None and sketch.servers != len(places.members):
        raise sketch.error(
            f"the sketch is for {sketch.servers} servers, {topology.name} has"
            f" {len(places.members)}", "servers", fix=f"use --nodes {sketch.servers}",
        )  # fmt: skip
    several = len(places.members) > 1
    allowed = _allowed(sketch, places, several=several)
    leave_by = _leave_by(sketch, places) if several else {}
    _check_reachable(topology, sketch, allowed)
    return LogicalTopology(
        topology, allowed,
        symmetry=_symmetry(topology, sketch, allowed, leave_by),
        symmetry_asked=not sketch.auto_symmetry,
        switch_policy=MappingProxyType(_policies(sketch, places)),
        leave_by=MappingProxyType(leave_by),
        own_chunks_first=sketch.own_chunks_first and several,
        max_extra_hops=sketch.max_extra_hops,
        on_shortest_paths=sketch.on_shortest_paths,
        connections_per_rank=sketch.connections_per_gpu,
        channels=sketch.channels,
        chunks_per_rank=sketch.chunks_per_rank,
        name=sketch.name,
        balance=sketch.balance,
    )  # fmt: skip


def _allowed(sketch: Sketch, places: _Locals, *, several: bool) -> Mask:
    allowed = np.ones(len(places.topology.links), dtype=np.bool_)
    denied = [(p, _matches(sketch, "deny", i, p, places)) for i, p in enumerate(sketch.deny)]
    for pattern, links in denied:
        if pattern.scope is not None:
            allowed &= ~links
    if several:
        _apply_relays(sketch, places, allowed)
    for pattern, links in denied:
        if pattern.scope is None:
            allowed &= ~links
    for index, pattern in enumerate(sketch.allow):
        allowed |= _matches(sketch, "allow", index, pattern, places)
    return allowed


def _matches(sketch: Sketch, part: str, index: int, pattern: Pattern, places: _Locals) -> Mask:
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


def _apply_relays(sketch: Sketch, places: _Locals, allowed: Mask) -> None:
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


def _fill_pairs(sketch: Sketch, places: _Locals, pairs: Mask) -> None:
    for sender, receivers in sketch.relays if isinstance(sketch.relays, tuple) else ():
        for gpu in (sender, *receivers):
            if gpu >= places.size:
                raise sketch.error(
                    f"there is no GPU {gpu} in a server of {places.size}", "relays", sender,
                    fix=f"use GPUs from 0 to {places.size - 1}",
                )  # fmt: skip
        pairs[sender, list(receivers)] = True


def _check_pairs_exist(sketch: Sketch, places: _Locals, kept: Mask) -> None:
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


def _leave_by(sketch: Sketch, places: _Locals) -> dict[int, frozenset[int]]:
    """Return for every rank the senders that its chunks leave its server by."""
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


def _policies(sketch: Sketch, places: _Locals) -> dict[str, str]:
    """Return the policy of every switch, by its name in the topology."""
    switches = [switch.name for switch in places.topology.switches]
    policies: dict[str, str] = {}
    for name, policy in sketch.policies:
        found = [s for s in switches if name in (s, _without_server(s))]
        if not found and name != "*":
            known = ", ".join(sorted({_without_server(s) for s in switches})[:8]) or "none"
            raise sketch.error(
                f"{places.topology.name} has no switch {name!r}", "switches", name,
                fix=f"use one of its switches ({known}), or * for all links in a server",
            )  # fmt: skip
        policies.update(dict.fromkeys(found or ["*"], policy))
    for members, policy in sketch.policy_members:
        if max(members) >= places.size:
            raise sketch.error(
                f"there is no GPU {max(members)} in a server of {places.size}", "policy_members",
                fix=f"use GPUs from 0 to {places.size - 1}",
            )  # fmt: skip
        policies.update(dict.fromkeys(_switches_of(members, places) or ["*"], policy))
    return policies


def _without_server(name: str) -> str:
    """Return a switch name without the server: ``s0/nvswitch`` is nvswitch."""
    prefix, slash, rest = name.partition("/")
    return rest if slash and prefix[:1] == "s" and prefix[1:].isdigit() else name


def _switches_of(members: tuple[int, ...], places: _Locals) -> list[str]:
    """Return the switches that join exactly some local GPUs of one server."""
    topology = places.topology
    ranks = topology.num_ranks
    joined: dict[int, set[int]] = defaultdict(set)
    for edge in topology.edges:
        if edge.tail < ranks <= edge.head:
            joined[edge.head].add(edge.tail)
    sets = [{server[m] for m in members if m < len(server)} for server in places.members]
    # A NIC of one or all GPUs is entered by ranks, too, but never left for a rank.
    two_way = {edge.tail for edge in topology.edges if edge.tail >= ranks > edge.head}
    return [
        topology.vertex_name(vertex)
        for vertex in sorted(joined)
        if vertex in two_way and joined[vertex] in sets
    ]


def _symmetry(
    topology: Topology, sketch: Sketch, allowed: Mask, leave_by: Mapping[int, frozenset[int]]
) -> tuple[Permutation, ...]:
    """Return the generators to use; those of ``auto`` as far as the sketch keeps them."""
    if sketch.auto_symmetry:
        found = (_kept_power(topology, r, allowed, leave_by) for r in topology.rotations)
        return tuple(dict.fromkeys(power for power in found if power is not None))
    ranks = topology.num_ranks
    generators = [_offset(sketch, i, row, ranks) for i, row in enumerate(sketch.offsets)]
    for index, row in enumerate(sketch.generators):
        if sorted(row) == list(range(ranks)):
            generators.append(row)
        else:
            generators.append(_offset(sketch, index, row, ranks))
    return tuple(dict.fromkeys(generators))


def _offset(sketch: Sketch, index: int, row: tuple[int, ...], ranks: int) -> Permutation:
    if len(row) != 2:
        raise sketch.error(
            f"should be [offset, block] or a permutation of 0..{ranks - 1}, got {len(row)} numbers",
            "symmetry", index, fix="write [2, 16], or every rank once",
        )  # fmt: skip
    offset, block = row
    if block < 1 or ranks % block or not 0 <= offset < block:
        raise sketch.error(
            f"[{offset}, {block}] does not fit {ranks} ranks", "symmetry", index,
            fix=f"write an offset below the block, and a block that divides {ranks}",
        )  # fmt: skip
    return offset_permutation(offset, block, ranks)


def _kept_power(
    topology: Topology,
    rotation: Permutation,
    allowed: Mask,
    leave_by: Mapping[int, frozenset[int]],
) -> Permutation | None:
    """Return the smallest power of a rotation under which the sketch is the same, or None."""
    table, ranks = topology.links, topology.num_ranks
    src, dst = table.src[allowed].astype(np.int64), table.dst[allowed].astype(np.int64)
    pairs = np.sort(src * ranks + dst)
    identity = tuple(range(ranks))
    power = rotation
    while power != identity:
        image = np.array(power, dtype=np.int64)
        same = np.array_equal(np.sort(image[src] * ranks + image[dst]), pairs)
        if same and all(
            leave_by.get(power[rank]) == frozenset(power[s] for s in senders)
            for rank, senders in leave_by.items()
        ):
            return power
        power = tuple(rotation[rank] for rank in power)
    return None


def _check_reachable(topology: Topology, sketch: Sketch, allowed: Mask) -> None:
    """Refuse allowed links over which some rank can't reach another."""
    table = topology.links
    for forward in (True, False):
        tail, head = (table.src, table.dst) if forward else (table.dst, table.src)
        tail, head = tail[allowed], head[allowed]
        seen = np.zeros(topology.num_ranks, dtype=np.bool_)
        seen[0] = True
        reached = 0
        while reached < seen.sum():
            reached = int(seen.sum())
            seen[head[seen[tail]]] = True
        if not seen.all():
            lost = int(np.flatnonzero(~seen)[0])
            src, dst = (0, lost) if forward else (lost, 0)
            raise NoScheduleError(
                f"{sketch.source.file or sketch.name}: {_closing_field(sketch)}: rank {dst} can't"
                f" be served: no allowed link leads there from rank {src}, directly or over others",
                fix=f"allow a link that leads to rank {dst}",
            )


def _closing_field(sketch: Sketch) -> str:
    """Return the field of the sketch that closes links."""
    part = "deny" if sketch.deny or sketch.relays in (None, FULLY_CONNECTED) else "relays"
    return field_name(sketch.fields.get(part, (part,)))
