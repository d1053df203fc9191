"""What holds for programs: by hand, never above a replay, and never below other bounds' sense."""

from fractions import Fraction

from taccl.apps import Request, synthesize
from taccl.apps.programs import Target
from taccl.bounds import any_bounds, best
from taccl.bounds.latency import without_latency
from taccl.replay.sweep import bounds_of
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import Topology, whole
from tests.sweep import for_each

MEGABYTE = 1 << 20


def pair(rule: str = "occupy") -> Topology:
    """Return two ranks with a wire each way: 1 GB/s."""
    edges = [{"from": 0, "to": 1, "bandwidth": "1GB/s", "alpha": "1us"}]
    return topology_from_document({
        "taccl": "topology/1", "name": "pair", "ranks": 2, "edges": edges, "alpha_rule": rule,
    })  # fmt: skip


def program_bound(topology: Topology, collective: str, size: int, most: int) -> int:
    found = any_bounds(whole(topology), collective, size, most)
    return next(bound.time for bound in found if bound.world == "program")


def test_every_so_many_bytes_pay_the_latency_once_more() -> None:
    # 8 MiB cross the wire in messages of 2 MiB: four times 1 us.
    topology, size = pair(), 16 * MEGABYTE
    bounds = any_bounds(whole(topology), "allgather", size, 2 * MEGABYTE)
    wire = 8 * MEGABYTE * 1000
    assert best([bound for bound in bounds if bound.world == "any"]).time == wire + 10**6
    assert best(bounds).time == wire + 4 * 10**6
    assert best(bounds).kind == "message"


def test_a_latency_that_keeps_no_wire_busy_is_not_paid_again() -> None:
    topology = pair(rule="delay")
    assert program_bound(topology, "allgather", 16 * MEGABYTE, MEGABYTE) == 8 * MEGABYTE * 1000


def test_the_cheapest_link_through_an_edge_says_what_its_messages_cost() -> None:
    # The links of a server's switch cross two edges, of half its latency each.
    topology = load_topology("dgx2", nodes=2)
    priced = without_latency(topology, 1000)
    for edge, own in zip(topology.edges, priced.edges, strict=True):
        links = [link for link in range(len(topology.links)) if edge.id in edges_of(topology, link)]
        least = min(int(topology.links.overhead[link]) for link in links)
        more = None if edge.beta is None else edge.beta + Fraction(least, 1000)
        assert own.beta == more
        assert (own.alpha, priced.edge_overhead(own)) == (0, 0)


def edges_of(topology: Topology, link: int) -> tuple[int, ...]:
    return topology.links.edges_of(link)


def test_without_messages_nothing_is_said_of_programs() -> None:
    worlds = {bound.world for bound in any_bounds(whole(pair()), "allgather", MEGABYTE)}
    assert worlds == {"any"}


@for_each(
    ("engine", "protocol"),
    [("guided", "Simple"), ("ring", "Simple"), ("ring", "LL"), ("all-pairs", "LL128")],
    quick=8,
    parts=2,
)
@for_each("collective", ["allgather", "reducescatter", "allreduce", "alltoall"])
@for_each("size", [1 << 16, 1 << 24])
def test_no_replay_is_below_it(engine: str, collective: str, size: int, protocol: str) -> None:
    network = whole(load_topology("hub:8"))
    target = Target("executor", protocol)
    asked = Request(network, collective, size, 1, engine=engine, target=target, time_limit=30.0)
    done = synthesize(asked)
    assert done.replay is not None
    assert {bound.world for bound in done.bounds} == {"any", "program"}
    assert done.bound.time <= done.replay
    most = target.message_bytes(collective, network.topology)
    at = bounds_of(network.topology, collective, message_bytes=most)
    assert at(done.size) == (done.bound.kind, done.bound.time)


def test_pairs_that_send_all_the_time_are_proved_optimal() -> None:
    network = whole(load_topology("dgx2", nodes=2))
    asked = Request(
        network, "alltoall", 64 * MEGABYTE, 1, engine="all-pairs", target=Target("executor")
    )
    done = synthesize(asked)
    assert done.bound.kind == "message"
    assert done.gap is not None
    assert done.gap < 1e-6
