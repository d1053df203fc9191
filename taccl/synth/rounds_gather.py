"""Steps and rounds of collectives that copy, or sum along a tree (CP-SAT).

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
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from taccl.synth.problem import Options, Status
from taccl.synth.rounds_question import Question, Rounds, StepModel, StepSend, new_steps
from taccl.synth.routes import Arc, Demand

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from taccl.topology import Rank

    Sends = dict[tuple[int, Arc, int], cp_model.IntVar]


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
    taken = []
    for origin, demands in origins.items():
        flow = {
            (arc, step): solver.value(send)
            for (root, arc, step), send in sends.items()
            if root == origin
        }  # fmt: skip
        taken += _paths(question, demands, flow)
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
    question: Question, demands: list[Demand], flow: Mapping[tuple[Arc, int], int]
) -> list[tuple[int, int, int]]:
    """Take a flow apart into one path for every chunk; return (step, chunk, link) triples."""
    steps, _, chunks = question.size
    leaving: dict[tuple[Rank, int], list[tuple[Arc, int]]] = defaultdict(list)
    for (arc, step), amount in flow.items():
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
