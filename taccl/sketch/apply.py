"""Apply a sketch to a topology: the links that remain, and what engines should respect."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from taccl.sketch.native import Sketch, offset_permutation
from taccl.sketch.restrict import Locals, Mask, allowed_links, senders_of
from taccl.sketch.served import check_reachable, why_unserved
from taccl.topology.graph import LogicalTopology, Permutation, Topology


def apply_sketch(topology: Topology, sketch: Sketch) -> LogicalTopology:
    """Return a topology as a sketch restricts it.

    Parameters
    ----------
    topology
        The machine.
    sketch
        What is to be respected.

    Raises
    ------
    InputError
        When the sketch names what the topology does not have.
    NoScheduleError
        When the allowed links leave a rank that can't be reached.
    """
    places = Locals(topology)
    if sketch.servers is not None and sketch.servers != len(places.members):
        raise sketch.error(
            f"the sketch is for {sketch.servers} servers, {topology.name} has"
            f" {len(places.members)}", "servers", fix=f"use --nodes {sketch.servers}",
        )  # fmt: skip
    allowed = allowed_links(sketch, places)
    leave_by = senders_of(sketch, places)
    check_reachable(topology, sketch, allowed)
    return LogicalTopology(
        topology, allowed,
        symmetry=_symmetry(topology, sketch, allowed, leave_by),
        symmetry_asked=not sketch.auto_symmetry,
        switch_policy=MappingProxyType(_policies(sketch, places)),
        leave_by=MappingProxyType(leave_by),
        own_chunks_first=sketch.own_chunks_first and len(places.members) > 1,
        max_extra_hops=sketch.max_extra_hops,
        on_shortest_paths=sketch.on_shortest_paths,
        connections_per_rank=sketch.connections_per_gpu,
        channels=sketch.channels,
        chunks_per_rank=sketch.chunks_per_rank,
        name=sketch.name,
        balance=sketch.balance,
        why_unserved=partial(why_unserved, topology, sketch),
    )  # fmt: skip


def _policies(sketch: Sketch, places: Locals) -> dict[str, str]:
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


def _switches_of(members: tuple[int, ...], places: Locals) -> list[str]:
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
