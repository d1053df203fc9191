"""``taccl tune`` and ``taccl explain`` from end to end on a tiny machine."""

import json
import re
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taccl.cli.tune import shown
from taccl.mscclpp import register
from taccl.tuning import executors
from taccl.tuning.directory import LibraryFile
from tests.cli.conftest import Run
from tests.sweep import for_each

TINY = ("ring:4", "allgather", "allreduce", "-b", "1K", "-e", "64K", "-f", "4")


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run candidates in this process: starting others takes most of the time."""
    monkeypatch.setattr(executors, "Processes", lambda _workers: executors.here())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the library is written, once."""
    return tmp_path_factory.mktemp("tune") / "lib"


def made(run: Run, place: Path, *more: str) -> dict[str, Any]:
    """Return the index of the library, which is written unless it is there."""
    done = run("tune", *TINY, "--candidates", "3", "--json", "-q", "-o", place, *more)
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_ranges_are_disjoint_without_gaps_and_cover_all_sizes(run: Run, library: Path) -> None:
    for one in made(run, library)["index"]["collectives"]:
        ranges = one["ranges"]
        assert ranges[0]["min_bytes"] == 1024
        assert ranges[-1]["max_bytes"] == 65536
        for before, after in pairwise(ranges):
            assert after["min_bytes"] == before["max_bytes"] + 1


def test_what_is_chosen_is_near_the_best_and_never_behind_the_textbook(
    run: Run, library: Path
) -> None:
    for one in made(run, library)["index"]["collectives"]:
        for size in one["sizes"]:
            assert size["over_best"] <= 1.02
            assert size["over_classical"] <= 1
            assert size["bound_us"] <= size["time_us"]


def test_the_files_are_verified_and_take_as_long_as_the_index_says(run: Run, library: Path) -> None:
    for one in made(run, library)["index"]["collectives"]:
        for span in one["ranges"]:
            path = library / span["file"]
            for size in span["verified_at_bytes"]:
                done = run("verify", path, "--runtime", "portable", "--size", str(size))
                assert done.status == 0, done.out
            sizes = [s for s in one["sizes"] if s["file"] == span["file"]]
            assert sizes
            for size in sizes:
                found = run(
                    "evaluate", path, "--topology", "ring:4", "--size", str(size["size_bytes"]),
                    "--protocol-costs", "--json",
                )  # fmt: skip
                assert json.loads(found.out)["rows"][0]["time_us"] == size["time_us"]


def test_the_directory_of_programs_holds_nothing_else(run: Run, library: Path) -> None:
    made(run, library)
    assert {path.suffix for path in (library / "algorithms").iterdir()} == {".xml"}
    assert {"index.json", "report.html", "environment.sh"} <= {p.name for p in library.iterdir()}
    text = (library / "environment.sh").read_text()
    assert 'MSCCL_ALGO_DIR="$here/algorithms"' in text
    assert re.search(r'MSCCL_XML_FILES="\$here/algorithms/\S+\.xml', text)


def test_the_index_is_what_its_schema_says(run: Run, library: Path) -> None:
    index = made(run, library)["index"]
    assert LibraryFile.model_validate(index).runtime == "portable"
    assert json.loads((library / "index.json").read_text()) == index


def test_the_report_names_every_file_and_fetches_nothing(run: Run, library: Path) -> None:
    names = [name for name in made(run, library)["files"] if name.endswith(".xml")]
    text = (library / "report.html").read_text()
    assert all(name in text for name in names)
    assert not re.search(r"https?:|<script|<link|src=", text)


def test_the_report_says_what_was_won_and_its_charts_say_what_they_show(
    run: Run, library: Path
) -> None:
    made(run, library)
    text = (library / "report.html").read_text()
    assert re.search(r'class="verdict">allgather, \S+ to \S+: \d+ files?; .* times as fast', text)
    for label in (
        "algbw, GB/s", "size of the buffer", "this library", "the best classical algorithm",
        "NCCL by its own model", "bound: no program is faster",
    ):  # fmt: skip
        assert f">{label}</text>" in text


