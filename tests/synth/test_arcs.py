"""Arcs in columns say what routes.py says arc by arc."""

from taccl.model.routes import arcs_of, build_network, wanted_of
from tests.generators import random_problem
from tests.sweep import for_each


@for_each("seed", range(12))
@for_each("reverse", [False, True])
@for_each("chunks", [1, 3])
def test_columns_hold_the_arcs_and_costs_of_the_network(
    seed: int, reverse: bool, chunks: int
) -> None:
    problem = random_problem(seed, "reducescatter" if reverse else "allgather")
    arcs, network = arcs_of(problem, reverse=reverse), build_network(problem, reverse=reverse)
    wanted = wanted_of(arcs)
    arrival, held = arcs.arrival(chunks), arcs.held(chunks)
    rows: dict[tuple[int, ...], object] = {}
    for i in range(len(arcs)):
        uses = range(int(arcs.use_start[i]), int(arcs.use_start[i + 1]))
        rows[int(arcs.tail[i]), int(arcs.head[i]), int(arcs.link[i])] = (
            int(arrival[i]),
            tuple((int(arcs.resources[arcs.use_resource[u]]), int(held[u])) for u in uses),
        )
    for demand, row in zip(network.demands, range(len(wanted.chunk)), strict=True):
        assert demand.chunk == wanted.chunk[row]
        assert demand.roots == tuple(wanted.roots[row].nonzero()[0])
        assert demand.targets == tuple(wanted.targets[row].nonzero()[0])
        for arc in demand.arcs:
            assert rows[tuple(arc)] == (
                problem.topology.arrival(arc.link, chunks * problem.chunk_size),
                problem.cost(arc.link, chunks)[1],
            )
