"""How ``taccl tune`` says where it is: by candidate, as all commands do, or as JSON."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from taccl.cli.progress import progress as lines
from taccl.units import format_size, microseconds

if TYPE_CHECKING:
    from taccl.tuning.run import Progress


@contextmanager
def shown(
    *, quiet: bool, as_json: bool, verbose: bool = False
) -> Iterator[Callable[["Progress"], None]]:
    """Give what shows progress on stderr; ``verbose``: of every candidate, known or in vain."""
    if quiet:
        yield lambda _progress: None
    elif as_json:
        yield _as_json
    else:
        with lines(verbose=verbose) as say:
            every = verbose or sys.stderr.isatty()
            yield lambda told: say(_line(told)) if every or _is_news(told) else None


def _as_json(progress: "Progress") -> None:
    outcome = progress.outcome
    if outcome is not None:
        sizes, bounds = progress.picker.plan.sizes, progress.picker.plan.bounds
        facts = {
            "done": progress.done,
            "total": progress.total,
            "running": progress.running,
            "seconds": round(progress.spent, 1),
            "left_seconds": None if progress.left is None else round(progress.left, 1),
            "known": progress.known,
            "collective": outcome.spec.collective,
            "candidate": outcome.spec.told(),
            "size_bytes": outcome.spec.size,
            "programs": len(outcome.played),
            "reason": outcome.reason,
            "best": [
                {
                    "collective": name,
                    "size_bytes": sizes[place],
                    "time_us": microseconds(time),
                    "bound_us": microseconds(bound) if (bound := bounds[name][place]) else None,
                }
                for (name, place), time in sorted(progress.picker.best.items())
            ],
        }
        typer.echo(json.dumps(facts), err=True)


def _is_news(progress: "Progress") -> bool:
    """Tell whether a line that stays is worth it: not of each that was known, or was in vain."""
    if progress.outcome is None or (progress.known and progress.done % 50):
        return False
    return bool(progress.outcome.played or progress.outcome.failed)


def _line(progress: "Progress") -> str:
    count = f"{progress.done}/{progress.total}" if progress.total else str(progress.done)
    left = "" if progress.left is None else f", {progress.left:.0f} s left"
    found = progress.outcome
    told = ""
    if found is not None:
        what = found.reason if not found.played else _best(progress)
        told = (
            f": {found.spec.collective} {format_size(found.spec.size)} {found.spec.told()}: {what}"
        )
    return f"{count} candidates{left}{told}"


def _best(progress: "Progress") -> str:
    """Return the best time at the size of the last candidate, beside its bound."""
    found = progress.outcome
    if found is None:
        return ""
    place = progress.picker.plan.sizes.index(found.spec.size)
    time = progress.picker.best.get((found.spec.collective, place))
    bound = progress.picker.plan.bounds[found.spec.collective][place]
    own = min((t for one in found.played if (t := one.times[place]) is not None), default=None)
    told = "-" if own is None else f"{microseconds(own):.6g} us"
    if time:
        told += f", best {microseconds(time):.6g}"
    return told + (f", bound {microseconds(bound):.6g}" if bound else "")
