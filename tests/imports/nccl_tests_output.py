"""What a run of nccl-tests leaves behind: its text with all that is around the table, its JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8}
PER_RANK = {"all_gather", "reduce_scatter", "alltoall"}
"""Tests that print the elements of one rank beside the bytes of all."""

REDUCING = {"all_reduce", "reduce_scatter"}
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}


@dataclass(frozen=True)
class Result:
    """A size, its times in microseconds, and the elements that were wrong; None: not checked."""

    size: int
    out_of_place: float | None
    in_place: float | None
    wrong: int | None = 0


@dataclass(frozen=True)
class Ran:
    """A run of one test.

    Parameters
    ----------
    test
        The program's name without ``_perf``.
    ranks, hosts
        Ranks, and machines that they are on.
    dtype
        What ``-d`` was.
    results
        One for each size, in the order of the table.
    per_iteration, timestamps
        Whether more columns were asked for.
    per_process
        GPUs that each process has.
    """

    test: str
    ranks: int
    results: Sequence[Result]
    dtype: str = "float"
    hosts: int = 1
    per_iteration: bool = False
    timestamps: bool = False
    per_process: int = 1

    @property
    def redop(self) -> str:
        """The operation, as it is printed."""
        return "sum" if self.test in REDUCING else "none"

    def count(self, size: int) -> int:
        """Return the elements beside a size."""
        return size // BYTES[self.dtype] // (self.ranks if self.test in PER_RANK else 1)

    def bandwidths(self, size: int, time: float) -> tuple[float, float]:
        """Return algbw and busbw in GB/s."""
        algbw = size / 1e3 / time
        return algbw, algbw * FACTORS[self.test](self.ranks)


def fitted(value: float, width: int) -> str:
    """Return a number in as many decimals as its width leaves, at most two."""
    power = len(str(int(value))) if value >= 1 else 0
    if power < width - 2:
        return f"{value:{width}.2f}"
    if power < width - 1:
        return f"{value:{width}.1f}"
    return f"{value:{width}.0f}" if power < width + 1 else f"{value:{width}.1e}"


def group(ran: Ran, result: Result, time: float | None) -> str:
    """Return one of the two groups of a line."""
    if time is None:
        return " " * 32
    algbw, busbw = ran.bandwidths(result.size, time)
    wrong = "N/A" if result.wrong is None else f"{result.wrong:g}"
    text = f"  {fitted(time, 7)}  {fitted(algbw, 6)}  {fitted(busbw, 6)}  {wrong:>6}"
    more = (time * 0.97, time * 1.31, time * 1.3, 4.2)
    return text + "".join(f"  {fitted(each, 7)}" for each in more if ran.per_iteration)


def table(ran: Ran) -> Iterator[str]:
    """Yield the lines of the table."""
    for result in ran.results:
        yield (
            f"{result.size:12}  {ran.count(result.size):12}  {ran.dtype:>8}  {ran.redop:>6}"
            f"  {-1:6}{group(ran, result, result.out_of_place)}"
            f"{group(ran, result, result.in_place)}"
            f"{'  2026-03-04 05:06:07' if ran.timestamps else ''}"
        )


def text_of(ran: Ran) -> str:
    """Return what a run prints."""
    each = "  i_min    i_max    i_p99    i_cv%" if ran.per_iteration else ""
    columns = f"time   algbw   busbw  #wrong{each}"
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803",
        f"# Collective test starting: {ran.test}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 268435456 step: 4(factor) warmup iters: 1"
        " iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {4100 + rank:6} on node-{rank * ran.hosts // ran.ranks}"
            f" device {rank:2} [0000:{rank:02x}:00] NVIDIA A100-SXM4-40GB"
            for rank in range(ran.ranks)
        ),
        "node-0:4100:4100 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "#",
        "#                                                              out-of-place     in-place",
        f"#       size         count      type   redop    root     {columns}     {columns}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
        *table(ran),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 41.2378 ",
        "#",
        f"# Collective test concluded: {ran.test}_perf",
        "",
    ]
    return "\n".join(lines)


def json_group(ran: Ran, result: Result, time: float | None) -> dict[str, float | None] | None:
    if time is None:
        return None
    algbw, busbw = ran.bandwidths(result.size, time)
    numbers = {"time": time, "alg_bw": algbw, "bus_bw": busbw}
    wrong = None if result.wrong is None else float(result.wrong)
    return {**{name: round(value, 6) for name, value in numbers.items()}, "nwrong": wrong}


def json_of(ran: Ran) -> str:
    """Return what ``-J`` writes."""
    processes = ran.ranks // ran.per_process
    report: dict[str, Any] = {
        "version": 2,
        "start_time": "2026-03-04 05:06:07",
        "args": [f"./build/{ran.test}_perf", "-b", "8", "-e", "256M", "-f", "4", "-J", "run.json"],
        "env": ["HOME=/root", "NCCL_DEBUG=INFO"],
        "nccl_version": 22803,
        "config": {
            "nthreads": 1, "ngpus": ran.per_process, "minimum_bytes": 8,
            "maximum_bytes": 268435456, "step_factor": 4, "warmup_iters": 1, "iterations": 20,
            "aggregated_iterations": 1, "validation": 1, "graph": 0,
            "blocking_collectives": "false", "parallel_init": "false",
            "devices": [
                {"rank": number * ran.per_process, "group": 0, "pid": 4100 + number,
                 "hostname": "node-0", "device": 0, "device_hex": "0000:07:00",
                 "device_info": "NVIDIA A100-SXM4-40GB"}
                for number in range(processes)
            ],
        },
        "results": [
            {"size": each.size, "count": ran.count(each.size), "type": ran.dtype,
             "redop": ran.redop, "root": "    -1",
             "out_of_place": json_group(ran, each, each.out_of_place),
             "in_place": json_group(ran, each, each.in_place),
             "actual_iterations": 20, "experiment_name": ""}
            for each in ran.results
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 41.2378, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-03-04 05:06:41",
    }  # fmt: skip
    return json.dumps(report)
