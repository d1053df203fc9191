"""Measured times held against the replay, and costs fitted to them."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.truth import DATA, PRIORS
from taccl.apps.measured import (
    Row,
    Run,
    fit,
    ordered_pairs,
    programs_of,
    read_table,
    replayed,
    shipped_tables,
    summed_up,
)
from taccl.errors import InputError
from taccl.msccl.program import Program
from taccl.msccl.xml import write_xml
from taccl.synth.templates.nccl_kernels import KERNELS
from taccl.topology.file import load_topology, shipped_file
from taccl.units import PS_PER_US


def altered(tmp_path: Path, name: str, old: str, new: str) -> str:
    path = tmp_path / "table.yaml"
    shutil.copy(shipped_file(name, "measurements", "table"), path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return str(path)


def run_of(name: str, number: int = 0) -> Run:
    return read_table(name)[1][number]


def test_every_shipped_table_is_read_and_has_a_source_and_times() -> None:
    names = shipped_tables()
    assert "h100-ndv5" in names
    known = 0
    for name in names:
        table, runs = read_table(name)
        assert table.name == name
        assert table.source
        assert runs
        known += sum(bool(run.programs) for run in runs)
    assert known > 10


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("algorithm: ring", "algorithm: star", "should be .ring., .tree."),
        ("{512: 122.1", "{0: 122.1", "should be bytes: microseconds, all above 0"),
        ("{512: 122.1", "{512: -3", "should be bytes: microseconds, all above 0"),
        ("measurements/1", "measurements/2", "measurements/1"),
        ("topology: mi250", "topology: nowhere", "nowhere"),
    ],
)
def test_a_bad_table_is_refused_by_name(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_table(altered(tmp_path, "mi250-rccl", old, new))


def test_the_fastest_program_that_fits_a_size_counts() -> None:
    run = run_of("a100-dgx")
    rows = list(replayed(run, PRIORS["dgx-a100"]))
    assert len(rows) == len(run.record.times)
    for row in rows:
        each = [
            next(
                replayed(
                    replace(run, programs=(one,), columns={}, known={}),
                    PRIORS["dgx-a100"],
                    row.size,
                )
            )
            for one in run.programs
        ]
        assert row.replayed == min(one.replayed for one in each if one.replayed is not None)
    assert rows[-1].program.endswith("Simple")
    assert not rows[0].program.endswith("Simple")


def test_a_part_that_is_no_whole_words_is_copied_byte_by_byte() -> None:
    apart, within = run_of("v100-dgx2", 0), run_of("v100-dgx2", 1)
    whole, costs = 12 * 12 * 16 << 10, PRIORS["dgx2"]
    # Twelve channels each copy a twelfth of a rank's part, which is a twelfth of all.
    copied = 16 * costs.protocols["Simple"].block_beta * whole / 144
    for size, longer in ((whole, 0), (whole + 12 * 4, pytest.approx(float(copied), rel=1e-4))):
        times = []
        for run in (apart, within):
            own = tuple(
                one for one in run.programs
                if isinstance(one, Program) and one.protocol == "Simple"
            )  # fmt: skip
            record = run.record.model_copy(update={"times": {size: 1.0}})
            alone = replace(run, record=record, programs=own, columns={}, known={})
            (row,) = replayed(alone, costs)
            times.append(row.replayed or 0)
        assert times[0] - times[1] == longer, size


def test_a_file_is_replayed_up_to_its_largest_size_as_the_executor_has_it(tmp_path: Path) -> None:
    run = next(run for run in read_table("h100-ndv5")[1] if run.record.algorithm == "files")
    known = KERNELS["ring"](run.topology, run.record.collective, 1, "Simple")
    assert known is not None
    made = replace(known, min_bytes=1 << 20, max_bytes=1 << 25)
    (tmp_path / "ring.xml").write_text(write_xml(made, "executor"), "utf-8")
    record = run.record.model_copy(
        update={"files": ["ring.xml"], "times": {1 << 25: 1.0, 1 << 26: 1}}
    )
    found = programs_of(record, run.topology, tmp_path)
    rows = list(
        replayed(
            replace(run, record=record, programs=found, columns={}, known={}), PRIORS["dgx-h100"]
        )
    )
    assert [row.replayed is not None for row in rows] == [True, False]


def test_order_and_errors_are_counted() -> None:
    one, other = run_of("gb200-nvl4", 0), run_of("gb200-nvl4", 1)
    slow, fast = Row(one, 8, 200, 220, "ring"), Row(other, 8, 100, 90, "tree")
    assert ordered_pairs([slow, fast]) == (1, 1)
    assert ordered_pairs([slow, replace(fast, replayed=300)]) == (0, 1)
    assert ordered_pairs([slow, replace(fast, replayed=None)]) == (0, 0)
    assert ordered_pairs([slow, replace(fast, size=16)]) == (0, 0)
    assert ordered_pairs([replace(slow, measured=99_990), replace(fast, measured=100_000)]) == (
        0,
        0,
    )
    assert summed_up([0.1, -0.3, 0.2]) == {"median": 0.2, "ninth decile": pytest.approx(0.28)}


def test_costs_that_made_the_times_are_found_again() -> None:
    run, prior = run_of("mi250-rccl"), PRIORS["mi250"]
    simple = replace(prior.protocols["Simple"], launch=9 * PS_PER_US, alpha_across=30 * PS_PER_US)
    truth = replace(
        prior, across=prior.across * 3 / 4, protocols={**prior.protocols, "Simple": simple}
    )
    programs = tuple(
        one for one in run.programs if isinstance(one, Program) and one.protocol == "Simple"
    )
    made = replace(run, programs=programs, columns={}, known={})
    times = {row.size: (row.replayed or 0) / PS_PER_US for row in replayed(made, truth)}
    made = replace(made, record=made.record.model_copy(update={"times": times}))
    before = summed_up([row.error for row in replayed(made, prior)])
    found = fit([made], prior)
    after = summed_up([row.error for row in replayed(made, found.costs)])
    assert before["median"] > 0.1
    assert after["ninth decile"] < 0.03
    assert found.rows == len(times)
    assert found.supported
    assert not replace(found, rows=3 * len(found.told) - 1).supported


def test_threadblocks_that_were_thought_half_as_fast_are_found_again() -> None:
    run, truth = run_of("a100-dgx"), PRIORS["dgx-a100"]
    ll = truth.protocols["LL"]
    programs = tuple(
        one for one in run.programs if isinstance(one, Program) and one.protocol == "LL"
    )
    made = replace(run, programs=programs, columns={}, known={})
    sizes = {1 << power: 1.0 for power in range(14, 26, 2)}
    made = replace(made, record=made.record.model_copy(update={"times": sizes}))
    times = {row.size: (row.replayed or 0) / PS_PER_US for row in replayed(made, truth)}
    made = replace(made, record=made.record.model_copy(update={"times": times}))
    slow = replace(ll, block_beta=2 * ll.block_beta)
    prior = replace(truth, protocols={**truth.protocols, "LL": slow})
    assert summed_up([row.error for row in replayed(made, prior)])["ninth decile"] > 0.3
    found = fit([made], prior).costs
    assert summed_up([row.error for row in replayed(made, found)])["ninth decile"] < 0.03
    # Wires are as they were: what was wrong is what was moved.
    assert found.protocols["LL"].wire == pytest.approx(ll.wire, rel=0.1)


def test_what_is_left_to_several_peers_changes_all_pairs_and_no_ring() -> None:
    costs = PRIORS["dgx-h100"]
    for run, most in ((run_of("h100-alltoall"), 1.2), (run_of("h100-ring", 1), 1.0)):
        rows = replayed(run, costs), replayed(run, replace(costs, several=Fraction(3, 4)))
        ratios = [(b.replayed or 0) / (a.replayed or 1) for a, b in zip(*rows, strict=True)]
        assert max(ratios) == pytest.approx(most, abs=0.05)


def errors_of(name: str, what: str = "") -> dict[int, float]:
    """Return the largest error of each size of a table, with the costs that its machine ships."""
    table, runs = read_table(name)
    costs = load_topology(table.costs).measured
    assert costs is not None
    found: dict[int, float] = {}
    for run in runs:
        if run.kind == "mscclpp" and what in run.record.what:
            for row in replayed(run, costs):
                found[row.size] = max(found.get(row.size, 0.0), abs(row.error))
    return found


def test_plans_on_switches_take_what_mscclpp_measured() -> None:
    found = errors_of("h100-nvls")
    large = {size: error for size, error in found.items() if size >= 128 << 10}
    assert len(large) == 14
    assert max(large.values()) < 0.05
    assert max(found.values()) < 0.25


def test_plans_of_packets_and_puts_take_what_mscclpp_measured() -> None:
    rows = (
        ("mscclpp-h100", 0.03, 3), ("mscclpp-a100", 0.03, 4), ("mscclpp-a100-small", 0.02, 6),
        ("h100-alltoall", 0.20, 9), ("mscclpp-mi300x", 0.04, 4),
    )  # fmt: skip
    for name, most, count in rows:
        found = errors_of(name)
        assert len(found) == count, name
        assert max(found.values()) < most, name


def test_sums_in_the_switch_of_a_rack_take_what_nccl_measured() -> None:
    found = errors_of("gb200-nvl72-nvls")
    assert len(found) == 5
    assert max(error for size, error in found.items() if size >= 4 << 30) < 0.02


@pytest.mark.slow
def test_sums_in_switches_of_rails_take_what_nccl_measured() -> None:
    found = errors_of("h100-sharp")
    assert len(found) == 5
    assert max(found.values()) < 0.04


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"the files that were run are not at {DATA}")
@pytest.mark.filterwarnings("ignore:mi250 has no link")
def test_files_of_others_take_what_was_measured() -> None:
    for name, folder, most in (("h100-ndv5", DATA / "ndv5", 0.20), ("mi250-teccl", DATA, 0.30)):
        table, runs = read_table(name, folder)
        costs = load_topology(table.costs).measured
        assert costs is not None
        rows = [
            row for run in runs if run.record.algorithm == "files"
            for row in replayed(run, costs) if row.replayed is not None
        ]  # fmt: skip
        assert len(rows) >= 18, name
        assert max(abs(row.error) for row in rows) < most, name
