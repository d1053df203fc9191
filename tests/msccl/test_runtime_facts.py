"""What only the sources of the runtimes tell: each with a program that works and one that breaks.

Files are those of Azure/msccl-executor-nccl; ``rccl:`` and ``msccl:`` stand before those of
ROCm/rccl and microsoft/msccl.
"""

from dataclasses import replace
from fractions import Fraction

from taccl.apps.programs import Lowering, Target
from taccl.collectives import build_collective
from taccl.model.problem import Problem
from taccl.msccl.expected import everything
from taccl.msccl.interpret import interpret, judge
from taccl.msccl.limits import network_findings
from taccl.msccl.program import (
    Buffer,
    Gpu,
    Op,
    Program,
    Severity,
    Slot,
    Step,
    StepRef,
    Threadblock,
    errors_of,
)
from taccl.msccl.run import largest_safe_size, safe_size
from taccl.msccl.runtimes import RUNTIMES
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import read_xml
from taccl.replay.compile import count_messages, split
from taccl.replay.cost import model_of
from taccl.replay.interpreter import replay
from taccl.replay.timing import Timing
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from tests.msccl.builders import ALPHA, hub, make, mesh, pairs_schedule, ring_schedule
from tests.msccl.texts import algo, block, exchange, gpu, local, step

ALONE = ("msccl", "executor", "rccl")
MIB = 1 << 20


def rooted(collective: str, protocol: str, chunks: int = 1) -> Program:
    """Rank 0 sends its chunks to rank 1, by broadcast or for a reduce with root 1."""
    slot, target = Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0)
    sends = Threadblock(0, 1, None, 0, (Step(Op.SEND, slot, None, chunks),))
    adds = collective == "reduce"
    receive = Step(Op.RECV_REDUCE_COPY if adds else Op.RECV, slot if adds else None, target, chunks)
    receives = Threadblock(0, None, 0, 0, (receive,))
    keep = Threadblock(1, None, None, 0, (Step(Op.COPY, slot, target, chunks),))
    first = (sends,) if adds else (sends, keep)
    gpus = (Gpu(0, chunks, chunks, 0, first), Gpu(1, chunks, chunks, 0, (receives,)))
    return Program("p", collective, protocol, True, True, 1, chunks, 1, MIB, gpus)


def swap(collective: str, chunks: int) -> Program:
    """Two threadblocks send each other all their chunks before they receive any."""
    gpus = tuple(
        Gpu(
            rank, chunks, chunks, chunks,
            (
                Threadblock(
                    0, 1 - rank, 1 - rank, 0,
                    (
                        Step(Op.SEND, Slot(Buffer.INPUT, 0), None, chunks),
                        Step(Op.RECV, None, Slot(Buffer.SCRATCH, 0), chunks),
                    ),
                ),
            ),
        )
        for rank in range(2)
    )  # fmt: skip
    return Program("p", collective, "Simple", True, False, 1, chunks, 1, 1 << 40, gpus)


# 1. msccl_parser.cc:336,340 set chunkSteps to REDUCE_CHUNKSTEPS and BROADCAST_CHUNKSTEPS, which are
# 1; msccl_setup.cc:143 (rccl: :141, msccl: enqueue.cc:630) has the network proxy move as many a
# message, where the kernel posts MSCCL_CHUNKSTEPS = 4 (msccl_kernel.cu, chunkSize).
def test_a_simple_broadcast_or_reduce_hangs_between_servers_only() -> None:
    for collective in ("broadcast", "reduce"):
        for protocol, server_of, worst in (
            ("Simple", (0, 1), Severity.BREAKS), ("Simple", (0, 0), None), ("LL", (0, 1), None),
            ("LL128", (0, 1), None),
        ):  # fmt: skip
            found = errors_of(network_findings(rooted(collective, protocol), server_of))
            assert [finding.severity for finding in found] == ([worst] if worst else [])
            assert all(finding.gpu == 0 and "gpu 1" in finding.explanation for finding in found)
    gathers = replace(rooted("broadcast", "Simple"), collective="allgather")
    assert list(network_findings(gathers, (0, 1))) == []


def test_servers_that_nobody_names_are_a_warning() -> None:
    (found,) = network_findings(rooted("broadcast", "Simple"), None)
    assert found.severity is Severity.WARNING
    assert "--ranks-per-node" in (found.fix or "")
    alone = replace(rooted("broadcast", "Simple"), gpus=rooted("broadcast", "Simple").gpus[1:])
    for silent in (rooted("broadcast", "LL"), replace(alone, gpus=(Gpu(0, 1, 1, 0),))):
        assert list(network_findings(silent, None)) == []


