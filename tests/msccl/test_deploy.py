"""Where a file goes and what to set, by runtime, with the pitfalls that apply to it."""

from dataclasses import replace
from pathlib import Path

import pytest

from taccl.msccl.program import Program
from taccl.msccl.runtimes import (
    DEPLOYMENTS,
    LOADED_BY,
    RUNTIMES,
    UNLIMITED,
    deployment,
    deployment_lines,
    needs,
)
from tests.msccl.builders import make, mesh, pairs_schedule, ring_schedule

FILE = Path("/data/algorithms/a.xml")


def program(**changes: object) -> Program:
    made = make(ring_schedule("allreduce", 2))
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runtime", "environment"),
    [
        ("msccl", ["MSCCL_XML_FILES=/data/algorithms/a.xml", "NCCL_ALGO=MSCCL,RING,TREE"]),
        ("executor", ["MSCCL_ALGO_DIR=/data/algorithms"]),
        (
            "rccl",
            ["MSCCL_ALGO_DIR=/data/algorithms", "RCCL_MSCCL_ENABLE=1", "RCCL_MSCCL_FORCE_ENABLE=1"],
        ),
    ],
)
def test_every_runtime_has_its_variables(runtime: str, environment: list[str]) -> None:
    assert deployment(program(), runtime, FILE)[runtime]["environment"] == environment


def test_the_table_covers_the_runtimes_that_load_files() -> None:
    assert set(DEPLOYMENTS) == set(RUNTIMES) - set(LOADED_BY)


def test_notes_say_what_to_do_about_the_directory_and_odd_counts() -> None:
    lines = deployment_lines(program(chunks_per_loop=4), "portable", FILE)
    told = [line.split(maxsplit=1)[1] for line in lines if line.strip().startswith("note")]
    assert (
        "keep other files out of MSCCL_ALGO_DIR: the loader stops at the first it can't parse"
        " (executor, rccl)"
    ) in told
    assert "element counts that are not a multiple of 4 fall back to NCCL" in told


def test_only_allreduce_needs_nccl_algo() -> None:
    assert needs(program(), "msccl") == ("NCCL_ALGO=MSCCL,RING,TREE",)
    assert needs(program(collective="allgather"), "msccl") == ()


def test_only_ll128_needs_nccl_proto() -> None:
    found = needs(program(collective="allgather", protocol="LL128"), "msccl")
    assert found == ("NCCL_PROTO=Simple,LL,LL128",)


def test_who_writes_for_rccl_is_told_which_rocm_has_msccl() -> None:
    # MSCCL is deprecated in ROCm 7.11 and removed in 7.13 (RCCL 2.28.3).
    told = "needs ROCm 7.2 or older: RCCL 2.28.3 (ROCm 7.13) has no MSCCL"
    for runtime in ("rccl", "portable"):
        assert told in deployment(program(), runtime, FILE)["rccl"]["pitfalls"]
        lines = deployment_lines(program(), runtime, FILE)
        assert any("(rccl, ROCm 7.2 or older)" in line for line in lines)
    for runtime in ("executor", "msccl"):
        assert "ROCm" not in str(deployment(program(), runtime, FILE))


PITFALLS: dict[str, tuple[dict[str, object], str]] = {
    "one mode": ({"out_of_place": False}, "only one of in place and out of place is served"),
    "a root": ({"collective": "broadcast"}, "no file names a root"),
    "no upper limit": ({"max_bytes": UNLIMITED}, "the range of sizes has no end"),
}


@pytest.mark.parametrize("kind", PITFALLS)
def test_a_pitfall_is_told_where_it_applies_and_only_there(kind: str) -> None:
    changes, told = PITFALLS[kind]
    assert any(told in text for text in deployment(program(**changes), "executor", FILE)[
        "executor"
    ]["pitfalls"])  # fmt: skip
    assert not any(told in line for line in deployment_lines(program(), "executor", FILE))


def test_a_portable_file_is_explained_for_all_that_load_it() -> None:
    lines = deployment_lines(program(), "portable", FILE)
    assert [line.rpartition(" (")[2] for line in lines if "load with" in line] == [
        "executor)", "rccl, ROCm 7.2 or older)", "msccl)",
    ]  # fmt: skip
    assert len(lines) == len(set(lines))


def test_a_portable_reducescatter_is_another_file_for_msccl() -> None:
    made = make(pairs_schedule("reducescatter", mesh(2)))
    found = deployment(made, "portable", FILE)
    assert found["msccl"]["environment"] == ["MSCCL_XML_FILES=/data/algorithms/a.msccl.xml"]
    assert found["executor"]["environment"] == ["MSCCL_ALGO_DIR=/data/algorithms"]
    assert found["rccl"]["pitfalls"][0] == "move a.msccl.xml to another directory"
    assert not any("move" in text for text in found["msccl"]["pitfalls"])
