"""A candidate, from its text to programs that are judged and replayed."""

import json

import pytest

from taccl.msccl.interpret import judge
from taccl.replay.cost import model_of
from taccl.replay.timing import traces
from taccl.synth.templates.classical import CLASSICAL
from taccl.topology.file import expand_text, load_topology
from taccl.tuning.candidate import (
    OTHER_VERSION,
    Machine,
    Outcome,
    Setting,
    Spec,
    key_of,
    program_of,
    read_outcome,
    run_task,
)
from tests.msccl.test_runtime_facts import sends_awaited

SIZES = (1024, 1 << 20, 1 << 28)
RELAY = """taccl: sketch/1
name: by-one
chunks_per_rank: 1
internode: {relays: {0: [0]}}
"""


def setting(sketch: str | None = None) -> Setting:
    """Return two servers of NDv2, and the same under a sketch."""
    text = expand_text(load_topology("ndv2", nodes=2))
    machines = (Machine(text), *([Machine(text, sketch)] if sketch else []))
    return Setting(machines, ("by-one",) if sketch else (), SIZES, "executor")


def found(spec: Spec, sketch: str | None = None) -> Outcome:
    return read_outcome(run_task(setting(sketch).task(spec)))


def test_every_protocol_is_replayed_at_every_size() -> None:
    outcome = found(Spec("allgather", "hierarchical", 1 << 20))
    assert {one.protocol for one in outcome.played} == {"Simple", "LL", "LL128"}
    topology = load_topology("ndv2", nodes=2)
    for one in outcome.played[:3]:
        program = program_of(one, "executor")
        assert program.protocol == one.protocol
        replayed = traces(program, topology, SIZES, model_of("executor"), protocol_costs=True)
        for time, trace in zip(one.times, replayed, strict=True):
            assert time in (trace.time, None)
    plain = next(one for one in outcome.played if one.protocol == "Simple")
    twice = next(one for one in outcome.played if one.protocol == "LL")
    assert None not in plain.times
    # LL's twice the bytes can't win where a chunk is many messages: it is not replayed there.
    assert twice.times[-1] is None


def test_on_rccl_the_program_in_ll_is_one_that_waits_for_no_send() -> None:
    text = expand_text(load_topology("hub:4"))
    asked = Setting((Machine(text),), (), (1 << 14,), "rccl")
    spec = Spec("allreduce", "recursive-doubling", 1 << 14)
    outcome = read_outcome(run_task(asked.task(spec)))
    waits = {"Simple": 0, "LL128": 0, "LL": 0}
    for one in outcome.played:
        program = program_of(one, "rccl")
        waits[one.protocol] += len(sends_awaited(program))
        assert judge(program, "rccl") == []
    assert waits["LL"] == 0
    assert waits["Simple"]


def test_an_outcome_is_read_back() -> None:
    outcome = found(Spec("allgather", "ring", 1 << 20))
    assert read_outcome(outcome.text()) == outcome


def test_what_does_not_exist_has_a_reason_and_has_not_failed() -> None:
    outcome = found(Spec("allgather", "parameter-server", 1 << 20))
    assert outcome.played == ()
    assert "not for allgather" in outcome.reason
    assert not outcome.failed


def test_a_sketch_restricts_what_is_found() -> None:
    free = found(Spec("allgather", "hierarchical", 1 << 20))
    assert free.played
    reasons = {
        name: found(Spec("allgather", name, 1 << 20, sketch=0), RELAY).reason
        for name in CLASSICAL
        if name in ("all-pairs", "bruck", "hierarchical")
    }
    assert any(reasons.values())


def test_other_code_is_told() -> None:
    task = json.loads(setting().task(Spec("allgather", "ring", 1024)))
    task["code"] = "another"
    outcome = read_outcome(run_task(json.dumps(task)))
    assert (outcome.reason, outcome.failed) == (OTHER_VERSION, True)


@pytest.mark.parametrize(
    "other",
    [
        Spec("allgather", "ring", 2048), Spec("allreduce", "ring", 1024),
        Spec("allgather", "ring", 1024, chunks=2), Spec("allgather", "ring", 1024, seed=1),
        Spec("allgather", "ring", 1024, effort=1.0), Spec("allgather", "ring", 1024, sketch=0),
    ],
)  # fmt: skip
def test_a_key_is_that_of_everything_a_result_depends_on(other: Spec) -> None:
    asked, one = setting(RELAY), Spec("allgather", "ring", 1024)
    assert key_of(asked.task(one)) == key_of(setting(RELAY).task(one))
    assert key_of(asked.task(other)) != key_of(asked.task(one))
