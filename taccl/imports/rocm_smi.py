"""The text of ``rocm-smi --showtopo``: tables of weights, hops and link types, and NUMA nodes.

GPUs that are ``XGMI`` and one hop apart have a wire. It stands for one xGMI link, unless there is a
table of bandwidths, too (``rocm-smi --showtopo --shownodesbw``): of ``50000-200000`` the second
number is four times the first, so these are four links. All other pairs go by PCIe, by way of the
GPUs' NUMA nodes. The tables name no NICs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from taccl.errors import InputError
from taccl.files import shown
from taccl.imports.hosts import (
    GPUS,
    MAX_GPUS,
    Classes,
    Gpu,
    Host,
    HostOptions,
    Wire,
    hub_tree,
    pcie_bandwidth,
    rate_text,
)

_TITLE = re.compile(r"\s*={3,}\s*(.*?)\s*={3,}\s*$")
_GPU = re.compile(r"GPU[0-9]{1,6}")
_NUMA = re.compile(
    r"\s*GPU\[([0-9]{1,6})\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(\S+)\s*$"
)
_NODE = re.compile(r"-?[0-9]{1,6}")
_NUMBER = re.compile(r"[0-9]{1,6}")
_BANDWIDTH = re.compile(r"([0-9]{1,9})-([0-9]{1,9})|N/A")
_SECTIONS: Mapping[str, str] = {
    "weight": "weight", "hops": "hops", "link type": "type", "bandwidth": "bandwidth",
    "numa": "numa",
}  # fmt: skip
"""What titles begin with, to our names of the tables; other tables are not read."""

MAX_LINKS = 16
XGMI, PCIE = "XGMI", "PCIE"
_FIX = "give the whole output of rocm-smi --showtopo"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table: its header's line, the GPUs, and the line and cells of every row."""

    line: int
    names: tuple[str, ...]
    rows: dict[str, tuple[int, tuple[str, ...]]]


def is_rocm_smi(text: str) -> bool:
    """Tell whether a text has the tables of ``rocm-smi --showtopo``."""
    titles = (_TITLE.match(line) for line in text[:100_000].split("\n"))
    return any(match and match[1].lower().startswith("link type") for match in titles)


def read_rocm_smi(text: str, file: str, options: HostOptions) -> Host:
    """Return the host that the output of ``rocm-smi --showtopo``, `text`, describes.

    Errors call it `file`; `options` say what it does not.

    Raises
    ------
    InputError
        With file, line and fix.
    """
    tables, numa = _read(text, file)
    for name, title in (("type", "Link Type"), ("hops", "Hops")):
        if name not in tables:
            raise _error(f"has no table {title} between two GPUs", file, 1)
    names = tables["type"].names
    for table in tables.values():
        _check_shape(table, names, file)
    types = _types(tables["type"], file)
    hops = [[_number(*cell, file) for cell in row] for row in _rows(tables["hops"])]
    if "weight" in tables:
        for row in _rows(tables["weight"]):
            for cell in row:
                _number(*cell, file)
    counts = _counts(tables.get("bandwidth"), len(names), file)
    _check_same_back(tables, {"type": types, "hops": hops, "bandwidth": counts}, file)
    size = range(len(names))
    direct = [[types[a][b] == XGMI and hops[a][b] == 1 for b in size] for a in size]
    name, gpu = _generation(direct, options)
    link = options.link or gpu.link
    wires = tuple(
        Wire(a, b, (counts[a][b] or 1) * link) for a in size for b in size if a < b and direct[a][b]
    )
    generation = options.pcie or gpu.pcie
    classes = Classes([[0] * len(names) for _ in names], [numa.get(n) for n in names])
    sockets = options.sockets or gpu.sockets
    hubs, plugs = hub_tree(classes, pcie_bandwidth(generation), sockets)
    notes = _notes(name, options, wired=bool(wires), counted="bandwidth" in tables)
    return Host(
        file, len(names), wires, hubs=hubs, plugs=tuple((plug,) for plug in plugs),
        notes=tuple(notes), gpu=name,
    )  # fmt: skip


def _read(text: str, file: str) -> tuple[dict[str, _Table], dict[str, str]]:
    """Return the tables by name, and the NUMA node of each GPU."""
    tables: dict[str, _Table] = {}
    numa: dict[str, str] = {}
    section: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        title = _TITLE.match(line)
        if title:
            begun = title[1].lower()
            section = next((n for begin, n in _SECTIONS.items() if begun.startswith(begin)), None)
            if section is not None and (section in tables or (section == "numa" and numa)):
                raise _error(f"there are two tables {shown(title[1])}", file, number)
        elif section == "numa":
            _add_numa(line, numa, file, number)
        elif section is not None and line.strip() and not line.startswith(("Format", "'", '"')):
            _add_row(tables, section, line.split(), file, number)
    return tables, numa


