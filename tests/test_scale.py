"""The benchmark of thousands of ranks: its commands, its table, and how seconds grow."""

import pytest

from benchmarks import scale
from benchmarks.scale import command_of, exponent, growth, page, run


def test_a_row_is_one_command_with_chunks_of_one_size() -> None:
    for machine, (ranks, collectives) in scale.MACHINES.items():
        for collective in collectives:
            command = command_of(machine, collective)
            assert command[command.index("--size") + 1] == f"{64 * ranks}MB"
            assert ("--nodes" in command) == (" x " in machine)


def test_the_exponent_is_that_of_a_power() -> None:
    assert exponent([(256, 1.0), (1024, 8.0)]) == pytest.approx(1.5)
    assert exponent([(10, 1.0), (100, 10.0), (1000, 100.0)]) == pytest.approx(1.0)
    assert exponent([(10, 3.0), (10, 4.0)]) == 0.0


def test_a_row_is_run_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "MACHINES", {"ring:4": (4, ("allgather",))})
    row = run("ring:4", "allgather")
    assert (row["sends"], row["gap_fixed"], row["makespan_us"]) == (12, 0.0, 2561.4)
    table = page({("ring:4", "allgather"): row})
    assert "| ring:4 | 4 | allgather | 12 | 2.56 | 0.00% |" in table
    assert growth({("ring:4", "allgather"): row}) == []
    with pytest.raises(RuntimeError, match="ended with 2"):
        run("ring:4", "nonsense")
