"""Programs run for real: what is put in, what must come out, and the times beside those predicted.

Where a topology is given, each call is replayed on it with messages cut as the ranks cut them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from taccl.apps.evaluation import read_program
from taccl.apps.programs import Target, lowering_of
from taccl.collectives import Collective
from taccl.errors import InputError, ProgramError
from taccl.files import read_text
from taccl.model.schedule_file import read_schedule
from taccl.msccl.expected import expected_of, mode_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Finding, Program
from taccl.replay.compile import count_messages, unfit
from taccl.replay.cost import ReplayModel, measured_costs
from taccl.replay.timing import traces
from taccl.report.played import play
from taccl.report.runs import RunRow, run_trace
from taccl.run import loop
from taccl.run.data import (
    DTYPES,
    Bytes,
    exact_outputs,
    fill,
    outputs_in_order,
    random_data,
    wrong_elements,
)
from taccl.run.hosts import launch, launched, mesh_of
from taccl.run.messages import Mesh, Spoken, run_rank
from taccl.run.mpi import mpi_ranks
from taccl.run.plan import MODEL, RankPlan, plan_of
from taccl.run.processes import HANG, Call, Ran, run_processes, waits_told
from taccl.run.tcp import Ways, fork_ranks, stay
from taccl.topology.graph import Topology
from taccl.verify import require_valid

SEED = 1
"""Of the test data."""

MAX_RANKS = 256
"""Processes of one run on one machine."""


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A program, and how it is run.

    `file`: where it comes from.
    `program`: what is run.
    `collective`: what it should do; None: nobody knows.
    `model`: how long messages are.
    `patience`: seconds without a step, after which the ranks are said to hang.
    """

    file: str
    program: Program
    collective: Collective | None
    model: ReplayModel = MODEL
    patience: float = HANG


def running_of(file: str, program: Program, patience: float = HANG) -> Running:
    """Return a `program` from a `file` as it is run, with `patience` as in :class:`Running`.

    Raises InputError when it is for too many ranks.
    """
    if program.num_ranks > MAX_RANKS:
        raise InputError(
            f"is for {program.num_ranks} ranks, and at most {MAX_RANKS} can be run",
            file=file, field="ngpus", fix="run a program for fewer",
        )  # fmt: skip
    found = expected_of(program, find_root(program) or 0)
    return Running(
        file, program, None if isinstance(found, Finding) else found, patience=patience
    )  # fmt: skip


def load_running(path: str, size: int, patience: float = HANG) -> Running:
    """Return what an XML or schedule file says, as a program that can be run.

    A schedule in the file at `path` becomes a program for calls of about `size` bytes; `patience`
    is as in :class:`Running`.

    Raises InputError when the file can't be used; ProgramError when it is no program; ScheduleError
    when a schedule is wrong.
    """
    if read_text(path).lstrip()[:1] != "{":
        return running_of(path, read_program(path), patience)
    schedule = read_schedule(path)
    require_valid(schedule)
    task = lowering_of(schedule, Target("executor"), size, "schedule")
    if not task.size:
        raise InputError(
            f"{size} bytes are less than one element for each chunk of the schedule",
            file=path, fix="run larger sizes",
        )  # fmt: skip
    made = running_of(path, task.settled().proved(), patience)
    return replace(made, collective=schedule.collective)


def whole_calls(running: Running, sizes: Sequence[int], call: Call) -> list[Call]:
    """Return a call for each size, cut to whole chunks, in each mode that a program claims.

    `running` is the program, `sizes` are bytes, and a `call` says everything else.

    Raises ProgramError when the program can't run at a size.
    """
    program, wide = running.program, DTYPES[call.dtype].bytes
    unit = program.chunks_per_loop * wide
    modes = [
        mode for mode, claimed in ((False, program.out_of_place), (True, program.in_place))
        if claimed
    ]  # fmt: skip
    found = []
    for size in dict.fromkeys(max(unit, size - size % unit) for size in sizes):
        reason = unfit(program, size, replace(running.model, element_bytes=wide))
        if reason:
            raise ProgramError(f"{running.file} can't run at {size} bytes: {reason}")
        found += [call._replace(size=size, in_place=mode) for mode in modes]
    return found


