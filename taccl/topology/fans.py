"""Fans: what switches copy and add, each an in-tree of arcs to a turn and an out-tree from it.

A fan carries one chunk at one time. The values of the ranks at the leaves of its in-tree are added
on the way to its turn, a rank or a switch, and the sum goes to the leaves of its out-tree; without
an in-tree the turn's own value does. NVLink SHARP turns at a rank (``multimem.ld_reduce``, then
``multimem.st``), SHARP and SwitchML at a switch.

What is added takes the value of the turn, too, where that is a rank; then all ranks at the leaves,
and the turn, hold the sum. A rank that is reached and was not asked (no source) adds what comes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.chunks import places_in
from taccl.errors import InputError
from taccl.topology.graph import Multicast, Topology
from taccl.topology.links import LinkTable
from taccl.units import Time

if TYPE_CHECKING:
    from taccl.topology.symmetry import Group

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MAX_FANS = 1 << 20
MAX_FAN_ARCS = 1 << 23
"""Arcs of all fans of a schedule together."""


class Fan(NamedTuple):
    """One fan: its `turn`, a vertex, and the arcs of its trees, ascending."""

    turn: int
    into: tuple[int, ...]
    out: tuple[int, ...]


class Legs(NamedTuple):
    """What rows of a schedule read and change, one entry for each pair of a source and a target.

    `row` is the row of the schedule, ascending; `src` and `dst` are the ranks, and `fresh` tells
    that what arrives is added, if the row adds: the target is none of the sources. A fan has as
    many legs as sources, or targets, whichever are more; of the fewer the first is repeated.
    """

    row: Int64
    src: Int32
    dst: Int32
    fresh: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FanTable:
    """The fans of a schedule in columns; :func:`make_fans` makes them.

    `turn`: int32, the vertex.
    `in_start`, `in_arcs`, `out_start`, `out_arcs`: CSR of rows of ``Topology.arcs``, ascending.
    `leg_start`, `leg_source`, `leg_target`, `leg_fresh`: CSR of :class:`Legs`.
    `alpha`, `overhead`: int64 picoseconds of the longest way to the turn and the longest from it.
    `floor`: least picoseconds for each byte, by the windows of its switches; 0: none.
    `use_start`, `use_edge`, `use_times`: CSR of its edges, and how often it crosses each.
    """

    turn: Int32
    in_start: Int64
    in_arcs: Int32
    out_start: Int64
    out_arcs: Int32
    leg_start: Int64
    leg_source: Int32
    leg_target: Int32
    leg_fresh: NDArray[np.bool_]
    alpha: Int64
    overhead: Int64
    floor: tuple[Fraction, ...]
    use_start: Int64
    use_edge: Int32
    use_times: Int64

    def __len__(self) -> int:
        """Return the number of fans."""
        return len(self.turn)

    def __iter__(self) -> Iterator[Fan]:
        """Yield the fans in order."""
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Fan:
        """Return one fan as a record."""
        into, out = (
            tuple(arcs[start[number] : start[number + 1]].tolist())
            for start, arcs in ((self.in_start, self.in_arcs), (self.out_start, self.out_arcs))
        )
        return Fan(int(self.turn[number]), into, out)

    def ranks(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the sources and the targets of a fan, ascending."""
        legs = slice(int(self.leg_start[number]), int(self.leg_start[number + 1]))
        source, target = np.unique(self.leg_source[legs]), np.unique(self.leg_target[legs])
        return tuple(source.tolist()), tuple(target.tolist())

    def legs(self, links: LinkTable, link: Int32) -> Legs:
        """Return the legs of rows of a schedule: `link` has a link, or len(links) + a fan, each."""
        rows = np.arange(len(link), dtype=np.int64)
        plain = np.minimum(link, max(len(links) - 1, 0))
        if not len(self):
            fresh = np.ones(len(link), dtype=np.bool_)
            return Legs(rows, links.src[plain], links.dst[plain], fresh)
        fan = np.maximum(link - len(links), 0)
        is_fan = link >= len(links)
        count = np.where(is_fan, self.leg_start[fan + 1] - self.leg_start[fan], 1)
        row = np.repeat(rows, count)
        leg = np.where(is_fan[row], self.leg_start[fan[row]] + places_in(count), 0)
        plain, of_fan = plain[row], is_fan[row]
        return Legs(
            row,
            np.where(of_fan, self.leg_source[leg], links.src[plain]).astype(np.int32),
            np.where(of_fan, self.leg_target[leg], links.dst[plain]).astype(np.int32),
            ~of_fan | self.leg_fresh[leg],
        )

    def close(self, group: "Group") -> "FanTable":
        """Return the fans with all their images under a `group`, in order of turn and arcs.

        Raises InputError when a symmetry takes an arc to none.
        """
        found = dict.fromkeys(self)
        todo = list(found)
        while todo:
            images = (self._images(group, element, todo) for element in range(1, len(group)))
            todo = [fan for fan in dict.fromkeys(chain(*images)) if fan not in found]
            found |= dict.fromkeys(todo)
        return make_fans(group.topology, sorted(found))

    def image(self, group: "Group", element: int) -> Int32:
        """Return where an `element` of a `group` takes every fan.

        Raises InputError when it takes one to none: then the table lacks images.
        """
        number = {fan: place for place, fan in enumerate(self)}
        images = self._images(group, element, list(number))
        lost = next((fan for fan, there in enumerate(images) if there not in number), None)
        if lost is not None:
            raise InputError(
                f"fan {lost} has no image under a symmetry of {group.topology.name}",
                field="fans", fix="list all images, or remove the symmetry",
            )  # fmt: skip
        return np.array([number[there] for there in images], dtype=np.int32)

    @staticmethod
    def _images(group: "Group", element: int, fans: Sequence[Fan]) -> list[Fan]:
        where = group.vertex_row(element)
        used = sorted({arc for fan in fans for arc in (*fan.into, *fan.out)})
        images = group.arc_images(element, np.array(used, dtype=np.int64)).tolist()
        to = dict(zip(used, images, strict=True)).__getitem__
        return [
            Fan(int(where[f.turn]), tuple(sorted(map(to, f.into))), tuple(sorted(map(to, f.out))))
            for f in fans
        ]


