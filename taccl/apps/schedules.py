"""Schedules from files at other sizes: timed anew on a machine, judged, and beside the bound."""

from collections.abc import Sequence

import numpy as np

from taccl.bounds import ANY, POINT_TO_POINT
from taccl.errors import InputError
from taccl.files import read_text
from taccl.model.schedule import Schedule, timed_anew
from taccl.model.schedule_file import read_schedule
from taccl.replay.sweep import Row, bounds_of
from taccl.topology.graph import Topology
from taccl.verify import require_valid


def is_schedule(path: str) -> bool:
    """Tell whether a file at `path` is a schedule, by how it begins.

    Raises InputError when it can't be read.
    """
    start = read_text(path).lstrip()[:200]
    return start.startswith("{") and '"schedule/' in start


def at_size(schedule: Schedule, topology: Topology, size: int, file: str | None = None) -> Schedule:
    """Return the decisions of a `schedule` timed anew on a `topology`, and judged.

    The topology has the same links, and arcs where there are fans, at any costs; `size` is in bytes
    of the counted buffer. Errors name the `file` it is from.

    Raises InputError when it has others, ScheduleError when the schedule is wrong.
    """
    pairs = [(schedule.topology.links, topology.links)]
    if len(schedule.fans):
        pairs.append((schedule.topology.arcs, topology.arcs))
    columns = ("src", "dst", "edge_start", "edge_ids")
    if not all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in pairs
        for name in columns
    ):
        raise InputError(
            f"its links are those of {schedule.topology.name}, and not those of {topology.name}",
            file=file, field="topology", fix="give the topology it was made for; costs may differ",
        )  # fmt: skip
    made = timed_anew(schedule, topology, size)
    require_valid(made)
    return made


def schedule_rows(
    files: Sequence[str], topology: Topology, sizes: Sequence[int]
) -> tuple[Row, ...]:
    """Return a row for each schedule of some `files` at each of some `sizes` in bytes.

    Where a schedule has fans, switches of the `topology` copy and add as it says; without fans the
    bound is that of messages from rank to rank.

    Raises InputError when a file can't be read or is for another machine; ScheduleError when what
    it says is wrong.
    """
    rows = []
    for file in files:
        schedule = read_schedule(file)
        fused = len(schedule.fans) > 0
        machine = topology if fused else topology.point_to_point()
        bound = bounds_of(machine, schedule.collective, world=ANY if fused else POINT_TO_POINT)
        for size in sizes:
            made = at_size(schedule, machine, size, file)
            proved = bound(size)
            rows.append(Row(
                schedule.collective.name, machine.name, machine.num_ranks, size, made.makespan,
                file=file, program="schedule", alpha_rule=machine.alpha_rule_stated,
                costs=machine.costs, bound=proved[1] if proved else None,
                bound_kind=proved[0] if proved else "", wrong=0, note="makespan of the schedule",
            ))  # fmt: skip
    return tuple(rows)
