"""TACCL's topology files become topologies in both cost modes, or one clear error."""

import json
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError, TacclWarning
from taccl.files import Document
from taccl.files.read import parse_document
from taccl.imports import IMPORTS, ImportOptions, TacclOptions, import_files, import_topology
from taccl.imports.taccl_json import read_taccl_topology
from taccl.sketch import load_sketch
from taccl.topology.core_form import topology_digest
from taccl.topology.file import document_text, load_topology, topology_from_document
from taccl.topology.graph import Topology
from taccl.topology.symmetry import vertex_image
from taccl.topology.taccl_costs import TIME_UNITS
from taccl.units import parse_time
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.sweep import for_each

SHARED = Path(__file__).parents[3] / "shared" / "data" / "taccl"
NEEDS_SHARED = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"TACCL's examples are not at {SHARED}"
)

Json = dict[str, object]

NDV2: Json = {
    "name": "NDv2_1KB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 30,
    "node_betas_list": [2.24, 4.5], "node_invbws_list": [32.25, 34.5],
    "remote_alpha": 260, "remote_beta": 10.25, "remote_invbw": 270.25,
}  # fmt: skip
DGX2: Json = {
    "name": "DGX2_1MB", "gpus_per_node": 16, "nics_per_node": 8, "alpha": 0.3,
    "node_betas_list": [8], "node_invbws_list": [8],
    "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107,
}  # fmt: skip
HUB: Json = {
    "name": "four", "gpus_per_node": 4, "nics_per_node": 2, "alpha": 1,
    "node_betas_list": [2.5], "node_invbws_list": [3.5],
    "remote_alpha": 10, "remote_beta": 20, "remote_invbw": 30,
}  # fmt: skip
CUSTOM: Json = {
    "name": "three", "gpus_per_node": 3, "alpha": 1,
    # [to][from]: 1 -> 0 twice, 0 -> 1 once, 1 -> 2, 2 -> 0
    "links": [[0, 2, 1], [1, 0, 0], [0, 1, 0]],
    "betas": [[0, 5, 6], [7, 0, 0], [0, 8, 0]],
    "invbws": [[0, 6, 7], [8, 0, 0], [0, 9, 0]],
}  # fmt: skip

KB = TacclOptions(None, Fraction(1000), "10ns")
MB = TacclOptions(None, Fraction(10**6), "1us")


def options(costs: str, base: str | None = None, of: TacclOptions = MB) -> ImportOptions:
    return ImportOptions(taccl=TacclOptions(base, of.chunk_size, of.time_unit, costs))


def write(tmp_path: Path, value: Json, **fields: object) -> str:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({k: v for k, v in (value | fields).items() if v is not None}))
    return str(path)


def imported(tmp_path: Path, value: Json, chosen: ImportOptions) -> str:
    """Return the path of the imported file."""
    path = tmp_path / "t.yaml"
    path.write_text(document_text(import_files([write(tmp_path, value)], None, chosen).document))
    return str(path)


def chunk_times(topology: Topology, unit: int) -> dict[tuple[int, int], Fraction]:
    """Return for every pair with a link the units that a chunk takes."""
    size, table = topology.chunk_size or 0, topology.links
    return {
        (int(table.src[i]), int(table.dst[i])): Fraction(topology.arrival(i, size), unit)
        for i in range(len(table))
    }


def test_exact_costs_are_the_numbers_in_the_unit_for_the_chunk(tmp_path: Path) -> None:
    file = imported(tmp_path, NDV2, options("exact", of=KB))
    times = chunk_times(load_topology(file, nodes=2), 10_000)
    # alpha + beta: 30 + 2.24 for two NVLinks, 30 + 4.5 for one, 260 + 10.25 between servers
    assert times[0, 1] == times[14, 15] == Fraction("32.24")
    assert times[0, 2] == times[15, 12] == Fraction("34.5")
    assert times[0, 8] == times[15, 0] == Fraction("270.25")
    assert len(times) == 2 * 32 + 2 * 64


