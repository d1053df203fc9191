"""Messages that share edges: hand-computed times, and both replays the same."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from taccl.errors import ProgramError
from taccl.msccl.program import Program
from taccl.replay.cost import WORK, ReplayModel, floor_networks, least_costs, sharing_of
from taccl.replay.sweep import measured_bounds_of, sweep
from taccl.replay.timing import Timing
from taccl.synth.templates.nccl_kernels import exchange_program, ring_program
from taccl.topology.graph import ProgramCosts, ProtocolCosts, Topology
from tests.replay.program_builder import block, hub, network, program, ring, ring_allreduce, step
from tests.replay.random_programs import random_program, random_topology
from tests.sweep import for_each

MODEL = ReplayModel("tests", {"Simple": 1000, "LL": 1000}, {"Simple": 2, "LL": 8}, 4, measured=True)


def costs(
    launch: int = 0,
    alpha: int = 0,
    alpha_across: int = 0,
    wire: Fraction | int = 1,
    block_beta: Fraction | int = 0,
    slice_bytes: int = 1 << 20,
    slices: int = 8,
    detour: Fraction | int = 1,
    **machine: Any,  # noqa: ANN401 - any field
) -> ProgramCosts:
    row = ProtocolCosts(
        launch, alpha, alpha_across, Fraction(wire), Fraction(block_beta), slice_bytes,
        Fraction(detour),
    )  # fmt: skip
    made = ProgramCosts("tests", {"Simple": row, "LL": row}, slices=slices)
    return replace(made, **machine)


def timed(made: Program, topology: Topology, size: int, charged: ProgramCosts) -> int | None:
    """Return what both replays say, which is not below what the program takes at least."""
    timing = Timing(made, replace(topology, measured=charged), MODEL)
    compiled, plain = timing.at(size), timing.in_python(size)
    assert compiled == plain
    assert compiled.time is None or timing.least(size) <= compiled.time * (1 + 1e-9)
    return compiled.time


def sends(*sizes: Sequence[tuple[int, int]]) -> Program:
    """Return rank r sending to rank ``to`` so many chunks, on a channel each."""
    blocks: list[list[object]] = [[] for _ in sizes]
    for rank, own in enumerate(sizes):
        for channel, (to, chunks) in enumerate(own):
            blocks[rank].append(block(len(blocks[rank]), to, None, [step("s", chunks)], channel))
            blocks[to].append(block(len(blocks[to]), None, rank, [step("r", chunks)], channel))
    return program(*blocks, chunks=4)  # type: ignore[arg-type]


PAIR = network(2, [(0, 1, 700, None, 4), (1, 0, 700, None, 4)])


def test_a_message_alone_takes_launch_bytes_and_alpha() -> None:
    charged = costs(launch=1000, alpha=50)
    assert timed(sends([(1, 1)], []), PAIR, 400, charged) == 1000 + 4 * 100 + 50


def test_two_messages_share_an_edge_equally_and_alpha_holds_nothing() -> None:
    # Both take twice as long, and their alphas pass at once.
    assert timed(sends([(1, 1), (1, 1)], []), PAIR, 400, costs(alpha=50)) == 4 * 200 + 50


def test_the_longer_of_two_messages_has_the_edge_to_itself_at_the_end() -> None:
    # Until 100 bytes of each are gone they share: 800 ps; then 100 bytes alone: 400 ps.
    assert timed(sends([(1, 1), (1, 2)], []), PAIR, 400, costs()) == 800 + 400


def test_a_threadblock_limits_its_message_and_leaves_the_rest_to_others() -> None:
    # 8 ps a byte of data: alone half of the edge, two of them just all of it.
    for count in (1, 2):
        made = sends([(1, 1)] * count, [])
        assert timed(made, PAIR, 400, costs(block_beta=8)) == 800


def test_flags_on_the_wire_the_efficiency_of_edges_and_servers_are_charged() -> None:
    one = sends([(1, 1)], [])
    assert timed(one, PAIR, 400, costs(wire=2)) == 800
    assert timed(one, PAIR, 400, costs(inside=Fraction(1, 2), alpha=7, alpha_across=9)) == 800 + 7
    apart = replace(PAIR, server_of=(0, 1))
    charged = costs(inside=Fraction(1, 2), alpha=7, alpha_across=9)
    assert timed(one, apart, 400, charged) == 400 + 9
    # Through the memory of hosts bytes take longer, on the wire and in their threadblock.
    assert timed(one, apart, 400, costs(wire=2, detour=3)) == 6 * 400
    assert timed(one, apart, 400, costs(block_beta=8, detour=3)) == 3 * 800
    assert timed(one, PAIR, 400, costs(wire=2, detour=3)) == 2 * 400


def test_an_edge_of_several_peers_carries_less_and_one_of_a_single_peer_all() -> None:
    charged, machine = costs(several=Fraction(1, 2), alpha=7, alpha_across=7), hub(3, beta=4)
    to_two, to_one = sends([(1, 1), (2, 1)], [], []), sends([(1, 1), (1, 1)], [], [])
    from_two = sends([], [(0, 1)], [(0, 1)])
    assert timed(to_two, machine, 400, charged) == timed(from_two, machine, 400, charged) == 1607
    assert timed(to_one, machine, 400, charged) == 807
    apart = replace(machine, server_of=(0, 1, 2))
    assert timed(to_two, apart, 400, charged) == 807


def test_a_message_is_passed_on_slice_by_slice() -> None:
    line = network(3, [(0, 1, 0, None, 4), (1, 2, 0, None, 4), (2, 0, 0, None, 4)])
    made = program(
        [block(0, 1, None, ["s"])], [block(0, 2, 0, ["rcs"])], [block(0, None, 1, ["r"])]
    )
    for slices, time in ((1, 800), (2, 600), (4, 500)):
        assert timed(made, line, 100, costs(slice_bytes=25, slices=slices)) == time
    # Slices are no smaller than slice_bytes: here 100 bytes are three of 33 1/3, of 133 1/3 ps.
    assert timed(made, line, 100, costs(slice_bytes=33, slices=4)) == 4 * 134


def test_flags_are_seen_later_and_local_work_takes_its_time() -> None:
    waits = program([
        block(0, None, None, [step("cpy", posts=True)]),
        block(1, None, None, [step("re", wait=(0, 0))]),
    ], [])  # fmt: skip
    charged = costs(flag=30, copy_beta=Fraction(2), reduce_beta=Fraction(3))
    assert timed(waits, PAIR, 100, charged) == 200 + 30 + 300


def test_no_slot_no_message() -> None:
    # Two slots: the third message begins when the first is received, which waits for a flag.
    made = program(
        [block(0, 1, None, ["s", "s", "s"])],
        [
            block(0, None, 0, [step("r", wait=(1, 0)), step("r"), step("r")]),
            block(1, None, None, [step("re", posts=True)]),
        ],
    )
    assert timed(made, PAIR, 100, costs(reduce_beta=Fraction(1000))) == 100_000 + 400


@for_each("slices", (1, 3, 8))
def test_both_replays_of_random_programs_are_equal(slices: int) -> None:
    times = []
    for seed in range(60):
        rng = random.Random(f"shared {slices} {seed}")
        topology, made = random_topology(rng), random_program(rng)
        charged = costs(
            rng.randrange(100), rng.randrange(900), rng.randrange(2000),
            Fraction(rng.randrange(100, 300), 100), rng.choice((0, Fraction(7, 3))),
            rng.choice((8, 40)), slices, rng.choice((1, Fraction(5, 2))),
            inside=Fraction(rng.randrange(1, 100), 100), across=Fraction(9, 10),
            several=Fraction(rng.randrange(50, 101), 100),
            flag=rng.choice((0, 70, 5000)),
            copy_beta=Fraction(rng.randrange(3)), reduce_beta=Fraction(rng.randrange(3), 7),
        )  # fmt: skip
        size = 16 * rng.choice((rng.randint(1, 200), rng.randint(200, 2000)))
        times.append(timed(replace(made, protocol="LL"), topology, size, charged))
    assert 0 < times.count(None) < len(times) / 2


def test_iterations_that_repeat_are_skipped_and_the_time_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, topology = ring_allreduce(4), ring(4)
    charged = costs(alpha=300, slice_bytes=64, slices=4, reduce_beta=Fraction(1), flag=40)
    timing = Timing(made, replace(topology, measured=charged), MODEL)
    whole = timing.at(4 * 1000 * 150)
    assert whole.extrapolated == 0
    monkeypatch.setattr("taccl.replay.timing.SHARED_EXTRAPOLATED_ABOVE", 0)
    skipped = timing.at(4 * 1000 * 150)
    assert skipped.extrapolated > 50
    assert (skipped.time, skipped.messages) == (whole.time, whole.messages)
    assert skipped.edge_busy == whole.edge_busy


def test_without_measured_costs_there_is_no_measured_time() -> None:
    with pytest.raises(ProgramError, match="net has no measured costs"):
        Timing(sends([(1, 1)], []), PAIR, MODEL).at(400)
    only = replace(PAIR, measured=replace(costs(), protocols={"LL": costs().protocols["LL"]}))
    with pytest.raises(ProgramError, match="no measured costs of protocol 'Simple'"):
        Timing(sends([(1, 1)], []), only, MODEL).at(400)


def test_rates_are_whole_and_nearly_exact() -> None:
    capacity = sharing_of(replace(PAIR, measured=costs()), "Simple").capacity
    assert capacity.tolist() == [WORK // 4, WORK // 4]


def test_no_program_is_faster_than_the_bound_of_its_least_costs() -> None:
    tight = []
    for seed in range(40):
        rng = random.Random(f"bound {seed}")
        topology = hub(rng.randrange(2, 6), alpha=2 * rng.randrange(300))
        ranks = topology.num_ranks
        charged = costs(
            rng.randrange(100), rng.randrange(900), rng.randrange(900, 2000),
            Fraction(rng.randrange(100, 300), 100), 0, rng.choice((8, 1 << 20)),
            inside=Fraction(rng.randrange(20, 100), 100), flag=rng.choice((0, 70)),
            several=Fraction(rng.randrange(50, 101), 100),
        )  # fmt: skip
        orders = [tuple(range(ranks)), tuple(range(ranks - 1, -1, -1))][: rng.randrange(1, 3)]
        for made in (
            ring_program(rng.choice(("allgather", "allreduce", "reducescatter")), orders, "LL"),
            exchange_program(ranks, 1, "LL"),
        ):
            size = made.chunks_per_loop * 4 * rng.randrange(1, 500)
            machine = replace(topology, measured=charged)
            (row,) = sweep([("", made)], machine, [size], MODEL)
            assert row.bound is not None
            assert row.time is not None
            assert row.bound <= row.time
            tight.append(row.bound / row.time)
    assert max(tight) > 0.9


def test_no_protocol_is_charged_the_least_of_others() -> None:
    # LL starts soon and doubles the bytes, Simple the other way round.
    made = costs(launch=100, alpha=9, wire=Fraction(2))
    simple = replace(made.protocols["LL"], launch=4100, wire=Fraction(1))
    both = replace(made, protocols={"LL": made.protocols["LL"], "Simple": simple})
    least = [least_costs(PAIR, both), *floor_networks(PAIR, both)]
    at = [measured_bounds_of(networks, "broadcast", 0) for networks in ([least[0]], least[1:])]
    for size, launch, wire in ((400, 100, 2), (4000, 4100, 1)):
        found = [bound(size) for bound in at]
        assert [one[1] for one in found if one] == [109 + 4 * size, launch + 9 + 4 * wire * size]


def test_measured_costs_bound_nothing_else() -> None:
    apart, half = replace(PAIR, server_of=(0, 1)), Fraction(1, 2)
    for pair, alpha, inside, across in ((PAIR, 9, half, 1), (apart, 5, 1, half)):
        low = least_costs(pair, costs(7, 9, 5, inside=inside, across=across))
        assert (low.local.launch, low.alpha_rule) == (7, "delay")
        for edge in low.edges:
            assert (edge.alpha, edge.overhead, edge.beta) == (alpha, 0, Fraction(8))
