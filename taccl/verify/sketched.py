"""Rules that a sketch adds: which links, which senders, how long a path, how many peers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.topology import LogicalTopology
from taccl.verify.routes import hops
from taccl.verify.sends import MAX_FINDINGS, Finding, Sends


def allowed(sends: Sends) -> Iterator[Finding]:
    """Check that only links of the logical topology are used."""
    if sends.logical is not None:
        yield from sends.findings(
            ~sends.logical.allowed[sends.full.link], "uses a link that the sketch does not allow"
        )


def leave_by(sends: Sends) -> Iterator[Finding]:
    """Check that chunks leave every server by the senders that the sketch names.

    In the server of its owner these are the owner's senders, elsewhere those of the rank with
    the owner's local number: what a GPU's chunks leave by, wherever they are.
    """
    logical = sends.logical
    if logical is None or not logical.leave_by:
        return
    server = np.array(sends.full.topology.server_of, dtype=np.int64)
    crosses = server[sends.src] != server[sends.dst]
    owner = sends.full.collective.owner[sends.full.chunk]
    free = np.stack([_doors(sends, rank) for rank in range(sends.full.topology.num_ranks)])
    yield from sends.findings(
        crosses & ~free[owner, sends.src],
        "leaves a server by a rank that the sketch does not name for it",
    )


def _doors(sends: Sends, owner: int) -> NDArray[np.bool_]:
    """Return by which ranks the chunks of an owner may leave their servers."""
    members: dict[int, list[int]] = {}
    server_of = sends.full.topology.server_of
    for rank, server in enumerate(server_of):
        members.setdefault(server, []).append(rank)
    number = members[server_of[owner]].index(owner)
    free = np.ones(len(server_of), dtype=np.bool_)
    named = sends.logical.leave_by if sends.logical is not None else {}
    for ranks in members.values():
        speaker = ranks[number] if number < len(ranks) else None
        if speaker is not None and speaker in named:
            free[ranks] = False
            free[sorted(named[speaker])] = True
    return free


def max_extra_hops(sends: Sends) -> Iterator[Finding]:
    """Check that paths are not longer than the shortest that a chunk may take plus the extra."""
    logical, collective = sends.logical, sends.full.collective
    if logical is None or logical.max_extra_hops is None or collective.reduces:
        return
    if not len(sends.full):
        return
    taken = hops(sends)
    used, where = np.unique(collective.owner[sends.full.chunk], return_inverse=True)
    shortest = np.stack([_shortest(sends, logical, owner) for owner in used.tolist()])
    limit = shortest[where, sends.dst] + logical.max_extra_hops
    for row in np.flatnonzero(taken > limit)[:MAX_FINDINGS].tolist():
        yield (
            row,
            (f"{sends.name(row)} ends a path of {taken[row]} hops, the sketch allows {limit[row]}"),
        )


def _shortest(sends: Sends, logical: LogicalTopology, owner: int) -> NDArray[np.int64]:
    """Return the fewest hops from an owner to every rank over links that its chunks may take."""
    table = logical.topology.links
    server = np.array(logical.topology.server_of, dtype=np.int64)
    within = server[table.src] == server[table.dst]
    open_ = logical.allowed & (within | _doors(sends, owner)[table.src])
    join = np.zeros((logical.topology.num_ranks,) * 2, dtype=np.bool_)
    join[table.src[open_], table.dst[open_]] = True
    return _distances(join, (owner,))


def _distances(join: NDArray[np.bool_], sources: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the fewest hops from a set of ranks to every rank."""
    unreached = len(join) + 1
    distance = np.full(len(join), unreached, dtype=np.int64)
    frontier, step = np.array(sources, dtype=np.int64), 0
    while len(frontier):
        distance[frontier] = step
        step += 1
        frontier = np.flatnonzero(join[frontier].any(axis=0) & (distance == unreached))
    return distance


def connections_per_rank(sends: Sends) -> Iterator[Finding]:
    """Check how many distinct peers every rank sends to and receives from."""
    if sends.logical is None or sends.logical.connections_per_rank is None:
        return
    limit, num_ranks = sends.logical.connections_per_rank, sends.full.topology.num_ranks
    pairs = np.unique(sends.src.astype(np.int64) * num_ranks + sends.dst)
    for ranks, verb in ((pairs // num_ranks, "sends to"), (pairs % num_ranks, "receives from")):
        peers = np.bincount(ranks, minlength=num_ranks)
        for rank in np.flatnonzero(peers > limit).tolist():
            yield None, f"rank {rank} {verb} {peers[rank]} ranks, the sketch allows {limit}"
