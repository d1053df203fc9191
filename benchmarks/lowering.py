"""What the step from schedule to program costs: replay against makespan on the shipped machines.

``python -m benchmarks.lowering [--schedules DIR] [--time-limit 10]`` synthesizes every case for
the executor runtime and prints the makespan of the schedule, the replay of its program at the same
size, their ratio, and how large the program is. With ``--schedules`` every schedule and program is
kept in a folder, and schedules found there are lowered again instead of searched for, so that two
versions of the lowering can be compared. Exit status 1: a ratio is above ``--allowed``.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from taccl.apps import Request, Target, load_network, synthesize
from taccl.apps.inputs import MachineOptions
from taccl.apps.programs import Lowering
from taccl.model.schedule import Schedule
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.msccl.program import Program
from taccl.msccl.xml import write_xml

MACHINES = (("ndv2", 1), ("ndv2", 2), ("dgx2", 1), ("dgx2", 2), ("dgx-a100", 2))
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")
RULES = ("occupy", "delay")
SIZE = 1_000_000


@dataclass(frozen=True)
class Case:
    """One synthesis: a shipped machine of some servers, a collective, and an alpha rule."""

    machine: str
    nodes: int
    collective: str
    rule: str

    @property
    def name(self) -> str:
        """What tables and files call it."""
        return f"{self.machine}_{self.nodes}_{self.collective}_{self.rule}"


@dataclass(frozen=True)
class Measured:
    """One case: picoseconds of the schedule and of its program, and the program."""

    case: Case
    makespan: int
    replay: int
    program: Program

    @property
    def ratio(self) -> float:
        """Replay over makespan."""
        return self.replay / self.makespan

    @property
    def line(self) -> str:
        """The row of the table."""
        program = self.program
        blocks = sum(len(gpu.threadblocks) for gpu in program.gpus)
        steps = sum(len(block.steps) for _, block in program.blocks())
        scratch = max(gpu.scratch_chunks for gpu in program.gpus)
        fused = sum(
            step.op.value in ("rcs", "rrs", "rrc", "rrcs")
            for _, block in program.blocks()
            for step in block.steps
        )
        return (
            f"{self.case.name:34} {self.makespan / 1e6:9.2f} {self.replay / 1e6:9.2f}"
            f" {self.ratio:6.3f} {steps:7} {program.num_steps:4} {blocks:6}"
            f" {program.num_threadblocks:4} {program.channels:3} {fused:6} {scratch:7}"
        )


HEAD = (
    f"{'case':34} {'us':>9} {'replay':>9} {'ratio':>6} {'steps':>7} {'most':>4} {'blocks':>6}"
    f" {'most':>4} {'ch':>3} {'fused':>6} {'scratch':>7}"
)


def cases() -> Iterator[Case]:
    """Yield every case."""
    for machine, nodes in MACHINES:
        for collective in COLLECTIVES:
            for rule in RULES:
                yield Case(machine, nodes, collective, rule)


def schedule_of(case: Case, folder: Path, seconds: float) -> Schedule:
    """Return the schedule of a case: from the folder, else searched for and written there."""
    path = folder / f"{case.name}.json"
    if not path.exists():
        found = synthesize(
            Request(
                logical=load_network(
                    case.machine, MachineOptions(case.nodes, alpha_rule=case.rule)
                ),
                collective=case.collective, size=SIZE, target=Target(runtime="executor"),
                time_limit=seconds,
            )
        )  # fmt: skip
        path.write_text(schedule_text(found.schedule))
    return read_schedule(str(path))


def measure(case: Case, folder: Path, seconds: float, runtime: str = "executor") -> Measured:
    """Return the numbers of one case, its program written next to its schedule."""
    schedule = schedule_of(case, folder, seconds)
    target = Target(runtime=runtime)
    size = target.whole_size(SIZE, schedule.collective.chunks_in_size)
    lowering = Lowering(schedule, target, size, case.name)
    program, replayed = lowering.proved(), lowering.best[1]
    (folder / f"{case.name}.xml").write_text(write_xml(program, runtime))
    return Measured(case, schedule.makespan, replayed, program)


def main() -> int:
    """Print a line for each case; return 1 when some ratio is above what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=Path, help="a folder of schedules to keep, or kept")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--runtime", default="executor")
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--allowed", type=float, default=1.05)
    given = parser.parse_args()
    above = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.schedules or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(HEAD, flush=True)
        for case in cases():
            if given.only in case.name:
                found = measure(case, folder, given.time_limit, given.runtime)
                above += [case.name] if found.ratio > given.allowed else []
                print(found.line, flush=True)
    print(f"above {given.allowed:g}: {', '.join(above) or 'none'}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
