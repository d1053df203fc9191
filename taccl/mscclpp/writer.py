"""Plans as text that MSCCL++ reads, with the fields in the order in which its own language writes.

The writer of the language is ``CollectiveProgram.to_json`` (``python/mscclpp/language``).
"""

import json

from taccl.mscclpp.plan import OPERATIONS, Operand, Plan, PlanOp, Side

_Record = dict[str, object]


def write_plan(plan: Plan) -> str:
    """Return the JSON of `plan`, which is read back as an equal plan; the same text for the same.

    A rank's channels are one list for each type, however the file listed them that it is from.
    """
    gpus: list[_Record] = []
    for number, rank in enumerate(plan.ranks):
        channels: list[_Record] = [
            {"channel_type": kind, "connected_to": [channel.peer for channel in found]}
            for kind, found in rank.channels.items()
        ]
        for group in rank.groups:
            members = {"size": len(group.ranks), "ranks": group.ranks}
            channels.append({
                "channel_type": "switch", "buffer_type": group.buffer.value,
                "rank_groups": [members],
            })  # fmt: skip
        blocks: list[_Record] = []
        for position, block in enumerate(rank.blocks):
            used = [
                {"channel_type": kind, "channel_ids": ids} for kind, ids in block.channels.items()
            ]
            refs = [
                {"access_channel_type": kind, "remote_buffer_ids": ids}
                for kind, ids in block.remotes.items()
            ]
            ops = [_op(op) for op in block.ops]
            blocks.append({
                "id": position, "ops": ops, "channels": used, "remote_buffer_refs": refs
            })  # fmt: skip
        gpus.append({
            "id": number,
            "input_chunks": rank.input_chunks,
            "output_chunks": rank.output_chunks,
            "scratch_chunks": rank.scratch_chunks,
            "threadblocks": blocks,
            "channels": channels,
            "remote_buffers": [
                {"rank": owner, "type": buffer.value, "access_channel_types": types}
                for owner, buffer, types in rank.remotes
            ],
            "semaphores": [{"init_value": value} for value in rank.semaphores],
        })  # fmt: skip
    document: _Record = {
        "name": plan.name,
        "collective": plan.collective,
        "protocol": plan.protocol,
        "inplace": plan.in_place,
        "reuse_resources": plan.reuse_resources,
        "gpus": gpus,
        "num_threads_per_block": plan.threads,
        "use_double_scratch_buffer": plan.double_scratch,
        "buffer_alignment": plan.alignment,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _op(op: PlanOp) -> _Record:
    """Return an operation, with the fields that say something, or without which none is read."""
    row = OPERATIONS[op.name]
    synchronises = bool(row.types) and not row.targets
    fields: dict[str, tuple[bool, object]] = {
        "src_buff": (bool(op.sources or row.sources), [_operand(one) for one in op.sources]),
        "dst_buff": (bool(op.targets or row.targets), [_operand(one) for one in op.targets]),
        "channel_ids": (bool(op.channels) or synchronises, op.channels),
        "channel_type": (bool(op.channel_type) or synchronises, op.channel_type or "none"),
        "barrier_id": (op.barrier >= 0, op.barrier),
        "num_threadblocks": (op.barrier >= 0 or bool(op.blocks), op.blocks),
        "semaphore_ids": (bool(op.semaphores) or op.name.startswith("sem_"), op.semaphores),
        "reduce_op": (bool(op.reduce_op), op.reduce_op),
        "tbg_info": (op.tbg is not None, op.tbg._asdict() if op.tbg is not None else None),
        "iter_context": (
            op.name == "pipeline" or bool(op.unit or op.chunks),
            {"unit_size": op.unit, "num_chunks": op.chunks},
        ),
        "ops": (bool(op.inner), [_op(one) for one in op.inner]),
    }
    return {"name": op.name, **{name: value for name, (says, value) in fields.items() if says}}


def _operand(operand: Operand) -> _Record:
    place: _Record = {"index": operand.index, "size": operand.size}
    if operand.side is Side.LOCAL:
        return {"type": operand.buffer.value if operand.buffer is not None else "", **place}
    return {
        "buffer_id" if operand.side is Side.REMOTE else "switch_channel_id": operand.ref,
        **place,
    }
