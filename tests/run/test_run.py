"""Programs with real bytes: what comes out is right, bit for bit, and what is wrong is told."""

import multiprocessing
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection

import numpy as np
import pytest

from taccl.errors import InputError, ProgramError, RunError
from taccl.msccl.expected import expected_of
from taccl.msccl.interpret import find_root, interpret
from taccl.msccl.program import Finding, Op, Program, Slot, StepRef
from taccl.replay.cost import ReplayModel
from taccl.run import hosts, messages
from taccl.run.hosts import launched, listening, parse_hosts, run_launched
from taccl.run.job import ADD, DTYPES, Call, Job, Ran, random_data, reference, rounded, whole_calls
from taccl.run.loop import MODEL, plan_of
from taccl.run.messages import Mesh, run_over_tcp, run_rank
from taccl.run.processes import Group, Started, run_processes, start_rank
from tests.msccl.builders import (
    hub,
    make,
    mesh,
    pairs_schedule,
    ring_schedule,
    small_schedules,
    with_each_step,
)
from tests.msccl.test_mutations import change_step
from tests.sweep import for_each

QUICK = Call(0, in_place=True, calls=2, repeats=1)
SIZES = (256, 5000, 300_000)


def job_of(program: Program, patience: float = 20.0, model: ReplayModel = MODEL) -> Job:
    found = expected_of(program, find_root(program) or 0)
    collective = None if isinstance(found, Finding) else found
    return Job(program.name, program, collective, model, patience)


def ran(program: Program, sizes: Sequence[int] = SIZES, call: Call = QUICK) -> list[Ran]:
    job = job_of(program)
    return list(run_processes(job, whole_calls(job, sizes, call)))


