"""Which chunks may lie right behind which others at both ends of a link (taccl.slots).

Where a chunk lies in scratch depends on what else is relayed there, so in scratch any chunk may
follow any other, under conditions; in the other buffers at most one can. On orbits only places
that do not depend on what is relayed count, and must be neighbours for all images.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.slots import INPUT, LAYOUTS, OUTPUT, SCRATCH
from taccl.synth.flows import Flow, Flows
from taccl.topology import Rank


class Spot(NamedTuple):
    """Where a chunk may lie at one rank: a buffer, its order there, and whether on arrival.

    ``offset`` is -1 in scratch, where the chunks lie in the order of a layout. ``arrived`` is None
    where the chunk lies there in any case; ``staged`` is true for an own chunk in scratch.
    """

    buffer: str
    offset: int
    chunk: int
    arrived: bool | None
    staged: bool = False


class Pair(NamedTuple):
    """One way for a chunk to lie behind another: the buffer it is read from, and what must hold.

    ``behind`` are (chunk, chunk, rank) that must be neighbours in scratch, ``present`` (chunk,
    rank) that must be there; ``arrivals`` are (flow, rank, whether anything must have arrived).
    """

    first: int
    second: int
    buffer: str
    behind: tuple[tuple[int, int, Rank], ...]
    present: tuple[tuple[int, Rank], ...]
    arrivals: tuple[tuple[int, Rank, bool], ...]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The pairs of some flows, link by link."""

    flows: Flows

    @cached_property
    def by_link(self) -> dict[tuple[int, bool], tuple[int, ...]]:
        """The flows of every (link, summed) on which a message may save time, ascending."""
        count: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, flow in enumerate(self.flows.flows):
            for link in flow.links:
                count[link, flow.summed].append(number)
        return {
            key: tuple(count[key])
            for key in sorted(count)
            if saves(self.flows, key[0], len(count[key]))
        }

    @property
    def longest(self) -> int:
        """The most chunks that could share a link."""
        return max(map(len, self.by_link.values()), default=1)

    @cached_property
    def most(self) -> int:
        """No fewer than the pairs of all links, counted without looking at them one by one."""
        total = 0
        for (link, summed), numbers in self.by_link.items():
            src, dst = self.flows.ends_of(link)
            scratch = 0
            if len(self.flows.problem.group) == 1:
                chunks = [self.flows.flows[number].chunk for number in numbers]
                relayed = [chunk for chunk in chunks if self._in_scratch(chunk, src)]
                scratch = sum(summed or self._in_scratch(chunk, dst) for chunk in relayed)
            total += 2 * len(numbers) + scratch * scratch
        return total

    def _in_scratch(self, chunk: int, rank: Rank) -> bool:
        return not self.flows.problem.collective.is_target(chunk, rank)

    def pairs(self, link: int, numbers: Sequence[int]) -> Iterator[Pair]:
        """Yield every way for one flow's chunk to lie right behind another's on a link."""
        flows, (src, dst) = self.flows, self.flows.ends_of(link)
        alone = len(flows.problem.group) == 1
        read = {n: _spots(flows, flows.flows[n], src) for n in numbers}
        read_at: dict[tuple[str, int], list[tuple[int, int, Spot]]] = defaultdict(list)
        for number, spots in read.items():
            for way, spot in enumerate(spots):
                read_at[spot.buffer, spot.offset].append((number, way, spot))
        landing = self._landing(numbers, dst)
        for first in numbers:
            then = landing[first]
            found: list[tuple[int, int, int, Spot, Spot]] = []
            for here, one in enumerate(read[first]):
                if one.buffer == SCRATCH and not alone:
                    continue
                for second, there, two in read_at.get(_after(one), ()):
                    if second in then and second != first:
                        found.append((second, here, there, one, two))
            for second, _, _, one, two in sorted(found, key=lambda entry: entry[:3]):
                pair = self._pair(link, (first, second), (one, two), in_scratch=then[second])
                if pair is not None:
                    yield pair

    def _landing(self, numbers: Sequence[int], dst: Rank) -> dict[int, dict[int, bool]]:
        """Return which flows may land right behind each, and whether that is in scratch."""
        flows, collective = self.flows, self.flows.problem.collective
        if flows.flows[numbers[0]].summed:
            # Both chunks are added to a value that the destination has.
            adds = {n: False for n in numbers if collective.is_source(flows.flows[n].chunk, dst)}
            return {n: adds if n in adds else {} for n in numbers}
        alone = len(flows.problem.group) == 1
        kept = {n: _held(flows, flows.flows[n].chunk, dst) for n in numbers}
        at: dict[tuple[str, int], dict[int, bool]] = defaultdict(dict)
        for number, spot in kept.items():
            if alone or spot.buffer != SCRATCH:
                at[spot.buffer, spot.offset][number] = spot.buffer == SCRATCH
        return {n: at.get(_after(spot), {}) for n, spot in kept.items()}

    def _pair(
        self, link: int, ends: tuple[int, int], spots: tuple[Spot, Spot], *, in_scratch: bool
    ) -> Pair | None:
        """Return two neighbours; None where no layout has them in this order, or not all images."""
        flows, (src, dst) = self.flows, self.flows.ends_of(link)
        chunks = spots[0].chunk, spots[1].chunk
        if SCRATCH in (spots[0].buffer, *([SCRATCH] if in_scratch else [])) and not self._in_order(
            *chunks
        ):
            return None
        if len(flows.problem.group) > 1 and not self._all_images(link, ends, spots[0].buffer):
            return None
        behind = [(*chunks, src)] if spots[0].buffer == SCRATCH else []
        behind += [(*chunks, dst)] if in_scratch else []
        both = list(zip(ends, spots, strict=True))
        return Pair(
            *ends, spots[0].buffer, tuple(behind),
            present=tuple((spot.chunk, src) for _, spot in both if spot.staged),
            arrivals=tuple((n, src, spot.arrived) for n, spot in both if spot.arrived is not None),
        )  # fmt: skip

    def _in_order(self, one: int, two: int) -> bool:
        """Tell whether some layout has a chunk before another."""
        return any(place[one] < place[two] for place in self._places)

    @cached_property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """All chunks as they come in each layout, by its name."""
        collective = self.flows.problem.collective
        chunks = sorted({flow.chunk for flow in self.flows.flows})
        return {
            name: tuple(sorted(chunks, key=partial(order, collective)))
            for name, order in LAYOUTS.items()
        }

    @cached_property
    def _places(self) -> tuple[dict[int, int], ...]:
        """Where every chunk comes in each layout."""
        return tuple(
            {chunk: place for place, chunk in enumerate(order)} for order in self.orders.values()
        )

    def _all_images(self, link: int, ends: tuple[int, int], buffer: str) -> bool:
        """Tell whether all images of two chunks are neighbours at both ends of a link's image."""
        collective, first = self.flows.problem.collective, self.flows.flows[ends[0]]
        images, (srcs, dsts) = self._images, self._ends_of_images(link)
        one, two = images[first.chunk], images[self.flows.flows[ends[1]].chunk]
        offset = collective.input_offset if buffer == INPUT else collective.output_offset
        for a, b, src, dst in zip(one, two, srcs, dsts, strict=True):
            if offset(b, src) != offset(a, src) + 1:
                return False
            if not first.summed and not (
                collective.is_target(a, dst)
                and collective.is_target(b, dst)
                and collective.output_offset(b, dst) == collective.output_offset(a, dst) + 1
            ):
                return False
        return True

    @cached_property
    def _images(self) -> dict[int, list[int]]:
        """Where every symmetry takes each chunk."""
        problem = self.flows.problem
        chunks = sorted({flow.chunk for flow in self.flows.flows})
        rows = [problem.collective.image(element)[chunks] for element in problem.group.elements]
        columns: NDArray[np.int32] = np.array(rows)
        return dict(zip(chunks, columns.T.tolist(), strict=True))

    def _ends_of_images(self, link: int) -> tuple[list[int], list[int]]:
        """Return the ends of a link under every symmetry."""
        rows, ends = self._link_rows
        return ends[0][:, rows[link]].tolist(), ends[1][:, rows[link]].tolist()

    @cached_property
    def _link_rows(
        self,
    ) -> tuple[dict[int, int], tuple[NDArray[np.int32], NDArray[np.int32]]]:
        group, links = self.flows.problem.group, np.array(self.flows.links)
        table = self.flows.problem.topology.links
        images = np.array([group.link_images(number, links) for number in range(len(group))])
        rows = {link: row for row, link in enumerate(self.flows.links)}
        return rows, (table.src[images], table.dst[images])


