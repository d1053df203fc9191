"""Which messages could be on every link at every time: a flow in the time-expanded network.

The time T is cut into K slots of d = T / K. A message of x bytes, from s to e = s + alpha + b x, is
of a class (l, S, m): its link, the slot S that it starts in, and m, by how many its end is in a
later slot. Then b x < (m + 1) d - alpha. On the slowest edge of its link it covers the slots S to
S + m - 1, which no other message on that edge does, as that one ends no later than this begins, or
the other way round (on other edges, and where the overhead is less than alpha, some of these
slots). What is needed by a message came by one whose slot S + m is no later than its own S. All of
this holds wherever the slots begin, for any u of d later; and on the average over u, m d is e - s,
so that b x = m d - alpha on the average of each message. Any schedule that ends by T is so an
average of solutions of

Sets        l links, e edges, S and m slots; (r, t) pairs of a rank and one that wants its data
Variables   z[l,S,m] >= 0      messages of a class
            y[r,l,S,m] >= 0    bytes of r in them (AllReduce: sums of all ranks; AlltoAll: of pairs)
            f[r,t,l,S,m] >= 0  bytes of r on their way to t;  g: that every t gets such a part
Maximise    g
Subject to  (conserve)  f[r,t] is a flow of g size[r] from r at slot 0 to t at slot K, which may
                        wait at ranks
            (copies)    f[r,t,l,S,m] <= y[r,l,S,m] <= size[r] z[l,S,m]
            (room)      b sum_r y <= ((m + 1) d - alpha) z, for each l, S, m
            (average)   b sum y <= sum (m d - alpha) z, for each l over all S and m
            (slots)     the z that cover a slot of an edge are 1 at most
            (sums)      AllReduce: all y together are (2n - 2) g size or more (2n - 2 messages of
                        every byte: waiting.py)

and if the best g is below 1 there is none. The solver's numbers are not trusted: its prices for
(copies), (average), (slots) and (sums), rounded to integers, prove it or do not. At prices q for a
byte on its way to t, each pair pays for its cheapest way through the slots, found exactly. A
message is worth what its bytes pay, those first that pay most, as far as there is room, and what
(average) pays for it; with the prices of the slots it covers to pay for that, the whole is worth no
more than all slots are. So where the pairs pay more than that, no schedule ends by T.

ReduceScatter and Reduce are an AllGather and a Broadcast turned round in time, when messages cover
the last slots before their end in place of the first. Symmetries (all that BLISS finds, each proved
edge by edge) leave one variable for each orbit: the average of a solution over all images is one.

Nothing is said where a slot would be longer than alpha (K would be too large), nor where switches
copy or add.

Source: the time-expanded network is that of Ford and Fulkerson (Flows in Networks, 1962, III.9);
TE-CCL (Liu et al., SIGCOMM 2024) has copies in it, with slots as its model of time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl.bounds.net import IntArray, Net, proved_symmetries
from taccl.collectives import TURNED, Collective
from taccl.topology.symmetry import automorphisms, smallest_of_orbit
from taccl.units import Time

Floats = NDArray[np.float64]

SLOTS = (8, 10, 12, 16, 24)
"""Numbers of slots to choose from."""

MOST_WAYS = 400_000
"""Pairs of ranks and links whose orbits are looked for."""

SOLVED, GROWS = 1.5e-7, 1.5
"""Seconds that a program takes, about, for what power of its entries."""

PROGRAMS, USUAL = 3, 2
"""Programs, each for another time: at most, and as a rule."""

FINE = 1 << 24
"""Steps of the largest price of what is on its way."""

FINER = 1 << 18
"""Those of a picosecond, or a slot, are so many times finer."""

TINY = 1e-12
"""Where no price is as large as this, none counts: the solver found none."""

SPARE = 5e-4
"""What a slot costs at least, of what one costs on the average."""

MOST = 3.0
"""The most that a program looks for: so many times what is to come in time."""

STEPS = 400
"""Parts of the time that are told apart."""

NEAR = 0.005
"""A part of the time, below which two are not told apart."""

SLOPE = 1.6
"""How much more can come, about, for how much more of the time."""

NEVER = np.int64(1) << 60
"""What a way costs that there is not."""

DEAREST, DEAR = 1 << 52, 1 << 34
"""Below these are prices in steps that are ``FINER``, and all others: sums fit into 64 bits."""

LONGEST = 1 << 40
"""Picoseconds of the time, at most."""

WIDE = 1 << 62
"""Numbers that are no smaller are not reckoned with in 64 bits."""

KNOWN = ("allgather", "allreduce", "alltoall", "broadcast")
"""Collectives that something is said of."""


def time_expanded_time(
    net: Net, collective: Collective, size: int, least: Time, seconds: float
) -> Time:
    """Return a proved bound (ps) for a `collective` of `size` bytes; `least` if there is no larger.

    Messages on `net` may hold any bytes. The bound takes about so many `seconds` at most; where it
    would take more, nothing is looked for.
    """
    late, name = collective.name in TURNED, TURNED.get(collective.name, collective.name)
    origins = net.num_ranks if collective.root is None else 1
    slow = int(net.alpha.min()) if len(net.alpha) else 0
    if name not in KNOWN or net.helpers or net.chunk is not None or net.num_ranks < 2:
        return least
    if (
        not 0 < least <= min(slow * SLOTS[-1], LONGEST // 2)
        or origins * net.num_ranks * len(net.src) > MOST_WAYS
    ):
        return least
    network = folded_net(net, name, collective.root, size, late=late)
    if network is None:
        return least
    best, time, failed, most = least, least * 6 // 5, 2 * least, SLOTS[-1]
    for _ in range(PROGRAMS):
        fitting = [
            k for k in reversed(SLOTS)
            if k <= most and best <= k * slow / (1 + 2 * NEAR) and k <= time
            and network.pays(k, seconds)
        ]  # fmt: skip
        grids = (Grid(network, min(time // k, slow), k) for k in fitting)
        programs = (one for one in map(program_of, grids) if one.seconds * USUAL <= seconds)
        program = next(programs, None)
        if program is None:
            break
        grid, most = program.grid, program.grid.slots
        prices, part = priced(program)
        best = max(best, largest(grid, prices, best))
        if best == grid.time:
            time = int(best * (1 + max(NEAR, (1 - part) / SLOPE)))
        else:
            failed = min(failed, grid.time)
            time = int(max(best * (1 + 2 * NEAR), grid.time * (1 - max(NEAR, (part - 1) / SLOPE))))
        if time > failed * (1 - NEAR):
            time = (best + failed) // 2
        if time - best < NEAR * best:
            break
    return best


class Orbits(NamedTuple):
    """For each item the `number` of its orbit, and for each orbit how many there are in it."""

    number: IntArray
    size: IntArray

    @property
    def samples(self) -> IntArray:
        """The first item of each orbit."""
        return np.unique(self.number, return_index=True)[1].astype(np.int64)


def orbits_of(images: Sequence[IntArray], *shape: int) -> Orbits:
    """Return the orbits of the items of a `shape`; each of the `images` says where all go."""
    first = smallest_of_orbit([image.ravel() for image in images], math.prod(shape))
    number = np.unique(first, return_inverse=True)[1].astype(np.int64)
    return Orbits(number.reshape(shape), np.bincount(number))


@dataclass(frozen=True, eq=False)
class FoldedNet:
    """Links by their orbits, and what goes over them.

    `sums`: whether what comes from all ranks travels as one, and `late`: whether messages cover the
    last slots of their time. `tail`, `head`, `alpha` and `overhead` (ps) have an entry for each
    link, `edges` those edges that are resources with what a share takes on each (ps); a share is
    what each pair moves. `distance` is in ps. Of so many `origins` (all ranks, or a root), to each
    rank, what is on its way has the orbits `pairs` [origin, rank], at a rank `places` [origin,
    rank, rank], and on a link `ways` [origin, rank, link]; `carried` are those of what links carry:
    of ways, or of all those from an origin, or of all.
    """

    sums: bool
    late: bool
    origins: tuple[int, ...]
    tail: IntArray
    head: IntArray
    alpha: IntArray
    overhead: IntArray
    edges: tuple[tuple[tuple[int, Fraction], ...], ...]
    distance: IntArray
    links: Orbits
    resources: Orbits
    pairs: Orbits
    places: Orbits
    ways: Orbits
    carried: Orbits

    @cached_property
    def ends(self) -> list[tuple[int, int, int]]:
        """One (origin, rank) of each orbit of pairs, and how many pairs there are in it."""
        ranks, numbers = len(self.distance), self.pairs.number.ravel()
        rows = [(*divmod(at, ranks), int(self.pairs.size[numbers[at]]))
                for at in self.pairs.samples.tolist()]  # fmt: skip
        return [row for row in rows if self.origins[row[0]] != row[1]]

    @cached_property
    def slowest(self) -> list[Fraction]:
        """What a share takes on each link (ps)."""
        return [max(share for _, share in edges) for edges in self.edges]

    @cached_property
    def by_way(self) -> IntArray:
        """What is carried [origin, rank, link], by its orbit."""
        return np.broadcast_to(self.carried.number, self.ways.number.shape)

    def pays(self, slots: int, seconds: float) -> bool:
        """Tell whether a program with so many `slots` may be small enough for some `seconds`."""
        entries = len(self.ways.size) * slots**2 / 2
        return bool(USUAL * SOLVED * entries**GROWS <= seconds)

    def kinds(self, link: int) -> tuple[IntArray, IntArray]:
        """Return what a `link` can carry, by its orbits, and of each how many there are."""
        return np.unique(self.carried.number[..., link], return_counts=True)


def folded_net(
    net: Net, name: str, root: int | None, size: int, *, late: bool
) -> FoldedNet | None:  # fmt: skip
    """Return the links of a `net` by their orbits, for a collective; None: one has no bandwidth.

    The collective has a `name`, a `root` if it has one, and `size` bytes. With `late` all links are
    turned round.
    """
    ranks, count, edge = net.num_ranks, len(net.src), net.topology.edges
    share = Fraction(size) if name in ("allreduce", "broadcast") else Fraction(size, ranks)
    cuts = net.first.tolist()
    crossed = [tuple(net.edges[cuts[n] : cuts[n + 1]].tolist()) for n in range(count)]
    edges = tuple(
        tuple((e, share * beta) for e in row if (beta := edge[e].beta)) for row in crossed
    )
    if not all(edges):
        return None
    origins = tuple(range(ranks)) if root is None else (root,)
    moved = list(images_of(net, crossed, root))
    zero = np.zeros(1, dtype=np.int64)
    begun = [(row if root is None else zero, row, links) for row, _, links in moved]
    on_links = [links for _, _, links in moved]
    held = [start[:, None, None] * count + links for start, _, links in begun]
    pairs = [start[:, None] * ranks + row for start, row, _ in begun]
    ways = [pair[:, :, None] * count + links for pair, links in zip(pairs, on_links, strict=True)]
    places = [
        pair[:, :, None] * ranks + row for pair, (_, row, _) in zip(pairs, begun, strict=True)
    ]
    shape = (len(origins), ranks, count)
    carried, images = (len(origins), 1, count), held
    if name == "alltoall":
        carried, images = shape, ways
    elif name == "allreduce":
        carried, images = (1, 1, count), on_links
    return FoldedNet(
        name == "allreduce", late, origins, *((net.dst, net.src) if late else (net.src, net.dst)),
        net.alpha, net.overhead, edges, net.distance.T if late else net.distance,
        orbits_of(on_links, count), orbits_of([image for _, image, _ in moved], len(edge)),
        orbits_of(pairs, *shape[:2]), orbits_of(places, *shape[:2], ranks),
        orbits_of(ways, *shape), orbits_of(images, *carried),
    )  # fmt: skip


def images_of(
    net: Net, crossed: Sequence[tuple[int, ...]], root: int | None
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield where symmetries that leave a `root` alone take all ranks, edges and links of `net`.

    `crossed` has the edges of each link. None does where a sketch leaves links out.
    """
    known = {edges: link for link, edges in enumerate(crossed)}
    for row, edge in proved_symmetries(net, automorphisms(net.topology, root) or ()):
        links = [known[tuple(edge[list(edges)].tolist())] for edges in crossed]
        yield row, edge, np.array(links, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Grid:
    """The classes of messages on a `network` in so many `slots` of `long` picoseconds each."""

    network: FoldedNet
    long: Time
    slots: int

    @property
    def time(self) -> Time:
        """The end of the last slot."""
        return self.long * self.slots

    @cached_property
    def start(self) -> IntArray:
        """The slot in which the messages of each class start; one slot after the other."""
        return np.repeat(np.arange(self.slots), np.arange(self.slots, 0, -1))

    @cached_property
    def stop(self) -> IntArray:
        """The slot in which they end."""
        return np.concatenate([np.arange(k + 1, self.slots + 1) for k in range(self.slots)])

    def room(self, link: int) -> IntArray:
        """Return for how long (ps) the bytes of a message on a `link` take at most, by class."""
        room: IntArray = (self.stop - self.start + 1) * self.long - self.network.alpha[link]
        return room

    def covered(self, link: int) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Yield each edge of a `link`, and from and to which slot each class covers it."""
        network, length = self.network, self.stop - self.start
        alpha, overhead = int(network.alpha[link]), int(network.overhead[link])
        sent = np.maximum(0, (length - 1) * self.long - alpha - 1)
        for edge, share in network.edges[link]:
            part = share / network.slowest[link]
            slots = (overhead + sent * int(part * FINER) // FINER) // self.long
            if part == 1 and overhead == alpha:
                slots = length
            slots = np.minimum(slots, length)
            first = self.stop - slots if network.late else self.start
            yield edge, first, first + slots

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """By which classes (columns) something can come in time, for each orbit of ways (rows)."""
        network = self.network
        ranks, links = len(network.distance), len(network.tail)
        pair, link = np.divmod(network.ways.samples, links)
        origin, rank = np.divmod(pair, ranks)
        tail, head = network.tail[link], network.head[link]
        source = np.array(network.origins)[origin]
        first = network.distance[source, tail] // self.long
        last = self.slots - network.distance[head, rank] // self.long
        room = (self.stop - self.start + 1) * self.long > network.alpha[link][:, None]
        found = (self.start >= first[:, None]) & (self.stop <= last[:, None]) & room
        useful: NDArray[np.bool_] = found & ((tail != rank) & (head != source))[:, None]
        return useful


class Prices(NamedTuple):
    """Whole numbers: what is paid for a share on its way, and for what is sent.

    `ways` [orbit of ways, class] and `sums`, which is for any message, are for a share; `average`
    [orbit of links] for a picosecond and `slots` [orbit of edges, slot] are in steps that are
    ``FINER``.
    """

    ways: IntArray
    average: IntArray
    slots: IntArray
    sums: int


Term = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Rows, and for each a column and its factor."""


class Rows:
    """Rows of a linear program as they come."""

    def __init__(self) -> None:
        self.terms: list[tuple[IntArray, IntArray, Floats]] = []
        self.low: list[Floats] = []
        self.high: list[Floats] = []
        self.count = 0

    def add(self, count: int, low: float, high: float, *terms: Term) -> slice:
        """Add `count` rows between `low` and `high`, and return which they are.

        The `terms` number them from 0.
        """
        for term in terms:
            row, column, factor = (np.ravel(part) for part in np.broadcast_arrays(*term))
            self.terms.append((row + self.count, column, factor.astype(np.float64)))
        self.low.append(np.full(count, low))
        self.high.append(np.full(count, high))
        self.count += count
        return slice(self.count - count, self.count)


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear program on a `grid`, of so many `columns`; the `rows` that have prices by name."""

    grid: Grid
    rows: Rows
    columns: int
    named: Mapping[str, slice]

    @property
    def seconds(self) -> float:
        """What it takes to solve it, about."""
        entries = sum(len(row) for row, _, _ in self.rows.terms)
        return float(SOLVED * entries**GROWS)


def program_of(grid: Grid) -> LinearProgram:
    """Return the program of a `grid`, whose optimum is what part of all can come in time."""
    network, links, samples = grid.network, grid.network.links, grid.network.links.samples.tolist()
    slowest = np.array([float(network.slowest[link]) for link in samples])[:, None]
    room = np.stack([grid.room(link) for link in samples]) / slowest
    of_ways = network.by_way.ravel()[network.ways.samples]
    on_link = links.number[network.carried.samples % len(network.tail)]
    used = np.zeros((len(network.carried.size), len(grid.start)), dtype=np.bool_)
    np.logical_or.at(used, of_ways, grid.allowed)
    columns, numbers = 1, list[IntArray]()  # the first is g
    for wanted in (room > 0, used, grid.allowed):
        numbers.append(np.where(wanted, columns - 1 + np.cumsum(wanted).reshape(wanted.shape), -1))
        columns += int(np.count_nonzero(wanted))
    sent, carried, flow = numbers

    rows, named = Rows(), dict[str, slice]()
    way, at = np.nonzero(grid.allowed)
    one = np.arange(len(way))
    named["copies"] = rows.add(
        len(way), -math.inf, 0, (one, flow[way, at], 1), (one, carried[of_ways[way], at], -1)
    )
    for origin, rank, _ in network.ends:
        for place in np.unique(network.places.number[origin, rank], return_index=True)[1].tolist():
            hold = columns + np.arange(grid.slots)
            columns += grid.slots
            rows.add(
                grid.slots + 1, 0, math.inf, *conserved(grid, flow, (origin, rank, place), hold)
            )
    kind, at = np.nonzero(used & (room[on_link] > 1))
    one = np.arange(len(kind))
    limit = (one, carried[kind, at], 1), (one, sent[on_link[kind], at], -1)
    rows.add(len(kind), -math.inf, 0, *limit)
    for name, less in (("room", 0), ("averages", grid.long)):
        begin = rows.count
        for number, link in enumerate(samples):
            at = np.flatnonzero(room[number] > 0)
            row = 0 * at if less else np.arange(len(at))
            terms: list[Term] = [(row, sent[number, at], (less / slowest - room)[number, at])]
            for kind, count in zip(*network.kinds(link), strict=True):
                here = carried[kind, at] >= 0
                terms.append((row[here], carried[kind, at[here]], count))
            rows.add(1 if less else len(at), -math.inf, 0, *terms)
        named[name] = slice(begin, rows.count)
    covers: list[Term] = []
    for number, link in enumerate(samples):
        for edge, first, last in grid.covered(link):
            at = np.flatnonzero((room[number] > 0) & (last > first))
            long, resource = (last - first)[at], network.resources.number[edge]
            slot = np.arange(long.sum()) + np.repeat(first[at] - np.cumsum(long) + long, long)
            share = links.size[number] / network.resources.size[resource]
            covers.append((resource * grid.slots + slot, np.repeat(sent[number, at], long), share))
    named["slots"] = rows.add(len(network.resources.size) * grid.slots, -math.inf, 1, *covers)
    if network.sums:
        kind, at = np.nonzero(used)
        least = 2 * len(network.distance) - 2
        summed = (0, carried[kind, at], network.carried.size[kind])
        named["sums"] = rows.add(1, 0, math.inf, summed, (0, 0, -least))
    return LinearProgram(grid, rows, columns, named)


def conserved(
    grid: Grid, flow: IntArray, way: tuple[int, int, int], hold: IntArray
) -> Iterator[Term]:  # fmt: skip
    """Yield what comes to a place less what goes on: a row for each slot of a `grid`.

    `way` is (origin, rank, place), `flow` has the columns [orbit of ways, class], and `hold` those
    of what waits at the place from one slot to the next.
    """
    network, (origin, rank, place) = grid.network, way
    waits = np.arange(grid.slots)
    yield waits, hold, -1
    yield waits + 1, hold, 1
    for ends, slot, sign in ((network.tail, grid.start, -1), (network.head, grid.stop, 1)):
        for link in np.flatnonzero(ends == place).tolist():
            number = flow[network.ways.number[origin, rank, link]]
            yield slot[number >= 0], number[number >= 0], sign
    if place == network.origins[origin]:
        yield 0, 0, 1
    if place == rank:
        yield grid.slots, 0, -1


def priced(program: LinearProgram) -> tuple[Prices, float]:
    """Return the prices of a `program`, and its optimum."""
    grid, network = program.grid, program.grid.network
    duals, part = solved(program.rows, program.columns)
    copies, average, slot, sums = (
        duals[program.named[name]] if name in program.named else np.zeros(1)
        for name in ("copies", "averages", "slots", "sums")
    )
    paid = np.zeros(grid.allowed.shape)
    paid[grid.allowed] = -copies / network.ways.size[np.nonzero(grid.allowed)[0]]
    fine = FINE / max(float(paid.max(initial=0)), TINY)
    slowest = np.array([float(network.slowest[link]) for link in network.links.samples.tolist()])
    slot = -slot.reshape(-1, grid.slots) / network.resources.size[:, None]
    finer = fine * FINER
    return Prices(
        whole(paid * fine, DEAR),
        whole(-average / network.links.size / slowest * finer, DEAREST),
        # No slot is free: the solver's errors are to cost little.
        whole((slot + slot.mean() * SPARE) * finer + 1, DEAREST), int(whole(sums * fine, DEAR)[0]),
    ), part  # fmt: skip


def whole(prices: Floats, most: int) -> IntArray:
    """Return some `prices` as whole numbers, none of them negative, or `most` or more."""
    return np.clip(np.floor(np.nan_to_num(prices)), 0, most - 1).astype(np.int64)


def solved(rows: Rows, columns: int) -> tuple[Floats, float]:
    """Return the duals of the `rows` of a program of so many `columns`, and its optimum.

    The first column is maximised.
    """
    import highspy
    from scipy.sparse import coo_array

    row, column, factor = (np.concatenate(part) for part in zip(*rows.terms, strict=True))
    matrix = coo_array((factor, (row, column)), shape=(rows.count, columns)).tocsc()
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = columns, rows.count
    program.col_cost_ = np.concatenate([[-1.0], np.zeros(columns - 1)])
    program.col_lower_ = np.zeros(columns)
    program.col_upper_ = np.concatenate([[MOST], np.full(columns - 1, math.inf)])
    program.row_lower_, program.row_upper_ = np.concatenate(rows.low), np.concatenate(rows.high)
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = matrix.indptr
    program.a_matrix_.index_ = matrix.indices
    program.a_matrix_.value_ = matrix.data
    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("solver", "ipm"), ("run_crossover", "off")):
        solver.setOptionValue(option, value)
    solver.passModel(program)
    solver.run()
    found = solver.getSolution()
    if len(found.row_dual) < rows.count:  # it gave up
        return np.zeros(rows.count), MOST
    return np.array(found.row_dual), float(found.col_value[0])


def largest(grid: Grid, prices: Prices, least: Time) -> Time:
    """Return the longest time that some `prices` prove too short, all slots being equally long.

    No longer than that of the `grid` that they were made for; `least` where it is no shorter.
    """
    low, high, slots = least // grid.slots, grid.long, grid.slots
    if high <= low or is_proof(grid, prices):
        return max(least, grid.time)
    while high - low > max(1, high // STEPS):
        middle = (low + high) // 2
        if is_proof(Grid(grid.network, middle, slots), prices):
            low = middle
        else:
            high = middle
    return max(least, low * slots)


def is_proof(grid: Grid, prices: Prices) -> bool:
    """Tell whether some `prices` prove that no schedule ends by the end of a `grid`.

    That is: what all pairs pay at least is more than all slots cost, though no message is worth
    more than its slots cost. All are whole numbers.
    """
    network, ranks = grid.network, len(grid.network.distance)
    near = (prices.ways, DEAR), (np.array([prices.sums]), DEAR)
    for part, most in (*near, (prices.average, DEAREST), (prices.slots, DEAREST)):
        if part.min(initial=0) < 0 or part.max(initial=0) >= most:
            return False
    paid = np.where(grid.allowed, prices.ways, 0)
    need = prices.sums * (2 * ranks - 2) if network.sums else 0
    for origin, rank, pairs in network.ends:
        least = cheapest(grid, prices, origin, rank)
        if least >= NEVER:
            return True
        need += pairs * least
    if not need:
        return False
    costs = zip(network.resources.size.tolist(), prices.slots.sum(axis=1).tolist(), strict=True)
    total = sum(count * cost for count, cost in costs)
    before = np.concatenate(
        [np.zeros((len(prices.slots), 1), dtype=np.int64), np.cumsum(prices.slots, axis=1)], axis=1
    )
    for number, link in enumerate(network.links.samples.tolist()):
        cost = np.zeros(len(grid.start), dtype=np.int64)
        for edge, first, last in grid.covered(link):
            row = before[network.resources.number[edge]]
            cost += row[last] - row[first]
        worth = worth_of(grid, paid, prices, link)
        if worth is None or int(prices.average[number]) * grid.time >= WIDE:
            return False
        worth += prices.average[number] * (grid.room(link) - grid.long)
        sent = grid.room(link) > 0
        # need / total is no more than what slots can be dearer.
        if any(
            a > 0 and a * total >= b * need * FINER
            for a, b in zip(worth[sent].tolist(), cost[sent].tolist(), strict=True)
        ):
            return False
    return True


def cheapest(grid: Grid, prices: Prices, origin: int, rank: int) -> int:
    """Return what the cheapest way from an `origin` to a `rank` costs, at some `prices`.

    It leads through the slots of a `grid`, and is ``NEVER`` or more where there is none.
    """
    network, slots = grid.network, grid.slots
    number = network.ways.number[origin, rank]
    paid = np.where(grid.allowed, prices.ways, NEVER)[number]
    rest = np.full((len(network.distance), slots + 1), NEVER)
    rest[rank] = 0
    for slot in reversed(range(slots)):
        rest[:, slot] = rest[:, slot + 1]
        first = slot * slots - slot * (slot - 1) // 2
        ways = (paid[:, first : first + slots - slot] + rest[network.head, slot + 1 :]).min(axis=1)
        np.minimum.at(rest[:, slot], network.tail, ways)
    return int(rest[network.origins[origin], 0])


def worth_of(grid: Grid, paid: IntArray, prices: Prices, link: int) -> IntArray | None:
    """Return the most that the bytes of a message on a `link` can pay, by class.

    More than what the average pays for them, that is: in steps that are ``FINER``. What is on its
    way pays what is `paid` [orbit of ways, class]. None where that has no room in 64 bits.
    """
    network, share = grid.network, grid.network.slowest[link]
    ways, carried = network.ways.number[..., link].ravel(), network.by_way[..., link].ravel()
    kinds, counts = network.kinds(link)
    value = np.stack([
        np.bincount(ways[carried == kind], minlength=len(paid)) @ paid // count + prices.sums
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)
    ])  # fmt: skip
    if network.sums:  # what is sent of the same bytes again
        value = np.concatenate([value, np.full((1, value.shape[1]), prices.sums)])
        counts = np.append(counts, 1)
    # Rounded up: what a picosecond of it pays, and how many picoseconds of it there are.
    longest = int(grid.room(link).max())
    places = WIDE.bit_length() - 2 - int(value.max()).bit_length()
    places += share.numerator.bit_length() - 1 - (share.denominator * FINER).bit_length()
    if places < 0:
        return None
    rate = (value * math.ceil((FINER << places) / share) >> places) + 1
    if int(rate.max()) * max(1, longest) >= WIDE:
        return None
    rate -= prices.average[network.links.number[link]]
    long = np.minimum(counts, longest) * min(math.ceil(share), longest)
    if network.sums:
        long[-1] = longest
    left, worth = grid.room(link).copy(), np.zeros(len(grid.start), dtype=np.int64)
    for row in np.argsort(-rate, axis=0, kind="stable"):
        best = np.maximum(0, np.take_along_axis(rate, row[None], axis=0)[0])
        taken = np.clip(np.minimum(long[row], left), 0, None)
        worth += best * taken
        left -= taken
    return worth
