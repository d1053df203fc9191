"""Plans as text: read back as they were, and in the words of MSCCL++'s own writer."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.msccl.program import Buffer
from taccl.mscclpp.plan import (
    OPERATIONS,
    Channel,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)
from taccl.mscclpp.text import read_plan, write_plan
from tests.sweep import for_each

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "mscclpp"
READ = sorted(
    path.stem for path in SAMPLES.glob("*.json") if "switch_reduce_test" not in path.stem
)  # fmt: skip


def without_ranks_of_operands(part: object) -> object:
    """Return a document without what the reader passes over: whose the rank's own buffers are."""
    if isinstance(part, list):
        return [without_ranks_of_operands(one) for one in part]
    if not isinstance(part, dict):
        return part
    local = {"type", "index", "size"} <= part.keys()
    return {
        key: without_ranks_of_operands(one)
        for key, one in part.items()
        if not (local and key == "rank")
    }


@pytest.mark.skipif(not READ, reason="the plans of MSCCL++ are not on this machine")
@for_each("name", READ or [""])
def test_plans_of_mscclpp_are_written_as_they_were(name: str) -> None:
    text = (SAMPLES / f"{name}.json").read_text()
    plan = read_plan(text)
    written = write_plan(plan)
    assert read_plan(written) == plan
    own = json.dumps(without_ranks_of_operands(json.loads(text)), separators=(",", ":"))
    assert written == f"{own}\n"


def test_channels_and_buffers_keep_their_numbers_when_they_are_grouped() -> None:
    ranks = (
        PlanRank(
            1, 1, 1, {"port": (Channel("port", 1),), "memory": (Channel("memory", 1),) * 2},
            (Group(Buffer.OUTPUT, (0, 1)), Group(Buffer.INPUT, (1, 0))),
            (RemoteBuffer(1, Buffer.SCRATCH, ("port", "memory")),), (4,),
            (PlanBlock({"switch": (1,), "memory": (1, 0)}, {"port": (0,)}, (PlanOp("nop"),)),),
        ),
        PlanRank(1, 1, 0, {"memory": ()}, (), (), (), (PlanBlock({"port": ()}, {}, ()),)),
    )  # fmt: skip
    plan = Plan("p", "custom", "Simple", in_place=False, ranks=ranks)
    first, second = json.loads(write_plan(plan))["gpus"]
    assert first["channels"] == [
        {"channel_type": "port", "connected_to": [1]},
        {"channel_type": "memory", "connected_to": [1, 1]},
        {"channel_type": "switch", "buffer_type": "o", "rank_groups": [{"size": 2,
         "ranks": [0, 1]}]},
        {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 2,
         "ranks": [1, 0]}]},
    ]  # fmt: skip
    assert first["threadblocks"][0]["channels"] == [
        {"channel_type": "switch", "channel_ids": [1]},
        {"channel_type": "memory", "channel_ids": [1, 0]},
    ]
    assert first["semaphores"] == [{"init_value": 4}]
    assert second["channels"] == [{"channel_type": "memory", "connected_to": []}]
    assert read_plan(write_plan(plan)) == plan


small, counts = st.integers(0, 3), st.integers(0, 2**31 - 1)
texts = st.text(
    st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=5
)  # fmt: skip


@st.composite
def operations(
    draw: st.DrawFn, channels: dict[str, tuple[int, ...]], remotes: dict[str, tuple[int, ...]],
    semaphores: int, depth: int = 1,
) -> PlanOp:  # fmt: skip
    """Draw an operation that names only what there is; right or not."""
    name = draw(st.sampled_from([name for name in OPERATIONS if depth or name != "pipeline"]))
    row = OPERATIONS[name]
    kind = draw(st.sampled_from(["", *channels]))

    def operands() -> tuple[Operand, ...]:
        kinds = [st.builds(Operand, st.just(Side.LOCAL), st.sampled_from(Buffer), st.just(-1),
                           counts, counts)]  # fmt: skip
        for side, room in (
            (Side.REMOTE, 0 if kind == "switch" else len(remotes.get(kind, ()))),
            (Side.SWITCH, len(channels.get("switch", ()))),
        ):
            if room:
                kinds.append(st.builds(Operand, st.just(side), st.none(),
                                       st.integers(0, room - 1), counts, counts))  # fmt: skip
        return tuple(draw(st.lists(st.one_of(kinds), max_size=3)))

    def positions(room: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(0, room - 1), max_size=3))) if room else ()

    inside = operations(channels, remotes, semaphores, depth=0)
    pipeline = name == "pipeline"
    return PlanOp(
        name, operands(), operands(), kind, positions(len(channels.get(kind, ()))),
        *((draw(counts), draw(counts)) if name == "barrier" else (-1, draw(small))),
        positions(semaphores), draw(st.none() | st.builds(Tbg, counts, counts)),
        draw(texts) if row.adds else "",
        *((draw(counts), draw(counts)) if pipeline else (0, 0)),
        tuple(draw(st.lists(inside, min_size=1, max_size=2))) if pipeline else (),
    )  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan that names only what there is; right or not."""
    many = draw(st.integers(1, 3))
    others = st.integers(0, many - 1)
    ranks = []
    for _ in range(many):
        channels = draw(st.dictionaries(
            st.sampled_from(["memory", "port"]), st.lists(others, max_size=3)
        ))  # fmt: skip
        groups = draw(st.lists(
            st.builds(Group, st.sampled_from(Buffer), st.lists(others, max_size=3).map(tuple)),
            max_size=2,
        ))  # fmt: skip
        kinds = st.lists(st.sampled_from(["memory", "port"]), max_size=2).map(tuple)
        buffers = st.builds(RemoteBuffer, others, st.sampled_from(Buffer), kinds)
        remotes = draw(st.lists(buffers, max_size=3))
        semaphores = tuple(draw(st.lists(counts, max_size=2)))
        blocks = []
        for _ in range(draw(st.integers(0, 2))):
            rooms = {kind: len(peers) for kind, peers in channels.items()} | {"switch": len(groups)}
            used = {
                kind: tuple(draw(st.lists(st.integers(0, room - 1), max_size=3)))
                for kind, room in rooms.items() if room
            }  # fmt: skip
            refs = {
                kind: tuple(draw(st.lists(st.integers(0, len(remotes) - 1), max_size=3)))
                for kind in ("memory", "port") if remotes
            }  # fmt: skip
            ops = draw(st.lists(operations(used, refs, len(semaphores)), max_size=3))
            blocks.append(PlanBlock(used, refs, tuple(ops)))
        ranks.append(PlanRank(
            draw(counts), draw(counts), draw(counts),
            {kind: tuple(Channel(kind, peer) for peer in peers)
             for kind, peers in channels.items()},
            tuple(groups), tuple(remotes), semaphores, tuple(blocks),
        ))  # fmt: skip
    sizes = st.integers(0, 2**64 - 1)
    return Plan(
        draw(texts), draw(texts), draw(st.sampled_from(["Simple", "LL"])), draw(st.booleans()),
        tuple(ranks), draw(st.booleans()), draw(st.booleans()), draw(counts), draw(sizes),
        draw(sizes), draw(counts),
    )  # fmt: skip


@settings(deadline=None)
@given(plans())
def test_every_plan_is_read_back_as_it_was(plan: Plan) -> None:
    text = write_plan(plan)
    assert read_plan(text) == plan
    assert write_plan(read_plan(text)) == text
    assert text.isascii()
    assert text.count("\n") == 1
