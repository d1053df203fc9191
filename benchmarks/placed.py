"""An order of ranks found from measured times, against ten random ones, with real bytes.

``python -m benchmarks.placed`` (Linux, root, an idle machine) emulates a machine whose places are
numbered at random, measures a ping and a stream over each of its links, lets ``taccl place`` find
an order for a ring from these alone, and runs the ring in that order and in ten random ones. It
ends with status 1 where the order found is not 1.5 times as fast as their mean.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.running import Asked, load_job, measure_links, over, run_jobs
from taccl.run.emulate import Emulated, emulated, own_scale, scaled

SAMPLES = 10
AIM = 1.5


def taken(machine: Emulated, order: list[int], file: Path, size: int) -> float:
    """Return the nanoseconds of a program with rank ``r`` at place ``order[r]``."""
    asked = Asked([size], calls=1, repeats=5)
    rows, _ = run_jobs([load_job(str(file), size)], asked, over(machine.seated(order)), None)
    if any(row.wrong for row in rows):
        raise SystemExit("wrong data")
    return min(row.nanoseconds for row in rows)


def main() -> None:
    """Measure, place, run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machine", default="slow-uplink")
    parser.add_argument("--size", type=int, default=256_000, help="bytes of the allreduce")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    drawn = random.Random(given.seed)
    machine = load_machine(given.machine, MachineOptions(alpha_rule="delay"))
    ranks = list(range(machine.num_ranks))
    with (
        emulated(scaled(machine, own_scale(machine))) as live,
        tempfile.TemporaryDirectory() as folder,
    ):
        hidden = live.seated(drawn.sample(ranks, len(ranks)))
        probes = measure_links(hidden, 3, range(len(hidden.topology.links)))
        pairs, file = Path(folder) / "pairs.txt", Path(folder) / "ring.xml"
        lines = ["src dst latency_us bandwidth_GB/s"]
        for probe in probes:
            link = hidden.topology.link(probe.link)
            rate = 1000 / probe.beta
            lines.append(f"n{link.src} n{link.dst} {max(1, probe.alpha / 1e6):.1f} {rate:.6f}")
        pairs.write_text("\n".join(lines) + "\n")
        base = [sys.executable, "-m", "taccl"]
        subprocess.run(
            [*base, "synthesize", f"ring:{len(ranks)}", "allreduce", "--engine", "ring", "--size",
             str(given.size), "--quiet", "-o", str(file)],
            check=True, capture_output=True,
        )  # fmt: skip
        done = subprocess.run(
            [*base, "place", str(pairs), "--algorithm", "ring", "--size", str(given.size),
             "--json", "--quiet"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        order = json.loads(done.stdout)["order"]
        found = taken(hidden, order, file, given.size)
        others = [
            taken(hidden, drawn.sample(ranks, len(ranks)), file, given.size) for _ in range(SAMPLES)
        ]
    ratio = mean(others) / found
    print(
        f"{given.machine}: allreduce of {given.size} bytes over a ring: {found / 1e6:.1f} ms in the"
        f" order found, {mean(others) / 1e6:.1f} ms in the mean of {SAMPLES} random ones"
        f" ({min(others) / 1e6:.1f} to {max(others) / 1e6:.1f}): {ratio:.2f} times as fast"
    )
    sys.exit(ratio < AIM)


if __name__ == "__main__":
    main()
