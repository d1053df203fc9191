"""What switches copy and add, as plans: right for judge and oracle, and every way to break one."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from taccl.errors import LoweringError
from taccl.lowering.plans import NEEDS, SUMS, FanOptions, asks, fan_plan
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.msccl.program import errors_of
from taccl.mscclpp.interpret import judge_plan
from taccl.mscclpp.plan import MAX_CHANNELS, MAX_OP_CHANNELS, Group, Plan, PlanOp
from taccl.mscclpp.text import read_plan, write_plan
from taccl.topology.fans import Fan, make_fans
from tests.mscclpp.mutants import mutant
from tests.mscclpp.oracle import problems
from tests.mscclpp.switches import flagged, scheduled
from tests.mscclpp.test_lowered import all_ops, changed, doubled, dropped, edited, without

CORPUS = Path(__file__).parents[3] / "shared/data/mscclpp"
WAYS = (
    ("allreduce", "nvls"), ("allgather", "nvls"), ("broadcast", "nvls"),
    ("allreduce", "nvls-one-shot"),
)  # fmt: skip


def plans(ranks: int) -> Iterator[Plan]:
    """Yield plans of every kind of fan, in place and not, alone and shared, with packets, too."""
    machine = flagged(f"hub:{ranks}")
    for (name, way), in_place, blocks in product(WAYS, (True, False), (1, 2)):
        made = scheduled(machine, name, way, chunks=2)
        yield fan_plan(made, FanOptions("fans", in_place, blocks=blocks))
        if name == "allgather" or way == "nvls-one-shot":
            yield fan_plan(made, FanOptions("fans", in_place, packets=True, blocks=blocks))


def test_fans_become_plans_that_are_right_and_read_back_as_written() -> None:
    for plan in plans(3):
        assert not errors_of(judge_plan(plan))
        text = write_plan(plan)
        assert read_plan(text) == plan
        assert not problems(text)


def test_each_fan_is_one_operation_between_two_barriers() -> None:
    machine = flagged("dgx-h100")
    plan = fan_plan(scheduled(machine, "allreduce", "nvls"), FanOptions("sum", in_place=True))
    for rank, record in enumerate(plan.ranks):
        (block,) = record.blocks
        names = [op.name for op in block.ops]
        assert names == ["rlxsignal", "rlxwait", "nop", "glres", "nop", "signal", "wait"]
        (source,), (target,) = block.ops[3].sources, block.ops[3].targets
        assert (source.index, source.size) == (target.index, target.size) == (rank, 1)
        assert [len(group.ranks) for group in record.groups] == [8]
    assert asks(plan) == (NEEDS, SUMS)
    out = fan_plan(scheduled(machine, "allreduce", "nvls"), FanOptions("sum", in_place=False))
    assert [group.buffer.value for group in out.ranks[0].groups] == ["i", "o"]
    gather = scheduled(machine, "allgather", "nvls")
    plain = fan_plan(gather, FanOptions("gather", in_place=True))
    packets = fan_plan(gather, FanOptions("gather", in_place=True, packets=True))
    assert [op.name for op in plain.ranks[5].blocks[0].ops if op.sources] == ["gstore"]
    assert asks(plain) == (NEEDS,)
    assert {op.name for op in all_ops(packets)} == {"cpkt", "gstorepkt", "upkt", "nop"}
    assert packets.double_scratch


def test_threadblocks_that_can_not_tell_all_ranks_tell_some_each_and_meet() -> None:
    for ranks, blocks in ((10, 1), (17, 1), (18, 2)):
        made = scheduled(flagged(f"hub:{ranks}"), "allreduce", "nvls")
        plan = fan_plan(made, FanOptions("sum", in_place=True, blocks=blocks))
        assert not errors_of(judge_plan(plan))
        assert max(len(op.channels) for op in all_ops(plan)) <= MAX_OP_CHANNELS
        wide = any(op.name == "barrier" for op in all_ops(plan))
        assert wide == (ranks - 1 > MAX_CHANNELS)
        for rank in plan.ranks:
            assert max(len(block.channels.get("memory", ())) for block in rank.blocks) <= 16
            assert sum(op.name == "glres" for b in rank.blocks for op in b.ops) == blocks


def test_older_versions_add_and_do_not_copy() -> None:
    machine = flagged("hub:4")
    made = scheduled(machine, "allreduce", "nvls")
    plan = fan_plan(made, FanOptions("sum", in_place=True, version="0.8"))
    assert not errors_of(judge_plan(plan, "0.8"))
    with pytest.raises(
        LoweringError, match=r"gstore is read by MSCCL\+\+ 0\.10 and newer, not by 0\.9"
    ):
        fan_plan(
            scheduled(machine, "allgather", "nvls"),
            FanOptions("gather", in_place=True, version="0.9"),
        )


def with_row(made: Schedule, *, fan: Fan | None = None) -> Schedule:
    """Return a schedule with one row more: chunk 0 from rank 0 over a link, or by a fan."""
    topology, own = made.topology, made.decisions()
    fans = [*made.fans, *([fan] if fan else [])]
    link = len(topology.links) + len(made.fans) if fan else topology.links_between(0, 1)[0]
    rows = [*own.rows(), (0, link, int(made.batch.max()) + 1, True)]
    decisions = Decisions.of(rows, None, make_fans(topology, fans))
    return retime(made.collective, made.group, made.chunk_size, decisions)


def test_what_has_no_operation_is_refused_by_its_row() -> None:
    server, fabric = flagged("hub:4"), flagged("hub:4", own=False, at_rank=False)
    nvls = scheduled(server, "allreduce", "nvls")
    two = flagged("leaf-spine:2x2x1", own=False, at_rank=False)
    for made, told in (
        (with_row(nvls), "row 4: chunk 0 takes a link from rank 0 to rank 1, and other rows take"),
        (scheduled(fabric, "allreduce", "sharp"), "turns in .*, for which MSCCL.. has no"),
        (scheduled(server, "reducescatter", "nvls"), "row 0: .* is added for rank 0 alone.*glre"),
        (scheduled(two, "allgather", "multicast-tree"), "goes over .* and .*: a switch channel"),
        (scheduled(replace(server, server_of=(0, 0, 1, 1)), "allreduce", "nvls"),
         "row 0: chunk 0 is copied or added between servers"),
    ):  # fmt: skip
        with pytest.raises(LoweringError, match=told):
            fan_plan(made, FanOptions("none", in_place=True))
    with pytest.raises(LoweringError, match="what is added has no packets"):
        fan_plan(nvls, FanOptions("none", in_place=True, packets=True))
    with pytest.raises(LoweringError, match="no plan of these fans is right: race") as refused:
        # Nobody tells the root that its packets have been read.
        fan_plan(
            scheduled(server, "broadcast", "nvls"), FanOptions("none", in_place=True, packets=True)
        )
    assert refused.value.fix == "use --protocol Simple"


def sums(*, in_place: bool = True, blocks: int = 1) -> Plan:
    made = scheduled(flagged("hub:4"), "allreduce", "nvls")
    return fan_plan(made, FanOptions("sum", in_place, blocks=blocks))


def one_shot(*, packets: bool) -> Plan:
    made = scheduled(flagged("hub:4"), "allreduce", "nvls-one-shot")
    return fan_plan(made, FanOptions("one", in_place=True, packets=packets))


def moved(op: PlanOp) -> PlanOp:
    (target,) = op.targets
    return replace(op, targets=(replace(target, index=(target.index + 1) % 4),))


def relaxed(plan: Plan) -> Plan:
    """Return a plan whose last barriers are relaxed, as those of MSCCL++'s own samples are."""

    def of(op: PlanOp) -> PlanOp:
        return replace(op, name={"signal": "rlxsignal", "wait": "rlxwait"}.get(op.name, op.name))

    return replace(plan, ranks=tuple(
        replace(rank, blocks=tuple(
            replace(block, ops=tuple(map(of, block.ops))) for block in rank.blocks
        ))
        for rank in plan.ranks
    ))  # fmt: skip


