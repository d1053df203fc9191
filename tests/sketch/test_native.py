"""Each field of the native form changes the logical topology as it should."""

from pathlib import Path

import pytest

from taccl.errors import InputError, NoScheduleError
from taccl.sketch import apply_sketch, load_sketch
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from tests.sketch.sketches import ACROSS, INSIDE, native, open_pairs, twins
from tests.sweep import for_each


def test_an_empty_sketch_allows_everything(tmp_path: Path) -> None:
    logical = native("", tmp_path)
    assert open_pairs(logical) == INSIDE | ACROSS
    assert (logical.name, logical.symmetry, logical.max_extra_hops) == ("tiny", (), None)
    assert not logical.on_shortest_paths
    assert (logical.chunks_per_rank, logical.connections_per_rank, logical.channels) == (None,) * 3
    assert (dict(logical.switch_policy), dict(logical.leave_by)) == ({}, {})


def test_a_pattern_across_servers_has_local_numbers(tmp_path: Path) -> None:
    logical = native("links: {deny: [{from: 0, to: 1, across: servers}]}\n", tmp_path)
    assert open_pairs(logical) == (INSIDE | ACROSS) - {(0, 3), (2, 1)}


def test_a_pattern_within_servers_has_local_numbers(tmp_path: Path) -> None:
    logical = native("links: {deny: [{from: 0, to: 1, within: servers}]}\n", tmp_path)
    assert open_pairs(logical) == (INSIDE | ACROSS) - {(0, 1), (2, 3)}


def test_a_pattern_without_scope_has_global_ranks(tmp_path: Path) -> None:
    logical = native("links: {deny: [{from: 0, to: [1, 3]}]}\n", tmp_path)
    assert open_pairs(logical) == (INSIDE | ACROSS) - {(0, 1), (0, 3)}


@pytest.mark.parametrize("numbers", ["0-1", "[0, 1]", "all", "'0,1'"])
def test_numbers_are_a_range_a_list_or_all(numbers: str, tmp_path: Path) -> None:
    logical = native(f"links: {{deny: [{{from: 1, to: {numbers}, across: servers}}]}}\n", tmp_path)
    assert open_pairs(logical) == INSIDE | {(0, 2), (0, 3), (2, 0), (2, 1)}


def test_an_end_left_out_is_every_gpu(tmp_path: Path) -> None:
    logical = native("links: {deny: [{from: 1, across: servers}]}\n", tmp_path)
    assert open_pairs(logical) == INSIDE | {(0, 2), (0, 3), (2, 0), (2, 1)}


def test_allow_opens_what_deny_closed(tmp_path: Path) -> None:
    logical = native(
        "links:\n"
        "  deny: [{from: all, to: all, across: servers}]\n"
        "  allow: [{from: 0, to: 1, across: servers}]\n",
        tmp_path,
    )
    assert open_pairs(logical) == INSIDE | {(0, 3), (2, 1)}


def test_relays_close_every_other_link_between_servers(tmp_path: Path) -> None:
    assert open_pairs(native("internode: {relays: {0: [1]}}\n", tmp_path)) == INSIDE | {
        (0, 3),
        (2, 1),
    }


def test_a_receiver_can_be_a_single_number_and_a_sender_can_be_quoted(tmp_path: Path) -> None:
    assert open_pairs(native('internode: {relays: {"0": 1}}\n', tmp_path)) == INSIDE | {
        (0, 3),
        (2, 1),
    }


def test_relays_hold_for_each_ordered_pair_of_servers(tmp_path: Path) -> None:
    logical = native("internode: {relays: {0: [1]}}\n", tmp_path, nodes=3)
    across = {(0, 3), (0, 5), (2, 1), (2, 5), (4, 1), (4, 3)}
    assert open_pairs(logical) == INSIDE | {(4, 5), (5, 4)} | across


def test_direct_map_keeps_equal_numbers(tmp_path: Path) -> None:
    logical = native("internode: {relays: direct-map}\n", tmp_path)
    assert open_pairs(logical) == INSIDE | {(0, 2), (2, 0), (1, 3), (3, 1)}


