"""What a message costs on a topology, and the topologies made from a topology."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.topology.file import unreachable_pair
from taccl.topology.graph import Edge, Switch, whole
from tests.generators import Hop, both_ways, build, pair, random_topology, ring4, star5, twin2x2

ONE = Fraction(1)


def test_under_occupy_a_message_holds_its_edge_as_long_as_it_takes() -> None:
    # alpha 10 ps and 5 bytes at 2 ps each make 20
    assert pair().busy(0, 0, 5) == 20
    assert pair().arrival(0, 5) == 20


def test_under_delay_a_message_holds_its_edge_for_its_bytes_only() -> None:
    assert pair("delay").busy(0, 0, 5) == 10
    assert pair("delay").arrival(0, 5) == 20


def test_every_edge_is_held_for_its_own_bytes_and_the_overhead_of_the_whole_link() -> None:
    # star5: alpha 6 + 4; up 1 ps a byte, down 2
    topology = star5()
    link = topology.links_between(0, 1)[0]
    assert topology.busy(link, 0, 5) == 10 + 5
    assert topology.busy(link, 3, 5) == 10 + 10
    assert topology.arrival(link, 5) == 10 + 10


def test_an_overhead_that_is_given_beats_the_rule() -> None:
    hops: list[Hop] = [(0, 2, 6, 2, ONE), (2, 1, 4, None, Fraction(3))]
    for rule, overhead in (("occupy", 2 + 4), ("delay", 2)):
        topology = build("given", 2, hops, switches=[Switch("hub")], rule=rule)
        assert topology.busy(0, 0, 5) == overhead + 5
        assert topology.busy(0, 1, 5) == overhead + 15
        assert topology.arrival(0, 5) == 10 + 15


def test_an_overhead_of_0_is_given_too() -> None:
    topology = build("zero", 2, [(0, 1, 6, 0, ONE)])
    assert topology.busy(0, 0, 5) == 5


def test_an_edge_without_bandwidth_is_never_busy() -> None:
    topology = twin2x2()
    link = topology.links_between(0, 2)[0]
    first, tx, rx, last = topology.link(link).edges
    assert [topology.busy(link, e, 5) for e in (first, tx, rx, last)] == [0, 40, 40, 0]


def test_bytes_are_rounded_up_to_a_whole_picosecond_once() -> None:
    # 5/4 bytes at 2 ps: 2.5 -> 3
    assert pair().arrival(0, Fraction(5, 4)) == 13
    assert pair("delay").busy(0, 0, Fraction(5, 4)) == 3


def test_the_rule_is_stated_as_explicit_when_an_edge_gives_its_overhead() -> None:
    assert pair().alpha_rule_stated == "occupy"
    assert pair("delay").alpha_rule_stated == "delay"
    assert build("given", 2, [(0, 1, 6, 0, ONE)]).alpha_rule_stated == "explicit"


def test_the_other_rule_changes_holding_but_not_arrival() -> None:
    delayed = pair().with_alpha_rule("delay")
    assert (delayed.busy(0, 0, 5), delayed.arrival(0, 5)) == (10, 20)
    assert pair().with_alpha_rule("occupy").busy(0, 0, 5) == 20


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="alpha_rule: unknown alpha rule 'late'"):
        pair().with_alpha_rule("late")


def test_reversing_turns_every_edge_and_keeps_its_id() -> None:
    topology = star5().reversed()
    assert topology.edges[0] == Edge(0, 5, 0, 6, None, ONE, "e0")


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_reversing_twice_gives_the_same_network(seed: int) -> None:
    topology = random_topology(seed)
    again = topology.reversed().reversed()
    names = list(type(topology).__dataclass_fields__)
    assert [getattr(again, n) for n in names] == [getattr(topology, n) for n in names]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_links_of_the_reverse_are_the_reversed_links_at_the_same_cost(seed: int) -> None:
    topology = random_topology(seed)
    back = topology.reversed()
    costs = [
        sorted(
            (link.edges[::step], link.alpha, link.overhead, t.arrival(i, 64))
            for i in range(len(t.links))
            for link in [t.link(i)]
        )
        for t, step in ((topology, 1), (back, -1))
    ]
    assert costs[0] == costs[1]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), size=st.fractions(0, 10**6))
def test_no_edge_is_held_longer_than_the_message_takes(seed: int, size: Fraction) -> None:
    topology = random_topology(seed)
    for i in range(len(topology.links)):
        for edge in topology.link(i).edges:
            assert topology.busy(i, edge, size) <= topology.arrival(i, size)
        slowest = max(topology.edges[edge].beta or 0 for edge in topology.link(i).edges)
        assert topology.arrival(i, size) == topology.links.alpha[i] + ceil(slowest * size)


def test_connected_ranks_pass_the_check() -> None:
    for topology in (pair(), ring4(), star5(), twin2x2()):
        assert unreachable_pair(topology) is None


def test_a_rank_that_cannot_be_reached_is_named() -> None:
    topology = build("cut", 3, [*both_ways(0, 1, 1, ONE), (2, 0, 1, None, ONE)])
    assert unreachable_pair(topology) == (0, 2)


def test_a_rank_that_cannot_reach_the_others_is_named() -> None:
    topology = build("cut", 3, [*both_ways(0, 1, 1, ONE), (0, 2, 1, None, ONE)])
    assert unreachable_pair(topology) == (2, 0)


def test_vertices_are_called_by_rank_or_switch_name() -> None:
    assert [twin2x2().vertex_name(v) for v in (3, 4, 8)] == ["3", "s0/nic.tx", "fabric"]


def test_servers_are_counted() -> None:
    assert (ring4().num_servers, twin2x2().num_servers) == (1, 2)


def test_without_a_sketch_every_link_is_allowed() -> None:
    assert list(whole(ring4()).links()) == list(range(8))


def test_only_allowed_links_are_listed() -> None:
    allowed = np.array([True, False] * 4)
    assert list(replace(whole(ring4()), allowed=allowed).links()) == [0, 2, 4, 6]
