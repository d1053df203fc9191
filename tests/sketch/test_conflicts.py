"""What a sketch leaves unserved, and the fields that do it: none of them can be left out."""

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taccl.collectives import build_collective
from taccl.errors import NoScheduleError
from taccl.files import parse_document
from taccl.sketch import apply_sketch, load_sketch
from taccl.sketch.native import Pattern, Sketch, read_native
from taccl.sketch.restrict import (
    Entry,
    Lost,
    Mask,
    Question,
    conflict,
    entries,
    fewest_hops,
    only,
    why_unserved,
)
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import Topology
from tests.sketch.sketches import TWINS

PAIRS = topology_from_document(parse_document(TWINS, None).value)
HEAD = "taccl: sketch/1\nname: tight\n"


def sketch_of(text: str) -> Sketch:
    return read_native(parse_document(HEAD + text, "tight.yaml"))


def refusal(topology: Topology, collective: str, text: str) -> str:
    """Return what is said of a sketch, on applying it or of the collective; empty: nothing."""
    try:
        logical = apply_sketch(topology, sketch_of(text))
    except NoScheduleError as error:
        return str(error)
    assert logical.why_unserved is not None
    return str(logical.why_unserved(build_collective(collective, topology.num_ranks, 1)) or "")


ONE = "links: {deny: [{from: all, to: 1}, {from: 0, to: 2}]}\n"
TWO = "links: {deny: [{from: 0, to: 2}, {from: 0, to: 1}, {from: 0, to: 3}]}\n"
THREE = """\
links:
  deny:
    - {from: 1-15, to: 0, within: servers}
    - {from: 3, to: 0, across: servers}
    - {from: [3, 19], to: [0, 16]}
internode: {relays: {1: [5], 3: [0]}}
"""
SENDER = """\
links: {deny: [{from: 5, to: 0-15}]}
internode:
  relays: {1: [2], 5: [6]}
  chunk_to_relay: {0: 1, 4: 5, 5: 1}
"""


@pytest.mark.parametrize(
    ("machine", "collective", "text", "expected"),
    [
        ("ring:4", "allgather", ONE, r"tight.yaml:3: links.deny\[0\]: rank 1 can't be served: no"
         r" allowed path leads there from rank 0\n  fix: open a link that leads to rank 1 in"
         r" links.deny\[0\]$"),
        # The second and third rule close the two wires of rank 0; the first closes what is not
        # there: rank 2 is two hops away.
        ("ring:4", "allgather", TWO, r"links.deny\[1\], links.deny\[2\]: rank 1 can't be served: no"
         r" allowed path leads there from rank 0; these fields together, and not without any"),
        # Of relays only 3 leads to 0, which the last rule closes, and the rest of its server is
        # closed to 0; the second rule has local numbers, so that relays open what it closes.
        ("dgx2", "allgather", THREE, r"links.deny\[0\], links.deny\[2\], internode.relays: rank"),
        # Rank 5 may not send inside its server; its chunks have to go by 1 and can't get there.
        ("dgx2", "allgather", SENDER, r"links.deny\[0\], internode.chunk_to_relay\[5\]: rank 0"
         r" can't be served: no allowed path brings chunk 5 there from rank 5; these"),
        # Rank 1 in the middle has to send to both neighbours.
        ("mesh2d:1x3", "allgather", "limits: {connections_per_gpu: 1}\n",
         r"limits.connections_per_gpu: rank \d can't be served: .* within"
         r" limits.connections_per_gpu\n  fix: raise limits.connections_per_gpu"),
        # One peer each makes a ring, and rings of five have paths of four hops.
        ("hub:5", "allreduce", "limits: {connections_per_gpu: 1}\nmax_extra_hops: 1\n",
         r"limits.connections_per_gpu, max_extra_hops: rank \d"),
        # Without wires round the corner a ring can't close.
        ("ring:4", "alltoall", "limits: {connections_per_gpu: 1}\nlinks: {deny: [{from: 0, to: 1},"
         " {from: 1, to: 0}]}\n", r"links.deny\[0\], links.deny\[1\], limits.connections_per_gpu:"),
    ],
    ids=["one rule", "two rules", "relays", "sender", "limit", "limit and hops", "ring"],
)  # fmt: skip
def test_the_fields_in_conflict_are_named(
    machine: str, collective: str, text: str, expected: str
) -> None:
    topology = load_topology(machine, nodes=2 if machine == "dgx2" else None)
    assert refusal(topology, collective, text), "nothing is lost"
    with pytest.raises(NoScheduleError, match=expected):
        raise NoScheduleError(refusal(topology, collective, text))


