"""The comparisons with published times: what their tables say, and when a row misses its target."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rerun, teccl
from benchmarks.published import Ours, Row, cells_of, records, selected, size_of, solve
from taccl.apps import Request, Synthesis
from taccl.errors import NoScheduleError

DATA = Path(__file__).parents[2] / "shared" / "data"
RERUN_HEAD = "topology,chassis,collective,output_size,algbw_GBps,time_us,solver_s\n"
PUBLISHED_HEAD = "topology,chassis,collective,mode,output_size,finish_us,algbw_GBps\n"
REPLAY_HEAD = "topology\tchassis\tmode\tsize\tchunk_bytes\treplay_us\n"

needs_data = pytest.mark.skipif(
    not (DATA / "targets").is_dir(), reason="TE-CCL's tables are not part of the package"
)


def tables(folder: Path, **texts: str) -> Path:
    """Write tables as ``targets`` of a data folder, and return the folder."""
    (folder / "targets").mkdir()
    for name, text in texts.items():
        (folder / "targets" / name.replace("__", ".")).write_text(text)
    return folder


def pair_of(row: Row, makespan: int | None, bound: int = 0) -> tuple[Row, Ours]:
    return row, Ours(makespan, bound, 1.0)


def test_a_rerun_row_keeps_its_size_and_its_time_in_picoseconds(tmp_path: Path) -> None:
    text = f"{RERUN_HEAD}NDv2,2,AlltoAll,1KB,0.0272,36.8,27.66\nDGX2,2,AllGather,16MB,failed,,1\n"
    done, failed = rerun.rows(tables(tmp_path, taccl_by_teccl_authors__csv=text))
    assert done == Row("NDv2_2chassis", "alltoall", "1KB", 1000, 36_800_000)
    assert failed == Row("DGX2_2chassis", "allgather", "16MB", 16_000_000, None)


def test_shares_of_the_bound_start_at_their_sizes() -> None:
    row = Row("m", "allgather", "", 4_000_000, None)
    sizes = (4_000_000, 16_000_000, 64_000_000)
    wanted = [rerun.wanted_share(replace(row, size=size)) for size in sizes]
    assert wanted == [0.0, 0.85, 0.95]
    other = replace(row, collective="alltoall")
    assert [rerun.wanted_share(replace(other, size=size)) for size in sizes] == [0.0, 0.99, 0.99]


def test_a_rerun_row_is_missed_above_theirs_but_not_where_the_bound_is_above_theirs() -> None:
    row = Row("m", "allgather", "1KB", 1000, 100)
    assert list(rerun.misses(*pair_of(row, 100, bound=90))) == []
    assert list(rerun.misses(*pair_of(row, 101, bound=100))) == ["slower than theirs"]
    assert list(rerun.misses(*pair_of(row, 150, bound=101))) == []
    assert rerun.verdict(*pair_of(row, 150, bound=101)) == "unattainable"
    assert rerun.verdict(row, Ours(None, 1, 2.0, problem="no way")) == "MISSED: nothing: no way"
    assert rerun.verdict(row, Ours(100, 1, 60.0)) == "MISSED: 60 s"


def test_a_rerun_row_is_missed_below_its_share_of_the_bound() -> None:
    row = Row("m", "alltoall", "16MB", 16_000_000, None)
    assert list(rerun.misses(*pair_of(row, 100, bound=99))) == []
    assert list(rerun.misses(*pair_of(row, 1000, bound=989))) == ["below 99% of the bound"]


def test_a_teccl_row_moves_algbw_times_finish_and_is_compared_with_its_replay(
    tmp_path: Path,
) -> None:
    published = (
        f"{PUBLISHED_HEAD}DGX2,2,AllGather,Fast_Early_Stop,1KB,4.012,0.4985\n"
        "DGX2,2,AlltoAll,Fast,1KB,4.06,0.2463\nNDv2,2,AllGather,Fast,1KB,4.137,0.2417\n"
    )
    replayed = f"{REPLAY_HEAD}DGX2\t2\tFast_Early_Stop\t1KB\t62.5\t4.01\n"
    data = tables(tmp_path, teccl_published__csv=published, teccl_replay__tsv=replayed)
    gather, exchange = teccl.rows(data)
    assert (gather.size, gather.theirs, gather.mode) == (2000, 4_010_000, "Fast_Early_Stop")
    assert (exchange.size, exchange.theirs) == (1000, 4_060_000)


@pytest.mark.parametrize(
    ("algbw", "chunk", "told"),
    [("0.3739", "62.5", "moves 1500"), ("0.2493", "62.5", "chunks of 62.5 bytes")],
    ids=["no whole multiple of its label", "chunks of another size"],
)
def test_tables_that_do_not_fit_are_refused(
    tmp_path: Path, algbw: str, chunk: str, told: str
) -> None:
    published = f"{PUBLISHED_HEAD}DGX2,2,AllGather,Fast,1KB,4.012,{algbw}\n"
    replayed = f"{REPLAY_HEAD}DGX2\t2\tFast\t1KB\t{chunk}\t4.01\n"
    data = tables(tmp_path, teccl_published__csv=published, teccl_replay__tsv=replayed)
    with pytest.raises(ValueError, match=told):
        teccl.rows(data)


def test_one_teccl_row_in_ten_may_be_between_the_two_limits() -> None:
    row = Row("m", "allgather", "1KB", 1000, 1000)
    rows = [replace(row, mode=str(number)) for number in range(10)]
    near = dict(pair_of(row, 1010) for row in rows)
    assert list(teccl.misses(near)) == []
    assert list(teccl.misses({**near, rows[0]: Ours(1050, 0, 1.0)})) == []
    far = {**near, rows[0]: Ours(1051, 0, 1.0), rows[1]: Ours(None, 0, 1.0)}
    assert list(teccl.misses(far)) == [
        "allgather: 8 of 10 rows within 1.01 x",
        "allgather: 2 of 10 rows above 1.05 x",
    ]


@needs_data
def test_the_tables_have_the_rows_that_are_compared() -> None:
    taccls, schedules = rerun.rows(DATA), teccl.rows(DATA)
    assert (len(taccls), sum(row.theirs is None for row in taccls)) == (66, 4)
    assert (len(schedules), len(selected(schedules, "DGX2.*alltoall"))) == (88, 22)
    assert {row.size for row in selected(schedules, "Early_Stop") if "DGX2" in row.machine} == {
        2 * size_of(row.label) for row in selected(schedules, "DGX2.*allgather.*Slow")
    }


@needs_data
def test_the_size_of_every_rerun_row_is_its_algbw_times_its_time() -> None:
    for record, row in zip(records(DATA / "targets" / rerun.TABLE), rerun.rows(DATA), strict=True):
        if row.theirs is not None:
            moved = float(record["algbw_GBps"]) * row.theirs / 1000
            assert moved == pytest.approx(row.size, rel=0.015), row.name


def two_gpus(folder: Path) -> Path:
    """Write two GPUs, 10 GB/s and 1 us each way, as ``topologies`` of a data folder."""
    edges = [
        {"src": a, "dst": 1 - a, "bandwidth_GBps": 10, "alpha_us": 1} for a in range(2)
    ]  # fmt: skip
    graph = {"nodes": [{"id": 0, "type": "gpu"}, {"id": 1, "type": "gpu"}], "edges": edges}
    (folder / "topologies").mkdir()
    (folder / "topologies" / "two.json").write_text(json.dumps({**graph, "notes": "ignored"}))
    return folder


def test_a_row_is_solved_verified_written_and_shown(tmp_path: Path) -> None:
    row = Row("two", "allgather", "2KB", 2000, 1_200_000)
    ours = solve(two_gpus(tmp_path), row, "occupy", "portable", 2.0)
    # One message of 1000 bytes each way: 1 us and 0.1 us.
    assert (ours.makespan, ours.bound, ours.replay, ours.share) == (
        1_100_000, 1_100_000, 1_100_000, 1.0,
    )  # fmt: skip
    assert cells_of(row, ours, "").startswith(
        "| two | allgather | 2KB |  | 1.200 | 1.100 | 1.100 | 0.917 | 1.000 | 1.100 |"
    )


def test_a_program_of_less_than_one_element_a_chunk_is_made_for_one(tmp_path: Path) -> None:
    row = Row("two", "allgather", "4B", 4, 1_200_000)
    ours = solve(two_gpus(tmp_path), row, "occupy", "portable", 2.0)
    # 2 and 4 bytes at 10 GB/s.
    assert (ours.makespan, ours.replay) == (1_000_200, 1_000_400)


def test_a_row_without_a_schedule_is_a_miss_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: Request) -> Synthesis:
        raise NoScheduleError(f"no {request.collective} in time", fix="wait")

    monkeypatch.setattr("benchmarks.published.synthesize", refuse)
    row = Row("two", "allgather", "2KB", 2000, 1_200_000)
    ours = solve(two_gpus(tmp_path), row, "occupy", "portable", 2.0)
    assert (ours.makespan, ours.bound) == (None, 1_100_000)
    assert "nothing: no allgather in time" in rerun.verdict(row, ours)
