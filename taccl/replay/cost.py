"""What the replay of a program charges: runtime constants, protocol factors, local work.

``M`` bytes of every chunk are handled in one iteration, which is what one FIFO message holds
(``NCCL_BUFFSIZE`` and ``NCCL_STEPS`` of the runtime). For small buffers one message carries up to
``m = clamp(M / chunk, 1, 71)`` chunks of a step (``mscclMaxAllowedCount``, ``mscclSetupCount``); in
a broadcast or reduce of protocol Simple, a quarter as many.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taccl.errors import ProgramError
from taccl.msccl.program import Op, Program
from taccl.msccl.runtimes import MAX_COUNT, RUNTIMES, joined_bytes
from taccl.topology.graph import LocalCosts
from taccl.units import Time, ceil_time

MAX_ITERATIONS = 65536
"""Iterations that a flag can count: ``MSCCL_MAX_ITER``."""

PROTOCOL_FACTOR: Mapping[str, Fraction] = MappingProxyType({
    "Simple": Fraction(1),
    "LL": Fraction(2),
    "LL128": Fraction(128, 120),
})  # fmt: skip
"""Bytes on the wire for each byte of data: LL sends a flag with every word, LL128 eight in 128."""


@dataclass(frozen=True, slots=True)
class ReplayModel:
    """The constants of a runtime that its interpreter's timing depends on.

    `name` is what results call it. By protocol, `message_bytes` has ``M``, the bytes of one FIFO
    message, and `slots` the messages that a connection holds. Chunks hold whole elements of
    `element_bytes`.
    """

    name: str
    message_bytes: Mapping[str, int]
    slots: Mapping[str, int]
    element_bytes: int = 4

    def of_protocol(self, protocol: str) -> tuple[int, int]:
        """Return message bytes and FIFO slots of a protocol.

        Raises
        ------
        ProgramError
            When the runtime has no such protocol.
        """
        if protocol not in self.message_bytes:
            raise ProgramError(
                f"unknown protocol {protocol[:40]!r}",
                fix=f"use one of {', '.join(self.message_bytes)}",
            )
        return self.message_bytes[protocol], self.slots[protocol]

    def joined(self, program: Program, chunk_bytes: int) -> int:
        """Return how many chunks of a step of a program travel as one message.

        Raises
        ------
        ProgramError
            When the runtime has no such protocol.
        """
        message, _ = self.of_protocol(program.protocol)
        room = joined_bytes(message, program.protocol, program.collective)
        return max(1, min(MAX_COUNT, room // chunk_bytes))


def model_of(runtime: str, element_bytes: int = 4) -> ReplayModel:
    """Return the constants of ``runtime``, a name of ``RUNTIMES``, for ``element_bytes`` each."""
    row = RUNTIMES[runtime]
    return ReplayModel(row.name, row.message_bytes, row.fifo_slots, element_bytes)


def local_time(op: Op, local: LocalCosts, size: int, sources: int = 1) -> Time:
    """Return how long the work of a step's ``op`` on one message of ``size`` bytes takes.

    A plain send and a forwarding copy work while the data is on the wire. ``local`` has the
    picoseconds a byte of copies and of reductions; ``sources`` counts the operands of a fused
    reduction.
    """
    if op in (Op.COPY, Op.RECV):
        return ceil_time(local.copy_beta, size)
    if op is Op.REDUCE:
        return ceil_time(local.reduce_beta, sources * size)
    if op in (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND):
        return ceil_time(local.reduce_beta, size)
    return 0
