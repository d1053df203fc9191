"""Where each chunk lives at each rank: the one answer that engines, verify and lowering share.

A rank can hold a chunk in up to two places:

- *input*: a source's own value, at the collective's offset; never written;
- *held*: what arrived, or was summed: the output slot where the rank is a target, else scratch,
  in one of LAYOUTS: the first that makes every message of that rank one run. A source that is
  also a target holds its own value there too, once the lowering has copied it; and where a rank
  relays copies for some destinations, its own chunks for the same ones are staged among them, so
  that all can travel as one message.

Chunks travel as one message only where they are adjacent at both ends, in the message's order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from taccl.collectives import Collective

INPUT, OUTPUT, SCRATCH = "i", "o", "s"

Order = tuple[tuple[int, ...], tuple[int, ...], int]

LAYOUTS: Mapping[str, Callable[[Collective, int], Order]] = MappingProxyType({
    "by destination": lambda collective, chunk: (collective.targets(chunk), (), chunk),
    "by source": lambda collective, chunk: (
        collective.sources(chunk), collective.targets(chunk), chunk
    ),
})  # fmt: skip
"""In which order scratch holds the chunks that a rank relays."""

DEFAULT_LAYOUT = next(iter(LAYOUTS))


class Place(NamedTuple):
    """A buffer (``i``, ``o`` or ``s``) and an offset in chunks."""

    buffer: str
    offset: int


@dataclass(frozen=True, eq=False)
class Slots:
    """The places of all chunks of a schedule of a `collective`.

    `scratch` is (chunk, rank) to scratch offset, for ranks that hold a chunk without being a
    target, and `scratch_chunks` the scratch chunks used for that on each rank.
    """

    collective: Collective
    scratch: Mapping[tuple[int, int], int]
    scratch_chunks: tuple[int, ...]

    def original(self, chunk: int, rank: int) -> Place | None:
        """Return where a source has its own value; None when the rank is no source."""
        if not self.collective.is_source(chunk, rank):
            return None
        return Place(INPUT, self.collective.input_offset(chunk, rank))

    def held(self, chunk: int, rank: int) -> Place | None:
        """Return where arrivals of a chunk are kept at a rank, or an own chunk is staged.

        None when nothing arrives and nothing is staged.
        """
        if self.collective.is_target(chunk, rank):
            return Place(OUTPUT, self.collective.output_offset(chunk, rank))
        offset = self.scratch.get((chunk, rank))
        return None if offset is None else Place(SCRATCH, offset)

    def readable(self, chunk: int, rank: int, *, arrived: bool) -> tuple[Place, ...]:
        """Return the places that a send from a rank may read, the preferred one first.

        ``arrived`` says whether anything for the chunk has arrived at the rank before.
        """
        original, held = self.original(chunk, rank), self.held(chunk, rank)
        if original is None or (arrived and self.collective.reduces):
            return () if held is None else (held,)
        own_too = self.collective.is_target(chunk, rank) or not self.collective.reduces
        return (original, held) if held is not None and own_too else (original,)

    def source_run(
        self, chunks: Sequence[int], rank: int, arrived: Sequence[bool]
    ) -> tuple[Place, ...] | None:
        """Return consecutive places of one buffer to read the chunks from, in order, or None."""
        options = [
            {place.buffer: place for place in self.readable(c, rank, arrived=a)}
            for c, a in zip(chunks, arrived, strict=True)
        ]
        for buffer in (INPUT, OUTPUT, SCRATCH):
            run = [option.get(buffer) for option in options]
            if _consecutive(run):
                return tuple(place for place in run if place is not None)
        return None

    def adjacent(
        self, chunks: Sequence[int], src: int, dst: int, arrived: Sequence[bool], *, reduce: bool
    ) -> bool:
        """Tell whether chunks, in this order, can travel from ``src`` to ``dst`` as one step.

        Summed chunks are received into fresh scratch, so only their source must be adjacent.
        """
        if self.source_run(chunks, src, arrived) is None:
            return False
        return reduce or _consecutive([self.held(chunk, dst) for chunk in chunks])


def _consecutive(run: Sequence[Place | None]) -> bool:
    first = run[0]
    return first is not None and all(
        place == (first.buffer, first.offset + i) for i, place in enumerate(run)
    )


Hop = tuple[int, int, int]
"""A chunk, the rank it leaves and the rank it gets to."""


class Batch(NamedTuple):
    """Chunks that travel together, in order, and whether anything for them arrived before."""

    chunks: tuple[int, ...]
    src: int
    dst: int
    arrived: tuple[bool, ...]
    reduce: bool


def fit_layouts(collective: Collective, hops: Sequence[Hop], batches: Iterable[Batch]) -> Slots:
    """Return the places of all chunks under the first layout of every rank that suits its batches.

    Where none does, the default stays.

    ``hops`` are all that chunks of the ``collective`` take, ``batches`` those that travel together.
    """
    slots = place_chunks(collective, hops)
    at_rank: dict[int, list[Batch]] = {}
    for batch in batches:
        at_rank.setdefault(batch.src, []).append(batch)
        at_rank.setdefault(batch.dst, []).append(batch)
    layouts: dict[int, str] = {}
    ranks = range(collective.num_ranks)
    everywhere: dict[str, Slots] = {DEFAULT_LAYOUT: slots}
    for rank, own in sorted(at_rank.items()):
        for name in LAYOUTS if slots.scratch_chunks[rank] else ():
            # A rank's places depend on its own layout only: all may have the one that is tried.
            if name not in everywhere:
                everywhere[name] = place_chunks(collective, hops, dict.fromkeys(ranks, name))
            tried = everywhere[name]
            if all(
                (one.src != rank or tried.source_run(one.chunks, rank, one.arrived) is not None)
                and (
                    one.dst != rank
                    or one.reduce
                    or _consecutive([tried.held(chunk, rank) for chunk in one.chunks])
                )
                for one in own
            ):
                if name != DEFAULT_LAYOUT:
                    layouts[rank] = name
                break
    return place_chunks(collective, hops, layouts) if layouts else slots


def place_chunks(
    collective: Collective, hops: Iterable[Hop], layouts: Mapping[int, str] | None = None
) -> Slots:
    """Return the places of all chunks of a ``collective``, given all ``hops`` that chunks take.

    ``layouts`` are names of LAYOUTS by rank; ranks that are left out have the first.
    """
    layouts = layouts or {}
    relays: dict[int, list[int]] = {}
    every = sorted(set(hops))
    for chunk, rank in sorted({(chunk, dst) for chunk, _, dst in every}):
        if not collective.is_target(chunk, rank):
            relays.setdefault(rank, []).append(chunk)
    if not collective.reduces:
        for chunk, rank in _staged(collective, relays, every):
            relays[rank].append(chunk)
    scratch: dict[tuple[int, int], int] = {}
    for rank, chunks in relays.items():
        order = LAYOUTS[layouts.get(rank, DEFAULT_LAYOUT)]
        chunks.sort(key=lambda chunk: order(collective, chunk))
        scratch.update({(chunk, rank): offset for offset, chunk in enumerate(chunks)})
    counts = tuple(len(relays.get(rank, ())) for rank in range(collective.num_ranks))
    return Slots(collective, scratch, counts)


def _staged(
    collective: Collective, relays: Mapping[int, Sequence[int]], hops: Sequence[Hop]
) -> list[tuple[int, int]]:
    """Return (chunk, rank) for own chunks that may travel with relayed ones of the same targets."""
    leaving: dict[tuple[tuple[int, ...], int, int], tuple[list[int], list[int]]] = {}
    for chunk, src, dst in hops:
        if src in relays and not collective.is_target(chunk, src):
            own, relayed = leaving.setdefault((collective.targets(chunk), src, dst), ([], []))
            (own if collective.is_source(chunk, src) else relayed).append(chunk)
    return sorted({
        (chunk, src)
        for (_, src, dst), (own, relayed) in leaving.items()
        for chunk in own
        if any(side_by_side(collective, chunk, other, dst) for other in relayed)
    })  # fmt: skip


def side_by_side(collective: Collective, one: int, other: int, rank: int) -> bool:
    """Tell whether chunks ``one`` and ``other`` may become neighbours at a ``rank`` they get to.

    They are chunks of a ``collective`` with the same targets.
    """
    if not collective.is_target(one, rank):
        return True
    apart = collective.output_offset(one, rank) - collective.output_offset(other, rank)
    return abs(apart) == 1