def saves(flows: Flows, link: int, most: int) -> bool:
    """Tell whether some message on a link holds a resource for less time than its chunks alone.

    Where it does not, chunks sent one behind the other arrive no later.
    """
    _, single = flows.cost(link, 1)
    for chunks in range(2, most + 1):
        _, uses = flows.cost(link, chunks)
        if any(busy < chunks * one for (_, busy), (_, one) in zip(uses, single, strict=True)):
            return True
    return False


def _after(spot: Spot) -> tuple[str, int]:
    """Return where a chunk lies right behind a spot; in scratch nobody knows."""
    return spot.buffer, spot.offset if spot.buffer == SCRATCH else spot.offset + 1


def _spots(flows: Flows, flow: Flow, rank: Rank) -> list[Spot]:
    """Return where a flow's chunk may be read at a rank (taccl.slots.Slots.readable)."""
    collective, chunk = flows.problem.collective, flow.chunk
    held = _held(flows, chunk, rank)
    if not collective.is_source(chunk, rank) or (collective.reduces and not flow.summed):
        return [held._replace(arrived=None)]
    original = held._replace(buffer=INPUT, offset=collective.input_offset(chunk, rank))
    if not collective.reduces:
        return [original, held if held.buffer == OUTPUT else held._replace(staged=True)]
    if held.buffer == OUTPUT:
        return [held, original._replace(arrived=False)]
    return [original._replace(arrived=False), held._replace(arrived=True)]


def _held(flows: Flows, chunk: int, rank: Rank) -> Spot:
    collective = flows.problem.collective
    if collective.is_target(chunk, rank):
        return Spot(OUTPUT, collective.output_offset(chunk, rank), chunk, None)
    return Spot(SCRATCH, -1, chunk, None)
