"""Each field of TACCL's JSON form changes the logical topology as it should."""

from pathlib import Path

import pytest

from taccl.errors import InputError, TacclWarning
from taccl.sketch import apply_sketch, load_sketch
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from tests.sketch.sketches import ACROSS, INSIDE, foreign, open_pairs
from tests.sweep import for_each

SHARED = Path(__file__).parents[3] / "shared" / "data" / "taccl" / "sketches"


def internode(**fields: object) -> dict[str, object]:
    return {"strategy": "relay", "internode_conn": "fully-connected", **fields}


def test_the_plain_form_allows_everything_on_shortest_paths(tmp_path: Path) -> None:
    logical = foreign(tmp_path)
    assert open_pairs(logical) == INSIDE | ACROSS
    assert (logical.on_shortest_paths, logical.max_extra_hops) == (True, None)
    assert (logical.chunks_per_rank, logical.symmetry) == (1, ())
    assert (logical.own_chunks_first, dict(logical.leave_by), logical.name) == (False, {}, "sketch")


def test_internode_conn_names_receivers_by_sender(tmp_path: Path) -> None:
    logical = foreign(tmp_path, internode_sketch=internode(internode_conn={"0": [1]}))
    assert open_pairs(logical) == INSIDE | {(0, 3), (2, 1)}


def test_direct_map_joins_equal_numbers(tmp_path: Path) -> None:
    logical = foreign(tmp_path, internode_sketch=internode(internode_conn="direct-map"))
    assert open_pairs(logical) == INSIDE | {(0, 2), (2, 0), (1, 3), (3, 1)}


def test_gpus_to_sender_rev_map_is_turned_round(tmp_path: Path) -> None:
    record = internode(internode_conn={"1": [0]}, gpus_to_sender_rev_map={"1": [0, 1]})
    assert dict(foreign(tmp_path, internode_sketch=record).leave_by) == {
        0: frozenset({1}), 1: frozenset({1}), 2: frozenset({3}), 3: frozenset({3}),
    }  # fmt: skip


def test_a_gpu_can_have_several_senders(tmp_path: Path) -> None:
    record = internode(gpus_to_sender_rev_map={"0": [0, 1], "1": [1]})
    leave_by = foreign(tmp_path, internode_sketch=record).leave_by
    assert (leave_by[0], leave_by[1]) == (frozenset({0}), frozenset({0, 1}))


def test_enforce_ordering_puts_own_chunks_first(tmp_path: Path) -> None:
    record = internode(enforce_ordering=True)
    assert foreign(tmp_path, internode_sketch=record).own_chunks_first


def test_input_chunkup_is_the_chunk_count(tmp_path: Path) -> None:
    logical = foreign(tmp_path, hyperparameters={"input_chunkup": 6})
    assert logical.chunks_per_rank == 6


def test_symmetry_offsets_are_rotations_in_blocks(tmp_path: Path) -> None:
    logical = foreign(tmp_path, symmetry_offsets=[[1, 2], [2, 4]])
    assert logical.symmetry == ((1, 0, 3, 2), (2, 3, 0, 1))


@pytest.mark.parametrize(
    ("strategy", "policy"), [("uc-min", "uc-min"), ("uc-max", "uc-max"), ("other", "free")]
)
def test_a_switch_strategy_is_the_policy_of_the_switch_with_these_gpus(
    strategy: str, policy: str, tmp_path: Path
) -> None:
    record = {"strategy": "switch", "switches": [[0, 1]], "switch_hyperedge_strategy": [strategy]}
    logical = foreign(tmp_path, intranode_sketch=record)
    assert dict(logical.switch_policy) == {"s0/sw": policy, "s1/sw": policy}


def test_a_nic_is_not_taken_for_the_switch_of_its_gpus(tmp_path: Path) -> None:
    record = {"strategy": "switch", "switches": [[0, 1]], "switch_hyperedge_strategy": ["uc-min"]}
    policy = foreign(tmp_path, intranode_sketch=record).switch_policy
    assert not any("ib0" in name for name in policy)


def test_where_no_switch_has_these_gpus_the_policy_is_for_all_links_in_a_server(
    tmp_path: Path,
) -> None:
    record = {"strategy": "switch", "switches": [[0]], "switch_hyperedge_strategy": ["uc-min"]}
    assert dict(foreign(tmp_path, intranode_sketch=record).switch_policy) == {"*": "uc-min"}


def test_equal_switch_lists_are_one_switch(tmp_path: Path) -> None:
    record = {
        "strategy": "switch", "switches": [[0, 1], [1, 0]],
        "switch_hyperedge_strategy": ["uc-min", "uc-max"],
    }  # fmt: skip
    policies = set(foreign(tmp_path, intranode_sketch=record).switch_policy.values())
    assert policies == {"uc-min"}


@pytest.mark.parametrize("strategy", ["minmax", "maxmin"])
def test_load_balancing_is_kept(strategy: str, tmp_path: Path) -> None:
    assert foreign(tmp_path, intranode_sketch={"strategy": strategy}).balance == strategy


def test_one_server_needs_no_internode_sketch(tmp_path: Path) -> None:
    logical = foreign(tmp_path, nodes=1, internode_sketch=None)
    assert open_pairs(logical) == {(0, 1), (1, 0)}


