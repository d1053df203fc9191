"""Files of groups: instances, strides, relays, what is refused, and all instances as one."""

import random
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.apps.inputs import logical_group
from taccl.collectives import COLLECTIVES
from taccl.collectives.groups import (
    INDEX,
    Groups,
    Instance,
    is_groups,
    read_groups,
    relays_of,
    union_of,
)
from taccl.errors import InputError
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from tests.sweep import for_each

TP_DP = """taccl: groups/1
name: tp8-dp2
ranks: 16
groups:
  - {name: tp, collective: allreduce, size: 64MB, chunks: 1, each: [0-7, 8-15]}
  - {name: dp, collective: Reduce-Scatter, size: 1GB, each: {stride: 8, count: 2}, start: 40us,
     weight: 1/2}
objective: weighted
"""


def read(folder: Path, text: str) -> Groups:
    path = folder / "g.yaml"
    path.write_text(text)
    return read_groups(str(path))


def test_instances_are_listed_or_equally_spaced(tmp_path: Path) -> None:
    groups = read(tmp_path, TP_DP)
    assert [one.members for one in groups.instances[:2]] == [tuple(range(8)), tuple(range(8, 16))]
    assert [one.members for one in groups.instances[2:]] == [(r, r + 8) for r in range(8)]
    last = groups.instances[-1]
    assert (last.group, last.number, last.collective) == ("dp", 7, "reducescatter")
    assert (last.size, last.chunks, last.start) == (10**9, None, 40 * 10**6)
    # 2 weigh 1, and 8 weigh a half.
    assert groups.cost([10] * 10) == 2 * 10 + Fraction(8 * 10, 2)
    assert is_groups(str(tmp_path / "g.yaml"))
    assert not is_groups("allreduce")
    strides = TP_DP.replace("stride: 8, count: 2", "stride: 2, count: 4")
    assert [one.members for one in read(tmp_path, strides).instances[2:]] == [
        (0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15),
    ]  # fmt: skip


def test_who_relays_is_told_by_a_word_or_by_ranks(tmp_path: Path) -> None:
    head = "taccl: groups/1\nname: g\nranks: 6\ngroups:\n  - {name: a, collective: allgather,"
    for told, expected in (
        ("members", [(), ()]), ("all", [(1, 3, 4, 5), (2, 3, 5, 0)]), ("3-4", [(3, 4), (3,)]),
        ("5", [(5,), (5,)]),
    ):  # fmt: skip
        text = f"{head} size: 1MB, each: [[0, 2], [1, 4]]}}\nrelays: {told}\n"
        assert [one.relays for one in read(tmp_path, text).instances] == expected, told
    assert relays_of((3, 1), "all", 4) == (0, 2)


BAD = {
    "each: [[0, 16], [1, 2]]": r"groups\[0\].each\[0\]: names rank 16, and there are 16",
    "each: [[0, 1], [1, 2]]": r"groups\[0\].each: instances should have as many ranks each",
    "each: [[0, 1], [2, 3, 4]]": r"instances should have as many ranks each",
    "each: [[0], [1]]": r"groups\[0\].each: a group has two ranks or more",
    "each: []": r"groups\[0\].each: should be a list of groups",
    "each: 5": r"should be a list of groups, got 5",
    "each: [[0, 0]]": r"each once",
    "each: [[true, 1]]": r"should be numbers of GPUs",
    "each: [0-999999]": r"should be numbers of GPUs",
    "each: {stride: 3, count: 2}": r"2 ranks 3 apart do not cover 16 ranks: not from rank 13 on",
    "each: {stride: 8, count: 2, more: 1}": r"lists of ranks, or a stride and a count",
    "each: {stride: 99999999999999999999, count: 2}": r"lists of ranks, or a stride and a count",
    "each: {stride: -1, count: 2}": r"lists of ranks, or a stride and a count",
    "each: {stride: 1, count: 1}": r"a group has two ranks or more",
    "each: [0-7], chunks: 0": r"chunks: should be auto or a number from 1 to 1024, got 0",
    "each: [0-7], chunks: [1]": r"chunks: should be auto or a number from 1 to 1024",
    "each: [0-7], weight: 0": r"weight: should be from 0.000001 to 1000000, got 0",
    "each: [0-7], weight: 1/0": r"weight: should be from 0.000001",
    "each: [0-7], weight: nan": r"weight: should be from 0.000001",
    "each: [0-7], start: -1us": r"start: should be a time",
    "each: [0-7], root: 0": r"groups\[0\].root: allreduce has no root, got 0",
    "each: [0-7], starts: 0us": r"groups\[0\].starts: unknown field\n  fix: did you mean start\?",
    "each: [0-7], files: [a.xml, b.xml]": r"files: should be 1, one for each instance, got 2",
    "each: [0-7], files: [../a.xml]": r"files\[0\]: should be a name",
    "each: [0-7], files: [/etc/passwd]": r"files\[0\]: should be a name",
    "each: [0-7]}\n  - {name: a, collective: allgather, size: 1B, each: [0-7]": r"'a' is",
    "each: [0-7]}\nrelays: 16\nname2: {": r"name2: unknown field",
}


@for_each(("field", "problem"), BAD.items(), ids=BAD)
def test_a_wrong_file_names_file_field_and_fix(field: str, problem: str, tmp_path: Path) -> None:
    text = "taccl: groups/1\nname: bad\nranks: 16\ngroups:\n  - {name: a, collective: allreduce,"
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path, f"{text} size: 1MB, {field}}}\n")
    assert caught.value.fix
    assert str(caught.value).startswith(f"{tmp_path / 'g.yaml'}:")


