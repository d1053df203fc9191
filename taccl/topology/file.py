"""Topology files: paths, shipped names and short forms to a :class:`Topology`.

Four forms make one thing: the core graph, servers with a fabric, a parametric shape, and TACCL's
own numbers, whose meaning depends on the sketch.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

from taccl.errors import InputError, did_you_mean
from taccl.files import Document, FileModel, plain_text_is_safe, read_document, shown
from taccl.topology.core_form import (
    GraphFile,
    read_graph,
    topology_digest,
    topology_document,
)
from taccl.topology.graph import Topology
from taccl.topology.servers import ServersFile, read_servers
from taccl.topology.shapes import SHAPES, ShapeFile, is_short_form, parse_short_form, read_shape
from taccl.topology.taccl_costs import OriginalFile, Sketched, read_original
from taccl.units import format_time

__all__ = [
    "FORMS",
    "describe",
    "document_text",
    "expand_text",
    "load_topology",
    "read_topology",
    "shipped_file",
    "shipped_topologies",
    "topology_digest",
    "topology_document",
    "topology_from_document",
]

FORMS: Mapping[str, type[FileModel]] = {
    "topology": GraphFile,
    "topology-servers": ServersFile,
    "topology-shape": ShapeFile,
    "topology-original": OriginalFile,
}
"""The models of the forms of a topology file, by the name of their schema."""

_SHORT_FORMS = f", or a short form such as torus2d:8x8 ({', '.join(SHAPES)})"
_IN_SERVERS = frozenset({"node", "nodes", "count", "fabric"})
_COUNTED = _IN_SERVERS | {"original"}

MAX_TOLD = 24
"""Kinds of edges, or of links, that a topology's description has a line for."""

_PLAIN = re.compile(r"(?!(?i:yes|no|on|off|y|n)$)[A-Za-z0-9][A-Za-z0-9_./>-]*")


def load_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> Topology:
    """Return the topology that a path, a shipped name or a short form stands for.

    Parameters
    ----------
    spec
        ``mine.yaml``, ``dgx2`` or ``torus2d:8x8@25GB/s,1us``.
    nodes, fabric
        Override the count and the fabric kind of a file in the server form.
    sketched
        What a file with TACCL's own costs must know of the sketch.

    Raises
    ------
    InputError
        With file, line, field, what was found, and the fix.
    """
    topology, document = read_topology(spec, nodes=nodes, fabric=fabric, sketched=sketched)
    if document is not None:
        _check_connected(topology, document)
    return topology


def read_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> tuple[Topology, Document | None]:
    """Return a topology, though ranks may be cut off, and the file it is from, if there is one.

    See :func:`load_topology`.

    Parameters
    ----------
    spec
        A file, a name of a shipped file or a short form.
    nodes
        Servers, instead of the file's count.
    fabric
        The kind that joins them, instead of the file's.
    sketched
        What the sketch says, for the machines that TACCL computes with.
    """
    if is_short_form(spec):
        _no_overrides(spec, nodes, fabric, "a shape")
        return parse_short_form(spec), None
    document = read_document(shipped_file(spec, "topologies", "topology"))
    return _read(document, nodes, fabric, sketched), document


def has_count(spec: str) -> bool:
    """Tell whether a topology is made of servers, so that there can be more or fewer of them."""
    if is_short_form(spec):
        return False
    value = read_document(shipped_file(spec, "topologies", "topology")).value
    return isinstance(value, dict) and bool(_COUNTED & value.keys())


def topology_from_document(document: object, file: str | None = None) -> Topology:
    """Return the topology that a document in any of the forms describes.

    Parameters
    ----------
    document
        The parsed file.
    file
        Its name, for errors.

    Raises
    ------
    InputError
        With file, field, what was found, and the fix.
    """
    value = Document(document, file)
    topology = _read(value, None, None)
    _check_connected(topology, value)
    return topology


