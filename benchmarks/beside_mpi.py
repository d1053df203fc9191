"""An allreduce of eight processes of one machine: ``taccl run`` beside MPI's own.

``python -m benchmarks.beside_mpi`` (mpi4py and an MPI, such as ``pip install mpi4py mpich``) times
MPI's allreduce and programs for eight ranks over shared memory, from 1 KB to 16 MB, both as
nccl-tests does: calls one after the other, from the first rank's start to the last one's end, the
median of seven measurements. It ends with status 1 where ours takes over twice as long, or over
three times at 1 KB.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from taccl.apps.running import SHARED_MEMORY, Asked, load_job, run_jobs
from taccl.report.text import aligned

RANKS, CALLS, REPEATS = 8, 20, 7
SIZES = tuple(1 << power for power in range(10, 25, 2))
ENGINES = ("all-pairs", "halving-doubling", "ring")

MPI = f"""
import json, time
import numpy as np
from mpi4py import MPI
comm, found = MPI.COMM_WORLD, {{}}
for size in {SIZES}:
    source = np.ones(size // 4, np.float32)
    target, times = np.empty_like(source), []
    for _ in range({REPEATS}):
        comm.Barrier()
        began = time.monotonic_ns()
        for _ in range({CALLS}):
            comm.Allreduce(source, target)
        spans = comm.allgather((began, time.monotonic_ns()))
        times.append((max(e for _, e in spans) - min(b for b, _ in spans)) / {CALLS})
    found[size] = sorted(times)[{REPEATS} // 2]
if comm.rank == 0:
    print(json.dumps(found))
"""


def main() -> None:
    """Time both."""
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    launcher = shutil.which("mpirun", path=beside)
    if launcher is None:
        sys.exit("there is no mpirun (pip install mpi4py mpich)")
    done = subprocess.run(
        [launcher, "-n", str(RANKS), sys.executable, "-c", MPI],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = {int(size): time for size, time in json.loads(done.stdout).items()}
    ours: dict[int, tuple[float, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ENGINES:
            file = Path(folder) / f"{engine}.xml"
            subprocess.run(
                [sys.executable, "-m", "taccl", "synthesize", f"full:{RANKS}", "allreduce",
                 "--engine", engine, "--size", "1MB", "--min-bytes", "1", "--max-bytes", "1G",
                 "--outofplace", "--quiet", "-o", str(file)],
                check=True, capture_output=True,
            )  # fmt: skip
            asked = Asked(SIZES, "float32", CALLS, REPEATS)
            rows, _ = run_jobs([load_job(str(file), SIZES[-1])], asked, SHARED_MEMORY, None)
            for row, size in zip(rows, SIZES, strict=True):
                if row.wrong:
                    sys.exit(f"{engine} at {size} bytes: wrong data")
                ours[size] = min(ours.get(size, (float("inf"), "")), (row.nanoseconds, engine))
    lines = [["bytes", "MPI us", "taccl us", "program", "ratio"]]
    missed = False
    for size in SIZES:
        time, engine = ours[size]
        ratio = time / theirs[size]
        missed |= ratio > (3 if size == SIZES[0] else 2)
        lines.append([
            str(size), f"{theirs[size] / 1000:.1f}", f"{time / 1000:.1f}", engine, f"{ratio:.2f}"
        ])  # fmt: skip
    print("\n".join(aligned(lines)))
    sys.exit(missed)


if __name__ == "__main__":
    main()
