"""Steps and rounds of an allreduce: which contributions are in which value (CP-SAT).

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
(:func:`halves`); and the model with one unknown for each orbit of links and of pairs (r, q) under
a group of symmetries, which map every chunk to itself.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from taccl.collectives import build_collective
from taccl.synth.problem import Options, Status
from taccl.synth.rounds_gather import trees
from taccl.synth.rounds_question import (
    Question,
    Rounds,
    Size,
    StepModel,
    StepSend,
    ask,
    impossible,
    new_steps,
)
from taccl.topology import Rank

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from taccl.symmetry import Group


def halves(question: Question, options: Options, seconds: float) -> Rounds | None:
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
        if impossible(half):
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
    y = _Variables()
    keys = []
    for chunk in range(question.size.chunks):
        y.has = _values(x, chunk, group)
        _sends(x, y, chunk, group)
        for step in range(question.size.steps):
            for rank in sorted(set(group.rank_orbit.tolist())):
                _arrivals(x, y, chunk, rank, step)
        _messages(x, y, chunk)
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
    sends = [
        (step, StepSend(chunk, link, reduce))
        for reduce, made in ((True, y.adds), (False, y.copies))
        for (chunk, link, step), send in made.items()
        if solver.value(send)
    ]
    by_step: list[list[StepSend]] = [[] for _ in x.rounds]
    for step, send in sends:
        by_step[step].append(send)
    rounds = tuple(solver.value(share) for share in x.rounds)
    return status, Rounds(question.size, rounds, _useful(question, by_step))


def closed(question: Question, group: "Group") -> bool:
    """Tell whether a group maps the links that may be used onto themselves."""
    links = question.network.links
    return all(set(group.link_image(g, links)) == set(links) for g in range(len(group)))


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
    for link in _entering(x.question)[rank]:
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
    for link in _entering(x.question)[rank]:
        model.add_implication(y.adds[chunk, link, step], alone)
    for of, brought_by in brings.items():
        here, after = y.has[rank, of, step], y.has[rank, of, step + 1]
        model.add_at_most_one(here, *brought_by)
        model.add_implication(here, after)
        model.add(after == here + sum(brought_by)).only_enforce_if(alone)


def _entering(question: Question) -> Mapping[Rank, list[int]]:
    table = question.problem.topology.links
    entering: dict[Rank, list[int]] = defaultdict(list)
    for link in question.network.links:
        entering[int(table.dst[link])].append(link)
    return entering


def _messages(x: StepModel, y: _Variables, chunk: int) -> None:
    """Add (messages) for one chunk."""
    table, ranks = x.question.problem.topology.links, x.question.problem.topology.num_ranks
    sends = [
        (link, made[chunk, link, step])
        for made in (y.adds, y.copies)
        for step in range(x.question.size.steps)
        for link in x.question.network.links
    ]
    x.model.add(sum(send for _, send in sends) >= 2 * (ranks - 1))
    for ends in (table.src, table.dst):
        for rank in range(ranks):
            x.model.add_bool_or(send for link, send in sends if ends[link] == rank)


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
