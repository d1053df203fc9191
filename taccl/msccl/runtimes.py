"""What each MSCCL runtime allows and how it counts (the table RUNTIMES), and how a file gets to it.

``msccl`` is microsoft/msccl (NCCL 2.12.12), ``executor`` is Azure/msccl-executor-nccl (NCCL
2.23.4), ``rccl`` is ROCm/rccl (2.21.5). ``portable`` is a file that all three load: the strictest
of every limit, with the message and FIFO sizes of the executor. Every number names its constant;
the constants live in ``src/include/msccl/msccl_struct.h`` (executor, rccl) and
``src/include/devcomm.h`` (msccl) unless another file is given.

A file gets there by environment variables and directories. The functions behind the rows:
``mscclGetAllAlgoFromXMLFilesAndSetInfo`` and ``ncclTopoTuneModel`` of msccl,
``mscclSchedulerInit``, ``mscclInternalSchedulerInit`` and ``mscclInit`` of executor and rccl
(``src/misc/msccl/msccl_lifecycle.cc``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from pathlib import Path
from types import MappingProxyType

from taccl.msccl.program import Op, Program

PROTOCOLS = ("Simple", "LL", "LL128")
"""The parsers compare ``proto`` with exactly these (``mscclGetAlgoFromXmlFile``)."""

MAX_COUNT = 71
"""MSCCL_MAX_COUNT - 1, the same in all runtimes."""

FUSION_CAP = 16
"""MSCCL_MAX_REDUCE_FUSION: the parsers end a run at this ``re`` of a threadblock, and only once."""

KERNEL_STEPS = 4
"""MSCCL_CHUNKSTEPS: slots of a connection that the kernels post for a message of Simple."""

HOST_STEPS: Mapping[str, int] = MappingProxyType({"broadcast": 1, "reduce": 1})
"""Slots that the host counts for a message of Simple where it differs from KERNEL_STEPS.

BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS are 1 (``collectives.h``; ``msccl_parser.cc:336,340``).
``mscclSetupCount`` (msccl: ``computeColl``) joins chunks up to so many slots in a message, and
``mscclSetupProxy`` (``msccl_setup.cc:143``, rccl ``:141``, msccl ``enqueue.cc:630``) has the
network proxy move so many for one.
"""

UNLIMITED = 1 << 62
"""``max_bytes`` of a file without an upper limit (executor and rccl write it as 0)."""


DEFAULT_MAX_BYTES = 1 << 27
"""What msccl takes when maxBytes is missing (``mscclGetAlgoFromXMLAndSetAlgo``)."""

MAX_RANKS = 65_536
"""Ranks of a file, more than any cluster has."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The limits, spellings and sizes of one runtime.

    `name`: key of the table.
    `max_steps`: steps of a threadblock: MSCCL_MAX_NUM_STEPS (executor: makefiles/common.mk).
    `max_threadblocks`: threadblocks of a gpu: MSCCL_MAX_NUM_THREAD_BLOCKS.
    `max_dependence_id`: largest threadblock id a step can wait for: dependentBid is an int8.
    `max_channels`: MAXCHANNELS.
    `max_blocks_per_channel`: sending (receiving) threadblocks of a gpu on one channel:
    MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL.
    `max_count`: MSCCL_MAX_COUNT - 1.
    `max_offset`: offsets are int16 (``struct mscclTransfer``).
    `max_fused_reductions`: with 16 fused sources the 16-operand kernel of executor and msccl loses
    the destination, and the parser tests its cap only once a threadblock, so 15 is safe. rccl adds
    them one by one (``mscclReduce``), however many.
    `max_nodes`: MAX_NODES - 1 elements stored for one rank (``src/graph/xml.h``).
    `max_name`: longest name: 255 (MAX_STR_LEN), msccl truncates at 63.
    `message_bytes`: bytes of a chunk that one FIFO message holds by protocol: NCCL_BUFFSIZE / 8 *
    KERNEL_STEPS for Simple, the payload of an LL or LL128 slot (``mscclRunInterpreter``).
    `fifo_slots`: messages a connection holds by protocol: NCCL_STEPS is 8; a Simple message takes
    4.
    `ops`: steps the kernel can run; rccl builds only the reduced kernel (``mscclSetupKernel``).
    `collectives`: spelling of ``coll`` by the table's name, as the parser compares it.
    `exclusive_max_bytes`: ``maxBytes`` is the first size too large (``ncclTopoGetMSCCLAlgo``), not
    the last allowed one (``mscclInternalSchedulerSelectAlgo``).
    `checks_chunks`: i_chunks and o_chunks must fit nchunksperloop
    (``mscclGetAlgoFromXMLAndSetAlgo``).
    `checks_peers`: peers of ngpus or more are refused; the other parsers take them.
    `required`: attributes of ``algo`` without which the parser refuses the file.
    `extra_types`: step types that the parser takes and the kernel returns on.
    `open_sends`: protocols in which a send posts its flag while other wavefronts still read: rccl's
    kernel calls ``send`` (``msccl_kernel_impl.h:303``) where that of executor and msccl calls
    ``sendWithBarrier``, and of all steps only a send of LL ends without a barrier.
    """

    name: str
    max_steps: int
    max_threadblocks: int
    max_dependence_id: int
    max_channels: int
    max_name: int
    message_bytes: Mapping[str, int]
    ops: frozenset[Op]
    collectives: Mapping[str, str]
    exclusive_max_bytes: bool
    checks_chunks: bool
    checks_peers: bool
    required: tuple[str, ...]
    extra_types: frozenset[str] = frozenset()
    open_sends: frozenset[str] = frozenset()
    max_blocks_per_channel: int = 32
    max_count: int = MAX_COUNT
    max_offset: int = 32767
    max_fused_reductions: int = 15
    max_nodes: int = 4095
    fifo_slots: Mapping[str, int] = field(default_factory=lambda: FIFO_SLOTS)


FIFO_SLOTS: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})

ALL_OPS = frozenset(Op)
PORTABLE_OPS = frozenset({Op.SEND, Op.RECV, Op.COPY, Op.REDUCE, Op.NOP})

_NCCL_MESSAGES = MappingProxyType({"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000})
_RCCL_MESSAGES = MappingProxyType({"Simple": 2 << 20, "LL": 16 << 10, "LL128": 50_176})


_COMMON = ("allreduce", "allgather", "reduce", "broadcast", "alltoall")
_MSCCL_NAMES = MappingProxyType(
    {name: name for name in (*_COMMON, "custom")} | {"reducescatter": "reduce_scatter"}
)
_NEW_NAMES = MappingProxyType({
    name: name
    for name in (
        *_COMMON, "reducescatter", "gather", "scatter", "send", "recv", "alltoallv",
    )
})  # fmt: skip

_HEAD = ("ngpus", "nchunksperloop", "nchannels", "proto", "coll", "inplace")
_NEW_HEAD = (*_HEAD, "outofplace", "minBytes", "maxBytes")

RUNTIMES: Mapping[str, Runtime] = MappingProxyType({
    "msccl": Runtime(
        "msccl", max_steps=256, max_threadblocks=216, max_dependence_id=127, max_channels=32,
        max_name=63, message_bytes=_NCCL_MESSAGES, ops=ALL_OPS, collectives=_MSCCL_NAMES,
        exclusive_max_bytes=True, checks_chunks=True, checks_peers=True,
        required=("name", *_HEAD), extra_types=frozenset({"ra"}),
    ),
    "executor": Runtime(
        "executor", max_steps=64, max_threadblocks=1024, max_dependence_id=127, max_channels=32,
        max_name=255, message_bytes=_NCCL_MESSAGES, ops=ALL_OPS, collectives=_NEW_NAMES,
        exclusive_max_bytes=False, checks_chunks=False, checks_peers=False,
        required=_NEW_HEAD,
    ),
    "rccl": Runtime(
        "rccl", max_steps=64, max_threadblocks=64, max_dependence_id=63, max_channels=128,
        max_name=255, message_bytes=_RCCL_MESSAGES, ops=PORTABLE_OPS, collectives=_NEW_NAMES,
        exclusive_max_bytes=False, checks_chunks=False, checks_peers=False,
        required=_NEW_HEAD, open_sends=frozenset({"LL"}), max_fused_reductions=UNLIMITED,
    ),
    "portable": Runtime(
        "portable", max_steps=64, max_threadblocks=64, max_dependence_id=63, max_channels=32,
        max_name=63, message_bytes=_NCCL_MESSAGES, ops=PORTABLE_OPS,
        collectives=MappingProxyType({name: name for name in (*_COMMON, "reducescatter")}),
        exclusive_max_bytes=False, checks_chunks=True, checks_peers=True,
        required=("name", *_NEW_HEAD), open_sends=frozenset({"LL"}),
    ),
})  # fmt: skip

LOADED_BY: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "portable": ("executor", "rccl", "msccl"),
})  # fmt: skip
"""Runtimes that load a file meant for several: what is proved for it must hold on each."""


def joined_bytes(message_bytes: int, protocol: str, collective: str) -> int:
    """Return the most bytes of several chunks that travel as one message.

    A message of one chunk may be longer: the kernels cut chunks at `message_bytes`, those of a FIFO
    message of `protocol`, whatever the `collective` is, and the host joins them by HOST_STEPS.
    """
    if protocol != "Simple" or collective not in HOST_STEPS:
        return message_bytes
    return message_bytes * HOST_STEPS[collective] // KERNEL_STEPS


def message_chunks(
    runtime: str, protocol: str, collective: str, chunk_bytes: Fraction | int
) -> int:
    """Return how many chunks of `chunk_bytes` travel as one message (``mscclMaxAllowedCount``).

    `runtime` is a name of RUNTIMES; `protocol` and `collective` are those of the program.
    """
    room = joined_bytes(RUNTIMES[runtime].message_bytes[protocol], protocol, collective)
    return min(max(room // max(1, ceil(chunk_bytes)), 1), MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Note:
    """A variable or a pitfall, and the programs it is for."""

    text: str
    when: Callable[[Program], bool] = lambda _program: True


def _uses_ll128(program: Program) -> bool:
    return program.protocol == "LL128"


@dataclass(frozen=True, slots=True)
class Deployment:
    """How one runtime finds files.

    `variables` are ``NAME=value``, where ``{path}`` and ``{directory}`` stand for the file and its
    directory; without those `needed` the file is silently not used. `pitfalls` are what users run
    into; ``{chunks}`` stands for the file's ``nchunksperloop``. `version` has the versions that run
    files, after a comma; empty: all.
    """

    variables: tuple[Note, ...]
    needed: tuple[Note, ...]
    pitfalls: tuple[Note, ...]
    version: str = ""


_EVERYWHERE = (
    Note("every node needs the same files in the same order: ranks that differ hang"),
    Note(
        "element counts that are not a multiple of {chunks} fall back to NCCL",
        lambda program: program.chunks_per_loop > 1,
    ),
    Note(
        "no file names a root: this one answers calls for every root",
        lambda program: program.collective in {"broadcast", "reduce", "gather", "scatter"},
    ),
    Note(
        "LL128 is right where stores of 128 bytes stay whole, as on NVLink; else use LL",
        _uses_ll128,
    ),
    Note(
        "only one of in place and out of place is served",
        lambda program: program.in_place != program.out_of_place,
    ),
)
_DIRECTORY = (
    Note("keep other files out of MSCCL_ALGO_DIR: the loader stops at the first it can't parse"),
    Note(
        "the range of sizes has no end: files after this one get no call",
        lambda program: program.max_bytes >= UNLIMITED,
    ),
)

ROCM = "ROCm 7.2 or older"
"""RCCL's MSCCL is deprecated and off by default in ROCm 7.11, and gone in 7.13 (RCCL 2.28.3)."""

