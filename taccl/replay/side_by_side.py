"""Programs of process groups on one machine: replayed at once, each on ranks of its own group.

The rules are those of :mod:`taccl.replay.disturbed` where nothing but the programs disturbs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.errors import ProgramError
from taccl.files import Document
from taccl.msccl.program import Gpu, Program
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import Load, Setup, disturbed
from taccl.replay.scenario import Scenario
from taccl.topology.graph import Rank, Topology
from taccl.units import Time

ALONE = Scenario(
    "groups", 0, 1, {}, {}, (), (), {}, dict[Rank, Fraction](), None, None, None, Document({}, None)
)
"""Nothing but programs."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A `program` of a group at a `size` in bytes that starts at a time (ps).

    Its rank r runs on rank ``ranks[r]`` of the machine.
    """

    program: Program
    ranks: tuple[Rank, ...]
    size: int
    start: Time = 0


def on_ranks(program: Program, ranks: Sequence[Rank], num_ranks: int) -> Program:
    """Return a `program` whose rank r is ``ranks[r]`` of `num_ranks`; the others have no steps."""
    gpus = [Gpu(rank, 0, 0, 0) for rank in range(num_ranks)]
    for gpu in program.gpus:
        blocks = (
            replace(
                block,
                send_to=None if block.send_to is None else ranks[block.send_to],
                recv_from=None if block.recv_from is None else ranks[block.recv_from],
            )
            for block in gpu.threadblocks
        )
        rank = ranks[gpu.rank]
        gpus[rank] = replace(gpu, rank=rank, threadblocks=tuple(blocks))
    return replace(program, gpus=tuple(gpus))


def times_together(
    placed: Sequence[Placed], topology: Topology, model: ReplayModel
) -> tuple[Time, ...]:
    """Return what each of some programs takes from its own start when all run at once.

    `model` has the constants of the runtime; times are picoseconds, launch included.

    Raises ProgramError when they do not end, or connections have no links on the `topology`.
    """
    loads = [
        Load(on_ranks(one.program, one.ranks, topology.num_ranks), one.size, one.start)
        for one in placed
    ]
    outcome = disturbed(Setup(topology, model, ALONE), loads)
    found = (outcome.times, *outcome.others)
    if outcome.trace.reason or not all(found):
        raise ProgramError(
            f"side by side they do not end: {outcome.trace.reason or 'they wait for one another'}",
            fix="use smaller sizes, or fewer groups at once",
        )
    return tuple(times[0] for times in found)
