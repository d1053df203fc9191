"""Where links are very many: kinds of them in place of each, and trees along some of them."""

from dataclasses import replace

import numpy as np
import pytest

from taccl.model.routes import arcs_of, some_arcs
from taccl.synth.guided import engine
from taccl.synth.guided.engine import guided
from taccl.synth.templates import classical
from taccl.synth.templates.classical import CLASSICAL, Trial, schedules_of
from taccl.timing.retiming import uses_of
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.generators import random_problem
from tests.msccl.builders import make_topology
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of


@for_each("seed", range(40))
def test_arcs_of_a_kind_cost_what_each_costs_alone(seed: int) -> None:
    problem = random_problem(seed)
    for reverse in (False, True):
        arcs = arcs_of(problem, reverse=reverse)
        kept = np.arange(len(arcs)) % 3 > 0
        for some in (arcs, some_arcs(arcs, kept)):
            lengths = np.full(len(some), 2, dtype=np.int64)
            alone = uses_of(problem.group, problem.chunk_size, some.link, lengths)
            assert (some.use_start == alone.first).all()
            assert (arcs.resources[some.use_resource] == alone.resource).all()
            assert (some.arrival(2) == alone.arrival).all()
            assert (some.held(2) == alone.held).all()


def test_links_are_of_a_kind_where_their_edges_are_of_the_same_orbits() -> None:
    # In a server of 8 that are alike every link crosses two edges; between servers each rank has
    # its own NIC, behind the same switch. Turning servers round takes every NIC to its like.
    problem = problem_of(load_topology("dgx-a100", nodes=4), "allgather", symmetric=True)
    kinds, first = problem.group.link_kinds
    table, orbit = problem.topology.links, problem.group.edge_orbit
    rows = [tuple(orbit[list(table.edges_of(link))].tolist()) for link in range(len(table))]
    assert len(first) == len(set(rows)) < len(rows) / 8
    for link, kind in enumerate(kinds.tolist()):
        assert rows[first[kind]] == rows[link]
        assert first[kind] <= link


def test_trees_take_links_to_ranks_at_distances_that_are_powers_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MANY_LINKS", 0)
    problem = problem_of(load_topology("hub:12"), "allgather", symmetric=True)
    table = problem.topology.links
    kept = engine._links_of(problem)
    away = (table.dst[kept] - table.src[kept]) % 12
    assert set(away.tolist()) == {1, 2, 4, 8, 11, 10, 4 % 12, 12 - 4}
    assert (np.bincount(table.src[kept]) == 6).all()
    limited = replace(problem, logical=replace(problem.logical, name="a sketch"))
    assert len(engine._links_of(limited)) == len(table)


def test_without_symmetry_links_are_alike_that_cost_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MANY_LINKS", 0)
    topology = load_topology("dgx-a100", nodes=12)
    problem = problem_of(topology, "allgather")
    assert len(problem.group.link_kinds[1]) == len(topology.links)
    kept = engine._links_of(problem)
    server = np.array(topology.server_of)
    src, dst = topology.links.src[kept], topology.links.dst[kept]
    across = server[src] != server[dst]
    assert set(((server[dst] - server[src]) % 12)[across].tolist()) == {1, 2, 4, 8, 10, 11}
    # Of the 7 others of a server those 1, 2, 4, 6 and 7 places on.
    assert (np.bincount(src[~across]) == 5).all()


def test_where_some_of_many_links_lead_not_everywhere_trees_take_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MANY_LINKS", 0)
    # Of the seven others, the first has wires alone to those 3 and 5 places on.
    star = make_topology("star", 8, [(a, b) for n in range(1, 8) for a, b in ((0, n), (n, 0))])
    problem = problem_of(star, "allgather")
    assert len(engine._links_of(problem)) == len(star.links) == 14
    assert guided(problem, QUICK).schedule is not None


@for_each("machine", ["dgx-a100", "torus2d:4x4", "leaf-spine:4x4x2", "dragonfly:3x2x2"])
@for_each("collective", ["allgather", "reducescatter", "allreduce"])
def test_some_of_many_links_serve_large_chunks_as_well(machine: str, collective: str) -> None:
    nodes = 2 if machine == "dgx-a100" else None
    problem = problem_of(load_topology(machine, nodes=nodes), collective, 1, 10**7, symmetric=True)
    options = replace(QUICK, batch=False)
    full = guided(problem, options).schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "MANY_LINKS", 0)
        some = guided(problem, options).schedule
    assert full is not None
    assert some is not None
    assert verify(some, problem.logical) == []
    assert some.makespan <= 1.1 * full.makespan


def test_a_way_over_switches_with_too_many_sends_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(load_topology("dgx-h100", nodes=2), "allgather")
    trial = Trial(problem, "nvls-rail", CLASSICAL["nvls-rail"], batch=True)
    assert schedules_of(trial)
    # 16 chunks to 15 ranks, 8 to a server.
    monkeypatch.setattr(classical, "MAX_SENDS", 16 * 15 // 8 - 1)
    assert not schedules_of(trial)
    assert trial.left_out == ["nvls-rail has more than 29 sends, of fans or links"]
