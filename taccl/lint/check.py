"""A topology file from its path to findings with the line and field of each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from taccl.errors import InputError
from taccl.files import Document, field_name
from taccl.lint.facts import Finding
from taccl.lint.rules import lint
from taccl.topology import Edge, Topology
from taccl.topology_file import read_topology
from taccl.topology_original import Sketched

_OF_SERVER = re.compile(r"s(\d{1,6})/(.+?)(?:\.[tr]x)?")

Path = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Checked:
    """What checking a topology gave.

    Parameters
    ----------
    topology
        None: it can't be read.
    findings
        The worst first.
    error
        Why it can't be read; also the only finding then.
    """

    topology: Topology | None
    findings: tuple[Finding, ...]
    error: InputError | None = None

    @property
    def usable(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)


def check_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> Checked:
    """Read a topology and apply all rules; what can't be read is a finding, too.

    Parameters
    ----------
    spec, nodes, fabric, sketched
        As :func:`taccl.topology_file.load_topology` takes them.
    """
    try:
        topology, document = read_topology(spec, nodes=nodes, fabric=fabric, sketched=sketched)
        found = lint(topology)
    except InputError as error:
        return Checked(None, (_unread(error),), error)
    if document is None:
        return Checked(topology, found)
    return Checked(topology, tuple(_placed(finding, topology, document) for finding in found))


def _unread(error: InputError) -> Finding:
    return Finding(
        "unread", "error", "", error.problem, error.fix or "", (), error.file, error.line,
        error.field,
    )  # fmt: skip


def _placed(finding: Finding, topology: Topology, document: Document) -> Finding:
    path: Path = ()
    if finding.edges:
        path = _place(topology, topology.edges[finding.edges[0]], document.value)
    line = document.line(path) if path else None
    return replace(finding, file=document.file, line=line, field=field_name(path) or None)


def _place(topology: Topology, edge: Edge, value: object) -> Path:
    """Return where a file says what an edge is, as far as that can be told."""
    fields = value if isinstance(value, dict) else {}
    if "edges" in fields:
        return _listed(fields["edges"], edge.id)
    if "shape" in fields:
        return ("shape",)
    return _in_server(topology, edge, fields)


def _listed(entries: object, edge: int) -> Path:
    """Return the entry of a list of edges that makes the edge of an id."""
    made = 0
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        made += 2 if isinstance(entry, dict) and entry.get("both", True) else 1
        if edge < made:
            return ("edges", number)
    return ()


def _in_server(topology: Topology, edge: Edge, fields: Mapping[str, object]) -> Path:
    """Return the switch, NIC or wire of the server form that makes an edge, else the fabric."""
    for vertex in (edge.tail, edge.head):
        match = _OF_SERVER.fullmatch(topology.vertex_name(vertex))
        if match is not None:
            place, node = _node(fields, int(match[1]))
            for kind, number, entry in _entries(node):
                if entry.get("name") == match[2]:
                    return (*place, kind, number)
    if max(edge.tail, edge.head) < topology.num_ranks:
        place, node = _node(fields, topology.server_of[edge.tail])
        first = topology.server_of.index(topology.server_of[edge.tail])
        ends = {edge.tail - first, edge.head - first}
        for kind, number, entry in _entries(node):
            if {entry.get("from"), entry.get("to")} == ends:
                return (*place, kind, number)
    return ("fabric",) if "fabric" in fields else ()


def _node(fields: Mapping[str, object], server: int) -> tuple[Path, Mapping[str, object]]:
    node, nodes = fields.get("node"), fields.get("nodes")
    if isinstance(node, dict):
        return ("node",), node
    if isinstance(nodes, list) and server < len(nodes) and isinstance(nodes[server], dict):
        return ("nodes", server), nodes[server]
    return (), {}


def _entries(node: Mapping[str, object]) -> Iterator[tuple[str, int, Mapping[str, object]]]:
    for kind, entries in node.items():
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield kind, number, entry
