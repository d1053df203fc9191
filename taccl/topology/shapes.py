"""Parametric topologies, each a row of :data:`SHAPES`: what its dims stand for, cables, symmetries.

A file names one under ``shape:``, the command line by a short form: ``torus2d:8x8@25GB/s,1us``.

Every cable is an edge in each direction; equal cables side by side are one edge with the bandwidth
of all, as the spines of the server form are. One crossing of a switch takes alpha, half on each of
its two edges (an odd picosecond on the second), so a cable between two switches takes one alpha.

References
----------
M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008, section 3 (fat-tree of k pods). J. Kim, W. Dally, S. Scott, D. Abts,
"Technology-driven, highly-scalable dragonfly topology", ISCA 2008, section 3.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model
from taccl.files.model import MAX_RANKS, Beta, Count, Duration
from taccl.topology.core_form import (
    MAX_EDGES,
    Builder,
    SwitchesRecord,
    TopologyHeader,
    with_abilities,
)
from taccl.topology.graph import Permutation, Topology
from taccl.units import parse_beta, parse_time

Dims = Sequence[int]

Cables = Iterable[tuple[int, int, Fraction | int]]
"""Two vertices, and how many cables side by side join them."""

DEFAULT_BETA = Fraction(20)
"""50 GB/s."""
DEFAULT_ALPHA = 700_000


def grid_pairs(dims: Dims, *, wrap: bool) -> Iterator[tuple[int, int]]:
    """Yield each pair of neighbours of a mesh of ``dims`` (a torus with ``wrap``) once.

    The last dimension varies fastest; in a dimension of two the way round is no second wire.
    """
    steps = list(zip((size for size in dims if size > 1), translations(dims), strict=True))
    for place in range(math.prod(dims)):
        for size, step in steps:
            if step[place] > place or (wrap and size > 2):
                yield place, step[place]


def translations(dims: Dims, along: Sequence[int] | None = None) -> tuple[Permutation, ...]:
    """Return the step by one, which wraps, for each of ``dims`` or those numbered ``along``."""
    grid = np.arange(math.prod(dims)).reshape(dims)
    asked = range(len(dims)) if along is None else along
    steps = (np.roll(grid, -1, axis) for axis in asked if dims[axis] > 1)
    return tuple(tuple(step.ravel().tolist()) for step in steps)


def reflections(dims: Dims) -> tuple[Permutation, ...]:
    """Return the point reflection and, of more than one dimension, the mirror of each."""
    grid = np.arange(math.prod(dims)).reshape(dims)
    mirrors = [np.flip(grid, axis) for axis, size in enumerate(dims) if size > 1]
    found = [np.flip(grid), *(mirrors if len(mirrors) > 1 else ())]
    return tuple(tuple(mirror.ravel().tolist()) for mirror in found)


Wiring = tuple[Sequence[str], Cables]
"""Names of switches, which are the vertices after the ranks, and cables."""


def _wires(pairs: Iterable[tuple[int, int]]) -> Wiring:
    return (), ((a, b, 1) for a, b in pairs)


def leaf_spine(dims: Dims) -> Wiring:
    """Return leaves of so many ranks, and a spine that pools all spine switches.

    ``dims`` are leaves, ranks of a leaf and, if it is not 1, the oversubscription: what the ranks
    of a leaf can send over what the leaf can send to the spine.
    """
    leaves, per_leaf, over = (*dims, 1)[:3]
    ranks = leaves * per_leaf
    names = [f"leaf{leaf}" for leaf in range(leaves)] + ["spine"] * (leaves > 1)
    cables: list[tuple[int, int, Fraction | int]]
    cables = [(rank, ranks + rank // per_leaf, 1) for rank in range(ranks)]
    if leaves > 1:
        uplink = Fraction(per_leaf, over)
        cables += [(ranks + leaf, ranks + leaves, uplink) for leaf in range(leaves)]
    return names, cables


def fat_tree(dims: Dims) -> Wiring:
    """Return the fat-tree of k-port switches: k pods of k/2 edge switches of k/2 ranks.

    ``dims`` is k. The k/2 aggregation switches of a pod are one vertex, and so are the (k/2)^2
    core switches.
    """
    (k,) = dims
    half = k // 2
    edge_switches = k * half
    ranks = edge_switches * half
    names = [f"p{n // half}/edge{n % half}" for n in range(edge_switches)]
    names += [f"p{pod}/agg" for pod in range(k)] + ["core"]
    aggregation = ranks + edge_switches
    cables = [(rank, ranks + rank // half, 1) for rank in range(ranks)]
    cables += [(ranks + n, aggregation + n // half, half) for n in range(edge_switches)]
    cables += [(aggregation + pod, aggregation + k, half**2) for pod in range(k)]
    return names, cables


def dragonfly(dims: Dims) -> Wiring:
    """Return groups of fully joined routers, one cable between each two groups.

    ``dims`` are groups g, routers of a group a and ranks of a router p; balanced is a = 2p = 2h,
    g = ah + 1. The cable from group i to group i + d is on router (d - 1) // h of group i, h being
    the cables of a router that lead to other groups: so all groups look alike.
    """
    groups, routers, per_router = dims
    ranks = groups * routers * per_router
    names = [f"g{n // routers}/r{n % routers}" for n in range(groups * routers)]
    cables = [(rank, ranks + rank // per_router, 1) for rank in range(ranks)]
    for first in range(ranks, ranks + groups * routers, routers):
        cables += [(a, b, 1) for a, b in combinations(range(first, first + routers), 2)]
    each = -(-(groups - 1) // routers)
    for one, other in combinations(range(groups), 2):
        ahead, back = other - one - 1, groups - (other - one) - 1
        ends = one * routers + ahead // each, other * routers + back // each
        cables.append((ranks + ends[0], ranks + ends[1], 1))
    return names, cables


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table of shapes.

    Of some dims, `wiring` returns switches and cables, `rotations` symmetries, `wires` how many
    pairs of edges there are at most, and `ranks` how many ranks. From `fewest` to `most` dims may
    be given; `what` says what they are, and `example` has some, or a short form where dims do not
    tell what they are.
    """

    wiring: Callable[[Dims], Wiring]
    rotations: Callable[[Dims], tuple[Permutation, ...]]
    wires: Callable[[Dims], int] = lambda dims: len(dims) * math.prod(dims)
    ranks: Callable[[Dims], int] = math.prod
    fewest: int = 1
    most: int = 1
    what: str = "the number of ranks"
    example: str = "8x8"


