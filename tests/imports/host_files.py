"""Descriptions of hosts in the formats of nvidia-smi, NCCL and rocm-smi, made for these tests."""

from pathlib import Path

from taccl.imports import FabricOptions, HostOptions, ImportOptions, import_files
from taccl.topology.file import topology_from_document
from taccl.topology.graph import Topology

INPUTS = Path(__file__).parent / "inputs"
REALISTIC = {
    "nvidia-smi": ("dgx1v", "dgx1v-hidden", "dgx-a100", "hgx-h100", "pcie-box"),
    "nccl": ("dgx1v", "dgx-a100", "hgx-h100", "pcie-box", "mi300x"),
    "rocm-smi": ("mi250", "mi300x", "mi100-pcie"),
}
ENDS = {"nvidia-smi": "txt", "nccl": "xml", "rocm-smi": "txt"}
ALL = tuple((kind, name) for kind, names in REALISTIC.items() for name in names)


def path_of(kind: str, name: str) -> Path:
    """Return the file of an input."""
    return INPUTS / f"{name}.{ENDS[kind]}"


def text_of(kind: str, name: str) -> str:
    """Return the text of an input."""
    return path_of(kind, name).read_text()


def mesh(path: Path, gpus: int, links: int) -> Path:
    """Write GPUs that all have as many NVLinks to each other."""
    names = [f"GPU{gpu}" for gpu in range(gpus)]
    rows = [[name, *("X" if other == name else f"NV{links}" for other in names)] for name in names]
    path.write_text("\n".join("\t".join(row) for row in (["", *names], *rows)) + "\n")
    return path


def edited(tmp_path: Path, kind: str, name: str, *changes: tuple[str, str]) -> Path:
    """Return a copy of an input with some texts replaced."""
    text = text_of(kind, name)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / path_of(kind, name).name
    path.write_text(text)
    return path


def imported(
    *paths: Path | str,
    kind: str | None = None,
    host: HostOptions | None = None,
    fabric: FabricOptions | None = None,
) -> Topology:
    """Return the topology of some hosts."""
    options = ImportOptions(host=host or HostOptions(), fabric=fabric or FabricOptions())
    return topology_from_document(import_files([str(p) for p in paths], kind, options).document)


def narrowest(topology: Topology, src: int, dst: int) -> float:
    """Return GB/s of the first link between two ranks."""
    return float(1000 / topology.links.max_beta(topology.links_between(src, dst)[0]))


def crossed(topology: Topology, src: int, dst: int) -> list[str]:
    """Return the names of the edges of the first link between two ranks."""
    link = topology.links_between(src, dst)[0]
    return [topology.edges[edge].name for edge in topology.links.edges_of(link)]