def test_the_ndv2_of_a_file_has_the_wires_of_the_shipped_one(tmp_path: Path) -> None:
    ours = load_topology("ndv2", nodes=2)
    theirs = load_topology(imported(tmp_path, NDV2, options("exact", of=KB)), nodes=2)
    ends = [[(e.tail, e.head) for e in topology.edges] for topology in (ours, theirs)]
    assert ends[0] == ends[1]
    fast = [
        [e.beta == min(x.beta or 0 for x in t.edges if x.beta) for e in t.edges if e.beta]
        for t in (ours, theirs)
    ]
    assert fast[0] == fast[1]
    assert ours.rotations == theirs.rotations


def test_exact_gpus_of_a_nic_share_it(tmp_path: Path) -> None:
    topology = load_topology(imported(tmp_path, DGX2, options("exact")), nodes=2)
    names = [
        [topology.edges[e].name for e in topology.links.edges_of(topology.links_between(*pair)[0])]
        for pair in ((0, 17), (1, 30))
    ]
    assert names[0] == ["0->s0/ib0.tx", "s0/ib0.tx->fabric", "fabric->s1/ib0.rx", "s1/ib0.rx->17"]
    assert names[1] == ["1->s0/ib0.tx", "s0/ib0.tx->fabric", "fabric->s1/ib7.rx", "s1/ib7.rx->30"]


def test_an_exact_hub_has_a_port_for_each_gpu_and_even_nics(tmp_path: Path) -> None:
    topology = load_topology(
        imported(tmp_path, HUB, options("exact", "HubAndSpoke")), nodes=2
    )  # fmt: skip
    times = chunk_times(topology, 10**6)
    assert set(times.values()) == {Fraction("3.5"), Fraction(30)}
    assert [s.name for s in topology.switches][:3] == ["s0/hub", "s0/ib0.tx", "s0/ib0.rx"]


@pytest.mark.parametrize(("costs", "extra"), [("exact", 1), ("original", 1)])
def test_custom_matrices_are_indexed_to_from(costs: str, extra: int, tmp_path: Path) -> None:
    topology = import_topology(write(tmp_path, CUSTOM), None, options(costs, "custom"))
    times = chunk_times(topology, 10**6)
    # beta and 1 of alpha; the original's cost is invbw, which is the same here
    assert times == {
        (1, 0): 5 + extra, (2, 0): 6 + extra, (0, 1): 7 + extra, (1, 2): 8 + extra,
    }  # fmt: skip
    assert len(topology.links_between(1, 0)) == 2
    assert {e.alpha for e in topology.edges} == ({10**6} if costs == "exact" else {0})


def test_without_costs_between_servers_there_is_one_server(tmp_path: Path) -> None:
    alone = {k: v for k, v in HUB.items() if not k.startswith("remote")}
    for costs in ("exact", "original"):
        file = imported(tmp_path, alone, options(costs, "HubAndSpoke"))
        assert load_topology(file).num_ranks == 4
        with pytest.raises(InputError, match=r"is missing, with 2 servers|has no cost between"):
            load_topology(file, nodes=2)


@pytest.mark.parametrize("costs", ["exact", "original"])
def test_the_mode_and_the_chunk_size_are_recorded_and_survive_expansion(
    costs: str, tmp_path: Path, run: Run
) -> None:
    file = imported(tmp_path, NDV2, options(costs, of=KB))
    core = tmp_path / "core.yaml"
    assert run("topology", "expand", file, "-o", str(core)).status == 0
    for path in (file, str(core)):
        topology = load_topology(path)
        assert (topology.costs, topology.chunk_size) == (costs, Fraction(1000))
        assert f"costs       {costs}" in run("topology", "show", path).out
    assert topology_digest(load_topology(file)) == topology_digest(load_topology(str(core)))
    turned = load_topology(file).reversed().with_alpha_rule("delay")
    assert (turned.costs, turned.chunk_size) == (costs, Fraction(1000))


def test_the_command_writes_the_file(tmp_path: Path, run: Run) -> None:
    file, out = write(tmp_path, DGX2), str(tmp_path / "out.yaml")
    done = run("topology", "import", file, "--chunk-size", "1MB", "--time-unit", "1US", "-o", out)
    assert (done.status, done.out) == (0, f"wrote {out}\n")
    assert load_topology(out, nodes=2).num_ranks == 32
    printed = run("topology", "import", file, "--chunk-size", "1MB", "--time-unit", "1us").out
    assert printed == Path(out).read_text()


