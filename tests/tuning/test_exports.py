"""What is exported gives other tools the tuned times, by the formulas of their own."""

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from taccl.cli.options import TIMES_EXPORT_NAMES
from taccl.collectives import COLLECTIVES, busbw_factor
from taccl.errors import InputError, TacclWarning
from taccl.tuning import executors
from taccl.tuning.exports import CALCULON_OPS, EXPORTS, SIMAI_COLLECTIVES, SIMAI_GROUPS
from tests.cli.runner import Done, taccl

TINY = ("tune", "ring:4", "allgather", "allreduce", "-b", "1K", "-e", "64K", "-f", "4")
RANKS = 4
SIZES = (1024, 65536, 1 << 20)
LATENCY_US = 5.0

Times = Mapping[str, Mapping[int, float | None]]
"""Of each collective, microseconds at every size."""


def index_of(times: Times) -> dict[str, Any]:
    """Return what the exports read of an index."""
    return {
        "topology": {"name": "ring", "ranks": RANKS},
        "runtime": "executor",
        "collectives": [
            {
                "collective": name,
                "sizes": [
                    {"size_bytes": size, "time_us": time, "file": time and f"algorithms/{name}.xml"}
                    for size, time in at.items()
                ],
            }
            for name, at in times.items()
        ],
    }


def alpha_beta(**busbws: float) -> dict[str, dict[int, float | None]]:
    """Return times of one latency and of each collective's own bus bandwidth, in GB/s."""
    return {
        name: {
            size: LATENCY_US + float(busbw_factor(name, RANKS)) * size / (busbw * 1e3)
            for size in SIZES
        }
        for name, busbw in busbws.items()
    }


def as_simai_reads(text: str) -> dict[tuple[str, str], float]:
    """Return bus bandwidths by group and collective, line by line as ``UserParam::parseYaml``."""
    group, found = "", {}
    for line in (line.strip(" ") for line in text.splitlines()[1:]):
        if not line or line.startswith("#"):
            continue
        if line.endswith(":"):
            group = line[:-1]
            continue
        key, _, rest = line.partition(":")
        value = rest.split()[0]
        if value != "null":
            found[group, key.split(",")[0]] = float(value)
    return found


def simai_us(busbw: float, name: str, size: int) -> float:
    """Return what ``Layer::compute_time`` returns, in microseconds: its GB is 2^30 bytes."""
    crossed = (2 if name == "allreduce" else 1) * (RANKS - 1) / RANKS
    return size / 2**30 / busbw * 1e9 * crossed / 1e3


def calculon_us(entry: Mapping[str, Any], op: str, size: int) -> float:
    """Return what ``Network.time`` returns, in microseconds, after what ``__init__`` asserts."""
    assert set(entry) == {
        "bandwidth", "efficiency", "size", "latency", "ops", "must_be_filled", "processor_usage"
    }  # fmt: skip
    assert set(entry["ops"]) == {"p2p", "reduce_scatter", "all_gather", "all_reduce"}
    assert entry["bandwidth"] > 0
    assert 0 < entry["efficiency"] <= 1
    assert entry["size"] >= 0
    assert 0 <= entry["processor_usage"] < 1
    assert all(scalar > 0 for scalar, _ in entry["ops"].values())
    assert [op for op, (_, offset) in entry["ops"].items() if offset is None] == ["p2p"]
    scalar, offset = entry["ops"][op]
    scaled = size * scalar
    scaled += scaled / entry["size"] * offset
    return float(entry["latency"] + scaled / (entry["bandwidth"] * 1e9 * entry["efficiency"])) * 1e6


def tuned(
    place: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, *more: str
) -> Done:
    """Tune a ring, in this process."""
    patch.setattr(executors, "Processes", lambda _workers: executors.here())
    return taccl(capsys, patch, *TINY, "--candidates", "1", "-q", "-o", str(place), *more)


def test_simai_gets_the_tuned_time_of_the_largest_size() -> None:
    times = alpha_beta(allgather=20.0, allreduce=15.0)
    times["allgather"][1 << 22] = None  # left to NCCL
    text = EXPORTS["simai-busbw"].write(index_of(times))
    found = as_simai_reads(text)
    assert set(found) == {(group, name) for group in SIMAI_GROUPS for name in times}
    for (_, name), busbw in found.items():
        size = SIZES[-1]
        assert simai_us(busbw, name, size) == pytest.approx(times[name][size], rel=1e-5)
    assert re.search(rf"#\s+allgather at {SIZES[-1]} bytes", text)


