"""The original TACCL's examples: its costs and sketches, and the makespans to hold.

``python -m benchmarks.original --examples DIR [-o docs/performance.md]`` needs TACCL's example
topologies and sketches (microsoft/taccl, ``taccl/examples``: folders ``topologies`` and
``sketches``). Every row is synthesized twice, with the original's own cost model (``--costs
original``) and with the numbers as they are (``exact``), the sketch unchanged, 60 s each; every
schedule is written as a program where a runtime can hold it, and verified.

What the original reaches was measured on its public snapshot (v2.0.0, 2023-05) with its MILPs
solved to their stated optimum; where several optima give several schedules, the best. Its
contiguity constraints are missing in effect, so the smaller of what its sends really cost, with
and without that repaired, counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from benchmarks.sections import replace_section

UNITS = {"1KB": ("10ns", Fraction(1, 100)), "32KB": ("100ns", Fraction(1, 10)),
         "1MB": ("1us", Fraction(1))}  # fmt: skip
"""Chunk size of a topology file to its unit of time, as text and in microseconds."""


@dataclass(frozen=True)
class Row:
    """One measured run of the original.

    Parameters
    ----------
    machine, chunk
        Its topology file: ``topo-MACHINE-CHUNK.json``.
    sketch
        Its sketch file.
    collective
        What was done.
    reached
        The makespan to hold, in units of the topology file.
    """

    machine: str
    chunk: str
    sketch: str
    collective: str
    reached: str


ROWS = (
    Row("ndv2", "1KB", "sk1-ndv2-n1", "allgather", "68"),
    Row("ndv2", "32KB", "sk1-ndv2-n1", "allgather", "37"),
    Row("ndv2", "1MB", "sk1-ndv2-n1", "allgather", "92"),
    Row("ndv2", "1MB", "sk-ndv2-n1-cUp6", "allgather", "414"),
    Row("ndv2", "1KB", "sk1-ndv2-n2", "allgather", "838"),
    Row("ndv2", "32KB", "sk1-ndv2-n2", "allgather", "388"),
    Row("ndv2", "1MB", "sk1-ndv2-n2", "allgather", "947.6"),
    Row("ndv2", "1KB", "sk2-ndv2-n2", "allgather", "916"),
    Row("ndv2", "1MB", "sk2-ndv2-n2", "allgather", "6722.6"),
    Row("ndv2", "1KB", "sk3-ndv2-n2", "allgather", "470"),
    Row("ndv2", "32KB", "sk3-ndv2-n2", "allgather", "339"),
    Row("ndv2", "1MB", "sk3-ndv2-n2", "allgather", "934.6"),
    Row("ndv2", "1MB", "sk1-ndv2-n4", "allgather", "2635.8"),
    Row("dgx2", "1KB", "sk1-dgx2-n1", "allgather", "465"),
    Row("dgx2", "1MB", "sk1-dgx2-n1", "allgather", "120"),
    Row("dgx2", "1MB", "sk1-dgx2-n2", "allgather", "563.8"),
    Row("dgx2", "1KB", "sk2-dgx2-n2", "allgather", "930"),
    Row("ndv2", "1KB", "sk1-ndv2-n2", "alltoall", "4148"),
    Row("ndv2", "1MB", "sk1-ndv2-n2", "alltoall", "6847.4"),
    Row("ndv2", "1KB", "sk2-ndv2-n2", "alltoall", "916"),
    Row("ndv2", "1MB", "sk3-ndv2-n2", "alltoall", "6727.8"),
    Row("dgx2", "1KB", "sk2-dgx2-n2", "alltoall", "2542"),
    Row("ndv2", "1KB", "sk1-ndv2-n1", "allreduce", "234"),
    Row("ndv2", "32KB", "sk1-ndv2-n1", "allreduce", "101"),
    Row("ndv2", "1MB", "sk1-ndv2-n1", "allreduce", "253"),
    Row("ndv2", "1MB", "sk1-ndv2-n2", "allreduce", "1964.2"),
    Row("ndv2", "1MB", "sk2-ndv2-n2", "allreduce", "60641"),
    Row("ndv2", "1MB", "sk3-ndv2-n2", "allreduce", "2076.2"),
    Row("dgx2", "1KB", "sk1-dgx2-n1", "allreduce", "930"),
    Row("dgx2", "1MB", "sk1-dgx2-n1", "allreduce", "240"),
    Row("dgx2", "1MB", "sk1-dgx2-n2", "allreduce", "1138.2"),
    Row("dgx2", "1KB", "sk2-dgx2-n2", "allreduce", "3132"),
)  # fmt: skip

HEAD = """## The examples of the original TACCL