def reference(
    running: Running, call: Call, plans: Sequence[RankPlan]
) -> list[Mapping[int, Bytes]] | None:
    """Return what each rank should have in the end: chunks by where they begin in its output.

    `running` is the program, `call` how it is called, and `plans` what each rank runs. Sums of
    floats are those of the program's own order. None: nobody knows.
    """
    collective, program, chunk = running.collective, running.program, plans[0].chunk
    if collective is None:
        return None
    wide = DTYPES[call.dtype].bytes
    inputs = [
        random_data(call.dtype, plan.memory.room[Buffer.INPUT] // wide, rank, SEED)
        for rank, plan in enumerate(plans)
    ]
    exact = exact_outputs(collective, inputs, chunk, call.dtype)
    if DTYPES[call.dtype].exact or not collective.reduces:
        return list(exact)
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=call.in_place
    )
    try:
        order = outputs_in_order(program, mode, inputs, chunk, call.dtype)
    except KeyError:
        return list(exact)
    return [
        {at: own.get(at, chunk_) for at, chunk_ in wanted.items()}
        for wanted, own in zip(exact, order, strict=True)
    ]


def _fill(call: Call, memory: Bytes, plan: RankPlan, rank: int) -> None:
    fill(memory, plan.memory, call.dtype, rank, SEED)


def _wrong_on(call: Call, memory: Bytes, plan: RankPlan, wanted: Mapping[int, Bytes]) -> int:
    at = plan.memory.at[Buffer.OUTPUT]
    output = memory[at : at + plan.memory.room[Buffer.OUTPUT]]
    return wrong_elements(output, wanted, call.dtype)


def run_here(running: Running, calls: Sequence[Call]) -> Iterator[Ran]:
    """Run a program with a process a rank that share memory, and yield what becomes of each call.

    `running` is the program; `calls` follow one another.

    Raises RunError when a rank is gone, or all wait for one another.
    """

    def check(call: Call, memories: Sequence[Bytes], plans: Sequence[RankPlan]) -> int | None:
        wanted = reference(running, call, plans)
        if wanted is None:
            return None
        each = zip(memories, plans, wanted, strict=True)
        return sum(_wrong_on(call, memory, plan, chunks) for memory, plan, chunks in each)

    yield from run_processes(
        running.program, calls, _fill, check, running.model, running.patience
    )  # fmt: skip


def run_as_rank(running: Running, calls: Sequence[Call], mesh: Mesh) -> Iterator[Ran]:
    """Run a program as one of its ranks, and yield what becomes of each call on all of them.

    `running` is the program, `calls` follow one another, and `mesh` brings messages.

    Raises RunError when a rank is gone, or all wait for one another.
    """

    def check(call: Call, memory: Bytes, plans: Sequence[RankPlan], rank: int) -> int | None:
        wanted = reference(running, call, plans)
        return None if wanted is None else _wrong_on(call, memory, plans[rank], wanted[rank])

    yield from run_rank(
        mesh, running.program, calls, _fill, check, running.model, running.patience
    )  # fmt: skip


def run_over_tcp(
    running: Running, calls: Sequence[Call], ways: Ways = MappingProxyType({}),
    enter: Callable[[int], str] = stay,
) -> list[Ran]:  # fmt: skip
    """Run a program with a process a rank on this machine, messages over TCP.

    `running`: the program.
    `calls`: follow one another.
    `ways`: how messages of a pair travel.
    `enter`: moves a process, whose rank is given, to where it belongs, and returns its
    address.

    Raises RunError when a rank is gone, or all wait for one another.
    """
    found: list[Ran] = []

    def serve(mesh: Mesh, told: Spoken) -> None:
        for number, ran in enumerate(run_as_rank(running, calls, mesh)):
            if mesh.rank == 0:
                told.report(_record(number, ran))

    fork_ranks(
        running.program.num_ranks, serve, lambda states: standstill(running, calls, states),
        lambda value: found.append(_ran_of(calls, value)), ways, enter,
    )  # fmt: skip
    return found


