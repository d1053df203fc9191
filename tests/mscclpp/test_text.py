"""What is read of a plan, what is refused and where, and that no text does any harm."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError, ProgramError, TacclError
from taccl.msccl.program import Buffer
from taccl.mscclpp import text
from taccl.mscclpp.plan import (
    Channel,
    Group,
    Operand,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)
from taccl.mscclpp.structure import accepts, structure_findings
from taccl.mscclpp.text import read_plan, write_plan
from tests.sweep import for_each

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "mscclpp"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.json"))
UNREAD = "unit_tests__switch_reduce_test"
MISSING = object()

FIRST_OPS: list[dict[str, Any]] = [
    {"name": "rlxsignal", "channel_ids": [0, 2], "channel_type": "memory"},
    {"name": "wait", "channel_ids": [1], "channel_type": "port"},
    {"name": "nop"},
    {"name": "put", "src_buff": [{"type": "i", "index": 1, "size": 2, "rank": 0}],
     "dst_buff": [{"buffer_id": 1, "index": 0, "size": 2}], "channel_type": "memory",
     "tbg_info": {"tb_id": 1, "tbg_size": 3}},
    {"name": "rre", "src_buff": [{"type": "o", "index": 3, "size": 1},
                                 {"buffer_id": 0, "index": 2, "size": 1}],
     "dst_buff": [{"type": "s", "index": 0, "size": 1}], "channel_type": "memory",
     "reduce_op": "sum"},
    {"name": "barrier", "barrier_id": 5, "num_threadblocks": 2},
    {"name": "sem_acquire", "semaphore_ids": [1, 0]},
    {"name": "pipeline", "iter_context": {"unit_size": 4096, "num_chunks": 1}, "ops": [
        {"name": "glres", "src_buff": [{"switch_channel_id": 1, "index": 0, "size": 1}],
         "dst_buff": [{"switch_channel_id": 0, "index": 1, "size": 1}], "channel_type": "switch"},
        {"name": "nop"},
    ]},
]  # fmt: skip


def document() -> dict[str, Any]:
    """Return a plan of two ranks with everything in it."""
    first = {
        "id": 0, "input_chunks": 4, "output_chunks": 5, "scratch_chunks": 6,
        "threadblocks": [
            {"id": 0, "ops": copy.deepcopy(FIRST_OPS),
             "channels": [{"channel_type": "memory", "channel_ids": [2, 0]},
                          {"channel_type": "port", "channel_ids": [0, 0]},
                          {"channel_type": "memory", "channel_ids": [1]},
                          {"channel_type": "switch", "channel_ids": [1, 2]}],
             "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [1]},
                                    {"access_channel_type": "memory", "remote_buffer_ids": [0]}]},
            {"id": 1, "ops": [], "channels": []},
        ],
        "channels": [
            {"channel_type": "memory", "connected_to": [1, 1]},
            {"channel_type": "port", "connected_to": [1]},
            {"channel_type": "switch", "buffer_type": "i",
             "rank_groups": [{"size": 2, "ranks": [0, 1]}, {"size": 2, "ranks": [1, 0]}]},
            {"channel_type": "memory", "connected_to": [1]},
            {"channel_type": "switch", "buffer_type": "s",
             "rank_groups": [{"size": 1, "ranks": [0]}]},
        ],
        "remote_buffers": [{"rank": 1, "type": "i", "access_channel_types": ["memory"]},
                           {"rank": 1, "type": "s", "access_channel_types": ["port", "memory"]}],
        "semaphores": [{"init_value": 0}, {"init_value": 3}],
    }  # fmt: skip
    second: dict[str, Any] = {
        "id": 1, "input_chunks": 1, "output_chunks": 1, "scratch_chunks": 0, "threadblocks": [],
        "channels": [], "remote_buffers": [],
    }  # fmt: skip
    return {
        "name": "all", "collective": "custom", "protocol": "LL", "inplace": True,
        "gpus": [first, second],
    }  # fmt: skip


def changed(path: Iterable[str | int], value: object) -> dict[str, Any]:
    """Return the plan with one field changed, or missing."""
    made: Any = document()
    *steps, last = path
    place = made
    for step in steps:
        place = place[step]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return dict(made)


def ranks(many: int) -> list[dict[str, Any]]:
    return [{**document()["gpus"][1], "id": rank} for rank in range(many)]


def test_everything_that_a_plan_says_is_read() -> None:
    plan = read_plan(json.dumps(document()))
    assert (plan.name, plan.collective, plan.protocol, plan.in_place) == (
        "all", "custom", "LL", True,
    )  # fmt: skip
    first, second = plan.ranks
    assert second == PlanRank(1, 1, 0, {}, (), (), (), ())
    assert (first.input_chunks, first.output_chunks, first.scratch_chunks) == (4, 5, 6)
    assert first.channels == {
        "memory": (Channel("memory", 1),) * 3, "port": (Channel("port", 1),),
    }  # fmt: skip
    assert first.groups == (
        Group(Buffer.INPUT, (0, 1)), Group(Buffer.INPUT, (1, 0)), Group(Buffer.SCRATCH, (0,)),
    )  # fmt: skip
    assert first.remotes == (
        RemoteBuffer(1, Buffer.INPUT, ("memory",)),
        RemoteBuffer(1, Buffer.SCRATCH, ("port", "memory")),
    )
    assert first.semaphores == (0, 3)
    block, empty = first.blocks
    assert empty == PlanBlock({}, {}, ())
    assert block.channels == {"memory": (2, 0, 1), "port": (0, 0), "switch": (1, 2)}
    assert block.remotes == {"memory": (1, 0)}
    assert block.ops == (
        PlanOp("rlxsignal", channel_type="memory", channels=(0, 2)),
        PlanOp("wait", channel_type="port", channels=(1,)),
        PlanOp("nop"),
        PlanOp("put", (Operand(Side.LOCAL, Buffer.INPUT, -1, 1, 2),),
               (Operand(Side.REMOTE, None, 1, 0, 2),), "memory", tbg=Tbg(1, 3)),
        PlanOp("rre", (Operand(Side.LOCAL, Buffer.OUTPUT, -1, 3, 1),
                       Operand(Side.REMOTE, None, 0, 2, 1)),
               (Operand(Side.LOCAL, Buffer.SCRATCH, -1, 0, 1),), "memory", reduce_op="sum"),
        PlanOp("barrier", barrier=5, blocks=2),
        PlanOp("sem_acquire", semaphores=(1, 0)),
        PlanOp("pipeline", unit=4096, chunks=1, inner=(
            PlanOp("glres", (Operand(Side.SWITCH, None, 1, 0, 1),),
                   (Operand(Side.SWITCH, None, 0, 1, 1),), "switch"),
            PlanOp("nop"),
        )),
    )  # fmt: skip


def test_what_may_be_missing_has_the_defaults_of_the_reader() -> None:
    plan = read_plan(json.dumps(document()))
    assert (plan.reuse_resources, plan.double_scratch, plan.alignment) == (False, False, 16)
    assert (plan.min_bytes, plan.max_bytes, plan.threads) == (0, 2**64 - 1, 1024)
    said = {
        "reuse_resources": True, "use_double_scratch_buffer": True, "buffer_alignment": 32,
        "min_message_size": 1, "max_message_size": 2**40, "num_threads_per_block": 512,
    }  # fmt: skip
    plan = read_plan(json.dumps({**document(), **said}))
    assert (plan.reuse_resources, plan.double_scratch, plan.alignment) == (True, True, 32)
    assert (plan.min_bytes, plan.max_bytes, plan.threads) == (1, 2**40, 512)


def test_channels_of_no_type_and_fields_that_are_not_known_are_passed_over() -> None:
    made = document()
    made["gpus"][1]["channels"] = [{"channel_type": "none", "connected_to": [0]}]
    made["gpus"][1]["colour"] = "blue"
    made["gpus"][0]["threadblocks"][1] |= {
        "channels": [{"channel_type": "none", "channel_ids": [77]}],
        "remote_buffer_refs": [{"access_channel_type": "switch", "remote_buffer_ids": [77]}],
        "ops": [{"name": "nop", "channel_type": "none", "note": [1, 2]}],
    }
    made["gpus"][0]["remote_buffers"][0]["access_channel_types"] = ["none", "memory"]
    plan = read_plan(json.dumps(made))
    assert plan.ranks[1].channels == {}
    assert plan.ranks[0].blocks[1] == PlanBlock({}, {}, (PlanOp("nop"),))
    assert plan.ranks[0].remotes[0].types == ("memory",)


GPU = ("gpus", 0)
BLOCK = (*GPU, "threadblocks", 0)
OPS = (*BLOCK, "ops")
PUT = (*OPS, 3)
WHOLE = "should be a whole number from 0 to 2147483647, got"
REFUSALS: list[tuple[tuple[str | int, ...], object, str]] = [
    (("gpus",), MISSING, r"gpus: is missing\n  fix: add a list"),
    (("gpus",), [], "gpus: should have from 1 to 1024 ranks, got 0"),
    (("gpus",), ranks(1025), "gpus: should have from 1 to 1024 ranks, got 1025"),
    (("gpus",), {}, "gpus: should be a list, got a mapping of 0 fields"),
    (("gpus", 1), 5, r"gpus\[1\]: should be an object, got 5"),
    (("name",), MISSING, "name: is missing"),
    (("name",), "two\nlines", "name: should be a line of at most 1000 characters, got"),
    (("name",), "\ud800", "name: should be a line"),
    (("collective",), 7, "collective: should be a line of at most 1000 characters, got 7"),
    (("protocol",), None, "protocol: should be a line of at most 1000 characters, got nothing"),
    (("inplace",), 1, "inplace: should be true or false, got 1"),
    (("reuse_resources",), "no", "reuse_resources: should be true or false, got 'no'"),
    (("buffer_alignment",), -16, f"buffer_alignment: {WHOLE} -16"),
    (("num_threads_per_block",), 2**31, f"num_threads_per_block: {WHOLE} 2147483648"),
    (("max_message_size",), 2**64, "max_message_size: should be a whole number from 0 to 184"),
    (("min_message_size",), 1.0, "min_message_size: should be a whole number .*, got 1.0"),
    ((*GPU, "id"), 1, r"gpus\[0\].id: should be 0, the rank's position, got 1"),
    ((*GPU, "id"), False, rf"gpus\[0\].id: {WHOLE} False"),
    ((*GPU, "input_chunks"), "4", rf"gpus\[0\].input_chunks: {WHOLE} '4'"),
    ((*GPU, "scratch_chunks"), MISSING, r"gpus\[0\].scratch_chunks: is missing"),
    ((*GPU, "channels"), MISSING, r"gpus\[0\].channels: is missing"),
    ((*GPU, "remote_buffers"), MISSING, r"gpus\[0\].remote_buffers: is missing"),
    ((*GPU, "threadblocks"), MISSING, r"gpus\[0\].threadblocks: is missing"),
    ((*GPU, "semaphores", 0), {}, r"gpus\[0\].semaphores\[0\].init_value: is missing"),
    ((*GPU, "channels", 0, "channel_type"), "sm",
     r"channels\[0\].channel_type: should be one of memory, port, switch, none, got 'sm'"),
    ((*GPU, "channels", 0, "channel_type"), ["memory"], "channel_type: should be one of"),
    ((*GPU, "channels", 0, "connected_to"), [1, 2],
     r"connected_to\[1\]: should be the number of one of the 2 ranks, got 2"),
    ((*GPU, "channels", 0, "connected_to"), [-1], "should be the number of one of the 2 ranks"),
    ((*GPU, "channels", 2, "buffer_type"), "x", "should be one of i, o, s, got 'x'"),
    ((*GPU, "channels", 2, "rank_groups", 0, "ranks"), [0, True], "one of the 2 ranks, got True"),
    ((*GPU, "channels", 2, "rank_groups", 1, "size"), 3,
     r"rank_groups\[1\].size: should be 2, as many as there are ranks, got 3"),
    ((*GPU, "remote_buffers", 1, "rank"), 2, "should be the number of one of the 2 ranks, got 2"),
    ((*GPU, "remote_buffers", 1, "type"), MISSING, r"remote_buffers\[1\].type: is missing"),
    ((*GPU, "remote_buffers", 1, "access_channel_types"), ["proxy"],
     r"access_channel_types\[0\]: should be one of .*, got 'proxy'"),
    ((*BLOCK, "id"), 1, r"threadblocks\[0\].id: should be 0, the threadblock's position, got 1"),
    ((*BLOCK, "ops"), MISSING, r"threadblocks\[0\].ops: is missing"),
    ((*BLOCK, "channels"), MISSING, r"threadblocks\[0\].channels: is missing"),
    ((*BLOCK, "channels", 0, "channel_ids"), [3],
     r"channel_ids\[0\]: should be the number of one of the 3 memory channels of the rank, got 3"),
    ((*BLOCK, "channels", 3, "channel_ids"), [0, 3],
     r"channel_ids\[1\]: should be the number of one of the 3 switch channels of the rank, got 3"),
    ((*BLOCK, "remote_buffer_refs", 0, "remote_buffer_ids"), [2],
     r"remote_buffer_ids\[0\]: should be the number of one of the 2 remote buffers of the rank"),
    ((*OPS, 2, "name"), "ring", r"ops\[2\].name: should be one of nop, barrier, .*, got 'ring'"),
    ((*OPS, 2, "name"), "signel", r"fix: did you mean signal\? write one of nop"),
    ((*OPS, 2, "name"), "glre", r"name: glre is written by the language and read by no release"),
    ((*OPS, 2, "name"), [], "name: should be one of .*, got a list of 0"),
    ((*OPS, 2, "name"), MISSING, r"ops\[2\].name: is missing"),
    ((*OPS, 2, "name"), "signal", r"ops\[2\].channel_ids: is missing\n  fix: a signal has one"),
    ((*OPS, 0, "channel_type"), MISSING, r"ops\[0\].channel_type: is missing"),
    ((*OPS, 0, "channel_ids"), [3],
     "should be the number of one of the 3 memory channels of the threadblock, got 3"),
    ((*OPS, 0, "channel_type"), "none",
     "names one of the typeless channels of the threadblock, and there are none"),
    ((*OPS, 5, "barrier_id"), -1, rf"ops\[5\].barrier_id: {WHOLE} -1"),
    ((*OPS, 5, "num_threadblocks"), MISSING, r"ops\[5\].num_threadblocks: is missing"),
    ((*OPS, 6, "semaphore_ids"), [2], "should be the number of one of the 2 semaphores of the"),
    ((*OPS, 6, "semaphore_ids"), MISSING, r"ops\[6\].semaphore_ids: is missing"),
    ((*OPS, 4, "reduce_op"), ["sum"], r"ops\[4\].reduce_op: should be a line"),
    ((*OPS, 7, "ops"), [], r"ops\[7\].ops: has no operations\n  fix: remove the pipeline"),
    ((*OPS, 7, "ops"), MISSING, r"ops\[7\].ops: is missing"),
    ((*OPS, 7, "iter_context", "unit_size"), 2**32, "from 0 to 4294967295, got 4294967296"),
    ((*OPS, 7, "iter_context"), MISSING, r"ops\[7\].iter_context: is missing"),
    ((*OPS, 7, "ops", 1), FIRST_OPS[7], r"ops\[7\].ops\[1\].ops: is a pipeline inside a pipeline"),
    ((*OPS, 7, "ops", 0, "src_buff", 0, "switch_channel_id"), 2,
     r"switch_channel_id: should be the number of one of the 2 switch channels of the threadb"),
    ((*PUT, "tbg_info"), 4, r"ops\[3\].tbg_info: should be an object, got 4"),
    ((*PUT, "tbg_info", "tbg_size"), MISSING, r"tbg_info.tbg_size: is missing"),
    ((*PUT, "src_buff"), MISSING, r"ops\[3\].src_buff: is missing\n  fix: a put has one"),
    ((*PUT, "dst_buff"), MISSING, r"ops\[3\].dst_buff: is missing"),
    ((*PUT, "src_buff", 0, "index"), -1, rf"src_buff\[0\].index: {WHOLE} -1"),
    ((*PUT, "src_buff", 0, "size"), MISSING, r"src_buff\[0\].size: is missing"),
    ((*PUT, "src_buff", 0, "type"), "I", r"src_buff\[0\].type: should be one of i, o, s, got 'I'"),
    ((*PUT, "src_buff", 0, "type"), MISSING, r"src_buff\[0\]: should have one of .*, got none"),
    ((*PUT, "src_buff", 0, "buffer_id"), 0, r"should have one of .*, got type and buffer_id"),
    ((*PUT, "dst_buff", 0, "buffer_id"), 2,
     r"should be the number of one of the 2 memory buffers of the threadblock, got 2"),
    ((*PUT, "channel_type"), "port", "names one of the port buffers of the threadblock, and there"),
    ((*PUT, "channel_type"), MISSING,
     r"dst_buff\[0\].buffer_id: is in a buffer of another rank, .* channel type is missing"),
    ((*PUT, "channel_type"), "switch", "another rank, and the operation's channel type is switch"),
]  # fmt: skip
"""What is changed, to what, and what is said of it."""


@for_each("path, value, message", REFUSALS)
def test_what_no_release_takes_is_refused_with_its_place(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    text = json.dumps(changed(path, value))
    with pytest.raises(ProgramError, match=message) as caught:
        read_plan(text, file="all.json")
    assert str(caught.value).startswith("all.json:")
    assert caught.value.fix


OLD = {"id": 0, "inputChunks": 4, "outputChunks": 4, "scratchChunks": 0, "chunkGroups": 1}


@for_each("gpu, old", [
    (OLD, r"gpus\[0\].inputChunks"),
    ({**ranks(1)[0], "channels": [{"type": "sm", "connectedTo": [1]}]},
     r"gpus\[0\].channels\[0\].connectedTo"),
    ({**ranks(1)[0], "threadblocks": [{"id": 0, "channels": [], "ops": [{"name": "put",
      "o_cids": [{"id": 0, "off": 0}]}]}]}, r"gpus\[0\].threadblocks\[0\].ops\[0\].o_cids"),
])  # fmt: skip
def test_a_plan_of_generation_1_is_called_so(gpu: dict[str, Any], old: str) -> None:
    text = json.dumps({"name": "p", "colective": "allreduce", "protocol": "LL", "gpus": [gpu]})
    wanted = rf"{old}: is a plan of generation 1 \(MSCCL\+\+ 0.5 to 0.7\): it has "
    with pytest.raises(ProgramError, match=wanted):
        read_plan(text)


@for_each("text, kind, message", [
    ("", ProgramError, "p.json:1: is not JSON: expecting value"),
    ("{", ProgramError, "p.json:1: is not JSON"),
    ('{"a": 1,\n "b": }', ProgramError, "p.json:2: is not JSON"),
    ("name: p\ngpus: []\n", ProgramError, "is not JSON"),
    ("{name: p}", ProgramError, "is not JSON"),
    ("[1]", ProgramError, "p.json: should be an object, got a list of 1"),
    ("NaN", ProgramError, "should be an object, got nan"),
    ('{"name": "\ud800"}', ProgramError, "has no character at position 10: half of a pair"),
    ('{"name": NaN}', InputError, "NaN is not accepted"),
    ('{"name": 1e999}', InputError, "is too large a number"),
    ('{"name": "a", "name": "b"}', InputError, "field 'name' is given twice"),
    (f'{{"name": {"1" * 5000}}}', InputError, "a number with too many digits"),
    (f'{{"a": {"[" * 100}{"]" * 100}}}', InputError, "is nested deeper than 64 levels"),
    ('{"a":' * 100_000, InputError, "is nested deeper than 64 levels"),
    ("[" * 100_000, InputError, "is nested deeper than 64 levels"),
])  # fmt: skip
def test_what_is_not_one_json_object_within_limits_is_refused(
    text: str, kind: type[TacclError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        read_plan(text, file="p.json")
    assert type(caught.value) is kind


@for_each("name, value, message", [
    ("MAX_BYTES", 1 << 10, "is larger than 0 MiB"),
    ("MAX_NODES", 100, "holds more than 100 values"),
    ("MAX_BLOCKS", 1, "gpus: has more than 1 threadblocks up to rank 0"),
    ("MAX_PLAN_OPS", 9, "gpus: has more than 9 operations up to rank 0"),
])  # fmt: skip
def test_what_is_too_large_is_refused(name: str, value: int, message: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, name, value)
        with pytest.raises(TacclError, match=message):
            read_plan(json.dumps(document()))


def test_errors_name_the_line() -> None:
    text = json.dumps(changed((*PUT, "src_buff", 0, "type"), "x"), indent=1)
    lines = [line.strip() for line in text.splitlines()]
    line = lines.index('"type": "x",') + 1
    with pytest.raises(ProgramError, match=rf"^p.json:{line}: gpus\[0\]"):
        read_plan(text, file="p.json")


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.text(
    st.sampled_from('{}[],:"0123456789-.eE \\utrfalsnionmepws_d\u00e9\ud800'), max_size=6)),
    max_size=4))  # fmt: skip
def test_no_change_of_the_text_does_harm(edits: list[tuple[float, int, str]]) -> None:
    text = json.dumps(document())
    for share, cut, put in edits:
        at = int(share * len(text))
        text = text[:at] + put + text[at + cut :]
    harmless(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats()
    | st.sampled_from(["memory", "port", "switch", "none", "i", "o", "s", "put", "get", "LL", "",
                       "pipeline", "allgather", "glres", "rppkt", "recspkt", "max"]),
    lambda one: st.lists(one, max_size=3), max_leaves=4,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), VALUES), min_size=1, max_size=4))
def test_no_value_in_any_field_does_harm(edits: list[tuple[float, object]]) -> None:
    made: Any = document()
    for share, value in edits:
        places: list[tuple[Any, str | int]] = []
        layer = [made]
        while layer:
            below = []
            for part in layer:
                keys = list(part) if isinstance(part, dict) else range(len(part))
                places += [(part, key) for key in keys]
                below += [part[key] for key in keys if isinstance(part[key], (dict, list))]
            layer = below
        part, key = places[min(int(share * len(places)), len(places) - 1)]
        part[key] = value
    harmless(json.dumps(made))


def harmless(text: str) -> None:
    """Check that a text is read, judged and written, or refused as texts are."""
    try:
        plan = read_plan(text)
    except (ProgramError, InputError):
        return
    assert read_plan(write_plan(plan)) == plan
    for finding in structure_findings(plan):
        assert finding.fix
        assert str(finding)
    assert isinstance(accepts(plan, 1 << 20), str)


@pytest.mark.skipif(not NAMES, reason="the plans of MSCCL++ are not on this machine")
def test_a_plan_of_mscclpp_is_refused_only_for_an_operation_that_no_release_reads() -> None:
    refused = []
    for name in NAMES:
        try:
            read_plan((SAMPLES / f"{name}.json").read_text())
        except ProgramError as error:
            refused.append((name, error.field))
    assert refused == [(UNREAD, "gpus[0].threadblocks[0].ops[0].name")]
