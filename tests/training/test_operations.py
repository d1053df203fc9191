"""Operations one by one: what is written is read again, and what can't be is one clear error."""

from dataclasses import replace

import pytest

from taccl.errors import InputError
from taccl.files.read import parse_document
from taccl.training import operations
from taccl.training.operations import Call, Operation, Work, expanded, graph_text, read_work
from taccl.training.simulation import Cost, played, simulate
from tests.training.workloads import MS, by_size, priced, uniform, workload

COSTS = [Cost.of(3 * MS, [1])]
HEAD = "taccl: workload/1\nname: small\nranks: 4\ngroups: {tp: {each: [0-1, 2-3]}}\nops:\n"


def read(text: str) -> Work:
    found = read_work(parse_document(text, "ops.yaml"))
    assert isinstance(found, Work)
    return found


UNLIKE = """ranks: 4
speed: {3: 0.5}
groups: {tp: {each: [0-1, 2-3]}, pair: {each: [[3, 0]]}}
layers:
- {name: a, bytes: 3MB, forward: 1.000001ms, backward: 1ms, comm: [
   {when: forward, collective: allreduce, group: tp, bytes: 1MB, split: 3, via: ring}]}
- {name: b, bytes: 1, forward: 0us, backward: 1us}
sync: [{group: all, bucket: 1MB, every: 2, order: priority, partition: 1MB, wait: layer}]
input: {time: 2us}
"""


def test_what_is_expanded_is_read_again_and_takes_the_same_time() -> None:
    for found in (
        uniform(3, "bucket: 1MB"),
        uniform(4, "every: 3, hide: 1, bucket: all", more="speed: {2: 0.5}"),
        workload(UNLIKE),
    ):
        work = expanded(found, 8)
        again = read(graph_text(work))
        assert graph_text(again) == graph_text(work)
        assert (again.steps, again.period, again.by_priority) == (8, work.period, work.by_priority)
        steps = [played(one, priced(one, by_size(2000, (700, 1000)))) for one in (work, again)]
        for name in ("time", "compute", "exposed", "bound", "sent", "steady"):
            assert getattr(steps[0], name) == getattr(steps[1], name), name


def test_names_that_a_file_can_not_have_are_written_otherwise_and_stay_apart() -> None:
    groups = {"pg <a>": ((0, 1),), "pg {a}": ((1, 0),)}
    calls = [Call("broadcast", name, 8) for name in groups]
    ops = tuple(Operation(f"x\n{n}", one.group, (), 0, one, n) for n, one in enumerate(calls))
    work = Work('a "b"', 2, groups, (0, 0), (ops,))
    again = read(graph_text(work))
    assert list(again.groups.values()) == [((0, 1),), ((0, 1),), ((1, 0),)]
    assert [one.call and one.call.size for one in again.operations[0]] == [8, 8]
    assert len({one.call and one.call.group for one in again.operations[0]}) == 2


def test_the_kth_calls_of_a_stream_meet() -> None:
    work = read(
        HEAD
        + """
- {id: fwd, on: 0-1, compute: 2ms}
- {id: 1, on: 2-3, compute: 1ms, name: other forward}
- {id: sum, on: [0-1], collective: allreduce, group: all, bytes: 1MB, after: [fwd]}
- {id: sum2, on: 2-3, collective: allreduce, group: all, bytes: 1MB, after: [1]}
- {id: part, collective: allgather, group: tp, bytes: 1MB, stream: own}
"""
    )
    assert work.class_of == (0, 0, 1, 1)
    assert [[one.name for one in own] for own in work.operations] == [
        ["fwd", "sum", "part"], ["other forward", "sum2", "part"]
    ]  # fmt: skip
    assert [own[1].meeting for own in work.operations] == [0, 0]
    assert [one.stream for one in work.operations[0]] == ["compute", "all", "own"]
    step = played(work, priced(work, by_size(1000, (0,))))
    assert step.timeline.end == ((2 * MS, 3 * MS, MS), (MS, 3 * MS, MS))
    assert step.sent == {"all": 1_000_000, "tp": 1_000_000}