def test_simais_file_is_yaml_with_its_keys_too() -> None:
    text = EXPORTS["simai-busbw"].write(index_of(alpha_beta(alltoall=9.0)))
    groups = yaml.safe_load(text)
    assert list(groups) == [*SIMAI_GROUPS, "PP"]
    assert groups["PP"] == {"busbw": None}
    for group in SIMAI_GROUPS:
        assert list(groups[group]) == [f"{name}," for name in SIMAI_COLLECTIVES]
        assert [name for name, value in groups[group].items() if value] == ["alltoall,"]


def test_a_name_can_not_leave_its_comment() -> None:
    index = index_of(alpha_beta(allreduce=1.0))
    index["topology"]["name"] = "a\nTP:\n  allreduce,: 9"
    assert set(yaml.safe_load(EXPORTS["simai-busbw"].write(index))) == {*SIMAI_GROUPS, "PP"}


def test_calculons_formula_gives_times_of_one_latency_exactly() -> None:
    times = alpha_beta(allgather=20.0, allreduce=15.0, reducescatter=10.0)
    entry = json.loads(EXPORTS["calculon"].write(index_of(times)))
    assert entry["size"] == RANKS
    assert entry["bandwidth"] == pytest.approx(20.0)
    assert entry["latency"] == pytest.approx(LATENCY_US / 1e6)
    for name, at in times.items():
        for size, time in at.items():
            assert calculon_us(entry, CALCULON_OPS[name][0], size) == pytest.approx(time)


def test_what_is_not_tuned_has_the_bus_bandwidth_of_what_is_for_calculon() -> None:
    entry = json.loads(EXPORTS["calculon"].write(index_of(alpha_beta(allreduce=15.0))))
    expected = alpha_beta(allgather=15.0, allreduce=15.0, reducescatter=15.0)
    for name, at in expected.items():
        for size, time in at.items():
            assert calculon_us(entry, CALCULON_OPS[name][0], size) == pytest.approx(time)


@pytest.mark.parametrize(
    "times",
    [
        {"allgather": {1024: 5.0}, "allreduce": {1024: 10.0}},
        {"allgather": {1024: 5.0, 4096: 5.0, 16384: 5.0}},
        {"allgather": {1024: 1.0}, "allreduce": {1024: 50.0, 4096: 50.1}},
    ],
    ids=["one size", "all alike", "a latency above a time"],
)
@pytest.mark.filterwarnings("ignore:calculon:taccl.errors.TacclWarning")
def test_calculon_accepts_the_entry_of_odd_times(times: Times) -> None:
    entry = json.loads(EXPORTS["calculon"].write(index_of(times)))
    assert entry["latency"] >= 0
    for name in times:
        assert calculon_us(entry, CALCULON_OPS[name][0], 1024) > 0


UNEQUAL: Times = {
    "allgather": {1024: 4.0, 65536: 6.0, 1 << 20: 70.0},
    "allreduce": {1024: 9.0, 65536: 12.0, 1 << 20: 130.0},
}
"""No latency is right for both."""


def errors(entry: Mapping[str, Any], times: Times) -> list[float]:
    """Return how far off Calculon's formula is at every size, as shares of the times."""
    return [
        calculon_us(entry, CALCULON_OPS[name][0], size) / time - 1
        for name, at in times.items() for size, time in at.items() if time
    ]  # fmt: skip


def test_how_far_off_calculons_formula_is_is_told() -> None:
    with pytest.warns(TacclWarning) as told:
        entry = json.loads(EXPORTS["calculon"].write(index_of(UNEQUAL)))
    off = max(map(abs, errors(entry, UNEQUAL)))
    assert f"up to {off:.0%} off" in str(told[0].message)


@pytest.mark.parametrize("factor", [0.99, 1.01])
@pytest.mark.parametrize("what", ["latency", "bandwidth", "all_gather", "all_reduce"])
@pytest.mark.filterwarnings("ignore:calculon:taccl.errors.TacclWarning")
def test_no_other_numbers_are_nearer_to_the_times(what: str, factor: float) -> None:
    entry = json.loads(EXPORTS["calculon"].write(index_of(UNEQUAL)))
    before = sum(error**2 for error in errors(entry, UNEQUAL))
    if what in entry:
        entry[what] *= factor
    else:
        entry["ops"][what][0] *= factor
    assert sum(error**2 for error in errors(entry, UNEQUAL)) > before


