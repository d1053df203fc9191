"""Training steps on a topology: what one takes, what if, by which policy, and against what.

The collectives of a workload have their prices (:mod:`taccl.apps.call_costs`), and are played with
its passes (:mod:`taccl.training`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from taccl.apps.call_costs import check_via
from taccl.errors import InputError
from taccl.files import read_document
from taccl.files.read import FieldPath
from taccl.report.steps import Policy, Stepped, What
from taccl.topology.graph import Topology
from taccl.training.expansion import expanded, period_of, with_policy
from taccl.training.operation_graph import read_work
from taccl.training.operations import Meeting, Work, meetings_of
from taccl.training.simulation import Cost
from taccl.training.steps import Step, played
from taccl.training.workload import Workload
from taccl.units import Time

BUCKETS = (1 << 20, 25 << 20, 100 << 20, None)
ORDERS = (("fifo", None, "step"), ("priority", 4 << 20, "layer"))
OVERLAPS = ("backward", "none")
"""What a sweep tries."""


class Price(NamedTuple):
    """What collectives take.

    `cost`: from a collective that groups call at once to what it takes.
    `together`: from collectives, and when each begins, to when each ends; None: they share edges as
    fluids.
    """

    cost: Callable[[Meeting], Cost]
    together: Callable[[Sequence[tuple[Meeting, Time]]], Sequence[Time]] | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a workload.

    `files`: a workload file, or another tool's: a table of layers (CSV), SimAI's text (.txt), or
    Chakra traces (.et), one for all ranks or one each.
    `topology`: where it runs.
    `profile`, `via`: how results name what messages are charged, and the algorithm.
    `price`: what collectives take.
    `what_ifs`: the same under other conditions, by what these are.
    `against`: the same by another algorithm, by its name.
    `steps`: steps that are played.
    `sweep`: whether policies are tried.
    `library`: whether there is one that calls may ask for.
    """

    files: tuple[str, ...]
    topology: Topology
    profile: str
    via: str
    price: Price
    what_ifs: Mapping[str, Price] = field(default_factory=dict)
    against: Mapping[str, Price] = field(default_factory=dict)
    steps: int = 6
    sweep: bool = False
    library: bool = False


READERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    ".csv": ("layer_table", "read_layer_table"),
    ".et": ("chakra", "read_chakra"),
    ".txt": ("simai", "read_simai"),
})  # fmt: skip
"""By the suffix of a file, the module and function that read it; others are workload files."""

MANY = (".et",)
"""Of these there may be several: one for each rank."""


def load_work(files: Sequence[str], ranks: int, *, library: bool) -> Workload | Work:
    """Return the workload in some `files`, or the work of traces, for so many `ranks`.

    Calls may ask for a `library` if there is one.

    Raises InputError when a file can't be used, or is for another number of ranks.
    """
    kind = Path(files[0]).suffix.lower()
    if len(files) > 1 and kind not in MANY:
        raise InputError(
            f"is one of {len(files)} files", file=files[1],
            fix=f"give one workload, or traces ({', '.join(MANY)})",
        )  # fmt: skip
    if kind in READERS:
        module, function = READERS[kind]
        read = getattr(import_module(f"taccl.imports.{module}"), function)
        imported: Workload | Work = read(files if kind in MANY else files[0], ranks)
        return imported
    document = read_document(files[0])
    found = read_work(document)
    for path, via in _ways(found):
        try:
            check_via(via, library=library)
        except InputError as error:
            raise document.error(error.problem, path, error.fix or "use best") from None
    told = found.record.ranks if isinstance(found, Workload) else found.ranks
    if told != ranks:
        raise document.error(
            f"is {told}, and the topology has {ranks} ranks", ("ranks",),
            "change one of them, or give --nodes",
        )  # fmt: skip
    return found


def _ways(found: Workload | Work) -> Iterator[tuple[FieldPath, str]]:
    """Yield the algorithms that calls of a workload ask for themselves, and where."""
    if not isinstance(found, Workload):
        asked = {one.call.via for own in found.operations for one in own if one.call is not None}
        yield from ((("ops",), via) for via in sorted(asked) if via)
        return
    record = found.record
    for number, sync in enumerate(record.sync):
        if sync.via is not None:
            yield ("sync", number, "via"), sync.via
    for number, layer in enumerate(found.layers):
        for place, call in enumerate(layer.comm):
            if call.via is not None:
                yield ("layers", number, "comm", place, "via"), call.via


def step(question: Question) -> Stepped:
    """Return what a step of a workload takes, and all else that the `question` asks.

    Raises InputError when something in it can't be used.
    """
    found = load_work(question.files, question.topology.num_ranks, library=question.library)
    steps = question.steps
    if isinstance(found, Workload):
        steps = max(steps, 4 * period_of(found.record))
    work = expanded(found, steps) if isinstance(found, Workload) else found

    nothing = Cost.of(0, [0] * len(question.topology.edges))
    conditions = {"communication took no time": Price(lambda _: nothing), **question.what_ifs}
    policies: tuple[Policy, ...] = ()
    if question.sweep and isinstance(found, Workload):
        policies = tuple(sorted(_swept(question, found, steps), key=lambda one: one.step.time))
    return Stepped(
        work, question.topology.name, question.profile, question.via, under(work, question.price),
        tuple(What(name, under(work, price)) for name, price in conditions.items()),
        next((What(name, under(work, price)) for name, price in question.against.items()), None),
        policies,
    )  # fmt: skip


def under(work: Work, price: Price) -> Step:
    """Return what a step of some `work` takes at a `price`.

    Raises InputError when operations wait for one another for ever, or a call can't run.
    """
    known: dict[Meeting, Cost] = {}
    found: dict[tuple[int, int], Cost] = {}
    for (number, own), meeting in meetings_of(work).items():
        if own == meeting.first:
            if meeting not in known:
                known[meeting] = price.cost(meeting)
            found[number, own] = known[meeting]
    if price.together is None:
        return played(work, found)
    replay, meeting_of = price.together, {id(cost): meeting for meeting, cost in known.items()}
    return played(
        work, found, lambda running: replay([(meeting_of[id(cost)], at) for cost, at in running])
    )


def _swept(question: Question, workload: Workload, steps: int) -> Iterator[Policy]:
    """Yield policies with what a step takes."""
    for bucket, (order, partition, wait), overlap in product(BUCKETS, ORDERS, OVERLAPS):
        if overlap == "none" and order == "priority":
            continue
        changed = with_policy(
            workload, bucket=bucket, order=order, partition=partition, wait=wait, overlap=overlap
        )
        work = expanded(changed, steps)
        one = under(work, question.price)
        yield Policy(bucket, order, partition, wait, overlap, one)
