"""Communication sketches: what a user knows about a good algorithm, applied to a topology."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from taccl.files import read_document, shown
from taccl.sketch.native import Pattern, Sketch, SketchFile, offset_permutation, read_native
from taccl.sketch.restrict import (
    Locals,
    Mask,
    allowed_links,
    check_reachable,
    keeps_sketch,
    senders_of,
    switch_in_server,
    why_unserved,
)
from taccl.sketch.taccl_json import TacclSketchFile, is_taccl_json, read_taccl_json
from taccl.topology.file import check_kind, shipped_file, shipped_names
from taccl.topology.graph import LogicalTopology, Permutation, Topology
from taccl.topology.symmetry import kept_powers

__all__ = [
    "Pattern", "Sketch", "SketchFile", "TacclSketchFile", "apply_sketch", "load_sketch",
    "shipped_sketches",
]  # fmt: skip


def load_sketch(spec: str) -> Sketch:
    """Return the sketch of a path or shipped name, native or in TACCL's JSON by content.

    Raises InputError with file, line, field, what was found, and the fix.
    """
    document = read_document(shipped_file(spec, "sketches", "sketch"))
    value = document.value
    if is_taccl_json(value):
        return read_taccl_json(document)
    if isinstance(value, dict) and "taccl" not in value and "nnodes" in value:
        raise document.error(
            "is missing", ("intranode_sketch",), 'add "intranode_sketch": {"strategy": "none"}'
        )
    if not isinstance(value, dict):
        raise document.error(
            f"should be a mapping of fields, got {shown(value)}", (), "start with taccl: sketch/1"
        )
    check_kind(document, "sketch")
    return read_native(document)


def shipped_sketches() -> tuple[str, ...]:
    """Return the names of the shipped sketches."""
    return shipped_names("sketches")


def apply_sketch(topology: Topology, sketch: Sketch) -> LogicalTopology:
    """Return a ``topology`` as a ``sketch`` restricts it.

    Raises InputError when the sketch names what the topology does not have; NoScheduleError when
    the allowed links leave a rank that can't be reached.
    """
    places = Locals(topology)
    if sketch.servers is not None and sketch.servers != len(topology.servers):
        raise sketch.error(
            f"the sketch is for {sketch.servers} servers, {topology.name} has"
            f" {len(topology.servers)}", "servers", fix=f"use --nodes {sketch.servers}",
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
        own_chunks_first=sketch.own_chunks_first and len(topology.servers) > 1,
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
        found = [s for s in switches if name in (s, switch_in_server(s))]
        if not found and name != "*":
            known = ", ".join(sorted({switch_in_server(s) for s in switches})[:8]) or "none"
            raise sketch.error(
                f"{places.topology.name} has no switch {name!r}", "switches", name,
                fix=f"use one of its switches ({known}), or * for all links in a server",
            )  # fmt: skip
        policies.update(dict.fromkeys(found or ["*"], policy))
    for members, policy in sketch.policy_members:
        places.check(sketch, [max(members)], "policy_members")
        policies.update(dict.fromkeys(_switches_of(members, places) or ["*"], policy))
    return policies


def _switches_of(members: tuple[int, ...], places: Locals) -> list[str]:
    """Return the switches that join exactly some local GPUs of one server."""
    topology = places.topology
    ranks = topology.num_ranks
    joined: dict[int, set[int]] = defaultdict(set)
    for edge in topology.edges:
        if edge.tail < ranks <= edge.head:
            joined[edge.head].add(edge.tail)
    sets = [{server[m] for m in members if m < len(server)} for server in topology.servers]
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
        keeps = partial(keeps_sketch, topology, allowed, leave_by)
        return kept_powers(topology.rotations, keeps, topology.num_ranks)
    ranks = topology.num_ranks
    generators = [_offset(sketch, i, row, ranks) for i, row in enumerate(sketch.offsets)]
    generators += [
        row if sorted(row) == list(range(ranks)) else _offset(sketch, index, row, ranks)
        for index, row in enumerate(sketch.generators)
    ]
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
