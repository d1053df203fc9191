"""Topology files: paths, shipped names and short forms to a :class:`Topology`.

Four forms make one thing: the core graph, servers with a fabric, a parametric shape, and TACCL's
own numbers, whose meaning depends on the sketch.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from taccl.errors import InputError, did_you_mean
from taccl.files import Document, FileModel, plain_text_is_safe, read_document, shown
from taccl.topology.core_form import GraphFile, read_graph, topology_digest, topology_document
from taccl.topology.graph import Topology
from taccl.topology.servers import ServersFile, read_servers
from taccl.topology.shapes import SHAPES, ShapeFile, is_short_form, parse_short_form, read_shape
from taccl.topology.taccl_costs import OriginalFile, Sketched, read_original
from taccl.units import format_time

__all__ = [
    "FORMS", "check_kind", "describe", "document_text", "expand_text", "flow_text", "has_count",
    "load_topology", "read_topology", "shipped_file", "shipped_names", "shipped_topologies",
    "topology_digest", "topology_document", "topology_from_document", "unreachable_pair",
]  # fmt: skip

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

# Other readers of YAML take some of these words for truth values.
_PLAIN = re.compile(r"(?!(?i:yes|no|on|off|y|n)$)[A-Za-z0-9][A-Za-z0-9_./>-]*")


def load_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> Topology:
    """Return the topology of a ``spec``: ``mine.yaml``, ``dgx2`` or ``torus2d:8x8@25GB/s,1us``.

    ``nodes`` and ``fabric`` override the count and the fabric kind of a file in the server form;
    ``sketched`` is what a file with TACCL's own costs must know of the sketch.

    Raises InputError with file, line, field, what was found, and the fix.
    """
    topology, document = read_topology(spec, nodes=nodes, fabric=fabric, sketched=sketched)
    return topology if document is None else _connected(topology, document)


def read_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> tuple[Topology, Document | None]:
    """Return a topology, though ranks may be cut off, and the file it is from, if there is one.

    ``spec``, ``nodes``, ``fabric`` and ``sketched`` are those of :func:`load_topology`.
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
    """Return the topology of a parsed ``document`` in any form; errors name its ``file``.

    Raises InputError with file, field, what was found, and the fix.
    """
    value = Document(document, file)
    return _connected(_read(value), value)


def _read(
    document: Document,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> Topology:
    fields = document.value if isinstance(document.value, dict) else {}
    check_kind(document, "topology")
    if _IN_SERVERS & fields.keys():
        return read_servers(document, nodes=nodes, fabric=fabric)
    original = "original" in fields
    _no_overrides(
        document.file or "", None if original else nodes, fabric, "not in the server form"
    )
    if original:
        return read_original(document, nodes=nodes, sketched=sketched)
    return read_shape(document) if "shape" in fields else read_graph(document)


def check_kind(document: Document, kind: str) -> None:
    """Refuse a ``document`` whose ``taccl`` line is missing, or of another ``kind`` than asked.

    Raises InputError with the line to write.
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
    """Return the path that a ``spec`` stands for: itself, or that of a shipped file by its name.

    The ``folder`` is ``topologies`` or ``sketches``; errors call the spec a ``field``.

    Raises InputError when it looks like a name, and there is no such file.
    """
    names = shipped_names(folder)
    if spec in names:
        return str(_folder(folder) / f"{spec}.yaml")
    with suppress(OSError, ValueError):
        if os.sep in spec or spec.endswith((".yaml", ".yml", ".json")) or (
            spec and Path(spec).exists()
        ):  # fmt: skip
            return spec
    raise InputError(
        f"there is no file and no shipped {field} {shown(spec)}",
        field=field,
        fix=f"{did_you_mean(spec, names)}use a path or one of"
        f" {', '.join(names)}{_SHORT_FORMS if field == 'topology' else ''}",
    )


def _connected(topology: Topology, document: Document) -> Topology:
    """Return a topology, unless some rank can't reach another."""
    lost = unreachable_pair(topology)
    if lost is not None:
        src, dst = lost
        raise document.error(
            f"rank {dst} can't be reached from rank {src}", ("edges",),
            f"add edges, wires or a fabric that lead from rank {src} to rank {dst}",
        )  # fmt: skip
    return topology


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
    ranks = topology.num_ranks
    out: list[list[int]] = [[] for _ in range(ranks + len(topology.switches))]
    for edge in topology.edges:
        tail, head = (edge.tail, edge.head) if forward else (edge.head, edge.tail)
        out[tail].append(head)
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


def expand_text(topology: Topology) -> str:
    """Return a topology as YAML in the core form."""
    return document_text(topology_document(topology))


def document_text(document: Mapping[str, object], comments: Sequence[str] = ()) -> str:
    """Return a topology ``document`` as YAML below ``comments``, one line for each list entry."""
    lines = [f"# {comment}" for comment in comments]
    return "\n".join([*lines, *_block(document, "")]) + "\n"


def _block(fields: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, value in fields.items():
        if isinstance(value, list) and (not indent or any(isinstance(v, dict) for v in value)):
            yield f"{indent}{key}:"
            for entry in value:
                parts = entry.values() if isinstance(entry, dict) and not indent else ()
                if any(isinstance(x, dict) for v in parts if isinstance(v, list) for x in v):
                    # A record that lists records itself, as servers do.
                    first, *rest = _block(entry, "    ")
                    yield f"  - {first.lstrip()}"
                    yield from rest
                else:
                    yield f"{indent}  - {flow_text(entry)}"
        elif isinstance(value, dict) and any(isinstance(v, list) for v in value.values()):
            yield f"{indent}{key}:"
            yield from _block(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {flow_text(value)}"


def flow_text(value: object) -> str:
    """Return a value in YAML's flow style, on one line; text in quotes unless it needs none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow_text, value)) + "]"
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
    for (beta, alpha), count in told[:MAX_TOLD]:
        rate = f"{float(1000 / beta):.6g} GB/s ({float(beta):.6g} us/MB)" if beta else "no resource"
        rows.append((f"  {count} edges", f"{rate}, alpha {format_time(alpha)}"))
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


def document_of(topology: str, nodes: int | None, kind: str | None) -> Mapping[str, object]:
    """Return the fields of the file of a `topology`, with other `nodes`, or a fabric of a `kind`.

    Empty for a short form.
    """
    if is_short_form(topology):
        return {}
    path = shipped_file(topology, "topologies", "topology")
    value = read_document(path).value
    fields = dict(value) if isinstance(value, dict) else {}
    if nodes is not None and "node" in fields:
        fields["count"] = nodes
    fabric = fields.get("fabric")
    if kind is not None and isinstance(fabric, dict):
        kept = {key: fabric[key] for key in fabric if key != "spine"}
        fields["fabric"] = {**kept, "kind": kind}
    return fields
