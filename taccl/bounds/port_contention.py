"""How soon a gather can end where ports and gateways take one message after the other.

The other bounds see amounts, or one piece of data, and never both: where the latency of a message
is about as long as its data, they say little. Here a server is looked at whose ranks have one port
each, and all that comes in passes a few *gateways* (the edges into the server): what has come in
late must still be doubled inside, in few large messages or many small ones, beside what else ports
have to carry. Whether a time is too short for that is asked of a linear program, and which is the
longest such time by halving. That takes seconds, so it is asked for only where it may count. A
ReduceScatter is an AllGather on the network turned round, read backwards: each message holds its
ports as long, though at the other end of its way.

*The program* says what can come into a server and grow inside it by a time. Time is cut into cells
of delta, shifted by so little that nothing starts or arrives on a boundary (a *point*). A message
that starts in cell k and holds its port for q delta or more is in flight at the points
k + 1 .. k + q, and what it carries can be sent on from point k + q + 1. Its *kind* is q; it carries
less than what takes the least time of the next kind.

Sets: classes c of data: 0 is the server's own, c >= 1 what first comes in with a message of the
c-th window of cells (by k + q); messages by kind and first cell, of ranks inside (*inner*) and
through gateways (*outer*).

Variables, all >= 0, chunks as unit: share, what part of everything can be done; D[c], how much
there is of a class; n, how many messages there are of a kind and cell; z[c], what they carry of a
class; A[c, j], what all ranks together have received of a class by point j, as often as they have.

Maximise share subject to
    sum of z <= n · (what one message can carry; through gateways no more than a rank can hold)
    inner n in flight at a point <= ranks; outer n in flight <= gateways
    z[c] of the inner messages in flight at point j <= A[c, j], what their senders have
    A[c, j] <= A[c, j - 1] + what arrived between; A[0, 0] = ranks
    D[c] <= outer z[c] in the window of the class
    ranks · D[c] <= all z[c]; left · D[c] <= inner z[c], left the ranks without a gateway's message
    share · outside <= sum of D; share · ranks · (ranks - 1) <= all z[0]

A share below 1 says that the time is too short. *The proof* is by duality: any prices of the rows
that cost no variable more than it is worth prove how much of the gather can be done. The solver is
not trusted: its dual values are rounded to integers and raised until that is so, exactly, and what
they then cost is a bound, whoever made them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.topology.graph import EdgeId, LinkId, Rank, Topology
from taccl.units import Time

Ints = NDArray[np.int64]

UNIT = 1 << 10
"""Parts of a chunk, in which amounts are counted; all are rounded in favour of the algorithm."""

FINEST_INSIDE, FINEST_IN = 1.1, 1.05
"""Times as long a message of the next kind takes, where that is more than a cell."""


class Port(NamedTuple):
    """A port that takes one message after the other: picoseconds for each, and for a chunk."""

    overhead: Time
    chunk: Fraction

    def amount(self, time: Time) -> int:
        """Return how many parts of a chunk take so long beside the overhead, rounded up."""
        return max(0, -(-(time - self.overhead) * UNIT * self.chunk.denominator
                        // self.chunk.numerator))  # fmt: skip


@dataclass(frozen=True)
class Server:
    """What is known of a server and of what comes into it, in chunks that every rank has one of.

    Of `ranks` inside and `outside`, messages come in by the edges `gateways`. `inner` is the
    fastest port of a rank inside and `outer` the fastest gateway; `sender` is the fastest port of a
    rank inside its server, whichever, and `fed` the fastest gateway. A rank has `feeding` gateways
    at most.
    """

    ranks: int
    outside: int
    gateways: int
    inner: Port
    outer: Port
    sender: Port
    fed: Port
    feeding: int

    def held(self, time: Time) -> int:
        """Return how many parts of chunks a rank outside has by a time, at most.

        What its gateways bring by then it may have from the start. Inside its server no message is
        longer than what its sender had when it began, and what the receiver got before was there
        by then: a message at most doubles the most that any rank has. So after r messages, one
        after the other, it is 2^r times as much, and no more than what took the time for r
        overheads and all bytes that came.
        """
        first = UNIT + self.feeding * self.fed.amount(time)
        most, rounds = first, 1
        while rounds * self.sender.overhead <= time and rounds < 20:
            came = self.sender._replace(overhead=rounds * self.sender.overhead).amount(time)
            most = max(most, min(first << rounds, first + came))
            rounds += 1
        return most


@dataclass(frozen=True)
class Grid:
    """Cells of time: how long they are, the last cell of an arrival, and windows of classes."""

    cell: Time
    last: int
    windows: tuple[int, ...]


class Messages(NamedTuple):
    """Columns: first cell and kind of messages, and what each can carry."""

    start: Ints
    kind: Ints
    room: Ints

    @property
    def arrival(self) -> Ints:
        """The cell in which each arrives, at the earliest."""
        return self.start + self.kind

    def flights(self) -> tuple[Ints, Ints]:
        """Return (message, point) of all points at which messages are in flight."""
        message = np.repeat(np.arange(len(self.kind)), self.kind)
        first = np.concatenate([[0], np.cumsum(self.kind)])[:-1]
        return message, np.arange(len(message)) - first[message] + self.start[message] + 1


def messages_of(port: Port, grid: Grid, finest: float) -> Messages:
    """Return the messages that arrive in time; kinds differ by a cell, or by a share of it.

    `port` is what they pass, `grid` are the cells of time, and `finest` is the factor from a kind
    to the next, where that is more than one cell.
    """
    rows = []
    kind = port.overhead // grid.cell
    while kind <= grid.last:
        following = max(kind + 1, int(kind * finest))
        room = port.amount(following * grid.cell)
        rows += [(start, kind, room) for start in range(grid.last - kind + 1)]
        kind = following
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Messages(*columns.T)


@dataclass(frozen=True, eq=False)
class Program:
    """The program: messages of both ports, and the pairs of a message and a class it may carry.

    `carried_inside` and `carried_in` are int (2, pairs): message and class. Of class c >= 1, `left`
    are the ranks that can't get all of it through a gateway, as too few messages of gateways arrive
    from its window on.
    """

    server: Server
    grid: Grid
    inner: Messages
    outer: Messages
    carried_inside: Ints
    carried_in: Ints
    left: Ints

    @property
    def classes(self) -> int:
        """The server's own data, and a class for every window."""
        return len(self.grid.windows)

    @property
    def points(self) -> int:
        """Points of time, from that before everything on."""
        return self.grid.last + 1

    @property
    def first_arrivals(self) -> NDArray[np.bool_]:
        """Which of what comes in is there for the first time: in the window of its class."""
        message, kind = self.carried_in
        ends = np.array([0, *self.grid.windows[1:]])
        found: NDArray[np.bool_] = (kind > 0) & (self.outer.arrival[message] < ends[kind])
        return found


