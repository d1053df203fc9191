"""From a schedule to the program that is written: targets, size ranges, limits."""

from dataclasses import replace

import pytest

from taccl.apps import Lowering, Target
from taccl.apps.programs import lowering_of
from taccl.errors import InputError, LoweringError
from taccl.model.schedule import Schedule
from taccl.msccl.limits import network_findings
from taccl.msccl.run import Safe
from taccl.msccl.runtimes import RUNTIMES
from taccl.topology.file import load_topology
from tests.synth.problems import classical_schedule, problem_of


def ring_schedule(collective: str = "allgather", chunks: int = 1, ranks: int = 4) -> Schedule:
    problem = problem_of(load_topology(f"ring:{ranks}"), collective, chunks)
    schedule = classical_schedule(problem, "ring", batch=False)
    assert schedule is not None
    return schedule


def lowering(target: Target, schedule: Schedule | None = None, size: int = 1 << 20) -> Lowering:
    return Lowering(schedule or ring_schedule(), target, size, "tiny")


@pytest.mark.parametrize(
    ("size", "chunks", "instances", "element", "whole"),
    [(1000, 4, 1, 4, 992), (1000, 4, 2, 4, 992), (1000, 3, 5, 8, 960), (15, 4, 1, 4, 0)],
)
def test_a_whole_size_cuts_into_elements_for_every_chunk_and_instance(
    size: int, chunks: int, instances: int, element: int, whole: int
) -> None:
    target = Target(instances=instances, element_bytes=element)
    assert target.whole_size(size, chunks) == whole


@pytest.mark.parametrize(
    ("modes", "collective", "claimed"),
    [
        ("auto", "allgather", (True, True)),
        ("inplace", "allgather", (True, False)),
        ("outofplace", "allgather", (False, True)),
        ("both", "allgather", (True, True)),
    ],
)
def test_modes_are_those_that_are_asked_for(
    modes: str, collective: str, claimed: tuple[bool, bool]
) -> None:
    program = lowering(Target(modes=modes), ring_schedule(collective)).proved()
    assert Target(modes=modes).claimed(ring_schedule(collective)) == claimed
    assert (program.in_place, program.out_of_place) == claimed


def test_an_alltoall_serves_out_of_place_unless_told_otherwise() -> None:
    problem = problem_of(load_topology("hub:4"), "alltoall")
    schedule = classical_schedule(problem, "all-pairs", batch=False)
    assert schedule is not None
    assert Target().claimed(schedule) == (False, True)


def test_the_size_range_is_from_a_quarter_to_four_times_the_size() -> None:
    program = lowering(Target()).proved()
    assert (program.min_bytes, program.max_bytes) == (1 << 18, 1 << 22)


def test_a_size_range_that_is_given_is_kept() -> None:
    program = lowering(Target(min_bytes=1024, max_bytes=1 << 24)).proved()
    assert (program.min_bytes, program.max_bytes) == (1024, 1 << 24)


def test_an_empty_size_range_is_an_error() -> None:
    with pytest.raises(InputError, match=r"--min-bytes: the size range 2048\.\.1024 is empty"):
        lowering(Target(min_bytes=2048, max_bytes=1024)).proved()


def test_the_size_range_is_cut_where_the_program_is_not_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.apps.programs.safe_size", lambda *_: Safe(1 << 19))
    assert lowering(Target()).proved().max_bytes == 1 << 19


def test_a_program_that_is_safe_at_no_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.apps.programs.safe_size", lambda *_: Safe(0))
    with pytest.raises(LoweringError, match="deadlocks at every size") as caught:
        lowering(Target()).proved()
    assert "--min-bytes" in str(caught.value)


def test_the_best_program_is_the_fastest_by_replay() -> None:
    task = lowering(Target())
    program, time = task.best
    assert task.replay(program) == time
    assert time == min(
        task.replay(program) or time for program in (program, replace(program, name="again"))
    )


def test_a_limit_of_the_runtime_is_named_with_an_option_that_helps() -> None:
    # 8 x 64 chunks in two rings, one each way: 7 x 32 steps over each connection.
    task = lowering(Target(channels=1), ring_schedule("allgather", chunks=64, ranks=8))
    with pytest.raises(
        LoweringError, match="the program needs 4 channels, and 1 are allowed"
    ) as caught:
        task.proved()
    assert "raise --channels" in (caught.value.fix or "")


def test_a_program_is_labelled_by_what_it_is() -> None:
    schedule = ring_schedule("allgather", chunks=2)
    name = lowering_of(schedule, Target(), 1 << 20, "taccl").name
    assert name == "allgather-ring-4-taccl-k2"


def test_simple_is_written_but_where_it_hangs() -> None:
    # A broadcast or reduce between servers: see tests/msccl/test_runtime_facts.py.
    for machine in ("ndv2", "dgx2", "dgx-a100"):
        topology = load_topology(machine, nodes=2)
        for collective in ("broadcast", "reduce"):
            problem = problem_of(topology, collective)
            schedule = classical_schedule(problem, "binomial", batch=False)
            assert schedule is not None
            for runtime in RUNTIMES:
                task = Lowering(schedule, Target(runtime), 1 << 20, "tiny")
                program = task.settled().proved()
                assert program.protocol == "LL128"
                assert list(network_findings(program, topology.server_of)) == []
    alone = classical_schedule(
        problem_of(load_topology("ndv2"), "broadcast"), "binomial", batch=False
    )
    assert lowering(Target(), alone).settled().proved().protocol == "Simple"


def test_of_the_protocols_that_do_not_hang_the_faster_by_replay_is_taken() -> None:
    topology = load_topology("ndv2", nodes=2)
    schedule = classical_schedule(problem_of(topology, "broadcast"), "binomial", batch=False)
    assert schedule is not None
    both = {
        name: Lowering(schedule, Target("rccl", name), 1 << 20, "tiny").on_the_wire()
        for name in ("LL", "LL128")
    }
    auto = Lowering(schedule, Target("rccl"), 1 << 20, "tiny").settled()
    assert both["LL128"] < both["LL"]
    assert auto.on_the_wire() == both["LL128"]
    assert auto.target.protocol == "LL128"


def test_simple_that_would_hang_is_refused_when_asked_for() -> None:
    topology = load_topology("ndv2", nodes=2)
    schedule = classical_schedule(problem_of(topology, "reduce"), "binomial", batch=False)
    with pytest.raises(InputError, match="a reduce between servers hangs with Simple") as caught:
        lowering(Target(protocol="Simple"), schedule).proved()
    assert caught.value.fix == "leave --protocol out, or use LL128 or LL"
    assert lowering(Target(protocol="LL"), schedule).proved().protocol == "LL"
