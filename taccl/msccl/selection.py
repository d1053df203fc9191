"""Which calls a runtime serves with a file: ``ncclTopoGetMSCCLAlgo`` and its successor.

``ncclTopoGetMSCCLAlgo`` (msccl, ``src/graph/tuning.cc``) and ``mscclInternalSchedulerSelectAlgo``
(executor, rccl, ``src/misc/msccl/msccl_lifecycle.cc``) take the first file that fits; no other
call is told why it was not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from taccl.msccl.deploy import needs
from taccl.msccl.program import Program
from taccl.msccl.runtimes import RUNTIMES, UNLIMITED


@dataclass(frozen=True, slots=True)
class Selection:
    """What a call must be like to run a file.

    Parameters
    ----------
    runtime
        Which runtime selects.
    call
        The NCCL call.
    ranks
        Size of the communicator.
    min_bytes, max_bytes
        Counted sizes, inclusive; None: no upper limit.
    modes
        ``in place``, ``out of place``.
    divisor, divided
        What must be a multiple of ``divisor``: ``elements`` or ``bytes``.
    needs
        Environment without which the runtime takes no notice of the file.
    """

    runtime: str
    call: str
    ranks: int
    min_bytes: int
    max_bytes: int | None
    modes: tuple[str, ...]
    divisor: int
    divided: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        span = (
            f"{self.min_bytes} bytes and more"
            if self.max_bytes is None
            else f"{self.min_bytes} to {self.max_bytes} bytes"
        )
        needed = f"; needs {' '.join(self.needs)}" if self.needs else ""
        if self.divisor > 1:
            span += f", {self.divided} divisible by {self.divisor}"
        modes = " or ".join(self.modes) or "no mode"
        return f"{self.call} of {self.ranks} ranks, {modes}, {span}{needed}"


CALLS: Mapping[str, str] = MappingProxyType({
    "allreduce": "AllReduce", "allgather": "AllGather", "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll", "broadcast": "Broadcast", "reduce": "Reduce", "gather": "Gather",
    "scatter": "Scatter", "send": "Send", "recv": "Recv", "alltoallv": "AllToAllv",
    "custom": "CustomCollective",
})  # fmt: skip
"""The NCCL call of a collective."""

_IN_BYTES = frozenset({"allgather", "broadcast", "alltoall"})
"""Calls whose counts msccl turns into bytes first (``src/misc/argcheck.cc``)."""


def selected_for(program: Program, runtime: str) -> Selection:
    """Return what a call must be like to be served by a program."""
    record = RUNTIMES[runtime]
    modes = (("in place", program.in_place), ("out of place", program.out_of_place))
    in_bytes = record.exclusive_max_bytes and program.collective in _IN_BYTES
    return Selection(
        runtime, CALLS.get(program.collective, program.collective), program.num_ranks,
        max(program.min_bytes, 1), None if program.max_bytes >= UNLIMITED else program.max_bytes,
        tuple(word for word, served in modes if served), program.chunks_per_loop,
        "bytes" if in_bytes else "elements", needs(program, runtime),
    )  # fmt: skip
