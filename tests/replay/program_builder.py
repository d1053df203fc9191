"""Small topologies and programs for the tests of the replay."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from taccl.msccl.program import Buffer, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.replay.cost import ReplayModel
from taccl.topology.graph import Edge, LocalCosts, Switch, Topology

US = 1_000_000
A, B = 700, 3  # alpha in ps and beta in ps per byte of the edges below
SMALL = ReplayModel("small", {"Simple": 1000, "LL": 1000}, {"Simple": 2, "LL": 8}, 4)
WIDE = ReplayModel("wide", {"Simple": 1 << 30}, {"Simple": 2}, 4)

Row = tuple[int, int, int, int | None, int | Fraction | None]


def network(
    ranks: int, edges: Sequence[Row], switches: int = 0, rule: str = "occupy", **local: int
) -> Topology:
    """Return a topology from (tail, head, alpha, overhead, beta) rows."""
    made = tuple(
        Edge(i, tail, head, alpha, overhead, None if beta is None else Fraction(beta), f"e{i}")
        for i, (tail, head, alpha, overhead, beta) in enumerate(edges)
    )
    costs = LocalCosts(
        Fraction(local.get("copy", 0)), Fraction(local.get("reduce", 0)), local.get("launch", 0)
    )
    names = tuple(Switch(f"w{i}") for i in range(switches))
    return Topology(
        "net", ranks, names, made, (0,) * ranks, alpha_rule=rule, local=costs
    )  # fmt: skip


def ring(ranks: int, alpha: int = A, beta: int = B, rule: str = "occupy") -> Topology:
    return network(
        ranks, [(r, (r + 1) % ranks, alpha, None, beta) for r in range(ranks)], rule=rule
    )


def hub(ranks: int, alpha: int = A, beta: int = B, rule: str = "occupy") -> Topology:
    """Every rank on one switch: edge r goes up, edge ranks + r comes down, alpha half on each."""
    up = [(r, ranks, alpha // 2, None, beta) for r in range(ranks)]
    down = [(ranks, r, alpha - alpha // 2, None, beta) for r in range(ranks)]
    return network(ranks, [*up, *down], switches=1, rule=rule)


def slot(offset: int) -> Slot:
    return Slot(Buffer.INPUT, offset)


def step(op: str, count: int = 1, wait: tuple[int, int] | None = None, posts: bool = False) -> Step:
    return Step(Op(op), slot(0), slot(0), count, StepRef(*wait) if wait else None, posts)


def block(
    number: int, send: int | None, recv: int | None, steps: Sequence[Step | str], channel: int = 0
) -> Threadblock:
    made = tuple(step(s) if isinstance(s, str) else s for s in steps)
    return Threadblock(number, send, recv, channel, made)


def program(*gpus: Sequence[Threadblock], chunks: int = 1, protocol: str = "Simple") -> Program:
    made = tuple(Gpu(r, chunks, chunks, 0, tuple(blocks)) for r, blocks in enumerate(gpus))
    return Program(
        "test", "allreduce", protocol, in_place=True, out_of_place=False, channels=1,
        chunks_per_loop=chunks, min_bytes=0, max_bytes=1 << 40, gpus=made,
    )  # fmt: skip


def ring_allreduce(ranks: int) -> Program:
    """One threadblock a rank: send, n-2 times rrs, rrcs, n-2 times rcs, r."""
    ops = ["s", *["rrs"] * (ranks - 2), "rrcs", *["rcs"] * (ranks - 2), "r"]
    gpus = [[block(0, (r + 1) % ranks, (r - 1) % ranks, ops)] for r in range(ranks)]
    return program(*gpus, chunks=ranks)


def scaled(topology: Topology, factor: int) -> Topology:
    """Return the topology with every alpha, overhead and beta multiplied."""
    edges = tuple(
        replace(
            e, alpha=e.alpha * factor,
            overhead=None if e.overhead is None else e.overhead * factor,
            beta=None if e.beta is None else e.beta * factor,
        )
        for e in topology.edges
    )  # fmt: skip
    return replace(topology, edges=edges)
