"""Latency and bandwidth together: times by hand, the best of all schedules, every classical one."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import pytest

from taccl.apps import load_network
from taccl.apps.inputs import MachineOptions
from taccl.bounds import any_bounds
from taccl.collectives import Collective, build_collective, chunk_size_of
from taccl.errors import NoScheduleError
from taccl.model.problem import Problem
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from tests.bounds.bound_networks import Row, build
from tests.sweep import for_each


def rounds(topology: Topology, name: str, size: int) -> int:
    """Return the bound for so many bytes; 0 where there is none."""
    found = {bound.kind: bound.time for bound in any_bounds(whole(topology), name, size)}
    return found.get("rounds", 0)


def hub(ranks: int, alpha: int, overhead: int | None = None, rule: str = "occupy") -> Topology:
    """Return ranks on a switch, one byte a picosecond."""
    up: list[Row] = [(r, ranks, alpha, overhead, 1) for r in range(ranks)]
    down: list[Row] = [(ranks, r, 0, 0, 1) for r in range(ranks)]
    return build(ranks, [*up, *down], 1, rule=rule)


def pairs(alpha: int) -> Topology:
    """Return two servers of two ranks: a latency of 1 inside, and one wire from each to each."""
    rows: list[Row] = [(r, r ^ 1, 1, None, 1) for r in range(4)]
    rows += [(r, r ^ 2, alpha, None, 2) for r in range(4)]
    return build(4, rows, servers=(0, 0, 1, 1))


# --- by hand -------------------------------------------------------------------------------------


def test_a_gather_on_a_switch_takes_its_rounds_and_its_bytes() -> None:
    # 16 bytes for each of n ranks: log2(n) alphas, and all but their own bytes by one port.
    for ranks, count in ((2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)):
        for name in ("allgather", "reducescatter"):
            assert rounds(hub(ranks, 10), name, 16 * ranks) == 10 * count + 16 * (ranks - 1)


def test_with_an_overhead_only_that_counts_in_every_round() -> None:
    # Four rounds of 3, and 7 more for the last message to arrive.
    assert rounds(hub(16, 10, 3), "allgather", 160) == 4 * 3 + 7 + 150
    assert rounds(hub(16, 10, rule="delay"), "allgather", 160) == 10 + 150


def test_recursive_doubling_is_proved_optimal_on_one_dgx2() -> None:
    topology = load_topology("dgx2")
    for name in ("allgather", "reducescatter"):
        for size in (1 << 10, 1 << 14, 1 << 20, 1 << 26):
            cut = build_collective(name, 16, 1)
            problem = Problem(
                whole(topology), cut, chunk_size_of(cut, size), make_group(topology, ())
            )
            best = classical_schedules(problem, "halving-doubling", batch=True)[0].makespan
            assert 0 <= best - rounds(topology, name, size) <= 4  # durations are rounded up


def test_who_hears_last_takes_all_bytes_then() -> None:
    # 8 ranks: three rounds until one can have heard of all, then the whole buffer by its port.
    for name in ("broadcast", "reduce"):
        assert rounds(hub(8, 10), name, 4) == 30 + 4
    # Where all are added up, three rounds with the whole buffer in each of them are the best known.
    assert 30 + 4 < rounds(hub(8, 10), "allreduce", 4) <= 30 + 3 * 4


def test_what_some_do_not_have_from_the_root_takes_two_latencies() -> None:
    # 8 ranks: x bytes leave the root seven times by T - 10, 100 - x once by T - 20.
    for name in ("allreduce", "broadcast", "reduce"):
        assert rounds(hub(8, 10, rule="delay"), name, 100) == 119  # x = 10 / 7
        assert rounds(hub(8, 10, rule="delay"), name, 1) == 10 + 7  # all from the root
    assert rounds(hub(2, 10, rule="delay"), "broadcast", 100) == 10 + 100


def test_pieces_of_a_broadcast_pay_or_wait() -> None:
    # k pieces, each in a round of its own, and log2(n) - 1 more until the last is with all.
    for ranks, alpha in product((4, 8, 16), (10**4, 10**6)):
        for size in (30 * alpha, 300 * alpha):
            pieces = range(1, 100)
            steps = (ranks - 1).bit_length() - 1
            circle = min((k + steps) * (alpha + size / k) for k in pieces)
            for name in ("broadcast", "reduce"):
                assert 0.8 * circle < rounds(hub(ranks, alpha), name, size) <= circle
    # One message to one other rank.
    assert rounds(hub(2, 1000), "broadcast", 1 << 20) == 1000 + (1 << 20)


def test_blocks_that_are_relayed_are_received_twice() -> None:
    # 5 ranks, 10 bytes for each other: 4 messages and 40 bytes, or fewer messages and more bytes.
    assert rounds(hub(5, 8), "alltoall", 50) == 4 * 8 + 40
    assert rounds(hub(5, 100), "alltoall", 50) == 100 + 70


def test_what_enters_a_server_is_spread_in_it() -> None:
    # 8 bytes enter by two wires of 2 a byte: 20 + 8. What comes in the last moment (1) has to come
    # by both wires: half of that moment is lost.
    assert rounds(pairs(20), "allgather", 16) == 20 + 8 + 1
    # A sum is complete after 1 in the other server: one message of 8 bytes begins then.
    assert rounds(pairs(20), "allreduce", 16) == 1 + 20 + 16 + 1
    # The root sends at once over its wire, the other rank of its server after 1: 8.25 and 7.75.
    assert rounds(pairs(20), "broadcast", 16) == rounds(pairs(20), "reduce", 16) == 38


def test_what_a_wire_carries_are_whole_messages() -> None:
    # 8 bytes by two wires of 40 a byte, 30 inside. All in one message each: 40 + 160 + 30. What
    # comes after it, 40 later at least, would come too late.
    assert rounds(apart(40, 30, 40), "allgather", 16) == 230
    # With 20 a second one pays, of which half counts: x bytes, 20 + 40 x + 30 = T, and y more,
    # 40 + 40 (x + y) = T. With x + y / 2 = 4 that is 205.
    assert rounds(apart(20, 30, 40), "allgather", 16) == 205
    assert rounds(apart(20, 30, 40), "reducescatter", 16) == 205


def test_a_port_can_not_be_busy_all_the_time_until_something_comes_from_outside() -> None:
    # 4 MB on two DGX-H100 (250 KB each, 0.556 us at a port inside): what comes from outside after
    # 2.4 takes three rounds of a port inside. Before them it takes a block in a round, or three in
    # two, and idles for at least 2.4 less these, or has paid two overheads. One overhead is less.
    network = load_topology("dgx-h100", nodes=2)
    for name in ("allgather", "reducescatter"):
        assert 10_500_000 < rounds(network, name, 4 * 10**6) <= 12_000_000


def test_who_sends_at_once_knows_its_own_only() -> None:
    # The byte that a wire takes at once is there at 5 + 1, and 2 later at the other rank. Both
    # bytes of a server are at a wire after 2, and at the other end after 2 + 5 + 2. If they were
    # there at once, 7 would be enough.
    for name in ("allgather", "reducescatter"):
        assert rounds(apart(5, 2), name, 4) == 5 + 1 + 2
        # 64 KB on two DGX-2: a wire of two ranks takes one block at once, but must take two. The
        # second one comes with a second message, or is one of those that begin after a round.
        assert 5_500_000 < rounds(load_topology("dgx2", nodes=2), name, 1 << 16) <= 6_107_904


def test_ports_that_lead_out_of_a_server_are_told_from_others() -> None:
    # Two servers of two, 100 bytes each: a rank takes 300 over a wire of latency 10 from outside
    # and one of 30 from its neighbour. Some of the 200 from outside come by the neighbour, after
    # 30, and it could not begin before 10: (T - 30 - 10) + (T - 10) = 300.
    for name in ("allgather", "reducescatter"):
        assert rounds(apart(10, 30), name, 400) == 175
        # Where a round inside takes too long, all 300 come by the wire.
        assert rounds(apart(60, 500), name, 400) == 60 + 300


def apart(alpha: int, inside: int, wire: int = 1) -> Topology:
    """Return two servers of two ranks: latencies between and `inside`; and for a byte between."""
    rows: list[Row] = [(r, r ^ 1, inside, None, 1) for r in range(4)]
    rows += [(r, r ^ 2, alpha, None, wire) for r in range(4)]
    return build(4, rows, servers=(0, 0, 1, 1))


# --- against all schedules -----------------------------------------------------------------------


Told = tuple[int, int, tuple[tuple[int, int], ...]]
State = tuple[int, tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...], tuple[Told, ...]]
"""Now, what is known, edges and until when each is held, and messages under way."""


@dataclass(frozen=True)
class Gossip:
    """Who must know whose parts of a chunk; a message tells all that its sender knows of some."""

    collective: Collective

    def begin(self) -> tuple[tuple[int, ...], ...]:
        """Return by rank and chunk whose parts it knows, as bits."""
        ranks, chunks = range(self.collective.num_ranks), range(self.collective.num_chunks)
        return tuple(tuple((r in self.collective.sources(c)) << r for c in chunks) for r in ranks)

    def done(self, known: tuple[tuple[int, ...], ...]) -> bool:
        """Tell whether all know what they must."""
        every = [sum(1 << r for r in self.collective.sources(c)) for c in range(len(known[0]))]
        return all(
            known[r][c] & every[c] == every[c]
            for c in range(len(every))
            for r in self.collective.targets(c)
        )


def can_end_before(topology: Topology, name: str, size: int, claim: int, cut: int = 1) -> bool:
    """Tell whether any order of messages, each of any chunks (`cut` a rank), ends before a time."""
    collective = build_collective(name, topology.num_ranks, cut)
    chunk, gossip = Fraction(size, collective.chunks_in_size), Gossip(collective)
    links = [topology.link(row) for row in range(len(topology.links))]
    chunks = range(collective.num_chunks)
    groups = [g for n in range(1, len(chunks) + 1) for g in combinations(chunks, n)]
    costs = {
        (row, count): (
            topology.arrival(row, count * chunk),
            [(e, topology.busy(row, e, count * chunk)) for e in link.edges
             if topology.edges[e].beta is not None],
        )
        for row, link in enumerate(links) for count in range(1, len(chunks) + 1)
    }  # fmt: skip
    start: State = (0, gossip.begin(), (), ())
    queue, seen = [start], {start}
    while queue:
        now, known, busy, flying = heapq.heappop(queue)
        free = dict(busy)
        moments = {end for end, *_ in flying} | {time for _, time in busy}
        following: list[State] = []
        for row, link in enumerate(links):
            for group in groups:
                arrival, held = costs[row, len(group)]
                if now + arrival >= claim or any(free.get(e, 0) > now for e, _ in held):
                    continue
                if all(
                    known[link.src][c] | known[link.dst][c] == known[link.dst][c] for c in group
                ):
                    continue
                message = (now + arrival, link.dst, tuple((c, known[link.src][c]) for c in group))
                taken = tuple(sorted({**free, **{e: now + time for e, time in held}}.items()))
                following.append((now, known, taken, tuple(sorted((*flying, message)))))
        if moments:
            later = min(moments)
            table = [list(row) for row in known]
            for end, dst, told in flying:
                for c, bits in told if end <= later else ():
                    table[dst][c] |= bits
            after = tuple(map(tuple, table))
            if gossip.done(after):
                return True
            left = tuple((e, time) for e, time in busy if time > later)
            following.append((later, after, left, tuple(m for m in flying if m[0] > later)))
        for state in following:
            if state not in seen and state[0] < claim:
                seen.add(state)
                heapq.heappush(queue, state)
    return False


def small_networks() -> Iterator[tuple[Topology, str, int, int]]:
    """Yield machines of three or four ranks, a collective, a size, and chunks for each rank."""
    for rule in ("occupy", "delay"):
        for name in ("allgather", "reducescatter", "broadcast"):
            yield hub(3, 2, rule=rule), name, 3, 1
    yield hub(2, 2), "allreduce", 4, 1
    yield hub(3, 1), "allreduce", 3, 1
    yield hub(3, 4, 1), "allgather", 3, 1
    yield pairs(3), "broadcast", 4, 1
    yield apart(2, 1), "broadcast", 4, 1
    yield apart(1, 2, 2), "reduce", 4, 1
    yield apart(2, 1), "allgather", 4, 1
    yield hub(3, 1), "broadcast", 6, 3
    yield hub(4, 1), "broadcast", 6, 2
    yield apart(1, 1), "broadcast", 8, 2


@for_each("number", range(len(list(small_networks()))), quick=8)
def test_no_order_of_messages_ends_sooner(number: int) -> None:
    topology, name, size, cut = list(small_networks())[number]
    assert not can_end_before(topology, name, size, rounds(topology, name, size), cut)


def test_the_search_finds_what_ends_in_time() -> None:
    for network, name, size in ((hub(3, 3), "allgather", 3), (hub(2, 2), "allreduce", 4)):
        bound = rounds(network, name, size)
        assert can_end_before(network, name, size, bound + 1), name  # so it is optimal


# --- against every classical algorithm -----------------------------------------------------------


MACHINES = (
    "hub:6", "ring:5", "torus2d:3x3", "hypercube:8", "full:5", "leaf-spine:2x4x2", "leaf-spine:3x3",
    "fat-tree:4", "dragonfly:3x2x2", "mesh2d:2x3", "ndv2", "slow-uplink", "pcie-a100",
)  # fmt: skip
NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


@for_each("machine", MACHINES, quick=6)
@for_each("rule", ["occupy", "delay"])
def test_no_classical_algorithm_ends_sooner(machine: str, rule: str) -> None:
    draw = random.Random(f"{machine} {rule}")
    topology = load_network(machine, MachineOptions(alpha_rule=rule)).topology
    for name in NAMES:
        cut = build_collective(name, topology.num_ranks, draw.choice((1, 2)))
        for size in (draw.randrange(1000, 50_000), draw.randrange(100_000, 4_000_000)):
            chunk = chunk_size_of(cut, size)
            problem = Problem(whole(topology), cut, chunk, make_group(topology, ()))
            bound = rounds(topology, name, size)
            for algorithm in draw.sample([*CLASSICAL], 4):
                for schedule in classical_schedules(problem, algorithm, batch=True):
                    assert bound <= schedule.makespan, (name, size, algorithm)


def test_where_ranks_are_cut_off_there_is_no_bound_but_an_error() -> None:
    rows: list[Row] = [(0, 1, 1, None, 1), (1, 0, 1, None, 1), (1, 2, 1, None, 1)]
    with pytest.raises(NoScheduleError, match="can't be reached from"):
        rounds(build(3, rows), "allgather", 3)
