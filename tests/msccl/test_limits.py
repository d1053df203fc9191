"""Every rule of every runtime objects to a program that breaks it, and only then."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.msccl.limits import RULES, check_limits
from taccl.msccl.program import Buffer, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.run import steps_of
from taccl.msccl.runtimes import RUNTIMES, message_chunks
from tests.msccl.builders import make, small_schedules
from tests.sweep import for_each

IN, OUT, SCRATCH = Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0), Slot(Buffer.SCRATCH, 0)
COPY = Step(Op.COPY, IN, OUT)
NOP = Step(Op.NOP, count=0)

SMALL = small_schedules()


def good() -> Program:
    """Two ranks: 0 sends one chunk to 1; each copies its own in a second threadblock."""
    sending = Threadblock(0, 1, None, 0, (Step(Op.SEND, IN),))
    receiving = Threadblock(0, None, 0, 0, (Step(Op.RECV, None, OUT),))
    local = Threadblock(1, None, None, 0, (replace(COPY, posts=True), COPY))
    gpus = (Gpu(0, 2, 2, 1, (sending, local)), Gpu(1, 2, 2, 1, (receiving, local)))
    return Program("p", "allreduce", "Simple", True, True, 1, 2, 0, 1024, gpus)


def with_blocks(*blocks: Threadblock, rank: int = 0) -> Program:
    program = good()
    gpus = list(program.gpus)
    gpus[rank] = replace(gpus[rank], threadblocks=blocks)
    return replace(program, gpus=tuple(gpus))


def with_steps(*steps: Step) -> Program:
    """Return the good program with other steps in the local threadblock of rank 0."""
    sending, local = good().gpus[0].threadblocks
    return with_blocks(sending, replace(local, steps=steps))


def wide(count: int) -> Program:
    """Return a program with so many threadblocks of one copy on rank 0."""
    sending = good().gpus[0].threadblocks[0]
    local = [Threadblock(number, None, None, 0, (COPY,)) for number in range(1, count)]
    return with_blocks(sending, *local)


def fan(count: int) -> Program:
    """Return a program in which rank 0 sends to so many others on one channel."""
    sending = tuple(
        Threadblock(r - 1, r, None, 0, (Step(Op.SEND, IN),)) for r in range(1, count + 1)
    )
    receiving = tuple(
        Gpu(r, 2, 2, 1, (Threadblock(0, None, 0, 0, (Step(Op.RECV, None, OUT),)),))
        for r in range(1, count + 1)
    )
    return replace(good(), gpus=(Gpu(0, 2, 2, 1, sending), *receiving))


def on_channel(channel: int, *, nchannels: int) -> Program:
    gpus = tuple(
        replace(gpu, threadblocks=tuple(replace(b, channel=channel) for b in gpu.threadblocks))
        for gpu in good().gpus
    )
    return replace(good(), channels=nchannels, gpus=gpus)


def reductions(count: int, *, last: int = 1) -> Program:
    """Return a program with a run of ``re`` steps that the parser fuses."""
    add = Step(Op.REDUCE, SCRATCH, OUT)
    return with_steps(*[add] * (count - 1), replace(add, count=last))


def waiting(depends: StepRef) -> Program:
    sending, local = good().gpus[0].threadblocks
    waiter = Threadblock(2, None, None, 0, (replace(COPY, depends=depends),))
    return with_blocks(sending, local, waiter)


def waiting_for_nop() -> Program:
    """Return a program whose third threadblock waits for a nop of the second."""
    sending, local = good().gpus[0].threadblocks
    chained = replace(
        local,
        steps=(
            replace(COPY, posts=True),
            replace(NOP, depends=StepRef(1, 0)),
            replace(COPY, depends=StepRef(1, 0), posts=True),
        ),
    )
    waiter = Threadblock(2, None, None, 0, (replace(COPY, depends=StepRef(1, 1)),))
    return with_blocks(sending, chained, waiter)


def chunks_of(inputs: int, outputs: int, collective: str, total: int) -> Program:
    """Return a program without steps and with the given chunk counts."""
    gpus = tuple(Gpu(r, inputs, outputs, 0) for r in range(2))
    return replace(good(), collective=collective, chunks_per_loop=total, gpus=gpus)


sender, local = good().gpus[0].threadblocks
BROKEN: dict[str, tuple[str, Callable[[], Program], str]] = {
    "a long name": ("name", lambda: replace(good(), name="x" * 64), "has 64 characters"),
    "an odd name": ("name", lambda: replace(good(), name='a"b'), "has the character '\"'"),
    "no name": ("name", lambda: replace(good(), name=""), "the name is empty"),
    "2D": ("name", lambda: replace(good(), name="2D", collective="alltoall"), "called 2D"),
    "custom": ("collective", lambda: replace(good(), collective="custom"), "not know custom"),
    "proto": ("protocol", lambda: replace(good(), protocol="ll"), "unknown protocol 'll'"),
    "no mode": ("modes", lambda: replace(good(), in_place=False, out_of_place=False), "neither"),
    "turned range": ("sizes", lambda: replace(good(), min_bytes=2048), "2048 to 1024 bytes"),
    "empty range": ("sizes", lambda: replace(good(), max_bytes=0), "0 to 0 bytes"),
    "no channels": ("channels", lambda: replace(good(), channels=0), "has 0 channels"),
    "33 channels": ("channels", lambda: on_channel(32, nchannels=33), "has 33 channels"),
    "channel 1 of 1": ("channels", lambda: on_channel(1, nchannels=1), "is on channel 1"),
    "65 threadblocks": ("threadblocks", lambda: wide(65), "has 65 threadblocks"),
    "ids 0 and 2": (
        "threadblocks", lambda: with_blocks(sender, replace(local, id=2)), "should be 0 to 1",
    ),
    "33 senders": ("blocks_per_channel", lambda: fan(33), "33 threadblocks send on channel 0"),
    "65 steps": ("steps", lambda: with_steps(*[COPY] * 65), "has 65 steps"),
    "64 x 64 steps": (
        "nodes",
        lambda: with_blocks(
            sender, *(Threadblock(n, None, None, 0, (COPY,) * 64) for n in range(1, 64))
        ),
        "has 4100 XML elements",
    ),
    "no chunks": ("chunks", lambda: replace(good(), chunks_per_loop=0), "should be above 0"),
    "input of allgather": (
        "chunks", lambda: chunks_of(2, 2, "allgather", 2), "i_chunks is 2, and",
    ),
    "output of reducescatter": (
        "chunks", lambda: chunks_of(4, 4, "reducescatter", 4), "o_chunks is 4, and",
    ),
    "itself as peer": (
        "peers", lambda: with_blocks(replace(sender, send_to=0), local), "peer 0 is no other rank",
    ),
    "rank 2 of 2": (
        "peers", lambda: with_blocks(replace(sender, send_to=2), local), "peer 2 is no other rank",
    ),
    "two senders on one end": (
        "ends", lambda: with_blocks(sender, replace(sender, id=1)), "so does threadblock 0",
    ),
    "no receiver": (
        "connections", lambda: with_blocks(local, rank=1), "message 0 from gpu 0 to gpu 1",
    ),
    "other counts": (
        "connections",
        lambda: with_blocks(replace(sender, steps=(Step(Op.SEND, IN, count=2),)), local),
        "has 2 chunks, and 1 are received",
    ),
    "never sent": (
        "connections", lambda: with_blocks(replace(sender, steps=()), local), "is never sent",
    ),
    "an end without its other": (
        "connections",
        lambda: with_blocks(sender, replace(local, recv_from=1)),
        "the connection from gpu 1 to gpu 0 on channel 0 has one end: gpu 1 has no send",
    ),
    "fused receive": (
        "ops", lambda: with_steps(Step(Op.RECV_COPY_SEND, None, OUT)), "can't run rcs",
    ),
    "send without peer": (
        "missing_peers", lambda: with_steps(Step(Op.SEND, IN)), "s in a threadblock without send",
    ),
    "receive without peer": (
        "missing_peers", lambda: with_steps(Step(Op.RECV, None, OUT)), "without recv peer",
    ),
    "72 chunks": ("counts", lambda: with_steps(replace(COPY, count=72)), "moves 72 chunks"),
    "0 chunks": ("counts", lambda: with_steps(replace(COPY, count=0)), "moves 0 chunks"),
    "past the end": (
        "offsets", lambda: with_steps(replace(COPY, src=Slot(Buffer.INPUT, 1), count=2)),
        "uses chunks 1 to 2 of buffer i, which has 2",
    ),
    "before the start": (
        "offsets", lambda: with_steps(replace(COPY, dst=Slot(Buffer.OUTPUT, -1))), "uses chunks -1",
    ),
    "no slot": ("offsets", lambda: with_steps(Step(Op.COPY, IN)), "cpy without a slot"),
    "unknown threadblock": (
        "dependences", lambda: waiting(StepRef(9, 0)), "threadblock 9, which does not exist",
    ),
    "unknown step": (
        "dependences", lambda: waiting(StepRef(1, 2)), "step 2 of threadblock 1, which does not",
    ),
    "nobody posts": (
        "dependences", lambda: waiting(StepRef(1, 1)), "none from there on posts",
    ),
    "nop awaited, and nobody posts": (
        "dependences",
        lambda: with_steps(
            replace(COPY, posts=True),
            replace(NOP, depends=StepRef(1, 0), posts=True),
            replace(COPY, depends=StepRef(1, 1)),
        ),
        "none from there on posts",
    ),
    "nop before a step without dependence": (
        "nops", lambda: with_steps(replace(COPY, posts=True), replace(NOP, depends=StepRef(1, 0)),
                                   COPY),
        "both need a dependence",
    ),
    "nop at the end": (
        "nops", lambda: with_steps(replace(COPY, posts=True), replace(NOP, depends=StepRef(1, 0))),
        "both need a dependence",
    ),
    "nop that posts": (
        "nops",
        lambda: with_steps(
            replace(COPY, posts=True),
            replace(NOP, depends=StepRef(1, 0), posts=True),
            replace(COPY, depends=StepRef(1, 0)),
        ),
        "hasdep on a nop is ignored",
    ),
    "16 fused": ("fused_reductions", lambda: reductions(16), "more than 15 re steps fuse"),
    "fused counts": (
        "fused_reductions", lambda: reductions(2, last=2), "fused re steps have counts 1 and 2",
    ),
}  # fmt: skip

ALLOWED: dict[str, Callable[[], Program]] = {
    "64 threadblocks": lambda: wide(64),
    "32 senders on a channel": lambda: fan(32),
    "64 steps": lambda: with_steps(*[COPY] * 64),
    "32 channels": lambda: on_channel(31, nchannels=32),
    "unused alias without chunks": lambda: chunks_of(2, 0, "allreduce", 2),
    "allgather's input": lambda: chunks_of(2, 4, "allgather", 4),
    "15 fused": lambda: reductions(15),
    "nop awaited, and the step after it posts": lambda: waiting_for_nop(),
    "a dependence released later": lambda: with_steps(COPY, replace(COPY, posts=True)),
    "the whole buffer": lambda: with_steps(replace(COPY, count=2)),
}


def test_a_good_program_keeps_every_rule_of_every_runtime() -> None:
    assert [check_limits(good(), name) for name in RUNTIMES] == [[]] * len(RUNTIMES)


@for_each("kind", BROKEN)
def test_a_broken_program_is_found_by_its_rule_alone(kind: str) -> None:
    rule, build, message = BROKEN[kind]
    found = list(RULES[rule](build(), RUNTIMES["portable"], steps_of(build())))
    assert found
    assert {finding.rule for finding in found} == {rule}
    assert message in found[0].explanation


@for_each("kind", BROKEN)
def test_every_finding_says_what_to_do(kind: str) -> None:
    assert all(finding.fix for finding in check_limits(BROKEN[kind][1](), "portable"))


@for_each("kind", ALLOWED)
def test_what_is_just_allowed_passes(kind: str) -> None:
    assert check_limits(ALLOWED[kind](), "portable") == []


def test_every_rule_has_a_broken_program() -> None:
    assert {rule for rule, _, _ in BROKEN.values()} == set(RULES)


LIMITS_OF = {
    "msccl": {
        "65 steps": False,
        "65 threadblocks": False,
        "custom": False,
        "33 channels": True,
        "16 fused": True,
    },
    "executor": {
        "65 steps": True,
        "65 threadblocks": False,
        "custom": True,
        "33 channels": True,
        "16 fused": True,
    },
    "rccl": {
        "65 steps": True,
        "65 threadblocks": True,
        "custom": True,
        "33 channels": False,
        "16 fused": False,
    },
}


@pytest.mark.parametrize("runtime", LIMITS_OF)
def test_runtimes_differ_where_their_constants_do(runtime: str) -> None:
    found = {kind: bool(check_limits(BROKEN[kind][1](), runtime)) for kind in LIMITS_OF[runtime]}
    assert found == LIMITS_OF[runtime]


def test_only_rccl_and_portable_lack_fused_receives() -> None:
    fused = {name: Op.RECV_COPY_SEND in record.ops for name, record in RUNTIMES.items()}
    assert fused == {"msccl": True, "executor": True, "rccl": False, "portable": False}


STRICTEST = (
    "max_steps", "max_threadblocks", "max_dependence_id", "max_channels", "max_name",
    "max_blocks_per_channel",
)  # fmt: skip


@pytest.mark.parametrize("limit", STRICTEST)
def test_portable_is_the_strictest(limit: str) -> None:
    others = [getattr(RUNTIMES[name], limit) for name in ("msccl", "executor", "rccl")]
    assert getattr(RUNTIMES["portable"], limit) == min(others)


@for_each("name", SMALL)
def test_a_lowered_program_keeps_the_limits_of_every_runtime(name: str) -> None:
    program = make(SMALL[name])
    assert [check_limits(program, runtime) for runtime in RUNTIMES] == [[]] * len(RUNTIMES)


@for_each(
    ("runtime", "protocol", "chunk_bytes", "chunks"),
    [
        ("executor", "Simple", 1 << 20, 2),  # 2 MiB / 1 MiB
        ("executor", "Simple", (1 << 20) + 1, 1),
        ("executor", "Simple", 1, 71),  # MSCCL_MAX_COUNT - 1
        ("executor", "Simple", 1 << 30, 1),
        ("executor", "LL", 1 << 10, 32),  # 32 KiB / 1 KiB
        ("rccl", "LL", 1 << 10, 16),  # 16 KiB / 1 KiB
        ("rccl", "LL128", 50_176, 1),
        ("msccl", "LL128", 100_000, 5),  # floor(576 000 / 100 000)
        ("portable", "LL", Fraction(1025, 2), 63),  # chunks of 513 bytes: floor(32 768 / 513)
    ],
)
def test_a_message_holds_as_many_chunks_as_fit(
    runtime: str, protocol: str, chunk_bytes: int | Fraction, chunks: int
) -> None:
    assert message_chunks(runtime, protocol, "allreduce", chunk_bytes) == chunks


def test_a_message_of_a_broadcast_or_reduce_joins_a_quarter_in_simple_alone() -> None:
    # BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS are 1, MSCCL_CHUNKSTEPS is 4 (collectives.h).
    for name in RUNTIMES:
        for collective in ("broadcast", "reduce"):
            assert message_chunks(name, "Simple", collective, 128 << 10) == 4
            assert message_chunks(name, "LL", collective, 1 << 10) == message_chunks(
                name, "LL", "allgather", 1 << 10
            )
        assert message_chunks(name, "Simple", "allgather", 128 << 10) == 16
