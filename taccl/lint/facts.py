"""What a rule finds, and what several rules want to know of a topology."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.topology import Edge, Topology
from taccl.topology_rates import homes, slowest_edges

SHOWN = 3
"""Names that a finding gives before it counts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule found.

    Parameters
    ----------
    rule
        A key of RULES.
    severity
        ``error``, ``warning`` or ``note``.
    where
        The edges, switches, ranks or pairs it is about.
    problem
        What was found.
    fix
        What to do about it.
    edges
        The first of the edges it is about, by id, for looking up its place in a file.
    file, line, field
        Where in a file the first of them is; None: not known.
    """

    rule: str
    severity: str
    where: str
    problem: str
    fix: str
    edges: tuple[int, ...] = ()
    file: str | None = None
    line: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        """Return severity, place, what was found and, on a second line, the fix."""
        line = "" if self.line is None else f":{self.line}"
        parts = [f"{self.file}{line}" if self.file else "", self.field or "", self.where]
        place = ": ".join(part for part in (self.severity, *parts) if part)
        return f"{place}: {self.problem} ({self.rule})\n  fix: {self.fix}"


Raw = tuple[str, str, str, tuple[int, ...]]
"""Where, problem, fix and edges."""


@dataclass(frozen=True, eq=False)
class Facts:
    """A topology and what several rules want to know of it."""

    topology: Topology

    @cached_property
    def homes(self) -> tuple[int | None, ...]:
        """The server of every vertex; None where there is none."""
        return homes(self.topology)

    @cached_property
    def slowest(self) -> tuple[NDArray[np.int64], tuple[Fraction, ...]]:
        """The largest beta of every link, as its place in the table of all."""
        return slowest_edges(self.topology)

    @cached_property
    def unused(self) -> tuple[int, ...]:
        """Edges on no link."""
        count = len(self.topology.edges)
        return tuple(np.setdiff1d(np.arange(count), self.topology.links.edge_ids).tolist())

    @cached_property
    def idle(self) -> frozenset[int]:
        """Switches, as vertices, none of whose edges is on a link."""
        live: set[int] = set()
        unused = set(self.unused)
        for edge in self.topology.edges:
            if edge.id not in unused:
                live |= {edge.tail, edge.head}
        first = self.topology.num_ranks
        return frozenset(range(first, first + len(self.topology.switches))) - live

    def edges(self, found: Sequence[Edge]) -> str:
        """Return the names of some edges, the first ones and a count."""
        return listed("edge", [edge.name for edge in found])

    def edges_of(self, rank: int) -> tuple[int, ...]:
        """Return the first edge of a rank."""
        return tuple(e.id for e in self.topology.edges if rank in (e.tail, e.head))[:1]

    def pairs(self, keys: Sequence[int]) -> str:
        """Return some pairs of ranks, each src * ranks + dst."""
        size = self.topology.num_ranks
        return listed("pair", ["{} -> {}".format(*divmod(key, size)) for key in keys[:SHOWN]],
                      len(keys))  # fmt: skip

    def links_at(self, chosen: NDArray[np.bool_]) -> tuple[str, tuple[int, ...]]:
        """Return the pairs of some links, and the edges of the first."""
        table = self.topology.links
        found = np.flatnonzero(chosen)
        keys = table.src[found].astype(np.int64) * self.topology.num_ranks + table.dst[found]
        return self.pairs(np.unique(keys).tolist()), table.edges_of(int(found[0]))


def listed(what: str, names: Sequence[str], total: int | None = None) -> str:
    """Return ``edges a, b, c and 5 more``."""
    count = len(names) if total is None else total
    text = ", ".join(names[:SHOWN])
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    plural = "switches" if what == "switch" else f"{what}s"
    return f"{plural if count > 1 else what} {text}{more}"
