"""What a runtime refuses, or accepts and then breaks on, in single steps: one function a rule.

Every rule says which function of the runtimes it is from; "the parser" is that of ``limits``.
"""

from collections.abc import Iterator

from taccl.msccl.findings import Finding, Severity
from taccl.msccl.program import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    Threadblock,
)
from taccl.msccl.run import releasing_steps
from taccl.msccl.runtimes import FUSION_CAP, Runtime


def each_block(program: Program) -> Iterator[tuple[Gpu, Threadblock]]:
    """Yield the threadblocks of a program, with their gpus."""
    for gpu in program.gpus:
        for block in gpu.threadblocks:
            yield gpu, block


def _each_step(program: Program) -> Iterator[tuple[Gpu, Threadblock, int, Step]]:
    for gpu, block in each_block(program):
        for position, step in enumerate(block.steps):
            yield gpu, block, position, step


def ops(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """``mscclSetupKernel`` of rccl refuses files with receive-fused steps at the first call."""
    for gpu, block, position, step in _each_step(program):
        if step.op not in runtime.ops:
            yield Finding(
                "ops", f"{runtime.name} can't run {step.op.value}", gpu.rank, block.id, position,
                "use s, r, cpy and re, or another --runtime",
            )  # fmt: skip


def missing_peers(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Check that sends and receives have a peer; the parser refuses those without."""
    for gpu, block, position, step in _each_step(program):
        sides = ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv"))
        for kind, peer, word in sides:
            if step.op in kind and peer is None:
                yield Finding(
                    "missing_peers", f"{step.op.value} in a threadblock without {word} peer",
                    gpu.rank, block.id, position, f"give the threadblock a {word} peer",
                    Severity.REJECTED,
                )  # fmt: skip


def counts(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """MSCCL_MAX_COUNT; with a count of 0 a step passes the parser and moves nothing."""
    for gpu, block, position, step in _each_step(program):
        if step.op is not Op.NOP and not 1 <= step.count <= runtime.max_count:
            yield Finding(
                "counts", f"moves {step.count} chunks, allowed are 1 to {runtime.max_count}",
                gpu.rank, block.id, position, "split the step" if step.count else "remove the step",
                Severity.REJECTED if step.count else Severity.WARNING,
            )  # fmt: skip


def offsets(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check whole operands: the parser looks at the first chunk only, and not for ``rrc``."""
    for gpu, block, position, step in _each_step(program):
        size = {
            Buffer.INPUT: gpu.input_chunks,
            Buffer.OUTPUT: gpu.output_chunks,
            Buffer.SCRATCH: gpu.scratch_chunks,
        }
        used: list[Slot | None] = []
        used += [step.src] if step.op in READS_SOURCE else []
        used += [step.dst] if step.op in WRITES_TARGET else []
        for slot in used:
            if slot is None:
                yield Finding(
                    "offsets", f"{step.op.value} without a slot", gpu.rank, block.id, position,
                    "give the slot",
                )  # fmt: skip
                continue
            end = slot.offset + max(step.count, 1)
            room = min(size[slot.buffer], runtime.max_offset + 1)
            if slot.offset < 0 or end > room:
                yield Finding(
                    "offsets",
                    f"uses chunks {slot.offset} to {end - 1} of buffer {slot.buffer.value}, which"
                    f" has {room}",
                    gpu.rank, block.id, position, "stay within the buffer",
                    _severity(step, slot, size[slot.buffer]),
                )  # fmt: skip


def _severity(step: Step, slot: Slot, room: int) -> Severity:
    """Tell what the parser makes of an operand: it looks at the first chunk, and lets -1 pass."""
    passes = step.op is Op.RECV_REDUCE_COPY or -1 <= slot.offset < room
    return Severity.BREAKS if passes else Severity.REJECTED


def dependences(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Nobody checks depid and deps: a wait that no step posts for spins for ever.

    ``dependentBid`` is an int8, and a flag moves only with steps that have hasdep.
    """
    blocks = {(gpu.rank, block.id): block for gpu, block in each_block(program)}
    releases = {place: releasing_steps(block) for place, block in blocks.items()}
    for gpu, block, position, step in _each_step(program):
        if step.depends is None:
            continue
        awaited, at = step.depends
        target = blocks.get((gpu.rank, awaited))
        problem = None
        if target is None or not 0 <= at < len(target.steps):
            problem = f"waits for step {at} of threadblock {awaited}, which does not exist"
        elif awaited > runtime.max_dependence_id:
            problem = (
                f"waits for threadblock {awaited}, and ids up to {runtime.max_dependence_id} work"
            )
        elif releases[gpu.rank, awaited][at] is None:
            problem = f"waits for step {at} of threadblock {awaited}, and none from there on posts"
        if problem:
            yield Finding(
                "dependences", problem, gpu.rank, block.id, position,
                "depend on a step with hasdep, in a threadblock with a low id",
            )  # fmt: skip


def nops(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Want a dependence on every nop and on the step after it, as the parser does.

    A nop without one shifts the positions that the kernel counts; one at the end has no effect.
    """
    for gpu, block, position, step in _each_step(program):
        if step.op is not Op.NOP:
            continue
        following = block.steps[position + 1] if position + 1 < len(block.steps) else None
        if step.depends is None or following is None or following.depends is None:
            severity = Severity.REJECTED
            if step.depends is None:
                severity = Severity.BREAKS
            elif following is None:
                severity = Severity.WARNING
            yield Finding(
                "nops", "a nop and the step after it both need a dependence", gpu.rank, block.id,
                position, "put the last dependence on the step itself", severity,
            )  # fmt: skip
        elif step.posts:
            yield Finding(
                "nops", "hasdep on a nop is ignored", gpu.rank, block.id, position,
                "put hasdep on the step after it", Severity.WARNING,
            )  # fmt: skip


def fused_reductions(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check ``re`` steps that the parser merges: the last count holds for all of them.

    MSCCL_MAX_REDUCE_FUSION ends a run only once a threadblock, at its 16th ``re``: longer runs
    overflow an array of executor and msccl, and 16 sources leave the destination out. rccl adds
    them one by one, without an array (``mscclReduce``, ``msccl_kernel_impl.h``).
    """
    for gpu, block in each_block(program):
        run: list[Step] = []
        reductions = length = 0
        for position, step in enumerate(block.steps):
            if step.op is Op.NOP:
                continue
            run = [*run[-1:], step] if run and _fuses(run[-1], step) else [step]
            if step.op is Op.REDUCE:
                reductions += 1
            length = 1 if len(run) == 1 else length + 1
            problem = None
            if step.op is Op.REDUCE and length == runtime.max_fused_reductions + 1:
                problem = f"more than {runtime.max_fused_reductions} re steps fuse"
            elif len(run) > 1 and step.count != run[-2].count:
                problem = f"fused re steps have counts {run[-2].count} and {step.count}"
            if problem:
                yield Finding(
                    "fused_reductions", problem, gpu.rank, block.id, position,
                    "set hasdep on the step before it",
                )  # fmt: skip
            if reductions == FUSION_CAP and step.op is Op.REDUCE:
                run = []


def _fuses(one: Step, two: Step) -> bool:
    return (
        one.op is Op.REDUCE
        and two.op is Op.REDUCE
        and two.depends is None
        and not one.posts
        and one.dst == two.dst
        and one.src is not None
        and two.src is not None
        and one.src.buffer == two.src.buffer
    )
