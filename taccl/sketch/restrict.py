"""Which links a sketch leaves, and whether every chunk still has a way to all that want it.

The order of the rules: patterns with local numbers deny first; then relays, which say exactly
what joins the servers and so open their own links again and close all others; then patterns in
global ranks, which can close a single link of a relay; last, ``allow`` opens.

Whether chunks have a way is a question of paths over the links that chunks may take, by the senders
of their owner. With a limit on peers it is a search for connections that keep it: those without
which some chunk is lost have to stay; a GPU that has as many of these as it may loses its others;
and where this settles nothing, one connection is tried without and with. A search that grows too
long counts as served, so that nothing is called lost which is not.

Why is a set of the sketch's fields from which none can be left out. Rules that close links, relays,
the senders that chunks leave by and the limit on peers are an entry each. Entries are dropped block
by block, as long as what is left still leaves a chunk unserved, until dropping any one serves all
(a deletion filter, as for irreducible infeasible sets of constraints).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.errors import NoScheduleError
from taccl.files import field_name
from taccl.sketch.native import Pattern, Sketch
from taccl.topology.graph import Permutation, Rank, Topology
from taccl.topology.taccl_costs import DIRECT_MAP, FULLY_CONNECTED

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Locals:
    """A topology with the local number of every rank: its position in its server."""

    topology: Topology

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """The local number of every rank."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for ranks in self.topology.servers:
            number[list(ranks)] = np.arange(len(ranks))
        return number

    @cached_property
    def server(self) -> NDArray[np.int64]:
        """The position in ``topology.servers`` of every rank's server."""
        return np.unique(self.topology.server_of, return_inverse=True)[1]

    @property
    def size(self) -> int:
        """GPUs of the largest server."""
        return max(map(len, self.topology.servers))

    @cached_property
    def across(self) -> Mask:
        """Whether each link joins two servers."""
        table = self.topology.links
        return np.asarray(self.server[table.src] != self.server[table.dst])

    def check(self, sketch: Sketch, gpus: Iterable[int], part: str, *rest: str | int) -> None:
        """Refuse local numbers in a part of a sketch that no server has.

        Raises InputError with the place in the sketch; ``rest`` goes on from the part.
        """
        for gpu in gpus:
            if gpu >= self.size:
                raise sketch.error(
                    f"there is no GPU {gpu} in a server of {self.size}", part, *rest,
                    fix=f"use GPUs from 0 to {self.size - 1}",
                )  # fmt: skip


def allowed_links(sketch: Sketch, places: Locals) -> Mask:
    """Return which links of a topology, given as its ``places``, a ``sketch`` leaves open.

    Raises InputError when the sketch names GPUs or links that the topology does not have.
    """
    allowed = np.ones(len(places.topology.links), dtype=np.bool_)
    denied = [(p, _matches(sketch, "deny", i, p, places)) for i, p in enumerate(sketch.deny)]
    for pattern, links in denied:
        if pattern.scope is not None:
            allowed &= ~links
    if len(places.topology.servers) > 1:
        _apply_relays(sketch, places, allowed)
    for pattern, links in denied:
        if pattern.scope is None:
            allowed &= ~links
    for index, pattern in enumerate(sketch.allow):
        allowed |= _matches(sketch, "allow", index, pattern, places)
    return allowed


def _matches(sketch: Sketch, part: str, index: int, pattern: Pattern, places: Locals) -> Mask:
    """Return which links a pattern is about."""
    local = pattern.scope is not None
    size = places.size if local else places.topology.num_ranks
    for end, numbers in (("from", pattern.src), ("to", pattern.dst)):
        if numbers is not None and max(numbers) >= size:
            what = "GPU" if local else "rank"
            raise sketch.error(
                f"there is no {what} {max(numbers)} in {places.topology.name}", part, index, end,
                fix=f"use {what}s from 0 to {size - 1}",
            )  # fmt: skip
    ends = [np.zeros(size, dtype=np.bool_) for _ in range(2)]
    for named, numbers in zip(ends, (pattern.src, pattern.dst), strict=True):
        named[list(range(size) if numbers is None else numbers)] = True
    table = places.topology.links
    at = (places.number[table.src], places.number[table.dst]) if local else (table.src, table.dst)
    links = ends[0][at[0]] & ends[1][at[1]]
    if local:
        links &= places.across if pattern.scope == "across" else ~places.across
    return links


