"""Classical algorithms as schedules on a topology: the yardstick and the last resort.

Each is a function of a problem that yields, for every way to do it (orders of ranks, sizes of
pieces), its sends in sequence; none where the collective or the links don't allow it. Grid programs
of few messages, which follow from how a machine is built, are tried the same way. On uniform
links of alpha and beta, for n ranks and a buffer of S bytes in one chunk for each rank (and each
pair), unless said otherwise:

================== ====================================================================
algorithm          time
================== ====================================================================
ring               allgather and reducescatter (n-1) (alpha + beta S/n), allreduce twice that; with
                   r chunks for each rank, on wires with room for r rings, of S/r each;
                   alltoall (n-1) alpha + n (n-1)/2 beta S/n where alpha does not occupy links, and
                   at most two alphas more in every round where it does
double-ring        the same on links both ways floor(n/2) (alpha + beta S/n); with two chunks for
                   each rank also (n-1) (alpha + beta S/2n); alltoall, with h = floor(n/2),
                   h alpha + h (h+1)/2 beta S/n
all-pairs          the ring's where a rank has one port, and alltoall (n-1) (alpha + beta S/n); of
                   which f peers are too many for a program, (n-1+f) (alpha + beta S/n)
halving-doubling   log2(n) alpha + (n-1) beta S/n, allreduce twice that; for n above a power of two
                   p, allreduce 2 (log2(p) alpha + (p-1) beta S/p) + 2 (alpha + beta S); broadcast
                   and reduce in p chunks 2 (log2(p) alpha + (p-1) beta S/p), and alpha + beta S
                   more for n above p
bruck              allgather and reducescatter ceil(log2(n)) alpha + (n-1) beta S/n, allreduce twice
                   that; alltoall ceil(log2(n)) alpha + b beta S/n, with all b bits that are set in
                   1 .. n-1: log2(n) (alpha + beta S/2) for n a power of two. With too many peers
                   for all-pairs also in digits of radices q: (sum of q-1) alpha
double-binary-tree broadcast and reduce in two trees and p pieces for each
                   (ceil(log2(n)) - 1 + p) (alpha + beta S/2p), allreduce in one piece
                   2 ceil(log2(n)) (alpha + beta S/2), on links between all pairs
hierarchical       s servers of g ranks, one port each inside (alpha, beta) and across (alpha',
                   beta'): allgather and reducescatter (s-1) (alpha' + beta' S/n)
                   + s (g-1) (alpha + beta S/n), or with g in digits of radices q
                   + s (sum of q-1) alpha + s (g-1) beta S/n, allreduce twice, and with s a power of
                   two 2 (g-1) (alpha + beta S/g) + log2(s) (alpha' + beta' S/g); broadcast, reduce
                   ceil(log2(s)) (alpha' + beta' S) + ceil(log2(g)) (alpha + beta S); gather
                   ceil(log2(s)) alpha' + (s-1) g beta' S/n + ceil(log2(g)) alpha + (g-1) beta S/n,
                   scatter up to twice as many alphas, where they occupy links
hierarchical-ring  on the same servers, with links between all ranks of each, allgather and
                   reducescatter (s-1) (alpha' + beta' S/n) + s (g-1) (alpha + beta S/n), allreduce
                   twice that
two-step           alltoall: the larger of s (g-1) (alpha + beta S/n) inside and, across,
                   (s-1) (alpha' + beta' g S/n) behind the (s-1) (g-1) first messages inside
three-step         alltoall with one connection for two servers, or one for each rank. With one for
                   both of two servers, g^2 beta' S/n and three alpha' across, behind
                   g (g-1) - g + 2 chunks inside; after that, g-2 messages of g chunks and what
                   stays at home
parameter-server   broadcast and reduce (n-1) (alpha + beta S), and with p servers (one, all ranks,
                   or one of each machine) allreduce 2 (n-1) (alpha + beta S/p). With helpers that
                   are no workers, in k chunks, about (1 + 1/k) times the larger of beta S at a
                   worker's port and n beta' S/p at one of p helpers'
recursive-doubling allreduce log2(p) (alpha + beta S), and two such rounds more for n above a power
                   of two p; for n = p alltoall log2(n) (alpha + beta S/2); on a hypercube (a torus
                   of sides 2 and 4) allreduce log2(n) alpha + beta S
one-shot           allreduce alpha + beta S on links between all pairs
chain              broadcast and reduce in k chunks (n-2+k) (alpha + beta S/k), allreduce in k
                   (2 (n-1) + k-1) (alpha + beta S/k), gather and scatter (n-1) (alpha + beta S/n)
double-chain       on a ring both ways, broadcast and reduce in k chunks
                   (n-2+k/2) (alpha + beta S/k), gather and scatter floor(n/2) (alpha + beta S/n)
binomial           broadcast and reduce in one chunk ceil(log2(n)) (alpha + beta S), allreduce twice
                   that; gather ceil(log2(n)) alpha + (n-1) beta S/n, and scatter where alpha does
                   not occupy links, for n a power of two
scatter-allgather  broadcast and reduce in k = n-1 chunks (n-2+k) (alpha + beta S/k), and about that
                   in more
direct             gather and scatter (n-1) (alpha + beta S/n) where the root has one port
flooding           on a ring, with h = floor(n/2), allgather and reducescatter h (alpha + beta S/n),
                   allreduce twice that, alltoall h alpha + h (h+1)/2 beta S/n; a latency for every
                   hop of the farthest rank on any links
nvls ...           where switches copy and add: :mod:`taccl.synth.templates.in_network`
================== ====================================================================

References
----------
Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from taccl.collectives import alone
from taccl.errors import NoAlgorithmError, NoScheduleError
from taccl.model.problem import Candidate, Options, Problem, Result, Status, candidate_of
from taccl.model.routes import may_leave
from taccl.model.schedule import Decisions, Schedule, message_groups
from taccl.synth.list_scheduler import dispatched, load_of
from taccl.synth.plan import plan_decisions, rows_of
from taccl.synth.templates.flooding import FLOODED, flooding
from taccl.synth.templates.grid_programs import (
    MOST_ROWS,
    Algorithm,
    arrival_of,
    bruck,
    butterflies,
    cube_gathers,
    doubling_by_parts,
    gate_alltoalls,
    gateway_gathers,
    halving_doubling,
    hierarchical,
    hierarchical_ring,
    leader_gathers,
    made,
    one_shot,
    pairs_by_relays,
    pipelined_gathers,
    server_grid,
    small_gathers,
    three_step,
    two_step,
)
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.synth.templates.rings import (
    double_ring,
    helper_servers,
    parameter_server,
    ring,
    rings_inside,
)
from taccl.synth.templates.steps import (
    GATHER_FAMILY,
    Step,
    best_links,
    in_runs,
    piece_by_piece,
    ranks_by_server,
)
from taccl.synth.templates.trees import (
    binomial,
    chain,
    direct,
    double_binary_tree,
    double_chain,
    over_servers,
    scatter_allgather,
)
from taccl.synth.time_reversal import Mirror, mirrored, played_backwards
from taccl.topology.edit import among
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.units import Time
from taccl.verify import verify

MAX_SENDS = 300_000
"""Sends of all ways together that are timed: twice an AllReduce of 256 ranks.

