"""Topologies from foreign formats: one module a format, one row in IMPORTS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from taccl.errors import InputError
from taccl.files import Document, read_document
from taccl.imports.graph_json import GraphOptions, is_graph_json, read_graph_json
from taccl.imports.taccl_json import TacclOptions, is_taccl_topology, read_taccl_topology
from taccl.topology import Topology
from taccl.topology_file import topology_from_document
from taccl.topology_graph import topology_document

__all__ = [
    "IMPORTS",
    "GraphOptions",
    "ImportOptions",
    "TacclOptions",
    "import_document",
    "import_topology",
]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What foreign files leave open, by format."""

    graph: GraphOptions = field(default_factory=GraphOptions)
    taccl: TacclOptions = field(default_factory=TacclOptions)


Recognise = Callable[[object], bool]
Read = Callable[[Document, ImportOptions], Mapping[str, object]]

IMPORTS: Mapping[str, tuple[Recognise, Read]] = MappingProxyType({
    "graph": (is_graph_json, lambda doc, to: topology_document(read_graph_json(doc, to.graph))),
    "taccl": (is_taccl_topology, lambda doc, to: read_taccl_topology(doc, to.taccl)),
})  # fmt: skip
"""Name of a format to what recognises a document of it and what makes a topology file of one."""


def import_document(path: str, kind: str | None, options: ImportOptions) -> Mapping[str, object]:
    """Return our file, as a document, of a foreign one; its kind is guessed when left out.

    Raises
    ------
    InputError
        When the kind is unknown or the file does not fit it.
    """
    document = read_document(path)
    if kind is None:
        kind = next((name for name, (fits, _) in IMPORTS.items() if fits(document.value)), None)
        if kind is None:
            raise InputError(
                "is in no format that can be imported",
                file=path,
                fix=f"give --from with one of {', '.join(IMPORTS)}",
            )
    found = IMPORTS[kind][1](document, options)
    topology_from_document(found, path)  # for its errors
    return found


def import_topology(path: str, kind: str | None, options: ImportOptions) -> Topology:
    """Return the topology of a foreign file; see :func:`import_document`."""
    return topology_from_document(import_document(path, kind, options), path)
