"""Rank permutations that a topology has: verified, closed to a group, split into orbits.

A permutation of the ranks is a symmetry when it extends to the switches so that every edge maps
to an edge with equal alpha, overhead and beta. Decisions made for one representative chunk of
each orbit can then be copied to the whole orbit, if the group acts freely on ranks and on
resources.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.errors import InputError
from taccl.topology import Permutation, Topology

MAX_GROUP = 20_000
MAX_ENTRIES = 20_000_000
"""Elements times ranks: the images that a group holds."""

Signature = tuple[object, ...]


def close_group(generators: Iterable[Permutation], num_ranks: int) -> tuple[Permutation, ...]:
    """Return all products of the generators, the identity first, in a fixed order.

    Raises
    ------
    InputError
        When there are more than 20 000, or more than memory is for.
    """
    most = min(MAX_GROUP, MAX_ENTRIES // num_ranks)
    identity = tuple(range(num_ranks))
    elements = {identity: None}
    frontier = [identity]
    gens = [g for g in dict.fromkeys(generators) if g != identity]
    while frontier:
        following = []
        for element in frontier:
            for gen in gens:
                product = tuple(gen[r] for r in element)
                if product not in elements:
                    elements[product] = None
                    following.append(product)
            if len(elements) > most:
                raise InputError(
                    f"the declared symmetries generate more than {most} permutations",
                    field="symmetry",
                    fix="declare fewer",
                )
        frontier = following
    return tuple(elements)


def edge_image(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Return where every edge goes when rank r becomes ``permutation[r]``.

    Raises
    ------
    InputError
        When the topology does not map onto itself; names the edge that breaks it.
    """
    vertices = _extend(topology, permutation)
    there: dict[Signature, list[int]] = {}
    for edge in topology.edges:
        key = (edge.tail, edge.head, edge.alpha, edge.overhead, edge.beta)
        there.setdefault(key, []).append(edge.id)
    image = np.empty(len(topology.edges), dtype=np.int32)
    used: dict[Signature, int] = {}
    for edge in topology.edges:
        key = (vertices[edge.tail], vertices[edge.head], edge.alpha, edge.overhead, edge.beta)
        matches, taken = there.get(key, ()), used.get(key, 0)
        if taken >= len(matches):
            tail, head = topology.vertex_name(edge.tail), topology.vertex_name(edge.head)
            raise InputError(
                f"the topology {topology.name} does not have this symmetry:"
                f" edge {tail} -> {head} has no image",
                field="symmetry",
                fix="remove the symmetry, or make the edges equal",
            )
        image[edge.id] = matches[taken]
        used[key] = taken + 1
    return image


def _extend(topology: Topology, permutation: Sequence[int]) -> list[int]:
    """Extend a rank permutation to the switches by colour refinement on both sides."""
    ranks = topology.num_ranks
    total = ranks + len(topology.switches)
    if not topology.switches:
        return list(permutation)
    vertices = [*permutation, *([-1] * len(topology.switches))]
    mine: list[int] = [*permutation, *([-1] * len(topology.switches))]
    theirs: list[int] = [*range(ranks), *([-1] * len(topology.switches))]
    while True:
        mine, theirs = _refine(topology, mine, theirs)
        classes: dict[int, tuple[list[int], list[int]]] = {}
        for vertex in range(ranks, total):
            classes.setdefault(mine[vertex], ([], []))[0].append(vertex)
            classes.setdefault(theirs[vertex], ([], []))[1].append(vertex)
        tied = None
        for here, there in classes.values():
            if len(here) == len(there) == 1:
                vertices[here[0]] = there[0]
            elif len(here) != len(there):
                return _identity_where_unknown(vertices, ranks)
            else:
                tied = tied or (here[0], there[0])
        if tied is None:
            return vertices
        # Several switches look alike: tell the first pair apart and refine again.
        mine[tied[0]] = theirs[tied[1]] = total + max(*mine, *theirs) + 1


def _identity_where_unknown(vertices: list[int], ranks: int) -> list[int]:
    """Fill what has no image with itself; the edge check then names the edge that breaks."""
    return [v if v >= 0 else i for i, v in enumerate(vertices[:ranks])] + [
        v if v >= 0 else ranks + i for i, v in enumerate(vertices[ranks:])
    ]


def _refine(topology: Topology, *sides: list[int]) -> tuple[list[int], list[int]]:
    """Refine the colours of two sides together until neither gets more classes."""
    current = [list(side) for side in sides]
    count = 0
    while True:
        signatures = [_signatures(topology, side) for side in current]
        names = {
            signature: number
            for number, signature in enumerate(
                sorted({s for side in signatures for s in side}, key=repr)
            )
        }
        current = [[names[s] for s in side] for side in signatures]
        if len(names) == count:
            return current[0], current[1]
        count = len(names)


