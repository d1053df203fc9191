"""Collectives from files: what they say, and what is wrong with them, with file, line and fix."""

import json
from pathlib import Path

import pytest

from taccl.collectives.file import CollectiveFile, collective_document, make_collective
from taccl.collectives.file import read_collective as read
from taccl.errors import InputError
from taccl.files import Document, fit_model
from tests.customs import chunks_of, custom, random_custom
from tests.sweep import for_each

GOOD = """\
taccl: collective/1
name: halo
ranks: 3
chunks:
  - {id: 1, input: {1: 2}, output: {0: 0, 2: 1}}
  - {id: 0, input: {0: 0, 2: 4}, output: {1: 0}}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "halo.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_says_who_has_and_wants_each_chunk_and_where(tmp_path: Path) -> None:
    made = read(write(tmp_path, GOOD))
    assert (made.name, made.num_ranks, made.num_chunks, made.reduces) == ("halo", 3, 2, False)
    assert (made.sources(0), made.targets(0)) == ((0, 2), (1,))
    assert (made.sources(1), made.targets(1)) == ((1,), (0, 2))
    assert [made.input_offset(0, rank) for rank in (0, 2)] == [0, 4]
    assert [made.output_offset(1, rank) for rank in (0, 2)] == [0, 1]
    assert (made.input_sizes, made.output_sizes) == ((1, 3, 5), (1, 1, 2))


def test_the_largest_buffer_of_any_rank_is_counted(tmp_path: Path) -> None:
    assert read(write(tmp_path, GOOD)).chunks_in_size == 5


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "halo.json"
    made = read(write(tmp_path, GOOD))
    path.write_text(json.dumps(collective_document(made)))
    assert collective_document(read(str(path))) == collective_document(made)


def test_cutting_chunks_scales_their_offsets() -> None:
    whole = custom({"ranks": 3, "chunks": [{"id": 0, "input": {0: 1, 2: 4}, "output": {1: 2}}]})
    cut = whole.cut(3)
    assert (cut.num_chunks, cut.chunks_per_rank, cut.chunks_in_size) == (3, 3, 15)
    assert [cut.input_offset(2, rank) for rank in (0, 2)] == [5, 14]
    assert cut.output_offset(1, 1) == 7
    assert cut.index.tolist() == [0, 1, 2]


@for_each("seed", range(30))
@for_each("parts", [1, 3])
def test_what_is_written_is_read_again(seed: int, parts: int) -> None:
    made = random_custom(seed, 2 + seed % 4).cut(parts)
    fields = json.loads(json.dumps(collective_document(made)))
    again = make_collective(
        fit_model(Document(fields, None), CollectiveFile), Document(fields, None)
    )
    assert collective_document(again.cut(parts)) == collective_document(made)
    assert chunks_of(again.cut(parts)) == chunks_of(made)


def test_a_sum_for_one_rank_is_made_there_and_one_for_several_at_a_source() -> None:
    chunks = [
        {"id": 0, "input": {0: 0, 1: 0}, "output": {2: 0}},
        {"id": 1, "input": {0: 1, 2: 1}, "output": {1: 1, 2: 1}},
        {"id": 2, "input": {0: 2}, "output": {1: 2, 2: 2}},
    ]
    made = custom({"ranks": 3, "reduces": True, "chunks": chunks})
    assert made.owner.tolist() == [2, 2, 0]


def test_a_ring_of_neighbours_has_the_rotations_of_the_ring() -> None:
    chunks = [{"id": r, "input": {r: 0}, "output": {(r + 1) % 4: 0}} for r in range(4)]
    made = custom({"ranks": 4, "chunks": chunks})
    assert made.image((1, 2, 3, 0)).tolist() == [1, 2, 3, 0]
    with pytest.raises(InputError, match="some does not map onto itself: chunk"):
        made.image((1, 0, 2, 3))


BAD = {
    "another format": (("collective/1", "collective/2"), 1, "taccl: should be 'collective/1'"),
    "unknown field": (("ranks: 3", "ranks: 3\nroot: 0"), 4, "root: unknown field"),
    "no ranks": (("ranks: 3", "ranks: 0"), 3, "ranks: should be at least 1, got 0"),
    "taken name": (("halo", "All-Reduce"), 2, "name: 'All-Reduce' is a collective of its own"),
    "no chunks": ((GOOD[GOOD.index("  - ") :], "  []\n"), 4, "should have at least 1 entries"),
    "twice": (("id: 1", "id: 0"), 6, r"chunks\[1\].id: chunk 0 is there twice, .*chunks\[0\]"),
    "a gap": (("id: 1", "id: 5"), 5, r"chunks\[0\].id: should be below 2, .*got 5"),
    "negative id": (("id: 1", "id: -1"), 5, "should be at least 0, got -1"),
    "no source": (("{0: 0, 2: 4}", "{}"), 6, r"chunks\[1\].input: no rank has chunk 0"),
    "no target": (("{1: 0}", "{}"), 6, r"chunks\[1\].output: no rank wants chunk 0"),
    "rank": (("2: 4", "3: 4"), 6, r"chunks\[1\].input\[3\]: there is no rank 3 among 3"),
    "negative": (("2: 4", "2: -4"), 6, r"chunks\[1\].input\[2\]: should be at least 0, got -4"),
    "huge": (("2: 4", "2: 1048576"), 6, r"input\[2\]: should be less than 1048576"),
    "fraction": (("2: 4", "2: 1.5"), 6, r"input\[2\]: should be a whole number, got 1.5"),
    "text": (("{0: 0, 2: 4}", "all"), 6, r"chunks\[1\].input: should be a mapping, got 'all'"),
    "rank name": (("2: 4", "two: 4"), 6, r"chunks\[1\].input.two: should be a whole number"),
    "reduces": (("ranks: 3", "ranks: 3\nreduces: 1"), 4, "reduces: should be true or false, got 1"),
}  # fmt: skip


@for_each("name", BAD)
def test_what_is_wrong_is_said_with_file_line_field_and_fix(name: str, tmp_path: Path) -> None:
    (old, new), line, said = BAD[name]
    assert GOOD.count(old) == 1
    with pytest.raises(InputError, match=rf"(?s)halo\.yaml:{line}: .*{said}.*\n  fix: \w"):
        read(write(tmp_path, GOOD.replace(old, new)))


@pytest.mark.parametrize("side", ["input", "output"])
def test_two_chunks_at_one_place_are_refused(side: str) -> None:
    chunks = [{"id": n, "input": {n: n}, "output": {n: n}} for n in range(2)]
    chunks[1][side] = {1: 1, 0: 0}
    with pytest.raises(
        InputError,
        match=rf"chunks\[1\].{side}\[0\]: chunks 0 and 1 are both at offset 0 of rank 0's",
    ):
        custom({"ranks": 2, "chunks": chunks})


def test_other_places_and_other_buffers_are_apart() -> None:
    chunks = [{"id": n, "input": {0: n}, "output": {0: 1 - n, 1: n}} for n in range(2)]
    assert custom({"ranks": 2, "chunks": chunks}).num_chunks == 2


def test_too_many_parts_are_refused() -> None:
    many = [{"id": n, "input": {0: n}, "output": {1: n}} for n in range(9000)]
    with pytest.raises(InputError, match="--chunks: some of 2 ranks has 9000 chunks, and each cut"):
        custom({"ranks": 2, "chunks": many}).cut(2048)
