"""Programs run for real: what is put in, what must come out, and the times beside those predicted.

Where a topology is given, each call is replayed on it with messages cut as the ranks cut them.

On an emulated machine a ping and a stream over links of each kind come first, and say what a
message costs there, processes included: latencies get what all links have in common beyond those
stated, bandwidths of edges what streams over them reached. With these costs programs are replayed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median

from taccl.apps.inputs import read_program
from taccl.apps.programs import Target, lowering_of
from taccl.errors import InputError, RunError
from taccl.files import read_text
from taccl.model.schedule_file import read_schedule
from taccl.msccl.expected import expected_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Finding, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.runtimes import PROTOCOLS
from taccl.replay.compile import count_messages
from taccl.replay.cost import measured_costs
from taccl.replay.timing import traces
from taccl.report.played import play
from taccl.report.runs import RunRow, run_trace
from taccl.run.emulate import Emulated, emulated, own_scale, scaled
from taccl.run.hosts import run_launched, run_under_mpi
from taccl.run.job import DTYPES, HANG, Call, Job, Ran, whole_calls
from taccl.run.loop import Wire
from taccl.run.messages import run_over_tcp
from taccl.run.processes import run_processes
from taccl.topology.graph import LinkId, ProgramCosts, ProtocolCosts, Topology
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
    `dtype`: a name of :data:`taccl.run.job.DTYPES`.
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


CHUNKS = 64
"""Of which a probe sends all, and gets one back."""

STREAM = Fraction(1, 4)
"""Seconds that a stream should last."""

PINGS = 20
"""Pings one after the other, of which the mean counts: none waits for ranks to begin together."""

PROBED = 3
"""Links of one kind that are measured."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a message on a link costs.

    `link`: which one.
    `alpha`: picoseconds from its start until it is received, but for its bytes.
    `beta`: picoseconds for each byte.
    """

    link: LinkId
    alpha: float
    beta: float


def probe_program(num_ranks: int, src: int, dst: int) -> Program:
    """Return a program in which `src` sends to `dst`, on channel 0, and gets a chunk back.

    It is for `num_ranks`; the chunk comes back on channel 1.
    """
    data, answer = Slot(Buffer.INPUT, 0), Slot(Buffer.SCRATCH, 0)
    blocks = {
        src: (
            Threadblock(0, dst, None, 0, (Step(Op.SEND, data, data, CHUNKS),)),
            Threadblock(1, None, dst, 1, (Step(Op.RECV, answer, answer, 1),)),
        ),
        dst: (
            Threadblock(
                0, None, src, 0,
                (Step(Op.RECV, data, Slot(Buffer.OUTPUT, 0), CHUNKS, posts=True),),
            ),
            Threadblock(
                1, src, None, 1, (Step(Op.SEND, data, data, 1, depends=StepRef(0, 0)),)
            ),
        ),
    }  # fmt: skip
    return Program(
        f"probe {src} to {dst}", "custom", "Simple", in_place=False, out_of_place=True,
        channels=2, chunks_per_loop=CHUNKS, min_bytes=0, max_bytes=1 << 40,
        gpus=tuple(Gpu(rank, CHUNKS, CHUNKS, 1, blocks.get(rank, ())) for rank in range(num_ranks)),
    )  # fmt: skip


def probed_links(topology: Topology) -> list[LinkId]:
    """Return some links of each kind, by their costs and what they share, that are measured."""
    kinds: dict[object, list[LinkId]] = {}
    for number in range(len(topology.links)):
        link = topology.link(number)
        betas = tuple(topology.edges[edge].beta for edge in link.edges)
        kinds.setdefault((link.alpha, betas), []).append(number)
    return [
        links[place * (len(links) - 1) // max(1, PROBED - 1)]
        for links in kinds.values()
        for place in range(min(PROBED, len(links)))
    ]


def measure_links(
    machine: Emulated, repeats: int = 5, links: Sequence[LinkId] | None = None
) -> list[Probe]:
    """Return what messages on `links` cost on a `machine`, by `repeats` of each.

    Without links some of each kind are measured.
    """
    topology = machine.topology
    found = []
    for number in probed_links(topology) if links is None else links:
        link = topology.link(number)
        program = probe_program(topology.num_ranks, link.src, link.dst)
        job = Job(program.name, program, None)
        beta = topology.links.max_beta(number)
        long = int(STREAM * 10**12 / beta) if beta else 1 << 20
        sizes = (4 * CHUNKS, long - long % (4 * CHUNKS) or 4 * CHUNKS * 2)
        calls = [
            Call(size, in_place=False, calls=many, repeats=repeats)
            for size, many in zip(sizes, (PINGS, 1), strict=True)
        ]
        way = {Wire(link.src, link.dst, 0): machine.shown[number]}
        ping, stream = (_least(ran) for ran in run_over_tcp(job, calls, way, machine.enter))
        back = _least(run_over_tcp(job, calls[:1], {}, machine.enter)[0]) / 2
        slope = 1000 * (stream - ping) / (sizes[1] - sizes[0])
        found.append(Probe(number, 1000 * (ping - back) - slope * sizes[0], slope))
    return found


def _least(ran: Ran) -> float:
    """Return the nanoseconds of the quickest half of the measurements, at the median."""
    times = sorted(ran.times)
    return median(times[: len(times) // 2 + 1])


def measured_network(topology: Topology, probes: Sequence[Probe]) -> Topology:
    """Return a `topology` with the costs that `probes` of its links measured, under rule delay.

    Every edge that leaves a rank has as much more latency as links have in the median, and every
    edge the bandwidth that streams reached on links whose slowest edge has its own. The same are
    its measured costs, with which messages share edges as packets do.
    """
    table, server = topology.links, topology.server_of
    more = median(probe.alpha - int(table.alpha[probe.link]) for probe in probes)
    factors: dict[Fraction, list[float]] = {}
    alphas: dict[bool, list[float]] = {False: [], True: []}
    for probe in probes:
        beta = table.max_beta(probe.link)
        if beta:
            factors.setdefault(beta, []).append(probe.beta / float(beta))
        across = server[int(table.src[probe.link])] != server[int(table.dst[probe.link])]
        alphas[across].append(probe.alpha)
    factor = {beta: Fraction(median(ratios)).limit_denominator(10_000)
              for beta, ratios in factors.items()}  # fmt: skip
    edges = [
        replace(
            edge, overhead=None,
            alpha=max(0, edge.alpha + int(more)) if edge.tail < topology.num_ranks else edge.alpha,
            beta=edge.beta and edge.beta * factor.get(edge.beta, Fraction(1)),
        )
        for edge in topology.edges
    ]  # fmt: skip
    inside, across_ = (int(median(alphas[kind] or alphas[not kind])) for kind in (False, True))
    costs = ProgramCosts(
        "taccl run, on an emulated machine",
        {name: ProtocolCosts(0, inside, across_) for name in PROTOCOLS}, slices=1,
    )  # fmt: skip
    known = replace(topology, measured=costs)
    return known.with_alpha_rule("delay").with_costs(edges)


def over(machine: Emulated) -> Transport:
    """Return what carries messages on a `machine`."""

    def carry(job: Job, calls: Sequence[Call]) -> list[Ran]:
        return run_over_tcp(job, calls, machine.ways(job.program), machine.enter)

    return Transport("emulated", carry)


def run_emulated(
    jobs: Sequence[Job], asked: Asked, topology: Topology, scale: Fraction | None
) -> tuple[list[RunRow], str, Topology, list[Probe]]:
    """Run programs, `jobs`, on a machine like a `topology`, and predict what they take.

    What is `asked` of them is as for :func:`taccl.apps.running.run_jobs`. Everything takes `scale`
    times as long as on the topology; None: as long as this machine needs to carry it. Returned are
    rows, a trace, the topology with the costs that were measured, and these.

    Raises InputError when the machine can't be emulated here; RunError when a rank is gone.
    """
    slower = scaled(topology.with_alpha_rule("delay"), scale or own_scale(topology))
    with emulated(slower) as machine:
        probes = measure_links(machine)
        if not probes:
            raise RunError(f"{topology.name} has no links", fix="emulate another machine")
        network = measured_network(slower, probes)
        rows, text = run_jobs(jobs, asked, over(machine), network, measured=True)
    return rows, text, network, probes


def probes_told(topology: Topology, probes: Sequence[Probe]) -> str:
    """Return in words what `probes` measured on an emulated `topology`, one line a kind of link."""
    lines = []
    for probe in probes:
        link = topology.link(probe.link)
        lines.append(
            f"link {link.src}->{link.dst}: alpha {probe.alpha / 1e6:.0f} us,"
            f" {1e6 / probe.beta:.3f} MB/s"
        )
    return "\n".join([f"{topology.name}, emulated; links as measured:", *lines])
