"""Parts of memory: two moves share parts where they share cells, and nowhere else."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from taccl.lowering.draft import Move, find_parts
from taccl.msccl.expected import Mode, mode_of
from taccl.msccl.program import Buffer, Op, Slot

RANKS, CHUNKS = 3, 6
SLOTS = st.none() | st.builds(Slot, st.sampled_from(Buffer), st.integers(0, CHUNKS))
MOVES = st.lists(
    st.builds(
        Move, st.integers(0, RANKS - 1), st.just(Op.COPY), SLOTS, SLOTS, st.integers(1, 4),
        st.none(),
    ),
    max_size=6,
)  # fmt: skip
MODES = tuple(
    mode_of(name, RANKS, CHUNKS, in_place=in_place)
    for name, in_place in (("allgather", True), ("reducescatter", True), ("allgather", False))
)


def cells(mode: Mode, move: Move, slot: Slot | None) -> list[object]:
    """Return the cells that a side of a move touches, one by one."""
    if slot is None:
        return []
    return [
        (mode, move.rank, mode.cell(move.rank, Slot(slot.buffer, slot.offset + index)))
        for index in range(move.chunks)
    ]


@given(MOVES)
def test_sides_of_moves_share_parts_where_they_share_cells(moves: list[Move]) -> None:
    found = find_parts(moves, MODES)
    sides = []
    for place, move in enumerate(moves):
        for mode, (source, target) in zip(MODES, found.of(place), strict=True):
            sides.append((cells(mode, move, move.src), source))
            sides.append((cells(mode, move, move.dst), target))
    for (one, first), (other, second) in product(sides, repeat=2):
        assert bool(set(one) & set(other)) == bool(set(first) & set(second))
        assert (one == other) == (first == second)
        assert (set(one) <= set(other)) == (set(first) <= set(second))
    assert all(0 <= part < found.count for _, parts in sides for part in parts)


def test_moves_that_touch_the_same_as_a_whole_touch_one_part() -> None:
    slot = Slot(Buffer.OUTPUT, 2)
    moves = [Move(0, Op.RECV, None, slot, 4, 0), Move(0, Op.SEND, slot, None, 4, 1)]
    found = find_parts(moves, MODES[2:])
    assert [list(found.of(place)) for place in (0, 1)] == [
        [(range(0), range(1))], [(range(1), range(0))],
    ]  # fmt: skip


def test_no_moves_touch_nothing() -> None:
    assert find_parts([], MODES).count == 0
