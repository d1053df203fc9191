"""Programs on a mixed-radix grid: ranks exchange, halve, fold and spread along one digit at a time.

Ranks stand in an order; the place of each is written in digits of some radices (servers, NICs of a
server, ranks at a NIC; 2 · 2 · 2, or 8 in one). A program goes through digits in turns; in a turn,
ranks that differ in this digit only meet:

exchange    each gives every other one what that needs: all it holds in an AllGather, in an AlltoAll
            what is for ranks with that digit;
sum         each sends all it holds to every other one, and adds what comes;
halve       each sends the part (of as many as the radix) that the other goes on with;
fold        all give what they hold to the one whose digit is 0, and go on with nothing;
spread      the one whose digit is 0 gives what the others need;
rotate      each sends one way round, to the rank that is so many places away: for any number of
            ranks;
cross       pieces of what ranks own go to other servers, some at a time.

A digit of radix q costs q - 1 messages, and in an AlltoAll a q-th of what a rank holds in each:
small radices have few messages, large ones move each byte less often. These are the index and the
concatenation of Bruck, Ho, Kipnis, Upfal and Weathersby (1997) on a grid of any radices; halving
and doubling, recursive doubling, hierarchical and two-step algorithms are programs as well (Thakur,
Rabenseifner, Gropp 2005). A ReduceScatter is the AllGather's program backwards, and an AllReduce
one after the other, unless the program sums. What ranks hold may be in parts, which go through
digits at different times: what stays in its server and what leaves it, or the stages of a pipeline.
The classes of a NIC (the ranks that share it) may take turns at it, one between servers while the
other is inside its server.

Which of many programs are worth timing exactly is told by a clock for the ports of some ranks.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import (
    accumulate,
    chain,
    combinations_with_replacement,
    groupby,
    pairwise,
    permutations,
    product,
)
from operator import mul
from typing import NamedTuple

from taccl.model.problem import Problem
from taccl.synth.templates.steps import (
    GATHER_FAMILY,
    ROUND_BARRIER,
    Links,
    Order,
    Step,
    best_links,
    bits,
    blocks,
    compose_allreduce,
    linked,
    pair_block,
    passed,
    ranks_by_server,
    shards,
)
from taccl.topology.graph import EdgeId, LinkId, Rank
from taccl.units import Time


class Digit(NamedTuple):
    """A digit of places, ``place // weight % radix``, along which `radix` ranks meet.

    The `weight` is the product of the radices below it.
    """

    weight: int
    radix: int

    def of(self, place: int) -> int:
        """Return the digit of a place."""
        return place // self.weight % self.radix


class Turn(NamedTuple):
    """An operation along a `digit`, in which ranks meet.

    `kind` is ``exchange``, ``sum``, ``halve``, ``fold``, ``spread``, ``rotate`` or ``cross``. Of
    every so many ranks in a row the `classes` take part; None: all. They send these `parts` of what
    they hold, and the part `into` is made of what arrives; None: each part stays what it is.
    ``cross`` sends from and to which half piece (half a chunk) of those that come to a rank:
    `pieces`.
    """

    kind: str
    digit: Digit
    classes: tuple[int, ...] | None = None
    parts: tuple[int, ...] = (0,)
    into: int | None = None
    pieces: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class GridProgram:
    """The `turns`, in order, of ranks on a grid: `order` has the ranks by place.

    `classes` ranks in a row are classes 0, 1 ... of ``Turn.classes``. `acting` are ranks beyond the
    grid, each with the rank of the grid that acts for it. With `sums` an AllReduce's values are
    summed in every turn: what arrives in one is part of what is sent in the next, not before; else
    it is the gather backwards, and forwards. With `split` an AlltoAll's chunks that stay in their
    server are part 1, and all others part 0.
    """

    order: tuple[Rank, ...]
    turns: tuple[Turn, ...]
    classes: int = 1
    acting: tuple[tuple[Rank, Rank], ...] = ()
    sums: bool = False
    split: bool = False

    def meetings(self, turn: Turn) -> Iterator[tuple[int, int]]:
        """Yield the places (from, to) of who sends to whom in a turn, in sequence.

        Where the last digit is not full, there is nobody to meet for some.
        """
        count, (weight, radix) = len(self.order), turn.digit
        for shift in range(1, radix):
            for place in self.places(turn):
                digit = turn.digit.of(place)
                to = place + ((digit + shift) % radix - digit) * weight
                if turn.kind == "rotate":
                    yield place, (place - shift * weight) % count
                elif turn.kind == "fold":
                    if digit == shift:
                        yield place, place - digit * weight
                elif to < count and (turn.kind != "spread" or digit == 0):
                    yield place, to

    def places(self, turn: Turn) -> Sequence[int]:
        """Return the places of the ranks that take part in a turn, class by class."""
        count = len(self.order)
        if turn.classes is None:
            return range(count)
        return [place for c in turn.classes for place in range(c, count, self.classes)]


def steps_of(problem: Problem, program: GridProgram) -> list[Step]:
    """Return the steps by which a `program` does what a `problem` asks for.

    That is an AllGather, ReduceScatter, AllReduce, AlltoAll, Broadcast or Reduce of all ranks; with
    the root first in the program of a Broadcast or Reduce.
    """
    name, everything = problem.collective.name, tuple(range(problem.collective.num_chunks))
    if name == "alltoall":
        return list(_moved(problem, program))
    if name in ("broadcast", "reduce"):
        spread = list(_held(problem, program, {program.order[0]: everything}))
        turned: list[Step] = [(chunks, dst, src, True) for chunks, src, dst, _ in reversed(spread)]
        return spread if name == "broadcast" else turned
    if name != "allreduce" or not (program.sums or program.acting):
        return list(compose_allreduce(problem, gathered(problem, program)))
    steps: list[Step] = [(everything, rank, acting, True) for rank, acting in program.acting]
    grid = replace(program, acting=())
    if program.sums:
        steps += [ROUND_BARRIER] if steps else []
        steps += _held(problem, grid, dict.fromkeys(program.order, everything))
    else:
        shares = dict(zip(program.order, shards(everything, len(program.order)), strict=True))
        steps += compose_allreduce(problem, list(_held(problem, grid, shares)))
    return [*steps, *((everything, acting, rank, False) for rank, acting in program.acting)]


def gathered(problem: Problem, program: GridProgram) -> list[Step]:
    """Return the steps of a `program` as an AllGather, whatever the `problem` asks for.

    The program is for all ranks, without sums, each with so many chunks as in the problem.
    """
    own = dict(enumerate(blocks(problem)))
    steps: list[Step] = []
    for rank, acting in program.acting:
        steps.append((own[rank], rank, acting, False))
        own[acting] = (*own[rank], *own[acting])
    return [*steps, *_held(problem, program, own)]


def _held(
    problem: Problem, program: GridProgram, own: Mapping[Rank, tuple[int, ...]]
) -> Iterator[Step]:
    """Yield the messages of chunks that ranks keep or sum, by what each holds at first."""
    order, sums = program.order, program.sums
    held: dict[tuple[int, Rank], tuple[int, ...]] = defaultdict(tuple)
    held |= {(0, rank): chunks for rank, chunks in own.items()}
    has: dict[Rank, set[int]] = defaultdict(set)
    for rank, chunks in own.items():
        has[rank].update(chunks)
    rounds = any(turn.kind == "sum" for turn in program.turns)
    for turn in program.turns:
        if turn.kind == "cross":
            for chunks, src, dst in _crossing(problem, program, turn):
                held[turn.parts[0], dst] += chunks
                has[dst].update(chunks)
                yield chunks, src, dst, False
            continue
        before, adds = held.copy(), sums and turn.kind in ("sum", "halve", "fold")
        for place, to in program.meetings(turn):
            rank, peer = order[place], order[to]
            message: tuple[int, ...] = ()
            for part in turn.parts:
                chunks = before[part, rank]
                if turn.kind == "halve" and chunks:
                    shares = shards(chunks, turn.digit.radix)
                    held[part, rank] = shares[turn.digit.of(place)]
                    held[part, peer] = chunks = shares[turn.digit.of(to)]
                    message += chunks
                    continue
                if turn.kind == "fold":
                    held[part, rank] = ()
                if not adds:
                    held[part if turn.into is None else turn.into, peer] += chunks
                message += chunks if sums else tuple(c for c in chunks if c not in has[peer])
            if message:
                has[peer].update(message)
                yield message, rank, peer, adds
        if rounds:
            yield ROUND_BARRIER
    for rank, acting in program.acting:
        every = range(problem.collective.num_chunks)
        yield tuple(c for c in every if c not in has[rank]), acting, rank, False


def _crossing(
    problem: Problem, program: GridProgram, turn: Turn
) -> Iterator[tuple[tuple[int, ...], Rank, Rank]]:
    """Yield (chunks, from, to) of the pieces that cross servers in a stage."""
    own, k, order = blocks(problem), problem.collective.chunks_per_rank, program.order
    width, count = turn.digit
    for local in range(width):
        for server in range(count):
            come: dict[Rank, tuple[int, ...]] = defaultdict(tuple)
            for piece in pieces_of(local, turn.pieces):
                src = order[(server + 1 + piece // k) % count * width + local]
                come[src] += (own[src][piece % k],)
            yield from ((come[src], src, order[server * width + local]) for src in come)


def pieces_of(local: int, cut: tuple[int, int]) -> range:
    """Return the numbers of the pieces that come to a rank in a stage.

    The rank is at place `local` in its server, and `cut` is from and to which half piece: of half a
    piece, every second rank gets all.
    """
    return range(*((half + local % 2) // 2 for half in cut))


def _moved(problem: Problem, program: GridProgram) -> Iterator[Step]:
    """Yield the messages of an AlltoAll: every chunk is handed on until it is where it belongs."""
    order, count = program.order, len(program.order)
    parts = ranks_by_server(problem) or ()
    home = {rank: number for number, ranks in enumerate(parts) for rank in ranks}
    server = [home[rank] if home else 0 for rank in order]
    held: Held = defaultdict(list)
    for src, dst in permutations(range(count), 2):
        held[int(program.split and server[src] == server[dst]), src].append(((src, dst), dst))
    for message, place, to in _carried(program, held):
        chunks = (c for (a, b), _ in message for c in pair_block(problem, order[a], order[b]))
        yield tuple(chunks), order[place], order[to], False


Going = list[tuple[tuple[int, int], int]]
"""From whom and for whom each is, and to which place it goes."""

Held = dict[tuple[int, int], Going]
"""What is at each place, by part and place."""


def _carried(program: GridProgram, held: Held) -> Iterator[tuple[Going, int, int]]:
    """Yield what goes from place to place until all is where it goes, and note it as `held`."""
    count = len(program.order)
    for turn in program.turns:
        going: dict[tuple[int, int, int], Going] = defaultdict(list)
        for part, place in product(turn.parts, program.places(turn)):
            for one in held.pop((part, place), ()):
                going[part, place, _met(turn, place, one[1], count)].append(one)
        for place, to in program.meetings(turn):
            message: Going = []
            for part in turn.parts:
                moved = going.pop((part, place, _met(turn, place, to, count)), [])
                held[part, to] += moved
                message += moved
            if message:
                yield message, place, to
        for (part, place, _), stay in going.items():
            held[part, place] += stay


def _met(turn: Turn, place: int, end: int, count: int) -> int:
    """Tell which of those that a place meets takes what goes to an end (its digit, or distance)."""
    weight = turn.digit.weight
    if turn.kind == "rotate":
        return turn.digit.of((place - end) % count)
    # What was folded up to here from its neighbours, for its neighbours, goes no further.
    return 0 if turn.kind == "fold" and place // weight != end // weight else turn.digit.of(end)


Algorithm = Callable[[Problem], Iterator[Iterator[Step]]]
"""The steps of every way to do it (orders of ranks, sizes of pieces); empty if inapplicable."""


def made(programs: Callable[[Problem], Iterator[GridProgram]]) -> Algorithm:
    """Return the algorithm of some programs: the steps of those that have links everywhere."""

    def ways(problem: Problem) -> Iterator[Iterator[Step]]:
        links = best_links(problem)
        for program in programs(problem):
            steps = steps_of(problem, program)
            if linked(links, steps):
                yield iter(steps)

    return ways


def _exchanges(order: Sequence[Rank], *digits: Digit, kind: str = "exchange") -> GridProgram:
    """Return the program in which all ranks go through digits in one way."""
    return GridProgram(tuple(order), tuple(Turn(kind, digit) for digit in digits))


def all_pairs(problem: Problem) -> Iterator[GridProgram]:
    """Every rank sends to every other directly; AllReduce is ReduceScatter, then AllGather."""
    n, name = problem.topology.num_ranks, problem.collective.name
    if name == "allreduce":
        turns = (Turn("halve", Digit(1, n)), Turn("exchange", Digit(1, n)))
        yield GridProgram(tuple(range(n)), turns, sums=True)
    elif name in (*GATHER_FAMILY, "alltoall"):
        yield _exchanges(range(n), Digit(1, n))


def pairs_by_relays(problem: Problem) -> Iterator[Iterator[Step]]:
    """All-pairs, also where a program has no threadblocks for so many peers: then some are relayed.

    A rank has connections to ranks up to h places away, both ways round. What goes further takes
    two of them, each with as few messages more as can be, both ways together. These are nearly as
    few bytes as in all-pairs where few peers are too many. A gather's relay has the chunk anyway.
    """
    n, name, most = problem.topology.num_ranks, problem.collective.name, problem.most_peers
    near = n // 2 if most is None or most >= n - 1 else most // 2
    if near == n // 2:
        yield from made(all_pairs)(problem)
    elif name in (*GATHER_FAMILY, "alltoall") and n // 2 <= 2 * near:
        own, personal = blocks(problem), name == "alltoall"
        away, direct, relayed = list[Step](), list[Step](), list[Step]()
        ways = {*range(1, near + 1), *range(n - near, n)}
        first, more = {way: way for way in ways}, Counter[int]()
        for way in range(near + 1, n - near):
            hops = [(hop, (way - hop) % n) for hop in sorted(ways) if (way - hop) % n in ways]
            both = min(hops, key=lambda two: sum(more[min(hop, n - hop)] for hop in two))
            first[way] = both[0]
            more.update(min(hop, n - hop) for hop in both)
        for way, src in product(range(1, n), range(n)):
            dst, relay = (src + way) % n, (src + first[way]) % n
            chunks = pair_block(problem, src, dst) if personal else own[src]
            if relay == dst:
                direct.append((chunks, src, dst, False))
                continue
            away += [(chunks, src, relay, False)] if personal else []
            relayed.append((chunks, relay, dst, False))
        steps = [*away, *direct, *relayed]
        steps = steps if personal else list(compose_allreduce(problem, steps))
        if linked(best_links(problem), steps):
            yield iter(steps)


def halving_doubling(problem: Problem) -> Iterator[GridProgram]:
    """Exchange with the rank that differs in one bit, twice as much (half as much) each time.

    AllGather doubles, first between servers and then from the lowest bit, so that what a rank
    holds lies side by side; ReduceScatter plays it backwards; AllReduce is one after the other.
    Where ranks are no power of two, of the first ones each odd one acts for its neighbour. A
    Broadcast scatters shares by halving the ranks each time, and then doubles; a Reduce plays that
    backwards.
    """
    n, name = problem.topology.num_ranks, problem.collective.name
    power = 1 << (n.bit_length() - 1)
    if name in ("broadcast", "reduce") and n > 1 and problem.collective.num_chunks > 1:
        order = tuple(((problem.collective.root or 0) + place) % n for place in range(n))
        down = [Turn("halve", Digit(bit, 2)) for bit in reversed(bits(power))]
        up = [Turn("exchange", Digit(bit, 2)) for bit in bits(power)]
        beyond = tuple(zip(order[power:], order, strict=False))
        yield GridProgram(order[:power], (*down, *up), acting=beyond)
    if name in GATHER_FAMILY and n > 1:
        acting = tuple((2 * pair, 2 * pair + 1) for pair in range(n - power))
        order = (*(odd for _, odd in acting), *range(2 * len(acting), n))
        server = problem.topology.server_of
        turns = sorted(bits(power), key=lambda bit: (server[order[0]] == server[order[bit]], bit))
        yield replace(_exchanges(order, *(Digit(bit, 2) for bit in turns)), acting=acting)


def recursive_doubling(problem: Problem) -> Iterator[GridProgram]:
    """AllReduce: everyone exchanges its whole sum with the rank that differs in one bit.

    Where ranks are no power of two, those beyond the largest one give their values to a partner
    first and get the sum from it at the end (Thakur, Rabenseifner, Gropp 2005, section 4.5).

    AlltoAll, for a power of two of ranks: everyone gives to that rank what is for ranks which have
    that bit as it has; so chunks cross a hypercube along its edges.
    """
    n, name = problem.topology.num_ranks, problem.collective.name
    power, server = 1 << (n.bit_length() - 1), problem.topology.server_of
    near_first = sorted(bits(power), key=lambda bit: (server[0] != server[bit], bit))
    digits = [Digit(bit, 2) for bit in near_first]
    if name == "alltoall" and n == power:
        yield _exchanges(range(n), *digits)
    if name == "allreduce":
        acting = tuple((rank, rank - power) for rank in range(power, n))
        program = _exchanges(range(power), *digits, kind="sum")
        yield replace(program, acting=acting, sums=True)


def cube_order(links: Links, ranks: int) -> tuple[Rank, ...]:
    """Return ranks by place, where ranks that differ in one bit have links; empty if there is none.

    Of a hypercube only, where each of so many `ranks` has log2 of them as neighbours (a torus of
    sides 2 and 4 is one): the neighbours of rank 0 are the bits, and all others are at the bits of
    their neighbours that are nearer to it.
    """
    near: dict[Rank, set[Rank]] = defaultdict(set)
    for src, dst in links:
        near[src].add(dst)
    if any(1 << len(near[rank]) != ranks for rank in range(ranks)):
        return ()
    place, level = {0: 0}, {rank: 1 << bit for bit, rank in enumerate(sorted(near[0]))}
    while level:
        place |= level
        further: dict[Rank, int] = defaultdict(int)
        for rank, bits_of in level.items():
            for other in near[rank] - place.keys():
                further[other] |= bits_of
        level = further
    at = {number: rank for rank, number in place.items()}
    pairs = ((at.get(a), at.get(a ^ bit)) for bit in bits(ranks) for a in range(ranks))
    return tuple(at[a] for a in range(ranks)) if all(pair in links for pair in pairs) else ()


def doubling_by_parts(problem: Problem) -> Iterator[Iterator[Step]]:
    """Recursive doubling; on a hypercube an AllReduce in as many parts as a rank has neighbours.

    They go through the bits in turn, each beginning with another one, so that all links are busy in
    all of log2(n) rounds of alpha + beta S / log2(n) each.
    """
    yield from made(recursive_doubling)(problem)
    n = problem.topology.num_ranks
    if problem.collective.name == "allreduce" and (order := cube_order(best_links(problem), n)):
        every = bits(n)
        parts = shards(range(problem.collective.num_chunks), len(every))
        steps: list[Step] = []
        for turn in range(len(every)):
            for number, chunks in enumerate(parts):
                bit = every[(turn + number) % len(every)]
                steps += ((chunks, order[a], order[a ^ bit], True) for a in range(n))
            steps.append(ROUND_BARRIER)
        yield iter(steps)


def cube_gathers(problem: Problem) -> Iterator[Iterator[Step]]:
    """Halving and doubling on a hypercube, in as many parts as a rank has neighbours.

    They go through the bits in turn, each beginning with another one: log2(n) rounds, and all links
    carry as much, (n - 1) / log2(n) shares of a rank. Of an AllReduce, the last halving and the
    first doubling may be one exchange of both shares' sums. Ranks pack what they send.
    """
    n, name = problem.topology.num_ranks, problem.collective.name
    order = cube_order(best_links(problem), n) if name in GATHER_FAMILY else ()
    if len(order) < 4 or problem.collective.chunks_per_rank == 1:
        return
    every = bits(n)
    own = [shards(block, len(every)) for block in blocks(problem)]
    turns: list[list[Step]] = []
    for turn in range(len(every)):
        turns.append([])
        for part in range(len(every)):
            *passed, bit = [every[(done + part) % len(every)] for done in range(turn + 1)]
            # What differs from a place in bits that were passed is there.
            near = [sum(digits) for digits in product(*((0, other) for other in passed))]
            for a in range(n):
                chunks = tuple(c for other in near for c in own[order[a ^ other]][part])
                turns[-1].append((chunks, order[a], order[a ^ bit], False))
    yield compose_allreduce(problem, [step for rows in turns for step in rows])
    if name == "allreduce":
        of = {(src, dst): chunks for chunks, src, dst, _ in turns[0]}
        meet: list[Step] = [((*of[a, b], *of[b, a]), a, b, True) for a, b in of]
        back = ([(chunks, b, a, True) for chunks, a, b, _ in rows] for rows in turns[:0:-1])
        rounds = ((*rows, ROUND_BARRIER) for rows in (*back, meet, *turns[1:]))
        yield chain.from_iterable(rounds)


def bruck(problem: Problem) -> Iterator[GridProgram]:
    """Send to the rank 1, 2, 4 ... places away, in ceil(log2(n)) rounds, for any n.

    AllGather sends all that a rank holds, as far as the receiver lacks it. AlltoAll sends what has
    that bit in the distance that it must go. Ranks pack what is sent (Bruck, Ho, Kipnis, Upfal and
    Weathersby 1997). Where a program has no threadblocks for all pairs, larger radices come before.
    """
    n, name, most = problem.topology.num_ranks, problem.collective.name, problem.most_peers
    if name in (*GATHER_FAMILY, "alltoall") and n > 1:
        for digits in () if most is None or n - 1 <= most else [*written(n)][-2::-1]:
            yield _exchanges(range(n), *reversed(digits))
        far = (Digit(1 << i, 2) for i in range((n - 1).bit_length()))
        yield _exchanges(range(n), *far, kind="rotate")


MAX_TRIED = 5
"""Ranks up to which one shot is tried where messages have to wait: each try times all again."""


def one_shot(problem: Problem) -> Iterator[GridProgram]:
    """AllReduce: everyone sends its whole buffer to everyone, and sums all by itself.

    A value must have left for everyone before another is added to it, so that on shared ports
    this exists under the rule ``delay`` only, for buffers that are sent within one alpha. Few ranks
    may hold messages back for that; many are not tried.
    """
    n, links = problem.topology.num_ranks, best_links(problem)
    program = replace(_exchanges(range(n), Digit(1, n), kind="sum"), sums=True)
    pairs = list(program.meetings(program.turns[0]))
    if problem.collective.name != "allreduce" or any(pair not in links for pair in pairs):
        return
    if n <= MAX_TRIED or _leaves_in_time(problem, [links[pair] for pair in pairs]):
        yield program


def _leaves_in_time(problem: Problem, sequence: Sequence[LinkId]) -> bool:
    """Tell whether each rank's last message over these links starts before any gets there."""
    table, send = problem.topology.links, _port_clock(problem)
    size = problem.collective.num_chunks * problem.chunk_size
    free: Free = defaultdict(int)
    last: dict[Rank, Time] = {}
    first: dict[Rank, Time] = {}
    for link in sequence:
        start, end = send(free, link, size, 0)
        src, dst = int(table.src[link]), int(table.dst[link])
        last[src] = max(last.get(src, start), start)
        first[dst] = min(first.get(dst, end), end)
    return all(last.get(rank, 0) < end for rank, end in first.items())