def test_who_listens_waits_and_is_not_waited_for() -> None:
    text = """
- {id: 0, on: 0, collective: broadcast, group: pair, bytes: 1KB}
- {id: 1, on: 0, compute: 1ms, after: [0]}
- {id: 2, on: 1, compute: DONE}
- {id: 3, on: 1, collective: broadcast, group: pair, bytes: 1KB, after: [2], listens: true}
- {id: 4, on: 1, compute: 1ms, after: [3]}
"""
    head = "taccl: workload/1\nname: p\nranks: 2\ngroups: {pair: {each: [0-1]}}\nops:"
    for done, ends in (("9ms", ((3, 4), (9, 9, 10))), ("1ms", ((3, 4), (1, 3, 4)))):
        work = read(head + text.replace("DONE", done))
        line = simulate(work, COSTS, {(0, 0): 0})
        assert line.end == tuple(tuple(end * MS for end in own) for own in ends)
        assert read(graph_text(work)) == work
        # What can never be is told, and by whom.
        first, second = work.operations[0]
        late = first._replace(after=(1,)), second
        with pytest.raises(InputError, match=r"one another: 0 of rank 0 for 1 of rank 0 for 0"):
            simulate(replace(work, operations=(late, work.operations[1])), COSTS, {(0, 0): 0})


def test_what_operations_may_not_say_is_told_with_its_place() -> None:
    a, call = "- {id: a, compute: 1us}\n", "collective: allreduce, group: tp, bytes: 1KB"
    for text, told in (
        (a + a, r"ops.yaml:7: ops\[1\].id: is there twice: 'a'"),
        ("- {id: a}\n", r"ops\[0\]: has no group, and no time to compute"),
        ("- {id: a, group: tp, bytes: 1KB}\n", r"ops\[0\]: has no collective, and no time"),
        (f"- {{id: a, compute: 1us, {call}}}\n", r"ops\[0\].group: does not go with compute"),
        ("- {id: a, compute: 1us, listens: true}\n", r"ops\[0\].listens: is for collectives"),
        ("- {id: a, compute: 1us, on: 4}\n", r"ops\[0\].on: names rank 4, and there are 4"),
        ("- {id: a, compute: 1us, on: x}\n", r"ops\[0\].on: should be numbers of GPUs"),
        ("- {id: a, compute: 1us, after: [b]}\n", r"ops\[0\].after\[0\]: there is no 'b'"),
        (a.replace("1us", "1us, on: 0") + "- {id: b, compute: 1us, after: [a]}\n",
         r"ops\[1\].after\[0\]: 'a' is not on rank 1, which runs 'b'"),
        (f"- {{id: a, {call.replace('tp', 'dp')}}}\n", r"ops\[0\].group: there is no group dp"),
        (f"- {{id: a, on: 0, {call}}}\n", r"ops: rank 1 of group tp does not call what rank 0"),
        (f"- {{id: a, on: 0, {call}}}\n- {{id: b, on: 1, {call.replace('1KB', '2KB')}}}\n",
         r"ops: rank 1 of group tp does not call what rank 0"),
        (f"- {{id: a, listens: true, {call}}}\n", r"ops: all ranks of group tp only listen"),
        (f"{a}layers: []\n", r"layers: should have at least 1"),
        (f"{a}sync: [{{group: all}}]\n", r"sync: does not go with ops"),
        ("- {id: a, compute: 1us, step: -1}\n", r"ops\[0\].step: should be"),
        ("- {id: [], compute: 1us}\n", r"ops\[0\].id: should be a number or a name"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told) as error:
            read(HEAD + text)
        assert error.value.fix
    with pytest.raises(InputError, match=r"period: does not go with layers"):
        workload("ranks: 1\nperiod: 2\nlayers: [{name: a, forward: 1us, backward: 1us}]")


def test_operations_on_many_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"- {{id: {n}, compute: 1us, on: [{n}-3]}}\n" for n in range(4))
    monkeypatch.setattr(operations, "MAX_NAMED", 10)
    assert read(HEAD + rows).class_of == (0, 1, 2, 3)
    monkeypatch.setattr(operations, "MAX_NAMED", 9)
    with pytest.raises(InputError, match=r"ops\[3\].on: operations name more than 9 ranks"):
        read(HEAD + rows)
    monkeypatch.setattr(operations, "MAX_OPERATIONS", 9)
    monkeypatch.setattr(operations, "MAX_NAMED", 10)
    with pytest.raises(InputError, match="ops: ranks that differ have more than 9 operations"):
        read(HEAD + rows)
