"""Topologies in the formats of other tools: one function a format, one row in EXPORTS."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taccl.errors import TacclWarning
from taccl.report.export_astra import astra_sim
from taccl.report.export_nccl import nccl_xml
from taccl.report.graph import dot
from taccl.topology.graph import Edge, LocalCosts, Topology
from taccl.units import PS_PER_US, beta_text


@dataclass(frozen=True, slots=True)
class Exporter:
    """A row of EXPORTS: what makes the text, and what tools read it."""

    write: Callable[[Topology], str]
    about: str


def graph_json(topology: Topology) -> str:
    """Return a plain JSON graph, which ``topology import --from graph`` reads back exactly.

    A bandwidth that no decimal number says is written as a beta, too.
    """
    left_out = [
        what
        for what, there in (
            ("overheads", any(edge.overhead is not None for edge in topology.edges)),
            ("alpha_rule: delay", topology.alpha_rule != "occupy"),
            ("multicast of switches", any(switch.multicast for switch in topology.switches)),
            ("reduce of switches", any(switch.reduce for switch in topology.switches)),
            ("local costs", topology.local != LocalCosts()),
            ("chunk_size", topology.chunk_size is not None),
        )
        if there
    ]
    if left_out:
        warnings.warn(
            f"{topology.name}: a plain graph has no {', '.join(left_out)}: left out",
            TacclWarning, stacklevel=2,
        )  # fmt: skip
    nodes: list[dict[str, object]] = [
        {"id": rank, "type": "gpu", "host": server}
        for rank, server in enumerate(topology.server_of)
    ]
    for switch in topology.switches:
        across = {"across": "servers"} if switch.across_servers else {}
        nodes.append({"id": switch.name, "type": "switch", **across})
    edges = [_edge(topology, edge) for edge in topology.edges]
    lists = {"nodes": nodes, "edges": edges}
    rows = {
        name: ",\n".join(f"    {json.dumps(entry)}" for entry in found)
        for name, found in lists.items()
    }
    parts = [f'  "{name}": [\n{text}\n  ]' for name, text in rows.items()]
    return "{\n" + ",\n".join([f'  "name": {json.dumps(topology.name)}', *parts]) + "\n}\n"


def _edge(topology: Topology, edge: Edge) -> dict[str, object]:
    ends = (
        v if v < topology.num_ranks else topology.vertex_name(v) for v in (edge.tail, edge.head)
    )
    entry: dict[str, object] = dict(zip(("src", "dst"), ends, strict=True))
    if edge.beta is not None:
        rate = float(1000 / edge.beta)
        entry["bandwidth_GBps"] = rate
        if 1000 / Fraction(repr(rate)) != edge.beta:
            entry["beta"] = beta_text(edge.beta)
    return {**entry, "alpha_us": edge.alpha / PS_PER_US}


EXPORTS: Mapping[str, Exporter] = MappingProxyType({
    "dot": Exporter(dot, "Graphviz"),
    "graph": Exporter(graph_json, "plain JSON, as `import --from graph` takes it"),
    "nccl": Exporter(nccl_xml, "NCCL's description of a host: NCCL_TOPO_FILE"),
    "astra-sim": Exporter(astra_sim, "the network file of ASTRA-sim's analytical backend"),
})  # fmt: skip
"""Formats by name."""
