"""Write part of docs/performance.md: the shipped machines against ring and all-pairs.

``python -m benchmarks.performance -o docs/performance.md`` runs ``taccl`` as a user would, once
for every row and engine, on an otherwise idle machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sections import replace_section

MACHINES = (("ndv2", 1), ("ndv2", 2), ("dgx2", 1), ("dgx2", 2), ("dgx-a100", 2))
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")
CLASSICAL = ("ring", "all-pairs")

Answer = dict[str, float]

HEAD = """## The shipped machines against ring and all-pairs

Made by `make performance`: `taccl synthesize X C --nodes N --size 1MB --time-limit 20
--profile alpha-beta` (seed 0, alpha rule `occupy`, runtime `portable`), and the same with
`--engine ring` and `--engine all-pairs`. Times are replays of the verified programs on the shipped
topology; a dash: the machine's links don't allow the algorithm. `ring` is *one* ring through all
ranks; NCCL runs many at once, one on each channel. *k* is the chunk count for each rank, *speed-up*
the time of the faster of ring and all-pairs / *replay us*. *gap* is that of the replay, *gap_fixed*
that of the makespan; a dash: the schedule has batches, for which the fixed bound does not hold.

| machine | collective | engine | k | replay us | ring us | all-pairs us | speed-up | bound us | \
gap | gap_fixed | seconds |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""

FIXED_HEAD = """
### One chunk to a message (`--batch none`)

| machine | collective | engine | k | makespan us | fixed bound us | gap_fixed | seconds |
|---|---|---|---|---|---|---|---|
"""

NOTES = """
### Reading the gaps

At 1 MB much of the time is alpha. *bound us* holds for messages of any size, and counts an alpha
for as many rounds as it takes until some rank can know of all others by messages that hold no more
than their senders knew. The fixed bound counts an alpha for every chunk. So *gap* can be large
where *gap_fixed* is small.

`auto` keeps the schedule whose program replays fastest: its makespan need not be the least that was
found, and may be above its replay.
"""


def run(machine: str, nodes: int, collective: str, *options: str) -> dict[str, object] | None:
    """Return the JSON of one synthesis; None where the algorithm does not exist."""
    command = [
        sys.executable, "-m", "taccl", "synthesize", machine, collective,
        "--nodes", str(nodes), "--size", "1MB", "--time-limit", "20", "--profile", "alpha-beta",
        "--json", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def number(value: object, form: str = ".2f") -> str:
    """Return a number as text, or a dash for None."""
    return format(value, form) if isinstance(value, (int, float)) else "-"


def check(file: str, machine: str, nodes: int) -> None:
    """Verify a written file once more, as a user would, and evaluate it from 1 KB to 1 GB."""
    sweep = ("--topology", machine, "--nodes", str(nodes), "-b", "1K", "-e", "1G", "-f", "4")
    for command in (("verify", file), ("evaluate", file, *sweep)):
        subprocess.run([sys.executable, "-m", "taccl", *command], check=True, capture_output=True)


def rows(folder: Path) -> Iterator[str]:
    """Yield the lines of the first table; the programs go to a folder."""
    for machine, nodes in MACHINES:
        for collective in COLLECTIVES:
            file = str(folder / f"{machine}-x{nodes}-{collective}.xml")
            found = run(machine, nodes, collective, "-o", file)
            if found is None:
                raise SystemExit(f"no schedule for {collective} on {machine}")
            check(file, machine, nodes)
            others = [run(machine, nodes, collective, "--engine", name) for name in CLASSICAL]
            times = [None if other is None else other["replay_us"] for other in others]
            known = [time for time in times if isinstance(time, float)]
            replay = found["replay_us"]
            speedup = min(known) / replay if known and isinstance(replay, float) else None
            cells = [
                f"{machine} x {nodes}", collective, str(found["engine"]),
                str(found["chunks_per_rank"]), number(replay), number(times[0]), number(times[1]),
                number(speedup), number(found["bound_us"]), number(found["gap"], ".1%"),
                number(found["gap_fixed"], ".1%"), number(found["seconds"], ".1f"),
            ]  # fmt: skip
            line = f"| {' | '.join(cells)} |"
            print(line, flush=True)
            yield line


def fixed_rows() -> Iterator[str]:
    """Yield the lines of the second table."""
    for machine, nodes in MACHINES:
        for collective in COLLECTIVES:
            found = run(machine, nodes, collective, "--batch", "none")
            if found is None:
                raise SystemExit(f"no schedule for {collective} on {machine}")
            cells = [
                f"{machine} x {nodes}", collective, str(found["engine"]),
                str(found["chunks_per_rank"]), number(found["makespan_us"]),
                number(found["bound_fixed_us"]), number(found["gap_fixed"], ".2%"),
                number(found["seconds"], ".1f"),
            ]  # fmt: skip
            line = f"| {' | '.join(cells)} |"
            print(line, flush=True)
            yield line


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    run(*MACHINES[0], COLLECTIVES[0])  # on a fresh machine it compiles, which is not to be timed
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(rows(Path(folder)))
    fixed = "\n".join(fixed_rows())
    replace_section(output, "machines", f"{HEAD}{table}\n{FIXED_HEAD}{fixed}\n{NOTES}")


if __name__ == "__main__":
    main()
