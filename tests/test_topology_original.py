"""A file with TACCL's own costs becomes the machine that TACCL computes with."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.sketch import apply_sketch, load_sketch
from taccl.topology.core_form import topology_digest, topology_document
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import Topology
from taccl.topology.symmetry import vertex_image
from taccl.topology.taccl_costs import DIRECT_MAP, FULLY_CONNECTED, Sketched
from tests.sweep import for_each

NDV2 = {
    "1KB": "{base: NDv2, gpus: 8, time_unit: 10ns, alpha: 30, betas: [2.24, 4.5],"
    " invbws: [32.25, 34.5], remote_alpha: 260, remote_beta: 10.25}",
    "1MB": "{base: NDv2, gpus: 8, time_unit: 1us, alpha: 0.3, betas: [23, 46],"
    " invbws: [23, 46], remote_alpha: 2.6, remote_beta: 105}",
}
DGX2 = {
    "1KB": "{base: DGX2, gpus: 16, nics: 8, time_unit: 10ns, alpha: 30, betas: [1], invbws: [31],"
    " remote_alpha: 260, remote_beta: 10.25}",
    "1MB": "{base: DGX2, gpus: 16, nics: 8, time_unit: 1us, alpha: 0.3, betas: [8], invbws: [8],"
    " remote_alpha: 2.6, remote_beta: 105}",
}
HUB = (
    "{base: HubAndSpoke, gpus: 4, nics: 2, time_unit: 1us, alpha: 1, betas: [2.5], invbws: [3.5],"
    " remote_alpha: 10, remote_beta: 7}"
)
UNIT = {"1KB": 10_000, "1MB": 1_000_000}
RELAY = ((0, (1,)),)
ODD = tuple((gpu, (gpu - 1,)) for gpu in range(1, 16, 2))
ALL = tuple(range(16))


def write(tmp_path: Path, numbers: str, size: str = "1MB", header: str = "") -> str:
    file = tmp_path / "o.yaml"
    file.write_text(
        f"taccl: topology/1\nname: machine\nchunk_size: {size}\n{header}original: {numbers}\n"
    )
    return str(file)


def machine(
    tmp_path: Path, numbers: str, size: str = "1MB", nodes: int | None = None, **said: object
) -> Topology:
    sketched = Sketched(**said) if said else None  # type: ignore[arg-type]
    return load_topology(write(tmp_path, numbers, size), nodes=nodes, sketched=sketched)


def units(topology: Topology, src: int, dst: int, chunks: int = 1) -> Fraction:
    """Return the time units that chunks in one message take from a rank to another."""
    size = topology.chunk_size or Fraction(0)
    unit = UNIT["1KB" if size == 1000 else "1MB"]
    return Fraction(topology.arrival(topology.links_between(src, dst)[0], chunks * size), unit)


@pytest.mark.parametrize(
    ("size", "double", "single"),
    # int(32.25), int(34.5); whole numbers stay
    [("1KB", 32, 34), ("1MB", 23, 46)],
)
def test_ndv2_links_cost_their_truncated_invbws(
    size: str, double: int, single: int, tmp_path: Path
) -> None:
    topology = machine(tmp_path, NDV2[size], size)
    assert units(topology, 0, 1) == double
    assert units(topology, 0, 2) == single
    table = topology.links
    assert len(table) == len(topology.edges) == 32
    # Two chunks in a message share no alpha in a server.
    assert units(topology, 0, 1, chunks=2) == 2 * double


@pytest.mark.parametrize(("size", "cost"), [("1KB", 31), ("1MB", 8)])
def test_without_switches_a_dgx2_is_a_complete_graph(size: str, cost: int, tmp_path: Path) -> None:
    topology = machine(tmp_path, DGX2[size], size)
    assert len(topology.links) == len(topology.edges) == 240
    assert units(topology, 3, 12) == cost


def test_a_hub_keeps_its_fractions_without_switches(tmp_path: Path) -> None:
    assert units(machine(tmp_path, HUB), 0, 3) == Fraction(7, 2)


@pytest.mark.parametrize(
    ("size", "copies", "cost"),
    # int(alpha + beta / k): 30 + 1, 30 + 1/2, 0.3 + 8, 0.3 + 4, 0.3 + 8/3
    [("1KB", 1, 31), ("1KB", 2, 30), ("1MB", 1, 8), ("1MB", 2, 4), ("1MB", 3, 2)],
)
def test_equal_switch_lists_share_the_beta(
    size: str, copies: int, cost: int, tmp_path: Path
) -> None:
    topology = machine(tmp_path, DGX2[size], size, switches=(ALL,) * copies)
    links = topology.links_between(2, 5)
    assert len(links) == copies
    assert {units(topology, 2, 5)} == {cost}
    # Every copy has ports of its own, which are held for the whole duration.
    crossed = [topology.links.edges_of(link) for link in links]
    assert len({edge for edges in crossed for edge in edges}) == 2 * copies
    for link, edges in zip(links, crossed, strict=True):
        busy = {topology.busy(link, edge, topology.chunk_size or 0) for edge in edges}
        assert busy == {cost * UNIT[size]}


def test_a_switch_serves_one_message_of_a_gpu_at_a_time(tmp_path: Path) -> None:
    topology = machine(tmp_path, DGX2["1MB"], switches=(ALL,))
    edges = [topology.links.edges_of(topology.links_between(*p)[0]) for p in ((0, 1), (0, 2))]
    assert edges[0][0] == edges[1][0]
    assert edges[0][1] != edges[1][1]


def test_links_outside_the_lists_stay_direct_and_are_cut_too(tmp_path: Path) -> None:
    # Two lists of two, one of them twice: int(1 + 2.5) = 3 and int(1 + 1.25) = 2
    topology = machine(tmp_path, HUB, switches=((0, 1), (2, 3), (3, 2)))
    assert [int(units(topology, *pair)) for pair in ((0, 1), (2, 3), (0, 2))] == [3, 2, 3]
    assert [len(topology.links_between(*p)) for p in ((0, 1), (2, 3), (0, 2))] == [1, 2, 1]
    assert len(topology.links.edges_of(topology.links_between(0, 2)[0])) == 1


def test_a_ndv2_with_lists_of_unlike_links_is_refused(tmp_path: Path) -> None:
    for members in ((0, 1, 2), (0, 5)):
        with pytest.raises(InputError, match=r"switches\[0\]: its GPUs are not all joined by"):
            machine(tmp_path, NDV2["1MB"], switches=(members,))
    topology = machine(tmp_path, NDV2["1MB"], switches=((0, 1),))
    assert units(topology, 0, 1) == units(topology, 0, 4) == 23


@for_each(
    ("numbers", "size", "relays", "times"),
    # The factor is connections / NICs; alpha stays, beta is cut: int(10.25 f), int(105 f).
    [
        (NDV2, "1KB", RELAY, (270, 280)),  # f = 1: 260 + 10, 260 + 20
        (NDV2, "1MB", RELAY, ("107.6", "212.6")),
        (NDV2, "1KB", FULLY_CONNECTED, (916, 1572)),  # f = 64: 656
        (NDV2, "1MB", FULLY_CONNECTED, ("6722.6", "13442.6")),
        (NDV2, "1KB", DIRECT_MAP, (342, 424)),  # f = 8: 82
        (NDV2, "1MB", DIRECT_MAP, ("842.6", "1682.6")),
        (DGX2, "1KB", ODD, (270, 280)),  # 8 connections, 8 NICs
        (DGX2, "1KB", DIRECT_MAP, (280, 300)),  # f = 2: int(20.5)
        (DGX2, "1MB", DIRECT_MAP, ("212.6", "422.6")),
    ],
)  # fmt: skip
def test_nics_are_divided_over_the_declared_connections(
    numbers: dict[str, str],
    size: str,
    relays: object,
    times: tuple[str | int, str | int],
    tmp_path: Path,
) -> None:
    topology = machine(tmp_path, numbers[size], size, servers=2, relays=relays)
    gpus = topology.num_ranks // 2
    table = topology.links
    pairs = {
        (int(s), int(d))
        for s, d in zip(table.src, table.dst, strict=True)
        if s // gpus != d // gpus
    }
    local = {
        FULLY_CONNECTED: {(s, r) for s in range(gpus) for r in range(gpus)},
        DIRECT_MAP: {(s, s) for s in range(gpus)},
    }.get(relays if isinstance(relays, str) else "") or {
        (s, r) for s, rs in relays for r in rs  # type: ignore[attr-defined]
    }  # fmt: skip
    assert pairs == {(s, gpus + r) for s, r in local} | {(gpus + s, r) for s, r in local}
    for src, dst in pairs:
        assert (units(topology, src, dst), units(topology, src, dst, 2)) == tuple(
            map(Fraction, times)
        )
    # With two servers every link is a resource of its own.
    crossed = Counter(
        edge for s, d in pairs for edge in table.edges_of(topology.links_between(s, d)[0])
    )
    assert set(crossed.values()) == {1}


def test_a_link_between_servers_is_held_for_its_whole_time(tmp_path: Path) -> None:
    topology = machine(tmp_path, NDV2["1KB"], "1KB", servers=2, relays=RELAY)
    (link,) = topology.links_between(0, 9)
    (edge,) = topology.links.edges_of(link)
    assert topology.busy(link, edge, 1000) == 270 * 10_000


def test_with_more_than_two_servers_all_links_out_of_a_gpu_are_one_resource(tmp_path: Path) -> None:
    topology = machine(tmp_path, NDV2["1KB"], "1KB", servers=4, relays=RELAY)
    assert topology.num_servers == 4
    table = topology.links
    assert len(table) == 4 * 32 + 12
    out = [topology.links_between(0, 8 * s + 1)[0] for s in (1, 2, 3)]
    into = [topology.links_between(8 * s, 1)[0] for s in (1, 2, 3)]
    for links, which in ((out, 0), (into, -1)):
        shared = {table.edges_of(link)[which] for link in links}
        assert len(shared) == 1
        for link in links:
            assert topology.busy(link, shared.copy().pop(), 1000) == 270 * 10_000
            assert units(topology, int(table.src[link]), int(table.dst[link]), 2) == 280
    # Out of one server and into another there is nothing else in common.
    other = table.edges_of(topology.links_between(8, 17)[0])
    assert not set(other) & set(table.edges_of(out[0]))


def test_the_doors_between_servers_open_no_other_way(tmp_path: Path) -> None:
    topology = machine(tmp_path, HUB, servers=3, relays=((0, (1,)), (1, (2,))))
    across = {
        (int(s) % 4, int(d) % 4)
        for s, d in zip(topology.links.src, topology.links.dst, strict=True)
        if s // 4 != d // 4
    }
    assert across == {(0, 1), (1, 2)}
    assert len(topology.links) == 3 * 12 + 6 * 2
    # f = 2 connections / 2 NICs
    assert units(topology, 0, 5) == 17


def test_servers_are_those_of_the_sketch_unless_said(tmp_path: Path) -> None:
    assert machine(tmp_path, NDV2["1MB"]).num_ranks == 8
    assert machine(tmp_path, NDV2["1MB"], relays=RELAY).num_ranks == 8
    assert machine(tmp_path, NDV2["1MB"], nodes=3, relays=RELAY).num_ranks == 24
    with pytest.raises(InputError, match=r"the sketch is for 2 servers, not 4\n  fix: use --nodes"):
        machine(tmp_path, NDV2["1MB"], nodes=4, servers=2, relays=RELAY)


@pytest.mark.parametrize(
    ("numbers", "said", "generators"),
    [
        (NDV2["1MB"], {}, 2),
        (NDV2["1MB"], {"servers": 2, "relays": RELAY}, 1),
        (NDV2["1MB"], {"servers": 3, "relays": DIRECT_MAP}, 3),
        (DGX2["1MB"], {"servers": 2, "switches": (ALL,), "relays": ODD}, 2),
        (DGX2["1MB"], {"servers": 3, "switches": (ALL, ALL), "relays": FULLY_CONNECTED}, 2),
        (HUB, {"switches": ((0, 1), (2, 3))}, 1),
        (HUB, {"switches": ((0, 1),)}, 0),
    ],
)
def test_declared_rotations_hold_and_documents_come_back(
    numbers: str, said: dict[str, object], generators: int, tmp_path: Path
) -> None:
    topology = machine(tmp_path, numbers, **said)  # type: ignore[arg-type]
    assert len(topology.rotations) == generators
    for rotation in topology.rotations:
        vertex_image(topology, rotation)
    again = topology_from_document(topology_document(topology))
    assert topology_digest(again) == topology_digest(topology)
    assert (again.costs, len(again.links)) == ("original", len(topology.links))


def test_an_empty_sketch_is_as_none(tmp_path: Path) -> None:
    bare, empty = machine(tmp_path, HUB), machine(tmp_path, HUB, name="empty")
    assert topology_digest(bare) == topology_digest(empty)


def test_native_sketches_say_it_too(tmp_path: Path) -> None:
    text = "taccl: sketch/1\nname: relay\ninternode: {relays: {0: [1]}}\n"
    (tmp_path / "s.yaml").write_text(text)
    sketch = load_sketch(str(tmp_path / "s.yaml"))
    file = write(tmp_path, NDV2["1KB"], "1KB")
    topology = load_topology(file, nodes=2, sketched=sketch.sketched)
    assert units(topology, 0, 9) == 270
    assert apply_sketch(topology, sketch).allowed.all()


BAD: dict[str, tuple[str, str, dict[str, object], str]] = {
    "no sketch": (
        NDV2["1MB"], "", {"nodes": 2},
        r"o.yaml: --sketch: machine has TACCL's own costs, which between servers depend on",
    ),
    "no relays": (
        NDV2["1MB"], "", {"sketched": Sketched("s", servers=2)}, r"--sketch: machine has TACCL's",
    ),
    "fabric": (NDV2["1MB"], "", {"fabric": "rail"}, r"--fabric can't be used"),
    "degrees": (
        NDV2["1MB"], "", {"nodes": 2, "sketched": Sketched("s", relays=((0, (1,)), (2, (3, 4))))},
        r"^s: GPU 0 sends to 1 GPUs and GPU 2 to 2, where TACCL wants equal numbers",
    ),
    "receiver": (
        NDV2["1MB"], "", {"nodes": 2, "sketched": Sketched("s", relays=((0, (8,)),))},
        r"^s: there is no GPU 8 in a server of 8",
    ),
    "member": (
        NDV2["1MB"], "", {"sketched": Sketched("s", "s.json", switches=((0, 9),))},
        r"^s.json: switches\[0\] should have two or more of the GPUs 0 to 7",
    ),
    "alone": (
        NDV2["1MB"], "", {"sketched": Sketched("s", switches=((1, 1),))}, r"switches\[0\] should",
    ),
    "custom switches": (
        "{base: custom, gpus: 2, time_unit: 1us, alpha: 0, betas: [[0, 1], [1, 0]],"
        " invbws: [[0, 1], [1, 0]], links: [[0, 1], [1, 0]]}",
        "", {"sketched": Sketched("s", switches=((0, 1),))}, r"lists switches, which a custom",
    ),
    "custom servers": (
        "{base: custom, gpus: 2, time_unit: 1us, alpha: 0, betas: [[0, 1], [1, 0]],"
        " invbws: [[0, 1], [1, 0]], links: [[0, 1], [1, 0]]}",
        "", {"nodes": 2}, r"original: has no cost between servers, of which there are 2",
    ),
    "links": (
        NDV2["1MB"].replace("gpus", "links: [[1]], gpus"), "", {}, r"links: NDv2 has its own",
    ),
    "free": (
        NDV2["1MB"].replace("invbws: [23", "invbws: [0.9"), "", {},
        r"original.invbws: makes a link on which a chunk takes 0 time units",
    ),
    "too large": (
        DGX2["1MB"].replace("gpus: 16", "gpus: 60000"), "", {},
        r"original.gpus: 1 servers of 60000 GPUs are too many",
    ),
    "many servers": (
        NDV2["1MB"], "", {"nodes": 8000, "sketched": Sketched("s", relays=RELAY)},
        r"8000 servers of 8 GPUs are too many",
    ),
    "exact": (NDV2["1MB"], "costs: exact\n", {}, r"costs: is exact beside original"),
    "unknown": (
        NDV2["1MB"].replace("gpus", "gpu"), "", {}, r"original.gpu: unknown field",
    ),
    "unit": (NDV2["1MB"].replace("1us", "1ms"), "", {}, r"time_unit: should be '1us', '100ns'"),
    "rows": (NDV2["1MB"].replace("[23, 46]", "[]"), "", {}, r"should be a list of numbers, got"),
}  # fmt: skip


@for_each("numbers, header, given, match", BAD.values(), ids=BAD)
def test_a_bad_file_or_sketch_is_one_error_with_a_fix(
    numbers: str, header: str, given: dict[str, object], match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=match) as error:
        load_topology(write(tmp_path, numbers, header=header), **given)  # type: ignore[arg-type]
    assert error.value.fix


def test_a_file_needs_its_chunk_size(tmp_path: Path) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(f"taccl: topology/1\nname: m\noriginal: {HUB}\n")
    with pytest.raises(InputError, match=r"chunk_size: is missing\n  fix: write chunk_size: 1MB"):
        load_topology(str(file))


def test_a_sketch_of_taccl_says_what_the_costs_need(tmp_path: Path) -> None:
    file = tmp_path / "sk.json"
    file.write_text(
        '{"nnodes": 2, "intranode_sketch": {"strategy": "switch", "switches": [[1, 0], [0, 1]],'
        ' "switch_hyperedge_strategy": ["uc-min", "uc-min"]}, "internode_sketch": {"strategy":'
        ' "relay", "internode_conn": {"0": [1]}}, "symmetry_offsets": [],'
        ' "hyperparameters": {"input_chunkup": 1}}'
    )
    sketch = load_sketch(str(file))
    assert sketch.sketched == Sketched("sk", str(file), 2, ((1, 0), (0, 1)), ((0, (1,)),))
    plain = replace(sketch, switch_lists=())
    assert plain.sketched.switches == ()
    topology = load_topology(write(tmp_path, HUB), sketched=sketch.sketched)
    assert dict(apply_sketch(topology, sketch).switch_policy) == {
        f"s{server}/switch{copy}": "uc-min" for server in (0, 1) for copy in (0, 1)
    }
