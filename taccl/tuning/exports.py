"""The times of a library for other tools: one function a tool, one row in EXPORTS.

What is exported is what the index says: at every size the time of the program that serves it, by
replay, be the library one of XML or of plans. Sizes that no file serves (left to NCCL, or to the
runtime's own algorithm) have no time.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from taccl.collectives import COLLECTIVES, busbw_factor
from taccl.errors import InputError, TacclWarning
from taccl.report.text import aligned, csv_text, printable, us
from taccl.units import PS_PER_S, PS_PER_US, Time, gigabytes_per_second

Index = Mapping[str, Any]
"""An index as ``index.json`` holds it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What serves a `collective` of `size` bytes on so many `ranks`.

    `time`: picoseconds; None: no file of the library runs.
    `program`: the file, by its name in the directory; empty where there is none.
    """

    collective: str
    ranks: int
    size: int
    time: Time | None
    program: str

    @property
    def algbw(self) -> float | None:
        """GB/s (1e9 bytes) by size and time; None without a time."""
        return None if self.time is None else gigabytes_per_second(self.size, self.time)

    @property
    def busbw(self) -> float | None:
        """GB/s (1e9 bytes) as nccl-tests counts the busiest link; None without a time."""
        factor = float(busbw_factor(self.collective, self.ranks))
        return None if self.algbw is None else self.algbw * factor


def rows_of(index: Index) -> Iterator[Row]:
    """Yield the rows of the library with this `index`: of each collective, sizes ascending."""
    for one in index["collectives"]:
        for at in one["sizes"]:
            time = None if at["time_us"] is None else round(at["time_us"] * PS_PER_US)
            yield Row(
                one["collective"], index["topology"]["ranks"], at["size_bytes"], time,
                at["file"] or "",
            )  # fmt: skip


def times_csv(index: Index) -> str:
    """Return all rows of the library with this `index` as CSV, without a time where none runs."""
    return csv_text([
        {
            "collective": row.collective,
            "size_bytes": row.size,
            "time_us": us(row.time),
            "algbw_gbps": row.algbw,
            "busbw_gbps": row.busbw,
            "program": row.program,
        }
        for row in rows_of(index)
    ])  # fmt: skip


SIMAI_GROUPS = ("TP", "DP", "EP")
SIMAI_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall")

_SIMAI_GB = (1 << 30) / 1e9
"""What SimAI counts as a GB, in those of 1e9 bytes."""


def simai_busbw(index: Index) -> str:
    """Return the bus bandwidths of the library with this `index`, for SimAI-Analytical.

    SimAI has one bus bandwidth for each collective and group, and no latency: the file has that of
    the largest size with a time, so that SimAI's formula gives the tuned time there; what it is at
    the other sizes is told in a comment. The library is for one group of ranks, so every group has
    the same numbers. Transfers from rank to rank (``PP``) are not tuned.

    SimAI skips the first line whatever it is, and lines that begin with ``#``; what is left is also
    YAML. Keys end with a comma, as in SimAI's own example. Its GB is 2^30 bytes (``GBps``).

    References
    ----------
    aliyun/SimAI at 03613a7 (26b4574 and later have no option ``-busbw``):
    ``example/busbw.yaml``; ``astra-sim-alibabacloud/astra-sim/system/AstraParamParse.hh``
    (``UserParam::parseYaml``), ``system/Common.hh`` (``GBps``), ``workload/Layer.cc``
    (``Layer::compute_time``: size / bus bandwidth, times 2 (n - 1) / n for an allreduce and
    (n - 1) / n otherwise; a reducescatter is charged the allgather's bus bandwidth).
    """
    rates: dict[str, dict[int, str]] = {}
    for row in rows_of(index):
        if row.collective in SIMAI_COLLECTIVES and row.busbw is not None:
            rates.setdefault(row.collective, {})[row.size] = f"{row.busbw / _SIMAI_GB:.6g}"
    last = {name: max(found) for name, found in rates.items()}
    sizes = sorted({size for found in rates.values() for size in found})
    table = [("bytes", *rates)]
    table += [(str(size), *(found.get(size, "-") for found in rates.values())) for size in sizes]
    topology = index["topology"]
    lines = [
        f"# Bus bandwidths for SimAI-Analytical: {printable(topology['name'])},"
        f" {topology['ranks']} ranks, {index['runtime']}; SimAI skips this line.",
        "# SimAI takes one for each collective and group; here it is that of the largest size:",
        *(f"#   {name} at {size} bytes" for name, size in last.items()),
        "# GB/s of 2^30 bytes, as SimAI counts them. null: not tuned. The library is for one group",
        "# of ranks: where another group has another machine, take that one's library for it.",
        "# Bus bandwidth at every size:",
        *(f"#   {line}" for line in aligned(table)),
    ]
    for group in SIMAI_GROUPS:
        lines.append(f"{group}:")
        for name in SIMAI_COLLECTIVES:
            value = rates[name][last[name]] if name in rates else "null"
            lines.append(f"  {name},: {value}")
    return "\n".join([*lines, "PP:", "  busbw: null"]) + "\n"


CALCULON_OPS: Mapping[str, tuple[str, float]] = MappingProxyType({
    "reducescatter": ("reduce_scatter", 1.0),
    "allgather": ("all_gather", 1.0),
    "allreduce": ("all_reduce", 2.0),
})  # fmt: skip
"""Calculon's name of a collective, and how often a byte crosses the busiest link."""

_CLOSE = 0.05
"""Calculon's formula may be so far off, as a share of the time, before a warning says so."""


def calculon_network(index: Index) -> str:
    """Return the library with this `index` as one entry of ``networks`` in a system of Calculon.

    Calculon's time of s bytes among n ranks is ``latency + s scalar (1 + offset / n) / (bandwidth
    efficiency)``: one latency for all collectives, one scalar for each. With offsets of -1 and
    scalars about 1 (2 for an allreduce), `bandwidth` is a bus bandwidth, and other group sizes are
    scaled as nccl-tests does. Latency and scalars are those with the least sum of squares of
    relative errors over all tuned sizes. `bandwidth` is that of the collective with the highest
    one; a collective that is not tuned, and ``p2p``, get this one, too. A warning says how far off
    the formula is, where that is more than 5 %.

    Of the rest, `size` is the ranks; ``must_be_filled`` is false and ``processor_usage`` 0, as a
    replay knows nothing of either.

    Raises InputError where no size of the collectives that Calculon knows has a time.

    References
    ----------
    calculon-ai/calculon at 71f6435: ``calculon/network.py`` (``Network.__init__`` wants these keys
    and no others; ``Network.time``), ``systems/a100_80g.json``.
    """
    points: dict[str, list[tuple[int, Time]]] = {}
    for row in rows_of(index):
        if row.collective in CALCULON_OPS and row.time:
            points.setdefault(row.collective, []).append((row.size, row.time))
    if not points:
        raise InputError(
            f"no size of {', '.join(CALCULON_OPS)} has a program, and calculon needs a time",
            field="--export", fix="leave nothing to NCCL (--keep-all), or leave calculon out",
        )  # fmt: skip
    latency, slopes = fitted(points)
    ranks = index["topology"]["ranks"]
    # A bus bandwidth in bytes a picosecond, the highest; a scalar is how often it is paid.
    crossed = (ranks - 1) / ranks
    best = max(CALCULON_OPS[name][1] * crossed / slope for name, slope in slopes.items())
    ops: dict[str, tuple[float, int | None]] = {"p2p": (1.0, None)}
    for name, (op, scalar) in CALCULON_OPS.items():
        ops[op] = (slopes[name] * best / crossed if name in slopes else scalar, -1)
    off, worst, size = max(
        (abs(latency + slopes[name] * size - time) / time, name, size)
        for name, found in points.items()
        for size, time in found
    )
    if off > _CLOSE:
        warnings.warn(
            TacclWarning(
                f"calculon: one latency and one bandwidth for each collective are up to {off:.0%}"
                f" off the tuned times ({worst} of {size} bytes)"
            ),
            stacklevel=2,
        )
    entry = {
        "bandwidth": best * PS_PER_S / 1e9,
        "efficiency": 1.0,
        "size": ranks,
        "latency": latency / PS_PER_S,
        "ops": ops,
        "must_be_filled": False,
        "processor_usage": 0.0,
    }
    return json.dumps(entry, indent=1) + "\n"


def fitted(points: Mapping[str, Sequence[tuple[int, Time]]]) -> tuple[float, dict[str, float]]:
    """Return one latency, in ps, and the ps a byte of each name, that are nearest to `points`.

    `points` has for each name bytes and their picoseconds. The sum of the squares of (latency +
    slope size - time) / time is the least; latency is at least 0, slopes are above 0.
    """
    above = below = 0.0
    most = float("inf")
    sums = {}
    for name, found in points.items():
        # Errors are latency a + slope b - 1. What b explains is taken out of a and 1 first.
        a = [1 / time for _, time in found]
        b = [size / time for size, time in found]
        bb = sum(y * y for y in b)
        ab = sum(x * y for x, y in zip(a, b, strict=True))
        sums[name] = (sum(b), ab, bb)
        most = min(most, sum(b) / ab)  # there the slope is 0
        if len(found) > 1:  # of one size any latency is right, if the slope fits it
            rest = [x - y * ab / bb for x, y in zip(a, b, strict=True)]
            above += sum(x * (1 - y * sum(b) / bb) for x, y in zip(rest, b, strict=True))
            below += sum(x * x for x in rest)
    latency = min(max(above / below, 0.0), 0.999 * most) if below else 0.0
    return latency, {name: (one - latency * ab) / bb for name, (one, ab, bb) in sums.items()}


@dataclass(frozen=True, slots=True)
class Export:
    """A row of EXPORTS: the `file` in the directory, and what writes it from an index.

    `collectives`: those that it has room for.
    """

    file: str
    write: Callable[[Index], str]
    collectives: Sequence[str]


EXPORTS: Mapping[str, Export] = MappingProxyType({
    "simai-busbw": Export("simai_busbw.yaml", simai_busbw, SIMAI_COLLECTIVES),
    "calculon": Export("calculon_network.json", calculon_network, tuple(CALCULON_OPS)),
    "csv": Export("tuned_times.csv", times_csv, tuple(COLLECTIVES)),
})  # fmt: skip
"""Name of an export to what it is."""