def fan_betas(topology: Topology) -> tuple[Fraction, ...]:
    """Return the picoseconds for each byte of fans at every edge; 0: they cross in no time.

    That is the edge's own beta, or that of the engines of the switches at its ends, if it is more.
    """
    ranks = topology.num_ranks
    engine = [Fraction(0)] * ranks + [
        (switch.engine.beta or Fraction(0)) if switch.is_station else Fraction(0)
        for switch in topology.switches
    ]
    return tuple(
        max(edge.beta or Fraction(0), engine[edge.tail], engine[edge.head])
        for edge in topology.edges
    )


def make_fans(topology: Topology, fans: Sequence[Fan]) -> FanTable:
    """Return some `fans` of a `topology` as a table, in the order given.

    Raises InputError when one is not what its switches can do (:func:`wrong_fan`), or there are too
    many.
    """
    if len(fans) > MAX_FANS or sum(len(fan.into) + len(fan.out) for fan in fans) > MAX_FAN_ARCS:
        raise InputError(
            f"more than {MAX_FANS} fans, or {MAX_FAN_ARCS} arcs of them", field="fans",
            fix="use fewer trees",
        )  # fmt: skip
    for number, fan in enumerate(fans):
        if wrong := wrong_fan(topology, fan):
            raise InputError(wrong, field=f"fans[{number}]", fix="use what the switches can do")
    costs = [_costs(topology, fan) for fan in fans]
    legs = [_legs(topology, fan) for fan in fans]
    uses = [sorted(_crossed(topology, fan).items()) for fan in fans]
    alpha, overhead, floor = zip(*costs, strict=True) if costs else ((), (), ())
    source, target, fresh = zip(*chain(*legs), strict=True) if legs else ((), (), ())
    edge, times = zip(*chain(*uses), strict=True) if uses else ((), ())
    in_start, in_arcs = _csr([sorted(fan.into) for fan in fans])
    out_start, out_arcs = _csr([sorted(fan.out) for fan in fans])
    return FanTable(
        np.array([fan.turn for fan in fans], np.int32), in_start, in_arcs, out_start, out_arcs,
        _starts(legs), np.array(source, np.int32), np.array(target, np.int32),
        np.array(fresh, np.bool_), np.array(alpha, np.int64), np.array(overhead, np.int64), floor,
        _starts(uses), np.array(edge, np.int32), np.array(times, np.int64),
    )  # fmt: skip


