"""Whole trees: as even as any can be, and flat."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import reduces_and_spreads
from taccl.model.routes import arcs_of, wanted_of
from taccl.prices.trees import (
    Ints,
    Phases,
    crossing_of,
    crossings,
    flow_to,
    fractional,
    least_even,
    whole_trees,
)
from taccl.timing.deadline import Deadline
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from tests.generators import build, pair
from tests.synth.problems import problem_of


def phases_of(topology: Topology, collective: str, chunks: int, size: int = 10**6) -> Phases:
    """Return the phases of a collective, without symmetries."""
    problem = problem_of(topology, collective, chunks, size).without_symmetry
    sums = problem.collective.reduces
    ways = (True, False) if reduces_and_spreads(problem.collective) else (sums,)
    return [(arcs, wanted_of(arcs)) for arcs in (arcs_of(problem, reverse=way) for way in ways)]


def crossed(phases: Phases, trees: list[list[Ints]]) -> Ints:
    """Return how many trees cross each arc of the phases, one after the other."""
    return np.concatenate([
        np.bincount(np.concatenate(own), minlength=len(arcs))
        for (arcs, _), own in zip(phases, trees, strict=True)
    ])  # fmt: skip


def busiest(phases: Phases, trees: list[list[Ints]]) -> float:
    return float(crossing_of(phases).loads(crossed(phases, trees)).max())


def check_trees(phases: Phases, trees: list[list[Ints]]) -> None:
    """Each chunk comes to all ranks once, to parents before children."""
    for (arcs, wanted), own in zip(phases, trees, strict=True):
        for roots, tree in zip(wanted.roots, own, strict=True):
            there = set(np.flatnonzero(roots).tolist())
            for arc in tree.tolist():
                assert int(arcs.tail[arc]) in there
                assert int(arcs.head[arc]) not in there
                there.add(int(arcs.head[arc]))
            assert len(there) == arcs.problem.topology.num_ranks


@st.composite
def wired(draw: st.DrawFn) -> Topology:
    """Draw three to five ranks on a ring of wires, and further wires, of unlike speed."""
    ranks = draw(st.integers(3, 5))
    betas = st.sampled_from([Fraction(1), Fraction(2), Fraction(5, 2), Fraction(4)])
    ends = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    others = [(a, b) for a in range(ranks) for b in range(ranks) if a != b and (a, b) not in ends]
    ends += draw(st.lists(st.sampled_from(others), unique=True))
    return build("wired", ranks, [(a, b, 10, None, draw(betas)) for a, b in ends])


@settings(max_examples=40, deadline=None)
@given(wired(), st.integers(1, 4))
def test_fractions_of_trees_are_as_even_as_the_narrowest_cut(
    topology: Topology, chunks: int
) -> None:
    """Edmonds' theorem by brute force: over all sets of ranks that something has to enter."""
    phases = phases_of(topology, "allgather", chunks)
    ((arcs, _),) = phases
    ranks, held = topology.num_ranks, arcs.held().astype(np.float64)
    narrowest = 0.0
    for size in range(1, ranks):
        for inside in combinations(range(ranks), size):
            enters = ~np.isin(arcs.tail, inside) & np.isin(arcs.head, inside)
            narrowest = max(narrowest, chunks * (ranks - size) / (1 / held[enters]).sum())
    crossing = crossing_of(phases)
    found = float(crossing.loads(fractional(crossing, Deadline())).max())
    assert found == pytest.approx(narrowest, rel=1e-3)
    whole = crossings(phases, Deadline())
    assert found <= whole.held * (1 + 1e-3)
    trees = whole_trees(phases, Deadline())
    check_trees(phases, trees)
    assert (crossed(phases, trees) <= whole.times * whole.counts).all()


