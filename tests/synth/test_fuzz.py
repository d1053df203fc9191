"""bound <= exact optimum <= every engine, on random small problems (benchmarks/fuzz.py)."""

from benchmarks.fuzz import check, draw_servers
from taccl.model.problem import Options
from tests.sweep import for_each

COUNTED = Options(time_limit=3.0, deterministic=True, workers=1)

SEEDS = [*range(1, 5), 6, 7, *range(10, 14), 15, 16, *range(18, 22), *range(23, 37)]
"""Those that close within a second; ``python -m benchmarks.fuzz`` has no such choice."""


SERVER_SEEDS = [*range(2, 7), 8, 9, 10, *range(12, 17), 18, 19, 20]


@for_each("seed", SERVER_SEEDS, quick=4)
def test_nor_is_it_so_on_servers(seed: int) -> None:
    assert check(seed, COUNTED, draw_servers).wrong == ()


@for_each("seed", SEEDS, quick=6, parts=2)
def test_no_bound_is_above_the_exact_optimum_and_no_engine_below(seed: int) -> None:
    found = check(seed, COUNTED)
    assert found.wrong == ()
    assert found.proved