def test_a_reduce_scatter_is_written_in_both_spellings(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "lib"
    words = ("ring:4", "reducescatter", "-b", "1K", "-e", "4K", "--candidates", "0", "-q")
    assert run("tune", *words, "-o", place).status == 0
    first, second = (
        [path.read_text() for path in sorted((place / folder).iterdir())]
        for folder in ("algorithms", "msccl")
    )
    assert first
    assert len(first) == len(second)
    assert all('coll="reducescatter"' in text for text in first)
    assert all('coll="reduce_scatter"' in text for text in second)
    assert "$here/msccl/reducescatter-01" in (place / "environment.sh").read_text()


def test_a_sketch_is_named_with_its_hash(run: Run, tmp_path: Path) -> None:
    words = ("ndv2", "allgather", "--nodes", "2", "-b", "64K", "-e", "64K", "--candidates", "0")
    done = run("tune", *words, "--sketch", "ndv2-relay", "-o", tmp_path / "lib", "--json")
    (one,) = json.loads(done.out)["index"]["sketches"]
    assert one["name"] == "ndv2-relay"
    assert re.fullmatch("[0-9a-f]{64}", one["sha256"])


def test_a_second_run_is_known_and_changes_nothing(run: Run, library: Path) -> None:
    made(run, library)
    before = {path: path.stat().st_mtime_ns for path in library.rglob("*")}
    assert made(run, library)["candidates_done"] == 0
    assert {path: path.stat().st_mtime_ns for path in library.rglob("*")} == before


def test_the_same_run_elsewhere_makes_the_same_bytes(
    run: Run, library: Path, tmp_path: Path
) -> None:
    files = {name: (library / name).read_bytes() for name in made(run, library)["files"]}
    again = made(run, tmp_path / "other")
    assert {name: (tmp_path / "other" / name).read_bytes() for name in again["files"]} == files


def test_explain_says_which_file_runs_and_why(run: Run, library: Path) -> None:
    made(run, library)
    done = run("explain", library, "--collective", "all-gather", "--size", "4K")
    assert "allgather of 4096 bytes on 4 ranks: algorithms/allgather-" in done.out
    assert "the fastest of" in done.out
    assert "bound 1.43072 us (rounds)" in done.out
    assert re.search(r"NCCL's model \S+ us \(\w+ \w+\), launch of the kernel included", done.out)
    odd = run("explain", library, "--collective", "allgather", "--size", "4097")
    assert "are no multiple of" in odd.out
    beyond = run("explain", library, "--collective", "allgather", "--size", "1G", "--json")
    assert json.loads(beyond.out)["in_library"] is False


def test_what_nccls_model_wins_is_left_to_it(run: Run, tmp_path: Path) -> None:
    slow = ("mesh2d:3x3@0.5GB/s,50us", "allreduce", "-b", "128K", "-e", "256K")
    fast = ("--nccl", "channels=1,intra=0.5GB/s,wire=nvlink")
    done = run("tune", *slow, *fast, "--candidates", "0", "-q", "-o", tmp_path / "lib", "--json")
    index = json.loads(done.out)["index"]
    (one,) = index["collectives"]
    assert [span["served_by"] for span in one["ranges"]] == ["nccl"]
    rows = (tmp_path / "lib" / "nccl_tuner.csv").read_text().splitlines()
    assert rows[0].startswith("# collective_type,min_bytes,max_bytes,algorithm,protocol")
    pairs = {tuple(row.split(",")[3:5]) for row in rows[1:]}
    assert pairs <= {(a, p) for a in ("ring", "tree") for p in ("ll", "ll128", "simple")}
    ends = (rows[1].split(",")[1], rows[-1].split(",")[2])
    assert ends == (str(index["sizes"][0]), str(256 << 10))
    told = run("explain", tmp_path / "lib", "--collective", "allreduce", "--size", "256K").out
    assert "NCCL's own algorithm" in told
    kept = run(
        "tune", *slow, *fast, "--candidates", "0", "-q", "-o", tmp_path / "all", "--json",
        "--keep-all",
    )  # fmt: skip
    (one,) = json.loads(kept.out)["index"]["collectives"]
    assert {span["served_by"] for span in one["ranges"]} == {"file"}


def test_what_nccls_model_expects_below_the_bound_is_not_believed(run: Run, tmp_path: Path) -> None:
    slow = ("hub:4@1GB/s,50us", "allreduce", "-b", "1K", "-e", "64K", "-f", "8")
    wrong = ("--nccl", "channels=16,intra=100GB/s,wire=nvlink")
    done = run("tune", *slow, *wrong, "--candidates", "0", "-q", "-o", tmp_path / "lib", "--json")
    (one,) = json.loads(done.out)["index"]["collectives"]
    assert all(size["nccl_us"] < size["bound_us"] for size in one["sizes"])
    assert {span["served_by"] for span in one["ranges"]} == {"file"}
    told = run("explain", tmp_path / "lib", "--collective", "allreduce", "--size", "1K").out
    assert "below the bound: its inputs do not fit, and nothing is left to it" in told


def test_ranks_that_are_no_power_of_two_have_a_file_in_every_range(
    run: Run, tmp_path: Path
) -> None:
    words = ("ring:6", "allgather", "allreduce", "-b", "1K", "-e", "100000", "-f", "16")
    done = run("tune", *words, "--candidates", "0", "-q", "-o", tmp_path / "lib", "--json")
    assert done.status == 0, done.err
    index = json.loads(done.out)["index"]
    # Multiples of 4 bytes on each of six ranks, and of 2, 32 and 128 times that.
    assert index["sizes"] == [1008, 16128, 98304]
    for one in index["collectives"]:
        assert {span["served_by"] for span in one["ranges"]} == {"file"}
        assert one["ranges"][0]["min_bytes"] <= 1024
        assert one["ranges"][-1]["max_bytes"] == 100000
        for span in one["ranges"]:
            assert span["verified_at_bytes"]
            for size in span["verified_at_bytes"]:
                assert size % span["divisor_bytes"] == 0
                assert span["min_bytes"] <= size <= span["max_bytes"]


def test_sizes_at_which_nothing_can_run_are_not_said_to_be_nccls(run: Run, tmp_path: Path) -> None:
    words = (
        "ring:6",
        "allreduce",
        "-b",
        "16",
        "-e",
        "1K",
        "-f",
        "64",
        "--candidates",
        "0",
        "-q",
        "--json",
    )
    done = run("tune", *words, "-o", tmp_path / "lib")
    (one,) = json.loads(done.out)["index"]["collectives"]
    assert one["ranges"][0]["served_by"] == "nothing"
    assert "no multiples of" in one["ranges"][0]["why"]


def test_the_last_size_asked_for_is_covered_and_replayed(run: Run, tmp_path: Path) -> None:
    words = ("ring:4", "allgather", "-b", "1K", "-e", "32K", "-f", "16", "--candidates", "0", "-q")
    done = run("tune", *words, "-o", tmp_path / "lib", "--json")
    index = json.loads(done.out)["index"]
    assert index["sizes"] == [1024, 16384, 32768]
    assert index["collectives"][0]["ranges"][-1]["max_bytes"] == 32768


def test_a_library_is_found_in_the_directory_that_it_is_written_to(
    run: Run, tmp_path: Path
) -> None:
    words = ("ring:2", "allgather", "-e", "1K", "--candidates", "0", "-q", "-o", tmp_path / "lib")
    assert run("tune", *words).status == 0
    (tmp_path / "lib" / "notes.txt").write_text("mine")
    done = run("tune", *words)
    assert (done.status, "notes.txt" in done.err) == (2, True)
    assert (tmp_path / "lib" / "notes.txt").read_text() == "mine"


def test_the_progress_line_is_gone_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(ZeroDivisionError, match="a fault"), shown(quiet=False, as_json=False):
        raise ZeroDivisionError("a fault")
    assert capsys.readouterr().err == "\r\033[K"


def test_a_time_limit_is_told_in_the_index(run: Run, tmp_path: Path) -> None:
    done = run("tune", *TINY, "--time-limit", "2", "-q", "-o", tmp_path / "lib", "--json")
    found = json.loads(done.out)
    assert found["index"]["budget"] == {"candidates": None, "time_limit_s": 2.0}
    assert len(found["index"]["collectives"]) == 2


def test_progress_is_a_json_object_a_line(run: Run, tmp_path: Path) -> None:
    done = run("tune", *TINY, "--candidates", "1", "--json", "-o", tmp_path / "lib")
    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert lines[-1]["done"] == lines[-1]["total"] == len(lines)
    assert {"left_seconds", "best", "candidate", "size_bytes"} <= set(lines[-1])
    assert len(done.out.splitlines()) == 1


@for_each(
    ("words", "told"),
    [
        (("ring:4", "broadcast"), "has a root"),
        (("ring:4", "nonsense"), "nonsense"),
        (("ring:1", "allgather"), "should make 2"),
        (("ring:4", "allgather", "-b", "1M", "-e", "1K"), "-e: should be at least -b"),
        (("ring:4", "allgather", "-b", "1"), "-b: "),
        (("ring:4", "allgather", "--time-limit", "9", "--candidates", "1"), "--candidates"),
        (("ring:4", "allgather", "--mpi", "--scheduler", "x"), "--mpi"),
        (("ring:4", "allgather", "--workers", "2", "--mpi"), "--workers"),
        (("ring:4", "allgather", "--sketch", "no.yaml"), "no.yaml"),
        (("ring:4", "allgather", "--runtime", "none"), "--runtime"),
        (("ring:4", "allgather", "--nccl", "gpu=abacus"), "--nccl"),
    ],
)
def test_bad_input_is_one_error(
    run: Run, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = run("tune", *words, "-o", tmp_path / "lib")
    assert done.status == 2
    assert told in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "lib").exists()


def test_a_directory_that_is_no_library_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("years of it")
    done = run("tune", *TINY, "--candidates", "0", "-o", tmp_path / "mine")
    assert (done.status, "was not written by taccl tune" in done.err) == (2, True)


def test_a_damaged_journal_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lib.journal").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    done = run("tune", *TINY, "--candidates", "0", "-o", tmp_path / "lib")
    assert (done.status, "lib.journal" in done.err) == (2, True)


def test_explain_refuses_what_is_no_library(run: Run, tmp_path: Path, library: Path) -> None:
    done = run("explain", tmp_path, "--collective", "allgather", "--size", "1K")
    assert (done.status, "holds no library" in done.err) == (2, True)
    (tmp_path / "index.json").write_text('{"taccl": "library/1"}')
    done = run("explain", tmp_path, "--collective", "allgather", "--size", "1K")
    assert (done.status, "index.json" in done.err) == (2, True)
    made(run, library)
    done = run("explain", library, "--collective", "alltoall", "--size", "1K")
    assert (done.status, "the library has no alltoall" in done.err) == (2, True)


def test_the_journal_is_a_database_of_results(run: Run, library: Path) -> None:
    made(run, library)
    with sqlite3.connect(library.with_name("lib.journal")) as file:
        (count,) = file.execute("SELECT count(*) FROM outcome").fetchone()
    file.close()
    assert count > 3


def test_a_library_of_plans_has_right_ones_with_their_times(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "plans"
    done = run("tune", "ring:4", "allgather", "allreduce", "-b", "4K", "-e", "256K", "-f", "8",
               "--candidates", "2", "--runtime", "mscclpp", "-q", "-o", place)  # fmt: skip
    assert done.status == 0, done.err
    assert f"see {place / 'LOADING.md'}" in done.out
    index = json.loads((place / "index.json").read_text())
    LibraryFile.model_validate(index)
    assert index["runtime"] == "mscclpp"
    plans = register.plans_of(index)
    assert {(plan["collective"], plan["in_place"]) for plan in plans} == {
        (name, mode) for name in ("allgather", "allreduce") for mode in (True, False)
    }
    files = [place / plan["file"] for plan in plans]
    assert sorted(files) == sorted((place / "plans").iterdir())
    assert run("verify", *files).status == 0
    for plan in plans:
        size, time = next(iter(plan["times_us"].items()))
        done = run(
            "evaluate", place / plan["file"], "--topology", "ring:4", "--size", size, "--json"
        )
        (row,) = json.loads(done.out)["rows"]
        assert (row["time_us"], row["note"]) == (time, "")
        assert f'"max_message_size":{plan["max_bytes"]}' in (place / plan["file"]).read_text()
    for one in index["collectives"]:
        for before, after in pairwise(one["ranges"]):
            assert after["min_bytes"] == before["max_bytes"] + 1
    told = run("explain", place, "--collective", "allreduce", "--size", "32K")
    assert "plans/allreduce-" in told.out
    assert place.joinpath("register.py").read_text() == Path(register.__file__).read_text()
    monkeypatch.setattr(register, "HERE", place)
    assert registered(monkeypatch, sums_only=False) == {"allgather"}
    assert registered(monkeypatch, sums_only=True) == {"allgather", "allreduce"}
    done = run("tune", *TINY, "--mscclpp-version", "0.9", "-o", place)
    assert "--mscclpp-version: is for --runtime mscclpp" in done.err


def test_plans_on_switch_channels_serve_sizes_at_which_they_take_less(
    run: Run, tmp_path: Path
) -> None:
    machine = tmp_path / "nvls.yaml"
    machine.write_text(NVLS)
    tuned = {}
    for mode in ("on", "off"):
        place = tmp_path / mode
        done = run("tune", machine, "allgather", "allreduce", "-b", "4K", "-e", "1M", "-f", "256",
                   "--candidates", "1", "--runtime", "mscclpp", "--in-network", mode, "-q",
                   "-o", place)  # fmt: skip
        assert done.status == 0, done.err
        tuned[mode] = json.loads((place / "index.json").read_text())
        LibraryFile.model_validate(tuned[mode])
        assert run("verify", *(place / "plans").iterdir()).status == 0
        assert ("NVLS" in (place / "LOADING.md").read_text()) == (mode == "on")
    _, sums = tuned["on"]["collectives"]
    _, plain = tuned["off"]["collectives"]
    assert [one["engine"] for one in sums["ranges"]] == ["nvls-one-shot", "nvls"]
    for one, other in zip(sums["sizes"], plain["sizes"], strict=True):
        assert other["bound_us"] > one["bound_us"] <= one["time_us"] < other["time_us"]
    assert sums["sizes"][1]["file"].startswith("plans/allreduce-02-nvls-")
    done = run("tune", machine, "allreduce", "--in-network", "on", "-o", tmp_path / "xml")
    assert "--in-network: no XML can hold what switches copy and add" in done.err


def test_measured_plans_are_held_to_bounds_at_what_plans_cost(run: Run, tmp_path: Path) -> None:
    done = run("tune", "dgx-h100", "allgather", "-b", "1K", "-e", "64K", "-f", "64",
               "--candidates", "0", "--runtime", "mscclpp", "-q", "-o", tmp_path / "h")  # fmt: skip
    assert done.status == 0, done.err
    index = json.loads((tmp_path / "h" / "index.json").read_text())
    assert index["topology"]["profile"] == "measured"
    for one in index["collectives"][0]["sizes"]:
        assert one["bound_us"] <= one["time_us"], one["size_bytes"]


NVLS = """taccl: topology/1
name: four-nvls
node:
  gpus: 4
  switches:
    - name: nvswitch
      bandwidth: 450GB/s
      alpha: 0.7us
      multicast: {own: through}
      reduce: {turn: rank, own: through}
"""


def registered(monkeypatch: pytest.MonkeyPatch, *, sums_only: bool) -> set[str]:
    """Register plans with something that has MSCCL++'s names; return the collectives served."""
    known: dict[str, dict[str, Any]] = {}
    select: list[Callable[..., Any]] = []

    class Algorithm:
        Constraint = staticmethod(lambda ranks, each: (ranks, each))

        def __init__(self, execution_plan: tuple[str, int], constraint: object, **ids: str) -> None:
            self.constraint = constraint
            text = json.loads(Path(execution_plan[0]).read_text())
            self.name, self.collective = text["name"], text["collective"]
            assert (ids, execution_plan[1]) == ({"id": self.name}, 3)

    class Builder:
        def add_algorithm_builder(self, one: Algorithm) -> None:
            known.setdefault(one.collective, {})[one.name] = one

        def set_algorithm_selector(self, selector: Callable[..., Any]) -> None:
            select.append(selector)

    fake = SimpleNamespace(Algorithm=Algorithm, AlgorithmCollectionBuilder=Builder)
    core = SimpleNamespace(CppExecutionPlan=lambda path, rank: (path, rank))
    modules = {"mscclpp": fake, "mscclpp._mscclpp": core}
    loaded = SimpleNamespace(import_module=modules.__getitem__)
    monkeypatch.setattr(register, "importlib", loaded)
    made_ = register.register(3, 4, sums_only=sums_only)
    assert {one.constraint for one in made_} == {(4, 4)}
    served = set()
    for collective in ("allgather", "allreduce"):
        # An allgather counts what a rank sends, and is in place where that lies in the output.
        size = 8192 if collective == "allgather" else 32768
        for input_, mode in ((3 * size if collective == "allgather" else 0, True), (1, False)):
            asked = SimpleNamespace(
                collective=collective, message_size=size, world_size=4, n_ranks_per_node=4, rank=3,
                input_buffer=1 << 40 | input_, output_buffer=1 << 40,
            )  # fmt: skip
            found = select[-1](known, asked)
            served |= {collective} if found else set()
            assert found is None or found.name.endswith("-inplace") == mode
            for other in ({"message_size": size + 4}, {"world_size": 8}, {"message_size": 1 << 40}):
                assert select[-1](known, SimpleNamespace(**{**vars(asked), **other})) is None
    return served