SCHEDULES = small_schedules()
SOME = sorted(SCHEDULES)[:: max(1, len(SCHEDULES) // 14)]


def test_programs_of_all_collectives_are_right_at_every_size() -> None:
    for number, name in enumerate(SOME):
        program = replace(make(SCHEDULES[name]), protocol=("Simple", "LL", "LL128")[number % 3])
        for each in ran(program):
            assert each.wrong == 0, (name, each.call)
            assert len(each.times) == 1
            assert each.times[0] > 0


@for_each("dtype", DTYPES)
def test_sums_are_those_of_the_program_bit_for_bit(dtype: str) -> None:
    for schedule in (
        ring_schedule("allreduce", 4, 2), pairs_schedule("reducescatter", hub(4), 3, batched=True)
    ):  # fmt: skip
        for each in ran(make(schedule), SIZES, QUICK._replace(dtype=dtype)):
            assert each.wrong == 0, each.call


def test_messages_are_cut_into_many_and_slots_are_few() -> None:
    program = make(ring_schedule("allreduce", 3, 2))
    tiny = ReplayModel("tiny", {"Simple": 64}, {"Simple": 1})
    job = job_of(program, model=tiny)
    calls = whole_calls(job, [60_000], QUICK)
    assert plan_of(program, 0, calls[0].size, in_place=True, model=tiny).cut.iterations > 100
    assert [each.wrong for each in run_processes(job, calls)] == [0] * len(calls)


def test_what_is_wrong_is_counted() -> None:
    program = make(ring_schedule("allgather", 3, 1))

    broken = with_each_step(program, lambda step: replace(step, op=Op.NOP, src=None, dst=None)
                            if step.op is Op.COPY else step)  # fmt: skip
    job = job_of(broken)
    calls = [Call(3 * 64, in_place=False, calls=1, repeats=1)]
    (each,) = run_processes(job, calls)
    assert each.wrong == 3 * 64 // 4


def data_mutants() -> Iterator[Program]:
    """Yield programs that leave wrong data, by the interpreter's word, without hanging or races."""
    program = make(pairs_schedule("allreduce", mesh(3), 1))
    slots = change_step(program, lambda step: (
        replace(step, src=replace_slot(step.src, by)) for by in (1, 2) if step.src is not None
    ))  # fmt: skip
    for mutant in slots:
        findings = interpret(mutant, in_place=False)
        if findings and all(finding.rule == "result" for finding in findings):
            yield mutant


def replace_slot(slot: Slot, by: int) -> Slot:
    return slot._replace(offset=(slot.offset + by) % 3)


def test_programs_that_the_interpreter_rejects_for_data_are_wrong_when_they_run() -> None:
    mutants = list(data_mutants())
    assert len(mutants) >= 4
    for mutant in mutants[:12]:
        job = job_of(mutant)
        (each,) = run_processes(job, [Call(96, in_place=False, dtype="int32", calls=1, repeats=1)])
        assert each.wrong, mutant


def test_a_deadlock_is_told_with_who_waits_for_whom() -> None:
    program = make(ring_schedule("allgather", 3, 1))
    block = program.gpus[0].threadblocks[0]
    waiting = with_each_step(
        program, lambda step: replace(step, depends=StepRef(block.id, len(block.steps) - 1))
        if step.op is not Op.NOP else step,
    )  # fmt: skip
    job = job_of(waiting, patience=0.6)
    calls = [Call(96, in_place=True, calls=1, repeats=1)]
    for run in (run_processes, run_over_tcp):
        with pytest.raises(RunError, match=r"(?s)nothing has happened for 0\.6 s: deadlock: rank 0"
                                           r" threadblock 0 step 0 waits for"):  # fmt: skip
            list(run(job, calls))
    assert not multiprocessing.active_children()


def test_a_message_of_another_length_is_told() -> None:
    program = make(pairs_schedule("allgather", mesh(2), 2, batched=True))
    short = with_each_step(program, lambda step: replace(step, count=1)
                           if step.op is Op.SEND else step)  # fmt: skip
    job = job_of(short)
    calls = [Call(4 * 16, in_place=True, calls=1, repeats=1)]
    for run in (run_processes, run_over_tcp):
        with pytest.raises(RunError, match="should receive 32 bytes, and the message has 16"):
            list(run(job, calls))


def test_a_rank_that_is_killed_ends_all() -> None:
    program = make(ring_schedule("allreduce", 3, 1))
    with Group(job_of(program), [Call(96, in_place=True, calls=1, repeats=1)]) as group:
        os.kill(group.ranks[1].pid, signal.SIGKILL)
        with pytest.raises(RunError, match="rank 1 was ended by SIGKILL, and the others with it"):
            group.run(0, 1, 1)
        pids = [rank.pid for rank in group.ranks]
    for pid in pids:
        with pytest.raises(ProcessLookupError, match="No such process"):
            os.kill(pid, 0)


def test_over_tcp_a_rank_that_is_gone_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(mesh: Mesh, job: Job, calls: Sequence[Call]) -> Iterator[Ran]:
        if mesh.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from run_rank(mesh, job, calls)

    monkeypatch.setattr(messages, "run_rank", dying)
    job = job_of(make(ring_schedule("allgather", 3, 1)))
    with pytest.raises(RunError, match="rank 2 was ended by SIGKILL, and the others with it"):
        run_over_tcp(job, [Call(96, in_place=True, calls=1, repeats=1)])


def test_over_tcp_programs_are_right() -> None:
    for name in SOME[::4]:
        job = job_of(make(SCHEDULES[name]))
        for each in run_over_tcp(job, whole_calls(job, SIZES, QUICK)):
            assert each.wrong == 0, (name, each.call)


def test_ranks_with_different_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(mesh: Mesh, job: Job, calls: Sequence[Call]) -> Iterator[Ran]:
        program = replace(job.program, name=f"of rank {mesh.rank // 2}")
        yield from run_rank(mesh, replace(job, program=program), calls)

    monkeypatch.setattr(messages, "run_rank", other)
    job = job_of(make(ring_schedule("allgather", 3, 1)))
    with pytest.raises(RunError, match="has another program, or other options, than rank 0"):
        run_over_tcp(job, [Call(96, in_place=True, calls=1, repeats=1)])


def _rank(pipe: object, rank: int, ranks: int, port: int, job: Job) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), TACCL_KEY="test")  # fmt: skip
    try:
        found = list(run_launched(job, [Call(96, in_place=True, calls=1, repeats=2)]))
        told = [(each.wrong, len(each.times)) for each in found]
    except (RunError, InputError) as error:
        told = [str(error)]  # type: ignore[list-item]
    pipe.send(told)  # type: ignore[attr-defined]


def _launched(numbers: Sequence[int], ranks: int) -> list[object]:
    """Return what ranks of these numbers say that were started by a launcher."""
    with listening("127.0.0.1", 0, "--launched") as probe:
        port = probe.getsockname()[1]
    job = job_of(make(ring_schedule("allgather", ranks, 1)))
    started: list[Started] = []
    for rank in numbers:
        body = partial(_rank, rank=rank, ranks=ranks, port=port, job=job)
        started.append(start_rank(body, [each.pipe for each in started]))
    return [each.pipe.recv() for each in started]


def test_ranks_that_a_launcher_starts_find_one_another() -> None:
    assert _launched([0, 1, 2], 3) == [[(0, 2)], [], []]


