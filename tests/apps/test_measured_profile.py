"""Searching, tuning and comparing with what a machine was measured to cost."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import chain, product
from pathlib import Path

import numpy as np
import pytest

from taccl.apps import Request, Synthesis, Target, load_network, programs, synthesis, synthesize
from taccl.apps.comparison import Question, compare
from taccl.apps.inputs import MachineOptions, charged
from taccl.apps.programs import lowering_of
from taccl.apps.synthesis import counts_of
from taccl.bounds import any_bounds, best
from taccl.collectives import build_collective
from taccl.errors import InputError
from taccl.model.problem import Problem, Status, problem_of
from taccl.msccl.interpret import judge
from taccl.msccl.program import Op
from taccl.replay.cost import (
    WORK,
    charged_network,
    floor_networks,
    inside_servers,
    model_of,
    sharing_of,
)
from taccl.replay.sweep import measured_bounds_of
from taccl.replay.timing import traces
from taccl.synth.search import Attempt, Search
from taccl.synth.templates.classical import classical_schedules, textbook_schedule
from taccl.timing.deadline import Deadline
from taccl.topology.file import load_topology, shipped_file
from taccl.topology.graph import ProgramCosts, ProtocolCosts, Topology, whole
from taccl.topology.symmetry import make_group
from tests.generators import pair, twin2x2

LL = ProtocolCosts(
    launch=5000, alpha=100, alpha_across=700, wire=Fraction(2), detour=Fraction(3)
)  # fmt: skip
SIMPLE = ProtocolCosts(launch=9000, alpha=400, alpha_across=900, block_beta=Fraction(3))
COSTS = ProgramCosts(
    "a test", {"Simple": SIMPLE, "LL": LL}, inside=Fraction(1, 2), across=Fraction(4, 5)
)


def with_costs(topology: Topology) -> Topology:
    return replace(topology, measured=COSTS)


def measured(size: str, collective: str = "allgather", **how: object) -> Synthesis:
    target = Target(instances=None, **how)  # type: ignore[arg-type]
    request = Request(
        load_network("dgx-h100"), collective, int(size), engine="all-pairs", target=target,
        measured=True, time_limit=20.0,
    )  # fmt: skip
    return synthesize(request)


def test_a_message_costs_what_its_protocol_was_measured_to_cost() -> None:
    for topology, (name, own) in product((pair(), twin2x2()), COSTS.protocols.items()):
        known = with_costs(topology)
        made = charged_network(known, name)
        servers = known.server_of
        for link in range(len(made.links)):
            src, dst = int(made.links.src[link]), int(made.links.dst[link])
            inside = servers[src] == servers[dst]
            assert made.links.alpha[link] == (own.alpha if inside else own.alpha_across)
            assert made.links.overhead[link] == 0
        assert made.alpha_rule == "delay"
        for old, new in zip(known.edges, made.edges, strict=True):
            if old.beta is not None:
                within = inside_servers(known)[old.id]
                part = 1 / COSTS.inside if within else own.detour / COSTS.across
                assert new.beta == old.beta * own.wire * part
        # Programs are charged the same on both.
        for protocol in COSTS.protocols:
            one, other = sharing_of(known, protocol), sharing_of(made, protocol)
            assert np.array_equal(one.capacity, other.capacity)
            assert (one.wire, one.alpha, one.local) == (other.wire, other.alpha, other.local)
            assert one.wire == WORK * COSTS.protocols[protocol].wire


def test_a_schedule_lasts_as_long_as_its_messages_by_hand() -> None:
    # pair: one message each way, 1000 bytes of beta ps each, doubled by LL, half a link is left.
    topology = charged_network(with_costs(pair()), "LL")
    collective = build_collective("allgather", 2, 1)
    problem = Problem(whole(topology), collective, Fraction(1000), make_group(topology, ()))
    schedule = textbook_schedule(problem, "ring", batch=True)
    assert schedule is not None
    beta = pair().edges[0].beta
    assert beta is not None
    assert schedule.makespan == 100 + 1000 * beta * 2 * 2


def test_small_sizes_take_ll_and_large_ones_do_not() -> None:
    small, large = measured("65536"), measured("67108864")
    assert small.program is not None
    assert large.program is not None
    assert small.program.protocol == "LL"
    assert large.program.protocol != "LL"
    for found in (small, large):
        topology = load_network("dgx-h100").topology
        assert topology.measured is not None
        model = replace(model_of("portable"), measured=True)
        (trace,) = traces(found.program, topology, [found.size], model)  # type: ignore[arg-type]
        assert trace.time == found.replay
        floors = floor_networks(topology, topology.measured)
        bound = measured_bounds_of(floors, "allgather")(found.size)
        assert bound is not None
        assert bound[1] == found.bound.time
        assert found.time >= found.bound.time
        assert found.status is not Status.OPTIMAL
        assert not judge(found.program, "portable")  # type: ignore[arg-type]


def test_a_file_for_a_range_of_sizes_serves_the_powers_of_two_in_it() -> None:
    # 7 812 elements of a chunk would be cut into seven.
    exact = Target(instances=None, measured=True)
    ranged = replace(exact, min_bytes=1 << 16)
    assert exact.whole_size(1_000_000, 8) == 1_000_000  # 31 250 elements
    assert [ranged.whole_size(1_000_000, count) for count in (8, 32)] == [999_424, 999_424]
    assert exact.whole_size(1_000_000, 32) == 999_424
    assert ranged.whole_size(1 << 20, 32) == 1 << 20
    assert ranged.whole_size(100, 8) == 96
    found = measured("1000000", min_bytes=1 << 16, max_bytes=1 << 26)
    assert found.program is not None
    for size in (1 << power for power in range(16, 27)):
        assert size % (found.program.chunks_per_loop * 4) == 0


def test_of_all_protocols_and_instances_a_plain_program_is_the_fastest_as_chosen() -> None:
    chosen = measured("4194304")
    asked = [measured("4194304", protocol=protocol).time for protocol in ("Simple", "LL", "LL128")]
    assert chosen.time == min(asked)


def test_a_ring_whose_steps_pass_on_slices_takes_half_of_what_its_schedule_does() -> None:
    # In LL and sixteen instances; store and forward, a ring's schedule takes over twice as long.
    logical = load_network("dgx-h100")
    topology = charged(logical, build_collective("allreduce", 8, 1), 1 << 20, ("LL",)).topology
    problem = problem_of(topology, build_collective("allreduce", 8, 1), 1 << 20)
    ring, *_ = classical_schedules(problem, "ring", batch=True)
    target = Target("executor", instances=None, measured=True)
    chosen = lowering_of(ring, target, 1 << 20, "ring").settled()
    assert (chosen.target.protocol, chosen.target.instances) == ("LL", 16)
    assert 2 * chosen.best[1] < ring.makespan
    # One that takes too long anyway is not improved.
    left = lowering_of(ring, target, 1 << 20, "ring", enough=1).settled()
    assert left.made is not None
    assert left.best[1] >= chosen.best[1]


def test_instances_of_several_rings_take_all_threadblocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of four rings has wires of its own in an MI250, whose threadblocks move 4 GB/s:
    # eight instances take all 64 of a rank, once each link has as many as it has to send.
    logical, size = load_network("mi250"), 64 * 10**6
    collective, target = build_collective("allreduce", 16, 4), Target(instances=None, measured=True)
    topology = charged(logical, collective, size, ("Simple",)).topology
    rings, *_ = classical_schedules(problem_of(topology, collective, size), "ring", batch=True)
    # What is known takes less than half of what the first program does, and is beaten.
    enough = 1_822_000_000
    chosen = lowering_of(rings, target, size, "ring", enough=enough).settled()
    assert chosen.target.instances == 8
    assert max(len(gpu.threadblocks) for gpu in chosen.best[0].gpus) == 64
    assert 3 * chosen.best[1] < 2 * enough
    monkeypatch.setattr(programs, "SPREAD", 0)
    monkeypatch.setattr(programs, "_has_rings", lambda _: False)
    alone = lowering_of(rings, target, size, "ring").settled()
    assert 3 * chosen.best[1] < 2 * alone.best[1]


def test_where_threadblocks_are_slow_those_that_receive_send_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Eight rings of eight instances each: with threadblocks that only send there are four.
    logical, size = load_network("mi250"), 64 * 10**6
    collective, target = build_collective("allgather", 16, 8), Target(instances=None, measured=True)
    topology = charged(logical, collective, size, ("Simple",)).topology
    rings, *_ = classical_schedules(problem_of(topology, collective, size), "ring", batch=True)
    chosen = lowering_of(rings, target, size, "ring").settled()
    program, time = chosen.best
    assert (chosen.joined, chosen.target.instances) == (True, 8)
    assert all(None not in (one.send_to, one.recv_from) for _, one in program.blocks())
    assert judge(chosen.proved(), "portable") == []
    for name, value in (("JOINED", 1), ("_is_safe", lambda *_: False)):
        with monkeypatch.context() as patch:
            patch.setattr(programs, name, value)
            alone = lowering_of(rings, target, size, "ring").settled()
            assert (alone.joined, alone.target.instances) == (False, 4)
            assert 6 * time < 5 * alone.best[1]
    # Where all send to all, each link has one message of a series in each phase: no rings.
    network = load_network("dgx-h100").topology
    near = build_collective("allreduce", 8, 4)
    pairs, *_ = classical_schedules(problem_of(network, near, size), "all-pairs", batch=True)
    assert not lowering_of(pairs, target, size, "all-pairs").settled().spread


def test_sums_are_aside_where_threadblocks_would_have_too_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Thirty messages in and out, and fifteen sums, in six rings: 75 steps where 64 are allowed.
    logical, size = load_network("mi250"), 64_512_000
    collective, target = build_collective("allreduce", 16, 6), Target(instances=None, measured=True)
    topology = charged(logical, collective, size, ("Simple",)).topology
    rings, *_ = classical_schedules(problem_of(topology, collective, size), "ring", batch=True)
    chosen = lowering_of(rings, target, size, "ring").settled()
    assert (chosen.aside, chosen.joined, chosen.target.instances) == (True, True, 8)
    program, time = chosen.best
    # Of each instance six pass data round, and two add.
    adding = [
        all(step.op is Op.REDUCE for step in one.steps) for one in program.gpus[0].threadblocks
    ]
    assert (sum(adding), len(adding)) == (2 * 8, 8 * 8)
    assert judge(chosen.proved(), "portable") == []
    monkeypatch.setattr(programs, "sums_aside", lambda _: 0)
    alone = lowering_of(rings, target, size, "ring").settled()
    assert not alone.aside
    assert 3 * time < 2 * alone.best[1]


def test_where_a_file_has_no_room_for_the_most_instances_it_has_one_less() -> None:
    # Six rings have threadblocks for ten instances, of three channels each.
    logical, size = load_network("mi250"), 62_208_000
    collective = build_collective("allgather", 16, 6)
    topology = charged(logical, collective, size, ("Simple",)).topology
    rings, *_ = classical_schedules(problem_of(topology, collective, size), "ring", batch=True)
    for runtime, channels, instances in (("portable", 29, 9), ("portable", None, 10)):
        target = Target(runtime, instances=None, channels=channels, measured=True)
        chosen = lowering_of(rings, target, size, "ring").settled()
        assert (chosen.joined, chosen.target.instances) == (True, instances)
    wide = lowering_of(rings, Target("rccl"), size, "ring").options_for("Simple")
    assert wide.channels == 128


def test_several_rings_come_first_where_each_has_wires_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def caught(search: Search) -> list[Attempt]:
        raise InputError(str(dict(search.own_counts)), fix=str(search.ranking[:1]))

    monkeypatch.setattr(synthesis, "portfolio", caught)
    rings = [
        # Six lanes of its wires leave two of its ranks.
        ("{'ring': \\(6, 4, 3\\)}", "mi250", "allreduce", 1, 64, 20, True),
        ("{'ring': \\(6, 4, 3\\)}", "mi250", "allgather", 1, 64, 20, True),
        ("{'ring': \\(4, 3\\)}", "mi250", "allgather", 1, 20, 20, True),
        ("{'ring': \\(8,\\)}", "mi250", "allgather", 2, 64, 10, True),
        ("{'ring': \\(8,\\)}", "mi250", "reducescatter", 2, 64, 20, True),
        ("{'ring': \\(16, 8\\)}", "mi250", "allgather", 2, 1000, 20, True),
        ("{'hierarchical': \\(3, 2\\)}", "mi250", "allreduce", 2, 64, 10, True),
        ("{'hierarchical': \\(2,\\)}", "mi250", "allreduce", 2, 64, 5, True),
    ]
    others = [
        ("{}", "mi250", "allreduce", 1, 8, 20, True), ("{}", "mi250", "allgather", 2, 16, 20, True),
        # What takes longer to lower than there is time for is not tried.
        ("{}", "mi250", "reducescatter", 2, 64, 10, True),
        ("{}", "mi250", "allgather", 2, 64, 5, True),
        ("{}", "dgx-h100", "allreduce", 1, 64, 20, True),
        ("{}", "mi250", "allreduce", 1, 64, 20, False),
        ("{}", "mi250", "alltoall", 1, 64, 20, True),
    ]  # fmt: skip
    for found, machine, collective, nodes, megabytes, seconds, by_measured in (*rings, *others):
        request = Request(
            load_network(machine, MachineOptions(nodes=nodes)), collective, megabytes * 10**6,
            target=Target(instances=None), measured=by_measured, time_limit=seconds,
        )  # fmt: skip
        with pytest.raises(InputError, match=found) as told:
            synthesize(request)
        name = str(told.value).split("'")[1] if found != "{}" else ""
        assert told.value.fix == f"('{name}',)" or not name


def test_where_sums_take_long_algorithms_try_as_many_chunks_as_programs_have_steps_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(
        machine: str, collective: str, size: int, chunks: int | None = None
    ) -> tuple[int, ...]:
        def caught(search: Search) -> list[Attempt]:
            own = {name: tuple(counts) for name, counts in search.own_counts.items()}
            assert own.pop("hierarchical-ring", (2, 4)) == (2, 4), "round rings in servers"
            assert len(set(own.values())) < 2
            others = [counts for counts in own.values() if counts != search.series.counts]
            raise InputError(str(others))

        monkeypatch.setattr(synthesis, "portfolio", caught)
        request = Request(
            load_network(machine, MachineOptions(nodes=2)), collective, size, measured=True,
            target=Target(instances=None), time_limit=20.0, chunks=chunks,
        )  # fmt: skip
        with pytest.raises(InputError) as told:
            synthesize(request)
        return tuple(int(one) for one in re.findall("[0-9]+", str(told.value)))

    assert asked("dgx-a100", "reducescatter", 256_000_000)[0] == 10, "12 leaves a rest"
    assert asked("dgx-a100", "reducescatter", 12 * 4 * 16 * 40_000)[0] == 12
    assert asked("dgx-a100", "allreduce", 1 << 26)[0] == 8
    assert asked("dgx-a100", "allreduce", 1 << 26, chunks=4) == (), "so many are asked for"
    assert asked("dgx-a100", "reducescatter", 1 << 16) == (), "a flag takes longer than adding"
    assert asked("dgx-h100", "reducescatter", 1 << 26) == ()
    assert asked("mi300x", "reducescatter", 1 << 26)[0] == 8
    assert asked("mi300x", "allreduce", 1 << 26) == (), "sums are faster than what peers send"
    assert asked("dgx-a100", "allgather", 1 << 26) == ()
    assert asked("dgx2", "allreduce", 1 << 26) == (4, 2), "parts cross, of many ranks"
    assert asked("dgx2", "allreduce", 1 << 20) == ()


def test_no_algorithm_tries_chunks_of_less_than_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    def caught(search: Search) -> list[Attempt]:
        own = chain(*search.own_counts.values())
        raise InputError(f"at most {max(own, default=0)}")

    monkeypatch.setattr(synthesis, "portfolio", caught)
    logical = load_network("dgx-h100", MachineOptions(nodes=2))
    for size, most in ((128, 2), (256, 4)):  # 16 ranks, elements of 4 bytes
        request = Request(
            logical, "allgather", size, measured=True, target=Target(instances=None),
            deterministic=True,
        )  # fmt: skip
        with pytest.raises(InputError, match=f"at most {most}"):
            synthesize(request)


def test_algorithms_are_ranked_in_as_many_chunks_as_are_tried_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def caught(search: Search) -> list[Attempt]:
        raise InputError(str(search.ranking[0]))

    monkeypatch.setattr(synthesis, "portfolio", caught)
    request = Request(
        load_network("dgx-a100", MachineOptions(nodes=2)), "allreduce", 1 << 26, measured=True,
        target=Target(instances=None), time_limit=20.0,
    )  # fmt: skip
    with pytest.raises(InputError, match="hierarchical"):
        synthesize(request)


def test_a_protocol_is_not_left_out_where_many_instances_of_it_do_not_fit() -> None:
    # The least load is that of 32 instances, which need more threadblocks than there may be.
    for machine, nodes, protocol in (("mi250", 1, "LL"), ("dgx-a100", 2, "LL")):
        logical = load_network(machine, MachineOptions(nodes=nodes))
        collective, target = build_collective("allgather", 16, 1), Target(measured=True)
        known = target.protocols("allgather", logical.topology)
        topology = charged(logical, collective, 4096, known).topology
        problem = problem_of(topology, collective, 4096)
        flooding, *_ = classical_schedules(problem, "flooding", batch=True)
        times = {
            (name, count): lowering_of(
                flooding, replace(target, instances=count, protocol=name), 4096, "flooding"
            ).best[1]
            for name, count in product(known, (1, 2))
        }
        free = replace(target, instances=None)
        chosen = lowering_of(flooding, free, 4096, "flooding").settled()
        assert chosen.target.protocol == protocol == min(times, key=lambda way: times[way])[0]
        assert chosen.best[1] <= min(times.values())


def test_the_protocol_is_chosen_by_programs_whose_sends_are_in_order() -> None:
    # First programs of halving-doubling are faster in LL128, those in the order of ports in Simple.
    logical = load_network("dgx-h100")
    collective, size = build_collective("allgather", 8, 1), 1 << 26
    topology = charged(logical, collective, size, ("Simple",)).topology
    doubling, *_ = classical_schedules(
        problem_of(topology, collective, size), "halving-doubling", batch=True
    )
    free = Target(instances=None, measured=True)
    chosen = lowering_of(doubling, free, size, "halving-doubling").settled()
    assert chosen.target.protocol == "Simple"
    other = replace(free, instances=4, protocol="LL128")
    assert chosen.best[1] < lowering_of(doubling, other, size, "halving-doubling").best[1]


def test_what_posts_too_early_in_one_protocol_waits_in_its_first_program() -> None:
    # On rccl a send of LL is over for others before it has read, that of Simple is not.
    logical, size = load_network("mi300x"), 1024
    collective = build_collective("allreduce", 8, 1)
    topology = charged(logical, collective, size, ("LL",)).topology
    problem = problem_of(topology, collective, size)
    one_shot, *_ = classical_schedules(problem, "one-shot", batch=True)
    target = Target("rccl", instances=None, measured=True)
    first = lowering_of(one_shot, target, size, "one-shot", over=lambda: True).settled()
    assert first.target.protocol == "LL"
    assert first.proved() == replace(first.best[0], max_bytes=first.proved().max_bytes)


def test_one_threadblock_adds_what_all_others_send() -> None:
    # Seven threadblocks that add in turn would each wait for the flag of the one before.
    topology = load_network("dgx-h100").topology
    assert topology.measured is not None
    request = Request(
        load_network("dgx-h100"), "allreduce", 1024, engine="one-shot", target=Target(),
        measured=True, time_limit=20.0,
    )  # fmt: skip
    found = synthesize(request)
    assert found.program is not None
    for gpu in found.program.gpus:
        adding = [
            block for block in gpu.threadblocks if any(s.op is Op.REDUCE for s in block.steps)
        ]
        assert [sum(s.op is Op.REDUCE for s in block.steps) for block in adding] == [7]
    own = topology.measured.protocols[found.program.protocol]
    assert found.time < own.launch + own.alpha + 2 * topology.measured.flag
    assert not judge(found.program, "portable")


def test_bounds_hold_for_the_schedule_that_engines_search_on() -> None:
    known = with_costs(twin2x2())
    for protocol, name in product(COSTS.protocols, ("allgather", "alltoall", "allreduce")):
        network = whole(charged_network(known, protocol))
        collective = build_collective(name, 4, 1)
        problem = Problem(network, collective, Fraction(4096), make_group(network.topology, ()))
        floor = best(any_bounds(network, collective, 4096 * collective.chunks_in_size)).time
        found = [
            textbook_schedule(problem, algorithm, batch=True)
            for algorithm in ("ring", "all-pairs", "hierarchical")
        ]
        times = [schedule.makespan for schedule in found if schedule is not None]
        assert times
        assert min(times) >= floor


def test_a_machine_without_measured_costs_is_refused() -> None:
    with pytest.raises(InputError, match="ring-4 has no measured costs"):
        synthesize(Request(load_network("ring:4"), "allgather", 1024, measured=True))


def test_nccl_runs_its_own_kernels_beside_the_rest() -> None:
    topology = load_network("dgx-h100").topology
    collective = build_collective("allreduce", 8, 1)
    question = Question(topology, collective, (65536, 1 << 22), measured=True)
    found = compare(replace(question, runtime="portable"))
    kinds = {one.name: one.kind for one in found.contenders}
    assert kinds["nccl-ring"] == kinds["nccl-tree"] == "nccl"
    assert found.rules == "measured costs"
    for place, bound in enumerate(found.bounds):
        assert bound is not None
        times = [one.time(place) for one in found.contenders if one.kind != "nccl-way"]
        assert all(time is None or time >= bound[1] for time in times)
    # What needs one step is faster than a ring of seven where messages are small.
    by_name = {one.name: one for one in found.contenders}
    ring, doubling = by_name["nccl-ring"].time(0), by_name["recursive-doubling"].time(0)
    assert ring is not None
    assert doubling is not None
    assert doubling < ring


def test_where_threadblocks_pass_on_pieces_four_chunks_come_first() -> None:
    def first(machine: str, collective: str, size: int, nodes: int = 2) -> int:
        logical = load_network(machine, MachineOptions(nodes=nodes))
        target = Target("executor", instances=None)
        request = Request(logical, collective, size, target=target, measured=True)
        built = build_collective(collective, logical.topology.num_ranks, 1)
        return counts_of(request, built, Deadline.after(10.0))[0][0]

    large = 1 << 26
    assert first("dgx-a100", "allreduce", large) == 4
    assert first("dgx-h100", "reducescatter", large, 1) == 4
    assert first("dgx-a100", "allgather", large) == 4, "passed on between servers"
    assert first("dgx-a100", "allgather", large, 1) == 1, "nothing is added, nor passed on"
    assert first("dgx-a100", "allreduce", 1 << 10) == 1, "a piece is less than a latency"
    assert first("dgx-a100", "allreduce", large, 4) == 1, "many ranks take long to judge"
    assert first("mi250", "allreduce", large, 1) == 1, "ranks are not next to one another"
    # Four chunks, or eight, leave an odd number of elements, so that instances could not be chosen;
    # five leave 12500, and four instances fill links.
    assert first("dgx-a100", "allreduce", 4_000_000) == 5


def test_costs_below_what_bounds_charge_are_refused(tmp_path: Path) -> None:
    text = Path(shipped_file("dgx-h100", "topologies", "topology")).read_text("utf-8")
    cases = (
        ("  several: 0.833", "  several: 1.5", "measured.several: should be a part of at most 1"),
        ("detour: 5", "detour: 0.5", "detour: should be a factor of at least 1, got 0.5"),
    )
    for old, new, told in cases:
        path = tmp_path / "machine.yaml"
        path.write_text(text.replace(old, new, 1), "utf-8")
        with pytest.raises(InputError, match=told):
            load_topology(str(path))
