"""Small topologies and schedules, decided by hand and timed by ``retime``, for lowering tests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

from taccl.collectives import Collective, build_collective
from taccl.lowering.lower import LowerOptions, lower
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.msccl.program import Program, Step
from taccl.topology.graph import Edge, Switch, Topology
from taccl.topology.symmetry import make_group

ALPHA = 700_000
BETA = Fraction(40)
Row = tuple[int, int, int, bool]


def make_topology(
    name: str, num_ranks: int, ends: Sequence[tuple[int, int]], switches: int = 0
) -> Topology:
    edges = tuple(
        Edge(number, tail, head, ALPHA, None, BETA, f"e{number}")
        for number, (tail, head) in enumerate(ends)
    )
    hubs = tuple(Switch(f"sw{i}") for i in range(switches))
    return Topology(name, num_ranks, hubs, edges, (0,) * num_ranks)


def ring(num_ranks: int) -> Topology:
    forward = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    return make_topology(f"ring{num_ranks}", num_ranks, forward)


def mesh(num_ranks: int) -> Topology:
    return make_topology(f"mesh{num_ranks}", num_ranks, list(permutations(range(num_ranks), 2)))


def hub(num_ranks: int) -> Topology:
    """All ranks on one switch: the sends of a rank share its port."""
    spokes = [(r, num_ranks) for r in range(num_ranks)]
    return make_topology(
        f"hub{num_ranks}", num_ranks, [*spokes, *((b, a) for a, b in spokes)], switches=1
    )


def twin() -> Topology:
    """Two servers of two ranks; the servers are joined by two parallel links a rank."""
    inside = [(0, 1), (1, 0), (2, 3), (3, 2)]
    across = [(0, 2), (0, 2), (2, 0), (2, 0), (1, 3), (1, 3), (3, 1), (3, 1)]
    return make_topology("twin", 4, [*inside, *across])


def timed(
    collective: Collective, topology: Topology, rows: Sequence[Row], chunk_size: int = 1024
) -> Schedule:
    decisions = Decisions.of(rows)
    return retime(collective, make_group(topology, ()), Fraction(chunk_size), decisions)


def _numbered(
    collective: Collective,
    topology: Topology,
    messages: Iterator[tuple[int, int, Sequence[int], bool]],
    batched: bool,
) -> Schedule:
    rows: list[Row] = []
    for src, dst, chunks, reduce in messages:
        link = topology.links_between(src, dst)[0]
        groups = [chunks] if batched else [[chunk] for chunk in chunks]
        for group in groups:
            batch = 1 + max((row[2] for row in rows), default=-1)
            rows += [(chunk, link, batch, reduce) for chunk in group]
    return timed(collective, topology, rows)


def _own(rank: int, k: int) -> range:
    return range(rank * k, (rank + 1) * k)


def ring_schedule(name: str, n: int, k: int = 1, *, batched: bool = False) -> Schedule:
    """Allgather, reducescatter or allreduce round a ring."""
    collective, topology = build_collective(name, n, k), ring(n)

    def messages() -> Iterator[tuple[int, int, Sequence[int], bool]]:
        if collective.reduces:
            for step in range(1, n):
                for d in range(n):
                    yield (d + step) % n, (d + step + 1) % n, _own(d, k), True
        if name != "reducescatter":
            for step in range(n - 1):
                for d in range(n):
                    yield (d + step) % n, (d + step + 1) % n, _own(d, k), False

    return _numbered(collective, topology, messages(), batched)


def pairs_schedule(name: str, topology: Topology, k: int = 1, *, batched: bool = False) -> Schedule:
    """Any collective with every rank sending straight to every other."""
    n = topology.num_ranks
    collective = build_collective(name, n, k)

    def messages() -> Iterator[tuple[int, int, Sequence[int], bool]]:
        for shift in range(1, n):
            for src in range(n):
                dst = (src + shift) % n
                if name == "alltoall":
                    yield src, dst, range((src * n + dst) * k, (src * n + dst + 1) * k), False
                elif collective.reduces:
                    yield src, dst, _own(dst, k), True
                else:
                    yield src, dst, _own(src, k), False
        if name == "allreduce":
            for shift in range(1, n):
                for src in range(n):
                    yield src, (src + shift) % n, _own(src, k), False

    return _numbered(collective, topology, messages(), batched)


def make(schedule: Schedule, **options: object) -> Program:
    return lower(schedule, LowerOptions(name="t", **options))  # type: ignore[arg-type]


def with_each_step(program: Program, change: Callable[[Step], Step]) -> Program:
    """Return a program with every step changed."""
    gpus = (
        replace(
            gpu,
            threadblocks=tuple(
                replace(block, steps=tuple(change(step) for step in block.steps))
                for block in gpu.threadblocks
            ),
        )
        for gpu in program.gpus
    )
    return replace(program, gpus=tuple(gpus))


COLLECTIVE_NAMES = ("allgather", "reducescatter", "allreduce", "alltoall")


def small_schedules() -> dict[str, Schedule]:
    """Return many small schedules by name."""
    found: dict[str, Schedule] = {}
    for name in COLLECTIVE_NAMES:
        for n in (2, 3, 4):
            for k, batched in ((1, False), (2, False), (3, True)):
                label = f"{name}-{n}-{k}-{'batched' if batched else 'single'}"
                if name != "alltoall":
                    found[f"ring-{label}"] = ring_schedule(name, n, k, batched=batched)
                for build in (mesh, hub):
                    found[f"{build.__name__}-{label}"] = pairs_schedule(
                        name, build(n), k, batched=batched
                    )
    return found
