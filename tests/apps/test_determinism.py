"""``--deterministic``: the same bytes from run to run, on one worker and on two."""

import pytest

from taccl.apps import Request, load_network, synthesize
from taccl.model.schedule_file import schedule_text
from taccl.msccl.xml import write_xml
from tests.sweep import for_each

MACHINES = ("hub:4", "mesh2d:2x3", "ndv2")


def written(machine: str, collective: str, engine: str, workers: int) -> tuple[str, str, str]:
    """Return what a command writes: the program, the schedule, and what was compared."""
    request = Request(
        load_network(machine), collective, 96_000, chunks=1, engine=engine, time_limit=2.0,
        deterministic=True, workers=workers, seed=7,
    )  # fmt: skip
    found = synthesize(request)
    program = "" if found.program is None else write_xml(found.program, "portable")
    schedule = schedule_text(found.schedule, engine=found.result.engine, seed=7)
    return program, schedule, repr(found.candidates)


@for_each(
    ("machine", "collective", "engine"),
    [
        *(
            (machine, "alltoall", engine)
            for machine in ("hub:4", "ndv2")
            for engine in ("auto", "flow")
        ),
        *((machine, "allgather", engine) for machine in MACHINES for engine in ("auto", "guided")),
        ("hub:4", "allgather", "exact"),
        ("hub:4", "alltoall", "taccl"),
        ("ndv2", "allgather", "taccl"),
    ],
    quick=4,
)
def test_two_workers_write_the_bytes_of_one(
    monkeypatch: pytest.MonkeyPatch, machine: str, collective: str, engine: str
) -> None:
    # The guided search uses threads for large problems only: here for all.
    monkeypatch.setattr("taccl.synth.guided.search.THREADED", 0)
    one, two = (written(machine, collective, engine, workers) for workers in (1, 2))
    assert one == two


@pytest.mark.parametrize("engine", ["auto", "guided"])
def test_sums_repeat_as_well(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setattr("taccl.synth.guided.search.THREADED", 0)
    first, second = (written("mesh2d:2x2", "allreduce", engine, workers) for workers in (1, 2))
    assert first == second
