"""How fast things are: links by their slowest edge, what ranks send, tables that differ."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taccl.files import parse_document
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import Switch
from taccl.topology.structure import FREE, homes, rank_rates, slowest_edges, unlike
from tests.generators import build, random_topology, star5, twin2x2
from tests.sweep import for_each


@for_each("seed", range(10))
def test_the_slowest_edge_of_a_link_has_its_largest_beta(seed: int) -> None:
    topology = random_topology(seed)
    places, betas = slowest_edges(topology)
    table = topology.links
    found = [Fraction(0) if place == FREE else betas[place] for place in places.tolist()]
    assert found == [table.max_beta(link) for link in range(len(table))]


def test_without_links_there_is_no_slowest_edge() -> None:
    places, betas = slowest_edges(build("net", 2, []))
    assert (len(places), betas) == (0, ())


def test_a_rank_sends_by_its_edges_and_a_share_of_its_nic() -> None:
    # A wire of 1 ps a byte, 1000 GB/s; a NIC of 4 ps a byte, 250 GB/s for two ranks.
    sends, receives = rank_rates(twin2x2())
    assert set(sends) == set(receives) == {Fraction(1125)}
    # Up 1, down 2 ps a byte.
    assert [set(rates) for rates in rank_rates(star5())] == [{Fraction(1000)}, {Fraction(500)}]


def test_a_nic_behind_a_bandwidth_of_its_own_is_not_counted_twice() -> None:
    hops = [(0, 2, 0, None, Fraction(50)), (2, 3, 0, None, Fraction(20)),
            (3, 4, 0, None, Fraction(20)), (4, 1, 0, None, Fraction(50))]  # fmt: skip
    topology = build("net", 2, hops, switches=load_topology("leaf-spine:2x1").switches)
    assert [list(map(float, rates)) for rates in rank_rates(topology)] == [[20, 0], [0, 20]]


def test_a_switch_is_at_home_where_all_its_ranks_are() -> None:
    # Ranks 0-3, tx and rx of both servers, the fabric.
    assert homes(twin2x2()) == (0, 0, 1, 1, 0, 0, 1, 1, None)


def test_homes_spread_from_the_ranks_over_the_switches_of_a_server() -> None:
    # Ranks 0 and 1 of two servers; 0 - 2 - 3 - 4 - 1, where 3 is as far from both, and 5 alone.
    hops = [(0, 2, 0, None, None), (2, 3, 0, None, None), (3, 4, 0, None, None),
            (4, 1, 0, None, None)]  # fmt: skip
    switches = tuple(Switch(name) for name in "abcd")
    topology = build("net", 2, hops, switches=switches, server_of=(0, 1))
    assert homes(topology) == (0, 1, 0, None, 1, None)


ONE_A_LEAF = """\
taccl: topology/1
name: made
node:
  gpus: 2
  wires: [{from: 0, to: 1, bandwidth: 50GB/s}]
  switches:
    - {name: plx, across: servers, links: [{to: cpu}]}
    - {name: cpu, members: [], across: servers}
  nics: [{name: ib0, at: cpu, bandwidth: 25GB/s}]
count: 2
fabric: {kind: leaf-spine, leaves: 2, uplink: 25GB/s, alpha: 1.7us}
"""


def test_a_server_ends_at_its_nics() -> None:
    # One server at each leaf: its NIC leads there in one direction only.
    topology = topology_from_document(parse_document(ONE_A_LEAF, None).value)
    found = homes(topology)
    at = {topology.vertex_name(vertex): server for vertex, server in enumerate(found)}
    assert (at["s0/cpu"], at["s1/ib0.tx"], at["s1/ib0.rx"]) == (0, 1, 1)
    assert (at["leaf0"], at["leaf1"], at["spine"]) == (None, None, None)


Rows = list[tuple[int, int]]
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=8)


def table(found: Rows) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(found, dtype=np.int64).reshape(-1, 2).T


@given(rows, rows)
def test_keys_are_unlike_when_what_they_stand_for_is(one: Rows, other: Rows) -> None:
    def by_key(found: Rows) -> dict[int, list[int]]:
        return {k: sorted(v for key, v in found if key == k) for k, _ in found}

    mine, theirs = by_key(one), by_key(other)
    expected = sorted(k for k in mine if k in theirs and mine[k] != theirs[k])
    assert unlike(table(one), table(other)).tolist() == expected
