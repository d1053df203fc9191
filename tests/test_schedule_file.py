"""Schedules as JSON: exact round trips, and one clear error for what no schedule can say."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taccl.cli.sketch import file_models
from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import InputError
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.topology.file import load_topology, topology_digest
from taccl.topology.graph import Topology
from taccl.topology.symmetry import make_group
from tests.sweep import for_each

COLUMNS = ("chunk", "link", "batch", "start", "end", "reduce")


def ring_allgather(topology: Topology, *, symmetric: bool) -> Schedule:
    """Every rank passes what it has to the right, three times."""
    right = {r: topology.links_between(r, (r + 1) % 4)[0] for r in range(4)}
    ranks = range(1) if symmetric else range(4)
    rows = [
        (rank, right[(rank + hop) % 4], 4 * hop + rank, False) for hop in range(3) for rank in ranks
    ]
    group = make_group(topology, topology.rotations if symmetric else ())
    return retime(build_collective("allgather", 4, 1), group, Fraction(125, 4), Decisions.of(rows))


def ring() -> Topology:
    return load_topology("ring:4@50GB/s,1us")


def again(schedule: Schedule, path: Path) -> Schedule:
    file = path / "s.json"
    file.write_text(schedule_text(schedule, seed=7, engine="greedy"))
    return read_schedule(str(file))


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_schedule_is_read_back_exactly(symmetric: bool, tmp_path: Path) -> None:
    schedule = ring_allgather(ring(), symmetric=symmetric)
    found = again(schedule, tmp_path)
    for name in COLUMNS:
        old, new = getattr(schedule, name), getattr(found, name)
        assert new.dtype == old.dtype
        assert np.array_equal(new, old)
    assert (found.generators, found.chunk_size) == (schedule.generators, schedule.chunk_size)
    assert topology_digest(found.topology) == topology_digest(schedule.topology)
    assert found.num_sends == schedule.num_sends == 12


def test_the_collective_is_read_back(tmp_path: Path) -> None:
    collective = again(ring_allgather(ring(), symmetric=False), tmp_path).collective
    assert (collective.name, collective.num_ranks, collective.chunks_per_rank) == (
        "allgather",
        4,
        1,
    )


@pytest.mark.parametrize("name", [name for name, kind in COLLECTIVES.items() if kind.has_root])
def test_the_root_is_read_back(name: str, tmp_path: Path) -> None:
    collective = build_collective(name, 4, 2, root=2)
    schedule = retime(collective, make_group(ring(), ()), Fraction(1), Decisions.of([]))
    found = again(schedule, tmp_path).collective
    assert (found.name, found.root, found.chunks_per_rank) == (name, 2, 2)


def test_packing_is_read_back_and_said_only_where_it_is_so(tmp_path: Path) -> None:
    plain = ring_allgather(ring(), symmetric=False)
    assert not again(plain, tmp_path).packs
    assert "packs" not in schedule_text(plain)
    assert again(replace(plain, packs=True), tmp_path).packs


def test_equal_schedules_are_written_as_the_same_bytes() -> None:
    texts = {schedule_text(ring_allgather(ring(), symmetric=True), seed=0) for _ in range(2)}
    assert len(texts) == 1


def test_what_is_read_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    schedule = ring_allgather(ring(), symmetric=True)
    text = schedule_text(schedule, seed=7, engine="greedy")
    assert schedule_text(again(schedule, tmp_path), seed=7, engine="greedy") == text


def test_the_text_says_what_was_solved_and_how() -> None:
    said = json.loads(schedule_text(ring_allgather(ring(), symmetric=True), seed=3, engine="x"))
    assert (said["engine"], said["seed"], said["representatives"]) == ("x", 3, 3)
    assert (said["chunk_size"], said["alpha_rule"]) == ("125/4 B", "occupy")
    # 31.25 bytes at 20 ps a byte: 625 ps; three hops of 1 us + 625 ps
    assert said["makespan_ps"] == 3 * 1_000_625


def test_an_empty_schedule_survives(tmp_path: Path) -> None:
    collective = build_collective("allgather", 4, 1)
    schedule = retime(collective, make_group(ring(), ()), Fraction(1), Decisions.of([]))
    assert len(again(schedule, tmp_path)) == 0


Change = Callable[[dict[str, Any]], object]


def put(*path: str | int, value: object) -> Change:
    """Return what replaces one value of the document."""

    def change(document: Any) -> None:  # noqa: ANN401 - plain JSON
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def cut(document: dict[str, Any]) -> None:
    document["sends"]["link"].pop()


def defined(said: str = "ours", k: int = 1, root: int | None = None, **fields: object) -> Change:
    """Return what makes the collective one of its own, with some fields of its definition."""
    chunk = {"id": 0, "input": {"0": 0}, "output": {"1": 0}}
    whole = {"taccl": "collective/1", "name": said, "ranks": 4, "chunks": [chunk]}
    if said == "halo":
        whole["name"] = "ours"
    record = {"name": said, "ranks": 4, "chunks_per_rank": k, "definition": whole | fields}
    return put("collective", value=record if root is None else record | {"root": root})


BAD: dict[str, tuple[Change, str]] = {
    "kind": (
        put("taccl", value="schedule/9"),
        r"taccl: should be 'schedule/1' or 'schedule/2', got",
    ),
    "unknown field": (put("sneds", value=[]), r"sneds: unknown field\n  fix: did you mean sends"),
    "collective": (
        put("collective", "name", value="gossip"),
        r"collective.name: unknown collective",
    ),
    "ranks": (
        put("collective", "ranks", value=5),
        r"collective.ranks: should be 4, as the topology",
    ),
    "chunks": (
        lambda document: document["collective"].update(name="alltoall", chunks_per_rank=1 << 21),
        r"chunks_per_rank: .* too many",
    ),
    "a root too many": (
        put("collective", "root", value=0),
        r"collective.root: allgather has no root, got 0",
    ),
    "no such root": (
        put("collective", value={"name": "scatter", "ranks": 4, "chunks_per_rank": 1, "root": 4}),
        r"collective.root: should be a rank from 0 to 3, got 4",
    ),
    "taken name": (defined(said="Gather"), r"definition.name: 'Gather' is a collective of its own"),
    "another name": (
        defined(said="halo"),
        r"collective.name: should be ours, as in the definition, got 'halo'",
    ),
    "other ranks": (
        defined(ranks=3),
        r"collective.ranks: should be 3, as in the definition, got 4",
    ),
    "a root of ours": (defined(root=1), r"collective.root: ours has no root, got 1"),
    "a wrong definition": (
        defined(chunks=[{"id": 0, "input": {}, "output": {"0": 0}}]),
        r"collective.definition.chunks\[0\].input: no rank has chunk 0",
    ),
    "too fine": (
        defined(
            k=1 << 22, chunks=[{"id": n, "input": {"0": n}, "output": {"1": n}} for n in range(5)]
        ),
        r"collective.chunks_per_rank: ours of 4 ranks has 5 chunks, and each cut in",
    ),
    "zero chunks": (
        put("collective", "chunks_per_rank", value=0),
        r"chunks_per_rank: should be at",
    ),
    "edited topology": (
        put("topology", "name", value="x"),
        r"topology_digest: should be [0-9a-f]{16}",
    ),
    "bad topology": (put("topology", "ranks", value=-1), r"topology.ranks: should be at least 1"),
    "alpha rule": (put("alpha_rule", value="delay"), r"alpha_rule: should be occupy"),
    "chunk size": (put("chunk_size", value="0/3 B"), r"chunk_size: should be above 0"),
    "generator": (
        put("generators", value=[[0, 0, 1, 2]]),
        r"generators\[0\]: should be a permutation",
    ),
    "no symmetry": (put("generators", value=[[1, 0, 2, 3]]), r"generators: .*does not have this"),
    "float": (put("sends", "chunk", 1, value=1.0), r"sends.chunk\[1\]: should be a whole number"),
    "bool": (
        put("sends", "reduce", 0, value=False),
        r"sends.reduce\[0\]: .*whole number, got False",
    ),
    "text": (
        put("sends", "link", 2, value="3"),
        r"sends.link\[2\]: should be a whole number, got '3'",
    ),
    "nested": (put("sends", "link", 0, value=[1]), r"sends.link\[0\]: should be a whole number"),
    "huge": (put("sends", "end_ps", 0, value=10**30), r"sends.end_ps: holds a number above 2\^63"),
    "no chunk": (
        put("sends", "chunk", 0, value=4),
        r"sends.chunk\[0\]: should be from 0 to 3, got 4",
    ),
    "no link": (put("sends", "link", 0, value=8), r"sends.link\[0\]: should be from 0 to 7, got 8"),
    "negative": (put("sends", "batch", 0, value=-1), r"sends.batch\[0\]: should be from 0"),
    "reduce": (put("sends", "reduce", 0, value=2), r"sends.reduce\[0\]: should be from 0 to 1"),
    "late": (
        put("sends", "start_ps", 0, value=1 << 50),
        r"sends.end_ps\[0\]: ends before it starts",
    ),
    "short": (cut, r"sends.link: should have 12 entries, got 11"),
    "no list": (put("sends", "link", value=7), r"sends.link: should be a list, got 7"),
    "packs": (put("packs", value=1), r"packs: .*true or false"),
    "count": (put("representatives", value=11), r"sends.chunk: should have 11 entries, got 12"),
}


@for_each("change, match", BAD.values(), ids=BAD)
def test_what_no_schedule_can_say_is_one_error(change: Change, match: str, tmp_path: Path) -> None:
    document = json.loads(schedule_text(ring_allgather(ring(), symmetric=False)))
    change(document)
    file = tmp_path / "s.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"s.json.*{match}") as error:
        read_schedule(str(file))
    assert error.value.fix


def test_a_machine_with_too_many_links_to_derive_is_refused(tmp_path: Path) -> None:
    hub = load_topology("hub:4097")
    schedule = retime(
        build_collective("allgather", 2, 1), make_group(load_topology("ring:2"), ()),
        Fraction(1), Decisions.of([]),
    )  # fmt: skip
    big = Schedule(
        schedule.collective, hub, schedule.chunk_size, schedule.chunk, schedule.link,
        schedule.batch, schedule.start, schedule.end, schedule.reduce,
    )  # fmt: skip
    file = tmp_path / "s.json"
    file.write_text(schedule_text(big))
    with pytest.raises(InputError, match="topology: has 4097 ranks with switches between them"):
        read_schedule(str(file))


def test_a_missing_schedule_is_named() -> None:
    with pytest.raises(InputError, match=r"no.json: there is no such file"):
        read_schedule("no.json")


@for_each("name", file_models())
def test_every_format_has_a_json_schema_of_its_fields(name: str) -> None:
    schema = file_models()[name].json_schema()
    fields = {info.alias or field for field, info in file_models()[name].model_fields.items()}
    assert set(schema["properties"]) == fields
    assert json.loads(json.dumps(schema)) == schema


def test_a_schema_shows_defaults_as_a_file_would_say_them() -> None:
    shape = file_models()["topology-shape"].json_schema()["$defs"]["ShapeRecord"]["properties"]
    assert (shape["bandwidth"]["default"], shape["alpha"]["default"]) == ("50GB/s", "0.7us")
