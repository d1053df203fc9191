"""What the searches give today, cell by cell: a change of structure must not change it.

``python -m benchmarks.frozen`` runs every cell anew, beside what is kept in ``frozen.json``, and
ends with status 1 where a makespan or a replay is more than ``WORSE`` above the kept one, or where
the median of the ratios is above 1. ``--update`` keeps what was found. A cell counts work instead
of seconds (``--deterministic``, one worker), so it gives the same file each time.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

KEPT = Path(__file__).parent / "frozen.json"

WORSE = 1.005
"""Times the kept replay or makespan that a cell may take."""

CELLS = (
    # Engines on one server and on two.
    "ndv2 allgather --engine guided",
    "ndv2 allgather --engine taccl",
    "ndv2 allgather --engine exact --chunks 2",
    "ndv2 allreduce --engine auto",
    "ndv2 allgather --nodes 2 --engine guided --size 1MB",
    "ndv2 reducescatter --nodes 2 --engine auto --size 16MB",
    "ndv2 alltoall --nodes 2 --engine flow --size 1MB",
    "dgx1v allgather --engine exact --steps 2 --rounds 2 --chunks 1 --runtime none",
    "dgx2 alltoall --engine guided --size 64KB",
    "dgx2 allgather --nodes 2 --engine guided --size 64KB",
    "dgx2 reducescatter --nodes 2 --engine guided --size 1MB",
    "dgx2 allreduce --nodes 2 --engine guided --size 16MB",
    "dgx2 alltoall --nodes 2 --engine flow --size 1MB",
    # Sketches.
    "ndv2 allgather --nodes 2 --sketch ndv2-direct-map --engine taccl",
    "dgx2 allgather --nodes 2 --sketch dgx2-relay --engine taccl --size 1MB",
    "dgx2 allreduce --nodes 2 --sketch dgx2-relay --engine auto --size 64KB",
    # Roots, and collectives without a program.
    "dgx-a100 broadcast --nodes 2 --root 3 --engine guided --size 1MB",
    "ndv2 reduce --nodes 2 --root 5 --engine auto --size 64KB",
    "dgx2 scatter --root 2 --engine flow --runtime none",
    "ndv2 gather --root 1 --engine guided --runtime none",
    # Algorithms in closed form, and what is built from them.
    "dgx-a100 allreduce --nodes 2 --engine hierarchical --size 64MB",
    "dgx-a100 alltoall --nodes 4 --engine two-step --size 1MB",
    "dgx-a100 alltoall --nodes 4 --engine three-step --size 1MB",
    "hypercube:16 allreduce --engine halving-doubling",
    "hub:16 allreduce --engine recursive-doubling --size 64KB",
    "mi300x allgather --engine bruck --size 64KB",
    "gb200-nvl72 allreduce --engine double-binary-tree",
    "dgx-a100 allgather --nodes 4 --engine guided --size 1KB",
    "dgx-a100 allreduce --nodes 2 --engine auto --size 1KB",
    "dgx-h100 allgather --nodes 2 --engine guided --size 64MB",
    # Other machines and shapes.
    "torus2d:4x4 alltoall --engine flow",
    "torus2d:4x4 allreduce --engine auto",
    "torus2d:8x8 allgather --engine guided",
    "leaf-spine reducescatter --engine auto",
    "fat-tree allreduce --engine guided",
    "mi250 allgather --nodes 2 --engine guided --alpha-rule delay",
    "pcie-a100 allreduce --engine taccl --batch none",
    "h800-rail alltoall --engine auto",
    # 1024 ranks.
    "dgx-a100 allgather --nodes 128 --engine guided --runtime none",
    "torus3d:16x8x8 alltoall --engine flow --chunks 1 --runtime none",
    "hub:1024 reducescatter --engine guided --runtime none",
)
"""Arguments of ``taccl synthesize``."""

LIMIT = 10
"""Seconds that the counted work stands for."""


@dataclass(frozen=True)
class Found:
    """What a cell gives.

    Parameters
    ----------
    makespan, replay
        Microseconds; the replay is None without a program.
    sends
        Of the schedule.
    candidates
        Schedules that were compared: the work, counted.
    digest
        Of the file that was written: the program, or the schedule without one.
    seconds
        Of processor time; depends on the machine, so it is told and not judged.
    """

    makespan: float
    replay: float | None
    sends: int
    candidates: int
    digest: str
    seconds: float

    @property
    def time(self) -> float:
        """Microseconds of the program, or of the schedule without one."""
        return self.makespan if self.replay is None else self.replay


def run(cell: str, program: Sequence[str] = ("-m", "taccl")) -> Found:
    """Return what a cell gives, from a process of its own.

    Parameters
    ----------
    cell
        Arguments of ``taccl synthesize``.
    program
        What runs it: arguments of Python.

    Raises
    ------
    RuntimeError
        When the command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found"
        output = "--schedule" if "--runtime none" in cell else "--output"
        # Of an option that is given twice the last counts: that of the cell.
        command = [
            sys.executable, *program, "synthesize",
            "--profile", "alpha-beta", *shlex.split(cell), "--deterministic",
            "--workers", "1", "--time-limit", str(LIMIT), "--json", "--quiet", output, str(path),
        ]  # fmt: skip
        said, wrong = Path(folder) / "said", Path(folder) / "wrong"
        with (
            said.open("wb") as out, wrong.open("wb") as errors,
            subprocess.Popen(command, stdout=out, stderr=errors) as child,
        ):  # fmt: skip
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{cell}: exit status {child.returncode}\n{wrong.read_text()}")
        report = json.loads(said.read_text())
        return Found(
            report["makespan_us"], report["replay_us"], report["sends"],
            len(report["candidates"]), hashlib.sha256(path.read_bytes()).hexdigest()[:16],
            round(used.ru_utime + used.ru_stime, 2),
        )  # fmt: skip


