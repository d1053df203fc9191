"""Programs and background senders side by side, as one set of threadblocks and connections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.replay.compile import ROUTED, Action, Block, Compiled, Connection, Flight
from taccl.replay.scenario import Flow
from taccl.topology.graph import Topology
from taccl.units import Time, ceil_time

ENDLESS = 1 << 62
"""Iterations of a background sender, and slots of its connection, which nobody empties."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """What runs side by side.

    Parameters
    ----------
    compiled
        Threadblocks by rank, then the first program's, the second's; the background's last.
    group_of_block, group_of_connection
        Whose each is: the number of the program; of the background one more than the last.
    programs
        How many there are.
    flows
        The background senders, one for each of the last blocks.
    """

    compiled: Compiled
    group_of_block: tuple[int, ...]
    group_of_connection: tuple[int, ...]
    programs: int
    flows: tuple[Flow, ...] = ()

    @property
    def first_flow(self) -> int:
        """The block of the first background sender; as many as there are blocks when none."""
        return len(self.compiled.blocks) - len(self.flows)


def assemble(parts: Sequence[Compiled], flows: Sequence[Flow], topology: Topology) -> Assembly:
    """Put compiled programs and background senders side by side."""
    parts = (*parts, _background(flows, topology))
    everyone = sorted(
        (block.rank, number, block.id) for number, part in enumerate(parts) for block in part.blocks
    )
    place = {key: index for index, key in enumerate(everyone)}
    blocks: dict[int, Block] = {}
    connections: list[Connection] = []
    senders: list[int | None] = []
    receivers: list[int | None] = []
    for number, part in enumerate(parts):
        places = [place[block.rank, number, block.id] for block in part.blocks]
        move = _Move((*places, len(everyone)), len(connections))
        blocks |= zip(places, map(move.moved, part.blocks), strict=True)
        connections += part.connections
        senders += map(move.block, part.senders)
        receivers += map(move.block, part.receivers)
    compiled = Compiled(
        tuple(blocks[index] for index in range(len(everyone))), tuple(connections),
        tuple(senders), tuple(receivers), tuple(slots for part in parts for slots in part.slots),
        max(part.width for part in parts),
    )  # fmt: skip
    return Assembly(
        compiled,
        tuple(number for _, number, _ in everyone),
        tuple(number for number, part in enumerate(parts) for _ in part.connections),
        len(parts) - 1,
        tuple(flows),
    )


@dataclass(frozen=True, slots=True)
class _Move:
    """How the numbers of a part become those of the whole.

    Parameters
    ----------
    places
        Where its blocks are; at the end, the number of a block that does not exist.
    connections
        How many there are before its own.
    """

    places: tuple[int, ...]
    connections: int

    def block(self, number: int | None) -> int | None:
        return None if number is None else self.places[number]

    def connection(self, number: int | None) -> int | None:
        return None if number is None else number + self.connections

    def moved(self, block: Block) -> Block:
        return replace(
            block,
            receives_on=self.connection(block.receives_on),
            sends_on=self.connection(block.sends_on),
            full=tuple(map(self._action, block.full)),
            last=tuple(map(self._action, block.last)),
        )

    def _action(self, action: Action) -> Action:
        if not action.needs:
            return action
        needs = tuple((self.places[other], position) for other, position in action.needs)
        return action._replace(needs=needs)


def _background(flows: Sequence[Flow], topology: Topology) -> Compiled:
    """Return the background as a program: each sender repeats one message for ever."""
    connections = tuple(_connections(flows, topology))
    blocks = []
    for number, (flow, wire) in enumerate(zip(flows, connections, strict=True)):
        message = Action(
            needs=(), receives=False, flight=wire.flight(flow.size), local=0, posts=-1, step=0,
            size=flow.size,
        )  # fmt: skip
        steps = (message,)
        blocks.append(Block(topology.num_ranks, number, None, number, steps, steps, ENDLESS))
    numbers = tuple(range(len(blocks)))
    return Compiled(
        tuple(blocks), connections, numbers, (None,) * len(blocks), (ENDLESS,) * len(blocks), 1
    )


def _connections(flows: Sequence[Flow], topology: Topology) -> Iterator[Connection]:
    for number, flow in enumerate(flows):
        betas = ((edge, topology.edges[edge].beta) for edge in flow.edges)
        held = tuple((edge, beta) for edge, beta in betas if beta is not None)
        slowest = max((beta for _, beta in held), default=Fraction(0))
        yield Connection(
            topology.num_ranks, topology.num_ranks, number, ROUTED, flow.overhead, flow.overhead,
            slowest, held,
        )  # fmt: skip


def slowed_time(time: Time, factor: Fraction) -> Time:
    """Return a multiple of a time, rounded up."""
    return ceil_time(factor, time)


def slowed_work(compiled: Compiled, slow: Sequence[Fraction]) -> Compiled:
    """Return a program in which the local work of each rank takes a multiple of its time."""

    def actions(steps: tuple[Action, ...], factor: Fraction) -> tuple[Action, ...]:
        return tuple(step._replace(local=slowed_time(step.local, factor)) for step in steps)

    blocks = tuple(
        block if slow[block.rank] == 1 else replace(
            block,
            full=actions(block.full, slow[block.rank]),
            last=actions(block.last, slow[block.rank]),
        )
        for block in compiled.blocks
    )  # fmt: skip
    return replace(compiled, blocks=blocks)


def slowed(flight: Flight, factor: Fraction) -> Flight:
    """Return the course of a message that takes a multiple of its time."""
    releases = tuple((slowed_time(time, factor), edges) for time, edges in flight.releases)
    return Flight(slowed_time(flight.arrival, factor), releases)


def delayed(flight: Flight, delay: Time, *, occupies: bool) -> Flight:
    """Return the course of a message with more latency, which may hold its edges, too."""
    releases = flight.releases
    if occupies:
        releases = tuple((time + delay if edges else time, edges) for time, edges in releases)
    return Flight(flight.arrival + delay, releases)
