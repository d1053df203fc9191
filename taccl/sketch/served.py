"""Whether a sketch leaves every chunk of a collective a way to all ranks that want it.

That is a question of paths over the links that chunks may take, by the senders of their owner.
With a limit on peers it is a search for connections that keep it: those without which some chunk
is lost have to stay; a GPU that has as many of these as it may loses its others; and where this
settles nothing, one connection is tried without and with. A search that grows too long counts as
served, so that nothing is called lost which is not.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.sketch.native import Sketch
from taccl.sketch.restrict import (
    Locals,
    Mask,
    allowed_links,
    fewest_hops,
    joined_ranks,
    senders_of,
)
from taccl.topology import Rank, Topology

MAX_LIMITED = 64
"""Ranks up to which a limit on peers is looked at."""

MAX_TESTS = 2000
"""Sets of connections that the search for one sketch looks at."""

ANY = -1
"""The kind of chunks whose owner does not matter."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A chunk that can't get from a rank that has it to one that wants it.

    Parameters
    ----------
    source, target
        The ranks.
    chunk
        Its number; None: any chunk of the source.
    """

    source: Rank
    target: Rank
    chunk: int | None = None


@dataclass(frozen=True)
class _Leg:
    """Chunks of one owner that some ranks have and others want.

    Parameters
    ----------
    kind
        The local number of the owner, on which the senders depend.
    sources, targets
        Ranks.
    every
        Whether every source has to reach the targets (a sum), or any one.
    """

    kind: int
    sources: tuple[Rank, ...]
    targets: tuple[Rank, ...]
    every: bool


class _UnsettledError(Exception):
    """The search took too many tests."""


@dataclass(frozen=True, eq=False)
class Question:
    """What a collective asks of the links of a topology.

    Parameters
    ----------
    topology
        The network.
    collective
        One chunk for each rank (and pair) is enough: all further ones are alike.
    """

    topology: Topology
    collective: Collective

    @cached_property
    def places(self) -> Locals:
        """The servers."""
        return Locals(self.topology)

    @cached_property
    def legs(self) -> tuple[_Leg, ...]:
        """What has to get where, those of the same sources together."""
        one = self.collective
        wanted: dict[tuple[int, int, bool], set[Rank]] = defaultdict(set)
        sums: dict[int, set[Rank]] = defaultdict(set)
        columns = np.unique(np.stack([one.owner, one.source_set, one.target_set]), axis=1)
        for owner, sources, targets in columns.T.tolist():
            if one.reduces:
                sums[owner].update(one.rank_sets[sources])
            start = -1 - owner if one.reduces else sources
            wanted[owner, start, False].update(one.rank_sets[targets])
        number = self.places.number
        legs = [
            _Leg(int(number[owner]), tuple(sorted(ranks)), (owner,), every=True)
            for owner, ranks in sorted(sums.items())
        ]
        for (owner, start, every), ranks in sorted(wanted.items()):
            sources = (owner,) if start < 0 else one.rank_sets[start]
            legs.append(_Leg(int(number[owner]), sources, tuple(sorted(ranks)), every))
        return tuple(legs)

    def lost(self, sketch: Sketch) -> Lost | None:
        """Return what a sketch leaves unserved; None: nothing, or that is not settled."""
        allowed = allowed_links(sketch, self.places)
        ways = _Ways(self, sketch, allowed)
        found = ways.lost(ways.joined)
        limit = sketch.connections_per_gpu
        if found is None and limit is not None and self.topology.num_ranks <= MAX_LIMITED:
            try:
                found = _Search(ways, limit).lost(ways.joined, np.zeros_like(ways.joined))
            except _UnsettledError:
                return None
        return found

    def chunk(self, source: Rank, target: Rank, kind: int) -> int | None:
        """Return the first chunk of a kind that has to get from one rank to another."""
        one, number = self.collective, self.places.number
        for chunk in range(one.num_chunks):
            owner = int(one.owner[chunk])
            if number[owner] != kind:
                continue
            sources, targets = one.sources(chunk), one.targets(chunk)
            starts, ends = (sources, targets)
            if one.reduces and (source, target) != (owner, target):
                ends = (owner,)
            elif one.reduces:
                starts = (owner,)
            if source in starts and target in ends:
                return chunk
        return None


class _Ways:
    """The pairs of ranks that chunks of every kind may pass between under a sketch."""

    def __init__(self, question: Question, sketch: Sketch, allowed: Mask) -> None:
        self._question = question
        self._extra = sketch.max_extra_hops
        self.joined = joined_ranks(question.topology, allowed)
        self._open = self._by_kind(senders_of(sketch, question.places))
        self._fewest = self._hops(self.joined)

    def _hops(self, joined: Mask) -> dict[int, NDArray[np.int64]]:
        """Return for every kind of owner the fewest hops; kinds of one mask share an array."""
        found: dict[int, NDArray[np.int64]] = {}
        for open_ in self._open.values():
            if id(open_) not in found:
                found[id(open_)] = fewest_hops(joined & open_)
        return {kind: found[id(open_)] for kind, open_ in self._open.items()}

    def _by_kind(self, leave_by: dict[int, frozenset[int]]) -> dict[int, Mask]:
        """Return for every kind of owner the pairs that its chunks may pass between.

        Kinds that leave by the same senders share one mask.
        """
        places, ranks = self._question.places, len(self.joined)
        if not leave_by:
            return {ANY: np.ones_like(self.joined)}
        server = np.array(places.topology.server_of)
        within = server[:, None] == server
        found: dict[int, Mask] = {}
        made: dict[bytes, Mask] = {}
        for kind in range(places.size):
            doors = np.ones(ranks, dtype=np.bool_)
            for members in places.members:
                speaker = members[kind] if kind < len(members) else None
                if speaker in leave_by:
                    doors[list(members)] = False
                    doors[sorted(leave_by[speaker])] = True
            key = doors.tobytes()
            if key not in made:
                made[key] = within | doors[:, None]
            found[kind] = made[key]
        return found

    def lost(self, joined: Mask) -> Lost | None:
        """Return what gets lost where only some pairs of ranks are joined."""
        hops = self._fewest
        if joined is not self.joined:
            hops = self._hops(joined)
        for leg in self._question.legs:
            kind = leg.kind if leg.kind in hops else ANY
            pick = np.ix_(leg.sources, leg.targets)
            found = self._late(hops[kind][pick], self._fewest[kind][pick], every=leg.every)
            if found is not None:
                source, target = leg.sources[found[0]], leg.targets[found[1]]
                chunk = self._question.chunk(source, target, leg.kind)
                return Lost(source, target, chunk)
        return None

    def _late(
        self, hops: NDArray[np.int64], fewest: NDArray[np.int64], *, every: bool
    ) -> tuple[int, int] | None:
        """Return where (source, target) a way is missing or longer than allowed."""
        if not every:
            hops, fewest = hops.min(axis=0, keepdims=True), fewest.min(axis=0, keepdims=True)
        ranks = len(self.joined)
        most = ranks - 1 if self._extra is None else np.minimum(fewest + self._extra, ranks - 1)
        late = np.argwhere(hops > most)
        return (int(late[0, 0]), int(late[0, 1])) if len(late) else None


class _Search:
    """Connections of which every rank has no more than so many, in each direction."""

    def __init__(self, ways: _Ways, limit: int) -> None:
        self._ways, self._limit, self._tests = ways, limit, 0

    def lost(self, joined: Mask, kept: Mask) -> Lost | None:
        """Return what gets lost whatever is chosen of the pairs joined beside those kept."""
        joined, kept = joined.copy(), kept.copy()
        found = self._narrow(joined, kept)
        if found is not None:
            return found
        crowded = self._crowded(joined) & ~kept
        if not crowded.any():
            return None
        pair = tuple(np.argwhere(crowded)[0].tolist())
        without, with_ = joined.copy(), kept.copy()
        without[pair], with_[pair] = False, True
        first = self.lost(without, kept)
        return None if first is None else self.lost(joined, with_) and first

    def _crowded(self, joined: Mask) -> Mask:
        """Return the pairs at a rank that has more of them than it may."""
        out, into = (joined.sum(axis=axis) > self._limit for axis in (1, 0))
        return np.asarray(joined & (out[:, None] | into))

    def _narrow(self, joined: Mask, kept: Mask) -> Lost | None:
        """Close and keep, in place, what has to be; return what gets lost by that."""
        while True:
            full_out, full_in = (kept.sum(axis=axis) >= self._limit for axis in (1, 0))
            joined &= kept | ~(full_out[:, None] | full_in)
            found = self._test(joined)
            if found is not None:
                return found
            changed = False
            for pair in map(tuple, np.argwhere(self._crowded(joined) & ~kept).tolist()):
                joined[pair] = False
                found = self._test(joined)
                joined[pair] = True
                if found is not None:
                    kept[pair] = changed = True
                    if max(kept.sum(axis=0).max(), kept.sum(axis=1).max()) > self._limit:
                        return found
            if not changed:
                return None

    def _test(self, joined: Mask) -> Lost | None:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise _UnsettledError
        return self._ways.lost(joined)
