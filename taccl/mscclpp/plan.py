"""An MSCCL++ execution plan of generation 2 as types, and the tables of what its executor does.

A plan is one-sided: a rank writes into and reads from buffers of others, and what orders that are
signals and waits, packets with flags, barriers and semaphores of a rank. The threads of a
threadblock are not synchronised between operations, so nothing there is ordered but by a ``nop``.

Sources: microsoft/mscclpp, ``src/core/executor/execution_plan.cc`` (the reader), ``executor.cc``
(channels, scratch), ``src/core/include/execution_kernel.hpp`` (operations) and
``execution_common.hpp`` (limits).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from taccl.msccl.program import Buffer

VERSIONS = ("0.8", "0.9", "0.10")
"""Releases that read generation 2, the oldest first."""

NEWEST = VERSIONS[-1]

CHANNEL_TYPES = ("memory", "port", "switch")
"""``ChannelType`` of the reader: loads and stores, a proxy that posts transfers, multicast."""

COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv", "custom",
)  # fmt: skip
"""Names that the executor's users select by; any other text is read, too."""


class Side(Enum):
    """Where an operand of an operation lies."""

    __hash__ = object.__hash__

    LOCAL = "local"
    REMOTE = "remote"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Operand:
    """Chunks that an operation reads or writes.

    `side`: in the rank's own buffers, in a remote one, or in those of all ranks of a switch
    channel.
    `buffer`: of the rank's own; None elsewhere.
    `ref`: position among the threadblock's remote buffers of the operation's channel type, or
    among its switch channels; -1 for the rank's own.
    `index`: first chunk.
    `size`: chunks.
    """

    side: Side
    buffer: Buffer | None
    ref: int
    index: int
    size: int


class Tbg(NamedTuple):
    """A share of an operation's bytes: part `tb_id` of `tbg_size` nearly equal ones."""

    tb_id: int
    tbg_size: int


@dataclass(frozen=True, slots=True)
class PlanOp:
    """An operation of a threadblock.

    `name`: a key of OPERATIONS.
    `sources`, `targets`: operands.
    `channel_type`: of CHANNEL_TYPES; empty where the operation has none.
    `channels`: positions among the threadblock's channels of that type.
    `barrier`, `blocks`: of a barrier: its number, and how many threadblocks meet; -1 and 0 else.
    `semaphores`: positions among the rank's semaphores.
    `tbg`: the share of the bytes that this threadblock does; None: all.
    `reduce_op`: as it is written; the executor adds whatever it says.
    `unit`, `chunks`: of a pipeline: bytes of an iteration, and the chunks that are cut into them.
    `inner`: of a pipeline: what runs in each iteration.
    """

    name: str
    sources: tuple[Operand, ...] = ()
    targets: tuple[Operand, ...] = ()
    channel_type: str = ""
    channels: tuple[int, ...] = ()
    barrier: int = -1
    blocks: int = 0
    semaphores: tuple[int, ...] = ()
    tbg: Tbg | None = None
    reduce_op: str = ""
    unit: int = 0
    chunks: int = 0
    inner: tuple["PlanOp", ...] = ()


class Channel(NamedTuple):
    """A channel of a rank to one `peer`, of `type` memory or port."""

    type: str
    peer: int


class Group(NamedTuple):
    """A switch channel: one `buffer` of each of some `ranks`, bound to one multicast address."""

    buffer: Buffer
    ranks: tuple[int, ...]


class RemoteBuffer(NamedTuple):
    """A whole `buffer` of another `rank`, reached over channels of some `types`."""

    rank: int
    buffer: Buffer
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """A threadblock.

    `channels`: by their type, positions among the rank's channels of that type, in the order in
    which operations number them; a type that it has none of may be missing.
    `remotes`: by their type, positions among the rank's remote buffers, likewise.
    `ops`: operations, in order.
    """

    channels: Mapping[str, tuple[int, ...]]
    remotes: Mapping[str, tuple[int, ...]]
    ops: tuple[PlanOp, ...]


@dataclass(frozen=True, slots=True)
class PlanRank:
    """What one rank has and does.

    `input_chunks`, `output_chunks`, `scratch_chunks`: of its buffers.
    `channels`: by their type memory or port, one for each entry and peer, in the file's order; a
    type that it has none of may be missing.
    `groups`: its switch channels.
    `remotes`: buffers of other ranks.
    `semaphores`: their first values.
    `blocks`: threadblocks.
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    channels: Mapping[str, tuple[Channel, ...]]
    groups: tuple[Group, ...]
    remotes: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]
    blocks: tuple[PlanBlock, ...]

    @property
    def room(self) -> Mapping[Buffer, int]:
        """The chunks of each buffer."""
        return {
            Buffer.INPUT: self.input_chunks,
            Buffer.OUTPUT: self.output_chunks,
            Buffer.SCRATCH: self.scratch_chunks,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What one file says.

    `name`, `collective`: of it.
    `protocol`: Simple or LL; LL only doubles the scratch buffer, which packets fill.
    `in_place`: whether it says that input and output are one buffer.
    `ranks`: what each does.
    `reuse_resources`: scratch is a fixed region of 64 MiB.
    `double_scratch`: calls use one and the other half of the scratch buffer by turns.
    `alignment`: bytes of which sizes are multiples.
    `min_bytes`, `max_bytes`: sizes it is for, both included: of the input, of AllGather's output.
    `threads`: of a threadblock.
    """

    name: str
    collective: str
    protocol: str
    in_place: bool
    ranks: tuple[PlanRank, ...]
    reuse_resources: bool = False
    double_scratch: bool = False
    alignment: int = 16
    min_bytes: int = 0
    max_bytes: int = (1 << 64) - 1
    threads: int = 1024

    @property
    def out_of_place(self) -> bool:
        """Return whether it is for calls with two buffers."""
        return not self.in_place

    @property
    def num_ranks(self) -> int:
        """Return how many ranks there are."""
        return len(self.ranks)


