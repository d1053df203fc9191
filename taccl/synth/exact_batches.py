"""Messages of several chunks in the model of the exact engine: chains of neighbours.

A message is a chain of chunks on one link, each lying right behind the one before at both ends
(taccl.slots): in one buffer where they are read, and where copies arrive. Where a chunk lies in
scratch depends on what else is relayed there, so a link of a chain may ask that some chunks do
not come that way.

Variables   lead[f,l], next[f,g,l] ∈ {0,1}    as in exact_model.py
            left[f,l]                         chunks from f to the end of its message
Subject to  (chain)     use[f,l] = lead[f,l] + Σ next[·,f,l];  Σ next[f,·,l] ≤ use[f,l]
            (count)     next[f,g,l]: left[f] = left[g] + 1; no next: left[f] = 1
            (together)  next[f,g,l]: both start at one time and arrive at one time
            (cost)      lead[f,l]: the message lasts what left[f] chunks cost, and holds the
                        resources of its link for as long as they do
            (places)    next[f,g,l]: the conditions under which g lies behind f: in scratch nothing
                        is between them, in the layout that the rank chooses for its own

On orbits only places that do not depend on what is relayed count, and must be neighbours for all
images.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from taccl.slots import INPUT, LAYOUTS, OUTPUT, SCRATCH, side_by_side
from taccl.synth.exact_model import Key, Parts
from taccl.synth.flows import Flow, Flows
from taccl.topology import Rank

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


_ORDERS = tuple(LAYOUTS.values())


class Spot(NamedTuple):
    """Where a chunk may lie at one rank: a buffer, its order there, and whether on arrival.

    ``offset`` is -1 in scratch, where the chunks lie in the order of a layout. ``arrived`` is None
    where the chunk lies there in any case; ``staged`` is true for an own chunk in scratch.
    """

    buffer: str
    offset: int
    chunk: int
    arrived: bool | None
    staged: bool = False


@dataclass(frozen=True)
class _Pair:
    """One way for a chunk to lie behind another: the buffer it is read from, and what must hold.

    ``behind`` are (chunk, chunk, rank) that must be neighbours in scratch, ``present`` (chunk,
    rank) that must be there; ``arrivals`` are (flow, rank, whether anything must have arrived).
    """

    first: int
    second: int
    buffer: str
    behind: tuple[tuple[int, int, Rank], ...]
    present: tuple[tuple[int, Rank], ...]
    arrivals: tuple[tuple[int, Rank, bool], ...]


def add_batches(parts: Parts) -> set[Key]:
    """Add messages of several chunks; return the (flow, link) that they cover."""
    by_link: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for number, flow in enumerate(parts.flows.flows):
        for link in flow.links:
            by_link[link, flow.summed].append(number)
    places = _Places(parts)
    covered: set[Key] = set()
    for (link, _), numbers in sorted(by_link.items()):
        if not saves(parts.flows, link, len(numbers)):
            continue
        pairs = list(_pairs(parts.flows, link, numbers))
        members = sorted({n for pair in pairs for n in (pair.first, pair.second)})
        if members:
            _add_chains(parts, link, members, pairs, places)
            covered |= {(number, link) for number in members}
    return covered


def longest_message(flows: Flows) -> int:
    """Return the most chunks that could share a link."""
    count: dict[tuple[int, bool], int] = defaultdict(int)
    for flow in flows.flows:
        for link in flow.links:
            count[link, flow.summed] += 1
    return max(
        (number for (link, _), number in count.items() if saves(flows, link, number)), default=1
    )


def saves(flows: Flows, link: int, most: int) -> bool:
    """Tell whether some message on a link holds a resource for less time than its chunks alone.

    Where it does not, chunks sent one behind the other arrive no later.
    """
    _, single = flows.cost(link, 1)
    for chunks in range(2, most + 1):
        _, uses = flows.cost(link, chunks)
        if any(busy < chunks * one for (_, busy), (_, one) in zip(uses, single, strict=True)):
            return True
    return False


class _Places:
    """Literals for what arrives where, made when they are first asked for."""

    def __init__(self, parts: Parts) -> None:
        self._model = parts.model
        self._collective = parts.flows.problem.collective
        self._known: dict[tuple[str, int, Rank], cp_model.IntVar] = {}
        self._chunks = sorted({flow.chunk for flow in parts.flows.flows})
        self._behind: dict[tuple[int, int, Rank], cp_model.IntVar] = {}
        self._layouts: dict[Rank, dict[str, cp_model.IntVar]] = {}
        self._into: dict[tuple[str, int, Rank], list[cp_model.IntVar]] = defaultdict(list)
        self._out: dict[Rank, dict[Rank, dict[int, list[cp_model.IntVar]]]] = {}
        for (number, link), use in parts.x.use.items():
            src, dst = parts.flows.ends_of(link)
            chunk = parts.flows.flows[number].chunk
            self._into["flow", number, dst].append(use)
            self._into["chunk", chunk, dst].append(use)
            self._out.setdefault(src, {}).setdefault(dst, {}).setdefault(chunk, []).append(use)

    def arrived(self, flow: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether anything of a flow gets to a rank."""
        return self._any(("flow", flow, rank), self._into.get(("flow", flow, rank), []))

    def in_scratch(self, chunk: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether a rank has a chunk in scratch: as a relay, or staged among relays."""
        if self._collective.reduces or not self._collective.is_source(chunk, rank):
            return self._any(("chunk", chunk, rank), self._into.get(("chunk", chunk, rank), []))
        return self._any(("staged", chunk, rank), self._reasons_to_stage(chunk, rank))

    def layout(self, rank: Rank, name: str) -> "cp_model.IntVar":
        """Return whether a rank lays out its scratch in one of LAYOUTS."""
        if rank not in self._layouts:
            self._layouts[rank] = {name: self._model.new_bool_var("") for name in LAYOUTS}
            self._model.add_exactly_one(self._layouts[rank].values())
        return self._layouts[rank][name]

    def behind(self, one: int, two: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether a chunk lies right behind another in the scratch of a rank."""
        if (one, two, rank) not in self._behind:
            literal = self._behind[one, two, rank] = self._model.new_bool_var("")
            ways = []
            for name, order in LAYOUTS.items():
                low, high = order(self._collective, one), order(self._collective, two)
                if low < high:
                    way = self._model.new_bool_var("")
                    self._model.add_implication(way, self.layout(rank, name))
                    for chunk in self._chunks:
                        if not self._collective.is_target(chunk, rank) and (
                            low < order(self._collective, chunk) < high
                        ):
                            self._model.add_implication(way, self.in_scratch(chunk, rank).negated())
                    ways.append(way)
            self._model.add_bool_or([literal.negated(), *ways])
        return self._behind[one, two, rank]

    def _reasons_to_stage(self, chunk: int, rank: Rank) -> "list[cp_model.IntVar]":
        """Return literals for own and relayed chunks that leave together (slots.place_chunks)."""
        collective, reasons = self._collective, []
        targets = collective.targets(chunk)
        for dst, leaving in self._out.get(rank, {}).items():
            relayed = [
                use
                for other, uses in leaving.items()
                if not collective.is_source(other, rank)
                and collective.targets(other) == targets
                and side_by_side(collective, chunk, other, dst)
                for use in uses
            ]
            for own in leaving.get(chunk, []) if relayed else []:
                both = self._model.new_bool_var("")
                self._model.add_implication(both, own)
                self._model.add_bool_or([both.negated(), *relayed])
                for use in relayed:
                    self._model.add_bool_or([own.negated(), use.negated(), both])
                reasons.append(both)
        return reasons

    def _any(self, key: tuple[str, int, Rank], into: "list[cp_model.IntVar]") -> "cp_model.IntVar":
        if key not in self._known:
            literal = self._model.new_bool_var("")
            self._model.add_bool_or([literal.negated(), *into])
            for use in into:
                self._model.add_implication(use, literal)
            self._known[key] = literal
        return self._known[key]


def _spots(flows: Flows, flow: Flow, rank: Rank) -> list[Spot]:
    """Return where a flow's chunk may be read at a rank (taccl.slots.Slots.readable)."""
    collective, chunk = flows.problem.collective, flow.chunk
    held = _held(flows, chunk, rank)
    if not collective.is_source(chunk, rank) or (collective.reduces and not flow.summed):
        return [held._replace(arrived=None)]
    original = held._replace(buffer=INPUT, offset=collective.input_offset(chunk, rank))
    if not collective.reduces:
        return [original, held if held.buffer == OUTPUT else held._replace(staged=True)]
    if held.buffer == OUTPUT:
        return [held, original._replace(arrived=False)]
    return [original._replace(arrived=False), held._replace(arrived=True)]


def _held(flows: Flows, chunk: int, rank: Rank) -> Spot:
    collective = flows.problem.collective
    if collective.is_target(chunk, rank):
        return Spot(OUTPUT, collective.output_offset(chunk, rank), chunk, None)
    return Spot(SCRATCH, -1, chunk, None)


def _pairs(flows: Flows, link: int, numbers: list[int]) -> Iterator[_Pair]:
    """Yield every way for one flow's chunk to lie right behind another's on a link."""
    src, dst = flows.ends_of(link)
    read = {n: _spots(flows, flows.flows[n], src) for n in numbers}
    kept = {n: _held(flows, flows.flows[n].chunk, dst) for n in numbers}
    for first, second in itertools.permutations(numbers, 2):
        if flows.flows[first].summed:
            there: tuple[tuple[int, int, Rank], ...] | None = ()
            there = there if _adds(flows, first, second, dst) else None
        else:
            there = _behind(flows, kept[first], kept[second], dst)
        for one, two in itertools.product(read[first], read[second]) if there is not None else ():
            here = _behind(flows, one, two, src)
            if here is None or there is None:
                continue
            if len(flows.problem.group) > 1 and (
                here or there or not _all_images(flows, link, first, second, one.buffer)
            ):
                continue
            spots = ((first, one), (second, two))
            yield _Pair(
                first, second, one.buffer, (*here, *there),
                present=tuple((spot.chunk, src) for _, spot in spots if spot.staged),
                arrivals=tuple(
                    (n, src, spot.arrived) for n, spot in spots if spot.arrived is not None
                ),
            )  # fmt: skip


def _adds(flows: Flows, first: int, second: int, dst: Rank) -> bool:
    """Tell whether both chunks are added to a value that the destination has."""
    collective = flows.problem.collective
    return all(collective.is_source(flows.flows[n].chunk, dst) for n in (first, second))


def _behind(
    flows: Flows, one: Spot, two: Spot, rank: Rank
) -> tuple[tuple[int, int, Rank], ...] | None:
    """Return what must be neighbours in scratch for one to lie behind the other; None if never."""
    if one.buffer != two.buffer:
        return None
    if one.buffer != SCRATCH:
        return () if two.offset == one.offset + 1 else None
    collective = flows.problem.collective
    if not any(order(collective, one.chunk) < order(collective, two.chunk) for order in _ORDERS):
        return None
    return ((one.chunk, two.chunk, rank),)


def _all_images(flows: Flows, link: int, first: int, second: int, buffer: str) -> bool:
    """Tell whether all images of two chunks are neighbours at both ends of the image of a link.

    Scratch never counts: which chunks share it depends on all routes.
    """
    problem = flows.problem
    collective, group = problem.collective, problem.group
    if buffer == SCRATCH:
        return False
    chunks = (flows.flows[first].chunk, flows.flows[second].chunk)
    for number, element in enumerate(group.elements):
        image = collective.image(element)
        a, b = (int(image[chunk]) for chunk in chunks)
        src, dst = flows.ends_of(group.link_image(number, [link])[0])
        offset = collective.input_offset if buffer == INPUT else collective.output_offset
        if offset(b, src) != offset(a, src) + 1:
            return False
        if not flows.flows[first].summed and not (
            collective.is_target(a, dst)
            and collective.is_target(b, dst)
            and collective.output_offset(b, dst) == collective.output_offset(a, dst) + 1
        ):
            return False
    return True


def _add_chains(
    parts: Parts, link: int, members: list[int], pairs: list[_Pair], places: _Places
) -> None:
    model, x = parts.model, parts.x
    before: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    after: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    most = len(members)
    for number in members:
        key = (number, link)
        x.lead[key] = model.new_bool_var("")
        x.left[key] = model.new_int_var(1, most, "")
        x.end[key] = model.new_int_var(0, parts.scale.horizon, "")
    read_from = _labels(parts, members, pairs)
    follows: dict[tuple[int, int], list[cp_model.IntVar]] = defaultdict(list)
    for pair in pairs:
        joined = model.new_bool_var("")
        follows[pair.first, pair.second].append(joined)
        for one, two, rank in pair.behind:
            model.add_implication(joined, places.behind(one, two, rank))
        for chunk, rank in pair.present:
            model.add_implication(joined, places.in_scratch(chunk, rank))
        for number, rank, yes in pair.arrivals:
            arrived = places.arrived(number, rank)
            model.add_implication(joined, arrived if yes else arrived.negated())
        for number in (pair.first, pair.second):
            if (number, pair.buffer) in read_from:
                model.add_implication(joined, read_from[number, pair.buffer])
    for ends, ways in follows.items():
        joined = _join(parts, link, ends, ways)
        after[ends[0]].append(joined)
        before[ends[1]].append(joined)
    for number in members:
        key = (number, link)
        use = x.use[key]
        model.add(sum([x.lead[key], *before[number]]) == use)
        model.add(sum(after[number]) <= use)
        model.add(x.left[key] == 1).only_enforce_if([n.negated() for n in after[number]])
        _cost(parts, key, most)


def _join(
    parts: Parts, link: int, ends: tuple[int, int], ways: "list[cp_model.IntVar]"
) -> "cp_model.IntVar":
    """Return whether two chunks are neighbours in a message, which then starts and arrives once."""
    model, x = parts.model, parts.x
    joined = ways[0]
    if len(ways) > 1:
        joined = model.new_bool_var("")
        model.add_bool_or([joined.negated(), *ways])
    one, two = (ends[0], link), (ends[1], link)
    x.next[(*ends, link)] = joined
    model.add(x.left[one] == x.left[two] + 1).only_enforce_if(joined)
    model.add(x.start[one] == x.start[two]).only_enforce_if(joined)
    model.add(x.end[one] == x.end[two]).only_enforce_if(joined)
    return joined


def _labels(
    parts: Parts, members: list[int], pairs: list[_Pair]
) -> "Mapping[tuple[int, str], cp_model.IntVar]":
    """Return which buffer a chunk is read from, where a message could mix several."""
    buffers: dict[int, set[str]] = defaultdict(set)
    for pair in pairs:
        buffers[pair.first].add(pair.buffer)
        buffers[pair.second].add(pair.buffer)
    labels = {}
    for number in members:
        if len(buffers[number]) > 1:
            own = {b: parts.model.new_bool_var("") for b in sorted(buffers[number])}
            parts.model.add_at_most_one(own.values())
            labels.update({(number, buffer): literal for buffer, literal in own.items()})
    return labels


def _cost(parts: Parts, key: Key, most: int) -> None:
    """Give a message that a chunk leads its length in time, on the link and on its resources."""
    model, x, scale = parts.model, parts.x, parts.scale
    lead, left = x.lead[key], x.left[key]
    costs = [parts.flows.cost(key[1], chunks) for chunks in range(1, most + 1)]
    lasts = _by_count(parts, left, [scale.up(duration) for duration, _ in costs])
    model.add(x.end[key] == x.start[key] + lasts).only_enforce_if(lead)
    for place, (orbit, _) in enumerate(costs[0][1]):
        busy = [scale.up(uses[place][1]) for _, uses in costs]
        held = _by_count(parts, left, busy)
        release = model.new_int_var(0, 2 * scale.horizon, "")
        parts.intervals[orbit].append(
            model.new_optional_interval_var(x.start[key], held, release, lead, "")
        )
        # What one more chunk adds, and what a message costs on top: a line below all costs.
        step = min((b - a for a, b in pairwise(busy)), default=busy[0])
        extra = min(time - step * chunks for chunks, time in enumerate(busy, 1))
        parts.loads[orbit].append(step * x.use[key] + extra * lead)


def _by_count(parts: Parts, left: "cp_model.IntVar", times: list[int]) -> "cp_model.LinearExpr":
    """Return the time of a message by its number of chunks: a line where the costs are one."""
    steps = {b - a for a, b in pairwise(times)}
    if len(steps) <= 1:
        step = steps.pop() if steps else 0
        return times[0] - step + step * left
    found = parts.model.new_int_var(min(times), max(times), "")
    parts.model.add_element(left - 1, times, found)
    return found
