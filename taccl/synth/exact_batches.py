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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from taccl.slots import side_by_side
from taccl.synth.exact_model import Key, Parts
from taccl.synth.exact_neighbours import Neighbours, Pair
from taccl.topology import Rank

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_Costs = tuple[tuple[int, ...], Sequence[tuple[int, tuple[int, ...]]]]


def add_batches(parts: Parts, neighbours: Neighbours) -> set[Key]:
    """Add messages of several chunks; return the (flow, link) that they cover."""
    places = _Places(parts, neighbours)
    covered: set[Key] = set()
    for (link, _), numbers in neighbours.by_link.items():
        pairs = list(neighbours.pairs(link, numbers))
        members = sorted({n for pair in pairs for n in (pair.first, pair.second)})
        if members:
            _add_chains(parts, link, members, pairs, places)
            covered |= {(number, link) for number in members}
    return covered


class _Places:
    """Literals for what arrives where, made when they are first asked for."""

    def __init__(self, parts: Parts, neighbours: Neighbours) -> None:
        self._model = parts.model
        self._collective = parts.flows.problem.collective
        self._orders = neighbours.orders
        self._known: dict[tuple[str, int, Rank], cp_model.IntVar] = {}
        self._behind: dict[tuple[int, int, Rank], cp_model.IntVar] = {}
        self._relayed: dict[tuple[str, Rank], tuple[list[int], dict[int, int]]] = {}
        self._gaps: dict[tuple[str, int, Rank], list[cp_model.IntVar]] = defaultdict(list)
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
        staged = ("staged", chunk, rank)
        # Each asking for the reasons makes literals anew.
        reasons = [] if staged in self._known else self._reasons_to_stage(chunk, rank)
        return self._any(staged, reasons)

    def layout(self, rank: Rank, name: str) -> "cp_model.IntVar":
        """Return whether a rank lays out its scratch in one of LAYOUTS."""
        if rank not in self._layouts:
            self._layouts[rank] = {name: self._model.new_bool_var("") for name in self._orders}
            self._model.add_exactly_one(self._layouts[rank].values())
        return self._layouts[rank][name]

    def behind(self, one: int, two: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether a chunk lies right behind another in the scratch of a rank."""
        if (one, two, rank) not in self._behind:
            literal = self._behind[one, two, rank] = self._model.new_bool_var("")
            ways = []
            for name in self._orders:
                place = self._relays(name, rank)[1]
                if place[one] < place[two]:
                    way = self._model.new_bool_var("")
                    self._model.add_implication(way, self.layout(rank, name))
                    if place[two] - place[one] > 1:
                        gap = self._gap(name, place[one], place[two], rank)
                        self._model.add_implication(way, gap)
                    ways.append(way)
            self._model.add_bool_or([literal.negated(), *ways])
        return self._behind[one, two, rank]

    def _relays(self, name: str, rank: Rank) -> tuple[list[int], dict[int, int]]:
        """Return the chunks that a rank may relay in the order of a layout, and their places."""
        if (name, rank) not in self._relayed:
            chunks = [c for c in self._orders[name] if not self._collective.is_target(c, rank)]
            places = {chunk: place for place, chunk in enumerate(chunks)}
            self._relayed[name, rank] = (chunks, places)
        return self._relayed[name, rank]

    def _gap(self, name: str, low: int, high: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether nothing lies between two places that are no neighbours.

        A gap is the next narrower one and one more place: two clauses, however wide it is.
        """
        chunks = self._relays(name, rank)[0]
        gaps = self._gaps[name, low, rank]
        for place in range(low + 1 + len(gaps), high):
            gap = self._model.new_bool_var("")
            self._model.add_implication(gap, self.in_scratch(chunks[place], rank).negated())
            if gaps:
                self._model.add_implication(gap, gaps[-1])
            gaps.append(gap)
        return gaps[high - low - 2]

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


def _add_chains(
    parts: Parts, link: int, members: list[int], pairs: list[Pair], places: _Places
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
        parts.look()
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
    costs = _costs(parts, link, most)
    for number in members:
        parts.look()
        key = (number, link)
        use = x.use[key]
        model.add(sum([x.lead[key], *before[number]]) == use)
        model.add(sum(after[number]) <= use)
        model.add(x.left[key] == 1).only_enforce_if([n.negated() for n in after[number]])
        _cost(parts, key, costs)


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
    parts: Parts, members: list[int], pairs: list[Pair]
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


def _costs(parts: Parts, link: int, most: int) -> _Costs:
    """Return by number of chunks: ticks to arrival, and for every resource the ticks it is held."""
    costs = [parts.flows.cost(link, chunks) for chunks in range(1, most + 1)]
    held = [
        (orbit, tuple(parts.scale.up(uses[place][1]) for _, uses in costs))
        for place, (orbit, _) in enumerate(costs[0][1])
    ]
    return tuple(parts.scale.up(duration) for duration, _ in costs), held


def _cost(parts: Parts, key: Key, costs: _Costs) -> None:
    """Give a message that a chunk leads its length in time, on the link and on its resources."""
    model, x, scale = parts.model, parts.x, parts.scale
    lead, left = x.lead[key], x.left[key]
    lasts = _by_count(parts, left, costs[0])
    model.add(x.end[key] == x.start[key] + lasts).only_enforce_if(lead)
    for orbit, busy in costs[1]:
        held = _by_count(parts, left, busy)
        release = model.new_int_var(0, 2 * scale.horizon, "")
        parts.intervals[orbit].append(
            model.new_optional_interval_var(x.start[key], held, release, lead, "")
        )
        # What one more chunk adds, and what a message costs on top: a line below all costs.
        step = min((b - a for a, b in pairwise(busy)), default=busy[0])
        extra = min(time - step * chunks for chunks, time in enumerate(busy, 1))
        parts.loads[orbit].append(step * x.use[key] + extra * lead)


def _by_count(
    parts: Parts, left: "cp_model.IntVar", times: tuple[int, ...]
) -> "cp_model.LinearExpr":
    """Return the time of a message by its number of chunks.

    Times are mostly a line rounded up, which takes one constraint; a table of all counts has a
    literal for each count of each message.
    """
    line = rounded_line(times)
    if line is None:
        found = parts.model.new_int_var(min(times), max(times), "")
        parts.model.add_element(left - 1, times, found)
        return found
    rise, run, offset = line
    if run == 1:
        return offset + rise * left
    found = parts.model.new_int_var(min(times), max(times), "")
    parts.model.add_linear_constraint(run * found - rise * left, offset, offset + run - 1)
    return found


@lru_cache(maxsize=1024)
def rounded_line(times: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return (rise, run, offset) so that times[n-1] is ceil((rise n + offset) / run) for all n.

    None where there is no such line.
    """
    last = len(times) - 1
    if not last:
        return 0, 1, times[0]
    total = times[-1] - times[0]
    column = np.array(times, dtype=np.int64)
    counts = np.arange(1, len(times) + 1)
    # Of all lines that give these points, the one with the least run has one below their number.
    for run in range(1, last + 1):
        for rise in range(-(-(total - 1) * run // last), (total + 1) * run // last + 1):
            room = run * column - rise * counts
            offset = int(room.min())
            if room.max() - offset < run:
                return rise, run, offset
    return None
