"""The models of all file formats, by the name that ``taccl schema`` takes."""

from collections.abc import Mapping
from types import MappingProxyType

from taccl.collective_file import CollectiveFile
from taccl.demand_file import DemandFile
from taccl.files import FileModel
from taccl.library_file import LibraryFile
from taccl.scenario_file import ScenarioFile
from taccl.schedule_file import ScheduleFile
from taccl.sketch import SketchFile, TacclSketchFile
from taccl.topology_file import FORMS

SCHEMAS: Mapping[str, type[FileModel]] = MappingProxyType({
    **FORMS,
    "sketch": SketchFile,
    "sketch-taccl": TacclSketchFile,
    "collective": CollectiveFile,
    "demand": DemandFile,
    "schedule": ScheduleFile,
    "scenario": ScenarioFile,
    "library": LibraryFile,
})  # fmt: skip
