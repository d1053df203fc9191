"""Programs run for real: what is put in, what must come out, and the times beside those predicted.

Where a topology is given, each call is replayed on it with messages cut as the ranks cut them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from taccl.apps.inputs import read_program
from taccl.apps.programs import Target, lowering_of
from taccl.errors import InputError
from taccl.files import read_text
from taccl.model.schedule_file import read_schedule
from taccl.msccl.expected import expected_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Finding, Program
from taccl.replay.compile import count_messages
from taccl.replay.cost import measured_costs
from taccl.replay.timing import traces
from taccl.report.played import play
from taccl.report.runs import RunRow, run_trace
from taccl.run.data import DTYPES
from taccl.run.hosts import run_launched
from taccl.run.job import HANG, Call, Job, Ran, whole_calls
from taccl.run.mpi import run_under_mpi
from taccl.run.processes import run_processes
from taccl.run.tcp import run_over_tcp
from taccl.topology.graph import Topology
from taccl.verify import require_valid

MAX_RANKS = 256
"""Processes of one run on one machine."""


def job_of(file: str, program: Program, patience: float = HANG) -> Job:
    """Return a `program` from a `file` as it is run, with `patience` as in :class:`Job`.

    Raises InputError when it is for too many ranks.
    """
    if program.num_ranks > MAX_RANKS:
        raise InputError(
            f"is for {program.num_ranks} ranks, and at most {MAX_RANKS} can be run",
            file=file, field="ngpus", fix="run a program for fewer",
        )  # fmt: skip
    found = expected_of(program, find_root(program) or 0)
    return Job(file, program, None if isinstance(found, Finding) else found, patience=patience)


def load_job(path: str, size: int, patience: float = HANG) -> Job:
    """Return what an XML or schedule file says, as a program that can be run.

    A schedule in the file at `path` becomes a program for calls of about `size` bytes; `patience`
    is as in :class:`Job`.

    Raises InputError when the file can't be used; ProgramError when it is no program; ScheduleError
    when a schedule is wrong.
    """
    if read_text(path).lstrip()[:1] != "{":
        return job_of(path, read_program(path), patience)
    schedule = read_schedule(path)
    require_valid(schedule)
    task = lowering_of(schedule, Target("executor"), size, "schedule")
    if not task.size:
        raise InputError(
            f"{size} bytes are less than one element for each chunk of the schedule",
            file=path, fix="run larger sizes",
        )  # fmt: skip
    made = job_of(path, task.settled().proved(), patience)
    return replace(made, collective=schedule.collective)


def rows_of(
    job: Job, found: Sequence[Ran], over: str, topology: Topology | None, *,
    measured: bool = False,
) -> list[RunRow]:  # fmt: skip
    """Return the rows of what was run, each beside what the replay predicts.

    `job` is the program, `found` what became of its calls, and `over` what carried messages;
    the `topology` is where it is replayed, with its `measured` costs if asked for; None: it is not.

    Raises ProgramError when the program does not fit the topology.
    """
    program = job.program
    predicted: list[int | None] = [None] * len(found)
    if topology is not None:
        for number, ran in enumerate(found):
            model = replace(
                job.model, element_bytes=DTYPES[ran.call.dtype].bytes, measured=measured
            )
            (trace,) = traces(program, topology, [ran.call.size], model)
            predicted[number] = trace.time
    costs = "" if topology is None else "measured" if measured else topology.alpha_rule_stated
    return [
        RunRow(
            job.file, program.collective, program.num_ranks, ran.call.size, ran.call.in_place,
            ran.call.dtype, over, ran.times, ran.wrong, time, costs,
        )
        for ran, time in zip(found, predicted, strict=True)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries messages: its `name`, and what runs a program's calls over it."""

    name: str
    run: Callable[[Job, Sequence[Call]], Iterable[Ran]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a run.

    `sizes`: bytes of the counted buffer.
    `dtype`: a name of :data:`taccl.run.data.DTYPES`.
    `calls`, `repeats`: calls in a measurement, and measurements.
    `logged`: whether ranks write down what they do in the last call.
    """

    sizes: Sequence[int]
    dtype: str = "float32"
    calls: int = 20
    repeats: int = 5
    logged: bool = False


def run_jobs(
    jobs: Sequence[Job], asked: Asked, over: Transport, topology: Topology | None, *,
    measured: bool = False,
) -> tuple[list[RunRow], str]:  # fmt: skip
    """Run programs, and return their rows, and the text of a trace of the last call.

    `jobs`: the programs.
    `asked`: what of them.
    `over`: what carries messages.
    `topology`: where they are replayed, with its `measured` costs if asked for; None: nowhere.

    No rows are returned to ranks of MPI but the first. The trace is empty where none is asked for.

    Raises InputError when a program is for another number of ranks; ProgramError when it can't run
    at a size; RunError when a rank is gone, or all wait for one another.
    """
    if measured and topology is not None:
        measured_costs(topology)
    for job in jobs:
        ranks = job.program.num_ranks
        if topology is not None and ranks != topology.num_ranks:
            raise InputError(
                f"is for {ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=job.file, fix="give the topology it was made for (--nodes)",
            )  # fmt: skip
    rows: list[RunRow] = []
    text = ""
    for job in jobs:
        form = Call(0, in_place=True, dtype=asked.dtype, calls=asked.calls, repeats=asked.repeats)
        calls = whole_calls(job, asked.sizes, form)
        if asked.logged:
            most = count_messages(job.program, calls[-1].size, job.model)
            if most > MAX_LOGGED:
                raise InputError(
                    f"{most} messages and copies are too many for a trace, at most {MAX_LOGGED}",
                    field="--trace", fix="end with a smaller size",
                )  # fmt: skip
            calls[-1] = calls[-1]._replace(logged=most)
        found = list(over.run(job, calls))
        if not found:
            continue
        rows += rows_of(job, found, over.name, topology, measured=measured)
        if asked.logged:
            played = None
            if topology is not None:
                played = play(job.program, topology, calls[-1].size, job.model)
            text = run_trace(job.program, calls[-1].size, found[-1].logs, played)
    return rows, text


MAX_LOGGED = 1_000_000
"""Messages and pieces of local work that a trace shows."""


SHARED_MEMORY = Transport("shared memory", run_processes)
TCP = Transport("tcp", run_over_tcp)
MPI = Transport("mpi", run_under_mpi)
LAUNCHED = Transport("tcp", run_launched)
