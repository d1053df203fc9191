"""Classical algorithms as decisions on a topology: the yardstick and the last resort.

Each is a function of a problem that returns its sends in sequence, or None where the collective or
the links don't allow it. On uniform links of alpha and beta, for n ranks and a buffer of S bytes
in one chunk for each rank (and each pair), unless said otherwise:

================== ====================================================================
algorithm          time
================== ====================================================================
ring               allgather and reducescatter (n-1) (alpha + beta S/n), allreduce twice that
all-pairs          the same where a rank has one port, and alltoall (n-1) (alpha + beta S/n)
halving-doubling   log2(n) alpha + (n-1) beta S/n, allreduce twice that
recursive-doubling allreduce log2(n) (alpha + beta S)
one-shot           allreduce (n-1) (alpha + beta S)
chain              broadcast and reduce in k chunks (n-2+k) (alpha + beta S/k)
double-chain       the same in k chunks on a ring both ways (n-2+k/2) (alpha + beta S/k)
binomial           broadcast and reduce in one chunk ceil(log2(n)) (alpha + beta S)
scatter-allgather  broadcast and reduce in n chunks 2 (n-1) (alpha + beta S/n)
direct             gather and scatter (n-1) (alpha + beta S/n) where the root has one port
================== ====================================================================

References
----------
Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from taccl.errors import NoScheduleError
from taccl.schedule import Decisions, Schedule, message_groups, retime
from taccl.symmetry import make_group
from taccl.synth.exchanges import one_shot, recursive_doubling
from taccl.synth.ordering import order
from taccl.synth.plan import plan_decisions, rows_of
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.rooted import binomial, chain, direct, double_chain, scatter_allgather
from taccl.synth.routes import may_leave
from taccl.synth.steps import Step, best_links, tour
from taccl.topology import Rank
from taccl.units import Time
from taccl.verify import verify

Row = tuple[int, int, bool]
"""chunk, link, reduce"""

HALVES = ("allgather", "reducescatter", "allreduce")


def ring(problem: Problem) -> Iterator[Step] | None:
    """Every rank passes on what it received to the next of a ring, n-1 times each phase."""
    if problem.collective.name not in HALVES:
        return None
    order = tour(problem)
    return None if order is None else _ring_steps(problem, order)


def _ring_steps(problem: Problem, order: Sequence[Rank]) -> Iterator[Step]:
    n, name = len(order), problem.collective.name
    owned = _owned(problem)
    if name != "allgather":
        for step in range(n - 1):
            for place, rank in enumerate(order):
                owner = order[(place - step - 1) % n]
                yield owned[owner], rank, order[(place + 1) % n], True
    if name != "reducescatter":
        for step in range(n - 1):
            for place, rank in enumerate(order):
                owner = order[(place - step) % n]
                yield owned[owner], rank, order[(place + 1) % n], False


def _owned(problem: Problem) -> list[tuple[int, ...]]:
    k = problem.collective.chunks_per_rank
    return [tuple(range(r * k, (r + 1) * k)) for r in range(problem.topology.num_ranks)]


def all_pairs(problem: Problem) -> Iterator[Step] | None:
    """Every rank sends to every other directly; AllReduce is ReduceScatter, then AllGather."""
    links = best_links(problem)
    n = problem.topology.num_ranks
    if problem.collective.name not in (*HALVES, "alltoall"):
        return None
    if any((a, b) not in links for a in range(n) for b in range(n) if a != b):
        return None
    return _pair_steps(problem)


def _pair_steps(problem: Problem) -> Iterator[Step]:
    n, name = problem.topology.num_ranks, problem.collective.name
    k = problem.collective.chunks_per_rank
    owned = _owned(problem) if name != "alltoall" else []
    for shift in range(1, n):
        for rank in range(n):
            peer = (rank + shift) % n
            if name == "alltoall":
                first = (rank * n + peer) * k
                yield tuple(range(first, first + k)), rank, peer, False
            elif name == "allgather":
                yield owned[rank], rank, peer, False
            else:
                yield owned[peer], rank, peer, True
    if name == "allreduce":
        for shift in range(1, n):
            for rank in range(n):
                yield owned[rank], rank, (rank + shift) % n, False


def halving_doubling(problem: Problem) -> Iterator[Step] | None:
    """Exchange with the rank that differs in one bit, twice as much (half as much) each time.

    AllGather doubles, first between servers and then from the lowest bit, so that what a rank
    holds lies side by side; ReduceScatter plays it backwards; AllReduce is one after the other.
    Ranks must be a power of two, and partners linked.
    """
    n = problem.topology.num_ranks
    if problem.collective.name not in HALVES or n & (n - 1):
        return None
    links = best_links(problem)
    bits = [1 << i for i in range(n.bit_length() - 1)]
    if any((rank, rank ^ bit) not in links for rank in range(n) for bit in bits):
        return None
    server = problem.topology.server_of
    bits.sort(key=lambda bit: (server[0] == server[bit], bit))
    return _exchanges(problem, bits)


def _exchanges(problem: Problem, bits: Sequence[int]) -> Iterator[Step]:
    name = problem.collective.name
    gather = list(_doubling(problem, bits))
    if name != "allgather":
        yield from ((chunks, dst, src, True) for chunks, src, dst, _ in reversed(gather))
    if name != "reducescatter":
        yield from gather


def _doubling(problem: Problem, bits: Sequence[int]) -> Iterator[Step]:
    owned = _owned(problem)
    held = [[rank] for rank in range(problem.topology.num_ranks)]
    for bit in bits:
        for rank, owners in enumerate(held):
            for run in _runs(owners):
                yield tuple(c for owner in run for c in owned[owner]), rank, rank ^ bit, False
        held = [sorted([*owners, *held[rank ^ bit]]) for rank, owners in enumerate(held)]


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Cut ascending numbers into runs without gaps."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    yield run


CLASSICAL: Mapping[str, Callable[[Problem], Iterator[Step] | None]] = MappingProxyType({
    "ring": ring,
    "all-pairs": all_pairs,
    "halving-doubling": halving_doubling,
    "recursive-doubling": recursive_doubling,
    "one-shot": one_shot,
    "chain": chain,
    "double-chain": double_chain,
    "binomial": binomial,
    "scatter-allgather": scatter_allgather,
    "direct": direct,
})  # fmt: skip


def classical_schedules(problem: Problem, name: str, *, batch: bool) -> tuple[Schedule, ...]:
    """Return the exact schedules of a classical algorithm, the one with the least makespan first.

    The textbook's order, and the same messages as early as ports allow: where ports are shared
    (two GPUs at one NIC), the textbook's order leaves them idle. None where the algorithm does not
    exist, or does not respect the sketch.
    """
    steps = CLASSICAL[name](problem)
    if steps is None:
        return ()
    links = best_links(problem)
    rows: list[tuple[int, int, int, bool]] = []
    lands: list[int] = []
    message = 0
    for chunks, src, dst, reduce in steps:
        if not chunks:
            lands += [len(rows)] * (len(rows) - len(lands))
            continue
        link = links[src, dst]
        if not all(may_leave(problem, chunk, link) for chunk in chunks):
            return ()
        for chunk in chunks:
            rows.append((chunk, link, message, reduce))
            message += 0 if batch else 1
        message += 1 if batch else 0
    if lands:
        lands += range(len(lands) + 1, len(rows) + 1)
        try:
            found = [_alone(problem, Decisions.of(rows, lands))]
        except ValueError:  # one port sends too long to end before the first arrival
            found = []
    else:
        found = _in_both_orders(problem, Decisions.of(rows))
    if problem.logical.name is not None:
        found = [schedule for schedule in found if not verify(schedule, problem.logical)]
    return tuple(sorted(found, key=lambda schedule: schedule.makespan))


def _alone(problem: Problem, decisions: Decisions) -> Schedule:
    group = make_group(problem.topology, ())
    return retime(problem.collective, group, problem.chunk_size, decisions)


def _in_both_orders(problem: Problem, decisions: Decisions) -> list[Schedule]:
    given = _alone(problem, decisions)
    plan = plan_decisions(replace(problem, group=given.group), rows_of(decisions))
    messages = [tuple(rows) for rows in message_groups(decisions.batch)]
    early = order(plan, messages, "earliest")
    if early is None:
        return [given]
    other = _alone(problem, early)
    return [given] if other.makespan == given.makespan else [given, other]


def classical_schedule(problem: Problem, name: str, *, batch: bool) -> Schedule | None:
    """Return the schedule of a classical algorithm with the least makespan, if it exists."""
    return next(iter(classical_schedules(problem, name, batch=batch)), None)


def run_classical(name: str, problem: Problem, options: Options) -> Result:
    """Run a classical algorithm as an engine.

    Raises
    ------
    NoScheduleError
        When the links don't allow it.
    """
    began = time.monotonic()
    schedules = classical_schedules(problem, name, batch=options.batch)
    if not schedules:
        raise NoScheduleError(
            f"{name} does not exist for {problem.collective.name} on the links of"
            f" {problem.topology.name}",
            fix="use --engine taccl or auto",
        )
    best = min(schedules, key=lambda schedule: _score(schedule, options))
    return Result(Status.FEASIBLE, best, (), name, time.monotonic() - began)


def _score(schedule: Schedule, options: Options) -> Time:
    score = None if options.score is None else options.score(schedule)
    return schedule.makespan if score is None else score
