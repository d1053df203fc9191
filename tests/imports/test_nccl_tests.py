"""Output of nccl-tests is read as it is printed, and nothing else is."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.imports.nccl_tests import Measured, read_measured

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


@pytest.mark.parametrize(
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
@settings(max_examples=60, deadline=None)
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
    ],
)
def test_a_line_of_something_else_is_skipped(line: str, run: Path) -> None:
    assert len(changed(run, "# Out of", f"{line}\n# Out of").points) == 3


def test_a_time_of_nothing_is_no_measurement(run: Path) -> None:
    found = changed(run, "34.90", " 0.00")
    assert found.points[0].in_place is None
