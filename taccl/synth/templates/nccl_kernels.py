"""NCCL's own kernels as programs: rings, trees and pairwise exchanges, one way round a channel.

So what NCCL does is replayed with the same rules as what is compared with it. The orders of its
channels are those of :func:`taccl.synth.templates.rings.channel_orders`.

A channel is a
threadblock at every rank of a ring; a tree has one for every edge at a rank, as a threadblock has
one peer in each direction; NCCL's warps that send and receive at once are two threadblocks.

References
----------
NVIDIA/nccl 2.18: ``src/collectives/device/{all_gather,all_reduce,reduce_scatter,broadcast,reduce,
sendrecv}.h`` (``runRing``, ``runTreeSplit``), ``src/graph/trees.cc`` (``ncclGetDtree``).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from taccl.collectives import COLLECTIVES
from taccl.msccl.program import Buffer, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.synth.templates.rings import channel_orders
from taccl.synth.templates.steps import Order
from taccl.synth.templates.trees import two_trees
from taccl.topology.graph import Rank, Topology
from taccl.units import MAX_SIZE

PIPELINED = 8
"""Chunks of a channel in a broadcast or reduce, which go round a ring one after another: NCCL's
messages are a quarter there of those of other collectives (``BROADCAST_CHUNKSTEPS``), in slices."""

ALL_PAIRS_CHANNELS = 8
"""Of RCCL's all-pairs AllReduce."""

ALL_PAIRS_BYTES = {"LL": (1 << 10, (1 << 19) - 1), "Simple": (1 << 19, 16 << 20)}
"""Least and most bytes that RCCL runs it for, by protocol: ``tools/msccl-algorithms``,
``allreduce-allpairs-8n-ll-32tb`` (256 chunks, of 4 bytes at least), ``-ll-64tb``, ``-simple``."""

Steps = tuple[Step, ...]


def _all_gather(place: int, order: Order, channel: int, channels: int) -> Steps:
    n = len(order)

    def at(distance: int) -> Slot:
        return Slot(Buffer.OUTPUT, order[(place - distance) % n] * channels + channel)

    passed = (Step(Op.RECV_COPY_SEND, dst=at(back)) for back in range(1, n - 1))
    return (Step(Op.SEND, Slot(Buffer.INPUT, channel)), *passed, Step(Op.RECV, dst=at(n - 1)))


def _reduce_scatter(place: int, order: Order, channel: int, channels: int) -> Steps:
    n = len(order)

    def at(distance: int) -> Slot:
        return Slot(Buffer.INPUT, order[(place - distance) % n] * channels + channel)

    passed = (Step(Op.RECV_REDUCE_SEND, at(back)) for back in range(2, n))
    last = Step(Op.RECV_REDUCE_COPY, at(0), Slot(Buffer.OUTPUT, channel))
    return (Step(Op.SEND, at(1)), *passed, last)


def _all_reduce(place: int, order: Order, channel: int, channels: int) -> Steps:
    n = len(order)

    def at(distance: int) -> Slot:
        return Slot(Buffer.INPUT, (place - distance) % n * channels + channel)

    added = (Step(Op.RECV_REDUCE_SEND, at(back)) for back in range(2, n))
    passed = (Step(Op.RECV_COPY_SEND, dst=at(back)) for back in range(1, n - 1))
    whole = Step(Op.RECV_REDUCE_COPY_SEND, at(0), at(0))
    return (Step(Op.SEND, at(1)), *added, whole, *passed, Step(Op.RECV, dst=at(n - 1)))


def _broadcast(place: int, order: Order, channel: int, channels: int) -> Steps:
    del channels
    op = Op.RECV if place == len(order) - 1 else Op.RECV_COPY_SEND
    slots = (Slot(Buffer.INPUT, channel * PIPELINED + part) for part in range(PIPELINED))
    return tuple(Step(Op.SEND, slot) if place == 0 else Step(op, dst=slot) for slot in slots)


def _reduce(place: int, order: Order, channel: int, channels: int) -> Steps:
    del order, channels
    op = Op.SEND if place == 1 else Op.RECV_REDUCE_SEND
    slots = (Slot(Buffer.INPUT, channel * PIPELINED + part) for part in range(PIPELINED))
    # The root is first: sums go round the ring to it.
    return tuple(
        Step(op, slot) if place else Step(Op.RECV_REDUCE_COPY, slot, slot) for slot in slots
    )