def _apply_relays(sketch: Sketch, places: Locals, allowed: Mask) -> None:
    """Keep of the links between servers those that the relays name, and no others."""
    if sketch.relays is None or sketch.relays == FULLY_CONNECTED:
        return
    relays = () if isinstance(sketch.relays, str) else sketch.relays
    pairs = np.eye(places.size, dtype=np.bool_) & (sketch.relays == DIRECT_MAP)
    for sender, receivers in relays:
        places.check(sketch, (sender, *receivers), "relays", sender)
        pairs[sender, list(receivers)] = True
    table, number = places.topology.links, places.number
    kept = pairs[number[table.src], number[table.dst]] & places.across
    allowed[places.across] = kept[places.across]
    joined = np.zeros_like(pairs)
    joined[number[table.src[kept]], number[table.dst[kept]]] = True
    for sender, receivers in relays:
        for receiver in receivers:
            if not joined[sender, receiver]:
                raise sketch.error(
                    f"no GPU {sender} has a link to a GPU {receiver} of another server in"
                    f" {places.topology.name}", "relays", sender,
                    fix="name GPUs that the fabric joins",
                )  # fmt: skip


def senders_of(sketch: Sketch, places: Locals) -> dict[int, frozenset[int]]:
    """Return for every rank the senders that its chunks leave its server by under a ``sketch``.

    ``places`` are those of the topology.

    Raises InputError when the sketch names GPUs that the topology does not have, or that are no
    senders.
    """
    if len(places.topology.servers) == 1:
        return {}
    named = dict(sketch.relays) if isinstance(sketch.relays, tuple) else None
    for gpu, senders in sketch.chunk_to_relay:
        places.check(sketch, (gpu, *senders), "chunk_to_relay")
        strangers = [sender for sender in senders if named is not None and sender not in named]
        if strangers:
            raise sketch.error(
                f"the chunks of GPU {gpu} should leave by GPU {strangers[0]}, which is no sender",
                "chunk_to_relay",
                fix=f"use one of the senders {', '.join(map(str, named or ()))}",
            )
    return {
        ranks[gpu]: frozenset(ranks[sender] for sender in senders if sender < len(ranks))
        for ranks in places.topology.servers
        for gpu, senders in sketch.chunk_to_relay
        if gpu < len(ranks)
    }


def keeps_sketch(
    topology: Topology,
    allowed: Mask,
    leave_by: Mapping[int, frozenset[int]],
    permutation: Permutation,
) -> bool:
    """Tell whether what a sketch restricts has the symmetry that takes r to ``permutation[r]``.

    That are the ``allowed`` links of the ``topology``, and the senders that ranks ``leave_by``.
    """
    table, ranks = topology.links, topology.num_ranks
    src, dst = table.src[allowed].astype(np.int64), table.dst[allowed].astype(np.int64)
    image = np.array(permutation, dtype=np.int64)
    pairs, images = src * ranks + dst, image[src] * ranks + image[dst]
    # Links are in order of their ends.
    return np.array_equal(np.sort(images), pairs) and all(
        leave_by.get(permutation[rank]) == frozenset(permutation[s] for s in senders)
        for rank, senders in leave_by.items()
    )


def switch_in_server(name: str) -> str:
    """Return the ``name`` of a switch without its server: ``s0/nvswitch`` is nvswitch."""
    prefix, slash, rest = name.partition("/")
    return rest if slash and prefix[:1] == "s" and prefix[1:].isdigit() else name


def joined_ranks(topology: Topology, links: Mask) -> Mask:
    """Return which rank of a ``topology`` has one of some ``links``, a mask, to which: a matrix."""
    table = topology.links
    joined = np.zeros((topology.num_ranks,) * 2, dtype=np.bool_)
    joined[table.src[links], table.dst[links]] = True
    return joined


def fewest_hops(joined: Mask) -> NDArray[np.int64]:
    """Return the fewest hops from every rank to every other; their number where there is no way."""
    ranks = len(joined)
    reached = np.eye(ranks, dtype=np.bool_)
    fewest = np.where(reached, 0, ranks)
    ways, step = joined.astype(np.float32), 0
    while True:
        step += 1
        new = (reached.astype(np.float32) @ ways > 0) & ~reached
        if not new.any():
            return fewest
        fewest[new] = step
        reached |= new


MAX_LIMITED = 64
"""Ranks up to which a limit on peers is looked at."""

MAX_TESTS = 2000
"""Sets of connections that the search for one sketch looks at."""

ANY = -1
"""The kind of chunks whose owner does not matter."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A chunk that can't get from a rank that has it to one that wants it.

    `source` and `target` are the ranks, `chunk` is its number; None: any chunk of the source.
    """

    source: Rank
    target: Rank
    chunk: int | None = None


