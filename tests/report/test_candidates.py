"""What a search compared, for ``--json`` and for people."""

from taccl.model.problem import Candidate
from taccl.report.tables import best_of_engines, candidate_lines, candidate_rows

RING = Candidate("ring", 1, 40_000_000, 42_000_000)
FASTER = Candidate("ring", 2, 30_000_000, 31_000_000)
GUIDED = Candidate("guided", 1, 20_000_000, 20_000_000)
REFUSED = Candidate("taccl", 1, 25_000_000, None, "needs 281 steps, and 256 are allowed")
MISSING = Candidate("flow", 1, None, None, "flow does not exist for allgather")


def test_every_candidate_has_its_times_or_the_reason_why_it_has_none() -> None:
    assert candidate_rows([FASTER, REFUSED, MISSING]) == [
        {"engine": "ring", "chunks_per_rank": 2, "makespan_us": 30.0, "score_us": 31.0,
         "reason": None},
        {"engine": "taccl", "chunks_per_rank": 1, "makespan_us": 25.0, "score_us": None,
         "reason": "needs 281 steps, and 256 are allowed"},
        {"engine": "flow", "chunks_per_rank": 1, "makespan_us": None, "score_us": None,
         "reason": "flow does not exist for allgather"},
    ]  # fmt: skip


def test_each_engine_is_shown_once_by_its_best_the_fastest_first() -> None:
    assert best_of_engines([RING, REFUSED, FASTER, GUIDED]) == [GUIDED, FASTER, REFUSED]


def test_lines_give_times_ratios_and_reasons() -> None:
    assert candidate_lines([RING, REFUSED, FASTER, GUIDED, MISSING]) == [
        "guided  1 chunk         20 us   1.00 x",
        "ring    2 chunks        31 us   1.55 x",
        "taccl   1 chunk             -          needs 281 steps, and 256 are allowed",
    ]


def test_one_engine_alone_needs_no_table() -> None:
    assert candidate_lines([RING, FASTER]) == []


def test_only_the_best_dozen_is_shown() -> None:
    many = [Candidate(f"engine {n:02}", 1, n + 1, n + 1) for n in range(15)]
    lines = candidate_lines(many)
    assert len(lines) == 13
    assert lines[-1] == "and 3 more"
