"""Topologies from foreign formats, one row in IMPORTS each.

Files are whole topologies, or hosts that are composed with a fabric (:mod:`taccl.imports.hosts`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from taccl.errors import InputError
from taccl.files import Document, parse_document, read_text
from taccl.imports.graph_json import GraphOptions, graph_comments, is_graph_json, read_graph_json
from taccl.imports.hosts import FabricOptions, Host, HostOptions, compose, with_nics
from taccl.imports.nccl_xml import is_nccl_xml, read_nccl_xml
from taccl.imports.smi import is_nvidia_smi, is_rocm_smi, read_nvidia_smi, read_rocm_smi
from taccl.imports.taccl_json import TacclOptions, is_taccl_topology, read_taccl_topology
from taccl.topology.core_form import topology_document
from taccl.topology.file import topology_from_document
from taccl.topology.graph import Topology

__all__ = [
    "IMPORTS",
    "FabricOptions",
    "GraphOptions",
    "HostOptions",
    "ImportOptions",
    "Imported",
    "TacclOptions",
    "import_files",
    "import_topology",
]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What foreign files leave open, by format; hosts and their fabric."""

    graph: GraphOptions = field(default_factory=GraphOptions)
    taccl: TacclOptions = field(default_factory=TacclOptions)
    host: HostOptions = field(default_factory=HostOptions)
    fabric: FabricOptions = field(default_factory=FabricOptions)


@dataclass(frozen=True)
class Source:
    """A file that is to be imported: its text, and what it is as YAML or JSON."""

    file: str
    text: str

    @cached_property
    def document(self) -> Document:
        """The text as a document."""
        return parse_document(self.text, self.file)


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology file as a document, and comments that say where its numbers are from."""

    document: Mapping[str, object]
    comments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A row of IMPORTS: what recognises a file, and what reads it as one of the two."""

    fits: Callable[[Source], bool]
    host: Callable[[str, str, HostOptions], Host] | None = None
    topology: Callable[[Source, ImportOptions], Mapping[str, object]] | None = None


IMPORTS: Mapping[str, Format] = MappingProxyType({
    "nccl": Format(lambda source: is_nccl_xml(source.text), host=read_nccl_xml),
    "rocm-smi": Format(lambda source: is_rocm_smi(source.text), host=read_rocm_smi),
    "nvidia-smi": Format(lambda source: is_nvidia_smi(source.text), host=read_nvidia_smi),
    "graph": Format(
        lambda source: is_graph_json(source.document.value),
        topology=lambda source, to: topology_document(read_graph_json(source.document, to.graph)),
    ),
    "taccl": Format(
        lambda source: is_taccl_topology(source.document.value),
        topology=lambda source, to: read_taccl_topology(source.document, to.taccl),
    ),
})  # fmt: skip
"""Formats by name, those that are told by their text first."""


def import_files(paths: Sequence[str], kind: str | None, options: ImportOptions) -> Imported:
    """Return our file of one or several foreign ones; kinds are guessed when left out.

    `paths` are those of the files, `kind` is a name of ``IMPORTS`` (None: guessed), and `options`
    are what the files do not say.

    Raises InputError when a kind is unknown, a file does not fit it, or several can't be composed.
    """
    if not paths:
        raise InputError("no file is given", field="FILE", fix="name the files to import")
    sources = [Source(path, read_text(path)) for path in paths]
    kinds = [kind or _guessed(source) for source in sources]
    hosts = []
    for source, name in zip(sources, kinds, strict=True):
        row = IMPORTS[name]
        if row.topology is not None:
            composing = (("--fabric", options.fabric.kind), ("--count", options.fabric.count))
            given = [option for option, value in composing if value]
            if len(paths) > 1 or given:
                raise InputError(
                    f"is a whole topology ({name}), not a host that can be joined to others",
                    file=source.file,
                    field=given[0] if given else None,
                    fix=f"leave {given[0]} out" if given else "import it alone",
                )  # fmt: skip
            try:
                document = row.topology(source, options)
                topology = topology_from_document(document, source.file)  # for its errors
            except InputError as error:
                if error.line is not None or error.file is None:
                    raise
                if (error.field or "").startswith("--"):
                    raise
                line = _line_of(error, source) or 1
                raise InputError(
                    error.problem, file=error.file, line=line, field=error.field, fix=error.fix
                ) from None
            comments = graph_comments(source.document, topology) if name == "graph" else ()
            return Imported(document, comments)
        if row.host is not None:
            host = row.host(source.text, source.file, options.host)
            hosts.append(with_nics(host, options.host))
    document, comments = compose(hosts, options.fabric)
    try:
        topology_from_document(document, paths[0])  # for its errors
    except InputError as error:
        raise _of_option(error, paths[0]) from None
    return Imported(document, comments)


def _line_of(error: InputError, source: Source) -> int | None:
    """Return the line of a field; of what is no document, that of the word that is quoted."""
    steps = re.findall(r"[^.\[\]]+", error.field or "")[:64]
    try:
        return source.document.line([int(s) if s.isdecimal() else s for s in steps])
    except InputError:
        quoted = re.search(r"'([^']{1,60})'|(NaN)", error.problem)
        word = (quoted[1] or quoted[2]) if quoted else "\0"
        at = source.text.find(word)
        if "twice" in error.problem:
            at = source.text.find(word, at + 1)
        return source.text.count("\n", 0, max(at, 0)) + 1


def _of_option(error: InputError, file: str) -> InputError:
    """Return an error of the file that was made as one of the options that made it."""
    kind, _, name = (error.field or "").partition(".")
    if error.field == "count":
        return InputError(error.problem, field="--count", fix=error.fix)
    if kind != "fabric" or not name:
        return InputError(error.problem, file=file, line=1, field=error.field, fix=error.fix)
    fix = (error.fix or "").replace(f"write {name}: ", f"give --{name} ")
    return InputError(error.problem, field=f"--{name}", fix=fix)


def _guessed(source: Source) -> str:
    """Return the kind of a file."""
    fix = f"give --from with one of {', '.join(IMPORTS)}"
    try:
        found = next((name for name, row in IMPORTS.items() if row.fits(source)), None)
    except InputError as error:
        problem = f"is in no format that can be imported: {error.problem}"
        raise InputError(problem, file=source.file, line=error.line or 1, fix=fix) from None
    if found is None:
        raise InputError("is in no format that can be imported", file=source.file, line=1, fix=fix)
    return found


def import_topology(path: str, kind: str | None, options: ImportOptions) -> Topology:
    """Return the topology of one foreign file.

    `path`, `kind` and `options` are those of :func:`import_files`.
    """
    return topology_from_document(import_files([path], kind, options).document, path)
