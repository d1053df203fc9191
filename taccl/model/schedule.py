"""The schedule IR: sends of chunks over links, in columns, with exact integer times.

Whatever grows with sends is a numpy column; :class:`Send` is a view of one row. A schedule holds
the sends of one representative of every orbit under its generators; :meth:`Schedule.expand`
gives all sends. :func:`retime` is the only code that computes times: solvers hand over decisions
(:class:`Decisions`), never times.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective, chunk_size_of
from taccl.collectives.slots import Batch, Slots, fit_layouts, place_chunks
from taccl.timing.retiming import Columns, batch_uses, times_of
from taccl.topology.fans import NO_FANS, FanTable, Legs, make_fans
from taccl.topology.graph import Permutation, Topology
from taccl.topology.symmetry import Group, make_group
from taccl.units import Time


@dataclass(frozen=True, slots=True)
class Send:
    """One chunk crossing one link.

    The `chunk` leaves on the `link` at `start` and arrives at `end`, in picoseconds. Sends of one
    `batch` travel as one message and pay alpha once. `reduce` is set when the value is added to
    what the destination holds.
    """

    chunk: int
    link: int
    start: Time
    end: Time
    batch: int
    reduce: bool


@dataclass(frozen=True, eq=False)
class Decisions:
    """What an engine decides: sends of representatives in one sequence, without times.

    On every resource, and for every chunk at every rank, the sequence is the order; a send needs
    all earlier arrivals of its chunk at its source. Sends of one batch are neighbours in the
    sequence, share their link, and leave together.

    `chunk`, `link`, `batch`: int32 columns.
    `reduce`: bool column.
    `visible_from`: int32: the arrival of row j is part of what row i sends on only where i >=
    visible_from[j] > j. None: j + 1, every later row. With it two ranks can exchange what they hold
    at one time, each sending its value without the other's. Only summed chunks know the difference.
    `packs`, `fans`: as in :class:`Schedule`.
    """

    chunk: NDArray[np.int32]
    link: NDArray[np.int32]
    batch: NDArray[np.int32]
    reduce: NDArray[np.bool_]
    visible_from: NDArray[np.int32] | None = None
    packs: bool = False
    fans: FanTable = NO_FANS

    @staticmethod
    def of(
        rows: Sequence[tuple[int, int, int, bool]],
        visible_from: Sequence[int] | None = None,
        fans: FanTable = NO_FANS,
    ) -> "Decisions":
        """Return the columns of (chunk, link, batch, reduce) rows, and the `fans` they use."""
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        return Decisions(
            np.array(columns[0], dtype=np.int32),
            np.array(columns[1], dtype=np.int32),
            np.array(columns[2], dtype=np.int32),
            np.array(columns[3], dtype=np.bool_),
            None if visible_from is None else np.array(visible_from, dtype=np.int32),
            fans=fans,
        )

    def rows(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (chunk, link, batch, reduce) in sequence."""
        yield from zip(
            self.chunk.tolist(), self.link.tolist(), self.batch.tolist(), self.reduce.tolist(),
            strict=True,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Schedule:
    """Sends with times: what an engine's decisions cost, exactly.

    `collective`, `topology`: what is done where; link ids are the topology's.
    `chunk_size`: bytes, exact.
    `chunk`, `link`, `batch`: int32 columns of representative sends.
    `start`, `end`: int64 picosecond columns.
    `reduce`: bool column.
    `generators`: rank permutations whose group expands the representatives; empty: all sends are
    there.
    `packs`: whether ranks copy chunks that travel together side by side before they are sent, and
    to their places afterwards. Else they have to be adjacent at both ends.
    `fans`: what switches copy and add. A row whose link is ``len(topology.links) + f`` carries its
    chunk on fan f; rows of one batch are fans of any kind, which flow together, and images of such
    a batch are one batch.
    """

    collective: Collective
    topology: Topology
    chunk_size: Fraction
    chunk: NDArray[np.int32]
    link: NDArray[np.int32]
    batch: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reduce: NDArray[np.bool_]
    generators: tuple[Permutation, ...] = ()
    packs: bool = False
    fans: FanTable = NO_FANS

    def __len__(self) -> int:
        """Return the number of representative sends."""
        return len(self.chunk)

    @cached_property
    def makespan(self) -> Time:
        """When all is over, in picoseconds: the last chunk has arrived.

        Where chunks have tails, whoever wanted them has also worked on them: a deadline of every
        chunk holds if and only if this is no later than the last deadline.
        """
        if not self.collective.is_timed:
            return int(self.end.max(initial=0))
        row, _, dst, _ = self.legs
        return self.collective.over_at(self.chunk[row], dst, self.end[row])

    @cached_property
    def group(self) -> Group:
        """The group of the generators."""
        return make_group(self.topology, self.generators)

    @property
    def num_sends(self) -> int:
        """The number of sends after expansion."""
        return len(self) * len(self.group)

    @property
    def num_messages(self) -> int:
        """The number of messages after expansion: a batch of sends is one."""
        return len(np.unique(self.batch)) * len(self.group)

    @property
    def batches(self) -> bool:
        """Whether some message carries several chunks."""
        return self.num_messages < self.num_sends

    def sends(self) -> Iterator[Send]:
        """Yield the representative sends as records."""
        for row in zip(
            self.chunk.tolist(), self.link.tolist(), self.start.tolist(), self.end.tolist(),
            self.batch.tolist(), self.reduce.tolist(), strict=True,
        ):  # fmt: skip
            yield Send(*row)

    def decisions(self) -> Decisions:
        """Return the decisions that this schedule's times follow: its sends in order of time."""
        # Messages without duration may follow each other at once: rows then tell the order.
        _, first, message = np.unique(self.batch, return_index=True, return_inverse=True)
        order = np.lexsort((np.arange(len(self)), first[message], self.end, self.start))
        visible_from = None
        if self.collective.reduces:
            later = np.searchsorted(self.start[order], self.end[order]).astype(np.int32)
            visible_from = np.maximum(later, np.arange(1, len(self) + 1, dtype=np.int32))
        return Decisions(
            self.chunk[order], self.link[order], self.batch[order], self.reduce[order],
            visible_from, self.packs, self.fans,
        )  # fmt: skip

    def expand(self) -> "Schedule":
        """Return the schedule with the sends of all orbits and no generators."""
        if len(self.group) == 1:
            return self
        links, chunks, batches = [], [], []
        # Numbered anew: copies of the largest numbers would not fit into 32 bits.
        batch = np.unique(self.batch, return_inverse=True)[1].astype(np.int32)
        width = int(batch.max()) + 1 if len(self) else 0
        count = len(self.topology.links)
        of_fan = self.link >= count
        for generator in self.group.generators:
            self.collective.require_image(generator)
        for number, element in enumerate(self.group.rows):
            chunks.append(self.collective.image_of(element, self.chunk))
            there = np.empty_like(self.link)
            there[~of_fan] = self.group.link_images(number, self.link[~of_fan])
            if of_fan.any():
                there[of_fan] = (
                    count + self.fans.image(self.group, number)[self.link[of_fan] - count]
                )
            links.append(there)
            batches.append(np.where(of_fan, batch, batch + number * width).astype(np.int32))
        copies = len(self.group)
        return Schedule(
            self.collective, self.topology, self.chunk_size,
            np.concatenate(chunks), np.concatenate(links), np.concatenate(batches),
            np.tile(self.start, copies), np.tile(self.end, copies), np.tile(self.reduce, copies),
            packs=self.packs, fans=self.fans,
        )  # fmt: skip

    @cached_property
    def legs(self) -> Legs:
        """What the representative sends read and change: of each link one pair of ranks."""
        return self.fans.legs(self.topology.links, self.link)

    def runs(self) -> Iterator[tuple[tuple[int, ...], list[int], int, int]]:
        """Yield chunks and rows of what is to lie side by side, of all sends, from where to where.

        These are the chunks of a message, or those that one fan of a batch carries.
        """
        key = self.batch.astype(np.int64)
        if len(self.fans):
            key = key * (len(self.topology.links) + len(self.fans)) + self.link
            key = np.unique(key, return_inverse=True)[1]
        order = np.argsort(key, kind="stable")
        leg = np.searchsorted(self.legs.row, np.arange(len(self) + 1))
        for group in message_groups(key[order]):
            if len(group) > 1:
                rows = order[group.start : group.stop].tolist()
                chunks = tuple(self.chunk[rows].tolist())
                for each in range(leg[rows[0]], leg[rows[0] + 1]):
                    yield chunks, rows, int(self.legs.src[each]), int(self.legs.dst[each])

    @property
    def edge_busy(self) -> tuple[Time, ...]:
        """Picoseconds for which each edge is held, all messages together."""
        full = self.expand()
        order = np.argsort(full.batch, kind="stable")
        first = np.flatnonzero(np.diff(full.batch[order], prepend=-1, append=-1))
        uses = batch_uses(full.group, full.chunk_size, full.link[order], first, full.fans)
        held = np.zeros(len(full.topology.edges), dtype=np.int64)
        np.add.at(held, uses.resource, uses.held)
        return tuple(held.tolist())

    @cached_property
    def slots(self) -> Slots:
        """Where each chunk lives at each rank, over all orbits."""
        full = self.expand()
        ranks, sets = full.topology.num_ranks, self.collective.rank_sets
        wants = np.array([np.isin(np.arange(ranks), members) for members in sets], dtype=np.bool_)
        row, src, dst, _ = full.legs
        chunk = full.chunk[row]
        relayed = ~wants[self.collective.target_set[chunk], dst]
        # Nothing else touches scratch: hops into a relay, and out of one.
        kept = relayed | np.isin(src, dst[relayed])
        hops = list(zip(*(c[kept].tolist() for c in (chunk, src, dst)), strict=True))
        if self.packs or not (self.batches and relayed.any()):
            return place_chunks(self.collective, hops)
        return fit_layouts(self.collective, hops, _batches(full))


def _batches(full: Schedule) -> Iterator[Batch]:
    """Yield the messages of several chunks of an expanded schedule."""
    row, _, dst, _ = full.legs
    first: dict[tuple[int, int], Time] = {}
    arrivals = zip(full.chunk[row].tolist(), dst.tolist(), full.end[row].tolist(), strict=True)
    for chunk, rank, end in arrivals:
        first[chunk, rank] = min(end, first.get((chunk, rank), end))
    for chunks, rows, src, to in full.runs():
        start = int(full.start[rows[0]])
        yield Batch(
            chunks, src, to,
            tuple(first.get((chunk, src), start + 1) <= start for chunk in chunks),
            bool(full.reduce[rows[0]]),
        )  # fmt: skip


def message_groups(batch: NDArray[np.integer]) -> list[range]:
    """Return the rows of each message: runs of equal batch, in order."""
    if len(batch) == 0:
        return []
    cuts = np.flatnonzero(np.diff(batch)) + 1
    bounds = [0, *cuts.tolist(), len(batch)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def retime(
    collective: Collective, group: Group, chunk_size: Fraction, decisions: Decisions
) -> Schedule:
    """Compute exact times by one pass that starts every message as soon as it may.

    A message starts when all its chunks are at its source (for summed chunks: with every arrival
    that is visible to it), all edges of its link are free, and, where values are summed, nothing
    that was decided earlier still has to read what it will change, and a value that replaces
    another arrives in its turn. Edges are taken as orbits of the `group`, so that the times hold
    for all images. Where ``visible_from`` lets a later row read a value before it changes, the
    change may have to wait for that row: then the pass is made again, with the arrivals that were
    too early held back.

    `decisions` are those for a `collective` in chunks of `chunk_size` bytes.

    Raises ValueError when a send precedes every arrival of its chunk at its source, or arrivals and
    reads wait for each other in a ring.
    """
    columns = Columns(
        decisions.chunk, decisions.link, decisions.batch, decisions.reduce, decisions.fans
    )
    start, end = times_of(collective, group, chunk_size, columns, decisions.visible_from)
    return Schedule(
        collective, group.topology, chunk_size, decisions.chunk, decisions.link, decisions.batch,
        start, end, decisions.reduce, group.generators, decisions.packs, decisions.fans,
    )  # fmt: skip


def timed_anew(schedule: Schedule, topology: Topology, size: int) -> Schedule:
    """Return the decisions of a `schedule` timed on a `topology`, at `size` counted bytes.

    The topology has the same links, and arcs where there are fans, at any costs.

    Raises ValueError as :func:`retime` does.
    """
    decisions = schedule.decisions()
    if len(schedule.fans):  # which know what they cost
        decisions = replace(decisions, fans=make_fans(topology, tuple(schedule.fans)))
    group = make_group(topology, schedule.generators)
    return retime(schedule.collective, group, chunk_size_of(schedule.collective, size), decisions)
