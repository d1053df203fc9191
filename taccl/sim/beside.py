"""Programs and background senders side by side, as one set of threadblocks and connections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.scenario import Flow
from taccl.sim.compile import Action, Block, Compiled
from taccl.sim.connect import ROUTED, Connection, Flight
from taccl.topology import Topology
from taccl.units import Time, ceil_time

ENDLESS = 1 << 62
"""Iterations of a background sender, and slots of its connection, which nobody empties."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """What runs side by side.

    Parameters
    ----------
    compiled
        All threadblocks and connections: the first program's, the second's, the background's.
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
    total = sum(len(part.blocks) for part in parts)
    blocks: list[Block] = []
    connections: list[Connection] = []
    senders: list[int | None] = []
    receivers: list[int | None] = []
    slots: list[int] = []
    for part in parts:
        shift = _Shift(len(blocks), len(connections), len(part.blocks), total)
        senders += map(shift.block, part.senders)
        receivers += map(shift.block, part.receivers)
        connections += part.connections
        slots += part.slots
        blocks += map(shift.moved, part.blocks)
    compiled = Compiled(
        tuple(blocks), tuple(connections), tuple(senders), tuple(receivers), tuple(slots),
        max(part.width for part in parts),
    )  # fmt: skip
    return Assembly(
        compiled,
        tuple(number for number, part in enumerate(parts) for _ in part.blocks),
        tuple(number for number, part in enumerate(parts) for _ in part.connections),
        len(parts) - 1,
        tuple(flows),
    )


@dataclass(frozen=True, slots=True)
class _Shift:
    """How the numbers of a part become those of the whole.

    Parameters
    ----------
    blocks, connections
        How many there are before it.
    own
        Blocks of the part, which is also the number of one that does not exist and never posts.
    total
        Blocks in all.
    """

    blocks: int
    connections: int
    own: int
    total: int

    def block(self, number: int | None) -> int | None:
        return None if number is None else number + self.blocks

    def connection(self, number: int | None) -> int | None:
        return None if number is None else number + self.connections

    def need(self, number: int) -> int:
        return self.total if number == self.own else number + self.blocks

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
        return action._replace(
            needs=tuple((self.need(other), position) for other, position in action.needs)
        )


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