def _record(number: int, ran: Ran) -> list[Any]:
    """Return what became of a call as JSON can say it."""
    return [number, ran.times, ran.wrong, [log.tolist() for log in ran.logs]]


def _ran_of(calls: Sequence[Call], value: list[Any]) -> Ran:
    number, times, wrong, logs = value
    rows = (np.array(log, np.int64).reshape(-1, loop.LOG_FIELDS) for log in logs)
    return Ran(calls[number], tuple(times), wrong, tuple(rows))


def run_launched(running: Running, calls: Sequence[Call]) -> Iterator[Ran]:
    """Run a program as a rank that a launcher has started; only rank 0 yields what becomes.

    `running` is the program; `calls` follow one another. Where the hub is elsewhere, rank 0 tells
    it what becomes, and yields nothing either.

    Raises InputError when no variables say who this process is; RunError when ranks don't come, one
    is gone, or all wait for one another.
    """
    me, ranks = launched(os.environ), running.program.num_ranks
    if me.count != ranks:
        raise InputError(
            f"the program is for {ranks} ranks, and {me.count} were started", field="--launched",
            fix=f"start {ranks}",
        )  # fmt: skip
    with mesh_of(me, lambda states: standstill(running, calls, states)) as (mesh, told):
        for number, ran in enumerate(run_as_rank(running, calls, mesh)):
            if me.here:
                yield ran
            elif mesh.rank == 0:
                told.report(_record(number, ran))


def on_hosts(hosts: Sequence[str], command: Sequence[str]) -> "Transport":
    """Return what runs a program with ranks on `hosts`, each started with a `command` of taccl."""

    def carry(running: Running, calls: Sequence[Call]) -> list[Ran]:
        found: list[Ran] = []
        if len(hosts) != running.program.num_ranks:
            raise InputError(
                f"the program is for {running.program.num_ranks} ranks, and hosts are given for"
                f" {len(hosts)}", field="--hosts", fix="write a:4,b:4",
            )  # fmt: skip
        launch(
            hosts, command, lambda states: standstill(running, calls, states),
            lambda value: found.append(_ran_of(calls, value)),
        )  # fmt: skip
        return found

    return Transport("tcp", carry)


def standstill(running: Running, calls: Sequence[Call], states: Sequence[Any]) -> str:
    """Return who waits for whom.

    `running` is a program, run with `calls`, and `states` has the rows of each rank's threadblocks,
    None where a rank did not answer.
    """
    mute = [rank for rank, state in enumerate(states) if state is None]
    if mute:
        ranks = ", ".join(map(str, mute[:8]))
        return f"rank{'s' if len(mute) > 1 else ''} {ranks} did nothing, and did not answer"
    plans = [
        plan_of(running.program, rank, calls[0].size, in_place=calls[0].in_place)
        for rank in range(running.program.num_ranks)
    ]
    rows = [np.array(state, np.int64).reshape(-1, loop.BLOCK_FIELDS) for state in states]
    told = waits_told(running.program, plans, rows)
    return f"nothing has happened for {running.patience:g} s: {told}"


