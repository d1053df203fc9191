"""What rings both ways, trees, Bruck, folding, servers and parameter servers take, exactly."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.errors import NoAlgorithmError, NoScheduleError
from taccl.synth.templates.classical import classical_schedules, run_classical
from taccl.synth.templates.rings import ring_orders
from taccl.synth.templates.trees import parents, two_trees
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.verify import verify
from tests.generators import build
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of

ALPHA, BETA = 700_000, 20 * 1000
"""The default link of the short forms, and a chunk on it: 0.7 us, 1000 bytes at 20 ps."""

INSIDE, ACROSS = 703_334, 1_740_000
"""A chunk of 1000 bytes by NVSwitch and by NIC of a DGX A100."""


def times(
    topology: Topology, collective: str, name: str, chunks: int = 1, most_peers: int | None = None
) -> list[int]:
    """Return the makespans of an algorithm's schedules, which must be correct."""
    problem = replace(problem_of(topology, collective, chunks), most_peers=most_peers)
    found = classical_schedules(problem, name, batch=True)
    assert all(verify(schedule, problem.logical) == [] for schedule in found)
    return [schedule.makespan for schedule in found]


@for_each("rule", ["occupy", "delay"])
@for_each(("ranks", "hops"), [(3, 1), (5, 2), (6, 3), (8, 4)])
@for_each(("collective", "phases"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)])
def test_chunks_go_half_round_a_ring_each_way(
    collective: str, phases: int, ranks: int, hops: int, rule: str
) -> None:
    topology = load_topology(f"ring:{ranks}").with_alpha_rule(rule)
    assert times(topology, collective, "double-ring") == [phases * hops * (ALPHA + BETA)]


def test_half_of_the_chunks_go_all_round_a_ring_each_way() -> None:
    # Of two chunks a rank, 7 messages of one; half round it would be 4 messages of two.
    found = times(load_topology("ring:8"), "allgather", "double-ring", chunks=2)
    assert found == [4 * (ALPHA + 2 * BETA), 7 * (ALPHA + BETA)]


@for_each(("collective", "phases"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)])
def test_several_chunks_go_round_as_many_rings(collective: str, phases: int) -> None:
    """A DGX-1V has six lanes at every GPU: wires of one lane have a chunk each time, others two."""
    topology = load_topology("dgx1v")
    alpha, beta = 700_000, 40 * 1000
    found = times(topology, collective, "ring", chunks=6)
    assert phases * 7 * (2 * alpha + beta) in found


def test_chunks_share_few_rings() -> None:
    # Both ways round eight ranks: of three chunks one goes one way and two the other.
    found = times(load_topology("ring:8"), "allgather", "ring", chunks=3)
    assert 7 * (ALPHA + 2 * BETA) in found


def test_a_ring_has_an_order_without_the_slow_wires() -> None:
    # Wires of 1 ps a byte join 0-2-1-3-0; those of rank order 0-1 and 2-3 are ten times as slow.
    fast, slow = [(0, 2), (2, 1), (1, 3), (3, 0)], [(0, 1), (2, 3)]
    hops = [
        (*ends, 0, None, Fraction(beta))
        for pairs, beta in ((fast, 1), (slow, 10))
        for a, b in pairs
        for ends in ((a, b), (b, a))
    ]
    problem = problem_of(build("crossed", 4, hops), "allgather")
    best = ring_orders(problem)[0]
    assert {*zip(best, (*best[1:], best[0]), strict=True)} in (
        {*fast}, {(b, a) for a, b in fast}
    )  # fmt: skip
    assert times(problem.topology, "allgather", "ring")[0] == 3 * 1000


@for_each(("collective", "phases"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)])
@for_each(("ranks", "rounds", "rule"), [(2, 1, "delay"), (3, 2, "occupy"), (8, 3, "delay")])
def test_bruck_takes_log2_rounds_for_any_number_of_ranks(
    collective: str, phases: int, ranks: int, rounds: int, rule: str
) -> None:
    topology = load_topology(f"hub:{ranks}").with_alpha_rule(rule)
    formula = phases * (rounds * ALPHA + (ranks - 1) * BETA)
    assert times(topology, collective, "bruck") == [formula]


@for_each(("collective", "sent"), [("alltoall", 10), ("allgather", 7), ("allreduce", 14)])
def test_peers_that_are_too_many_get_what_is_theirs_by_relays(collective: str, sent: int) -> None:
    # Of 7 peers 4 are near; a gather's relay has the chunk anyway, an alltoall's sends 3 again.
    hub = load_topology("hub:8")
    assert times(hub, collective, "all-pairs", most_peers=4) == [sent * (ALPHA + BETA)]
    assert times(hub, collective, "all-pairs", most_peers=2) == []  # more than two hops


