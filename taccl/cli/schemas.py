"""The models of all file formats, by the name that ``taccl schema`` takes."""

from collections.abc import Mapping
from types import MappingProxyType

from taccl.apps.measured import MeasurementsFile
from taccl.collectives.file import CollectiveFile, DemandFile
from taccl.files import FileModel
from taccl.model.schedule_file import ScheduleFile
from taccl.replay.scenario import ScenarioFile
from taccl.sketch import SketchFile, TacclSketchFile
from taccl.topology.file import FORMS
from taccl.tuning.library_file import LibraryFile

SCHEMAS: Mapping[str, type[FileModel]] = MappingProxyType({
    **FORMS,
    "sketch": SketchFile,
    "sketch-taccl": TacclSketchFile,
    "collective": CollectiveFile,
    "demand": DemandFile,
    "schedule": ScheduleFile,
    "scenario": ScenarioFile,
    "library": LibraryFile,
    "measurements": MeasurementsFile,
})  # fmt: skip
