"""The machines of the gather benchmark, and what each row is held to."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from taccl.apps import load_network
from taccl.apps.inputs import MachineOptions
from taccl.errors import TacclWarning
from taccl.imports import ImportOptions, import_topology
from taccl.topology.edit import degrade, read_loss
from taccl.topology.graph import LogicalTopology, whole

DATA = Path(__file__).parents[2] / "shared" / "data" / "topologies"
"""Published fabrics as JSON graphs; rows that need them are left out where they are not."""


@dataclass(frozen=True)
class Machine:
    """A network of the benchmark.

    Parameters
    ----------
    spec, nodes
        As on the command line; a spec that ends in ``.json`` is a graph in DATA.
    slow
        Edges that keep half of their bandwidth.
    symmetry
        ``declared``: as it is; ``searched``: without declared rotations; ``none``: without any.
    """

    spec: str
    nodes: int | None = None
    slow: str = ""
    symmetry: str = "declared"

    @property
    def name(self) -> str:
        """What the tables call it."""
        note = {"declared": "", "searched": ", plain graph", "none": ", no symmetry"}[self.symmetry]
        count = f" x {self.nodes}" if self.nodes else ""
        return f"{self.spec}{count}{note}{', one NIC at half speed' if self.slow else ''}"

    def missing(self) -> str:
        """Return why it can't be loaded, or nothing."""
        if self.spec.endswith(".json") and not (DATA / self.spec).is_file():
            return f"{DATA / self.spec} is not there"
        return ""

    def load(self, rule: str | None = None) -> LogicalTopology:
        """Return the network, made anew, so that nothing computed before is at hand."""
        if self.spec.endswith(".json"):
            with warnings.catch_warnings():  # it says which keys are notes only
                warnings.simplefilter("ignore", TacclWarning)
                topology = import_topology(str(DATA / self.spec), None, ImportOptions())
            return whole(topology, topology.rotations)
        logical = load_network(self.spec, MachineOptions(nodes=self.nodes, alpha_rule=rule))
        if self.slow:
            topology, _ = degrade(logical.topology, [read_loss("--edge", self.slow, "0.5")])
            return whole(topology, topology.rotations)
        if self.symmetry == "declared":
            return logical
        bare = whole(replace(logical.topology, rotations=()))
        if self.symmetry == "searched":
            return bare
        nothing = tuple(range(bare.topology.num_ranks))
        return replace(bare, symmetry=(nothing,), symmetry_asked=True)


@dataclass(frozen=True)
class Gather:
    """An allgather of 1 MB for each rank, one chunk to a message.

    Parameters
    ----------
    machine, chunks
        What is gathered where.
    gap_fixed
        Makespan / bound for this chunk count - 1, at most.
    seconds
        Wall clock on an idle machine with two cores, at most; also the time limit.
    gap
        At 64 MB for each rank and the best chunk count, makespan / bound for all algorithms - 1,
        at most.
    """

    machine: Machine
    chunks: int
    gap_fixed: float
    seconds: float
    gap: float = 0.10


@dataclass(frozen=True)
class Bandwidth:
    """An allgather of 100 GB: the bound in GB/s to 4 digits, and the part of it to reach."""

    machine: Machine
    bound: str
    part: float = 0.95


@dataclass(frozen=True)
class Small:
    """An allgather of 1 KB for each rank, and its ratio to the largest of three bounds, at most."""

    machine: Machine
    ratio: float
    rule: str


@dataclass(frozen=True)
class Sum:
    """An allreduce of so many MB.

    Parameters
    ----------
    machine, megabytes
        The buffer.
    ratio
        To the best reducescatter plus the best allgather, at most; where a bound shows that this
        is impossible, 1.
    gap
        To the bound for all algorithms, at most; None: no target.
    chunks
        For each rank, of the sum and of its halves; None: the best count of each.
    batch
        Whether chunks may travel together, in the sum and in its halves.
    """

    machine: Machine
    megabytes: int
    ratio: float = 1.0
    gap: float | None = None
    chunks: int | None = None
    batch: bool = False

    @property
    def title(self) -> str:
        """What the table calls it."""
        return f"{self.machine.name}{', batches' if self.batch else ''}"


SLOW = "*s0/ib0.*"
A100 = Machine("dgx-a100", 8)

