"""Fields of a sketch that together leave a chunk unserved: a set from which none can be left out.

A sketch restricts by rules that close links, by relays, by the senders that chunks leave by and by
how many peers a GPU may have. Each of these is an entry. Entries are dropped block by block, as
long as what is left still leaves a chunk unserved, until dropping any one serves all (a deletion
filter, as for irreducible infeasible sets of constraints).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl.collectives import Collective
from taccl.errors import NoScheduleError
from taccl.files import field_name
from taccl.sketch.native import Sketch
from taccl.sketch.restrict import Locals, Mask, allowed_links
from taccl.sketch.served import Lost, Question
from taccl.topology import Topology

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
    """Refuse allowed links over which some rank can't reach another.

    Parameters
    ----------
    allowed
        The links that the sketch leaves open.

    Raises
    ------
    NoScheduleError
        With the fields in conflict, and the ranks.
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
    """Return why no schedule of a collective keeps a sketch; None: it is not known that none does.

    Parameters
    ----------
    sketch
        One that :func:`taccl.sketch.apply_sketch` accepts.
    """
    if topology.num_ranks > MAX_RANKS:
        return None
    question = Question(topology, collective)
    if question.lost(sketch) is None:
        return None
    parts = entries(sketch, topology)
    return _error(topology, sketch, conflict(sketch, parts, question.lost), question.lost)


def entries(sketch: Sketch, topology: Topology) -> tuple[Entry, ...]:
    """Return the parts of a sketch that can leave a chunk unserved, alone or together.

    Parameters
    ----------
    topology
        On a large one many rules that close links are one entry, and so are many senders.
    """
    found = [Entry("deny", number) for number in range(len(sketch.deny))]
    if len(found) ** 2 * len(topology.links) > MAX_WORK:
        found = [Entry("deny")]
    found += [Entry("relays")] if sketch.relays is not None else []
    many = (len(sketch.chunk_to_relay) * topology.num_ranks) ** 2 > MAX_WORK
    if _names_gpus(sketch) and not many:
        found += [Entry("chunk_to_relay", gpu) for gpu, _ in sketch.chunk_to_relay]
    elif sketch.chunk_to_relay:
        found.append(Entry("chunk_to_relay"))
    for part in ("connections_per_gpu", "max_extra_hops"):
        found += [Entry(part)] if getattr(sketch, part) is not None else []
    return tuple(found)


def _names_gpus(sketch: Sketch) -> bool:
    """Tell whether the file has chunk_to_relay by GPU; TACCL's has the GPUs of every sender."""
    return sketch.fields.get("chunk_to_relay", ("chunk_to_relay",))[-1] == "chunk_to_relay"


def only(sketch: Sketch, kept: Sequence[Entry]) -> Sketch:
    """Return the sketch with those of its entries, and without all others."""
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

    Parameters
    ----------
    parts
        Entries to choose from; all together they leave something unserved.
    test
        What a sketch leaves unserved, if anything.
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
    return NoScheduleError(
        f"{_place(sketch, found)}{named}: rank {lost.target} can't be served: no allowed path {way}"
        f" from rank {lost.source}{within}{together}",
        fix=", or ".join(fixes) or f"open more links of {topology.name}",
    )


def _place(sketch: Sketch, found: Sequence[Entry]) -> str:
    """Return the file, and the line of the first of some entries, as far as known."""
    file = sketch.source.file or sketch.name
    if not found:
        return f"{file}: "
    first = found[0]
    rest = () if first.item is None else (first.item,)
    line = sketch.error("", first.part, *rest, fix="").line
    return f"{file}:{line}: " if line is not None else f"{file}: "