# 2. mscclSetupCount: maxAllowedCount = stepSize * chunkSteps / chunk, chunkSteps as above; the
# kernel cuts chunks at stepSize * MSCCL_CHUNKSTEPS whatever the collective is.
def test_the_largest_safe_size_of_a_swap_is_a_quarter_in_a_broadcast_or_reduce() -> None:
    for runtime in ALONE:
        for collective, size in (
            ("allreduce", 3_145_728), ("broadcast", 786_432), ("reduce", 786_432),
        ):  # fmt: skip
            program = swap(collective, 3)
            assert safe_size(program, runtime).size == size
            assert largest_safe_size(program, runtime, 1, size + 1) == size
            assert safe_size(swap(collective, 2), runtime).size is None


def test_a_broadcast_of_simple_is_replayed_in_messages_of_512_kib() -> None:
    # Four chunks of 512 KiB: one message of 2 MiB, or four; a chunk of 2 MiB is one of either.
    model = model_of("executor")
    for collective, protocol, messages in (
        ("allreduce", "Simple", 1), ("broadcast", "Simple", 4), ("reduce", "Simple", 4),
    ):  # fmt: skip
        gpus = swap(collective, 4).gpus[:1]
        one_way = replace(swap(collective, 4), protocol=protocol, gpus=gpus)
        assert count_messages(one_way, 2 * MIB, model) == 2 * messages
        assert count_messages(one_way, 8 * MIB, model) == 2 * 4
        assert split(one_way, 2 * MIB, model).chunks == 4 // messages
        assert split(one_way, 8 * MIB, model).full == 2 * MIB
    times = {
        collective: replay(rooted(collective, "Simple", 4), mesh(2), 2 * MIB, model).time
        for collective in ("broadcast", "allreduce")
    }
    assert times["broadcast"] == (times["allreduce"] or 0) + 3 * ALPHA


# 3. rccl: msccl_kernel_impl.h:303 calls send where msccl_kernel.cu calls sendWithBarrier, and of
# all steps only a send of LL has no barrier at its end (prims_ll.h): the flag is posted while
# other wavefronts still read.
def overwriting(*after: Step, awaited: int) -> Program:
    """Rank 0 sends chunk 0, and another threadblock overwrites it when a step has posted."""
    slot, other = Slot(Buffer.INPUT, 0), Slot(Buffer.INPUT, 1)
    sends = Threadblock(0, 1, None, 0, (Step(Op.SEND, slot, posts=True), *after))
    writes = Threadblock(
        1, None, None, 0, (Step(Op.COPY, other, slot, depends=StepRef(0, awaited)),)
    )
    receives = Threadblock(0, None, 0, 0, (Step(Op.RECV, None, Slot(Buffer.SCRATCH, 0)),))
    gpus = (Gpu(0, 2, 2, 1, (sends, writes)), Gpu(1, 2, 2, 1, (receives,)))
    return Program("p", "custom", "LL", True, False, 1, 2, 1, MIB, gpus)


def followed(program: Program, *, open_sends: bool) -> set[str]:
    """Return the rules that data and races of a program break, whatever it should do."""
    found = interpret(program, in_place=True, collective=everything(program), open_sends=open_sends)
    return {finding.rule for finding in found} - {"result"}


def test_a_wait_for_a_send_of_ll_is_too_short_on_rccl() -> None:
    dump = Step(Op.COPY, Slot(Buffer.INPUT, 0), Slot(Buffer.SCRATCH, 0), posts=True)
    assert followed(overwriting(awaited=0), open_sends=True) == {"open send"}
    assert followed(overwriting(awaited=0), open_sends=False) == set()
    assert followed(overwriting(dump, awaited=1), open_sends=True) == set()
    assert {name: row.open_sends for name, row in RUNTIMES.items()} == {
        "msccl": frozenset(), "executor": frozenset(), "rccl": {"LL"}, "portable": {"LL"},
    }  # fmt: skip


def test_what_a_send_of_ll_posts_still_tells_of_the_steps_before_it() -> None:
    # The copy is over when the send posts: only the send itself is not.
    slot, other = Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0)
    program = overwriting(awaited=0)
    sends, writes = program.gpus[0].threadblocks
    for source, expected in ((Slot(Buffer.SCRATCH, 0), set()), (slot, {"open send"})):
        first = Step(Op.COPY, other, Slot(Buffer.SCRATCH, 0))
        early = replace(sends, steps=(first, Step(Op.SEND, source, posts=True)))
        later = replace(
            writes, steps=(Step(Op.COPY, Slot(Buffer.SCRATCH, 0), slot, depends=StepRef(0, 1)),)
        )
        gpus = (replace(program.gpus[0], threadblocks=(early, later)), program.gpus[1])
        assert followed(replace(program, gpus=gpus), open_sends=True) == expected