def _starts(parts: Sequence[Sequence[object]]) -> Int64:
    return np.cumsum([0, *map(len, parts)]).astype(np.int64)


def _csr(parts: Sequence[Sequence[int]]) -> tuple[Int64, Int32]:
    return _starts(parts), np.array([one for part in parts for one in part], dtype=np.int32)


def _ends(topology: Topology, arcs: Sequence[int]) -> list[tuple[int, int]]:
    table = topology.arcs
    return [(int(table.src[arc]), int(table.dst[arc])) for arc in arcs]


def _legs(topology: Topology, fan: Fan) -> list[tuple[int, int, bool]]:
    """Return the (source, target, whether the target is no source) of a fan, paired."""
    ranks = topology.num_ranks
    own = {fan.turn} if fan.turn < ranks else set()
    sources = {src for src, _ in _ends(topology, fan.into) if src < ranks} | own
    targets = {dst for _, dst in _ends(topology, fan.out) if dst < ranks}
    targets = targets | own if fan.into else targets - own
    ins, outs = sorted(sources), sorted(targets)
    count = max(len(ins), len(outs))
    ins, outs = ins + ins[:1] * (count - len(ins)), outs + outs[:1] * (count - len(outs))
    return [(src, dst, dst not in sources) for src, dst in zip(ins, outs, strict=True)]


def _crossed(topology: Topology, fan: Fan) -> dict[int, int]:
    """Return how often a fan crosses each of its edges."""
    times: dict[int, int] = {}
    for arc in (*fan.into, *fan.out):
        for edge in topology.arcs.edges_of(arc):
            times[edge] = times.get(edge, 0) + 1
    return times


def _costs(topology: Topology, fan: Fan) -> tuple[Time, Time, Fraction]:
    """Return alpha and overhead of the longest ways, and the least beta by windows."""
    table, ranks = topology.arcs, topology.num_ranks
    engines = {
        vertex: topology.switches[vertex - ranks].engine
        for arc in (*fan.into, *fan.out) for vertex in (int(table.src[arc]), int(table.dst[arc]))
        if vertex >= ranks
    }  # fmt: skip
    alpha = engines[fan.turn].alpha if fan.turn in engines else 0
    overhead = 0
    for arcs, near, far in ((fan.into, table.dst, table.src), (fan.out, table.src, table.dst)):
        toward = {int(far[arc]): arc for arc in arcs}
        ways = [(0, 0)]
        for leaf in [vertex for vertex in toward if vertex < ranks]:
            arc = toward[leaf]
            way, held = table.alpha[arc], table.overhead[arc]
            while (at := int(near[arc])) != fan.turn:
                arc = toward[at]
                way = way + engines[at].alpha + table.alpha[arc]
                held = held + table.overhead[arc]
            ways.append((int(way), int(held)))
        alpha += max(way for way, _ in ways)
        overhead += max(held for _, held in ways)
    windows = [Fraction(e.window[0]) * e.window[1] for e in engines.values() if e.window]
    return alpha, overhead, alpha / min(windows) if windows else Fraction(0)


