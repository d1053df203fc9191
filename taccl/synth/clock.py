"""How much time an engine has left."""

import time
from dataclasses import dataclass

from taccl.model.problem import Options


@dataclass(frozen=True)
class Clock:
    """When the engine must be done."""

    deadline: float
    options: Options

    @property
    def left(self) -> float:
        """Seconds left; 0 once the user interrupts.

        Where work is counted instead of time, a fixed part of the limit: no clock may decide.
        """
        if self.options.stop.is_set():
            return 0.0
        if self.options.deterministic:
            return max(0.5, self.options.time_limit / 12)
        return max(0.0, self.deadline - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether to give up what is under way: where work is counted, only if the user says so."""
        if self.options.stop.is_set():
            return True
        return not self.options.deterministic and time.monotonic() >= self.deadline

    def share(self, part: float) -> "Clock":
        """Return a clock with a part of the time left."""
        return Clock(time.monotonic() + part * self.left, self.options)
