"""Whether an algorithm of S synchronous steps, R rounds and C chunks exists, as SCCL answers it.

A yes comes with the algorithm, a no with the reason or with a proof by search; what time did not
suffice for is unknown. :func:`schedule_of` gives the algorithm the times of our cost model, in
which messages start as soon as they may instead of step by step.

The steps share the rounds, and every step has one at least. In a round an edge carries as many
chunks as its bandwidth is a multiple of the common measure of all bandwidths; so in a step of r
rounds, r times as many. A chunk is sent in a step only by ranks that hold it when the step begins.
What counting alone excludes is excluded first; then CP-SAT is asked.

Collectives that copy, or sum along a tree:

Trees       Sets        c chunks, a arcs, r ranks, s steps
            Variables   send[c,a,s] ∈ {0,1}   chunk c crosses arc a in step s
                        at[c,r,s] ∈ {0,1}     chunk c is at rank r when step s begins
                        rounds[s] ≥ 1
            Subject to  (arrive)    a target is entered exactly once, any other rank at most once
                        (held)      at[c,r,s] = Σ send into r before s;  send[c,a,s] ≤ at[c,tail,s]
                        (capacity)  Σ send over an edge in step s ≤ capacity · rounds[s]
                        (rounds)    Σ rounds[s] = R

Flows       Sets        o origins; where chunks have one target, those of an origin are one flow
            Variables   send[o,a,s], stay[o,r,s] ∈ ℕ, rounds[s] ≥ 1
            Subject to  (flow)      what is at a rank stays or leaves; targets end with their chunks
                        (capacity)  as above
            A flow of whole numbers falls into paths of one chunk each, so which chunk is which
            needs no unknowns.

Sums flow on arcs turned round, and the steps are played backwards. Unknowns before the step in
which a rank can be reached are left out.

An allreduce, by which contributions are in which value:

Sets        c chunks, l links, r ranks, q whose contribution, s steps
Variables   adds[c,l,s] ∈ {0,1}      the value at the source is added to the one at the destination
            copies[c,l,s] ∈ {0,1}    it replaces that
            has[c,r,q,s] ∈ {0,1}     the value at rank r when step s begins contains that of rank q
            brings[c,l,q,s]          = adds[c,l,s] ∧ has[c,src,q,s]
            rounds[s] ≥ 1
Subject to  (disjoint)  has[c,r,q,s] + Σ_l brings[c,l,q,s] ≤ 1 over the links into r
            (alone)     a copy is the only arrival of its chunk in its step
            (sum)       has[c,r,q,s+1] = has[c,r,q,s] + Σ_l brings[c,l,q,s] without a copy
            (copy)      has[c,r,q,s+1] = has[c,src,q,s] ≥ has[c,r,q,s] with one
            (end)       has[c,r,q,S] = 1
            (capacity)  Σ adds + copies over an edge in step s ≤ capacity · rounds[s]
            (rounds)    Σ rounds[s] = R
            (messages)  a chunk takes 2(n-1) sends, and one at least into and out of every rank
                        (redundant)
            (order)     the chunks are alike: their first steps come in order of a key

Two narrower searches come first; what they find is an answer, that they find nothing is none.
Where n divides C, a reduce-scatter and then an allgather, each in half of the steps and rounds
(:func:`compose_allreduce`); and the model with one unknown for each orbit of links and of pairs
(r, q) under a group of symmetries, which map every chunk to itself.

References
----------
Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, section 3.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import InputError, NoScheduleError, OutOfTimeError
from taccl.model.problem import Options, Problem, Result, Status
from taccl.model.routes import Arc, Demand, Network, build_network
from taccl.model.schedule import Decisions, Schedule
from taccl.topology.graph import Rank, Topology
from taccl.topology.symmetry import make_group

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Sends = dict[tuple[int, Arc, int], cp_model.IntVar]
    from taccl.topology.symmetry import Group


MAX_CAPACITY = 64
"""Chunks that an edge may carry in a round."""

MAX_ROUNDS = 10_000
MAX_LITERALS = 600_000
"""Unknowns of a model: about ten seconds to write down."""

MAX_ARCS = 2_000_000
"""Links times demands: what is written down before the unknowns can be counted."""


class Size(NamedTuple):
    """How long an algorithm is, and in how many chunks it cuts the data.

    ``chunks`` counts those of the whole buffer for an allreduce, else ``chunks_per_rank``: those
    of a rank, and of a pair in an alltoall.
    """

    steps: int
    rounds: int
    chunks: int


class StepSend(NamedTuple):
    """One chunk crossing one link in a step; the chunks of an allreduce are 0 .. C-1."""

    chunk: int
    link: int
    reduce: bool


@dataclass(frozen=True)
class Rounds:
    """An algorithm: how many rounds each step has and what is sent in it."""

    size: Size
    rounds: tuple[int, ...]
    sends: tuple[tuple[StepSend, ...], ...]


@dataclass(frozen=True, eq=False)
class Question:
    """A `size`, and the network that an algorithm of that size is looked for on.

    The `problem` has the collective, and the links that may be used, the `network` the arcs, with
    one chunk a rank (a pair), and `capacity` the chunks that an edge carries in a round; edges that
    are not in it carry any number.
    """

    problem: Problem
    size: Size
    network: Network
    capacity: Mapping[int, int]

    @cached_property
    def limited(self) -> dict[int, tuple[int, ...]]:
        """The edges of a capacity that a link crosses, by link."""
        table = self.problem.topology.links
        return {
            link: tuple(edge for edge in table.edges_of(link) if edge in self.capacity)
            for link in self.network.links
        }

    @cached_property
    def entering(self) -> Mapping[Rank, list[int]]:
        """The links that end at each rank."""
        entering: dict[Rank, list[int]] = defaultdict(list)
        for link in self.network.links:
            entering[int(self.problem.topology.links.dst[link])].append(link)
        return entering


def ask(problem: Problem, size: Size) -> Question:
    """Return a question.

    Raises InputError when there are no such algorithms to ask for: a size that makes no sense,
    bandwidths without a small common measure, a sketch that limits more than links, or a model that
    is too large; NoScheduleError when a rank can't be reached.
    """
    name, topology, logical = problem.collective.name, problem.topology, problem.logical
    for part, value in size._asdict().items():
        if value < 1:
            raise InputError(
                f"should be at least 1, got {value}", field=f"--{part}", fix="use 1 or more"
            )
    if not size.steps <= size.rounds <= MAX_ROUNDS:
        raise InputError(
            f"should be from {size.steps} (one for every step) to {MAX_ROUNDS}, got {size.rounds}",
            field="--rounds",
            fix="use more rounds or fewer steps" if size.rounds < size.steps else "use fewer",
        )
    if name not in COLLECTIVES:
        raise InputError(
            f"steps and rounds are not defined for {name}",
            field="--steps",
            fix=f"leave out --steps and --rounds, or use one of {', '.join(COLLECTIVES)}",
        )
    limits = {
        "max_extra_hops": logical.max_extra_hops is not None,
        "connections_per_rank": logical.connections_per_rank is not None,
        "own_chunks_first": logical.own_chunks_first,
        "leave_by": bool(logical.leave_by) and name == "allreduce",
    }
    broken = [limit for limit, given in limits.items() if given]
    if broken:
        raise InputError(
            f"the sketch limits {', '.join(broken)}, which steps and rounds know nothing of",
            field="--steps",
            fix="leave out the sketch, or take these limits out of it",
        )
    # An allreduce has the arcs of an allgather: every value goes to every rank.
    routed = "allgather" if name == "allreduce" else name
    single = replace(
        problem,
        collective=build_collective(routed, topology.num_ranks, 1, problem.collective.root),
        group=make_group(topology, ()),
    )
    arcs = int(logical.allowed.sum()) * single.collective.num_chunks
    if arcs > MAX_ARCS:
        raise InputError(
            f"{topology.name} has {arcs} choices of a link for a chunk, more than {MAX_ARCS}",
            field="--steps",
            fix="use a smaller topology, or leave out --steps and --rounds",
        )
    network = build_network(single, reverse=single.collective.reduces)
    capacity = capacities(topology)
    steps, _, chunks = size
    demands, links = network.demands, len(network.links)
    if name == "allreduce":
        each = 2 * links * chunks * len(demands)
    elif network.point_to_point:
        each = sum(len(arcs) for arcs in {demand.root: demand.arcs for demand in demands}.values())
    else:
        each = chunks * sum(len(demand.arcs) for demand in demands)
    if steps * each > MAX_LITERALS:
        raise InputError(
            f"{steps} steps of {chunks} chunks on {links} links make a model of {steps * each}"
            f" unknowns, more than {MAX_LITERALS}",
            field="--steps",
            fix="ask for fewer steps or chunks, or use a smaller topology",
        )
    return Question(problem, size, network, capacity)


def capacities(topology: Topology) -> Mapping[int, int]:
    """Return how many chunks each edge carries in a round, for the edges that have a bandwidth.

    The unit is the greatest common measure of the bandwidths of all edges that are on links.

    Raises InputError when the bandwidths are no small multiples of it.
    """
    table = topology.links
    used = (topology.edges[edge] for edge in np.unique(table.edge_ids).tolist())
    speed = {edge.id: 1 / edge.beta for edge in used if edge.beta}
    unit = Fraction(0)
    for other in sorted(set(speed.values())):
        below = math.lcm(unit.denominator, other.denominator)
        unit = Fraction(math.gcd(int(unit * below), int(other * below)), below)
        if max(speed.values()) > MAX_CAPACITY * unit:
            raise InputError(
                f"the bandwidths of {topology.name} have no common measure of which each is at"
                f" most {MAX_CAPACITY} times as much, so rounds are not defined",
                field="--rounds",
                fix="leave out --steps and --rounds, or round the bandwidths in the topology",
            )
    return MappingProxyType({edge: int(value / unit) for edge, value in speed.items()})


def impossible(question: Question) -> Iterator[str]:
    """Yield the reasons for which counting alone excludes an algorithm; nothing if it does not."""
    steps, rounds, chunks = question.size
    for demand in question.network.demands:
        far = max(demand.targets, key=demand.hops.__getitem__, default=demand.root)
        if demand.hops[far] > steps:
            ends = (far, demand.root) if question.network.reverse else (demand.root, far)
            yield (
                f"rank {ends[1]} is {demand.hops[far]} hops from rank {ends[0]}, so steps:"
                f" {demand.hops[far]} at least"
            )
    # The edges by which each rank takes in and sends.
    table, network = question.problem.topology.links, question.network
    ports: dict[str, dict[Rank, set[int]]] = {"take in": defaultdict(set), "send": defaultdict(set)}
    for link in network.links:
        edges = table.edges_of(link)
        ports["take in"][int(table.dst[link])].add(edges[-1])
        ports["send"][int(table.src[link])].add(edges[0])
    # How many chunks each takes in and sends at least, for one chunk a rank (pair).
    wanted = [demand for demand in network.demands if demand.targets]
    roots = Counter(demand.root for demand in wanted)
    targets = Counter(target for demand in wanted for target in demand.targets)
    least = (roots, targets) if network.reverse else (targets, roots)
    if question.problem.collective.name == "allreduce":
        least = (roots, roots)
    for verb, needs in zip(ports, least, strict=True):
        for rank, need in sorted(needs.items()):
            room = _room(question, ports[verb][rank])
            if room is not None and room < need * chunks:
                yield (
                    f"rank {rank} has to {verb} {need * chunks} chunks, and can {verb} {room} in"
                    f" {rounds} rounds"
                )
    if question.problem.collective.name == "allreduce":
        # Until a first rank has everything, and from then on until all have, n-1 messages each,
        # as a message informs one rank.
        need = 2 * (question.problem.topology.num_ranks - 1) * chunks
        room = _room(question, {edge for edges in ports["send"].values() for edge in edges})
        if room is not None and room < need:
            yield f"the chunks take {need} sends, and {rounds} rounds have room for {room}"


def _room(question: Question, edges: set[int]) -> int | None:
    """Return how many chunks can cross some edges in all rounds; None: any number."""
    if not edges <= question.capacity.keys():
        return None
    return question.size.rounds * sum(question.capacity[edge] for edge in edges)


@dataclass(frozen=True, eq=False)
class StepModel:
    """A CP-SAT `model` of a `question` in the making.

    `rounds` has an unknown for every step, and `load` the chunks on an edge in a step, to be
    summed.
    """

    model: "cp_model.CpModel"
    question: Question
    rounds: "tuple[cp_model.IntVar, ...]"
    load: "dict[tuple[int, int], list[cp_model.IntVar]]"

    def carry(self, link: int, step: int, chunks: "cp_model.IntVar") -> None:
        """Note how many chunks cross a link in a step."""
        for edge in self.question.limited[link]:
            self.load[edge, step].append(chunks)

    def solve(self, options: Options, seconds: float) -> "tuple[Status, cp_model.CpSolver]":
        """Limit what the edges carry, and solve; the status is OPTIMAL when there is a solution."""
        from ortools.sat.python import cp_model

        from taccl.synth.milp import new_solver, solve_watched

        for (edge, step), chunks in self.load.items():
            self.model.add(sum(chunks) <= self.question.capacity[edge] * self.rounds[step])
        solver = new_solver(options, seconds, workers=options.workers)
        found = solve_watched(solver, self.model, None, options.stop.is_set)
        if found in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Status.OPTIMAL, solver
        if found == cp_model.INFEASIBLE:
            return Status.INFEASIBLE, solver
        stopped = options.stop.is_set()
        return Status.INTERRUPTED if stopped else Status.TIME_LIMIT, solver


def new_steps(question: Question) -> StepModel:
    """Return a model that has nothing but steps, which share the rounds."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    steps, rounds, _ = question.size
    shares = tuple(model.new_int_var(1, rounds - steps + 1, f"rounds_{s}") for s in range(steps))
    model.add(sum(shares) == rounds)
    return StepModel(model, question, shares, defaultdict(list))


