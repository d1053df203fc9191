"""What the judges of programs report."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a finding is."""

    REJECTED = "rejected"
    """The runtime's parser refuses the file."""

    BREAKS = "breaks"
    """The runtime takes the file and then hangs, crashes, or gives wrong data."""

    NEVER = "never"
    """The runtime takes the file, and no call ever selects it."""

    WARNING = "warning"
    """Worth knowing; the file works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a program.

    Parameters
    ----------
    rule
        The rule that is broken: a key of ``limits.RULES``, a word of the readers or of the
        interpreter.
    explanation
        What was found, with values, lower case.
    gpu, threadblock, step
        Where; None when the finding has no such place.
    fix
        What to do about it; None when nothing can be said.
    severity
        What the runtime makes of it.
    line, column
        Where in the file, from 1, columns in bytes; None when unknown.
    """

    rule: str
    explanation: str
    gpu: int | None = None
    threadblock: int | None = None
    step: int | None = None
    fix: str | None = None
    severity: Severity = Severity.BREAKS
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``rule: gpu G, threadblock T, step S: explanation (fix)``."""
        places = (("gpu", self.gpu), ("threadblock", self.threadblock), ("step", self.step))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        text = ": ".join(part for part in (self.rule, where, self.explanation) if part)
        return f"{text} (fix: {self.fix})" if self.fix else text


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are more than a warning: what makes a file wrong."""
    return [finding for finding in findings if finding.severity is not Severity.WARNING]