def fewer(plan: Plan) -> Plan:
    """Return a plan one of whose ranks is in no switch channel."""
    groups = tuple(Group(group.buffer, group.ranks[:3]) for group in plan.ranks[0].groups)
    return replace(plan, ranks=tuple(
        replace(rank, groups=groups if number < 3 else (), blocks=tuple(
            block if number < 3 else replace(
                block, channels={"memory": block.channels["memory"]},
                ops=tuple(op for op in block.ops if op.name != "glres"),
            )
            for block in rank.blocks
        ))
        for number, rank in enumerate(plan.ranks)
    ))  # fmt: skip


BROKEN: dict[str, tuple[Callable[[], Plan], str]] = {
    "a sum left out": (lambda: changed(sums(), dropped("glres")), "result"),
    "a sum made twice": (lambda: changed(sums(), doubled("glres")), "race"),
    "a sum stored elsewhere": (lambda: changed(sums(), edited("glres", moved)), "result"),
    "a rank that does not add": (lambda: fewer(sums()), "result"),
    "not a sum": (
        lambda: changed(sums(), edited("glres", lambda op: replace(op, reduce_op="max"))),
        "structure",
    ),
    "no beginning": (lambda: without(sums(), {"rlxsignal", "rlxwait"}), "race"),
    "no end": (lambda: without(sums(), {"signal", "wait"}), "race"),
    "an end that is relaxed": (lambda: relaxed(sums()), "race"),
    "an end that is relaxed, out of place": (lambda: relaxed(sums(in_place=False)), "race"),
    "no fence before the end": (lambda: changed(sums(), dropped("nop", 1)), "race"),
    "a signal too few": (lambda: changed(sums(), dropped("signal")), "deadlock"),
    "a share left out": (lambda: changed(sums(blocks=2), dropped("glres")), "structure"),
    "copies not waited for": (
        lambda: without(one_shot(packets=False), {"signal", "wait"}), "race",
    ),
    "packets that nobody stores": (
        lambda: changed(one_shot(packets=True), dropped("gstorepkt")), "deadlock",
    ),
    "packets without double scratch": (
        lambda: replace(one_shot(packets=True), double_scratch=False), "race",
    ),
}  # fmt: skip


