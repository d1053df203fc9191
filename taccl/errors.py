"""Every error a user can cause or fix, with the exit status the command line gives it.

The text form has always the same parts: where, what was found, and on a second line the fix::

    error: topologies/ndv2.yaml:14: edges[3].bandwidth: should be greater than 0, got -23GB/s
      fix: give a bandwidth or a beta above 0, such as 21.7GB/s or 46us/MB
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return the beginning of a fix, empty where none of ``names`` is close to ``text``.

    It ends with a space: ``"did you mean ring? "``.
    """
    close = get_close_matches(text.strip().lower()[:60], list(names), 1)
    return f"did you mean {close[0]}? " if close else ""


class TacclWarning(UserWarning):
    """Something the user should know that does not make the result wrong."""


class TacclError(Exception):
    """The parent of all errors that are the user's to fix; anything else is a bug.

    `problem`: what is wrong, lower case, with the value that was found.
    `file`, `line`, `field`: where; each part is left out when unknown. ``field`` is a path such as
    ``edges[3].alpha``.
    `fix`: what to do about it, or None when nothing can be said.
    """

    exit_status: ClassVar[int] = 2

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix
        self.file, self.line, self.field = file, line, field

    def where(self) -> str:
        """Return ``file:line: field``, as far as known."""
        place = self.file or ""
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        return ": ".join(part for part in (place, self.field) if part)

    def __str__(self) -> str:
        """Return ``where: problem`` and, on a second line, the fix."""
        place = self.where()
        text = f"{place}: {self.problem}" if place else self.problem
        return f"{text}\n  fix: {self.fix}" if self.fix else text


class InputError(TacclError):
    """A file, field or option holds something that can't be used."""


class NoScheduleError(TacclError):
    """No schedule: none exists (exit status 3) or none was found in time (exit status 4)."""

    exit_status = 3


class NoAlgorithmError(NoScheduleError):
    """An algorithm does not exist for a collective, a chunk count, or the links that there are."""


class OutOfTimeError(NoScheduleError):
    """The time limit passed before any schedule was found."""

    exit_status = 4


class ScheduleError(TacclError):
    """A schedule or a program breaks the rules of its collective; the first five findings."""

    exit_status = 1

    def __init__(self, subject: str, findings: Sequence[object]) -> None:
        shown = "".join(f"\n  {finding}" for finding in findings[:5])
        more = f"\n  and {len(findings) - 5} more" if len(findings) > 5 else ""
        super().__init__(f"{subject} is wrong:{shown}{more}")
        self.findings = tuple(findings)


class LoweringError(TacclError):
    """A limit of the runtime is exceeded: which, the value, what is allowed, what helps."""


class ProgramError(TacclError):
    """A program file can't be read, or does not fit the machine."""


class SolverUnavailableError(TacclError):
    """A solver package can't be imported: which, the original cause, what to install."""


class RunError(TacclError):
    """A program that ran did not come to its end: a rank is gone, or all wait for one another."""

    exit_status = 1