A summed one takes some 20 us to time, and a portfolio waits for all algorithms.
"""

MAX_ORDERED = 140_000
"""Messages of all ways together that are list-scheduled, at some 50 us each."""

KEPT = 4
"""Schedules of an algorithm that are worth to be scored."""


@lru_cache(maxsize=4)
def _machine_of(topology: Topology, members: tuple[int, ...]) -> LogicalTopology:
    """Return what members have of a topology; its links are derived once for all algorithms."""
    return whole(among(topology, members)[0])


class Template(NamedTuple):
    """An algorithm: the steps of every way to do it (`ways`).

    Among members of a group these do the same, over links between them; with others to relay there
    are the `helped` ways, too. In the collectives `packed`, messages are of any chunks: ranks pack
    them; with `cut` messages of neighbours alone are tried as well, more of them but sooner sent.
    At most `most` sends of all ways together are timed; None: MAX_SENDS. Where switches copy and
    add, `fans` yields the decisions of every way itself, and there are no steps.
    """

    ways: Algorithm
    packed: tuple[str, ...] = ()
    cut: bool = False
    most: int | None = None
    fans: Callable[[Problem], Iterator[Decisions]] | None = None
    helped: Algorithm = lambda _problem: iter(())

    def steps(self, problem: Problem) -> Iterator[Iterator[Step]]:
        """Yield the steps of every way to solve a `problem`."""
        members, inside = problem.collective.members, alone(problem.collective)
        if members is None or inside is None:
            yield from self.ways(problem)
            return
        yield from self.helped(problem)
        if problem.logical.name is None:
            part = _machine_of(problem.topology, members)
            within = Problem(part, inside, problem.chunk_size, make_group(part.topology, ()))
            for way in self.ways(within):
                yield ((chunks, members[a], members[b], adds) for chunks, a, b, adds in way)


def _hierarchical(problem: Problem) -> Iterator[Iterator[Step]]:
    """Yield the ways over rails; with a root, a tree over its rail and a tree in every server."""
    yield from hierarchical(problem, rings_inside)
    has_root = problem.collective.name not in (*GATHER_FAMILY, "alltoall")
    by_server = ranks_by_server(problem)
    if has_root and by_server and server_grid(problem) is not None:
        yield from over_servers(problem, by_server)


CLASSICAL: Mapping[str, Template] = MappingProxyType({
    "ring": Template(ring),
    "double-ring": Template(double_ring),
    "all-pairs": Template(pairs_by_relays),
    "halving-doubling": Template(made(halving_doubling)),
    "bruck": Template(made(bruck), packed=(*GATHER_FAMILY, "alltoall")),
    "double-binary-tree": Template(double_binary_tree),
    "hierarchical": Template(_hierarchical),
    "hierarchical-ring": Template(partial(hierarchical_ring, rings_inside=rings_inside)),
    "two-step": Template(made(two_step)),
    "three-step": Template(three_step),
    "parameter-server": Template(parameter_server, helped=helper_servers),
    "recursive-doubling": Template(doubling_by_parts, packed=("alltoall",)),
    "one-shot": Template(made(one_shot)),
    "chain": Template(chain),
    "double-chain": Template(double_chain),
    "binomial": Template(binomial),
    "scatter-allgather": Template(scatter_allgather),
    "direct": Template(direct),
    "flooding": Template(flooding, packed=FLOODED),
    **{name: Template(lambda _problem: iter(()), fans=ways) for name, ways in IN_NETWORK.items()},
})  # fmt: skip

KINDS: Mapping[str, Template] = MappingProxyType({
    "cubes": Template(cube_gathers, packed=GATHER_FAMILY),
    "gateways": Template(gateway_gathers, packed=GATHER_FAMILY),
    "pipelined": Template(made(pipelined_gathers), packed=GATHER_FAMILY),
    "leaders": Template(made(leader_gathers), packed=GATHER_FAMILY, cut=True),
    "gates": Template(gate_alltoalls, packed=("alltoall",)),
    "mixed-radix": Template(made(small_gathers), packed=(*GATHER_FAMILY, "alltoall")),
    "butterflies": Template(butterflies, ("allreduce",), most=MOST_ROWS),
})  # fmt: skip
"""Grid programs of whole messages in few steps: they follow from how a machine is built."""


@dataclass(eq=False)
class Trial:
    """How an algorithm is tried on a `problem`, and why some ways to do it were `left_out`.

    `name` and `template` are of CLASSICAL or KINDS. Chunks may travel together with `batch`, and
    the first way is timed however many sends it has with `patient`. Once something is found, `over`
    tells whether to look no further; `report` is called when there is something to compile. The
    steps of `ways` are those to try; None: of all that there are.
    """

    problem: Problem
    name: str
    template: Template
    batch: bool
    patient: bool = False
    over: Callable[[], bool] = lambda: False
    report: Callable[[str], None] = lambda _line: None
    left_out: list[str] = field(default_factory=list)
    ways: Sequence[Sequence[Step]] | None = None


def classical_schedules(
    problem: Problem, name: str, *, batch: bool, patient: bool = False
) -> tuple[Schedule, ...]:
    """Return the exact schedules of a classical algorithm, the one with the least makespan first.

    The textbook's order of every way to do it, and of the best ways the same messages as early as
    ports allow: where ports are shared (two GPUs at one NIC), the textbook's order leaves them
    idle. Nothing where the algorithm `name` of CLASSICAL does not exist for the `problem`, or does
    not respect the sketch. With `batch` chunks may travel together, and with `patient` the first
    way is timed however many sends it has.
    """
    return schedules_of(Trial(problem, name, CLASSICAL[name], batch, patient))


def likely_way(problem: Problem, name: str) -> tuple[Time, tuple[Step, ...]] | None:
    """Return about what the best way of a classical algorithm takes, in picoseconds, and its steps.

    None where the algorithm `name` of CLASSICAL has no way, or only ways with too many sends or
    peers, for the `problem`.
    """
    if problem.collective.least_sends > MAX_SENDS:
        return None
    # One step more than is timed, so that no way looks complete that is not.
    listed = (tuple(islice(steps, MAX_SENDS + 1)) for steps in CLASSICAL[name].steps(problem))
    most = problem.most_peers or problem.topology.num_ranks
    timed = ((arrival_of(problem, way), way) for way in listed if _peers(way) <= most)
    return min(timed, key=lambda one: one[0], default=None)


def textbook_schedule(
    problem: Problem, name: str, *, batch: bool, way: Sequence[Step] | None = None
) -> Schedule | None:
    """Return a way of a classical algorithm in the textbook's order: the one given, or the first.

    None where the algorithm `name` of CLASSICAL does not exist for the `problem`, does not respect
    the sketch, or has too many sends or peers. With `batch` chunks may travel together; the steps
    of the `way` are those of :func:`likely_way`.
    """
    trial = Trial(problem, name, CLASSICAL[name], batch, ways=None if way is None else (way,))
    schedule, _ = next(_textbook(trial), (None, None))
    if schedule is None or problem.logical.name is None or not verify(schedule, problem.logical):
        return schedule
    return None


def first_way(problem: Problem, name: str, *, batch: bool) -> tuple[Schedule, ...]:
    """Return the first way of a classical algorithm in the textbook's order and as early as it may.

    The parameters are those of :func:`textbook_schedule`; without a sketch.
    """
    trial = Trial(problem, name, CLASSICAL[name], batch)
    schedule, decisions = next(_textbook(trial), (None, None))
    if schedule is None or decisions is None:
        return ()
    if decisions.visible_from is not None or len(decisions.fans):
        return (schedule,)
    return schedule, _earliest(trial, decisions, None)


def schedules_of(trial: Trial) -> tuple[Schedule, ...]:
    """Return what :func:`classical_schedules` does."""
    problem, bare = trial.problem, trial.problem.without_symmetry
    textbook = sorted(_textbook(trial), key=lambda timed: timed[0].makespan)
    found = [schedule for schedule, _ in textbook[:KEPT]]
    left = MAX_ORDERED
    # What is summed at one rank keeps its port busy where the broadcast played backwards does.
    mirror = mirrored(bare) if textbook and problem.collective.name == "reduce" else None
    for _, decisions in textbook[: KEPT - 1]:
        messages = [tuple(rows) for rows in message_groups(decisions.batch)]
        left -= len(messages)
        if (
            decisions.visible_from is None
            and not len(decisions.fans)
            and left >= 0
            and (not trial.over())
        ):
            with suppress(ValueError):  # messages wait for each other in a cycle
                found.append(_earliest(trial, decisions, mirror))
    distinct = {schedule.makespan: schedule for schedule in reversed(found)}
    best = [distinct[makespan] for makespan in sorted(distinct)]
    if problem.logical.name is not None:
        respecting = [one for one in best if not verify(one, problem.logical)]
        if len(respecting) < len(best):
            trial.left_out.append(f"{trial.name} does not respect the sketch")
        best = respecting
    return tuple(best[:KEPT])


def _earliest(trial: Trial, decisions: Decisions, mirror: Mirror | None) -> Schedule:
    """Return the same messages as early as ports allow; where there is a `mirror`, backwards there.

    Raises ValueError when messages wait for each other in a cycle.
    """
    bare, asked = trial.problem.without_symmetry, decisions
    problem = bare if mirror is None else mirror.problem
    if mirror is not None:
        last, turned = int(decisions.batch.max(initial=0)), np.argsort(mirror.link)
        rows = reversed(list(decisions.rows()))
        asked = Decisions.of([(c, int(turned[link]), last - m, False) for c, link, m, _ in rows])
    messages = [tuple(rows) for rows in message_groups(asked.batch)]
    load = load_of(plan_decisions(problem, rows_of(asked)), messages)
    early, _ = dispatched(load, trial.report)
    schedule = problem.timed(replace(early, packs=decisions.packs))
    return schedule if mirror is None else played_backwards(bare, mirror.link, schedule)


def _fanned(
    trial: Trial, fans: Callable[[Problem], Iterator[Decisions]]
) -> Iterator[tuple[Schedule, Decisions]]:
    """Yield every way of an algorithm over switches that copy and add."""
    problem = trial.problem
    # A sketch is about links, and chunks of a batch travel together.
    if problem.collective.members is not None or problem.logical.name:
        return
    # One row of a fan is for all ranks of a server.
    if problem.collective.least_sends // max(map(len, problem.topology.servers)) > MAX_SENDS:
        trial.left_out.append(f"{trial.name} has more than {MAX_SENDS} sends, of fans or links")
        return
    for decisions in fans(problem):
        yield problem.without_symmetry.timed(decisions), decisions
        if trial.over():
            return


def _textbook(trial: Trial) -> Iterator[tuple[Schedule, Decisions]]:
    """Yield every way to do it in the textbook's order, until too many sends were timed."""
    problem = trial.problem
    if trial.template.fans is not None:
        yield from _fanned(trial, trial.template.fans)
        return
    left = most = MAX_SENDS if trial.template.most is None else trial.template.most
    too_many = f"{trial.name} has more than {most} sends, which take long to time"
    if problem.collective.least_sends > most and not trial.patient:
        trial.left_out.append(too_many)  # and even to list
        return
    packs = trial.batch and problem.collective.name in trial.template.packed
    links = best_links(problem)
    for number, steps in enumerate(
        trial.template.steps(problem) if trial.ways is None else trial.ways
    ):
        if number and trial.over():
            return
        sequence: list[Step] = []
        for step in steps:
            sequence.append(step)
            left -= len(step[0])
            if left < 0 and not (trial.patient and number == 0):
                trial.left_out.append(too_many)
                return
        if problem.most_peers is not None and (peers := _peers(sequence)) > problem.most_peers:
            trial.left_out.append(
                f"{trial.name} has {peers} peers for a rank, and a program can have"
                f" {problem.most_peers}"
            )
            continue
        if trial.batch and not problem.topology.links.overhead.any():
            # More messages cost nothing, and one for all pieces is what there is without pieces.
            sequence = piece_by_piece(problem, sequence)
        for packed in dict.fromkeys((packs, packs and not trial.template.cut)):
            messages = in_runs(problem, sequence) if trial.batch and not packed else sequence
            decisions = _decided(problem, messages, links, batch=trial.batch)
            if decisions is None:
                trial.left_out.append(f"{trial.name} does not respect the sketch")
                continue
            decisions = replace(decisions, packs=packed)
            try:
                yield problem.without_symmetry.timed(decisions), decisions
            except ValueError:  # one port sends too long to end before the first arrival
                trial.left_out.append(
                    f"{trial.name} would have to send all before the first message arrives"
                )