def _signatures(topology: Topology, colours: list[int]) -> list[Signature]:
    around: list[list[Signature]] = [[] for _ in colours]
    for edge in topology.edges:
        overhead = -1 if edge.overhead is None else edge.overhead
        cost = (edge.alpha, overhead, -1 if edge.beta is None else edge.beta)
        around[edge.tail].append((0, colours[edge.head], *cost))
        around[edge.head].append((1, colours[edge.tail], *cost))
    kinds = [
        *((),) * topology.num_ranks,
        *((s.multicast, s.reduce, s.across_servers) for s in topology.switches),
    ]
    return [
        (colour, kinds[vertex], tuple(sorted(around[vertex], key=repr)))
        for vertex, colour in enumerate(colours)
    ]


@dataclass(frozen=True, eq=False)
class Group:
    """A group of symmetries of a topology, with what it does to edges and links.

    Parameters
    ----------
    topology
        The network.
    generators
        Rank permutations, verified.
    elements
        The closure, identity first.
    """

    topology: Topology
    generators: tuple[Permutation, ...]
    elements: tuple[Permutation, ...]

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.elements)

    @cached_property
    def edge_images(self) -> NDArray[np.int32]:
        """Row g: where element g takes every edge."""
        if len(self.elements) == 1:
            return np.arange(len(self.topology.edges), dtype=np.int32)[None, :]
        images = {gen: edge_image(self.topology, gen) for gen in self.generators}
        rows = {self.elements[0]: np.arange(len(self.topology.edges), dtype=np.int32)}
        frontier = [self.elements[0]]
        while frontier:
            following = []
            for element in frontier:
                for gen, image in images.items():
                    product = tuple(gen[r] for r in element)
                    if product not in rows:
                        rows[product] = image[rows[element]]
                        following.append(product)
            frontier = following
        return np.stack([rows[element] for element in self.elements])

    @cached_property
    def edge_orbit(self) -> NDArray[np.int32]:
        """The smallest edge of every edge's orbit."""
        # A rank permutation may extend to switches in several ways, so that two products which
        # agree on the ranks differ on edges: close under the generators, not over the rows.
        images = [edge_image(self.topology, generator) for generator in self.generators]
        return _smallest_of_orbit(images, len(self.topology.edges))

    @cached_property
    def rank_orbit(self) -> NDArray[np.int32]:
        """The smallest rank of every rank's orbit."""
        smallest: NDArray[np.int32] = np.array(self.elements, dtype=np.int32).min(axis=0)
        return smallest

    @cached_property
    def _link_ends(self) -> NDArray[np.int64]:
        """One number for the (src, dst) of every link, ascending."""
        table = self.topology.links
        return table.src.astype(np.int64) * self.topology.num_ranks + table.dst

    def link_image(self, element: int, links: Iterable[int]) -> list[int]:
        """Return where element number ``element`` takes the given links."""
        if element == 0:
            return list(links)
        table, permutation = self.topology.links, np.array(self.elements[element], dtype=np.int64)
        wanted = np.array(list(links), dtype=np.int64)
        ends = permutation[table.src[wanted]] * self.topology.num_ranks
        ends += permutation[table.dst[wanted]]
        low = np.searchsorted(self._link_ends, ends)
        last = np.searchsorted(self._link_ends, ends, side="right") - 1
        result = np.full(len(wanted), -1, dtype=np.int64)
        # One of the parallel links between the images of the ends crosses the images of the edges.
        for offset in range(int((last - low).max(initial=-1)) + 1):
            other = np.minimum(low + offset, last)
            found = (last >= low) & self._same_path(element, wanted, np.maximum(other, 0))
            result = np.where(found, other, result)
        if (result < 0).any():
            raise InputError(
                f"link {wanted[result < 0][0]} of {self.topology.name} has no image under a"
                " symmetry",
                field="symmetry",
                fix="remove the symmetry",
            )
        images: list[int] = result.tolist()
        return images

    def _same_path(
        self, element: int, links: NDArray[np.int64], others: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell for each link whether an element takes its edges to those of the other link."""
        table, image = self.topology.links, self.edge_images[element]
        at, there = table.edge_start[links], table.edge_start[others]
        lengths = table.edge_start[links + 1] - at
        same: NDArray[np.bool_] = lengths == table.edge_start[others + 1] - there
        for hop in range(int(lengths.max(initial=0))):
            step = np.minimum(hop, lengths - 1)
            over = np.minimum(there + step, len(table.edge_ids) - 1)
            same &= image[table.edge_ids[at + step]] == table.edge_ids[over]
        return same

    def chunk_orbits(self, collective: Collective) -> tuple[int, ...]:
        """Return the smallest chunk of every orbit, ascending."""
        images = [collective.image(generator) for generator in self.generators]
        orbit = _smallest_of_orbit(images, collective.num_chunks)
        return tuple(np.flatnonzero(orbit == np.arange(len(orbit))).tolist())

    def acts_freely(self) -> bool:
        """Tell whether only the identity fixes a rank or a resource, and no link folds.

        A link folds when two of its edges lie in one orbit: its images would then meet it.
        """
        n = self.topology.num_ranks
        ranks = np.array(self.elements, dtype=np.int32)
        if (ranks[1:] == np.arange(n)).any():
            return False
        resources = [e.id for e in self.topology.edges if e.beta is not None]
        images = np.sort(self.edge_images[:, resources], axis=0)
        met = images[1:] == images[:-1]
        return not met.any() and not self._folds(resources)

    def _folds(self, resources: list[int]) -> bool:
        table = self.topology.links
        is_resource = np.zeros(len(self.topology.edges), dtype=np.bool_)
        is_resource[resources] = True
        kept = is_resource[table.edge_ids]
        owner = np.repeat(np.arange(len(table)), np.diff(table.edge_start))[kept]
        orbit = self.edge_orbit[table.edge_ids[kept]].astype(np.int64)
        pairs = owner * len(self.topology.edges) + orbit
        return len(np.unique(pairs)) < len(pairs)


def _smallest_of_orbit(images: Sequence[NDArray[np.int32]], count: int) -> NDArray[np.int32]:
    """Return the smallest member of the orbit of each of 0 .. count-1 under some permutations."""
    orbit = np.arange(count, dtype=np.int32)
    while True:
        before = orbit.copy()
        for image in images:
            smaller = np.minimum(orbit, orbit[image])
            orbit[image] = smaller
            orbit = np.minimum(orbit, smaller)
        orbit = orbit[orbit]
        if np.array_equal(before, orbit):
            return orbit


def make_group(topology: Topology, generators: Iterable[Permutation]) -> Group:
    """Return the group that verified generators span.

    Raises
    ------
    InputError
        When a generator is no symmetry of the topology, or the group is too large.
    """
    n = topology.num_ranks
    kept = []
    for generator in dict.fromkeys(tuple(g) for g in generators):
        if sorted(generator) != list(range(n)):
            raise InputError(
                f"should be a permutation of 0..{n - 1}, got {list(generator)[:20]}",
                field="symmetry",
                fix=f"list every rank from 0 to {n - 1} once",
            )
        check_symmetry(topology, generator)
        if generator != tuple(range(n)):
            kept.append(generator)
    return Group(topology, tuple(kept), close_group(kept, n))


def check_symmetry(topology: Topology, permutation: Permutation) -> None:
    """Return when a rank permutation is a symmetry of the topology.

    Raises
    ------
    InputError
        When it is not; names the edge or rank that breaks it.
    """
    edge_image(topology, permutation)
    _check_servers(topology, permutation)


def _check_servers(topology: Topology, permutation: Permutation) -> None:
    """Refuse to take a server apart where links depend on who shares one."""
    if not any(switch.across_servers for switch in topology.switches):
        return
    image_of: dict[int, int] = {}
    for rank, image in enumerate(permutation):
        home, there = topology.server_of[rank], topology.server_of[image]
        if image_of.setdefault(home, there) != there:
            raise InputError(
                f"the topology {topology.name} does not have this symmetry:"
                f" it takes rank {rank} away from the other ranks of server {home}",
                field="symmetry",
                fix="remove the symmetry, or map servers to servers",
            )


def free_group(topology: Topology, generators: Sequence[Permutation]) -> Group:
    """Return the largest group found that acts freely, from subsets and powers of generators.

    Generators are added one at a time, each as its smallest power that keeps the group free.
    """
    best = make_group(topology, ())
    for order in (list(generators), list(reversed(generators))):
        group = make_group(topology, ())
        for generator in order:
            for power in powers(generator):
                larger = make_group(topology, (*group.generators, power))
                if len(larger) > len(group) and larger.acts_freely():
                    group = larger
                    break
        if len(group) > len(best):
            best = group
    return best


def powers(generator: Permutation) -> list[Permutation]:
    """Return the distinct powers of a permutation without the identity, smallest first."""
    identity, powers = tuple(range(len(generator))), []
    power = tuple(generator)
    while power != identity:
        powers.append(power)
        power = tuple(generator[r] for r in power)
    return powers[:64]
