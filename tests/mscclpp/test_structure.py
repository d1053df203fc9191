"""Every rule finds what it is for, in a plan that is right but for that, and nothing else."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from taccl.msccl.program import Buffer, Severity, errors_of
from taccl.mscclpp.plan import (
    OPERATIONS,
    VERSIONS,
    Channel,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)
from taccl.mscclpp.structure import MAX_FOUND, RULES, accepts, structure_findings
from taccl.mscclpp.text import read_plan
from tests.sweep import for_each

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "mscclpp"
READ = sorted(
    path.stem for path in SAMPLES.glob("*.json") if "switch_reduce_test" not in path.stem
)  # fmt: skip

INPUT, OUTPUT, SCRATCH = Buffer
REMOTES = {
    "i": RemoteBuffer(1, INPUT, ("memory", "port")), "o": RemoteBuffer(1, OUTPUT, ("memory",)),
    "s": RemoteBuffer(1, SCRATCH, ("memory", "port")),
}  # fmt: skip
MEMORY = {"i": 0, "o": 1, "s": 2}
PORT = {"i": 0, "s": 1}
SWITCH = {"i": 0, "s": 1}
"""What the operands below number, in each threadblock of rank 0."""


def mine(buffer: str, index: int = 0, size: int = 1) -> Operand:
    return Operand(Side.LOCAL, Buffer(buffer), -1, index, size)


def theirs(buffer: str, index: int = 0, size: int = 1) -> Operand:
    return Operand(Side.REMOTE, None, MEMORY[buffer], index, size)


def at_port(buffer: str, index: int = 0, size: int = 1) -> Operand:
    return Operand(Side.REMOTE, None, PORT[buffer], index, size)


def all_of(buffer: str, index: int = 0, size: int = 1) -> Operand:
    return Operand(Side.SWITCH, None, SWITCH[buffer], index, size)


def op(
    name: str, sources: Iterable[Operand] = (), targets: Iterable[Operand] = (), **more: object
) -> PlanOp:  # fmt: skip
    """Return an operation of the first type that it can have, on memory if it can."""
    types = OPERATIONS[name].types if name in OPERATIONS else ()
    made = PlanOp(name, tuple(sources), tuple(targets), (*types, "")[0])
    return replace(made, **cast("dict[str, Any]", more))


def ports(name: str, *operands: Operand, **more: object) -> PlanOp:
    """Return an operation of one source and one target over port channel 0."""
    source, target = operands
    return op(name, [source], [target], **{"channel_type": "port", "channels": (0,), **more})


SIGNALS = [op("rlxsignal", channels=(0,)), op("rlxwait", channels=(0,)), op("nop")]


def block(*ops: PlanOp) -> PlanBlock:
    return PlanBlock(
        {"memory": (0, 1), "port": (0,), "switch": (0, 1)}, {"memory": (0, 1, 2), "port": (0, 2)},
        (*SIGNALS, *ops),
    )  # fmt: skip


def plan(*blocks: PlanBlock | PlanOp, **changes: object) -> Plan:
    """Return a plan of two ranks; rank 0 has the threadblocks, or one of the operations."""
    ops = [one for one in blocks if isinstance(one, PlanOp)]
    first = [one for one in blocks if isinstance(one, PlanBlock)] or [block(*ops)]
    groups = tuple(Group(buffer, (0, 1)) for buffer in (INPUT, SCRATCH))
    ranks = [
        PlanRank(
            4, 4, 4, {"memory": (Channel("memory", 1 - rank),) * 2, "port": (Channel("port",
            1 - rank),)}, groups, tuple(b._replace(rank=1 - rank) for b in REMOTES.values()),
            (0, 0), tuple(given),
        )
        for rank, given in enumerate((first, [block()]))
    ]  # fmt: skip
    made = Plan("p", "allreduce", "Simple", in_place=True, ranks=tuple(ranks))
    return replace(made, **cast("dict[str, Any]", changes))


def with_rank(number: int, made: Plan | None = None, **changes: object) -> Plan:
    """Return a plan with one rank changed."""
    base = made or plan()
    ranks = list(base.ranks)
    ranks[number] = replace(ranks[number], **cast("dict[str, Any]", changes))
    return replace(base, ranks=tuple(ranks))


def pipeline(*ops: PlanOp, unit: int = 4096, chunks: int = 1) -> PlanOp:
    return PlanOp("pipeline", unit=unit, chunks=chunks, inner=ops)


def named(kind: str, *ids: int) -> PlanBlock:
    return replace(block(), remotes={kind: ids})


ONE, TWO = mine("i"), mine("i", 1)
PUT = op("put", [ONE], [theirs("i")])
BARRIER = op("barrier", barrier=1, blocks=2)
LL: dict[str, Any] = {"protocol": "LL"}
REJECTED, BREAKS, NEVER, WARNING = Severity
SHARED_COPY = op("copy", [ONE], [mine("s")])

BROKEN: Mapping[str, list[tuple[Plan, str, Severity]]] = {
    "head": [
        (plan(protocol="LL128"), "structure: protocol 'LL128' is taken for Simple", WARNING),
        (plan(collective="scatter"), "nothing selects a plan for the collective 'scatter'",
         WARNING),
        (plan(threads=0), "limit: has 0 threads in a threadblock, the kernel runs with 1", BREAKS),
        (plan(threads=1025), "has 1025 threads in a threadblock", BREAKS),
        (plan(alignment=0), "an alignment of 0 bytes is divided by", BREAKS),
        (plan(alignment=8), "an alignment of 8 bytes lets chunks start where", WARNING),
        (plan(op("re", [ONE, TWO], [ONE]), alignment=24), "an alignment of 24 bytes", BREAKS),
    ],
    "sizes": [
        (plan(min_bytes=65, max_bytes=64), "the range of sizes is 65 to 64 bytes", NEVER),
        (plan(max_bytes=0), "the range of sizes is 0 to 0 bytes", NEVER),
        (plan(min_bytes=65, max_bytes=127), "no size from 65 to 127 bytes is a multiple of 64",
         NEVER),
        (plan(min_bytes=2**31, max_bytes=2**40),
         "min_message_size 2147483648 is read as 18446744071562067968", NEVER),
        (plan(min_bytes=2**32 + 64), "min_message_size 4294967360 is read as 64", WARNING),
    ],
    "chunks": [
        (with_rank(1, input_chunks=0),
         "gpu 1: has 0 input and 4 output chunks, and every call divides by both", BREAKS),
        (with_rank(1, output_chunks=8),
         "gpu 1: has 4 input and 8 output chunks: with allreduce .*have as many output", REJECTED),
        (with_rank(1, with_rank(0, plan(collective="allgather"), output_chunks=8)),
         "gpu 1: has 4 input and 4 .* every call is refused .fix: have 2 times as many output as",
         REJECTED),
        (with_rank(1, with_rank(0, plan(collective="reducescatter"), input_chunks=8)),
         "fix: have 2 times as many input as output chunks", REJECTED),
        (with_rank(1, input_chunks=8, output_chunks=8),
         "gpu 1: has 8 input and 8 output chunks, and rank 0 4 and 4", BREAKS),
        (with_rank(1, with_rank(0, plan(collective="alltoall"), input_chunks=3, output_chunks=3),
                   input_chunks=3, output_chunks=3), "has 3 input chunks for 2 ranks", BREAKS),
    ],
    "operations": [
        (plan(PlanOp("glre")), "refused: .*step 3: glre is read by no release", REJECTED),
    ],
    "references": [
        (with_rank(1, remotes=(*plan().ranks[1].remotes, RemoteBuffer(2, INPUT, ()))),
         "refused: gpu 1: names rank 2, and there are 2 .fix: use one from 0 to 1.", REJECTED),
        (plan(replace(block(), channels={"memory": (0, 2)})),
         "gpu 0, threadblock 0: names memory channel 2, and there are 2", REJECTED),
        (plan(named("memory", 3)), "threadblock 0: names remote buffer 3, and there", REJECTED),
        (plan(op("signal", channels=(2,))), "step 3: names memory channel 2, and", REJECTED),
        (plan(op("sem_acquire", semaphores=(2,))), "step 3: names semaphore 2, and", REJECTED),
        (plan(op("put", [ONE], [Operand(Side.REMOTE, None, 3, 0, 1)])),
         "step 3: names memory buffer 3, and there are 3", REJECTED),
        (plan(replace(block(PUT), remotes={"memory": (3,)})), "names remote buffer 3", REJECTED),
        (plan(replace(ports("put", ONE, at_port("i")), channels=(1,))),
         "step 3: names port channel 1, and there are 1", REJECTED),
        (plan(op("glres", [all_of("i")], [Operand(Side.SWITCH, None, 2, 0, 1)])),
         "step 3: names switch channel 2, and there are 2", REJECTED),
    ],
    "limits": [
        (plan(*[op("nop")] * 62), "limit: gpu 0, threadblock 0: has 65 operations, those in"
         " pipelines counted, the executor takes 64 .fix", REJECTED),
        (plan(*[op("nop")] * 58, pipeline(*[op("copy", [ONE], [TWO])] * 3), max_bytes=64),
         "has 65 operations, those in pipelines counted", REJECTED),
        (plan(replace(block(), channels={"memory": (0,) * 17})),
         "has 17 memory channels, the executor has room for 16 and writes on", BREAKS),
        (plan(named("port", *[0] * 17)), "threadblock 0: has 17 port buffers, the exec", BREAKS),
        (plan(op("signal", channels=(0,) * 9)), "step 3: has 9 channels in one signal", BREAKS),
        (plan(op("re", [ONE] * 11, [ONE])), "has 11 sources in one re, the executor has", BREAKS),
        (plan(op("res", [ONE], [ONE, *[theirs("i")] * 10])), "has 11 targets in one res", BREAKS),
        (plan(op("sem_release", semaphores=(0,) * 17)), "has 17 semaphores in one sem_", BREAKS),
        (plan(op("barrier", barrier=16, blocks=1)),
         "has 17 barriers up to number 16, .*for 16 .*fix: number them from 0 to 15", BREAKS),
        (plan(*[block()] * 133), "has 133 threadblocks, which must run all at once", WARNING),
        (plan(op("signal", channels=(0, 1)), threads=1),
         "signal names 2 channels or semaphores, thread i does the i-th, and there are 1", BREAKS),
    ],
    "operands": [
        (plan(op("copy", [ONE, ONE], [mine("s")])),
         "copy has 2 sources, and the kernel works with 1", BREAKS),
        (plan(op("put", [ONE], [theirs("i")] * 2)),
         "put has 2 targets, and the kernel works with 1", BREAKS),
        (plan(op("re", [], [ONE])), "re has 0 sources, and the kernel works with 1", BREAKS),
        (plan(op("recpkt", [ONE, mine("s")], [ONE]), **LL),
         "recpkt has 1 targets, and the kernel works with 2", BREAKS),
        (plan(op("recspkt", [ONE, mine("s")], [ONE]), **LL),
         "recspkt has 1 targets, and the kernel works with 2", BREAKS),
        (plan(op("nop", [ONE])), "nop has 1 sources, and the kernel works with 0", BREAKS),
        (plan(op("rre", [ONE, TWO], [ONE])),
         "rre has a local operand as number 1 of its sources, .* for a remote one", BREAKS),
        (plan(op("respkt", [ONE, mine("s")], [ONE, mine("s", 1)]), **LL),
         "respkt has a local operand as number 1 of its targets", BREAKS),
        (plan(replace(PUT, barrier=0)), "put has a barrier, which lie over its channels", BREAKS),
        (plan(replace(PUT, semaphores=(0,))), "put has semaphores, which lie over", BREAKS),
        (plan(replace(PUT, unit=16)), "iterations, .* leave them to pipeline", BREAKS),
    ],
    "channel_types": [
        (plan(op("copy", [ONE], [mine("s")], channel_type="memory")),
         "copy has channel type memory, which means nothing", WARNING),
        (plan(ports("get", at_port("i"), ONE)),
         "get has channel type port, and the kernel works with memory", BREAKS),
        (plan(op("signal", channel_type="")),
         "signal has channel type none, and the kernel works with memory or port", BREAKS),
        (plan(op("glres", [all_of("i")], [all_of("i")], channel_type="")),
         "glres has channel type none, and the kernel works with switch", WARNING),
        (plan(op("pws", [ONE], [theirs("i")])),
         "pws over memory channels does the put, and no signal", WARNING),
        (plan(op("wait")), "wait names no channel and does nothing", WARNING),
        (plan(op("put", [ONE, TWO], [at_port("i"), at_port("i", 1)], channel_type="port",
                 channels=(0,))), "put has 1 channels for 2 targets, and the i-th goes", BREAKS),
    ],
    "port_peers": [
        (with_rank(0, replace(plan(ports("put", ONE, at_port("i"))), ranks=(
            *plan(ports("put", ONE, at_port("i"))).ranks, PlanRank(4, 4, 4, {}, (), (), (), ()))),
            remotes=(RemoteBuffer(2, INPUT, ("memory", "port")), *plan().ranks[0].remotes[1:])),
         "put goes over a channel to rank 1 into a buffer of rank 2", BREAKS),
    ],
    "bounds": [
        (plan(op("put", [mine("i", 2, 3)], [theirs("i", 1, 3)])),
         "put uses chunks 2 to 4 of the input of rank 0, which has room for 4", BREAKS),
        (with_rank(1, plan(op("put", [ONE], [theirs("s", 2)])), scratch_chunks=2),
         "structure: .*chunks 2 to 2 of the scratch buffer of rank 1, which has room", BREAKS),
        (plan(op("glres", [all_of("i", 4)], [all_of("i", 4)]), collective="custom"),
         "chunks 4 to 4 of the input of rank [01]", BREAKS),
        (plan(op("ppkt", [ONE], [theirs("s", 2)])),
         "packet: .*ppkt uses packets 2 to 2 of the scratch buffer of rank 1, which has room for 2"
         " .fix: use protocol LL, which doubles it", BREAKS),
        (plan(op("upkt", [mine("s", 4)], [ONE]), **LL),
         "packet: .*upkt uses packets 4 to 4 .* of rank 0, which has room for 4 .fix", BREAKS),
    ],
    "packets": [
        (plan(op("upkt", [mine("i", 1)], [ONE]), **LL),
         "packet: .*upkt reads packets from the input of rank 0, and the kernel reads sc", BREAKS),
        (plan(op("ppkt", [ONE], [theirs("i")]), **LL),
         "ppkt writes packets over twice the chunks of the input of rank 1", BREAKS),
        (plan(op("gstorepkt", [mine("s")], [all_of("i")]), collective="custom", **LL),
         "gstorepkt writes packets over twice the chunks of the input of rank [01]", BREAKS),
    ],
    "operand_sizes": [
        (plan(op("put", [mine("i", 0, 2)], [theirs("i")])),
         "put has operands of 2 and 1 chunks, and does as many of both", BREAKS),
        (plan(op("re", [ONE, mine("i", 0, 3)], [ONE])), "re has operands of 1 and 3", BREAKS),
        (plan(op("copy", [mine("i", 0, 0)], [mine("s", 0, 0)])),
         "copy has operands of no chunks", WARNING),
    ],
    "kernel_faults": [
        (plan(op("put", [ONE, mine("s")], [theirs("i"), theirs("i")])),
         "put has sources in several buffers, and the kernel reads all of them from", BREAKS),
        (plan(op("get", [theirs("i", 2)], [mine("i", 1)])),
         "get should copy chunk 2 to 1, and the kernel copies 1 to 2", BREAKS),
        (plan(ports("pwsf", ONE, at_port("i"))), "pwsf of the newest kernel passes", WARNING),
        (plan(op("flush", channels=(0,))), "flush does nothing: the kernel counts", WARNING),
    ],
    "reductions": [
        (plan(op("re", [ONE, TWO], [ONE], reduce_op="max")),
         "re should take the max, and the kernel adds .fix: use sum", BREAKS),
    ],
    "remotes": [
        (plan(named("port", 1)), "names remote buffer 1 for port channels, and it is for memory:"
         " the reader takes another .fix: add port", BREAKS),
        (with_rank(1, remotes=(RemoteBuffer(1, INPUT, ("memory",)), *plan().ranks[1].remotes[1:]),
                   blocks=()), "gpu 1: has a remote buffer that is its own", WARNING),
    ],
    "channels": [
        (with_rank(0, channels={"memory": (Channel("memory", 1),) * 3,
                                "port": (Channel("port", 1),)}),
         "gpu 0: has 3 memory channels to rank 1, which has 2 back: the rest have", WARNING),
        (with_rank(0, channels={"memory": (Channel("memory", 1),) * 2,
                                "port": (Channel("port", 1), Channel("port", 0))}),
         "gpu 0: has 1 port channels to itself", WARNING),
    ],
    "groups": [
        (with_rank(0, groups=(*plan().ranks[0].groups, Group(OUTPUT, (1,)))),
         "outputs of ranks 1: rank 0 has it and is none of them .fix: list it", BREAKS),
        (with_rank(0, groups=(*plan().ranks[0].groups, Group(OUTPUT, (0, 0)))),
         "switch channel of the outputs of ranks 0, 0: a rank is listed twice", BREAKS),
        (with_rank(1, groups=(Group(INPUT, (0, 1)), Group(SCRATCH, (1, 0)))),
         "scratch buffers of ranks (0, 1|1, 0): rank [01] has 0 of it, another 1: setting", BREAKS),
        (with_rank(1, groups=plan().ranks[1].groups[:1] * 2 + plan().ranks[1].groups[1:]),
         "inputs of ranks 0, 1: rank 0 has 1 of it, another 2: setting it up hangs", BREAKS),
    ],
    "barriers": [
        (plan(block(BARRIER), block(), block(op("nop"), BARRIER, BARRIER), block(BARRIER)),
         "threadblock 0, step 3: barrier 1 is for 2 threadblocks, and 3 use it", BREAKS),
        (plan(BARRIER), "barrier 1 is for 2 threadblocks, and 1 use it .fix: write num", BREAKS),
    ],
    "shares": [
        (plan(replace(SHARED_COPY, tbg=Tbg(2, 2))), "copy does part 2 of 2 .fix: number", BREAKS),
        (plan(replace(SHARED_COPY, tbg=Tbg(0, 0))), "part 0 of 0, which divides by 0", BREAKS),
        (plan(*[block(replace(SHARED_COPY, tbg=Tbg(part, 3))) for part in (2, 0)]),
         "threadblock 0, step 3: copy is cut into 3 parts, of which part 1 is done by nobody",
         BREAKS),
        (plan(*[block(replace(SHARED_COPY, tbg=Tbg(part, 2))) for part in (0, 1, 1)]),
         "copy is cut into 2 parts, of which part 0 is done 1 times and others 2 times", BREAKS),
    ],
    "pipelines": [
        (plan(pipeline(SHARED_COPY, unit=0)), "pipeline divides by its unit_size of 0", BREAKS),
        (plan(pipeline(SHARED_COPY, chunks=0)), "pipeline does nothing", WARNING),
        (plan(pipeline(pipeline(SHARED_COPY)), max_bytes=1024),
         "operation 0 of the pipeline, pipeline is inside another", BREAKS),
        (plan(pipeline(SHARED_COPY, unit=1 << 20 | 8)), "pipeline moves by 1048584 bytes", BREAKS),
        (plan(pipeline(SHARED_COPY, unit=16)),
         "limit: .*pipeline has 67108864 iterations in the largest call, and a uint16", WARNING),
        (plan(pipeline(SHARED_COPY, unit=16), max_bytes=1 << 23),
         "limit: .*pipeline has 131072 iterations in the largest call, and a uint16", BREAKS),
        (plan(pipeline(op("upkt", [mine("s")], [ONE]), unit=1 << 20), **LL),
         "packet: .*operation 0 of the pipeline, upkt does all its packets in each", BREAKS),
        (plan(pipeline(op("nop"), SHARED_COPY, unit=1 << 20, chunks=2)),
         "step 3: operation 1 of the pipeline, copy is of 1 chunks and the pipeline of 2", BREAKS),
        (plan(*[block(pipeline(replace(SHARED_COPY, tbg=Tbg(part, 2)), unit=1 << 20))
                for part in (0, 1)]), "copy does a part of its chunks, and the pipeline", BREAKS),
        (plan(pipeline(op("re", [ONE, mine("s")], [ONE]), unit=1 << 20), reuse_resources=True),
         "re reads scratch as source, and the kernel moves that by", WARNING),
    ],
    "double_scratch": [
        (plan(op("put", [ONE], [theirs("s")]), double_scratch=True),
         "put uses chunks in the first half of the scratch of rank 1 in every call", BREAKS),
        (plan(ports("put", mine("s"), at_port("i")), double_scratch=True),
         "put uses chunks in the first half of the scratch of rank 0 in every call", BREAKS),
    ],
    "in_place": [
        (plan(op("copy", [ONE], [mine("o", 1)])),
         "copy names chunks of rank 0 by its input, and others by its output", WARNING),
        (plan(PUT, in_place=False), "put writes into the input of rank 1, and the plan", WARNING),
    ],
}  # fmt: skip
"""For each rule: plans that break it, what is found, and how bad it is."""


@for_each(
    "rule, made, message, severity",
    [(rule, *case) for rule, cases in BROKEN.items() for case in cases],
    ids=lambda rule, _made, message, _severity: f"{rule}: {message}",
)
def test_a_rule_finds_what_it_is_for_and_no_other_rule_objects(
    rule: str, made: Plan, message: str, severity: Severity
) -> None:
    found = structure_findings(made)
    assert found, "nothing is found"
    for finding in found:
        assert re.search(message, str(finding))
        assert finding.severity is severity
        assert finding.fix
    only = [finding for name in RULES if name != rule for finding in _of(name, made)]
    assert only == []


def _of(rule: str, made: Plan) -> list[object]:
    """Return what one rule finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taccl.mscclpp.structure.RULES", {rule: RULES[rule]})
        return list(structure_findings(made))