def _peers(steps: Sequence[Step]) -> int:
    """Return how many ranks one rank sends to, or receives from, at most."""
    pairs = {(src, dst) for chunks, src, dst, _ in steps if chunks}
    return max(
        (count for ends in zip(*pairs, strict=True) for count in Counter(ends).values()), default=0
    )


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


def grid_schedules(
    problem: Problem,
    kind: str,
    report: Callable[[str], None],
    over: Callable[[], bool],
    worth: Time | None = None,
) -> tuple[Schedule, ...]:
    """Return the best schedules of a kind; none where there are no such servers, or links.

    The `kind` is a name of KINDS. When there is something to compile for the `problem`, `report` is
    called; once something is found, `over` tells whether to look no further. Butterflies that take
    longer than `worth` picoseconds by the clock are not timed.
    """
    logical, template = problem.logical, KINDS[kind]
    limited = logical.connections_per_rank is not None or logical.own_chunks_first
    if limited or logical.symmetry_asked:
        return ()
    if worth is not None and kind == "butterflies":
        template = template._replace(ways=partial(butterflies, worth=worth))
    return schedules_of(Trial(problem, kind, template, batch=True, over=over, report=report))


def run_classical(name: str, problem: Problem, options: Options, *, patient: bool = True) -> Result:
    """Run the algorithm `name` of CLASSICAL as an engine on a `problem`.

    `options` have the time limit, the score and what is told on the way. With `patient` the first
    way is timed however many sends it has.

    Raises NoScheduleError when the links don't allow it.
    """
    clock = options.begin()
    trial = Trial(
        problem, name, CLASSICAL[name], options.batch, patient, lambda: clock.over, options.report
    )
    schedules = schedules_of(trial)
    if not schedules:
        kind = NoScheduleError if trial.left_out else NoAlgorithmError
        nowhere = (
            f"{name} does not exist for {problem.collective.name} on the links of"
            f" {problem.topology.name}"
        )
        fix = "use --engine taccl or auto"
        if name in IN_NETWORK and not problem.topology.copies_or_adds:
            nowhere += ": no switch copies or adds here"
            fix = "use --runtime none or mscclpp on a topology whose file says that switches can"
        raise kind(next(iter(trial.left_out), nowhere), fix=fix)
    rows: list[tuple[Candidate, Schedule]] = []
    for schedule in sorted(schedules, key=options.expects):
        if not (rows and clock.over):
            rows.append((candidate_of(name, schedule, options), schedule))
    scored = [row for row in rows if row[0].score is not None]
    best = min(scored, key=lambda row: row[0].score or 0, default=rows[0])[1]
    candidates = tuple(candidate for candidate, _ in rows)
    return Result(Status.FEASIBLE, best, (), name, clock.spent, candidates=candidates)