def test_recursive_doubling_in_ll_waits_for_no_send_on_rccl() -> None:
    for machine in ("hub:4", "hub:8", "mi300x"):
        topology = load_topology(machine)
        collective = build_collective("allreduce", topology.num_ranks, 1)
        group = make_group(topology, ())
        problem = Problem(whole(topology), collective, Fraction(8192), group)
        (schedule, *_) = classical_schedules(problem, "recursive-doubling", batch=True)
        size = 8192 * collective.chunks_in_size
        for runtime in ALONE:
            program = Lowering(schedule, Target(runtime, "LL"), size, "t").proved()
            safe = runtime == "rccl"
            assert (sends_awaited(program) == []) is safe
            assert ("open send" in followed(program, open_sends=True)) is not safe
        portable = Lowering(schedule, Target("portable", "LL"), size, "t").proved()
        assert sends_awaited(portable) == []
        assert judge(portable, "rccl") == []


def test_no_program_waits_for_a_send_of_ll_however_it_is_lowered() -> None:
    schedules = [
        pairs_schedule(collective, topology, 2)
        for collective in ("allreduce", "alltoall") for topology in (hub(3), mesh(3))
    ]  # fmt: skip
    schedules += [ring_schedule(name, 4, 2) for name in ("allgather", "allreduce")]
    waits = (sends_awaited(make(one, protocol="LL", max_bytes=1 << 16)) for one in schedules)
    assert any(waits)
    for schedule in schedules:
        for more in ({}, {"joined": True}, {"instances": 2}, {"order": "paced"},
                     {"joined": True, "spread": True, "instances": 2}):  # fmt: skip
            program = make(schedule, protocol="LL", open_sends=True, max_bytes=1 << 16, **more)
            assert sends_awaited(program) == []
            assert [judge(program, runtime) for runtime in ("rccl", "portable")] == [[], []]


def sends_awaited(program: Program) -> list[StepRef]:
    """Return the sends that some step waits for."""
    blocks = {(rank, one.id): one for rank, one in program.blocks()}
    return [
        each.depends
        for rank, one in program.blocks()
        for each in one.steps
        if each.depends
        and blocks[rank, each.depends.threadblock].steps[each.depends.step].op is Op.SEND
    ]


# 4. rccl: mscclReduce adds sources in a loop; msccl_kernel.cu keeps MSCCL_MAX_REDUCE_FUSION + 1.
def test_sixteen_fused_sums_are_wrong_but_on_rccl() -> None:
    for count, broken in ((15, set()), (16, {"msccl", "executor"})):
        sums = (step(n, "re", srcbuf="s", srcoff=n) for n in range(count))
        text = local(*sums, scratch=16).encode()
        verdicts = {name: judge_text(text, name, structure_only=True).worst for name in ALONE}
        assert {name for name, worst in verdicts.items() if worst is not None} == broken


# Flags are compared with >= (msccl_kernel.cu: curFlag >= goalFlag).
def test_a_wait_for_a_nop_ends_when_a_later_step_posts() -> None:
    for posts, ends in ((1, True), (0, False)):
        chained = block(
            step(0, "nop", srcoff=-1, dstoff=-1, cnt=0, depid=0, deps=0, hasdep=1),
            step(1, "cpy", dstbuf="s", depid=0, deps=0, hasdep=posts), number=1,
        )  # fmt: skip
        first = block(step(0, "cpy", dstbuf="s", dstoff=1, hasdep=1))
        waiter = block(step(0, "cpy", dstbuf="s", dstoff=2, depid=1, deps=0), number=2)
        text = algo(*(gpu(rank, first, chained, waiter, scratch=3) for rank in range(2)))
        for name in ALONE:
            found = judge_text(text.encode(), name)
            rules = {finding.rule for finding in errors_of(found.findings)} - {"result"}
            assert rules == (set() if ends else {"dependences", "deadlock"})


# for (c = 0; c < count; c += maxAllowedCount) runs no time.
def test_a_step_of_no_chunk_moves_nothing() -> None:
    text = exchange().replace("    </tb>", f"{step(2, 's', cnt=0)}\n    </tb>")
    for name in ALONE:
        found = judge_text(text.encode(), name, structure_only=True)
        assert (found.worst, {one.rule for one in found.findings}) == (None, {"counts"})
        # As many messages as receives: one more, of a chunk, is never received.
        behaviour = {one.rule for one in errors_of(judge_text(text.encode(), name).findings)}
        more = text.replace('cnt="0"', 'cnt="1"')
        assert "connections" not in behaviour
        assert "connections" in {one.rule for one in judge_text(more.encode(), name).findings}
    model, wires = model_of("executor"), mesh(2)
    plain, idle = (Timing(read_xml(each), wires, model) for each in (exchange(), text))
    assert plain.at(1024).time == idle.at(1024).time == idle.in_python(1024).time
