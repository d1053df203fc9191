"""What is held before and wanted after, and what rank permutations do to it."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.collectives import (
    COLLECTIVES,
    Collective,
    build_collective,
    busbw_factor,
    chunk_size_of,
    collective_name,
)
from taccl.errors import InputError
from tests.customs import Chunk, chunks_of
from tests.sweep import for_each

ALIKE = [name for name, kind in COLLECTIVES.items() if not kind.has_root]
"""Collectives that every permutation of the ranks is a symmetry of."""


def chunks(name: str, num_ranks: int, k: int) -> list[tuple[object, ...]]:
    rows = chunks_of(build_collective(name, num_ranks, k))
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


def test_broadcast_from_rank_1_by_hand() -> None:
    made = build_collective("broadcast", 3, 2, root=1)
    assert chunks_of(made) == [
        Chunk(0, (1,), (0, 1, 2), 0, 0), Chunk(1, (1,), (0, 1, 2), 1, 1),
    ]  # fmt: skip
    assert (made.input_sizes, made.output_sizes) == ((0, 2, 0), (2, 2, 2))


def test_reduce_to_rank_1_by_hand() -> None:
    made = build_collective("reduce", 3, 2, root=1)
    assert chunks_of(made) == [
        Chunk(0, (0, 1, 2), (1,), 0, 0), Chunk(1, (0, 1, 2), (1,), 1, 1),
    ]  # fmt: skip
    assert (made.input_sizes, made.output_sizes) == ((2, 2, 2), (0, 2, 0))


def test_gather_to_rank_1_by_hand() -> None:
    made = build_collective("gather", 2, 2, root=1)
    assert chunks_of(made) == [
        Chunk(0, (0,), (1,), 0, 0), Chunk(1, (0,), (1,), 1, 1),
        Chunk(2, (1,), (1,), 0, 2), Chunk(3, (1,), (1,), 1, 3),
    ]  # fmt: skip
    assert (made.input_sizes, made.output_sizes) == ((2, 2), (0, 4))


def test_scatter_from_rank_1_by_hand() -> None:
    made = build_collective("scatter", 2, 2, root=1)
    assert chunks_of(made) == [
        Chunk(0, (1,), (0,), 0, 0), Chunk(1, (1,), (0,), 1, 1),
        Chunk(2, (1,), (1,), 2, 0), Chunk(3, (1,), (1,), 3, 1),
    ]  # fmt: skip
    assert (made.input_sizes, made.output_sizes) == ((0, 4), (2, 2))


@pytest.mark.parametrize(
    ("name", "owners"),
    # Routing roots trees at owners: at the root, but in a gather at the sources.
    [("broadcast", {2}), ("reduce", {2}), ("gather", {0, 1, 2, 3}), ("scatter", {2})],
)
def test_trees_of_a_collective_with_a_root_start_where_its_data_is_or_goes(
    name: str, owners: set[int]
) -> None:
    assert set(build_collective(name, 4, 2, root=2).owner.tolist()) == owners


@pytest.mark.parametrize("name", [name for name, kind in COLLECTIVES.items() if kind.has_root])
def test_the_root_is_rank_0_unless_said(name: str) -> None:
    assert build_collective(name, 3, 1).root == 0


@pytest.mark.parametrize("root", [-1, 3])
def test_a_root_outside_the_ranks_is_refused(root: int) -> None:
    with pytest.raises(InputError, match=f"--root: should be a rank from 0 to 2, got {root}"):
        build_collective("scatter", 3, 1, root)


def test_a_root_for_a_collective_without_one_is_refused() -> None:
    with pytest.raises(InputError, match="--root: allgather has no root, got 0"):
        build_collective("all-gather", 3, 1, 0)


@for_each("name", COLLECTIVES)
def test_cutting_every_chunk_gives_the_collective_of_more_chunks(name: str) -> None:
    cut, built = build_collective(name, 3, 2).cut(3), build_collective(name, 3, 6)
    assert cut.chunks_per_rank == built.chunks_per_rank
    for column in ("source_set", "target_set", "input_at", "output_at", "owner", "index"):
        assert getattr(cut, column).tolist() == getattr(built, column).tolist()


def test_blocks_turn_with_the_ranks_as_their_keys_say() -> None:
    for name, n, k in product(ALIKE, (1, 2, 4), (1, 3)):
        collective = build_collective(name, n, 1).cut(k)
        by_keys = replace(collective, blocks=0)
        for ranks in permutations(range(n)):
            image = by_keys.image(ranks).tolist()
            assert collective.image(ranks).tolist() == image, (name, n, k, ranks)
            last = np.array([collective.num_chunks - 1], dtype=np.int32)
            assert collective.image_of(ranks, last).tolist() == image[-1:]


def test_least_sends_by_hand() -> None:
    least = {  # 3 ranks, 2 chunks of each; a target has its own, and n values take n - 1 sums
        "allgather": 6 * 2, "reducescatter": 6 * 2, "allreduce": 6 * 4, "alltoall": 6 * 2,
        "broadcast": 2 * 2, "reduce": 2 * 2, "gather": 2 * 2, "scatter": 2 * 2,
    }  # fmt: skip
    assert {name: build_collective(name, 3, 2).least_sends for name in COLLECTIVES} == least


def test_too_many_parts_are_refused() -> None:
    with pytest.raises(InputError, match="--chunks: alltoall of 512 ranks has 262144 chunks, and"):
        build_collective("alltoall", 512, 1).cut(65)


def test_thousands_of_ranks_have_one_chunk_for_each_other_and_not_more() -> None:
    for num_ranks, k, most in ((16385, 1, "268435456"), (4096, 2, "16777216")):
        with pytest.raises(InputError, match=rf"collective: alltoall of .*, more than {most}"):
            build_collective("alltoall", num_ranks, k)
    # So that 16 384 fit: what is equal is there once, and what is nothing not at all.
    made = build_collective("alltoall", 40, 1)
    assert made.owner is made.source_set is made.output_at
    assert made.target_set is made.input_at
    assert made.index.strides == (0,)


def test_alltoall_on_3_ranks_sends_chunk_s_d_from_s_to_d() -> None:
    assert chunks("alltoall", 3, 1)[5] == ((1,), (2,), 2, 1)


@for_each("name", COLLECTIVES)
@for_each(("num_ranks", "k"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 3)])
def test_offsets_fill_both_buffers_of_every_rank_once(name: str, num_ranks: int, k: int) -> None:
    collective = build_collective(name, num_ranks, k)
    rows = chunks_of(collective)
    for rank in range(num_ranks):
        inputs = sorted(c.input_at for c in rows if rank in c.sources)
        outputs = sorted(c.output_at for c in rows if rank in c.targets)
        assert inputs == list(range(collective.input_sizes[rank]))
        assert outputs == list(range(collective.output_sizes[rank]))


@for_each("name", COLLECTIVES)
def test_an_image_moves_sources_and_targets_with_the_permutation(name: str) -> None:
    collective = build_collective(name, 4, 2)
    rows = chunks_of(collective)
    for permutation in permutations(range(4)):
        if collective.root not in (None, permutation[0]):
            continue
        image = collective.image(permutation)
        for chunk, other in enumerate(image.tolist()):
            before, after = rows[chunk], rows[other]
            assert after.sources == tuple(sorted(permutation[r] for r in before.sources))
            assert after.targets == tuple(sorted(permutation[r] for r in before.targets))


@pytest.mark.parametrize("name", ALIKE)
@given(data=st.data())
def test_images_compose_as_the_permutations_do(name: str, data: st.DataObject) -> None:
    collective = build_collective(name, 5, 2)
    p = data.draw(st.permutations(range(5)))
    q = data.draw(st.permutations(range(5)))
    then = [q[p[r]] for r in range(5)]
    assert np.array_equal(collective.image(q)[collective.image(p)], collective.image(then))


@for_each("name", COLLECTIVES)
@for_each("num_ranks", [1, 2, 3])
def test_the_identity_moves_no_chunk(name: str, num_ranks: int) -> None:
    # on one rank, {0} is also the set of all ranks
    collective = build_collective(name, num_ranks, 2)
    assert collective.image(range(num_ranks)).tolist() == list(range(collective.num_chunks))


def custom(rows: list[tuple[int, int]], num_ranks: int = 3) -> Collective:
    """Return a collective of (source, target) chunks, each moving with its source."""
    source, target = np.array(rows, dtype=np.int32).T
    place = np.arange(len(rows), dtype=np.int32)
    return Collective(
        "custom", num_ranks, 1, reduces=False,
        rank_sets=tuple((rank,) for rank in range(num_ranks)),
        source_set=source, target_set=target, input_at=place, output_at=place,
        owner=source, index=np.zeros_like(place),
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


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name not in ALIKE])
def test_what_moves_the_root_is_no_symmetry(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} does not map onto itself: chunk \\d"):
        build_collective(name, 4, 1).image((1, 2, 3, 0))


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


@for_each(
    ("name", "expected"),
    # 1024 bytes on 4 ranks with 2 chunks each: 8 chunks in the counted buffer, or the root's 2
    [(name, Fraction(512 if name in ("broadcast", "reduce") else 128)) for name in COLLECTIVES],
)
def test_the_counted_buffer_is_cut_into_chunks(name: str, expected: Fraction) -> None:
    assert chunk_size_of(build_collective(name, 4, 2), 1024) == expected


def test_a_chunk_may_be_a_fraction_of_a_byte() -> None:
    assert chunk_size_of(build_collective("allgather", 3, 1), 1000) == Fraction(1000, 3)


@for_each(
    ("name", "factor"),
    # nccl-tests: 2(n-1)/n for allreduce, (n-1)/n for the others; n = 4
    [("allreduce", Fraction(3, 2)), ("allgather", Fraction(3, 4)),
     ("reducescatter", Fraction(3, 4)), ("alltoall", Fraction(3, 4)),
     ("broadcast", Fraction(1)), ("reduce", Fraction(1)), ("gather", Fraction(3, 4)),
     ("scatter", Fraction(3, 4))],
)  # fmt: skip
def test_busbw_factors_are_those_of_nccl_tests(name: str, factor: Fraction) -> None:
    assert busbw_factor(name, 4) == factor


@pytest.mark.parametrize("text", ["ReduceScatter", "reduce_scatter", " REDUCE-SCATTER "])
def test_a_collective_is_found_by_any_usual_spelling(text: str) -> None:
    assert collective_name(text) == "reducescatter"


def test_an_unknown_collective_is_refused_with_the_known_names() -> None:
    with pytest.raises(InputError, match=r"'allscatter'\n  fix: did you mean scatter\? use one"):
        build_collective("allscatter", 2, 1)


@pytest.mark.parametrize("name", ALIKE)
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
