"""What ``nvidia-smi topo -m`` and ``rocm-smi --showtopo`` print of the devices of a host.

``nvidia-smi`` prints GPUs and NICs, and the closest path between every two. Cells are ``X``
(itself), ``NV<k>`` (k NVLinks), and classes of PCIe paths: ``PIX`` (one switch), ``PXB`` (several
switches), ``PHB`` (the host bridge), ``NODE`` (host bridges of one NUMA node) and ``SYS`` (the link
between sockets; ``SOC`` in older drivers). The classes nest, so that they make a tree whose inner
places are hubs. An NVLink hides the class of its pair: then NICs that are close to both GPUs tell,
else their NUMA node. Drivers differ: the header may be underlined by ANSI escapes, NICs are called
``mlx5_0`` or NIC0 with a legend, columns of affinities are more or fewer, ``topo -mp`` leaves out
NVLink. GPUs that are hidden are missing from rows and columns alike; ranks are the positions of
those shown.

``rocm-smi`` prints tables of weights, hops and link types, and NUMA nodes. GPUs that are ``XGMI``
and one hop apart have a wire. It stands for one xGMI link, unless there is a table of bandwidths,
too (``rocm-smi --showtopo --shownodesbw``): of ``50000-200000`` the second number is four times the
first, so these are four links. All other pairs go by PCIe, by way of the GPUs' NUMA nodes. The
tables name no NICs.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from taccl.errors import InputError, TacclWarning
from taccl.files import shown
from taccl.imports.hosts import (
    GPUS,
    LEVELS,
    MAX_DEVICES,
    MAX_GPUS,
    Classes,
    Gpu,
    Host,
    HostNic,
    HostOptions,
    Wire,
    closer,
    hub_tree,
    pcie_bandwidth,
    rate_text,
)

_GPU = re.compile(r"GPU[0-9]{1,6}")

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINKS = re.compile(r"NV([0-9]{1,6})")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,6}):\s*(\S{1,60})\s*$")
_TAILS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
MAX_NVLINKS = 64
LEAST_SWITCHED = 6
"""NVLinks between all pairs from which on they are taken for an NVSwitch."""

_NVIDIA_FIX = "give the whole output of nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The devices, and for every two of them the cell, with the line of every row.

    `numa` is the NUMA node of every device as it is printed, where it is; `legend` has the names of
    NICs.
    """

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    numa: tuple[str | None, ...]
    legend: Mapping[str, str]

    @property
    def gpus(self) -> list[int]:
        """The columns that are GPUs."""
        return [i for i, name in enumerate(self.names) if _GPU.fullmatch(name)]

    def links(self, a: int, b: int) -> int:
        """Return the NVLinks between two devices."""
        match = _LINKS.fullmatch(self.cells[a][b])
        return int(match[1]) if match else 0


def is_nvidia_smi(text: str) -> bool:
    """Tell whether a text has the header of ``nvidia-smi topo -m``."""
    return any(map(_is_header, _ESCAPE.sub("", text[:100_000]).split("\n")))


def _is_header(line: str) -> bool:
    words = line.split()
    cells = {word for word in words if word == "X" or word in LEVELS or _LINKS.fullmatch(word)}
    return bool(words) and bool(_GPU.fullmatch(words[0])) and not cells


def read_nvidia_smi(text: str, file: str, options: HostOptions) -> Host:
    """Return the host that the output of ``nvidia-smi topo -m``, `text`, describes.

    Errors call it `file`; `options` say what it does not.

    Raises InputError with file, line and fix.
    """
    matrix = _matrix(text, file)
    _check(matrix, file)
    gpus = matrix.gpus
    place = {device: number for number, device in enumerate(gpus)}
    switched = _switched(matrix, options)
    name, gpu = _nvidia_gpu(matrix, max(switched, default=0), options)
    link = options.link or gpu.link
    wires = () if any(switched) else tuple(
        Wire(place[a], place[b], matrix.links(a, b) * link)
        for a in gpus for b in gpus if a < b and matrix.links(a, b)
    )  # fmt: skip
    classes = Classes([[LEVELS.get(c, 0) for c in row] for row in matrix.cells], matrix.numa)
    found = closer(classes)
    if found is not None:
        a, b, kind = found
        warnings.warn(
            f"{file}:{matrix.lines[a]}: {shown(matrix.names[a])} to {shown(matrix.names[b])} is"
            f" {matrix.cells[a][b]}, but others join them by {kind}: taken as {kind}",
            TacclWarning, stacklevel=3,
        )  # fmt: skip
    lane, sockets = pcie_bandwidth(options.pcie or gpu.pcie), options.sockets or gpu.sockets
    hubs, plugs = hub_tree(classes, lane, sockets)
    nics = tuple(
        HostNic(matrix.legend.get(nic, nic), options.nic or gpu.nic, plugs[device])
        for device, nic in enumerate(matrix.names)
        if device not in place
    )
    notes = [f"GPUs: {name} ({'--gpu' if options.gpu else 'guessed from the NVLinks; --gpu'})"]
    told = f"{rate_text(link)} each"
    told += " (--link-bandwidth)" if options.link else " (NCCL's figure; --link-bandwidth)"
    if any(switched):
        notes.append(
            f"NVLink: {max(switched)} of each GPU to an NVSwitch, as all pairs have them; {told}"
        )
    elif wires:
        notes.append(f"NVLink: wires, {told}")
    notes += _pci_notes(name, options, "SYS, the link between sockets")
    if nics:
        notes.append(
            f"NICs: {rate_text(options.nic or gpu.nic)}"
            f" ({'--nic-speed' if options.nic else f'assumed for {name}; --nic-speed'})"
        )
    return Host(
        file, len(gpus), wires, tuple(k * link if k else None for k in switched), hubs, (),
        tuple((plugs[device],) for device in gpus), nics, tuple(notes), name,
    )  # fmt: skip


