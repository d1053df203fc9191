"""A suggested sketch fits its machine, says why, and leads to schedules that hold."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from taccl.apps.inputs import logical_group
from taccl.collectives import Collective, build_collective
from taccl.errors import InputError
from taccl.files import parse_document
from taccl.model.problem import Options, Problem
from taccl.sketch import apply_sketch
from taccl.sketch.native import Sketch, read_native
from taccl.sketch.restrict import Mask, fewest_hops
from taccl.sketch.suggest import Machine, chunks, internode, links, suggest_sketch
from taccl.synth.staged import first_schedules, staged
from taccl.topology.file import load_topology, shipped_topologies, topology_from_document
from taccl.topology.graph import LogicalTopology, Topology
from taccl.verify import verify
from tests.generators import random_topology
from tests.sweep import for_each
from tests.synth.problems import QUICK

MB = 10**6


def machine_of(text: str) -> Topology:
    head = "taccl: topology/1\nname: made\n"
    return topology_from_document(parse_document(head + text, None).value)


def suggested(topology: Topology, collective: str, size: int = MB) -> tuple[str, Sketch]:
    text = suggest_sketch(topology, build_collective(collective, topology.num_ranks, 1), size)
    return text, read_native(parse_document(text, None))


def problem_of(topology: Topology, sketch: Sketch, name: str) -> Problem:
    logical = apply_sketch(topology, sketch)
    collective = build_collective(name, topology.num_ranks, logical.chunks_per_rank or 1)
    return Problem(logical, collective, Fraction(1000), logical_group(logical, collective))


def shipped() -> list[tuple[str, int | None]]:
    """Return every shipped machine, at 1, 2 and 3 servers where it has servers."""
    found: list[tuple[str, int | None]] = []
    for name in shipped_topologies():
        try:
            load_topology(name, nodes=1)
        except InputError:
            found.append((name, None))
        else:
            found += [(name, nodes) for nodes in (1, 2, 3)]
    return found


@for_each("collective", ["allgather", "alltoall"], quick=28)
@for_each(("name", "nodes"), shipped())
def test_every_shipped_machine_gets_a_sketch_that_applies(
    name: str, nodes: int | None, collective: str
) -> None:
    topology = load_topology(name, nodes=nodes)
    text, sketch = suggested(topology, collective)
    assert text == suggested(topology, collective)[0]
    logical = apply_sketch(topology, sketch)
    whole = build_collective(collective, topology.num_ranks, 1)
    assert logical.why_unserved is not None
    if topology.num_ranks <= 32:
        assert logical.why_unserved(whole) is None
    for part in ("chunks_per_rank", "links", "switches", "internode", "symmetry", "limits"):
        assert f"\n# {part}: " in text
    assert max(map(len, text.splitlines())) <= 100
    # What the comment says of the symmetry is what engines use.
    assert f"symmetry: {len(logical_group(logical, whole))} symmetries" in text


@for_each("seed", range(24), quick=8)
def test_any_network_gets_a_sketch_with_which_a_schedule_is_found(seed: int) -> None:
    topology = random_topology(seed)
    for name in ("allgather", "alltoall", "allreduce", "broadcast", "scatter"):
        problem = problem_of(topology, suggested(topology, name)[1], name)
        schedule = first_schedules(problem, Options())[0]
        assert verify(schedule, problem.logical) == []


@pytest.mark.parametrize(
    ("name", "nodes", "collective"),
    [("ndv2", 1, "allgather"), ("pcie-a100", 2, "alltoall"),
     ("ring", None, "alltoall"), ("torus2d", None, "allgather")],
)  # fmt: skip
def test_the_engine_finds_a_verified_schedule_under_it(
    name: str, nodes: int | None, collective: str
) -> None:
    topology = load_topology(name, nodes=nodes)
    problem = problem_of(topology, suggested(topology, collective)[1], collective)
    result = staged(problem, replace(QUICK, time_limit=1.0))
    assert result.schedule is not None
    assert verify(result.schedule, problem.logical) == []


def test_one_nic_has_one_sender_and_another_receiver() -> None:
    text, sketch = suggested(load_topology("ndv2", nodes=2), "allgather")
    assert sketch.relays == ((0, (1,)),)
    assert sketch.chunk_to_relay == tuple((gpu, (0,)) for gpu in range(8))
    # What a sender has itself may go with what it relays, in one message.
    assert not sketch.own_chunks_first
    assert "one way out, of 9.434 GB/s and 1.7 us each" in text
    assert "one alpha of 1.7 us and not up to 8" in " ".join(text.replace("\n# ", " ").split())


def test_gpus_that_share_a_nic_send_and_receive_by_one_each() -> None:
    _, sketch = suggested(load_topology("dgx2", nodes=3), "allgather")
    assert sketch.relays == tuple((gpu, (gpu + 1,)) for gpu in range(0, 16, 2))
    assert sketch.chunk_to_relay == tuple((gpu, (gpu // 2 * 2,)) for gpu in range(16))


@pytest.mark.parametrize("fabric", ["rail", "switch"])
def test_gpus_with_a_nic_each_send_to_their_number(fabric: str) -> None:
    topology = load_topology("dgx-a100", nodes=2, fabric=fabric)
    text, sketch = suggested(topology, "allgather")
    assert sketch.relays == "direct-map"
    assert sketch.chunk_to_relay == tuple((gpu, (gpu,)) for gpu in range(8))
    assert "each of the 8 GPUs of a server has a way out of its own, of 25 GB/s" in text


def test_where_the_chunk_of_a_pair_leaves_is_open_on_small_machines() -> None:
    assert suggested(load_topology("dgx-a100", nodes=2), "alltoall")[1].chunk_to_relay == ()
    large = suggested(load_topology("dgx-a100", nodes=4), "alltoall")[1]
    assert len(large.chunk_to_relay) == 8


def test_the_sender_is_the_gpu_nearest_to_the_nic() -> None:
    near = "{name: n, gpus: [1, 3], bandwidth: 25GB/s, pcie: {bandwidth: 24GB/s, alpha: 0.1us}}"
    far = near.replace("name: n, gpus: [1, 3]", "name: f, gpus: [0, 2]").replace("24", "12")
    wires = "{name: sw, members: 0-3, bandwidth: 100GB/s, alpha: 1us}"
    topology = machine_of(
        f"node:\n  gpus: 4\n  switches: [{wires}]\n  nics:\n    - {near}\n    - {far}\ncount: 2\n"
        "fabric: {kind: switch, alpha: 1us}\n"
    )
    _, sketch = suggested(topology, "allgather")
    assert sketch.relays == ((0, (2,)), (1, (3,)))
    # One NIC that GPU 2 alone is close to.
    lone = "{name: n, gpus: [2], bandwidth: 25GB/s}"
    topology = machine_of(
        f"node:\n  gpus: 4\n  switches: [{wires}]\n  nics: [{lone}]\ncount: 2\n"
        "fabric: {kind: switch, alpha: 1us}\n"
    )
    text, sketch = suggested(topology, "allgather")
    assert sketch.relays == ((2, (2,)),)
    assert sketch.chunk_to_relay == tuple((gpu, (2,)) for gpu in range(4))
    assert "each for one GPU" in text


def test_two_nics_of_the_same_gpus_have_a_sender_each() -> None:
    nics = ", ".join(f"{{name: {name}, gpus: [0, 1], bandwidth: 10GB/s}}" for name in "ab")
    wires = "{name: sw, members: all, bandwidth: 100GB/s}"
    topology = machine_of(
        f"node: {{gpus: 3, switches: [{wires}], nics: [{nics}]}}\ncount: 2\n"
        "fabric: {kind: torus, dims: [2]}\n"
    )
    _, sketch = suggested(topology, "allgather")
    assert sketch.relays == ((0, (1,)), (1, (0,)))
    assert sketch.chunk_to_relay == ((0, (0,)), (1, (1,)), (2, (0,)))


def test_servers_that_differ_may_use_all_their_links() -> None:
    nics = "nics: [{name: ib, gpus: all, bandwidth: 10GB/s}]"
    one = f"{{gpus: 2, wires: [{{from: 0, to: 1, bandwidth: 50GB/s}}], {nics}}}"
    topology = machine_of(f"nodes: [{one}, {{gpus: 1, {nics}}}]\nfabric: {{kind: switch}}\n")
    text, sketch = suggested(topology, "allgather")
    assert sketch.relays == "fully-connected"
    assert "joined in different ways" in text


MESH = """\
node:
  gpus: 4
  wires:
    - {from: 0, to: 1, bandwidth: 50GB/s, alpha: 1us}
    - {from: 1, to: 2, bandwidth: 50GB/s, alpha: 1us}
    - {from: 2, to: 3, bandwidth: 50GB/s, alpha: 1us}
    - {from: 3, to: 0, bandwidth: 50GB/s, alpha: 1us}
  switches: [{name: pcie, members: 0-3, bandwidth: SLOWGB/s, alpha: 1us}]
