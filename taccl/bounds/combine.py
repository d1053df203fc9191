"""The best bound of each kind, from all ideas together, and what each kind says and holds for.

*Chunks that are ready later, and needed earlier, than others: what this adds to every bound*.

Take the chunks that are ready at theta or later and have a tail of phi or more. No source has any
of them before theta, and once the last of them is where it is wanted phi is still to come. So

    theta + (a bound of these chunks alone, as if ready at once) + phi

is a bound of the whole, for every theta and phi: what else there is only makes it take longer. For
chunks of one index of a collective of the table, what remains is the same collective on fewer
bytes. One chunk alone takes its ready time, its distance, and its tail; there ranks that are late
with their own values count, too (what is summed waits for all, what is copied for the best source).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Curve, flat, fluid, whole
from taccl.bounds.cut import cut_crossings, loop_crossings, port_crossings, shared_crossings
from taccl.bounds.dissemination import dissemination_time
from taccl.bounds.flow import flow_crossings
from taccl.bounds.gossip import gossip_time
from taccl.bounds.last_arrival import last_arrival_time
from taccl.bounds.latency import farthest, latency_crossings, without_latency
from taccl.bounds.net import FAR, MOST_RANKS, Crossing, Net, has_many_links, make_net
from taccl.bounds.packing import packing_crossings
from taccl.bounds.reduce import reduce_crossings
from taccl.bounds.rounds import round_crossings
from taccl.bounds.time_expanded import time_expanded_time
from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.model.problem import Bound
from taccl.topology.graph import LogicalTopology, Topology
from taccl.units import Time

KINDS: Mapping[str, str] = MappingProxyType({
    "latency": "how far data must go by alpha (weighted diameter), plus its bytes on the last link",
    "reach": "dissemination time under port limits: how soon one rank's data can reach all",
    "port": "bytes through the busiest rank, server or ranks that share a NIC, by its bandwidth",
    "cut": "bytes that must leave a set of ranks, by the bandwidth out of it; the worst set",
    "packing": "a spanning tree for every chunk, at the edge prices of the optimal tree packing",
    "flow": "a shortest path for all data, at the edge prices of the optimal multi-commodity flow",
    "drain": "the last arrival at a set of ranks, which must still spread inside it",
    "growth": "data that enters a server must still be doubled inside, one message at a time",
    "rounds": "messages one after the other, with no more than their senders knew, and all bytes",
    "time-expanded": "routes and times together: a flow through links at all times, at its prices",
    "message": "all of these, with an alpha for every message of the runtime's largest size",
    "loop": "edges of one switch through which each rank's own value goes, too",
    "reduce": "2(n-1) messages for every piece, at the edge prices of the optimal tree packing",
})  # fmt: skip

ASSUMED = "messages go from one rank to one rank: switches copy and add nothing; no network coding"
"""What all of them assume, but for the world ``any`` where switches can do more."""

ASSUMED_OF_SWITCHES = "switches copy and add where the topology says so; no network coding"
"""What bounds in the world ``any`` assume where they can."""

ANY, POINT_TO_POINT = "any", "point-to-point"

WORLDS: Mapping[str, str] = MappingProxyType({
    ANY: "every algorithm, in any number of chunks and batches",
    POINT_TO_POINT: "every algorithm in which only ranks copy and add, as in every MSCCL XML",
    "program": "every program of the runtime, whose messages have a largest size",
    "fixed": "every algorithm with this chunk count and one chunk to a message",
    "sketch": "every algorithm on the links that the sketch allows, in any chunks and batches",
})  # fmt: skip


def any_of(kind: str, world: str = ANY) -> str:
    """Return what no bound of a `kind`, in a `world`, is above: any algorithm, or any program."""
    if kind == "message":
        return "any program"
    return "any point-to-point algorithm" if world == POINT_TO_POINT else "any algorithm"


IDEAS: tuple[Callable[[Net, Collective], Iterator[Crossing]], ...] = (
    latency_crossings, port_crossings, shared_crossings, cut_crossings, flow_crossings,
    packing_crossings, reduce_crossings, loop_crossings, round_crossings,
)  # fmt: skip
"""What crosses which edges; each looks at the helpers of a net, if it has any."""

Named = tuple[str, int, int | None] | Collective
"""A collective of the table by name, chunks for each rank and root; or one from a file."""

KEPT = 32
"""Answers that are kept: searches ask for the same bounds for many candidates."""

TIMES: Mapping[str, Callable[[Net, Collective], Time]] = MappingProxyType({
    "latency": farthest, "reach": dissemination_time,
})  # fmt: skip


def any_curves(
    logical: LogicalTopology, collective: Collective | str, world: str = POINT_TO_POINT
) -> tuple[Curve, ...]:
    """Return the bounds that hold for every algorithm, chunking and batching, for all sizes.

    `logical` is the network, as the sketch restricts it; `collective` is what is done, in any
    number of chunks (a name of the table stands for root 0). In the `world` ``point-to-point``
    switches only pass messages on, as they do for every XML; in ``any`` they copy and add where the
    topology says so. Where none can, the two are the same, and under a sketch only the first is
    looked at.

    Raises NoScheduleError when some rank can't be reached from another.
    """
    if isinstance(collective, str):
        collective = build_collective(collective, logical.topology.num_ranks, 1)
    network = (logical.topology, logical.allowed.tobytes())
    fans = world == ANY and bool(logical.allowed.all()) and logical.topology.copies_or_adds
    if not collective.is_timed:
        return _curves(*network, _named(collective, 1), fans=fans)
    net = make_net(logical, collective, fans=fans)
    curves = [flat("latency", longest_wait(net, collective))]
    for part, share, wait in parts_of(collective):
        curves += (
            Curve(curve.kind, tuple((base + wait, slope * share) for base, slope in curve.lines))
            for curve in _curves(*network, _named(part, 1), fans=fans)
        )
    return tuple(dict.fromkeys(curves))


def any_bounds(
    logical: LogicalTopology,
    collective: Collective | str,
    size: int,
    message_bytes: int | None = None,
    world: str = POINT_TO_POINT,
    seconds: float = 0.0,
) -> tuple[Bound, ...]:
    """Return the best bound of each kind for every algorithm, chunking and batching.

    `logical`, `collective`, `world` and the errors are as for :func:`any_curves`; `size` is the
    bytes of the counted buffer. The bounds are of the world that was asked for, which is called
    ``any`` where switches can't make a difference, and ``sketch`` when a sketch restricts the
    links. With `message_bytes` there is one more, in the world ``program``: for programs whose
    messages have at most so many bytes. With `seconds` that it may take there is the one that holds
    for a single size, if it is the largest.
    """
    found: dict[str, int] = {}
    for curve in any_curves(logical, collective, world):
        found[curve.kind] = max(found.get(curve.kind, 0), curve.at(size))
    fans = world == ANY and logical.topology.copies_or_adds
    if seconds and found and not fans:
        if isinstance(collective, str):
            collective = build_collective(collective, logical.topology.num_ranks, 1)
        known = max(found.values())
        net = make_net(logical, collective)
        least = time_expanded_time(net, collective.timed(), size, known, seconds)
        found |= {"time-expanded": least} if least > known else {}
    if logical.name is not None:
        world = "sketch"
    elif world == POINT_TO_POINT and not logical.topology.copies_or_adds:
        world = ANY
    bounds = tuple(Bound(kind, world, time) for kind, time in found.items())
    if message_bytes is None:
        return bounds
    curves = program_curves(logical, collective, message_bytes)
    return (*bounds, Bound("message", "program", max(curve.at(size) for curve in curves)))


def program_curves(
    logical: LogicalTopology, collective: Collective | str, message_bytes: int
) -> tuple[Curve, ...]:
    """Return the bounds that hold for programs whose messages have at most so many bytes.

    `logical`, `collective` and the errors are as for :func:`any_curves`, `message_bytes` the bytes
    of the largest message.
    """
    topology = without_latency(logical.topology, message_bytes)
    curves = any_curves(replace(logical, topology=topology), collective, POINT_TO_POINT)
    return tuple(replace(curve, kind="message") for curve in curves)


def fixed_bounds(
    logical: LogicalTopology, collective: Collective, chunk_size: Fraction
) -> tuple[Bound, ...]:
    """Return the best bound of each kind for this chunk count with one chunk per message.

    Messages are from rank to rank, whatever switches can do: what flows through fans together has
    no messages of single chunks. Of so many links that each edge is looked at alone these are the
    bounds for every chunk count, which hold for this one, too. `logical` is the network, as the
    sketch restricts it; `collective` is what is done, with its chunk count; `chunk_size` is the
    bytes of a chunk, exact. Errors are those of :func:`any_curves`.
    """
    if has_many_links(logical):
        size = int(chunk_size * collective.chunks_in_size)
        bounds = any_bounds(logical, collective, size, world=POINT_TO_POINT)
        return tuple(replace(bound, world="fixed") for bound in bounds)
    network = (logical.topology, logical.allowed.tobytes())
    if not collective.is_timed:
        named = _named(collective, collective.chunks_per_rank)
        return _fixed(*network, named, Fraction(chunk_size))
    net = make_net(logical, collective, Fraction(chunk_size))
    found = {"latency": longest_wait(net, collective)}
    for part, _, wait in parts_of(collective):
        for bound in _fixed(*network, _named(part, part.chunks_per_rank), Fraction(chunk_size)):
            found[bound.kind] = max(found.get(bound.kind, 0), bound.time + wait)
    return tuple(Bound(kind, "fixed", time) for kind, time in found.items())


def fixed_floor(
    logical: LogicalTopology, collective: Collective, chunk_size: Fraction
) -> Callable[[str], Time]:
    """Return what, called with a name, has the picoseconds that no schedule of single chunks beats.

    Names are the collective's own or, of an AllReduce, those of its two phases; 0 for others.
    `logical` is the network, as the sketch restricts it, `collective` what is done, in chunks of
    `chunk_size` bytes. Bounds are proved when they are asked for.
    """
    phases: tuple[Collective, ...] = (collective,)
    if collective.name == "allreduce":
        phases = tuple(
            build_collective(name, collective.num_ranks, collective.chunks_per_rank)
            for name in ("reducescatter", "allgather")
        )
    known = {phase.name: phase for phase in phases}

    def floor(name: str) -> Time:
        phase = known.get(name)
        return 0 if phase is None else best(fixed_bounds(logical, phase, chunk_size)).time

    return floor


def _named(collective: Collective, chunks: int) -> Named:
    """Return what tells a collective from others: of the table name, chunks for a rank and root."""
    if collective.name in COLLECTIVES:
        return (collective.name, chunks, collective.root)
    return collective


def _net(
    topology: Topology, allowed: bytes, named: Named, chunk: Fraction | None, *, fans: bool
) -> tuple[Net, Collective]:
    logical = LogicalTopology(topology, np.frombuffer(allowed, dtype=np.bool_))
    if isinstance(named, Collective):
        collective = named
    else:
        name, chunks, root = named
        collective = build_collective(name, topology.num_ranks, chunks, root)
    return make_net(logical, collective, chunk, fans=fans), collective


@lru_cache(maxsize=KEPT)
def _curves(topology: Topology, allowed: bytes, named: Named, *, fans: bool) -> tuple[Curve, ...]:
    net, collective = _net(topology, allowed, named, None, fans=fans)
    curves = [
        flat(kind, time(net, collective)) for kind, time in TIMES.items()
        if not (net.helpers and kind == "reach")  # a fan tells many at once
    ]  # fmt: skip
    if least := gossip_time(net, collective):
        curves.append(flat("rounds", least))
    crossings = _crossings(net, collective)
    fluids = (fluid(crossing.kind, crossing.gates, crossing.share) for crossing in crossings)
    return tuple(dict.fromkeys([*curves, *filter(None, fluids)]))


@lru_cache(maxsize=KEPT)
def _fixed(
    topology: Topology, allowed: bytes, named: Named, chunk_size: Fraction
) -> tuple[Bound, ...]:
    net, collective = _net(topology, allowed, named, chunk_size, fans=False)
    times = {**TIMES, "drain": last_arrival_time}
    found = {kind: time(net, collective) for kind, time in times.items()}
    for crossing in _crossings(net, collective):
        so_far, needed = found.get(crossing.kind, 0), crossing.share * collective.chunks_in_size
        found[crossing.kind] = whole(crossing.gates, needed, so_far)
    return tuple(Bound(kind, "fixed", time) for kind, time in found.items())


def _crossings(net: Net, collective: Collective) -> Iterable[Crossing]:
    """Return what all ideas hand over, each once."""
    found = (crossing for idea in IDEAS for crossing in idea(net, collective))
    return dict.fromkeys(crossing for crossing in found if crossing.share > 0)


def best(bounds: Sequence[Bound]) -> Bound:
    """Return the largest bound, the first of equals.

    Raises ValueError when there is none.
    """
    return max(bounds, key=lambda bound: bound.time)


MOST_MOMENTS = 12
"""Ready times, and tails, that are looked at: of more, every so many."""

MOST_PAIRS = 4096
"""Sets of sources and targets up to which every pair is looked at."""


class Part(NamedTuple):
    """Some chunks, as a `collective` without times, and what comes before and after, together.

    `share` is bytes of its size for each byte of the whole's, and `wait` picoseconds.
    """

    collective: Collective
    share: Fraction
    wait: Time


def parts_of(collective: Collective) -> Iterator[Part]:
    """Yield the chunks of a `collective` from every ready time and every tail on; first all."""
    nothing = np.zeros(collective.num_chunks, dtype=np.int64)
    ready, tail = (nothing if c is None else c for c in (collective.ready, collective.tail))
    last: dict[bytes, Part] = {}
    for begin in _moments(ready):
        for rest in _moments(tail):
            chosen = (ready >= begin) & (tail >= rest)
            if not chosen.any():
                continue
            key, wait = chosen.tobytes(), begin + rest
            if key not in last or last[key].wait < wait:
                last[key] = _part(collective, chosen, wait)
    yield from last.values()


def _moments(times: NDArray[np.int64]) -> list[Time]:
    found: list[Time] = np.unique(np.append(times, 0)).tolist()
    step = -(-len(found) // MOST_MOMENTS)
    return found if step == 1 else sorted({*found[::step], found[-1]})


def _part(collective: Collective, chosen: NDArray[np.bool_], wait: Time) -> Part:
    if chosen.all():
        return Part(collective.timed(), Fraction(1), wait)
    whole = collective.chunks_in_size
    index = np.unique(collective.index[chosen])
    if collective.name in COLLECTIVES and (np.isin(collective.index, index) == chosen).all():
        fewer = build_collective(
            collective.name, collective.num_ranks, len(index), collective.root
        )  # fmt: skip
        return Part(fewer, Fraction(fewer.chunks_in_size, whole), wait)
    number = np.cumsum(chosen) - 1

    def kept(elsewhere: Mapping[tuple[int, int], int]) -> Mapping[tuple[int, int], int]:
        places = ((chunk, rank, at) for (chunk, rank), at in elsewhere.items() if chosen[chunk])
        return {(int(number[chunk]), rank): at for chunk, rank, at in places}

    some = replace(
        collective.timed(), name=f"part of {collective.name}", root=None,
        source_set=collective.source_set[chosen], target_set=collective.target_set[chosen],
        input_at=collective.input_at[chosen], output_at=collective.output_at[chosen],
        owner=collective.owner[chosen], index=collective.index[chosen],
        input_elsewhere=kept(collective.input_elsewhere),
        output_elsewhere=kept(collective.output_elsewhere),
    )  # fmt: skip
    return Part(some, Fraction(some.chunks_in_size, whole), wait)


def longest_wait(net: Net, collective: Collective) -> Time:
    """Return how soon (ps) each chunk of a `collective` alone can be over on `net`; the last of it.

    0 where there are too many ranks, or kinds of chunks.
    """
    if net.num_ranks > MOST_RANKS:
        return 0
    late = np.zeros(net.num_ranks, dtype=np.int64) if collective.late is None else collective.late
    extra = np.zeros(collective.num_chunks, dtype=np.int64)
    for column in (collective.ready, collective.tail):
        extra = extra if column is None else extra + column
    sets = collective.rank_sets
    pair = collective.source_set.astype(np.int64) * len(sets) + collective.target_set
    pairs, which = np.unique(pair, return_inverse=True)
    if len(pairs) > MOST_PAIRS:
        return 0
    longest = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(longest, which, extra)
    latest = 0
    for key, wait in zip(pairs.tolist(), longest.tolist(), strict=True):
        sources, targets = sets[key // len(sets)], sets[key % len(sets)]
        way = late[list(sources)][:, None] + net.distance[np.ix_(sources, targets)]
        # A copy may come from the best of its sources, a sum has parts of all.
        far = int(way.max() if collective.reduces else way.min(axis=0).max())
        latest = max(latest, wait + far if far < FAR else 0)
    return latest