def test_every_rule_has_a_plan_that_breaks_it() -> None:
    assert set(BROKEN) == set(RULES)


RIGHT: Mapping[str, Callable[[], Plan]] = {
    "nothing but signals": plan,
    "puts of all kinds": lambda: plan(
        PUT, ports("put", mine("s"), at_port("s", 3)), ports("pws", ONE, at_port("i", 3)),
        op("put", [ONE, TWO], [theirs("i", 3), theirs("s")]),
        op("get", [theirs("i", 2, 2)], [mine("s", 2, 2)]),
    ),
    "sums": lambda: plan(
        op("re", [ONE, TWO, mine("s")], [mine("s", 1)], reduce_op="sum"),
        op("res", [ONE, mine("s")], [ONE, theirs("i"), theirs("s")]),
        op("rre", [ONE, theirs("i"), theirs("s")], [mine("s")]),
        op("rres", [ONE, theirs("i")], [mine("s"), theirs("s")]),
    ),
    "packets": lambda: plan(
        op("ppkt", [ONE, TWO], [theirs("s"), theirs("s", 3)]), op("cpkt", [ONE], [mine("s", 3)]),
        op("rppkt", [mine("s")], [theirs("s"), theirs("s", 1)]), op("upkt", [mine("s")], [ONE]),
        op("repkt", [ONE, mine("s"), mine("s", 1)], [ONE]),
        op("respkt", [ONE, mine("s")], [ONE, theirs("s")]),
        op("recpkt", [ONE, mine("s")], [ONE, mine("s", 1)]),
        op("recspkt", [ONE, mine("s")], [ONE, mine("s", 1), theirs("s", 2)]),
        op("gstorepkt", [mine("s")], [all_of("s", 3)]),
        double_scratch=True, **LL,
    ),
    "packets in half of a scratch buffer": lambda: plan(op("ppkt", [ONE], [theirs("s", 1)])),
    "a switch": lambda: plan(
        op("glres", [all_of("i", 3)], [all_of("i", 3)]), op("gstore", [ONE], [all_of("s")]),
    ),
    "threadblocks that meet and share": lambda: plan(*[
        block(replace(SHARED_COPY, tbg=Tbg(part, 2)), BARRIER, op("sem_acquire", semaphores=(0,)),
              replace(SHARED_COPY, tbg=Tbg(1 - part, 2))) for part in (0, 1)
    ]),
    "pipelines": lambda: plan(pipeline(
        op("wait", channels=(0,)), op("nop"), op("put", [mine("i", 0, 2)], [theirs("i", 2, 2)]),
        op("re", [mine("i", 0, 2), mine("s", 0, 2)], [mine("i", 0, 2)]), chunks=2, unit=1 << 20,
    )),
    "a pipeline of one iteration": lambda: plan(
        pipeline(op("upkt", [mine("s")], [ONE]), unit=1 << 20), max_bytes=1 << 22, **LL,
    ),
    "64 operations": lambda: plan(*[op("nop")] * 61),
    "out of place": lambda: plan(op("copy", [ONE], [mine("o")]), in_place=False),
}  # fmt: skip


