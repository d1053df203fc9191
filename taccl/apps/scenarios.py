"""Programs under a scenario: rows beside those of the undisturbed machine."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from taccl.apps.evaluation import Setting, read_program
from taccl.errors import InputError, TacclWarning
from taccl.files import read_text
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml
from taccl.replay.disturbed import (
    Load,
    Outcome,
    Setup,
    check_up,
    disturbed,
    mean_time,
    percentile,
    weakened,
)
from taccl.replay.scenario import Scenario, read_scenario
from taccl.replay.sweep import Disturbed, Row, row_of
from taccl.replay.timing import traces
from taccl.topology.graph import Topology


def load_scenario(
    path: str | None, topology: Topology, *, detailed: bool = False
) -> Scenario | None:
    """Return the scenario of a file; None without a path.

    Parameters
    ----------
    path
        Of the file.
    topology
        What the scenario disturbs.
    detailed
        Whether single messages are to be shown, which only static scenarios allow.

    Raises InputError when the file can't be used, or no single run can stand for the scenario.
    """
    if path is None:
        return None
    scenario = read_scenario(path, topology)
    if detailed and not scenario.is_static:
        raise InputError(
            f"{scenario.name} has more than shares and factors that hold throughout, so"
            " --trace, --html and --explain can't show what it does",
            field="--scenario",
            fix="leave them out, or use a scenario of shares and factors",
        )
    return scenario


def left_of(scenario: Scenario, setting: Setting) -> Setting:
    """Return the `setting` with the bandwidths that a `scenario` leaves throughout."""
    return replace(setting, topology=weakened(setting.topology, scenario))


def under(scenario: Scenario, setting: Setting, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows of files as a scenario makes them.

    Parameters
    ----------
    scenario
        What disturbs the programs.
    setting
        Where and how they run.
    rows
        Those of the undisturbed machine: all sizes of the first file, then of the next.

    Raises
    ------
    InputError
        When a program needs an edge that is down, or the second program can't be used.
    ProgramError
        When the second program is none, or does not fit the topology.
    """
    setup = Setup(setting.topology, setting.model, scenario, setting.route, setting.protocol_costs)
    also = _second(setup)
    found: list[Row] = []
    with warnings.catch_warnings():
        # The plain rows have warned of routed pairs already.
        warnings.simplefilter("ignore", TacclWarning)
        for file, of_file in groupby(rows, key=lambda row: row.file):
            program, plain = read_program(file), list(of_file)
            outcomes = _outcomes(setup, program, [row.size for row in plain], also)
            for row, outcome in zip(plain, outcomes, strict=True):
                found.append(_row(setup, program, row, outcome))
    return tuple(found)


def _second(setup: Setup) -> Program | None:
    """Return the second program of a scenario, if it has one."""
    if setup.scenario.also is None:
        return None
    file, document = setup.scenario.also[0], setup.scenario.document
    try:
        text = read_text(file)
    except InputError as error:
        raise document.error(
            f"{file[:200]} {error.problem}", ("also", "program"),
            "give the path of an MSCCL XML file, relative to the scenario's",
        ) from None  # fmt: skip
    program = read_xml(text, file=file)
    if program.num_ranks != setup.topology.num_ranks:
        raise document.error(
            f"is for {program.num_ranks} ranks, {setup.topology.name} has"
            f" {setup.topology.num_ranks}", ("also", "program"),
            "give a program for this topology",
        )  # fmt: skip
    return program


def _outcomes(
    setup: Setup, program: Program, sizes: Sequence[int], also: Program | None
) -> list[Outcome]:
    """Replay a program at all sizes; what is only another topology by the faster replay."""
    if setup.scenario.is_static:
        check_up(program, setup.topology, setup.scenario, route=setup.route)
        found = traces(
            program, setup.network, sizes, setup.model,
            route=setup.route, protocol_costs=setup.protocol_costs,
        )  # fmt: skip
        return [Outcome(trace, () if trace.time is None else (trace.time,)) for trace in found]
    outcomes = []
    for size in sizes:
        loads = [Load(program, size)]
        if also is not None and setup.scenario.also is not None:
            # By default with as many whole chunks.
            _, given, start = setup.scenario.also
            unit = also.chunks_per_loop * setup.model.element_bytes
            loads.append(Load(also, given or size - size % unit or unit, start))
        outcomes.append(disturbed(setup, loads))
    return outcomes


def _row(setup: Setup, program: Program, plain: Row, outcome: Outcome) -> Row:
    """Return a row with the times of a scenario; the bound is the undisturbed machine's."""
    bound = None if plain.bound is None else (plain.bound_kind, plain.bound)
    row = row_of(outcome.trace, program, setup.topology, lambda _: bound, plain.file)
    drawn = outcome.times if setup.scenario.is_random else ()
    disturbance = Disturbed(
        setup.scenario.name, plain.time, percentile(drawn, 50), percentile(drawn, 99),
        setup.scenario.runs, mean_time(outcome.others),
    )  # fmt: skip
    return replace(row, wrong=plain.wrong, engine=plain.engine, disturbed=disturbance)
