"""Algorithms, files and NCCL's model side by side: times, winners, crossovers, what is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from taccl.apps import Lowering, comparison
from taccl.apps.comparison import NCCL, Question, compare
from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import InputError, LoweringError
from taccl.msccl.program import Program
from taccl.msccl.xml import write_xml
from taccl.replay.cost import ReplayModel
from taccl.replay.interpreter import Trace
from taccl.replay.nccl import PROTOCOLS, choices, fastest, machine_of, parse_settings
from taccl.replay.timing import traces
from taccl.report.comparison import HERE, Comparison, Contender
from taccl.topology.file import load_topology
from taccl.topology.graph import ALPHA_RULES, Topology
from tests.apps.test_answers import ring_program, without_steps
from tests.customs import custom
from tests.sweep import for_each


def compared(
    topology: str,
    collective: str,
    *sizes: int,
    files: tuple[str, ...] = (),
    root: int | None = None,
) -> Comparison:
    network = load_topology(topology)
    asked = build_collective(collective, network.num_ranks, 1, root)
    return compare(Question(network, asked, sizes, files))


def column(found: Comparison, name: str) -> Contender:
    (contender,) = [contender for contender in found.contenders if contender.name == name]
    return contender


def times(found: Comparison, name: str) -> list[int | None]:
    return [row.time for row in column(found, name).rows]


@pytest.fixture
def ring_xml(tmp_path: Path) -> str:
    path = tmp_path / "mine.xml"
    path.write_text(write_xml(ring_program(), "executor"))
    return str(path)


def test_times_are_those_of_the_textbook() -> None:
    found = compared("hub:4", "allgather", 1600, 16000)
    # 0.7 us a message and 20 ps a byte: three quarters of the bytes pass every port.
    bytes_ = [3 * 400 * 20, 3 * 4000 * 20]
    assert times(found, "ring") == [3 * 700_000 + b for b in bytes_]
    assert times(found, "all-pairs") == [3 * 700_000 + b for b in bytes_]
    assert times(found, "halving-doubling") == [2 * 700_000 + b for b in bytes_]


def test_the_least_time_wins_and_nothing_is_below_the_bound() -> None:
    found = compared("hub:4", "allgather", 1600)
    assert [c.name for c in found.contenders if found.wins(c, 0)] == ["halving-doubling", "bruck"]
    bound = found.bounds[0]
    assert bound is not None
    assert all(row.time >= bound[1] for c in found.contenders for row in c.rows if row.time)


@for_each("collective", COLLECTIVES, quick=5)
@for_each("rule", ALPHA_RULES)
@for_each("topology", ["hub:4", "ring:5"])
def test_every_row_of_every_algorithm_is_above_the_bound(
    topology: str, rule: str, collective: str
) -> None:
    network = load_topology(topology).with_alpha_rule(rule)
    root = 1 if COLLECTIVES[collective].has_root else None
    asked = build_collective(collective, network.num_ranks, 1, root)
    found = compare(Question(network, asked, (1000, 1 << 16, 1 << 24)))
    rows = [row for c in found.contenders if c.kind == "algorithm" for row in c.rows]
    assert all(row.bound is not None for row in rows)
    assert all(row.time is None or row.time >= (row.bound or 0) > 0 for row in rows)


def test_equals_win_together() -> None:
    found = compared("hub:3", "allgather", 1200)
    winners = [c.name for c in found.contenders if found.wins(c, 0)]
    assert winners == ["ring", "double-ring", "all-pairs", "bruck"]
    assert found.crossovers == ()


def test_the_crossover_of_two_formulas_is_found_to_a_hundredth() -> None:
    # flooding in two chunks 2 alpha + 3/2 beta S, double-chain in four 4 (alpha + beta S/4): equal
    # where beta S is 4 alpha, which is 140 000 bytes.
    found = compared("hypercube:4", "reduce", 1 << 16, 1 << 22)
    (crossover,) = found.crossovers
    assert (crossover.before, crossover.after) == ("flooding", "double-chain")
    assert 140_000 <= crossover.size <= 141_400
    around = compared("hypercube:4", "reduce", crossover.size * 98 // 100, crossover.size)
    winners = [[c.name for c in around.contenders if around.wins(c, i)] for i in (0, 1)]
    assert winners == [["flooding"], ["double-chain"]]


def test_sizes_between_two_with_other_winners_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counting(
        program: Program, topology: Topology, sizes: Sequence[int], model: ReplayModel
    ) -> Iterator[Trace]:
        asked.extend(sizes)
        return traces(program, topology, sizes, model)

    monkeypatch.setattr(comparison, "traces", counting)
    compared("hypercube:4", "reduce", 1 << 16, 1 << 22)
    between = [size for size in asked if size not in (1 << 16, 1 << 22)]
    # A hundredth of a range of 64 needs log2(ln 64 / 0.01) = 9 halvings.
    assert 7 <= len(set(between)) <= 10
    programs = asked.count(1 << 16)
    assert all(between.count(size) == programs for size in between)


def test_sizes_are_cut_for_everybody() -> None:
    # Six ranks: 6 chunks of whole elements.
    found = compared("hub:6", "alltoall", 8, 1024, 1030, 2048)
    assert found.sizes == (8, 1008, 2040)
    assert times(found, "all-pairs")[0] is None
    assert found.least(0) is None


def test_an_algorithm_with_a_root_takes_the_best_of_its_chunk_counts() -> None:
    found = compared("ring:4", "broadcast", 1024, 1 << 20, root=2)
    chunks = [row.program.rpartition("-k")[2] for row in column(found, "chain").rows]
    assert chunks[0] == "1"
    assert int(chunks[1]) > 4


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_what_no_file_can_hold_is_timed_as_a_schedule(collective: str) -> None:
    found = compared("hub:4", collective, 1600)
    # Three messages of 400 bytes pass the root's port.
    assert times(found, "direct") == [3 * (700_000 + 400 * 20)]
    assert "schedule" in column(found, "direct").rows[0].note


def test_a_file_is_replayed_beside_the_algorithms(ring_xml: str) -> None:
    found = compared("ring:4", "allgather", 1600, files=(ring_xml,))
    assert times(found, ring_xml) == times(found, "ring") == [3 * (700_000 + 400 * 20)]
    assert column(found, ring_xml).kind == "file"


def test_files_are_told_apart_by_the_shortest_names_that_can(ring_xml: str, tmp_path: Path) -> None:
    other, third = tmp_path / "more" / "mine.xml", tmp_path / "third.xml"
    other.parent.mkdir()
    for path in (other, third):
        path.write_text(Path(ring_xml).read_text())
    files = (ring_xml, str(other), str(third), ring_xml)
    found = compared("ring:4", "allgather", 1600, files=files)
    shorts = {c.name: c.short for c in found.contenders if c.kind == "file"}
    assert shorts == {ring_xml: "", str(other): "", str(third): "third.xml"}


def test_a_file_that_is_called_as_an_algorithm_is_told_apart(
    ring_xml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ring").write_text(Path(ring_xml).read_text())
    monkeypatch.chdir(tmp_path)
    found = compared("ring:4", "allgather", 1600, files=("ring",))
    kinds = {c.name: c.kind for c in found.contenders}
    assert (kinds["ring"], kinds["./ring"]) == ("algorithm", "file")


def test_a_file_with_wrong_results_wins_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nothing.xml"
    path.write_text(write_xml(without_steps(ring_program()), "executor"))
    found = compared("ring:4", "allgather", 1600, files=(str(path),))
    assert times(found, str(path)) == [0]
    assert "never written" in column(found, str(path)).note
    assert found.least(0) == times(found, "double-ring")[0]


@pytest.mark.parametrize(
    ("topology", "collective", "field"),
    [("ring:5", "allgather", "ngpus"), ("ring:4", "allreduce", "coll")],
)
def test_a_file_that_does_something_else_is_refused(
    ring_xml: str, topology: str, collective: str, field: str
) -> None:
    with pytest.raises(InputError, match="as asked, got") as caught:
        compared(topology, collective, 1600, files=(ring_xml,))
    assert (caught.value.file, caught.value.field) == (ring_xml, field)


def test_a_file_for_another_root_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "root.xml"
    program = replace(ring_program(), collective="broadcast", chunks_per_loop=1)
    path.write_text(write_xml(without_steps(program), "executor"))
    with pytest.raises(InputError, match="should be 2 as asked, got 0"):
        compared("ring:4", "broadcast", 1600, files=(str(path),), root=2)


def test_nccls_model_stands_beside_and_does_not_win() -> None:
    topology = load_topology("full:8@100GB/s,9us")
    found = compared("full:8@100GB/s,9us", "allreduce", 1 << 20)
    choice = fastest(machine_of(topology), "allreduce", 1 << 20)
    assert choice is not None
    (row,) = column(found, NCCL).rows
    assert row.time == choice.time
    assert row.note.startswith(f"modelled: {choice.algorithm} {choice.protocol}, ")
    assert not found.wins(column(found, NCCL), 0)


WAYS = {
    "allreduce": [f"{a} {p}" for a in ("Ring", "Tree") for p in PROTOCOLS],
    "allgather": [f"Ring {p}" for p in PROTOCOLS],
}


@pytest.mark.parametrize("collective", WAYS)
def test_each_algorithm_and_protocol_of_nccl_has_its_times(collective: str) -> None:
    topology = load_topology("dgx-a100")
    found = compared("dgx-a100", collective, 1 << 12, 1 << 20, 1 << 28)
    assert found.nccl is not None
    assert [way.short for way in found.nccl.ways] == WAYS[collective]
    for place, size in enumerate(found.sizes):
        expected = {c.way: c.time for c in choices(machine_of(topology), collective, size)}
        assert {way.short: way.rows[place].time for way in found.nccl.ways} == expected
        least = min(expected.values())
        assert expected[found.nccl.chosen[place]] == least
        assert times(found, NCCL)[place] == least
    assert all("2.30.7" in way.name for way in found.nccl.ways)
    assert all(way.name.endswith("(modelled)") for way in found.nccl.ways)
    assert found.everybody == (*found.contenders, *found.nccl.ways)


def test_the_size_at_which_nccl_changes_is_found_to_a_hundredth() -> None:
    topology = load_topology("dgx-a100")
    machine = machine_of(topology)
    found = compared("dgx-a100", "allreduce", *(1 << power for power in range(10, 31, 2)))
    assert found.nccl is not None
    assert [each.before for each in found.nccl.switches[1:]] == [
        each.after for each in found.nccl.switches[:-1]
    ]
    assert len(found.nccl.switches) >= 2
    for each in found.nccl.switches:
        below = fastest(machine, "allreduce", each.size * 98 // 100)
        above = fastest(machine, "allreduce", each.size)
        assert (below and below.way, above and above.way) == (each.before, each.after)


def test_what_nccl_does_not_run_is_shown_and_not_chosen() -> None:
    topology = load_topology("ring:4")
    asked = build_collective("allgather", 4, 1)
    sizes = [512 * 1024]
    found = compare(Question(topology, asked, sizes, nccl=parse_settings("wire=pci"))).nccl
    assert found is not None
    refused = next(way for way in found.ways if way.short == "Ring LL128")
    assert "over NVLink only" in refused.rows[0].note
    assert refused.rows[0].time is not None
    assert found.chosen != ("Ring LL128",)


def test_where_nccl_expects_less_than_the_fastest_takes_is_found() -> None:
    # One ring of 50 GB/s a port is faster while NCCL pays 6.6 us and more at the start, and slower
    # than the 6 channels of 20 GB/s that are given to NCCL's model.
    topology = load_topology("ring:8")
    asked, given = build_collective("allgather", 8, 1), parse_settings("channels=6,intra=20GB/s")
    found = compare(Question(topology, asked, [1 << 12, 1 << 18, 1 << 24], nccl=given))
    assert found.nccl is not None
    (each,) = found.nccl.beside
    assert (each.before, each.after) == (HERE, NCCL)
    around = compare(Question(topology, asked, [each.size * 98 // 100, each.size], nccl=given))
    nccl = [time or 0 for time in times(around, NCCL)]
    assert [(around.least(place) or 0) <= nccl[place] for place in (0, 1)] == [True, False]


def test_inputs_of_nccls_model_can_be_given() -> None:
    topology = load_topology("ring:4")
    asked = build_collective("allgather", 4, 1)
    given = parse_settings("gpu=hopper,channels=12,intra=30GB/s")
    found = compare(Question(topology, asked, [1 << 20], nccl=given))
    assert found.nccl is not None
    assert found.nccl.inputs.startswith("gpu=hopper,cpu=intel,wire=nvlink,channels=12,intra=30GB/s")


def test_nccl_has_no_model_of_an_alltoall() -> None:
    found = compared("hub:4", "alltoall", 1600)
    assert found.nccl is None
    assert dict(found.absent)[NCCL] == "it has no model of alltoall"
    names = ["ring", "double-ring", "all-pairs", "bruck", "recursive-doubling"]
    assert [c.name for c in found.contenders] == names


def test_algorithms_that_are_not_there_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = dict(compared("ring:5", "allgather", 2000).absent)
    assert "on these links" in absent["all-pairs"]
    assert "ring" not in absent

    def refuse(_lowering: Lowering) -> None:
        raise LoweringError("too many steps")

    monkeypatch.setattr(Lowering, "best", property(refuse))
    assert dict(compared("ring:5", "allgather", 2000).absent)["ring"] == "too many steps"


def test_of_a_collective_from_a_file_there_are_files_and_bounds_only() -> None:
    chunks = [{"id": 0, "input": {0: 0}, "output": {1: 0}}]
    asked = custom({"ranks": 2, "reduces": False, "chunks": chunks})
    found = compare(Question(load_topology("ring:2"), asked, [1000]))
    assert found.contenders == ()
    assert found.bounds == (("latency", 720_000),)