"""


def made(topology: Topology, name: str = "allgather", size: int = MB) -> Machine:
    return Machine(topology, build_collective(name, topology.num_ranks, 1), size)


def test_slow_links_are_closed_where_fast_ones_do_their_work() -> None:
    topology = machine_of(MESH.replace("SLOW", "10"))
    choice = links(made(topology))
    # 10 of 110 GB/s enter each GPU by the switch: 9 %.
    assert "4 links inside servers of 10 GB/s are closed, as others have up to 50" in choice.why
    assert "loses at most 9% of the bandwidth" in choice.why
    _, sketch = suggested(topology, "allgather")
    logical = apply_sketch(topology, sketch)
    assert _pairs(logical) == {(a, b) for a in range(4) for b in range(4) if (a - b) % 2}
    assert "switches: no link that is used" in suggested(topology, "allgather")[0]


@pytest.mark.parametrize("seed", range(4))
def test_where_all_bandwidths_differ_as_much_is_closed_as_may_be_and_few_are_tried(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(combinations(range(10), 2))
    rates = random.Random(seed).sample(range(10, 10 + len(pairs)), len(pairs))
    wires = zip(pairs, rates, strict=True)
    text = "".join(f"  - {{from: {a}, to: {b}, bandwidth: {r}GB/s}}\n" for (a, b), r in wires)
    machine = made(machine_of(f"ranks: 10\nedges:\n{text}"))
    tried: list[int] = []

    def counted(joined: Mask) -> NDArray[np.int64]:
        tried.append(1)
        return fewest_hops(joined)

    monkeypatch.setattr("taccl.sketch.suggest.fewest_hops", counted)
    choice = links(machine)

    def is_little(limit: int) -> bool:
        at = [[r for p, r in zip(pairs, rates, strict=True) if gpu in p] for gpu in range(10)]
        return all(4 * sum(r for r in found if r <= limit) <= sum(found) for found in at)

    closed = max(r - 9 for r in rates if 3 * r <= max(rates) and is_little(r))
    assert f"links: {2 * closed} links inside servers" in choice.why
    # 9 bandwidths are slow, 10 to 18: to halve them takes 4 tries, and one is for what is told.
    assert len(tried) <= 5
    assert machine._known == {}


def _pairs(logical: LogicalTopology) -> set[tuple[int, int]]:
    table = logical.topology.links
    return {(int(table.src[link]), int(table.dst[link])) for link in logical.links()}


def test_slow_links_stay_where_they_are_needed_or_not_slow() -> None:
    assert "less than 3 times" in links(made(machine_of(MESH.replace("SLOW", "17")))).why
    # Without its two wires, GPU 3 is only on the switch.
    lines = MESH.replace("SLOW", "10").splitlines(keepends=True)
    torn = machine_of(
        "".join(line for line in lines if "from: 3" not in line and "to: 3" not in line)
    )
    choice = links(made(torn))
    assert choice.lines == ()
    assert "would fall apart" in choice.why
    # Two wires of 50 GB/s and 40 GB/s of others: too much to lose.
    wide = MESH.replace("pcie, members: 0-3, bandwidth: SLOW", "a, members: [0, 2], bandwidth: 16")
    more = "{name: b, members: [0, 2], bandwidth: 16GB/s}, {name: c, members: [0, 2], bandwidth:"
    wide = wide.replace("}]", f"}}, {more} 16GB/s}}]")
    assert links(made(machine_of(wide))).lines == ()


def test_more_chunks_for_more_bytes() -> None:
    # A mesh of 1 x 4 has paths of 3 hops, and 4 chunks come to its ends by one wire; 1 us of
    # alpha and t us for a quarter of the bytes at 50 GB/s: k^2 is best near 2 t / 4. 10 MB take
    # 50 us, which makes 5, so 4.
    topology = load_topology("mesh2d:1x4@50GB/s,1us")
    every = apply_sketch(topology, suggested(topology, "allgather")[1]).allowed

    def count(size: int) -> tuple[str, ...]:
        return chunks(made(topology, size=size), every).lines

    assert "up to 3 hops" in chunks(made(topology), every).why
    assert count(100_000) == ("chunks_per_rank: 1",)
    assert count(10 * MB) == ("chunks_per_rank: 4",)
    assert count(10**9) == ("chunks_per_rank: 8",)
    assert chunks(made(topology, "alltoall", 10**9), every).lines == ("chunks_per_rank: 1",)


@pytest.mark.parametrize(
    ("size", "policy"), [(100_000, "uc-max"), (MB, "uc-max"), (4 * MB, "free"), (10**9, "uc-min")]
)
def test_a_switch_has_few_connections_for_large_buffers(size: int, policy: str) -> None:
    # A chunk is a 16th, 8 us/MB against 0.7 us of alpha: 0.05, 0.5, 2 and 500 us.
    _, sketch = suggested(load_topology("dgx2"), "allgather", size)
    assert sketch.policies == (("nvswitch", policy),)


def test_paths_are_as_long_as_needed() -> None:
    def limits(name: str, collective: str) -> tuple[int | None, bool]:
        sketch = suggested(load_topology(name), collective)[1]
        return sketch.max_extra_hops, sketch.on_shortest_paths

    assert limits("torus2d", "allgather") == (0, False)
    assert limits("torus2d", "alltoall") == (None, True)
    assert limits("dgx2", "alltoall") == (0, False)
    assert limits("mi250", "allgather") == (None, False)


def test_undeclared_symmetries_are_found_and_told() -> None:
    expanded = load_topology("torus2d:3x4")
    bare = Topology(
        "torus", 12, expanded.switches, expanded.edges, expanded.server_of
    )  # no rotations
    text, sketch = suggested(bare, "allgather")
    assert "symmetry: 12 symmetries, found and verified" in text
    assert sketch.auto_symmetry


def test_more_symmetries_than_the_declared_ones_are_written_out() -> None:
    whole = load_topology("ring:8")
    half = tuple((rank + 4) % 8 for rank in range(8))
    few = Topology("ring", 8, whole.switches, whole.edges, whole.server_of, (half,))
    text, sketch = suggested(few, "allgather")
    assert "symmetry: 8 symmetries, found and verified" in text
    assert sketch.generators == ((1, 8),)
    logical = apply_sketch(few, sketch)
    assert len(logical_group(logical, build_collective("allgather", 8, 1))) == 8


def test_where_nothing_moves_no_symmetry_is_asked_for() -> None:
    topology = machine_of(
        "ranks: 3\nedges:\n  - {from: 0, to: 1, bandwidth: 10GB/s}\n"
        "  - {from: 1, to: 2, bandwidth: 20GB/s}\n"
    )
    text, sketch = suggested(topology, "broadcast")
    assert "symmetry: none was found" in text
    assert not sketch.auto_symmetry
    assert sketch.generators == ()


def test_names_are_quoted_where_yaml_needs_it() -> None:
    switch = '{name: "yes", members: 0-3, bandwidth: 50GB/s, alpha: 1us}'
    topology = machine_of(f"node: {{gpus: 4, switches: [{switch}]}}\n")
    text, sketch = suggested(topology, "allgather")
    assert '"yes": ' in text
    assert [name for name, _ in sketch.policies] == ["yes"]


def test_a_collective_of_a_file_and_a_long_name_are_fine() -> None:
    base = load_topology("ring:4")
    long = Topology("x" * 200, 4, base.switches, base.edges, base.server_of, base.rotations)
    one = build_collective("allgather", 4, 1)
    named = Collective(
        "y" * 200, 4, 1, reduces=False, rank_sets=one.rank_sets, source_set=one.source_set,
        target_set=one.target_set, input_at=one.input_at, output_at=one.output_at,
        owner=one.owner, index=one.index,
    )  # fmt: skip
    text = suggest_sketch(long, named, MB)
    assert len(read_native(parse_document(text, None)).name) <= 100


def test_the_last_way_between_servers_restricts_nothing() -> None:
    choices = list(internode(made(load_topology("dgx2", nodes=2))))
    assert [choice.lines[1].strip() for choice in choices][-1] == "relays: fully-connected"
