"""A tiny machine for sketches, and how to write one down and apply it."""

import json
from pathlib import Path

from taccl.sketch import apply_sketch, load_sketch
from taccl.topology.file import load_topology
from taccl.topology.graph import LogicalTopology, Topology

# Two servers of two GPUs: 0, 1 and 2, 3. Each server has a switch and one NIC.
TWINS = """\
taccl: topology/1
name: twins
node:
  gpus: 2
  switches: [{name: sw, members: all, bandwidth: 100GB/s}]
  nics: [{name: ib0, gpus: all, bandwidth: 10GB/s}]
count: 2
fabric: {kind: switch}
"""
INSIDE = {(0, 1), (1, 0), (2, 3), (3, 2)}
ACROSS = {(a, b) for a in (0, 1) for b in (2, 3)} | {(b, a) for a in (0, 1) for b in (2, 3)}


def twins(path: Path, nodes: int = 2) -> Topology:
    """Return the tiny machine with a number of servers."""
    file = path / "twins.yaml"
    file.write_text(TWINS)
    return load_topology(str(file), nodes=nodes)


def native(text: str, path: Path, nodes: int = 2) -> LogicalTopology:
    """Apply a native sketch to the tiny machine."""
    file = path / "sketch.yaml"
    file.write_text(f"taccl: sketch/1\nname: tiny\n{text}")
    return apply_sketch(twins(path, nodes), load_sketch(str(file)))


def foreign(path: Path, nodes: int = 2, **fields: object) -> LogicalTopology:
    """Apply a sketch in TACCL's form to the tiny machine; fields replace those of a plain one."""
    document: dict[str, object] = {
        "nnodes": nodes,
        "intranode_sketch": {"strategy": "none"},
        "internode_sketch": {"strategy": "relay", "internode_conn": "fully-connected"},
        "symmetry_offsets": [],
        "hyperparameters": {"input_chunkup": 1},
    }
    document |= fields
    file = path / "sketch.json"
    file.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return apply_sketch(twins(path, nodes), load_sketch(str(file)))


def open_pairs(logical: LogicalTopology) -> set[tuple[int, int]]:
    """Return the pairs of ranks that an allowed link joins."""
    links = logical.topology.links
    return {(int(links.src[link]), int(links.dst[link])) for link in logical.links()}