def trees(question: Question, options: Options, seconds: float) -> tuple[Status, Rounds | None]:
    """Look for an algorithm that takes every chunk to many ranks, or sums it from many."""
    x = new_steps(question)
    sends: Sends = {}
    for demand in question.network.demands:
        for index in range(question.size.chunks):
            _tree(x, demand, demand.chunk * question.size.chunks + index, sends)
    status, solver = x.solve(options, seconds)
    if status is not Status.OPTIMAL:
        return status, None
    taken = [
        (step, chunk, arc.link)
        for (chunk, arc, step), send in sends.items()
        if solver.value(send)
    ]  # fmt: skip
    return status, _rounds(x, solver, taken)


def _tree(x: StepModel, demand: Demand, chunk: int, sends: "Sends") -> None:
    """Add (arrive) and (held) for one chunk."""
    steps = x.question.size.steps
    entering: dict[Rank, list[tuple[int, cp_model.IntVar]]] = defaultdict(list)
    for arc in demand.arcs:
        for step in range(demand.hops[arc.tail], steps):
            send = x.model.new_bool_var(f"send_{chunk}_{arc.link}_{step}")
            sends[chunk, arc, step] = send
            entering[arc.head].append((step, send))
            x.carry(arc.link, step, send)
    for rank, arrivals in sorted(entering.items()):
        once = x.model.add_exactly_one if rank in demand.targets else x.model.add_at_most_one
        once(send for _, send in arrivals)
    at = {}
    for rank, arrivals in sorted(entering.items()):
        for step in range(demand.hops[rank], steps):
            at[rank, step] = x.model.new_bool_var(f"at_{chunk}_{rank}_{step}")
            x.model.add(sum(send for when, send in arrivals if when < step) == at[rank, step])
    for arc in demand.arcs:
        if arc.tail != demand.root:
            for step in range(demand.hops[arc.tail], steps):
                x.model.add_implication(sends[chunk, arc, step], at[arc.tail, step])