def program_of(server: Server, grid: Grid) -> Program:
    """Return the program for a `server` and the time whose cells are those of `grid`."""
    inner = messages_of(server.inner, grid, FINEST_INSIDE)
    outer = messages_of(server.outer, grid, FINEST_IN)
    held = np.array([server.held((k + 1) * grid.cell) for k in range(grid.last + 2)])
    outer = outer._replace(room=np.minimum(outer.room, held[outer.start]))
    begin = np.array([0, *grid.windows[:-1]])
    kind = server.outer.overhead // grid.cell
    most = server.gateways * (1 + (grid.last - begin[1:]) // kind)
    return Program(
        server, grid, inner, outer,
        np.array(np.nonzero(inner.start[:, None] >= begin), dtype=np.int64),
        np.array(np.nonzero(outer.arrival[:, None] >= begin), dtype=np.int64),
        np.maximum(0, server.ranks - most),
    )  # fmt: skip


Rows = tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64], dict[str, tuple[int, int]]]
"""Row, column and value of every entry, limits of rows, and where rows of a name begin and end."""


def rows_of(program: Program) -> Rows:
    """Return the matrix: column 0 is the share."""
    server, classes, points = program.server, program.classes, program.points
    inside, come = len(program.inner.kind), len(program.outer.kind)
    column = _places({
        "share": 1, "D": classes - 1, "n inside": inside, "n in": come,
        "z inside": program.carried_inside.shape[1], "z in": program.carried_in.shape[1],
        "A": classes * points,
    })  # fmt: skip
    parts = _places({
        "room inside": inside, "room in": come, "ports": points, "gateways": points,
        "sent": classes * points, "received": classes * points, "first": classes - 1,
        "cover": classes - 1, "inside": classes - 1, "total": 1, "own": 1,
    })  # fmt: skip
    entries = [
        (
            at.ravel() + parts[name][0], of.ravel() + column[kind][0],
            worth.ravel().astype(np.float64),
        )
        for name, row, kind, place, value in (*_messages(program), *_data(program))
        for at, of, worth in (np.broadcast_arrays(row, place, value),)
    ]  # fmt: skip
    limits = np.zeros(parts["own"][1])
    limits[slice(*parts["ports"])] = server.ranks
    limits[slice(*parts["gateways"])] = server.gateways
    limits[parts["received"][0]] = server.ranks
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    return rows, columns, values, limits, parts