@dataclass(frozen=True)
class _Leg:
    """Chunks of one owner that some ranks have and others want.

    `kind` is the local number of the owner, on which the senders depend; `every` one of the ranks
    `sources` has to reach the `targets` (a sum), or any one.
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

    The `topology` is the network; of the `collective` one chunk for each rank (and pair) is enough:
    all further ones are alike.
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
        wanted: dict[tuple[Rank, int], set[Rank]] = defaultdict(set)
        sums: dict[int, set[Rank]] = defaultdict(set)
        columns = np.unique(np.stack([one.owner, one.source_set, one.target_set]), axis=1)
        for owner, sources, targets in columns.T.tolist():
            if one.reduces:
                sums[owner].update(one.rank_sets[sources])
            wanted[owner, -1 if one.reduces else sources].update(one.rank_sets[targets])
        number = self.places.number
        legs = [
            _Leg(int(number[owner]), tuple(sorted(ranks)), (owner,), every=True)
            for owner, ranks in sorted(sums.items())
        ]
        for (owner, start), ranks in sorted(wanted.items()):
            sources = (owner,) if start < 0 else one.rank_sets[start]
            legs.append(_Leg(int(number[owner]), sources, tuple(sorted(ranks)), every=False))
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
            from_owner = one.reduces and source == owner
            starts = (owner,) if from_owner else one.sources(chunk)
            ends = (owner,) if one.reduces and not from_owner else one.targets(chunk)
            if number[owner] == kind and source in starts and target in ends:
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
        within = places.server[:, None] == places.server
        found: dict[int, Mask] = {}
        made: dict[bytes, Mask] = {}
        for kind in range(places.size):
            senders = np.ones(ranks, dtype=np.bool_)
            for members in places.topology.servers:
                speaker = members[kind] if kind < len(members) else None
                if speaker in leave_by:
                    senders[list(members)] = False
                    senders[sorted(leave_by[speaker])] = True
            key = senders.tobytes()
            if key not in made:
                made[key] = within | senders[:, None]
            found[kind] = made[key]
        return found

    def lost(self, joined: Mask) -> Lost | None:
        """Return what gets lost where only some pairs of ranks are joined."""
        hops = self._fewest if joined is self.joined else self._hops(joined)
        for leg in self._question.legs:
            kind = leg.kind if leg.kind in hops else ANY
            pick = np.ix_(leg.sources, leg.targets)
            found, fewest = hops[kind][pick], self._fewest[kind][pick]
            if not leg.every:
                found, fewest = (one.min(axis=0, keepdims=True) for one in (found, fewest))
            most = np.full_like(fewest, len(joined) - 1)
            if self._extra is not None:
                most = np.minimum(fewest + self._extra, most)
            late = np.argwhere(found > most)
            if len(late):
                source, target = leg.sources[late[0, 0]], leg.targets[late[0, 1]]
                return Lost(source, target, self._question.chunk(source, target, leg.kind))
        return None


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


MAX_RANKS = 512
"""Ranks up to which chunks are looked at one by one; beyond, engines say what they can't serve."""

MAX_WORK = 200_000_000
"""Links times the square of the rules that close some, beyond which these rules count as one.

For the senders of chunks it is the square of the ranks times the square of the GPUs named.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of a sketch that restricts: its name in :class:`Sketch`, and which item of it."""

    part: str
    item: int | None = None

    def field(self, sketch: Sketch) -> str:
        """Return what the sketch's file calls it."""
        place = sketch.fields.get(self.part, (self.part,))
        return field_name(place if self.item is None else (*place, self.item))


Test = Callable[[Sketch], Lost | None]


def check_reachable(topology: Topology, sketch: Sketch, allowed: Mask) -> None:
    """Refuse ``allowed`` links over which some rank of a ``topology`` can't reach another.

    These are the ones that the ``sketch`` leaves open.

    Raises NoScheduleError with the fields in conflict, and the ranks.
    """
    if _cut_off(topology, allowed) is None:
        return
    places = Locals(topology)

    def test(one: Sketch) -> Lost | None:
        return _cut_off(topology, allowed_links(one, places))

    every = entries(sketch, topology)
    parts = [entry for entry in every if entry.part in ("deny", "relays")]
    raise _error(topology, sketch, conflict(sketch, parts, test), test)


def why_unserved(
    topology: Topology, sketch: Sketch, collective: Collective
) -> NoScheduleError | None:
    """Return why no schedule of a ``collective`` keeps a ``sketch``; None: none is known to fail.

    The sketch is one that :func:`taccl.sketch.apply_sketch` accepts for the ``topology``.
    """
    if topology.num_ranks > MAX_RANKS:
        return None
    question = Question(topology, collective)
    if question.lost(sketch) is None:
        return None
    parts = entries(sketch, topology)
    return _error(topology, sketch, conflict(sketch, parts, question.lost), question.lost)


