"""Who holds a resource when is known in one module, by a rule that stands in what messages cost."""

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np

from taccl.timing.occupancy import (
    NEVER,
    NOTHING,
    Reservations,
    Uses,
    blocking,
    cancel,
    earliest_gap,
    earliest_start,
    free_after,
    occupy,
    reserve,
)
from taccl.timing.retiming import reversed_uses, uses_of
from taccl.topology.symmetry import make_group
from tests.generators import random_problem, star5
from tests.sweep import for_each

ROOT = Path(__file__).parent.parent / "taccl"

FREE = {"free", "_free"}
"""What a resource's free times are called."""

ASIDE = {"replay", "verify"}
"""Those that judge schedules by rules of their own."""


def advances(path: Path) -> list[int]:
    """Return the lines at which one element of a table of free times is set."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice):
                base = target.value
                name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                found += [target.lineno] if name in FREE else []
    return found


def test_a_resources_free_time_is_advanced_in_one_module_outside_the_replay() -> None:
    modules = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in ASIDE and advances(path)
    }
    assert modules == {"timing/occupancy.py"}


def two() -> Uses:
    """Two messages on resource 0 for 5 ps, the second on resource 1 from 2 to 10 ps as well."""
    return Uses(
        np.array([0, 1, 3]), np.array([0, 0, 1], dtype=np.int32), np.array([0, 0, 2]),
        np.array([5, 5, 8]), np.array([7, 12]),
    )  # fmt: skip


def test_a_message_starts_when_all_it_holds_is_free_by_then() -> None:
    uses, free = two(), np.array([4, 20])
    assert earliest_start(uses, free, 0, 1) == 4
    assert earliest_start(uses, free, 1, 1) == 18
    assert blocking(uses, free, 1, 17) == 1
    assert blocking(uses, free, 1, 18) == NOTHING
    assert occupy(uses, free, 1, 18) == 30
    assert free.tolist() == [23, 28]
    assert free_after(uses, np.array([4, 18]), 2).tolist() == [23, 28]


def test_reversed_in_time_a_message_holds_its_resources_before_it_arrives() -> None:
    assert reversed_uses(two()).offset.tolist() == [2, 7, 2]


def test_a_gap_between_reservations_is_used_until_there_is_no_room() -> None:
    uses = two()
    table = Reservations(
        np.zeros((2, 4), dtype=np.int64), np.zeros((2, 4), dtype=np.int64),
        np.zeros(2, dtype=np.int32),
    )  # fmt: skip
    reserve(uses, table, 0, 0)
    reserve(uses, table, 0, 11)
    assert earliest_gap(uses, table, 0, 0, 0) == 5
    assert earliest_gap(uses, table, 0, 7, 0) == 16
    reserve(uses, table, 1, 5)
    assert table.begin[0, :3].tolist() == [0, 5, 11]
    assert earliest_gap(uses, table, 0, 0, 1) == NEVER
    cancel(uses, table, 1, 5)
    assert table.finish[0, :2].tolist() == [5, 16]
    assert table.entries.tolist() == [2, 0]


def test_what_messages_cost_follows_the_alpha_rule() -> None:
    for rule, held in (("occupy", [10 + 5, 10 + 10]), ("delay", [5, 10])):
        topology = star5(rule)
        uses = uses_of(
            make_group(topology, ()), Fraction(5), np.array([0], np.int32), np.array([1])
        )
        assert uses.held.tolist() == held
        assert uses.arrival.tolist() == [10 + 10]


@for_each("seed", range(10))
def test_what_many_messages_cost_is_what_each_costs(seed: int) -> None:
    problem = random_problem(seed)
    topology, group, size = problem.topology, problem.group, problem.chunk_size
    link = np.repeat(np.arange(len(topology.links), dtype=np.int32), 3)
    chunks = np.tile(np.arange(1, 4), len(topology.links))
    uses = uses_of(group, size, link, chunks)
    for row, (one, count) in enumerate(zip(link.tolist(), chunks.tolist(), strict=True)):
        edges = [e for e in topology.links.edges_of(one) if topology.edges[e].beta is not None]
        span = slice(uses.first[row], uses.first[row + 1])
        assert uses.arrival[row] == topology.arrival(one, count * size)
        assert uses.resource[span].tolist() == group.edge_orbit[edges].tolist()
        assert uses.held[span].tolist() == [topology.busy(one, e, count * size) for e in edges]