def flows(question: Question, options: Options, seconds: float) -> tuple[Status, Rounds | None]:
    """Look for an algorithm where every chunk has one target."""
    x = new_steps(question)
    origins: dict[Rank, list[Demand]] = defaultdict(list)
    for demand in question.network.demands:
        if demand.targets:
            origins[demand.root].append(demand)
    sends: Sends = {}
    for demands in origins.values():
        _flow(x, demands, sends)
    status, solver = x.solve(options, seconds)
    if status is not Status.OPTIMAL:
        return status, None
    flow = {key: solver.value(send) for key, send in sends.items()}
    taken = [one for demands in origins.values() for one in _paths(question, demands, flow)]
    return status, _rounds(x, solver, taken)


def _flow(x: StepModel, demands: list[Demand], sends: "Sends") -> None:
    """Add (flow) for the chunks of one origin; none of them needs to come back."""
    steps, _, chunks = x.question.size
    root, hops, arcs = demands[0].root, demands[0].hops, demands[0].arcs
    total = chunks * len(demands)
    at: dict[Rank, cp_model.LinearExprT] = dict.fromkeys(sorted(hops), 0)
    at[root] = total
    for step in range(steps):
        leaving: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
        entering: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
        for arc in arcs:
            if hops[arc.tail] <= step:
                send = x.model.new_int_var(0, total, f"send_{root}_{arc.link}_{step}")
                sends[root, arc, step] = send
                leaving[arc.tail].append(send)
                entering[arc.head].append(send)
                x.carry(arc.link, step, send)
        for rank in at:
            stay = x.model.new_int_var(0, total, f"stay_{root}_{rank}_{step}")
            x.model.add(at[rank] == stay + sum(leaving[rank]))
            at[rank] = stay + sum(entering[rank])
    wanted = Counter(target for demand in demands for target in demand.targets)
    for rank, held in at.items():
        x.model.add(held == chunks * wanted[rank])


