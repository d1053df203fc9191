"""Rules that a sketch adds: which links, which senders, how long a path, how many peers."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from taccl.topology import LogicalTopology
from taccl.verify.routes import hops
from taccl.verify.sends import MAX_FINDINGS, Finding, Sends


def allowed(sends: Sends) -> Iterator[Finding]:
    """Check that only links of the logical topology are used."""
    if sends.logical is not None:
        yield from sends.findings(
            ~sends.logical.allowed[sends.schedule.link],
            "uses a link that the sketch does not allow",
        )


def leave_by(sends: Sends) -> Iterator[Finding]:
    """Check that chunks leave every server by the senders that the sketch names.

    In the server of its owner these are the owner's senders, elsewhere those of the rank with
    the owner's local number: what a GPU's chunks leave by, wherever they are.
    """
    logical = sends.logical
    if logical is None or not logical.leave_by:
        return
    server = np.array(sends.schedule.topology.server_of, dtype=np.int64)
    crosses = server[sends.src] != server[sends.dst]
    owner = sends.schedule.collective.owner[sends.schedule.chunk]
    yield from sends.findings(
        crosses & ~_all_doors(sends)[owner, sends.src],
        "leaves a server by a rank that the sketch does not name for it",
    )


def _all_doors(sends: Sends) -> NDArray[np.bool_]:
    """Row o, column r: whether the chunks of owner o may leave their servers by rank r."""
    return np.stack([_doors(sends, rank) for rank in range(sends.schedule.topology.num_ranks)])


def _doors(sends: Sends, owner: int) -> NDArray[np.bool_]:
    """Return by which ranks the chunks of an owner may leave their servers."""
    members: dict[int, list[int]] = {}
    server_of = sends.schedule.topology.server_of
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
    logical, collective = sends.logical, sends.schedule.collective
    if logical is None or logical.max_extra_hops is None or collective.reduces:
        return
    if not len(sends.schedule):
        return
    taken = hops(sends)
    used, where = np.unique(collective.owner[sends.schedule.chunk], return_inverse=True)
    shortest = np.stack([_shortest(sends, logical, owner) for owner in used.tolist()])
    limit = shortest[where, sends.dst] + logical.max_extra_hops
    for row in np.flatnonzero(taken > limit)[:MAX_FINDINGS].tolist():
        yield (
            row,
            (f"{sends.name(row)} ends a path of {taken[row]} hops, the sketch allows {limit[row]}"),
        )


def _shortest(sends: Sends, logical: LogicalTopology, owner: int) -> NDArray[np.int64]:
    """Return the fewest hops from an owner to every rank over links that its chunks may take."""
    return _distances(_joined(logical, _open_to(sends, logical, owner)), (owner,))


def _open_to(sends: Sends, logical: LogicalTopology, owner: int) -> NDArray[np.bool_]:
    """Return which links the chunks of an owner may take."""
    table = logical.topology.links
    server = np.array(logical.topology.server_of, dtype=np.int64)
    within = server[table.src] == server[table.dst]
    allowed: NDArray[np.bool_] = logical.allowed & (within | _doors(sends, owner)[table.src])
    return allowed


def _joined(logical: LogicalTopology, links: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rank has one of the links to which."""
    table = logical.topology.links
    join = np.zeros((logical.topology.num_ranks,) * 2, dtype=np.bool_)
    join[table.src[links], table.dst[links]] = True
    return join