def _places(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return where things of so many places each begin and end, one after the other."""
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return dict(zip(sizes, pairwise(ends), strict=True))


Entries = Iterator[tuple[str, Ints | int, str, Ints | int, NDArray[np.float64] | float]]
"""Name of rows and which of them, name of columns and which of them, values."""


def _messages(program: Program) -> Entries:
    """Yield what messages cost and carry."""
    inner, points = program.inner, program.points
    (mi, ci), (mo, _) = program.carried_inside, program.carried_in
    for side, ports, messages, owner in (
        ("inside", "ports", inner, mi), ("in", "gateways", program.outer, mo),
    ):  # fmt: skip
        n = np.arange(len(messages.kind))
        yield f"room {side}", owner, f"z {side}", np.arange(len(owner)), 1.0
        yield f"room {side}", n, f"n {side}", n, -messages.room / UNIT
        message, point = messages.flights()
        yield ports, point, f"n {side}", message, 1.0
    # What is carried inside is in flight wherever its message is.
    pair, point = Messages(*(column[mi] for column in inner)).flights()
    yield "sent", ci[pair] * points + point, "z inside", pair, 1.0


def _data(program: Program) -> Entries:
    """Yield what is received, and what must be."""
    server, points, come = program.server, program.points, program.first_arrivals
    (mi, ci), (mo, co) = program.carried_inside, program.carried_in
    table, later = np.arange(program.classes * points), np.arange(program.classes - 1)
    before = table[table % points > 0]
    yield "sent", table, "A", table, -1.0
    yield "received", table, "A", table, 1.0
    yield "received", before, "A", before - 1, -1.0
    for side, arrival, kind in (
        ("inside", program.inner.arrival[mi], ci), ("in", program.outer.arrival[mo], co),
    ):  # fmt: skip
        z, seen = np.arange(len(kind)), arrival + 1 < points
        yield "received", (kind * points + arrival + 1)[seen], f"z {side}", z[seen], -1.0
        yield "own", 0, f"z {side}", z[kind == 0], -1.0
        yield "cover", kind[kind > 0] - 1, f"z {side}", z[kind > 0], -1.0
    yield "first", co[come] - 1, "z in", np.flatnonzero(come), -1.0
    yield "first", later, "D", later, 1.0
    yield "cover", later, "D", later, float(server.ranks)
    yield "inside", later, "D", later, program.left.astype(np.float64)
    yield "inside", ci[ci > 0] - 1, "z inside", np.flatnonzero(ci), -1.0
    yield "total", 0, "share", 0, float(server.outside)
    yield "total", 0, "D", later, -1.0
    yield "own", 0, "share", 0, float(server.ranks * (server.ranks - 1))


SCALE = 1 << 42
"""What a dual value of one is, as an integer."""

SECONDS = 60.0
"""For a linear program; then there is no answer."""


@dataclass(eq=False)
class Prices:
    """Dual values: of room, of ports by point, of what was received, and of what must be.

    Integers, SCALE for one message, SCALE / UNIT for one part of a chunk.
    """

    room_inside: Ints
    room_in: Ints
    ports: Ints
    gateways: Ints
    sent: Ints
    received: Ints
    first: Ints
    cover: Ints
    inside: Ints
    total: int
    own: int


def proved(program: Program, prices: Prices) -> Fraction:
    """Return what any prices prove: they are raised until no variable is worth more than it costs.

    What all then costs, in exact arithmetic, is a bound on the share, whoever made the `prices`
    (dual values of the linear `program`, SCALE for one message).
    """
    server, last = program.server, program.grid.last
    everything = server.ranks * (server.ranks - 1)
    short = SCALE - UNIT * (server.outside * prices.total + everything * prices.own)
    total = prices.total + max(0, -(-short // (UNIT * server.outside)))
    worth = total - server.ranks * prices.cover - program.left * prices.inside
    first = np.maximum(prices.first, worth)
    received = np.zeros((program.classes, last + 2), dtype=np.int64)
    for point in range(last, -1, -1):
        after = received[:, point + 1] + prices.sent[:, point]
        received[:, point] = np.maximum(prices.received[:, point], after)
    cover = np.concatenate([[prices.own], prices.cover])
    message, kind = program.carried_inside
    flown = np.concatenate([np.zeros((program.classes, 1), dtype=np.int64),
                            np.cumsum(prices.sent, axis=1)], axis=1)  # fmt: skip
    start, arrival = program.inner.start[message], program.inner.arrival[message]
    inside = np.concatenate([[0], prices.inside])
    worth = received[kind, arrival + 1] + cover[kind] + inside[kind]
    worth -= flown[kind, arrival + 1] - flown[kind, start + 1]
    room_inside = prices.room_inside.copy()
    np.maximum.at(room_inside, message, worth)
    message, kind = program.carried_in
    worth = received[kind, program.outer.arrival[message] + 1] + cover[kind]
    worth += np.where(program.first_arrivals, np.concatenate([[0], first])[kind], 0)
    room_in = prices.room_in.copy()
    np.maximum.at(room_in, message, worth)
    ports = _enough(program.inner, room_inside, prices.ports)
    gateways = _enough(program.outer, room_in, prices.gateways)
    cost = server.ranks * (int(ports.sum()) + UNIT * int(received[0, 0]))
    return Fraction(cost + server.gateways * int(gateways.sum()), SCALE)


def _enough(messages: Messages, room: Ints, points: Ints) -> Ints:
    """Return prices of points, all raised by as much as the worst message needs."""
    sums = np.concatenate([[0], np.cumsum(points)])
    paid = sums[messages.arrival + 1] - sums[messages.start + 1]
    short = messages.room * room - paid
    more = int((-(-short // messages.kind)).max(initial=0))
    raised: Ints = points + max(0, more)
    return raised


def solved(program: Program) -> Prices | None:
    """Return the solver's dual values, rounded."""
    # Loading SciPy's solvers takes a while, and most commands never need one.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    rows, columns, values, limits, parts = rows_of(program)
    shape = (len(limits), int(columns.max()) + 1)
    worth = np.zeros(shape[1])
    worth[0] = -1.0
    found = linprog(
        worth, A_ub=coo_array((values, (rows, columns)), shape=shape).tocsr(), b_ub=limits,
        method="highs-ipm", options={"time_limit": SECONDS},
    )  # fmt: skip
    if found.status != 0:
        return None
    dual = np.maximum(0.0, -np.asarray(found.ineqlin.marginals))
    named = {name: dual[begin:end] for name, (begin, end) in parts.items()}
    shape = (program.classes, program.points)

    def whole(name: str, unit: int = UNIT) -> Ints:
        rounded: Ints = np.rint(named[name] * (SCALE / unit)).astype(np.int64)
        return rounded

    return Prices(
        whole("room inside"), whole("room in"), whole("ports", 1), whole("gateways", 1),
        whole("sent").reshape(shape), whole("received").reshape(shape), whole("first"),
        whole("cover"), whole("inside"), int(whole("total")[0]), int(whole("own")[0]),
    )  # fmt: skip


KIND = "growth"
"""The kind of bound."""

GATHERS = ("allgather", "reducescatter")
"""Collectives that the bound is for."""

POINTS, FINEST = 100, 16
"""Cells of the time, and cells of a message's overhead, at most."""

WINDOWS = 7
"""Classes of what comes in."""

MOST_RANKS = 128
"""Above this programs get too large."""

TRIES = 4
"""Times that are asked for, unless said otherwise."""


def too_short(topology: Topology, collective: str, size: int, time: Time) -> bool:
    """Tell whether it is proved that no algorithm takes `time` picoseconds or less.

    That is, for `size` bytes of a `collective` of ``GATHERS`` on the `topology`; of others nothing
    is proved.
    """
    return any(_is_short(server, time) for server in _servers(topology, collective, size))


def port_contention_bound(
    topology: Topology, collective: str, size: int, low: Time, tries: int = TRIES
) -> Time:
    """Return the best bound that was found, in picoseconds, or the one that is known, `low`.

    Of a `topology`, one of ``GATHERS`` as `collective`, and a buffer of `size` bytes; `tries` times
    are asked for beyond those that are proved to be too short.
    """
    for server in _servers(topology, collective, size):
        # Upwards until a time is not too short, then by halving.
        high, left = None, tries
        while left:
            time = 3 * low // 2 if high is None else (low + high) // 2
            if not low < time:
                break
            if _is_short(server, time):
                low = time + 1
            else:
                high = time
            left -= high is not None
    return low


def _is_short(server: Server, time: Time) -> bool:
    grid = _grid(server, time)
    if grid is None:
        return False
    program = program_of(server, grid)
    prices = solved(program)
    return prices is not None and proved(program, prices) < 1


def _grid(server: Server, time: Time) -> Grid | None:
    """Return the cells for a time; None where a message is too short for them."""
    overhead = min(server.inner.overhead, server.outer.overhead)
    parts = max(2, min(FINEST, overhead * POINTS // max(1, time)))
    cell = (overhead - 1) // parts
    if cell < 1 or time // cell > POINTS:
        return None
    last = (time - 1) // cell + 1
    first = server.outer.overhead // cell
    if first > last:
        return None
    count = min(WINDOWS, last + 1 - first)
    windows = [first + (last + 1 - first) * part // count for part in range(count + 1)]
    return Grid(cell, last, tuple(windows))


def _servers(topology: Topology, collective: str, size: int) -> list[Server]:
    """Return one server of each kind; none where some server is not as the program wants it."""
    if collective not in GATHERS or topology.num_ranks > MOST_RANKS:
        return []
    network = topology.reversed() if collective == "reducescatter" else topology
    chunk = Fraction(size, network.num_ranks)
    found = [(len(ranks), *_ports_of(network, ranks, chunk)) for ranks in sorted(network.servers)]
    known = [(n, inner, ways) for n, inner, ways in found if inner is not None and ways is not None]
    if len(found) < 2 or len(known) < len(found):
        return []
    sender, fed = (
        Port(min(port.overhead for port in ports), min(port.chunk for port in ports))
        for ports in ([inner for _, inner, _ in known], [ways.port for _, _, ways in known])
    )
    feeding = max(ways.feeding for _, _, ways in known)
    return list(dict.fromkeys(
        Server(n, network.num_ranks - n, ways.number, inner, ways.port, sender, fed, feeding)
        for n, inner, ways in known
    ))  # fmt: skip


class Gateways(NamedTuple):
    """How many edges lead into a server, the fastest of them, and how many lead to one rank."""

    number: int
    port: Port
    feeding: int


def _ports_of(
    topology: Topology, ranks: Sequence[Rank], chunk: Fraction
) -> tuple[Port | None, Gateways | None]:
    """Return the port of a server's ranks, None where one has not just one; and its gateways."""
    inside, table = set(ranks), topology.links
    # By rank, its links inside the server; and all links into the server.
    received: dict[Rank, list[LinkId]] = defaultdict(list)
    sent: dict[Rank, list[LinkId]] = defaultdict(list)
    come: list[LinkId] = []
    for link, (src, dst) in enumerate(zip(table.src.tolist(), table.dst.tolist(), strict=True)):
        if dst in inside and src in inside:
            sent[src].append(link)
            received[dst].append(link)
        elif dst in inside:
            come.append(link)
    betas = []
    for links in (side[rank] for side in (sent, received) for rank in ranks):
        # A port is an edge that all of the links cross, the slowest of such edges.
        edges = [set(table.edges_of(link)) for link in links]
        shared = [topology.edges[edge].beta for edge in set.intersection(*edges)] if edges else []
        betas.append(max((beta for beta in shared if beta is not None), default=None))
    within = [link for links in sent.values() for link in links]
    known = [beta for beta in betas if beta is not None]
    port = None
    if within and len(known) == len(betas):
        port = Port(int(table.overhead[within].min()), min(known) * chunk)
    return port, _gateways(topology, come, chunk)


def _gateways(topology: Topology, links: Sequence[LinkId], chunk: Fraction) -> Gateways | None:
    """Return the gateways: of every link the slowest edge, of equals the nearest to its end."""
    gateways: dict[EdgeId, Fraction] = {}
    of_rank: dict[Rank, set[EdgeId]] = defaultdict(set)
    for link in links:
        edges = [
            (beta, place, edge)
            for place, edge in enumerate(topology.links.edges_of(link))
            if (beta := topology.edges[edge].beta) is not None
        ]
        if not edges:
            return None
        beta, _, gateway = max(edges)
        gateways[gateway] = beta
        of_rank[int(topology.links.dst[link])].add(gateway)
    if not gateways:
        return None
    overhead = int(topology.links.overhead[list(links)].min())
    port = Port(overhead, min(gateways.values()) * chunk)
    return Gateways(len(gateways), port, max(map(len, of_rank.values())))
