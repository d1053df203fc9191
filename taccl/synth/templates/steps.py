"""What algorithm templates are made of: steps, the links they take, and messages of runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from taccl.collectives.slots import LAYOUTS, Place, Slots, place_chunks
from taccl.model.problem import Problem
from taccl.topology.graph import Rank
from taccl.topology.structure import levels_of

Step = tuple[tuple[int, ...], Rank, Rank, bool]
"""chunks that travel together, from rank, to rank, reduce"""

Links = Mapping[tuple[Rank, Rank], int]
"""Pairs of ranks and the link to take between them."""

Order = tuple[Rank, ...]
"""Ranks, each once."""

ROUND_BARRIER: Step = ((), 0, 0, False)
"""No step: what was sent since the one before is part of what is sent from here on, not before."""

GATHER_FAMILY = ("allgather", "reducescatter", "allreduce")
"""What consists of an AllGather, a ReduceScatter (one played backwards), or both."""


def best_links(problem: Problem) -> dict[tuple[Rank, Rank], int]:
    """Return the fastest allowed link of every pair of ranks that has one."""
    topology, table, size = problem.topology, problem.topology.links, problem.chunk_size
    best: dict[tuple[Rank, Rank], int] = {}
    for link in problem.logical.links():
        pair = (int(table.src[link]), int(table.dst[link]))
        # Most pairs have one link: arrivals are only compared where there are more.
        other = best.get(pair)
        if other is None or topology.arrival(link, size) < topology.arrival(other, size):
            best[pair] = link
    return best


def linked(links: Links, steps: Iterable[Step]) -> bool:
    """Tell whether there are `links` for all `steps`."""
    return all((src, dst) in links for chunks, src, dst, _ in steps if chunks)


def blocks(problem: Problem) -> list[tuple[int, ...]]:
    """Return the chunks that each rank owns, for collectives with k chunks for each rank."""
    k = problem.collective.chunks_per_rank
    return [tuple(range(r * k, (r + 1) * k)) for r in range(problem.topology.num_ranks)]


def pair_block(problem: Problem, src: Rank, dst: Rank) -> tuple[int, ...]:
    """Return the chunks of an AlltoAll, the `problem`, that go from rank `src` to rank `dst`."""
    k = problem.collective.chunks_per_rank
    first = (src * problem.topology.num_ranks + dst) * k
    return tuple(range(first, first + k))


def compose_allreduce(
    problem: Problem, gather: Sequence[Step], backwards: Sequence[Step] | None = None
) -> Iterator[Step]:
    """Yield an AllGather's steps as the problem's collective: backwards, summing, and forwards.

    The `problem` is an AllReduce, or a ReduceScatter (backwards only), or an AllGather (forwards
    only); `gather` are the steps of the AllGather, and `backwards` those of another to play
    backwards, one against the direction of links; None: the same.
    """
    name = problem.collective.name
    if name != "allgather":
        against = gather if backwards is None else backwards
        yield from ((chunks, dst, src, True) for chunks, src, dst, _ in reversed(against))
    if name != "reducescatter":
        yield from gather


def shards(items: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Cut `items` into as many `parts` of nearly equal length, some empty if there are few."""
    cuts = [len(items) * part // parts for part in range(parts + 1)]
    return [tuple(items[a:b]) for a, b in pairwise(cuts)]


def bits(places: int) -> list[int]:
    """Return the bits of the places below the largest power of two, ascending."""
    return [1 << i for i in range(places.bit_length() - 1)]


def ranks_by_server(problem: Problem) -> list[tuple[Rank, ...]] | None:
    """Return the ranks of every server; None where they differ in number.

    In a fabric of ranks without servers they are those of every leaf, pod or group: what shares the
    widest way out.
    """
    servers = problem.topology.servers
    if len(servers) == 1:
        servers = (servers, *levels_of(problem.topology))[-1]
    return list(servers) if len(set(map(len, servers))) == 1 else None


def piece_by_piece(problem: Problem, steps: Sequence[Step]) -> list[Step]:
    """Return `steps` with a message for each piece of a rank's chunks, piece after piece in rounds.

    So a piece goes on, or is summed, while the next one arrives. A round has what needs nothing but
    the rounds before it; whatever concerns one chunk keeps its order at every rank. The steps are
    as they were where no message has several pieces; what one root has, algorithms cut themselves.
    """
    collective, piece = problem.collective, problem.collective.index.tolist()
    if collective.root is not None or all(
        len({piece[chunk] for chunk in chunks}) < 2 for chunks, *_ in steps
    ):
        return list(steps)
    barriers = any(not chunks for chunks, *_ in steps)
    reached, left = Counter[tuple[int, Rank]](), Counter[tuple[int, Rank]]()
    rows: list[tuple[tuple[int, int], Step]] = []
    number = 0
    for chunks, src, dst, reduce in steps:
        if not chunks:
            rows.append(((number, len(piece)), ROUND_BARRIER))
            number += 1
        for each in sorted({piece[chunk] for chunk in chunks}):
            part = tuple(chunk for chunk in chunks if piece[chunk] == each)
            if not barriers:
                number = max(max(1 + reached[chunk, src], left[chunk, dst]) for chunk in part)
                for chunk in part:
                    left[chunk, src] = max(left[chunk, src], number)
                    reached[chunk, dst] = max(reached[chunk, dst], number)
            rows.append(((number, each), (part, src, dst, reduce)))
    return [step for _, step in sorted(rows, key=lambda row: row[0])]


def in_runs(problem: Problem, steps: Sequence[Step]) -> list[Step]:
    """Cut messages into runs of chunks that are adjacent at both ends, as few as there are.

    The `steps` are messages of any chunks, which lie at their sources and targets as the `problem`
    says; scratch lies in one of LAYOUTS everywhere: the one that needs the fewest messages.
    """
    if all(len(chunks) < 2 for chunks, *_ in steps):
        return list(steps)
    ranks = range(problem.topology.num_ranks)
    hops = [(chunk, src, dst) for chunks, src, dst, _ in steps for chunk in chunks]
    found: list[Step] | None = None
    for layout in LAYOUTS:
        slots = place_chunks(problem.collective, hops, dict.fromkeys(ranks, layout))
        cut = list(_cut(problem, steps, slots))
        found = cut if found is None or len(cut) < len(found) else found
        if not any(slots.scratch_chunks):
            break
    return found or []


def _cut(problem: Problem, steps: Sequence[Step], slots: Slots) -> Iterator[Step]:
    arrived: set[tuple[int, Rank]] = set()
    landing: set[tuple[int, Rank]] = set()
    rounds = any(not chunks for chunks, *_ in steps)
    sums = problem.collective.reduces
    for chunks, src, dst, reduce in steps:
        if not chunks:
            arrived |= landing
            landing = set()
            yield ROUND_BARRIER
            continue
        ends = [
            (
                chunk,
                slots.readable(chunk, src, arrived=sums and (chunk, src) in arrived),
                None if reduce else slots.held(chunk, dst),
            )
            for chunk in chunks
        ]
        for run in _runs(ends, reduce=reduce):
            yield run, src, dst, reduce
        if sums:
            (landing if rounds else arrived).update((chunk, dst) for chunk in chunks)


def _runs(
    ends: Sequence[tuple[int, tuple[Place, ...], Place | None]], *, reduce: bool
) -> Iterator[tuple[int, ...]]:
    """Cut (chunk, places to read, place to write) into runs that are consecutive at both ends."""
    run: list[int] = []
    next_read: set[Place] = set()
    next_write: Place | None = None
    for chunk, reads, write in sorted(ends, key=lambda end: (end[2] or end[1][0], end[0])):
        here = next_read & set(reads)
        if run and here and (reduce or write == next_write):
            run.append(chunk)
        else:
            if run:
                yield tuple(run)
            run, here = [chunk], set(reads)
        next_read = {Place(place.buffer, place.offset + 1) for place in here}
        next_write = None if write is None else Place(write.buffer, write.offset + 1)
    if run:
        yield tuple(run)


MAX_STEPS_OF_SEARCH = 20_000


def tour(
    problem: Problem,
    start: Rank = 0,
    *,
    closed: bool = True,
    backwards: bool = False,
    within: Sequence[Rank] | None = None,
) -> Order | None:
    """Return an order of all ranks along the fastest allowed links, server by server, or None.

    A depth-first search from `start` with a bounded number of steps. Links, and times of a chunk on
    them, are those of the `problem`; the last rank has a link back to the first where it is
    `closed`, and data flows from the last to the first if `backwards`. Only ranks `within` are
    visited; None: all.
    """
    links = best_links(problem)
    if backwards:
        links = {(dst, src): link for (src, dst), link in links.items()}
    topology, server_of = problem.topology, problem.topology.server_of
    n = topology.num_ranks
    wanted = set(range(n) if within is None else within)
    following: list[list[Rank]] = [[] for _ in range(n)]
    for src, dst in sorted(links, key=lambda pair: (
        server_of[pair[0]] != server_of[pair[1]],
        topology.arrival(links[pair], problem.chunk_size),
        (pair[1] - pair[0]) % n,
    )):  # fmt: skip
        if src in wanted and dst in wanted:
            following[src].append(dst)
    unseen = Counter(server_of)
    unseen[server_of[start]] -= 1
    path, seen, budget = [start], {start}, MAX_STEPS_OF_SEARCH
    choices = [iter(following[start])]
    while choices and budget:
        budget -= 1
        if len(path) == len(wanted) and (not closed or (path[-1], start) in links):
            return tuple(path)
        # A server is left only when it is used up.
        home = server_of[path[-1]]
        used_up = not unseen[home]
        allowed = (r for r in choices[-1] if r not in seen and (used_up or server_of[r] == home))
        chosen = next(allowed, None)
        if chosen is None:
            choices.pop()
            seen.discard(path[-1])
            unseen[server_of[path.pop()]] += 1
        else:
            path.append(chosen)
            seen.add(chosen)
            unseen[server_of[chosen]] -= 1
            choices.append(iter(following[chosen]))
    return None


def passed(order: Order, own: Sequence[tuple[int, ...]], hops: int) -> Iterator[Step]:
    """Yield the steps that take what every rank owns so many places on, place by place.

    `order` is that of the ranks in the ring, `own` has the chunks by rank, and `hops` is how many
    places on.
    """
    n = len(order)
    for hop in range(hops):
        for place, rank in enumerate(order):
            yield own[order[(place - hop) % n]], rank, order[(place + 1) % n], False
