"""Networks for the tests of the bounds: shared JSON graphs, and machines built by hand."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.topology.graph import Edge, Switch, Topology
from taccl.units import PS_PER_US

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topologies"
Row = tuple[int, int, int, int | None, int | Fraction | None]


def build(
    ranks: int,
    rows: Sequence[Row],
    switches: int = 0,
    servers: Sequence[int] | None = None,
    rule: str = "occupy",
    rotations: Sequence[tuple[int, ...]] = (),
) -> Topology:
    """Return a topology from (tail, head, alpha, overhead, beta) rows."""
    edges = tuple(
        Edge(i, tail, head, alpha, overhead, None if beta is None else Fraction(beta), f"e{i}")
        for i, (tail, head, alpha, overhead, beta) in enumerate(rows)
    )
    names = tuple(Switch(f"w{i}") for i in range(switches))
    home = tuple(servers) if servers else (0,) * ranks
    return Topology("net", ranks, names, edges, home, tuple(rotations), rule)


def rate(gigabytes: float) -> Fraction:
    """Return the beta of a bandwidth in GB/s."""
    return Fraction(1000) / Fraction(str(gigabytes))


def shared_graph(name: str) -> Topology:
    """Return a shipped graph without latencies; skip the test when the files aren't there."""
    path = SHARED / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    graph = json.loads(path.read_text())
    gpus = [node["id"] for node in graph["nodes"] if node["type"] != "switch"]
    switches = [node["id"] for node in graph["nodes"] if node["type"] == "switch"]
    vertex = {name: i for i, name in enumerate([*gpus, *switches])}
    rows: list[Row] = [
        (vertex[e["src"]], vertex[e["dst"]], 0, None, rate(e["bandwidth_GBps"]))
        for e in graph["edges"]
    ]
    return build(len(gpus), rows, len(switches))


def rails(servers: int, inside: float, outside: float, alpha: int = 0) -> Topology:
    """Return servers of 8 GPUs on one switch each, and a NIC for each GPU on a rail switch."""
    ranks, rows = 8 * servers, []
    for rank in range(ranks):
        switch = ranks + rank // 8
        rows += [(rank, switch, alpha, None, rate(inside)), (switch, rank, 0, None, rate(inside))]
        if servers > 1:
            rail = ranks + servers + rank % 8
            rows += [(rank, rail, alpha, None, rate(outside)), (rail, rank, 0, None, rate(outside))]
    turn_server = tuple((r + 8) % ranks for r in range(ranks))
    turn_gpu = tuple(r // 8 * 8 + (r + 1) % 8 for r in range(ranks))
    return build(
        ranks, rows, servers + 8, [r // 8 for r in range(ranks)],
        rotations=[turn_gpu, turn_server] if servers > 1 else [turn_gpu],
    )  # fmt: skip


NDV2_DOUBLED = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
NDV2_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def ndv2(rule: str = "occupy") -> Topology:
    """Return one NDv2 with TACCL's measured constants: two doubled and two single links a GPU."""
    rows: list[Row] = []
    for pairs, beta in ((NDV2_DOUBLED, 23), (NDV2_SINGLE, 46)):
        for a, b in pairs:
            for tail, head in ((a, b), (b, a)):
                rows.append((tail, head, 7 * PS_PER_US // 10, None, beta))
    return build(8, rows, rule=rule)


def dgx2() -> Topology:
    """Return one DGX-2: 16 GPUs on a switch with alpha 0.7 us for a crossing and 8 us/MB."""
    half = 35 * PS_PER_US // 100
    up: list[Row] = [(r, 16, half, None, 8) for r in range(16)]
    return build(16, [*up, *((16, r, half, None, 8) for r in range(16))], 1)


def two_servers(rng: random.Random, sizes: Sequence[int]) -> Topology:
    """Return servers of wires or of one switch, with a NIC for each rank or one for all."""
    rows: list[Row] = []
    ranks, switches = sum(sizes), 1 + len(sizes)
    server = [number for number, size in enumerate(sizes) for _ in range(size)]
    fabric = ranks

    def cost(free: float = 0.0) -> tuple[int, int | None, int | None]:
        alpha = rng.choice([0, 3, 10])
        beta = None if rng.random() < free else rng.choice([1, 2, 5])
        return alpha, rng.choice([None, None, rng.randint(0, alpha)]), beta

    for number, size in enumerate(sizes):
        first, inner = sum(sizes[:number]), ranks + 1 + number
        wired, shared = rng.random() < 0.5, rng.random() < 0.5
        for rank in range(first, first + size):
            if wired and size > 1:
                there = first + (rank - first + 1) % size
                rows += [(rank, there, *cost()), (there, rank, *cost())]
            elif size > 1:
                rows += [(rank, inner, *cost()), (inner, rank, *cost())]
            if not shared or rank == first:
                nic = (rng.choice([0, 20]), None, rng.choice([2, 10]))
                rows += [(ranks + switches, fabric, *nic), (fabric, ranks + switches + 1, *nic)]
                switches += 2
            tx = ranks + switches - 2
            rows += [(rank, tx, 0, None, None), (tx + 1, rank, 0, None, None)]
    names = [Switch(f"w{i}", across_servers=i == 0 or i > len(sizes)) for i in range(switches)]
    made = build(ranks, rows, switches, server, rng.choice(["occupy", "delay"]))
    return replace(made, switches=tuple(names))
