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
from taccl.collectives import Collective
from taccl.collectives import collective_name as canonical_name
from taccl.synth.problem import Bound
from taccl.topology import LogicalTopology

IDEAS: tuple[Callable[[Net, str], Iterator[Crossing]], ...] = (
    latency_crossings, port_crossings, cut_crossings, flow_crossings, reduce_crossings,
)  # fmt: skip


def any_curves(logical: LogicalTopology, collective_name: str) -> tuple[Curve, ...]:
    """Return the bounds that hold for every algorithm, chunking and batching, for all sizes.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    name = canonical_name(collective_name)
    net = make_net(logical)
    curves = [flat("latency", farthest(net))]
    for crossing in _distinct(net, name):
        curve = fluid(crossing.kind, crossing.gates, crossing.share)
        if curve is not None:
            curves.append(curve)
    return tuple(dict.fromkeys(curves))


def any_bounds(logical: LogicalTopology, collective_name: str, size: int) -> tuple[Bound, ...]:
    """Return the best bound of each kind for every algorithm, chunking and batching.

    The world is ``any``, or ``sketch`` when a sketch restricts the links.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    world = "any" if logical.name is None else "sketch"
    curves = any_curves(logical, collective_name)
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
    net = make_net(logical, Fraction(chunk_size))
    chunks = collective.num_ranks * collective.chunks_per_rank
    found = {"latency": farthest(net)}
    for crossing in _distinct(net, collective.name):
        so_far = found.get(crossing.kind, 0)
        found[crossing.kind] = whole(crossing.gates, crossing.share * chunks, so_far)
    return tuple(Bound(kind, "fixed", time) for kind, time in found.items())


def best(bounds: Sequence[Bound]) -> Bound:
    """Return the largest bound, the first of equals.

    Raises
    ------
    ValueError
        When there is none.
    """
    return max(bounds, key=lambda bound: bound.time)


def _distinct(net: Net, name: str) -> Iterator[Crossing]:
    seen: set[Crossing] = set()
    for idea in IDEAS:
        for crossing in idea(net, name):
            if crossing not in seen and crossing.share > 0:
                seen.add(crossing)
                yield crossing