@for_each("name", RIGHT)
def test_what_plans_may_do_is_not_objected_to(name: str) -> None:
    assert structure_findings(RIGHT[name]()) == []


@for_each("name, version", [
    (name, version) for name, row in OPERATIONS.items()
    for version in VERSIONS if VERSIONS.index(version) < VERSIONS.index(row.since)
])  # fmt: skip
def test_operations_are_refused_by_releases_before_them(name: str, version: str) -> None:
    since = OPERATIONS[name].since
    text = f"refused: .*step 3: {name} is read by MSCCL.. {since} and newer, not by {version}"
    found = structure_findings(plan(op(name), collective="custom"), version)
    mine_of = [finding for finding in found if re.search(text, str(finding))]
    assert [finding.severity for finding in mine_of] == [REJECTED]
    assert not [f for f in structure_findings(plan(op(name)), since) if "is read by" in str(f)]


def test_channels_of_the_other_type_are_no_partners() -> None:
    made = with_rank(1, channels={"memory": (Channel("memory", 0),), "port": (Channel("port", 0),)
                                  * 2}, blocks=())  # fmt: skip
    first, second = structure_findings(made)
    assert re.search("gpu 0: has 2 memory channels to rank 1, which has 1 back and more port",
                     str(first))  # fmt: skip
    assert re.search("gpu 1: has 2 port channels to rank 0, which has 1 back and more memory",
                     str(second))  # fmt: skip
    assert errors_of([first, second]) == [first, second]


