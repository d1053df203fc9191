"""Gathers for middling buffers: ranks at one NIC first give what they have to one of them.

Where g ranks share a NIC, each of them crossing it pays g alphas. Here neighbours gather inside
their server by doubling, from the lowest bit; after log2(g) rounds the first of them has what all
hold, and alone exchanges it with its peers in other servers, while the doubling goes on. What has
crossed is given to the g ranks in log2(g) rounds, and doubled inside the server like what is its
own. Blocks lie side by side all the time, so a message for each server's part is enough. How many
neighbours are taken together is tried: 2, 4 or 8. ReduceScatter plays it backwards.
"""

from collections.abc import Iterator

from taccl.model.problem import Problem
from taccl.synth.templates.classical import MAX_SENDS
from taccl.synth.templates.steps import Step, best_links, bits, blocks, halves, linked, servers

FOLDED = (2, 4, 8)
"""Neighbours that cross as one."""

Held = list[list[int]]
"""Chunks by rank."""


def ways(problem: Problem) -> Iterator[Iterator[Step]]:
    """Yield the steps for every number of neighbours."""
    lanes, links = servers(problem), best_links(problem)
    if problem.collective.name not in ("allgather", "reducescatter") or lanes is None:
        return
    count, size = len(lanes), len(lanes[0])
    if count == 1 or count & (count - 1) or size & (size - 1):
        return
    if count * size * problem.collective.num_chunks > MAX_SENDS:
        return
    for classes in FOLDED:
        steps = list(halves(problem, _gather(problem, lanes, classes))) if classes <= size else []
        if steps and linked(links, steps):
            yield iter(steps)


def _gather(problem: Problem, lanes: list[list[int]], classes: int) -> list[Step]:
    own: Held = [list(chunks) for chunks in blocks(problem)]
    size = len(lanes[0])
    inner = [bit for bit in bits(size) if bit < classes]
    outer = [bit for bit in bits(size) if bit >= classes]
    steps = [step for bit in inner for step in _doubled(lanes, own, bit)]
    leaders = [[ranks[place] for place in range(0, size, classes)] for ranks in lanes]
    across: Held = [list(chunks) for chunks in own]
    for bit in bits(len(lanes)):
        turned = [list(column) for column in zip(*leaders, strict=True)]
        steps += _doubled(turned, across, bit)
    steps += [step for bit in outer for step in _doubled(lanes, own, bit)]
    inside = [{chunk for rank in ranks for chunk in blocks(problem)[rank]} for ranks in lanes]
    crossed: Held = [[] for _ in own]
    for server, ranks in enumerate(leaders):
        for rank in ranks:
            crossed[rank] = [chunk for chunk in across[rank] if chunk not in inside[server]]
    for bit in inner:
        for ranks in lanes:
            for place in range(0, size, classes):
                for turn in range(bit):
                    src, dst = ranks[place + turn], ranks[place + turn + bit]
                    steps.append((tuple(crossed[src]), src, dst, False))
                    crossed[dst] = list(crossed[src])
    return steps + [step for bit in outer for step in _doubled(lanes, crossed, bit)]


def _doubled(groups: list[list[int]], held: Held, bit: int) -> list[Step]:
    """Return the exchanges of what is held by those whose places differ in a bit; note them."""
    steps: list[Step] = []
    for ranks in groups:
        before = [list(held[rank]) for rank in ranks]
        for place, rank in enumerate(ranks):
            steps.append((tuple(before[place]), rank, ranks[place ^ bit], False))
            held[rank] = sorted([*before[place], *before[place ^ bit]])
    return steps
