"""SimGrid, where it is there, takes as long as we say (``python -m benchmarks.simgrid``)."""

import pytest

from benchmarks.simgrid import CASES, CLOSE, module, rows

FEW = (CASES[0], CASES[22], next(case for case in CASES if case[-1] == "LL"))


@pytest.mark.skipif(module() is None, reason="SimGrid is not there (apt install python3-simgrid)")
def test_simgrid_takes_as_long() -> None:
    for case, found in rows(FEW):
        assert not isinstance(found, str), found
        ours, theirs = found
        assert theirs == pytest.approx(ours, rel=CLOSE), case


def test_both_rules_are_judged_on_forty_schedules() -> None:
    assert len(CASES) >= 40
    assert sum(case[-1] == "" for case in CASES) >= 20
