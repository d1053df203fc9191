"""All-reduce: every piece needs 2(N-1) messages, and crosses every cut in both directions.

Spreading what N parties know to all of them takes 2(N-1) one-way messages, even if messages may
carry all that their sender knows; sums are the same when nothing is added inside the network and
pieces are not mixed with one another. Parties may be ranks, or any sets that the ranks are split
into, with messages inside a set free. There is no bound from "reduce to a point and back": every
rank may reduce everything itself, in one exchange.

*Trees.* Let x[u,v] count the messages of one piece between ranks u and v, in either direction. By
the above, for every split of the ranks into P sets at least 2(P-1) messages run between different
sets: x / 2 meets all constraints of the spanning tree polyhedron (Tutte, Nash-Williams, Edmonds).
So for any prices of a message, a piece pays at least twice the price of a cheapest spanning tree,
where a pair costs what the cheaper direction does. Good prices are the duals of the best
fractional packing of spanning trees into the edges:

Sets        t spanning trees of the ranks, o classes of edges that look alike, count[o] of each
Variables   x[t] >= 0   how much of all data goes along a tree;  T
Minimise    T
Subject to  (all)       sum_t x[t] = 1
            (capacity)  sum_t x[t] * load[t,o] <= count[o] * T

where load[t,o] is the time that a tree keeps edges of the class busy. Trees are added one at a
time: the cheapest at prices between the duals of the capacities and the best so far, which are
those whose cheapest tree is dearest (Wentges smoothing). The solver is not trusted: prices are
rounded to integers and the cheapest tree under these is counted exactly.

*Partitions*, where switches or others help: what must cross between their classes. Switches that
copy and add do not make the data that every set of ranks has to tell the others any less. Let the
stations (ranks, and such switches) be split into P classes, a rank in each, and let everything
inside a class be free: a class then knows what any of its stations knows. A fan is a set of one-way
messages along its arcs, those towards the turn first, and a message from rank to rank is one, too.
So whoever reduces a piece plays gossip between P parties with one-way messages: each has something
(its ranks' parts) that all need, and that takes at least 2(P - 1) messages. (Nothing is mixed with
other pieces; a sum carries all that is in it, and gossip allows this for free.) Besides, at least
one message leaves every set of stations that has ranks inside and outside. Of several groups at
once each has its own messages, and they share the edges.

Sets        a arcs, in orbits o of size[o] under symmetries that are proved; e edges, in orbits k;
            g groups with share[g] of all data; of each p partitions with parties[p] classes, and
            s sets of stations
Variables   x[g,o] >= 0   the part of a group's data that an arc of the orbit carries, times
                          size[o];  T
Minimise    T
Subject to  (capacity)   sum_go share[g] uses[o,k] busy[k] x[g,o] / count[k] <= T
            (partition)  sum_o crossing[p,o] x[g,o] / size[o] >= 2 (parties[p] - 1)
            (set)        sum_o leaving[s,o] x[g,o] / size[o] >= 1

where a fan pays an edge once for each of its arcs on it, as Schedule counts it, and crossing[p,o]
are the arcs of the orbit between classes. Rows are added as they are needed (:func:`_violated`):
which are found is luck, that they hold is not. The duals y of the rows and w of the capacities are
rounded to integers, and checked without the solver: for every group and orbit of arcs

    sum_p y[p] crossing[p,o] + sum_s y[s] leaving[s,o] <= share[g] sum_k w[k] uses[o,k]

so that what the messages of a piece pay for the edges at w is at least the sum of y times the right
sides; where rounding breaks a row by a factor, that factor is taken off. The argument is for the
average of a schedule over the symmetries, whose loads are those of the schedule at prices that are
alike on an orbit. Members may be any of the stations: others are helpers, as switches are. Who
only gives or only takes a group's data is a set of its own.

References
----------
F. Harary, A. Schwenk, "The communication problem on graphs and digraphs", 1974 (one-way gossip).
J. Edmonds, "Submodular functions, matroids, and certain polyhedra", 1970. W. Tutte, "On the
problem of decomposing a graph into n connected factors", 1961.
W. Cunningham, "Optimal attack and reinforcement of a network", 1985 (partitions of a graph).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from taccl.bounds.arrival_curves import gather
from taccl.bounds.cut import counted_at, edge_covers, make_graph, narrow_crossing
from taccl.bounds.flow import FINE, rounded
from taccl.bounds.net import Crossing, IntArray, Net, Task, proved_symmetries, tasks_of
from taccl.collectives import Collective
from taccl.prices.packing import Floats, best_mix, look_alike
from taccl.topology.structure import homes
from taccl.topology.symmetry import smallest_of_orbit

MOST_ARCS = 40_000
"""Above this programs get too large."""

"""Times that rows are added."""

STARTS = 6
"""Orders in which classes are joined, one of them without noise."""

NOISE = 0.15
"""Of a weight, at most."""

NEAR = 3
"""Members that a helper is tried at."""

SHORT = 1e-6
"""By how much a row must fall short to be added."""

SCALE = 1 << 26
"""Steps of the largest dual."""


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of a net in orbits: their ends, the orbit of each and of each edge, and its uses.

    `uses` has, for an orbit of arcs (row) and of resources (column), how often all arcs of the one
    cross edges of the other.
    """

    net: Net
    orbit: IntArray
    size: IntArray
    resource: IntArray
    count: IntArray
    busy: Floats
    uses: IntArray

    def counted(self, rows: IntArray) -> IntArray:
        """Return how many of some arcs each orbit has."""
        return np.bincount(self.orbit[rows], minlength=len(self.size)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Row:
    """Arcs of each orbit that carry a piece of a group `least` times, all together."""

    arcs: IntArray
    least: int
    group: int = 0

    @property
    def key(self) -> tuple[int, bytes]:
        """What it is told from others by."""
        return self.group, self.arcs.tobytes()


def partition_crossings(net: Net, groups: Sequence[Task]) -> Iterator[Crossing]:
    """Yield what all pieces pay at the prices of the optimum.

    `net` are the arcs, and `groups` the stations that have and want data, by how much of it.
    """
    if len(net.src) * len(groups) > MOST_ARCS or not net.busy or not groups:
        return
    arcs, total = arcs_of(net, groups), sum(group.chunks for group in groups)
    shares = [Fraction(group.chunks, total) for group in groups]
    rows = {
        row.key: row for number, group in enumerate(groups)
        for row in _first_rows(arcs, group, number)
    }  # fmt: skip
    found = None
    random = np.random.default_rng(0)
    for _ in range(ROUNDS if rows else 0):
        solved = _solve(arcs, list(rows.values()), shares)
        if solved is None:
            break
        found, flow = solved[1:], solved[0]
        new = [
            replace(row, group=number) for number, group in enumerate(groups) if gossips(group)
            for row in _violated(arcs, group.sources, flow[number], random)
        ]  # fmt: skip
        new = [row for row in new if row.key not in rows]
        if not new:
            break
        rows |= {row.key: row for row in new}
    if found is None:
        return
    kept = list(rows.values())[: len(found[1])]
    crossing = _proved(arcs, kept, found, shares)
    if crossing is not None:
        yield crossing


def gossips(task: Task) -> bool:
    """Tell whether the ranks of a `task` all have something that all of them need."""
    return len(task.sources) > 1 and sorted(task.sources) == sorted(task.targets)


def arcs_of(net: Net, groups: Sequence[Task]) -> Arcs:
    """Return the arcs of a net in the orbits of its proved symmetries that keep the `groups`."""
    ends = [list(each) for group in groups for each in group[:2]]
    edges = np.array([edge for edge in net.used if edge in net.busy], dtype=np.int64)
    parts = np.split(net.edges, net.first[1:-1])
    names = {part.tobytes(): row for row, part in enumerate(parts)}
    arc_images, edge_images = [], []
    for moved, image in proved_symmetries(net):
        if any(sorted(moved[each].tolist()) != sorted(each) for each in ends):
            continue
        there = [names.get(image[part].tobytes(), -1) for part in parts]
        if -1 not in there:
            arc_images.append(np.array(there, dtype=np.int64))
            edge_images.append(image)
    orbit = np.unique(smallest_of_orbit(arc_images, len(net.src)), return_inverse=True)[1]
    whole = smallest_of_orbit(edge_images, len(net.topology.edges))[edges]
    of_edge = np.full(len(net.topology.edges), -1, dtype=np.int64)
    of_edge[edges] = np.unique(whole, return_inverse=True)[1]
    count = np.bincount(of_edge[edges])
    busy = np.zeros(len(count))
    for edge in edges.tolist():
        busy[of_edge[edge]] = float(net.busy[edge])
    uses = np.zeros((int(orbit.max()) + 1, len(count)), dtype=np.int64)
    owner = np.repeat(orbit, np.diff(net.first))
    on = of_edge[net.edges] >= 0
    np.add.at(uses, (owner[on], of_edge[net.edges][on]), 1)
    return Arcs(net, orbit.astype(np.int64), np.bincount(orbit), of_edge, count, busy, uses)


def _first_rows(arcs: Arcs, group: Task, number: int) -> Iterator[Row]:
    """Yield every member on its own, the servers, and each member against all others.

    Of a group in which some only give or take, the last alone.
    """
    net, members = arcs.net, group.sources
    even = np.ones((net.vertices, net.vertices))
    home = [net.topology.server_of[m] for m in members]
    for names in (list(range(len(members))), home) if gossips(group) else ():
        if len(set(names)) > 1:
            part = np.full(net.vertices, -1)
            part[list(members)] = np.unique(names, return_inverse=True)[1]
            yield replace(_row_of(arcs, _adopted(part, even)), group=number)
    for ends, others, side in (
        (group.sources, group.targets, net.src), (group.targets, group.sources, net.dst)
    ):  # fmt: skip
        for member in ends:
            if set(others) - {member}:
                yield Row(arcs.counted(np.flatnonzero(side == member)), 1, number)


def _row_of(arcs: Arcs, part: IntArray) -> Row:
    net = arcs.net
    crossing = np.flatnonzero(part[net.src] != part[net.dst])
    return Row(arcs.counted(crossing), 2 * (len(np.unique(part)) - 1))


def _adopted(part: IntArray, weight: Floats) -> IntArray:
    """Return a partition in which helpers (class -1) are with those that they weigh most with."""
    part, left = part.copy(), np.flatnonzero(part < 0)
    known = np.flatnonzero(part >= 0)
    inside = np.zeros((len(known), int(part.max()) + 1))
    inside[np.arange(len(known)), part[known]] = 1.0
    pull = weight[np.ix_(left, known)] @ inside
    for _ in left:
        best, own = divmod(int(pull.argmax()), pull.shape[1])
        part[left[best]] = own
        pull[:, own] += weight[left, left[best]]
        pull[best] = -np.inf
    return part


def _solve(
    arcs: Arcs, rows: Sequence[Row], shares: Sequence[Fraction]
) -> tuple[Floats, Floats, Floats] | None:
    """Return what each arc of an orbit carries of a group, and duals of capacities and rows."""
    from scipy.optimize import linprog

    scale = float(arcs.busy.max())
    load = (arcs.uses * arcs.busy / scale / arcs.count).T / arcs.size
    loads = np.hstack([load * float(share) for share in shares])
    width = len(arcs.size)
    needs = np.zeros((len(rows), width * len(shares)))
    for need, row in zip(needs, rows, strict=True):
        need[row.group * width : (row.group + 1) * width] = row.arcs / arcs.size
    result = linprog(
        np.append(np.zeros(needs.shape[1]), 1.0),
        A_ub=np.block([
            [loads, -np.ones((len(loads), 1))], [-needs, np.zeros((len(needs), 1))],
        ]),
        b_ub=np.concatenate([np.zeros(len(loads)), [-float(row.least) for row in rows]]),
        method="highs",
    )  # fmt: skip
    if result.status != 0:
        return None
    duals = np.maximum(-result.ineqlin.marginals, 0.0)
    prices = duals[: len(loads)] * arcs.busy / scale / arcs.count
    flow = result.x[:-1].reshape(len(shares), width) / arcs.size
    return flow, prices, duals[len(loads) :]


def _violated(
    arcs: Arcs, members: Sequence[int], flow: Floats, random: np.random.Generator
) -> Iterator[Row]:
    """Yield rows that what the arcs carry does not meet.

    Partitions: classes are joined in order of what runs between them, in a few noisy orders, and
    every state on the way is looked at; every member on its own, with one helper after another at
    those that it has most to do with. Sets: the narrowest between the first member and each other.
    """
    net, carried = arcs.net, flow[arcs.orbit]
    weight = np.zeros((net.vertices, net.vertices))
    np.add.at(weight, (net.src, net.dst), carried)
    both = weight + weight.T
    worst: dict[bytes, tuple[float, Row]] = {}

    def look(part: IntArray) -> None:
        least = 2 * (len(np.unique(part)) - 1)
        short = least - float(both[part[:, None] != part].sum()) / 2
        if least and short > SHORT:
            row = _row_of(arcs, part)
            worst.setdefault(row.arcs.tobytes(), (short / least, row))

    for number in range(STARTS):
        noise = random.uniform(1 - NOISE, 1 + NOISE, both.shape) if number else np.ones_like(both)
        for part in _joined(both * (noise + noise.T) / 2, members):
            look(part)
    singles = np.full(net.vertices, -1)
    singles[list(members)] = np.arange(len(members))
    for helper in np.flatnonzero(singles < 0).tolist():
        for place in np.argsort(-both[helper, list(members)], kind="stable")[:NEAR].tolist():
            part = singles.copy()
            part[helper] = place
            look(_adopted(part, both))
    yield from (row for _, row in sorted(worst.values(), key=lambda one: -one[0])[:8])
    yield from _narrow_sets(arcs, members, weight)


def _joined(weight: Floats, members: Sequence[int]) -> Iterator[IntArray]:
    """Yield partitions, from single stations on; the two classes with most between them are joined.

    Those of helpers alone are given to others before anything is looked at.
    """
    count = len(weight)
    part, between = np.arange(count), weight.copy()
    np.fill_diagonal(between, -1.0)
    has_member = np.zeros(count, dtype=np.bool_)
    has_member[list(members)] = True
    for _ in range(count - 1):
        known = has_member[part]
        loose = np.full(count, -1, dtype=np.int64)
        loose[known] = np.unique(part[known], return_inverse=True)[1]
        yield _adopted(loose, weight)
        one, other = divmod(int(between.argmax()), count)
        part[part == other] = one
        has_member[one] |= has_member[other]
        between[one] += between[other]
        between[:, one] += between[:, other]
        between[other], between[:, other], between[one, one] = -1.0, -1.0, -1.0
        between[between < 0] = -1.0


def _narrow_sets(arcs: Arcs, members: Sequence[int], weight: Floats) -> Iterator[Row]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    net, unit = arcs.net, 1 << 24
    capacity = csr_array(np.rint(weight * unit).astype(np.int32))
    first = members[0]
    for member in members[1:]:
        for source, sink in ((first, member), (member, first)):
            flow = maximum_flow(capacity, source, sink)
            if flow.flow_value >= unit * (1 - SHORT) - len(arcs.orbit):
                continue
            left = csr_array((capacity - flow.flow).maximum(0))
            left.eliminate_zeros()
            side = np.zeros(net.vertices, dtype=np.bool_)
            side[breadth_first_order(left, source, return_predecessors=False)] = True
            yield Row(arcs.counted(np.flatnonzero(side[net.src] & ~side[net.dst])), 1)


def _proved(
    arcs: Arcs, rows: Sequence[Row], duals: tuple[Floats, Floats], shares: Sequence[Fraction]
) -> Crossing | None:
    """Return what the duals of capacities and rows prove, rounded to integers."""
    net, largest = arcs.net, max(map(np.max, duals))
    prices, values = (np.rint(each / largest * SCALE).astype(np.int64) for each in duals)
    paid = arcs.uses @ prices
    asked = np.zeros((len(shares), len(arcs.size)), dtype=np.int64)
    for value, row in zip(values.tolist(), rows, strict=True):
        asked[row.group] += value * row.arcs
    if (asked[:, paid == 0] > 0).any():
        return None
    # Where rounding broke a row, everything is asked for a little less.
    factor = max(
        (Fraction(a, p) / share for each, share in zip(asked.tolist(), shares, strict=True)
         for a, p in zip(each, paid.tolist(), strict=True) if p),
        default=Fraction(0),
    )  # fmt: skip
    total = sum(value * row.least for value, row in zip(values.tolist(), rows, strict=True))
    share = Fraction(total) / max(factor, Fraction(1))
    priced = [(edge, int(prices[arcs.resource[edge]])) for edge in net.used
              if arcs.resource[edge] >= 0]  # fmt: skip
    gates = gather(net.gate(edge, net.through[edge], price) for edge, price in priced if price)
    return Crossing("reduce", gates, share) if share > 0 and gates else None


MANY_RANKS = 128
"""Above this not every rank is looked at for narrow cuts from and to rank 0."""


MOST_LINKS = 200_000
MOST_CLASSES = 1_000
"""Above these the search would take seconds."""

ROUNDS = 60
"""Trees that are looked at."""

WARM = 40
"""The first trees, at most, come from raised prices, without a program solved in between."""

FEW_CLASSES = 8
"""Up to so many classes of edges, the duals need no smoothing."""

STEADY = 0.5
"""Share of the best prices so far in the next."""

CLOSE = 1e-5
"""Of the optimum: closer, another tree is not worth a round."""


def cheapest_tree(net: Net, cost: IntArray) -> IntArray:
    """Return the links of a spanning tree of the ranks of `net` of least `cost` (one a link)."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    low, high = np.minimum(net.src, net.dst), np.maximum(net.src, net.dst)
    pair = low * net.num_ranks + high
    order = np.lexsort((pair, cost))
    order = order[np.sort(np.unique(pair[order], return_index=True)[1])]
    # Places in this order are distinct and not 0: the tree is the same one every time.
    places = (np.arange(1.0, len(order) + 1), (low[order], high[order]))
    tree = minimum_spanning_tree(csr_array(places, shape=(net.num_ranks, net.num_ranks)))
    links: IntArray = order[tree.data.astype(np.int64) - 1]
    return links


def tree_prices(net: Net) -> Floats | None:
    """Return a price for a unit on every edge of the topology.

    None when it would take too long, or a tree of links without a bandwidth joins all ranks.
    """
    used = np.array(net.used)
    if len(net.src) > MOST_LINKS or not net.busy:
        return None
    classes = look_alike(net.topology, np.zeros(net.num_ranks), used)
    names, row = np.unique(classes, return_inverse=True)
    if len(names) > MOST_CLASSES:
        return None
    busy, row_of = np.zeros(len(net.topology.edges)), np.zeros(len(net.topology.edges), np.int64)
    busy[list(net.busy)] = [float(time) for time in net.busy.values()]
    row_of[used] = row
    counts = np.bincount(row).astype(np.float64)
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))
    dual = best = np.full(len(names), 1 / counts.sum())
    dearest, steady = 0.0, STEADY if len(names) > FEW_CLASSES else 0.0
    columns: list[Floats] = []
    for number in range(ROUNDS):
        prices = dual[row_of] * busy
        steps = np.rint(prices / prices.max() * FINE).astype(np.int64)
        cost = np.add.reduceat(steps[net.edges], net.first[:-1])
        tree = np.zeros(len(net.src), dtype=np.bool_)
        tree[cheapest_tree(net, cost)] = True
        edges = net.edges[tree[owner]]
        price = float(prices[edges].sum())
        if price > dearest:
            best, dearest = dual, price
        load = np.bincount(row_of[edges], weights=busy[edges], minlength=len(names))
        if not load.any():
            return None
        columns.append(load.astype(np.float64))
        if number < len(names) and number < WARM:
            # Dearer where this tree is: the first trees differ before they are weighed up.
            dual = dual * np.exp(load / counts / (load / counts).max())
            dual /= counts @ dual
            continue
        loads = np.array(columns)
        found = best_mix(loads / loads.max(), counts, np.zeros(len(names)))
        if found is None or found[0] * loads.max() <= dearest * (1 + CLOSE):
            break
        dual = steady * best + (1 - steady) * found[1]
    return best[row_of] * busy


def reduce_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the messages all pieces need between ranks, between servers, and over narrow cuts.

    Of a `collective` on `net` in which nobody adds what all of some ranks have and want, nothing
    is said.
    """
    groups = tasks_of(collective) if collective.reduces and collective.name != "allreduce" else []
    if any(map(gossips, groups)):
        # Ranks that are no members only help.
        for crossing in partition_crossings(net, groups):
            share = crossing.share * collective.num_chunks / collective.chunks_in_size
            yield replace(crossing, share=share)
    if collective.name != "allreduce" or net.num_ranks < 2:
        return
    yield from _between_parties(net)
    graph = make_graph(net)
    for rank in far_ranks(net)[: graph.most_flows // 2]:
        for source, sink in ((0, rank), (rank, 0)):
            yield from narrow_crossing(net, graph, "reduce", (source, sink))


def _between_parties(net: Net) -> Iterator[Crossing]:
    """Yield the messages that all pieces need between ranks, and between servers."""
    if net.helpers and not net.relays and len(net.src) <= MOST_ARCS:
        everyone = tuple(range(net.num_ranks))
        yield from partition_crossings(net, [Task(everyone, everyone, 1)])
        return
    # A helper is of the class of some rank that it has an arc with: any class is allowed.
    rank_near = np.arange(net.vertices)
    for near, far in ((net.src, net.dst), (net.dst, net.src)):
        to_helper = (near < net.num_ranks) & (far >= net.num_ranks)
        rank_near[far[to_helper]] = near[to_helper]
    rank_near[rank_near >= net.num_ranks] = 0
    # A relay is of its server, or of none: what leaves a class for it is a message to another one.
    relays, home = np.array(net.relays, dtype=np.int64), homes(net.topology) if net.relays else ()
    at_home = [-1 if home[relay] is None else home[relay] for relay in net.relays]
    covers = edge_covers(net)
    for parts in sorted({tuple(range(net.num_ranks)), net.topology.server_of}):
        part, parties = np.array(parts)[rank_near], len(set(parts))
        part[net.number[relays]] = at_home if parts == net.topology.server_of else -1
        crosses = (part[net.src] != part[net.dst]) & (part[net.src] >= 0)
        for cover in covers if parties > 1 else ():
            gates = counted_at(net, cover, crosses)
            if gates:
                yield Crossing("reduce", gates, Fraction(2 * (parties - 1)))
    prices = None if net.helpers else tree_prices(net)
    for weights in rounded(prices) if prices is not None else ():
        cost = np.add.reduceat(weights[net.edges], net.first[:-1])
        total = 2 * int(cost[cheapest_tree(net, cost)].sum())
        priced = [edge for edge in net.used if weights[edge]]
        each = [net.gate(edge, net.through[edge], int(weights[edge])) for edge in priced]
        if total > 0:
            yield Crossing("reduce", gather(each), Fraction(total))


def far_ranks(net: Net) -> list[int]:
    """Return ranks of `net` to look at beside rank 0: of many, one of every server comes first."""
    first = np.unique(net.topology.server_of, return_index=True)[1].tolist()
    ranks = [*(first if net.num_ranks > MANY_RANKS else ()), *range(1, net.num_ranks)]
    return [rank for rank in dict.fromkeys(ranks) if rank][:MANY_RANKS]
