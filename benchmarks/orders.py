"""Schedules in the order of their programs: the rule that engines search under, judged.

Does it put schedules in that order?

On every machine, collective and size all classical algorithms are schedules on the network that
engines search on (:func:`taccl.apps.inputs.charged`), and programs that are replayed with the
measured costs: in the same protocol and one instance (*plain*), and as they are scored, in the best
protocol and number of instances (*scored*). A pair of schedules is in order where the one that ends
earlier has the program that takes less; programs that differ by less than a thousandth are equal.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from benchmarks.sections import replace_section
from benchmarks.truth import PAGE
from taccl.apps import Target, load_network
from taccl.apps.inputs import MachineOptions, charged
from taccl.apps.programs import lowering_of
from taccl.collectives import build_collective
from taccl.errors import LoweringError
from taccl.model.problem import problem_of
from taccl.synth.templates.classical import CLASSICAL, classical_schedules
from taccl.units import Time, format_size

MACHINES = (("dgx-h100", 1), ("dgx-a100", 2), ("dgx2", 1), ("mi300x", 1), ("mi250", 1))
COLLECTIVES = ("allgather", "allreduce")
SIZES = (1 << 12, 1 << 18, 1 << 22, 1 << 26)

EQUAL = 0.001
"""By what part the times of programs may differ that count as equal."""

Times = tuple[Time, ...]
"""Of a schedule, of its plain program, and of the one that is scored."""


def candidates(machine: str, nodes: int, name: str, size: int) -> Iterator[Times]:
    """Yield the times of every classical algorithm that has a program there."""
    logical = load_network(machine, MachineOptions(nodes=nodes))
    collective = build_collective(name, logical.topology.num_ranks, 1)
    target = Target(measured=True)
    known = target.protocols(name, logical.topology)
    topology = charged(logical, collective, size, known).topology
    size = target.whole_size(size, collective.chunks_in_size)
    # The protocol whose costs the network has.
    own = next(
        protocol for protocol in known
        if charged(logical, collective, size, (protocol,)).topology.edges == topology.edges
    )  # fmt: skip
    for algorithm in CLASSICAL:
        problem = problem_of(topology, collective, size)
        for schedule in classical_schedules(problem, algorithm, batch=True):
            plain = replace(target, protocol=own)
            scored = replace(target, instances=None)
            try:
                times = [
                    lowering_of(schedule, wanted, size, algorithm).settled().best[1]
                    for wanted in (plain, scored)
                ]
            except LoweringError:
                continue
            yield schedule.makespan, *times


def in_order(found: Sequence[Times], place: int) -> tuple[int, int]:
    """Return how many pairs are in order, and how many differ; ``place`` 1: plain, 2: scored."""
    right = pairs = 0
    for one, other in combinations(found, 2):
        if abs(one[place] - other[place]) <= EQUAL * max(one[place], other[place]):
            continue
        pairs += 1
        right += (one[0] - other[0]) * (one[place] - other[place]) > 0
    return right, pairs


def main() -> int:
    """Print a line a cell, and how many pairs are in order; ``--write`` puts it into the docs."""
    total = [0, 0, 0, 0]
    cells = list(product(MACHINES, COLLECTIVES, SIZES))
    for (machine, nodes), name, size in cells:
        found = list(candidates(machine, nodes, name, size))
        counts = [*in_order(found, 1), *in_order(found, 2)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        plain, plain_all, scored, scored_all = counts
        print(f"{machine} x {nodes} {name} {format_size(size):>10}: plain {plain} of {plain_all},"
              f" scored {scored} of {scored_all}", flush=True)  # fmt: skip
    parts = [f"{right} of {pairs} ({right / pairs:.0%})" for right, pairs in
             zip(total[::2], total[1::2], strict=True)]  # fmt: skip
    text = (
        f"Made by `python -m benchmarks.orders`: in {len(cells)} cells (five machines, two"
        " collectives, 4 KiB to 64 MiB) the schedules of all classical algorithms are in the order"
        f" of their plain programs in {parts[0]} pairs, and of the programs that are scored, in"
        f" other protocols and instances, in {parts[1]}.\n"
    )
    print(text)
    if "--write" in sys.argv[1:]:
        replace_section(PAGE, "orders", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
