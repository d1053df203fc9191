"""From names and files to the network that engines see, and the symmetries they may use."""

from collections.abc import Iterable

import numpy as np

from taccl.errors import InputError
from taccl.sketch import apply_sketch, load_sketch
from taccl.symmetry import Group, free_group, make_group
from taccl.topology import LogicalTopology, Permutation, whole
from taccl.topology_file import load_topology


def load_network(
    topology: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketch: str | None = None,
    alpha_rule: str | None = None,
) -> LogicalTopology:
    """Return a topology as a sketch restricts it, from what the command line names.

    Raises
    ------
    InputError
        When a file or a value can't be used.
    NoScheduleError
        When the sketch cuts ranks off.
    """
    network = load_topology(topology, nodes=nodes, fabric=fabric)
    if alpha_rule is not None:
        network = network.with_alpha_rule(alpha_rule)
    if sketch is None:
        return whole(network, network.rotations)
    return apply_sketch(network, load_sketch(sketch))


def logical_group(logical: LogicalTopology) -> Group:
    """Return the largest group found that acts freely and that the sketch's limits keep.

    Symmetries that a sketch names must hold; those the topology declares are used as far as
    the sketch leaves them.

    Raises
    ------
    InputError
        When a named symmetry does not hold; names the edge or the link that breaks it.
    """
    topology = logical.topology
    named = logical.name is not None and logical.symmetry != topology.rotations
    kept: list[Permutation] = []
    for generator in logical.symmetry:
        group = make_group(topology, (generator,))
        broken = _broken_link(logical, group, generator)
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


def _broken_link(logical: LogicalTopology, group: Group, generator: Permutation) -> int | None:
    """Return a link whose image the sketch treats otherwise, or None."""
    if len(group) == 1:
        return None
    links = range(len(logical.topology.links))
    image = np.array(group.link_image(group.elements.index(tuple(generator)), links))
    differs = np.flatnonzero(logical.allowed[image] != logical.allowed)
    if len(differs):
        return int(differs[0])
    for rank, senders in logical.leave_by.items():
        moved = frozenset(generator[sender] for sender in senders)
        if logical.leave_by.get(generator[rank]) != moved:
            return _first(logical.topology.links_from(rank))
    return None


def _first(links: Iterable[int]) -> int:
    return next(iter(links), 0)