def _paths(
    question: Question, demands: list[Demand], flow: Mapping[tuple[Rank, Arc, int], int]
) -> list[tuple[int, int, int]]:
    """Take a flow apart into one path for every chunk; return (step, chunk, link) triples."""
    steps, _, chunks = question.size
    leaving: dict[tuple[Rank, int], list[tuple[Arc, int]]] = defaultdict(list)
    for (origin, arc, step), amount in flow.items():
        if origin == demands[0].root:
            leaving[arc.tail, step].append((arc, amount))
    paths: dict[Rank, list[list[tuple[int, Arc]]]] = defaultdict(list)
    paths[demands[0].root] = [[] for _ in range(chunks * len(demands))]
    for step in range(steps):
        arrived = [
            [*paths[rank].pop(), (step, arc)]
            for rank in sorted(paths)
            for arc, amount in leaving[rank, step]
            for _ in range(amount)
        ]
        for path in arrived:
            # A path that comes back to a rank waits there instead.
            rank = path[-1][1].head
            first = next(number for number, (_, arc) in enumerate(path) if arc.head == rank)
            paths[rank].append(path[: first + 1])
    return [
        (step, demand.chunk * chunks + index, arc.link)
        for demand in demands
        for index, path in enumerate(paths[demand.targets[0]])
        for step, arc in path
    ]


