"""The compiled replay against the one in Python: equal times, and how much faster.

``python -m benchmarks.replay [--programs 300] [--corpus DIR]`` replays under both alpha rules

- random programs, with the constants of all runtimes;
- the XML files of a folder on one switch, likewise, at both ends of the range of sizes that each
  declares, at all powers of two and at some other sizes in it: without local work, and with local
  work, launch and the costs of the protocol;
- the classical algorithms of all collectives on some topologies.

The first two are replayed both ways; of the last two no row may be below the bound. Then it prints
the speed of large programs, with local work, launch and the costs of LL128:

- ``columns`` is what putting the program into columns takes, once for all sizes,
- ``Mops/s`` counts messages and pieces of local work of the event loop alone,
- ``all`` counts them over both, and ``ratio`` compares that loop with the one in Python,
- ``bytes`` is the memory for each of them that the columns and the state take at most.

Seconds are those of the processor, which other processes may share. It ends with exit status 1 if
two replays differ, a row is below its bound, or a speed is below its target.
"""

import argparse
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from taccl.apps.comparison import Question, compare
from taccl.apps.inputs import read_program
from taccl.collectives import COLLECTIVES, build_collective
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Op, Program, Step, Threadblock
from taccl.msccl.runtimes import RUNTIMES
from taccl.replay.compile import columns_of, split
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel, model_of
from taccl.replay.events import machine_of, messages_of
from taccl.replay.interpreter import Run, Trace, compile_program
from taccl.replay.sweep import bounds_of
from taccl.replay.timing import Timing, run_machine
from taccl.topology.file import load_topology
from taccl.topology.graph import ALPHA_RULES, LocalCosts, Topology
from tests.replay.program_builder import block, hub, program, ring, slot, step
from tests.replay.random_programs import random_program, random_topology

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "msccl" / "corpus"
LOCAL = LocalCosts(copy_beta=Fraction(1), reduce_beta=Fraction(2), launch=7_000_000)
"""1000 GB/s to copy, 500 GB/s to add, 7 us for the launch."""

RANDOM_SIZES = 4
"""In the range of each file, beside powers of two."""

OWN = (
    ("ndv2", None), ("ndv2", 2), ("dgx-a100", 2), ("torus2d:4x4", None), ("hub:6", None),
    ("hypercube:8", None), ("ring:5", None),
)  # fmt: skip
"""Topologies of the classical algorithms, and their servers."""

RUNS = 5
SWEEP_SECONDS = 1.0
RATIO = 30
BYTES = 200


@dataclass(frozen=True)
class Case:
    """A program whose replay is timed, and the millions of messages a second to reach."""

    name: str
    program: Program
    topology: Topology
    size: int
    target: float


def ring_allreduce(ranks: int, channels: int = 1) -> Program:
    """Return a ring all-reduce with steps of their own for every threadblock."""
    ops = ["s", *["rrs"] * (ranks - 2), "rrcs", *["rcs"] * (ranks - 2), "r"]
    gpus = [
        [
            Threadblock(
                c, (r + 1) % ranks, (r - 1) % ranks, c,
                tuple(Step(Op(op), slot(0), slot(0)) for op in ops),
            )
            for c in range(channels)
        ]
        for r in range(ranks)
    ]  # fmt: skip
    return program(*gpus, chunks=ranks * channels)


