"""All ideas together: the best bound of each kind."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from taccl.bounds.crossing import Crossing
from taccl.bounds.flow import flow_crossings
from taccl.bounds.gates import Curve, flat, fluid, whole
from taccl.bounds.latency import farthest, latency_crossings
from taccl.bounds.net import Net, make_net
from taccl.bounds.port import cut_crossings, port_crossings
from taccl.bounds.reduce import reduce_crossings
from taccl.collectives import Collective, build_collective
from taccl.synth.problem import Bound
from taccl.topology import LogicalTopology

IDEAS: tuple[Callable[[Net, Collective], Iterator[Crossing]], ...] = (
    latency_crossings, port_crossings, cut_crossings, flow_crossings, reduce_crossings,
)  # fmt: skip


def any_curves(logical: LogicalTopology, collective: Collective | str) -> tuple[Curve, ...]:
    """Return the bounds that hold for every algorithm, chunking and batching, for all sizes.

    Parameters
    ----------
    collective
        What is done, in any number of chunks; a name of the table stands for root 0.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    if isinstance(collective, str):
        collective = build_collective(collective, logical.topology.num_ranks, 1)
    net = make_net(logical, collective)
    curves = [flat("latency", farthest(net, collective))]
    for crossing in _distinct(net, collective):
        curve = fluid(crossing.kind, crossing.gates, crossing.share)
        if curve is not None:
            curves.append(curve)
    return tuple(dict.fromkeys(curves))


def any_bounds(
    logical: LogicalTopology, collective: Collective | str, size: int
) -> tuple[Bound, ...]:
    """Return the best bound of each kind for every algorithm, chunking and batching.

    The world is ``any``, or ``sketch`` when a sketch restricts the links.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    world = "any" if logical.name is None else "sketch"
    curves = any_curves(logical, collective)
    found: dict[str, int] = {}
    for curve in curves:
        found[curve.kind] = max(found.get(curve.kind, 0), curve.at(size))
    return tuple(Bound(kind, world, time) for kind, time in found.items())


def fixed_bounds(
    logical: LogicalTopology, collective: Collective, chunk_size: Fraction
) -> tuple[Bound, ...]:
    """Return the best bound of each kind for this chunk count with one chunk per message.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    net = make_net(logical, collective, Fraction(chunk_size))
    found = {"latency": farthest(net, collective)}
    for crossing in _distinct(net, collective):
        so_far, needed = found.get(crossing.kind, 0), crossing.share * collective.chunks_in_size
        found[crossing.kind] = whole(crossing.gates, needed, so_far)
    return tuple(Bound(kind, "fixed", time) for kind, time in found.items())


def best(bounds: Sequence[Bound]) -> Bound:
    """Return the largest bound, the first of equals.

    Raises
    ------
    ValueError
        When there is none.
    """
    return max(bounds, key=lambda bound: bound.time)


def _distinct(net: Net, collective: Collective) -> Iterator[Crossing]:
    seen: set[Crossing] = set()
    for idea in IDEAS:
        for crossing in idea(net, collective):
            if crossing not in seen and crossing.share > 0:
                seen.add(crossing)
                yield crossing
