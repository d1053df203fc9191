"""The largest size at which a program can't deadlock.

Larger sizes cut steps into more messages, of which a connection holds few; that is all that size
changes (``mscclMaxAllowedCount``). A program that ends with some cut ends with every coarser one:
map each coarse message to one of its fine ones, and what is in flight never grows. So the cuts
are searched by halving.
"""

from dataclasses import dataclass

from taccl.msccl.findings import Finding
from taccl.msccl.interpret import deadlock
from taccl.msccl.program import Program
from taccl.msccl.runtimes import LOADED_BY, MAX_COUNT, RUNTIMES, Runtime

MAX_WORK = 3_000_000
"""Chunks moved by all steps, above which a program is not followed."""


@dataclass(frozen=True, slots=True)
class Safe:
    """How large a call may be.

    Parameters
    ----------
    size
        The largest counted size in bytes that can't deadlock; 0: none, None: there is no limit.
    stuck
        Who waits for what just above it; None without a limit.
    """

    size: int | None
    stuck: Finding | None = None

    def covers(self, size: int) -> bool:
        """Tell whether a size is safe."""
        return self.size is None or size <= self.size


def safe_size(program: Program, runtime: str) -> Safe:
    """Return the largest safe size on a runtime, or on all that load a portable file."""
    # What ends with one chunk a message and one message a connection ends at every size.
    if deadlock(program, 1, 1) is None:
        return Safe(None)
    rows = [RUNTIMES[name] for name in LOADED_BY.get(runtime, (runtime,))]
    kinds = {(r.message_bytes[program.protocol], r.fifo_slots[program.protocol]): r for r in rows}
    found = [_safe_on(program, row) for row in kinds.values()]
    return min(found, key=lambda safe: safe.size if safe.size is not None else 1 << 63)


def _safe_on(program: Program, runtime: Runtime) -> Safe:
    slots = runtime.fifo_slots[program.protocol]
    cuts = _cuts(program)
    stuck = deadlock(program, cuts[-1], slots)
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
    room = runtime.message_bytes[program.protocol] // (cuts[unsafe] + 1)
    return Safe(max(program.chunks_per_loop, 1) * room, stuck)


def _cuts(program: Program) -> list[int]:
    """Return chunks in a message, descending, that cut some step into more messages than before."""
    counts = {step.count for _, block in program.blocks() for step in block.steps}
    ways: dict[frozenset[tuple[int, int]], int] = {}
    for held in range(MAX_COUNT, 0, -1):
        ways.setdefault(frozenset((count, -(-count // held)) for count in counts), held)
    return list(ways.values())