def test_keys_that_are_not_known_are_ignored_with_one_warning(tmp_path: Path) -> None:
    with pytest.warns(TacclWarning, match=r"t.json: ignored 'comment'$") as found:
        import_topology(write(tmp_path, NDV2, comment="x"), None, options("exact", of=KB))
    assert len(found) == 1


BAD: dict[str, tuple[Json, ImportOptions, str]] = {
    "no chunk size": (
        NDV2, ImportOptions(taccl=TacclOptions(time_unit="1us")),
        r"--chunk-size: NDv2_1KB: its numbers are times of one chunk, .* of how many bytes"
        r"\n  fix: of TACCL's examples those for 1KB are --chunk-size 1KB --time-unit 10ns",
    ),
    "no unit": (
        NDV2, ImportOptions(taccl=TacclOptions(chunk_size=Fraction(1000))),
        r"--time-unit: NDv2_1KB: .* in what unit",
    ),
    "no machine": (HUB, options("exact"), r"--base: the name 'four' does not tell which machine"),
    "gpus": (
        NDV2 | {"gpus_per_node": 4}, options("exact"), r"gpus_per_node: should be 8 for NDv2, got 4"
    ),
    "classes": (
        NDV2 | {"node_betas_list": [1]}, options("exact"),
        r"node_betas_list: should be 2 numbers for NDv2",
    ),
    "matrix": (
        CUSTOM | {"betas": [[0, 1], [1, 0]]}, options("exact", "custom"),
        r"betas: should be a matrix of 3 rows for custom",
    ),
    "ragged": (
        CUSTOM | {"betas": [[0, 1], [1]]}, options("exact", "custom"),
        r"betas: should have 2 rows of 2 numbers",
    ),
    "no list": (
        NDV2 | {"node_invbws_list": None}, options("original"),
        r"node_invbws_list: is missing for NDv2",
    ),
    "no nics": (
        HUB | {"nics_per_node": None}, options("exact", "HubAndSpoke"),
        r"nics_per_node: is missing\n",
    ),
    "uneven": (
        HUB | {"nics_per_node": 3}, options("exact", "HubAndSpoke"),
        r"nics_per_node: 3 NICs can't be shared evenly by 4 GPUs",
    ),
    "half a cost": (
        NDV2 | {"remote_alpha": None}, options("exact"), r"remote_alpha: is missing\n"
    ),
    "negative": (NDV2 | {"alpha": -1}, options("exact"), r"alpha: should be 0, or from 1e-9 to"),
    "text": (
        NDV2 | {"alpha": "30"}, options("exact"),
        r"alpha: should be a number of time units, got '30'",
    ),
    "true": (NDV2 | {"remote_beta": True}, options("exact"), r"remote_beta: .* got True"),
    "huge": (NDV2 | {"remote_beta": 10**30}, options("exact"), r"remote_beta: should be 0, or"),
    "half a link": (
        CUSTOM | {"links": [[0, 0.5, 1], [1, 0, 0], [0, 1, 0]]}, options("exact", "custom"),
        r"links\[0\]\[1\]: should be a whole number of links up to 64, .* got 0.5",
    ),
    "half a link, original": (
        CUSTOM | {"links": [[0, 0.5, 1], [1, 0, 0], [0, 1, 0]]}, options("original", "custom"),
        r"links\[0\]\[1\]: should be a whole number of links up to 64, .* got 0.5",
    ),
    "free links": (
        DGX2 | {"node_invbws_list": [0.5]}, options("original"),
        r"original.invbws: makes a link on which a chunk takes 0 time units",
    ),
    "free exact": (DGX2 | {"node_betas_list": [0]}, options("exact"), r"should be greater than 0"),
    "name": (NDV2 | {"name": "a\nb"}, options("exact"), r"name: should be a name"),
}  # fmt: skip


@for_each("value, chosen, match", BAD.values(), ids=BAD)
def test_a_bad_file_is_one_error_with_a_fix(
    value: Json, chosen: ImportOptions, match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=match) as error:
        import_topology(write(tmp_path, value), None, chosen)
    assert error.value.fix
    assert (error.value.file or "").endswith("t.json")