def entries(sketch: Sketch, topology: Topology) -> tuple[Entry, ...]:
    """Return the parts of a ``sketch`` that can leave a chunk unserved, alone or together.

    On a large ``topology`` many rules that close links are one entry, and so are many senders.
    """
    found = [Entry("deny", number) for number in range(len(sketch.deny))]
    if len(found) ** 2 * len(topology.links) > MAX_WORK:
        found = [Entry("deny")]
    found += [Entry("relays")] if sketch.relays is not None else []
    many = (len(sketch.chunk_to_relay) * topology.num_ranks) ** 2 > MAX_WORK
    field = sketch.fields.get("chunk_to_relay", ("chunk_to_relay",))
    # TACCL's files say it by GPU of every sender: there it is one entry.
    if field[-1] == "chunk_to_relay" and not many:
        found += [Entry("chunk_to_relay", gpu) for gpu, _ in sketch.chunk_to_relay]
    elif sketch.chunk_to_relay:
        found.append(Entry("chunk_to_relay"))
    for part in ("connections_per_gpu", "max_extra_hops"):
        found += [Entry(part)] if getattr(sketch, part) is not None else []
    return tuple(found)


def only(sketch: Sketch, kept: Sequence[Entry]) -> Sketch:
    """Return a ``sketch`` with those of its :func:`entries` that are ``kept``, and no others."""
    parts = {entry.part for entry in kept}
    rules = {entry.item for entry in kept if entry.part == "deny"}
    gpus = {entry.item for entry in kept if entry.part == "chunk_to_relay"}
    return replace(
        sketch,
        deny=tuple(rule for number, rule in enumerate(sketch.deny) if rules & {number, None}),
        relays=sketch.relays if "relays" in parts else None,
        chunk_to_relay=tuple(row for row in sketch.chunk_to_relay if gpus & {row[0], None}),
        connections_per_gpu=sketch.connections_per_gpu if "connections_per_gpu" in parts else None,
        max_extra_hops=sketch.max_extra_hops if "max_extra_hops" in parts else None,
    )


def conflict(sketch: Sketch, parts: Sequence[Entry], test: Test) -> tuple[Entry, ...]:
    """Return entries that leave something unserved, as they do not without any one of them.

    They are chosen from ``parts`` of a ``sketch``, which all together leave something unserved;
    ``test`` says what a sketch leaves unserved, if anything.
    """
    kept = list(parts)
    size = max(1, len(kept) // 2)
    while True:
        before, at = len(kept), 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if test(only(sketch, fewer)) is not None:
                kept = fewer
            else:
                at += size
        if size == 1 and len(kept) == before:
            return tuple(kept)
        size = max(1, size // 2)


def _cut_off(topology: Topology, allowed: Mask) -> Lost | None:
    """Return a rank that rank 0 can't reach, or that can't reach rank 0, over links."""
    table = topology.links
    for forward in (True, False):
        tail, head = (table.src, table.dst) if forward else (table.dst, table.src)
        tail, head = tail[allowed], head[allowed]
        seen = np.zeros(topology.num_ranks, dtype=np.bool_)
        seen[0] = True
        reached = 0
        while reached < seen.sum():
            reached = int(seen.sum())
            seen[head[seen[tail]]] = True
        if not seen.all():
            lost = int(np.flatnonzero(~seen)[0])
            return Lost(0, lost) if forward else Lost(lost, 0)
    return None


FIXES = {
    "deny": "open a link that leads to rank {target} in {field}",
    "relays": "name a relay that leads to rank {target} in {field}",
    "chunk_to_relay": "name another sender in {field}",
    "connections_per_gpu": "raise {field}",
    "max_extra_hops": "raise {field}",
}
"""What helps, by the part of a sketch."""

MAX_TOLD = 8
"""Fields that a message names."""


def _error(
    topology: Topology, sketch: Sketch, found: Sequence[Entry], test: Test
) -> NoScheduleError:
    """Return the error that names entries in conflict, and what they leave unserved."""
    lost = test(only(sketch, found)) or Lost(0, 0)
    first = found[0] if found else None
    rest = () if first is None or first.item is None else (first.item,)
    fields = [entry.field(sketch) for entry in found[:MAX_TOLD]]
    if len(found) > MAX_TOLD:
        fields.append(f"{len(found) - MAX_TOLD} more")
    named = ", ".join(fields) or sketch.name
    limits = [e.field(sketch) for e in found if e.part in ("connections_per_gpu", "max_extra_hops")]
    within = f" within {' and '.join(limits)}" if limits else ""
    way = "leads there" if lost.chunk is None else f"brings chunk {lost.chunk} there"
    together = "" if len(found) == 1 else "; these fields together, and not without any of them"
    fixes = dict.fromkeys(
        FIXES[entry.part].format(field=entry.field(sketch), target=lost.target)
        for entry in found[:MAX_TOLD]
    )
    line = sketch.error("", first.part, *rest, fix="").line if first else None
    place = f"{sketch.source.file or sketch.name}:" + (f"{line}:" if line is not None else "")
    return NoScheduleError(
        f"{place} {named}: rank {lost.target} can't be served: no allowed path {way}"
        f" from rank {lost.source}{within}{together}",
        fix=", or ".join(fixes) or f"open more links of {topology.name}",
    )
