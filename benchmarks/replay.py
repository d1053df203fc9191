"""The compiled replay against the one in Python: equal times, and how much faster.

``python -m benchmarks.replay [--programs 300] [--corpus DIR]`` replays random programs under both
alpha rules with the constants of all runtimes, the XML files of a folder at sizes of their range,
and large programs whose speed it prints:

- ``columns`` is what putting the program into columns takes, once for all sizes,
- ``Mops/s`` counts messages and pieces of local work of the event loop alone,
- ``all`` counts them over both, and ``ratio`` compares that loop with the one in Python,
- ``bytes`` is the memory for each of them that the columns and the state take at most.

It ends with exit status 1 if two replays differ or a speed is below its target.
"""

import argparse
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from taccl.msccl.program import Op, Program, Step, Threadblock
from taccl.msccl.runtimes import RUNTIMES
from taccl.pipeline.evaluation import read_program
from taccl.sim.compile import compile_program
from taccl.sim.cost import ReplayModel, model_of
from taccl.sim.machine import machine_of, messages_of, split
from taccl.sim.replay import Run
from taccl.sim.timing import Timing, run_machine
from taccl.topology import ALPHA_RULES, Topology
from taccl.topology_file import load_topology
from tests.sim.program_builder import block, hub, program, ring, slot, step
from tests.sim.random_programs import random_program, random_topology

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "msccl" / "corpus"
LARGEST = 1 << 28
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
    yield Case("ring of 1024", ring_allreduce(1024), ring(1024), 1024 * 400, 2.0)
    yield Case("32 x 32 x 256, one switch", crowd(32, 32, 256), hub(32), 32 * 4000, 0.3)


def seconds_of_loop(case: Case, model: ReplayModel) -> tuple[float, float, int, float]:
    """Return the seconds for columns and loop, the messages, and bytes for each."""
    columns = loop = 1e9
    messages, used = 0, 0.0
    for number in range(RUNS + 1):
        if number == 0:
            tracemalloc.start()
        begin = time.perf_counter()
        timing = Timing(case.program, case.topology, model)
        cut = split(case.program, case.size, model)
        messages = messages_of(timing.columns, cut)
        middle = time.perf_counter()
        machine = machine_of(timing.columns, cut, case.topology.local)
        if machine is None:
            raise SystemExit(f"{case.name}: times do not fit into 64 bits")
        run_machine(machine, steady=False)
        end = time.perf_counter()
        if number == 0:
            used = tracemalloc.get_traced_memory()[1] / messages
            tracemalloc.stop()
            continue
        columns, loop = min(columns, middle - begin), min(loop, end - middle)
    return columns, loop, messages, used


def seconds_in_python(case: Case, model: ReplayModel) -> float:
    """Return the seconds of the event loop in Python."""
    compiled = compile_program(case.program, case.topology, case.size, model)
    begin = time.perf_counter()
    Run(compiled, len(case.topology.edges), keep_spans=False).to_end()
    return time.perf_counter() - begin


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
    begin = time.perf_counter()
    timing = Timing(made, topology, model)
    for power in range(10, 30):
        timing.at(1 << power)
    taken = time.perf_counter() - begin
    print(f"20 sizes of a ring of 32 ranks with 4 channels: {taken:.3f} s (target {SWEEP_SECONDS})")
    return taken < SWEEP_SECONDS


def differ(made: Program, topology: Topology, sizes: list[int]) -> tuple[int, int]:
    """Return how many replays were made, and how many of them differ."""
    runs = wrong = 0
    for rule in ALPHA_RULES:
        network = topology.with_alpha_rule(rule)
        for runtime in RUNTIMES:
            model = model_of(runtime)
            timing = Timing(made, network, model)
            for size in sizes:
                runs += 1
                wrong += timing.at(size) != timing.in_python(size)
    return runs, wrong


def compare_random(count: int) -> int:
    """Replay random programs both ways; return how many differ."""
    runs = wrong = 0
    for seed in range(count):
        rng = random.Random(f"replay {seed}")
        topology, made = random_topology(rng), random_program(rng)
        made = replace(made, protocol=rng.choice(("Simple", "LL", "LL128")))
        sizes = [16 * rng.randint(1, 1000), 16 * rng.randint(1, 1 << 20)]
        more, bad = differ(made, topology, sizes)
        runs, wrong = runs + more, wrong + bad
    print(f"{count} random programs, {runs} replays: {wrong} differ")
    return wrong


def compare_files(folder: Path) -> int:
    """Replay XML files both ways at the ends and the middle of their range, up to 256 MiB."""
    runs = wrong = 0
    files = sorted(folder.glob("*.xml"))
    for file in files:
        made = read_program(file)
        unit = 4 * made.chunks_per_loop
        low, high = max(1, made.min_bytes), min(made.max_bytes, LARGEST)
        asked = {-(-low // unit), high // unit, int((low * high) ** 0.5) // unit}
        sizes = sorted(unit * max(1, number) for number in asked)
        more, bad = differ(made, load_topology(f"hub:{made.num_ranks}"), sizes)
        runs, wrong = runs + more, wrong + bad
    print(f"{len(files)} files, {runs} replays: {wrong} differ")
    return wrong


def main() -> int:
    """Compare and measure; return 1 when anything is wrong or slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    asked = parser.parse_args()
    wrong = compare_random(asked.programs) + compare_files(asked.corpus)
    model = model_of("executor")
    good = sweep_of_sizes(model)
    for case in cases():
        good &= measure(case, model)
    return 1 if wrong or not good else 0


if __name__ == "__main__":
    sys.exit(main())
