"""NCCL's own time model beside replays: a contender for each algorithm and protocol.

These times win nothing, as another model counts other things (see :mod:`taccl.sim.nccl`). What
NCCL would run is the fastest of those that it allows itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from taccl.pipeline.crossovers import Times, find_crossovers
from taccl.report.compared import Contender, Crossover
from taccl.sim.nccl import VERSION, Choice, Machine, choices, fastest
from taccl.sim.sweep import Row
from taccl.topology import Topology
from taccl.units import Time

NCCL = f"NCCL {VERSION} (modelled)"

MODELLED = "its own formula, launch of the kernel included; not a replay"


@dataclass(frozen=True, slots=True)
class Model:
    """NCCL's model of one collective on one machine.

    Parameters
    ----------
    topology
        Where.
    machine
        What NCCL's model knows of it.
    collective
        A name of COLLECTIVES, or another, which NCCL's model does not know.
    """

    topology: Topology
    machine: Machine
    collective: str

    def time(self, size: int) -> Time | None:
        """Return what NCCL expects of what it would run; None where it has no model."""
        choice = fastest(self.machine, self.collective, size)
        return None if choice is None else choice.time

    def chosen(self, sizes: Sequence[int]) -> tuple[str, ...]:
        """Return what NCCL would run at each size; nothing where it has no model."""
        found = (fastest(self.machine, self.collective, size) for size in sizes)
        return tuple(choice.way for choice in found if choice is not None)

    def contender(self, sizes: Sequence[int]) -> Contender:
        """Return what NCCL expects at each size of what it would run."""
        found = (fastest(self.machine, self.collective, size) for size in sizes)
        rows = [
            self._row(size, NCCL, choice)
            for size, choice in zip(sizes, found, strict=True)
            if choice is not None
        ]
        return Contender(NCCL, "nccl", tuple(rows), MODELLED)

    def ways(self, sizes: Sequence[int]) -> tuple[Contender, ...]:
        """Return what NCCL expects of each algorithm and protocol that it has."""
        by_way = zip(*(choices(self.machine, self.collective, size) for size in sizes), strict=True)
        return tuple(self._way(sizes, found) for found in by_way)

    def switches(self, sizes: Sequence[int], step: int) -> tuple[Crossover, ...]:
        """Return from which sizes on, multiples of ``step``, NCCL would run something else."""
        return tuple(find_crossovers(sizes, step, self._allowed))

    def _allowed(self, size: int) -> Times:
        found = choices(self.machine, self.collective, size)
        return {each.way: each.time for each in found if self.machine.allows(each.protocol)}

    def _way(self, sizes: Sequence[int], found: Sequence[Choice]) -> Contender:
        name = f"NCCL {VERSION} {found[0].way} (modelled)"
        refused = not self.machine.allows(found[0].protocol)
        rows = [
            self._row(size, name, each, "NCCL runs LL128 over NVLink only; " if refused else "")
            for size, each in zip(sizes, found, strict=True)
        ]
        return Contender(name, "nccl-way", tuple(rows), MODELLED, short=found[0].way)

    def _row(self, size: int, name: str, choice: Choice, refused: str = "") -> Row:
        return Row(
            self.collective, self.topology.name, self.topology.num_ranks, size, choice.time,
            engine=name,
            note=f"modelled: {refused}{choice.way}, {choice.base / 1e6:g} us of it at any size",
        )  # fmt: skip
