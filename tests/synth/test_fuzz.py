"""bound <= exact optimum <= every engine, on random small problems (benchmarks/fuzz.py)."""

import pytest

from benchmarks.fuzz import check
from taccl.synth.problem import Options

COUNTED = Options(time_limit=3.0, deterministic=True, workers=1)

SEEDS = [*range(1, 5), 6, 7, *range(10, 14), 15, 16, *range(18, 22), *range(23, 37)]
"""Those that close within a second; ``python -m benchmarks.fuzz`` has no such choice."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_the_exact_optimum_and_no_engine_below(seed: int) -> None:
    found = check(seed, COUNTED)
    assert found.wrong == ()
    assert found.proved