@pytest.mark.parametrize(
    ("machine", "collective", "text"),
    [
        ("hub:5", "allgather", "limits: {connections_per_gpu: 1}\nmax_extra_hops: 3\n"),
        ("ring:4", "alltoall", "limits: {connections_per_gpu: 1}\n"),
        ("ring:4", "allgather", "links: {deny: [{from: 0, to: 1}]}\nlimits:"
         " {connections_per_gpu: 1}\n"),
        # Only chunks of rank 0 travel, and its own wires are enough for them.
        ("dgx2", "broadcast", SENDER),
    ],
)  # fmt: skip
def test_what_can_be_served_is_not_refused(machine: str, collective: str, text: str) -> None:
    topology = load_topology(machine, nodes=2 if machine == "dgx2" else None)
    assert refusal(topology, collective, text) == ""


def test_a_sum_has_to_come_from_every_rank() -> None:
    # The sum of rank 5 leaves by what its owner's number says in every server: 17 in the second.
    topology = load_topology("dgx2", nodes=2)
    text = SENDER.replace("from: 5", "from: 21").replace("0-15", "16-31")
    told = refusal(topology, "reducescatter", text)
    assert "internode.chunk_to_relay[5]: rank 5 can't be served" in told
    assert "brings chunk 5 there from rank 21" in told


def test_taccls_json_is_told_by_its_own_names(tmp_path: Path) -> None:
    with pytest.raises(NoScheduleError, match=r"internode_sketch.internode_conn: rank") as error:
        _lonely_relay(tmp_path)
    assert error.value.exit_status == 3


def _lonely_relay(path: Path) -> None:
    """Apply a sketch in TACCL's form to three servers, of which only two have a GPU 1."""
    file = path / "odd.yaml"
    nics = "nics: [{name: ib0, gpus: all, bandwidth: 10GB/s}]"
    pair_ = f"{{gpus: 2, wires: [{{from: 0, to: 1, bandwidth: 50GB/s}}], {nics}}}"
    file.write_text(
        f"taccl: topology/1\nname: odd\nnodes: [{pair_}, {pair_}, {{gpus: 1, {nics}}}]\n"
        "fabric: {kind: switch}\n"
    )
    sketch = path / "sketch.json"
    sketch.write_text(
        '{"nnodes": 3, "intranode_sketch": {"strategy": "none"}, "internode_sketch": {"strategy":'
        ' "relay", "internode_conn": {"0": [1]}}, "symmetry_offsets": [], "hyperparameters":'
        ' {"input_chunkup": 1}}'
    )
    apply_sketch(load_topology(str(file)), load_sketch(str(sketch)))


def test_many_senders_on_a_large_machine_are_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, sketch = load_topology("dgx2", nodes=2), sketch_of(SENDER)
    three = [Entry("chunk_to_relay", gpu) for gpu in (0, 4, 5)]
    # Three GPUs are named, of 32 ranks.
    monkeypatch.setattr("taccl.sketch.restrict.MAX_WORK", 9 * 32**2)
    assert [e for e in entries(sketch, topology) if e.part == "chunk_to_relay"] == three
    monkeypatch.setattr("taccl.sketch.restrict.MAX_WORK", 9 * 32**2 - 1)
    whole = [e for e in entries(sketch, topology) if e.part == "chunk_to_relay"]
    assert whole == [Entry("chunk_to_relay")]
    told = why_unserved(topology, sketch, build_collective("allgather", 32, 1))
    assert told is not None
    assert "links.deny[0], internode.chunk_to_relay: rank 0 can't be served" in told.problem


