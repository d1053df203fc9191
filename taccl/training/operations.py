"""What ranks do in training steps: computations and collectives, in streams that wait for others.

Ranks that are alike do the same at the same times, so they are one *class*: alike are ranks that
take as long for a pass, and whose groups consist of ranks that are alike. A collective is one
operation of each class that takes part in it; all groups of ranks alike call it together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from taccl.topology.graph import Rank
from taccl.units import Time

Groups = Mapping[str, tuple[tuple[Rank, ...], ...]]
"""By name, the groups of ranks that communicate at once."""

COMPUTE = "compute"
"""The stream of passes; every other one is a communicator's."""


class Call(NamedTuple):
    """A collective: its name, over which `group`, of how many bytes, and by which algorithm.

    `size`: bytes as nccl-tests counts them. `via`: see ``taccl step --via``; empty: as that says.
    """

    collective: str
    group: str
    size: int
    via: str = ""


class Operation(NamedTuple):
    """What one class of ranks does.

    `name`: what traces call it.
    `stream`: operations of a stream run one after the other, in order, but in a stream of
    priorities those that can run by `priority`, the least first.
    `after`: positions, in the list of the class, of operations that have to be over.
    `time`: picoseconds of a computation.
    `call`: a collective; None: a computation.
    `meeting`: which collective it is: those of the other classes with the same number belong to it.
    `step`: which step it is of; a later step begins when this one is over.
    `listens`: it takes a message: it ends with the call of the others, who do not wait for it.
    """

    name: str
    stream: str
    after: tuple[int, ...] = ()
    time: Time = 0
    call: Call | None = None
    meeting: int = -1
    priority: int = 0
    step: int = 0
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of all ranks.

    `name`: of the workload.
    `ranks`: how many.
    `groups`: those that communicate.
    `class_of`: the class of each rank.
    `operations`: of each class.
    `steps`: how many.
    `by_priority`: streams whose operations run by priority.
    `period`: steps after which all repeats.
    """

    name: str
    ranks: int
    groups: Groups
    class_of: tuple[int, ...]
    operations: tuple[tuple[Operation, ...], ...]
    steps: int = 1
    by_priority: frozenset[str] = frozenset()
    period: int = 1


def classes(kinds: Sequence[Fraction | int], groups: Groups) -> tuple[int, ...]:
    """Return the class of each rank: ranks of a kind whose groups are of the same classes.

    `kinds`: of each rank.
    `groups`: those that communicate.
    """
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    found = tuple(order[kind] for kind in kinds)
    while True:
        seen: list[list[object]] = [[own] for own in found]
        for instances in groups.values():
            for members in instances:
                colours = tuple(sorted(found[rank] for rank in members))
                for rank in members:
                    seen[rank].append(colours)
            for rank in set(range(len(found))).difference(*instances):
                seen[rank].append(None)
        number: dict[tuple[object, ...], int] = {}
        finer = tuple(number.setdefault(tuple(own), len(number)) for own in seen)
        if len(number) == len(set(found)):
            return finer
        found = finer


class Meeting(NamedTuple):
    """Groups of ranks alike that call one collective at once, and the classes that take part.

    `first`: the first of these that does not only listen.
    """

    call: Call
    instances: tuple[tuple[Rank, ...], ...]
    classes: frozenset[int]
    first: int


def meetings_of(work: Work) -> dict[tuple[int, int], Meeting]:
    """Return the collectives of some `work`, by number of the meeting and a class that takes part.

    Groups whose ranks are of different classes call it for themselves.
    """
    listening = [frozenset(one.meeting for one in own if one.listens) for own in work.operations]
    found: dict[tuple[int, int], Meeting] = {}
    by_group: dict[str, dict[int, tuple[tuple[tuple[Rank, ...], ...], frozenset[int]]]] = {}
    for group, instances in work.groups.items():
        alike: dict[frozenset[int], list[tuple[Rank, ...]]] = {}
        for members in instances:
            alike.setdefault(frozenset(work.class_of[rank] for rank in members), []).append(members)
        by_group[group] = {
            one: (tuple(some), colours) for colours, some in alike.items() for one in colours
        }
    for number, operations in enumerate(work.operations):
        for operation in operations:
            call = operation.call
            if call is not None and number in by_group[call.group]:
                instances, taking_part = by_group[call.group][number]
                first = min(one for one in taking_part if operation.meeting not in listening[one])
                found[operation.meeting, number] = Meeting(call, instances, taking_part, first)
    return found
