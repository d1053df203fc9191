"""Which chunks of input and output are one memory cell in a call that runs in place.

An in-place call has one user buffer. Input chunk x of a rank is its chunk ``x + shift`` and so is
output chunk x, with the shifts below; out of place the two buffers are disjoint
(``mscclInPlaceTotalCountHelper``, ``mscclInternalSchedulerSelectAlgo``).
"""

from collections.abc import Mapping
from typing import NamedTuple

from taccl.msccl.program import Buffer, Slot

Cell = tuple[str, int]
"""A memory cell of a rank: ``i``, ``o``, ``s`` or ``user``, and an offset in chunks."""


_LETTER: Mapping[Buffer, str] = {buffer: buffer.value for buffer in Buffer}


class Mode(NamedTuple):
    """How a call places its buffers.

    Parameters
    ----------
    in_place
        Whether input and output share one buffer.
    input_shift, output_shift
        Chunks that the buffers start into it, one entry a rank.
    """

    in_place: bool
    input_shift: tuple[int, ...]
    output_shift: tuple[int, ...]

    def cell(self, rank: int, slot: Slot) -> Cell:
        """Return the memory cell of a slot."""
        if not self.in_place or slot.buffer is Buffer.SCRATCH:
            return _LETTER[slot.buffer], slot.offset
        shifts = self.input_shift if slot.buffer is Buffer.INPUT else self.output_shift
        return "user", slot.offset + shifts[rank]


def mode_of(collective: str, num_ranks: int, chunks_per_loop: int, *, in_place: bool) -> Mode:
    """Return how a collective's calls place their buffers in one mode."""
    nothing = (0,) * num_ranks
    own = tuple(rank * chunks_per_loop // num_ranks for rank in range(num_ranks))
    input_shift = own if collective == "allgather" else nothing
    output_shift = own if collective == "reducescatter" else nothing
    return Mode(in_place, input_shift, output_shift)
