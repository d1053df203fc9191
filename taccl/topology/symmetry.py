"""Symmetries of a topology: rank permutations, the groups they span, and what these do to it.

A permutation of the ranks is a symmetry when it extends to the switches so that every edge maps
to an edge with equal alpha, overhead and beta. The extension is found by colour refinement: a
vertex's colour is what it is and what lies around it. Colours are hashes; whether the extension
holds is then checked edge by edge, exactly.

A group of symmetries splits chunks, ranks, edges and links into orbits. Decisions made for one
representative chunk of each orbit can be copied to the whole orbit, if the group acts freely on
ranks and on resources.

Symmetries that nobody declared are found, and put together to a group that acts freely. Ranks are
numbered for a reason, so shifts inside blocks of equal size are tried first, in the order of the
ranks and by servers and rails. Then BLISS (Junttila and Kaski, 2007; by igraph) generates all
automorphisms of the topology. Where they are few, all are known; else their powers and the products
of generators in a row stand for them. From these a group is grown that moves every rank and every
resource.
"""

import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.errors import InputError, TacclWarning
from taccl.topology.graph import Permutation, Switch, Topology
from taccl.topology.links import LinkTable

Colours = NDArray[np.uint64]

MAX_TIES = 1000
"""Switches that look alike and are told apart one by one, for one extension."""

MAX_WORK = 20_000_000
"""Vertices and edges looked at in one refinement; colours are coarser where it ends too soon."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def vertex_image(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Return where every vertex of a ``topology`` goes when rank r becomes ``permutation[r]``.

    Raises InputError when the topology does not map onto itself; names the edge or rank that breaks
    it.
    """
    image = _extend(topology, permutation)
    edge_image(topology, image)
    # Links depend on who shares a server: none may be taken apart.
    image_of: dict[int, int] = {}
    for rank, to in enumerate(permutation) if servers_matter(topology) else ():
        home, there = topology.server_of[rank], topology.server_of[to]
        if image_of.setdefault(home, there) != there:
            raise InputError(
                f"the topology {topology.name} does not have this symmetry:"
                f" it takes rank {rank} away from the other ranks of server {home}",
                field="symmetry",
                fix="remove the symmetry, or map servers to servers",
            )
    return image


def is_symmetry(topology: Topology, permutation: Sequence[int]) -> bool:
    """Tell whether a ``topology`` maps onto itself when rank r becomes ``permutation[r]``."""
    try:
        vertex_image(topology, permutation)
    except InputError:
        return False
    return True


