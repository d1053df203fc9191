"""Collectives among some ranks: what they hold and want, their machine, bounds and programs."""

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest

from taccl.apps.inputs import MachineOptions, asked_collective, load_network, logical_group
from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.bounds.net import counted, leaves
from taccl.collectives import COLLECTIVES, build_collective, busbw_factor
from taccl.errors import InputError, NoScheduleError
from taccl.model.problem import problem_of
from taccl.synth.templates.classical import classical_schedules, likely_way, textbook_schedule
from taccl.synth.templates.rings import helper_servers
from taccl.topology.edit import grouped, numbers_text
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import is_symmetry
from taccl.verify import require_valid
from tests.bounds.bound_networks import build
from tests.bounds.exhaustive_search import can_beat
from tests.bounds.test_bounds import random_network
from tests.customs import chunks_of


def test_chunks_among_members_are_those_of_a_smaller_collective_in_their_order() -> None:
    made = build_collective("allgather", 6, 1, members=(4, 1))
    assert [(c.sources, c.targets, c.input_at, c.output_at) for c in chunks_of(made)] == [
        ((4,), (1, 4), 0, 0), ((1,), (1, 4), 0, 1),
    ]  # fmt: skip
    assert made.input_sizes == (0, 1, 0, 0, 1, 0)
    assert made.output_sizes == (0, 2, 0, 0, 2, 0)
    broadcast = build_collective("broadcast", 6, 1, root=1, members=(5, 2, 3))
    assert broadcast.sources(0) == (2,)
    assert broadcast.targets(0) == (2, 3, 5)
    for name in COLLECTIVES:
        alone, among = build_collective(name, 3, 2), build_collective(name, 7, 2, None, (1, 5, 2))
        assert among.members == (1, 5, 2)
        assert among.chunks_in_size == alone.chunks_in_size
        assert busbw_factor(among.name, 7) == busbw_factor(name, 3)
        everyone = build_collective(name, 3, 2, None, (0, 1, 2))
        assert (everyone.name, everyone.members) == (name, None)