def test_a_rule_tells_a_number_of_findings() -> None:
    wrong = op("copy", [mine("i", 9)], [mine("s")])
    made = plan(*[block(*[wrong] * 10)] * 20)
    found = structure_findings(made)
    assert len(found) == MAX_FOUND
    assert all("chunks 9 to 9 of the input of rank 0" in str(finding) for finding in found)


@for_each("made, size, why", [
    (plan(), 64, ""),
    (plan(), 0, ""),
    (plan(), 4 * 0x3FFFFFF0, ""),
    (plan(), 1 << 32, "make 4294967296 bytes of the input of rank 0, and offsets end below 4 GiB"),
    (plan(), 32, "32 bytes are no multiple of 64: 4 chunks that are aligned to 16"),
    (plan(), -64, "-64 bytes are not in the plan's range of 0 to 184"),
    (plan(min_bytes=64, max_bytes=128), 64, ""),
    (plan(min_bytes=64, max_bytes=128), 128, ""),
    (plan(min_bytes=64, max_bytes=128), 0, "0 bytes are not in the plan's range of 64 to 128"),
    (plan(min_bytes=64, max_bytes=128), 192, "192 bytes are not in the plan's range of 64 to 128"),
    (plan(min_bytes=1 << 31), 1 << 31, "not in the plan's range of 18446744071562067968 to"),
    (plan(alignment=0), 64, "rank 0 divides by 0: alignment, input chunks or output chunks"),
    (with_rank(1, output_chunks=0), 64, "rank 1 divides by 0"),
    (with_rank(1, output_chunks=8), 64, "chunks of input and output of rank 1 differ in size"),
    (with_rank(1, scratch_chunks=32), 1 << 29, "bytes of the scratch buffer of rank 1, and"),
    (with_rank(1, plan(reuse_resources=True), scratch_chunks=32), 1 << 29, ""),
    (plan(**LL), 1 << 30, ""),
    (plan(**LL), 1 << 31, "make 4294967296 bytes of the scratch buffer of rank 0"),
    (plan(double_scratch=True, **LL), 1 << 30, "make 4294967296 bytes of the scratch buffer"),
    (with_rank(1, with_rank(0, plan(collective="allgather"), output_chunks=8), output_chunks=8),
     64, "64 bytes are no multiple of 128: 8 chunks"),
    (with_rank(1, with_rank(0, plan(collective="allgather"), output_chunks=8), output_chunks=8),
     128, ""),
    (with_rank(1, plan(collective="custom"), input_chunks=1, output_chunks=3), 1 << 31,
     "make 6442450944 bytes of the output of rank 1"),
])  # fmt: skip
def test_calls_are_refused_as_the_executor_refuses_them(made: Plan, size: int, why: str) -> None:
    found = accepts(made, size)
    assert bool(found) == bool(why)
    assert why in found


