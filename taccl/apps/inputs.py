"""From what a command names to networks, collectives, programs and plans: short forms and files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from taccl.collectives import Collective, among_members, build_collective, collective_name
from taccl.collectives.file import read_collective
from taccl.errors import InputError
from taccl.files import read_text, shown
from taccl.model.problem import reduces_and_spreads
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml
from taccl.mscclpp.interpret import is_plan
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.structure import counted_chunks
from taccl.mscclpp.text import read_plan
from taccl.replay.cost import charged_network, floor_networks, least_costs, measured_costs, of_plans
from taccl.sketch import apply_sketch, load_sketch
from taccl.topology.edit import grouped
from taccl.topology.file import has_count, load_topology
from taccl.topology.graph import LogicalTopology, Permutation, Rank, Topology, whole
from taccl.topology.symmetry import (
    Group,
    free_group,
    make_group,
    powers,
    search_group,
    vertex_image,
)
from taccl.units import MAX_SIZE, exact_size_text

DEFAULT_SIZE = 10**6
"""Bytes, where neither a size is asked for nor the topology has a chunk size."""

Members = tuple[Sequence[Rank], str | Sequence[Rank]] | None
"""The members of a process group in order, and who relays: of RELAYS, or ranks; None: no group."""


def size_of_chunks(chunk_size: Fraction, chunks: int) -> int:
    """Return the bytes of so many `chunks` of `chunk_size` bytes each.

    Raises InputError when they are no whole number of bytes, or too many.
    """
    size = chunk_size * chunks
    if size.denominator != 1 or size > MAX_SIZE:
        raise InputError(
            f"{chunks} chunks of {exact_size_text(chunk_size)}, the topology's chunk_size, make no"
            " size from 1 to 2^50 bytes",
            field="--size",
            fix="give --size",
        )
    return int(size)


def default_size(topology: Topology, collective: Collective) -> int:
    """Return the bytes of a `collective`: its own, those of the `topology`'s chunks, else 1 MB."""
    if collective.size is not None:
        return collective.size
    if topology.chunk_size is None:
        return DEFAULT_SIZE
    return size_of_chunks(topology.chunk_size, collective.chunks_in_size)


def load_collective(text: str) -> str | Collective:
    """Return the table's name of a collective, or the collective of a file.

    Raises InputError when it is neither.
    """
    try:
        return collective_name(text)
    except InputError:
        named = re.search(r"[/\\]|\.(ya?ml|json)$", text)
        if not named and not Path(text[:255]).is_file():
            raise
    return read_collective(text)


def asked_collective(
    wanted: str | Collective, topology: Topology, root: int | None = None
) -> Collective:
    """Return the `wanted` collective for the ranks of a `topology` that do not only relay, uncut.

    It is a name of COLLECTIVES, or a collective from a file; `root` is for those of the table that
    have one, None: rank 0.

    Raises InputError when it has no such root, or is for another number of ranks.
    """
    members = range(topology.num_ranks - topology.relays)
    if isinstance(wanted, str):
        return build_collective(wanted, topology.num_ranks, 1, root, members)
    if root is not None:
        raise InputError(
            f"{wanted.name} has no root, got {root}", field="--root", fix="leave --root out"
        )
    if wanted.num_ranks != len(members):
        raise InputError(
            f"{wanted.name} is for {wanted.num_ranks} ranks, and {topology.name} has"
            f" {len(members)}",
            field="ranks",
            fix=f"write ranks: {len(members)}, or give another topology or --nodes",
        )
    return among_members(wanted, topology.num_ranks, members) if topology.relays else wanted


IN_NETWORK_MODES = ("auto", "on", "off")


