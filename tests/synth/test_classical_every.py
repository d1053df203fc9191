"""Each classical algorithm for each collective that it fits takes its formula, to the picosecond.

A formula is of ``n`` ranks, ``k`` chunks for each, alpha ``a``, and ``b``, what a chunk takes
beside alpha. Machines: a ``hub``, where every rank has one port each way; a ``ring`` and ``full``
meshes of wires; and servers of ``g`` ranks, each with a port to a hub and a NIC of its own, where
``x`` and ``y`` are what ``a`` and ``b`` are inside. Times are those of the textbook's order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from taccl.collectives import COLLECTIVES, build_collective
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.synth.templates.grid_programs import cube_order
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.synth.templates.steps import best_links
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.verify import verify
from tests.sweep import for_each
from tests.synth.problems import problem_of

SIZES = (1000, 10**6)


@pytest.fixture(autouse=True)
def _in_the_textbooks_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.synth.templates.classical.MAX_ORDERED", -1)


def times(
    topology: Topology, collective: str, name: str, k: int = 1, size: int = 1000
) -> list[int]:
    """Return the makespans of an algorithm's ways, which must be correct."""
    problem = problem_of(topology, collective, k, size)
    found = classical_schedules(problem, name, batch=True)
    assert all(verify(schedule, problem.logical) == [] for schedule in found)
    return [schedule.makespan for schedule in found]


def log2(n: int) -> int:
    """Return how often n is to be halved until 1 is left, rounded up."""
    return (n - 1).bit_length()


def power(n: int) -> int:
    """Return the largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


Formula = Callable[[int, int, int, int], int]
"""Of n, k, a, b."""


@dataclass(frozen=True)
class Row:
    """A formula, and where it holds.

    Parameters
    ----------
    shape
        A short form of a machine.
    formula
        Of (n, k, a, b).
    ranks
        Where it is tried.
    chunks
        How many for each of so many ranks.
    rule
        Whether alpha occupies.
    """

    shape: str
    formula: Formula
    ranks: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    chunks: Callable[[int], tuple[int, ...]] = lambda _: (1, 2)
    rule: str = "occupy"


def passed(far: int, k: int, a: int, b: int) -> int:
    """Return what blocks for up to so many places on take round a ring.

    A round's are one message for the next rank and two for all beyond, as these lie on both sides
    of the buffer's end somewhere.
    """
    return sum(min(blocks, 3) * a + blocks * k * b for blocks in range(1, far + 1))


def halved(n: int, k: int, a: int, b: int) -> int:
    """Return an AllGather by doubling: the folded ranks' blocks come first, and all goes back."""
    extra, rounds = n - power(n), log2(power(n))
    total = sum(a + min(2 << i, (1 << i) + extra) * k * b for i in range(rounds))
    # A neighbour's own block lies between the others, but at the end of the buffer.
    return total if not extra else total + a + k * b + min(extra, 2) * a + (n - 1) * k * b


