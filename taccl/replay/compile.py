"""A program on a topology, as both replays start from it: connections, and steps in columns.

XML names only a peer and a channel. The connections of a pair, in order of channel, use the links
of the pair in turn: the i-th takes link ``i mod L``. Connections are what threadblocks name as
their ends, whether or not a step uses them.

The columns are the same at every size. Steps are numbered through all threadblocks, ascending by
(rank, threadblock id). Nops become dependences of the next step, and consecutive reductions into
one place become one operation with several sources, as the runtimes' parsers fuse them. What a step
costs depends only on its kind: the op, the class of the connection, the chunks, and the sources of
a fused reduction. So another size needs only another table of kinds. There, a step becomes messages
of at most ``m`` chunks; all iterations but the last handle ``M`` bytes of every chunk, and the last
one handles the rest.
"""

import heapq
import itertools
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter, is_not
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import ProgramError, TacclWarning
from taccl.msccl.program import RECEIVES, SENDS, Op, Program, Step, Threadblock
from taccl.replay.cost import MAX_ITERATIONS, ReplayModel, Sharing, inside_servers, measured_costs
from taccl.topology.graph import Topology
from taccl.units import Time, ceil_time

Ints = NDArray[np.int64]
Column = NDArray[np.int32]
Flags = NDArray[np.bool_]

End = tuple[int, int]
"""Rank and threadblock id."""

ROUTED = -1
"""Stands for a link where a message is routed over several."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One FIFO from a rank to a rank, with what a message on it costs.

    The XML calls it `src`, `dst`, `channel`. It uses a `link`, or ``ROUTED``, whose `alpha` and
    `overhead`, or their sums over the route, are picoseconds. A message holds the edges `held`,
    each with its beta; `across` says whether it leaves a server.
    """

    src: int
    dst: int
    channel: int
    link: int
    alpha: Time
    overhead: Time
    held: tuple[tuple[int, Fraction], ...]
    across: bool = False

    @property
    def max_beta(self) -> Fraction:
        """The slowest edge's, in picoseconds for each byte."""
        return max((beta for _, beta in self.held), default=Fraction(0))

    def flight(self, size: Fraction | int) -> "Flight":
        """Return what a message of ``size`` bytes does to the network."""
        times: dict[Time, list[int]] = {}
        for edge, beta in self.held:
            times.setdefault(self.overhead + ceil_time(beta, size), []).append(edge)
        releases = tuple((time, tuple(times[time])) for time in sorted(times)) or ((0, ()),)
        slowest = releases[-1][0] - self.overhead if times else 0
        return Flight(self.alpha + slowest, releases)


@dataclass(frozen=True, slots=True)
class Flight:
    """The course of one message after its start.

    `arrival` is when it is at its destination; `releases` are (when, edges released then),
    ascending: the last one frees the sending threadblock. Where edges are shared, `work` is that of
    each of its slices, the arrival counts from their end, and there is one release.
    """

    arrival: Time
    releases: tuple[tuple[Time, tuple[int, ...]], ...]
    work: int = 0


@dataclass(frozen=True, slots=True)
class Wiring:
    """All connections of a program.

    `connections` are ascending by (src, dst, channel); `senders` and `receivers` have for each the
    threadblock with steps at that end, or None.
    """

    connections: tuple[Connection, ...]
    senders: tuple[End | None, ...]
    receivers: tuple[End | None, ...]


