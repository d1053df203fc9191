"""Chakra's execution traces become operations that wait for one another, and nothing else does."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.imports import chakra
from taccl.imports.chakra import (
    COLLECTIVE,
    COMP,
    MEM_LOAD,
    METADATA,
    RECV,
    SEND,
    framed,
    messages,
    read_chakra,
)
from taccl.training.operations import Operation, Work, meetings_of
from taccl.training.simulation import Cost, simulate
from tests.sweep import for_each

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = range(8)
BARRIER = 9
Row = tuple[int, int, Mapping[str, object]]
"""A node: its id, its type, and fields of it; what is no field is an attribute."""


def node(number: int, kind: int, /, *after: int, **more: object) -> bytes:
    made = messages().node(id=number, type=kind, data_deps=after)
    for name, value in more.items():
        if name in ("name", "duration_micros"):
            setattr(made, name, value)
        elif name == "ctrl_deps":
            made.ctrl_deps.extend(value)
        elif name == "values":
            made.inputs.values = value
        else:
            field = {bool: "bool_val", int: "int64_val", str: "string_val", float: "double_val"}
            made.attr.add(name=name, **{field[type(value)]: value})
    return framed(made.SerializeToString())


HEAD = framed(b"")


def computed(number: int, *after: int, micros: int = 5, **more: object) -> bytes:
    return node(number, COMP, *after, duration_micros=micros, **more)


def called(number: int, *after: int, kind: int = ALL_REDUCE, size: object = 64,
           **more: object) -> bytes:  # fmt: skip
    return node(number, COLLECTIVE, *after, comm_type=kind, comm_size=size, **more)


def told(number: int, groups: Mapping[str, Sequence[int]]) -> bytes:
    text = json.dumps([{"pg_name": name, "ranks": ranks} for name, ranks in groups.items()])
    return node(number, METADATA, name="## process_group:init ##", values=str([text]))


def read(folder: Path, *files: Iterable[bytes], ranks: int | None = None) -> Work:
    paths = []
    for rank, nodes in enumerate(files):
        paths.append(folder / f"trace.{rank}.et")
        paths[-1].write_bytes(HEAD + b"".join(nodes))
    return read_chakra([str(path) for path in paths], ranks or len(files))


def alone(work: Work) -> tuple[Operation, ...]:
    (operations,) = work.operations
    return operations


def test_computations_take_their_time_one_after_the_other(tmp_path: Path) -> None:
    work = read(tmp_path, [computed(3, name="fwd"), computed(7, 3, micros=9)], ranks=4)
    assert (work.name, work.ranks, work.class_of, work.steps) == ("trace.0.et", 4, (0,) * 4, 1)
    assert alone(work) == (
        Operation("fwd", "compute", time=5_000_000),
        Operation("node 7", "compute", (0,), 9_000_000),
    )


def test_hosts_compute_beside_devices(tmp_path: Path) -> None:
    work = read(tmp_path, [computed(0, is_cpu_op=True), computed(1, is_cpu_op=False)])
    assert [one.stream for one in alone(work)] == ["host", "compute"]


def test_nodes_stand_behind_those_that_they_wait_for_else_by_number(tmp_path: Path) -> None:
    nodes = [computed(9), computed(4, 8), node(8, COMP, ctrl_deps=[9]), computed(5), computed(6)]
    work = read(tmp_path, nodes)
    assert [one.name for one in alone(work)] == [f"node {n}" for n in (5, 6, 9, 8, 4)]
    assert [one.after for one in alone(work)] == [(), (), (), (2,), (3,)]


def test_nodes_without_time_pass_on_what_they_wait_for(tmp_path: Path) -> None:
    work = read(tmp_path, [
        computed(0), computed(1), node(2, METADATA, 0, 1), node(3, MEM_LOAD, 2), computed(4, 3),
        called(5, 4, size=0), computed(6, 5, 0),
    ])  # fmt: skip
    assert [one.after for one in alone(work)] == [(), (), (0, 1), (0, 2)]


SIZES = {  # of 64 bytes of input, over 4 ranks
    ALL_REDUCE: ("allreduce", 64), REDUCE: ("reduce", 64), ALL_GATHER: ("allgather", 256),
    GATHER: ("gather", 256), SCATTER: ("scatter", 64), BROADCAST: ("broadcast", 64),
    ALL_TO_ALL: ("alltoall", 64), REDUCE_SCATTER: ("reducescatter", 64), 8: ("reducescatter", 64),
    BARRIER: ("allreduce", 4),
}  # fmt: skip


def test_sizes_are_those_of_the_largest_buffer(tmp_path: Path) -> None:
    for kind, (collective, size) in SIZES.items():
        (one,) = alone(read(tmp_path, [called(0, kind=kind)], ranks=4))
        assert one.call is not None
        assert (one.call.collective, one.call.size, one.call.group) == (collective, size, "all")


def test_any_type_of_whole_number_is_read(tmp_path: Path) -> None:
    for field in (
        "int32_val",
        "int64_val",
        "uint32_val",
        "uint64_val",
        "sint64_val",
        "fixed64_val",
    ):
        made = messages().node(id=1, type=COLLECTIVE)
        for name, value in (("comm_type", ALL_GATHER), ("comm_size", 100)):
            made.attr.add(name=name, **{field: value})
        made.attr.add(name="involved_dim").bool_list.values.extend([True, False])
        (one,) = alone(read(tmp_path, [framed(made.SerializeToString())], ranks=2))
        assert one.call is not None
        assert one.call.size == 200


def test_each_process_group_has_a_stream(tmp_path: Path) -> None:
    work = read(tmp_path, [
        told(0, {"1": [0, 1], "2": [0, 2], "3": []}),
        *(called(n + 1, pg_name=name) for n, name in enumerate(["1", "2", "3", "7", ""])),
    ], ranks=4)  # fmt: skip
    assert work.groups == {
        "all": ((0, 1, 2, 3),), "pg 1": ((0, 1), (2, 3)), "pg 2": ((0, 2), (1, 3)),
        "pg 3": ((0, 1, 2, 3),), "pg 7": ((0, 1, 2, 3),),
    }  # fmt: skip
    streams = [one.stream for one in alone(work)]
    assert streams == ["pg 1", "pg 2", "pg 3", "pg 7", "all"]
    assert len({one.meeting for one in alone(work)}) == 5


def test_a_group_of_one_rank_sends_nothing(tmp_path: Path) -> None:
    nodes = [told(0, {"1": [2]}), computed(1), called(2, 1, pg_name="1"), computed(3, 2)]
    work = read(tmp_path, nodes, ranks=4)
    assert [(one.name, one.after) for one in alone(work)] == [("node 1", ()), ("node 3", (0,))]


def test_the_kth_calls_of_a_group_meet(tmp_path: Path) -> None:
    first = [computed(0), called(1, 0), called(2, 1, kind=ALL_GATHER)]
    second = [called(4, size=64), called(6, 4, kind=ALL_GATHER), computed(9, 6)]
    work = read(tmp_path, first, second)
    assert work.class_of == (0, 1)
    met = [[one.meeting for one in own if one.call] for own in work.operations]
    assert met == [[0, 1], [0, 1]]
    costs = [Cost.of(1_000_000, [1]), Cost.of(2_000_000, [1])]
    line = simulate(work, costs, {(0, 0): 0, (1, 0): 1})
    assert line.end == ((5_000_000, 6_000_000, 8_000_000), (6_000_000, 8_000_000, 13_000_000))


def test_ranks_with_the_same_file_are_one_class(tmp_path: Path) -> None:
    groups = told(0, {"a": [0, 1], "b": [2, 3]})
    halves = [[groups, called(1, pg_name=name)] for name in "ab"]
    work = read(tmp_path, halves[0], halves[0], halves[1], halves[1])
    assert work.class_of == (0, 0, 1, 1)
    assert work.groups == {"pg a": ((0, 1),), "pg b": ((2, 3),)}
    meetings = meetings_of(work)
    assert {key: one.instances for key, one in meetings.items()} == {
        (0, 0): ((0, 1),), (1, 1): ((2, 3),)
    }  # fmt: skip


def test_groups_that_nobody_tells_of_are_those_who_call_them(tmp_path: Path) -> None:
    work = read(tmp_path, [called(0, pg_name="x")], [computed(0)], [called(0, pg_name="x")])
    assert work.groups == {"pg x": ((0, 2),)}
    assert work.class_of == (0, 1, 0)


def test_the_largest_part_of_an_uneven_alltoall_counts(tmp_path: Path) -> None:
    files = [[called(0, kind=ALL_TO_ALL, size=size)] for size in (8, 0, 24)]
    sizes = [one.call and one.call.size for own in read(tmp_path, *files).operations for one in own]
    assert sizes == [24, 24, 24]


def test_priorities_order_a_stream_the_greatest_first(tmp_path: Path) -> None:
    nodes = [called(0, comm_priority=1), called(1, comm_priority=5), called(2, pg_name="x")]
    work = read(tmp_path, nodes, ranks=2)
    assert work.by_priority == {"all", "compute", "host"}
    assert [one.priority for one in alone(work)] == [-1, -5, 0]


def test_messages_are_broadcasts_between_two(tmp_path: Path) -> None:
    first = [node(0, SEND, comm_dst=1, comm_size=10, comm_tag=4),
             node(1, SEND, comm_src=0, comm_dst=1, comm_size=20),
             node(2, RECV, 1, comm_src=1, comm_size=30)]  # fmt: skip
    second = [node(0, RECV, comm_src=0, comm_size=20), node(1, SEND, comm_dst=0, comm_size=30),
              node(2, RECV, comm_src=0, comm_dst=1, comm_size=10, comm_tag=4)]  # fmt: skip
    work = read(tmp_path, first, second)
    assert work.groups == {"0 to 1": ((0, 1),), "1 to 0": ((1, 0),)}
    met = [{one.stream: (one.meeting, one.call) for one in own} for own in work.operations]
    assert met[0] == met[1]
    assert set(met[0]) == {"0 to 1 tag 4", "0 to 1", "1 to 0"}
    assert {call.collective for _, call in met[0].values() if call} == {"broadcast"}
    assert [call.size for _, call in met[0].values() if call] == [10, 20, 30]


def test_files_of_ranks_are_told_by_their_names(tmp_path: Path) -> None:
    work = read(tmp_path, *([computed(0, micros=n)] for n in range(3)))
    turned = sorted(map(str, tmp_path.glob("*.et")), reverse=True)
    assert read_chakra(turned, 3) == work
    for paths, ranks, match in (
        (turned, 2, r"trace.2.et: is of rank 2, and there are 2"),
        (turned[:2], 3, r"there is no trace of rank 0, and there are 3"),
        ([*turned, turned[0]], 3, r"trace.2.et: is of rank 2, and so is .*trace.2.et"),
        ([*turned, str(tmp_path / "a.et")], 3, r"a.et: is not called after a rank"),
        ([], 3, r"there is no trace of rank 0"),
        ([str(tmp_path / "gone.et")], 3, r"gone.et: there is no such file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match) as error:
            read_chakra(paths, ranks)
        assert error.value.fix


GOOD = HEAD + computed(0) + called(1, 0) + computed(2, 1)
DEEP = b"".join(computed(n, (n + 1) % 5) for n in range(5))
BAD = {
    "empty": (b"", r": has no nodes"),
    "only metadata": (HEAD, r": has no nodes"),
    "no metadata": (GOOD[1:], r": begins with a node, not with GlobalMetadata"),
    "text": (b"taccl: workload/1\nname: x\n" * 9, r": (the message at byte 0|is cut off)"),
    "compressed": (b"\x1f\x8b\x08\0\0\0", r": is compressed"),
    "cut off": (GOOD[:-1], r": is cut off: the message at byte \d+ goes on to byte"),
    "cut in a length": (GOOD + b"\x80", r": is cut off: the message at byte"),
    "a long message": (HEAD + b"\xff\xff\xff\x7f", r"byte 1 should have at most 4194304 bytes"),
    "a long length": (HEAD + b"\xff" * 20, r"byte 1 should have at most"),
    "no node": (HEAD + framed(b"\x0a\xff"), r": the message at byte 1 is no node"),
    "bad metadata": (framed(b"\x0a\xff") + GOOD[1:], r"the message at byte 0 is no GlobalMetadata"),
    "an invalid node": (GOOD + node(8, 0), r"node 8.type: should be from 1 to 7, got 0"),
    "storage": (GOOD + node(8, 8), r"node 8.type: should be from 1 to 7, got 8"),
    "twice": (GOOD + computed(2), r"node 2: is there twice"),
    "nowhere": (GOOD + computed(8, 77), r"node 8: waits for node 77, which there is not"),
    "itself": (GOOD + computed(8, 8), r"node 8: nodes wait for one another: 8 for 8"),
    "a cycle": (HEAD + DEEP, r"nodes wait for one another: 0 for 1 for 2 for 3 for 4 for 0"),
    "no type": (GOOD + node(8, COLLECTIVE, comm_size=1), r"node 8.comm_type: is missing"),
    "no size": (GOOD + node(8, COLLECTIVE, comm_type=0), r"node 8.comm_size: is missing"),
    "another type": (GOOD + called(8, kind=10), r"node 8.comm_type: should be at most 9, got 10"),
    "half a byte": (GOOD + called(8, size=0.5), r"node 8.comm_size: should be a .*, got 0.5"),
    "negative": (GOOD + called(8, size=-1), r"node 8.comm_size: should be a whole .*, got -1"),
    "huge": (GOOD + called(8, size=1 << 51), r"node 8.comm_size: should be a whole number"),
    "a text": (GOOD + called(8, size="64"), r"node 8.comm_size: should be a whole .* got '64'"),
    "a priority": (GOOD + called(8, comm_priority=True), r"node 8.comm_priority: should be a"),
    "a name": (GOOD + called(8, pg_name="a" * 101), r"node 8.pg_name: should be a name of"),
    "a broken name": (GOOD + called(8, pg_name="a\n"), r"node 8.pg_name: should be a name of"),
    "a long time": (GOOD + computed(8, micros=1 << 40), r"node 8.duration_micros: should be at"),
    "no time": (GOOD + computed(8, micros=0, num_ops=7), r"node 8.duration_micros: is 0, and .* 7"),
    "attributes": (GOOD + computed(8, **{f"a{n}": n for n in range(1001)}),
                   r"node 8: has more than 1000 attributes"),
    "deep json": (GOOD + node(8, METADATA, values='["pg_name"' + "[{" * 9999 + "}]"),
                  r"node 8.inputs: .* not JSON"),
    "no json": (GOOD + node(8, METADATA, values="['[{\"pg_name\": ]']"),
                r"node 8.inputs: .* not JSON"),
    "no members": (GOOD + node(8, METADATA, values='[{"pg_name": "1"}]'),
                   r"node 8.inputs: pg_name and ranks should be .*, got '1' and nothing"),
    "a member": (GOOD + told(8, {"1": [4]}), r"node 8.inputs: .* ranks from 0 to 3"),
    "a member twice": (GOOD + told(8, {"1": [1, 1]}), r"node 8.inputs: .* each once"),
    "odd groups": (GOOD + told(8, {"1": [0, 1, 3]}) + called(9, pg_name="1"),
                   r"process group '1' of 3 ranks is not regularly spaced"),
    "half groups": (GOOD + told(8, {"1": [0, 1, 2]}) + called(9, pg_name="1"), r"process group"),
    "a message": (GOOD + node(8, SEND, comm_dst=1, comm_size=4), r"node 8: is a message in a file"),
    "to nobody": (GOOD + node(8, SEND, comm_size=4), r"node 8.comm_dst: is missing"),
}  # fmt: skip


@for_each("content, match", BAD.values(), ids=BAD)
def test_a_bad_trace_is_one_error_with_a_fix(content: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.0.et"
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        read_chakra([str(path)], 4)
    assert error.value.fix
    assert error.value.file == str(path)


APART: Mapping[str, tuple[Sequence[Sequence[bytes]], str]] = {
    "another collective": ([[called(0)], [called(5, kind=BROADCAST)]],
                           r"1.et: node 5: is broadcast of 64 bytes, .* rank 0 .* allreduce of 64"),
    "another size": ([[called(0)], [called(5, size=8)]], r"node 5: is allreduce of 8 bytes"),
    "another number": ([[called(0), called(1)], [called(0)]],
                       r"1.et: rank 1 calls 'all' 1 times, and rank 0 2 times"),
    "not a member": ([[told(9, {"x": [0]}), called(0, pg_name="x")], [called(0, pg_name="x")]],
                     r"rank 1 calls process group 'x', and is not in it"),
    "two ways": ([[told(9, {"x": [0, 1]}), called(0, pg_name="x")],
                  [told(9, {"x": [1]}), called(0, pg_name="x")]], r"'x' is told in different ways"),
    "no receiver": ([[node(0, SEND, comm_dst=1, comm_size=4)], [computed(0)]],
                    r"rank 1 calls '0 to 1' 0 times, and rank 0 1 times"),
    "to itself": ([[node(0, SEND, comm_dst=0, comm_size=4)], [computed(0)]],
                  r"node 0: is a message from rank 0 to rank 0 in the file of rank 0 of 2"),
    "too far": ([[node(0, SEND, comm_dst=2, comm_size=4)], [computed(0)]],
                r"node 0: is a message from rank 0 to rank 2 in the file of"),
    "of others": ([[node(0, SEND, comm_src=1, comm_dst=2, comm_size=4)], *[[computed(0)]] * 2],
                  r"node 0: is a message from rank 1 to rank 2 in the file of rank 0 of 3"),
}  # fmt: skip


@for_each("files, match", APART.values(), ids=APART)
def test_traces_that_do_not_fit_are_one_error(
    files: Sequence[Sequence[bytes]], match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=match) as error:
        read(tmp_path, *files)
    assert error.value.fix
    assert error.value.file


def test_what_is_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [computed(n, *range(n)) for n in range(12)]
    bent = [*nodes[:-1], computed(11, micros=6)]
    for name, value, match in (
        ("MAX_NODES", 11, r"has more nodes than can be read: 11"),
        ("MAX_NODES", 23, r"1.et: has more nodes than can be read: 23"),
        ("MAX_DEPENDENCIES", 60, r"has more than 60 dependencies"),
        ("MAX_GROUPS", 0, r"1 groups of ranks are more than 0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(chakra, name, value)
            with pytest.raises(InputError, match=match):
                read(tmp_path, [*nodes, called(12)][: 12 + (name == "MAX_GROUPS")], bent)
    wide = [computed(0), computed(1), *(node(n, METADATA, n - 1, n - 2) for n in range(2, 40))]
    monkeypatch.setattr(chakra, "MAX_DEPENDENCIES", 77)
    with pytest.raises(InputError, match=r"has more than 77 dependencies"):
        read(tmp_path, [*wide, *(computed(n, 39) for n in range(40, 80))])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_traces_are_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(GOOD + told(8, {"1": [0, 1]}) + called(9, pg_name="1"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            del content[at : at + data.draw(st.integers(1, 5))]
        content = content or bytearray(1)
    path = tmp_path / "damaged.et"
    path.write_bytes(content)
    with suppress(InputError):
        read_chakra([str(path)], 4)


def lines_run(action: Callable[[], object]) -> int:
    """Return how many lines of Python an action runs."""
    count = 0

    def step(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_ten_times_the_nodes_are_ten_times_the_work(tmp_path: Path) -> None:
    messages()

    def work(count: int) -> int:
        nodes = [
            called(n, n - 1, n - 2) if n % 5 == 4 else computed(n, *range(max(0, n - 3), n))
            for n in range(count)
        ]
        files = tmp_path / str(count)
        files.mkdir()
        return lines_run(lambda: read(files, nodes, ranks=64))

    few, many = work(1000), work(10_000)
    assert 9 * few < many < 11 * few


def test_protobuf_is_imported_when_a_trace_is_read() -> None:
    code = "import sys, taccl.imports.chakra; sys.exit('google.protobuf' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
