"""The rules that a schedule is held to, each a function that yields what breaks it.

Messages and resources: duration, start, adjacency, one message at a time on an edge. Data that is
copied: held before it is sent, received once, received everywhere. Data that is summed: every
contribution reaches every target exactly once. What a sketch adds: which links, which senders, how
long a path, how many peers.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.chunks import places_in
from taccl.collectives.slots import INPUT, OUTPUT, SCRATCH, Slots
from taccl.topology.graph import LogicalTopology
from taccl.units import exact_us
from taccl.verify.sends import MAX_FINDINGS, Finding, Int64, Sends, batch_costs


def message(sends: Sends) -> Iterator[Finding]:
    """Check that a batch is one message and lasts alpha + ceil(max beta * its bytes)."""
    schedule, first = sends.schedule, sends.first[sends.message]
    table = schedule.topology.links
    # Fans are one for this: a batch of them flows together.
    link = np.minimum(schedule.link, len(table))
    fused = link == len(table)
    for column, what in (
        (link, "link"), (schedule.start, "start"), (schedule.end, "end"),
        (schedule.reduce & ~fused, "reduce flag"),
    ):  # fmt: skip
        yield from sends.findings(
            column != column[first], f"has another {what} than its batch, which is one message"
        )
    order = np.lexsort((schedule.link, schedule.chunk, sends.message))
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in (schedule.chunk, sends.message, np.where(fused, schedule.link, -1)):
        same &= column[order[1:]] == column[order[:-1]]
    twice = np.zeros(len(order), dtype=np.bool_)
    twice[order[1:][same]] = True
    yield from sends.findings(twice, "is twice in one message")
    rows = sends.first
    took = schedule.end[rows] - schedule.start[rows]
    for number, cost in batch_costs(sends).items():
        if took[number] != cost.time:
            row = int(rows[number])
            yield (
                row,
                f"{sends.name(row)} takes {exact_us(int(took[number]))} us; its batch of"
                f" {sends.carried[number]} chunks on fans takes {exact_us(cost.time)} us",
            )
    plain = np.flatnonzero(~fused[rows])
    if not len(plain):
        return
    rows, took, link, carried = rows[plain], took[plain], link[rows[plain]], sends.carried[plain]
    betas, of_edge = _numbered_betas(sends)
    # The betas are numbered in ascending order: the largest number is the largest beta.
    slowest = np.maximum.reduceat(of_edge[table.edge_ids], table.edge_start[:-1])
    expected = table.alpha[link] + _transfers(sends, betas, slowest[link], carried)
    for at in np.flatnonzero(took != expected)[:MAX_FINDINGS].tolist():
        row = int(rows[at])
        yield (
            row,
            (
                f"{sends.name(row)} takes {exact_us(int(took[at]))} us; its message of"
                f" {carried[at]} chunks takes {exact_us(int(expected[at]))} us"
            ),
        )


def _numbered_betas(sends: Sends) -> tuple[list[Fraction], Int64]:
    """Return the distinct betas, ascending, and the number of every edge's beta."""
    of_edge = [edge.beta or Fraction(0) for edge in sends.schedule.topology.edges]
    betas = sorted(set(of_edge))
    number = {beta: i for i, beta in enumerate(betas)}
    return betas, np.array([number[beta] for beta in of_edge], dtype=np.int64)