def test_where_peers_are_too_many_bruck_goes_through_larger_digits() -> None:
    # 3 and 2 ranks meet, with messages of 1 and then 3 chunks; or all goes 1, 2 and 4 places on.
    hub = load_topology("hub:6")
    found = times(hub, "allgather", "bruck", most_peers=4)
    assert found == [3 * ALPHA + 5 * BETA]
    assert times(hub, "alltoall", "bruck", most_peers=4)[0] == 3 * ALPHA + (2 * 2 + 3) * BETA


def test_blocks_across_the_buffers_end_are_one_message_of_bruck() -> None:
    # Of 4 ranks, the last sends blocks 3 and 0 in the second round.
    assert times(load_topology("hub:4"), "allgather", "bruck")[0] == 2 * ALPHA + 3 * BETA


@pytest.mark.parametrize(("ranks", "rounds"), [(4, 2), (8, 3)])
def test_bruck_alltoall_sends_half_of_the_buffer_in_every_round(ranks: int, rounds: int) -> None:
    found = times(load_topology(f"hub:{ranks}"), "alltoall", "bruck")
    assert found[-1] == rounds * (ALPHA + ranks // 2 * BETA)


@pytest.mark.parametrize(("ranks", "power"), [(3, 2), (6, 4)])
def test_an_allreduce_folds_ranks_beyond_a_power_of_two(ranks: int, power: int) -> None:
    # Two chunks a rank: the folded send all of S, and get all of it back.
    size, rounds = 2 * ranks * BETA, power.bit_length() - 1
    doubling = 2 * (rounds * ALPHA + size * (power - 1) // power)
    found = times(load_topology(f"hub:{ranks}"), "allreduce", "halving-doubling", chunks=2)
    assert found[0] == doubling + 2 * (ALPHA + size)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_half_of_it_folds_too(collective: str) -> None:
    # 6 ranks: 1 block to the neighbour, 2 and 4 blocks of the active, 5 blocks back, in two
    # messages from rank 3 to rank 2, whose own block lies between them.
    found = times(load_topology("hub:6"), collective, "halving-doubling")
    assert found[0] == 5 * ALPHA + 12 * BETA


def test_a_tree_in_order_is_as_deep_as_its_bits() -> None:
    # 0 above 4, 4 above 2 and 6, those above the odd ones.
    assert parents(8) == [2, 4, 2, 0, 6, 4, 6]
    assert parents(6) == [2, 4, 2, 0, 4]


@for_each("same_root", [False, True])
@for_each("ranks", range(2, 14))
def test_what_is_a_leaf_of_one_tree_is_none_of_the_other(ranks: int, same_root: bool) -> None:
    one, other = two_trees(range(ranks), same_root=same_root)
    inner = [rank for rank in range(ranks) if rank in one.values() and rank in other.values()]
    # But the root of both, and one rank more where the trees are shifted.
    assert len(inner) <= 1 + same_root


@for_each("rule", ["occupy", "delay"])
@for_each("collective", ["broadcast", "reduce"])
@for_each(("ranks", "depth"), [(3, 2), (5, 3), (8, 3)])
def test_each_of_two_trees_takes_half_of_a_root_s_data(
    collective: str, ranks: int, depth: int, rule: str
) -> None:
    # 8 chunks: 4 for each tree, in one message or in 2 or 4 that follow one another.
    topology = load_topology(f"full:{ranks}").with_alpha_rule(rule)
    waits = ALPHA if rule == "occupy" else 0
    assert times(topology, collective, "double-binary-tree", chunks=8) == sorted(
        depth * (ALPHA + 4 // pieces * BETA) + (pieces - 1) * (waits + 4 // pieces * BETA)
        for pieces in (1, 2, 4)
    )


@pytest.mark.parametrize(("ranks", "depth"), [(3, 2), (5, 3), (8, 3)])
def test_an_allreduce_goes_up_and_down_two_trees(ranks: int, depth: int) -> None:
    found = times(load_topology(f"full:{ranks}"), "allreduce", "double-binary-tree", chunks=2)
    assert 2 * depth * (ALPHA + ranks * BETA) in found


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize(("collective", "phases"), [("broadcast", 1), ("reduce", 1)])
def test_a_root_serves_everyone_itself(collective: str, phases: int, ranks: int) -> None:
    topology = load_topology(f"hub:{ranks}")
    found = times(topology, collective, "parameter-server")
    assert found == [phases * (ranks - 1) * (ALPHA + BETA)]


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_one_server_sums_all_or_every_rank_a_share(ranks: int) -> None:
    found = times(load_topology(f"hub:{ranks}"), "allreduce", "parameter-server")
    assert found == [2 * (ranks - 1) * (ALPHA + BETA), 2 * (ranks - 1) * (ALPHA + ranks * BETA)]


@pytest.mark.parametrize(
    ("collective", "phases"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)]
)
def test_along_rails_first_each_server_spreads_what_its_rails_have(
    collective: str, phases: int
) -> None:
    # Two chunks to seven peers each, after the one that crosses; or as early as ports are free.
    found = times(load_topology("dgx-a100", nodes=2), collective, "hierarchical")
    # An AllReduce that exchanges the sums of a rail whole comes before.
    assert found[collective == "allreduce"] == phases * 14 * INSIDE
    assert phases * (ACROSS + 14 * INSIDE) in found


def test_two_servers_exchange_the_sums_of_a_rail_in_one_alpha() -> None:
    # Each message inside has both chunks of a rail, and so has the one that crosses.
    found = times(load_topology("dgx-a100", nodes=2), "allreduce", "hierarchical")
    assert found[0] == 14 * 706_667 + 1_780_000


def test_two_steps_of_an_alltoall_hide_what_crosses_behind_what_does_not() -> None:
    # Seven messages to the rails, and seven that stay at home while 8 chunks cross.
    assert times(load_topology("dgx-a100", nodes=2), "alltoall", "two-step") == [14 * INSIDE]


def connections(name: str) -> set[tuple[int, int]]:
    """Return the pairs of ranks that talk across servers, by the slowest schedule."""
    problem = problem_of(load_topology("dgx2", nodes=2), "alltoall")
    schedule = classical_schedules(problem, name, batch=True)[-1]
    table, server = problem.topology.links, problem.topology.server_of
    ends = {(int(table.src[link]), int(table.dst[link])) for link in schedule.link.tolist()}
    return {(a, b) for a, b in ends if server[a] != server[b]}


@pytest.mark.parametrize(
    ("name", "pairs"), [("all-pairs", 512), ("two-step", 32), ("three-step", 2)]
)
def test_steps_save_connections_between_servers(name: str, pairs: int) -> None:
    assert len(connections(name)) == pairs


@pytest.mark.parametrize("name", ["hierarchical", "two-step", "three-step"])
@pytest.mark.parametrize("short", ["hub:8", "ring:8"])
def test_steps_need_several_servers(name: str, short: str) -> None:
    for collective in ("allgather", "alltoall"):
        assert times(load_topology(short), collective, name) == []


@pytest.mark.parametrize(
    ("name", "collective"),
    [("double-ring", "allgather"), ("bruck", "allgather"), ("bruck", "alltoall"),
     ("halving-doubling", "allreduce"), ("double-binary-tree", "allreduce"),
     ("parameter-server", "allreduce")],
)  # fmt: skip
def test_where_links_are_missing_there_is_no_algorithm(name: str, collective: str) -> None:
    one_way = build("one way", 4, [(r, (r + 1) % 4, 10, None, Fraction(1)) for r in range(4)])
    assert times(one_way, collective, name) == []


def test_too_many_sends_are_timed_for_those_who_ask_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.templates.classical.MAX_SENDS", 55)
    problem = problem_of(load_topology("ring:8"), "allgather")
    assert classical_schedules(problem, "ring", batch=True) == ()
    (schedule,) = classical_schedules(problem, "ring", batch=True, patient=True)
    assert schedule.makespan == 7 * (ALPHA + BETA)


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_an_allreduce_of_all_pairs_fills_every_port_twice(ranks: int) -> None:
    # A share to each of the others, and the sum of the own share back.
    found = times(load_topology(f"hub:{ranks}"), "allreduce", "all-pairs")
    assert found[0] == 2 * (ranks - 1) * (ALPHA + BETA)


def test_what_is_left_out_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.synth.templates.classical.MAX_SENDS", 55)
    problem = problem_of(load_topology("ring:8"), "allgather")
    with pytest.raises(NoScheduleError, match="ring has more than 55 sends"):
        run_classical("ring", problem, QUICK, patient=False)
    with pytest.raises(NoAlgorithmError, match="all-pairs does not exist for allgather on"):
        run_classical("all-pairs", problem, QUICK)


def test_what_would_have_to_be_sent_at_once_says_so() -> None:
    # Two messages through one port: the second would leave after the first has arrived.
    problem = problem_of(load_topology("hub:3"), "allreduce")
    with pytest.raises(NoScheduleError, match="one-shot") as caught:
        run_classical("one-shot", problem, QUICK)
    assert "before the first message arrives" in caught.value.problem
