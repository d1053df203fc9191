"""A linear program of what can come into a server and grow inside it by a time.

Time is cut into cells of delta, shifted by so little that nothing starts or arrives on a boundary
(a *point*). A message that starts in cell k and holds its port for q delta or more is in flight at
the points k + 1 .. k + q, and what it carries can be sent on from point k + q + 1. Its *kind* is q;
it carries less than what takes the least time of the next kind.

Sets: classes c of data: 0 is the server's own, c >= 1 what first comes in with a message of the
c-th window of cells (by k + q); messages by kind and first cell, of ranks inside (*inner*) and
through doors (*outer*).

Variables, all >= 0, chunks as unit: share, what part of everything can be done; D[c], how much
there is of a class; n, how many messages there are of a kind and cell; z[c], what they carry of a
class; A[c, j], what all ranks together have received of a class by point j, as often as they have.

Maximise share subject to
    sum of z <= n · (what one message can carry; through doors no more than a rank can hold)
    inner n in flight at a point <= ranks; outer n in flight <= doors
    z[c] of the inner messages in flight at point j <= A[c, j], what their senders have
    A[c, j] <= A[c, j - 1] + what arrived between; A[0, 0] = ranks
    D[c] <= outer z[c] in the window of the class
    ranks · D[c] <= all z[c]; left · D[c] <= inner z[c], left the ranks without a door's message
    share · outside <= sum of D; share · ranks · (ranks - 1) <= all z[0]

A share below 1 says that the time is too short.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    Parameters
    ----------
    ranks, outside
        Inside, and all others.
    doors
        Edges by which messages come in.
    inner, outer
        The fastest port of a rank inside, and the fastest door.
    sender, fed
        The fastest port of a rank inside its server, whichever, and the fastest door.
    feeding
        Doors of one rank, at most.
    """

    ranks: int
    outside: int
    doors: int
    inner: Port
    outer: Port
    sender: Port
    fed: Port
    feeding: int

    def held(self, time: Time) -> int:
        """Return how many parts of chunks a rank outside has by a time, at most.

        What its doors bring by then it may have from the start. Inside its server no message is
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
    """Return the messages that arrive in time; kinds differ by a cell, or by a share of it."""
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

    Parameters
    ----------
    carried_inside, carried_in
        int (2, pairs): message and class.
    left
        By class c >= 1, ranks that can't get all of it through a door, as too few messages of
        doors arrive from its window on.
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
    """Return the program for a server and a time."""
    inner = messages_of(server.inner, grid, FINEST_INSIDE)
    outer = messages_of(server.outer, grid, FINEST_IN)
    held = np.array([server.held((k + 1) * grid.cell) for k in range(grid.last + 2)])
    outer = outer._replace(room=np.minimum(outer.room, held[outer.start]))
    begin = np.array([0, *grid.windows[:-1]])
    kind = server.outer.overhead // grid.cell
    most = server.doors * (1 + (grid.last - begin[1:]) // kind)
    return Program(
        server, grid, inner, outer,
        _pairs(inner.start, begin), _pairs(outer.arrival, begin),
        np.maximum(0, server.ranks - most),
    )  # fmt: skip


def _pairs(since: Ints, begin: Ints) -> Ints:
    """Return (message, class) where a class has begun by then."""
    found: Ints = np.array(np.nonzero(since[:, None] >= begin[None, :]), dtype=np.int64)
    return found


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
        "room inside": inside, "room in": come, "ports": points, "doors": points,
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
    limits[slice(*parts["doors"])] = server.doors
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
        ("inside", "ports", inner, mi), ("in", "doors", program.outer, mo),
    ):  # fmt: skip
        n = np.arange(len(messages.kind))
        yield f"room {side}", owner, f"z {side}", np.arange(len(owner)), 1.0
        yield f"room {side}", n, f"n {side}", n, -messages.room / UNIT
        message, point = messages.flights()
        yield ports, point, f"n {side}", message, 1.0
    # What is carried inside is in flight wherever its message is.
    pair, point = Messages(inner.start[mi], inner.kind[mi], inner.room[mi]).flights()
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