@pytest.mark.parametrize(
    ("members", "message"),
    [((0, 8), "no rank 8 among 8"), ((0, -1), "no rank -1"), ((3,), "two ranks or more"),
     ((1, 2, 1), "each once"), ((), "two ranks or more")],
)  # fmt: skip
def test_members_are_ranks_each_once(members: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_collective("allreduce", 8, 1, members=members)


def test_what_must_leave_a_set_counts_its_members_only() -> None:
    rng = random.Random(0)
    for name in COLLECTIVES:
        for _ in range(10):
            members = rng.sample(range(6), rng.randint(2, 5))
            among = build_collective(name, 6, 1, members=members)
            alone = build_collective(name, len(members), 1)
            inside = [rank for rank in range(6) if rng.random() < 0.5]
            own = [place for place, rank in enumerate(members) if rank in inside]
            assert leaves(among, inside) == counted(among, inside) == leaves(alone, own), name


def test_the_machine_of_a_group_has_its_ranks_in_order_and_all_switches() -> None:
    machine = load_topology("dgx-h100", nodes=2).point_to_point()
    part = grouped(machine, (9, 8, 12))
    assert (part.num_ranks, part.relays, part.name) == (3, 0, "dgx-h100[9,8,12]")
    assert [switch.name for switch in part.switches] == ["s1/nvswitch"]
    assert part.servers == ((0, 1, 2),)
    ring = load_topology("ring:8")
    relayed = grouped(ring, (0, 2, 4, 6), "all")
    assert (relayed.num_ranks, relayed.relays) == (8, 4)
    assert sorted({int(link) for link in relayed.links.dst[relayed.links.src == 0]}) == [4, 7]
    assert grouped(ring, range(8)) is ring
    assert numbers_text((0, 1, 2, 5, 4, 7, 8)) == "0-2,5,4,7-8"


def test_rotations_of_a_group_keep_its_members() -> None:
    machine = load_topology("dgx-h100", nodes=2).point_to_point()
    found = [(machine, range(8), "members"), (load_topology("ring:8"), (0, 2, 4, 6), "all")]
    for topology, members, relays in found:
        part = grouped(topology, tuple(members), relays)
        assert part.rotations
        collective = asked_collective("allreduce", part)
        assert len(logical_group(whole(part, part.rotations), collective)) == len(members)
        for rotation in part.rotations:
            assert is_symmetry(part, rotation)
            assert set(rotation[: len(members)]) == set(range(len(members)))


def test_members_that_only_others_join_are_named() -> None:
    with pytest.raises(NoScheduleError, match=r"rank 2 can't be reached from rank 0 .* members"):
        grouped(load_topology("ring:8"), (0, 2, 4))
    assert grouped(load_topology("dgx-h100", nodes=2), (0, 8)).num_ranks == 2


def test_no_bound_among_members_is_above_the_optimum() -> None:
    rng = random.Random(3)
    for name in ("allgather", "broadcast", "alltoall", "scatter", "gather") * 8:
        topology = random_network(rng, 3)
        made = build_collective(name, 3, 1, members=rng.sample(range(3), 2))
        chunk = Fraction(rng.choice([1, 4, 30]))
        for bounds in (
            fixed_bounds(whole(topology), made, chunk),
            any_bounds(whole(topology), made, int(chunk * made.chunks_in_size)),
        ):
            claim = best(bounds).time
            assert not claim or not can_beat(topology, made, chunk, claim), (name, bounds)


def test_without_relays_bounds_are_those_of_the_members_machine() -> None:
    """One server of two is bounded like a server, and other ranks can only help."""
    for name in COLLECTIVES:
        times = []
        for group in ((range(8), "members"), (range(8), "all")):
            network = load_network("dgx-h100", MachineOptions(nodes=2, group=group))
            made = asked_collective(name, network.topology)
            times.append(best(any_bounds(network, made, 10**6)).time)
        alone = load_network("dgx-h100", MachineOptions(nodes=1))
        assert (
            times[0] == best(any_bounds(alone, asked_collective(name, alone.topology), 10**6)).time
        )
        assert times[1] <= times[0]


def star(gigabits: Sequence[float]) -> Topology:
    """Return ranks at one switch, 1 us each way, with ports of so many Gb/s."""
    rows = []
    for rank, rate in enumerate(gigabits):
        beta = Fraction(8000) / Fraction(rate)
        rows += [(rank, len(gigabits), 10**6, None, beta), (len(gigabits), rank, 10**6, None, beta)]
    return build(len(gigabits), rows, switches=1)


def test_helpers_add_what_workers_send_as_fast_as_their_ports() -> None:
    topology = star([10] * 8 + [56] * 2)
    made = build_collective("allreduce", 10, 8, members=range(8))
    found = classical_schedules(problem_of(topology, made, 10**8), "parameter-server", batch=True)
    require_valid(found[0])
    # What a worker sends takes 80 ms; the last chunk's way back is 1/64 of it for each worker.
    assert 80e9 < found[0].makespan <= 86e9
    assert {*topology.links.src[found[0].link].tolist()} == set(range(10))


def test_helpers_share_by_the_bandwidth_of_their_ports() -> None:
    topology = star([10, 10, 10, 20, 60])
    made = build_collective("allreduce", 5, 8, members=range(3))
    way = next(helper_servers(problem_of(topology, made, 24_000)))
    served = Counter(dst for _, _, dst, adds in way if adds)
    assert served == {3: 2 * 6, 4: 2 * 18}


def test_textbook_algorithms_run_inside_the_group() -> None:
    """Among members that links join they take what they take on the members' machine."""
    whole_machine, members = load_topology("dgx-h100", nodes=2), (9, 8, 13, 12)
    alone = grouped(whole_machine, members)
    for name in ("ring", "all-pairs", "halving-doubling", "double-binary-tree"):
        among = build_collective("allreduce", 16, 1, members=members)
        times = [
            classical_schedules(problem_of(topology, made, 10**6), name, batch=True)[0].makespan
            for topology, made in (
                (whole_machine, among), (alone, build_collective("allreduce", 4, 1)),
            )
        ]  # fmt: skip
        assert times[0] == times[1], name
        problem = problem_of(whole_machine, among, 10**6)
        likely = likely_way(problem, name)
        assert likely is not None
        for way in (None, likely[1]):  # as where there are too many sends to time them all
            sent = textbook_schedule(problem, name, batch=True, way=way)
            assert sent is not None
            require_valid(sent)
    with_root = build_collective("broadcast", 16, 1, root=2, members=members)
    (sent, *_) = classical_schedules(problem_of(whole_machine, with_root, 8), "chain", batch=True)
    assert {*sent.topology.links.src[sent.link].tolist()} <= {*members}
    require_valid(sent)
