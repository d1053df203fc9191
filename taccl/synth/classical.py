"""Classical algorithms as decisions on a topology: the yardstick and the last resort.

Each is a function of a problem that yields, for every way to do it (orders of ranks, sizes of
pieces), its sends in sequence; none where the collective or the links don't allow it. On uniform
links of alpha and beta, for n ranks and a buffer of S bytes in one chunk for each rank (and each
pair), unless said otherwise:

================== ====================================================================
algorithm          time
================== ====================================================================
ring               allgather and reducescatter (n-1) (alpha + beta S/n), allreduce twice that
double-ring        the same on links both ways floor(n/2) (alpha + beta S/n); with two chunks for
                   each rank also (n-1) (alpha + beta S/2n)
all-pairs          the ring's where a rank has one port, and alltoall (n-1) (alpha + beta S/n)
halving-doubling   log2(n) alpha + (n-1) beta S/n, allreduce twice that; for n above a power of two
                   p, allreduce 2 (log2(p) alpha + (p-1) beta S/p) + 2 (alpha + beta S)
bruck              allgather and reducescatter ceil(log2(n)) alpha + (n-1) beta S/n, allreduce twice
                   that, and at most one alpha more in every round but the first where alpha
                   occupies links; alltoall log2(n) (alpha + beta S/2) where it does not
double-binary-tree broadcast and reduce in two trees and p pieces for each
                   (ceil(log2(n)) - 1 + p) (alpha + beta S/2p), allreduce in one piece
                   2 ceil(log2(n)) (alpha + beta S/2), on links between all pairs
hierarchical       s servers of g ranks, one port each inside (alpha, beta) and across (alpha',
                   beta'): allgather and reducescatter (s-1) (alpha' + beta' S/n)
                   + s (g-1) (alpha + beta S/n), allreduce twice that
two-step           alltoall: the larger of s (g-1) (alpha + beta S/n) inside and, across,
                   (s-1) (alpha' + beta' g S/n) behind the first messages inside
three-step         alltoall with one connection for two servers, or one for each rank
parameter-server   broadcast and reduce (n-1) (alpha + beta S), and with p servers allreduce
                   2 (n-1) (alpha + beta S/p) where p is 1 or n
recursive-doubling allreduce log2(n) (alpha + beta S)
one-shot           allreduce alpha + beta S on links between all pairs
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
from taccl.synth.doubling import bruck, halving_doubling
from taccl.synth.exchanges import one_shot, recursive_doubling
from taccl.synth.hierarchical import hierarchical, three_step, two_step
from taccl.synth.ordering import order
from taccl.synth.pairs import all_pairs, parameter_server
from taccl.synth.plan import plan_decisions, rows_of
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.rings import double_ring, ring
from taccl.synth.rooted import binomial, chain, direct, double_chain, scatter_allgather
from taccl.synth.routes import may_leave
from taccl.synth.steps import Step, best_links, in_runs
from taccl.synth.trees import double_binary_tree
from taccl.units import Time
from taccl.verify import verify

Algorithm = Callable[[Problem], Iterator[Iterator[Step]]]
"""The steps of every way to do it (orders of ranks, sizes of pieces); none where there is none."""

MAX_SENDS = 140_000
"""Sends of all ways together that are timed: an AllReduce of 256 ranks has as many in one way.