Free = defaultdict[EdgeId, Time]
"""From when on edges are free, in picoseconds."""


def _port_clock(
    problem: Problem,
) -> Callable[[Free, LinkId, Fraction | int, Time], tuple[Time, Time]]:
    """Return what sends a message when it is ready and its ports are free: (start, arrival)."""
    topology = problem.topology

    @cache
    def costs(link: LinkId, size: Fraction | int) -> tuple[Time, tuple[tuple[EdgeId, Time], ...]]:
        held = tuple((edge, topology.busy(link, edge, size)) for edge in _ports(problem, link))
        return topology.arrival(link, size), held

    def send(free: Free, link: LinkId, size: Fraction | int, ready: Time) -> tuple[Time, Time]:
        arrival, held = costs(link, size)
        start = max([ready, *(free[edge] for edge, _ in held)])
        free.update((edge, start + time) for edge, time in held)
        return start, start + arrival

    return send


def arrival_of(problem: Problem, steps: Sequence[Step]) -> Time:
    """Return when the last message of some `steps` arrives, in sequence, each of chunks in a row.

    That is about what they take as a schedule of the `problem`, and tells so much sooner.
    """
    links, send, size = best_links(problem), _port_clock(problem), problem.chunk_size
    free: Free = defaultdict(int)
    ready: defaultdict[tuple[int, Rank], Time] = defaultdict(int)
    landing = ready.copy() if ROUND_BARRIER in steps else ready
    for chunks, src, dst, _ in steps:
        if not chunks:
            ready |= landing
            continue
        start = max(ready[chunk, src] for chunk in chunks)
        _, end = send(free, links[src, dst], len(chunks) * size, start)
        for chunk in chunks:
            landing[chunk, dst] = max(end, landing[chunk, dst])
    return max(landing.values(), default=0)


