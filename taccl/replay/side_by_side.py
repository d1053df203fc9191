"""Programs of process groups on one machine: replayed at once, each on ranks of its own group.

The rules are those of :mod:`taccl.replay.disturbed` where nothing but the programs disturbs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taccl.files import Document
from taccl.msccl.program import Gpu, Program
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import Load, Setup, ends_together
from taccl.replay.scenario import ScenarioFile, bind
from taccl.topology.graph import Rank, Topology
from taccl.units import Time


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

    Raises InputError when they do not end; ProgramError when connections have no links on the
    `topology`.
    """
    record = ScenarioFile(taccl="scenario/1", name="groups")
    nothing = bind(record, Document({}, None), topology)
    loads = [
        Load(on_ranks(one.program, one.ranks, topology.num_ranks), one.size, one.start)
        for one in placed
    ]
    ends = ends_together(Setup(topology, model, nothing), loads)
    return tuple(end - one.start for end, one in zip(ends, placed, strict=True))