A summed one takes some 20 us to time, and a portfolio waits for all algorithms.
"""

MAX_ORDERED = 33_000
"""Messages of all ways together that are list-scheduled, which takes several times as long."""

KEPT = 3
"""Schedules of an algorithm that are worth to be scored."""


def _once(algorithm: Callable[[Problem], Iterator[Step] | None]) -> Algorithm:
    """Return an algorithm that is done in one way, or not at all."""

    def ways(problem: Problem) -> Iterator[Iterator[Step]]:
        steps = algorithm(problem)
        if steps is not None:
            yield steps

    return ways


CLASSICAL: Mapping[str, Algorithm] = MappingProxyType({
    "ring": ring,
    "double-ring": double_ring,
    "all-pairs": all_pairs,
    "halving-doubling": halving_doubling,
    "bruck": bruck,
    "double-binary-tree": double_binary_tree,
    "hierarchical": hierarchical,
    "two-step": two_step,
    "three-step": three_step,
    "parameter-server": parameter_server,
    "recursive-doubling": _once(recursive_doubling),
    "one-shot": _once(one_shot),
    "chain": _once(chain),
    "double-chain": _once(double_chain),
    "binomial": _once(binomial),
    "scatter-allgather": _once(scatter_allgather),
    "direct": _once(direct),
})  # fmt: skip


def classical_schedules(
    problem: Problem, name: str, *, batch: bool, patient: bool = False
) -> tuple[Schedule, ...]:
    """Return the exact schedules of a classical algorithm, the one with the least makespan first.

    The textbook's order of every way to do it, and of the best ways the same messages as early as
    ports allow: where ports are shared (two GPUs at one NIC), the textbook's order leaves them
    idle. Nothing where the algorithm does not exist, or does not respect the sketch.

    Parameters
    ----------
    patient
        Whether to time the first way however many sends it has.
    """
    textbook = sorted(
        _textbook(problem, name, batch=batch, patient=patient),
        key=lambda timed: timed[0].makespan,
    )
    found = [schedule for schedule, _ in textbook[:KEPT]]
    left = MAX_ORDERED
    for schedule, decisions in textbook[: KEPT - 1]:
        left -= len(message_groups(schedule.batch))
        if decisions.lands is None and left >= 0:
            found += _early(problem, decisions)
    distinct = {schedule.makespan: schedule for schedule in reversed(found)}
    best = [distinct[makespan] for makespan in sorted(distinct)]
    if problem.logical.name is not None:
        best = [schedule for schedule in best if not verify(schedule, problem.logical)]
    return tuple(best[:KEPT])


def _textbook(
    problem: Problem, name: str, *, batch: bool, patient: bool
) -> Iterator[tuple[Schedule, Decisions]]:
    """Yield every way to do it in the textbook's order, until too many sends were timed."""
    links = best_links(problem)
    left = MAX_SENDS
    for number, steps in enumerate(CLASSICAL[name](problem)):
        sequence: list[Step] = []
        for step in steps:
            sequence.append(step)
            left -= len(step[0])
            if left < 0 and not (patient and number == 0):
                return
        messages = in_runs(problem, sequence) if batch else sequence
        decisions = _decided(problem, messages, links, batch=batch)
        if decisions is None:
            continue
        try:
            yield _alone(problem, decisions), decisions
        except ValueError:  # one port sends too long to end before the first arrival
            continue


def _decided(
    problem: Problem, steps: Sequence[Step], links: Mapping[tuple[int, int], int], *, batch: bool
) -> Decisions | None:
    """Return the decisions of steps; None where the sketch does not let a chunk take its link."""
    rows: list[tuple[int, int, int, bool]] = []
    lands: list[int] = []
    message = 0
    for chunks, src, dst, reduce in steps:
        if not chunks:
            lands += [len(rows)] * (len(rows) - len(lands))
            continue
        link = links[src, dst]
        if not all(may_leave(problem, chunk, link) for chunk in chunks):
            return None
        for chunk in chunks:
            rows.append((chunk, link, message, reduce))
            message += 0 if batch else 1
        message += 1 if batch else 0
    if lands:
        lands += range(len(lands) + 1, len(rows) + 1)
    return Decisions.of(rows, lands or None)


def _alone(problem: Problem, decisions: Decisions) -> Schedule:
    group = make_group(problem.topology, ())
    return retime(problem.collective, group, problem.chunk_size, decisions)


def _early(problem: Problem, decisions: Decisions) -> list[Schedule]:
    """Return the messages of decisions in the order in which ports are free, where there is one."""
    plan = plan_decisions(
        replace(problem, group=make_group(problem.topology, ())), rows_of(decisions)
    )
    messages = [tuple(rows) for rows in message_groups(decisions.batch)]
    early = order(plan, messages, "earliest")
    return [] if early is None else [_alone(problem, early)]


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
    schedules = classical_schedules(problem, name, batch=options.batch, patient=True)
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
