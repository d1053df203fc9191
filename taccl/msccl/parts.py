"""Parts of memory: neighbouring cells that every move touches all of, or none.

A move of many chunks touches as many cells, but most moves of a schedule read and write what other
moves did as a whole. So cells are joined to parts, cut only where some move begins or ends, and the
passes that ask who touched what look at parts. Cells are those of one rank in one mode.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.aliasing import Mode
from taccl.msccl.buffers import Move
from taccl.msccl.program import Buffer, Slot

AREAS = {buffer: area for area, buffer in enumerate(Buffer)}
"""Numbers of the buffers."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What every move reads from and writes to, as numbers of parts.

    Parameters
    ----------
    count
        All numbers are below.
    sources, targets
        By mode, and by the position of a move: neighbouring parts, in order.
    """

    count: int
    sources: tuple[Sequence[range], ...]
    targets: tuple[Sequence[range], ...]

    def of(self, place: int) -> Iterator[tuple[range, range]]:
        """Yield source and target of a move, mode by mode."""
        for sources, targets in zip(self.sources, self.targets, strict=True):
            yield sources[place], targets[place]


def find_parts(moves: Sequence[Move], modes: Sequence[Mode]) -> Parts:
    """Return the parts that moves touch."""
    ranks = np.array([move.rank for move in moves], dtype=np.int64)
    chunks = np.array([move.chunks for move in moves], dtype=np.int64)
    sides = [_side([move.src for move in moves]), _side([move.dst for move in moves])]
    shift = max((max(*mode.input_shift, *mode.output_shift) for mode in modes), default=0)
    width = shift + 1 + max(int((offset + chunks).max(initial=0)) for _, offset in sides)
    span = width * len(AREAS) * (1 + int(ranks.max(initial=0)))
    starts = [
        number * span + (ranks * len(AREAS) + area) * width + offset
        for number, mode in enumerate(modes)
        for area, offset in (_placed(mode, ranks, *side) for side in sides)
    ]
    lengths = [np.where(area < 0, 0, chunks) for area, _ in sides] * len(modes)
    both = np.array([starts, np.add(starts, lengths)])
    cuts = np.unique(both[:, np.array(lengths) > 0])
    found = [
        [range(*ends) for ends in zip(*np.searchsorted(cuts, side).tolist(), strict=True)]
        for side in both.swapaxes(0, 1)
    ]
    return Parts(len(cuts), tuple(found[::2]), tuple(found[1::2]))


def _side(slots: Sequence[Slot | None]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of slots; an area below 0: there is none."""
    areas = [-1 if slot is None else AREAS[slot.buffer] for slot in slots]
    offsets = [0 if slot is None else slot.offset for slot in slots]
    return np.array(areas, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _placed(
    mode: Mode, ranks: NDArray[np.int64], area: NDArray[np.int64], offset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of cells: in place, input and output are one area."""
    if not mode.in_place:
        return area, offset
    inside, outside = AREAS[Buffer.INPUT], AREAS[Buffer.OUTPUT]
    for buffer, shifts in ((inside, mode.input_shift), (outside, mode.output_shift)):
        offset = offset + np.where(area == buffer, np.array(shifts, dtype=np.int64)[ranks], 0)
    return np.where(area == outside, inside, area), offset
