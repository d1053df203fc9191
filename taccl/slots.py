"""Where each chunk lives at each rank: the one answer that engines, verify and lowering share.

A rank can hold a chunk in up to two places:

- *input*: a source's own value, at the collective's offset; never written;
- *held*: what arrived, or was summed: the output slot where the rank is a target, else scratch,
  laid out by (destination, chunk). A source that is also a target holds its own value there too,
  once the lowering has copied it.

Chunks travel as one message only where they are adjacent at both ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taccl.collectives import Collective

INPUT, OUTPUT, SCRATCH = "i", "o", "s"


class Place(NamedTuple):
    """A buffer (``i``, ``o`` or ``s``) and an offset in chunks."""

    buffer: str
    offset: int


@dataclass(frozen=True, eq=False)
class Slots:
    """The places of all chunks of a schedule.

    Parameters
    ----------
    collective
        Whose chunks.
    scratch
        (chunk, rank) to scratch offset, for ranks that hold a chunk without being a target.
    scratch_chunks
        Scratch chunks used for that on each rank.
    """

    collective: Collective
    scratch: Mapping[tuple[int, int], int]
    scratch_chunks: tuple[int, ...]

    def original(self, chunk: int, rank: int) -> Place | None:
        """Return where a source has its own value; None when the rank is no source."""
        if not self.collective.is_source(chunk, rank):
            return None
        return Place(INPUT, int(self.collective.input_at[chunk]))

    def held(self, chunk: int, rank: int) -> Place | None:
        """Return where arrivals of a chunk are kept at a rank; None when nothing arrives."""
        if self.collective.is_target(chunk, rank):
            return Place(OUTPUT, int(self.collective.output_at[chunk]))
        offset = self.scratch.get((chunk, rank))
        return None if offset is None else Place(SCRATCH, offset)

    def readable(self, chunk: int, rank: int, *, arrived: bool) -> tuple[Place, ...]:
        """Return the places that a send from a rank may read, the preferred one first.

        ``arrived`` says whether anything for the chunk has arrived at the rank before.
        """
        original, held = self.original(chunk, rank), self.held(chunk, rank)
        if original is None or (arrived and self.collective.reduces):
            return () if held is None else (held,)
        if held is not None and self.collective.is_target(chunk, rank):
            return (original, held)
        return (original,)

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
    if first is None:
        return False
    return all(
        place is not None and place == (first.buffer, first.offset + i)
        for i, place in enumerate(run)
    )


def place_chunks(collective: Collective, arrivals: Iterable[tuple[int, int]]) -> Slots:
    """Return the places of all chunks, given every (chunk, rank) that something arrives at."""
    relays: dict[int, list[int]] = {}
    for chunk, rank in sorted(set(arrivals)):
        if not collective.is_target(chunk, rank):
            relays.setdefault(rank, []).append(chunk)
    scratch: dict[tuple[int, int], int] = {}
    for rank, chunks in relays.items():
        chunks.sort(key=lambda chunk: (collective.targets(chunk), chunk))
        scratch.update({(chunk, rank): offset for offset, chunk in enumerate(chunks)})
    counts = tuple(len(relays.get(rank, ())) for rank in range(collective.num_ranks))
    return Slots(collective, scratch, counts)
