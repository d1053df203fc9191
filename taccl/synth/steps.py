"""What classical algorithms are made of: steps, the links they take, and tours of all ranks."""

from collections.abc import Sequence

from taccl.synth.problem import Problem
from taccl.topology import Rank

Step = tuple[tuple[int, ...], Rank, Rank, bool]
"""chunks that travel together, from rank, to rank, reduce"""

LANDED: Step = ((), 0, 0, False)
"""No step: what was sent since the one before is part of what is sent from here on, not before."""

MAX_STEPS_OF_SEARCH = 200_000


def best_links(problem: Problem) -> dict[tuple[Rank, Rank], int]:
    """Return the fastest allowed link of every pair of ranks that has one."""
    topology = problem.topology
    table = topology.links
    best: dict[tuple[Rank, Rank], int] = {}
    for link in problem.logical.links():
        pair = (int(table.src[link]), int(table.dst[link]))
        if pair not in best or topology.arrival(link, problem.chunk_size) < topology.arrival(
            best[pair], problem.chunk_size
        ):
            best[pair] = link
    return best


def tour(
    problem: Problem, start: Rank = 0, *, closed: bool = True, backwards: bool = False
) -> tuple[Rank, ...] | None:
    """Return an order of all ranks along the fastest allowed links, server by server, or None.

    A depth-first search with a bounded number of steps.

    Parameters
    ----------
    start
        The first rank.
    closed
        Whether the last has a link back to the first.
    backwards
        Whether data flows from the last to the first.
    """
    links = best_links(problem)
    if backwards:
        links = {(dst, src): link for (src, dst), link in links.items()}
    topology = problem.topology
    n = topology.num_ranks
    following: list[list[Rank]] = []
    for rank in range(n):
        ends = [dst for src, dst in links if src == rank]
        home = topology.server_of[rank]
        ends.sort(
            key=lambda dst: (
                topology.server_of[dst] != home,
                topology.arrival(links[rank, dst], problem.chunk_size),
                (dst - rank) % n,
            )
        )
        following.append(ends)
    path, seen, budget = [start], {start}, MAX_STEPS_OF_SEARCH
    choices = [iter(following[start])]
    while choices and budget:
        budget -= 1
        if len(path) == n and (not closed or (path[-1], start) in links):
            return tuple(path)
        allowed = (r for r in choices[-1] if _may_visit(topology.server_of, path, seen, r))
        chosen = next(allowed, None)
        if chosen is None:
            choices.pop()
            seen.discard(path.pop())
        else:
            path.append(chosen)
            seen.add(chosen)
            choices.append(iter(following[chosen]))
    return None


def _may_visit(server_of: Sequence[int], path: Sequence[Rank], seen: set[Rank], rank: Rank) -> bool:
    """Tell whether a tour may go on to a rank: a server is left only when it is used up."""
    if rank in seen:
        return False
    home = server_of[path[-1]]
    if server_of[rank] == home:
        return True
    return all(r in seen for r, server in enumerate(server_of) if server == home)
