"""The table of a library: what it counts, and when the bound forbids what is asked."""

from typing import Any

from benchmarks.tune import COLUMNS, GROWN, counted, table, too_short_at
from taccl.topology.file import load_topology


def collective(*ratios: tuple[float | None, float | None]) -> dict[str, Any]:
    """Return a collective of an index: (time, bound) over the best classical at every size."""
    sizes = [
        {
            "size_bytes": 1024 << place, "file": "algorithms/a.xml", "time_us": 5.0,
            "bound_us": 4.0, "classical": "ring", "classical_us": 6.0,
            "over_classical": time, "bound_over_classical": bound,
        }
        for place, (time, bound) in enumerate(ratios)
    ]  # fmt: skip
    span = {"file": "algorithms/a.xml", "engine": "guided", "chunks": 2}
    return {"collective": "allgather", "ranges": [span], "sizes": sizes}


def test_sizes_at_or_below_the_promise_are_counted() -> None:
    told = counted(collective((0.8, 0.5), (0.81, 0.8), (None, None)), set())
    assert "at 1 of 3 sizes; the bound allows 2." in told


def test_a_bound_that_forbids_half_of_the_sizes_is_told() -> None:
    told = counted(collective((1.0, 0.9), (0.9, 0.85), (0.7, 0.6)), set())
    assert "the bound allows 1: the bound forbids more than half of them." in told


def test_the_table_has_a_row_for_every_size() -> None:
    one = collective((0.8, 0.5), (1.0, None))
    text = table({"collectives": [one], "budget": {"time_limit_s": 600.0}}, set())
    assert "--time-limit 600." in text
    rows = [line for line in text.splitlines() if line.startswith("| allgather")]
    assert len(rows) == 2
    assert all(line.count("|") == len(COLUMNS) + 1 for line in rows)
    assert "| guided | 2 | 5.00 | 4.00 | ring | 6.00 | 0.800 | 0.500 |" in rows[0]
    assert rows[1].endswith("| 1.000 | - |")


def test_what_growth_forbids_is_told_and_does_not_count() -> None:
    one = collective((0.9, 0.5), (0.7, 0.5))
    grown = {("allgather", 1024)}
    assert "at 1 of 2 sizes; the bound allows 1." in counted(one, grown)
    text = table({"collectives": [one], "budget": {"time_limit_s": 600.0}}, grown)
    assert f"| 0.900 | {GROWN} |" in text


def test_growth_is_asked_where_bounds_allow_more_than_is_reached() -> None:
    # 64 KB on two DGX-2 can't take 0.8 x 6.88 us, 1 us is forbidden by other bounds, too.
    topology = load_topology("dgx2", nodes=2)
    one = collective((0.9, 0.5), (0.7, 0.5), (0.9, 0.9), (0.9, 0.5))
    for size, (count, time) in zip(
        one["sizes"],
        ((1 << 16, 6.88), (1 << 16, 1.0), (1 << 16, 1.0), (1 << 16, 60.0)),
        strict=True,
    ):
        size["size_bytes"], size["classical_us"] = count, time
    one["sizes"][3]["size_bytes"] = 1 << 10
    assert too_short_at({"collectives": [one]}, topology) == {("allgather", 1 << 16)}
