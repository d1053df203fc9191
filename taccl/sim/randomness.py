"""Random delays in whole picoseconds, the same on every machine: no floating point is involved."""

from random import Random

from taccl.scenario import Delay
from taccl.units import Time

_BITS = 64


class Stream:
    """Delays that are drawn one after the other.

    Parameters
    ----------
    delay
        What is drawn.
    key
        What the stream is for; equal keys give equal delays.
    """

    def __init__(self, delay: Delay, key: str) -> None:
        self.delay = delay
        self.random = Random(key)

    def draw(self) -> Time:
        """Return the next delay."""
        mean = self.delay.mean
        if self.delay.distribution == "uniform":
            return self.random.randrange(2 * mean + 1)
        return mean * self._exponential() >> _BITS

    def _exponential(self) -> int:
        """Return an exponential number of mean 1 in units of ``2 ** -64``.

        References
        ----------
        J. von Neumann, "Various techniques used in connection with random digits", 1951: the
        first of a falling run of uniform numbers is kept when the run has odd length; every run
        that is not kept adds one.
        """
        whole = 0
        while True:
            first = last = self.random.getrandbits(_BITS)
            length = 1
            while (following := self.random.getrandbits(_BITS)) < last:
                last = following
                length += 1
            if length % 2:
                return (whole << _BITS) + first
            whole += 1
