"""What programs are expected to take, held against what they take: the order of schedules.

On every machine, collective and size all classical algorithms are schedules, whose programs are
expected to take so long (:func:`taccl.replay.expected.expected_time`), and programs that are
replayed with the measured costs: in the same protocol and one instance (*plain*), and as they are
scored, in the best protocol and number of instances (*scored*). A pair of schedules is in order
where the one that is expected to take less has the program that does; programs that differ by less
than a thousandth are equal. Beside it is what the makespans of the schedules tell.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

from benchmarks.sections import replace_section
from benchmarks.truth import PAGE
from taccl.apps import Target, load_network
from taccl.apps.inputs import MachineOptions, charged
from taccl.apps.programs import Scorer, lowering_of
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


class Times(NamedTuple):
    """Of a schedule its makespan, and what its plain and its scored program should take, and take.

    All are in picoseconds.
    """

    makespan: Time
    plain_expected: Time
    scored_expected: Time
    plain: Time
    scored: Time


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
            wanted = (replace(target, protocol=own), replace(target, instances=None))
            expected = [Scorer(each, size, print).expects(schedule) for each in wanted]
            try:
                times = [
                    lowering_of(schedule, each, size, algorithm).settled().best[1]
                    for each in wanted
                ]
            except LoweringError:
                continue
            yield Times(schedule.makespan, *expected, *times)


def in_order(found: Sequence[Times], told: str, taken: str) -> tuple[int, int]:
    """Return how many pairs are in order, and how many differ.

    ``told`` and ``taken`` are fields of what is `found`: what tells the order, and what it is.
    """
    right = pairs = 0
    for one, other in combinations(found, 2):
        first, second = getattr(one, taken), getattr(other, taken)
        if abs(first - second) <= EQUAL * max(first, second):
            continue
        pairs += 1
        right += (getattr(one, told) - getattr(other, told)) * (first - second) > 0
    return right, pairs


WAYS = (
    ("plain_expected", "plain"), ("scored_expected", "scored"),
    ("makespan", "plain"), ("makespan", "scored"),
)  # fmt: skip
"""What tells the order of which programs."""


def main() -> int:
    """Print a line a cell, and how many pairs are in order; ``--write`` puts it into the docs."""
    total = [(0, 0)] * len(WAYS)
    cells = list(product(MACHINES, COLLECTIVES, SIZES))
    for (machine, nodes), name, size in cells:
        found = list(candidates(machine, nodes, name, size))
        counts = [in_order(found, *way) for way in WAYS]
        total = [(a + c, b + d) for (a, b), (c, d) in zip(total, counts, strict=True)]
        (plain, plain_all), (scored, scored_all), *_ = counts
        print(f"{machine} x {nodes} {name} {format_size(size):>10}: plain {plain} of {plain_all},"
              f" scored {scored} of {scored_all}", flush=True)  # fmt: skip
    parts = [f"{right} of {pairs} ({right / pairs:.1%})" for right, pairs in total]
    text = (
        f"Made by `python -m benchmarks.orders`: in {len(cells)} cells (five machines, two"
        " collectives, 4 KiB to 64 MiB) the schedules of all classical algorithms are in the order"
        f" of their programs in {parts[1]} pairs by what these are expected to take, in the best"
        f" protocol and number of instances, and in {parts[0]} in one protocol and one instance; by"
        f" their makespans in {parts[3]} and {parts[2]}.\n"
    )
    print(text)
    if "--write" in sys.argv[1:]:
        replace_section(PAGE, "orders", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