def test_every_way_to_break_a_plan_on_switch_channels_is_found() -> None:
    for name, (make, rule) in BROKEN.items():
        broken = make()
        rules = {finding.rule for finding in errors_of(judge_plan(broken))}
        assert rule in rules, (name, rules)
        assert problems(write_plan(broken)), name


def test_what_the_judge_accepts_of_changed_plans_is_right_for_the_oracle() -> None:
    draw, accepted, tried = random.Random(7), 0, 0
    for plan in plans(3):
        for _ in range(4):
            other, tried = mutant(plan, draw), tried + 1
            if not errors_of(judge_plan(other)):
                accepted += 1
                assert not problems(write_plan(other)), write_plan(other)
    assert accepted < tried * 3 / 4


@pytest.mark.skipif(not CORPUS.is_dir(), reason="shared/data is not beside this checkout")
def test_plans_of_the_language_on_switch_channels_are_judged_as_they_are() -> None:
    for name, rules in {
        "single_node__allgather_nvls_zero_copy_pkt": set[str](),
        "single_node__allgather_nvls_zero_copy": {"race"},
        "single_node__allreduce_nvls_zero_copy": {"race"},
    }.items():
        text = (CORPUS / f"{name}.json").read_text()
        plan = read_plan(text)
        assert {one.rule for one in errors_of(judge_plan(plan))} == rules
        assert {line.partition(":")[0] for line in problems(text)} == rules
        # Released in the end, they are right.
        strict = plan
        for rank, record in enumerate(plan.ranks):
            blocks = []
            for block in record.blocks:
                last = max((at for at, op in enumerate(block.ops) if op.channels), default=-1)
                blocks.append(replace(block, ops=tuple(
                    replace(op, name=op.name.removeprefix("rlx")) if at > last - 3 else op
                    for at, op in enumerate(block.ops)
                )))  # fmt: skip
            ranks = list(strict.ranks)
            ranks[rank] = replace(record, blocks=tuple(blocks))
            strict = replace(strict, ranks=tuple(ranks))
        assert not errors_of(judge_plan(strict))


def test_switches_that_keep_the_own_value_at_home_make_the_same_plan() -> None:
    made = (scheduled(flagged("hub:4", own=own), "allreduce", "nvls") for own in (True, False))
    one, other = (fan_plan(each, FanOptions("sum", in_place=True)) for each in made)
    assert one == other
