"""What SCCL asks: whether an algorithm of S synchronous steps, R rounds and C chunks exists.

The steps share the rounds, and every step has one at least. In a round an edge carries as many
chunks as its bandwidth is a multiple of the common measure of all bandwidths; so in a step of r
rounds, r times as many. A chunk is sent in a step only by ranks that hold it when the step begins.
Here is the question, what follows from it by counting alone, and the part of the model that all
collectives share.

References
----------
Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, section 3.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import InputError
from taccl.symmetry import make_group
from taccl.synth.problem import Options, Problem, Status
from taccl.synth.routes import Network, build_network
from taccl.topology import Rank, Topology

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

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
    """A size, and the network that an algorithm of that size is looked for on.

    Parameters
    ----------
    problem
        The collective, and the links that may be used.
    size
        Steps, rounds and chunks.
    network
        The arcs, with one chunk a rank (a pair).
    capacity
        Chunks that an edge carries in a round, by edge; others carry any number.
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


def ask(problem: Problem, size: Size) -> Question:
    """Return a question.

    Raises
    ------
    InputError
        When there are no such algorithms to ask for: a size that makes no sense, bandwidths
        without a small common measure, a sketch that limits more than links, or a model that is
        too large.
    NoScheduleError
        When a rank can't be reached.
    """
    name, topology = problem.collective.name, problem.topology
    _check_size(size)
    _check_served(problem)
    # An allreduce has the arcs of an allgather: every value goes to every rank.
    routed = "allgather" if name == "allreduce" else name
    single = replace(
        problem,
        collective=build_collective(routed, topology.num_ranks, 1, problem.collective.root),
        group=make_group(topology, ()),
    )
    arcs = int(problem.logical.allowed.sum()) * single.collective.num_chunks
    if arcs > MAX_ARCS:
        raise InputError(
            f"{topology.name} has {arcs} choices of a link for a chunk, more than {MAX_ARCS}",
            field="--steps",
            fix="use a smaller topology, or leave out --steps and --rounds",
        )
    network = build_network(single, reverse=single.collective.reduces)
    question = Question(problem, size, network, capacities(topology))
    _check_literals(question)
    return question


def _check_served(problem: Problem) -> None:
    name, logical = problem.collective.name, problem.logical
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


def _check_size(size: Size) -> None:
    for field, value in size._asdict().items():
        if value < 1:
            raise InputError(
                f"should be at least 1, got {value}", field=f"--{field}", fix="use 1 or more"
            )
    if not size.steps <= size.rounds <= MAX_ROUNDS:
        raise InputError(
            f"should be from {size.steps} (one for every step) to {MAX_ROUNDS}, got {size.rounds}",
            field="--rounds",
            fix="use more rounds or fewer steps" if size.rounds < size.steps else "use fewer",
        )


def _check_literals(question: Question) -> None:
    steps, _, chunks = question.size
    demands, links = question.network.demands, len(question.network.links)
    if question.problem.collective.name == "allreduce":
        each = 2 * links * chunks * len(demands)
    elif question.network.point_to_point:
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


def capacities(topology: Topology) -> Mapping[int, int]:
    """Return how many chunks each edge carries in a round, for the edges that have a bandwidth.

    The unit is the greatest common measure of the bandwidths of all edges that are on links.

    Raises
    ------
    InputError
        When the bandwidths are no small multiples of it.
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


def impossible(question: Question) -> str | None:
    """Return why counting alone excludes an algorithm, or None when it does not."""
    return next(_reasons(question), None)


def _reasons(question: Question) -> Iterator[str]:
    steps, rounds, chunks = question.size
    for demand in question.network.demands:
        far = max(demand.targets, key=demand.hops.__getitem__, default=demand.root)
        if demand.hops[far] > steps:
            ends = (far, demand.root) if question.network.reverse else (demand.root, far)
            yield (
                f"rank {ends[1]} is {demand.hops[far]} hops from rank {ends[0]}, so steps:"
                f" {demand.hops[far]} at least"
            )
    ports = _ports(question)
    for verb, needs in zip(ports, _needs(question), strict=True):
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


def _ports(question: Question) -> dict[str, dict[Rank, set[int]]]:
    """Return the edges by which each rank takes in and sends."""
    table = question.problem.topology.links
    ports: dict[str, dict[Rank, set[int]]] = {"take in": defaultdict(set), "send": defaultdict(set)}
    for link in question.network.links:
        edges = table.edges_of(link)
        ports["take in"][int(table.dst[link])].add(edges[-1])
        ports["send"][int(table.src[link])].add(edges[0])
    return ports


def _needs(question: Question) -> tuple[Counter[Rank], Counter[Rank]]:
    """Return how many chunks each rank takes in and sends at least, for one chunk a rank (pair)."""
    network = question.network
    wanted = [demand for demand in network.demands if demand.targets]
    roots = Counter(demand.root for demand in wanted)
    if question.problem.collective.name == "allreduce":
        return roots, roots
    ends = Counter(target for demand in wanted for target in demand.targets)
    return (roots, ends) if network.reverse else (ends, roots)


def _room(question: Question, edges: set[int]) -> int | None:
    """Return how many chunks can cross some edges in all rounds; None: any number."""
    if not edges <= question.capacity.keys():
        return None
    return question.size.rounds * sum(question.capacity[edge] for edge in edges)


@dataclass(frozen=True, eq=False)
class StepModel:
    """A model in the making: rounds of every step, and what its edges carry.

    Parameters
    ----------
    model
        Of CP-SAT.
    question
        What it answers.
    rounds
        An unknown for every step.
    load
        Chunks on an edge in a step, to be summed.
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