Made by `python -m benchmarks.original --examples DIR`, where DIR holds TACCL's example topologies
and sketches. Times are in the units of each topology file (10 ns for 1KB, 100 ns for 32KB, 1 us
for 1MB). *TACCL* is what the original's schedule costs, at best; *ours* is what
`taccl synthesize` finds in 60 s at most under the original's own costs and the unchanged sketch,
with *bound* the best lower bound proved under that sketch (for this chunk count, without batches
where the schedule has none); *exact costs* is the same sketch with the file's numbers as they are
and NICs as shared resources, and has no target. *program*: the schedule was written for the
executor runtime, and verified.

| topology | sketch | collective | TACCL | ours | bound | status | engine | seconds | program \
| exact costs |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def taccl(*arguments: str) -> str:
    """Run ``taccl`` as a user would and return what it prints."""
    command = [sys.executable, "-m", "taccl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def synthesize(row: Row, costs: str, examples: Path, folder: Path) -> tuple[dict[str, object], str]:
    """Return the result of one row under a cost model, and whether its program verifies."""
    base = {"ndv2": "NDv2", "dgx2": "DGX2"}[row.machine]
    machine, sketch = folder / f"{row.machine}-{row.chunk}-{costs}.yaml", f"{row.sketch}.json"
    source = examples / "topologies" / f"topo-{row.machine}-{row.chunk}.json"
    taccl(
        "topology", "import", str(source), "--from", "taccl", "--base", base, "--costs", costs,
        "--chunk-size", row.chunk, "--time-unit", UNITS[row.chunk][0], "-o", str(machine),
    )  # fmt: skip
    sketch = str(examples / "sketches" / sketch)
    nodes = str(json.loads(Path(sketch).read_text())["nnodes"])
    schedule, program = folder / "schedule.json", folder / "program.xml"
    alone = nodes == "1" and row.collective == "allgather"
    found: dict[str, object] = json.loads(
        taccl(
            "synthesize", str(machine), row.collective, "--nodes", nodes, "--sketch", sketch,
            "--time-limit", "60", "--runtime", "none", "--schedule", str(schedule), "--json",
            "--engine", "exact" if alone else "auto",
        )
    )  # fmt: skip
    size = str(found["size_bytes"])
    taccl(
        "convert", str(schedule), "--runtime", "executor", "--size", f"{size}B", "-o", str(program)
    )
    taccl("verify", str(program), "--runtime", "executor")
    return found, "verified"


def in_units(found: dict[str, object], key: str, row: Row) -> Fraction | None:
    """Return a time of a result in the row's units, exactly."""
    value = found[key]
    if not isinstance(value, (int, float)):
        return None
    return Fraction(round(value * 10**6), 10**6) / UNITS[row.chunk][1]


def text(value: Fraction | None) -> str:
    """Return a time with at most two digits after the point, rounded up."""
    return "-" if value is None else f"{-(-value * 100 // 1) / 100:.2f}".rstrip("0").rstrip(".")


def main() -> None:
    """Run every row, print and write the table, and fail when a row misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--only", default="", help="rows whose text holds this")
    parser.add_argument("--costs", default="original,exact")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    lines, missed = [], []
    for row in ROWS:
        if arguments.only not in f"{row.machine} {row.chunk} {row.sketch} {row.collective}":
            continue
        with tempfile.TemporaryDirectory() as name:
            results = [
                synthesize(row, costs, arguments.examples, Path(name))
                for costs in arguments.costs.split(",")
            ]
        (found, program), others = results[0], results[1:]
        ours = in_units(found, "makespan_us", row)
        kinds = ("bound_sketch_us", "bound_fixed_us", "bound_engine_us")
        bounds = (in_units(found, key, row) for key in kinds)
        bound = max((bound for bound in bounds if bound is not None), default=None)
        if ours is None or ours > Fraction(row.reached):
            missed.append(row)
        cells = [
            f"{row.machine} {row.chunk}", row.sketch, row.collective, row.reached, text(ours),
            text(bound), str(found["status"]), str(found["engine"]), f"{found['seconds']:.1f}",
            program, *(text(in_units(other, "makespan_us", row)) for other, _ in others),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], "MISSED" if row in missed else "", flush=True)
    if arguments.output:
        replace_section(arguments.output, "original", HEAD + "".join(f"{line}\n" for line in lines))
    raise SystemExit(f"{len(missed)} rows missed" if missed else 0)


if __name__ == "__main__":
    main()