def test_nothing_to_fit_is_an_error_with_its_fix() -> None:
    with pytest.raises(InputError, match="--keep-all"):
        EXPORTS["calculon"].write(index_of({"allreduce": {1024: None}}))


def test_rows_without_a_program_have_no_time() -> None:
    text = EXPORTS["csv"].write(index_of({"alltoall": {1024: 2.0, 4096: None}}))
    assert text.splitlines() == [
        "collective,size_bytes,time_us,algbw_gbps,busbw_gbps,program",
        "alltoall,1024,2.0,0.512,0.384,algorithms/alltoall.xml",
        "alltoall,4096,,,,",
    ]


@pytest.mark.parametrize("plans", [False, True], ids=["xml", "plans"])
@pytest.mark.filterwarnings("always::taccl.errors.TacclWarning")
def test_exports_lie_in_the_directory_and_hold_the_librarys_times(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    plans: bool,
) -> None:
    place = tmp_path / "lib"
    asked = [word for kind in EXPORTS for word in ("--export", kind)]
    more = ("--runtime", "mscclpp") if plans else ()
    done = tuned(place, capsys, monkeypatch, *more, *asked)
    assert done.status == 0, done.err
    index = json.loads((place / "index.json").read_text())
    times = {
        (one["collective"], at["size_bytes"]): (at["time_us"], at["file"])
        for one in index["collectives"] for at in one["sizes"]
    }  # fmt: skip
    with (place / "tuned_times.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {
        (row["collective"], int(row["size_bytes"])):
            (float(row["time_us"]) if row["time_us"] else None, row["program"] or None)
        for row in rows
    } == times  # fmt: skip
    for row in (row for row in rows if row["time_us"]):
        algbw = int(row["size_bytes"]) / float(row["time_us"]) / 1e3
        assert float(row["algbw_gbps"]) == pytest.approx(algbw)
        factor = float(busbw_factor(row["collective"], RANKS))
        assert float(row["busbw_gbps"]) == pytest.approx(algbw * factor)
    simai = as_simai_reads((place / "simai_busbw.yaml").read_text())
    for name in ("allgather", "allreduce"):
        time, _ = times[name, 65536]
        assert simai_us(simai["TP", name], name, 65536) == pytest.approx(time, rel=1e-5)
    calculon = json.loads((place / "calculon_network.json").read_text())
    off = max(
        abs(calculon_us(calculon, CALCULON_OPS[name][0], size) / time - 1)
        for (name, size), (time, _) in times.items() if time is not None
    )  # fmt: skip
    # On four ranks in a ring both take two rounds of 1 KiB: Calculon's one latency is enough.
    assert off < 0.01
    assert "off the tuned times" not in done.err
    for export in EXPORTS.values():
        assert export.file in done.out
    # The same command without them is instant, and leaves what it would have written.
    assert tuned(place, capsys, monkeypatch, *more).status == 0
    left = {path.name for path in place.iterdir()}
    assert left.isdisjoint(export.file for export in EXPORTS.values())


def test_an_unknown_export_is_refused_with_all_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tuned(tmp_path / "lib", capsys, monkeypatch, "--export", "csv", "--export", "calculo")
    assert done.status == 2
    assert f"--export: should be one of {TIMES_EXPORT_NAMES}" in done.err
    assert "did you mean calculon?" in done.err
    assert not (tmp_path / "lib").exists()


def test_an_export_that_has_no_place_for_what_is_tuned_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = taccl(
        capsys, monkeypatch, "tune", "ring:4", "alltoall", "--candidates", "1", "-q",
        "-o", str(tmp_path / "lib"), "--export", "calculon",
    )  # fmt: skip
    assert (done.status, "calculon has no place for alltoall" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_every_export_knows_collectives_and_has_a_file_of_its_own() -> None:
    assert len({export.file for export in EXPORTS.values()}) == len(EXPORTS)
    for export in EXPORTS.values():
        assert set(export.collectives) <= set(COLLECTIVES)
