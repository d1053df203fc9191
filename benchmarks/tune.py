"""What ``taccl tune`` promises: ``python -m benchmarks.tune same|speed|full``.

``same`` asks for one library serially, with two workers, on a local Dask cluster of which a worker
is killed in mid-run, and with many runs killed -9 at random moments and taken up again: all must
have the same bytes. ``speed`` compares the wall clock of two workers with that of one, on a
machine that has nothing else to do. ``full`` makes the library of two DGX-2 for 1 KiB to 1 GiB and
checks what its index says; ``--page`` writes its table. Exit status 1 where a promise is broken.
"""

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.sections import replace_section
from taccl.bounds.port_contention import too_short
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.tuning.directory import LibraryFile

SMALL = (
    "ndv2", "allgather", "alltoall", "allreduce", "-b", "1K", "-e", "16M", "-f", "4",
    "--runtime", "executor",
)  # fmt: skip
FULL = (
    "dgx2", "allgather", "alltoall", "allreduce", "--nodes", "2", "-b", "1K", "-e", "1G",
    "--runtime", "executor",
)  # fmt: skip

FASTER = 0.65
"""Two workers take at most so much of the time of one."""

LONGER = 1.1
"""How many times as long a killed run may take the next time."""

BELOW = 0.8
"""Times the best classical algorithm: at how many sizes programs are so far ahead is counted."""

HEAD = """## A library for two DGX-2

Made by `python -m benchmarks.tune full`: `taccl tune dgx2 allgather alltoall allreduce --nodes 2
-b 1K -e 1G --runtime executor` with the --time-limit told below. Times are replays of the program
that the library has for a size. *ratio* is that time, and *least* what no algorithm can beat, as a
multiple of the best classical algorithm's time: where *least* is above 0.8, no ratio can be at or
below it. Where the bounds of the library allow 0.8 and it is not reached, the bound of kind growth
(`taccl bound --growth`) is asked whether it is proved to be too short: then *least* says so.
"""

GROWN = "> 0.8 by growth"

COLUMNS = (
    "collective", "bytes", "engine", "chunks", "us", "bound us", "best classical", "us", "ratio",
    "least",
)  # fmt: skip


def command(words: Sequence[str], output: Path, *more: str) -> list[str]:
    """Return a command line of ``taccl tune``."""
    return [sys.executable, "-m", "taccl", "tune", *words, "-q", "-o", str(output), *more]


def run(words: Sequence[str], output: Path, *more: str) -> float:
    """Run ``taccl tune``; return its seconds."""
    began = time.monotonic()
    subprocess.run(command(words, output, *more), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def digest(output: Path) -> str:
    """Return a hash of all names and bytes of a directory."""
    found = hashlib.sha256()
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(output)).encode() + path.read_bytes())
    return found.hexdigest()