def _pci_notes(name: str, options: HostOptions, between: str) -> Iterator[str]:
    """Yield where the rates of PCIe and ``between`` sockets are from."""
    pcie, sockets = options.pcie or GPUS[name].pcie, options.sockets or GPUS[name].sockets
    yield (
        f"PCIe: {rate_text(pcie_bandwidth(pcie))}, generation {pcie} x16 as NCCL counts it"
        f" ({'--pcie' if options.pcie else f'assumed for {name}; --pcie'})"
    )
    yield (
        f"{between}: {rate_text(sockets)}"
        f" ({'--sockets' if options.sockets else f'NCCL, CPUs assumed for {name}; --sockets'})"
    )


def _matrix(text: str, file: str) -> _Matrix:
    lines = _ESCAPE.sub("", text).split("\n")
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise _error("has no header line with GPU0, GPU1 and so on", file, 1, _NVIDIA_FIX)
    # The devices of the header, and how many columns of affinities follow.
    header = lines[start]
    at = min((header.find(tail) for tail in _TAILS if tail in header), default=len(header))
    names, tails = tuple(header[:at].split()), sum(tail in header for tail in _TAILS)
    if len(names) > MAX_DEVICES or sum(bool(_GPU.fullmatch(name)) for name in names) > MAX_GPUS:
        raise _error(
            f"has {len(names)} devices, more than {MAX_GPUS} GPUs or {MAX_DEVICES} in all", file,
            start + 1, _NVIDIA_FIX,
        )  # fmt: skip
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise _error(f"there are two columns {shown(twice)}", file, start + 1, _NVIDIA_FIX)
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if (words and words[0] == "Legend:") or (not words and len(rows) == len(names)):
            break
        if not words:
            continue
        if words[0] not in names:
            problem = f"{shown(words[0])} is no device of the header"
            raise _error(problem, file, number, _NVIDIA_FIX)
        if words[0] in rows:
            raise _error(f"there are two rows {shown(words[0])}", file, number, _NVIDIA_FIX)
        rows[words[0]] = (number, words[1:])
    for name in names:
        if name not in rows:
            raise _error(f"there is no row for {shown(name)}", file, start + 1, _NVIDIA_FIX)
        number, words = rows[name]
        if not len(names) <= len(words) <= len(names) + tails:
            few = f"the header {len(names)} devices" if len(words) < len(names) else "too many"
            problem = f"{shown(name)} has {len(words)} cells, {few}"
            raise _error(problem, file, number, _NVIDIA_FIX)
    found = [rows[name] for name in names]
    rest = [words[len(names) :] for _, words in found]
    return _Matrix(
        names,
        tuple(tuple(words[: len(names)]) for _, words in found),
        tuple(number for number, _ in found),
        tuple(r[1] if len(r) == tails >= 2 and r[1].isdecimal() else None for r in rest),
        {match[1]: match[2] for match in map(_LEGEND.match, lines[start + 1 :]) if match},
    )


def _error(problem: str, file: str, line: int, fix: str) -> InputError:
    return InputError(problem, file=file, line=line, fix=fix)


def _check(matrix: _Matrix, file: str) -> None:
    """Refuse cells that are none, or that say one thing in one direction and another back."""
    gpus = set(matrix.gpus)
    for a, row in enumerate(matrix.cells):
        for b, cell in enumerate(row):
            what = f"{shown(matrix.names[a])} to {shown(matrix.names[b])} is {shown(cell)}"
            links, fix = _LINKS.fullmatch(cell), _NVIDIA_FIX
            back = matrix.cells[b][a]
            if (cell == "X") != (a == b) or (cell != "X" and cell not in LEVELS and not links):
                fix = f"cells are X, NV1, {', '.join(LEVELS)}; X only on the diagonal"
            elif links and (not 1 <= int(links[1]) <= MAX_NVLINKS or not {a, b} <= gpus):
                what += ": no such NVLinks"
            elif b < a and LEVELS.get(cell, cell) != LEVELS.get(back, back):
                what += f", but back it is {shown(back)}"
            else:
                continue
            raise _error(what, file, matrix.lines[a], fix)


