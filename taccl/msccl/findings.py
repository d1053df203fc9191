"""What the judges of programs report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a program.

    Parameters
    ----------
    rule
        The rule that is broken: a key of ``limits.RULES`` or a word of the interpreter.
    explanation
        What was found, with values, lower case.
    gpu, threadblock, step
        Where; None when the finding has no such place.
    fix
        What to do about it; None when nothing can be said.
    """

    rule: str
    explanation: str
    gpu: int | None = None
    threadblock: int | None = None
    step: int | None = None
    fix: str | None = None

    def __str__(self) -> str:
        """Return ``rule: gpu G, threadblock T, step S: explanation (fix)``."""
        places = (("gpu", self.gpu), ("threadblock", self.threadblock), ("step", self.step))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        text = ": ".join(part for part in (self.rule, where, self.explanation) if part)
        return f"{text} (fix: {self.fix})" if self.fix else text