CRASHES = "every call divides by both: it crashes"
LOST = "the rest have no partner"
PWSF = "pwsf of the newest kernel"
NO_CALLS = "nothing selects a plan for the collective 'test'"
FOUND: Mapping[str, Mapping[str, int]] = {
    "multi_node__allgather": {PWSF: 8},
    "single_node__allgather_pkt_rppkt": {"names chunks of rank 0 by its input, and others": 1},
    "unit_tests__flush__flush_test": {CRASHES: 2, "flush does nothing": 1, LOST: 1},
    "unit_tests__get__get_fuse_test": {
        CRASHES: 2, "get should copy chunk 1 to 0, and the kernel copies 0 to 1": 4,
    },
    "unit_tests__put__put_fuse_test": {CRASHES: 2},
    "unit_tests__put__put_with_signal_and_flush_test": {CRASHES: 2, PWSF: 2},
    "unit_tests__put__put_with_signal_test": {CRASHES: 2},
    "unit_tests__read_put_packet_test": {CRASHES: 2},
    "unit_tests__reduce_copy_packet_test": {CRASHES: 1},
    "unit_tests__reduce_copy_send_packet_test": {CRASHES: 2, LOST: 1},
    "unit_tests__reduce_packet__reduce_packets_test": {CRASHES: 1},
    "unit_tests__reduce_send_packet_test": {CRASHES: 2},
    "unit_tests__semaphore": {CRASHES: 1},
    "unit_tests__signal_wait__relaxed_signal_wait_fuse_test": {CRASHES: 2},
    "unit_tests__signal_wait__signal_wait_fuse_test": {CRASHES: 2},
    "unit_tests__signal_wait__signal_wait_test": {CRASHES: 2},
}  # fmt: skip
"""What is found in the plans of MSCCL++, beside that no collective is called test."""