def fans_wanted(mode: str, *, carried: bool) -> bool:
    """Tell whether switches may copy and add, by a `mode` of IN_NETWORK_MODES.

    ``auto``: where what is made can be `carried` out.

    Raises InputError when there is no such mode.
    """
    if mode not in IN_NETWORK_MODES:
        raise InputError(
            f"unknown mode {mode[:40]!r}", field="--in-network",
            fix=f"use {', '.join(IN_NETWORK_MODES)}",
        )  # fmt: skip
    return mode == "on" or (mode == "auto" and carried)


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What changes a machine from what its file says; None: nothing.

    It has so many `nodes`, joined by a `fabric`, with an `alpha_rule` of ALPHA_RULES. TACCL's own
    costs depend on the `sketch`, a file or the name of a shipped one. With a `group` it is the
    machine that its members have. Switches copy and add, as the file says, only with `in_network`:
    most runtimes can't ask them to.
    """

    nodes: int | None = None
    fabric: str | None = None
    sketch: str | None = None
    alpha_rule: str | None = None
    group: Members = None
    in_network: bool = False


AS_IT_IS = MachineOptions()


def load_machine(topology: str, options: MachineOptions = AS_IT_IS) -> Topology:
    """Return a `topology`, a file, the name of a shipped one or a short form, with its `options`.

    Raises InputError when a file or a value can't be used; NoScheduleError when members of the
    group can't reach one another.
    """
    sketched = None if options.sketch is None else load_sketch(options.sketch).sketched
    network = load_topology(topology, nodes=options.nodes, fabric=options.fabric, sketched=sketched)
    rule = options.alpha_rule
    network = network if rule is None else network.with_alpha_rule(rule)
    network = network if options.in_network else network.point_to_point()
    return network if options.group is None else grouped(network, *options.group)


def load_network(topology: str, options: MachineOptions = AS_IT_IS) -> LogicalTopology:
    """Return a `topology` with its `options`, as their sketch restricts it, if there is one.

    Raises InputError when a file or a value can't be used; NoScheduleError when the sketch cuts
    ranks off.
    """
    if options.sketch is None:
        network = load_machine(topology, options)
        return whole(network, network.rotations)
    network = load_machine(topology, replace(options, in_network=False))
    return apply_sketch(network, load_sketch(options.sketch))


def load_both(first: str, second: str, nodes: int | None) -> tuple[Topology, Topology]:
    """Return the `first` and the `second` topology; `nodes` is for what is made of servers.

    Raises InputError when one can't be used, or both have their servers in them and ``nodes`` is
    given.
    """
    fixed = [spec for spec in (first, second) if nodes is not None and not has_count(spec)]
    if len(fixed) == 2:
        raise InputError(
            f"{shown(first)} and {shown(second)} both have their servers in them", field="--nodes",
            fix="leave --nodes out",
        )  # fmt: skip
    one, other = (
        load_machine(spec, MachineOptions(None if spec in fixed else nodes, in_network=True))
        for spec in (first, second)
    )
    return one, other


def logical_group(logical: LogicalTopology, collective: Collective | None = None) -> Group:
    """Return the largest group found that acts freely and that sketch and collective keep.

    Symmetries that the sketch of a `logical` network names must hold; those the topology declares
    are used as far as the sketch and the `collective` leave them (a rotation that moves the root
    does not hold). Where nothing is declared, symmetries are searched for. Without a collective
    they are those of the network alone.

    Raises InputError when a named symmetry does not hold; names the edge, link or chunk that breaks
    it.
    """
    topology = logical.topology
    named = logical.symmetry_asked
    if not (named or topology.rotations):
        # Whatever moves every rank moves the root.
        if collective is not None and collective.root is not None:
            return make_group(topology, ())
        return search_group(
            topology, lambda each: _maps(collective, each) and _broken_link(logical, each) is None
        )
    kept: list[Permutation] = []
    for declared in logical.symmetry:
        # A power of a rotation may keep what it does not keep itself.
        images = [declared] if named else powers(declared)
        generator = next((each for each in images if named or _maps(collective, each)), None)
        if generator is None:
            continue
        if collective is not None:
            collective.require_image(generator)
        vertex_image(topology, generator)
        broken = _broken_link(logical, generator)
        if broken is None:
            kept.append(tuple(generator))
        elif named:
            link = topology.link(broken)
            raise InputError(
                f"the sketch {logical.name} does not have this symmetry: link {link.src} ->"
                f" {link.dst} is allowed or closed unlike its image",
                field="symmetry",
                fix="remove the symmetry, or treat these links alike",
            )
    return free_group(topology, kept)


def _maps(collective: Collective | None, permutation: Permutation) -> bool:
    """Tell whether a permutation maps a collective, if there is one, onto itself."""
    try:
        if collective is not None:
            collective.require_image(permutation)
    except InputError:
        return False
    return True


def _broken_link(logical: LogicalTopology, permutation: Permutation) -> int | None:
    """Return a link whose image the sketch treats otherwise, or None."""
    topology = logical.topology
    if not logical.allowed.all() and permutation != tuple(range(topology.num_ranks)):
        links = np.arange(len(topology.links))
        rows = np.array([range(topology.num_ranks), permutation], dtype=np.int32)
        group = Group(topology, (permutation,), rows)
        image = group.link_images(1, links)
        differs = np.flatnonzero(logical.allowed[image] != logical.allowed)
        if len(differs):
            return int(differs[0])
    for rank, senders in logical.leave_by.items():
        moved = frozenset(permutation[sender] for sender in senders)
        if logical.leave_by.get(permutation[rank]) != moved:
            return next(iter(topology.links.leaving(rank)), 0)
    return None


def charged(
    logical: LogicalTopology, collective: Collective, size: int, protocols: Sequence[str]
) -> LogicalTopology:
    """Return a `logical` network on which messages cost what was measured.

    They are those of the one of the `protocols` that seems the fastest for a `collective` of `size`
    bytes: its launch, an alpha inside a server and one between servers, those again where sums are
    spread, two at least, and the time of its bytes on the wire at the busiest port.

    Raises InputError when the topology has no measured costs.
    """
    from taccl.bounds.arrival_curves import fluid
    from taccl.bounds.cut import port_crossings
    from taccl.bounds.net import make_net

    topology = logical.topology
    costs = measured_costs(topology).protocols
    # Of all bounds the quickest to prove: something is to be written before others are.
    least = least_costs(topology, measured_costs(topology))
    ports = port_crossings(make_net(replace(logical, topology=least), collective), collective)
    curves = (fluid(port.kind, port.gates, port.share) for port in ports)
    floor = max((curve.at(size) for curve in curves if curve is not None), default=0)
    across = topology.num_servers > 1
    inside = topology.num_ranks > topology.num_servers
    rounds = 2 if reduces_and_spreads(collective) or not (across and inside) else 1

    def takes(name: str) -> Fraction:
        own = costs[name]
        alphas = rounds * (across * own.alpha_across + inside * own.alpha)
        return own.launch + alphas + own.wire * floor

    return replace(logical, topology=charged_network(topology, min(protocols or costs, key=takes)))


@lru_cache(maxsize=8)
def floors_of(topology: Topology, *, plans: bool = False) -> tuple[Topology, ...]:
    """Return networks with measured costs as bounds for programs on a `topology`, or `plans` too.

    No program takes less than the least of their bounds, each with its launch, does.
    """
    found = floor_networks(topology, measured_costs(topology))
    if plans:
        found = (*found, least_costs(topology, measured_costs(of_plans(topology))))
    return found


ELEMENT_BYTES = 4
"""nccl-tests' default type, float: sizes are cut to whole elements."""


def read_input(path: str | Path) -> Program | Plan:
    """Return what is in the file at `path`: a program or a plan.

    Raises InputError when the file can't be read; ProgramError when it is neither.
    """
    text = read_text(path)
    if is_plan(text):
        return read_plan(text, file=str(path))
    return read_xml(text, file=str(path), runtime="portable")


def read_program(path: str | Path) -> Program:
    """Return the program of an XML file.

    Raises InputError when the file can't be read; ProgramError when it is no program.
    """
    return read_xml(read_text(path), file=str(path), runtime="portable")


def unit_of(what: Program | Plan) -> int:
    """Return the bytes of which every size that `what`, a program or plan, runs is a multiple."""
    if isinstance(what, Plan):
        return max(1, what.alignment) * counted_chunks(what, what.ranks[0])
    return what.chunks_per_loop * ELEMENT_BYTES


def whole_size(files: Sequence[str], size: int) -> int:
    """Return the most bytes up to `size` that cut into whole chunks in all of the `files`.

    Raises InputError when a file can't be read; ProgramError when it is no program or plan.
    """
    for file in files:
        unit = unit_of(read_input(file))
        size = size - size % unit or unit
    return size