def _add_row(
    tables: dict[str, _Table], section: str, words: Sequence[str], file: str, number: int
) -> None:
    if section not in tables:
        if not all(_GPU.fullmatch(word) for word in words):
            raise _error("a table should begin with a line GPU0 GPU1 and so on", file, number)
        if len(set(words)) < len(words) or len(words) > MAX_GPUS:
            raise _error(f"names a GPU twice, or more than {MAX_GPUS}", file, number)
        tables[section] = _Table(number, tuple(words), {})
        return
    table = tables[section]
    if words[0] not in table.names or words[0] in table.rows:
        again = "is there already" if words[0] in table.rows else "is no GPU of the header"
        raise _error(f"{shown(words[0])} {again}", file, number)
    if len(words) != len(table.names) + 1:
        raise _error(
            f"{words[0]} has {len(words) - 1} cells, the header {len(table.names)} GPUs", file,
            number,
        )  # fmt: skip
    table.rows[words[0]] = number, tuple(words[1:])


def _add_numa(line: str, numa: dict[str, str], file: str, number: int) -> None:
    if not line.strip():
        return
    match = _NUMA.match(line)
    if match is None:
        raise _error(f"should be a NUMA node, got {shown(line.strip())}", file, number)
    if match[2] == "Node":
        name = f"GPU{int(match[1])}"
        if name in numa or not _NODE.fullmatch(match[3]):
            what = "is there already" if name in numa else f"has the NUMA node {shown(match[3])}"
            raise _error(f"{name} {what}", file, number)
        numa[name] = match[3]


def _error(problem: str, file: str, line: int) -> InputError:
    return InputError(problem, file=file, line=line, fix=_FIX)


def _check_shape(table: _Table, names: Sequence[str], file: str) -> None:
    if table.names != names:
        raise _error("names other GPUs than the table of link types", file, table.line)
    missing = next((name for name in names if name not in table.rows), None)
    if missing is not None:
        raise _error(f"there is no row for {missing}", file, table.line)


Cell = tuple[str, int]
"""A cell and its line."""


def _rows(table: _Table) -> Iterator[list[Cell]]:
    for name in table.names:
        line, cells = table.rows[name]
        yield [(cell, line) for cell in cells]


def _number(cell: str, line: int, file: str) -> int:
    if not _NUMBER.fullmatch(cell):
        raise _error(f"should be a whole number, got {shown(cell)}", file, line)
    return int(cell)


def _types(table: _Table, file: str) -> list[list[str]]:
    found = []
    for a, row in enumerate(_rows(table)):
        for b, (cell, line) in enumerate(row):
            if (a == b) != (cell == "0") or cell not in ("0", XGMI, PCIE):
                raise InputError(
                    f"{table.names[a]} to {table.names[b]} is {shown(cell)}", file=file, line=line,
                    fix=f"cells are {XGMI} or {PCIE}, and 0 on the diagonal",
                )  # fmt: skip
        found.append([cell for cell, _ in row])
    return found


def _counts(table: _Table | None, size: int, file: str) -> list[list[int]]:
    """Return how many xGMI links join two GPUs; 0: not told."""
    if table is None:
        return [[0] * size for _ in range(size)]
    found = []
    for row in _rows(table):
        counts = []
        for cell, line in row:
            match = _BANDWIDTH.fullmatch(cell)
            low, high = (int(match[1]), int(match[2])) if match and match[1] else (0, 0)
            if match is None or low > high or (low and high > MAX_LINKS * low):
                raise _error(f"should be a range of MB/s or N/A, got {shown(cell)}", file, line)
            counts.append(high // low if low else 0)
        found.append(counts)
    return found


def _check_same_back(
    tables: Mapping[str, _Table], values: Mapping[str, Sequence[Sequence[object]]], file: str
) -> None:
    for name, rows in values.items():
        for a, row in enumerate(rows):
            for b in range(a):
                if row[b] != rows[b][a]:
                    table = tables[name]
                    one, other = table.names[a], table.names[b]
                    there, back = table.rows[one][1][b], table.rows[other][1][a]
                    raise _error(
                        f"{one} to {other} is {shown(there)}, but back it is {shown(back)}", file,
                        table.rows[one][0],
                    )  # fmt: skip


def _generation(direct: Sequence[Sequence[bool]], options: HostOptions) -> tuple[str, Gpu]:
    """Return the GPU that is asked for, or the one whose hosts are wired so."""
    if options.gpu is not None:
        return options.gpu, GPUS[options.gpu]
    wires = sum(map(sum, direct))
    whole = wires == len(direct) * (len(direct) - 1)
    name = "other" if not wires else "mi300x" if whole and len(direct) > 4 else "mi250"
    return name, GPUS[name]


def _notes(name: str, options: HostOptions, *, wired: bool, counted: bool) -> Iterator[str]:
    gpu = GPUS[name]
    yield f"GPUs: {name} ({'--gpu' if options.gpu else 'guessed from the wires; --gpu'})"
    if wired:
        told = "--link-bandwidth" if options.link else "RCCL's figure; --link-bandwidth"
        yield f"xGMI: {rate_text(options.link or gpu.link)} a link ({told})"
    if wired and not counted:
        yield "links of a pair: one each, as there is no table of bandwidths (--shownodesbw)"
    pcie = options.pcie or gpu.pcie
    yield (
        f"PCIe: {rate_text(pcie_bandwidth(pcie))}, generation {pcie} x16 as NCCL counts it"
        f" ({'--pcie' if options.pcie else f'assumed for {name}; --pcie'})"
    )
    yield (
        f"between sockets: {rate_text(options.sockets or gpu.sockets)}"
        f" ({'--sockets' if options.sockets else f'NCCL, CPUs assumed for {name}; --sockets'})"
    )
