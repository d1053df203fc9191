"""A topology is calibrated from its own replay, and what was changed is found again."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from taccl.apps.calibration import (
    BETWEEN,
    FITTED,
    INSIDE,
    NOT_TOLD,
    TOLD,
    TOLD_IF,
    Calibration,
    Costs,
    EdgeCosts,
    Question,
    calibrate,
    calibration_json,
    calibration_text,
    classes_of,
    costly,
    costly_document,
    rate_text,
    time_text,
)
from taccl.apps.inputs import asked_collective
from taccl.apps.programs import Target, textbook_program
from taccl.errors import InputError
from taccl.files import read_document
from taccl.msccl.program import Program
from taccl.msccl.xml import write_xml
from taccl.replay.cost import model_of
from taccl.replay.sweep import sweep
from taccl.report.tables import write_nccl_tests
from taccl.topology.file import document_text, load_topology, shipped_file, topology_from_document
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import MAX_SIZE, parse_beta, parse_time
from tests.imports.nccl_tests_output import Ran, Result, json_of, text_of
from tests.sweep import for_each

SIZES = [4096 * 5**i for i in range(6)]
MIDDLE = SIZES[3]
US = 1_000_000


def ring_program(topology: Topology, collective: str = "allreduce") -> Program:
    made = asked_collective(collective, topology)
    target = Target("executor", min_bytes=1, max_bytes=MAX_SIZE)
    return textbook_program(topology, made, "ring", MIDDLE, target)


def measure(
    path: Path, truth: Topology, program: Program, sizes: Sequence[int] = SIZES, noise: float = 0
) -> str:
    """Write what nccl-tests would print on a machine that behaves as the replay, with noise."""
    rng = random.Random(f"noise {path.name}")
    rows = sweep([("", program)], truth, sizes, model_of("executor"))
    rows = tuple(
        replace(row, time=round((row.time or 0) * (1 + rng.uniform(-noise, noise)))) for row in rows
    )
    path.write_text(write_nccl_tests(rows))
    return str(path)


def changed(topology: Topology, local: LocalCosts | None = None, **edges: EdgeCosts) -> Topology:
    names = {"inside": INSIDE, "between": BETWEEN}
    costs = Costs(local or topology.local, {names[name]: edges[name] for name in edges})
    return costly(topology, classes_of(topology), costs)


def told(found: Calibration) -> dict[str, str]:
    return {each.unknown.name: each.determined for each in found.fitted}


def values(found: Calibration) -> dict[str, float]:
    return {each.unknown.name: each.value for each in found.fitted}


@for_each("alpha, beta", [("8/5", "7/10"), ("1/2", "9/4")], quick=1)
def test_what_a_machine_costs_is_recovered_from_noisy_times(
    alpha: str, beta: str, tmp_path: Path
) -> None:
    given = load_topology("ring:8")
    truth = changed(given, inside=EdgeCosts(Fraction(alpha), Fraction(beta)))
    run = measure(tmp_path / "run.txt", truth, ring_program(given), noise=0.01)
    found = calibrate(Question("ring:8", (run,), collective="allreduce"))
    assert abs(values(found)["alpha inside servers"] / Fraction(alpha) - 1) < 0.03
    assert abs(values(found)["bandwidth inside servers"] / Fraction(beta) - 1) < 0.03
    assert values(found)["launch"] == 0
    assert found.error(after=True) < 0.01 < 0.3 < found.error(after=False)
    # In a ring every step costs alpha and beta, launch or sums may be hidden in them.
    assert told(found) == {
        "alpha inside servers": TOLD_IF, "bandwidth inside servers": TOLD_IF,
        "launch": NOT_TOLD, "copy": NOT_TOLD, "reduce": NOT_TOLD,
    }  # fmt: skip


def test_between_servers_is_recovered_where_it_is_what_counts(tmp_path: Path) -> None:
    given = load_topology("dgx-a100", nodes=2)
    factors = EdgeCosts(Fraction(5, 3), Fraction(4, 3))
    truth = changed(given, between=factors)
    run = measure(tmp_path / "run.txt", truth, ring_program(given), SIZES[:5], noise=0.01)
    found = calibrate(Question("dgx-a100", (run,), nodes=2, collective="allreduce"))
    assert abs(values(found)["alpha between servers"] / factors.alpha - 1) < 0.03
    assert abs(values(found)["bandwidth between servers"] / factors.beta - 1) < 0.03
    assert told(found)["bandwidth inside servers"] == NOT_TOLD
    assert values(found)["bandwidth inside servers"] == 1


def test_a_topology_that_is_right_stays_as_it_is(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    run = measure(tmp_path / "run.txt", given, ring_program(given))
    found = calibrate(Question("ring:4", (run,), collective="allreduce"))
    assert found.error(after=True) < 1e-3
    assert all(abs(value - 1) < 2e-3 or value == 0 for value in values(found).values())


def test_launch_is_recovered_where_edges_are_known(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    truth = changed(given, LocalCosts(launch=9 * US))
    run = measure(tmp_path / "run.txt", truth, ring_program(given), noise=0.01)
    found = calibrate(Question("ring:4", (run,), collective="allreduce", fitted=("launch",)))
    assert abs(found.after.local.launch / (9 * US) - 1) < 0.03
    assert told(found) == {"launch": TOLD}
    assert found.after.edges == given.edges


def run_of(
    path: Path, test: str, truth: Topology, program: Program, *, dtype: str = "float"
) -> str:
    """Write the whole output of a run, text or JSON, with times within a part in a hundred."""
    rng = random.Random(f"noise {path.name}")
    sizes = [4 * 8 * 4**power for power in range(3, 13)]
    rows = sweep([("", program)], truth, sizes, model_of("executor"))
    times = [(row.time or 0) / 1e6 for row in rows]
    results = [
        Result(size, time * rng.uniform(1, 1.05), time * rng.uniform(0.99, 1.01))
        for size, time in zip(sizes, times, strict=True)
    ]
    ran = Ran(test, truth.num_ranks, results, dtype=dtype)
    path.write_text(json_of(ran) if path.suffix == ".json" else text_of(ran))
    return str(path)


@for_each("suffix, dtype", [("txt", "half"), ("json", "float")], quick=1)
def test_runs_of_two_collectives_tell_launch_and_sums_from_the_edges(
    suffix: str, dtype: str, tmp_path: Path
) -> None:
    # An all-reduce has twice the steps of an all-gather, and adds in half of them.
    given = load_topology("ring:8")
    costs = LocalCosts(launch=9 * US, reduce_beta=Fraction(5))
    truth = changed(given, costs, inside=EdgeCosts(Fraction(8, 5), Fraction(7, 10)))
    runs = tuple(
        run_of(tmp_path / f"{test}.{suffix}", test, truth, ring_program(given, name), dtype=dtype)
        for test, name in (("all_reduce", "allreduce"), ("all_gather", "allgather"))
    )
    found = calibrate(Question("ring:8", runs))
    assert [part.collective for part in found.parts] == ["allreduce", "allgather"]
    assert abs(values(found)["alpha inside servers"] / 1.6 - 1) < 0.05
    assert abs(values(found)["bandwidth inside servers"] / 0.7 - 1) < 0.05
    assert abs(found.after.local.launch / (9 * US) - 1) < 0.05
    assert abs(found.after.local.reduce_beta / 5 - 1) < 0.2
    assert told(found)["launch"] == TOLD
    assert found.error(after=True) < 0.012 < 0.3 < found.error(after=False)
    assert all(part.program.name in found.text for part in found.parts)
    rows = calibration_json(found, None)["rows"]
    assert isinstance(rows, list)
    assert {row["collective"] for row in rows} == {"allreduce", "allgather"}
    assert max(abs(row["after_error"]) for row in rows) < 0.03
    assert calibration_text(found, None).count(" on ring-8, 8 ranks, replayed as ") == 2


def test_a_file_that_does_not_say_its_collective_is_of_that_of_the_others(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    program = ring_program(given)
    named = run_of(tmp_path / "named.txt", "all_reduce", given, program)
    unnamed = measure(tmp_path / "unnamed.txt", given, program)
    found = calibrate(Question("ring:4", (named, unnamed)))
    assert [part.collective for part in found.parts] == ["allreduce"]
    assert {sample.file for sample in found.samples} == {named, unnamed}
    other = run_of(tmp_path / "other.txt", "all_gather", given, ring_program(given, "allgather"))
    with pytest.raises(InputError, match=r"unnamed.txt: .*does not say which collective") as caught:
        calibrate(Question("ring:4", (named, other, unnamed)))
    assert caught.value.fix


def test_a_program_is_of_one_collective(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    path = tmp_path / "p.xml"
    path.write_text(write_xml(ring_program(given)))
    runs = tuple(
        run_of(tmp_path / f"{test}.txt", test, given, ring_program(given, name))
        for test, name in (("all_reduce", "allreduce"), ("all_gather", "allgather"))
    )
    with pytest.raises(InputError, match="coll: should be allgather as measured, got allreduce"):
        calibrate(Question("ring:4", runs, program=str(path)))


def test_a_test_of_no_collective_is_refused(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    path = Path(run_of(tmp_path / "run.txt", "all_gather", given, ring_program(given, "allgather")))
    path.write_text(path.read_text().replace("all_gather_perf", "sendrecv_perf"))
    with pytest.raises(InputError, match="sendrecv") as caught:
        calibrate(Question("ring:4", (str(path),)))
    assert caught.value.fix


def test_of_local_work_that_looks_alike_the_one_that_matters_more_is_fitted(tmp_path: Path) -> None:
    # At every step of a ring a chunk is added, at the last one copied: both grow with the size.
    given = load_topology("ring:4")
    truth = changed(given, LocalCosts(reduce_beta=Fraction(10)))
    run = measure(tmp_path / "run.txt", truth, ring_program(given))
    found = calibrate(Question("ring:4", (run,), collective="allreduce", fitted=("local",)))
    assert found.after.local.copy_beta == given.local.copy_beta
    assert abs(found.after.local.reduce_beta / 10 - 1) < 0.01
    assert told(found) == {"copy": NOT_TOLD, "reduce": TOLD_IF}


def test_edges_without_alpha_are_given_one(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text(
        "taccl: topology/1\nname: bare\nnode:\n  gpus: 4\n"
        "  switches: [{name: nvs, bandwidth: 100GB/s}]\n"
    )
    given = load_topology(str(path))
    truth = changed(given, inside=EdgeCosts(added=2 * US))
    run = measure(tmp_path / "run.txt", truth, ring_program(given))
    found = calibrate(Question(str(path), (run,), collective="allreduce"))
    assert abs(int(found.after.links.alpha[0]) / (2 * US) - 1) < 0.03


def test_the_columns_are_told_apart_and_several_files_count(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    program = ring_program(given)
    text = Path(measure(tmp_path / "a.txt", given, program, SIZES[:2])).read_text()
    other = measure(tmp_path / "b.txt", given, program, SIZES[2:])
    lines = [f"{line[:-32]}{'  N/A' * 4}" for line in text.split("\n") if line[:1] == " "]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    question = Question("ring:4", (str(tmp_path / "a.txt"), other), collective="allreduce")
    found = calibrate(question)
    assert {sample.file for sample in found.samples} == {other}
    assert found.left_out == tuple(f"{size} bytes: not measured" for size in SIZES[:2])


# --- files -------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "dgx-a100": {}, "ndv2": {}, "dgx2": {},
    "rail": {"fabric": {"kind": "rail", "alpha": "2us", "spine": {"bandwidth": "9GB/s"}}},
    "leaf-spine": {"fabric": {"kind": "leaf-spine", "alpha": "1us", "overhead": "0.3us",
                              "leaves": 2, "uplink": "40GB/s"}},
    "torus": {"fabric": {"kind": "torus", "dims": [2], "alpha": "1us"}},
    "bare": {"fabric": {"kind": "switch"}, "nics": [{"name": "ib0", "gpus": "all",
             "bandwidth": "20GB/s", "pcie": {"bandwidth": "30GB/s"}}]},
    "bare-torus": {"fabric": {"kind": "torus", "dims": [2]}},
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "taccl": "topology/1", "name": "plain", "count": 2,
    "node": {"gpus": 2, "wires": [{"from": 0, "to": 1, "bandwidth": "25GB/s", "alpha": "0.7us"}],
             "nics": [{"name": "ib0", "gpus": "all", "bandwidth": "20GB/s"}]},
}  # fmt: skip


def form(name: str) -> dict[str, Any]:
    """Return a topology file of two servers."""
    fields = FORMS[name]
    if not fields:
        value = read_document(shipped_file(name, "topologies", "topology")).value
        assert isinstance(value, dict)
        return {**value, "count": 2}
    node = {**PLAIN["node"], **{key: fields[key] for key in fields if key == "nics"}}
    return {**PLAIN, "node": node, "fabric": fields["fabric"]}


@for_each("name", FORMS)
def test_a_file_with_other_costs_means_the_topology_with_other_costs(name: str) -> None:
    document = form(name)
    given = topology_from_document(document)
    costs = Costs(
        LocalCosts(Fraction(1, 2), Fraction(1, 4), 3 * US),
        {INSIDE: EdgeCosts(Fraction(3, 2), Fraction(5, 4)),
         BETWEEN: EdgeCosts(Fraction(2, 3), Fraction(3, 4), 2 * US)},
    )  # fmt: skip
    before = document_text(document)
    made = costly_document(document, given, costs, "other")
    assert made.keys() >= {"node", "count", "fabric"}
    assert document_text(document) == before
    found, expected = topology_from_document(made), costly(given, classes_of(given), replace(
        costs, edges={INSIDE: costs.of(INSIDE), BETWEEN: replace(
            costs.of(BETWEEN), added=2 * US if name.startswith("bare") else 0)}
    ))  # fmt: skip
    assert found.name == "other"
    assert found.local == costs.local
    for one, other in zip(found.edges, expected.edges, strict=True):
        assert abs(one.alpha - other.alpha) <= 1, one.name
        assert (one.overhead is None) == (other.overhead is None)
        assert abs((one.overhead or 0) - (other.overhead or 0)) <= 1, one.name
        assert (one.beta is None) == (other.beta is None), one.name
        ratio = Fraction(one.beta or 1) / (other.beta or 1)
        assert abs(ratio - 1) < 1e-5, one.name


def test_a_shape_becomes_a_graph(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    run = measure(tmp_path / "run.txt", given, ring_program(given))
    found = calibrate(Question("ring:4", (run,), collective="allreduce"))
    (tmp_path / "c.yaml").write_text(found.text)
    again = load_topology(str(tmp_path / "c.yaml"))
    assert again.edges == found.after.edges
    assert again.name == f"{given.name}-calibrated"
    assert found.text.startswith("# ring-4, calibrated by taccl from run.txt: 6 sizes in place,\n")


def test_what_is_not_fitted_keeps_its_text() -> None:
    document = form("ndv2")
    given = topology_from_document(document)
    made = costly_document(
        document, given, Costs(given.local, {INSIDE: EdgeCosts(beta=Fraction(2))}), "n"
    )
    text = document_text(made)
    assert "bandwidth: 106us/MB" in text
    assert "fabric: {kind: switch, alpha: 1.7us}" in text
    assert "bandwidth: 21.7391GB/s, alpha: 0.7us" in text


@pytest.mark.parametrize("time", [0, 1, 700_000, 12 * US, 12_345_678])
def test_times_are_written_exactly(time: int) -> None:
    assert parse_time(time_text(time)) == time


@pytest.mark.parametrize("beta", [Fraction(40), Fraction(46), Fraction(1, 900), Fraction(10**9)])
def test_rates_are_written_to_six_digits(beta: Fraction) -> None:
    assert abs(parse_beta(rate_text(beta)) / beta - 1) < 1e-5


# --- what is refused ---------------------------------------------------------------------------


def test_what_can_not_be_calibrated_is_refused(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    program = ring_program(given)
    run = measure(tmp_path / "run.txt", given, program)
    short = measure(tmp_path / "short.txt", given, program, SIZES[:2])
    xml = tmp_path / "p.xml"
    xml.write_text(write_xml(replace(program, min_bytes=SIZES[3], max_bytes=SIZES[4])))
    other = tmp_path / "other.xml"
    other.write_text(write_xml(ring_program(given, "allgather")))
    allreduce = Question("ring:4", (run,), collective="allreduce")
    cases = {
        "does not say which collective": replace(allreduce, collective=None),
        "redop is sum, so it is no run of allgather": replace(allreduce, collective="allgather"),
        "busbw .* is not 1.75 x algbw": replace(allreduce, topology="ring:8"),
        "short.txt: has 2 sizes measured in place": replace(allreduce, measured=(short,)),
        r"has 2 sizes .* serves \(4096 bytes: \S+ is for 512000 to": replace(
            allreduce, program=str(xml)
        ),
        "coll: should be allreduce as measured, got allgather": replace(
            allreduce, program=str(other)
        ),
        "there is no|unknown algorithm": replace(allreduce, algorithm="bubble-sort"),
        "there is no such file": replace(allreduce, measured=(str(tmp_path / "none.txt"),)),
    }
    for problem, question in cases.items():
        with pytest.raises(InputError, match=problem) as caught:
            calibrate(question)
        assert caught.value.fix


def test_the_other_column_is_pointed_out_and_taken(tmp_path: Path) -> None:
    given = load_topology("full:4")
    made = asked_collective("alltoall", given)
    target = Target("executor", min_bytes=1, max_bytes=MAX_SIZE)
    program = textbook_program(given, made, "all-pairs", MIDDLE, target)
    run = measure(tmp_path / "run.txt", given, program)
    question = Question("full:4", (run,), collective="alltoall", algorithm="all-pairs")
    with pytest.raises(InputError, match="0 sizes measured in place") as caught:
        calibrate(question)
    assert caught.value.fix == "add --out-of-place: there is nothing in place"
    assert len(calibrate(replace(question, out_of_place=True)).samples) == len(SIZES)


def test_wrong_results_are_left_out(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    run = Path(measure(tmp_path / "run.txt", given, ring_program(given)))
    lines = run.read_text().replace("N/A\n", "0\n").split("\n")
    lines[4] = lines[4][:-1] + "3"
    run.write_text("\n".join(lines))
    found = calibrate(Question("ring:4", (str(run),), collective="allreduce"))
    assert found.left_out == ("20480 bytes: 3 elements were wrong",)


def test_the_report_tells_every_size_and_unknown(tmp_path: Path) -> None:
    given = load_topology("ring:4")
    truth = changed(given, inside=EdgeCosts(Fraction(2), Fraction(2)))
    run = measure(tmp_path / "run.txt", truth, ring_program(given))
    found = calibrate(Question("ring:4", (run,), collective="allreduce"))
    text, report = calibration_text(found, "o.yaml"), calibration_json(found, "o.yaml")
    assert text.count("\n") == 2 + len(SIZES) + len(found.fitted) + 1
    assert "alpha inside servers      0.7 us -> 1.4" in text
    rows = report["rows"]
    assert isinstance(rows, list)
    assert [row["size_bytes"] for row in rows] == SIZES
    assert {each.unknown.kind for each in found.fitted} == set(FITTED)