def folded(n: int, k: int, a: int, b: int) -> int:
    """Return an AllReduce by halving and doubling, with all before and after for folded ranks."""
    p, size = power(n), n * k * b
    return 2 * (log2(p) * a + size * (p - 1) // p) + 2 * (n > p) * (a + size)


def spread(n: int, k: int, a: int, b: int) -> int:
    """Return a Broadcast by halving and doubling, and all of it again for the ranks left over."""
    p = power(n)
    return 2 * (log2(p) * a + k * b * (p - 1) // p) + (n > p) * (a + k * b)


def rotated(n: int, k: int, a: int, b: int) -> int:
    """Return Bruck's AlltoAll: in a round goes what has its bit in the distance."""
    bits = [1 << i for i in range(log2(n))]
    return sum(a + sum(bool(far & bit) for far in range(1, n)) * k * b for bit in bits)


def split(n: int, k: int, a: int, b: int) -> int:
    """Return a Scatter down a binomial tree: what a child passes on is a message of its own."""
    below = [min(1 << i, n - (1 << i)) for i in range(log2(n))]
    return sum(min(ranks, 2) * a for ranks in below) + (n - 1) * k * b


def gathered(n: int, k: int, a: int, b: int) -> int:
    return log2(n) * a + (n - 1) * k * b


def in_turn(n: int, k: int, a: int, b: int) -> int:
    return (n - 1) * (a + k * b)


def around(n: int, k: int, a: int, b: int) -> int:
    return n // 2 * (a + k * b)


def twice(formula: Formula) -> Formula:
    return lambda n, k, a, b: 2 * formula(n, k, a, b)


def three(row: Row) -> dict[str, Row]:
    """Return the rows of an AllGather, a ReduceScatter that is as fast, and both in turn."""
    return {
        "allgather": row,
        "reducescatter": row,
        "allreduce": replace(row, formula=twice(row.formula)),
    }


def both(row: Row, *names: str) -> dict[str, Row]:
    return dict.fromkeys(names, row)


BROADCASTS = ("broadcast", "reduce")
SCATTERS = ("gather", "scatter")
ABOVE_TWO = (3, 4, 5, 6, 7, 8)
POWERS = (2, 4, 8)

FORMULAS: Mapping[str, Mapping[str, Row]] = {
    "ring": {
        **three(Row("ring", in_turn)),
        "alltoall": Row("ring", lambda n, k, a, b: passed(n - 1, k, a, b)),
    },
    "double-ring": {
        **three(Row("ring", around, ABOVE_TWO)),
        "alltoall": Row("ring", lambda n, k, a, b: passed(n // 2, k, a, b), ABOVE_TWO),
    },
    "all-pairs": {**three(Row("hub", in_turn)), "alltoall": Row("hub", in_turn)},
    "halving-doubling": {
        **both(Row("hub", halved), "allgather", "reducescatter"),
        "allreduce": Row("hub", folded, chunks=lambda n: (power(n),)),
        **both(Row("hub", spread, chunks=lambda n: (power(n), 2 * power(n))), *BROADCASTS),
    },
    "bruck": {
        **three(Row("hub", gathered)),
        "alltoall": Row("hub", rotated),
    },
    "double-binary-tree": {
        **both(
            Row("full", lambda n, _k, a, b: log2(n) * (a + b), ABOVE_TWO, lambda _: (2,)),
            *BROADCASTS,
        ),
        "allreduce": Row(
            "full", lambda n, k, a, b: 2 * log2(n) * (a + n * k // 2 * b), ABOVE_TWO,
            lambda _: (2, 4),
        ),
    },
    "parameter-server": {
        **both(Row("hub", in_turn), *BROADCASTS),
        "allreduce": Row("hub", lambda n, k, a, b: 2 * (n - 1) * (a + k * b)),
    },
    "recursive-doubling": {
        "allreduce": Row(
            "hub", lambda n, k, a, b: (log2(power(n)) + 2 * (n > power(n))) * (a + n * k * b)
        ),
        "alltoall": Row(
            "hub", lambda n, k, a, b: log2(n) * (a + n // 2 * k * b), POWERS
        ),
    },
    "one-shot": {"allreduce": Row("full", lambda n, k, a, b: a + n * k * b, (2, 3, 4, 5, 7))},
    "chain": {
        **both(
            Row("ring", lambda n, k, a, b: (n - 2 + k) * (a + b), chunks=lambda _: (1, 3)),
            *BROADCASTS,
        ),
        **both(Row("ring", in_turn), *SCATTERS),
        "allreduce": Row("ring", lambda n, k, a, b: (2 * (n - 1) + n * k - 1) * (a + b)),
    },
    "double-chain": {
        **both(
            Row(
                "ring", lambda n, k, a, b: (n - 2 + k // 2) * (a + b), ABOVE_TWO, lambda _: (2, 4)
            ),
            *BROADCASTS,
        ),
        **both(Row("ring", around, ABOVE_TWO), *SCATTERS),
    },
    "binomial": {
        **both(
            Row("hub", lambda n, k, a, b: (log2(n) + k - 1) * (a + b), chunks=lambda _: (1, 2, 6)),
            *BROADCASTS,
        ),
        "allreduce": Row("hub", lambda n, k, a, b: 2 * log2(n) * (a + n * k * b)),
        "gather": Row("hub", gathered, chunks=lambda _: (1,)),
        "scatter": Row("hub", split),
    },
    "scatter-allgather": both(
        Row("hub", lambda n, k, a, b: (n - 2 + k) * (a + b), ABOVE_TWO, lambda n: (n - 1,)),
        *BROADCASTS,
    ),
    "direct": both(Row("hub", in_turn), *SCATTERS),
}  # fmt: skip


def cases() -> Iterator[tuple[str, str, int]]:
    for name, rows in FORMULAS.items():
        for collective, row in rows.items():
            yield from ((name, collective, ranks) for ranks in row.ranks)


@for_each(("name", "collective", "ranks"), list(cases()), quick=80, parts=2)
def test_it_takes_its_formula(name: str, collective: str, ranks: int) -> None:
    row = FORMULAS[name][collective]
    topology = load_topology(f"{row.shape}:{ranks}").with_alpha_rule(row.rule)
    for size in SIZES:
        for k in row.chunks(ranks):
            formula = row.formula(ranks, k, 700_000, 20 * size)
            assert formula in times(topology, collective, name, k, size)


Levels = Callable[[int, int, int, int, int, int], int]
"""Of s servers, g ranks in each, a and b inside, x and y across."""


def by_one_gateway(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    """Return the AlltoAll of two servers whose second ranks are gateways.

    The first message across holds what is for the other gateway, and waits for the second chunk of
    the last rank. Two more (one, of two ranks) hold what is for the ranks before it and beyond.
    What is for the last of these, and then what stays at home, goes to one rank after the other.
    """
    assert s == 2
    first = g * (g - 1) - (g - 2)
    across = (2 + (g > 2)) * x + g * g * y
    return first * (a + b) + across + max(1, g - 2) * (a + g * b) + (g - 1) * (a + b)


def along_rails(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    """Return what crosses to one rank of each server, and then goes to its other ranks, in turn."""
    return (s - 1) * (x + y) + s * (g - 1) * (a + b)


def summed_on_rails(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    """Return sums inside, of parts for the rails, exchanged on these by doubling, and spread."""
    if s & (s - 1):
        return 2 * along_rails(s, g, a, b, x, y)
    return 2 * (g - 1) * (a + s * b) + log2(s) * (x + s * y)


def to_rails(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    """Return what goes to the ranks of one number in turn, and then g chunks to each server."""
    return (s - 1) * (g - 1) * (a + b) + (s - 1) * (x + g * y)


def by_trees(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    return log2(s) * (x + y) + log2(g) * (a + b)


def gathered_by_trees(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    return gathered(g, 1, a, b) + log2(s) * x + (s - 1) * g * y


def scattered_by_trees(s: int, g: int, a: int, b: int, x: int, y: int) -> int:
    """Return a Scatter by trees: what is for the first rank of a server is a message of its own."""
    return 2 * log2(s) * x + (s - 1) * g * y + split(g, 1, a, b)


SHAPES = ((2, 2), (2, 3), (2, 4), (2, 5), (3, 2), (3, 4), (4, 4))

SERVERS: Mapping[str, Mapping[str, Levels]] = {
    "hierarchical": {
        "allgather": along_rails,
        "reducescatter": along_rails,
        "allreduce": summed_on_rails,
        "broadcast": by_trees,
        "reduce": by_trees,
        "gather": gathered_by_trees,
        "scatter": scattered_by_trees,
    },
    "hierarchical-ring": {
        "allgather": along_rails,
        "reducescatter": along_rails,
        "allreduce": lambda *shape: 2 * along_rails(*shape),
    },
    "two-step": {"alltoall": to_rails},
    "three-step": {"alltoall": by_one_gateway},
}

HUBS = """taccl: topology/1
name: hubs
node:
  gpus: {ranks}
  switches:
    - {{name: hub, members: 0-{last}, bandwidth: 1000GB/s, alpha: 1us}}
  nics:
{nics}
count: 1
fabric: {{kind: rail, alpha: 100us}}
"""


def hubs(directory: Path, servers: int, ranks: int) -> Topology:
    """Return servers on a hub, with a NIC for each rank: 1 us and 1 ps, 100 us and 100 ps."""
    file = directory / "hubs.yaml"
    nics = "\n".join(
        f"    - {{name: nic{rank}, gpus: [{rank}], bandwidth: 10GB/s}}" for rank in range(ranks)
    )
    file.write_text(HUBS.format(ranks=ranks, last=ranks - 1, nics=nics))
    return load_topology(str(file), nodes=servers)


def shaped() -> Iterator[tuple[str, str, tuple[int, int]]]:
    for name, rows in SERVERS.items():
        for collective, shape in product(rows, SHAPES):
            # With more servers, the gateways of different pairs share ports.
            if name != "three-step" or shape[0] == 2:
                yield name, collective, shape


@for_each(("name", "collective", "shape"), list(shaped()))
def test_servers_take_their_formula(
    name: str, collective: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    topology = hubs(tmp_path, *shape)
    for size in (1000, 200_000):
        formula = SERVERS[name][collective](*shape, 10**6, size, 10**8, 100 * size)
        assert formula in times(topology, collective, name, 1, size)


def test_servers_without_bits_to_double_along_go_through_digits(tmp_path: Path) -> None:
    # Three servers of four: two exchanges of pairs inside, each of one message for each server.
    topology = hubs(tmp_path, 3, 4)
    formula = 2 * (10**8 + 100 * 1000) + 3 * (2 * 10**6 + 3 * 1000)
    assert formula in times(topology, "allgather", "hierarchical", 1, 1000)
    assert min(times(topology, "reducescatter", "hierarchical", 1, 1000)) <= formula


def served(topology: Topology, name: str) -> set[str]:
    """Return the collectives that an algorithm exists for, at a chunk count that suits it."""
    return {
        collective
        for collective in COLLECTIVES
        if classical_schedules(problem_of(topology, collective, 4), name, batch=True)
    }


# Switches that copy and add have theirs in test_in_network.py, flooding in test_flooding.py.
@for_each("name", [name for name in CLASSICAL if name not in {*IN_NETWORK, "flooding"}])
def test_every_algorithm_has_a_formula_for_every_collective_that_it_serves(
    name: str, tmp_path: Path
) -> None:
    machines = (load_topology("full:4"), hubs(tmp_path, 2, 2))
    formulas = {**FORMULAS, **SERVERS}[name]
    assert set().union(*(served(topology, name) for topology in machines)) == set(formulas)


@for_each("name", ["chain", "double-chain", "binomial", "halving-doubling",
                                  "hierarchical", "direct", "scatter-allgather",
                                  "double-binary-tree", "parameter-server"])  # fmt: skip
def test_any_rank_may_be_the_root(name: str, tmp_path: Path) -> None:
    for topology in (load_topology("hub:5"), hubs(tmp_path, 2, 3)):
        for root in range(1, topology.num_ranks):
            for collective in (*BROADCASTS, *SCATTERS):
                one, other = (
                    replace(
                        problem_of(topology, "broadcast"),
                        collective=build_collective(collective, topology.num_ranks, 3, place),
                    )
                    for place in (0, root)
                )
                for batch in (False, True):
                    found = classical_schedules(other, name, batch=batch)
                    assert bool(found) == bool(classical_schedules(one, name, batch=batch))
                    for schedule in found:
                        assert verify(schedule, other.logical) == []


STAR = """
taccl: topology/1
name: star
node:
  gpus: 4
  wires:
    - {from: 0, to: 1, bandwidth: 50GB/s, alpha: 0.7us}
    - {from: 0, to: 2, bandwidth: 50GB/s, alpha: 0.7us}
    - {from: 0, to: 3, bandwidth: 50GB/s, alpha: 0.7us}
  nics:
    - {name: ib0, gpus: [0], bandwidth: 12.5GB/s}
count: 2
fabric: {kind: switch, alpha: 1.7us}
"""


@for_each("collective", sorted(COLLECTIVES))
@for_each("name", sorted(CLASSICAL))
def test_servers_without_chain_or_tree_get_whole_schedules_or_none(
    name: str, collective: str, tmp_path: Path
) -> None:
    file = tmp_path / "star.yaml"
    file.write_text(STAR)
    times(load_topology(str(file)), collective, name, 2)


@pytest.mark.parametrize("machines", [2, 3])
def test_one_server_for_each_machine_sums_a_share_of_all(machines: int) -> None:
    # Each of p servers takes n - 1 messages of S / p, and sends as many back.
    topology = replace(load_topology("hub:6"), server_of=tuple(r * machines // 6 for r in range(6)))
    found = times(topology, "allreduce", "parameter-server")
    assert 2 * 5 * (700_000 + 6 // machines * 20_000) in found


def test_a_line_has_an_allreduce_though_it_has_no_ring() -> None:
    line = load_topology("mesh2d:1x5")
    assert times(line, "allreduce", "ring") == []
    # Four hops there and four back, and the other four of five chunks behind the first.
    assert times(line, "allreduce", "chain") == [(2 * 4 + 4) * 720_000]


def test_a_hypercube_has_an_alltoall_along_its_edges() -> None:
    cube = load_topology("hypercube:8").with_alpha_rule("delay")
    assert times(cube, "alltoall", "all-pairs") == times(cube, "alltoall", "bruck") == []
    assert times(cube, "alltoall", "recursive-doubling") == [3 * (700_000 + 4 * 20_000)]


@pytest.mark.parametrize("spec", ["torus3d:4x4x4", "torus2d:2x4", "torus2d:4x4", "hypercube:8"])
def test_an_allreduce_on_a_hypercube_sends_over_all_links_in_every_round(spec: str) -> None:
    torus = load_topology(spec)
    n, rounds = torus.num_ranks, log2(torus.num_ranks)
    largest = -(-n // rounds)
    # One of log2(n) parts over each link, in as many rounds.
    assert min(times(torus, "allreduce", "recursive-doubling")) == rounds * (
        700_000 + largest * 20_000
    )


@pytest.mark.parametrize("spec", ["torus2d:3x4", "torus2d:2x8", "mesh2d:2x4", "ring:8"])
def test_no_other_network_is_taken_for_a_hypercube(spec: str) -> None:
    topology = load_topology(spec)
    problem = problem_of(topology, "allreduce", 1, 1000)
    assert cube_order(best_links(problem), topology.num_ranks) == ()


def test_a_large_ring_has_no_alltoall_round_it() -> None:
    for name in ("ring", "double-ring"):
        assert times(load_topology("ring:33"), "alltoall", name) == []