def program_clock(problem: Problem) -> Callable[[GridProgram], Time]:
    """Return what tells about how long a program takes that never crosses in pieces.

    It counts the chunks that a rank holds, and lets it send when it has received all of them.
    """
    links, send, every = best_links(problem), _port_clock(problem), problem.collective.num_chunks
    sizes = [problem.chunk_size * amount for amount in range(every + 1)]

    def time(program: GridProgram) -> Time:
        order, sums, free = program.order, program.sums, defaultdict[EdgeId, Time](int)
        ready: dict[tuple[int, int], Time] = defaultdict(int)
        held: dict[tuple[int, int], int] = defaultdict(int)
        held |= {(0, place): every if sums else every // len(order) for place in range(len(order))}
        for turn in program.turns:
            before, begun, kind = held.copy(), ready.copy(), turn.kind
            share = turn.digit.radix if kind == "halve" else 1
            grows = kind == "spread" or kind == "exchange" or not (sums or kind == "halve")
            for place, to in program.meetings(turn):
                link = links.get((order[place], order[to]))
                if link is None:
                    return NOT_LINKED
                sent = [(part, -(-before[part, place] // share)) for part in turn.parts]
                amount = sum(chunks for _, chunks in sent)
                if not amount:
                    continue
                start = max(begun[part, place] for part in turn.parts)
                _, end = send(free, link, sizes[min(amount, every)], start)
                for part, chunks in sent:
                    into = (part if turn.into is None else turn.into), to
                    ready[into] = max(ready[into], end)
                    held[into] += chunks if grows else 0
                    if kind in ("fold", "halve"):
                        held[part, place] = chunks if kind == "halve" else 0
        return max(ready.values(), default=0) * (1 if sums else 2)

    return time


NOT_LINKED = 1 << 60
"""Longer than any program takes: some ranks that would meet have no link."""


def _ports(problem: Problem, link: LinkId) -> list[EdgeId]:
    """Return the edges of a link that messages hold."""
    topology = problem.topology
    return [e for e in topology.links.edges_of(link) if topology.edges[e].beta is not None]


def server_grid(problem: Problem) -> tuple[tuple[Rank, ...], Digit, Digit] | None:
    """Return the ranks server by server, and the digits inside and across.

    None unless there are several servers of several ranks, all of one size.
    """
    by_server = ranks_by_server(problem)
    if by_server is None or min(len(by_server), len(by_server[0])) == 1:
        return None
    width = len(by_server[0])
    order = tuple(rank for ranks in by_server for rank in ranks)
    return order, Digit(1, width), Digit(width, len(by_server))


Inside = Callable[[Problem, Sequence[Sequence[Rank]], int], list[list[list[Order]]]]
"""Ways to go round every server of a problem, given its ranks and the most rings of one."""


def hierarchical(problem: Problem, rings_inside: Inside) -> Iterator[Iterator[Step]]:
    """Gather along every rail, then what each rail has inside every server.

    A rail has the ranks of one place in every server. Inside, ranks send to all others where they
    have links, else round a ring, as :func:`hierarchical_ring` does. The second way sends few
    messages: to the first rank of each server, from first to first, and to all inside. Where there
    are no bits to halve and double along, others go through the digits of the places in a server,
    so that a rank talks to few others. ReduceScatter plays it backwards; AllReduce is one after the
    other. Or what a rail has summed inside crosses whole, by doubling: of two servers no byte more
    than if a half is summed, and then gathered, in an alpha less.
    """
    grid, name, links = server_grid(problem), problem.collective.name, best_links(problem)
    if grid is None or name not in GATHER_FAMILY:
        return
    order, inside, across = grid
    by_server = ranks_by_server(problem) or []
    leaders = [Turn("fold", inside), Turn("exchange", across), Turn("spread", inside)]
    ways = [
        gathered(problem, _exchanges(order, across, inside)),
        gathered(problem, GridProgram(order, tuple(leaders))),
    ]
    several = [some for some in written(inside.radix) if len(some) > 1]
    several = several if len(order) & (len(order) - 1) else []
    round_rings, summed_round_rings = list[list[Step]](), list[list[Step]]()
    if all(pair in links for ranks in by_server for pair in permutations(ranks, 2)):
        ways += [gathered(problem, _exchanges(order, across, *some)) for some in several]
    else:
        del ways[0]
        round_rings, summed_round_rings = _round_servers(problem, rings_inside, order, across)
    summed = list[list[Step]]()
    if name == "allreduce" and not across.radix & (across.radix - 1):
        sums = [Turn("sum", Digit(bit * inside.radix, 2)) for bit in bits(across.radix)]
        for some in ((inside,), *several):
            halves = [Turn("halve", digit) for digit in reversed(some)]
            turns = (*halves, *sums, *(Turn("exchange", digit) for digit in some))
            summed.append(steps_of(problem, GridProgram(order, turns, sums=True)))
        summed += summed_round_rings
    composed = [*round_rings, *(list(compose_allreduce(problem, gather)) for gather in ways)]
    for steps in chain(summed, composed) if across.radix == 2 else chain(composed, summed):
        if steps and linked(links, steps):
            yield iter(steps)


def hierarchical_ring(problem: Problem, rings_inside: Inside) -> Iterator[Iterator[Step]]:
    """Gather along every rail, and pass what each rail has round a ring in every server.

    So where ranks of a server have links to all others, each talks to two of them: it has
    threadblocks for more instances, and its port may be faster than if it served all of them.
    ReduceScatter and AllReduce are as in :func:`hierarchical`.
    """
    grid, links = server_grid(problem), best_links(problem)
    by_server = ranks_by_server(problem) or []
    pairs = [pair for ranks in by_server for pair in permutations(ranks, 2)]
    if grid is None or problem.collective.name not in GATHER_FAMILY:
        return
    order, _, across = grid
    if all(pair in links for pair in pairs):  # else the hierarchical algorithm goes round rings
        composed, summed = _round_servers(problem, rings_inside, order, across)
        for steps in chain(composed, summed):
            if linked(links, steps):
                yield iter(steps)


def _round_servers(
    problem: Problem, rings_inside: Inside, order: Sequence[Rank], across: Digit
) -> tuple[list[list[Step]], list[list[Step]]]:
    """Return ways of a GATHER_FAMILY that go round rings in servers, and of these what sums across.

    The ranks of the `order` that differ by the digit `across` are those of a rail.
    """
    by_server, k = ranks_by_server(problem) or [], problem.collective.chunks_per_rank
    crossed = gathered(problem, _exchanges(tuple(order), across))
    rounds = [
        _round_rings(problem, rings, crossed) for rings in rings_inside(problem, by_server, k)
    ]
    if problem.collective.name != "allreduce" or across.radix & (across.radix - 1):
        return rounds, []
    width = len(by_server[0])
    turns = tuple(Turn("sum", Digit(bit * width, 2)) for bit in bits(across.radix))
    middle = GridProgram(tuple(order), turns, sums=True)
    return rounds, [
        _summed_round_rings(problem, rings, middle)
        for rings in rings_inside(problem, by_server, k * across.radix)
    ]


def _gateways(
    problem: Problem, links: Links, server: Sequence[Rank], other: Sequence[Rank]
) -> list[tuple[Rank, Rank]]:
    """Return the pairs of ranks of two servers that are nearest, each rank in one at most."""
    pairs = [pair for pair in product(server, other) if pair in links]
    times = {pair: problem.topology.arrival(links[pair], problem.chunk_size) for pair in pairs}
    least, found = min(times.values(), default=0), dict[Rank, Rank]()
    for src, dst in pairs:
        if times[src, dst] == least and src not in found and dst not in found.values():
            found[src] = dst
    return list(found.items())


def gateway_gathers(problem: Problem) -> Iterator[Iterator[Step]]:
    """Gather in every server, cross where ranks are next to another one, and gather what came.

    Gathers are for servers of which only some ranks are next to another one: the groups of a
    dragonfly. Of what a server has, each of its gates to another one takes an equal share, or the
    first takes all, where they share the cable. Inside, ranks meet along the lowest digit of their
    places first: the ranks of a router. These take the other digits in turn, each beginning with
    another one, as they share the router's cables. Ranks pack what they send.
    """
    grid, by_server = server_grid(problem), ranks_by_server(problem) or []
    if grid is None or problem.collective.name not in GATHER_FAMILY:
        return
    (_, inside, _), links, own = grid, best_links(problem), dict(enumerate(blocks(problem)))
    # The first two servers stand for all: of many there are too many pairs to look at.
    if len(_gateways(problem, links, *by_server[:2])) == inside.radix:
        return
    gates = {pair: _gateways(problem, links, *pair) for pair in permutations(by_server, 2)}
    ways = [(low.radix, staggered(low, some)) for low, *some in written(inside.radix)]
    for most, (classes, turns) in product({1, min(map(len, gates.values()))} - {0}, ways):
        come, crossing = defaultdict[Rank, tuple[int, ...]](tuple), list[Step]()
        for (server, _), pairs in gates.items():
            every = [chunk for rank in server for chunk in own[rank]]
            for share, pair in zip(shards(every, len(pairs[:most])), pairs, strict=False):
                crossing.append((share, *pair, False))
                come[pair[1]] += share
        near, far = (
            [
                step
                for server in by_server
                for program in (GridProgram(server, turns, classes),)
                for step in _held(problem, program, {rank: held[rank] for rank in server})
            ]
            for held in (own, come)
        )
        steps = list(compose_allreduce(problem, [*near, *crossing, *far]))
        if linked(links, steps):
            yield iter(steps)


def gate_alltoalls(problem: Problem) -> Iterator[Iterator[Step]]:
    """AlltoAll for small buffers: what is for another server is gathered at one gate to it.

    Gates to different servers are different ranks as far as there are, and servers take turns: each
    crosses first to the next one. What crossed is scattered from the gate, along the same digits.
    Ranks pack what they send.
    """
    by_server, ranks = ranks_by_server(problem) or [], problem.topology.num_ranks
    if problem.collective.name != "alltoall" or server_grid(problem) is None:
        return
    if ranks > MOST_RANKS or ranks.bit_length() * problem.collective.num_chunks > MOST_SENDS:
        return
    links, count = best_links(problem), len(by_server)
    place = {rank: at for server in by_server for at, rank in enumerate(server)}
    home = {rank: number for number, server in enumerate(by_server) for rank in server}
    gates: dict[tuple[int, int], tuple[Rank, Rank]] = {}
    for shift, a in product(range(1, count), range(count)):
        b = (a + shift) % count
        pairs = _gateways(problem, links, by_server[a], by_server[b])
        if not pairs:
            return
        gates[a, b] = pairs[(shift - 1) % len(pairs)]
    for digits in written(len(by_server[0])):
        turns = [Turn("exchange", digit) for digit in digits]
        near: list[Held] = [defaultdict(list) for _ in by_server]
        far: list[Held] = [defaultdict(list) for _ in by_server]
        crossing: dict[tuple[int, int], list[int]] = defaultdict(list)
        for src, dst in permutations(range(ranks), 2):
            a, b = home[src], home[dst]
            out, into = gates.get((a, b), (dst, dst))
            near[a][0, place[src]].append(((src, dst), place[out]))
            if a != b:
                crossing[a, b] += pair_block(problem, src, dst)
                far[b][0, place[into]].append(((src, dst), place[dst]))
        inside, outside = (
            [
                (tuple(c for (a, b), _ in message for c in pair_block(problem, a, b)),
                 server[at], server[to], False)
                for server, held in zip(by_server, some, strict=True)
                for message, at, to in _carried(GridProgram(server, tuple(turns)), held)
            ]
            for some in (near, far)
        )  # fmt: skip
        across = [(tuple(crossing[pair]), *gate, False) for pair, gate in gates.items()]
        if linked(links, steps := [*inside, *across, *outside]):
            yield iter(steps)


def staggered(low: Digit, others: Sequence[Digit]) -> tuple[Turn, ...]:
    """Return an exchange along the digit `low`, and along all `others`, in each class by turns.

    The ranks that differ in `low` only are the classes.
    """
    turns = product(range(len(others)), range(low.radix))
    later = (Turn("exchange", others[(n + c) % len(others)], (c,)) for n, c in turns)
    return Turn("exchange", low), *later


def _round_rings(
    problem: Problem, rings: Sequence[Sequence[Order]], crossed: list[Step]
) -> list[Step]:
    """Return steps of a GATHER_FAMILY that pass what has `crossed` round the rings of every server.

    A server has as many `rings` as every other, and each takes its share of every rank's chunks.
    """
    shares = [shards(own, len(rings[0])) for own in blocks(problem)]
    ring_of = {c: ring for own in shares for ring, share in enumerate(own) for c in share}
    held = [[list(share) for share in own] for own in shares]
    for chunks, _, rank, _ in crossed:
        for chunk in chunks:
            held[rank][ring_of[chunk]].append(chunk)
    gather, against = (
        crossed + list(chain.from_iterable(_hops(rings, held, turned=turned)))
        for turned in (False, True)
    )
    return list(compose_allreduce(problem, gather, against))


def _hops(
    rings: Sequence[Sequence[Order]],
    held: Sequence[Sequence[Sequence[int]]],
    *,
    turned: bool = False,
) -> Iterator[list[Step]]:
    """Yield the steps of each hop of chunks round the rings of every server.

    ``held[rank][number]`` are those that a rank begins with on the ring of a number. With `turned`
    they go the other way round: played backwards, they take the wires that the rings take.
    """
    size, way = len(rings[0][0]), -1 if turned else 1
    ways = [
        passed(ring[::way], [tuple(own[number]) for own in held], size - 1)
        for number, alike in enumerate(zip(*rings, strict=True)) for ring in alike
    ]  # fmt: skip
    for _ in range(size - 1):
        rows = [[next(way) for way in ways] for _ in range(size)]
        yield [step for row in rows for step in row if step[0]]


def _summed_round_rings(
    problem: Problem, rings: Sequence[Sequence[Order]], across: GridProgram
) -> list[Step]:
    """Return an AllReduce that sums round the rings of every server, then across, and goes back.

    A server has as many `rings` as every other, and each takes its share of the chunks whose sum
    ends at a place in its server; `across` sums them with those of the other servers.
    """
    size = len(rings[0][0])
    held = shards(range(problem.collective.num_chunks), size)
    at = {rank: number % size for number, rank in enumerate(across.order)}
    shares = [shards(held[at[rank]], len(rings[0])) for rank in sorted(at)]
    sums = [
        [(chunks, dst, src, True) for chunks, src, dst, _ in hop]
        for hop in reversed(list(_hops(rings, shares, turned=True)))
    ]
    steps = [step for hop in sums for step in (*hop, ROUND_BARRIER)]
    steps += _held(problem, across, {rank: held[place] for rank, place in at.items()})
    return steps + [step for hop in _hops(rings, shares) for step in (*hop, ROUND_BARRIER)]


def two_step(problem: Problem) -> Iterator[GridProgram]:
    """AlltoAll: to the rank with the destination's place in its server, then across on that rail.

    So a rank talks to as many ranks as its server has and as there are servers; what it sends
    across to one of them lies side by side there.
    """
    grid = server_grid(problem)
    if problem.collective.name == "alltoall" and grid is not None:
        order, inside, across = grid
        leaving = (Turn("exchange", inside), Turn("exchange", across))
        yield GridProgram(order, (*leaving, Turn("exchange", inside, parts=(1,))), split=True)


def three_step(problem: Problem) -> Iterator[Iterator[Step]]:
    """AlltoAll: to a gateway of the server, across to the other server's, and on to all there.

    Two servers share one connection; the ranks of a server take turns as gateways. The second way
    shares all ranks out among the other servers, each a gateway for part of its server. Which rank
    is the gateway depends on the other server: no digit tells it.
    """
    grid, by_server = server_grid(problem), ranks_by_server(problem) or []
    if problem.collective.name != "alltoall" or grid is None:
        return
    order, inside, _ = grid
    home = GridProgram(order, (Turn("exchange", inside, parts=(1,)),), split=True)
    pairs = [
        (server, (server + shift) % len(by_server))
        for shift in range(1, len(by_server))
        for server in range(len(by_server))
    ]
    for gateways in sorted({1, max(1, len(by_server[0]) // (len(by_server) - 1))}):
        staged = [one for pair in pairs for one in _by_gateways(problem, by_server, pair, gateways)]
        staged.sort(key=lambda one: one[0])
        steps = [*(step for _, step in staged), *steps_of(problem, home)]
        if linked(best_links(problem), steps):
            yield iter(steps)


def _by_gateways(
    problem: Problem, by_server: Sequence[Sequence[Rank]], pair: tuple[int, int], gateways: int
) -> Iterator[tuple[int, Step]]:
    """Yield (stage, step) of what goes from one server to another by so many gateways."""
    ranks, peers = by_server[pair[0]], by_server[pair[1]]
    width, first = len(ranks), sum(pair) * gateways
    served: dict[int, list[Rank]] = {}
    for local, rank in enumerate(ranks):
        served.setdefault((first + (local - first) % gateways) % width, []).append(rank)

    def between(sources: Sequence[Rank], targets: Sequence[Rank]) -> tuple[int, ...]:
        return tuple(c for src in sources for dst in targets for c in pair_block(problem, src, dst))

    for number, own in served.items():
        out, into = ranks[number], peers[number]
        for rank in own:
            if rank != out:
                yield 0, (between([rank], peers), rank, out, False)
        yield 1, (between(own, peers), out, into, False)
        for peer in peers:
            if peer != into:
                yield 2, (between(own, [peer]), into, peer, False)


MOST_CLASSES = 8
"""Ranks at one NIC; of more, the combinations are too many."""

MOST_SENDS = 150_000
"""About how many chunks are sent in a way that is tried: timing three of them takes a second."""

MOST_CLOCKED = 40
"""Ranks up to which a clock tells which AlltoAlls are timed exactly: of more, it takes seconds."""

MOST_RANKS = 112
"""A message may have chunks for half of them, each copied alone: a threadblock has 64 steps."""


def small_gathers(problem: Problem) -> Iterator[GridProgram]:
    """AlltoAll, AllGather, ReduceScatter for small buffers: all get to all, digit by digit.

    The classes of one NIC may cross servers at different times: what a class holds stays in it
    until all else is done. In an AlltoAll they may also fold: one of them crosses alone with what
    leaves the server, and scatters what it received. Ranks pack what they send.
    """
    by_server, ranks = ranks_by_server(problem), problem.topology.num_ranks
    name, chunks = problem.collective.name, problem.collective.num_chunks
    personal = name == "alltoall"
    if by_server is None or name not in ("allgather", "reducescatter", "alltoall"):
        return
    hops = ranks.bit_length() if personal else ranks
    if not 1 < ranks <= MOST_RANKS or hops * chunks > MOST_SENDS:
        return
    order = tuple(rank for ranks in by_server for rank in ranks)
    count, size = len(by_server), len(by_server[0])
    programs: list[GridProgram] = []
    for classes in range(1, min(size, MOST_CLASSES) + 1 if count > 1 else 2):
        if size % classes:
            continue
        nics = written(size // classes, classes)
        for outer, inner, last in product(written(count, size), nics, list(written(classes))):
            # After how many digits inside its server every class crosses servers.
            spread = tuple(len(inner) * c // max(1, classes - 1) for c in range(classes))
            same = (spread, (0,) * classes, (len(inner),) * classes)
            for crossings in dict.fromkeys(same) if outer else [(0,)]:
                own = [(*inner[:turn], *outer, *inner[turn:], *last) for turn in crossings]
                exchanges = [  # all classes, each by its next digit at a time
                    Turn("exchange", digit, tuple(group))
                    for digits in zip(*own, strict=True)
                    for digit, group in groupby(range(classes), key=digits.__getitem__)
                ]
                programs.append(GridProgram(order, tuple(exchanges), classes))
            if personal and classes > 1 and len(last) == 1:
                folds = [Turn("fold", digit) for digit in next(written(classes))]
                home = [Turn("exchange", digit, parts=(1,)) for digit in next(written(size))]
                spreads = [turn._replace(kind="spread") for turn in reversed(folds)]
                # What stays in the server goes from rank to rank, or to the leader and back, too.
                for turn, direct in product(sorted({0, len(inner)}), (home, [])):
                    digits = (*inner[:turn], *outer, *inner[turn:])
                    alone = [Turn("exchange", digit, (0,)) for digit in digits]
                    turns = (*folds, *direct, *alone, *spreads)
                    programs.append(GridProgram(order, turns, classes, split=bool(direct)))
    if personal and ranks <= MOST_CLOCKED:
        yield from _soonest(problem, programs)
    else:
        yield from programs if personal else sorted(programs, key=program_clock(problem))[:BEST]


def _soonest(problem: Problem, programs: Sequence[GridProgram]) -> list[GridProgram]:
    """Return the programs of an AlltoAll that end first by a clock for the ports of all ranks."""
    links, ends = best_links(problem), list[tuple[Time, int]]()
    for number, program in enumerate(programs):
        steps = steps_of(problem, program)
        if linked(links, steps):
            ends.append((arrival_of(problem, steps), number))
    return [programs[number] for _, number in sorted(ends)[:BEST]]


def written(places: int, weight: int = 1) -> Iterator[tuple[Digit, ...]]:
    """Yield ways to write `places` in digits, the lowest of a `weight`; the most digits first."""
    primes, rest = list[int](), places
    for factor in range(2, places + 1):
        while rest % factor == 0:
            primes.append(factor)
            rest //= factor
    pairs = [math.prod(primes[first : first + 2]) for first in range(0, len(primes), 2)]
    low = next(q for q in range(math.isqrt(places), 0, -1) if places % q == 0)
    radices = (primes, pairs, [low, places // low], [places])
    for digits in dict.fromkeys(tuple(q for q in some if q > 1) for some in radices):
        weights = accumulate(digits, mul, initial=weight)
        yield tuple(Digit(*digit) for digit in zip(weights, digits, strict=False))


NEIGHBOURS = (2, 4, 8)
"""Ranks of which one crosses servers for all."""

MOST_LED = 300_000
"""Chunks that all ranks together get in a gather by leaders."""


def leader_gathers(problem: Problem) -> Iterator[GridProgram]:
    """AllGather and ReduceScatter for middling buffers: one of some neighbours crosses for all.

    Where g ranks share a NIC, each of them crossing it pays g alphas. Here neighbours gather inside
    their server by doubling, from the lowest bit; after log2(g) rounds the first of them has what
    all hold, and alone exchanges it with its peers in other servers, while the doubling goes on.
    What has crossed is spread to the g ranks in log2(g) rounds, and doubled inside the server like
    what is its own. Blocks lie side by side all the time: a message for each server's is enough.

    Or each other server has a neighbour of its own to cross to it with what they hold: where what
    leads out is shared, but less so the further it goes, these cross at one time.
    """
    grid, collective = server_grid(problem), problem.collective
    if collective.name not in GATHER_FAMILY or grid is None:
        return
    order, (_, size), (_, count) = grid
    if len(order) * collective.num_chunks > MOST_LED:
        return
    programs: list[GridProgram] = []
    doubles = not (count & (count - 1) or size & (size - 1)) and collective.name != "allreduce"
    for classes in (g for g in NEIGHBOURS if doubles and g <= size):
        near = [Digit(bit, 2) for bit in bits(classes)]
        far = [Digit(bit * classes, 2) for bit in bits(size // classes)]
        across = [Digit(bit * size, 2) for bit in bits(count)]
        turns = [Turn("exchange", digit) for digit in near]
        turns += [Turn("exchange", digit, (0,), (0, 1), into=1) for digit in across]
        turns += [Turn("exchange", digit) for digit in far]
        turns += [Turn("spread", digit, parts=(1,)) for digit in near]
        turns += [Turn("exchange", digit, parts=(1,)) for digit in far]
        programs.append(GridProgram(order, tuple(turns), classes))
    # One of each server goes on for all; servers beyond a power of two leave it to others.
    beyond = [Digit(bit * size, 2) for bit in (bits(2 * count)[-1],) if count & (count - 1)]
    sums = collective.name == "allreduce"
    alone = [Turn("sum" if sums else "exchange", Digit(bit * size, 2), (0,)) for bit in bits(count)]
    for digits in written(size):
        programs += _one_for_each_server(order, digits, Digit(size, count))
        folds = [Turn("fold", digit) for digit in (*digits, *beyond)]
        spreads = [turn._replace(kind="spread") for turn in reversed(folds)]
        programs.append(GridProgram(order, (*folds, *alone, *spreads), size, sums=sums))
    yield from sorted(programs, key=program_clock(problem))[:BEST]


def _one_for_each_server(
    order: tuple[Rank, ...], digits: Sequence[Digit], servers: Digit
) -> Iterator[GridProgram]:
    """Yield gathers in which each other server has a rank to cross to it.

    The lowest digits are gathered before, all of them or some, and the lowest of these by a leader,
    who goes on for all. What crossed is gathered from the highest of these on, as it came to the
    first neighbours; and the other digits follow.
    """
    for known in range(1, len(digits) + 1):
        near, far = digits[:known], digits[known:]
        for folded in range(known + 1):
            classes, led = (math.prod(d.radix for d in some) for some in (near, near[:folded]))
            if servers.radix > 4 * classes:
                continue  # a rank would cross for many
            turns = [Turn("fold", digit) for digit in near[:folded]]
            turns += [Turn("exchange", digit) for digit in near[folded:]]
            for other in range(1, servers.radix):
                shift, makers = Digit(other * servers.weight, 2), (other * led % classes,)
                turns.append(Turn("rotate", shift, makers, (0,), into=1))
            turns += [Turn("exchange", digit, parts=(1,)) for digit in reversed(near[folded:])]
            turns += [Turn("spread", digit, parts=(0, 1)) for digit in reversed(near[:folded])]
            turns += [Turn("exchange", digit, parts=(0, 1)) for digit in far]
            yield GridProgram(order, tuple(turns), classes)


MOST_STAGES, MOST_SHARES = 5, 16
"""Stages, and into how many shares all that crosses is cut for them."""

MOST_PIPELINED = 60_000
"""Chunks sent in a pipelined gather: timing a few takes a second."""

TIMED, MOST_TIMED = 12, 100_000
"""Pipelined gathers that are timed exactly, and chunks sent in all of them."""


def pipelined_gathers(problem: Problem) -> Iterator[GridProgram]:
    """Gathers for large buffers: chunks cross in stages, and each is doubled inside its server.

    A machine's servers gather what is their own digit by digit, while every rank sends its chunks
    to the ranks at its place in all other servers. What comes is cut into stages, each as large as
    what can cross while those before it are gathered inside: the ports inside are busy from the
    start, messages are few and long, and after the last arrival there is only a small stage left. A
    stage may also wait before its last digit and go through it with the next: one message less.

    A stage may end at half a piece (a chunk): then every second rank has one more in it. How many
    half pieces there are in a stage, and which one waits, is chosen by a clock for the ports of one
    rank and the NICs of one server. Ranks pack what they send.
    """
    grid, collective, links = server_grid(problem), problem.collective, best_links(problem)
    if collective.name not in GATHER_FAMILY or grid is None:
        return
    order, (_, width), across = grid
    sends = len(order) * collective.num_chunks * (2 if collective.name == "allreduce" else 1)
    rails = _exchanges(order, across).meetings(Turn("exchange", across))
    if sends > MOST_PIPELINED or not all((order[a], order[b]) in links for a, b in rails):
        return
    first, come = links[order[width], order[0]], len(order) * collective.chunks_per_rank
    alpha, arrival = (problem.topology.arrival(first, n * problem.chunk_size) for n in (0, come))
    if arrival < 2 * alpha:
        return  # it has come before a second message could
    programs: list[GridProgram] = []
    for digits in written(width):
        inside = _exchanges(order, *digits)
        ends = (pair for turn in inside.turns for pair in inside.meetings(turn))
        if all((order[a], order[b]) in links for a, b in ends):
            for cuts in cuts_of(2 * (across.radix - 1) * collective.chunks_per_rank):
                stages = enumerate(pairwise((0, *cuts)), 1)
                crossing = [Turn("cross", across, None, (w,), pieces=cut) for w, cut in stages]
                for late in (None, *range(len(cuts))):
                    turns = (*crossing, *_pipelined(digits, len(cuts), late))
                    programs.append(GridProgram(order, turns))
    yield from sorted(programs, key=_pipeline_clock(problem, order, links))[
        : min(TIMED, MOST_TIMED // sends)
    ]


def cuts_of(parts: int) -> Iterator[tuple[int, ...]]:
    """Yield after how many parts stages may end: of so many shares each, fewer and fewer."""
    shares = min(parts, MOST_SHARES)
    sums = (
        sizes
        for count in range(1, MOST_STAGES + 1)
        for sizes in combinations_with_replacement(range(shares, 0, -1), count)
        if sum(sizes) == shares
    )
    for sizes in sorted(sums, reverse=True):
        yield tuple(parts * end // shares for end in accumulate(sizes))


def _pipelined(digits: Sequence[Digit], stages: int, late: int | None) -> Iterator[Turn]:
    """Yield the turns of stage after stage; one may wait for the next before its last digit."""
    for stage in range(stages + 1):
        for digit in digits[:-1]:
            yield Turn("exchange", digit, parts=(stage,))
        if stage != late:
            together = (stage,) if stage - 1 != late else (stage - 1, stage)
            yield Turn("exchange", digits[-1], parts=together)


def _pipeline_clock(
    problem: Problem, order: Sequence[Rank], links: Links
) -> Callable[[GridProgram], Time]:
    """Return what tells about how long a pipelined gather takes: one server's NICs, one's ports."""
    send, half = _port_clock(problem), problem.chunk_size / 2
    k = problem.collective.chunks_per_rank

    @cache
    def come_from(cut: tuple[int, int], local: int, count: int) -> Counter[int]:
        return Counter((1 + piece // k) % count for piece in pieces_of(local, cut))

    @cache
    def crossed(crossing: tuple[Turn, ...]) -> tuple[Free, list[Time], list[int]]:
        """Return when edges are free again, and when so many half pieces for a rank have come."""
        free: Free = defaultdict(int)
        ready, amounts = [0], [2 * k]
        for (width, count), pieces in ((turn.digit, turn.pieces) for turn in crossing):
            arrivals = [0]
            for local in range(width):
                for server, number in come_from(pieces, local % 2, count).items():
                    link = links[order[server * width + local], order[local]]
                    arrivals.append(send(free, link, 2 * number * half, 0)[1])
            ready.append(max(arrivals))
            amounts.append(pieces[1] - pieces[0])
        return free, ready, amounts

    def time(program: GridProgram) -> Time:
        before, *columns = crossed(tuple(t for t in program.turns if t.kind == "cross"))
        free, (ready, amounts) = before.copy(), map(list, columns)
        for turn in program.turns:
            if turn.kind == "cross":
                continue
            start = max(ready[stage] for stage in turn.parts)
            amount = sum(amounts[stage] for stage in turn.parts)
            peers = [order[digit * turn.digit.weight] for digit in range(1, turn.digit.radix)]
            end = max(send(free, links[order[0], peer], amount * half, start)[1] for peer in peers)
            for stage in turn.parts:
                ready[stage] = end
                amounts[stage] *= turn.digit.radix
        return max(ready)

    return time


MOST_ROWS = 500_000
"""Chunks sent, of all butterflies that are timed: each takes 2 to 4 us."""

BEST = 6
"""Butterflies that are timed besides the best of every kind."""

Ops = Sequence[tuple[str, Digit]]
"""Kinds of turns, and the digits that they go through."""

Phases = tuple[Ops, Sequence[Ops], Ops]
"""What all classes do together, then each by itself (nothing where it is folded), then all."""


def butterflies(problem: Problem, worth: Time | None = None) -> Iterator[Iterator[Step]]:
    """AllReduce for small buffers: whole messages, and ranks take turns at the NIC they share.

    Servers, the NICs of a server, and the ranks at a NIC (or any neighbours, which may share a
    leaf's uplink) are a cube: every bit of a place is a digit in which pairs of ranks meet. It is
    gone through in one of three ways:

    sum         one message each, of all they hold;
    halve       each gets its sum back at the end: two messages each, and half as much to carry in
                all digits between them;
    fold        two messages, one of each direction, and no load on the NIC they share in all
                digits between them; before the NIC's digits, or after those that are halved.

    The digits between servers are summed, as many as there are bits; the classes of one NIC may go
    through them at different times, one between servers while the other is inside its server: where
    two ranks share a NIC, whole buffers then take no longer than if each had its own. How many of
    the digits of NICs are halved, what is done with the classes, and after how many of its digits
    each class goes between servers is tried in all combinations, on a clock for every class, which
    also tells the order of their turns. Of each kind and number of classes the best by the clock
    comes first: it knows of the NIC that a class shares, not of what leads on from there.

    Recursive doubling (all summed, between servers last) and halving and doubling (all halved) are
    the two ends (Thakur, Rabenseifner, Gropp 2005, sections 4.5 and 4.6).

    `problem`: an AllReduce; of anything else there is none.
    `worth`: picoseconds; what takes longer by the clock is left out.
    """
    clocked = sorted(
        (
            (time, program.classes, kind, program)
            for classes, across in _cubes(problem)
            for clock in (_class_clock(problem, classes, across),)
            for kind, phases in _phases(problem, classes, across)
            for time, program in (clock(phases),)
            if worth is None or time <= worth
        ),
        key=lambda way: way[:3],
    )
    kinds: set[tuple[int, str]] = set()
    first: list[GridProgram] = []
    others: list[GridProgram] = []
    for _, classes, kind, program in clocked:
        (others if (classes, kind) in kinds else first).append(program)
        kinds.add((classes, kind))
    left = MOST_ROWS
    for program in sorted((*first, *others[:BEST]), key=program_clock(problem)):
        steps = steps_of(problem, program)
        sends = sum(len(chunks) for chunks, *_ in steps)
        if sends <= left:
            left -= sends
            yield iter(steps)


def _cubes(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield how many neighbours are classes, and the lowest bit of a place that is for servers."""
    by_server, ranks = ranks_by_server(problem), problem.topology.num_ranks
    if problem.collective.name != "allreduce" or by_server is None:
        return
    if 2 * ranks * problem.collective.num_chunks > MOST_ROWS:
        return  # even where all is halved
    links, order = best_links(problem), [rank for server in by_server for rank in server]
    count, size = len(by_server), len(by_server[0])
    if any(n & (n - 1) for n in (count, size)) or ranks == 1:
        return
    pairs = ((order[a], order[a ^ bit]) for bit in bits(ranks) for a in range(ranks))
    if all(pair in links for pair in pairs):
        # Hosts of one rank may share what leads to others as well.
        for classes in (1, *bits(2 * min(size if size > 1 else count, MOST_CLASSES))[1:]):
            yield classes, max(size, classes)


def _phases(problem: Problem, classes: int, across: int) -> Iterator[tuple[str, Phases]]:
    """Yield what is done with the classes, and all that is done."""
    every = [Digit(bit, 2) for bit in bits(problem.topology.num_ranks)]
    nics = [digit for digit in every if classes <= digit.weight < across]
    between = [("sum", digit) for digit in every if digit.weight >= across]
    for kind in ("sum", "halve", "fold") if classes > 1 else ("sum",):
        shared = [(kind, digit) for digit in every if digit.weight < classes]
        down, last = ([], shared) if kind == "sum" else (shared, [])
        acting = 1 if kind == "fold" else classes
        for halved in range(len(nics) + 1):
            halves = [("halve", digit) for digit in nics[:halved]]
            rest = [("sum", digit) for digit in nics[halved:]]
            for turns in combinations_with_replacement(range(len(rest) + 1), acting):
                alone = [(*rest[:turn], *between, *rest[turn:]) for turn in turns]
                own = [(*halves, *ops, *_undone(halves)) for ops in alone]
                yield kind, (down, own, (*last, *_undone(down)))
                if kind == "fold" and halves:
                    # Leave only a part of a buffer to others: all have halved theirs before.
                    folded = (*halves, *down)
                    yield "fold late", (folded, alone, _undone(folded))


def _undone(ops: Ops) -> Ops:
    return [("exchange" if kind == "halve" else "spread", digit) for kind, digit in reversed(ops)]


def _class_clock(
    problem: Problem, classes: int, across: int
) -> Callable[[Phases], tuple[Time, GridProgram]]:
    """Return what tells about how long phases take, and their turns in the order of their starts.

    By the fastest links of each digit, and the NIC that classes share.
    """
    links, size, send = best_links(problem), problem.chunk_size, _port_clock(problem)
    order = tuple(rank for ranks in ranks_by_server(problem) or () for rank in ranks)
    every = tuple(range(classes))
    fastest = {
        bit: min(
            (links[order[place], order[place ^ bit]] for place in range(len(order))),
            key=lambda link: problem.topology.arrival(link, size),
        )
        for bit in bits(len(order))
    }
    shared = {bit: _ports(problem, link) if bit >= across else [] for bit, link in fastest.items()}

    def time(phases: Phases) -> tuple[Time, GridProgram]:
        first, own, last = phases
        part = dict.fromkeys(every, float(problem.collective.num_chunks))
        clock: dict[int, Time] = dict.fromkeys(every, 0)
        free: Free = defaultdict(int)
        turns: list[Turn] = []

        def make(op: tuple[str, Digit], makers: tuple[int, ...]) -> None:
            kind, digit = op
            for c in makers:
                part[c] *= 0.5 if kind == "halve" else 1
            ports = free if shared[digit.weight] else defaultdict(int)
            amount, ready = size * round(part[makers[0]]), max(clock[c] for c in makers)
            _, end = send(ports, fastest[digit.weight], amount, ready)
            for c in makers:
                part[c] *= 2 if kind == "exchange" else 1
                clock[c] = end
            turns.append(Turn(kind, digit, makers))

        for op in first:
            make(op, every)
        waiting = {c: list(ops) for c, ops in enumerate(own)}
        while any(waiting.values()):
            _, _, chosen = min(
                (max([clock[c], *(free[edge] for edge in shared[ops[0][1].weight])]), -len(ops), c)
                for c, ops in waiting.items()
                if ops
            )
            make(waiting[chosen].pop(0), (chosen,))
        for op in last:
            make(op, every)
        return max(clock.values()), GridProgram(order, tuple(turns), classes, sums=True)

    return time
