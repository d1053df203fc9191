"""What the programs of a schedule take, told before there are any.

Making and replaying all programs of a schedule takes a hundred times as long as timing its messages
once more. So those are timed once more, on a network on which they cost what those of a program do.
A schedule has no slices: of chunks that are longer than a message, the first iteration takes what
messages of one slice take, and those after it follow as fast as the busiest edge lets them.

With measured costs, besides:

- a protocol has its launch, its alphas, and its bytes on the wire for each byte of data;
- a connection is a resource of its own, as fast as the threadblocks of its instances together;
- an edge within a server that several links use carries less, where that was measured;
- a FIFO slot holds few chunks, so that the others of a message follow in messages of their own;
- ``M`` bytes of a chunk, in each instance, are one iteration.

The least of all protocols, with one instance and with as many as there are threadblocks for, is
what the best program is expected to take. It is no bound: the order of sends, sums, local copies
and flags are left out, and slices that are passed on early. ``python -m benchmarks.orders`` tells
in how many pairs it puts schedules in the order of their programs.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taccl.model.schedule import Decisions, Schedule, retime
from taccl.replay.cost import (
    MANY_RANKS,
    ReplayModel,
    charged_network,
    inside_servers,
    measured_costs,
)
from taccl.topology.graph import Topology
from taccl.topology.symmetry import make_group
from taccl.units import Time

MOST_INSTANCES = 32
"""Instances of a program that are tried, at most."""


def expected_time(
    schedule: Schedule,
    model: ReplayModel,
    protocols: Iterable[str],
    threadblocks: int,
    instances: int | None = None,
    *,
    fused: bool = False,
) -> Time:
    """Return the picoseconds that the best program of a `schedule` is expected to take.

    `model` has the constants of its runtime, `protocols` are those to choose from; a rank has so
    many `threadblocks`, and there are so many `instances` (None: as many as pay). With `fused`
    steps a threadblock passes on what it receives: nobody waits for its flags.

    Of many ranks, of chunks that are made in time, and of what switches copy or add, the schedule's
    own makespan stands for it.
    """
    topology, collective = schedule.topology, schedule.collective
    if topology.num_ranks > MANY_RANKS or collective.is_timed or len(schedule.fans):
        return schedule.makespan
    if not model.measured:
        protocols = tuple(protocols)
        message = max(model.of_protocol(protocol)[0] for protocol in protocols)
        iterations = -(-schedule.chunk_size // ((instances or 1) * message))
        if iterations <= 1:
            share = schedule.chunk_size / (instances or 1)
            joined = max(model.joined(name, collective.name, share) for name in protocols)
            decisions = schedule.decisions()
            if np.bincount(decisions.batch).max(initial=0) <= joined:
                return schedule.makespan
            cut = replace(decisions, batch=split_batches(decisions, joined))
            try:
                made = retime(collective, schedule.group, schedule.chunk_size, cut)
            except ValueError:
                return schedule.makespan
            return made.makespan
        first = retime(
            collective, schedule.group, schedule.chunk_size / iterations, schedule.decisions()
        )
        busiest = max(first.edge_busy)
        # Nor can the schedule tell what a message in every iteration costs.
        least = max(schedule.makespan, iterations * busiest)
        return min(least, first.makespan + (iterations - 1) * busiest)
    costs, decisions = measured_costs(topology).protocols, schedule.decisions()
    counts = (instances,) if instances else (1, most_instances(schedule, threadblocks))
    crowded = crowded_edges(schedule)
    expected: list[Time] = []
    for protocol in protocols:
        message, _ = model.of_protocol(protocol)
        for count in dict.fromkeys(counts):
            iterations = max(1, -(-schedule.chunk_size // (count * message)))
            joined = model.joined(protocol, collective.name, schedule.chunk_size / count)
            network = connected_network(topology, protocol, count, crowded, fused=fused)
            group = make_group(network, schedule.generators)
            with suppress(ValueError):
                first = retime(
                    collective, group, schedule.chunk_size / iterations,
                    replace(decisions, batch=split_batches(decisions, joined)),
                )  # fmt: skip
                others = (iterations - 1) * max(first.edge_busy) if iterations > 1 else 0
                expected.append(costs[protocol].launch + first.makespan + others)
    return min(expected, default=schedule.makespan)


@lru_cache(maxsize=32)
def connected_network(
    topology: Topology,
    protocol: str,
    instances: int,
    crowded: frozenset[int] = frozenset(),
    *,
    fused: bool = False,
) -> Topology:
    """Return a `topology` of which every link is as fast as its threadblocks, of some `instances`.

    Messages cost what those of a `protocol` do (:func:`taccl.replay.cost.charged_network`), and
    `crowded` edges carry what is left to several peers. With `fused` steps there are no flags.
    """
    network, costs = charged_network(topology, protocol), measured_costs(topology)
    rate = costs.protocols[protocol].block_beta
    if crowded or fused:
        flag, edges = costs.flag * fused, []
        for edge in network.edges:
            beta, out = edge.beta, edge.tail < topology.num_ranks
            slower = beta / costs.several if beta and edge.id in crowded else beta
            edges.append(replace(edge, alpha=edge.alpha - flag * out, beta=slower))
        network = network.with_costs(edges, network.local)
    return network.with_connections(rate / instances) if rate else network


def crowded_edges(schedule: Schedule) -> frozenset[int]:
    """Return the edges within servers that several links of a `schedule` use, where that counts."""
    topology = schedule.topology
    if measured_costs(topology).several == 1:
        return frozenset()
    table, used = topology.links, np.zeros(len(topology.links.src), np.bool_)
    used[schedule.expand().link] = True
    links = np.bincount(
        table.edge_ids[np.repeat(used, np.diff(table.edge_start))], minlength=len(topology.edges)
    )
    return frozenset(np.flatnonzero((links > 1) & inside_servers(topology)).tolist())


def most_instances(schedule: Schedule, threadblocks: int) -> int:
    """Return the largest power of two of instances for which a rank has `threadblocks`.

    In each of them a threadblock serves a peer that the rank sends to or receives from in the
    `schedule`.
    """
    links, ranks = schedule.topology.links, schedule.topology.num_ranks
    used = np.unique(schedule.expand().link)
    src, dst = links.src[used].astype(np.int64), links.dst[used].astype(np.int64)
    pairs = np.unique(np.concatenate([src * ranks + dst, dst * ranks + src]))
    peers = int(np.bincount(pairs // ranks).max(initial=1))
    return min(MOST_INSTANCES, 1 << (max(1, threadblocks // peers).bit_length() - 1))


def split_batches(decisions: Decisions, most: int) -> NDArray[np.int32]:
    """Return the batches of `decisions` where a message has at most so many chunks."""
    is_first = np.diff(decisions.batch, prepend=-1) != 0
    row, first = np.arange(len(is_first)), np.flatnonzero(is_first)
    place = row - first[np.cumsum(is_first) - 1]
    batch: NDArray[np.int32] = (np.cumsum(place % most == 0) - 1).astype(np.int32)
    return batch
