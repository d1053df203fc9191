"""Scenarios from fields, for tests."""

from taccl.files import Document, fit_model
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import Load, Outcome, Setup, disturbed
from taccl.replay.scenario import Scenario, ScenarioFile, bind
from taccl.topology.graph import Topology
from tests.replay.program_builder import SMALL


def scenario(topology: Topology, **fields: object) -> Scenario:
    """Return a scenario with some fields of its file."""
    document = Document({"taccl": "scenario/1", "name": "test", **fields}, "s.yaml")
    return bind(fit_model(document, ScenarioFile), document, topology)


def outcome(
    topology: Topology,
    *loads: Load,
    model: ReplayModel = SMALL,
    protocol_costs: bool = False,
    **fields: object,
) -> Outcome:
    """Return what programs do under a scenario with some fields."""
    case = scenario(topology, **fields)
    return disturbed(Setup(topology, model, case, protocol_costs=protocol_costs), loads)