def killed(words: Sequence[str], output: Path, seconds: float, chance: random.Random) -> int:
    """Kill runs at random moments until one ends by itself; return how many were killed."""
    kills = 0
    while True:
        with subprocess.Popen(
            command(words, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as running:
            try:
                # Longer each time: a candidate that never gets its time is never finished.
                running.wait(chance.uniform(0.1, 0.5) * seconds * LONGER**kills)
            except subprocess.TimeoutExpired:
                os.kill(running.pid, signal.SIGKILL)
                kills += 1
                continue
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, "taccl tune")
        return kills


def on_dask(words: Sequence[str], output: Path, seconds: float) -> None:
    """Run on a local Dask cluster, one worker of which is killed in mid-run."""
    distributed: Any = importlib.import_module("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        scheduler = command(words, output, "--scheduler", cluster.scheduler_address)
        with subprocess.Popen(scheduler, stdout=subprocess.DEVNULL) as running:
            time.sleep(0.5 * seconds)
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
            if running.wait():
                raise subprocess.CalledProcessError(running.returncode, "taccl tune")


def same(folder: Path, candidates: int, kills: int, seed: int) -> bool:
    """Compare the bytes of all ways to make one library."""
    words = (*SMALL, "--candidates", str(candidates))
    one = run(words, folder / "serial", "--workers", "1")
    expected = digest(folder / "serial")
    print(f"serial           {one:7.1f} s  {expected[:16]}", flush=True)
    results = []
    two = run(words, folder / "two", "--workers", "2")
    results.append(report(f"two workers      {two:7.1f} s", folder / "two", expected))
    again = run(words, folder / "two", "--workers", "2")
    results.append(report(f"the same again   {again:7.1f} s", folder / "two", expected))
    on_dask(words, folder / "dask", two)
    results.append(report("Dask, one killed          ", folder / "dask", expected))
    chance, count, number = random.Random(seed), 0, 0
    while count < kills:
        output = folder / f"killed{number}"
        found = killed((*words, "--workers", "2"), output, two, chance)
        results.append(report(f"{found:3} kills -9              ", output, expected))
        shutil.rmtree(output)
        count, number = count + found, number + 1
    return all(results)


def report(told: str, output: Path, expected: str) -> bool:
    """Print and return whether a directory is as expected."""
    found = digest(output)
    print(f"{told}  {found[:16]}  {'same' if found == expected else 'DIFFERENT'}", flush=True)
    return found == expected


def speed(folder: Path, candidates: int) -> bool:
    """Compare one worker and two."""
    words = (*SMALL, "--candidates", str(candidates))
    one = run(words, folder / "one", "--workers", "1")
    two = run(words, folder / "two", "--workers", "2")
    print(f"one worker {one:.1f} s, two {two:.1f} s: {two / one:.2f} x (promised: {FASTER})")
    return two <= FASTER * one


Sizes = set[tuple[str, int]]
"""Collectives and bytes."""


def too_short_at(index: dict[str, Any], topology: Topology) -> Sizes:
    """Return where programs are not as far ahead as bounds allow, but growth forbids more."""
    found = set()
    for one in index["collectives"]:
        for size in one["sizes"]:
            ahead, least = size["over_classical"] or 1, size["bound_over_classical"] or 1
            if least <= BELOW < ahead:
                time_ = int(BELOW * size["classical_us"] * 10**6)
                if too_short(topology, one["collective"], size["size_bytes"], time_):
                    found.add((one["collective"], size["size_bytes"]))
    return found


def table(index: dict[str, Any], grown: Sizes) -> str:
    """Return the section of the page: a row for every collective and size."""
    rows: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS)]
    told = []
    for one in index["collectives"]:
        ranges = {span["file"]: span for span in one["ranges"]}
        for size in one["sizes"]:
            span = ranges.get(size["file"], {})
            rows.append((
                one["collective"], f"{size['size_bytes']}", span.get("engine") or "-",
                f"{span.get('chunks') or '-'}", _number(size["time_us"], 2),
                _number(size["bound_us"], 2), size["classical"] or "-",
                _number(size["classical_us"], 2), _number(size["over_classical"], 3),
                GROWN if (one["collective"], size["size_bytes"]) in grown
                else _number(size["bound_over_classical"], 3),
            ))  # fmt: skip
        told.append(counted(one, grown))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    told.append(f"- --time-limit {index['budget']['time_limit_s']:g}.")
    return f"{HEAD}\n" + "\n".join(lines) + "\n\n" + "\n".join(told) + "\n"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def counted(one: dict[str, Any], grown: Sizes) -> str:
    """Return at how many sizes of a collective programs are far ahead, and could be."""
    sizes = one["sizes"]
    below = sum((size["over_classical"] or 1) <= BELOW for size in sizes)
    possible = sum(
        (size["bound_over_classical"] or 1) <= BELOW
        and (one["collective"], size["size_bytes"]) not in grown
        for size in sizes
    )
    forbidden = "" if 2 * possible >= len(sizes) else ": the bound forbids more than half of them"
    return (
        f"- {one['collective']}: at most {BELOW} x the best classical algorithm at {below} of"
        f" {len(sizes)} sizes; the bound allows {possible}{forbidden}."
    )


def full(output: Path, time_limit: float, page: Path | None = None) -> bool:
    """Make the library of two DGX-2 and check it."""
    seconds = run(FULL, output, "--time-limit", str(time_limit))
    text = (output / "index.json").read_text()
    index: dict[str, Any] = json.loads(text)
    LibraryFile.model_validate(index)
    good = seconds <= 1.1 * time_limit
    print(f"{seconds:.0f} s of {time_limit:.0f} s", flush=True)
    grown = too_short_at(index, load_topology(FULL[0], nodes=2))
    for one in index["collectives"]:
        ranges, sizes = one["ranges"], one["sizes"]
        ends = [(span["min_bytes"], span["max_bytes"]) for span in ranges]
        gapless = all(b[0] == a[1] + 1 for a, b in pairwise(ends))
        covered = (ends[0][0], ends[-1][1]) == (1 << 10, 1 << 30)
        near = all((size["over_best"] or 0) <= 1.02 for size in sizes)
        behind = all((size["over_classical"] or 0) <= 1 for size in sizes)
        good = good and gapless and covered and near and behind
        print(
            f"{one['collective']:12} {len(ranges)} files; gapless {gapless}, covered {covered},"
            f" near the best {near}, never behind the textbook {behind}"
        )
        print(counted(one, grown), flush=True)
        for span in ranges:
            if span["file"]:
                for size in span["verified_at_bytes"]:
                    good = verified(output / span["file"], index["runtime"], size) and good
    if page is not None:
        replace_section(page, "tune", table(index, grown))
    return good


def verified(path: Path, runtime: str, size: int) -> bool:
    """Return what ``taccl verify`` says."""
    words = ["verify", str(path), "--runtime", runtime, "--size", str(size)]
    done = subprocess.run([sys.executable, "-m", "taccl", *words], capture_output=True, check=False)
    if done.returncode:
        print(f"{path.name} at {size}: {done.stdout.decode()}")
    return done.returncode == 0


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("same", "speed", "full"))
    parser.add_argument("-o", "--output", type=Path, help="where full writes the library")
    parser.add_argument("--page", type=Path, help="where full writes its table")
    parser.add_argument("--time-limit", type=float, default=600.0)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if asked.what == "full":
            good = full(asked.output or place / "lib", asked.time_limit, asked.page)
        elif asked.what == "speed":
            good = speed(place, asked.candidates)
        else:
            good = same(place, asked.candidates, asked.kills, asked.seed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
