"""A reduction as a gather on the mirrored machine, played backwards.

Turn every edge round, and a reduction of chunks to their owners becomes a gather from them: the
trees are the same, and what was sent last is sent first. So what an engine does well for gathers
(messages joined where nothing waits for what comes first) serves reductions as well. Times are
computed anew: an alpha that keeps no edge busy lies at the other end of its message then. That can
take longer than the gather, so a search for routes turns its arcs round instead, and holds
resources up to the arrival (:func:`taccl.timing.retiming.reversed_uses`).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, TURNED, build_collective
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.synth.plan import adjacent
from taccl.topology.symmetry import make_group

MOST_LINKS = 20_000
"""Of a machine that is mirrored, at most."""


@dataclass(frozen=True, eq=False)
class Mirror:
    """A gather on the mirrored machine (its `problem`), and the way back.

    `link` is, for every link of the mirrored machine, that of the machine itself.
    """

    problem: Problem
    link: NDArray[np.int64]


def mirrored(problem: Problem) -> Mirror | None:
    """Return the gather that is a reduction played backwards; None where there is none.

    There is none for other collectives, under a sketch (whose limits are on the links as they
    are), where ranks are late, and where a link has no counterpart, as there were too many equal
    paths. What is ready late is needed early in the mirror, and the other way round.
    """
    collective, topology = problem.collective, problem.topology
    name = TURNED.get(collective.name)
    if name is None or problem.logical.name is not None or len(topology.links) > MOST_LINKS:
        return None
    if collective.late is not None:
        return None
    edges = tuple(replace(edge, tail=edge.head, head=edge.tail) for edge in topology.edges)
    turned = replace(topology, edges=edges)
    # The link of the machine that crosses the same edges the other way.
    number = {topology.links.edges_of(link): link for link in range(len(topology.links))}
    paths = (turned.links.edges_of(link) for link in range(len(turned.links)))
    link = np.array([number.get(path[::-1], -1) for path in paths], dtype=np.int64)
    if -1 in link or len(link) != len(number):
        return None
    logical = replace(problem.logical, topology=turned, allowed=problem.logical.allowed[link])
    root = collective.root if COLLECTIVES[name].has_root else None
    gather = build_collective(name, collective.num_ranks, collective.chunks_per_rank, root)
    gather = gather.timed(collective.tail, collective.ready)
    group = make_group(turned, problem.group.generators)
    return Mirror(replace(problem, logical=logical, collective=gather, group=group), link)


def played_backwards(problem: Problem, link: NDArray[np.int64], schedule: Schedule) -> Schedule:
    """Return a gather as a reduction, or a reduction as a gather: the `problem` is what is wanted.

    For every link of the schedule's machine, `link` is that of the problem's; the `schedule` is of
    the mirrored problem, without exchanges, and its symmetries are kept. A message that can't be
    one step there (a reduction may keep its chunks elsewhere) is cut.
    """
    orbits = replace(problem, group=make_group(problem.topology, schedule.generators))
    messages: dict[int, list[tuple[int, int, int, bool]]] = {}
    for chunk, old, batch, _ in reversed(list(schedule.decisions().rows())):
        row = (chunk, int(link[old]), batch, problem.collective.reduces)
        messages.setdefault(batch, []).insert(0, row)  # the order of places stays
    rows = [row for message in messages.values() for row in message]
    return orbits.timed(adjacent(orbits, Decisions.of(rows)))
