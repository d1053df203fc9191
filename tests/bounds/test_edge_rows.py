"""Of millions of links each edge is a row: what that bounds, and what it may lose."""

from fractions import Fraction

import pytest

from taccl.bounds import net
from taccl.bounds.combine import POINT_TO_POINT, WORLDS, _curves, any_bounds, best, fixed_bounds
from taccl.bounds.net import make_net
from taccl.bounds.packing import packing_crossings
from taccl.collectives import build_collective
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from tests.generators import random_problem, random_schedule
from tests.sweep import for_each

ALL = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast")
MACHINES = ("mi250 x 4", "dgx-h100 x 4", "dragonfly:3x2x2", "hub")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every network have too many links."""
    monkeypatch.setattr(net, "MOST_LINKS", 0)
    _curves.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten() -> object:
    yield
    _curves.cache_clear()


def bound(topology: Topology, collective: str, size: int, world: str) -> int:
    _curves.cache_clear()
    return best(any_bounds(whole(topology), collective, size, world=world)).time


def machine(text: str) -> Topology:
    name, _, nodes = text.partition(" x ")
    return load_topology(name, nodes=int(nodes) if nodes else None)


@for_each("text", MACHINES)
def test_for_large_buffers_hardly_anything_is_lost(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = machine(text)
    for collective in ALL:
        for world in ("any", POINT_TO_POINT)[: 1 + topology.copies_or_adds]:
            full = bound(topology, collective, 10**9, world)
            with monkeypatch.context() as patch:
                patch.setattr(net, "MOST_LINKS", 0)
                less = bound(topology, collective, 10**9, world)
            assert 0.96 * full <= less <= full, (collective, world)


@pytest.mark.usefixtures("few")
@for_each("seed", range(60), quick=20)
def test_no_schedule_is_faster(seed: int) -> None:
    problem = random_problem(seed)
    schedule = random_schedule(seed)
    logical, collective = whole(problem.topology), problem.collective
    size = problem.chunk_size * collective.chunks_in_size
    for world in ("any", POINT_TO_POINT):
        found = any_bounds(logical, collective, int(size), world=world)
        assert best(found).time <= schedule.makespan
    for one in fixed_bounds(logical, collective, problem.chunk_size):
        assert one.world == "fixed"
        assert one.time <= schedule.makespan
    assert {"fixed", "any"} <= set(WORLDS)


@pytest.mark.usefixtures("few")
def test_a_switch_that_only_passes_on_does_not_add() -> None:
    topology = machine("ndv2 x 2")
    made = build_collective("allreduce", topology.num_ranks, 1)
    network = make_net(whole(topology), made)
    assert len(network.relays) == len(network.helpers) == len(topology.switches)
    assert len(network.src) == len(topology.edges)
    assert list(packing_crossings(network, made)) == []  # trees past so many switches
    nvls = machine("dgx-h100 x 3")
    able = make_net(whole(nvls), build_collective("allreduce", nvls.num_ranks, 1), fans=True)
    assert 0 < len(able.helpers) - len(able.relays) == sum(one.is_station for one in nvls.switches)


@pytest.mark.usefixtures("few")
def test_a_sketch_keeps_its_links() -> None:
    logical = whole(load_topology("hub"))
    allowed = logical.allowed.copy()
    allowed[0] = False
    some = type(logical)(logical.topology, allowed, name="less")
    assert not net.has_many_links(some)
    assert not make_net(some, build_collective("allgather", some.topology.num_ranks, 1)).helpers
    assert net.has_many_links(logical)
    whole_chunk = Fraction(1000)
    assert make_net(logical, build_collective("allgather", 8, 1), whole_chunk).chunk is None