DEPLOYMENTS: Mapping[str, Deployment] = MappingProxyType({
    "msccl": Deployment(
        (Note("MSCCL_XML_FILES={path}"),),
        (
            Note("NCCL_ALGO=MSCCL,RING,TREE", lambda program: program.collective == "allreduce"),
            Note("NCCL_PROTO=Simple,LL,LL128", _uses_ll128),
        ),
        (
            Note("MSCCL_XML_FILES takes up to 4 paths, with colons between them"),
            *_EVERYWHERE,
        ),
    ),
    "executor": Deployment(
        (Note("MSCCL_ALGO_DIR={directory}"),), (),
        (
            *_DIRECTORY,
            Note("two ranks in one process turn MSCCL off"),
            *_EVERYWHERE,
        ),
    ),
    "rccl": Deployment(
        (Note("MSCCL_ALGO_DIR={directory}"),),
        (Note("RCCL_MSCCL_ENABLE=1"), Note("RCCL_MSCCL_FORCE_ENABLE=1")),
        (
            Note(f"needs {ROCM}: RCCL 2.28.3 (ROCm 7.13) has no MSCCL"),
            *_DIRECTORY,
            Note("files are tried in no fixed order: ranges of sizes must not overlap"),
            Note("several ranks in a process need RCCL_MSCCL_ENABLE_SINGLE_PROCESS=1"),
            *_EVERYWHERE,
        ),
        f", {ROCM}",
    ),
})  # fmt: skip
"""Where every runtime looks for files."""