def _transfers(sends: Sends, betas: list[Fraction], beta: Int64, carried: Int64) -> Int64:
    """Return ceil(beta * chunks * chunk size) in exact arithmetic, once for each combination."""
    width = int(carried.max()) + 1 if len(carried) else 1
    codes, where = np.unique(beta * width + carried, return_inverse=True)
    times = []
    for code in codes.tolist():
        exact = betas[code // width] * (code % width) * sends.schedule.chunk_size
        times.append(-(-exact.numerator // exact.denominator))
    return np.array(times, dtype=np.int64)[where]


def start(sends: Sends) -> Iterator[Finding]:
    """Check that nothing starts before time 0."""
    yield from sends.findings(sends.schedule.start < 0, "starts before time 0")


def released(sends: Sends) -> Iterator[Finding]:
    """Check that no source's own value is sent, or added to, before the source has it."""
    schedule, collective = sends.schedule, sends.schedule.collective
    if not collective.is_timed:
        return
    start, end, adds = map(sends.of_legs, (schedule.start, schedule.end, schedule.reduce))
    early = collective.own_from(sends.chunk, sends.src) > start
    yield from sends.findings(
        early & sends.is_source(sends.src), "starts before its rank has its own value"
    )
    early = collective.own_from(sends.chunk, sends.dst) > end
    yield from sends.findings(
        early & adds & sends.is_source(sends.dst),
        "is added before the rank that it reaches has its own value",
    )


def adjacency(sends: Sends) -> Iterator[Finding]:
    """Check that the chunks of a message on links lie side by side where they are read and written.

    A schedule that packs copies them there, and each row of a fan is an operation of its own.
    """
    if sends.schedule.packs or needs_no_adjacency(sends):
        return
    slots, leg = sends.schedule.slots, np.searchsorted(sends.row, np.arange(len(sends.schedule)))
    found, links = set[int](), len(sends.schedule.topology.links)
    for chunks, rows, src, dst in sends.schedule.runs():
        fed, row = sends.fed[leg[rows]].tolist(), rows[0]
        reduce = bool(sends.schedule.reduce[row])
        if len(found) == MAX_FINDINGS or row in found or sends.schedule.link[row] >= links:
            continue
        if not _side_by_side(slots, chunks, (src, dst), fed, reduce=reduce):
            found.add(row)
            text = ", ".join(str(c) for c in sorted(chunks)[:10])
            yield (
                row,
                (
                    f"{sends.name(row)} travels with chunks that are not adjacent at both ends"
                    f" (chunks {text})"
                ),
            )


def needs_no_adjacency(sends: Sends) -> bool:
    """Tell whether no message has several chunks, or ranks pack: no adjacency is judged then."""
    return sends.schedule.packs or bool((sends.carried == 1).all())


def _side_by_side(
    slots: Slots, chunks: Sequence[int], ends: tuple[int, int], fed: Sequence[bool], *, reduce: bool
) -> bool:
    src, dst = ends
    places = [
        {place.buffer: place.offset for place in slots.readable(chunk, src, arrived=arrived)}
        for chunk, arrived in zip(chunks, fed, strict=True)
    ]
    for buffer in (INPUT, OUTPUT, SCRATCH):
        offsets = [place[buffer] for place in places if buffer in place]
        if len(offsets) < len(chunks):
            continue
        order = sorted(range(len(chunks)), key=offsets.__getitem__)
        in_order, arrived = [chunks[i] for i in order], [fed[i] for i in order]
        if slots.adjacent(in_order, src, dst, arrived, reduce=reduce):
            return True
    return False


def resource(sends: Sends) -> Iterator[Finding]:
    """Check that every edge with a bandwidth carries one message at a time.

    A message holds each edge for its link's overhead plus the bytes at that edge's own beta. Among
    representatives, messages whose edges lie in one orbit meet in some image.
    """
    schedule, table = sends.schedule, sends.schedule.topology.links
    by_start = np.argsort(schedule.start[sends.first], kind="stable")
    by_start = by_start[schedule.link[sends.first[by_start]] < len(table)]
    link = schedule.link[sends.first[by_start]]
    lengths = (table.edge_start[link + 1] - table.edge_start[link]).astype(np.int64)
    owner = np.repeat(by_start.astype(np.int32), lengths)
    edge = table.edge_ids[np.repeat(table.edge_start[link], lengths) + places_in(lengths)]
    is_resource = np.array([e.beta is not None for e in schedule.topology.edges], dtype=np.bool_)
    kept = np.flatnonzero(is_resource[edge])
    kept = kept[np.argsort(sends.edge_orbit[edge[kept]], kind="stable")]
    edge, owner = edge[kept], owner[kept]
    del kept
    betas, of_edge = _numbered_betas(sends)
    hold = table.overhead[schedule.link[sends.first[owner]]]
    hold += _transfers(sends, betas, of_edge[edge], sends.carried[owner])
    fused = [
        (number, *held) for number, cost in batch_costs(sends).items()
        for held in cost.holds.items()
    ]  # fmt: skip
    if fused:
        more = np.array(fused, dtype=np.int64).T
        owner, edge = np.append(owner, more[0]), np.append(edge, more[1])
        hold = np.append(hold, more[2])
        order = np.lexsort((schedule.start[sends.first[owner]], sends.edge_orbit[edge]))
        owner, edge, hold = owner[order], edge[order], hold[order]
    yield from _overlaps(sends, edge, sends.first[owner], hold)


def _overlaps(
    sends: Sends, edge: NDArray[np.integer], rows: Int64, hold: Int64
) -> Iterator[Finding]:
    """Find neighbours that overlap among holds sorted by orbit of edge and then by start."""
    schedule = sends.schedule
    begin = schedule.start[rows]
    if not hold.all():
        # An interval of length 0 holds nothing.
        some = np.flatnonzero(hold)
        edge, rows, begin, hold = edge[some], rows[some], begin[some], hold[some]
    orbit = sends.edge_orbit[edge]
    met = np.flatnonzero((orbit[1:] == orbit[:-1]) & (begin[:-1] + hold[:-1] > begin[1:]))
    for at in met[:MAX_FINDINGS].tolist():
        earlier, later = int(rows[at]), int(rows[at + 1])
        needed, element = int(edge[at + 1]), 0
        if sends.orbits is not None:
            element = sends.orbits.element_between(int(edge[at]), needed)
        until = exact_us(int(begin[at] + hold[at]))
        yield (
            later,
            (
                f"{sends.name(later)} needs edge {schedule.topology.edges[needed].name},"
                f" which {sends.name(earlier, element)} holds until {until} us"
            ),
        )


def held(sends: Sends) -> Iterator[Finding]:
    """Check that the source of every send holds the chunk when the send starts.

    An arrival that ends exactly when a send starts has arrived. Messages without duration could
    feed each other in a circle in one instant: every chunk must come from one of its sources.
    """
    if sends.schedule.collective.reduces:
        return
    yield from sends.findings(sends.schedule.reduce, "reduces in a collective that only copies")
    source = sends.is_source(sends.src)
    without = ~source & ~sends.fed
    yield from sends.findings(without, "starts before the chunk is at its source")
    if (sends.schedule.end <= sends.schedule.start).any() and not without.any():
        yield from sends.findings(hops(sends) < 0, "goes round in a circle in no time")


def once(sends: Sends) -> Iterator[Finding]:
    """Check that no chunk arrives where it already is or twice at one rank."""
    if sends.schedule.collective.reduces:
        return
    # Who is reached by a fan is fixed in the switch: it may have what comes.
    strict = sends.of_legs(sends.schedule.link) < len(sends.schedule.topology.links)
    at_source = sends.is_source(sends.dst) & strict
    yield from sends.findings(at_source, "arrives at a source of the chunk")
    keys, rows = sends.arrivals
    again = np.zeros(len(rows), dtype=np.bool_)
    again[rows[1:][keys[1:] == keys[:-1]]] = True
    yield from sends.findings(again & strict, "arrives at a rank that has the chunk already")


def delivered(sends: Sends) -> Iterator[Finding]:
    """Check that every target that is no source receives its chunk."""
    collective = sends.schedule.collective
    if collective.reduces:
        return
    num_ranks = collective.num_ranks
    rank_sets = collective.rank_sets
    starts = np.cumsum([0, *(len(ranks) for ranks in rank_sets)]).astype(np.int64)
    flat = np.array([rank for ranks in rank_sets for rank in ranks], dtype=np.int32)
    target_set = collective.target_set[sends.chunks]
    lengths = (starts[1:] - starts[:-1])[target_set]
    chunk = np.repeat(sends.chunks, lengths)
    rank = flat[np.repeat(starts[:-1][target_set], lengths) + places_in(lengths)]
    wanted = ~sends.members[collective.source_set[chunk], rank]
    chunk, rank = chunk[wanted], rank[wanted]
    key, keys = chunk * num_ranks + rank, sends.arrivals[0]
    at = np.searchsorted(keys, key)
    missing = np.append(keys, -1)[at] != key
    for i in np.flatnonzero(missing)[:MAX_FINDINGS].tolist():
        yield None, f"chunk {chunk[i]} never arrives at rank {rank[i]}"


def hops(sends: Sends) -> Int64:
    """Return for every leg the hops from a source to its destination; -1 where there is none.

    Every round joins each send to the sender of its sender: a path of n hops takes log2 n rounds.
    """
    count = np.ones(len(sends.row), dtype=np.int64)
    up = np.where(sends.is_source(sends.src), -1, sends.feeder)
    lost = ~sends.is_source(sends.src) & (sends.feeder < 0)
    for _ in range(max(1, len(up).bit_length())):
        on = up >= 0
        if not on.any():
            break
        parent = up[on]
        lost[on] |= lost[parent]
        count[on] += count[parent]
        up[on] = up[parent]
    return np.where(lost | (up >= 0), -1, count)


ARRIVE, PASS, READ = range(3)
"""What happens at one instant, in this order: messages end; messages without duration pass, in
order of rows; messages start, and carry what their source then holds."""


def summed(sends: Sends) -> Iterator[Finding]:
    """Follow the contributions that make up each (chunk, rank), from event to event.

    The value of a source is at first its own contribution. A send carries the value that its
    source has at its start, with every arrival that ended by then. A reducing arrival adds, and
    must bring contributions that are not there; any other arrival replaces, and must hold all
    that it replaces and more. Two arrivals of a chunk at a rank in one instant, of which one
    replaces, have no defined outcome and are refused. In the end every target has the
    contributions of all sources. Representatives are followed where they move one chunk of an
    orbit; what then happens at its ranks happens to its images at theirs.
    """
    schedule = sends.schedule
    if not schedule.collective.reduces:
        return
    legs = np.argsort(sends.turned.chunk, kind="stable")
    moved = sends.turned.chunk[legs]
    low, high = (np.searchsorted(moved, sends.chunks, side) for side in ("left", "right"))
    found = 0
    for chunk, first, end in zip(*(c.tolist() for c in (sends.chunks, low, high)), strict=True):
        for finding in _follow(sends, chunk, legs[first:end].tolist()):
            yield finding
            found += 1
            if found >= MAX_FINDINGS:
                return


def one_order(sends: Sends) -> bool:
    """Tell whether the order of rows matters to no sum, or is that of its images, too.

    It matters to messages without duration; those of one chunk must then be images by one element.
    """
    if not sends.schedule.collective.reduces or (sends.schedule.end > sends.schedule.start).all():
        return True
    pairs = np.stack([sends.turned.chunk.astype(np.int64), sends.turned.element])
    return len(np.unique(pairs, axis=1)[0]) == len(np.unique(pairs[0]))


def _follow(sends: Sends, chunk: int, legs: list[int]) -> Iterator[Finding]:
    schedule = sends.schedule
    sources = schedule.collective.sources(chunk)
    value = {rank: 1 << place for place, rank in enumerate(sources)}
    last: dict[int, tuple[int, bool]] = {}
    of_row: dict[int, list[int]] = {}
    for leg in legs:
        of_row.setdefault(int(sends.row[leg]), []).append(leg)
    events = []
    for row in of_row:
        start, end = int(schedule.start[row]), int(schedule.end[row])
        events += [(start, PASS, row)] if end <= start else [(start, READ, row), (end, ARRIVE, row)]
    carried: dict[int, int] = {}
    for time, event, row in sorted(events):
        ends = [(int(sends.turned.src[leg]), int(sends.turned.dst[leg])) for leg in of_row[row]]
        fused = schedule.link[row] >= len(schedule.topology.links)
        name = of_row[row][0]
        if event != ARRIVE:
            carried[row] = 0
            for src in dict.fromkeys(src for src, _ in ends):
                here = value.get(src, 0)
                if not here:
                    yield _finding(sends, name, "starts where nothing of the chunk is")
                if twice := carried[row] & here:
                    yield _finding(sends, name, f"counts twice {_values(sources, twice)}")
                carried[row] |= here
        if event == READ:
            continue
        brought, read = carried.pop(row, 0), {src for src, _ in ends}
        for dst in dict.fromkeys(dst for _, dst in ends):
            adds = bool(schedule.reduce[row]) and dst not in read
            there = value.get(dst, 0)
            wrong = _wrong_value(sources, brought, there, adds=adds)
            # A fan reaches whom its switches serve, whatever is there already.
            if wrong and not (fused and (not there or (brought == there and not adds))):
                yield _finding(sends, name, wrong)
            before = last.get(dst)
            if event == ARRIVE and before and before[0] == time and not (adds and before[1]):
                yield _finding(
                    sends, name, f"arrives together with another value at {exact_us(time)} us,"
                    " and one of them replaces the other",
                )  # fmt: skip
            if event == ARRIVE:
                last[dst] = (time, adds)
            value[dst] = there | brought if adds else brought
    whole = (1 << len(sources)) - 1
    for rank in schedule.collective.targets(chunk):
        lacking = whole & ~value.get(rank, 0)
        if lacking:
            yield None, f"chunk {chunk} at rank {rank} ends without {_values(sources, lacking)}"


def _finding(sends: Sends, leg: int, why: str) -> Finding:
    """Return a finding on the image of the send of a leg that was followed."""
    element, row = int(sends.turned.element[leg]), int(sends.row[leg])
    return sends.expanded_row(row, element), f"{sends.name(row, element)} {why}"


def _wrong_value(sources: tuple[int, ...], brought: int, there: int, *, adds: bool) -> str:
    """Return what is wrong with an arrival that adds, or replaces; empty: nothing."""
    if adds and brought & there:
        return f"counts twice {_values(sources, brought & there)}"
    if adds:
        return "" if there else "is added where nothing of the chunk is"
    if there & ~brought:
        return f"replaces a sum and loses {_values(sources, there & ~brought)}"
    return "brings nothing new" if brought == there else ""


def _values(sources: tuple[int, ...], mask: int) -> str:
    ranks = [str(rank) for place, rank in enumerate(sources) if mask >> place & 1]
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    what = "the value of rank" if len(ranks) == 1 else "the values of ranks"
    return f"{what} {', '.join(ranks[:10])}{more}"


def allowed(sends: Sends) -> Iterator[Finding]:
    """Check that only links of the logical topology are used."""
    if sends.logical is not None:
        yield from sends.findings(
            ~sends.logical.allowed[sends.schedule.link],
            "uses a link that the sketch does not allow",
        )


def outsider(sends: Sends) -> Iterator[Finding]:
    """Check that chunks visit only ranks that may carry them."""
    schedule, carriers = sends.schedule, sends.schedule.collective.carrier_set
    if carriers is not None:
        own = carriers[schedule.chunk]
        strange = ~(sends.members[own, sends.src] & sends.members[own, sends.dst])
        yield from sends.findings(strange, "visits a rank that does not relay for its group")


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
    shortest = np.stack(
        [
            _distances(_joined(logical, _open_to(sends, logical, owner)), (owner,))
            for owner in used.tolist()
        ]
    )
    limit = shortest[where, sends.dst] + logical.max_extra_hops
    for row in np.flatnonzero(taken > limit)[:MAX_FINDINGS].tolist():
        path = f"ends a path of {taken[row]} hops, the sketch allows {limit[row]}"
        yield row, f"{sends.name(row)} {path}"


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
            join = _joined(logical, _open_to(sends, logical, owner))
            known[owner] = np.stack([_distances(join, (rank,)) for rank in range(len(join))])
        hops_between = known[owner]
        stops = [collective.rank_sets[sources], collective.rank_sets[targets]]
        if collective.reduces:
            stops.insert(1, (owner,))
        for here, there in pairwise(stops):
            ranks |= _between(hops_between, here, there)
    kind = kind.reshape(-1)
    for row in np.flatnonzero(~(on_way[kind, sends.src] & on_way[kind, sends.dst]))[:MAX_FINDINGS]:
        lost = sends.src[row] if not on_way[kind[row], sends.src[row]] else sends.dst[row]
        why = f"visits rank {lost}, which is on no path with the fewest hops"
        yield int(row), f"{sends.name(int(row))} {why}"


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