def test_ranks_that_do_not_come_and_ranks_that_come_twice_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "OPENING", 1.0)
    (late,) = _launched([0], 3)
    assert "1 of 3 ranks have come in 1 s; rank 1 has not" in str(late)
    for told in _launched([0, 1, 1], 3):
        assert "rank 1 of 3 came, and there are 3, each once" in str(told)


def test_whoever_is_silent_or_has_another_key_does_not_keep_ranks_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "SILENCE", 1)
    with listening("127.0.0.1", 0, "--launched") as sock:
        place = sock.getsockname()
        found: list[Connection] = []
        worker = threading.Thread(target=lambda: found.extend(hosts.gathered(sock, 1, b"right")))
        worker.start()
        with socket.create_connection(place):
            with pytest.raises(AuthenticationError, match="digest"):
                Client(place, authkey=b"wrong")
            with Client(place, authkey=b"right") as pipe:
                pipe.send_bytes(b"0 1")
                worker.join(10)
    assert len(found) == 1
    found[0].close()


@for_each(
    "variables, message",
    [
        ({}, "no variable says the rank of this process"),
        ({"RANK": "x"}, "RANK should be a number, got 'x'"),
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "rank 4 of 4"),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "0"}, "at port 0"),
    ],
)
def test_variables_that_say_nothing_are_told(variables: dict[str, str], message: str) -> None:
    named = {"WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"} if variables else {}
    with pytest.raises(InputError, match=message):
        launched({**named, **variables})


def test_hosts_have_as_many_ranks_as_they_are_given() -> None:
    assert parse_hosts("a:2, b") == ["a", "a", "b"]
    for text in ("", "a:b", "-oProxyCommand=x:1", "a:9999"):
        with pytest.raises(InputError, match=r"hosts with their ranks|over 4096"):
            parse_hosts(text)


def test_a_port_in_use_is_told() -> None:
    with (
        listening("127.0.0.1", 0, "--launched") as first,
        pytest.raises(InputError, match=r"can't listen at 127\.0\.0\.1 port .*: Address .* in use"),
    ):
        listening("127.0.0.1", first.getsockname()[1], "--launched")


def test_sizes_that_need_too_many_iterations_are_refused() -> None:
    program = make(ring_schedule("allgather", 3, 1))
    job = job_of(program, model=ReplayModel("tiny", {"Simple": 4}, {"Simple": 1}))
    with pytest.raises(ProgramError, match=r"can't run at .* iterations"):
        whole_calls(job, [10_000_000], QUICK)


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    bits = np.array([0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x7F80_0001, 0xFF7F_FFFF], np.uint32)
    wanted = [0x3F80, 0x3F82, 0x3F81, 0x7FC0, 0xFF80]
    assert rounded(bits.view(np.float32)).tolist() == wanted


def test_test_data_depends_on_the_rank_and_on_nothing_else() -> None:
    rng = random.Random(0)
    for dtype in DTYPES:
        one = random_data(dtype, 64, 3, 7)
        assert (one == random_data(dtype, 64, 3, 7)).all()
        assert (one != random_data(dtype, 64, rng.randrange(3), 7)).any()
        kind = DTYPES[dtype].kind
        total = ADD[dtype](one.view(kind), one.view(kind))
        assert total.dtype == kind


def test_a_reference_of_floats_is_in_the_order_of_the_program() -> None:
    job = job_of(make(ring_schedule("allreduce", 4, 1)))
    (call, *_) = whole_calls(job, [64_000], QUICK)
    plans = [plan_of(job.program, rank, call.size, in_place=call.in_place) for rank in range(4)]
    wanted = reference(job, call, plans)
    exact = reference(job, call._replace(dtype="int32"), plans)
    assert wanted is not None
    assert exact is not None
    assert all(own.keys() == other.keys() for own, other in zip(wanted, exact, strict=True))
    # Each chunk of a ring begins its sum on another rank, so at least one differs from rank order.
    kind = np.float32
    inputs = [random_data("float32", 16_000, rank, 1).view(kind) for rank in range(4)]
    in_rank_order = ((inputs[0] + inputs[1]) + inputs[2]) + inputs[3]
    ordered = np.concatenate([wanted[0][at].view(kind) for at in sorted(wanted[0])])
    assert np.allclose(ordered, in_rank_order, rtol=1e-3, atol=1e-3)
    assert (ordered != in_rank_order).any()


def test_more_memory_than_there_is_is_refused() -> None:
    model = ReplayModel("big", {"Simple": 1 << 40}, {"Simple": 2})
    job = job_of(make(ring_schedule("allreduce", 4, 1)), model=model)
    with pytest.raises(ProgramError, match=r"4 ranks need \d+ MiB of memory together"):
        list(run_processes(job, whole_calls(job, [1 << 40], QUICK)))