GATHERS = (
    Gather(Machine("ndv2", 1), 1, 0.005, 5),
    Gather(Machine("dgx2", 1), 1, 0.005, 5),
    Gather(Machine("dgx2", 2), 1, 0.005, 5),
    Gather(Machine("torus2d:4x4"), 1, 0.005, 5),
    Gather(Machine("torus2d:8x8"), 1, 0.005, 5),
    Gather(Machine("torus2d:32x32"), 1, 0.005, 30),
    Gather(Machine("dgx-a100", 2), 1, 0.005, 5),
    Gather(A100, 1, 0.005, 5),
    Gather(Machine("dgx-a100", 32), 1, 0.005, 10),
    Gather(Machine("dgx-a100", 128), 1, 0.005, 30),
    Gather(Machine("ndv2", 2), 4, 0.015, 10),
    Gather(Machine("dgx2", 2), 4, 0.015, 10),
    Gather(Machine("mi250", 1), 4, 0.03, 60, 0.15),
    Gather(Machine("mi250", 2), 4, 0.05, 60, 0.15),
    Gather(replace(A100, symmetry="searched"), 1, 0.08, 60, 0.15),
    Gather(replace(A100, symmetry="none"), 1, 0.08, 60, 0.15),
    Gather(replace(A100, slow=SLOW), 1, 0.06, 60, 0.15),
    Gather(replace(A100, slow=SLOW), 4, 0.10, 60, 0.15),
)

BANDWIDTHS = (
    Bandwidth(Machine("NDv2_1chassis.json"), "171.4"),
    Bandwidth(Machine("NDv2_2chassis.json"), "25.00"),
    Bandwidth(Machine("NDv2_4chassis.json"), "16.67"),
    Bandwidth(Machine("DGX2_2chassis.json"), "129.0"),
    Bandwidth(Machine("dgx-a100", 1), "342.9"),
    Bandwidth(Machine("dgx-a100", 2), "346.7"),
    Bandwidth(Machine("dgx-a100", 3), "300.0"),
    Bandwidth(Machine("dgx-a100", 4), "266.7"),
    Bandwidth(Machine("dgx-a100", 8), "228.6"),
    Bandwidth(Machine("dgx-h100", 1), "514.3"),
    Bandwidth(Machine("dgx-h100", 2), "533.3"),
    Bandwidth(Machine("dgx-h100", 4), "516.1"),
    Bandwidth(Machine("h800-rail", 2), "208.5"),
    Bandwidth(Machine("h800-rail", 4), "201.8"),
    Bandwidth(Machine("forestcoll_mi250_1node.json"), "342.9", 0.90),
    Bandwidth(Machine("forestcoll_mi250_2node.json"), "354.1", 0.90),
)

SMALLS = tuple(
    Small(machine, ratio, rule)
    for machine, ratio in (
        (Machine("dgx2", 1), 1.1), (Machine("torus2d:8x8"), 1.1), (Machine("dgx2", 2), 2.0),
        (Machine("dgx-a100", 2), 2.0), (A100, 2.0),
    )
    for rule in ("occupy", "delay")
)  # fmt: skip

SUMS = (
    Sum(Machine("ring:8"), 64, 0.9, chunks=1),
    Sum(Machine("ndv2", 1), 64, 0.9, chunks=1),
    Sum(Machine("ndv2", 1), 64, 0.9, chunks=3),
    Sum(Machine("ring:8"), 64, 0.9),
    Sum(Machine("ndv2", 1), 64, 0.9),
    Sum(Machine("torus2d:4x4"), 64),
    Sum(Machine("mi250", 1), 64),
    Sum(Machine("ndv2", 1), 256, gap=0.05),
    Sum(Machine("dgx2", 1), 256, gap=0.05),
    Sum(Machine("dgx2", 2), 256, gap=0.05),
    Sum(Machine("dgx-a100", 2), 256),
    Sum(A100, 256),
    # One by one, the chunks that fill the pipeline early cost an alpha each.
    Sum(Machine("dgx-a100", 2), 256, gap=0.05, batch=True),
    Sum(A100, 256, gap=0.05, batch=True),
)

FAMILIES = (
    (Machine("torus2d:8x8"), Machine("torus2d:16x16"), Machine("torus2d:32x32")),
    (A100, Machine("dgx-a100", 32), Machine("dgx-a100", 128)),
)
"""64, 256 and 1024 ranks of a kind."""

EXPONENT = 1.3
"""Seconds grow with that power of the number of sends, at most."""