def _rounds(
    x: StepModel, solver: "cp_model.CpSolver", taken: Iterable[tuple[int, int, int]]
) -> Rounds:
    """Return an algorithm of (step, chunk, link) triples; one of sums is turned round."""
    size, reverse = x.question.size, x.question.network.reverse
    rounds = tuple(solver.value(share) for share in x.rounds)
    sends: list[list[StepSend]] = [[] for _ in rounds]
    for step, chunk, link in taken:
        sends[step].append(StepSend(chunk, link, reverse))
    turn = slice(None, None, -1) if reverse else slice(None)
    return Rounds(size, rounds[turn], tuple(tuple(sorted(step)) for step in sends[turn]))


def compose_allreduce(question: Question, options: Options, seconds: float) -> Rounds | None:
    """Return a reduce-scatter followed by an allgather, or None when none was found."""
    steps, rounds, chunks = question.size
    ranks = question.problem.topology.num_ranks
    if chunks % ranks or steps < 2:
        return None
    early = Size(steps // 2, rounds // 2, chunks // ranks)
    late = Size(steps - early.steps, rounds - early.rounds, early.chunks)
    found = []
    for name, size in (("reducescatter", early), ("allgather", late)):
        collective = build_collective(name, ranks, size.chunks)
        half = ask(replace(question.problem, collective=collective), size)
        if any(impossible(half)):
            return None
        _, part = trees(half, options, seconds / 2)
        if part is None:
            return None
        found.append(part)
    # Chunk (d, i) is number d*C/n + i in both.
    first, second = found
    return Rounds(question.size, first.rounds + second.rounds, first.sends + second.sends)


@dataclass
class _Variables:
    adds: "dict[tuple[int, int, int], cp_model.IntVar]" = field(default_factory=dict)
    copies: "dict[tuple[int, int, int], cp_model.IntVar]" = field(default_factory=dict)
    has: "dict[tuple[Rank, Rank, int], cp_model.IntVar]" = field(default_factory=dict)


def allreduce(
    question: Question, options: Options, seconds: float, group: "Group"
) -> tuple[Status, Rounds | None]:
    """Look for an allreduce that looks the same from every rank of an orbit.

    Only with the group of one element does INFEASIBLE mean that there is none.
    """
    x = new_steps(question)
    y, topology = _Variables(), question.problem.topology
    keys = []
    for chunk in range(question.size.chunks):
        y.has = _values(x, chunk, group)
        _sends(x, y, chunk, group)
        for step in range(question.size.steps):
            for rank in sorted(set(group.rank_orbit.tolist())):
                _arrivals(x, y, chunk, rank, step)
        sent = [
            (link, made[chunk, link, step])
            for made in (y.adds, y.copies)
            for step in range(question.size.steps)
            for link in question.network.links
        ]
        x.model.add(sum(send for _, send in sent) >= 2 * (topology.num_ranks - 1))
        for ends in (topology.links.src, topology.links.dst):
            for rank in range(topology.num_ranks):
                x.model.add_bool_or(send for link, send in sent if ends[link] == rank)
        first = [
            (2 * place + 1) * y.adds[chunk, link, 0] + (2 * place + 2) * y.copies[chunk, link, 0]
            for place, link in enumerate(question.network.links)
        ]
        keys.append(sum(first))
    for key, other in pairwise(keys):
        x.model.add(key <= other)
    status, solver = x.solve(options, seconds)
    if status is not Status.OPTIMAL:
        return status, None
    by_step: list[list[StepSend]] = [[] for _ in x.rounds]
    for reduce, made in ((True, y.adds), (False, y.copies)):
        for (chunk, link, step), send in made.items():
            if solver.value(send):
                by_step[step].append(StepSend(chunk, link, reduce))
    rounds = tuple(solver.value(share) for share in x.rounds)
    return status, Rounds(question.size, rounds, _useful(question, by_step))


def _sends(x: StepModel, y: _Variables, chunk: int, group: "Group") -> None:
    """Add the literals of all sends of one chunk, one for each orbit of links."""
    links, steps = x.question.network.links, x.question.size.steps
    images = [group.link_image(number, links) for number in range(len(group))]
    for link, orbit in zip(links, zip(*images, strict=True), strict=True):
        first = min(orbit)
        for made, name in ((y.adds, "add"), (y.copies, "copy")):
            for step in range(steps):
                if link == first:
                    literal = x.model.new_bool_var(f"{name}_{chunk}_{link}_{step}")
                    made[chunk, link, step] = literal
                made[chunk, link, step] = made[chunk, first, step]
                x.carry(link, step, made[chunk, link, step])


def _values(
    x: StepModel, chunk: int, group: "Group"
) -> "dict[tuple[Rank, Rank, int], cp_model.IntVar]":
    """Return the literals of has[chunk, ...]; those that are known are constants, and (end)."""
    no, yes = x.model.new_constant(0), x.model.new_constant(1)
    steps = x.question.size.steps
    has: dict[tuple[Rank, Rank, int], cp_model.IntVar] = {}
    for demand in x.question.network.demands:
        of = demand.root
        for rank, hops in demand.hops.items():
            first = min((element[rank], element[of]) for element in group.elements)
            for step in range(steps + 1):
                if rank == of or step == steps:
                    held = yes
                elif step < hops:
                    held = no
                elif (*first, step) in has:
                    held = has[*first, step]
                else:
                    held = x.model.new_bool_var(f"has_{chunk}_{rank}_{of}_{step}")
                has[rank, of, step] = has[*first, step] = held
    return has


def _arrivals(x: StepModel, y: _Variables, chunk: int, rank: Rank, step: int) -> None:
    """Add (disjoint), (alone), (sum) and (copy) for one chunk at one rank in one step."""
    model, table = x.model, x.question.problem.topology.links
    brings: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    copies = []
    for link in x.question.entering[rank]:
        src = int(table.src[link])
        add, copy = y.adds[chunk, link, step], y.copies[chunk, link, step]
        copies.append(copy)
        for of in range(x.question.problem.topology.num_ranks):
            there, here = y.has[src, of, step], y.has[rank, of, step]
            brought = model.new_bool_var(f"brings_{chunk}_{link}_{of}_{step}")
            model.add_bool_and(add, there).only_enforce_if(brought)
            model.add_bool_or(add.negated(), there.negated(), brought)
            brings[of].append(brought)
            model.add_implication(here, there).only_enforce_if(copy)
            model.add(y.has[rank, of, step + 1] == there).only_enforce_if(copy)
    alone = model.new_bool_var(f"alone_{chunk}_{rank}_{step}")
    model.add_exactly_one(alone, *copies)
    for link in x.question.entering[rank]:
        model.add_implication(y.adds[chunk, link, step], alone)
    for of, brought_by in brings.items():
        here, after = y.has[rank, of, step], y.has[rank, of, step + 1]
        model.add_at_most_one(here, *brought_by)
        model.add_implication(here, after)
        model.add(after == here + sum(brought_by)).only_enforce_if(alone)


def _useful(question: Question, sends: list[list[StepSend]]) -> tuple[tuple[StepSend, ...], ...]:
    """Return the sends of every step without those that change nothing in the end.

    A copy of what is there already changes nothing, nor does what a later copy replaces before
    it is sent on.
    """
    table, ranks = question.problem.topology.links, range(question.problem.topology.num_ranks)
    held = {(c, rank): 1 << rank for c in range(question.size.chunks) for rank in ranks}
    news: list[list[StepSend]] = []
    for step in sends:
        before = dict(held)
        news.append([])
        for send in step:
            here = (send.chunk, int(table.dst[send.link]))
            brought = before[send.chunk, int(table.src[send.link])]
            if send.reduce or brought != before[here]:
                held[here] = held[here] | brought
                news[-1].append(send)
    wanted = dict.fromkeys(held, True)
    kept: list[tuple[StepSend, ...]] = []
    for step in reversed(news):
        used = [send for send in step if wanted[send.chunk, int(table.dst[send.link])]]
        for send in used:
            if not send.reduce:
                wanted[send.chunk, int(table.dst[send.link])] = False
        for send in used:
            wanted[send.chunk, int(table.src[send.link])] = True
        kept.append(tuple(sorted(used)))
    return tuple(reversed(kept))


@dataclass(frozen=True)
class Answer:
    """Whether an algorithm exists, told after so many `seconds` by the clock.

    The `status` is OPTIMAL: there is one, with its `rounds`; INFEASIBLE: there is none; else it is
    unknown, because the time (TIME_LIMIT) or the user (INTERRUPTED) ended the search. `reason` is
    why there is none, or why that is unknown; empty when there is one.
    """

    status: Status
    rounds: Rounds | None
    reason: str
    seconds: float


def chunks_per_rank(collective: str, num_ranks: int, chunks: int) -> int:
    """Return the fewest chunks for each rank that C chunks of a collective can be made of.

    An allreduce counts chunks of the whole buffer, of which we have a multiple of the ranks.
    """
    return chunks // math.gcd(chunks, num_ranks) if collective == "allreduce" else chunks


def answer(problem: Problem, size: Size, options: Options, seconds: float) -> Answer:
    """Tell whether an algorithm of some steps, rounds and chunks (`size`) exists for a `problem`.

    The problem has the number of chunks that :func:`chunks_per_rank` gives. Its symmetries are used
    only to find an allreduce sooner; what is found has none. With ``options.deterministic`` the
    `seconds` are counted work.

    Raises InputError when there are no such algorithms to ask for
    (:func:`~taccl.synth.steps_rounds.ask`); NoScheduleError when a rank can't be reached;
    ValueError when the problem has another number of chunks.
    """
    clock = options.begin()
    question = ask(problem, size)
    fewest = chunks_per_rank(problem.collective.name, problem.topology.num_ranks, size.chunks)
    given = problem.collective.chunks_per_rank
    if given != fewest:
        raise ValueError(f"the problem has {given} chunks for each rank, {fewest} are asked for")
    reason = next(impossible(question), None)
    if reason:
        return Answer(Status.INFEASIBLE, None, reason, clock.spent)
    if problem.topology.num_ranks == 1:
        empty = Rounds(
            size, (size.rounds - size.steps + 1, *[1] * (size.steps - 1)), ((),) * size.steps
        )
        return Answer(Status.OPTIMAL, empty, "", clock.spent)
    status, rounds = _search(question, options, seconds)
    return Answer(status, rounds, _REASONS.get(status, ""), clock.spent)


def in_rounds(problem: Problem, options: Options, size: Size) -> Result:
    """Return the algorithm of some steps, rounds and chunks (`size`) for a `problem`.

    `options` have the time limit and what is told on the way; the errors are those of
    :func:`answer` and :func:`schedule_of` as well.

    Raises NoScheduleError when there is none; OutOfTimeError when the time does not suffice to find
    out whether there is.
    """
    found = answer(problem, size, options, options.time_limit)
    what = f"algorithm of {size.steps} steps, {size.rounds} rounds and {size.chunks} chunks"
    if found.status is Status.INFEASIBLE:
        raise NoScheduleError(
            f"there is no {what}: {found.reason}", fix="ask for more rounds or fewer chunks"
        )
    if found.rounds is None:
        raise OutOfTimeError(
            f"it is unknown whether there is an {what}: {found.reason}", fix="raise --time-limit"
        )
    lengths = ", ".join(map(str, found.rounds.rounds))
    options.report(f"there is an {what}; its steps have {lengths} rounds ({found.seconds:.1f} s)")
    schedule = schedule_of(problem, found.rounds)
    return Result(Status.FEASIBLE, schedule, (), "exact", found.seconds)


_REASONS = {
    Status.INFEASIBLE: "proved by a search through all algorithms",
    Status.TIME_LIMIT: "the time did not suffice to find one or to prove that there is none",
    Status.INTERRUPTED: "interrupted before one was found or excluded",
}


def _search(question: Question, options: Options, seconds: float) -> tuple[Status, Rounds | None]:
    if question.problem.collective.name != "allreduce":
        look = flows if question.network.point_to_point else trees
        return look(question, options, seconds)
    clock = replace(options, time_limit=seconds).begin()
    joined = compose_allreduce(question, options, seconds / 4)
    if joined is not None:
        return Status.OPTIMAL, joined
    group, links = question.problem.group, question.network.links
    # A group is of use that maps the links that may be used onto themselves.
    kept = (set(group.link_image(g, links)) == set(links) for g in range(len(group)))
    if len(group) > 1 and all(kept):
        status, alike = allreduce(question, options, seconds / 4, group)
        if alike is not None:
            return status, alike
    return allreduce(question, options, clock.left, question.problem.without_symmetry.group)


def rounds_decisions(problem: Problem, rounds: Rounds) -> Decisions:
    """Return the sends of an algorithm step by step, as decisions without symmetry.

    A chunk of an allreduce is a run of the problem's chunks, which travel together; two ranks may
    exchange it in a step, so its arrivals count from the next step on.
    """
    reduces_all = problem.collective.name == "allreduce"
    run = problem.collective.num_chunks // rounds.size.chunks if reduces_all else 1
    rows: list[tuple[int, int, int, bool]] = []
    visible_from: list[int] = []
    batch = 0
    for step in rounds.sends:
        # By chunk on every link: exchanges in different orders could wait for each other.
        for send in sorted(step):
            chunks = range(send.chunk * run, (send.chunk + 1) * run)
            rows += [(chunk, send.link, batch, send.reduce) for chunk in chunks]
            batch += 1
        visible_from += [len(rows)] * (len(rows) - len(visible_from))
    return Decisions.of(rows, visible_from if reduces_all else None)


def schedule_of(problem: Problem, rounds: Rounds) -> Schedule:
    """Return an algorithm as a schedule with exact times.

    Raises NoScheduleError when no times exist: steps of an allreduce in which every rank sends its
    value by one port several times, and receives into it meanwhile.
    """
    try:
        return problem.without_symmetry.timed(rounds_decisions(problem, rounds))
    except ValueError as error:
        raise NoScheduleError(
            f"the algorithm exists, but only where a step ends everywhere at once: {error}",
            fix="ask for more steps, or leave out --steps and --rounds",
        ) from error
