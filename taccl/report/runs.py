"""Runs of programs for real: rows as a table and as JSON, and a trace beside the replay's."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, pstdev

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import busbw_factor
from taccl.msccl.program import Program
from taccl.report.played import (
    Event,
    Played,
    block_label,
    chunks_text,
    events_of,
    head_of,
    metadata,
    trace_text,
)
from taccl.report.text import aligned, number_text
from taccl.units import Time, format_size


@dataclass(frozen=True, slots=True)
class RunRow:
    """One call that was run, measured beside predicted.

    `file`, `collective`, `ranks`: what was run.
    `size`: bytes of the counted buffer.
    `in_place`, `dtype`: how it was called.
    `over`: what carried its messages.
    `times`: nanoseconds of a call, a measurement each.
    `wrong`: elements that are wrong on all ranks; None: nobody knows what is right.
    `predicted`: picoseconds by the replay; None: there is no topology.
    `costs`: what the prediction charges.
    """

    file: str
    collective: str
    ranks: int
    size: int
    in_place: bool
    dtype: str
    over: str
    times: tuple[float, ...]
    wrong: int | None
    predicted: Time | None = None
    costs: str = ""

    @property
    def nanoseconds(self) -> float:
        """The median of the measurements."""
        return median(self.times)

    @property
    def spread(self) -> float | None:
        """The standard deviation of the measurements, by their mean."""
        if len(self.times) < 2:
            return None
        return pstdev(self.times) * len(self.times) / sum(self.times)

    @property
    def algbw(self) -> float:
        """Size by time in GB/s."""
        return self.size / self.nanoseconds

    @property
    def busbw(self) -> float:
        """What the links carry, as nccl-tests counts, in GB/s."""
        return self.algbw * float(busbw_factor(self.collective, self.ranks))

    @property
    def off(self) -> float | None:
        """Predicted by measured time, less one."""
        return None if self.predicted is None else self.predicted / 1000 / self.nanoseconds - 1

    def columns(self) -> dict[str, object]:
        """Return the columns as JSON names them."""
        return {
            "file": self.file,
            "collective": self.collective,
            "ranks": self.ranks,
            "size_bytes": self.size,
            "in_place": self.in_place,
            "dtype": self.dtype,
            "over": self.over,
            "time_us": self.nanoseconds / 1000,
            "times_us": [time / 1000 for time in self.times],
            "spread": self.spread,
            "algbw_gbps": self.algbw,
            "busbw_gbps": self.busbw,
            "wrong": self.wrong,
            "predicted_us": None if self.predicted is None else self.predicted / 1e6,
            "off": self.off,
            "costs": self.costs or None,
        }


def runs_table(rows: Sequence[RunRow]) -> str:
    """Return aligned columns for reading; columns that are empty in all `rows` are left out."""
    lines = [
        {
            "file": row.file,
            "collective": row.collective,
            "size": format_size(row.size),
            "type": row.dtype,
            "in place": "yes" if row.in_place else "no",
            "time us": f"{row.nanoseconds / 1000:.2f}",
            "spread": number_text(row.spread, ".0%"),
            "algbw GB/s": f"{row.algbw:.3f}",
            "busbw GB/s": f"{row.busbw:.3f}",
            "#wrong": "N/A" if row.wrong is None else str(row.wrong),
            "predicted us": "" if row.predicted is None else f"{row.predicted / 1e6:.2f}",
            "off": number_text(row.off, "+.0%"),
            "costs": row.costs,
        }
        for row in rows
    ]
    names = [name for name in lines[0] if any(line[name] for line in lines)] if lines else []
    return "\n".join(aligned([names, *([line[name] for name in names] for line in lines)]))


def runs_json(rows: Sequence[RunRow]) -> str:
    """Return ``{"rows": [...]}`` with every column of the `rows`."""
    return json.dumps({"rows": [row.columns() for row in rows]}, indent=1)


def run_trace(
    program: Program, size: int, logs: Sequence[NDArray[np.int64]], played: Played | None
) -> str:
    """Return a Chrome trace of what ranks did, beside what the replay says they do.

    `program` was run at `size` bytes; `logs` has a row of (threadblock's place, step, iteration,
    bytes, begin, end) for each message and piece of local work of each rank, times in nanoseconds;
    `played` is a replay, if there is one. Ranks that ran have their own processes in the trace.
    """
    head = {"program": program.name, "size_bytes": size} if played is None else head_of(played)
    events = [] if played is None else list(events_of(played))
    return trace_text({**head, "measured": True}, [*events, *_measured(program, logs)])


MEASURED_FROM = 1 << 16
"""Number of the process in the trace that is what rank 0 did: above all ranks and edges."""


def _measured(program: Program, logs: Sequence[NDArray[np.int64]]) -> Iterator[Event]:
    first = min((int(log[:, 4].min()) for log in logs if len(log)), default=0)
    for gpu, log in zip(program.gpus, logs, strict=True):
        pid = MEASURED_FROM + gpu.rank
        names = [("process_name", 0, {"name": f"rank {gpu.rank} measured"})]
        names += [
            ("thread_name", block.id, {"name": block_label(block)}) for block in gpu.threadblocks
        ]
        for kind, tid, args in names:
            yield metadata(kind, pid, tid, args)
        for place, position, iteration, size, begin, end in log.tolist():
            block = gpu.threadblocks[place]
            step = block.steps[position]
            yield {
                "name": f"{step.op.value} {chunks_text(step)}", "cat": "measured", "ph": "X",
                "ts": (begin - first) / 1000, "dur": (end - begin) / 1000, "pid": pid,
                "tid": block.id,
                "args": {"step": position, "iteration": iteration, "size_bytes": size},
            }  # fmt: skip
