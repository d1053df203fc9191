"""The MSCCL XML as types, and what the judges of programs report.

A program is what one XML file says: threadblocks of steps for every rank. Steps, threadblocks,
channels and protocols mean exactly what they mean in MSCCL; nops are explicit steps, and ``posts``
is the XML's ``hasdep``, so that reading back what was written gives an equal program.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple


class Op(Enum):
    """A step type; the value is the XML code."""

    __hash__ = object.__hash__  # members are one each, and Enum's own hash is slow

    SEND = "s"
    RECV = "r"
    RECV_COPY_SEND = "rcs"
    RECV_REDUCE_SEND = "rrs"
    RECV_REDUCE_COPY = "rrc"
    RECV_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"


class Buffer(Enum):
    """A buffer of a rank; the value is the XML code."""

    __hash__ = object.__hash__

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


OP_OF: Mapping[str, Op] = MappingProxyType({op.value: op for op in Op})
BUFFER_OF: Mapping[str, Buffer] = MappingProxyType({buffer.value: buffer for buffer in Buffer})
"""Ops and buffers by their XML codes."""

SENDS = frozenset({Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})
"""Ops that send to the threadblock's ``send_to``."""

RECEIVES = frozenset({
    Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND,
})  # fmt: skip
"""Ops that receive from the threadblock's ``recv_from``."""

READS_SOURCE = frozenset({
    Op.SEND, Op.COPY, Op.REDUCE,
    Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND,
})  # fmt: skip
"""Ops that read ``src``."""

WRITES_TARGET = frozenset({
    Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE,
})  # fmt: skip
"""Ops that write ``dst`` (``re`` reads it, too)."""


class Slot(NamedTuple):
    """A place for a chunk: a buffer and an offset in chunks."""

    buffer: Buffer
    offset: int


class StepRef(NamedTuple):
    """A step of the same rank: threadblock id and position of the step in it."""

    threadblock: int
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a threadblock.

    `op` is what it does. `src` and `dst` are the first chunk read and written, None where the op
    has no such operand, of `count` consecutive ones: with 0 a step moves nothing, but waits and
    posts (``for (c = 0; c < count; ...)`` of the interpreters); a nop has 0. `depends` is the step
    that must have finished first, None: no dependence, and `posts` is the XML's hasdep: the step
    posts its completion because some step waits for it.
    """

    op: Op
    src: Slot | None = None
    dst: Slot | None = None
    count: int = 1
    depends: StepRef | None = None
    posts: bool = False

    @property
    def source(self) -> Slot | None:
        """The first chunk that it reads."""
        return self.src if self.op in READS_SOURCE else None

    @property
    def target(self) -> Slot | None:
        """The first chunk that it writes."""
        return self.dst if self.op in WRITES_TARGET else None

    @property
    def receives(self) -> bool:
        """Whether it takes a message: no chunk, no message."""
        return self.op in RECEIVES and self.count > 0

    @property
    def sends(self) -> bool:
        """Whether it sends a message: no chunk, no message."""
        return self.op in SENDS and self.count > 0


@dataclass(frozen=True, slots=True)
class Threadblock:
    """A sequential process of a rank with at most one peer in each direction.

    `id` is its position among the rank's, `send_to` and `recv_from` are peers, or None, `channel`
    is that of both connections, and `steps` run in order.
    """

    id: int
    send_to: int | None
    recv_from: int | None
    channel: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank's part of a program: buffer sizes in chunks, and threadblocks."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...] = ()

    @property
    def room(self) -> Mapping[Buffer, int]:
        """The chunks of each buffer."""
        return {
            Buffer.INPUT: self.input_chunks,
            Buffer.OUTPUT: self.output_chunks,
            Buffer.SCRATCH: self.scratch_chunks,
        }


@dataclass(frozen=True, slots=True)
class Program:
    """One MSCCL XML file.

    `name`, `collective`, `protocol`: label; a name of ``COLLECTIVES``; ``Simple``, ``LL`` or
    ``LL128``.
    `in_place`, `out_of_place`: the modes it claims to serve.
    `channels`: ``nchannels``.
    `chunks_per_loop`: ``nchunksperloop``: chunks that the counted buffer is cut into.
    `min_bytes`, `max_bytes`: the size range, both inclusive, of the counted buffer.
    `gpus`: ``gpus[r].rank == r``.
    """

    name: str
    collective: str
    protocol: str
    in_place: bool
    out_of_place: bool
    channels: int
    chunks_per_loop: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[Gpu, ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks take part."""
        return len(self.gpus)

    @property
    def num_threadblocks(self) -> int:
        """The most threadblocks on any rank."""
        return max((len(gpu.threadblocks) for gpu in self.gpus), default=0)

    @property
    def num_steps(self) -> int:
        """The most steps in any threadblock."""
        return max((len(block.steps) for _, block in self.blocks()), default=0)

    def blocks(self) -> Iterator[tuple[int, Threadblock]]:
        """Yield (rank, threadblock) in order."""
        for gpu in self.gpus:
            for block in gpu.threadblocks:
                yield gpu.rank, block


class Severity(Enum):
    """How bad a finding is."""

    REJECTED = "rejected"
    """The runtime's parser refuses the file."""

    BREAKS = "breaks"
    """The runtime takes the file and then hangs, crashes, or gives wrong data."""

    NEVER = "never"
    """The runtime takes the file, and no call ever selects it."""

    WARNING = "warning"
    """Worth knowing; the file works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a program.

    The `rule` is a key of ``limits.RULES``, a word of the readers or of the interpreter;
    `explanation` is what was found, with values, lower case, and `fix` what to do about it; None
    when nothing can be said. It is at `gpu`, `threadblock`, `step` and at `line`, `column` of the
    file, from 1, columns in bytes; each None when there is no such place. `severity` is what the
    runtime makes of it.
    """

    rule: str
    explanation: str
    gpu: int | None = None
    threadblock: int | None = None
    step: int | None = None
    fix: str | None = None
    severity: Severity = Severity.BREAKS
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``rule: gpu G, threadblock T, step S: explanation (fix)``."""
        places = (("gpu", self.gpu), ("threadblock", self.threadblock), ("step", self.step))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        text = ": ".join(part for part in (self.rule, where, self.explanation) if part)
        return f"{text} (fix: {self.fix})" if self.fix else text


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are more than a warning: what makes a file wrong."""
    return [finding for finding in findings if finding.severity is not Severity.WARNING]
