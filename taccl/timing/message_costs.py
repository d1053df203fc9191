"""What messages cost: how long each is under way, and what it holds for how long.

This is where the timing rule is: a link's columns ``alpha`` and ``overhead`` already follow the
topology's alpha rule (``occupy``: an edge is held for the overhead and the bytes; ``delay``: for
the bytes, and alpha only delays), and the resources are edges. A rule that holds something else
(the connection, as long as alpha lasts) adds uses here, and every scheduler follows it.
"""

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.timing.occupancy import Times, Uses
from taccl.units import ceil_time

if TYPE_CHECKING:
    from taccl.topology.links import LinkTable
    from taccl.topology.symmetry import Group


def uses_of(
    group: "Group", chunk_size: Fraction, link: NDArray[np.int32], chunks: NDArray[np.int64]
) -> Uses:
    """Return what messages cost; resources are orbits of edges, by their smallest edge.

    `group` are the symmetries, with the topology; `chunk_size` is in bytes; `link` and `chunks` are
    the link of every message and how many chunks it carries.
    """
    table = group.topology.links
    first, edge = table.crossed_by(link)
    owner = np.repeat(np.arange(len(link)), np.diff(first))
    time = byte_times(table, edge, chunk_size, chunks[owner])
    slowest = np.zeros(len(link), dtype=np.int64)
    np.maximum.at(slowest, owner, time)
    used = group.topology.edge_table.is_resource[edge]
    owner, edge, time = owner[used], edge[used], time[used]
    first = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(link)))))
    held = table.overhead[link][owner] + time
    return Uses(
        first, group.edge_orbit[edge], np.zeros_like(held), held, table.alpha[link] + slowest
    )


def reversed_uses(uses: Uses) -> Uses:
    """Return the same messages in reversed time: what was held at the end is held at the start."""
    arrival = np.repeat(uses.arrival, np.diff(uses.first))
    return uses._replace(offset=arrival - uses.offset - uses.held)


def as_list(column: Times) -> Times:
    """Return a column as a list, which plain Python reads and writes several times as fast."""
    listed: Times = column.tolist()
    return listed


def as_lists(uses: Uses) -> Uses:
    """Return the columns as lists (:func:`as_list`)."""
    return Uses(*(column.tolist() for column in uses))


def byte_times(
    table: "LinkTable", edge: NDArray[np.int32], chunk_size: Fraction, chunks: NDArray[np.int64]
) -> Times:
    """Return ceil(beta * bytes) in picoseconds for some edges of a link `table`.

    `edge` and `chunks` say which edge carries how many chunks, one entry each, of `chunk_size`
    bytes.
    """
    betas, number = _betas(table)
    width = int(chunks.max(initial=0)) + 1
    pair = number[edge] * width + chunks
    time = np.zeros(len(betas) * width, dtype=np.int64)
    for one in np.flatnonzero(np.bincount(pair, minlength=len(time))).tolist():
        time[one] = ceil_time(betas[one // width], one % width * chunk_size)
    found: Times = time[pair]
    return found


@lru_cache(maxsize=4)
def _betas(table: "LinkTable") -> tuple[tuple[Fraction, ...], NDArray[np.int64]]:
    """Return the different betas of a topology, and which of them every edge has."""
    # Fractions are slow to hash, and most edges share theirs.
    known: dict[Fraction, int] = {}
    by_object = {id(beta): beta for beta in table.betas}
    number = {key: known.setdefault(beta, len(known)) for key, beta in by_object.items()}
    return tuple(known), np.array([number[id(beta)] for beta in table.betas], dtype=np.int64)
