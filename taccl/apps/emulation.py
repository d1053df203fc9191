"""Programs on a machine that is emulated: its links are measured first, then programs are run.

A ping and a stream over links of each kind say what a message costs there, processes included:
latencies get what all links have in common beyond those stated, bandwidths of edges what streams
over them reached. With these costs the replay predicts what programs take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median

from taccl.apps.running import Asked, Transport, run_jobs
from taccl.errors import RunError
from taccl.msccl.program import Buffer, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.runtimes import PROTOCOLS
from taccl.report.runs import RunRow
from taccl.run.emulate import Emulated, emulated, own_scale, scaled
from taccl.run.job import Call, Job, Ran
from taccl.run.plan import Wire
from taccl.run.tcp import run_over_tcp
from taccl.topology.graph import LinkId, ProgramCosts, ProtocolCosts, Topology

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
