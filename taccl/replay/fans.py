"""What operations on switch channels take where the switches copy and add: as fans of a schedule.

Operations of several threadblocks that come at one time flow together, like a batch of fans
(:mod:`taccl.timing.message_costs`): what they bring is added up edge by edge, engines and what goes
through the switch for its own sender included, and all last as long as the busiest edge.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from taccl.replay.compile import ROUTED, Connection
from taccl.synth.templates.in_network import tree
from taccl.timing.message_costs import fan_uses
from taccl.topology.fans import Fan, FanTable, make_fans, wrong_fan
from taccl.topology.graph import Rank, Topology
from taccl.topology.symmetry import make_group


class Flow(NamedTuple):
    """What an operation moves: `size` bytes on a `fan`."""

    fan: Fan
    size: int


@lru_cache(maxsize=1 << 12)
def fan_of(
    topology: Topology, rank: Rank, sources: tuple[Rank, ...], targets: tuple[Rank, ...]
) -> Fan | None:
    """Return the fan of an operation of a `rank` on a switch channel of a `topology`.

    It reads the sum of `sources`, or what the rank has (none), and stores it at `targets`. None
    where the switches can't.
    """
    into = tree(topology, rank, [one for one in sources if one != rank], inward=True)
    out = tree(topology, rank, [one for one in targets if one != rank], inward=False)
    if out is None or (sources and into is None):
        return None
    fan = Fan(rank, (into or ()) if sources else (), out)
    return None if wrong_fan(topology, fan) else fan


def together(flows: Sequence[Flow], topology: Topology) -> list[list[int]]:
    """Return which `flows`, by their positions, share edges of a `topology` with which."""
    found: list[tuple[set[int], list[int]]] = []
    for place, flow in enumerate(flows):
        own = {edge for arc in (*flow.fan.into, *flow.fan.out) for edge in
               topology.arcs.edges_of(arc)}  # fmt: skip
        joined = [place]
        for one in [one for one in found if one[0] & own]:
            found.remove(one)
            own, joined = own | one[0], one[1] + joined
        found.append((own, sorted(joined)))
    return [places for _, places in found]


@lru_cache(maxsize=64)
def _table(topology: Topology, fans: tuple[Fan, ...]) -> FanTable:
    return make_fans(topology, fans)


def connection_of(flows: Sequence[Flow], topology: Topology) -> Connection:
    """Return what a message of all bytes of `flows`, which flow together, does to a `topology`."""
    fans = _table(topology, tuple(dict.fromkeys(flow.fan for flow in flows)))
    number = {fan: place for place, fan in enumerate(fans)}
    uses = fan_uses(
        make_group(topology, ()), Fraction(1), np.zeros(len(flows), np.int64),
        np.array([number[flow.fan] for flow in flows], np.int64), fans,
        np.array([flow.size for flow in flows], np.int64),
    )  # fmt: skip
    size = max(1, sum(flow.size for flow in flows))
    held = uses.held.tolist()
    longest = max(held, default=0)
    turn, reached = flows[0].fan.turn, fans.ranks(0)
    other = next(rank for rank in (*reached[1], *reached[0]) if rank != turn)
    return Connection(
        turn, other, 0, ROUTED, int(uses.arrival[0]) - longest, 0,
        tuple(zip(uses.resource.tolist(), (Fraction(time, size) for time in held), strict=True)),
    )  # fmt: skip