def test_fully_connected_keeps_all(tmp_path: Path) -> None:
    logical = native("internode: {relays: fully-connected}\n", tmp_path)
    assert open_pairs(logical) == INSIDE | ACROSS


def test_relays_open_their_links_in_a_sketch_that_denies_all_across(tmp_path: Path) -> None:
    logical = native(
        "links: {deny: [{from: 0-1, to: 0-1, across: servers}]}\ninternode: {relays: {0: [1]}}\n",
        tmp_path,
    )
    assert open_pairs(logical) == INSIDE | {(0, 3), (2, 1)}


def test_a_deny_by_ranks_closes_a_single_link_of_a_relay(tmp_path: Path) -> None:
    logical = native(
        "links: {deny: [{from: 0, to: 2}]}\ninternode: {relays: direct-map}\n", tmp_path
    )
    assert open_pairs(logical) == INSIDE | {(2, 0), (1, 3), (3, 1)}


def test_chunks_leave_by_the_senders_named_in_every_server(tmp_path: Path) -> None:
    logical = native(
        "internode: {relays: {0: [0], 1: [1]}, chunk_to_relay: {0: 1, 1: [0, 1]}}\n", tmp_path
    )
    assert dict(logical.leave_by) == {
        0: frozenset({1}), 1: frozenset({0, 1}), 2: frozenset({3}), 3: frozenset({2, 3}),
    }  # fmt: skip


def test_own_chunks_first_is_kept(tmp_path: Path) -> None:
    assert native("internode: {own_chunks_first: true}\n", tmp_path).own_chunks_first
    assert not native("", tmp_path).own_chunks_first


def test_one_server_ignores_what_is_between_servers(tmp_path: Path) -> None:
    text = "internode: {relays: {0: [7]}, chunk_to_relay: {0: 9}, own_chunks_first: true}\n"
    logical = native(text, tmp_path, nodes=1)
    assert (open_pairs(logical), dict(logical.leave_by)) == ({(0, 1), (1, 0)}, {})
    assert not logical.own_chunks_first


def test_a_policy_is_for_the_switch_in_every_server(tmp_path: Path) -> None:
    logical = native("switches: {sw: uc-min}\n", tmp_path)
    assert dict(logical.switch_policy) == {"s0/sw": "uc-min", "s1/sw": "uc-min"}


def test_a_policy_can_be_for_one_server_or_for_all_links(tmp_path: Path) -> None:
    logical = native('switches: {s1/sw: uc-max, "*": free}\n', tmp_path)
    assert dict(logical.switch_policy) == {"s1/sw": "uc-max", "*": "free"}


def test_the_other_numbers_are_kept(tmp_path: Path) -> None:
    logical = native(
        "chunks_per_rank: 3\nmax_extra_hops: 1\nbalance: minmax\non_shortest_paths: true\n"
        "limits: {connections_per_gpu: 5, channels: 7}\n",
        tmp_path,
    )
    assert (logical.chunks_per_rank, logical.max_extra_hops, logical.balance) == (3, 1, "minmax")
    assert (logical.connections_per_rank, logical.channels) == (5, 7)
    assert logical.on_shortest_paths


def test_offsets_rotate_inside_blocks(tmp_path: Path) -> None:
    logical = native("symmetry: [[1, 2], [2, 4]]\n", tmp_path)
    # r -> (r % block + offset) % block + r // block * block
    assert logical.symmetry == ((1, 0, 3, 2), (2, 3, 0, 1))


def test_permutations_can_be_listed(tmp_path: Path) -> None:
    assert native("symmetry: [[1, 0, 3, 2]]\n", tmp_path).symmetry == ((1, 0, 3, 2),)


def test_two_numbers_that_are_a_permutation_of_two_ranks_are_one(tmp_path: Path) -> None:
    assert native("symmetry: [[1, 0]]\n", tmp_path, nodes=1).symmetry == ((1, 0),)


