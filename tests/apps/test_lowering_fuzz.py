"""Programs of random schedules are written, read back, verified and within every limit."""

from benchmarks.lowering_fuzz import COLLECTIVES, REFUSED, RUNTIMES, check, draw
from tests.sweep import for_each


@for_each("seed", range(40), quick=16)
def test_random_schedules_become_right_programs(seed: int) -> None:
    collective, runtime = COLLECTIVES[seed % 4], RUNTIMES[seed // 4 % 3]
    assert check(draw(seed, collective, runtime)) in ([], [REFUSED])
