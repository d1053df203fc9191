"""The judge beside an interpreter of plans that was written apart from it, and every interleaving.

What the judge takes for right, the oracle does, too: on plans as they are made, on plans that are
changed at random, and on random plans.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import taccl
from taccl.apps.plans import Wanted, hurried_messages
from taccl.lowering.plans import PlanOptions, plan_of, short_starts
from taccl.msccl.program import Op, errors_of
from taccl.mscclpp.interpret import judge_plan, run_findings
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.text import read_plan, write_plan
from tests.msccl.builders import make, small_schedules
from tests.mscclpp.interleavings import racy
from tests.mscclpp.mutants import mutant
from tests.mscclpp.oracle import problems
from tests.mscclpp.random_plans import random_plan
from tests.sweep import for_each

SCHEDULES = small_schedules()
SMALL = [name for name, schedule in SCHEDULES.items() if schedule.topology.num_ranks <= 3]


def lowered(name: str) -> Iterator[Plan]:
    """Yield plans of a schedule: with signals and packets, on one server and on two."""
    program = make(SCHEDULES[name], fused=frozenset(Op))
    ranks = program.num_ranks
    for servers in ((0,) * ranks, tuple(2 * rank // ranks for rank in range(ranks))):
        for packets in (False, True):
            yield plan_of(program, PlanOptions(servers, program.in_place, packets))
        yield plan_of(program, PlanOptions(servers, program.in_place, group=2))
        # What a pipeline changes is not only that a chunk is moved in two parts.
        for group in (1, 2):
            yield plan_of(
                program, PlanOptions(servers, program.in_place, unit=1 << 16, group=group)
            )
        topology = replace(SCHEDULES[name].topology, server_of=servers)
        haste = hurried_messages(program, topology, Wanted(1 << 16))
        options = PlanOptions(servers, program.in_place, late=haste.late, heard=haste.heard)
        yield plan_of(program, replace(options, early=haste.early | haste.ready))
        cut = short_starts(program, haste.early, 2)
        haste = hurried_messages(cut, topology, Wanted(1 << 16))
        yield plan_of(cut, replace(options, early=haste.early, late=haste.late, heard=haste.heard))
        yield plan_of(program, PlanOptions(servers, program.in_place, packets=True, pieces=2))


@for_each("name", sorted(SCHEDULES)[1::9], quick=4)
def test_the_oracle_finds_nothing_in_plans_that_are_made(name: str) -> None:
    for plan in lowered(name):
        assert not problems(write_plan(plan))


def test_whoever_sends_packets_hears_that_those_before_have_been_read() -> None:
    engine, runtime = "parameter-server", "executor"
    found = taccl.synthesize("hub:5", "reduce", "1KB", engine=engine, runtime=runtime)
    assert found.program is not None
    plan = plan_of(found.program, PlanOptions((0,) * 5, in_place=False, packets=True))
    assert not problems(write_plan(plan))
    told = [
        replace(rank, blocks=tuple(
            replace(block, ops=tuple(op for op in block.ops if not op.name.startswith("rlx")))
            for block in rank.blocks
        ))
        for rank in plan.ranks
    ]  # fmt: skip
    deaf = replace(plan, ranks=tuple(told))
    assert {finding.rule for finding in errors_of(judge_plan(deaf))} == {"race"}
    assert any(line.startswith("race") for line in problems(write_plan(deaf)))


@for_each("name", SMALL[::6], quick=5)
def test_what_the_judge_accepts_of_changed_plans_is_right_for_the_oracle(name: str) -> None:
    draw = random.Random(name)
    accepted, tried = 0, 0
    for plan in lowered(name):
        for _ in range(8):
            changed, tried = mutant(plan, draw), tried + 1
            if not errors_of(judge_plan(changed)):
                accepted += 1
                assert not problems(write_plan(changed)), write_plan(changed)
    # Some changes do no harm, such as a fence too many.
    assert accepted < tried * 3 / 4


def test_no_interleaving_shows_a_race_that_the_judge_misses() -> None:
    shown = 0
    for seed in range(60):
        text = random_plan(seed)
        plan = read_plan(text)
        races = {one.rule for one in run_findings(plan)}
        found = racy(text, 4000)
        shown += found is True
        assert found is not True or races, seed
        if not races and not errors_of(judge_plan(plan)):
            assert not problems(text), seed
    assert shown >= 20