def tree_parents(topology: Topology, channels: int) -> list[dict[Rank, Rank]]:
    """Return the parent of every rank but the root, on each of so many `channels`.

    A chain through each server, as a ring goes, whose heads are joined in one of two binary trees
    of the servers of the `topology`; each GPU is the head in as many channels of both trees.
    """
    servers, size = topology.servers, len(topology.servers[0])
    found = []
    for channel, order in enumerate(channel_orders(topology, channels)):
        places = [servers[0].index(rank) for rank in order[:size]]
        above: dict[Rank, Rank] = {}
        for server in servers:
            above |= {server[below]: server[place] for place, below in pairwise(places)}
        if len(servers) > 1:
            tree = two_trees(range(len(servers)), same_root=False)[channel // size % 2]
            head = places[0]
            above |= {servers[one][head]: servers[other][head] for one, other in tree.items()}
        found.append(above)
    return found


RINGS: Mapping[str, Callable[[int, Order, int, int], Steps]] = {
    "allgather": _all_gather,
    "reducescatter": _reduce_scatter,
    "allreduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
}
"""Steps of a rank at a place of a ring, on one of so many channels, by collective."""

_WHOLE: Mapping[str, tuple[bool, bool]] = {
    "allgather": (False, True), "reducescatter": (True, False), "allreduce": (True, True),
    "broadcast": (False, False), "reduce": (False, False), "alltoall": (True, True),
    "tree": (False, False),
}  # fmt: skip
"""Whether input and output hold a chunk of each channel for every rank, or one alone."""


def _program(
    kind: str,
    collective: str,
    protocol: str,
    blocks: Mapping[Rank, Sequence[tuple[Rank | None, Rank | None, int, Steps]]],
    chunks: int,
) -> Program:
    ranks = len(blocks)
    whole = _WHOLE["tree" if kind == "tree" else collective]
    sizes = [chunks * (ranks if by_rank else 1) for by_rank in whole]
    gpus = tuple(
        Gpu(
            rank, sizes[0], sizes[1], 0,
            tuple(Threadblock(number, *block) for number, block in enumerate(blocks[rank])),
        )
        for rank in range(ranks)
    )  # fmt: skip
    channels = 1 + max(block[2] for own in blocks.values() for block in own)
    in_place = collective != "alltoall"
    return Program(
        f"NCCL {kind} {protocol}",
        collective,
        protocol,
        in_place,
        not in_place,
        channels,
        max(sizes),
        0,
        MAX_SIZE,
        gpus,
    )


def ring_program(collective: str, orders: Sequence[Order], protocol: str) -> Program:
    """Return NCCL's ring.

    `collective`: a key of RINGS; the root of a broadcast or reduce is the first rank of every
    order.
    `orders`: all ranks in the order of the ring, for each channel.
    `protocol`: ``Simple``, ``LL`` or ``LL128``.
    """
    steps = RINGS[collective]
    blocks: dict[Rank, list[tuple[Rank | None, Rank | None, int, Steps]]] = defaultdict(list)
    for channel, order in enumerate(orders):
        n = len(order)
        for place, rank in enumerate(order):
            own = steps(place, order, channel, len(orders))
            peers = order[(place + 1) % n], order[(place - 1) % n]
            sends, receives = (any(getattr(s, what) for s in own) for what in ("sends", "receives"))
            blocks[rank].append((
                peers[0] if sends else None, peers[1] if receives else None, channel, own
            ))  # fmt: skip
    parts = PIPELINED if collective in ("broadcast", "reduce") else 1
    return _program("ring", collective, protocol, blocks, len(orders) * parts)


def tree_program(trees: Sequence[Mapping[Rank, Rank]], protocol: str) -> Program:
    """Return NCCL's tree AllReduce: sums go up to the root, and the whole comes down again.

    `trees`: the parent of every rank but the root, for each channel.
    `protocol`: ``Simple``, ``LL`` or ``LL128``.
    """
    ranks = len(trees[0]) + 1
    blocks: dict[Rank, list[tuple[Rank | None, Rank | None, int, Steps]]] = {
        rank: [] for rank in range(ranks)
    }
    for channel, above in enumerate(trees):
        below: dict[Rank, list[Rank]] = defaultdict(list)
        for rank, parent in above.items():
            below[parent].append(rank)
        own = Slot(Buffer.INPUT, channel)
        for rank in range(ranks):
            _at_rank(blocks[rank], above.get(rank), below[rank], channel, own)
    return _program("tree", "allreduce", protocol, blocks, len(trees))


def _at_rank(
    blocks: list[tuple[Rank | None, Rank | None, int, Steps]],
    parent: Rank | None,
    children: Sequence[Rank],
    channel: int,
    own: Slot,
) -> None:
    """Add the threadblocks of one rank: a child each upwards, then a child each downwards."""
    before: StepRef | None = None
    for number, child in enumerate(children):
        last = number + 1 == len(children)
        op = Op.RECV_REDUCE_COPY
        up = None
        if last and parent is not None:
            op, up = Op.RECV_REDUCE_SEND, parent
        posts = not last or parent is None
        target = own if op is Op.RECV_REDUCE_COPY else None
        step = Step(op, own, target, depends=before, posts=posts)
        before = StepRef(len(blocks), 0) if posts else None
        blocks.append((up, child, channel, (step,)))
    if not children and parent is not None:
        blocks.append((parent, None, channel, (Step(Op.SEND, own),)))
    if parent is not None:
        first = children[0] if children else None
        op = Op.RECV_COPY_SEND if children else Op.RECV
        before = StepRef(len(blocks), 0) if len(children) > 1 else None
        step = Step(op, dst=own, posts=before is not None)
        blocks.append((first, parent, channel, (step,)))
        children = children[1:]
    sent = (Step(Op.SEND, own, depends=before),)
    blocks.extend((child, None, channel, sent) for child in children)


def exchange_program(ranks: int, channels: int, protocol: str) -> Program:
    """Return NCCL's AlltoAll of sends and receives: all pairs, each on so many `channels`.

    `ranks` take part; `protocol` is ``Simple`` or ``LL``.
    """
    blocks: dict[Rank, list[tuple[Rank | None, Rank | None, int, Steps]]] = defaultdict(list)
    for rank in range(ranks):
        for channel in range(channels):
            own = rank * channels + channel
            kept = Step(Op.COPY, Slot(Buffer.INPUT, own), Slot(Buffer.OUTPUT, own))
            blocks[rank].append((None, None, channel, (kept,)))
            for away in range(1, ranks):
                to, source = (rank + away) % ranks, (rank - away) % ranks
                sent = Slot(Buffer.INPUT, to * channels + channel)
                got = Slot(Buffer.OUTPUT, source * channels + channel)
                blocks[rank].append((to, None, channel, (Step(Op.SEND, sent),)))
                blocks[rank].append((None, source, channel, (Step(Op.RECV, dst=got),)))
    return _program("pairs", "alltoall", protocol, blocks, channels)


def all_pairs_program(ranks: int, channels: int, protocol: str = "LL") -> Program:
    """Return RCCL's all-pairs AllReduce of `ranks`: sums of a part each, then all parts to all.

    Each rank sends every other one the part of the buffer that this one adds up, on each of so many
    `channels`, and then its sums. Its threadblocks add in turn, a peer each. It runs in a
    `protocol`.
    """
    blocks: dict[Rank, list[tuple[Rank | None, Rank | None, int, Steps]]] = defaultdict(list)
    for rank in range(ranks):
        for channel in range(channels):
            first = len(blocks[rank])
            own = Slot(Buffer.INPUT, rank * channels + channel)
            for away in range(1, ranks):
                peer = (rank + away) % ranks
                last = away == ranks - 1
                other = Slot(Buffer.INPUT, peer * channels + channel)
                before = StepRef(first + away - 2, 1) if away > 1 else None
                whole = None if last else StepRef(first + ranks - 2, 1)
                blocks[rank].append((peer, peer, channel, (
                    Step(Op.SEND, other),
                    Step(Op.RECV_REDUCE_COPY, own, own, depends=before, posts=ranks > 2),
                    Step(Op.SEND, own, depends=whole),
                    Step(Op.RECV, dst=other),
                )))  # fmt: skip
    return _program("all-pairs", "allreduce", protocol, blocks, channels)


def _ring(topology: Topology, collective: str, channels: int, protocol: str) -> Program | None:
    if collective not in RINGS:
        return None
    orders = channel_orders(topology, channels)
    if COLLECTIVES[collective].has_root:
        orders = tuple((*one[one.index(0) :], *one[: one.index(0)]) for one in orders)
    return ring_program(collective, orders, protocol)


def _tree(topology: Topology, collective: str, channels: int, protocol: str) -> Program | None:
    if collective != "allreduce":
        return None
    return tree_program(tree_parents(topology, channels), protocol)


def _pairs(topology: Topology, collective: str, channels: int, protocol: str) -> Program | None:
    if collective != "alltoall" or protocol == "LL128":
        return None
    return exchange_program(topology.num_ranks, channels, protocol)


def _all_pairs(topology: Topology, collective: str, channels: int, protocol: str) -> Program | None:
    del channels
    ranks = topology.num_ranks
    links = all(topology.links_between(0, rank) for rank in range(1, ranks))
    # RCCL ships its files for one server of AMD's GPUs, which are joined all with all.
    if collective != "allreduce" or protocol not in ALL_PAIRS_BYTES:
        return None
    if not links or topology.num_servers > 1 or not (topology.gpu or "").startswith("mi"):
        return None
    least, most = ALL_PAIRS_BYTES[protocol]
    program = all_pairs_program(ranks, ALL_PAIRS_CHANNELS, protocol)
    return replace(program, min_bytes=least, max_bytes=most)


KERNELS: Mapping[str, Callable[[Topology, str, int, str], Program | None]] = {
    "ring": _ring,
    "tree": _tree,
    "pairs": _pairs,
    "all-pairs": _all_pairs,
}
"""NCCL's kernels on a topology, for a collective, channels and a protocol; None: there is none.

The root of a broadcast or reduce is rank 0. LoweringError where wires let no ring through.
"""
