"""How long ``taccl step`` itself takes on large workloads, its start included.

``python -m benchmarks.step_speed`` runs the command on a Chakra trace of 10 000 nodes on 64 ranks
(eight DGX A100: tensor parallelism inside servers, data parallelism between them), by default and
by a table, and on 200 layers with four groups on two of these servers. Each is run once beforehand,
for what Python and numba keep on disk; a row has the least and the most of ``--runs`` runs. Status
1 where a most is above its aim.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from taccl.imports.chakra import COLLECTIVE, COMP, METADATA, framed, messages
from taccl.report.text import aligned

NODES = 9999
"""Of the trace, and one that names its groups."""

LAYERS = 200

TABLE = "alpha=10us,busbw=120GB/s"

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = 0, 2, 7
"""Kinds of collectives in traces."""


def each(ranks: int, width: int) -> dict[str, list[list[int]]]:
    """Return groups of neighbours, so many wide, and groups of one rank of each of these."""
    return {
        "tp": [list(range(low, low + width)) for low in range(0, ranks, width)],
        "dp": [list(range(low, ranks, width)) for low in range(width)],
    }


def node(number: int, kind: int, after: int | None, **more: int | str) -> bytes:
    """Return a node of a trace that waits for at most one other."""
    made = messages().node(id=number, type=kind, data_deps=[] if after is None else [after])
    if "micros" in more:
        made.duration_micros = more["micros"]
    for name, value in more.items():
        if name != "micros":
            kept = "string_val" if isinstance(value, str) else "int64_val"
            made.attr.add(name=name, **{kept: value})
    return framed(made.SerializeToString())


def trace(ranks: int) -> bytes:
    """Return layers one after the other: computing, a sum inside servers, a gradient's sum."""
    text = [{"pg_name": name, "ranks": ranks_} for name, (ranks_, *_) in each(ranks, 8).items()]
    told = messages().node(id=0, type=METADATA, name="## process_group:init ##")
    told.inputs.values = str([str(text).replace("'", '"')])
    nodes, last, number = [framed(b""), framed(told.SerializeToString())], None, 1
    while number <= NODES:
        layer = number // 4
        nodes.append(node(number, COMP, last, micros=50 + layer % 7))
        nodes.append(node(number + 1, COLLECTIVE, number, comm_type=ALL_REDUCE,
                          comm_size=8_000_000, pg_name="tp"))  # fmt: skip
        nodes.append(node(number + 2, COMP, number + 1, micros=40))
        kind = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)[layer % 3]
        nodes.append(node(number + 3, COLLECTIVE, number + 2, comm_type=kind,
                          comm_size=1 << 20 + layer % 5, pg_name="dp"))  # fmt: skip
        last, number = number + 2, number + 4
    return b"".join(nodes[: NODES + 2])


def layered(ranks: int) -> Mapping[str, object]:
    """Return a workload of 200 layers whose passes have sums in two groups, gradients in two."""
    groups = each(ranks, 8)
    halves = {"cp": each(ranks, 4)["tp"], "ep": each(ranks, 4)["dp"]}
    call = {"collective": "allreduce", "group": "tp"}
    layers = [
        {
            "name": f"layer{number}", "bytes": f"{20 + number % 3}MB", "forward": "200us",
            "backward": "400us",
            "comm": [
                {"when": "forward", "bytes": "8MB", **call},
                {"when": "backward", "bytes": "8MB", **call},
                {"when": "forward", "collective": "alltoall", "group": "ep", "bytes": "4MB"},
                {"when": "forward", "collective": "allgather", "group": "cp", "bytes": "2MB"},
            ],
        }
        for number in range(LAYERS)
    ]  # fmt: skip
    return {
        "taccl": "workload/1", "name": "four", "ranks": ranks, "layers": layers,
        "groups": {name: {"each": rows} for name, rows in {**groups, **halves}.items()},
        "sync": [{"group": "dp", "bucket": "100MB"}],
    }  # fmt: skip


def seconds(arguments: list[str], runs: int) -> list[float]:
    """Return what a command takes, each time anew, after a run that is not counted."""
    command = [sys.executable, "-m", "taccl", "step", *arguments, "--quiet"]
    found = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        found.append(time.perf_counter() - begin)
    return sorted(found[1:])


def rows(folder: Path) -> Iterator[tuple[str, list[str], float]]:
    """Yield what is timed: its name, the arguments, and the seconds that it should take at most."""
    (folder / "trace.et").write_bytes(trace(64))
    (folder / "four.yaml").write_text(yaml.safe_dump(layered(16)))
    large = [str(folder / "trace.et"), "dgx-a100", "--nodes", "8"]
    small = [str(folder / "four.yaml"), "dgx-a100", "--nodes", "2"]
    yield "trace, best", large, 10
    yield "trace, table", [*large, "--via", TABLE], 10
    yield "layers, best", small, 10
    yield "layers, table", [*small, "--via", TABLE], 1


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    given = parser.parse_args()
    table, slow = [["what", "least s", "most s", "aim s"]], False
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments, aim in rows(Path(folder)):
            if given.only in name:
                found = seconds(arguments, given.runs)
                slow |= found[-1] > aim
                table.append([name, f"{found[0]:.2f}", f"{found[-1]:.2f}", f"{aim:g}"])
    print("\n".join(aligned(table, str.ljust)))
    sys.exit(slow)


if __name__ == "__main__":
    main()