def rows_of(
    running: Running, found: Sequence[Ran], over: str, topology: Topology | None, *,
    measured: bool = False,
) -> list[RunRow]:  # fmt: skip
    """Return the rows of what was run, each beside what the replay predicts.

    `running` is the program, `found` what became of its calls, and `over` what carried messages;
    the `topology` is where it is replayed, with its `measured` costs if asked for; None: it is not.

    Raises ProgramError when the program does not fit the topology.
    """
    program = running.program
    predicted: list[int | None] = [None] * len(found)
    if topology is not None:
        for number, ran in enumerate(found):
            model = replace(
                running.model, element_bytes=DTYPES[ran.call.dtype].bytes, measured=measured
            )
            (trace,) = traces(program, topology, [ran.call.size], model)
            predicted[number] = trace.time
    costs = "" if topology is None else "measured" if measured else topology.alpha_rule_stated
    return [
        RunRow(
            running.file, program.collective, program.num_ranks, ran.call.size, ran.call.in_place,
            ran.call.dtype, over, ran.times, ran.wrong, time, costs,
        )
        for ran, time in zip(found, predicted, strict=True)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries messages: its `name`, and what runs a program's calls over it."""

    name: str
    run: Callable[[Running, Sequence[Call]], Iterable[Ran]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a run.

    `sizes`: bytes of the counted buffer.
    `dtype`: a name of :data:`taccl.run.data.DTYPES`.
    `calls`, `repeats`: calls in a measurement, and measurements.
    `patience`: seconds without a step, after which the ranks are said to hang.
    `logged`: whether ranks write down what they do in the last call.
    """

    sizes: Sequence[int]
    dtype: str = "float32"
    calls: int = 20
    repeats: int = 5
    patience: float = HANG
    logged: bool = False


def run_files(
    files: Sequence[str], asked: Asked, over: Transport, topology: Topology | None, *,
    measured: bool = False,
) -> tuple[list[RunRow], str]:  # fmt: skip
    """Run the programs of files, and return their rows, and the text of a trace of the last call.

    `files`: XML or schedule files.
    `asked`: what of them.
    `over`: what carries messages.
    `topology`: where they are replayed, with its `measured` costs if asked for; None: nowhere.

    No rows are returned to ranks of MPI but the first. The trace is empty where none is asked for.

    Raises InputError when a file can't be used, or is for another number of ranks; RunError when
    a rank is gone, or all wait for one another.
    """
    loaded = [load_running(file, asked.sizes[-1], asked.patience) for file in files]
    return _run_all(loaded, asked, over, topology, measured=measured)


def run_programs(
    programs: Sequence[Program], asked: Asked, over: Transport, topology: Topology | None
) -> tuple[list[RunRow], str]:
    """Do the same as :func:`run_files` with `programs` that are there already."""
    loaded = [running_of(program.name, program, asked.patience) for program in programs]
    return _run_all(loaded, asked, over, topology)


def _run_all(
    loaded: Sequence[Running], asked: Asked, over: Transport, topology: Topology | None, *,
    measured: bool = False,
) -> tuple[list[RunRow], str]:  # fmt: skip
    if measured and topology is not None:
        measured_costs(topology)
    for running in loaded:
        ranks = running.program.num_ranks
        if topology is not None and ranks != topology.num_ranks:
            raise InputError(
                f"is for {ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=running.file, fix="give the topology it was made for (--nodes)",
            )  # fmt: skip
    rows: list[RunRow] = []
    text = ""
    for running in loaded:
        form = Call(0, in_place=True, dtype=asked.dtype, calls=asked.calls, repeats=asked.repeats)
        calls = whole_calls(running, asked.sizes, form)
        if asked.logged:
            most = count_messages(running.program, calls[-1].size, running.model)
            if most > MAX_LOGGED:
                raise InputError(
                    f"{most} messages and copies are too many for a trace, at most {MAX_LOGGED}",
                    field="--trace", fix="end with a smaller size",
                )  # fmt: skip
            calls[-1] = calls[-1]._replace(logged=most)
        found = list(over.run(running, calls))
        if not found:
            continue
        rows += rows_of(running, found, over.name, topology, measured=measured)
        if asked.logged:
            played = None
            if topology is not None:
                played = play(running.program, topology, calls[-1].size, running.model)
            text = run_trace(running.program, calls[-1].size, found[-1].logs, played)
    return rows, text


MAX_LOGGED = 1_000_000
"""Messages and pieces of local work that a trace shows."""


def run_under_mpi(running: Running, calls: Sequence[Call]) -> Iterator[Ran]:
    """Run a program as one of the ranks that MPI has started; only rank 0 yields what becomes.

    `running` is the program; `calls` follow one another.

    Raises InputError when MPI can't be used; RunError when all wait for one another.
    """
    with mpi_ranks(running.program.num_ranks) as mesh:
        for ran in run_as_rank(running, calls, mesh):
            if mesh.rank == 0:
                yield ran


SHARED_MEMORY = Transport("shared memory", run_here)
TCP = Transport("tcp", run_over_tcp)
MPI = Transport("mpi", run_under_mpi)
LAUNCHED = Transport("tcp", run_launched)
