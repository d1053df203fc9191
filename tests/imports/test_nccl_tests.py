"""Output of nccl-tests is read as it is printed, and nothing else is."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import collective_name
from taccl.errors import InputError
from taccl.imports.nccl_tests import Group, Measured, read_measured
from tests.imports.nccl_tests_output import Ran, Result, json_of, text_of
from tests.sweep import for_each

GROUP = "    time   algbw   busbw  #wrong"
TEXT = f"""\
# nThread 1 nGpus 4 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4104 on   node-1 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   4104 on   node-1 device  1 [0x0f] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid   4104 on   node-1 device  2 [0x47] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid   4104 on   node-1 device  3 [0x4e] NVIDIA A100-SXM4-40GB
# Collective test starting: all_reduce_perf
#
#                                                              out-of-place              in-place
#       size         count      type   redop    root {GROUP} {GROUP}
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    35.12   29.86   44.78       0 \
   34.90   30.05   45.07       0
     2097152        524288     float     sum      -1    61.40   34.16   51.23       0 \
   61.02   34.37   51.55     N/A
     4194304       1048576     float     sum      -1    113.2   37.05   55.58       0 \
   112.8   37.18   55.78       7
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 50.6651
#
"""


RESULT = {"time": 34.9, "alg_bw": 30.05, "bus_bw": 45.07, "nwrong": 0}
JSON = json.dumps({
    "version": 2, "args": ["./all_reduce_perf"],
    "results": [
        {"size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "root": -1,
         "out_of_place": {**RESULT, "time": None}, "in_place": RESULT}
    ],
})  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.txt"
    path.write_text(TEXT)
    return path


def changed(path: Path, old: str, new: str) -> Measured:
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    return read_measured(str(path))


def test_sizes_times_ranks_and_test_are_read(run: Path) -> None:
    found = read_measured(str(run))
    assert (found.test, found.collective, found.ranks) == ("all_reduce", "allreduce", 4)
    assert (found.dtype, found.element_bytes) == ("float", 4)
    groups = [point.in_place for point in found.points]
    assert [group and group.time for group in groups] == [34_900_000, 61_020_000, 112_800_000]
    assert [group and group.wrong for group in groups] == [0, None, 7]
    outside = found.points[2].out_of_place
    assert outside is not None
    assert outside.time == 113_200_000
    found.check("allreduce", 4)


def test_one_group_is_out_of_place(run: Path) -> None:
    line = "1048576 262144 float sum -1 35.12 29.86 44.78 0\n"
    run.write_text(line)
    (point,) = read_measured(str(run)).points
    assert point.in_place is None
    assert point.out_of_place is not None


def test_a_column_that_was_not_measured_is_missing(run: Path) -> None:
    run.write_text("4096 1024 float sum -1 N/A N/A N/A N/A 8.00 0.51 0.77 0\n")
    (point,) = read_measured(str(run)).points
    assert point.out_of_place is None


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(JSON)
    found = read_measured(str(path))
    assert (found.collective, found.ranks) == ("allreduce", None)
    (point,) = found.points
    assert point.out_of_place is None
    assert point.in_place is not None
    assert point.in_place.time == 34_900_000
    found.check("allreduce", 4)


def test_other_collectives_ranks_and_types_are_refused(run: Path) -> None:
    found = read_measured(str(run))
    with pytest.raises(InputError, match="is a run of all_reduce_perf, not of allgather"):
        found.check("allgather", 4)
    with pytest.raises(InputError, match="is a run of 4 ranks, the topology has 8"):
        found.check("allreduce", 8)
    unnamed = changed(run, "all_reduce_perf", "something")
    with pytest.raises(InputError, match=r"run.txt:13: redop is sum, so it is no run of alltoall"):
        unnamed.check("alltoall", 4)
    with pytest.raises(InputError, match=r"busbw 44.78 is not 1 x algbw 29.86, as it is of reduce"):
        unnamed.check("reduce", 4)
    with pytest.raises(InputError, match=r"262144 elements of half are not 1048576 bytes"):
        changed(run, "float", "half").check("allreduce", 4)


@for_each(
    ("old", "new", "problem"),
    [
        (TEXT, "", "has no results of nccl-tests"),
        (TEXT, "a text of\nsomething else\n", "has no results of nccl-tests"),
        ("float", "quaternion", "unknown type 'quaternion'"),
        ("524288     float", "524288     half", "type should be float throughout, got 'half'"),
        (TEXT, '{"taccl": "topology/1"}', "results: has no list of results"),
        (TEXT, '{"results": [{"size": "big"}]}', r"results\[0\]: should have a size and a count"),
        (TEXT, '{"results": ', "is not JSON|should"),
        (TEXT, '{"results": []}', "has no results of nccl-tests"),
    ],
)  # fmt: skip
def test_what_is_no_output_of_nccl_tests_is_refused(
    old: str, new: str, problem: str, run: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        changed(run, old, new)


@given(st.data())
@settings(max_examples=60)
def test_any_damage_is_read_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([TEXT, JSON]))
    start = data.draw(st.integers(0, len(text)))
    rest = start + data.draw(st.integers(0, 40))
    filling = data.draw(st.text('0123456789.eE+-{}[]", #\nNA', max_size=20))
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.txt")
        path.write_text(text[:start] + filling + text[rest:])
        with suppress(InputError):
            read_measured(str(path)).check("allreduce", 4)


@pytest.mark.parametrize(
    "line",
    [
        "1e6 262144 float sum -1 35.12 29.86 44.78 0",
        "0 262144 float sum -1 35.12 29.86 44.78 0",
        f"{'9' * 30} 262144 float sum -1 35.12 29.86 44.78 0",
        "4096 1024 float sum -1 35.12 29.86",
        "4096 1024 float sum -1 1e+-5 29.86 44.78 0",
        f"4096 1024{' ' * 3_000_000}float sum -1 35.12 29.86 44.78 0",
    ],
)
def test_a_line_of_something_else_is_skipped(line: str, run: Path) -> None:
    found = changed(run, "# Out of", f"{line}\n# Out of").points
    assert sum(point.out_of_place is not None for point in found) == 3


def test_a_time_of_nothing_is_no_measurement(run: Path) -> None:
    found = changed(run, "34.90", " 0.00")
    assert found.points[0].in_place is None


# --- as nccl-tests writes it -------------------------------------------------------------------

RESULTS = (
    Result(4096, 9.81, 9.75), Result(1 << 20, 35.12, 34.9), Result(1 << 26, 1234.5, 1230.0),
    Result(1 << 36, 12_345_678.0, 12_000_000.0),
)  # fmt: skip
RANS = {
    "float": Ran("all_reduce", 8, RESULTS),
    "half on two machines": Ran("all_reduce", 16, RESULTS, dtype="half", hosts=2),
    "redop none": Ran("all_gather", 8, RESULTS, dtype="bfloat16"),
    "reduce-scatter": Ran("reduce_scatter", 8, RESULTS),
    "not checked": Ran("alltoall", 8, tuple(replace(each, wrong=None) for each in RESULTS)),
    "times of each iteration": Ran("all_reduce", 8, RESULTS, per_iteration=True),
    "time of day": Ran("all_reduce", 8, RESULTS, timestamps=True),
    "everything": Ran("all_reduce", 8, RESULTS, per_iteration=True, timestamps=True),
    "only in place": Ran("all_reduce", 8, tuple(replace(e, out_of_place=None) for e in RESULTS)),
    "two GPUs a process": Ran("all_reduce", 8, RESULTS, per_process=2),
}


def close(group: Group | None, time: float | None) -> bool:
    if group is None or time is None:
        return group is None and time is None
    return group.time / 1e6 == pytest.approx(time, rel=0.05)


@for_each("ran", RANS.values(), ids=RANS)
@for_each("write", [text_of, json_of])
def test_a_run_is_read_as_nccl_tests_writes_it(
    ran: Ran, write: Callable[[Ran], str], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.write_text(write(ran))
    found = read_measured(str(path))
    assert (found.test, found.ranks, found.dtype) == (ran.test, ran.ranks, ran.dtype)
    assert [point.size for point in found.points] == [result.size for result in ran.results]
    for point, result in zip(found.points, ran.results, strict=True):
        assert close(point.out_of_place, result.out_of_place)
        assert close(point.in_place, result.in_place)
        assert point.in_place is not None
        assert point.in_place.wrong == result.wrong
    found.check(collective_name(ran.test), ran.ranks)


@pytest.mark.parametrize("write", [text_of, json_of])
@pytest.mark.parametrize("wrong", [7, 3_000_000])
def test_wrong_elements_are_seen_in_every_form(
    write: Callable[[Ran], str], wrong: int, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.write_text(write(Ran("all_reduce", 4, [Result(1 << 24, 50.0, 50.0, wrong)])))
    (point,) = read_measured(str(path)).points
    assert point.in_place is not None
    assert point.in_place.wrong == wrong


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "0: ", "[1,0]<stderr>:"])
def test_what_a_launcher_puts_before_each_line_is_dropped(label: str, tmp_path: Path) -> None:
    path, ran = tmp_path / "run.txt", RANS["float"]
    path.write_text("".join(f"{label}{line}\n" for line in text_of(ran).splitlines()))
    found = read_measured(str(path))
    assert (found.test, found.ranks, len(found.points)) == ("all_reduce", 8, len(RESULTS))


def test_a_program_with_mpi_in_its_name_is_the_same_test(run: Path) -> None:
    assert changed(run, "all_reduce_perf", "all_reduce_perf_mpi").test == "all_reduce"


def test_the_same_test_twice_in_one_file_has_its_ranks_once(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(text_of(RANS["float"]) * 2)
    found = read_measured(str(path))
    assert (found.ranks, len(found.points)) == (8, 2 * len(RESULTS))


def test_each_group_of_split_communicators_has_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    lines = text_of(RANS["float"]).splitlines()
    split = [
        line.replace("Group  0", "Group  1") if line.startswith("#  Rank") and number % 2 else line
        for number, line in enumerate(lines)
    ]
    path.write_text("\n".join(split))
    assert read_measured(str(path)).ranks == 4


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (Ran("all_gather", 8, RESULTS), "results of all_reduce_perf and of all_gather_perf"),
        (Ran("all_reduce", 4, RESULTS), "results of 8 ranks and of 4 ranks"),
    ],
)
def test_one_file_of_several_runs_that_differ_is_refused(
    second: Ran, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.txt"
    path.write_text(text_of(RANS["float"]) + text_of(second))
    with pytest.raises(InputError, match=rf"run.txt:\d+: has {problem}") as caught:
        read_measured(str(path))
    assert "a file of its own" in str(caught.value.fix)


def test_a_time_that_is_no_number_is_no_measurement(tmp_path: Path) -> None:
    path, ran = tmp_path / "run.json", Ran("all_reduce", 8, [Result(4096, 9.81, 9.75)])
    path.write_text(json_of(ran).replace('"time": 9.75', '"time": "nan"'))
    (point,) = read_measured(str(path)).points
    assert point.in_place is None
    assert point.out_of_place is not None
