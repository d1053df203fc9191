"""All hear of all past gates of parts within parts: by hand, and the best of any order."""

import heapq
import random

from taccl.bounds.combine import any_bounds
from taccl.bounds.gossip import gossip_time
from taccl.bounds.net import make_net
from taccl.collectives import build_collective
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from tests.bounds.bound_networks import Row, build
from tests.synth.problems import problem_of

ALIKE = ("allgather", "reducescatter", "allreduce", "alltoall")


def gossip(topology: Topology, name: str = "allgather") -> int:
    """Return the bound of a collective on a topology."""
    collective = build_collective(name, topology.num_ranks, 1)
    return gossip_time(make_net(whole(topology), collective), collective)


# --- by hand -------------------------------------------------------------------------------------


def test_a_fat_tree_gathers_crosses_twice_and_spreads() -> None:
    # 2 ranks of an edge switch take 0.7, its 2 in a pod 2.1, and two messages into each of 4 pods
    # 3.5 each: the second can't hold all before the first has come.
    for name in ALIKE:
        assert gossip(load_topology("fat-tree"), name) == 2 * (700_000 + 2_100_000) + 2 * 3_500_000


def test_four_leaves_of_eight_cross_twice_between_two_times_three_rounds() -> None:
    assert gossip(load_topology("leaf-spine")) == 2 * 3 * 700_000 + 2 * 2_100_000


def test_two_servers_with_one_way_each_gather_cross_and_spread() -> None:
    # 4 ranks of a server know of each other after two rounds of 1, and a message crosses in 5.
    assert gossip(servers(2, 4, 1, 5)) == 2 + 5 + 2
    assert gossip(servers(3, 1, 1, 5)) == 2 * 5  # one after the other


def test_nothing_is_said_without_parts_or_where_gates_stay_free() -> None:
    assert gossip(load_topology("hub:4")) == gossip(load_topology("ring:5")) == 0
    assert gossip(servers(2, 2, 1, 5).with_alpha_rule("delay")) == 0


def test_it_is_among_the_bounds_for_every_size() -> None:
    topology = load_topology("leaf-spine")
    for size in (1, 1000):
        found = {bound.kind: bound.time for bound in any_bounds(whole(topology), "alltoall", size)}
        assert found["rounds"] >= gossip(topology, "alltoall") == 8_400_000


# --- against all orders of messages --------------------------------------------------------------


def servers(count: int, size: int, inside: int, across: int) -> Topology:
    """Return servers of so many ranks on a switch, each with one way out and in past another."""
    ranks, rows = count * size, list[Row]()
    for rank in range(ranks):
        local = ranks + rank // size
        rows += [(rank, local, inside, None, 1), (local, rank, 0, None, 1)]
    hub = ranks + count
    for server in range(count):
        local = ranks + server
        rows += [(local, hub, across - inside, None, 1), (hub, local, 0, None, 1)]
    home = [rank // size for rank in range(ranks)]
    return build(ranks, rows, count + 1, servers=home)


State = tuple[int, tuple[int, ...], tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]
"""Now, what each rank knows, edges and until when each is held, and messages under way."""


def can_tell_all_before(topology: Topology, claim: int) -> bool:
    """Tell whether all can know of all sooner, by messages of no bytes that tell all one knows."""
    table = topology.links
    links = [
        (int(table.src[k]), int(table.dst[k]), table.edges_of(k), int(table.alpha[k]),
         int(table.overhead[k]))
        for k in range(len(table))
    ]  # fmt: skip
    every = (1 << topology.num_ranks) - 1
    begin: State = (0, tuple(1 << rank for rank in range(topology.num_ranks)), (), ())
    queue, seen = [begin], {begin}
    while queue:
        now, known, busy, flying = heapq.heappop(queue)
        if all(bits == every for bits in known):
            return True
        held = dict(busy)
        following: list[State] = []
        for src, dst, edges, alpha, overhead in links:
            there = known[dst]
            for end, to, bits in flying:
                there |= bits if to == dst and end <= now + alpha else 0
            if known[src] | there == there or any(edge in held for edge in edges):
                continue
            if now + alpha >= claim:
                continue
            taken = tuple(sorted({**held, **dict.fromkeys(edges, now + overhead)}.items()))
            told = tuple(sorted((*flying, (now + alpha, dst, known[src]))))
            following.append((now, known, taken, told))
        moments = {end for end, *_ in flying} | set(held.values())
        if moments:
            later, table_of = min(moments), list(known)
            for end, dst, bits in flying:
                table_of[dst] |= bits if end <= later else 0
            following.append((
                later, tuple(table_of), tuple((e, t) for e, t in busy if t > later),
                tuple(one for one in flying if one[0] > later),
            ))  # fmt: skip
        for state in following:
            if state not in seen:
                seen.add(state)
                heapq.heappush(queue, state)
    return False


def test_no_order_of_messages_tells_all_sooner() -> None:
    draw = random.Random(5)
    for count, size in ((2, 1), (3, 1), (3, 1), (2, 2), (2, 2)):
        inside = draw.randrange(1, 4)
        topology = servers(count, size, inside, inside + draw.randrange(1, 9))
        assert not can_tell_all_before(topology, gossip(topology)), (count, size, inside)


def test_some_orders_tell_all_as_soon() -> None:
    for topology in (servers(2, 1, 1, 5), servers(3, 1, 1, 4), servers(2, 2, 1, 4)):
        assert can_tell_all_before(topology, gossip(topology) + 1)


def test_no_classical_algorithm_is_sooner() -> None:
    draw = random.Random(3)
    for machine in ("fat-tree:4", "leaf-spine:3x4", "dragonfly:3x2x2", "ndv2", "dgx2"):
        topology = load_topology(machine, nodes=2 if machine in ("ndv2", "dgx2") else None)
        for name in ALIKE:
            bound = gossip(topology, name)
            problem = problem_of(topology, name)
            for algorithm in draw.sample([*CLASSICAL], 3):
                for schedule in classical_schedules(problem, algorithm, batch=True):
                    assert bound <= schedule.makespan, (machine, name, algorithm)
