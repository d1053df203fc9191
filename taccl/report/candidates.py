"""What was compared in a search: for ``--json``, and the best of each engine for people."""

from collections.abc import Sequence

from taccl.synth.problem import Candidate
from taccl.units import counted, format_time, microseconds

SHOWN = 12
"""Engines that are shown, at most."""

LONGEST_REASON = 60


def candidate_rows(candidates: Sequence[Candidate]) -> list[dict[str, object]]:
    """Return what ``--json`` says of each candidate."""
    return [
        {
            "engine": one.engine,
            "chunks_per_rank": one.chunks,
            "makespan_us": None if one.makespan is None else microseconds(one.makespan),
            "score_us": None if one.score is None else microseconds(one.score),
            "reason": one.reason,
        }
        for one in candidates
    ]


def best_of_engines(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best candidate of every engine, the fastest first, those without a time last."""
    best: dict[str, Candidate] = {}
    for one in candidates:
        known = best.get(one.engine)
        if known is None or _place(one) < _place(known):
            best[one.engine] = one
    return sorted(best.values(), key=_place)


def _place(one: Candidate) -> tuple[bool, int]:
    return one.score is None, one.score or 0


def candidate_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return the best of every engine as lines; none where there is only one engine."""
    best = best_of_engines([one for one in candidates if one.makespan is not None])
    if len(best) < 2:
        return []
    shown, more = best[:SHOWN], len(best) - SHOWN
    width = max(len(one.engine) for one in shown)
    lines = [
        f"{one.engine:<{width}}  {counted(one.chunks, 'chunk'):<9}  {_words(one, shown[0])}"
        for one in shown
    ]
    return [*lines, f"and {more} more"] if more > 0 else lines


def _words(one: Candidate, best: Candidate) -> str:
    if one.score is None:
        reason = one.reason or "not replayed"
        cut = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
        return f"{'-':>10}          {cut}"
    ratio = f"{one.score / best.score:>5.2f} x" if best.score else ""
    return f"{format_time(one.score):>10}  {ratio}".rstrip()