def on_shortest_paths(sends: Sends) -> Iterator[Finding]:
    """Check that chunks visit only ranks on paths with the fewest hops over allowed links.

    Of any source and any target; a sum goes from its sources to its owner and from there to its
    targets. Paths are over the links that the chunk may take, as in TACCL's
    ``shortest_path_sets``, which knows no senders that a chunk has to leave by.
    """
    logical, collective = sends.logical, sends.schedule.collective
    if logical is None or not logical.on_shortest_paths or not len(sends.schedule):
        return
    chunk = sends.schedule.chunk
    columns = [collective.source_set[chunk], collective.target_set[chunk]]
    by_owner = collective.reduces or bool(logical.leave_by)
    columns.append(collective.owner[chunk] if by_owner else np.zeros_like(chunk))
    kinds, kind = np.unique(np.stack(columns), axis=1, return_inverse=True)
    on_way = np.zeros((kinds.shape[1], collective.num_ranks), dtype=np.bool_)
    known: dict[int, NDArray[np.int64]] = {}
    for ranks, (sources, targets, owner) in zip(on_way, kinds.T.tolist(), strict=True):
        if owner not in known:
            known[owner] = _hops_between(sends, logical, owner)
        hops_between = known[owner]
        stops = [collective.rank_sets[sources], collective.rank_sets[targets]]
        if collective.reduces:
            stops.insert(1, (owner,))
        for here, there in pairwise(stops):
            ranks |= _between(hops_between, here, there)
    kind = kind.reshape(-1)
    for row in np.flatnonzero(~(on_way[kind, sends.src] & on_way[kind, sends.dst]))[:MAX_FINDINGS]:
        lost = sends.src[row] if not on_way[kind[row], sends.src[row]] else sends.dst[row]
        yield (
            int(row),
            f"{sends.name(int(row))} visits rank {lost}, which is on no path with the fewest hops",
        )


def _hops_between(sends: Sends, logical: LogicalTopology, owner: int) -> NDArray[np.int64]:
    """Return the fewest hops from every rank to every other for the chunks of an owner."""
    join = _joined(logical, _open_to(sends, logical, owner))
    return np.stack([_distances(join, (rank,)) for rank in range(len(join))])


def _between(
    distance: NDArray[np.int64], sources: Sequence[int], targets: Sequence[int]
) -> NDArray[np.bool_]:
    """Return the ranks on a path with the fewest hops from a source to a target."""
    found = np.zeros(len(distance), dtype=np.bool_)
    if len(sources) == len(distance) or len(targets) == len(distance):
        return ~found
    to = distance[:, list(targets)]
    for source in sources:
        fewest = to[source]
        on_way = distance[source][:, None] + to == fewest
        found |= on_way[:, fewest < len(distance)].any(axis=1)
    return found


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
    limit, num_ranks = sends.logical.connections_per_rank, sends.schedule.topology.num_ranks
    ends = ((sends.src, sends.dst, "sends to"), (sends.dst, sends.src, "receives from"))
    for rank_of, peer_of, verb in ends:
        pairs = np.unique(sends.seen_from(rank_of, peer_of))
        peers = np.bincount(pairs // num_ranks, minlength=num_ranks)
        for rank in np.flatnonzero(peers > limit).tolist():
            yield None, f"rank {rank} {verb} {peers[rank]} ranks, the sketch allows {limit}"


def turns_links(sends: Sends) -> bool:
    """Tell whether every generator takes allowed links to allowed links, and no others there."""
    logical = sends.logical
    if logical is None or logical.allowed.all():
        return True
    group, links = sends.schedule.group, np.arange(len(logical.allowed))
    numbers = (group.elements.index(generator) for generator in group.generators)
    images = (group.link_images(number, links) for number in numbers)
    return all(bool((logical.allowed[there] == logical.allowed).all()) for there in images)


def turns_doors(sends: Sends) -> bool:
    """Tell whether every generator takes servers to servers, and where chunks leave them along."""
    if sends.logical is None or not sends.logical.leave_by:
        return True
    server = np.array(sends.schedule.topology.server_of, dtype=np.int64)
    together = server[:, None] == server
    return _is_kept(sends, together) and _is_kept(sends, _all_doors(sends))


def turns_paths(sends: Sends) -> bool:
    """Tell whether the ways that a chunk may take go with its owner under every generator."""
    logical = sends.logical
    if logical is None or (logical.max_extra_hops is None and not logical.on_shortest_paths):
        return True
    same = logical.topology is sends.schedule.topology
    return same and turns_doors(sends) and _is_kept(sends, _joined(logical, logical.allowed))


def _is_kept(sends: Sends, relation: NDArray[np.bool_]) -> bool:
    """Tell whether every generator keeps a relation of ranks."""
    rows = (np.array(generator) for generator in sends.schedule.group.generators)
    return all(bool((relation[np.ix_(row, row)] == relation).all()) for row in rows)
