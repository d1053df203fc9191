"""Judging a schedule by the representatives of its orbits.

Let G be the group that expands the representatives: send (g, i) of the expanded schedule takes
chunk g c(i) over link g l(i), at the times of row i. Multiplying by an element of G maps the
expanded sends onto each other and keeps times, messages and reduce flags; and it keeps, as every
generator is a symmetry of the topology and of the collective, who are sources and targets, what a
link costs and which edges it crosses, moved along. (Links are all paths with the fewest edges, so a
symmetry of the graph moves links onto links; only where there are too many are they cut off, and
then there is nothing to judge by here.) So a rule that asks each send about itself and about what
sends do at other (chunk, rank) pairs and edges is broken somewhere when it is broken at a
representative. What remains is to find, among the representatives, the sends that *some image*
brings to a pair or to an edge. Here G acts freely on ranks and resources:

pairs
    An element that keeps a chunk keeps its owner, so is the identity. Every pair (c, r) is
    therefore moved by just one element to where the owner is the smallest rank of its orbit:
    *home*. Two pairs have one home exactly when one is an image of the other, and just one element
    does that. So the expanded sends that arrive at (c, r) are one image of each row whose arrival
    has the home of (c, r), at that row's time. That chunks are fixed by some permutations of their
    ranks needs no care: no element of G does this.

edges
    The images of a row hold every resource of an orbit once for each of the row's edges in it.
    Two expanded messages meet on a resource exactly when two (row, edge) entries with edges of one
    orbit overlap in time: the element that takes one edge to the other takes the one message to
    where it meets the other. It is another message, as no link has two edges of one orbit, and no
    element but the identity keeps an edge.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.model.schedule import Schedule
from taccl.topology.links import MAX_PATHS
from taccl.topology.symmetry import Group

Ranks = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Orbits:
    """A group that acts freely, and where it takes the ranks and chunks of a collective.

    The `group` is of symmetries of the topology, each of which maps the `collective` onto itself.
    """

    group: Group
    collective: Collective

    @cached_property
    def images(self) -> Ranks:
        """Row g: where element g takes every rank."""
        return self.group.action[0][:, : self.group.topology.num_ranks]

    @cached_property
    def home(self) -> NDArray[np.int64]:
        """The one element that takes each rank to the smallest of its orbit."""
        elements: NDArray[np.int64] = self.images.argmin(axis=0)
        return elements

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """One chunk of every orbit: those whose owner is the smallest rank of its orbit."""
        return np.flatnonzero(self.home[self.collective.owner] == 0)

    def chunk_images(self, element: NDArray[np.int64], chunk: Ranks) -> Ranks:
        """Return where elements, one a chunk, take some chunks."""
        there = chunk.copy()
        for number in np.unique(element).tolist():
            rows = element == number
            if number:
                there[rows] = self.collective.image_of(self.group.elements[number], chunk[rows])
        return there

    def element_between(self, edge: int, other: int) -> int:
        """Return the number of the element that takes one resource to another of its orbit."""
        table, action = self.group.topology.edge_table, self.group.action[0]
        fits = action[:, table.tail[edge]] == table.tail[other]
        fits &= action[:, table.head[edge]] == table.head[other]
        found = np.flatnonzero(fits).tolist()
        return next(g for g in found if self.group.edge_image(g)[edge] == other)


def orbits_of(schedule: Schedule) -> Orbits | None:
    """Return by what representatives stand for all sends; None where they may not.

    Raises
    ------
    InputError
        When a generator is no symmetry of the topology or of the collective.
    """
    group = schedule.group
    for generator in group.generators:
        schedule.collective.image(generator)
    # Where two ranks have as many links as are derived at most, some may lack.
    table, beyond = schedule.topology.links, MAX_PATHS - 1
    alike = (table.src[beyond:] == table.src[:-beyond]) & (
        table.dst[beyond:] == table.dst[:-beyond]
    )
    if len(group) == 1 or not group.acts_freely() or alike.any():
        return None
    return Orbits(group, schedule.collective)
