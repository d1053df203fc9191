"""Times of many messages: one pass over columns, fast at a million sends.

The rules are those of :func:`taccl.model.schedule.retime`, which hands such decisions over: chunks
that are only copied, and sums of which every row sees all that was decided before it.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.timing import retiming_loop
from taccl.timing.jit import machine_code
from taccl.timing.retiming_loop import NEVER, Places, Sums
from taccl.topology.links import LinkTable
from taccl.topology.symmetry import Group
from taccl.units import ceil_time

Times = NDArray[np.int64]


class Messages(NamedTuple):
    """What every message costs: one entry a message, and CSR over what it holds.

    Parameters
    ----------
    first, stop
        Its rows.
    arrival
        Picoseconds from its start to its end.
    use_start, resource, held
        Message m holds ``resource[use_start[m]:use_start[m+1]]`` for ``held`` picoseconds.
    """

    first: list[int]
    stop: list[int]
    arrival: list[int]
    use_start: list[int]
    resource: list[int]
    held: list[int]


def copy_times(
    collective: Collective,
    group: Group,
    chunk_size: Fraction,
    columns: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
) -> tuple[Times, Times]:
    """Return when every send starts and ends.

    Parameters
    ----------
    columns
        chunk, link and batch of the sends, in sequence.

    Raises
    ------
    ValueError
        When a send precedes every arrival of its chunk at its source.
    """
    chunk, link, batch = columns
    table, ranks = group.topology.links, group.topology.num_ranks
    messages = _messages(group, chunk_size, link, batch)
    own = _sources(collective)[collective.source_set[chunk], table.src[link]]
    here = chunk.astype(np.int64) * ranks
    at_source = np.where(own, -1, here + table.src[link]).tolist()
    at_end = (here + table.dst[link]).tolist()
    starts: list[int] = []
    free: dict[int, int] = {}
    ready = {-1: 0}
    for number, arrival in enumerate(messages.arrival):
        rows = range(messages.first[number], messages.stop[number])
        uses = range(messages.use_start[number], messages.use_start[number + 1])
        try:
            start = max([ready[at_source[row]] for row in rows])
        except KeyError as error:
            lost, rank = divmod(int(error.args[0]), ranks)
            raise ValueError(
                f"chunk {lost} is sent by rank {rank} before it arrives there"
            ) from error
        for use in uses:
            start = max(start, free.get(messages.resource[use], 0))
        for use in uses:
            free[messages.resource[use]] = start + messages.held[use]
        starts.append(start)
        for row in rows:
            place = at_end[row]
            ready[place] = max(ready.get(place, 0), start + arrival)
    lengths = np.array(messages.stop, dtype=np.int64) - np.array(messages.first, dtype=np.int64)
    start_of = np.array(starts, dtype=np.int64)
    end_of = start_of + np.array(messages.arrival, dtype=np.int64)
    return np.repeat(start_of, lengths), np.repeat(end_of, lengths)


def sum_times(
    collective: Collective,
    group: Group,
    chunk_size: Fraction,
    columns: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]],
) -> tuple[Times, Times]:
    """Return when every send of summed chunks starts and ends, by compiled code.

    Parameters
    ----------
    columns
        chunk, link, batch and reduce of the sends, in sequence.

    Raises
    ------
    ValueError
        When a send precedes every arrival of its chunk at its source.
    """
    chunk, link, batch, reduce = columns
    table, ranks = group.topology.links, group.topology.num_ranks
    messages = _messages(group, chunk_size, link, batch)
    here = chunk.astype(np.int64) * ranks
    both = np.concatenate([here + table.src[link], here + table.dst[link]])
    known, place = np.unique(both, return_inverse=True)
    first, stop, arrival, use_start, resource, held = (
        np.array(column, dtype=np.int64) for column in messages
    )
    own = _sources(collective)[collective.source_set[chunk], table.src[link]]
    source, target = place[: len(chunk)].astype(np.int64), place[len(chunk) :].astype(np.int64)
    adds = np.array(reduce, dtype=np.bool_)
    sums = Sums(first, stop, arrival, use_start, resource, held, source, target, own, adds)
    never = np.full(len(known), NEVER, dtype=np.int64)
    free = np.zeros(max(messages.resource, default=0) + 1, dtype=np.int64)
    start = np.zeros(len(messages.first), dtype=np.int64)
    lost = compiled()(sums, Places(never, never.copy(), never.copy(), free), start)
    if lost != NEVER:
        rank = int(table.src[link[lost]])
        raise ValueError(f"chunk {int(chunk[lost])} is sent by rank {rank} before it arrives there")
    lengths = sums.stop - sums.first
    return np.repeat(start, lengths), np.repeat(start + sums.arrival, lengths)


@cache
def compiled() -> Callable[[Sums, Places, Times], int]:
    """Return :func:`retiming_loop.time_sums` as machine code, compiled or from the cache."""
    return machine_code(retiming_loop.time_sums, [retiming_loop], "sums")


def _sources(collective: Collective) -> NDArray[np.bool_]:
    """Return for every set of ranks which ranks are in it."""
    member = np.zeros((len(collective.rank_sets), collective.num_ranks), dtype=np.bool_)
    for row, ranks in zip(member, collective.rank_sets, strict=True):
        row[list(ranks)] = True
    return member


def _messages(
    group: Group, chunk_size: Fraction, link: NDArray[np.int32], batch: NDArray[np.int32]
) -> Messages:
    table = group.topology.links
    cuts = np.flatnonzero(np.diff(batch)) + 1
    bounds = np.concatenate(([0], cuts, [len(batch)])) if len(batch) else np.zeros(1, dtype=int)
    first, stop = bounds[:-1], bounds[1:]
    links, lengths = link[first], stop - first
    counts = np.diff(table.edge_start)[links]
    owner = np.repeat(np.arange(len(links)), counts)
    nth = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    edges = table.edge_ids[table.edge_start[links][owner] + nth]
    times = np.zeros(len(owner), dtype=np.int64)
    for length in np.unique(lengths).tolist():
        alike = lengths[owner] == length
        times[alike] = _edge_times(table, length * chunk_size)[edges[alike]]
    slowest = np.zeros(len(links), dtype=np.int64)
    np.maximum.at(slowest, owner, times)
    busy = np.array([edge.beta is not None for edge in group.topology.edges], dtype=np.bool_)[edges]
    use_start = np.concatenate(([0], np.cumsum(np.bincount(owner[busy], minlength=len(links)))))
    held = (table.overhead[links][owner] + times)[busy]
    return Messages(
        first.tolist(), stop.tolist(), (table.alpha[links] + slowest).tolist(),
        use_start.tolist(), group.edge_orbit[edges[busy]].tolist(), held.tolist(),
    )  # fmt: skip


def _edge_times(table: LinkTable, size: Fraction) -> Times:
    """Return ceil(beta * size) for every edge, in picoseconds."""
    known = {beta: ceil_time(beta, size) for beta in set(table.betas)}
    return np.array([known[beta] for beta in table.betas], dtype=np.int64)