@pytest.mark.parametrize(
    ("given", "match"),
    [(("--chunk-size", "0"), "--chunk-size: should be a whole number"),
     (("--time-unit", "1s"), "--time-unit: should be one of 1us, 100ns, 10ns"),
     (("--costs", "free"), "--costs: should be one of exact, original"),
     (("--base", "ndv3"), "--base: should be one of NDv2, DGX2, HubAndSpoke, custom"),
     (("--from", "sccl"), f"--from: should be one of {', '.join(IMPORTS)}")],
)  # fmt: skip
def test_a_bad_option_is_one_error(
    given: tuple[str, str], match: str, tmp_path: Path, run: Run
) -> None:
    found = run("topology", "import", write(tmp_path, NDV2), *given)
    assert found.status == 2
    assert match in found.err


@settings(max_examples=60)
@given(
    alpha=st.floats(0, 1e4), beta=st.floats(1e-3, 1e4), invbw=st.floats(1, 1e4),
    size=st.integers(100, 10**7), unit=st.sampled_from(TIME_UNITS),
)  # fmt: skip
def test_any_number_is_taken_exactly_or_cut_to_a_whole_one(
    alpha: float, beta: float, invbw: float, size: int, unit: str
) -> None:
    alpha = 0.0 if alpha < 1e-6 else alpha
    value = NDV2 | {
        "alpha": alpha, "node_betas_list": [beta, 2 * beta], "node_invbws_list": [invbw, 7],
    }  # fmt: skip
    ps = parse_time(unit)
    for costs in ("exact", "original"):
        chosen = TacclOptions("NDv2", Fraction(size), unit, costs)
        document = parse_document(
            document_text(read_taccl_topology(Document(value, "f"), chosen)), "f"
        )
        topology = topology_from_document(document.value)
        edge = topology.edges[topology.links.edges_of(topology.links_between(0, 1)[0])[0]]
        took = Fraction(repr(beta)) if costs == "exact" else int(Fraction(repr(invbw)))
        assert (edge.beta or 0) * size == took * ps
        assert edge.alpha == (round(Fraction(repr(alpha)) * ps) if costs == "exact" else 0)


UNITS = {"1KB": "10ns", "32KB": "100ns", "1MB": "1us"}
EXAMPLES = {  # exact times of one chunk, in units: in a server, and between servers
    "topo-ndv2-1KB": ("32.24", "34.5", "270.25"),
    "topo-ndv2-32KB": ("10.18", "17.38", "58.8"),
    "topo-ndv2-1MB": ("23.3", "46.3", "107.6"),
    "topo-dgx2-1KB": ("31", "31", "270.25"),
    "topo-dgx2-1MB": ("8.3", "8.3", "107.6"),
}


@NEEDS_SHARED
@pytest.mark.parametrize("name", EXAMPLES)
def test_taccls_own_topologies_import_in_both_modes(name: str, tmp_path: Path) -> None:
    machine, size = name.split("-")[1:]
    source = SHARED / "topologies" / f"{name}.json"
    of = TacclOptions(None, Fraction(int(size[:-2]) * 10 ** (3 if size[-2] == "K" else 6)),
                      UNITS[size])  # fmt: skip
    unit = {"10ns": 10_000, "100ns": 100_000, "1us": 1_000_000}[UNITS[size]]
    for costs in ("exact", "original"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            file = imported(tmp_path, json.loads(source.read_text()), options(costs, of=of))
        for path in sorted((SHARED / "sketches").glob(f"*{machine}*.json")):
            sketch = load_sketch(str(path))
            nodes = sketch.servers if costs == "exact" else None
            topology = load_topology(file, nodes=nodes, sketched=sketch.sketched)
            assert topology.num_servers == sketch.servers
            for rotation in topology.rotations:
                vertex_image(topology, rotation)
            if costs == "exact":
                two, one, across = map(Fraction, EXAMPLES[name])
                times = chunk_times(topology, unit)
                assert (times[0, 1], times[0, 2]) == (two, one)
                assert topology.num_servers == 1 or times[0, len(topology.server_of) - 1] == across


@NEEDS_SHARED
def test_all_of_taccls_topologies_are_tried() -> None:
    assert {path.stem for path in (SHARED / "topologies").glob("*.json")} == set(EXAMPLES)
