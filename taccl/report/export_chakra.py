"""Programs as custom collectives of ASTRA-sim: an execution trace of Chakra for each rank.

ASTRA-sim runs ``PREFIX.0.et``, ``PREFIX.1.et`` and so on in place of an algorithm of its own, where
its system file has ``"all-reduce-implementation-custom": ["PREFIX"]`` or the like. A step of a
threadblock becomes what of these it does, in this order: ``COMM_RECV_NODE``, ``COMP_NODE`` for a
sum or copy, ``COMM_SEND_NODE``; each waits for the one before, and for the step that it depends on.

A message has its channel as tag. ASTRA-sim hands messages of one tag, source, destination and size
over in order; those of a channel are sent and received by one threadblock each, so they match.
Older versions take ``comm_size``, which is for the size that is exported; later ones compute it for
any size of the call, from the ``msg_chunk_cnt`` and ``total_chunk_cnt`` of the message, where the
ranks divide the chunks. Sums and copies have no time, which ASTRA-sim takes for a nanosecond. No
node says what it moves: the program was judged before.

References
----------
astra-sim/astra-sim, ``astra-sim/system/astraccl/custom_collectives/CustomAlgorithm.cc``: ``issue``,
``get_msg_size``; ``network_frontend/analytical/common/CommonNetworkApi.cc``: ``sim_recv``.
astra-sim/collectiveapi, ``chakra_converter/mscclang2chakra_converter.py``. mlcommons/chakra,
``schema/protobuf/et_def.proto``; ``src/third_party/utils/protolib.py``: ``encodeMessage``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taccl.imports.chakra import COMP, RECV, SEND, framed, messages
from taccl.msccl.program import Buffer, Op, Program, Step, StepRef, Threadblock

SCHEMA = "1.0.2-chakra.0.0.4"
"""The schema that ASTRA-sim's own converter names."""

_COMPUTES = frozenset({
    Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE,
})  # fmt: skip
_WORDS = {RECV: "receive", COMP: "compute", SEND: "send"}


def chakra_traces(program: Program, size: int) -> list[bytes]:
    """Return the trace of each rank of a `program`.

    `size`: bytes of the counted buffer, a multiple of its chunks.
    """
    return [b"".join(_trace(program, rank, size)) for rank in range(program.num_ranks)]


def _trace(program: Program, rank: int, size: int) -> Iterator[bytes]:
    """Yield the messages of a file."""
    metadata = messages().metadata()
    for name, text in (
        ("schema", SCHEMA), ("collective", program.collective), ("name", program.name)
    ):  # fmt: skip
        metadata.attr.add(name=name, string_val=text)
    yield framed(metadata.SerializeToString())
    blocks = program.gpus[rank].threadblocks
    rows = [
        (block, place, step, kind)
        for block in blocks
        for place, step in enumerate(block.steps)
        for kind, done in (
            (RECV, step.receives),
            (COMP, step.op in _COMPUTES and step.count > 0),
            (SEND, step.sends),
        )
        if done
    ]
    # The node in which each step ends; a step without any ends with what it waits for.
    ends: dict[StepRef, int] = {
        StepRef(block.id, place): number for number, (block, place, _, _) in enumerate(rows)
    }
    steps = {block.id: block.steps for block in blocks}
    before: tuple[StepRef, int] | None = None
    for number, (block, place, step, kind) in enumerate(rows):
        own = StepRef(block.id, place)
        after = (
            [before[1]] if before is not None and before[0] == own
            else _waits(block, place, steps, ends)
        )  # fmt: skip
        before = own, number
        node = messages().node(id=number, type=kind, data_deps=sorted(set(after)))
        node.name = f"threadblock {block.id} step {place} {_WORDS[kind]}"
        if kind != COMP:
            _message(node, program, block, step, size)
        yield framed(node.SerializeToString())


def _waits(
    block: Threadblock, place: int, steps: Mapping[int, Sequence[Step]],
    ends: Mapping[StepRef, int],
) -> list[int]:  # fmt: skip
    """Return the nodes that come before a step; for steps without nodes, what those wait for."""
    found: list[int] = []
    step = block.steps[place]
    left = [] if step.depends is None else [step.depends]
    left += [StepRef(block.id, place - 1)] if place else []
    seen = set(left)
    while left:
        one = left.pop()
        if one in ends:
            found.append(ends[one])
            continue
        further = steps[one.threadblock][one.step].depends
        for other in (further, StepRef(one.threadblock, one.step - 1) if one.step else None):
            if other is not None and other not in seen:
                seen.add(other)
                left.append(other)
    return found


def _message(node: Any, program: Program, block: Threadblock, step: Step, size: int) -> None:  # noqa: ANN401
    """Add to a node what is sent or received."""
    total = program.chunks_per_loop
    divides = total % program.num_ranks == 0
    slot = step.source or step.target
    first = slot.offset if slot is not None and slot.buffer != Buffer.SCRATCH else 0
    peer = ("comm_dst", block.send_to) if node.type == SEND else ("comm_src", block.recv_from)
    node.attr.add(name="comm_size", int64_val=step.count * size // total)
    for name, value in (
        peer, ("comm_tag", block.channel),
        ("msg_chunk_cnt", step.count if divides else -1),
        ("msg_chunk_idx", max(0, min(first, total - step.count)) if divides else -1),
        ("total_chunk_cnt", total if divides else -1),
    ):  # fmt: skip
        node.attr.add(name=name, int32_val=value)
