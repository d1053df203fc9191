"""The seeds' rows: what each paper reports, what the model makes of its inputs, and why it differs.

An input is *checked* where a text that is public says it, *unchecked* where only notes on the paper
say so, *derived* where a few lines of code follow from the paper's own, and *own* where it was
chosen here. No input was chosen for the ratio that comes out.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

import taccl
from benchmarks.seeds_layers import ELEMENT, Layers, macs_of, params_of, resnet50, times_of, vgg16
from taccl.apps.placing import Question, place
from taccl.apps.programs import Target, lowering_of
from taccl.apps.stepping import CallCosts
from taccl.collectives import build_collective
from taccl.files import Document
from taccl.model.problem import problem_of
from taccl.model.schedule import Schedule
from taccl.placement import Limits
from taccl.replay.disturbed import Load, Setup, disturbed, percentile
from taccl.replay.scenario import ScenarioFile, bind
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.edit import Loss, degrade
from taccl.topology.file import load_topology
from taccl.topology.graph import Multicast, Reduction, Topology
from taccl.training.operations import expanded, meetings_of, period_of
from taccl.training.simulation import Step, played
from taccl.training.workload import workload_of
from taccl.units import PS_PER_S, PS_PER_US, Time

CLOSE = 0.15
"""How far a ratio may be from the paper's, relative to that, to be called reproduced."""

Verdict = Literal["reproduced", "explained", "not modelled"]
Known = Literal["checked", "unchecked", "derived", "own"]


@dataclass(frozen=True, slots=True)
class Input:
    """What a row takes for given: what it is, whether a public text says so, and which or why."""

    what: str
    known: Known
    source: str