NEWER = {
    "multi_node__reducescatter_pkt": {"0.8": 8}, "reduce_pack_tbg": {"0.8": 2},
    "single_node__allgather_nvls_zero_copy": {"0.8": 64, "0.9": 64},
    "single_node__allgather_nvls_zero_copy_pkt": {"0.8": 8, "0.9": 8},
    "unit_tests__reduce_copy_packet_test": {"0.8": 1},
    "unit_tests__reduce_copy_send_packet_test": {"0.8": 1},
}  # fmt: skip
"""How many operations of theirs older releases do not read."""


@pytest.mark.skipif(not READ, reason="the plans of MSCCL++ are not on this machine")
@for_each("name", READ or [""])
def test_plans_of_mscclpp_have_these_findings_and_no_others(name: str) -> None:
    made = read_plan((SAMPLES / f"{name}.json").read_text())
    expected = {**FOUND.get(name, {}), **({NO_CALLS: 1} if made.collective == "test" else {})}
    texts = [str(finding) for finding in structure_findings(made)]
    told = Counter(part for text in texts for part in expected if part in text)
    assert told == expected
    assert len(texts) == sum(expected.values())
    for version in VERSIONS:
        refused = [f for f in structure_findings(made, version) if f.severity is REJECTED]
        assert len(refused) == NEWER.get(name, {}).get(version, 0)