def _read(
    document: Document, nodes: int | None, fabric: str | None, sketched: Sketched | None = None
) -> Topology:
    fields = document.value if isinstance(document.value, dict) else {}
    check_kind(document, "topology")
    if _IN_SERVERS & fields.keys():
        topology = read_servers(document, nodes=nodes, fabric=fabric)
    elif "original" in fields:
        _no_overrides(document.file or "", None, fabric, "not in the server form")
        topology = read_original(document, nodes=nodes, sketched=sketched)
    else:
        _no_overrides(document.file or "", nodes, fabric, "not in the server form")
        topology = read_shape(document) if "shape" in fields else read_graph(document)
    return topology


def check_kind(document: Document, kind: str) -> None:
    """Refuse a document whose ``taccl`` line is missing or names another kind of file.

    Parameters
    ----------
    document
        The parsed file.
    kind
        ``topology``, ``sketch`` ...

    Raises
    ------
    InputError
        With the line to write.
    """
    if not isinstance(document.value, dict):
        return
    found = document.value.get("taccl")
    wanted = f"{kind}/1"
    if found is None:
        raise document.error("is missing", ("taccl",), f"start the file with taccl: {wanted}")
    if found != wanted:
        raise document.error(
            f"should be {wanted}, got {shown(found)}", ("taccl",), f"give a {kind} file"
        )


def _no_overrides(spec: str, nodes: int | None, fabric: str | None, what: str) -> None:
    for option, value in (("--nodes", nodes), ("--fabric", fabric)):
        if value is not None:
            raise InputError(
                f"{shown(spec)} is {what}, so {option} can't be used",
                field=option,
                fix=f"leave {option} out, or use a file with node: and fabric:",
            )


def shipped_topologies() -> tuple[str, ...]:
    """Return the names of the shipped topologies."""
    return shipped_names("topologies")


def shipped_names(folder: str) -> tuple[str, ...]:
    """Return the names of the shipped files of a kind, sorted."""
    return tuple(sorted(path.stem for path in _folder(folder).glob("*.yaml")))


def _folder(name: str) -> Path:
    """Return where shipped files lie: in the package, or beside it in a checkout (setup.py)."""
    package = Path(str(files("taccl")))
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def shipped_file(spec: str, folder: str, field: str) -> str:
    """Return the path that a spec stands for: itself, or that of a shipped file.

    Parameters
    ----------
    spec
        A path, or a name without its extension.
    folder
        ``topologies`` or ``sketches``.
    field
        What errors call it.

    Raises
    ------
    InputError
        When it looks like a name, and there is no such file.
    """
    names = shipped_names(folder)
    if spec in names:
        return str(_folder(folder) / f"{spec}.yaml")
    if os.sep in spec or spec.endswith((".yaml", ".yml", ".json")) or _exists(spec):
        return spec
    raise InputError(
        f"there is no file and no shipped {field} {shown(spec)}",
        field=field,
        fix=f"{did_you_mean(spec, names)}use a path or one of"
        f" {', '.join(names)}{_SHORT_FORMS if field == 'topology' else ''}",
    )


def _exists(spec: str) -> bool:
    try:
        return spec != "" and Path(spec).exists()
    except (OSError, ValueError):
        return False


def _check_connected(topology: Topology, document: Document) -> None:
    """Refuse a topology in which some rank can't reach another."""
    lost = unreachable_pair(topology)
    if lost is not None:
        src, dst = lost
        raise document.error(
            f"rank {dst} can't be reached from rank {src}", ("edges",),
            f"add edges, wires or a fabric that lead from rank {src} to rank {dst}",
        )  # fmt: skip


def unreachable_pair(topology: Topology) -> tuple[int, int] | None:
    """Return two ranks of which the first can't reach the second over links, or None.

    Works on vertices, in linear time, as a big machine's link table is large.
    """
    for forward in (True, False):
        missing = set(range(topology.num_ranks)) - _reached(topology, forward=forward)
        if missing:
            lost = min(missing)
            return (0, lost) if forward else (lost, 0)
    return None