def edge_image(topology: Topology, vertices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where every edge of a ``topology`` goes when vertex v becomes ``vertices[v]``.

    Of equal parallel edges the k-th goes to the k-th.

    Raises InputError when an edge has no image; names it.
    """
    edges = topology.edge_table
    total = topology.num_ranks + len(topology.switches)
    kinds = int(edges.cost.max(initial=0)) + 1
    here = (edges.tail * total + edges.head) * kinds + edges.cost
    goal = (vertices[edges.tail].astype(np.int64) * total + vertices[edges.head]) * kinds
    goal += edges.cost
    by_here, by_goal = np.argsort(here, kind="stable"), np.argsort(goal, kind="stable")
    if not np.array_equal(here[by_here], goal[by_goal]):
        lost = np.flatnonzero(~np.isin(goal, here))
        if not len(lost):  # more parallel edges than there are where they go
            counts, wanted = Counter(here.tolist()), Counter(goal.tolist())
            lost = np.flatnonzero([wanted[key] > counts[key] for key in goal.tolist()])
        edge = topology.edges[int(lost[0])]
        raise InputError(
            f"the topology {topology.name} does not have this symmetry: edge"
            f" {topology.vertex_name(edge.tail)} -> {topology.vertex_name(edge.head)} has no image",
            field="symmetry",
            fix="remove the symmetry, or make the edges equal",
        )
    image = np.empty(len(edges), dtype=np.int32)
    image[by_goal] = by_here
    return image


def servers_matter(topology: Topology) -> bool:
    """Tell whether links depend on which ranks share a server."""
    return any(switch.across_servers for switch in topology.switches)


def _extend(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Extend a rank permutation to the switches; where nothing fits, they stay where they are."""
    ranks, total = topology.num_ranks, topology.num_ranks + len(topology.switches)
    same = np.array([*permutation, *range(ranks, total)], dtype=np.int32)
    if ranks == total:
        return same
    kinds = switch_kinds(topology)
    mine = np.concatenate([np.array(permutation, dtype=np.int64), ranks + kinds])
    theirs = np.concatenate([np.arange(ranks, dtype=np.int64), ranks + kinds])
    for _ in range(MAX_TIES):
        mine, theirs = refine(topology, mine, theirs)
        by_mine, by_theirs = (np.argsort(side, kind="stable") for side in (mine, theirs))
        if not np.array_equal(mine[by_mine], theirs[by_theirs]):
            return same
        tied = _tied(topology, mine)
        if tied is None:
            image = np.empty(total, dtype=np.int32)
            image[by_mine] = by_theirs
            return image
        # Several switches look alike: tell the first pair apart and refine again.
        other = int(np.flatnonzero(theirs == mine[tied])[0])
        mine[tied] = theirs[other] = total
    return same


def _tied(topology: Topology, colours: NDArray[np.int64]) -> int | None:
    """Return the first vertex whose image is open and matters, or None.

    Vertices of one colour all of whose neighbours have colours of their own are
    interchangeable: any order will do.
    """
    edges = topology.edge_table
    shared = np.bincount(colours)[colours] > 1
    beside = np.zeros(len(colours), dtype=np.bool_)
    beside[edges.tail[shared[edges.head]]] = True
    beside[edges.head[shared[edges.tail]]] = True
    tied = np.flatnonzero(shared & beside)
    return int(tied[0]) if len(tied) else None


def switch_kinds(topology: Topology) -> NDArray[np.int64]:
    """Return a number for what every switch can do; equal for equal abilities."""
    able: dict[Switch, int] = {}
    return np.array(
        [
            2 + able.setdefault(replace(switch, name=""), len(able))
            if switch.is_station else switch.across_servers
            for switch in topology.switches
        ],
        dtype=np.int64,
    )  # fmt: skip


def refine(topology: Topology, *sides: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Refine the colours of the vertices of some copies of a ``topology``, all together.

    Returns the coarsest colours, 0, 1, ..., under which equal vertices of all copies have equal
    neighbours over equal edges; finer than or equal to ``sides``, those given for each copy.
    """
    edges, total = topology.edge_table, len(sides[0])
    tail = np.concatenate([edges.tail + i * total for i in range(len(sides))])
    head = np.concatenate([edges.head + i * total for i in range(len(sides))])
    kind = np.tile(edges.cost.astype(np.uint64), len(sides)) * np.uint64(2)
    colours = np.unique(np.concatenate(sides), return_inverse=True)[1].astype(np.int64)
    count = int(colours.max(initial=-1)) + 1
    for _ in range(max(8, MAX_WORK // (len(tail) + len(colours)))):
        old = colours.astype(np.uint64)
        around = _mixed(old)
        np.add.at(around, tail, _mixed(_mixed(old[head]) + kind))
        np.add.at(around, head, _mixed(_mixed(old[tail]) + kind + np.uint64(1)))
        # The old colour leads, so that a class is only ever split.
        order = np.lexsort((around, colours))
        new = np.concatenate([[0], np.cumsum(
            (np.diff(colours[order]) != 0) | (np.diff(around[order]) != 0)
        )])  # fmt: skip
        colours = np.empty(len(old), dtype=np.int64)
        colours[order] = new
        if new[-1] + 1 == count:
            break
        count = int(new[-1]) + 1
    return list(colours.reshape(len(sides), total))


def _mixed(values: Colours) -> Colours:
    """Return hashes of 64-bit numbers (the finaliser of splitmix64)."""
    mixed = values + _ODD
    for shift, factor in zip(_SHIFTS, _MIX, strict=False):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> _SHIFTS[2])


MAX_GROUP = 20_000
"""Elements of a group."""

MAX_ENTRIES = 300_000_000
"""Elements times ranks: the images that a group holds, 4 bytes each."""

MOST_KEYS = 1 << 24
"""More numbers than keys, up to which these are marked in place of sorted."""

SAMPLED = 64
"""Ranks by which elements of a group are told apart first."""

MAX_POWERS = 64
"""Powers of a generator that are tried."""

Row = NDArray[np.int32]
"""Where every vertex (or every rank) goes."""

NO_IMAGES: Mapping[Permutation, Row] = MappingProxyType({})


def close_group(generators: Iterable[Permutation], num_ranks: int) -> tuple[Permutation, ...]:
    """Return all products of ``generators``, which permute ``num_ranks``, the identity first.

    Raises InputError when there are more than 20 000, or more than memory is for.
    """
    rows = [np.array(generator, dtype=np.int32) for generator in generators]
    return _tuples(_all_products(rows, num_ranks, num_ranks)[0])


def _all_products(
    rows: Sequence[Row], num_ranks: int, width: int
) -> tuple[NDArray[np.int32], bool]:
    most = min(MAX_GROUP, MAX_ENTRIES // num_ranks)
    found = close_rows(rows, num_ranks, width, most)
    if found is None:
        raise InputError(
            f"the declared symmetries generate more than {most} permutations",
            field="symmetry",
            fix="declare fewer",
        )
    return found


def close_rows(
    rows: Sequence[Row], num_ranks: int, width: int, most: int, *, free: bool = False
) -> tuple[NDArray[np.int32], bool] | None:
    """Return the products of some rows, one for every permutation of the ranks, the identity first.

    With them comes whether products that agree on the ranks agree on all vertices. `rows` say where
    the generators take the `width` vertices, of which the first `num_ranks` are ranks. None where
    there are more than `most` products, or, if they are to be `free`, one that is not the identity
    keeps a rank in its place.
    """
    ranks = np.arange(num_ranks, dtype=np.int32)
    # Rows that are not written take no memory.
    products, count = np.empty((most, width), dtype=np.int32), 1
    products[0] = np.arange(width)
    # Told apart by where some ranks go, and then by all: there may be thousands of long rows.
    some = slice(0, num_ranks, max(1, num_ranks // SAMPLED))
    known: dict[bytes, list[int]] = {ranks[some].tobytes(): [0]}
    agree, at = True, 0
    while at < count:
        for row in rows:
            product = row[products[at]]
            alike = known.setdefault(product[some].tobytes(), [])
            same = (n for n in alike if (products[n, :num_ranks] == product[:num_ranks]).all())
            other = next(same, None)
            if other is not None:
                agree = agree and bool((products[other] == product).all())
                continue
            if count == most or (free and (product[:num_ranks] == ranks).any()):
                return None
            products[count] = product
            alike.append(count)
            count += 1
        at += 1
    return products[:count], agree


def _tuples(rows: NDArray[np.int32]) -> tuple[Permutation, ...]:
    # Row by row: a call for all of them could take seconds, in which no signal comes through.
    return tuple(tuple(row.tolist()) for row in rows)


def kinds_of_links(
    table: LinkTable, edge_kind: NDArray[np.integer]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the kind of every link of a `table`, and the first link of each kind.

    Links of a kind cross edges of the same kinds in the same order; `edge_kind` has a number, not
    negative, for every edge.
    """
    names, number = np.unique(edge_kind, return_inverse=True)
    length = np.diff(table.edge_start)
    kind = np.zeros(len(table), dtype=np.int64)
    for place in range(int(length.max(initial=0))):
        on = np.flatnonzero(length > place)
        kind *= len(names) + 1
        kind[on] += 1 + number[table.edge_ids[table.edge_start[on] + place]]
        kind = _renumbered(kind)
    first = np.zeros(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    return kind.astype(np.int32), first


def _renumbered(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each of some keys, not negative, among those that there are."""
    most = int(keys.max(initial=0)) + 1
    if most > MOST_KEYS + len(keys):
        return np.unique(keys, return_inverse=True)[1]
    # Marked, not sorted: there may be tens of millions.
    there = np.zeros(most, dtype=np.bool_)
    there[keys] = True
    places: NDArray[np.int64] = np.cumsum(there)
    return places[keys] - 1


@dataclass(frozen=True, eq=False)
class Group:
    """A group of symmetries of a topology, with what it does to edges and links.

    `generators` are verified rank permutations of the `topology`, `rows` their closure: one for
    each element, the identity first, which says where that takes every rank (int32).
    """

    topology: Topology
    generators: tuple[Permutation, ...]
    rows: NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.rows)

    @cached_property
    def elements(self) -> tuple[Permutation, ...]:
        """The rows as permutations: of many ranks these are large."""
        return _tuples(self.rows)

    @cached_property
    def action(self) -> tuple[NDArray[np.int32], bool]:
        """Row g: where element g takes every vertex; and whether the rows multiply as G does.

        A rank permutation may extend to switches in several ways, so that two products which
        agree on the ranks differ on switches.
        """
        topology = self.topology
        width = topology.num_ranks + len(topology.switches)
        rows = [vertex_image(topology, generator) for generator in self.generators]
        return _all_products(rows, topology.num_ranks, width)

    def edge_image(self, element: int) -> NDArray[np.int32]:
        """Return where element number ``element`` takes every edge."""
        return edge_image(self.topology, self.action[0][element])

    @cached_property
    def edge_orbit(self) -> NDArray[np.int32]:
        """The smallest edge of every edge's orbit."""
        # Close under the generators, not over the rows: they need not be closed themselves.
        rows = [vertex_image(self.topology, generator) for generator in self.generators]
        images = [edge_image(self.topology, row) for row in rows]
        return smallest_of_orbit(images, len(self.topology.edges))

    @cached_property
    def link_kinds(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The kind of every link (int32), and the first link of each kind (int64).

        Links of a kind cross edges of the same orbits in the same order.
        """
        return kinds_of_links(self.topology.links, self.edge_orbit)

    @cached_property
    def rank_orbit(self) -> NDArray[np.int32]:
        """The smallest rank of every rank's orbit."""
        smallest: NDArray[np.int32] = self.rows.min(axis=0)
        return smallest

    def vertex_row(self, element: int) -> Row:
        """Return where element number ``element`` takes every vertex."""
        row: Row = self.action[0][element]
        return row

    @cached_property
    def _link_ends(self) -> NDArray[np.int64]:
        """One number for the (src, dst) of every link, ascending."""
        return _ends_of(self.topology.links, self.topology.num_ranks)

    def link_image(self, element: int, links: Iterable[int]) -> list[int]:
        """Return where element number ``element`` takes the given links."""
        wanted = np.array(list(links), dtype=np.int64)
        images: list[int] = self.link_images(element, wanted).tolist()
        return images

    def link_images(self, element: int, links: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where element number ``element`` takes the given links, as a column.

        Raises InputError when a link has no image, which no verified group allows.
        """
        to = self.rows[element].astype(np.int64)
        return self._images(element, self.topology.links, self._link_ends, to, links)

    def arc_images(self, element: int, arcs: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where element number ``element`` takes the given arcs, as a column.

        Raises InputError when an arc has no image, which no verified group allows.
        """
        table, to = self.topology.arcs, self.vertex_row(element).astype(np.int64)
        return self._images(element, table, _ends_of(table, len(to)), to, arcs)

    def _images(
        self,
        element: int,
        table: LinkTable,
        sorted_ends: NDArray[np.int64],
        to: NDArray[np.int64],
        rows: NDArray[np.integer],
    ) -> NDArray[np.int64]:
        """Return where an element that takes vertices ``to`` others takes rows of a table."""
        wanted = rows.astype(np.int64)
        if element == 0:
            return wanted
        ends = to[table.src[wanted]] * len(to) + to[table.dst[wanted]]
        low = np.searchsorted(sorted_ends, ends)
        last = np.searchsorted(sorted_ends, ends, side="right") - 1
        result = np.where(low == last, low, -1)
        many = np.flatnonzero(low < last)
        if len(many):
            result[many] = self._parallel(element, table, wanted[many], low[many], last[many])
        if (result < 0).any():
            raise InputError(
                f"link {wanted[result < 0][0]} of {self.topology.name} has no image under a"
                " symmetry",
                field="symmetry",
                fix="remove the symmetry",
            )
        return result

    def _parallel(
        self,
        element: int,
        table: LinkTable,
        links: NDArray[np.int64],
        low: NDArray[np.int64],
        last: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the link from ``low`` to ``last`` that crosses the images of the edges; or -1."""
        image = self.edge_image(element)
        at = table.edge_start[links]
        lengths = table.edge_start[links + 1] - at
        result = np.full(len(links), -1, dtype=np.int64)
        for offset in range(int((last - low).max(initial=-1)) + 1):
            other = np.minimum(low + offset, last)
            there = table.edge_start[other]
            same = lengths == table.edge_start[other + 1] - there
            for hop in range(int(lengths.max(initial=0))):
                step = np.minimum(hop, lengths - 1)
                over = np.minimum(there + step, len(table.edge_ids) - 1)
                same &= image[table.edge_ids[at + step]] == table.edge_ids[over]
            result = np.where(same, other, result)
        return result

    def chunk_orbits(self, collective: Collective) -> tuple[int, ...]:
        """Return the smallest chunk of every orbit, ascending."""
        first = self.rank_orbit == np.arange(self.topology.num_ranks)
        if collective.blocks and first.sum() * len(self) == len(first):
            # Every orbit of chunks has one whose rank, the first of a pair, is the smallest.
            width = collective.num_chunks // len(first)
            return tuple(np.flatnonzero(np.repeat(first, width)).tolist())
        images = [collective.image(generator) for generator in self.generators]
        orbit = smallest_of_orbit(images, collective.num_chunks)
        return tuple(np.flatnonzero(orbit == np.arange(len(orbit))).tolist())

    def acts_freely(self) -> bool:
        """Tell whether only the identity fixes a rank or a resource, and no link folds.

        A link folds when two of its edges lie in one orbit: its images would then meet it. What
        only the identity fixes has as many images as there are elements.
        """
        size, edges = len(self), self.topology.edge_table
        if self.topology.num_ranks % size or not self.action[1]:
            return False
        images = (np.bincount(self.rank_orbit), np.bincount(self.edge_orbit[edges.is_resource]))
        return all(bool((count[count > 0] == size).all()) for count in images) and not self.folds

    @cached_property
    def folds(self) -> bool:
        """Whether two resources of some link lie in one orbit."""
        if len(self) == 1:
            return False
        table, edges = self.topology.links, self.topology.edge_table
        first = np.flatnonzero(self.rank_orbit == np.arange(self.topology.num_ranks))
        # The others are images of the links that leave these.
        links = np.concatenate(
            [np.array(table.leaving(int(rank)), dtype=np.int64) for rank in first]
        )
        start, crossed = table.crossed_by(links)
        kept = edges.is_resource[crossed]
        owner = np.repeat(np.arange(len(links)), np.diff(start))[kept]
        pairs = np.sort(owner * len(edges) + self.edge_orbit[crossed[kept]])
        return bool((pairs[1:] == pairs[:-1]).any())


def _ends_of(table: LinkTable, vertices: int) -> NDArray[np.int64]:
    """Return one number for the two ends of every row of a table."""
    ends: NDArray[np.int64] = table.src.astype(np.int64) * vertices + table.dst
    return ends


def moves_all(topology: Topology, row: Row) -> bool:
    """Tell whether the symmetry that takes vertex v of a ``topology`` to ``row[v]`` fixes nothing.

    That is, neither a rank nor a resource.
    """
    n, edges = topology.num_ranks, topology.edge_table
    still = row == np.arange(len(row))
    # An edge goes with its ends, and of equal parallel edges the k-th to the k-th.
    fixed = still[edges.tail] & still[edges.head] & edges.is_resource
    return not still[:n].any() and not fixed.any()


def smallest_of_orbit(images: Sequence[NDArray[np.integer]], count: int) -> NDArray[np.int32]:
    """Return the smallest member of the orbit of each of 0 .. ``count`` - 1 under permutations.

    Each of ``images`` is a row of that length: where a permutation takes every number.
    """
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
    """Return the group that ``generators``, rank permutations of a ``topology``, span, verified.

    Raises InputError when a generator is no symmetry of the topology, or the group is too large.
    """
    n = topology.num_ranks
    kept: dict[Permutation, Row] = {}
    for generator in dict.fromkeys(tuple(g) for g in generators):
        if sorted(generator) != list(range(n)):
            raise InputError(
                f"should be a permutation of 0..{n - 1}, got {list(generator)[:20]}",
                field="symmetry",
                fix=f"list every rank from 0 to {n - 1} once",
            )
        row = vertex_image(topology, generator)
        if generator != tuple(range(n)):
            kept[generator] = row
    action = _all_products(list(kept.values()), n, n + len(topology.switches))
    return _group(topology, tuple(kept), action)


def _group(
    topology: Topology, generators: Sequence[Permutation], action: tuple[NDArray[np.int32], bool]
) -> Group:
    group = Group(topology, tuple(generators), action[0][:, : topology.num_ranks])
    group.__dict__["action"] = action  # known already; a cached_property lives here
    return group


def free_group(topology: Topology, generators: Sequence[Permutation]) -> Group:
    """Return the largest group found that acts freely, of ``generators`` that a ``topology`` has.

    They are added one at a time, each as its smallest power that keeps the group free.
    """
    best = make_group(topology, ())
    for order in (list(generators), list(reversed(generators))):
        group = grow_free(topology, [list(powers(generator)) for generator in order])
        if len(group) > len(best):
            best = group
        if len(best) == topology.num_ranks:
            break
    return best


def grow_free(
    topology: Topology,
    choices: Sequence[Sequence[Permutation]],
    limit: int | None = None,
    images: Mapping[Permutation, Row] = NO_IMAGES,
) -> Group:
    """Return the group that acts freely, made of the first symmetry of each choice that fits.

    `choices` are lists of symmetries of the `topology`, in order of preference. The group is done
    when it has `limit` elements; None: one for each rank. `images` is where symmetries take the
    vertices, as far as that is known.
    """
    n, width = topology.num_ranks, topology.num_ranks + len(topology.switches)
    most = n if limit is None else limit
    group, rows = make_group(topology, ()), list[Row]()
    for choice in choices:
        if len(group) >= most:
            break
        for symmetry in choice:
            alike = group.rows[group.rows[:, 0] == symmetry[0]]
            if (alike == np.array(symmetry)).all(axis=1).any():
                continue
            row = images.get(symmetry)
            row = vertex_image(topology, symmetry) if row is None else row
            action = close_rows([*rows, row], n, width, most, free=True)
            if action is None:
                continue
            larger = _group(topology, (*group.generators, symmetry), action)
            if larger.acts_freely():
                group, rows = larger, [*rows, row]
                break
    return group


def powers(generator: Permutation, most: int = MAX_POWERS) -> Iterator[Permutation]:
    """Yield the powers of a ``generator``, the smallest first, until the identity or ``most``."""
    identity, power = tuple(range(len(generator))), tuple(generator)
    while power != identity and most > 0:
        yield power
        power, most = tuple(generator[r] for r in power), most - 1


def kept_powers(
    rotations: Iterable[Permutation], keeps: Callable[[Permutation], bool], most: int = MAX_POWERS
) -> tuple[Permutation, ...]:
    """Return each of ``rotations`` as its smallest power, of ``most``, that ``keeps`` accepts."""
    found = (next(filter(keeps, powers(rotation, most)), None) for rotation in rotations)
    return tuple(dict.fromkeys(power for power in found if power is not None))


MAX_ARCS = 300_000
"""Of the graph that BLISS gets; larger topologies have the symmetries of their numbering only."""

IN_PROCESS = 500
"""Arcs up to which BLISS has always ended at once; it can't be interrupted."""

SECONDS = 10.0
"""What the search for automorphisms may take; most take some milliseconds."""

MAX_PRODUCTS = 5_000_000
"""Products of generators times ranks, where not all symmetries can be held."""

MAX_POOL = 500
"""Symmetries from which a group is put together; of large topologies fewer."""

MAX_SHIFTS = 500
"""Shifts inside blocks that are tried; of large topologies fewer."""

MAX_LOOKED_AT = 5_000_000
"""Vertices and edges, once for each of these symmetries."""

MAX_STARTS = 20
"""Symmetries with which a group is begun."""

_CHILD = """
import json, sys, igraph
count, arcs, colours = json.load(sys.stdin)
graph = igraph.Graph(n=count, edges=arcs, directed=True)
json.dump(graph.automorphism_group(color=colours), sys.stdout)
"""

Keeps = Callable[[Permutation], bool]


def search_group(topology: Topology, keeps: Keeps = lambda _: True) -> Group:
    """Return the largest group found that acts freely on a ``topology``.

    ``keeps`` says which of its symmetries may be used: those of collective and sketch, too.
    """
    limit = largest_order(topology)
    if limit == 1:
        return make_group(topology, ())
    shifts = _shifts(topology, keeps, limit)
    best = _grown(topology, shifts, limit)
    if len(best) == limit:
        return best
    generators = automorphisms(topology)
    if generators is None:
        warnings.warn(
            f"{topology.name} is too large or too intricate to search for all of its symmetries;"
            f" {len(best)} of them are used (declare rotations: to use more)",
            TacclWarning,
            stacklevel=2,
        )
        return best
    # Symmetries that move every rank: all of them where they are few, else some.
    n, rows = topology.num_ranks, [np.array(each, dtype=np.int32) for each in generators]
    closed = close_rows(rows, n, n, min(MAX_GROUP, MAX_ENTRIES // n))
    some = closed[0] if closed else np.array([*_products(rows, MAX_PRODUCTS // n)])
    moving = dict.fromkeys(map(tuple, some[(some != np.arange(n)).all(axis=1)].tolist()))
    pool = [p for p in moving if _order(p) and keeps(p)]
    found = _grown(topology, [*shifts, *pool], limit)
    return max(best, found, key=len)


def largest_order(topology: Topology) -> int:
    """Return a number that the order of every group that acts freely divides.

    Such a group moves things in orbits of its own size, and only things that are alike.
    """
    n, edges = topology.num_ranks, topology.edge_table
    kinds = np.concatenate([np.zeros(n, dtype=np.int64), 1 + switch_kinds(topology)])
    (colour,) = refine(topology, kinds)
    counts = set(np.unique(colour[:n], return_counts=True)[1].tolist())
    used = edges.is_resource
    alike = np.stack([colour[edges.tail], colour[edges.head], edges.cost])[:, used]
    if alike.size:
        counts.update(np.unique(alike, axis=1, return_counts=True)[1].tolist())
    return math.gcd(*counts)


def _shifts(topology: Topology, keeps: Keeps, limit: int) -> list[Permutation]:
    """Return the shifts inside blocks that may be used, up to one that is all that is needed."""
    found: list[Permutation] = []
    shifts = (
        tuple(order[[*block_shift]][np.argsort(order)].tolist())
        for order in _orders(topology)
        for block_shift in block_shifts(topology.num_ranks)
    )
    for shift in islice(shifts, _most(topology, MAX_SHIFTS)):
        if is_symmetry(topology, shift) and keeps(shift):
            found.append(shift)
            if _order(shift) == limit and make_group(topology, [shift]).acts_freely():
                break
    return found


def _orders(topology: Topology) -> Iterator[NDArray[np.int64]]:
    """Yield orders of the ranks: their own, and by servers and then by rails, where these differ.

    Ranks are on one rail when links between servers join them, directly or over others.
    """
    n, table = topology.num_ranks, topology.links
    yield np.arange(n)
    server = np.unique(topology.server_of, return_inverse=True)[1]
    between = server[table.src] != server[table.dst]
    src, dst = table.src[between], table.dst[between]
    rail, before = np.arange(n), np.zeros(0, dtype=np.int64)
    while not np.array_equal(rail, before):
        before = rail.copy()
        np.minimum.at(rail, dst, rail[src])
        np.minimum.at(rail, src, rail[dst])
    order = np.lexsort((np.arange(n), rail, server))
    if (order != np.arange(n)).any():
        yield order


def _most(topology: Topology, most: int) -> int:
    """Return how many symmetries of a topology are looked at: of a large one, fewer."""
    size = topology.num_ranks + len(topology.switches) + len(topology.edges)
    return min(most, max(8, MAX_LOOKED_AT // size))


def block_shifts(num_ranks: int) -> Iterator[Permutation]:
    """Yield the shifts by d of every block of b neighbours, d < b, both divisors; d = 1 first."""
    at = np.arange(num_ranks)
    divisors = [d for d in range(1, num_ranks + 1) if num_ranks % d == 0]
    for step in divisors:
        for block in reversed(divisors):
            if step < block and block % step == 0:
                yield tuple((at - at % block + (at + step) % block).tolist())


def automorphisms(topology: Topology, fixed: int | None = None) -> list[Permutation] | None:
    """Return generators of all symmetries, as rank permutations; None: too much to find out.

    Of those of a `topology` that leave the rank `fixed` where it is; None: of all.
    """
    count, arcs, colours = _coloured(topology)
    if fixed is not None:
        colours[fixed] = colours.max() + 1
    if len(arcs) > MAX_ARCS:
        return None
    found: list[list[int]] | None
    if len(arcs) <= IN_PROCESS:
        import igraph

        graph = igraph.Graph(n=count, edges=arcs.tolist(), directed=True)
        found = graph.automorphism_group(color=colours.tolist())
    else:
        found = _bliss_in_child((count, arcs.tolist(), colours.tolist()))
    if found is None:
        return None
    ranks = topology.num_ranks
    moved = dict.fromkeys(tuple(row[:ranks]) for row in found)
    moved.pop(tuple(range(ranks)), None)
    return list(moved)


def _bliss_in_child(task: object) -> list[list[int]] | None:
    """Run BLISS in a process that can be killed; None when it has to be, or fails."""
    with tempfile.TemporaryFile("w+") as stdin:
        json.dump(task, stdin)
        stdin.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CHILD], stdin=stdin, capture_output=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
    if done.returncode:
        return None
    found: list[list[int]] = json.loads(done.stdout)
    return found


def _coloured(topology: Topology) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the topology as a simple directed graph: vertices, arcs, and colours of vertices.

    An edge is a vertex between its ends, coloured by its costs; but edges of the most frequent
    costs without parallels are plain arcs. A server is a vertex that its ranks point to, where
    links depend on servers.
    """
    edges, ranks = topology.edge_table, topology.num_ranks
    total = ranks + len(topology.switches)
    ends = edges.tail * total + edges.head
    _, where, times = np.unique(ends, return_inverse=True, return_counts=True)
    single = times[where] == 1
    usual = int(np.argmax(np.bincount(edges.cost[single]))) if single.any() else -1
    plain = single & (edges.cost == usual)
    rest = np.flatnonzero(~plain)
    middle = total + np.arange(len(rest))
    arcs = [
        np.stack([edges.tail[plain], edges.head[plain]], axis=1),
        np.stack([edges.tail[rest], middle], axis=1),
        np.stack([middle, edges.head[rest]], axis=1),
    ]
    colours = [np.zeros(ranks, dtype=np.int64), 1 + switch_kinds(topology),
               10 + edges.cost[rest]]  # fmt: skip
    count = total + len(rest)
    if servers_matter(topology):
        servers = np.unique(topology.server_of, return_inverse=True)[1]
        arcs.append(np.stack([np.arange(ranks), count + servers], axis=1))
        colours.append(np.full(int(servers.max()) + 1, 9, dtype=np.int64))
        count += int(servers.max()) + 1
    return count, np.concatenate(arcs), np.concatenate(colours)


def _products(rows: Sequence[NDArray[np.int32]], most: int) -> Iterator[NDArray[np.int32]]:
    """Yield products of neighbours among the generators, with their powers, so many at most."""
    made = 0
    for first in range(len(rows)):
        product = np.arange(len(rows[0]), dtype=np.int32)
        for row in rows[first:]:
            product = row[product]
            power = product
            for _ in range(4):
                yield power
                power = product[power]
                made += 1
            if made >= most:
                return


def _grown(topology: Topology, pool: Sequence[Permutation], limit: int) -> Group:
    """Return the largest group found that begins with one of the first symmetries of a pool."""
    best = make_group(topology, ())
    possible = [p for p in pool if limit % _order(p) == 0][: _most(topology, MAX_POOL)]
    images = {}
    for symmetry in possible:
        with suppress(InputError):
            images[symmetry] = vertex_image(topology, symmetry)
    usable = [p for p, row in images.items() if moves_all(topology, row)]
    for start in usable[:MAX_STARTS]:
        if start in best.elements:
            continue
        group = grow_free(topology, [[start], *([p] for p in usable)], limit, images)
        best = max(best, group, key=len)
        if len(best) == limit:
            break
    return best


def _order(permutation: Permutation) -> int:
    """Return the length of all cycles of a permutation; 0 where they differ (in no free group)."""
    seen: set[int] = set()
    lengths = set()
    for start in range(len(permutation)):
        at, length = start, 0
        while at not in seen:
            seen.add(at)
            at, length = permutation[at], length + 1
        lengths |= {length} - {0}
    return lengths.pop() if len(lengths) == 1 else 0
