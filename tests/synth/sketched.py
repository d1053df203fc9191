"""Tiny machines for sketches, in whole microseconds a chunk, and solves under a sketch."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from taccl.apps import logical_group
from taccl.model.problem import Options
from taccl.model.schedule import Schedule
from taccl.sketch import apply_sketch, load_sketch
from taccl.synth.search import solve
from taccl.topology.file import topology_from_document
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.verify import verify
from tests.synth.problems import problem_of

US = 1_000_000
"""Picoseconds of a microsecond: a chunk of 1000 bytes takes one at 1 GB/s."""

ONE_BY_ONE = Options(time_limit=18.0, deterministic=True, workers=1, batch=False)


def wires(
    ranks: int, joins: Iterable[tuple[int, int, int]], servers: list[list[int]] | None = None
) -> Topology:
    """Return ranks joined by (a, b, microseconds a chunk) wires both ways, without alpha."""
    document: dict[str, object] = {
        "taccl": "topology/1",
        "name": "wires",
        "ranks": ranks,
        "edges": [
            {"from": a, "to": b, "bandwidth": f"{1000 * us}us/MB", "name": f"w{number}"}
            for number, (a, b, us) in enumerate(joins)
        ],
    }
    return topology_from_document(document | ({} if servers is None else {"servers": servers}))


def ring(ranks: int = 4) -> Topology:
    """Return a ring of wires of 1 us a chunk, without declared rotations."""
    return wires(ranks, [(rank, (rank + 1) % ranks, 1) for rank in range(ranks)])


def hub() -> Topology:
    """Return four ranks on a switch, each port 1 us a chunk."""
    return topology_from_document({
        "taccl": "topology/1", "name": "hub4", "ranks": 4, "switches": ["hub"],
        "edges": [{"from": rank, "to": "hub", "bandwidth": "1GB/s"} for rank in range(4)],
    })  # fmt: skip


def twins() -> Topology:
    """Return two servers of two GPUs: 2 us a chunk inside, 1 us over the NIC of each GPU."""
    return topology_from_document({
        "taccl": "topology/1", "name": "twins", "count": 2, "fabric": {"kind": "switch"},
        "node": {
            "gpus": 2,
            "wires": [{"from": 0, "to": 1, "bandwidth": "0.5GB/s"}],
            "nics": [
                {"name": f"ib{gpu}", "gpus": [gpu], "bandwidth": "1GB/s"} for gpu in range(2)
            ],
        },
    })  # fmt: skip


def line() -> Topology:
    """Return four servers of one GPU in a line, 1 us a hop, but 4 us for the last one, 2 -> 3.

    Three of the four are latency, which the link does not stay busy for.
    """
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 2)]
    edges: list[dict[str, object]] = [
        {"from": a, "to": b, "bandwidth": "1GB/s", "both": False} for a, b in pairs
    ]
    edges.append({"from": 2, "to": 3, "bandwidth": "1GB/s", "alpha": "3us", "both": False})
    return topology_from_document({
        "taccl": "topology/1", "name": "line", "ranks": 4, "edges": edges,
        "servers": [[0], [1], [2], [3]], "alpha_rule": "delay",
    })  # fmt: skip


def native(topology: Topology, text: str, path: Path) -> LogicalTopology:
    """Return the topology under a native sketch."""
    file = path / "sketch.yaml"
    file.write_text(f"taccl: sketch/1\nname: tiny\n{text}")
    return apply_sketch(topology, load_sketch(str(file)))


def foreign(topology: Topology, path: Path, **fields: object) -> LogicalTopology:
    """Return the topology under a sketch in TACCL's form; fields replace those of a plain one."""
    document: dict[str, object] = {
        "nnodes": topology.num_servers,
        "intranode_sketch": {"strategy": "none"},
        "internode_sketch": {"strategy": "relay", "internode_conn": "fully-connected"},
        "symmetry_offsets": [],
        "hyperparameters": {"input_chunkup": 1},
    }
    file = path / "sketch.json"
    file.write_text(json.dumps(document | fields))
    return apply_sketch(topology, load_sketch(str(file)))


def solved(
    network: Topology | LogicalTopology, collective: str, chunks: int = 1, engine: str = "taccl"
) -> Schedule:
    """Return an engine's schedule, one chunk of 1000 bytes a message, that keeps the sketch."""
    logical = whole(network) if isinstance(network, Topology) else network
    problem = problem_of(logical, collective, chunks)
    problem = replace(problem, group=logical_group(logical, problem.collective))
    schedule = solve(problem, engine, ONE_BY_ONE).schedule
    assert schedule is not None
    assert verify(schedule, logical) == []
    return schedule


def time_of(
    network: Topology | LogicalTopology, collective: str, chunks: int = 1, engine: str = "taccl"
) -> float:
    """Return the makespan in microseconds."""
    return solved(network, collective, chunks, engine).makespan / US


def connections(schedule: Schedule) -> set[tuple[int, int]]:
    """Return the pairs of ranks that exchange anything."""
    full, table = schedule.expand(), schedule.topology.links
    return {(int(table.src[link]), int(table.dst[link])) for link in full.link}


def across(schedule: Schedule) -> set[tuple[int, int]]:
    """Return the connections between servers."""
    server = schedule.topology.server_of
    return {(a, b) for a, b in connections(schedule) if server[a] != server[b]}


def messages_by_pair(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Return how many chunks every connection inside a server carries."""
    full, table, server = schedule.expand(), schedule.topology.links, schedule.topology.server_of
    count: dict[tuple[int, int], int] = {}
    for link in full.link:
        pair = (int(table.src[link]), int(table.dst[link]))
        if server[pair[0]] == server[pair[1]]:
            count[pair] = count.get(pair, 0) + 1
    return count
