"""Networks of every kind that a file can describe are loaded, served and judged."""

from pathlib import Path

from taccl.apps import Request, load_network, synthesize
from taccl.verify import verify
from tests.sweep import for_each

NODE = "node: {gpus: 2, wires: [{from: 0, to: 1, bandwidth: 50GB/s, alpha: 0.7us}], nics: [%s]}"
BIG = "{gpus: 3, switches: [{name: sw, bandwidth: 100GB/s, alpha: 0.7us}], nics: [%s]}"
SMALL = "{gpus: 2, wires: [{from: 0, to: 1, bandwidth: 25GB/s, alpha: 1us}], nics: [%s]}"
OWN = "{name: a, gpus: [0], bandwidth: 25GB/s}, {name: b, gpus: [1], bandwidth: 25GB/s}"
ALL = "{name: a, gpus: all, bandwidth: 25GB/s}"
TWO_EACH = (
    "{name: a, gpus: [0], bandwidth: 25GB/s}, {name: b, gpus: [0], bandwidth: 25GB/s},"
    " {name: c, gpus: [1], bandwidth: 12.5GB/s}, {name: d, gpus: [1], bandwidth: 12.5GB/s}"
)
PCIE = "{name: a, gpus: all, bandwidth: 25GB/s, pcie: {bandwidth: 16GB/s, alpha: 0.2us}}"

NETWORKS = {
    "uneven links": """ranks: 3
edges:
  - {from: 0, to: 1, bandwidth: 50GB/s, alpha: 0.7us}
  - {from: 1, to: 2, bandwidth: 12.5GB/s, alpha: 2us, overhead: 0.5us}
  - {from: 0, to: 2, bandwidth: 100GB/s, alpha: 0.7us, both: false}""",
    "uneven servers": (
        f"nodes: [{BIG % ALL}, {SMALL % OWN}]\nfabric: {{kind: switch, alpha: 1.7us}}"
    ),
    "seven ranks": "shape: {kind: ring, dims: [7]}",
    "one-way ring": "ranks: 5\nedges:\n"
    + "\n".join(
        f"  - {{from: {r}, to: {(r + 1) % 5}, bandwidth: 10GB/s, alpha: 1us, both: false}}"
        for r in range(5)
    ),
    "parallel wires": """ranks: 2
edges:
  - {from: 0, to: 1, bandwidth: 50GB/s, alpha: 0.7us, name: upper}
  - {from: 0, to: 1, bandwidth: 25GB/s, alpha: 0.7us, name: lower}""",
    "several NICs for each GPU": (
        f"{NODE % TWO_EACH}\ncount: 2\nfabric: {{kind: switch, alpha: 1.7us}}"
    ),
    "a shared NIC": f"{NODE % ALL}\ncount: 3\nfabric: {{kind: switch, alpha: 1.7us}}",
    "a NIC behind PCIe": f"{NODE % PCIE}\ncount: 2\nfabric: {{kind: switch, alpha: 1.7us}}",
    "rails": f"{NODE % OWN}\ncount: 3\nfabric: {{kind: rail, alpha: 1.7us}}",
    "rails and a spine": (
        f"{NODE % OWN}\ncount: 2\n"
        "fabric: {kind: rail, alpha: 1.7us, spine: {bandwidth: 20GB/s, alpha: 1us}}"
    ),
    "an oversubscribed spine": (
        f"{NODE % OWN}\ncount: 4\n"
        "fabric: {kind: leaf-spine, alpha: 1.7us, leaves: 2, uplink: 25GB/s}"
    ),
    "uneven leaves": (
        f"{NODE % OWN}\ncount: 3\n"
        "fabric: {kind: leaf-spine, alpha: 1.7us, leaves: 2, uplink: 25GB/s}"
    ),
    "a mesh of servers": (
        f"{NODE % ALL}\ncount: 3\nfabric: {{kind: mesh, dims: [3], alpha: 1.7us}}"
    ),
}


@for_each("collective", ["allgather", "allreduce"], quick=7)
@for_each("name", NETWORKS)
def test_any_network_is_served(name: str, collective: str, tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(f"taccl: topology/1\nname: network\n{NETWORKS[name]}\n")
    logical = load_network(str(path))
    request = Request(
        logical, collective, 100_000, chunks=1, engine="taccl", target=None, time_limit=5,
    )  # fmt: skip
    found = synthesize(request)
    assert verify(found.schedule, logical) == []
    assert all(bound.time <= found.schedule.makespan for bound in found.bounds)