MORE = {
    (
        "collective: allreduce",
        "collective: sum",
    ): r"groups\[0\].collective: unknown collective 'sum",
    ("collective: allreduce", "collective: alltoallv"): r"collective: alltoallv needs the bytes",
    ("size: 64MB", "size: 0"): r"groups\[0\].size: should be a whole number of bytes",
    ("size: 64MB, ", ""): r"groups\[0\].size: is missing",
    ("ranks: 16", "ranks: 0"): r"ranks: should be at least 1",
    ("objective: weighted", "objective: mean"): r"objective: should be 'makespan' or 'weighted'",
    ("objective: weighted", "relays: some"): r"relays: should be members, all or ranks, got 'some'",
    ("objective: weighted", "relays: [16]"): r"relays: names rank 16, and there are 16",
    ("name: dp", "name: tp"): r"groups\[1\].name: 'tp' is groups\[0\] already",
}


@for_each(("change", "problem"), MORE.items(), ids=[new for _, new in MORE])
def test_what_else_is_refused(change: tuple[str, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, TP_DP.replace(*change))


def test_there_are_not_too_many_instances(tmp_path: Path) -> None:
    rows = "".join(
        f"  - {{name: g{n}, collective: allgather, size: 1B, each: {{stride: 1, count: 2}}}}\n"
        for n in range(5)
    )
    with pytest.raises(InputError, match=r"groups\[4\].each: there are more than 1024 instances"):
        read(tmp_path, f"taccl: groups/1\nname: many\nranks: 512\ngroups:\n{rows}")


def test_a_union_has_the_chunks_of_all_side_by_side() -> None:
    even = Instance("a", 0, "allreduce", 8, (0, 2), chunks=1)
    odd = Instance("a", 1, "allreduce", 8, (1, 3), chunks=1)
    other = Instance("b", 0, "allgather", 2, (0, 1), chunks=1)
    union = union_of([even, odd, other], 4)
    assert union is not None
    made = union.collective
    # Chunks of 4, 4 and 1 bytes become 4 of one byte each.
    assert (int(union.unit), union.parts, union.first) == (1, (4, 4, 1), (0, 8, 16, 18))
    assert [made.sources(c) for c in (0, 8, 16, 17)] == [(0, 2), (1, 3), (0,), (1,)]
    assert made.reduces
    assert [made.input_offset(c, made.sources(c)[0]) for c in (0, 7, 8, 16)] == [0, 7, 0, 8]
    assert [made.output_offset(17, rank) for rank in (0, 1)] == [9, 9]
    assert made.size == 10
    assert made.may_visit(0, 2)
    assert not made.may_visit(0, 1)
    assert made.may_visit(17, 1)


def test_chunks_of_a_union_lie_apart_and_keep_their_sources_and_targets() -> None:
    rng = random.Random(5)
    for _ in range(60):
        instances = []
        for place in range(rng.randint(1, 3)):
            ranks = rng.sample(range(6), 6)
            count, name = rng.choice([2, 3]), rng.choice([*COLLECTIVES])
            size = rng.choice([12, 24, 48])
            instances += [
                Instance(f"g{place}", number, name, size,
                         tuple(ranks[number * count : (number + 1) * count]), chunks=1)
                for number in range(rng.randint(1, 6 // count))
            ]  # fmt: skip
        union = union_of(instances, 6)
        if union is None:
            continue
        made, taken = union.collective, set[tuple[str, int, int]]()
        for number, one in enumerate(instances):
            own = one.among(6, union.parts[number])
            for chunk in range(own.num_chunks):
                there = chunk + union.first[number]
                assert made.sources(there) == own.sources(chunk)
                assert made.targets(there) == own.targets(chunk)
                places = [
                    ("i", rank, made.input_offset(there, rank)) for rank in made.sources(there)
                ]
                places += [
                    ("o", rank, made.output_offset(there, rank)) for rank in made.targets(there)
                ]
                assert taken.isdisjoint(places)
                taken.update(places)
                owner = int(made.owner[there])
                alone = made.reduces and len(made.targets(there)) == 1
                assert owner in (made.targets(there) if alone else made.sources(there))
        assert made.size == union.unit * made.chunks_in_size


def test_sizes_without_a_common_unit_have_no_union() -> None:
    near = [Instance("a", 0, "allgather", 2 * 10**6, (0, 1), chunks=1),
            Instance("b", 0, "allgather", 2 * 10**6 + 2, (2, 3), chunks=1)]  # fmt: skip
    assert union_of(near, 4) is None


def test_a_symmetry_of_a_union_maps_groups_to_groups() -> None:
    """Even and odd ranks of a ring may be exchanged, unless they do different things."""
    ring = load_topology("ring:8")
    for names, order in ((("allreduce", "allreduce"), 8), (("allreduce", "allgather"), 4)):
        instances = [
            Instance("ab"[names[0] != names[1] and place], place, name, 4096,
                     tuple(range(place, 8, 2)), relays_of((place,), "all", 8), chunks=1)
            for place, name in enumerate(names)
        ]  # fmt: skip
        union = union_of(instances, 8)
        assert union is not None
        assert len(logical_group(whole(ring, ring.rotations), union.collective)) == order
    assert INDEX == "groups.json"
