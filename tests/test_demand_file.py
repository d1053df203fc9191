"""Demands from files: bytes of every pair as whole chunks, and what is wrong with a file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import Collective, chunk_size_of, collective_name, has_xml
from taccl.collectives.file import MOST_CHUNKS, DemandFile, make_demand, read_collective
from taccl.errors import InputError, LoweringError
from taccl.files import Document, fit_model
from taccl.lowering.lower import LowerOptions, lower
from taccl.model.problem import Options, Problem
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.synth.search import solve
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.customs import chunks_of
from tests.generators import ring4, star5, twin2x2
from tests.sweep import for_each

QUICK = Options(deterministic=True, workers=1, time_limit=2.0)


def demand(rows: list[list[int]]) -> Collective:
    document = Document({"taccl": "demand/1", "bytes": rows}, "d.yaml")
    return make_demand(fit_model(document, DemandFile), document)


def problem_of(topology: Topology, rows: list[list[int]]) -> Problem:
    made = demand(rows)
    assert made.size is not None
    size = chunk_size_of(made, made.size)
    return Problem(whole(topology), made, size, make_group(topology, ()))


def test_pairs_become_whole_chunks_of_the_largest_common_size(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("taccl: demand/1\nbytes: [[0, 4KB, 0], [6000, 2000, 0], [0, 8000, 0]]\n")
    made = read_collective(str(path))
    assert (made.name, made.num_ranks, made.num_chunks) == ("alltoallv", 3, 2 + 3 + 1 + 4)
    # 2000 bytes a chunk; rank 1 receives 2 + 1 + 4 of them, more than any rank sends.
    assert made.chunks_in_size == 7
    assert made.size == 14000
    assert chunk_size_of(made, made.size) == 2000
    ends = [(made.sources(c)[0], made.targets(c)[0]) for c in range(made.num_chunks)]
    assert ends == [(0, 1)] * 2 + [(1, 0)] * 3 + [(1, 1)] + [(2, 1)] * 4


def test_buffers_lie_as_those_of_mpi_without_gaps() -> None:
    made = demand([[0, 2, 1], [3, 1, 0], [0, 4, 0]])
    rows = chunks_of(made)
    # Rank 0 sends 2 chunks to rank 1, then 1 to rank 2; rank 1 has 3 for rank 0 first.
    assert [c.input_at for c in rows if c.sources == (0,)] == [0, 1, 2]
    assert [c.input_at for c in rows if c.sources == (1,)] == [0, 1, 2, 3]
    # Rank 1 receives 2 chunks of rank 0, its own, then 4 of rank 2.
    assert [c.output_at for c in rows if c.targets == (1,)] == [0, 1, 2, 3, 4, 5, 6]
    assert [c.output_at for c in rows if c.targets == (2,)] == [0]
    assert made.input_sizes == (3, 4, 4)
    assert made.output_sizes == (3, 7, 1)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 40).map(lambda x: 48 * x), min_size=n, max_size=n),
            min_size=n, max_size=n,
        )
    )
)  # fmt: skip
def test_no_byte_is_lost_and_no_place_is_taken_twice(rows: list[list[int]]) -> None:
    if not any(value for s, row in enumerate(rows) for d, value in enumerate(row) if s != d):
        return
    made = demand(rows)
    assert made.size is not None
    size = chunk_size_of(made, made.size)
    moved = [[0] * len(rows) for _ in rows]
    for chunk in range(made.num_chunks):
        moved[made.sources(chunk)[0]][made.targets(chunk)[0]] += 1
    assert [[count * size for count in row] for row in moved] == rows
    for side, ends in (("input_at", "sources"), ("output_at", "targets")):
        places = [(getattr(row, ends), getattr(row, side)) for row in chunks_of(made)]
        assert len(set(places)) == len(places)


def test_cutting_keeps_the_bytes() -> None:
    made = demand([[0, 2000], [1000, 0]])
    cut = made.cut(4)
    assert (cut.num_chunks, cut.size) == (12, made.size)
    assert chunk_size_of(cut, 2000) == 250


def test_equal_demands_have_the_symmetries_of_an_alltoall() -> None:
    made = demand([[0, 5, 5], [5, 0, 5], [5, 5, 0]])
    assert sorted(made.image((1, 2, 0)).tolist()) == list(range(6))
    with pytest.raises(InputError, match="alltoallv does not map onto itself"):
        demand([[0, 5, 5], [5, 0, 5], [5, 10, 0]]).image((1, 2, 0))


@for_each(
    ("rows", "said"),
    [
        ("[[0, 1], [2]]", r"bytes\[1\]: should have 2 entries, one for each rank"),
        ("[[0, 1, 2], [2, 0, 1]]", r"bytes\[0\]: should have 2 entries"),
        ("[[7, 0], [0, 7]]", "bytes: no rank sends anything to another"),
        ("[[0, -1], [0, 0]]", r"bytes\[0\]\[1\]: should be a whole number of bytes"),
        ("[[0, 1.5], [0, 0]]", r"bytes\[0\]\[1\]: should be a whole number of bytes"),
        ("[[0, much], [0, 0]]", r"bytes\[0\]\[1\]: "),
        ("[[0, true], [0, 0]]", r"bytes\[0\]\[1\]: should be a size"),
        ("[[0]]", "bytes: should have at least 2 entries"),
        ("7", "bytes: should be a list"),
        ("[[0, 1000003], [999983, 0]]", "makes 1999986 chunks, more than 262144"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_field_and_fix(
    rows: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(f"taccl: demand/1\nbytes: {rows}\n")
    with pytest.raises(InputError, match=rf"(?s)d\.yaml:2: .*{said}.*\n  fix: \w"):
        read_collective(str(path))


def test_the_fix_for_odd_numbers_is_a_size_that_is_coarse_enough() -> None:
    rows = [[0, 1000003], [999983, 0]]
    with pytest.raises(InputError, match=r"round them up to multiples of 8$"):
        demand(rows)
    made = demand([[-(-value // 8) * 8 for value in row] for row in rows])
    assert made.num_chunks <= MOST_CHUNKS


def test_another_version_of_the_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("taccl: demand/2\nbytes: [[0, 1], [1, 0]]\n")
    with pytest.raises(InputError, match="taccl: should be 'demand/1'"):
        read_collective(str(path))


def test_the_name_alone_is_not_enough() -> None:
    with pytest.raises(InputError, match=r"(?s)needs the bytes of every pair.*demand/1"):
        collective_name("All-to-Allv")


UNEVEN = [[0, 3000, 1000, 0], [2000, 0, 0, 4000], [0, 1000, 0, 2000], [5000, 0, 1000, 0]]


@pytest.mark.parametrize("network", [ring4, twin2x2])
@pytest.mark.parametrize("engine", ["flow", "guided"])
def test_engines_serve_it_above_its_bounds(network: Callable[[], Topology], engine: str) -> None:
    problem = problem_of(network(), UNEVEN)
    found = solve(problem, engine, QUICK).schedule
    assert found is not None
    assert not verify(found, problem.logical)
    assert problem.collective.size is not None
    bounds = any_bounds(problem.logical, problem.collective, problem.collective.size)
    assert 0 < best(bounds).time <= found.makespan


def test_flow_is_at_the_bound_where_one_rank_sends_most() -> None:
    # star5: rank 0 sends 4 chunks of 5000 bytes, up at 1 ps a byte and 10 ps each. The last one
    # arrives when it has come down, at 2 ps a byte.
    rows = [[0, 5000, 5000, 5000, 5000], *([0] * 5 for _ in range(4))]
    problem = problem_of(star5(), rows)
    found = solve(problem, "flow", Options(deterministic=True, workers=1, batch=False)).schedule
    assert found is not None
    fixed = best(fixed_bounds(problem.logical, problem.collective, problem.chunk_size)).time
    assert fixed == found.makespan == 3 * 5010 + 10010


def test_a_schedule_of_it_is_read_again_and_judged(tmp_path: Path) -> None:
    problem = problem_of(ring4(), UNEVEN)
    found = solve(problem, "flow", QUICK).schedule
    assert found is not None
    path = tmp_path / "s.json"
    path.write_text(schedule_text(found))
    again = read_schedule(str(path))
    assert again.collective.name == "alltoallv"
    assert again.makespan == found.makespan
    assert not verify(again)
    lost = json.loads(path.read_text())
    lost["sends"]["end_ps"][-1] -= 1
    path.write_text(json.dumps(lost))
    assert verify(read_schedule(str(path)))


def test_no_program_is_made_of_it() -> None:
    assert not has_xml("alltoallv")
    found = solve(problem_of(ring4(), UNEVEN), "flow", QUICK).schedule
    assert found is not None
    with pytest.raises(LoweringError, match="no runtime has a alltoallv") as refused:
        lower(found, LowerOptions("uneven"))
    assert "--schedule OUT.json" in str(refused.value)
