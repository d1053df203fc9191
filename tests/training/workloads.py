"""Small workloads, and collectives that take what a test says."""

from collections.abc import Callable, Sequence

from taccl.files.read import parse_document
from taccl.training.operations import Call, Work, expanded, meetings_of
from taccl.training.simulation import Cost, Step, played
from taccl.training.workload import Workload, read_workload

MS = 10**9
"""Picoseconds."""


def workload(text: str) -> Workload:
    """Return a workload of the fields in a `text`, after those that all have."""
    return read_workload(parse_document(f"taccl: workload/1\nname: small\n{text}", "small.yaml"))


def uniform(layers: int, policy: str = "", *, ranks: int = 4, more: str = "") -> Workload:
    """Return a workload of `layers` that take 1 and 2 ms and have 1 MB of gradients each."""
    rows = ", ".join(
        f"{{name: l{n}, bytes: 1MB, forward: 1ms, backward: 2ms}}" for n in range(layers)
    )
    return workload(f"ranks: {ranks}\nlayers: [{rows}]\nsync: [{{group: all, {policy}}}]\n{more}")


def by_size(per_byte: int, loads: Sequence[int] = (1000,)) -> Callable[[Call], Cost]:
    """Return what calls take: picoseconds for each byte; edges are held so many thousandths."""

    def cost(call: Call) -> Cost:
        time = call.size * per_byte
        return Cost.of(time, [time * load // 1000 for load in loads])

    return cost


def priced(work: Work, cost: Callable[[Call], Cost]) -> dict[tuple[int, int], Cost]:
    """Return the costs of the collectives of some `work`."""
    known: dict[Call, Cost] = {}
    found = {}
    for (number, own), meeting in meetings_of(work).items():
        if own == meeting.first:
            found[number, own] = known.setdefault(meeting.call, cost(meeting.call))
    return found


def step_of(found: Workload, cost: Callable[[Call], Cost], steps: int = 6) -> Step:
    """Return what a step takes where calls cost what `cost` says."""
    work = expanded(found, steps)
    return played(work, priced(work, cost))
