"""What hosts are made of: bandwidths of links that tools name without saying how fast they are.

All figures are GB/s in one direction, as NCCL and RCCL count them: what a program can reach, not
what a data sheet promises. PCIe is width x speed / 80, three quarters of the nominal rate.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/topo.h`` (``SM*_NVLINK_BW``, ``*_QPI_BW``, ``AMD_BW``, ``P9_BW``,
``ARM_BW``), ``src/graph/topo.cc`` (``kvDictPciGen``, ``ncclTopoGetInterCpuBw``); ROCm/rccl,
``src/graph/topo.h`` (``*_XGMI_WIDTH``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taccl.units import beta_text


@dataclass(frozen=True, slots=True)
class Gpu:
    """A generation of GPUs, and what hosts with it usually have.

    Parameters
    ----------
    sm
        Compute capability, as ``sm`` in NCCL's files; AMD: of the name, 908 for gfx908.
    links
        NVLinks or xGMI links of a GPU.
    link
        GB/s of one of them.
    pcie
        Generation of PCIe.
    nic
        GB/s of a NIC.
    sockets
        GB/s between two CPUs.
    """

    sm: int
    links: int
    link: Fraction
    pcie: int
    nic: Fraction
    sockets: Fraction


GPUS: Mapping[str, Gpu] = MappingProxyType({
    "p100": Gpu(60, 4, Fraction(18), 3, Fraction("12.5"), Fraction(6)),
    "v100": Gpu(70, 6, Fraction(20), 3, Fraction("12.5"), Fraction(10)),
    "a40": Gpu(86, 4, Fraction(12), 4, Fraction("12.5"), Fraction(16)),
    "a100": Gpu(80, 12, Fraction(20), 4, Fraction(25), Fraction(16)),
    "h100": Gpu(90, 18, Fraction("20.6"), 5, Fraction(50), Fraction(22)),
    "b200": Gpu(100, 18, Fraction("40.1"), 5, Fraction(50), Fraction(40)),
    "mi100": Gpu(908, 3, Fraction(24), 4, Fraction(25), Fraction(16)),
    "mi250": Gpu(910, 8, Fraction(36), 4, Fraction(25), Fraction(16)),
    "mi300x": Gpu(942, 7, Fraction(48), 5, Fraction(50), Fraction(16)),
    "other": Gpu(0, 0, Fraction(20), 4, Fraction("12.5"), Fraction(10)),
})  # fmt: skip
"""GPUs by name; ``other`` has no links of its own."""

NVLINK_BY_SM: tuple[tuple[int, Fraction], ...] = (
    (100, Fraction("40.1")), (90, Fraction("20.6")), (87, Fraction(20)), (86, Fraction(12)),
    (70, Fraction(20)), (60, Fraction(18)),
)  # fmt: skip
"""GB/s of an NVLink, by the least compute capability (``ncclTopoNVLinkBw``)."""

GPU_BY_SM: tuple[tuple[int, str], ...] = (
    (100, "b200"), (90, "h100"), (86, "a40"), (80, "a100"), (70, "v100"), (60, "p100"),
)  # fmt: skip
"""Names of GPUS by the least compute capability."""

GPU_BY_GCN: Mapping[str, str] = MappingProxyType({
    "94": "mi300x", "90a": "mi250", "908": "mi100",
})  # fmt: skip
"""Names of GPUS by how the architecture's name begins, after its ``gfx``."""

XGMI_BY_GCN: Mapping[str, Fraction] = MappingProxyType({
    "gfx95": Fraction(48), "gfx94": Fraction(48), "gfx90a": Fraction(36),
})  # fmt: skip
"""GB/s of an xGMI link, by how the architecture's name begins; of others 24."""

OLD_XGMI = Fraction(24)

LANE = MappingProxyType({1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480})
"""PCIe generations: 100 Mb/s of a lane."""

GEN_BY_SPEED: tuple[tuple[Fraction, int], ...] = (
    (Fraction("2.5"), 1), (Fraction(5), 2), (Fraction(8), 3), (Fraction(16), 4), (Fraction(32), 5),
    (Fraction(64), 6),
)  # fmt: skip
"""GT/s to PCIe generation."""

GPU_NAMES = ", ".join(GPUS)


def pcie_bandwidth(generation: int, width: int = 16) -> Fraction:
    """Return GB/s of a PCIe link."""
    return Fraction(width * LANE[generation], 80)


def nvlink_bandwidth(sm: int) -> Fraction:
    """Return GB/s of one NVLink of a GPU of a compute capability, such as 80."""
    return next((rate for least, rate in NVLINK_BY_SM if sm >= least), Fraction(18))


def rate_text(rate: Fraction) -> str:
    """Return GB/s as a topology file writes them, exactly."""
    scaled = rate * 10**9
    if scaled.denominator != 1:
        return beta_text(1000 / rate)
    whole, places = divmod(int(scaled), 10**9)
    return f"{whole}.{places:09d}".rstrip("0").rstrip(".") + "GB/s"
