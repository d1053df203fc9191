"""The sentence at the top of a page: how fast, how far from the bound, and beside NCCL."""

from collections.abc import Callable, Sequence

from taccl.bounds import any_of
from taccl.sim.sweep import Row
from taccl.units import Time, format_size, format_time

NcclTime = Callable[[str, int], Time | None]
"""From a collective and a size in bytes to what NCCL's model expects, in picoseconds."""


def verdict(rows: Sequence[Row], nccl: NcclTime) -> str:
    """Return what is to be said of programs at the size that is shown in detail.

    Parameters
    ----------
    rows
        The result of each program, at least one.
    nccl
        NCCL's own time model.
    """
    runs = [(row.time, row) for row in rows if row.time is not None]
    if not runs:
        who = "It can't run" if len(rows) == 1 else f"None of the {len(rows)} can run"
        return f"{who}: {'; '.join(dict.fromkeys(row.note for row in rows))}."
    time, best = min(runs, key=lambda each: each[0])
    who = f"{best.file or best.program}, the fastest of {len(rows)}: " if len(rows) > 1 else ""
    rate = "" if best.algbw is None else f" ({best.algbw:.4g} GB/s algbw)"
    expected = nccl(best.collective, best.size)
    parts = [
        f"{who}{best.collective} of {format_size(best.size)} takes {format_time(time)}{rate}",
        _beside_bound(best),
        "" if expected is None else _beside_nccl(best.bound, expected),
    ]
    if best.bottleneck and best.utilisation is not None:
        parts.append(
            f"the busiest edge, {best.bottleneck}, is busy {best.utilisation:.0%} of the time"
        )
    return "; ".join(part for part in parts if part) + "."


def _beside_bound(row: Row) -> str:
    if row.bound is None or row.gap is None:
        return "no lower bound is known"
    who = any_of(row.bound_kind).removeprefix("any ")
    told = f"the {format_time(row.bound)} that no {who} beats ({row.bound_kind} bound)"
    return f"that is {row.gap:.1%} above {told}" if row.gap > 0 else f"optimal: it meets {told}"


def _beside_nccl(bound: Time | None, expected: Time) -> str:
    """Return NCCL's time; below the bound its inputs can't be those of the machine."""
    told = f"NCCL's own model, launch of the kernel included, expects {format_time(expected)}"
    if bound is not None and expected < bound:
        return f"{told}, less than the bound, so its inputs do not fit this topology"
    return told
