"""Run the short benchmark and assert the known optima: ``python -m benchmarks``."""

import json
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Optimum:
    """A case whose best makespan is known, in microseconds."""

    topology: str
    collective: str
    chunks: int
    size: str
    makespan_us: float


OPTIMA = (
    # 3 x (0.7 + 23) us on the doubled NVLinks; seven chunks of 1 MB enter each rank.
    Optimum("ndv2", "allgather", 1, "8MB", 71.1),
    # 5 x 23.7 us: fourteen chunks.
    Optimum("ndv2", "allgather", 2, "16MB", 118.5),
    # 15 x (0.7 + 8) us through every port of the switch.
    Optimum("dgx2", "allgather", 1, "16MB", 130.5),
)  # fmt: skip


def main() -> int:
    """Run every case; return 1 when one misses its optimum."""
    missed = 0
    for case in OPTIMA:
        command = [
            sys.executable, "-m", "taccl", "synthesize", case.topology, case.collective,
            "--size", case.size, "--chunks", str(case.chunks), "--batch", "none",
            "--engine", "taccl", "--runtime", "none", "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        ratio = found["makespan_us"] / case.makespan_us
        missed += ratio > 1
        print(
            f"{case.topology:<6} {case.collective:<10} k={case.chunks}"
            f"  {found['makespan_us']:9.3f} us  {ratio:.3f} x optimum  {found['seconds']:.1f} s"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
