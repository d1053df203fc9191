"""What every field of a sketch does to the schedules of engine ``taccl``.

Each test solves a tiny machine with and without the field; T is the microsecond that a chunk of
1000 bytes takes at 1 GB/s.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from taccl.apps import Request, logical_group, synthesize
from taccl.collectives import COLLECTIVES
from taccl.errors import InputError, NoScheduleError
from taccl.model.problem import Options
from taccl.sketch import apply_sketch, load_sketch, shipped_sketches
from taccl.synth.search import solve
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import LogicalTopology, Topology
from taccl.verify import verify
from tests.sweep import for_each
from tests.synth.problems import problem_of
from tests.synth.sketched import (
    across,
    connections,
    foreign,
    hub,
    line,
    messages_by_pair,
    native,
    ring,
    solved,
    time_of,
    twins,
    wires,
)

DIRECT = {(0, 2), (1, 3), (2, 0), (3, 1)}


def test_a_denied_link_carries_nothing_and_costs_what_its_detour_costs(tmp_path: Path) -> None:
    # Three chunks enter every rank over two wires: 2T. Without 0 -> 1 all three enter rank 1
    # over one wire: 3T.
    assert time_of(ring(), "allgather") == 2
    denied = solved(native(ring(), "links: {deny: [{from: 0, to: 1}]}", tmp_path), "allgather")
    assert denied.makespan == 3_000_000
    assert (0, 1) not in connections(denied)


def test_an_allowed_link_is_open_in_spite_of_a_pattern_that_denies_it(tmp_path: Path) -> None:
    # The 2T of the whole ring need both wires into rank 1.
    text = "links: {deny: [{from: 0, to: 1}], allow: [{from: 0, to: 1}]}"
    allowed = solved(native(ring(), text, tmp_path), "allgather")
    assert allowed.makespan == 2_000_000
    assert (0, 1) in connections(allowed)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_uc_min_keeps_to_as_few_connections_as_join_all(tmp_path: Path, collective: str) -> None:
    # Three chunks enter every port whatever the routes; four connections are a ring.
    halves = 2 if collective == "allreduce" else 1
    assert time_of(hub(), collective) == 3 * halves
    few = solved(native(hub(), "switches: {hub: uc-min}", tmp_path), collective)
    assert few.makespan == 3_000_000 * halves
    assert len(connections(few)) == 4
    assert len(connections(solved(hub(), collective))) > 4


def slow_side() -> Topology:
    """Return ranks 0 to 3, all joined, 1 and 2 by a wire of 5T; rank 4 hangs on 0 by one of 3T."""
    joins = [(a, b, 5 if (a, b) == (1, 2) else 1) for a in range(4) for b in range(a + 1, 4)]
    return wires(5, [*joins, (0, 4, 3)])


def test_uc_max_uses_connections_that_cost_no_time(tmp_path: Path) -> None:
    # Four chunks enter rank 4 over one wire of 3T: 12T. Chunks between 1 and 2 are sooner there
    # over two wires of T (2T) than over their own (5T), but 5T are early enough.
    plain = solved(slow_side(), "allgather")
    assert plain.makespan == 12_000_000
    assert not {(1, 2), (2, 1)} & connections(plain)
    many = solved(native(slow_side(), 'switches: {"*": uc-max}', tmp_path), "allgather")
    assert many.makespan == 12_000_000
    assert connections(many) == connections(plain) | {(1, 2), (2, 1)}


def test_free_takes_a_switch_out_of_a_policy_for_all(tmp_path: Path) -> None:
    text = 'switches: {"*": uc-min, hub: free}'
    free, plain = (solved(native(hub(), t, tmp_path), "allgather") for t in (text, ""))
    assert connections(free) == connections(plain)


RELAYS = "internode: {relays: %s}"


def test_a_map_of_relays_is_all_that_joins_the_servers(tmp_path: Path) -> None:
    # Every rank sends its two chunks for the other server by its own NIC: 2T. With relays, the
    # wire 0 -> 1 of 2T a chunk carries all three chunks of 0, and two from 3 that go on to 1: 10T.
    assert time_of(twins(), "alltoall") == 2
    relayed = solved(native(twins(), RELAYS % "{1: [0]}", tmp_path), "alltoall")
    assert relayed.makespan == 10_000_000
    assert across(relayed) == {(1, 2), (3, 0)}


def test_direct_map_joins_gpus_of_the_same_number_only(tmp_path: Path) -> None:
    # Four chunks for another number cross one of four wires of 2T, as do the four own ones: 4T.
    mapped = solved(native(twins(), RELAYS % "direct-map", tmp_path), "alltoall")
    assert mapped.makespan == 4_000_000
    assert across(mapped) == DIRECT


def test_fully_connected_joins_gpus_of_any_number(tmp_path: Path) -> None:
    joined = solved(native(twins(), RELAYS % "fully-connected", tmp_path), "alltoall")
    assert joined.makespan == 2_000_000
    assert across(joined) > DIRECT


def test_chunks_leave_by_their_relay(tmp_path: Path) -> None:
    # By its own NIC a chunk goes to both GPUs of the other server: 2T. Chunk 0 is at GPU 1 after
    # 2T of wire, and leaves twice: 4T.
    assert time_of(twins(), "allgather") == 2
    text = "internode: {relays: fully-connected, chunk_to_relay: {0: 1, 1: 1}}"
    relayed = solved(native(twins(), text, tmp_path), "allgather")
    assert relayed.makespan == 4_000_000
    assert {src for src, _ in across(relayed)} == {1, 3}


def test_own_chunks_first_lets_foreign_ones_wait(tmp_path: Path) -> None:
    # Chunk 0 -> 3 takes 1 + 1 + 4T, if it passes 1's own chunk for 2 on the wire 1 -> 2.
    assert time_of(line(), "alltoall") == 6
    assert time_of(native(line(), "internode: {own_chunks_first: true}", tmp_path), "alltoall") == 7


@pytest.mark.parametrize("symmetry", ["[[1, 4]]", "[[1, 2, 3, 0]]"])
def test_a_symmetry_binds_the_schedule(tmp_path: Path, symmetry: str) -> None:
    # Four chunks go two hops, eight one: 16 on eight wires, 2T where each second of the four turns
    # left. If all turn to the same side, as the rotation wants, three meet on each wire: 3T.
    assert time_of(ring(), "alltoall") == 2
    turned = solved(native(ring(), f"symmetry: {symmetry}", tmp_path), "alltoall")
    assert turned.makespan == 3_000_000
    assert len(turned.group) == 4


def test_auto_finds_the_symmetry_of_the_topology(tmp_path: Path) -> None:
    topology = load_topology("ring:4")
    plain = solved(native(topology, "symmetry: []", tmp_path), "allgather")
    auto = solved(native(topology, "symmetry: auto", tmp_path), "allgather")
    assert (len(plain.group), len(auto.group)) == (1, 4)
    assert auto.makespan == plain.makespan


def detour() -> Topology:
    """Return four ranks, all joined, 0 and 1 by a wire of 10T."""
    return wires(4, [(a, b, 10 if b == 1 else 1) for a in range(4) for b in range(a + 1, 4)])


@pytest.mark.parametrize(("hops", "microseconds"), [(0, 10), (1, 2)])
def test_extra_hops_allow_a_faster_detour(tmp_path: Path, hops: int, microseconds: int) -> None:
    # Two chunks enter rank 0 over each of its two fast wires: 2T; directly one takes 10T.
    limited = native(detour(), f"max_extra_hops: {hops}", tmp_path)
    assert time_of(limited, "allgather") == microseconds


@pytest.mark.parametrize("extra", [1, 2])
def test_no_path_is_longer_than_the_extra_hops_allow(tmp_path: Path, extra: int) -> None:
    # A wheel: rank 0 reaches all by 10T spokes, its rim has wires of T.
    rim = [(rank, rank % 5 + 1, 1) for rank in range(1, 6)]
    wheel = wires(6, [*rim, *((0, rank, 10) for rank in range(1, 6))])
    logical = native(wheel, f"max_extra_hops: {extra}", tmp_path)
    for collective in ("allgather", "alltoall", "allreduce"):
        solved(logical, collective)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_connections_are_limited(tmp_path: Path, collective: str) -> None:
    logical = native(hub(), "limits: {connections_per_gpu: 1}", tmp_path)
    assert len(connections(solved(logical, collective))) == 4


def test_a_limit_of_connections_costs_time(tmp_path: Path) -> None:
    # All pairs: three chunks leave every port, 3T. In a ring the chunks go 1, 2 and 3 hops: 6T.
    assert time_of(hub(), "alltoall") == 3
    logical = native(hub(), "limits: {connections_per_gpu: 1}", tmp_path)
    assert time_of(logical, "alltoall") == 6


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_limit_counts_peers_that_send_as_well(tmp_path: Path, symmetric: bool) -> None:
    symmetry = "symmetry: [[1, 6]]" if symmetric else ""
    logical = native(
        load_topology("hub:6"), f"limits: {{connections_per_gpu: 2}}\n{symmetry}", tmp_path
    )
    assert len(connections(solved(logical, "allgather"))) <= 12


def test_an_algorithm_that_breaks_the_limit_does_not_exist(tmp_path: Path) -> None:
    logical = native(hub(), "limits: {connections_per_gpu: 1}", tmp_path)
    with pytest.raises(NoScheduleError, match="all-pairs does not respect the sketch"):
        solved(logical, "allgather", engine="all-pairs")
    assert len(connections(solved(logical, "allgather", engine="auto"))) == 4


def test_a_limit_that_joins_nobody_is_an_error(tmp_path: Path) -> None:
    # A star: its centre has three peers, and nobody another way.
    star = wires(4, [(0, rank, 1) for rank in range(1, 4)])
    logical = native(star, "limits: {connections_per_gpu: 2}", tmp_path)
    with pytest.raises(NoScheduleError, match="no 2 connections for each GPU"):
        solved(logical, "allgather")


def test_links_that_need_more_channels_stay_unused(tmp_path: Path) -> None:
    # Six chunks enter every rank, over four wires in 2T; over the first wire of each pair in 3T.
    doubled = wires(4, [(rank, (rank + 1) % 4, 1) for rank in range(4) for _ in range(2)])
    assert time_of(doubled, "allgather", chunks=2) == 2
    assert time_of(native(doubled, "limits: {channels: 1}", tmp_path), "allgather", chunks=2) == 3


@pytest.mark.parametrize(("chunks", "picoseconds"), [(1, 2_000_000), (2, 1_500_000)])
def test_chunks_per_rank_are_those_of_the_sketch(
    tmp_path: Path, chunks: int, picoseconds: int
) -> None:
    # Three chunks of T, or six of T/2, enter every rank over two wires.
    logical = native(ring(), f"chunks_per_rank: {chunks}", tmp_path)
    assert chosen_time(logical) == (chunks, picoseconds)


def chosen_time(logical: LogicalTopology) -> tuple[int, int]:
    """Return the chunk count and the makespan of an AllGather of 4 x 1000 bytes."""
    found = synthesize(
        Request(
            logical, "allgather", 4000, target=None, batch=False, engine="taccl", time_limit=30.0,
            deterministic=True, workers=1,
        )
    )  # fmt: skip
    return found.schedule.collective.chunks_per_rank, found.schedule.makespan


def triangle(slow: int) -> Topology:
    """Return a triangle 1, 2, 3, where 2 and 3 are joined slowly, and a far rank 0, 3T from 1."""
    joins = [(0, 1, 3), (1, 2, 1), (1, 3, 1), (2, 3, slow)]
    return wires(4, joins, servers=[[0], [1, 2, 3]])


def test_minmax_keeps_the_busiest_link_light(tmp_path: Path) -> None:
    # Six chunks leave the triangle over one wire of 3T: 18T. Its six wires carry two own chunks
    # each; the two that enter go from 1 to both others (4 on two wires), or each over one
    # neighbour to the other (3 on four wires).
    plain = solved(triangle(1), "allgather", chunks=2)
    even = solved(native(triangle(1), "balance: minmax", tmp_path), "allgather", chunks=2)
    assert plain.makespan == even.makespan == 18_000_000
    assert max(messages_by_pair(plain).values()) == 4
    assert max(messages_by_pair(even).values()) == 3


def test_maxmin_leaves_no_link_idle(tmp_path: Path) -> None:
    # Three chunks leave in 9T. Between 2 and 3 the way over 1 takes 2T, their own wire 5T.
    plain = solved(triangle(5), "allgather")
    even = solved(native(triangle(5), "balance: maxmin", tmp_path), "allgather")
    assert plain.makespan == even.makespan == 9_000_000
    assert not {(2, 3), (3, 2)} & connections(plain)
    assert connections(even) >= {(2, 3), (3, 2)}


def inside(strategy: str, **more: object) -> dict[str, object]:
    """Return an intranode_sketch."""
    return {"strategy": strategy, **more}


def between(conn: object, **more: object) -> dict[str, object]:
    """Return an internode_sketch."""
    return {"strategy": "relay", "internode_conn": conn, **more}


def longer(logical: LogicalTopology) -> LogicalTopology:
    """Return the sketch without its limit to shortest paths, which leave no choice on a switch."""
    return replace(logical, max_extra_hops=None)


def by_switch(topology: Topology, path: Path, policy: str) -> LogicalTopology:
    """Return the topology with a policy for the switch of all its ranks."""
    members = list(range(topology.num_ranks))
    switch = inside("switch", switches=[members], switch_hyperedge_strategy=[policy])
    return longer(foreign(topology, path, intranode_sketch=switch))


def test_taccls_uc_min_keeps_to_as_few_connections_as_join_all(tmp_path: Path) -> None:
    assert len(connections(solved(by_switch(hub(), tmp_path, "uc-min"), "allgather"))) == 4


def test_taccls_uc_max_uses_connections_that_cost_no_time(tmp_path: Path) -> None:
    # As uc-max above.
    used = connections(solved(by_switch(slow_side(), tmp_path, "uc-max"), "allgather"))
    assert used >= {(1, 2), (2, 1)}


def two_hubs() -> Topology:
    """Return hubs of the ranks 0 to 2 and 3 to 5, and a wire of 9T between 0 and 3."""
    ports = [{"from": rank, "to": f"h{rank // 3}", "bandwidth": "1GB/s"} for rank in range(6)]
    return topology_from_document({
        "taccl": "topology/1", "name": "hubs", "ranks": 6, "switches": ["h0", "h1"],
        "edges": [*ports, {"from": 0, "to": 3, "bandwidth": "9000us/MB"}],
    })  # fmt: skip


def test_taccls_switches_say_where_a_strategy_holds(tmp_path: Path) -> None:
    # A hub of three is joined by three connections at least, and by six at most.
    counts = {}
    for few, many in (("uc-min", "uc-max"), ("uc-max", "uc-min")):
        switch = inside(
            "switch", switches=[[0, 1, 2], [3, 4, 5]], switch_hyperedge_strategy=[few, many]
        )
        logical = longer(foreign(two_hubs(), tmp_path, intranode_sketch=switch))
        used = connections(solved(logical, "allgather"))
        counts[few] = [len([a for a, b in used if a // 3 == b // 3 == h]) for h in range(2)]
    assert counts == {"uc-min": [3, 6], "uc-max": [6, 3]}


def test_taccls_strategy_none_prefers_nothing(tmp_path: Path) -> None:
    plain = longer(foreign(hub(), tmp_path, intranode_sketch=inside("none")))
    alone = native(hub(), "", tmp_path)
    assert connections(solved(plain, "allgather")) == connections(solved(alone, "allgather"))


@pytest.mark.parametrize(("strategy", "busiest"), [("none", 4), ("minmax", 3)])
def test_taccls_minmax_keeps_the_busiest_link_light(
    tmp_path: Path, strategy: str, busiest: int
) -> None:
    # As minmax above.
    logical = longer(foreign(triangle(1), tmp_path, intranode_sketch=inside(strategy)))
    schedule = solved(logical, "allgather", chunks=2)
    assert max(messages_by_pair(schedule).values()) == busiest


@pytest.mark.parametrize(("strategy", "idle"), [("none", True), ("maxmin", False)])
def test_taccls_maxmin_leaves_no_link_idle(tmp_path: Path, strategy: str, idle: bool) -> None:
    # As maxmin above.
    logical = longer(foreign(triangle(5), tmp_path, intranode_sketch=inside(strategy)))
    used = connections(solved(logical, "allgather"))
    assert ({(2, 3), (3, 2)} <= used) is not idle


@pytest.mark.parametrize(
    ("conn", "microseconds", "pairs"),
    [({"1": [0]}, 10, {(1, 2), (3, 0)}), ("direct-map", 4, DIRECT)],
)
def test_taccls_connections_join_the_servers(
    tmp_path: Path, conn: object, microseconds: int, pairs: set[tuple[int, int]]
) -> None:
    logical = foreign(twins(), tmp_path, internode_sketch=between(conn))
    schedule = solved(logical, "alltoall")
    assert schedule.makespan == microseconds * 1_000_000
    assert across(schedule) == pairs


def test_taccls_sender_map_says_which_chunks_a_sender_takes(tmp_path: Path) -> None:
    # As chunk_to_relay above. The paths have the fewest hops over the senders: 0 -> 1 -> 2, 3.
    conn = between("fully-connected", gpus_to_sender_rev_map={"1": [0, 1]})
    relayed = solved(foreign(twins(), tmp_path, internode_sketch=conn), "allgather")
    assert relayed.makespan == 4_000_000
    assert {src for src, _ in across(relayed)} == {1, 3}


@pytest.mark.parametrize(("enforced", "microseconds"), [(False, 6), (True, 7)])
def test_taccls_ordering_lets_foreign_chunks_wait(
    tmp_path: Path, enforced: bool, microseconds: int
) -> None:
    conn = between("fully-connected", enforce_ordering=enforced)
    assert time_of(foreign(line(), tmp_path, internode_sketch=conn), "alltoall") == microseconds


@pytest.mark.parametrize(("offsets", "microseconds"), [([], 2), ([[1, 4]], 3)])
def test_taccls_symmetry_offsets_bind_the_schedule(
    tmp_path: Path, offsets: list[list[int]], microseconds: int
) -> None:
    logical = foreign(ring(), tmp_path, symmetry_offsets=offsets)
    assert time_of(logical, "alltoall") == microseconds


@pytest.mark.parametrize(("chunks", "picoseconds"), [(1, 2_000_000), (2, 1_500_000)])
def test_taccls_chunkup_is_the_chunk_count(tmp_path: Path, chunks: int, picoseconds: int) -> None:
    logical = foreign(ring(), tmp_path, hyperparameters={"input_chunkup": chunks})
    assert chosen_time(logical) == (chunks, picoseconds)


def test_taccls_number_of_servers_is_that_of_the_topology(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the sketch is for 3 servers, twins has 2"):
        foreign(twins(), tmp_path, nnodes=3)


SHIPPED = [
    (name, nodes, collective)
    for name in shipped_sketches()
    for nodes in (1, 2)
    for collective, kind in COLLECTIVES.items()
    if nodes == 1 or not kind.has_root
]


SEARCHED = ("ndv2-relay", 2, "allgather")
"""A machine of two servers that is searched; the others take what is found without a search."""


@for_each(("name", "nodes", "collective"), SHIPPED, quick=12, parts=2)
def test_a_shipped_sketch_gives_a_correct_schedule(name: str, nodes: int, collective: str) -> None:
    logical = apply_sketch(load_topology(name.split("-")[0], nodes=nodes), load_sketch(name))
    chunks = logical.chunks_per_rank or 1
    problem = problem_of(logical, collective, chunks)
    problem = replace(problem, group=logical_group(logical, problem.collective))
    options = Options(time_limit=0.2, deterministic=True, workers=1)
    if (nodes == 2 or name == "dgx2-relay") and (name, nodes, collective) != SEARCHED:
        options.stop.set()
    schedule = solve(problem, "taccl", options).schedule
    assert schedule is not None
    assert verify(schedule, logical) == []
    assert logical.allowed[schedule.expand().link].all()