def wrong_fan(topology: Topology, fan: Fan) -> str | None:
    """Return what is wrong with a `fan` on a `topology`, or None.

    Every station but the turn is left by at most one arc towards it, and entered by at most one
    from it; ranks are at the leaves. A switch that is entered by several adds, one that is left by
    several copies, both as it declares. A fan with one source turns there, one with one target
    there.
    """
    total, arcs = topology.num_ranks + len(topology.switches), (*fan.into, *fan.out)
    if not 0 <= fan.turn < total or not all(0 <= arc < len(topology.arcs) for arc in arcs):
        return "it has a turn or an arc that does not exist"
    into = _ends(topology, fan.into)
    out = [(dst, src) for src, dst in _ends(topology, fan.out)]
    return next(chain(
        _wrong_tree(topology, fan.turn, into), _wrong_tree(topology, fan.turn, out),
        _wrong_switches(topology, fan.turn, dict(into), dict(out)),
        _wrong_turn(topology, fan.turn, dict(into), dict(out)),
    ), None)  # fmt: skip


def _wrong_tree(topology: Topology, turn: int, ends: list[tuple[int, int]]) -> Iterator[str]:
    """Yield why arcs, each by its far end and the one towards the turn, are no tree."""
    name, toward = topology.vertex_name, dict(ends)
    if len(toward) < len(ends):
        yield "two arcs of a tree are at one station, and neither leads on to the turn"
    for far, near in ends:
        if near < topology.num_ranks and near != turn:
            yield f"rank {near} is inside a tree"
        if far >= topology.num_ranks and far not in toward.values():
            yield f"a way ends at {name(far)}, which is no rank"
        steps = 0
        while near != turn and near in toward and steps <= len(toward):
            near, steps = toward[near], steps + 1
        if near != turn:
            yield f"a way from {name(far)} does not end at the turn"


def _wrong_switches(
    topology: Topology, turn: int, into: Mapping[int, int], out: Mapping[int, int]
) -> Iterator[str]:
    """Yield which switches of two trees can't do what they are to do."""
    for number, switch in enumerate(topology.switches, topology.num_ranks):
        joins, splits = (list(tree.values()).count(number) for tree in (into, out))
        if (joins > 1 or (joins and number == turn)) and switch.reduce is None:
            yield f"{switch.name} adds, which it can't"
        if splits > 1 and switch.multicast is None:
            yield f"{switch.name} copies, which it can't"
        if number == turn and switch.reduce is not None and switch.reduce.at_rank:
            yield f"what {switch.name} adds has to turn at a rank"


def _wrong_turn(
    topology: Topology, turn: int, into: Mapping[int, int], out: Mapping[int, int]
) -> Iterator[str]:
    """Yield what is wrong with how two trees meet at their turn."""
    if turn >= topology.num_ranks:
        if any(sum(v < topology.num_ranks for v in tree) < 2 for tree in (into, out)):
            yield "it has one source or one target, and does not turn there"
        return
    doors = [[far for far, near in tree.items() if near == turn] for tree in (into, out)]
    for tree, ways, inward in zip((into, out), doors, (True, False), strict=True):
        if len(ways) > 1:
            yield f"two arcs join a tree to rank {turn}, its turn"
        for door in ways:
            switch = topology.switches[door - topology.num_ranks]
            through = (switch.reduce if inward else switch.multicast) or Multicast()
            if through.through and tree.get(turn) != door:
                yield f"it leaves out the value of rank {turn} at {switch.name}"
        if tree and not any(v < topology.num_ranks and v != turn for v in tree):
            yield f"it joins rank {turn} to no other"
    if not into and not out:
        yield "it has no arcs"
    if into and out and doors[0] != doors[1]:
        yield f"it comes to rank {turn} from one switch and leaves by another"


NO_FANS = make_fans(Topology("none", 0, (), (), ()), ())
