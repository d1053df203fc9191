"""What a suggestion looks at in a machine: servers, how fast links are, what NICs they share."""

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.files import plain_text_is_safe
from taccl.sketch.restrict import Mask, fewest_hops, joined_ranks
from taccl.topology import Topology
from taccl.units import Time, ceil_time

WIDTH = 100
"""Letters in a line."""

NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One part of a sketch.

    Parameters
    ----------
    why
        The reason, with numbers of the machine; becomes a comment above it.
    lines
        YAML; empty: the part is left out, and the comment says why.
    """

    why: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Machine:
    """A topology and what is to be done on it.

    Parameters
    ----------
    topology
        The network.
    collective
        One chunk for each rank (and pair).
    size
        Bytes of the buffer that nccl-tests counts.
    """

    topology: Topology
    collective: Collective
    size: int
    _known: dict[bytes, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @cached_property
    def servers(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every server; a rank's place there is its local number."""
        found: dict[int, list[int]] = defaultdict(list)
        for rank, server in enumerate(self.topology.server_of):
            found[server].append(rank)
        return tuple(tuple(found[server]) for server in sorted(found))

    @cached_property
    def local(self) -> NDArray[np.int64]:
        """The local number of every rank."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for ranks in self.servers:
            number[list(ranks)] = np.arange(len(ranks))
        return number

    @cached_property
    def server(self) -> NDArray[np.int64]:
        """The server of every rank, counted from 0 in their order."""
        number = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for at, ranks in enumerate(self.servers):
            number[list(ranks)] = at
        return number

    @cached_property
    def across(self) -> Mask:
        """Whether each link joins two servers."""
        table = self.topology.links
        return np.asarray(self.server[table.src] != self.server[table.dst])

    @cached_property
    def betas(self) -> tuple[Fraction, ...]:
        """The different betas of edges, fastest first; 0 is free."""
        return tuple(sorted({edge.beta or Fraction(0) for edge in self.topology.edges}))

    @cached_property
    def edge_class(self) -> NDArray[np.int64]:
        """The position in ``betas`` of every edge."""
        at = {beta: number for number, beta in enumerate(self.betas)}
        return np.array(
            [at[edge.beta or Fraction(0)] for edge in self.topology.edges], dtype=np.int64
        )

    @cached_property
    def link_class(self) -> NDArray[np.int64]:
        """The position in ``betas`` of the slowest edge of every link."""
        table = self.topology.links
        if not len(table):
            return np.zeros(0, dtype=np.int64)
        return np.maximum.reduceat(self.edge_class[table.edge_ids], table.edge_start[:-1])

    def beta(self, link: int) -> Fraction:
        """Return the beta of the slowest edge of a link, in ps for each byte."""
        return self.betas[int(self.link_class[link])]

    def chunk_time(self, link: int) -> Time:
        """Return what the bytes of a chunk take on a link, in picoseconds."""
        return ceil_time(self.beta(link), self.chunk_size)

    @property
    def chunk_size(self) -> Fraction:
        """Bytes of a chunk when each rank (and pair) has one."""
        return Fraction(self.size, self.collective.chunks_in_size)

    @cached_property
    def point_to_point(self) -> bool:
        """Whether every chunk goes from one rank to one other."""
        sets = self.collective.rank_sets
        ends = {*self.collective.source_set.tolist(), *self.collective.target_set.tolist()}
        return all(len(sets[number]) == 1 for number in ends)

    def hops(self, allowed: Mask) -> NDArray[np.int64]:
        """Return the fewest hops over some links from every rank to every other.

        Where there is no way it is the number of ranks.
        """
        key = allowed.tobytes()
        if key not in self._known:
            self._known[key] = fewest_hops(joined_ranks(self.topology, allowed))
        return self._known[key]


def rate(beta: Fraction) -> str:
    """Return a beta as a bandwidth in GB/s: ``21.74 GB/s``."""
    return f"{float(1000 / beta):.4g} GB/s" if beta else "no limit"


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as a YAML flow list: ``[0, 2]``; neighbours as a range: ``0-15``."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return f"[{', '.join(map(str, ordered))}]"


def flow(head: str, items: Sequence[str], tail: str) -> list[str]:
    """Return items between brackets in lines that are not too long, below each other.

    Parameters
    ----------
    head
        Up to the opening bracket.
    items
        What stands between commas; none is broken.
    tail
        The closing bracket.
    """
    kept = (item.replace(" ", NO_BREAK) for item in items)
    text = head.replace(" ", NO_BREAK) + ", ".join(kept) + tail
    wrapped = textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(NO_BREAK, " ") for line in wrapped]


def quoted(text: str) -> str:
    """Return a name as YAML, in quotes unless it needs none."""
    # Other readers of YAML take these words for truth values.
    plain = re.fullmatch(r"(?!(?i:yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9_.-]*", text)
    return text if plain and plain_text_is_safe(text) else json.dumps(text)