def test_unknown_keys_are_ignored_with_one_warning(tmp_path: Path) -> None:
    record = {"strategy": "none", "color": "red"}
    with pytest.warns(
        TacclWarning, match=r"ignored: multinode_sketch, intranode_sketch.color$"
    ) as w:
        foreign(tmp_path, multinode_sketch={"strategy": "ring"}, intranode_sketch=record)
    assert len(w) == 1


def switch(*lists: list[int], strategies: int = 1) -> dict[str, object]:
    named = ["uc-min"] * strategies
    return {"strategy": "switch", "switches": lists, "switch_hyperedge_strategy": named}


BAD: dict[str, tuple[dict[str, object], str]] = {
    "servers": (
        {"nnodes": 3},
        r"nnodes: the sketch is for 3 servers, twins has 2\n  fix: use --nodes 3",
    ),
    "no internode": ({"internode_sketch": None}, r"internode_sketch: is missing, with 2 servers"),
    "strategy": (
        {"intranode_sketch": {"strategy": "relay"}},
        r"intranode_sketch.strategy: should be 'none'",
    ),
    "internode strategy": (
        {"internode_sketch": internode(strategy="ring")},
        r"internode_sketch.strategy: should be 'relay'",
    ),
    "sender": (
        {"internode_sketch": internode(internode_conn={"7": [0]})},
        r"internode_sketch.internode_conn\[7\]: there is no GPU 7",
    ),
    "no such gpu": (
        {"internode_sketch": internode(gpus_to_sender_rev_map={"0": [7]})},
        r"gpus_to_sender_rev_map: there is no GPU 7",
    ),
    "no sender": (
        {
            "internode_sketch": internode(
                internode_conn={"0": [1]}, gpus_to_sender_rev_map={"1": [0]}
            )
        },
        r"gpus_to_sender_rev_map: the chunks of GPU 0 should leave by GPU 1, which is no sender",
    ),
    "chunks": (
        {"hyperparameters": {"input_chunkup": 0}},
        r"hyperparameters.input_chunkup: should be at least 1",
    ),
    "no chunks": ({"hyperparameters": {}}, r"hyperparameters.input_chunkup: is missing"),
    "offsets": (
        {"symmetry_offsets": [[1, 3]]},
        r"symmetry_offsets\[0\]: \[1, 3\] does not fit 4 ranks",
    ),
    "offset triple": (
        {"symmetry_offsets": [[1, 2, 3]]},
        r"symmetry_offsets\[0\]: should have at most 2 entries",
    ),
    "switch gpu": (
        {"intranode_sketch": switch([0, 5])},
        r"intranode_sketch.switches: there is no GPU 5",
    ),
    "overlap": (
        {"intranode_sketch": switch([0, 1], [1], strategies=2)},
        r"switches\[1\]: shares some GPUs, but not all",
    ),
    "empty switch": ({"intranode_sketch": switch([])}, r"switches\[0\]: is empty"),
    "no switches": (
        {"intranode_sketch": switch(strategies=0)},
        r"intranode_sketch.switches: 0 switches with 0",
    ),
    "strategies": (
        {"intranode_sketch": switch([0, 1], strategies=2)},
        r"1 switches with 2 strategies",
    ),
}


@for_each("fields, match", BAD.values(), ids=BAD)
def test_a_bad_sketch_is_one_error_with_field_and_fix(
    fields: dict[str, object], match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"sketch.json.*{match}") as error:
        foreign(tmp_path, **fields)  # type: ignore[arg-type]
    assert error.value.fix


EXAMPLES = {
    # name: (allowed links, order of the symmetry group, chunks, senders per rank are named)
    # NDv2: 32 links inside a server; DGX-2: 16 * 15 = 240. Across, for each ordered pair of
    # servers: relay 1 (8 on DGX-2), direct map 8 (16), fully connected 64.
    "sk-dgx2-n1": (240, 8, 2, False),
    "sk-ndv2-n1-cUp6": (32, 1, 6, False),
    "sk1-dgx2-n1": (240, 8, 1, False),
    "sk1-dgx2-n2": (2 * 240 + 2 * 8, 16, 2, True),
    "sk1-ndv2-n1": (32, 1, 1, False),
    "sk1-ndv2-n2": (2 * 32 + 2 * 1, 2, 1, False),
    "sk1-ndv2-n4": (4 * 32 + 12 * 1, 4, 1, False),
    "sk2-dgx2-n2": (2 * 240 + 2 * 16, 16, 1, True),
    "sk2-ndv2-n2": (2 * 32 + 2 * 64, 2, 1, False),
    "sk2-ndv2-n4": (4 * 32 + 12 * 64, 4, 1, False),
    "sk3-ndv2-n2": (2 * 32 + 2 * 8, 2, 1, False),
}


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"TACCL's examples are not at {SHARED}")
@for_each("name", EXAMPLES)
def test_taccls_own_sketches_load_unchanged_and_fit_the_shipped_machines(name: str) -> None:
    links, order, chunks, senders = EXAMPLES[name]
    sketch = load_sketch(str(SHARED / f"{name}.json"))
    topology = load_topology("ndv2" if "ndv2" in name else "dgx2", nodes=sketch.servers)
    logical = apply_sketch(topology, sketch)
    assert int(logical.allowed.sum()) == links
    assert len(make_group(topology, logical.symmetry)) == order
    assert (logical.chunks_per_rank, bool(logical.leave_by)) == (chunks, senders)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"TACCL's examples are not at {SHARED}")
def test_all_of_taccls_examples_are_tried() -> None:
    assert {path.stem for path in SHARED.glob("*.json")} == set(EXAMPLES)