def wire(program: Program, topology: Topology, *, route: bool = False) -> Wiring:
    """Return the connections of a `program` on a `topology`.

    With `route`, a pair without a link uses the shortest path through other ranks, whose edges a
    message holds all at once; that warns once a pair.

    Raises ProgramError when the rank counts differ, a pair has no link, or two threadblocks share
    one end.
    """
    if program.num_ranks != topology.num_ranks:
        raise ProgramError(
            f"{program.name} has {program.num_ranks} ranks, {topology.name} has"
            f" {topology.num_ranks}",
            fix="use the topology the program was made for, or another --nodes",
        )
    named: dict[tuple[int, int, int], End] = {}
    senders: dict[tuple[int, int, int], End] = {}
    receivers: dict[tuple[int, int, int], End] = {}
    for rank, block in program.blocks():
        for src, dst, ops, claimed in (
            (rank, block.send_to, SENDS, senders), (block.recv_from, rank, RECEIVES, receivers)
        ):  # fmt: skip
            if src is None or dst is None:
                continue
            key = (src, dst, block.channel)
            named.setdefault(key, (rank, block.id))
            if not any(step.op in ops for step in block.steps):
                continue
            if key in claimed:
                raise ProgramError(
                    f"rank {rank}: threadblocks {claimed[key][1]} and {block.id} share one end"
                    f" of the connection {src} -> {dst} on channel {block.channel}",
                    fix="give each threadblock of a peer its own channel",
                )
            claimed[key] = (rank, block.id)
    keys = sorted(named)
    found: list[Connection] = []
    for pair, group in itertools.groupby(keys, key=lambda key: key[:2]):
        paths = _paths(topology, *pair, route=route)
        for position, key in enumerate(group):
            if not paths:
                raise ProgramError(
                    f"{topology.name} has no link from rank {pair[0]} to rank {pair[1]}, which"
                    f" threadblock {named[key][1]} of rank {named[key][0]} uses",
                    fix="use the topology the program was made for, or --route to go through"
                    " other ranks",
                )
            found.append(connect(topology, key, paths[position % len(paths)]))
    return Wiring(
        tuple(found),
        tuple(senders.get(key) for key in keys),
        tuple(receivers.get(key) for key in keys),
    )


def connect(topology: Topology, key: tuple[int, int, int], path: Sequence[int]) -> Connection:
    """Return a connection, whose `key` is (source, destination, channel).

    Its messages take a `path`, links of the `topology`.
    """
    table, server = topology.links, topology.server_of
    edges = dict.fromkeys(edge for link in path for edge in table.edges_of(link))
    betas = ((edge, topology.edges[edge].beta) for edge in edges)
    return Connection(
        *key,
        link=path[0] if len(path) == 1 else ROUTED,
        alpha=sum(int(table.alpha[link]) for link in path),
        overhead=sum(int(table.overhead[link]) for link in path),
        held=tuple((edge, beta) for edge, beta in betas if beta is not None),
        across=any(server[table.src[link]] != server[table.dst[link]] for link in path),
    )


def _paths(topology: Topology, src: int, dst: int, *, route: bool) -> Sequence[tuple[int, ...]]:
    """Return a path for each link, or one of fewest links, then least alpha, then lowest ids.

    It stays in the server of both, if that lets it.
    """
    if min(src, dst) < 0 or max(src, dst) >= topology.num_ranks:
        return []
    links = topology.links_between(src, dst)
    if links or not route:
        return [(link,) for link in links]
    if topology.server_of[src] == topology.server_of[dst]:
        found = _shortest(topology, src, dst, within=True)
        if found:
            return found
    return _shortest(topology, src, dst, within=False)


def _shortest(topology: Topology, src: int, dst: int, *, within: bool) -> list[tuple[int, ...]]:
    table = topology.links
    heap: list[tuple[int, Time, tuple[int, ...], int]] = [(0, 0, (), src)]
    done: set[int] = set()
    while heap:
        hops, alpha, path, rank = heapq.heappop(heap)
        if rank == dst and path:
            warnings.warn(
                f"{topology.name} has no link from rank {src} to rank {dst}; messages are routed"
                f" through rank {', '.join(str(int(table.src[link])) for link in path[1:])}",
                TacclWarning,
                stacklevel=2,
            )
            return [path]
        if rank in done:
            continue
        done.add(rank)
        for link in table.leaving(rank):
            if within and topology.server_of[int(table.dst[link])] != topology.server_of[src]:
                continue
            step = (hops + 1, alpha + int(table.alpha[link]), (*path, link), int(table.dst[link]))
            heapq.heappush(heap, step)
    return []


MAX_MESSAGES = 3_000_000
"""Messages and pieces of local work in one replay, above which it would take minutes."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a size is cut.

    The step lists run `iterations` times, with at most `chunks` of a step in one message. `full`
    and `last` are bytes of a chunk in every iteration but the last, and in the last; a connection
    holds as many messages as it has `slots`.
    """

    iterations: int
    chunks: int
    full: int
    last: int
    slots: int