def _switched(matrix: _Matrix, options: HostOptions) -> list[int]:
    """Return the NVLinks of each GPU to an NVSwitch; none, or 0 for a GPU without.

    More links to others than any GPU has go by a switch, and so do many equal ones; but where the
    equal ones of a GPU are as many as a kind of GPU has in all, they are a full mesh of wires, as
    those of four H100 are: 3 times NV6 is 18.
    """
    gpus = matrix.gpus
    counts = [[matrix.links(a, b) for b in gpus if a != b] for a in gpus]
    most = max(map(sum, counts), default=0)
    if options.gpu is not None and GPUS[options.gpu].links:
        through = most > GPUS[options.gpu].links
    else:
        kinds = {count for row in counts for count in row}
        meshes = {gpu.links for gpu in GPUS.values()}
        equal = len(kinds) == 1 and min(kinds) >= LEAST_SWITCHED and most not in meshes
        through = len(gpus) > 2 and (equal or most > max(gpu.links for gpu in GPUS.values()))
    return [max(row, default=0) for row in counts] if through else []


def _nvidia_gpu(matrix: _Matrix, switched: int, options: HostOptions) -> tuple[str, Gpu]:
    """Return the GPU that is asked for, or that has as many NVLinks."""
    if options.gpu is not None:
        return options.gpu, GPUS[options.gpu]
    gpus = matrix.gpus
    most = switched or max(sum(matrix.links(a, b) for b in gpus) for a in gpus)
    widest = max(matrix.links(a, b) for a in gpus for b in gpus)
    if most == 0:
        name = "other"
    elif most == 4 and widest in (1, 4):
        name = "p100" if widest == 1 else "a40"  # a mesh of single links, or a bridge
    else:
        name = next((n for n in ("v100", "a100") if most <= GPUS[n].links), "h100")
    return name, GPUS[name]


_TITLE = re.compile(r"\s*={3,}\s*(.*?)\s*={3,}\s*$")
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

MAX_XGMI = 16
_TYPES: Mapping[str, int] = {"0": 0, "XGMI": 1, "PCIE": 2}
_ROCM_FIX = "give the whole output of rocm-smi --showtopo"


def _count(cell: str) -> int | None:
    return int(cell) if _NUMBER.fullmatch(cell) else None


def _xgmi_links(cell: str) -> int | None:
    """Return how many xGMI links a range of bandwidths stands for; 0: not told."""
    match = _BANDWIDTH.fullmatch(cell)
    low, high = (int(match[1]), int(match[2])) if match and match[1] else (0, 0)
    if match is None or low > high or (low and high > MAX_XGMI * low):
        return None
    return high // low if low else 0


