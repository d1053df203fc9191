"""Whether an algorithm of S synchronous steps, R rounds and C chunks exists, as SCCL answers it.

A yes comes with the algorithm, a no with the reason or with a proof by search; what time did not
suffice for is unknown. :func:`schedule_of` gives the algorithm the times of our cost model, in
which messages start as soon as they may instead of step by step.

References
----------
Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, section 3.
"""

import math
import time
from dataclasses import dataclass

from taccl.errors import NoScheduleError
from taccl.schedule import Decisions, Schedule, retime
from taccl.symmetry import make_group
from taccl.synth.problem import Options, Problem, Status
from taccl.synth.rounds_allreduce import allreduce, closed, halves
from taccl.synth.rounds_gather import flows, trees
from taccl.synth.rounds_question import Question, Rounds, Size, StepSend, ask, impossible

__all__ = [
    "Answer", "Rounds", "Size", "StepSend", "answer", "chunks_per_rank", "rounds_decisions",
    "schedule_of",
]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Whether an algorithm exists.

    Parameters
    ----------
    status
        OPTIMAL: there is one; INFEASIBLE: there is none; else it is unknown, because the time
        (TIME_LIMIT) or the user (INTERRUPTED) ended the search.
    rounds
        The algorithm, if there is one.
    reason
        Why there is none, or why that is unknown; empty when there is one.
    seconds
        Wall clock.
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
    """Tell whether an algorithm of some steps, rounds and chunks exists.

    Parameters
    ----------
    problem
        With the number of chunks that :func:`chunks_per_rank` gives. Its symmetries are used
        only to find an allreduce sooner; what is found has none.
    seconds
        How long to search (with ``options.deterministic``, how much counted work).

    Raises
    ------
    InputError
        When there are no such algorithms to ask for (:func:`~taccl.synth.rounds_question.ask`).
    NoScheduleError
        When a rank can't be reached.
    ValueError
        When the problem has another number of chunks.
    """
    began = time.monotonic()
    question = ask(problem, size)
    fewest = chunks_per_rank(problem.collective.name, problem.topology.num_ranks, size.chunks)
    given = problem.collective.chunks_per_rank
    if given != fewest:
        raise ValueError(f"the problem has {given} chunks for each rank, {fewest} are asked for")
    reason = impossible(question)
    if reason:
        return Answer(Status.INFEASIBLE, None, reason, time.monotonic() - began)
    if problem.topology.num_ranks == 1:
        empty = Rounds(
            size, (size.rounds - size.steps + 1, *[1] * (size.steps - 1)), ((),) * size.steps
        )
        return Answer(Status.OPTIMAL, empty, "", time.monotonic() - began)
    status, rounds = _search(question, options, seconds)
    return Answer(status, rounds, _REASONS.get(status, ""), time.monotonic() - began)


_REASONS = {
    Status.INFEASIBLE: "proved by a search through all algorithms",
    Status.TIME_LIMIT: "the time did not suffice to find one or to prove that there is none",
    Status.INTERRUPTED: "interrupted before one was found or excluded",
}


def _search(question: Question, options: Options, seconds: float) -> tuple[Status, Rounds | None]:
    if question.problem.collective.name != "allreduce":
        look = flows if question.network.point_to_point else trees
        return look(question, options, seconds)
    began = time.monotonic()
    joined = halves(question, options, seconds / 4)
    if joined is not None:
        return Status.OPTIMAL, joined
    group = question.problem.group
    if len(group) > 1 and closed(question, group):
        status, alike = allreduce(question, options, seconds / 4, group)
        if alike is not None:
            return status, alike
    spent = 0.0 if options.deterministic else time.monotonic() - began
    alone = make_group(question.problem.topology, ())
    return allreduce(question, options, max(0.0, seconds - spent), alone)


def rounds_decisions(problem: Problem, rounds: Rounds) -> Decisions:
    """Return the sends of an algorithm step by step, as decisions without symmetry.

    A chunk of an allreduce is a run of the problem's chunks, which travel together; two ranks may
    exchange it in a step, so its arrivals count from the next step on.
    """
    whole = problem.collective.name == "allreduce"
    run = problem.collective.num_chunks // rounds.size.chunks if whole else 1
    rows: list[tuple[int, int, int, bool]] = []
    lands: list[int] = []
    batch = 0
    for step in rounds.sends:
        # By chunk on every link: exchanges in different orders could wait for each other.
        for send in sorted(step):
            chunks = range(send.chunk * run, (send.chunk + 1) * run)
            rows += [(chunk, send.link, batch, send.reduce) for chunk in chunks]
            batch += 1
        lands += [len(rows)] * (len(rows) - len(lands))
    return Decisions.of(rows, lands if whole else None)


def schedule_of(problem: Problem, rounds: Rounds) -> Schedule:
    """Return an algorithm as a schedule with exact times.

    Raises
    ------
    NoScheduleError
        When no times exist: steps of an allreduce in which every rank sends its value by one
        port several times, and receives into it meanwhile.
    """
    group = make_group(problem.topology, ())
    decisions = rounds_decisions(problem, rounds)
    try:
        return retime(problem.collective, group, problem.chunk_size, decisions)
    except ValueError as error:
        raise NoScheduleError(
            f"the algorithm exists, but only where a step ends everywhere at once: {error}",
            fix="ask for more steps, or leave out --steps and --rounds",
        ) from error
