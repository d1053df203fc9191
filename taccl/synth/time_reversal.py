"""A reduction as a gather on the mirrored machine, played backwards.

Turn every edge round, and a reduction of chunks to their owners becomes a gather from them: the
trees are the same, and what was sent last is sent first. So what an engine does well for gathers
(messages joined where nothing waits for what comes first) serves reductions as well. Times are
computed anew: an alpha that keeps no edge busy lies at the other end of its message then.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, build_collective
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.plan import Adjacency, plan_decisions
from taccl.topology.links import LinkTable
from taccl.topology.symmetry import make_group

GATHERS = {"reducescatter": "allgather", "reduce": "broadcast"}
"""Reductions to one owner of every chunk, and what they are when played backwards."""

MOST_LINKS = 20_000
"""Of a machine that is mirrored, at most."""


@dataclass(frozen=True, eq=False)
class Mirror:
    """A gather on the mirrored machine, and the way back.

    Parameters
    ----------
    problem
        The gather.
    link
        For every link of the mirrored machine, that of the machine itself.
    """

    problem: Problem
    link: NDArray[np.int64]


def mirrored(problem: Problem) -> Mirror | None:
    """Return the gather that is a reduction played backwards; None where there is none.

    There is none for other collectives, under a sketch (whose limits are on the links as they
    are), and where a link has no counterpart, as there were too many equal paths.
    """
    name, topology = GATHERS.get(problem.collective.name), problem.topology
    if name is None or problem.logical.name is not None or len(topology.links) > MOST_LINKS:
        return None
    edges = tuple(replace(edge, tail=edge.head, head=edge.tail) for edge in topology.edges)
    turned = replace(topology, edges=edges)
    link = _counterparts(turned.links, topology.links)
    if link is None:
        return None
    logical = replace(problem.logical, topology=turned, allowed=problem.logical.allowed[link])
    collective = problem.collective
    root = collective.root if COLLECTIVES[name].has_root else None
    gather = build_collective(name, collective.num_ranks, collective.chunks_per_rank, root)
    group = make_group(turned, problem.group.generators)
    return Mirror(replace(problem, logical=logical, collective=gather, group=group), link)


def _counterparts(links: LinkTable, others: LinkTable) -> NDArray[np.int64] | None:
    """Return for each link that of others which crosses the same edges the other way."""
    number = {others.edges_of(link): link for link in range(len(others))}
    found = [number.get(links.edges_of(link)[::-1], -1) for link in range(len(links))]
    return None if -1 in found or len(links) != len(others) else np.array(found, dtype=np.int64)


def played_backwards(problem: Problem, mirror: Mirror, schedule: Schedule) -> Decisions | None:
    """Return a gather's decisions as those of the reduction.

    None where some message can't be one step: a reduction may keep its chunks elsewhere.

    Parameters
    ----------
    problem
        The reduction, with the symmetries of the schedule.
    mirror
        Of that reduction.
    schedule
        Of the mirror's problem.
    """
    decisions = schedule.decisions()
    rows = [
        (chunk, int(mirror.link[link]), batch, True)
        for chunk, link, batch, _ in reversed(list(decisions.rows()))
    ]
    adjacency = Adjacency(plan_decisions(problem, [(c, k, r) for c, k, _, r in rows]))
    turned: list[tuple[int, int, int, bool]] = []
    messages: dict[int, list[int]] = {}
    for number, (_, _, batch, _) in enumerate(rows):
        messages.setdefault(batch, []).append(number)
    for message in messages.values():
        message.reverse()  # the order of places is the gather's
        if len(message) > 1 and not adjacency.together(message):
            return None
        turned += [rows[number] for number in message]
    return Decisions.of(turned)
