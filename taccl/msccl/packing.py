"""Messages of chunks that are no neighbours: in which order they travel, and where they are read.

A message is sent from one run of slots and received into one. Where its chunks lie elsewhere they
are copied, a run at a time, so the order is the one with the fewest runs at both ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from taccl.msccl.program import Slot


def shifted(slot: Slot, by: int) -> Slot:
    """Return the slot so many places further on."""
    return Slot(slot.buffer, slot.offset + by)


def in_a_row(slots: Sequence[Slot | None]) -> bool:
    """Tell whether slots are all there, one after the other in one buffer."""
    first = slots[0]
    return first is not None and all(slot == shifted(first, i) for i, slot in enumerate(slots))


def packed(
    chunks: Sequence[int], read: Mapping[int, Sequence[Slot]], kept: Mapping[int, Slot | None]
) -> tuple[tuple[int, ...], list[Slot]]:
    """Return the chunks in the order in which they travel, and where each of them is read.

    Parameters
    ----------
    chunks
        Of one message.
    read
        Where each can be read, the preferred slot first.
    kept
        Where each is copied to when it has arrived; None: it stays.

    Raises
    ------
    ValueError
        When a chunk can't be read anywhere.
    """
    missing = [chunk for chunk in chunks if not read[chunk]]
    if missing:
        raise ValueError(f"chunks {missing} are nowhere to be read")
    ways = [
        (_copies(places) + _copies([kept[chunk] for chunk in order]), tuple(order), places)
        for order in _orders(chunks, read, kept)
        for places in _ways(order, read)
    ]
    _, best, places = min(ways, key=lambda way: way[0])
    return best, places


def _orders(
    chunks: Sequence[int], read: Mapping[int, Sequence[Slot]], kept: Mapping[int, Slot | None]
) -> Iterator[list[int]]:
    """Yield orders by where chunks are kept, and by each place to read."""

    def place(slot: Slot | None) -> tuple[str, int]:
        return ("", 0) if slot is None else (slot.buffer.value, slot.offset)

    yield sorted(chunks, key=lambda chunk: (place(kept[chunk]), place(read[chunk][0]), chunk))
    for turn in range(max(len(read[chunk]) for chunk in chunks)):
        yield sorted(
            chunks, key=lambda chunk: (place(read[chunk][min(turn, len(read[chunk]) - 1)]), chunk)
        )


def _ways(order: Sequence[int], read: Mapping[int, Sequence[Slot]]) -> Iterator[list[Slot]]:
    """Yield slots to read, for each of the first chunk's: the next one where it is there."""
    for first in read[order[0]]:
        places = [first]
        for chunk in order[1:]:
            beside = shifted(places[-1], 1)
            places.append(beside if beside in read[chunk] else read[chunk][0])
        yield places


def _copies(slots: Sequence[Slot | None]) -> int:
    """Return how many copies it takes to gather slots, or to fill them."""
    if in_a_row(slots):
        return 0
    starts = 1 if slots[0] is not None else 0
    return starts + sum(
        two is not None and (one is None or two != shifted(one, 1)) for one, two in pairwise(slots)
    )