def kept() -> dict[str, Found]:
    """Return what is kept, by cell; nothing where there is no file."""
    if not KEPT.exists():
        return {}
    return {cell: Found(**row) for cell, row in json.loads(KEPT.read_text()).items()}


def keep(found: Mapping[str, Found]) -> None:
    """Write what was found."""
    rows = {cell: asdict(one) for cell, one in found.items()}
    KEPT.write_text(json.dumps(rows, indent=1) + "\n")


def compared(found: Mapping[str, Found], old: Mapping[str, Found]) -> Iterator[str]:
    """Yield why what was found is worse than what is kept, a line a reason."""
    ratios = []
    for cell, new in found.items():
        before = old.get(cell)
        if before is None:
            yield f"{cell}: nothing is kept of it"
            continue
        ratios.append(new.time / before.time)
        for what in ("makespan", "replay"):
            now, then = getattr(new, what), getattr(before, what)
            # A program that is faster may come from a schedule that is slower.
            if now is not None and now > WORSE * then and new.time > before.time:
                yield f"{cell}: {what} {now:.3f} us, was {then:.3f}"
    if ratios and median(ratios) > 1:
        yield f"the median is {median(ratios):.4f} of what is kept"


def main() -> None:
    """Run the cells beside what is kept; end with status 1 where something is worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="keep what is found")
    parser.add_argument("--only", default="", help="cells that contain this text")
    parser.add_argument("--workers", type=int, default=2, help="cells at once")
    given = parser.parse_args()
    cells = [cell for cell in CELLS if given.only in cell]
    old, found = kept(), {}
    print(f"{'cell':72s} {'us':>12s} {'ratio':>7s} {'file':>5s} {'candidates':>11s} {'CPU s':>12s}")
    with ThreadPoolExecutor(given.workers) as pool:
        for cell, new in zip(cells, pool.map(run, cells), strict=True):
            found[cell] = new
            before = old.get(cell, new)
            same = "same" if new.digest == before.digest else "other"
            print(
                f"{cell:72s} {new.time:12.3f} {new.time / before.time:7.4f} {same:>5s}"
                f" {before.candidates:4d} -> {new.candidates:3d}"
                f" {before.seconds:5.1f} ->{new.seconds:5.1f}",
                flush=True,
            )
    if given.update:
        keep({**old, **found})
        return
    worse = list(compared(found, old))
    print("\n".join(worse) or f"none of {len(found)} cells is worse")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
