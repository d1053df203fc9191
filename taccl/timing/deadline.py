"""The moment when something must be done, kept even by code that never looks at a clock.

Engines look at the clock themselves and end in time as a rule. What does not (a model that is
written down, a file that is judged, a pass in Python over millions of sends) is ended by an
interval timer, whose signal handler raises :class:`TimeUp` in the main thread between two
bytecodes. A solver or a compiled loop returns first, so these have limits of their own. An import
ends first, too, and so does the loading of compiled loops: what comes later needs them whole.

Deadlines are nested: an inner one ends its own part only. Outside the main thread, and where there
is no interval timer (Windows), only those who look at the clock keep them.

No other module asks the clock. Where work is counted instead of time, a deadline never comes, and
what is left of it is a constant: whoever asks makes it a number of rounds or nodes.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

AGAIN = 0.25
"""Seconds after which a signal that something swallowed is sent again."""

ATOMIC = (
    "<frozen importlib.", "/numba/", "/llvmlite/", "/threading.py", "/weakref.py", "/_weakrefset.py"
)  # fmt: skip
"""Parts of file names of code that is broken for good when it is ended half-way: imports, what
loads machine code, who waits for a thread and is between giving its lock up and having it, and
callbacks of weak references, which would print the error and go on."""

WAIT, MOST_WAIT = 0.02, 5.0
"""Seconds between two looks whether such code is over, and by which it may miss a deadline."""


@dataclass(eq=False)
class Deadline:
    """A moment that may be moved, and an event that is set when it has come.

    By ``time.monotonic``, in seconds, are its `end` (infinite: never), when it `began`, and the
    `latest` that the end can be moved to: the user is in a hurry. Where work is `counted`, it
    stands for so many seconds, and no clock may decide; None: the clock does. `stop` is set when
    the user interrupts: nothing is left from then on; `passed` when the timer rang, before
    :class:`TimeUp` is raised. After `patience` seconds only success is a reason to go on.
    """

    end: float = math.inf
    counted: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    patience: float = math.inf
    # Looked up when it is called: a clock that stands in for it is asked here, too.
    began: float = field(default_factory=lambda: time.monotonic())
    latest: float = math.inf
    passed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def after(cls, seconds: float, *, spent: float = 0.0) -> "Deadline":
        """Return the deadline `seconds` from now, of which some were `spent` before."""
        now = time.monotonic()
        return cls(now - spent + seconds, began=now - spent)

    @property
    def spent(self) -> float:
        """Seconds since it began, by the clock."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds left, at least 0; of counted work all of it, until the user interrupts."""
        if self.stop.is_set():
            return 0.0
        if self.counted is not None:
            return self.counted
        return max(0.0, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether it has come, or the user interrupts."""
        if self.stop.is_set():
            return True
        return self.counted is None and time.monotonic() >= self.end

    def share(self, part: float) -> "Deadline":
        """Return the deadline of a part of what is left; counted work is not shared out."""
        return self.within(part * self.left, part * self.patience)

    def turns(self, count: int) -> Iterator["Deadline"]:
        """Yield the deadlines of a `count` of searches in turn: what one leaves, others have."""
        for number in range(count):
            yield self.within(self.left / (count - number), self.patience / count)

    def within(self, seconds: float, patience: float = math.inf) -> "Deadline":
        """Return the deadline `seconds` from now, or its own end if that is sooner.

        Of counted work nothing is taken. The new one has the given `patience`, in seconds.
        """
        now = time.monotonic()
        end = min(self.end, now + seconds)
        return Deadline(end, self.counted, self.stop, patience, now)

    def overdue(self, seconds: float) -> bool:
        """Tell whether it came longer ago than so many seconds, by the clock."""
        return self.counted is None and time.monotonic() > self.end + seconds

    def move(self, end: float) -> None:
        """Set another end, by ``time.monotonic``; a timer that runs for it is set, too."""
        self.end = min(end, self.latest)
        if self in _KEPT:
            _set_timer()


def nanoseconds() -> int:
    """Return the clock that all processes of a machine share, for what is measured."""
    return time.monotonic_ns()


class Either(threading.Event):
    """An event that is set when it or one of some `others` was set."""

    def __init__(self, *others: threading.Event) -> None:
        super().__init__()
        self._others = others

    def is_set(self) -> bool:
        """Tell whether one of them is set."""
        return super().is_set() or any(other.is_set() for other in self._others)


class TimeUp(BaseException):
    """A deadline has come. No Exception: whoever answers errors with a next try must not see it."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__("time is up")
        self.deadline = deadline


_KEPT: list[Deadline] = []
"""The deadlines that the timer runs for, from the outside in."""


@contextmanager
def kept(deadline: Deadline) -> Iterator[Deadline]:
    """Raise :class:`TimeUp` inside when a `deadline` comes; who catches it calls :func:`forget`.

    The deadline may be moved meanwhile.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield deadline
        return
    before = signal.signal(signal.SIGALRM, _ring)
    _KEPT.append(deadline)
    try:
        _set_timer()
        yield deadline
    finally:
        forget(deadline)
        signal.signal(signal.SIGALRM, before)


def forget(deadline: Deadline) -> None:
    """End the timer of a deadline, and of those inside it, if it still runs.

    The timer may ring in the moment in which :func:`kept` ends, so that it does not come to that.
    """
    if deadline in _KEPT:
        del _KEPT[_KEPT.index(deadline) :]
        _set_timer()


def hurry(seconds: float) -> None:
    """Let every deadline that is kept come in at most so many seconds from now."""
    soon = time.monotonic() + seconds
    for deadline in _KEPT:
        deadline.latest = min(deadline.latest, soon)
        deadline.end = min(deadline.end, soon)
    if _KEPT:
        _set_timer()


def _set_timer() -> None:
    first = min((deadline.end for deadline in _KEPT), default=math.inf)
    seconds = 0.0 if first == math.inf else max(0.001, first - time.monotonic())
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN if seconds else 0.0)


def _ring(_number: int, frame: FrameType | None) -> None:
    # From the outside in: who ends more goes first.
    now = time.monotonic()
    late = next((deadline for deadline in _KEPT if now >= deadline.end), None)
    if late is None:
        return
    late.passed.set()
    # A frame, or one that called it, of code that must not be ended half-way.
    while frame and not any(part in frame.f_code.co_filename for part in ATOMIC):
        frame = frame.f_back
    if frame and now < late.end + MOST_WAIT:
        signal.setitimer(signal.ITIMER_REAL, WAIT, AGAIN)
        return
    raise TimeUp(late)