def _reached(topology: Topology, *, forward: bool) -> set[int]:
    """Return the ranks that rank 0 reaches, or that reach it.

    A path inside switches is (where it is, whether it has crossed a switch that is only for
    paths across servers, where it began). Two servers to begin in are as good as any number.
    """
    ranks, out = topology.num_ranks, _neighbours(topology, forward=forward)
    seen, stack = {0}, [(0, False, topology.server_of[0])]
    visited: dict[tuple[int, bool], set[int]] = {}
    while stack:
        vertex, crossed, home = stack.pop()
        for head in out[vertex]:
            if head < ranks:
                if head not in seen and not (crossed and topology.server_of[head] == home):
                    seen.add(head)
                    stack.append((head, False, topology.server_of[head]))
                continue
            now = crossed or topology.switches[head - ranks].across_servers
            homes = visited.setdefault((head, now), set())
            if len(homes) < 2 and home not in homes:
                homes.add(home)
                stack.append((head, now, home))
    return seen


def _neighbours(topology: Topology, *, forward: bool) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(topology.num_ranks + len(topology.switches))]
    for edge in topology.edges:
        tail, head = (edge.tail, edge.head) if forward else (edge.head, edge.tail)
        out[tail].append(head)
    return out


def expand_text(topology: Topology) -> str:
    """Return a topology as YAML in the core form."""
    return document_text(topology_document(topology))


def document_text(document: Mapping[str, object], comments: Sequence[str] = ()) -> str:
    """Return a topology file as YAML, one line for each entry of a list.

    Parameters
    ----------
    document
        Fields of the file.
    comments
        Lines to begin with.
    """
    lines = [f"# {comment}" for comment in comments]
    return "\n".join([*lines, *_block(document, "")]) + "\n"


def _block(fields: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, value in fields.items():
        if isinstance(value, list) and (not indent or any(isinstance(v, dict) for v in value)):
            yield f"{indent}{key}:"
            for entry in value:
                yield from _entry(entry, f"{indent}  ")
        elif isinstance(value, dict) and any(isinstance(v, list) for v in value.values()):
            yield f"{indent}{key}:"
            yield from _block(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_flow(value)}"


def _entry(value: object, indent: str) -> Iterator[str]:
    """Yield an entry of a list: on one line, unless it lists records itself, as servers do."""
    lists = [v for v in value.values() if isinstance(v, list)] if isinstance(value, dict) else []
    if (
        indent == "  "
        and isinstance(value, dict)
        and any(isinstance(x, dict) for v in lists for x in v)
    ):
        first, *rest = _block(value, f"{indent}  ")
        yield f"{indent}- {first.lstrip()}"
        yield from rest
    else:
        yield f"{indent}- {_flow(value)}"


def _flow(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and plain_text_is_safe(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def describe(topology: Topology) -> tuple[tuple[str, str], ...]:
    """Return (what, value) rows that sum a topology up."""
    sizes = Counter(Counter(topology.server_of).values())
    servers = ", ".join(f"{count} of {size} ranks" for size, count in sorted(sizes.items()))
    kinds = Counter((edge.beta, edge.alpha) for edge in topology.edges)
    rows = [
        ("name", topology.name),
        ("ranks", str(topology.num_ranks)),
        ("servers", servers),
        ("switches", str(len(topology.switches))),
        ("edges", str(len(topology.edges))),
    ]
    told = list(kinds.items())
    rows += [
        (f"  {count} edges", f"{_rate(beta)}, alpha {format_time(alpha)}")
        for (beta, alpha), count in told[:MAX_TOLD]
    ]
    if len(told) > MAX_TOLD:
        rest = sum(count for _, count in told[MAX_TOLD:])
        rows.append((f"  {rest} edges", f"of {len(told) - MAX_TOLD} more kinds: see expand"))
    rows += [
        ("links", str(len(topology.links))),
        ("alpha rule", topology.alpha_rule_stated),
        *([("costs", topology.costs)] if topology.costs else []),
        ("rotations", str(len(topology.rotations))),
        ("digest", topology_digest(topology)),
    ]
    return tuple(rows)


def _rate(beta: Fraction | None) -> str:
    if beta is None:
        return "no resource"
    return f"{float(1000 / beta):.6g} GB/s ({float(beta):.6g} us/MB)"