def split(program: Program, size: int, model: ReplayModel) -> Split:
    """Return how ``size`` bytes, a multiple of the chunks of ``program``, are cut into messages.

    The runtime ``model`` says how large these are.
    """
    message, slots = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    iterations = -(-chunk // message)
    last = chunk - (iterations - 1) * message
    joined = model.joined(program.protocol, program.collective, chunk)
    return Split(iterations, joined, message, last, slots)


def unfit(program: Program, size: int, model: ReplayModel) -> str:
    """Return why ``program`` can't run at ``size`` bytes on ``model`` at all; empty if it can."""
    unit = program.chunks_per_loop * model.element_bytes
    if size <= 0 or size % unit:
        return (
            f"{size} bytes are not a multiple of {unit} (nchunksperloop"
            f" {program.chunks_per_loop} x {model.element_bytes}-byte elements)"
        )
    iterations = split(program, size, model).iterations
    if iterations > MAX_ITERATIONS:
        return f"needs {iterations} iterations, flags count only {MAX_ITERATIONS}"
    return ""


def count_messages(program: Program, size: int, model: ReplayModel) -> int:
    """Return how many messages and pieces of local work a replay of ``program`` follows.

    It is of ``size`` bytes of the counted buffer, on the runtime ``model``.
    """
    cut = split(program, size, model)
    steps = (step for _, block in program.blocks() for step in block.steps)
    return cut.iterations * sum(max(1, -(-step.count // cut.chunks)) for step in steps)


def why_not(program: Program, size: int, model: ReplayModel) -> str:
    """Return why a replay can't follow ``program`` at ``size`` bytes on ``model``, if it can't."""
    reason = unfit(program, size, model)
    if reason:
        return reason
    messages = count_messages(program, size, model)
    if messages > MAX_MESSAGES:
        return f"needs {messages} messages and copies, the replay follows at most {MAX_MESSAGES}"
    return ""


OPS = tuple(Op)
_SENDS = np.array([op in SENDS for op in OPS])
_RECEIVES = np.array([op in RECEIVES for op in OPS])
_NOP, _REDUCE = OPS.index(Op.NOP), OPS.index(Op.REDUCE)


class LinkClass(NamedTuple):
    """What connections with equal costs share; ``betas`` of the edges held, ascending."""

    alpha: Time
    overhead: Time
    betas: tuple[Fraction, ...]
    across: bool


class Kind(NamedTuple):
    """What the cost of a step depends on; ``link_class`` is -1 where nothing is sent."""

    op: Op
    link_class: int
    chunks: int
    sources: int


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A program on a topology.

    `ends`: (rank, threadblock id) of each block, ascending.
    `connections`: ascending by (src, dst, channel).
    `inbound`, `outbound`: connection of each block, -1: none.
    `senders`, `receivers`: block at each end of a connection, -1: none.
    `begins`: first step of each block, and the number of all steps.
    `kinds`, `kind_of`: the kinds, and which one each step is.
    `population`: how many steps of each kind there are.
    `marks`: position in the XML times two, plus one where the step posts.
    `needs_from`, `needs`: for each step the rows (block, position) whose flags it waits for; a
    block that does not exist has the number after the last.
    `classes`, `class_of`: costs of links, and those of each connection.
    `wires_from`, `wires`: the edges that a message on each connection holds, by ascending beta.
    `num_edges`, `width`: of the topology; above every position.
    """

    ends: tuple[tuple[int, int], ...]
    connections: tuple[Connection, ...]
    inbound: Column
    outbound: Column
    senders: Column
    receivers: Column
    begins: Ints
    kinds: tuple[Kind, ...]
    kind_of: Column
    population: Ints
    marks: Column
    needs_from: Column
    needs: Column
    classes: tuple[LinkClass, ...]
    class_of: Column
    wires_from: Ints
    wires: Column
    num_edges: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class _Raw:
    """All steps as the program has them, one entry each."""

    steps: list[Step]
    begins: Ints
    block: Column
    op: NDArray[np.int8]
    posts: Flags
    depends: Flags
    counts: Ints


def columns_of(program: Program, topology: Topology, *, route: bool = False) -> Columns:
    """Return the columns of ``program`` on ``topology``; ``route`` is as for :func:`wire`.

    Raises ProgramError when a connection has no link, or a step sends or receives without a peer.
    """
    wiring = wire(program, topology, route=route)
    by_end = {(rank, block.id): block for rank, block in program.blocks()}
    ends = tuple(sorted(by_end))
    blocks = [by_end[end] for end in ends]
    index = {end: number for number, end in enumerate(ends)}
    wires: dict[tuple[int | None, int | None, int], int] = {
        (c.src, c.dst, c.channel): i for i, c in enumerate(wiring.connections)
    }
    into = ((b.recv_from, r, b.channel) for (r, _), b in zip(ends, blocks, strict=True))
    out = ((r, b.send_to, b.channel) for (r, _), b in zip(ends, blocks, strict=True))
    inbound = np.fromiter((wires.get(key, -1) for key in into), np.int32)
    outbound = np.fromiter((wires.get(key, -1) for key in out), np.int32)
    raw = _raw(blocks)
    mute = _SENDS[raw.op] & (outbound < 0)[raw.block]
    wrong = np.flatnonzero(mute | _RECEIVES[raw.op] & (inbound < 0)[raw.block])
    if len(wrong):
        step, number = int(wrong[0]), int(raw.block[wrong[0]])
        raise ProgramError(
            f"rank {ends[number][0]} threadblock {ends[number][1]} step"
            f" {step - raw.begins[number]} {'sends' if mute[step] else 'receives'}, but the"
            " threadblock has no peer for that",
            fix="name the peer in the threadblock",
        )
    classes, class_of, held = classes_of(wiring.connections)
    heads, tails, sources = _fuse(raw)
    needs_from, rows = _needs(raw, heads, tails)
    block = raw.block[tails]
    op, counts = raw.op[tails].astype(np.int64), raw.counts[tails]
    link_class = np.full(len(tails), -1)
    sends = _SENDS[op]
    link_class[sends] = class_of[outbound[block[sends]]]
    kinds, kind_of = kinds_of(op, link_class, counts, sources)
    dependences = ((ends[raw.block[row]][0], raw.steps[row].depends) for row in rows.tolist())
    needs = [
        (index.get((rank, ref.threadblock), len(ends)), ref.step)
        for rank, ref in dependences
        if ref is not None
    ]
    return Columns(
        ends, wiring.connections, inbound, outbound,
        np.array([-1 if end is None else index[end] for end in wiring.senders], np.int32),
        np.array([-1 if end is None else index[end] for end in wiring.receivers], np.int32),
        np.searchsorted(block, np.arange(len(ends) + 1)),
        kinds, kind_of, np.bincount(kind_of, minlength=len(kinds)),
        (2 * (tails - raw.begins[block]) + raw.posts[tails]).astype(np.int32),
        needs_from, np.array(needs, np.int32).reshape(-1, 2), classes, class_of,
        np.cumsum([0, *map(len, held)]),
        np.fromiter(itertools.chain.from_iterable(held), np.int32),
        len(topology.edges), program.num_steps + 1,
    )  # fmt: skip


def kinds_of(
    op: Ints, link_class: Ints, counts: Ints, sources: Ints
) -> tuple[tuple[Kind, ...], Column]:
    """Return the kinds of some steps, and which one each is.

    The columns have for each step the fields of :class:`Kind`: the place of its `op` in ``OPS``,
    its `link_class`, the chunks (`counts`), and the `sources`.
    """
    key, parts = op, (op, link_class, counts, sources)
    for column in parts[1:]:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        if low < high:
            _, key = _distinct(key * (high - low + 1) + column - low)
    values, key = _distinct(key)
    some = np.zeros(len(values), np.int64)
    some[key] = np.arange(len(key))
    rows = zip(*(column[some].tolist() for column in parts), strict=True)
    return tuple(Kind(OPS[number], *rest) for number, *rest in rows), key.astype(np.int32)


def among_peers(sharing: Sharing, topology: Topology, connections: Iterable[Connection]) -> Sharing:
    """Return a ``sharing`` in which edges carry less where several links of `connections` use them.

    Those are edges within servers of a `topology` with measured costs, and how many links there are
    is not told apart: ``several`` of :class:`taccl.topology.graph.ProgramCosts`.
    """
    part = measured_costs(topology).several
    if part == 1:
        return sharing
    links: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for connection in connections:
        for edge, _ in connection.held:
            links[edge].add((connection.src, connection.dst))
    within, capacity = inside_servers(topology), sharing.capacity.copy()
    for edge, ends in links.items():
        if len(ends) > 1 and within[edge]:
            capacity[edge] = max(1, int(int(capacity[edge]) * part))
    return replace(sharing, capacity=capacity)


def classes_of(
    connections: Sequence[Connection],
) -> tuple[tuple[LinkClass, ...], Column, list[tuple[int, ...]]]:
    """Return the classes of `connections`, the class of each, and its edges by ascending beta."""
    numbers: dict[LinkClass, int] = {}
    known: dict[tuple[int, bool], tuple[int, tuple[int, ...]]] = {}
    found = []
    for connection in connections:
        # Signals of plans take a link and hold nothing of it.
        key = connection.link, bool(connection.held)
        one = known.get(key) if connection.link != ROUTED else None
        if one is None:
            held = sorted(connection.held, key=lambda pair: pair[1])
            betas = tuple(beta for _, beta in held)
            costs = LinkClass(connection.alpha, connection.overhead, betas, connection.across)
            number = numbers.setdefault(costs, len(numbers))
            one = known[key] = (number, tuple(edge for edge, _ in held))
        found.append(one)
    class_of = np.array([number for number, _ in found], np.int32)
    return tuple(numbers), class_of, [edges for _, edges in found]


def _raw(blocks: Sequence[Threadblock]) -> _Raw:
    steps = list(itertools.chain.from_iterable(block.steps for block in blocks))
    lengths = np.fromiter((len(block.steps) for block in blocks), np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    # Members of an enumeration are hashed in Python, which would take longer than the replay.
    members = np.array([id(op) for op in OPS])
    order = np.argsort(members)
    found = np.fromiter(map(id, map(attrgetter("op"), steps)), np.int64, len(steps))
    counts = np.fromiter(map(attrgetter("count"), steps), np.int64, len(steps))
    # A step of no chunk waits and posts as a copy of nothing does.
    found[(counts == 0) & (found != id(Op.NOP))] = id(Op.COPY)
    depends = map(is_not, map(attrgetter("depends"), steps), itertools.repeat(None))
    return _Raw(
        steps, begins, np.repeat(np.arange(len(blocks), dtype=np.int32), lengths),
        order[np.searchsorted(members[order], found)].astype(np.int8),
        np.fromiter(map(attrgetter("posts"), steps), np.bool_, len(steps)),
        np.fromiter(depends, np.bool_, len(steps)), counts,
    )  # fmt: skip


def _fuse(raw: _Raw) -> tuple[Ints, Ints, Ints]:
    """Return first and last step of each fused step, and how many there are in it.

    Nops only add dependences to the next step, and consecutive reductions into one place without
    posts and dependences between them are one.
    """
    kept = np.flatnonzero(raw.op != _NOP)
    before, step = kept[:-1], kept[1:]
    waits = np.concatenate([np.zeros(1, np.int64), np.cumsum(raw.depends)])
    merges = (raw.op[before] == _REDUCE) & (raw.op[step] == _REDUCE) & ~raw.posts[before]
    merges &= (raw.block[before] == raw.block[step]) & (waits[step + 1] == waits[before + 1])
    for number in np.flatnonzero(merges).tolist():
        one, two = raw.steps[before[number]], raw.steps[step[number]]
        same_buffer = (one.src and one.src.buffer) == (two.src and two.src.buffer)
        merges[number] = one.dst == two.dst and same_buffer
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(kept)), np.bool_), ~merges]))
    stops = np.append(starts, len(kept))[1:]
    return kept[starts], kept[stops - 1], stops - starts


def _needs(raw: _Raw, heads: Ints, tails: Ints) -> tuple[Column, Ints]:
    """Return where the dependences of each fused step begin, and the steps that have them.

    The dependences of a step are its own and those of the nops before it, back to the fused step
    before; those of nops at the end of a threadblock hold nothing back.
    """
    first = raw.begins[raw.block[heads]]
    if len(heads) > 1:
        same = raw.block[tails[:-1]] == raw.block[heads[1:]]
        first[1:] = np.where(same, tails[:-1] + 1, first[1:])
    waits = np.concatenate([np.zeros(1, np.int64), np.cumsum(raw.depends)])
    counts = waits[heads + 1] - waits[first]
    ends = np.cumsum(counts)
    rows = np.flatnonzero(raw.depends)
    # A dependence belongs to the next fused step, if that is in the same block.
    owner = np.searchsorted(heads, rows)
    owned = owner < len(heads)
    owned[owned] = raw.block[heads[owner[owned]]] == raw.block[rows[owned]]
    return np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32), rows[owned]


def _distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and the place of each value among them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(1 << 16, 4 * len(values)):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    seen = np.zeros(high - low + 1, np.bool_)
    seen[values - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[values - low]