def test_owners_that_leave_by_the_same_senders_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = load_topology("dgx2", nodes=2)
    text = "internode: {relays: {1: [2], 5: [6]}, chunk_to_relay: {0: 1, 4: 5, 5: 1, 7: 5}}\n"
    tried: list[int] = []

    def counted(joined: Mask) -> NDArray[np.int64]:
        tried.append(1)
        return fewest_hops(joined)

    monkeypatch.setattr("taccl.sketch.restrict.fewest_hops", counted)
    question = Question(topology, build_collective("allgather", 32, 1))
    assert question.lost(sketch_of(text)) is None
    # By GPU 1, by GPU 5, and the others by any.
    assert len(tried) == 3


def random_sketch(topology: Topology, seed: int) -> Sketch:
    """Return a sketch of random rules, relays, senders and limits, of which many are too tight."""
    rng, n = random.Random(seed), topology.num_ranks

    def some() -> tuple[int, ...]:
        return tuple(sorted(rng.sample(range(n), rng.randint(1, n - 1))))

    rules = [Pattern(some(), some(), None) for _ in range(rng.randrange(5))]
    rules += [
        Pattern((rng.randrange(2),), (rng.randrange(2),), rng.choice(("across", "within")))
        for _ in range(rng.randrange(3))
    ]
    relays = rng.choice((None, "direct-map", ((0, (1,)),), ((0, (0,)), (1, (1,)))))
    senders = [one for one, _ in relays] if isinstance(relays, tuple) else [0, 1]
    leave = [(gpu, (rng.choice(senders),)) for gpu in range(2) if rng.random() < 0.5]
    document = parse_document(HEAD, "random.yaml")
    return Sketch(
        "random", document, deny=tuple(rules), relays=relays, chunk_to_relay=tuple(leave),
        connections_per_gpu=rng.choice((None, None, 1, 2)),
        max_extra_hops=rng.choice((None, None, 0, 1)),
    )  # fmt: skip


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(["allgather", "alltoall", "allreduce", "reduce"]))
def test_without_any_one_of_the_fields_everything_is_served(seed: int, name: str) -> None:
    topology = PAIRS
    sketch = random_sketch(topology, seed)
    question = Question(topology, build_collective(name, topology.num_ranks, 1))
    if question.lost(sketch) is None:
        return
    parts = entries(sketch, topology)
    found = conflict(sketch, parts, question.lost)
    assert found
    assert set(found) <= set(parts)
    assert question.lost(only(sketch, found)) is not None
    for entry in found:
        rest = [other for other in found if other is not entry]
        assert question.lost(only(sketch, rest)) is None
    told = why_unserved(topology, sketch, question.collective)
    assert told is not None
    assert all(entry.field(sketch) in told.problem for entry in found)


def _served_by_trying(topology: Topology, sketch: Sketch, limit: int) -> bool:
    """Tell by trying all sets of connections whether one within a limit joins all ranks."""
    question = Question(topology, build_collective("allgather", topology.num_ranks, 1))
    n, table = topology.num_ranks, topology.links
    pairs = sorted(set(zip(table.src.tolist(), table.dst.tolist(), strict=True)))
    for size in range(n - 1, n * limit + 1):
        for kept in combinations(pairs, size):
            ends = np.array(kept).reshape(-1, 2)
            if any(np.bincount(column, minlength=n).max() > limit for column in ends.T):
                continue
            closed = tuple(Pattern((a,), (b,), None) for a, b in pairs if (a, b) not in kept)
            if question.lost(replace(only(sketch, ()), deny=closed)) is None:
                return True
    return False


def test_the_search_for_connections_agrees_with_trying_all_of_them() -> None:
    for text in ("ring:3", "ring:4", "mesh2d:1x4", "mesh2d:2x2", "hub:3"):
        topology = load_topology(text)
        question = Question(topology, build_collective("allgather", topology.num_ranks, 1))
        sketch = sketch_of("limits: {connections_per_gpu: 1}\n")
        found = question.lost(sketch)
        assert (found is None) == _served_by_trying(topology, sketch, 1), text
        assert found is None or isinstance(found, Lost)
