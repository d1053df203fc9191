"""What the replay of a program charges: runtime constants, protocol factors, local work.

``M`` bytes of every chunk are handled in one iteration, which is what one FIFO message holds
(``NCCL_BUFFSIZE`` and ``NCCL_STEPS`` of the runtime). For small buffers one message carries up to
``m = clamp(M / chunk, 1, 71)`` chunks of a step (``mscclMaxAllowedCount``, ``mscclSetupCount``); in
a broadcast or reduce of protocol Simple, a quarter as many.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError, ProgramError
from taccl.msccl.program import Op
from taccl.msccl.runtimes import MAX_COUNT, RUNTIMES, joined_bytes
from taccl.topology.graph import LocalCosts, ProgramCosts, Topology
from taccl.units import Time, ceil_time

MAX_ITERATIONS = 65536
"""Iterations that a flag can count: ``MSCCL_MAX_ITER``."""

PROTOCOL_FACTOR: Mapping[str, Fraction] = MappingProxyType({
    "Simple": Fraction(1),
    "LL": Fraction(2),
    "LL128": Fraction(128, 120),
})  # fmt: skip
"""Bytes on the wire for each byte of data: LL sends a flag with every word, LL128 eight in 128."""


PROFILES = ("alpha-beta", "measured")
"""What programs are charged: as TACCL and its successors reckon, or as the machine was measured."""

WORK = 1 << 28
"""Work of a byte on the wire, so that rates are integers: work in a picosecond."""

MOST_RATE = 1 << 40
"""Of a flow that neither an edge nor its threadblock limits."""


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """What the replay of a program charges where messages share edges.

    `capacity`: work that each edge carries in a picosecond.
    `block_rate`: most work in a picosecond of one threadblock.
    `wire`: work for each byte of data; between servers `detour` times as much.
    `alpha`, `alpha_across`: as in :class:`taccl.topology.graph.ProtocolCosts`.
    `local`: costs of local work, and the launch.
    `flag`: picoseconds until a post is seen.
    `slice_bytes`, `slices`: least bytes of a slice, and most slices of a message.
    """

    capacity: NDArray[np.int64]
    block_rate: int
    wire: Fraction
    alpha: Time
    alpha_across: Time
    local: LocalCosts
    flag: Time
    slice_bytes: int
    slices: int
    detour: Fraction

    def slices_of(self, size: int) -> int:
        """Return in how many slices a message of ``size`` bytes travels."""
        return max(1, min(self.slices, size // self.slice_bytes))

    def flow(self, size: int, *, across: bool) -> tuple[Time, int]:
        """Return alpha, and the work of each slice, of a message of ``size`` bytes."""
        work = self.wire * size / self.slices_of(size)
        return (self.alpha_across, int(work * self.detour)) if across else (self.alpha, int(work))


def measured_costs(topology: Topology) -> ProgramCosts:
    """Return the measured costs of a `topology`, which option --profile asks for.

    Raises InputError when it has none.
    """
    if topology.measured is None:
        raise InputError(
            f"{topology.name} has no measured costs", field="--profile",
            fix="use alpha-beta, or put what you measured into the topology file (measured:)",
        )  # fmt: skip
    return topology.measured


def is_measured(profile: str | None, topology: Topology, *others: object) -> bool:
    """Tell whether programs are charged what a `topology` was measured to cost.

    `profile`: one of PROFILES; None: ``measured`` where the topology has such costs, and none of
    the `others` is asked for, options that only ``alpha-beta`` knows.

    Raises InputError when measured costs are asked for, and there are none.
    """
    if profile is None:
        return topology.measured is not None and not any(others)
    if profile == "measured":
        measured_costs(topology)
    return profile == "measured"


def sharing_of(topology: Topology, protocol: str) -> Sharing:
    """Return what programs of a ``protocol`` are charged on a ``topology`` with measured costs.

    Raises ProgramError when the topology has no measured costs, or none of this protocol.
    """
    costs = topology.measured
    if costs is None or protocol not in costs.protocols:
        raise ProgramError(
            f"{topology.name} has no measured costs"
            f"{'' if costs is None else f' of protocol {protocol[:40]!r}'}",
            fix="use --profile alpha-beta, or put what you measured into the topology file",
        )
    own = costs.protocols[protocol]
    rates = {None: MOST_RATE, Fraction(0): MOST_RATE}
    betas = payload_betas(topology, costs)
    rates |= {beta: max(1, int(WORK / beta)) for beta in set(betas) if beta}
    wire = WORK * own.wire
    return Sharing(
        np.array([rates[beta] for beta in betas], np.int64),
        max(1, int(wire / own.block_beta)) if own.block_beta else MOST_RATE, wire,
        own.alpha, own.alpha_across,
        LocalCosts(costs.copy_beta, costs.reduce_beta, own.launch),
        costs.flag, own.slice_bytes, costs.slices, own.detour,
    )  # fmt: skip


@lru_cache(maxsize=8)
def of_plans(topology: Topology) -> Topology:
    """Return a ``topology`` whose measured costs are those of MSCCL++ plans, as far as known.

    Where they are not, they are taken to be those of runtimes with FIFOs. What a plan does is the
    same in the wires and the memory: a packet is a word with its flag, as LL has it, and a signal
    after a put is what ends a message of Simple: a fence, a store, and somebody who polls. So is
    one on a switch, where there are no costs of that (``NVLS``).
    """
    costs = topology.measured
    if costs is None:
        return topology
    own = costs.plans or costs
    rows = {**costs.protocols, **own.protocols}
    if "Simple" in rows:
        rows.setdefault("NVLS", rows["Simple"])
    return replace(topology, measured=replace(own, protocols=rows))


def sharing_of_plan(topology: Topology, protocol: str) -> Sharing:
    """Return what MSCCL++ plans are charged on a ``topology`` :func:`of_plans`.

    ``protocol``: LL with packets, which already count twice in plans, else NVLS on switches, else
    Simple. Messages travel whole, and operations on packets are cut (``slice_bytes``). There is no
    ``flag`` in it: what a threadblock has done it knows.

    Raises ProgramError when the topology has no measured costs, or none of that protocol.
    """
    own = sharing_of(topology, protocol)
    wire = own.wire / PROTOCOL_FACTOR["LL"] if protocol == "LL" else own.wire
    return replace(own, wire=wire, slices=1, flag=0)


def inside_servers(topology: Topology) -> NDArray[np.bool_]:
    """Return which edges some link within a server uses, whoever else uses them."""
    table, server = topology.links, np.array(topology.server_of, np.int64)
    found = np.zeros(len(topology.edges), np.bool_)
    local = np.repeat(server[table.src] == server[table.dst], np.diff(table.edge_start))
    found[table.edge_ids[local]] = True
    return found


def beta_of_peers(topology: Topology) -> Fraction:
    """Return the picoseconds of a byte from one rank of a server to another, if all send at once.

    It is that of the busiest edge of such links.
    """
    table, home = topology.links, np.array(topology.server_of)
    inside = np.flatnonzero(home[table.src] == home[table.dst]).tolist()
    links = Counter(edge for link in inside for edge in table.edges_of(link))
    betas = ((topology.edges[edge].beta or Fraction(0)) * n for edge, n in links.items())
    return max(betas, default=Fraction(0))


def payload_betas(topology: Topology, costs: ProgramCosts) -> tuple[Fraction | None, ...]:
    """Return picoseconds for each byte on the wire of every edge, as `costs` of it say.

    None stands for an edge of the `topology` that is no resource.
    """
    within = inside_servers(topology).tolist()
    slower = {
        (beta, inside): None if beta is None else beta / (costs.inside if inside else costs.across)
        for beta, inside in {(edge.beta, within[edge.id]) for edge in topology.edges}
    }
    return tuple(slower[edge.beta, within[edge.id]] for edge in topology.edges)


def least_costs(topology: Topology, *costs: ProgramCosts) -> Topology:
    """Return a `topology` whose bounds, and the least launch, hold for all with any such `costs`.

    Messages that share edges are the limit of ever finer chunks that take turns on them, alpha
    holding nothing, and what holds for all chunk counts under the rule ``delay`` holds in the limit
    as well. Threadblocks, slots and local work only add to that. A link has exactly one edge that
    leaves a rank: on it is the least alpha of all protocols. Data puts at least as many bytes on
    the wire as with the protocol that has the fewest.
    """
    rows = [row for each in costs for row in each.protocols.values()]
    across = min(row.alpha_across for row in rows), min(row.wire * row.detour for row in rows)
    inside = min(row.alpha for row in rows), min(row.wire for row in rows)
    if topology.num_servers > 1:  # on what links within a server use others may leave it
        inside = min(inside[0], across[0]), min(inside[1], across[1])
    local = inside_servers(topology)
    payloads = zip(*(payload_betas(topology, each) for each in costs), strict=True)
    betas = [min((beta for beta in own if beta is not None), default=None) for own in payloads]
    edges = []
    for edge, beta in zip(topology.edges, betas, strict=True):
        alpha, wire = inside if local[edge.id] else across
        edges.append(replace(
            edge, alpha=alpha * (edge.tail < topology.num_ranks), overhead=0,
            beta=None if beta is None else beta * wire,
        ))  # fmt: skip
    launch = min(row.launch for row in rows)
    return topology.with_alpha_rule("delay").with_costs(edges, LocalCosts(launch=launch))


MANY_RANKS = 256
"""Ranks above which one network stands for all protocols: there bounds take seconds."""


def floor_networks(topology: Topology, costs: ProgramCosts) -> tuple[Topology, ...]:
    """Return topologies like that of :func:`least_costs`, one for each protocol of the `costs`.

    A program has one protocol. So it takes no less than the bound of that one, its launch included,
    and none takes less than the least of all.
    """
    if topology.num_ranks > MANY_RANKS:
        return (least_costs(topology, costs),)
    alone = (replace(costs, protocols={name: row}) for name, row in costs.protocols.items())
    return tuple(least_costs(topology, one) for one in alone)


def charged_network(topology: Topology, protocol: str) -> Topology:
    """Return a `topology` whose messages cost what those of a `protocol` do, as it was measured.

    What engines search on: a message holds its edges for the time of its bytes, those on the wire,
    and arrives alpha later (rule ``delay``), and a flag later: who passes it on is most often
    another threadblock. The measured costs are kept and mean the same there.

    Raises ProgramError when the topology has no measured costs of the protocol.
    """
    sharing, costs = sharing_of(topology, protocol), topology.measured
    if costs is None:
        return topology
    wire, local = sharing.wire / WORK, inside_servers(topology)
    wires = wire * sharing.detour, wire
    edges = [
        replace(
            edge,
            alpha=(sharing.alpha if local[edge.id] else sharing.alpha_across) + sharing.flag
            if edge.tail < topology.num_ranks else 0,
            overhead=0, beta=None if beta is None else beta * wires[int(local[edge.id])],
        )
        for edge, beta in zip(topology.edges, payload_betas(topology, costs), strict=True)
    ]  # fmt: skip
    known = replace(costs, inside=wires[1], across=wires[0])
    kept = replace(topology, alpha_rule="delay", measured=known)
    return kept.with_costs(edges, sharing.local)


@dataclass(frozen=True, slots=True)
class ReplayModel:
    """The constants of a runtime that its interpreter's timing depends on.

    `name` is what results call it. By protocol, `message_bytes` has ``M``, the bytes of one FIFO
    message, and `slots` the messages that a connection holds. Chunks hold whole elements of
    `element_bytes`. Where it is `measured`, programs are charged the measured costs of their
    topology: messages share edges, and alpha holds nothing.
    """

    name: str
    message_bytes: Mapping[str, int]
    slots: Mapping[str, int]
    element_bytes: int = 4
    measured: bool = False

    def of_protocol(self, protocol: str) -> tuple[int, int]:
        """Return message bytes and FIFO slots of a protocol.

        Raises ProgramError when the runtime has no such protocol.
        """
        if protocol not in self.message_bytes:
            raise ProgramError(
                f"unknown protocol {protocol[:40]!r}",
                fix=f"use one of {', '.join(self.message_bytes)}",
            )
        return self.message_bytes[protocol], self.slots[protocol]

    def joined(self, protocol: str, collective: str, chunk_bytes: Fraction | int) -> int:
        """Return how many chunks of a step travel as one message, each of some `chunk_bytes`.

        They are those of a program with a `protocol`, of a `collective` by name.

        Raises ProgramError when the runtime has no such protocol.
        """
        message, _ = self.of_protocol(protocol)
        room = joined_bytes(message, protocol, collective)
        return max(1, min(MAX_COUNT, int(room // chunk_bytes)))


def model_of(runtime: str, element_bytes: int = 4) -> ReplayModel:
    """Return the constants of ``runtime``, a name of ``RUNTIMES``, for ``element_bytes`` each."""
    row = RUNTIMES[runtime]
    return ReplayModel(row.name, row.message_bytes, row.fifo_slots, element_bytes)


def local_time(op: Op, local: LocalCosts, size: Fraction | int, sources: int = 1) -> Time:
    """Return how long the work of a step's ``op`` on one message of ``size`` bytes takes.

    A plain send and a forwarding copy work while the data is on the wire. ``local`` has the
    picoseconds a byte of copies and of reductions; ``sources`` counts the operands of a fused
    reduction.
    """
    if op in (Op.COPY, Op.RECV):
        return ceil_time(local.copy_beta, size)
    if op is Op.REDUCE:
        return ceil_time(local.reduce_beta, sources * size)
    if op in (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND):
        return ceil_time(local.reduce_beta, size)
    return 0