@dataclass(frozen=True, slots=True)
class Row:
    """A paper's ratio beside the model's.

    `seed`: its name.
    `paper`: the least and the largest ratio that it reports, often the same.
    `source`: where it says so.
    `compared`: what is divided by what.
    `model`: the ratio; None: there is none.
    `ceiling`: what bytes alone allow; None: bytes are not what counts.
    `missing`: what the model leaves out.
    `inputs`: all that was put in.
    `notes`: more that was computed.
    """

    seed: str
    paper: tuple[float, float]
    source: str
    compared: str
    model: float | None
    ceiling: float | None
    missing: str
    inputs: tuple[Input, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What the numbers say: nothing where no input is the paper's."""
        low, high = self.paper
        if self.model is None or all(one.known == "own" for one in self.inputs):
            return "not modelled"
        if low * (1 - CLOSE) <= self.model <= high * (1 + CLOSE):
            return "reproduced"
        if self.ceiling is not None and self.ceiling < low and self.missing:
            return "explained"
        return "not modelled"


# Tools


def stepped(document: Mapping[str, object], costs: CallCosts, steps: int = 6) -> Step:
    """Return what a step of a workload takes, given as the fields of its file."""
    workload = workload_of({"taccl": "workload/1", **document}, "benchmarks/seeds.py")
    work = expanded(workload, max(steps, 4 * period_of(workload.record)))
    cost = cache(costs.cost)
    found = meetings_of(work)
    prices = {key: cost(meeting) for key, meeting in found.items() if key[1] == meeting.first}
    return played(work, prices)


def document(
    name: str, ranks: int, layers: Layers, step: Time, **policy: object
) -> dict[str, object]:
    """Return a workload of `layers`, whose passes take `step` picoseconds together.

    `policy`: how the gradients are summed, as the entry `sync` of a workload file has it.
    """
    times = times_of(layers, step)
    rows = [
        {"name": one.name, "bytes": ELEMENT * one.params,
         "forward": f"{forward}ps", "backward": f"{backward}ps"}
        for one, (forward, backward) in zip(layers, times, strict=True)
    ]  # fmt: skip
    sync = [{"group": "all", **policy}]
    return {"name": name, "ranks": ranks, "layers": rows, "sync": sync}


def ring_factor(ranks: int) -> Fraction:
    """Return how often a ring, or servers on all ranks, carry the bytes over each port, one way."""
    return Fraction(2 * (ranks - 1), ranks)


def once(ranks: int, rate: Fraction) -> str:
    """Return the table of an aggregation in the network: each port carries the bytes once each way.

    `rate`: GB/s of a port. Bus bandwidths of an AllReduce count a ring's bytes.
    """
    return f"alpha={ALPHA},busbw={float(rate * ring_factor(ranks)):.6f}GB/s"


ALPHA = "10us"
"""Of a message between hosts."""

TEN = Fraction(10, 8)
"""GB/s of 10 Gb/s."""

PAYLOAD = Fraction(128, 180)
"""Of SwitchML's packets over DPDK."""

NCCL_SHARE = Fraction(2, 5)
"""Of the line, what NCCL over TCP is taken to reach."""

P100_VGG16, P100_RESNET50, BATCH = 154, 219, 64
"""Samples a second of one P100, and how many make a step."""

V100_RESNET50 = Fraction("2857.9") / Fraction("7.87")
"""Samples a second of one V100, in FP32: those of eight, by their speed-up."""

TENSORFLOW = Input(
    f"P100: VGG16 {P100_VGG16} images/s, ResNet-50 {P100_RESNET50}, batch {BATCH}", "checked",
    "tensorflow.org, guide/performance/benchmarks, synthetic data on one GPU, May 2017",
)  # fmt: skip
SHARES = Input(
    "passes of layers by their multiply-adds, backward twice forward", "own",
    "no times of layers are published",
)  # fmt: skip
BUCKETS = Input(
    "buckets of 25 MiB, the first of 1 MiB, overlapped with the backward pass", "checked",
    "PyTorch's DistributedDataParallel, the defaults",
)  # fmt: skip
SIZES = Input("bytes of layers", "derived", "from the architecture, 4 bytes a parameter")
LATENCY = Input("10 us a message", "own", "counts for little at these sizes")


def hub(ranks: int, gigabits: int) -> Topology:
    """Return ranks on one switch."""
    return load_topology(f"hub:{ranks}@{gigabits}Gb/s,{ALPHA}")


def step_of(samples: int, rate: Fraction | int) -> Time:
    """Return picoseconds of so many samples at a `rate` a second."""
    return ceil(samples * PS_PER_S / Fraction(rate))


# Rows


def adding(topology: Topology) -> Topology:
    """Return a `topology` whose switches copy and add at the rate of their ports."""
    able = (replace(one, multicast=Multicast(), reduce=Reduction()) for one in topology.switches)
    return replace(topology, switches=tuple(able))


def switchml() -> Row:
    """Compare aggregation in the switch with a ring."""
    layers, n = vgg16(), 8
    work = document("vgg16", n, layers, step_of(BATCH, P100_VGG16))

    def ratio(gigabits: int, base: str, other: str) -> float:
        topology = adding(hub(n, gigabits))
        times = [stepped(work, CallCosts(topology, via)).time for via in (base, other)]
        return times[0] / times[1]

    slow = f"alpha={ALPHA},busbw={float(TEN * NCCL_SHARE):.6f}GB/s"
    packets = once(n, TEN * PAYLOAD)
    return Row(
        "SwitchML", (5.5, 5.5), "abstract (arXiv 1903.06701): up to 5.5x",
        "step of VGG16, 8 workers at 10 Gb/s: ring / in the switch",
        ratio(10, "ring", "sharp"), float(ring_factor(n)),
        "the baseline's efficiency: NCCL over TCP is far below the line",
        (
            Input("8 workers, 10 and 100 Gb/s", "unchecked", "the paper's evaluation"),
            SIZES, TENSORFLOW, SHARES, BUCKETS, LATENCY,
            Input("the switch adds and copies: each port carries the bytes once (sharp)", "checked",
                  "the paper's mechanism (abstract, project page)"),
            Input("NCCL at 40 % of the line; 128 of 180 bytes of a packet are payload", "own",
                  "in the note only"),
        ),
        (
            f"at 100 Gb/s {ratio(100, 'ring', 'sharp'):.2f} (2.27 in a summary of the"
            " paper, amplifypartners.com)",
            f"with NCCL at {float(NCCL_SHARE):.0%} of 10 Gb/s, packets as SwitchML's:"
            f" {ratio(10, slow, packets):.2f}; sums alone"
            f" {float(PAYLOAD / NCCL_SHARE * ring_factor(n)):.2f}",
        ),
    )  # fmt: skip


def phub() -> Row:
    """Compare parameter servers in a box of their own with those on the workers."""
    n, topology = 8, hub(8, 10)
    models = {
        "VGG16": (vgg16(), P100_VGG16), "ResNet-50": (resnet50(), P100_RESNET50),
    }  # fmt: skip

    def ratio(name: str, ports: int) -> float:
        layers, rate = models[name]
        work = document(name, n, layers, step_of(BATCH, rate))
        box = once(n, TEN * Fraction(min(ports, n), n))
        times = [stepped(work, CallCosts(topology, via)).time for via in ("parameter-server", box)]
        return times[0] / times[1]

    return Row(
        "PHub", (2.7, 2.7), "abstract (arXiv 1805.07891): up to 2.7x",
        "step of VGG16, 8 workers at 10 Gb/s: servers on the workers / a box of 8 ports",
        ratio("VGG16", 8), float(ring_factor(n)),
        "MXNet's copies and its server's sums, which PHub takes off the path",
        (
            Input("8 workers, 10 Gb/s", "unchecked", "the paper's evaluation"),
            Input("the box as a table: each worker's port carries the bytes once, the box's p ports"
                  " those of all workers", "checked", "the paper's mechanism (abstract)"),
            SIZES, TENSORFLOW, SHARES, BUCKETS, LATENCY,
            Input("a P100's times", "own", "the paper's GPUs are others, not known to be slower"),
        ),
        (
            f"ResNet-50 {ratio('ResNet-50', 8):.2f}",
            f"a box of 4 ports {ratio('VGG16', 4):.2f}",
        ),
    )  # fmt: skip


def messages_beside(ring: Schedule) -> list[Time]:
    """Return what half and 99 % of the messages of others take at most beside a schedule's program.

    They are 16 KB every 50 us on two links, inside a leaf and between leaves.
    """
    topology = ring.topology
    flows = [{"link": name, "size": 16_000, "period": "50us"} for name in ("0->1", "7->8")]
    record = ScenarioFile.model_validate(
        {"taccl": "scenario/1", "name": "shared", "background": flows}
    )
    scenario = bind(record, Document({}, None), topology)
    target = Target("executor", min_bytes=1, max_bytes=1 << 40)
    program, _ = lowering_of(ring, target, 1 << 24, "ring", lambda: True).best
    setup = Setup(topology, target.model, scenario)
    found = disturbed(setup, [Load(program, 1 << 24)]).background
    return [percentile(found, percent) or 0 for percent in (50, 99)]


def panama() -> Row:
    """Compare what a job leaves to others, who share ports with it."""
    topology = load_topology("leaf-spine")
    collective = build_collective("allreduce", topology.num_ranks, 1)
    ring = next(
        iter(classical_schedules(problem_of(topology, collective, 1 << 20), "ring", batch=True))
    )
    sent = Counter(topology.link(send.link).src for send in ring.sends())
    factor = max(sent.values()) / ring.collective.chunks_in_size
    others = 0.3
    half, most = (f"{time / PS_PER_US:.1f}" for time in messages_beside(ring))

    def ratio(job: float) -> float:
        return (1 - others - job) / (1 - others - job * factor)

    return Row(
        "PANAMA", (2.0, 4.5), "abstract (MLSys 2021): short flows 2 to 4.5x, jobs 1.25x",
        "mean completion of other flows: job by a ring / in the switches",
        ratio(0.3), None,
        "the paper's loads (ours are assumed), packets, ECN and the tail",
        (
            Input("a ring sends the model twice: 1000 workers, 1 GB, 2 PB in 1000 steps", "checked",
                  "notes on the paper, bodunhu.com; aggregation sends it once"),
            Input("leaf-spine of 32 ranks", "own", "topologies/leaf-spine.yaml; a ring on it"),
            Input("others load a port by 0.3, a job by 0.3 where it is aggregated", "own",
                  "loads of the paper's simulation are not known; see the note"),
            Input("flows share a port evenly: time grows as 1 / (1 - load)", "own",
                  "processor sharing; exact in the mean for any sizes of flows"),
        ),
        (
            f"a ring carries {factor:.3f} times the bytes",
            f"replayed: of messages of 16 KB every 50 us half take at most {half} us beside the"
            f" ring, 99 % at most {most} us",
            "a job of 0.1 " + f"{ratio(0.1):.2f}, of 0.2 {ratio(0.2):.2f}, of 0.3 {ratio(0.3):.2f}",
        ),
    )  # fmt: skip


def coconet() -> Row:
    """Compare a product and the AllReduce behind it, as one and in eight pieces."""
    n, rows, hidden, flops = 16, 8 * 1024, 3072, 95
    size = 2 * rows * hidden
    topology = load_topology("dgx2")

    def ratio(inner: int) -> tuple[float, float]:
        time = ceil(Fraction(2 * rows * inner * hidden, flops))
        times = []
        for split in (1, 8):
            call = {"when": "forward", "collective": "allreduce", "group": "all",
                    "bytes": size, "split": split}  # fmt: skip
            layer = {"name": "product", "forward": f"{time}ps", "backward": "0ps", "comm": [call]}
            work = {"name": "gpt2", "ranks": n, "layers": [layer]}
            times.append(stepped(work, CallCosts(topology, f"alpha=0us,busbw={busbw}GB/s")))
        return times[0].time / times[1].time, times[0].time / times[1].bound

    busbw = 117
    attention, mlp = ratio(hidden // n), ratio(4 * hidden // n)
    return Row(
        "CoCoNet", (1.2, 1.5), "evaluation (arXiv 2105.05720): 1.2 to 1.5x",
        "product and AllReduce of GPT-2's MLP on 16 V100: one after the other / in 8 pieces",
        mlp[0], mlp[1],
        "kernels that are fused with the AllReduce",
        (
            Input("[8, 1024, H/16] x [H/16, H] and [8, 1024, 4H/16] x [4H/16, H] in FP16,"
                  " 16 ranks", "checked",
                  "github.com/parasailteam/coconet, experiments/gen-model-parallel-graphs.py"),
            Input("H = 3072", "unchecked", "GPT-2 with 8.3 G parameters (Megatron-LM)"),
            Input(f"products at {flops} TFLOP/s", "own", "76 % of the 125 of V100's data sheet"),
            Input(f"AllReduce at a bus bandwidth of {busbw} GB/s, as a table", "checked",
                  "measurements/v100-dgx2.yaml: 64 MiB in 1051.8 us on 12 of 16 GPUs"),
            Input("1.2 to 1.5x", "unchecked", "no public text with the figures was found"),
            Input("pieces have no latency", "own", "CoCoNet runs all of them in one kernel"),
        ),
        (f"attention {attention[0]:.2f} of {attention[1]:.2f}",),
    )  # fmt: skip


def pufferfish() -> Row:
    """Compare a model with factors in its last stage with the whole one."""
    n, batch, topology = 16, 32, hub(16, 10)

    def ratio(width: int) -> tuple[float, float]:
        whole, small = resnet50(width), resnet50(width, 4)
        rate = V100_RESNET50 * macs_of(resnet50()) / macs_of(whole)
        step = step_of(batch, rate)
        costs = CallCosts(topology, "ring")
        base = stepped(document("whole", n, whole, step), costs)
        other = document("factors", n, small, step * macs_of(small) // macs_of(whole))
        return base.time / stepped(other, costs).time, params_of(whole) / params_of(small)

    first, second = ratio(1), ratio(2)
    return Row(
        "Pufferfish", (1.64, 1.64), "abstract (arXiv 2103.03936): up to 1.64x over PyTorch's DDP",
        "step of ResNet-50, 16 nodes at 10 Gb/s: whole / factors in the last stage",
        first[0], first[1],
        "",
        (
            Input(f"ResNet-50 x {params_of(resnet50(1, 4)) / params_of(resnet50()):.3f} bytes and"
                  f" x {macs_of(resnet50(1, 4)) / macs_of(resnet50()):.3f} multiply-adds;"
                  f" WRN-50-2 x {params_of(resnet50(2, 4)) / params_of(resnet50(2)):.3f} and"
                  f" x {macs_of(resnet50(2, 4)) / macs_of(resnet50(2)):.3f}", "derived",
                  "github.com/hwang595/Pufferfish, models/resnet.py: HybridResNet, a quarter"),
            Input("16 nodes at 10 Gb/s, one V100 each", "unchecked", "the paper's p3.2xlarge"),
            Input(f"{float(V100_RESNET50):.0f} images/s of ResNet-50 in FP32", "checked",
                  "NVIDIA/DeepLearningExamples, RN50v1.5: 2857.9 of 8 V100, 7.87 of one"),
            Input("batch 32 a node; WRN-50-2 by its multiply-adds", "own", "not found"),
            SHARES, BUCKETS, LATENCY,
        ),
        (f"WRN-50-2 {second[0]:.2f} of {second[1]:.2f}",),
    )  # fmt: skip


def local_sgd() -> Row:
    """Compare sums of every step with those of every other, needed two steps later."""
    compute, sums = 100, Fraction("34.6")
    via = f"alpha={float(sums)}ms,busbw=1000000GB/s"
    costs = CallCosts(hub(16, 40), via)

    def step(**policy: object) -> Step:
        layer = {"name": "model", "bytes": "1B", "forward": "0ps", "backward": f"{compute}ms"}
        sync = [{"group": "all", "overlap": "none", **policy}]
        return stepped({"name": "local", "ranks": 16, "layers": [layer], "sync": sync}, costs, 12)

    base, local, hidden = step(), step(every=2), step(every=2, hide=1)
    paper = (1 + 0.346) / (1 + 0.015)
    return Row(
        "Overlap-Local-SGD", (paper, paper),
        "evaluation (arXiv 2002.09539): 34.6 % of communication become 1.5 % at tau = 2",
        "step: sums of every step / of every other, hidden behind the next two",
        base.time / hidden.time, base.time / hidden.bound,
        "the 1.5 % that are left",
        (
            Input("communication is 34.6 % of computing: ResNet-18 on CIFAR-10, 16 nodes at"
                  " 40 Gb/s; 1.5 % with tau = 2", "checked",
                  "public reading notes that quote the paper's figure 4, not the paper itself"),
            Input("as a table: a sum takes 34.6 ms, a step computes 100 ms", "derived",
                  "from that; nothing else counts"),
        ),
        (f"local SGD at tau = 2 without overlap: a step takes {local.time / compute / 10**9:.3f}"
         f" of computing, overlapped {hidden.time / compute / 10**9:.3f}",),
    )  # fmt: skip


def mlfabric(seconds: float = 10.0) -> Row:
    """Compare an algorithm made for a fabric with a slow port with a ring."""
    size, n = 100_000_000, 8
    quarter = [Loss("--edge", name, Fraction(1, 4)) for name in ("0->hub", "hub->0")]
    topology, _ = degrade(hub(n, 10), quarter)
    ring = taccl.synthesize(topology, "allreduce", size, engine="ring", time_limit=seconds)
    auto = taccl.synthesize(topology, "allreduce", size, time_limit=seconds)
    least = auto.bound
    return Row(
        "MLfabric", (3.0, 3.0), "abstract (arXiv 1907.00434): up to 3x",
        "AllReduce of 100 MB, 8 ranks at 10 Gb/s, a port at a quarter: ring / taccl's",
        ring.time / auto.time, ring.time / least.time,
        "asynchronous updates: fewer steps where each is of newer weights",
        (
            Input("a port at a quarter of its bandwidth", "own",
                  "the paper's clusters change over time; by how much was not found"),
            Input("8 ranks, 10 Gb/s, 100 MB", "own", "of the size of ResNet-50"),
            Input("transfers are planned for the bandwidth that there is", "checked",
                  "the paper's mechanism (abstract)"),
        ),
        (
            f"ring {ring.time / 1e9:.1f} ms, taccl {auto.time / 1e9:.1f}, bound"
            f" {least.time / 1e9:.1f}",
            f"the shortest first, the mean of {n} transfers ends {2 * n / (n + 1):.2f} times"
            " sooner than where they share a port",
        ),
    )  # fmt: skip


def dlion() -> Row:
    """Compare even batches with those by the speed of ranks."""

    def ratio(speeds: Sequence[int]) -> float:
        ranks = len(speeds)
        layer = {"name": "model", "bytes": "1B", "forward": "1ms", "backward": "2ms"}
        times = [
            stepped(
                {"name": "dlion", "ranks": ranks, "layers": [layer],
                 "speed": dict(enumerate(speeds)), "batch": {"samples": 192, "by": by},
                 "sync": [{"group": "all"}]},
                CallCosts(hub(ranks, 1), "alpha=0us,busbw=1000000GB/s"),
            ).time
            for by in ("even", "weighted")
        ]  # fmt: skip
        return times[0] / times[1]

    cpu, gpu = (24, 12, 4, 4, 4, 4), (8, 4, 2, 1)
    return Row(
        "DLion", (2.0, 4.2), "abstract (HPDC 2021): up to 4.2x of GPUs, 2x of CPUs",
        f"step on speeds {cpu}: even batches / weighted ones",
        ratio(cpu), None,
        "gradients by link, and what merged weights gain",
        (
            Input(f"speeds {cpu} of CPUs", "unchecked", "cores of the paper's heterogeneous case"),
            Input(f"speeds {gpu} of GPUs", "own", "in the note only"),
            Input("sums of no time", "own", "they would lessen both"),
        ),
        (f"speeds {gpu} {ratio(gpu):.2f}, beside 4.2 of GPUs",),
    )  # fmt: skip


def bytescheduler() -> Row:
    """Compare sums behind the backward pass with those by priority in pieces."""
    n = 8
    layers, costs = vgg16(), CallCosts(hub(n, 10), "ring")

    def step(**policy: object) -> Step:
        work = document("vgg16", n, layers, step_of(BATCH, P100_VGG16), **policy)
        return stepped(work, costs)

    layered = {"bucket": "1B", "first": "1B"}
    none = step(overlap="none", **layered)
    fifo = step(**layered)
    best = step(order="priority", partition="4MB", wait="layer", **layered)
    return Row(
        "ByteScheduler", (2.96, 2.96), "abstract (SOSP 2019): up to 2.96x of the original speed",
        "step of VGG16, 8 workers at 10 Gb/s: no overlap / by priority in pieces of 4 MB",
        none.time / best.time, none.time / best.bound,
        "what the original frameworks lose besides: their servers and transports",
        (
            Input("8 workers, 10 Gb/s", "unchecked", "the slowest network of the paper"),
            SIZES, TENSORFLOW, SHARES, LATENCY,
            Input("pieces of 4 MB", "own", "the paper tunes them"),
        ),
        (
            f"over sums in order, overlapped: {fifo.time / best.time:.2f}",
            f"computing and sums alone {none.bound / 1e9:.0f} ms at least",
        ),
    )  # fmt: skip


def cloud_collectives(replays: int = 2000) -> Row:
    """Compare the order of ranks found from a matrix with random ones."""
    machine = load_topology("slow-uplink")
    places = random.Random(1).sample(range(machine.num_ranks), machine.num_ranks)
    lines = ["src dst latency_us bandwidth_GB/s"]
    for link in map(machine.link, range(len(machine.links))):
        edges = [machine.edges[edge] for edge in link.edges]
        alpha = sum(edge.alpha for edge in edges) / PS_PER_US
        beta = max(edge.beta for edge in edges if edge.beta is not None)
        rate = 1000 / float(beta)
        lines.append(f"n{places[link.src]} n{places[link.dst]} {alpha:.3f} {rate:.6f}")

    def ratio(algorithm: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pairs.txt"
            file.write_text("\n".join(lines) + "\n")
            limits = Limits(replays=replays)
            found = place(Question((str(file),), algorithm=algorithm, size=256_000, limits=limits))
        return (found.random_mean or found.identity) / found.time

    return Row(
        "Cloud Collectives", (1.3, 3.7), "abstract (arXiv 2105.14088): 3.7x alone, 1.3x of a step",
        "AllReduce of 256 KB by halving-doubling, 8 hosts: mean of random orders / order found",
        ratio("halving-doubling"), None,
        "the clouds' matrices, which are not public",
        (
            Input("a matrix of 8 hosts, the pairs of topologies/slow-uplink.yaml, shuffled", "own",
                  "those of the paper's clouds were not published"),
            Input("256 KB", "own", "as benchmarks/placed.py takes"),
        ),
        (
            f"a ring {ratio('ring'):.2f}: each round waits for its slowest pair, and pairs that"
            " share an uplink are not in a matrix",
            "python -m benchmarks.placed runs a ring with real bytes over an uplink that is shared",
        ),
    )  # fmt: skip


ROWS: Mapping[str, tuple[Callable[[], Row], Verdict]] = {
    "SwitchML": (switchml, "explained"),
    "PHub": (phub, "explained"),
    "PANAMA": (panama, "reproduced"),
    "CoCoNet": (coconet, "reproduced"),
    "Pufferfish": (pufferfish, "reproduced"),
    "Overlap-Local-SGD": (local_sgd, "reproduced"),
    "MLfabric": (mlfabric, "explained"),
    "DLion": (dlion, "reproduced"),
    "ByteScheduler": (bytescheduler, "explained"),
    "Cloud Collectives": (cloud_collectives, "not modelled"),
}
"""What makes each row, and the verdict that it has to have."""