class Takes(NamedTuple):
    """A row of OPERATIONS: what an operation has, and what it does.

    `sources`, `targets`: the sides of its operands: the first ones in order, the last as often as
    there are operands; ``L`` local, ``R`` remote, ``S`` switch.
    `since`: the first release that reads it.
    `types`: channel types that it can have; none: it has no channels.
    `reads_packets`: its sources from that one on are packets, and are waited for; -1: none.
    `writes_packets`: its targets from that one on are written as packets; -1: none.
    `adds`: whether sources are added up.
    """

    sources: str = ""
    targets: str = ""
    since: str = "0.8"
    types: tuple[str, ...] = ()
    reads_packets: int = -1
    writes_packets: int = -1
    adds: bool = False


_ANY = ("memory", "port")

OPERATIONS: Mapping[str, Takes] = MappingProxyType({
    "nop": Takes(),
    "barrier": Takes(),
    "sem_acquire": Takes(),
    "sem_release": Takes(),
    "signal": Takes(types=_ANY),
    "wait": Takes(types=_ANY),
    "rlxsignal": Takes(types=_ANY),
    "rlxwait": Takes(types=_ANY),
    "flush": Takes(types=("port",)),
    "put": Takes("L", "R", types=_ANY),
    "pws": Takes("L", "R", types=_ANY),
    "pwsf": Takes("L", "R", types=_ANY),
    "get": Takes("R", "L", types=("memory",)),
    "copy": Takes("L", "L"),
    "re": Takes("L", "L", adds=True),
    "res": Takes("L", "LR", types=("memory",), adds=True),
    "rre": Takes("LR", "L", types=("memory",), adds=True),
    "rres": Takes("LR", "LR", types=("memory",), adds=True),
    "ppkt": Takes("L", "R", types=("memory",), writes_packets=0),
    "rppkt": Takes("L", "R", types=_ANY, reads_packets=0, writes_packets=0),
    "cpkt": Takes("L", "L", writes_packets=0),
    "upkt": Takes("L", "L", reads_packets=0),
    "repkt": Takes("L", "L", reads_packets=1, adds=True),
    "respkt": Takes("L", "LR", types=("memory",), reads_packets=1, writes_packets=1, adds=True),
    "recpkt": Takes("L", "LL", "0.9", reads_packets=1, writes_packets=1, adds=True),
    "recspkt": Takes(
        "L", "LLR", "0.9", ("memory",), reads_packets=1, writes_packets=1, adds=True
    ),
    "glres": Takes("S", "S", types=("switch",), adds=True),
    "gstore": Takes("L", "S", "0.10", ("switch",)),
    "gstorepkt": Takes("L", "S", "0.10", ("switch",), reads_packets=0, writes_packets=0),
    "pipeline": Takes(),
})  # fmt: skip
"""What the reader takes for an operation, by its name (``getOpType``, ``setupOperations``)."""

REFUSED: Mapping[str, str] = MappingProxyType({
    "glre": "is written by the language and read by no release",
})  # fmt: skip
"""Operations that other tools write, and why no reader takes them."""

FENCES = frozenset({"nop", "barrier"})
"""Operations after which all threads of a threadblock go on together."""

MOVES_IN_PIPELINE = frozenset({
    "put", "pws", "pwsf", "get", "copy", "re", "res", "rre", "rres", "glres", "gstore",
})  # fmt: skip
"""Operations whose offset a pipeline moves; others do the same in every iteration."""

MAX_CHANNELS = 16
"""MAX_CHANNEL: channels of one type, and remote buffers of one type, of a threadblock."""

MAX_OP_CHANNELS = 8
"""MAX_CHANNEL_PER_OPERATION."""

MAX_OPERANDS = 10
"""Operands of an operation, sources or targets: 2 + MAX_CHANNEL_PER_OPERATION."""

MAX_OPS = 64
"""MAX_OPERATION: of a threadblock, those inside pipelines counted: the only limit checked."""

MAX_BARRIERS = 16
"""Numbers of barriers: MAX_DEVICE_SYNCERS."""

MAX_SEMAPHORES = 16
"""Semaphores of an operation: MAX_DEVICE_SEMAPHORES."""

MAX_ITERATIONS = (1 << 16) - 1
"""Of a pipeline: a uint16."""

MAX_BUFFER = (1 << 32) - 1
"""Bytes of a buffer: offsets and sizes are uint32."""
