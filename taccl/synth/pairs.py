"""Algorithms in which ranks send to one another directly: all pairs, and parameter servers."""

from collections.abc import Iterator, Sequence

from taccl.synth.problem import Problem
from taccl.synth.steps import (
    HALVES,
    Step,
    best_links,
    blocks,
    linked,
    pair_block,
    servers,
    shards,
)
from taccl.topology import Rank


def all_pairs(problem: Problem) -> Iterator[Iterator[Step]]:
    """Every rank sends to every other directly; AllReduce is ReduceScatter, then AllGather."""
    n, name, links = problem.topology.num_ranks, problem.collective.name, best_links(problem)
    if name not in (*HALVES, "alltoall") or len(links) < n * (n - 1):
        return
    pairs = [(rank, (rank + shift) % n) for shift in range(1, n) for rank in range(n)]
    if name == "alltoall":
        yield ((pair_block(problem, *pair), *pair, False) for pair in pairs)
        return
    own = blocks(problem)
    summed = [(own[peer], rank, peer, True) for rank, peer in pairs]
    spread = [(own[rank], rank, peer, False) for rank, peer in pairs]
    yield iter({"allgather": spread, "reducescatter": summed, "allreduce": summed + spread}[name])


def parameter_server(problem: Problem) -> Iterator[Iterator[Step]]:
    """Let some ranks sum a share of the chunks each, which all send them, and send the sums to all.

    The shares lie on one rank; on the first of every server of the machine; or, as where servers
    are workers too, on every rank. Reduce and Broadcast have their root for a server.
    """
    n, collective = problem.topology.num_ranks, problem.collective
    name, links = collective.name, best_links(problem)
    if name not in ("allreduce", "broadcast", "reduce") or n == 1:
        return
    chunks = tuple(range(collective.num_chunks))
    machines = servers(problem) or []
    choices: list[Sequence[Rank]] = [[collective.root or 0]]
    if name == "allreduce":
        choices += [[ranks[0] for ranks in machines]] if len(machines) > 1 else []
        choices += [range(n)] if len(chunks) >= n else []
    for chosen in choices:
        spread = list(_served(n, chosen, shards(chunks, len(chosen))))
        if linked(links, spread) and linked(links, [(c, b, a, r) for c, a, b, r in spread]):
            yield _up_and_down(name, spread)


def _served(n: int, chosen: Sequence[Rank], shares: Sequence[tuple[int, ...]]) -> Iterator[Step]:
    for shift in range(1, n):
        for server, share in zip(chosen, shares, strict=True):
            if share:
                yield share, server, (server + shift) % n, False


def _up_and_down(name: str, spread: Sequence[Step]) -> Iterator[Step]:
    if name != "broadcast":
        yield from ((chunks, worker, server, True) for chunks, server, worker, _ in spread)
    if name != "reduce":
        yield from spread
