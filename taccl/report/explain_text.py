"""Where the time of a program goes, in words."""

from collections.abc import Iterator

from taccl.bounds import any_of
from taccl.report.explain import Explanation, Faster
from taccl.units import PS_PER_US, Time, format_size

SHOWN_NAMES = 6
"""Names of edges in the text; the JSON has them all."""


def explanation_text(found: Explanation) -> str:
    """Return an explanation in words, a line each."""
    row = found.row
    who = _one_line(row.file or row.program)
    head = f"{who} at {format_size(row.size)} on {_one_line(row.topology)}"
    if row.time is None:
        return f"{head}: can't run: {_one_line(found.why_not or row.note)}"
    if found.why_not:
        return f"{head}: {_exact(row.time)} us, can't be explained: {_one_line(found.why_not)}"
    first, last, count = found.path
    lines = [f"{head}: {_exact(row.time)} us"]
    if count:
        lines.append(f"  critical path: {count} spans, from {first} to {last}")
    width = max(len(_exact(part.time)) for part in found.parts)
    for part in found.parts:
        share = part.time / row.time if row.time else 0.0
        same = "the same " if part.name == "bandwidth" else ""
        spans = ""
        if part.count and part.name != "launch":
            spans = f"  in {same}{_plural(part.count)}"
        if part.alpha and part.name != "alpha":
            spans += f", {_exact(part.alpha)} us of it alpha"
        time = _exact(part.time).rjust(width)
        lines.append(f"    {part.name:<25}{time} us  {share:6.1%}{spans}")
    lines += _bottleneck_text(found)
    lines += _parameters_text(found, row.time)
    if row.bound is not None:
        gap = "" if row.gap is None else f", gap {row.gap:.1%}"
        lines.append(
            f"  bound for {any_of(row.bound_kind)}: {_exact(row.bound)} us ({row.bound_kind}){gap}"
        )
    if row.note:
        lines.append(f"  note: {_one_line(row.note)}")
    return "\n".join(lines)


def _bottleneck_text(found: Explanation) -> Iterator[str]:
    row = found.row
    if not row.bottleneck or row.time is None or found.faster is None:
        return
    busy = f"busy {row.utilisation or 0:.1%} of the time"
    yield f"  bottleneck: edge {_one_line(row.bottleneck)}, {busy}"
    then = f"edge {_one_line(found.faster.bottleneck)} is busy {found.faster.utilisation:.1%}"
    yield f"  with twice its bandwidth: {_changed(found.faster, row.time)}; then {then} of the time"


def _parameters_text(found: Explanation, time: Time) -> Iterator[str]:
    yield f"  alpha on the critical path: {_names(found.alpha_on)}"
    if found.overhead_on:
        yield f"  overhead on the critical path: {_names(found.overhead_on)}"
    yield f"  beta on the critical path: {_names(found.beta_on)}"
    yield f"  local costs on the critical path: {', '.join(found.local_on) or 'none'}"
    yield f"  used, but off the critical path: {_names(found.off)}"
    if found.off_faster is not None:
        yield f"  with all of those twice as fast: {_changed(found.off_faster, time)}"
    if found.unused:
        yield f"  not used at all: {_names(found.unused)}"


def _changed(faster: Faster, time: Time) -> str:
    change = (faster.time - time) / time if time else 0.0
    return f"{_exact(faster.time)} us ({change:+.1%})"


def _exact(time: Time) -> str:
    """Return microseconds with every picosecond."""
    whole, rest = divmod(time, PS_PER_US)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def _plural(count: int) -> str:
    return "1 span" if count == 1 else f"{count} spans"


def _names(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    shown = ", ".join(_one_line(name) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{len(names)} ({shown}{more})"


def _one_line(text: str) -> str:
    """Return a name from a file so that it can't disturb a terminal."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line)
