"""What prices prove of the program of growth: the share of a gather that can be done by a time.

By duality any prices of its rows do that cost no variable more than it is worth. The solver is not
trusted: its dual values are rounded to integers and raised until that is so, exactly, and what
they then cost is a bound, whoever made them.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.bounds.growth_program import UNIT, Ints, Messages, Program, rows_of

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
    doors: Ints
    sent: Ints
    received: Ints
    first: Ints
    cover: Ints
    inside: Ints
    total: int
    own: int


def share_at_most(program: Program) -> Fraction | None:
    """Return a proven bound on the share that can be done in time; None: the solver gave up."""
    prices = solved(program)
    return None if prices is None else proved(program, prices)


def proved(program: Program, prices: Prices) -> Fraction:
    """Return what any prices prove: they are raised until no variable is worth more than it costs.

    What all then costs, in exact arithmetic, is a bound on the share, whoever made the prices.
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
    doors = _enough(program.outer, room_in, prices.doors)
    cost = server.ranks * (int(ports.sum()) + UNIT * int(received[0, 0]))
    return Fraction(cost + server.doors * int(doors.sum()), SCALE)


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
        whole("room inside"), whole("room in"), whole("ports", 1), whole("doors", 1),
        whole("sent").reshape(shape), whole("received").reshape(shape), whole("first"),
        whole("cover"), whole("inside"), int(whole("total")[0]), int(whole("own")[0]),
    )  # fmt: skip
