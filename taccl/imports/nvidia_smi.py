"""The text of ``nvidia-smi topo -m``: GPUs and NICs, and the closest path between every two.

Cells are ``X`` (itself), ``NV<k>`` (k NVLinks), and classes of PCIe paths: ``PIX`` (one switch),
``PXB`` (several switches), ``PHB`` (the host bridge), ``NODE`` (host bridges of one NUMA node) and
``SYS`` (the link between sockets; ``SOC`` in older drivers). The classes nest, so that they make a
tree whose inner places are hubs. An NVLink hides the class of its pair: then NICs that are close to
both GPUs tell, else their NUMA node.

Drivers differ: the header may be underlined by ANSI escapes, NICs are called ``mlx5_0`` or NIC0
with a legend, columns of affinities are more or fewer, ``topo -mp`` leaves out NVLink. GPUs that
are hidden are missing from rows and columns alike; ranks are the positions of those shown.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU[0-9]{1,6}")
_LINKS = re.compile(r"NV([0-9]{1,6})")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,6}):\s*(\S{1,60})\s*$")
_TAILS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
MAX_LINKS = 64
LEAST_SWITCHED = 6
"""NVLinks between all pairs from which on they are taken for an NVSwitch."""

_FIX = "give the whole output of nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The devices, and for every two of them the cell and its line.

    Parameters
    ----------
    names
        Of the columns.
    cells
        Rows of cells.
    lines
        The line of every row.
    numa
        NUMA node of every device as it is printed, where it is.
    legend
        Names of NICs.
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
    return any(_is_header(line) for line in _plain(text[:100_000]))


def _plain(text: str) -> list[str]:
    return _ESCAPE.sub("", text).split("\n")


def _is_header(line: str) -> bool:
    words = line.split()
    cells = {word for word in words if word == "X" or word in LEVELS or _LINKS.fullmatch(word)}
    return bool(words) and bool(_GPU.fullmatch(words[0])) and not cells


def read_nvidia_smi(text: str, file: str, options: HostOptions) -> Host:
    """Return the host that the output of ``nvidia-smi topo -m``, `text`, describes.

    Errors call it `file`; `options` say what it does not.

    Raises
    ------
    InputError
        With file, line and fix.
    """
    matrix = _matrix(text, file)
    _check(matrix, file)
    gpus = matrix.gpus
    place = {device: number for number, device in enumerate(gpus)}
    switched = _switched(matrix, options)
    name, gpu = _generation(matrix, max(switched, default=0), options)
    link = options.link or gpu.link
    wires = () if any(switched) else tuple(
        Wire(place[a], place[b], matrix.links(a, b) * link)
        for a in gpus for b in gpus if a < b and matrix.links(a, b)
    )  # fmt: skip
    generation = options.pcie or gpu.pcie
    lane, sockets = pcie_bandwidth(generation), options.sockets or gpu.sockets
    classes = Classes([[LEVELS.get(c, 0) for c in row] for row in matrix.cells], matrix.numa)
    found = closer(classes)
    if found is not None:
        a, b, kind = found
        warnings.warn(
            f"{file}:{matrix.lines[a]}: {shown(matrix.names[a])} to {shown(matrix.names[b])} is"
            f" {matrix.cells[a][b]}, but others join them by {kind}: taken as {kind}",
            TacclWarning, stacklevel=3,
        )  # fmt: skip
    hubs, plugs = hub_tree(classes, lane, sockets)
    nics = tuple(
        HostNic(matrix.legend.get(nic, nic), options.nic or gpu.nic, plugs[device])
        for device, nic in enumerate(matrix.names)
        if device not in place
    )
    return Host(
        file, len(gpus), wires, tuple(k * link if k else None for k in switched), hubs, (),
        tuple((plugs[device],) for device in gpus), nics,
        tuple(_notes(matrix, name, switched, options)), name,
    )  # fmt: skip


def _matrix(text: str, file: str) -> _Matrix:
    lines = _plain(text)
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise InputError(
            "has no header line with GPU0, GPU1 and so on", file=file, line=1, fix=_FIX
        )
    names, tails = _header(lines[start], file, start + 1)
    rows: dict[str, tuple[int, list[str]]] = {}
    legend: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if not words:
            if len(rows) == len(names):
                break
            continue
        if words[0] == "Legend:":
            break
        if words[0] not in names:
            raise _error(f"{shown(words[0])} is no device of the header", file, number)
        if words[0] in rows:
            raise _error(f"there are two rows {shown(words[0])}", file, number)
        rows[words[0]] = (number, words[1:])
    for line in lines[start + 1 :]:
        match = _LEGEND.match(line)
        if match:
            legend[match[1]] = match[2]
    return _cells(names, tails, rows, legend, (file, start + 1))


def _header(line: str, file: str, number: int) -> tuple[tuple[str, ...], int]:
    """Return the devices of the header, and how many columns of affinities follow."""
    at = min((line.find(tail) for tail in _TAILS if tail in line), default=len(line))
    names = tuple(line[:at].split())
    if len(names) > MAX_DEVICES or sum(bool(_GPU.fullmatch(name)) for name in names) > MAX_GPUS:
        raise _error(
            f"has {len(names)} devices, more than {MAX_GPUS} GPUs or {MAX_DEVICES} in all", file,
            number,
        )  # fmt: skip
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise _error(f"there are two columns {shown(twice)}", file, number)
    return names, sum(tail in line for tail in _TAILS)


def _cells(
    names: tuple[str, ...],
    tails: int,
    rows: Mapping[str, tuple[int, Sequence[str]]],
    legend: Mapping[str, str],
    header: tuple[str, int],
) -> _Matrix:
    file, start = header
    cells, lines, numa = [], [], []
    for name in names:
        if name not in rows:
            raise _error(f"there is no row for {shown(name)}", file, start)
        number, words = rows[name]
        if len(words) < len(names):
            raise _error(
                f"{shown(name)} has {len(words)} cells, the header {len(names)} devices", file,
                number,
            )  # fmt: skip
        if len(words) > len(names) + tails:
            raise _error(f"{shown(name)} has {len(words)} cells, too many", file, number)
        rest = words[len(names) :]
        cells.append(tuple(words[: len(names)]))
        lines.append(number)
        known = len(rest) == tails >= 2 and rest[1].isdecimal()
        numa.append(rest[1] if known else None)
    return _Matrix(names, tuple(cells), tuple(lines), tuple(numa), legend)


def _error(problem: str, file: str, line: int) -> InputError:
    return InputError(problem, file=file, line=line, fix=_FIX)


def _check(matrix: _Matrix, file: str) -> None:
    """Refuse cells that are none, or that say one thing in one direction and another back."""
    gpus = set(matrix.gpus)
    for a, row in enumerate(matrix.cells):
        for b, cell in enumerate(row):
            where = f"{shown(matrix.names[a])} to {shown(matrix.names[b])}"
            links = _LINKS.fullmatch(cell)
            if (cell == "X") != (a == b) or (cell != "X" and cell not in LEVELS and not links):
                known = f"X, NV1, {', '.join(LEVELS)}"
                raise InputError(
                    f"{where} is {shown(cell)}", file=file, line=matrix.lines[a],
                    fix=f"cells are {known}; X only on the diagonal",
                )  # fmt: skip
            if links and (not 1 <= int(links[1]) <= MAX_LINKS or not {a, b} <= gpus):
                raise _error(f"{where} is {shown(cell)}: no such NVLinks", file, matrix.lines[a])
            back = matrix.cells[b][a]
            if b < a and _kind(cell) != _kind(back):
                raise _error(
                    f"{where} is {shown(cell)}, but back it is {shown(back)}", file,
                    matrix.lines[a],
                )  # fmt: skip


def _kind(cell: str) -> str | int:
    return LEVELS.get(cell, cell)


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


def _generation(matrix: _Matrix, switched: int, options: HostOptions) -> tuple[str, Gpu]:
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


def _notes(
    matrix: _Matrix, name: str, switched: Sequence[int], options: HostOptions
) -> Iterator[str]:
    gpu = GPUS[name]
    yield f"GPUs: {name} ({'--gpu' if options.gpu else 'guessed from the NVLinks; --gpu'})"
    link = f"{rate_text(options.link or gpu.link)} each"
    link += " (--link-bandwidth)" if options.link else " (NCCL's figure; --link-bandwidth)"
    if any(switched):
        yield f"NVLink: {max(switched)} of each GPU to an NVSwitch, as all pairs have them; {link}"
    elif any(matrix.links(a, b) for a in matrix.gpus for b in matrix.gpus):
        yield f"NVLink: wires, {link}"
    pcie = options.pcie or gpu.pcie
    yield (
        f"PCIe: {rate_text(pcie_bandwidth(pcie))}, generation {pcie} x16 as NCCL counts it"
        f" ({'--pcie' if options.pcie else f'assumed for {name}; --pcie'})"
    )
    yield (
        f"SYS, the link between sockets: {rate_text(options.sockets or gpu.sockets)}"
        f" ({'--sockets' if options.sockets else f'NCCL, CPUs assumed for {name}; --sockets'})"
    )
    if len(matrix.gpus) < len(matrix.names):
        yield (
            f"NICs: {rate_text(options.nic or gpu.nic)}"
            f" ({'--nic-speed' if options.nic else f'assumed for {name}; --nic-speed'})"
        )
