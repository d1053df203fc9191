"""``--engine exact``: proven optima, and SCCL's question."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

ASKED = ("--runtime", "none", "--engine", "exact")


def test_a_proven_optimum_is_called_optimal(run: Run) -> None:
    # No bound is as high as the optimum, which the model proves.
    done = run("synthesize", "ring:4", "alltoall", "--chunks", "1", "--json", *ASKED)
    found = json.loads(done.out)
    assert found["status"] == "optimal"
    assert found["engine"] == "exact"
    assert found["bound_engine_us"] == found["makespan_us"]


def test_an_algorithm_that_exists_is_written(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    size = ("--steps", "2", "--rounds", "2", "--chunks", "1", "--schedule", str(out))
    done = run("synthesize", "ring:4", "allgather", *size, *ASKED)
    assert "there is an algorithm of 2 steps, 2 rounds and 1 chunks" in done.err
    assert "engine      exact" in done.out
    assert out.exists()


def test_an_algorithm_that_does_not_exist_is_exit_status_3(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    size = ("--steps", "1", "--rounds", "2", "--chunks", "1", "--schedule", str(out))
    done = run("synthesize", "ring:4", "allgather", *size, *ASKED)
    assert done.status == 3
    assert "there is no algorithm of 1 steps, 2 rounds and 1 chunks" in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    "part",
    [("--steps", "2"), ("--rounds", "2"), ("--steps", "2", "--rounds", "2")],
    ids=lambda part: " ".join(part),
)
def test_half_a_question_is_an_error(run: Run, part: tuple[str, ...]) -> None:
    done = run("synthesize", "ring:4", "allgather", *part, *ASKED)
    assert done.status == 2
    assert "give --engine exact --steps S --rounds R --chunks C" in done.err


def test_only_the_exact_engine_answers(run: Run) -> None:
    asked = ("--steps", "2", "--rounds", "2", "--chunks", "1", "--engine", "taccl")
    done = run("synthesize", "ring:4", "allgather", *asked)
    assert done.status == 2
    assert "--steps: an algorithm is asked for by its steps, rounds and chunks" in done.err