def crowd(ranks: int, threadblocks: int, steps: int) -> Program:
    """Return threadblocks that send to all ranks in turn, all at once, over one port a rank."""
    gpus = []
    for rank in range(ranks):
        away = [1 + number % (ranks - 1) for number in range(threadblocks)]
        gpus.append([
            block(
                number, (rank + far) % ranks, (rank - far) % ranks,
                [step(op) for _ in range(steps // 2) for op in "sr"], number // (ranks - 1),
            )
            for number, far in enumerate(away)
        ])  # fmt: skip
    return program(*gpus, chunks=ranks)


def cases() -> Iterator[Case]:
    """Yield the programs with a target."""
    for name, made, topology, size, target in (
        ("ring of 1024", ring_allreduce(1024), ring(1024), 1024 * 400, 2.0),
        ("32 x 32 x 256, one switch", crowd(32, 32, 256), hub(32), 32 * 4000, 0.3),
    ):
        with_work = replace(topology, local=LOCAL)
        yield Case(name, replace(made, protocol="LL128"), with_work, size, target)


def seconds_of_loop(case: Case, model: ReplayModel) -> tuple[float, float, int, float]:
    """Return the seconds for columns and loop, the messages, and bytes for each."""
    columns = loop = 1e9
    messages, used = 0, 0.0
    for number in range(RUNS + 1):
        if number == 0:
            tracemalloc.start()
        begin = time.process_time()
        timing = Timing(case.program, case.topology, model, protocol_costs=True)
        cut = split(case.program, case.size, model)
        messages = messages_of(timing.columns, cut)
        middle = time.process_time()
        machine = machine_of(timing.columns, cut, case.topology.local, timing.factor)
        if machine is None:
            raise SystemExit(f"{case.name}: times do not fit into 64 bits")
        run_machine(machine, steady=False)
        end = time.process_time()
        if number == 0:
            used = tracemalloc.get_traced_memory()[1] / messages
            tracemalloc.stop()
            continue
        columns, loop = min(columns, middle - begin), min(loop, end - middle)
    return columns, loop, messages, used


def seconds_in_python(case: Case, model: ReplayModel) -> float:
    """Return the seconds of the event loop in Python."""
    compiled = compile_program(
        columns_of(case.program, case.topology), split(case.program, case.size, model),
        case.topology.local, PROTOCOL_FACTOR[case.program.protocol],
    )  # fmt: skip
    begin = time.process_time()
    Run(compiled, len(case.topology.edges), keep_spans=False).to_end()
    return time.process_time() - begin


def measure(case: Case, model: ReplayModel) -> bool:
    """Print the speed of a case; tell whether it reaches its targets."""
    columns, loop, messages, used = seconds_of_loop(case, model)
    slow = seconds_in_python(case, model)
    million = messages / 1e6
    speed, ratio = million / loop, slow / loop
    good = speed >= case.target and ratio >= RATIO and used < BYTES
    print(
        f"{case.name:<26} {messages:>8} messages  columns {columns:6.3f} s"
        f"  {speed:6.2f} Mops/s (target {case.target})  all {million / (columns + loop):5.2f}"
        f"  Python {million / slow:5.3f}  ratio {ratio:5.1f}  {used:4.0f} bytes"
        f"{'' if good else '  BELOW TARGET'}"
    )
    return good


def sweep_of_sizes(model: ReplayModel) -> bool:
    """Print how long 20 sizes of a ring take; tell whether that is fast enough."""
    made, topology = ring_allreduce(32, 4), ring(32)
    begin = time.process_time()
    timing = Timing(made, topology, model)
    for power in range(10, 30):
        timing.at(1 << power)
    taken = time.process_time() - begin
    print(f"20 sizes of a ring of 32 ranks with 4 channels: {taken:.3f} s (target {SWEEP_SECONDS})")
    return taken < SWEEP_SECONDS


@dataclass(slots=True)
class Tally:
    """Replays, those that differ, those that can't run, and those below the bound."""

    replays: int = 0
    differ: int = 0
    refused: int = 0
    below: int = 0

    def add(self, compiled: Trace, plain: Trace, bound: tuple[str, int] | None = None) -> None:
        """Count two replays of one size."""
        self.replays += 1
        self.differ += compiled != plain
        self.refused += plain.time is None
        self.below += plain.time is not None and bound is not None and plain.time < bound[1]

    def plus(self, other: "Tally") -> "Tally":
        """Return the sum of two."""
        return Tally(
            self.replays + other.replays, self.differ + other.differ,
            self.refused + other.refused, self.below + other.below,
        )  # fmt: skip

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"{self.replays} replays: {self.differ} differ, {self.refused} can't run,"
            f" {self.below} below the bound"
        )


def replay_both(
    made: Program,
    topology: Topology,
    sizes: list[int],
    *,
    costs: bool = False,
    bounded: bool = True,
) -> Tally:
    """Replay a program both ways under all rules."""
    tally = Tally()
    for rule in ALPHA_RULES:
        network = topology.with_alpha_rule(rule)
        bound = bounds_of(network, made.collective, find_root(made)) if bounded else None
        for runtime in RUNTIMES:
            timing = Timing(made, network, model_of(runtime), protocol_costs=costs)
            for size in sizes:
                found = bound(size) if bound else None
                tally.add(timing.at(size), timing.in_python(size), found)
    return tally


def compare_random(count: int) -> Tally:
    """Replay random programs both ways; their collective is not what they do."""
    tally = Tally()
    for seed in range(count):
        rng = random.Random(f"replay {seed}")
        topology, made = random_topology(rng), random_program(rng)
        made = replace(made, protocol=rng.choice(("Simple", "LL", "LL128")))
        sizes = [16 * rng.randint(1, 1000), 16 * rng.randint(1, 1 << 20)]
        tally = tally.plus(replay_both(made, topology, sizes, bounded=False))
    print(f"{count} random programs, {tally}")
    return tally


def sizes_in_range(made: Program, seed: str) -> list[int]:
    """Return whole sizes in the range a program declares: its ends, powers of two and others."""
    rng, unit = random.Random(seed), 4 * made.chunks_per_loop
    low, high = max(1, -(-made.min_bytes // unit)), made.max_bytes // unit
    asked = {low, high, *(rng.randint(low, high) for _ in range(RANDOM_SIZES))}
    asked |= {(1 << power) // unit for power in range(made.max_bytes.bit_length())}
    return sorted(unit * number for number in asked if low <= number <= high)


def compare_files(folder: Path) -> Tally:
    """Replay XML files both ways in the whole range of sizes that each declares."""
    total, files = Tally(), sorted(folder.glob("*.xml"))
    for file in files:
        made = read_program(file)
        sizes = sizes_in_range(made, file.name)
        topology = load_topology(f"hub:{made.num_ranks}")
        tally = replay_both(made, topology, sizes).plus(
            replay_both(made, replace(topology, local=LOCAL), sizes, costs=True)
        )
        print(
            f"  {file.name:<45} hub:{made.num_ranks} {made.min_bytes:>9} to {made.max_bytes:>10}"
            f" bytes, {len(sizes):>2} sizes from {sizes[0]} to {sizes[-1]}, {tally}"
        )
        total = total.plus(tally)
    print(f"{len(files)} files in {folder}, {total}")
    return total


def bound_own(topology: Topology) -> Tally:
    """Replay the classical algorithms of all collectives on a topology, beside the bound."""
    tally = Tally()
    for rule in ALPHA_RULES:
        network = topology.with_alpha_rule(rule)
        for name, kind in COLLECTIVES.items():
            asked = build_collective(name, network.num_ranks, 1, 1 if kind.has_root else None)
            found = compare(Question(network, asked, [1 << power for power in range(10, 31, 4)]))
            for row in (row for c in found.contenders if c.kind == "algorithm" for row in c.rows):
                tally.replays += 1
                tally.refused += row.time is None
                tally.below += row.time is not None and row.time < (row.bound or 0)
    print(f"  classical algorithms on {topology.name}, {topology.num_ranks} ranks: {tally}")
    return tally


def main() -> int:
    """Compare and measure; return 1 when anything is wrong or slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    asked = parser.parse_args()
    tally = compare_random(asked.programs).plus(compare_files(asked.corpus))
    for name, nodes in OWN:
        tally = tally.plus(bound_own(load_topology(name, nodes=nodes)))
    model = model_of("executor")
    good = sweep_of_sizes(model)
    for case in cases():
        good &= measure(case, model)
    return 1 if tally.differ or tally.below or not good else 0


if __name__ == "__main__":
    sys.exit(main())
