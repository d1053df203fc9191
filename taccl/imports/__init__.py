"""Topologies from foreign formats: one module a format, one row in IMPORTS."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from taccl.errors import InputError
from taccl.files import Document, read_document
from taccl.imports.graph_json import GraphOptions, is_graph_json, read_graph_json
from taccl.topology import Topology

__all__ = ["IMPORTS", "GraphOptions", "import_topology"]

Recognise = Callable[[object], bool]
Read = Callable[[Document, GraphOptions], Topology]

IMPORTS: Mapping[str, tuple[Recognise, Read]] = MappingProxyType({
    "graph": (is_graph_json, read_graph_json),
})  # fmt: skip
"""Name of a format to what recognises a document of it and what reads one."""


def import_topology(path: str, kind: str | None, options: GraphOptions) -> Topology:
    """Return the topology of a foreign file; its kind is guessed when left out.

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
    return IMPORTS[kind][1](document, options)
