"""The judge of schedules: rules that data, resources and the sketch impose, in exact integers.

A schedule is judged send by send: orbits are expanded first, and that they can be is itself a
rule. A large one is judged by the representatives of its orbits, where the symmetry shows that they
stand for all (sends.py), rule by rule. Nothing here trusts the code that computed the times.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from taccl.errors import InputError, ScheduleError
from taccl.model.schedule import Schedule
from taccl.topology.fans import fan_betas
from taccl.topology.graph import LogicalTopology
from taccl.units import format_size
from taccl.verify.rules import (
    adjacency,
    allowed,
    connections_per_rank,
    delivered,
    held,
    leave_by,
    max_extra_hops,
    message,
    needs_no_adjacency,
    on_shortest_paths,
    once,
    one_order,
    outsider,
    released,
    resource,
    start,
    summed,
    turns_doors,
    turns_links,
    turns_paths,
)
from taccl.verify.sends import MAX_FINDINGS, Finding, Sends, fan, groups, orbits_of

MAX_PICOSECONDS = 1 << 61
"""Sums of two such times fit into 64 bits."""

FEW_SENDS = 20_000
"""Up to so many sends a schedule is judged send by send, whatever its symmetry."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a schedule breaks.

    `rule` is a name of :data:`RULES`, or ``columns``, ``symmetry`` or ``sketch`` when the rules
    could not be applied; `send` is a row of the expanded schedule, None when no one send is to
    blame, and `explanation` what is wrong, with chunk, link and time.
    """

    rule: str
    send: int | None
    explanation: str

    def __str__(self) -> str:
        """Return ``rule: explanation``."""
        return f"{self.rule}: {self.explanation}"


RULES: Mapping[str, Callable[[Sends], Iterator[Finding]]] = MappingProxyType({
    "message": message,
    "start": start,
    "released": released,
    "adjacency": adjacency,
    "resource": resource,
    "fan": fan,
    "groups": groups,
    "held": held,
    "once": once,
    "delivered": delivered,
    "summed": summed,
    "allowed": allowed,
    "outsider": outsider,
    "leave_by": leave_by,
    "max_extra_hops": max_extra_hops,
    "on_shortest_paths": on_shortest_paths,
    "connections_per_rank": connections_per_rank,
})  # fmt: skip


NEEDS: Mapping[str, Callable[[Sends], bool]] = MappingProxyType({
    "adjacency": needs_no_adjacency,
    "summed": one_order,
    "allowed": turns_links,
    "leave_by": turns_doors,
    "max_extra_hops": turns_paths,
    "on_shortest_paths": turns_paths,
})  # fmt: skip
"""What must hold for a rule to be judged by representatives, beyond what is asked for all.

Offsets in buffers do not turn with the ranks, sums without duration follow the order of rows, and
a sketch may treat images differently. Where this fails, the rule is judged on all sends.
"""


def verify(
    schedule: Schedule, logical: LogicalTopology | None = None, *, few: int = FEW_SENDS
) -> list[Violation]:
    """Return what is wrong with `schedule`; an empty list means that it is correct.

    With `logical`, the rules of the sketch are checked, too. Each rule reports at most 100
    findings. Schedules of more than `few` sends are judged by representatives where their symmetry
    allows it: a finding then stands for its images.
    """
    unfit = [Violation("columns", row, text) for row, text in _columns(schedule)]
    if unfit:
        return unfit
    if len(schedule.fans) and logical is not None:
        if logical.name is not None:
            return [Violation("sketch", None, "no sketch says what switches may copy and add")]
        logical = None
    try:
        large = schedule.num_sends > few and not len(schedule.fans)
        orbits = orbits_of(schedule) if large else None
        sends = (
            _all_sends(schedule, logical) if orbits is None else Sends(schedule, logical, orbits)
        )
    except InputError as error:
        return [Violation("symmetry", None, error.problem)]
    if logical is not None and len(logical.allowed) != len(schedule.topology.links):
        return [Violation("sketch", None, "the sketch is for another topology")]
    broken: list[Violation] = []
    every = None  # the sends, where representatives do not do for a rule
    for name, rule in RULES.items():
        judged = sends
        if sends.orbits is not None and name in NEEDS and not NEEDS[name](sends):
            judged = every = every or _all_sends(schedule, logical)
        broken += (Violation(name, row, text) for row, text in rule(judged))
    return broken


def _all_sends(schedule: Schedule, logical: LogicalTopology | None) -> Sends:
    period = len(schedule) if len(schedule.group) > 1 else None
    return Sends(schedule.expand(), logical, period=period)


def require_valid(schedule: Schedule, logical: LogicalTopology | None = None) -> None:
    """Return when `schedule` is correct, and follows the rules of the sketch in `logical`, if any.

    Raises ScheduleError with what is wrong; the first five findings are in the text.
    """
    found = verify(schedule, logical)
    if found:
        raise ScheduleError(f"the schedule of {schedule.collective.name}", found)


def _columns(schedule: Schedule) -> Iterator[Finding]:
    """Check the shapes and ranges that all rules rely on."""
    collective, topology = schedule.collective, schedule.topology
    if collective.num_ranks != topology.num_ranks:
        ranks = collective.num_ranks
        yield None, f"the collective has {ranks} ranks, the topology {topology.num_ranks}"
    for times, length in (
        (collective.ready, collective.num_chunks), (collective.tail, collective.num_chunks),
        (collective.late, collective.num_ranks),
    ):  # fmt: skip
        if times is not None and not (len(times) == length and (times >= 0).all()):
            yield None, "ready times, tails and late ranks are not one for each, 0 or more"
            return
    if schedule.chunk_size <= 0:
        yield None, f"the chunk size is {schedule.chunk_size}"
    slowest = max((edge.beta or 0 for edge in topology.edges), default=0)
    if len(schedule.fans):
        # A batch adds up what crosses an edge: at most all sends, and each a few times.
        slowest = max(slowest, *fan_betas(topology), *schedule.fans.floor)
        slowest *= len(schedule.group) * int(schedule.fans.use_times.max())
    if slowest * schedule.chunk_size * max(len(schedule.chunk), 1) > MAX_PICOSECONDS:
        yield None, f"chunks of {format_size(schedule.chunk_size)} take longer than can be counted"
        return
    whole = (schedule.chunk, schedule.link, schedule.batch, schedule.start, schedule.end)
    if any(column.dtype.kind != "i" for column in whole) or schedule.reduce.dtype.kind != "b":
        yield None, "the columns are not of integers and the reduce flags not of bools"
        return
    if len({column.shape for column in (*whole, schedule.reduce)}) != 1 or whole[0].ndim != 1:
        yield None, "the columns differ in length"
        return
    limits = ((schedule.chunk, "chunk", collective.num_chunks),
              (schedule.link, "link", len(topology.links) + len(schedule.fans)),
              (schedule.batch, "batch", np.iinfo(np.int32).max))  # fmt: skip
    for column, what, limit in limits:
        for row in np.flatnonzero((column < 0) | (column >= limit))[:MAX_FINDINGS].tolist():
            yield row, f"send {row} has {what} {column[row]}, which does not exist"