def needs(program: Program, runtime: str) -> tuple[str, ...]:
    """Return the variables without which `runtime`, of RUNTIMES, takes no notice of `program`."""
    return tuple(note.text for note in DEPLOYMENTS[runtime].needed if note.when(program))


def deployment(program: Program, runtime: str, path: Path) -> dict[str, dict[str, list[str]]]:
    """Return ``environment`` and ``pitfalls`` of a file for each runtime that loads it.

    The file of `program` is written at `path` for a `runtime`, of ``RUNTIMES``, or what several of
    them load; a portable reduce-scatter is written for msccl beside it, too.
    """
    paths = dict.fromkeys(LOADED_BY.get(runtime, (runtime,)), path)
    if runtime in LOADED_BY and program.collective == "reducescatter":
        paths["msccl"] = path.with_suffix(f".msccl{path.suffix}")
    files = set(paths.values())
    return {
        name: {
            "environment": [
                note.text.format(path=file.absolute(), directory=file.absolute().parent)
                for note in (*DEPLOYMENTS[name].variables, *DEPLOYMENTS[name].needed)
                if note.when(program)
            ],
            "pitfalls": [
                *(
                    f"move {other.name} to another directory"
                    for other in files - {file}
                    if name != "msccl"
                ),
                *(
                    note.text.format(chunks=program.chunks_per_loop)
                    for note in DEPLOYMENTS[name].pitfalls
                    if note.when(program)
                ),
            ],
        }
        for name, file in paths.items()
    }


def deployment_lines(program: Program, runtime: str, path: Path) -> list[str]:
    """Return the lines that people read: variables for each runtime, then each pitfall once.

    `program`, `runtime` and `path` are those of :func:`deployment`.
    """
    found = deployment(program, runtime, path)
    lines = [
        f"  load with   {' '.join(row['environment'])} ({name}{DEPLOYMENTS[name].version})"
        for name, row in found.items()
    ]
    told: dict[str, list[str]] = {}
    for name, row in found.items():
        for text in row["pitfalls"]:
            told.setdefault(text, []).append(name)
    for text, names in told.items():
        only = "" if len(names) == len(found) else f" ({', '.join(names)})"
        lines.append(f"  note        {text}{only}")
    return lines