@settings(max_examples=40, deadline=None)
@given(wired(), st.integers(1, 3))
def test_whole_trees_cross_wires_as_evenly_as_whole_chunks_can(
    topology: Topology, chunks: int
) -> None:
    """Wires that are free for T let T / held trees pass: the least T is found by trying all."""
    phases = phases_of(topology, "broadcast", chunks)
    ((arcs, wanted),) = phases
    held, waiting = arcs.held(), wanted.roots.sum(axis=0)
    for time in sorted({int(one) * n for one in held.tolist() for n in range(1, chunks + 1)}):
        room = np.zeros((topology.num_ranks,) * 2, dtype=np.int64)
        np.add.at(room, (arcs.tail, arcs.head), time // held)
        flows = (flow_to(room, waiting, rank, chunks)[0] for rank in range(topology.num_ranks))
        if all(flow == chunks for flow in flows):
            break
    assert busiest(phases, whole_trees(phases, Deadline())) <= 1.005 * time


def test_known_machines() -> None:
    """An MI250's root has links for 6 trees; where ports are shared, few chunks come near, too."""
    cases = (
        ("mi250", None, "broadcast", 6, 1.001), ("mi250", None, "broadcast", 12, 1.001),
        ("dgx1v", None, "allgather", 6, 1.001), ("mesh2d", None, "allreduce", 1, 1.001),
        ("mesh2d", None, "allreduce", 4, 1.001), ("fat-tree", None, "allgather", 1, 1.001),
        ("dgx-h100", 2, "allgather", 2, 1.002), ("mi250", 2, "allreduce", 6, 1.04),
    )  # fmt: skip
    for machine, nodes, collective, chunks, most in cases:
        phases = phases_of(load_topology(machine, nodes=nodes), collective, chunks, 10**9)
        trees = whole_trees(phases, Deadline())
        check_trees(phases, trees)
        crossing = crossing_of(phases)
        least = float(crossing.loads(fractional(crossing, Deadline())).max())
        assert busiest(phases, trees) <= most * least, (machine, collective, chunks)


def test_the_fewest_pieces_that_share_links_evenly() -> None:
    """As many as the root has lanes; where no few pieces do, those that come nearest."""
    cases = {"ring:4": 2, "mi250": 6, "torus3d": 6, "dgx1v": 6, "hypercube": 4, "mesh2d": 2}
    for machine, pieces in cases.items():
        phases = phases_of(load_topology(machine), "broadcast", 1, 10**9)
        assert least_even(phases, 24, Deadline()) == pieces, machine
    # A wire of one lane passes one piece at least: the shorter it is, the better.
    assert least_even(phases_of(load_topology("mi250"), "broadcast", 1, 10**9), 4, Deadline()) == 4


def test_trees_are_flat() -> None:
    """On a torus of 64 ranks nothing is further away than 6 steps, though all links are full."""
    phases = phases_of(load_topology("torus3d"), "allgather", 1)
    ((arcs, wanted),) = phases
    trees = whole_trees(phases, Deadline())
    for roots, tree in zip(wanted.roots, trees[0], strict=True):
        depth = np.where(roots, 0, -1)
        for arc in tree.tolist():
            depth[arcs.head[arc]] = depth[arcs.tail[arc]] + 1
        assert depth.max() <= 7


def test_what_goes_the_same_way_is_side_by_side() -> None:
    """Of 12 chunks on an MI250, rounds of 6 trees, those by the widest link follow one another."""
    phases = phases_of(load_topology("mi250"), "broadcast", 12, 10**9)
    ((arcs, _),) = phases
    (own,) = whole_trees(phases, Deadline())
    by = [int(arcs.head[tree[arcs.tail[tree] == 0]].min()) for tree in own]
    assert by == [1, 1, 1, by[3], by[4], by[5]] * 2 or by == [1, 1, 1, 1, by[4], by[5]] * 2


def test_a_rank_without_links_is_told() -> None:
    """Nobody can come to rank 2."""
    topology = build("cut off", 3, [(0, 1, 1, None, Fraction(1)), (2, 1, 1, None, Fraction(1))])
    phases = phases_of(topology, "broadcast", 1)
    with pytest.raises(NoScheduleError, match="some rank can't be reached"):
        whole_trees(phases, Deadline())


def test_no_program_is_waited_for_after_its_time() -> None:
    """The linear program says so; trees come all the same, by prices."""
    phases = phases_of(load_topology("mi250"), "allgather", 2)
    with pytest.raises(OutOfTimeError, match="trees were not packed in time"):
        fractional(crossing_of(phases), Deadline.after(0.0))
    check_trees(phases, whole_trees(phases, Deadline.after(0.0)))


def test_two_ranks() -> None:
    phases = phases_of(pair(), "allgather", 3)
    trees = whole_trees(phases, Deadline())
    check_trees(phases, trees)
    assert crossed(phases, trees).tolist() == [3, 3]