def test_auto_takes_the_rotations_of_the_topology(tmp_path: Path) -> None:
    logical = native("symmetry: auto\n", tmp_path)
    assert logical.symmetry == logical.topology.rotations == ((2, 3, 0, 1), (1, 0, 3, 2))


def test_auto_leaves_out_a_rotation_that_the_relays_break(tmp_path: Path) -> None:
    # 0 -> 1 alone sends: the servers can swap, the GPUs inside can't.
    logical = native("internode: {relays: {0: [1]}}\nsymmetry: auto\n", tmp_path)
    assert logical.symmetry == ((2, 3, 0, 1),)


def test_auto_leaves_out_a_rotation_that_the_senders_break(tmp_path: Path) -> None:
    logical = native("internode: {chunk_to_relay: {0: 0, 1: 0}}\nsymmetry: auto\n", tmp_path)
    assert logical.symmetry == ((2, 3, 0, 1),)


def test_auto_takes_the_power_of_a_rotation_that_the_sketch_keeps(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    # On a ring of four without 0 - 1 and 2 - 3, only the turn by two remains.
    file.write_text(
        "taccl: sketch/1\nname: s\nsymmetry: auto\n"
        "links: {deny: [{from: 0, to: 1}, {from: 2, to: 3}]}\n"
    )
    logical = apply_sketch(load_topology("ring:4"), load_sketch(str(file)))
    assert logical.symmetry == ((2, 3, 0, 1),)


def test_what_auto_finds_is_a_symmetry_of_the_topology(tmp_path: Path) -> None:
    logical = native("symmetry: auto\n", tmp_path, nodes=3)
    assert len(make_group(logical.topology, logical.symmetry)) == 6


def test_a_sketch_that_cuts_a_rank_off_names_it(tmp_path: Path) -> None:
    with pytest.raises(NoScheduleError, match=r"links.deny\[0\]: rank 2 can't be served") as error:
        native("links: {deny: [{from: all, to: all, across: servers}]}\n", tmp_path)
    assert error.value.exit_status == 3


def test_a_rank_that_can_only_receive_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(NoScheduleError, match=r"rank 0 can't be served: .* from rank 3"):
        native("links: {deny: [{from: 3, to: all}]}\n", tmp_path)


BAD = {
    "unknown field": (
        "chunks: 2\n",
        r":3: chunks: unknown field\n  fix: did you mean chunks_per_rank",
    ),
    "no gpu": (
        "links: {deny: [{from: 2, to: 0, across: servers}]}\n",
        r":3: links.deny\[0\].from: there is no GPU 2 in twins",
    ),
    "no rank": ("links: {deny: [{from: 0, to: 4}]}\n", r"links.deny\[0\].to: there is no rank 4"),
    "two scopes": (
        "links: {allow: [{across: servers, within: servers}]}\n",
        r"links.allow\[0\]: has both across and within",
    ),
    "range": ("links: {deny: [{from: 3-1}]}\n", r"links.deny\[0\].from: should be numbers of GPUs"),
    "sender": (
        "internode: {relays: {5: [0]}}\n",
        r":3: internode.relays\[5\]: there is no GPU 5 in a server of 2",
    ),
    "receiver": ("internode: {relays: {0: [5]}}\n", r"internode.relays\[0\]: there is no GPU 5"),
    "word": (
        "internode: {relays: some}\n",
        r"internode.relays: should be a mapping, fully-connected or",
    ),
    "all": ("internode: {relays: {0: all}}\n", r"internode.relays: 0: all is not accepted here"),
    "no key": (
        "internode: {relays: {a: [0]}}\n",
        r"internode.relays: should be the number of a GPU, got 'a'",
    ),
    "no relays": ("internode: {relays: {}}\n", r"internode.relays: should map GPUs to GPUs"),
    "bad relay": (
        "internode: {relays: {0: [x]}}\n",
        r"internode.relays: 0: should be numbers of GPUs",
    ),
    "too many": (
        "internode: {relays: {" + ", ".join(f"{i}: 0-65535" for i in range(17)) + "}}\n",
        r"internode.relays: names more than 1000000 pairs",
    ),
    "no sender": (
        "internode: {relays: {0: [0]}, chunk_to_relay: {0: 1}}\n",
        r"chunk_to_relay: the chunks of GPU 0 should leave by GPU 1, which is no sender",
    ),
    "no such chunk": (
        "internode: {chunk_to_relay: {9: 0}}\n",
        r"internode.chunk_to_relay: there is no GPU 9",
    ),
    "switch": (
        "switches: {nvs: uc-min}\n",
        r":3: switches.nvs: twins has no switch 'nvs'\n  fix: .*sw",
    ),
    "policy": (
        "switches: {sw: few}\n",
        r"switches.sw: should be 'uc-min', 'uc-max' or 'free', got 'few'",
    ),
    "symmetry word": ("symmetry: some\n", r"symmetry: should be auto or a list of lists"),
    "symmetry row": ("symmetry: [3]\n", r"symmetry: should be a list of lists of numbers, got 3"),
    "symmetry text": (
        "symmetry: [[a, 2]]\n",
        r"symmetry: should hold numbers from 0 to 65536, got 'a'",
    ),
    "symmetry size": (
        "symmetry: [[0, 1, 2]]\n",
        r"symmetry\[0\]: should be \[offset, block\] or a permutation of 0..3, got 3",
    ),
    "block": ("symmetry: [[1, 3]]\n", r"symmetry\[0\]: \[1, 3\] does not fit 4 ranks"),
    "offset": ("symmetry: [[2, 2]]\n", r"symmetry\[0\]: \[2, 2\] does not fit 4 ranks"),
    "zero block": ("symmetry: [[0, 0]]\n", r"symmetry\[0\]: \[0, 0\] does not fit 4 ranks"),
    "chunks": ("chunks_per_rank: 0\n", r"chunks_per_rank: should be at least 1, got 0"),
    "hops": ("max_extra_hops: -1\n", r"max_extra_hops: should be at least 0, got -1"),
    "paths": ("on_shortest_paths: 1\n", r"on_shortest_paths: should be true or false, got 1"),
    "limit": ("limits: {channels: 0}\n", r"limits.channels: should be at least 1, got 0"),
}


@for_each("text, match", BAD.values(), ids=BAD)
def test_a_bad_sketch_is_one_error_with_field_and_fix(
    text: str, match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"sketch.yaml.*{match}") as error:
        native(text, tmp_path)
    assert error.value.fix


def test_a_relay_that_no_fabric_joins_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("taccl: sketch/1\nname: s\ninternode: {relays: {1: [0]}}\n")
    with pytest.raises(InputError, match=r"relays\[1\]: no GPU 1 has a link to a GPU 0 of another"):
        apply_sketch(load_topology("dgx-a100", nodes=2), load_sketch(str(file)))


@pytest.mark.parametrize(
    ("text", "match"),
    [("- 1\n", "should be a mapping of fields, got a list of 1"),
     ("name: x\n", "taccl: is missing\n  fix: start the file with taccl: sketch/1"),
     ("taccl: topology/1\n", "taccl: should be sketch/1, got 'topology/1'"),
     ("nnodes: 2\n", "intranode_sketch: is missing")],
)  # fmt: skip
def test_what_is_no_sketch_says_what_is_missing(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=match):
        load_sketch(str(file))


def test_an_unknown_name_lists_the_shipped_sketches() -> None:
    with pytest.raises(
        InputError, match=r"no shipped sketch 'ndv2-really'\n  fix: did you mean ndv2-relay\?"
    ):
        load_sketch("ndv2-really")


def test_a_sketch_for_any_servers_applies_to_every_count(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("taccl: sketch/1\nname: s\ninternode: {relays: direct-map}\n")
    sketch = load_sketch(str(file))
    # 2 links inside each server, n*(n-1) pairs of servers with 2 links
    counts = [int(apply_sketch(twins(tmp_path, n), sketch).allowed.sum()) for n in (1, 2, 3)]
    assert counts == [2, 8, 18]
