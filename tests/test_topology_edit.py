"""What a topology is without some of its edges, or with slower ones."""

from fractions import Fraction

import pytest

from taccl.apps import logical_group
from taccl.errors import InputError
from taccl.topology.edit import Loss, degrade, edges_between, edges_called, read_loss
from taccl.topology.file import load_topology, topology_document, topology_from_document
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group

HALF = Fraction(1, 2)


def names(topology: Topology, edges: list[int]) -> list[str]:
    return [topology.edges[edge].name for edge in edges]


def test_a_loss_has_its_own_factor_or_the_common_one() -> None:
    assert read_loss("--edge", "0->1=0.25", "0.5") == Loss("--edge", "0->1", Fraction(1, 4))
    assert read_loss("--link", "0-1", "0.5") == Loss("--link", "0-1", HALF)
    assert read_loss("--link", "0-1=0", None).factor == 0
    assert read_loss("--edge", "a=b", "0.5").text == "a=b"


@pytest.mark.parametrize(
    ("text", "factor", "message"),
    [("0->1", None, "does not say what is left"), ("0->1=1", None, "from 0 to below 1"),
     ("0->1", "2", "from 0 to below 1"), ("0->1", "-1", "from 0 to below 1"),
     ("0->1", "nan", "from 0 to below 1"), ("0->1", "1e-400000", "from 0 to below 1")],
)  # fmt: skip
def test_a_loss_leaves_less_than_all(text: str, factor: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_loss("--edge", text, factor)


def test_edges_are_found_by_name_and_by_ranks() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    assert names(topology, edges_called(topology, "s0/ib3.tx->rail3")) == ["s0/ib3.tx->rail3"]
    assert names(topology, edges_called(topology, "s1/*.tx->*")) == [
        f"s1/ib{i}.tx->rail{i}" for i in range(8)
    ]
    assert edges_called(topology, "s2/*") == []
    assert names(topology, edges_between(topology, "0->1")) == ["0->s0/nvswitch", "s0/nvswitch->1"]
    assert len(edges_between(topology, "0-8")) == 8
    assert edges_between(topology, "0-9") == edges_between(topology, "0-99") == []


def test_a_slower_edge_has_a_part_of_its_bandwidth_and_all_of_its_alpha() -> None:
    ring = load_topology("ring:4")
    slow, notes = degrade(ring, [read_loss("--edge", "0->1=0.5", None)])
    changed = [(a, b) for a, b in zip(ring.edges, slow.edges, strict=True) if a != b]
    ((before, after),) = changed
    assert (before.name, before.beta, after.beta) == ("0->1", Fraction(20), Fraction(40))
    assert after.alpha == before.alpha
    assert slow.name == "ring-4-degraded"
    assert notes == ["0.5 of the bandwidth of 0->1",
                     "one way only: 1->0 as before; name both for both ways",
                     "0 rotations in place of 1, as some do not hold any more"]  # fmt: skip


def test_losses_of_one_edge_multiply_and_a_removed_edge_stays_removed() -> None:
    losses = [
        Loss("--edge", "0->1", HALF),
        Loss("--link", "0-1", HALF),
        Loss("--edge", "2->3", Fraction(0)),
    ]
    made, _ = degrade(load_topology("ring:4"), [*losses, Loss("--edge", "2->3", HALF)])
    betas = {edge.name: edge.beta for edge in made.edges}
    assert (betas["0->1"], betas["1->0"]) == (Fraction(80), Fraction(40))
    assert "2->3" not in betas
    assert [edge.id for edge in made.edges] == list(range(7))


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [("--edge", "0->9", "ring-4 has no edge '0->9'"), ("--link", "0-2", "has no link '0-2'"),
     ("--link", "x", "has no link 'x'")],
)  # fmt: skip
def test_what_is_not_there_is_named(option: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        degrade(load_topology("ring:4"), [Loss(option, text, HALF)])


def test_an_edge_that_only_adds_alpha_can_be_removed_but_not_slowed() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    with pytest.raises(InputError, match=r"'0->s0/ib0\.tx' has no bandwidth to lose"):
        degrade(topology, [Loss("--edge", "0->s0/ib0.tx", HALF)])
    made, _ = degrade(topology, [Loss("--edge", "0->s0/ib0.tx", Fraction(0))])
    assert len(made.edges) == len(topology.edges) - 1


def test_a_rank_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(InputError, match=r"rank 1 can't be reached from rank 0 any more"):
        degrade(load_topology("hub:4"), [Loss("--edge", "*->1", Fraction(0))])
    with pytest.raises(InputError, match=r"rank 1 can't be reached from rank 0 any more"):
        degrade(load_topology("ring:2"), [Loss("--edge", "*", Fraction(0))])


@pytest.mark.parametrize(
    ("spec", "nodes", "edge", "order"),
    # One odd edge: nothing moves it. One odd rail: the servers can still be moved, not the GPUs.
    # One odd server: its GPUs can still be moved.
    [("dgx-a100", 2, "s0/ib3.tx->*", 1), ("dgx-a100", 4, "*/ib3.tx->*", 4),
     ("dgx-a100", 2, "s0/nvswitch->*", 8), ("ring:8", None, "0->1", 1),
     ("hub:6", None, "*->hub", 6)],
)  # fmt: skip
def test_the_symmetries_that_are_left_are_declared(
    spec: str, nodes: int | None, edge: str, order: int
) -> None:
    made, _ = degrade(load_topology(spec, nodes=nodes), [Loss("--edge", edge, HALF)])
    again = topology_from_document(topology_document(made))
    assert again.edges == made.edges
    assert again.rotations == made.rotations
    group = logical_group(whole(again, again.rotations))
    assert len(group) == order
    assert make_group(again, group.generators).acts_freely()


def test_a_power_of_a_rotation_may_be_left() -> None:
    losses = [Loss("--link", text, HALF) for text in ("0->1", "4->5")]
    made, _ = degrade(load_topology("ring:8"), losses)
    assert made.rotations == ((4, 5, 6, 7, 0, 1, 2, 3),)


def test_more_than_what_is_left_of_the_rotations_may_be_found() -> None:
    # without the wire 0-1 no turn is left, but the path has its reflection
    made, notes = degrade(load_topology("ring:6"), [Loss("--link", "0-1", Fraction(0))])
    assert made.rotations == ((1, 0, 5, 4, 3, 2),)
    assert notes[-1] == "1 rotations in place of 1, as some do not hold any more"
