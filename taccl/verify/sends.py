"""All sends of a schedule in columns, with what several rules need to know of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.schedule import Schedule
from taccl.topology import LogicalTopology

Finding = tuple[int | None, str]
"""A row of the expanded schedule (None: no one send) and what is wrong with it."""

MAX_FINDINGS = 100
"""How many findings one rule reports: nobody reads a million."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sends:
    """The expanded schedule under judgement.

    Parameters
    ----------
    full
        The schedule with the sends of all orbits.
    logical
        What the sketch allows, or None.
    """

    full: Schedule
    logical: LogicalTopology | None

    @cached_property
    def src(self) -> NDArray[np.int32]:
        """The rank every send leaves."""
        return self.full.topology.links.src[self.full.link]

    @cached_property
    def dst(self) -> NDArray[np.int32]:
        """The rank every send enters."""
        return self.full.topology.links.dst[self.full.link]

    @cached_property
    def message(self) -> NDArray[np.int64]:
        """The message of every send, numbered by ascending batch."""
        return np.unique(self.full.batch, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The first row of every message."""
        return np.unique(self.full.batch, return_index=True)[1].astype(np.int64)

    @cached_property
    def carried(self) -> NDArray[np.int64]:
        """How many chunks every message carries."""
        return np.bincount(self.message, minlength=len(self.first)).astype(np.int64)

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Row s, column r: whether the collective's rank set s holds rank r."""
        collective = self.full.collective
        table = np.zeros((len(collective.rank_sets), collective.num_ranks), dtype=np.bool_)
        for row, ranks in zip(table, collective.rank_sets, strict=True):
            row[list(ranks)] = True
        return table

    def is_source(self, rank: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Tell for every send whether a rank, one a send, holds its chunk before."""
        return self.members[self.full.collective.source_set[self.full.chunk], rank]

    @cached_property
    def sent_key(self) -> Int64:
        """One number for the (chunk, source rank) of every send."""
        return self.full.chunk.astype(np.int64) * self.full.topology.num_ranks + self.src

    @cached_property
    def arrivals(self) -> tuple[Int64, Int64]:
        """The (chunk, rank) keys of all arrivals, ascending and then by time, and their rows."""
        key = self.full.chunk.astype(np.int64) * self.full.topology.num_ranks + self.dst
        row = np.lexsort((self.full.end, key))
        return key[row], row

    @cached_property
    def feeder(self) -> Int64:
        """The row of the first arrival of every send's chunk at the send's source; -1: none."""
        keys, rows = self.arrivals
        if not len(keys):
            return np.zeros(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(keys, self.sent_key), len(keys) - 1)
        return np.where(keys[at] == self.sent_key, rows[at], -1)

    @cached_property
    def fed(self) -> NDArray[np.bool_]:
        """Whether something of a send's chunk has arrived at its source when it starts."""
        ended = self.full.end[self.feeder] <= self.full.start
        return np.asarray((self.feeder >= 0) & ended, dtype=np.bool_)

    def name(self, row: int) -> str:
        """Return how explanations call a send: chunk, link and time."""
        full = self.full
        return (
            f"chunk {full.chunk[row]} on link {full.link[row]}"
            f" ({self.src[row]} -> {self.dst[row]}) at {microseconds_text(int(full.start[row]))}"
        )

    def findings(self, wrong: NDArray[np.bool_], why: str) -> Iterator[Finding]:
        """Yield a finding for every send where ``wrong`` is true, up to the cap."""
        for row in np.flatnonzero(wrong)[:MAX_FINDINGS].tolist():
            yield row, f"{self.name(row)} {why}"


def microseconds_text(time: int) -> str:
    """Return a time in microseconds with every digit it has."""
    sign, whole, rest = "-" if time < 0 else "", *divmod(abs(time), 1_000_000)
    return f"{sign}{whole}.{rest:06d}".rstrip("0").rstrip(".") + " us"
