"""What is held before and wanted after, and what rank permutations do to it."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.collectives import (
    COLLECTIVES,
    Chunk,
    Collective,
    build_collective,
    busbw_factor,
    chunk_size_of,
    collective_name,
)
from taccl.errors import InputError


def chunks(name: str, num_ranks: int, k: int) -> list[tuple[object, ...]]:
    collective = build_collective(name, num_ranks, k)
    rows = [collective.chunk(i) for i in range(collective.num_chunks)]
    return [(c.sources, c.targets, c.input_at, c.output_at) for c in rows]


def test_allgather_on_2_ranks_by_hand() -> None:
    everyone = (0, 1)
    assert chunks("allgather", 2, 2) == [
        ((0,), everyone, 0, 0), ((0,), everyone, 1, 1),
        ((1,), everyone, 0, 2), ((1,), everyone, 1, 3),
    ]  # fmt: skip


def test_reducescatter_on_2_ranks_by_hand() -> None:
    everyone = (0, 1)
    assert chunks("reducescatter", 2, 2) == [
        (everyone, (0,), 0, 0), (everyone, (0,), 1, 1),
        (everyone, (1,), 2, 0), (everyone, (1,), 3, 1),
    ]  # fmt: skip


def test_allreduce_on_3_ranks_by_hand() -> None:
    everyone = (0, 1, 2)
    assert chunks("allreduce", 3, 1) == [(everyone, everyone, i, i) for i in range(3)]


def test_alltoall_on_2_ranks_by_hand() -> None:
    # chunk (s, d, i): input d*k+i of rank s, output s*k+i of rank d
    assert chunks("alltoall", 2, 2) == [
        ((0,), (0,), 0, 0), ((0,), (0,), 1, 1), ((0,), (1,), 2, 0), ((0,), (1,), 3, 1),
        ((1,), (0,), 0, 2), ((1,), (0,), 1, 3), ((1,), (1,), 2, 2), ((1,), (1,), 3, 3),
    ]  # fmt: skip


def test_alltoall_on_3_ranks_sends_chunk_s_d_from_s_to_d() -> None:
    assert chunks("alltoall", 3, 1)[5] == ((1,), (2,), 2, 1)


def test_a_row_is_a_record() -> None:
    assert build_collective("allgather", 2, 1).chunk(1) == Chunk(1, (1,), (0, 1), 0, 1)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(("num_ranks", "k"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 3)])
def test_offsets_fill_both_buffers_of_every_rank_once(name: str, num_ranks: int, k: int) -> None:
    collective = build_collective(name, num_ranks, k)
    rows = [collective.chunk(i) for i in range(collective.num_chunks)]
    for rank in range(num_ranks):
        inputs = sorted(c.input_at for c in rows if rank in c.sources)
        outputs = sorted(c.output_at for c in rows if rank in c.targets)
        assert inputs == list(range(collective.input_chunks))
        assert outputs == list(range(collective.output_chunks))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_an_image_moves_sources_and_targets_with_the_permutation(name: str) -> None:
    collective = build_collective(name, 4, 2)
    for permutation in permutations(range(4)):
        image = collective.image(permutation)
        for chunk, other in enumerate(image.tolist()):
            before, after = collective.chunk(chunk), collective.chunk(other)
            assert after.sources == tuple(sorted(permutation[r] for r in before.sources))
            assert after.targets == tuple(sorted(permutation[r] for r in before.targets))


@pytest.mark.parametrize("name", COLLECTIVES)
@given(data=st.data())
def test_images_compose_as_the_permutations_do(name: str, data: st.DataObject) -> None:
    collective = build_collective(name, 5, 2)
    p = data.draw(st.permutations(range(5)))
    q = data.draw(st.permutations(range(5)))
    then = [q[p[r]] for r in range(5)]
    assert np.array_equal(collective.image(q)[collective.image(p)], collective.image(then))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_the_identity_moves_no_chunk(name: str, num_ranks: int) -> None:
    # on one rank, {0} is also the set of all ranks
    collective = build_collective(name, num_ranks, 2)
    assert collective.image(range(num_ranks)).tolist() == list(range(collective.num_chunks))


def custom(rows: list[tuple[int, int]], num_ranks: int = 3) -> Collective:
    """Return a collective of (source, target) chunks, each moving with its source."""
    column = {
        "source_set": [s for s, _ in rows], "target_set": [t for _, t in rows],
        "owner": [s for s, _ in rows], "index": [0] * len(rows),
        "input_at": list(range(len(rows))), "output_at": list(range(len(rows))),
    }  # fmt: skip
    return Collective(
        "custom", num_ranks, 1, reduces=False,
        rank_sets=tuple((rank,) for rank in range(num_ranks)),
        input_chunks=len(rows), output_chunks=len(rows),
        **{name: np.array(values, dtype=np.int32) for name, values in column.items()},
    )  # fmt: skip


def test_a_cycle_of_messages_maps_onto_itself_by_rotation() -> None:
    ring = custom([(0, 1), (1, 2), (2, 0)])
    assert ring.image((1, 2, 0)).tolist() == [1, 2, 0]


def test_a_permutation_that_breaks_a_collective_is_refused() -> None:
    ring = custom([(0, 1), (1, 2), (2, 0)])
    with pytest.raises(InputError, match=r"symmetry: custom does not map onto itself: chunk \d"):
        ring.image((1, 0, 2))


def test_a_collective_that_treats_one_rank_specially_has_no_rotation() -> None:
    with pytest.raises(InputError, match="custom does not map onto itself"):
        custom([(0, 1), (0, 2)]).image((1, 2, 0))


def test_a_map_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(InputError, match="allgather does not map onto itself"):
        build_collective("allgather", 3, 1).image((0, 0, 1))


def test_chunks_that_are_alike_keep_their_order() -> None:
    # two equal chunks 0 -> 1 and two equal 1 -> 0
    both = custom([(0, 1), (1, 0), (0, 1), (1, 0)], num_ranks=2)
    assert both.image((1, 0)).tolist() == [1, 0, 3, 2]


def test_equal_rank_sets_may_be_listed_twice() -> None:
    double = replace(custom([(0, 1), (1, 0)], num_ranks=2), rank_sets=((0,), (1,), (0,)),
                     source_set=np.array([2, 1], dtype=np.int32))  # fmt: skip
    assert double.image((1, 0)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    # 1024 bytes on 4 ranks with 2 chunks each: always 8 chunks in the counted buffer
    [(name, Fraction(128)) for name in COLLECTIVES],
)
def test_the_counted_buffer_is_cut_into_chunks(name: str, expected: Fraction) -> None:
    assert chunk_size_of(build_collective(name, 4, 2), 1024) == expected


def test_a_chunk_may_be_a_fraction_of_a_byte() -> None:
    assert chunk_size_of(build_collective("allgather", 3, 1), 1000) == Fraction(1000, 3)


@pytest.mark.parametrize(
    ("name", "factor"),
    # nccl-tests: 2(n-1)/n for allreduce, (n-1)/n for the others; n = 4
    [("allreduce", Fraction(3, 2)), ("allgather", Fraction(3, 4)),
     ("reducescatter", Fraction(3, 4)), ("alltoall", Fraction(3, 4))],
)  # fmt: skip
def test_busbw_factors_are_those_of_nccl_tests(name: str, factor: Fraction) -> None:
    assert busbw_factor(name, 4) == factor


@pytest.mark.parametrize("text", ["ReduceScatter", "reduce_scatter", " REDUCE-SCATTER "])
def test_a_collective_is_found_by_any_usual_spelling(text: str) -> None:
    assert collective_name(text) == "reducescatter"


def test_an_unknown_collective_is_refused_with_the_known_names() -> None:
    with pytest.raises(InputError, match=r"'allscatter'\n  fix: use one of allgather, reduce"):
        build_collective("allscatter", 2, 1)


@pytest.mark.parametrize("name", COLLECTIVES)
@given(permutation=st.permutations(range(4)), chunks=st.lists(st.integers(0, 7), max_size=5))
def test_images_of_some_chunks_are_those_of_all(
    name: str, permutation: list[int], chunks: list[int]
) -> None:
    collective = build_collective(name, 4, 2)
    some = np.array(chunks, dtype=np.int32)
    expected = collective.image(permutation)[some]
    assert collective.image_of(permutation, some).tolist() == expected.tolist()


def test_images_of_chunks_that_are_alike_keep_their_order() -> None:
    both = custom([(0, 1), (1, 0), (0, 1), (1, 0)], num_ranks=2)
    assert both.image_of((1, 0), np.array([2, 3], dtype=np.int32)).tolist() == [3, 2]
