"""A runtime sends no large message: its latency is paid again for every so many bytes.

Let messages be of at most M bytes. One of s bytes holds an edge for o + beta s, o the overhead of
its link, which is at least (o / M + beta) s; and it arrives no sooner than after the largest such
time. So what programs of the runtime do on a network takes no longer on one where messages cost
nothing but o / M + beta for each byte, and all that bounds say of that one holds for programs.
For large buffers this is more than the bounds for any algorithm, in which the latency is paid once.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from taccl.topology import LogicalTopology, Topology

KIND = "message"
"""The kind of bound."""


@lru_cache(maxsize=8)
def without_latency(topology: Topology, message_bytes: int) -> Topology:
    """Return the network on which the latency of messages of so many bytes is part of each byte.

    Betas are exact, in picoseconds a byte; no message has alpha or overhead.
    """
    table = topology.links
    least = np.full(len(topology.edges), np.iinfo(np.int64).max, dtype=np.int64)
    owner = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    np.minimum.at(least, table.edge_ids, table.overhead[owner])
    least[np.setdiff1d(np.arange(len(least)), table.edge_ids)] = 0  # no link, no message
    edges = [
        replace(
            edge, alpha=0, overhead=0,
            beta=None if edge.beta is None else edge.beta + Fraction(int(own), message_bytes),
        )
        for edge, own in zip(topology.edges, least, strict=True)
    ]  # fmt: skip
    return topology.with_costs(edges)


def in_messages(logical: LogicalTopology, message_bytes: int) -> LogicalTopology:
    """Return the same for the links that are allowed."""
    return replace(logical, topology=without_latency(logical.topology, message_bytes))