_CELLS: Mapping[str, tuple[str, Callable[[str], int | None]]] = MappingProxyType({
    "type": ("a type", _TYPES.get),
    "hops": ("a whole number", _count),
    "weight": ("a whole number", _count),
    "bandwidth": ("a range of MB/s or N/A", _xgmi_links),
})  # fmt: skip
"""Tables by name: what their cells should be, and what reads one; None: it is something else."""


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

    Raises InputError with file, line and fix.
    """
    tables, numa = _tables(text, file)
    for name, title in (("type", "Link Type"), ("hops", "Hops")):
        if name not in tables:
            raise _error(f"has no table {title} between two GPUs", file, 1, _ROCM_FIX)
    names = tables["type"].names
    for table in tables.values():
        if table.names != names:
            problem = "names other GPUs than the table of link types"
            raise _error(problem, file, table.line, _ROCM_FIX)
        missing = next((name for name in names if name not in table.rows), None)
        if missing is not None:
            raise _error(f"there is no row for {missing}", file, table.line, _ROCM_FIX)
    values = {name: _values(name, tables[name], file) for name in _CELLS if name in tables}
    for name in ("type", "hops", "bandwidth"):
        _check_same_back(tables.get(name), values.get(name, ()), file)
    size, counts = range(len(names)), values.get("bandwidth")
    types, hops = values["type"], values["hops"]
    direct = [[types[a][b] == _TYPES["XGMI"] and hops[a][b] == 1 for b in size] for a in size]
    ends = sum(map(sum, direct))
    name = options.gpu or "other"
    if options.gpu is None and ends:  # the GPU whose hosts are wired so
        whole = ends == len(names) * (len(names) - 1)
        name = "mi300x" if whole and len(names) > 4 else "mi250"
    gpu = GPUS[name]
    link = options.link or gpu.link
    wires = tuple(
        Wire(a, b, (counts[a][b] if counts and counts[a][b] else 1) * link)
        for a in size for b in size if a < b and direct[a][b]
    )  # fmt: skip
    classes = Classes([[0] * len(names) for _ in names], [numa.get(n) for n in names])
    lane, sockets = pcie_bandwidth(options.pcie or gpu.pcie), options.sockets or gpu.sockets
    hubs, plugs = hub_tree(classes, lane, sockets)
    notes = [f"GPUs: {name} ({'--gpu' if options.gpu else 'guessed from the wires; --gpu'})"]
    if wires:
        told = "--link-bandwidth" if options.link else "RCCL's figure; --link-bandwidth"
        notes.append(f"xGMI: {rate_text(link)} a link ({told})")
    if wires and counts is None:
        notes.append(
            "links of a pair: one each, as there is no table of bandwidths (--shownodesbw)"
        )
    notes += _pci_notes(name, options, "between sockets")
    return Host(
        file, len(names), wires, hubs=hubs, plugs=tuple((plug,) for plug in plugs),
        notes=tuple(notes), gpu=name,
    )  # fmt: skip


def _tables(text: str, file: str) -> tuple[dict[str, _Table], dict[str, str]]:
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
                raise _error(f"there are two tables {shown(title[1])}", file, number, _ROCM_FIX)
        elif section == "numa" and line.strip():
            match = _NUMA.match(line)
            if match is None:
                problem = f"should be a NUMA node, got {shown(line.strip())}"
                raise _error(problem, file, number, _ROCM_FIX)
            name, node = f"GPU{int(match[1])}", match[3]
            if match[2] == "Node" and (name in numa or not _NODE.fullmatch(node)):
                what = "is there already" if name in numa else f"has the NUMA node {shown(node)}"
                raise _error(f"{name} {what}", file, number, _ROCM_FIX)
            numa |= {name: node} if match[2] == "Node" else {}
        elif section not in (None, "numa") and not line.startswith(("Format", "'", '"')):
            _add_row(tables, str(section), line.split(), file, number)
    return tables, numa


def _add_row(
    tables: dict[str, _Table], section: str, words: Sequence[str], file: str, number: int
) -> None:
    if not words:
        return
    if section not in tables:
        if not all(_GPU.fullmatch(word) for word in words):
            problem = "a table should begin with a line GPU0 GPU1 and so on"
            raise _error(problem, file, number, _ROCM_FIX)
        if len(set(words)) < len(words) or len(words) > MAX_GPUS:
            problem = f"names a GPU twice, or more than {MAX_GPUS}"
            raise _error(problem, file, number, _ROCM_FIX)
        tables[section] = _Table(number, tuple(words), {})
        return
    table = tables[section]
    if words[0] not in table.names or words[0] in table.rows:
        again = "is there already" if words[0] in table.rows else "is no GPU of the header"
        raise _error(f"{shown(words[0])} {again}", file, number, _ROCM_FIX)
    if len(words) != len(table.names) + 1:
        raise _error(
            f"{words[0]} has {len(words) - 1} cells, the header {len(table.names)} GPUs", file,
            number, _ROCM_FIX,
        )  # fmt: skip
    table.rows[words[0]] = number, tuple(words[1:])


def _values(name: str, table: _Table, file: str) -> list[list[int]]:
    """Return the cells of a table as numbers, row by row in the order of the GPUs."""
    what, read = _CELLS[name]
    found = []
    for a, gpu in enumerate(table.names):
        line, cells = table.rows[gpu]
        row = []
        for b, cell in enumerate(cells):
            value = read(cell)
            if name == "type" and (value is None or (a == b) != (value == 0)):
                fix = "cells are XGMI or PCIE, and 0 on the diagonal"
                raise _error(f"{gpu} to {table.names[b]} is {shown(cell)}", file, line, fix)
            if value is None:
                raise _error(f"should be {what}, got {shown(cell)}", file, line, _ROCM_FIX)
            row.append(value)
        found.append(row)
    return found


def _check_same_back(table: _Table | None, rows: Sequence[Sequence[int]], file: str) -> None:
    for a, row in enumerate(rows if table is not None else ()):
        for b in range(a):
            if table is not None and row[b] != rows[b][a]:
                one, other = table.names[a], table.names[b]
                line, cells = table.rows[one]
                there, back = cells[b], table.rows[other][1][a]
                problem = f"{one} to {other} is {shown(there)}, but back it is {shown(back)}"
                raise _error(problem, file, line, _ROCM_FIX)