def _cube(dims: Dims) -> list[int]:
    return [2] * (dims[0].bit_length() - 1)


SHAPES: Mapping[str, Shape] = MappingProxyType({
    "ring": Shape(lambda dims: _wires(grid_pairs(dims, wrap=True)), translations),
    "mesh": Shape(lambda dims: _wires(grid_pairs(dims, wrap=False)), reflections, most=8),
    "torus": Shape(lambda dims: _wires(grid_pairs(dims, wrap=True)), translations, most=8),
    "hypercube": Shape(
        lambda dims: _wires(grid_pairs(_cube(dims), wrap=False)),
        lambda dims: translations(_cube(dims))[::-1],
        lambda dims: dims[0] * dims[0].bit_length(), example="hypercube:16",
    ),
    "full": Shape(
        lambda dims: _wires(combinations(range(dims[0]), 2)), translations,
        lambda dims: dims[0] * dims[0] // 2,
    ),
    "hub": Shape(
        lambda dims: (["hub"], ((rank, dims[0], 1) for rank in range(dims[0]))), translations
    ),
    "leaf-spine": Shape(
        leaf_spine, lambda dims: translations(dims[:2]),
        ranks=lambda dims: dims[0] * dims[1], fewest=2, most=3,
        what="leaves x ranks of a leaf [x oversubscription]", example="leaf-spine:4x8x2",
    ),
    "fat-tree": Shape(
        fat_tree, lambda dims: translations([dims[0], dims[0] // 2, dims[0] // 2]),
        lambda dims: dims[0] ** 3 // 2, lambda dims: dims[0] ** 3 // 4,
        what="the ports of a switch", example="fat-tree:4",
    ),
    "dragonfly": Shape(
        dragonfly, lambda dims: translations(dims, along=(0, 2)),
        lambda dims: dims[0] * (dims[1] * (2 * dims[2] + dims[1] - 1) + dims[0] - 1) // 2,
        fewest=3, most=3, what="groups x routers of a group x ranks of a router",
        example="dragonfly:9x4x2",
    ),
})  # fmt: skip

_BAD: Mapping[str, tuple[Callable[[int], bool], str]] = MappingProxyType({
    "hypercube": (lambda n: bool(n & (n - 1)), "a hypercube has a power of two of ranks"),
    "fat-tree": (lambda k: bool(k % 2), "the switches of a fat-tree have an even number of ports"),
})  # fmt: skip
"""What the first of the dims must not be, and what is wrong with it then."""

_SHORT = re.compile(
    r"(?P<kind>[a-z]+(?:-[a-z]+)*)(?P<rank>[1-8]d)?:(?P<dims>[^@]*)(?:@(?P<costs>.*))?"
)


class ShapeRecord(FileModel):
    """A parametric shape."""

    kind: Annotated[
        Literal[
            "ring",
            "mesh",
            "torus",
            "hypercube",
            "full",
            "hub",
            "leaf-spine",
            "fat-tree",
            "dragonfly",
        ],
        Field(examples=["torus"]),
    ]
    dims: Annotated[list[Count], Field(min_length=1, max_length=8, examples=["[8, 8]"])]
    bandwidth: Annotated[
        Beta, Field(examples=["50GB/s"], json_schema_extra={"default": "50GB/s"})
    ] = DEFAULT_BETA
    alpha: Annotated[
        Duration, Field(examples=["0.7us"], json_schema_extra={"default": "0.7us"})
    ] = DEFAULT_ALPHA
    switches: Annotated[
        list[SwitchesRecord], Field(examples=["[{name: leaf*, multicast: true, reduce: true}]"])
    ] = Field(default_factory=list)


class ShapeFile(TopologyHeader):
    """A topology file with a parametric shape."""

    shape: Annotated[ShapeRecord, Field(examples=["{kind: ring, dims: [8]}"])]


def read_shape(document: Document) -> Topology:
    """Return the topology of a document with a ``shape``.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, ShapeFile)
    problem = _wrong_dims(record.shape.kind, record.shape.dims)
    if problem is not None:
        raise document.error(problem[0], ("shape", "dims"), problem[1])
    made = _topology(record)
    return with_abilities(made, record.shape.switches, document, ("shape", "switches"))


def _topology(record: ShapeFile) -> Topology:
    shape, row = record.shape, SHAPES[record.shape.kind]
    ranks, alpha = row.ranks(shape.dims), shape.alpha
    builder = Builder(ranks)
    names, wired = row.wiring(shape.dims)
    for name in names:
        builder.switch(name)
    cables = list(wired)
    betas = {width: shape.bandwidth / width for width in {width for *_, width in cables}}
    for a, b, width in cables:
        for tail, head in ((a, b), (b, a)):
            late = (alpha // 2 if head >= ranks else 0) + ((alpha + 1) // 2 if tail >= ranks else 0)
            builder.edge(tail, head, betas[width], late if max(a, b) >= ranks else alpha)
    return builder.topology(record, (0,) * ranks, row.rotations(shape.dims))


def is_short_form(text: str) -> bool:
    """Tell whether a text is written as a shape's short form, right or wrong."""
    match = _SHORT.fullmatch(text)
    return match is not None and match["kind"] in SHAPES


def parse_short_form(text: str) -> Topology:
    """Return the topology of a short form such as ``torus2d:8x8@25GB/s,1us``.

    Raises InputError when dims, bandwidth or alpha can't be used.
    """
    match = _SHORT.fullmatch(text)
    if match is None or match["kind"] not in SHAPES:
        raise _no_shape(f"{text[:60]!r} is no shape", f"use one of {', '.join(SHAPES)}")
    kind, rank = match["kind"], match["rank"] or ""
    parts = match["dims"].split("x")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise _no_shape(f"{match['dims'][:40]!r} are no dimensions", f"write {kind}:8 or 8x8")
    if rank and len(parts) != int(rank[0]):
        raise _no_shape(
            f"{kind}{rank} has {rank[0]} dimensions, got {len(parts)}",
            f"write {kind}{rank}:{'x'.join('4' * int(rank[0]))}",
        )
    fields: dict[str, Any] = {"kind": kind, "dims": [int(part) for part in parts]}
    problem = _wrong_dims(kind, fields["dims"])
    if problem is not None:
        raise _no_shape(*problem)
    bandwidth, comma, alpha = (match["costs"] or "").partition(",")
    try:
        fields |= {"bandwidth": parse_beta(bandwidth)} if match["costs"] is not None else {}
        fields |= {"alpha": parse_time(alpha)} if comma else {}
    except InputError as error:
        raise _no_shape(error.problem, error.fix or "") from None
    name = f"{kind}{rank}-{match['dims']}"
    shape = ShapeRecord.model_construct(**fields)
    return _topology(ShapeFile.model_construct(taccl="topology/1", name=name, shape=shape))


def _no_shape(problem: str, fix: str) -> InputError:
    return InputError(problem, field="topology", fix=fix)


def _wrong_dims(kind: str, dims: Dims) -> tuple[str, str] | None:
    """Return what is wrong with the dims of a shape, and the fix."""
    row = SHAPES[kind]
    if not row.fewest <= len(dims) <= row.most:
        if row.most == 1:
            return f"a {kind} has one dimension, got {len(dims)}", f"give {row.what}"
        count = row.most if row.most == row.fewest else f"{row.fewest} to {row.most}"
        problem = f"a {kind} has {count} dimensions, got {len(dims)}"
        return problem, f"write {row.example}: {row.what}"
    if 0 in dims or not 2 <= row.ranks(dims) <= MAX_RANKS:
        problem = f"should make 2 to {MAX_RANKS} ranks, got {'x'.join(map(str, dims))}"
        return problem, f"write smaller dimensions, such as {row.example}"
    bad, rule = _BAD.get(kind, (None, ""))
    if bad is not None and bad(dims[0]):
        return f"{rule}, got {dims[0]}", f"write {row.example}"
    if 2 * row.wires(dims) > MAX_EDGES:
        return f"makes more than {MAX_EDGES} edges", "write smaller dimensions"
    return None
