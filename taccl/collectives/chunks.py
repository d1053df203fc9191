"""Chunks and who holds and wants them: the type that every collective is an instance of.

A chunk is the smallest piece of data that is routed. Its sources hold it before; when the
collective reduces, the sources' values are summed on the way. Its targets want it after.

Chunks of many parts lie one after the other in flat arrays: at the end, what finds places there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.units import Time

IntColumn = NDArray[np.int32]
TimeColumn = NDArray[np.int64]
"""Picoseconds."""

MAX_CHUNKS = 1 << 24
"""Rows of a collective: in all its columns 400 MB."""

MAX_PAIRS = 1 << 28
"""Rows where all ranks have one chunk for each: an all-to-all of 16 384, in two columns of 1 GB."""

SLICE = 1 << 22
"""Rows that are looked at together."""

PIECES = 8
"""Chunks for each rank that are made one after another, unless something else is asked for."""

NOWHERE_ELSE: Mapping[tuple[int, int], int] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective on ``num_ranks`` ranks with ``chunks_per_rank`` chunks for each rank.

    Its `name` is a key of ``COLLECTIVES``, or what a file calls it; where it `reduces`, the values
    of a chunk's sources are summed on the way. The columns are int32 with one entry a chunk:
    `source_set` and `target_set` are places in `rank_sets`, sets of ranks, ascending; `input_at`
    and `output_at` are offsets at the sources (targets), but for the ranks that `input_elsewhere`
    and `output_elsewhere` have by (chunk, rank). `owner` is the rank that a chunk moves with under
    a rank permutation, and `index` its number there. Routing roots a chunk's tree at its owner: a
    source; a sum's only target; of a sum with several targets a source.

    All data comes from or goes to the `root`; None where ranks are alike. `size` is the bytes of
    the largest buffer where the collective comes with its bytes, whole or cut. The `members`, in
    the order of their group, are those who take part where not all ranks do; None: all, or who
    knows. A chunk may visit only ranks of its set in `carrier_set`, a place in `rank_sets`; None:
    any. In `blocks`, 1 or 2, of `chunks_per_rank` chunks, one for each rank (or pair of ranks) in
    order, chunks turn as ranks do: whatever permutes the ranks maps the collective onto itself. 0:
    that is not so, or not known.

    A source has its value of a chunk from `ready` of the chunk and `late` of the rank on, and who
    wants the chunk still works for `tail` of it once it is there: picoseconds, one entry a chunk or
    rank; None: 0 for all.
    """

    name: str
    num_ranks: int
    chunks_per_rank: int
    reduces: bool
    rank_sets: tuple[tuple[int, ...], ...]
    source_set: IntColumn
    target_set: IntColumn
    input_at: IntColumn
    output_at: IntColumn
    owner: IntColumn
    index: IntColumn
    root: int | None = None
    input_elsewhere: Mapping[tuple[int, int], int] = field(default_factory=lambda: NOWHERE_ELSE)
    output_elsewhere: Mapping[tuple[int, int], int] = field(default_factory=lambda: NOWHERE_ELSE)
    size: int | None = None
    ready: TimeColumn | None = None
    tail: TimeColumn | None = None
    late: TimeColumn | None = None
    members: tuple[int, ...] | None = None
    carrier_set: IntColumn | None = None
    blocks: int = 0

    @property
    def num_chunks(self) -> int:
        """The number of chunks."""
        return len(self.owner)

    @cached_property
    def least_sends(self) -> int:
        """So many times, at least, some chunk crosses a link from rank to rank.

        Every target gets it that is no source; of n values that are summed, n - 1 are sent, and
        after the last sum all targets but one still want the total.
        """
        sets = range(len(self.rank_sets))
        alone = np.array([len(self._members[one]) == 1 for one in sets], dtype=np.bool_)
        rank = np.array([min(self._members[one], default=0) for one in sets], dtype=np.int32)
        total = 0
        for first in range(0, self.num_chunks, SLICE):
            part = slice(first, first + SLICE)
            source, target = self.source_set[part], self.target_set[part]
            pairs = alone[source] & alone[target]
            if not self.reduces:
                total += int(np.count_nonzero((rank[source] != rank[target])[pairs]))
            key = source[~pairs].astype(np.int64) * len(sets) + target[~pairs]
            for each, count in zip(*map(np.ndarray.tolist, np.unique(key, return_counts=True)),
                                   strict=True):  # fmt: skip
                have, want = (self._members[one] for one in divmod(each, len(sets)))
                total += count * (len(have) + len(want) - 2 if self.reduces else len(want - have))
        return total

    def sources(self, chunk: int) -> tuple[int, ...]:
        """Return the ranks that hold a chunk before."""
        return self.rank_sets[self.source_set[chunk]]

    def targets(self, chunk: int) -> tuple[int, ...]:
        """Return the ranks that want a chunk after."""
        return self.rank_sets[self.target_set[chunk]]

    def is_source(self, chunk: int, rank: int) -> bool:
        """Tell whether a rank holds a chunk before."""
        return rank in self._members[self.source_set[chunk]]

    def is_target(self, chunk: int, rank: int) -> bool:
        """Tell whether a rank wants a chunk after."""
        return rank in self._members[self.target_set[chunk]]

    @property
    def is_timed(self) -> bool:
        """Whether some chunk is there only later, or is needed before the end."""
        return any(column is not None for column in (self.ready, self.tail, self.late))

    def timed(
        self,
        ready: TimeColumn | None = None,
        tail: TimeColumn | None = None,
        late: TimeColumn | None = None,
    ) -> "Collective":
        """Return the collective with other `ready`, `tail` and `late`; zeros count as None."""

        def kept(column: TimeColumn | None) -> TimeColumn | None:
            return None if column is None or not column.any() else column.astype(np.int64)

        return replace(self, ready=kept(ready), tail=kept(tail), late=kept(late), blocks=0)

    def paced(self, ready_over: Time = 0, needed_over: Time = 0) -> "Collective":
        """Return the collective between a producer and a consumer that work piece by piece.

        The i-th of the k chunks of every rank (or pair) is made when (i + 1) / k of `ready_over`
        picoseconds are over. A consumer takes them in the same order and works for `needed_over`
        in all: from chunk i on there are (k - i) / k of it left. CoCoNet calls this overlapping
        (Jangda et al., ASPLOS 2022, section 5).
        """
        if not (ready_over or needed_over):
            return self
        pieces, piece = self.chunks_per_rank, self.index % self.chunks_per_rank

        def shares(time: Time) -> TimeColumn:
            return np.array([-(-time * (i + 1) // pieces) for i in range(pieces)], dtype=np.int64)

        return self.timed(
            shares(ready_over)[piece] if ready_over else self.ready,
            shares(needed_over)[pieces - 1 - piece] if needed_over else self.tail,
            self.late,
        )

    def own_from(self, chunk: IntColumn, rank: IntColumn) -> TimeColumn:
        """Return from when on (ps) sources, one `rank` for each `chunk`, have their own values."""
        found = np.zeros(len(chunk), dtype=np.int64)
        for column, place in ((self.ready, chunk), (self.late, rank)):
            if column is not None:
                found += column[place]
        return found

    def over_at(self, chunk: IntColumn, rank: IntColumn, end: TimeColumn) -> Time:
        """Return when the last is done of all that arrives, and of who works on it afterwards.

        Row by row a `chunk` arrives at a `rank` at an `end`, in picoseconds; the tail counts where
        the rank wants the chunk.
        """
        last = max(int(end.max(initial=0)), self._over_at_home)
        if self.tail is None:
            return last
        wanted = self._is_member[self.target_set[chunk], rank]
        return max(last, int((end + self.tail[chunk])[wanted].max(initial=0)))

    @cached_property
    def _over_at_home(self) -> Time:
        """When those are done that want what they have themselves; 0 where nothing is timed."""
        if not self.is_timed:
            return 0
        late = np.zeros(self.num_ranks, dtype=np.int64) if self.late is None else self.late
        pair = self.source_set.astype(np.int64) * len(self.rank_sets) + self.target_set
        pairs, which = np.unique(pair, return_inverse=True)
        sources, targets = divmod(pairs, len(self.rank_sets))
        both = self._is_member[sources] & self._is_member[targets]
        at_home = np.array([late[ranks].max(initial=-1) for ranks in both], dtype=np.int64)[which]
        done = at_home + sum(column for column in (self.ready, self.tail) if column is not None)
        return int(done[at_home >= 0].max(initial=0))

    @cached_property
    def _is_member(self) -> NDArray[np.bool_]:
        """Row s, column r: whether rank set s holds rank r."""
        table = np.zeros((len(self.rank_sets), self.num_ranks), dtype=np.bool_)
        for row, ranks in zip(table, self.rank_sets, strict=True):
            row[list(ranks)] = True
        return table

    def may_visit(self, chunk: int, rank: int) -> bool:
        """Tell whether a chunk may be at a rank."""
        return self.carrier_set is None or rank in self._members[self.carrier_set[chunk]]

    def input_offset(self, chunk: int, rank: int) -> int:
        """Return where a source holds its value in its input."""
        if self.input_elsewhere:
            return self.input_elsewhere.get((chunk, rank), int(self.input_at[chunk]))
        return int(self.input_at[chunk])

    def output_offset(self, chunk: int, rank: int) -> int:
        """Return where a target wants a chunk in its output."""
        if self.output_elsewhere:
            return self.output_elsewhere.get((chunk, rank), int(self.output_at[chunk]))
        return int(self.output_at[chunk])

    @cached_property
    def input_sizes(self) -> tuple[int, ...]:
        """Chunks in the input of every rank."""
        return self._sizes(self.source_set, self.input_at, self.input_elsewhere)

    @cached_property
    def output_sizes(self) -> tuple[int, ...]:
        """Chunks in the output of every rank."""
        return self._sizes(self.target_set, self.output_at, self.output_elsewhere)

    @property
    def chunks_in_size(self) -> int:
        """Chunks in the largest buffer of any rank, which is what ``size`` counts.

        That is the buffer nccl-tests counts, for every collective that it has.
        """
        return max(*self.input_sizes, *self.output_sizes)

    def _sizes(
        self, sets: IntColumn, offsets: IntColumn, elsewhere: Mapping[tuple[int, int], int]
    ) -> tuple[int, ...]:
        sizes = [0] * self.num_ranks
        if elsewhere:
            for chunk, number in enumerate(sets.tolist()):
                for rank in self.rank_sets[number]:
                    offset = elsewhere.get((chunk, rank), int(offsets[chunk]))
                    sizes[rank] = max(sizes[rank], offset + 1)
            return tuple(sizes)
        last = np.full(len(self.rank_sets), -1, dtype=np.int32)
        np.maximum.at(last, sets, offsets)
        for ranks, offset in zip(self.rank_sets, last.tolist(), strict=True):
            for rank in ranks:
                sizes[rank] = max(sizes[rank], offset + 1)
        return tuple(sizes)

    def cut(self, parts: int) -> "Collective":
        """Return the collective with every chunk cut: chunk c becomes c * parts + 0, + 1, ...

        Raises InputError when there are too many chunks to hold.
        """
        if parts == 1:
            return self
        if max(self.num_chunks, len(self.input_elsewhere), len(self.output_elsewhere)) * parts > (
            MAX_CHUNKS
        ):
            raise InputError(
                f"{self.name} of {self.num_ranks} ranks has {self.num_chunks} chunks, and each cut"
                f" in {parts} more than {MAX_CHUNKS}",
                field="--chunks",
                fix="use fewer ranks or chunks",
            )
        part = np.tile(np.arange(parts, dtype=np.int32), self.num_chunks)

        def scaled(column: IntColumn) -> IntColumn:
            return np.repeat(column, parts) * np.int32(parts) + part

        def each(elsewhere: Mapping[tuple[int, int], int]) -> Mapping[tuple[int, int], int]:
            return {
                (chunk * parts + i, rank): offset * parts + i
                for (chunk, rank), offset in elsewhere.items()
                for i in range(parts)
            }

        return replace(
            self,
            chunks_per_rank=self.chunks_per_rank * parts,
            source_set=np.repeat(self.source_set, parts),
            target_set=np.repeat(self.target_set, parts),
            input_at=scaled(self.input_at),
            output_at=scaled(self.output_at),
            owner=np.repeat(self.owner, parts),
            index=scaled(self.index),
            input_elsewhere=each(self.input_elsewhere),
            output_elsewhere=each(self.output_elsewhere),
            ready=None if self.ready is None else np.repeat(self.ready, parts),
            tail=None if self.tail is None else np.repeat(self.tail, parts),
            carrier_set=None if self.carrier_set is None else np.repeat(self.carrier_set, parts),
        )

    @cached_property
    def _members(self) -> tuple[frozenset[int], ...]:
        return tuple(frozenset(ranks) for ranks in self.rank_sets)

    def image(self, permutation: Sequence[int] | NDArray[np.integer]) -> IntColumn:
        """Return where every chunk goes when rank r becomes ``permutation[r]``.

        Raises InputError when the collective does not map onto itself; names the chunk that breaks
        it.
        """
        if self._keeps_blocks(permutation):
            return self.turned(np.arange(self.num_chunks), np.array(permutation).__getitem__)
        if self.late is not None:
            moved = np.flatnonzero(self.late[list(permutation)] != self.late)
            if len(moved):
                raise InputError(
                    f"{self.name} does not map onto itself: rank {moved[0]} is not as late as its"
                    " image",
                    field="symmetry",
                    fix="use a symmetry of the collective",
                )
        keys, rows, _ = self._sorted_keys
        there = self._keys(permutation, np.arange(self.num_chunks))
        images = np.argsort(there, kind="stable")
        other = np.flatnonzero(keys != there[images])
        if len(other):
            lost = np.flatnonzero(~np.isin(there, keys))
            chunk = int(lost[0] if len(lost) else images[other[0]])
            raise InputError(
                f"{self.name} does not map onto itself: chunk {chunk} has no image",
                field="symmetry",
                fix="use a symmetry of the collective",
            )
        result = np.empty(len(rows), dtype=np.int32)
        result[images] = rows
        return result

    def require_image(self, permutation: Sequence[int] | NDArray[np.integer]) -> None:
        """Return when the collective maps onto itself as rank r becomes ``permutation[r]``.

        Raises InputError when it does not, as :meth:`image` does, which may take longer.
        """
        if not self._keeps_blocks(permutation):
            self.image(permutation)

    def _keeps_blocks(self, permutation: Sequence[int] | NDArray[np.integer]) -> bool:
        return self.blocks > 0 and np.array_equal(np.sort(permutation), np.arange(self.num_ranks))

    def image_of(
        self, permutation: Sequence[int] | NDArray[np.integer], chunks: IntColumn
    ) -> IntColumn:
        """Return where some chunks go under a permutation for which :meth:`image` exists."""
        if self.blocks:
            return self.turned(chunks, np.array(permutation).__getitem__)
        keys, rows, unique = self._sorted_keys
        if not unique:
            return self.image(permutation)[chunks]
        return rows[np.searchsorted(keys, self._keys(permutation, chunks))]

    def turned(
        self,
        chunks: NDArray[np.integer],
        turn: Callable[[NDArray[np.integer]], NDArray[np.integer]],
    ) -> IntColumn:
        """Return where some `chunks` of a collective in blocks go when ranks go where `turn` says.

        It takes a rank for each chunk, as a column, to the rank that it becomes for this chunk.
        """
        block, index = np.divmod(chunks, self.chunks_per_rank)
        for place in range(self.blocks):
            weight = self.num_ranks**place
            rank = block // weight % self.num_ranks
            block = block + (turn(rank) - rank) * weight
        there: IntColumn = (block * self.chunks_per_rank + index).astype(np.int32)
        return there

    @cached_property
    def _set_numbers(self) -> dict[frozenset[int], int]:
        # Equal sets may be listed twice (one rank is everyone, too): the first stands for both.
        number: dict[frozenset[int], int] = {}
        for i, ranks in enumerate(self.rank_sets):
            number.setdefault(frozenset(ranks), i + 1)
        return number

    @cached_property
    def _sorted_keys(self) -> tuple[NDArray[np.int64], IntColumn, bool]:
        """The keys of all chunks, ascending, whose they are, and whether no two are equal."""
        keys = self._keys(range(self.num_ranks), np.arange(self.num_chunks))
        rows = np.argsort(keys, kind="stable").astype(np.int32)
        keys = keys[rows]
        return keys, rows, bool((keys[1:] != keys[:-1]).all())

    def _set_images(self, permutation: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each rank set's image; 0: it is no rank set."""
        number, to = self._set_numbers, permutation.tolist().__getitem__
        alone, ranks, of_rank, others = self._kinds_of_sets
        images = np.zeros(len(self.rank_sets), dtype=np.int64)
        images[alone] = of_rank[permutation[ranks]]
        for row in others:
            members = self._members[row]
            whole = len(members) == self.num_ranks
            images[row] = number.get(members if whole else frozenset(map(to, members)), 0)
        return images

    @cached_property
    def _kinds_of_sets(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]:
        """Rows of sets of one rank, their ranks, the number of each rank's set; other rows."""
        alone = [row for row, ranks in enumerate(self.rank_sets) if len(ranks) == 1]
        others = [row for row, ranks in enumerate(self.rank_sets) if len(ranks) != 1]
        of_rank = [self._set_numbers.get(frozenset((r,)), 0) for r in range(self.num_ranks)]
        ranks = [self.rank_sets[row][0] for row in alone]
        first, second, third = (np.array(c, dtype=np.int64) for c in (alone, ranks, of_rank))
        return first, second, third, others

    def _keys(
        self, permutation: Sequence[int] | NDArray[np.integer], chunks: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Return one number for sources, targets, owner and index of permuted chunks."""
        perm = np.array(permutation, dtype=np.int64)
        sets = self._set_images(perm)
        key = sets[self.source_set[chunks]] * (len(sets) + 1) + sets[self.target_set[chunks]]
        if self.carrier_set is not None:
            key = key * (len(sets) + 1) + sets[self.carrier_set[chunks]]
        key = key * self.num_ranks + perm[self.owner[chunks]]
        key = key * (int(self.index.max(initial=0)) + 1) + self.index[chunks]
        moments = self._moments
        keys: NDArray[np.int64] = key * (int(moments.max(initial=0)) + 1) + moments[chunks]
        return keys

    @cached_property
    def _moments(self) -> NDArray[np.int64]:
        """A number for the ready time and tail of every chunk."""
        times = [column for column in (self.ready, self.tail) if column is not None]
        if not times:
            return np.zeros(self.num_chunks, dtype=np.int64)
        kinds: NDArray[np.int64] = np.unique(np.stack(times), axis=1, return_inverse=True)[1]
        return kinds.ravel()


def places_in(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the place of every entry in its own part, for parts of these `lengths`."""
    first = np.cumsum(lengths, dtype=np.int64) - lengths
    places: NDArray[np.int64] = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
    return places


def equals_before(keys: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return for each of some `keys`, not negative, how many equal ones come before it."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    before = np.empty(len(keys), dtype=np.int32)
    before[order] = places_in(np.diff(first, append=len(keys)))
    return before
