"""The largest size at which a program can't deadlock.

Larger sizes cut steps into more messages, of which a connection holds few; that is all that size
changes (``mscclMaxAllowedCount``). A program that ends with some cut ends with every coarser one:
map each coarse message to one of its fine ones, and what is in flight never grows. So the cuts
are searched by halving.
"""

from dataclasses import dataclass
from fractions import Fraction

from taccl.msccl.expected import MAX_WORK, work_of
from taccl.msccl.program import Finding, Program
from taccl.msccl.run import Run, maximal_run
from taccl.msccl.runtimes import (
    LOADED_BY,
    RUNTIMES,
    UNLIMITED,
    Runtime,
    joined_bytes,
    message_chunks,
)


@dataclass(frozen=True, slots=True)
class Safe:
    """How large a call may be.

    `size` is the largest counted one in bytes that can't deadlock; 0: none, None: there is no
    limit. `stuck` says who waits for what just above it; None without a limit.
    """

    size: int | None
    stuck: Finding | None = None

    def covers(self, size: int) -> bool:
        """Tell whether a size is safe."""
        return self.size is None or size <= self.size


def standstill(run: Run, fix: str = "reorder the steps, or what they wait for") -> Finding:
    """Return who waits for what in `run`, which can't go on; `fix` is what the finding proposes."""
    waits = [
        f"gpu {rank} threadblock {block.id} at step {position} waits for {why}"
        for number, position, why in run.stuck
        for rank, block in [run.blocks[number]]
    ]
    more = f"; and {len(waits) - 4} more" if len(waits) > 4 else ""
    rank, block = run.blocks[run.stuck[0][0]]
    return Finding("deadlock", "; ".join(waits[:4]) + more, rank, block.id, run.stuck[0][1], fix)


def deadlock(program: Program, chunks_per_message: int, slots: int) -> Finding | None:
    """Return who waits for what when `program` can't end, or None.

    A step of count c is ceil(c / `chunks_per_message`) messages, and a connection holds `slots`.
    """
    run = maximal_run(program, chunks_per_message, slots)
    return standstill(run, "reorder the steps, or lower --max-bytes") if run.stuck else None


def largest_safe_size(program: Program, runtime: str, low: int, high: int) -> int:
    """Return the largest counted size from `low` to `high` bytes that can't deadlock on `runtime`.

    It is 0 when `program` deadlocks at `low` already; the sizes below the result are safe, too.
    Programs that are too large to follow count as safe.
    """
    safe = safe_size(program, runtime, low, high).size if work_of(program) <= MAX_WORK else None
    return high if safe is None else safe


def safe_size(program: Program, runtime: str, low: int = 0, high: int = UNLIMITED) -> Safe:
    """Return the largest safe size of `program` on `runtime`, or on all that load a portable file.

    `low` and `high` are bytes of the counted buffer.
    """
    # What ends with one chunk a message and one message a connection ends at every size.
    if deadlock(program, 1, 1) is None:
        return Safe(None)
    rows = [RUNTIMES[name] for name in LOADED_BY.get(runtime, (runtime,))]
    # Runtimes with equal messages and slots are alike here: one of them is looked at.
    kinds = {(r.message_bytes[program.protocol], r.fifo_slots[program.protocol]): r for r in rows}
    found = [_safe_on(program, row, low, high) for row in kinds.values()]
    return min(found, key=lambda safe: safe.size if safe.size is not None else UNLIMITED)


def _safe_on(program: Program, runtime: Runtime, low: int, high: int) -> Safe:
    slots, chunks = runtime.fifo_slots[program.protocol], max(program.chunks_per_loop, 1)
    most, least = (
        message_chunks(runtime.name, program.protocol, program.collective, Fraction(size, chunks))
        for size in (low, high)
    )
    # Chunks in a message, descending, that cut some step into more messages than before.
    counts = {step.count for _, block in program.blocks() for step in block.steps}
    ways: dict[frozenset[tuple[int, int]], int] = {}
    for held in range(most, least - 1, -1):
        ways.setdefault(frozenset((count, -(-count // held)) for count in counts), held)
    cuts = list(ways.values())
    stuck = deadlock(program, cuts[-1], slots) if cuts else None
    if stuck is None:
        return Safe(None)
    safe, unsafe = -1, len(cuts) - 1
    while unsafe - safe > 1:
        middle = (safe + unsafe) // 2
        found = deadlock(program, cuts[middle], slots)
        safe, unsafe = (safe, middle) if found else (middle, unsafe)
        stuck = found or stuck
    if unsafe == 0:
        return Safe(0, stuck)
    joined = joined_bytes(
        runtime.message_bytes[program.protocol], program.protocol, program.collective
    )
    room = joined // (cuts[unsafe] + 1)
    return Safe(chunks * room, stuck)
