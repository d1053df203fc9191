"""Parametric topologies, and their short form on the command line: ``torus2d:8x8@25GB/s,1us``.

Rings, meshes, tori, hypercubes and complete graphs are ranks joined by wires; hubs, leaf-spines,
fat-trees and dragonflies are in :mod:`taccl.topology_switched`.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from taccl import topology_switched as switched
from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model
from taccl.files.fields import MAX_RANKS, Beta, Count, Duration
from taccl.topology import Edge, Permutation, Topology
from taccl.topology_graph import MAX_EDGES, TopologyHeader, edge_names
from taccl.topology_grids import Pairs, grid_pairs, reflections, translations
from taccl.topology_switched import Dims, Network
from taccl.units import Time, parse_beta, parse_time

DEFAULT_BETA = Fraction(20)
"""50 GB/s."""
DEFAULT_ALPHA = 700_000

EXAMPLES: Mapping[str, str] = MappingProxyType({
    "hypercube": "hypercube:16", "leaf-spine": "leaf-spine:4x8x2", "fat-tree": "fat-tree:4",
    "dragonfly": "dragonfly:9x4x2",
})  # fmt: skip
"""Short forms of shapes whose dims are not what they are of the others."""

_BAD: Mapping[str, tuple[Callable[[int], bool], str]] = MappingProxyType({
    "hypercube": (lambda n: bool(n & (n - 1)), "a hypercube has a power of two of ranks"),
    "fat-tree": (lambda k: bool(k % 2), "the switches of a fat-tree have an even number of ports"),
})  # fmt: skip
"""What the first of the dims must not be, and what is wrong with it then."""

_SHORT = re.compile(
    r"(?P<kind>[a-z]+(?:-[a-z]+)*)(?P<rank>[1-8]d)?:(?P<dims>[^@]*)(?:@(?P<costs>.*))?"
)


def _all_pairs(dims: Dims) -> Pairs:
    return itertools.combinations(range(dims[0]), 2)


def _cube_pairs(dims: Dims) -> Pairs:
    return grid_pairs([2] * (dims[0].bit_length() - 1), wrap=False)


def _xors(dims: Dims) -> tuple[Permutation, ...]:
    bits = range(dims[0].bit_length() - 1)
    return tuple(tuple(rank ^ (1 << bit) for rank in range(dims[0])) for bit in bits)


def _wired(pairs: Callable[[Dims], Pairs]) -> Callable[[Dims, Fraction, Time], Network]:
    """Return the builder of a shape whose ranks are joined by wires."""

    def build(dims: Dims, beta: Fraction, alpha: Time) -> Network:
        edges: list[Edge] = []
        for a, b in pairs(dims):
            names = edge_names(str(a), str(b), None)
            for (tail, head), name in zip(((a, b), (b, a)), names, strict=True):
                edges.append(Edge(len(edges), tail, head, alpha, None, beta, name))
        return (), tuple(edges)

    return build


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table of shapes.

    Parameters
    ----------
    build
        (dims, beta, alpha) -> switches and edges.
    rotations
        dims -> symmetries.
    wires
        dims -> how many pairs of edges there are at most.
    ranks
        dims -> how many ranks there are.
    fewest, most
        How many dims may be given.
    what
        What they are.
    """

    build: Callable[[Dims, Fraction, Time], Network]
    rotations: Callable[[Dims], tuple[Permutation, ...]]
    wires: Callable[[Dims], int]
    ranks: Callable[[Dims], int] = math.prod
    fewest: int = 1
    most: int = 1
    what: str = "the number of ranks"


def _per_rank(dims: Dims) -> int:
    return len(dims) * math.prod(dims)


SHAPES: Mapping[str, Shape] = MappingProxyType({
    "ring": Shape(_wired(lambda dims: grid_pairs(dims, wrap=True)), translations, _per_rank),
    "mesh": Shape(
        _wired(lambda dims: grid_pairs(dims, wrap=False)), reflections, _per_rank, most=8
    ),
    "torus": Shape(
        _wired(lambda dims: grid_pairs(dims, wrap=True)), translations, _per_rank, most=8
    ),
    "hypercube": Shape(_wired(_cube_pairs), _xors, lambda dims: dims[0] * dims[0].bit_length()),
    "full": Shape(_wired(_all_pairs), translations, lambda dims: dims[0] * dims[0] // 2),
    "hub": Shape(switched.hub, translations, _per_rank),
    "leaf-spine": Shape(
        switched.leaf_spine, switched.leaf_spine_turns, _per_rank,
        lambda dims: dims[0] * dims[1], 2, 3, "leaves x ranks of a leaf [x oversubscription]",
    ),
    "fat-tree": Shape(
        switched.fat_tree, switched.fat_tree_turns, lambda dims: 2 * switched.fat_tree_ranks(dims),
        switched.fat_tree_ranks, what="the ports of a switch",
    ),
    "dragonfly": Shape(
        switched.dragonfly, switched.dragonfly_turns, switched.dragonfly_wires,
        fewest=3, most=3, what="groups x routers of a group x ranks of a router",
    ),
})  # fmt: skip


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


class ShapeFile(TopologyHeader):
    """A topology file with a parametric shape."""

    shape: Annotated[ShapeRecord, Field(examples=["{kind: ring, dims: [8]}"])]


def read_shape(document: Document) -> Topology:
    """Return the topology of a document with a ``shape``.

    Raises
    ------
    InputError
        With file, line, field and fix.
    """
    record = fit_model(document, ShapeFile)
    shape = record.shape
    problem = _wrong_dims(shape.kind, shape.dims)
    if problem is not None:
        raise document.error(problem[0], ("shape", "dims"), problem[1])
    row = SHAPES[shape.kind]
    switches, edges = row.build(shape.dims, shape.bandwidth, shape.alpha)
    ranks = row.ranks(shape.dims)
    return Topology(
        record.name, ranks, switches, edges, (0,) * ranks, row.rotations(shape.dims),
        record.alpha_rule, record.local.costs(), record.chunk_size, record.costs, record.gpu,
    )  # fmt: skip


def is_short_form(text: str) -> bool:
    """Tell whether a text is written as a shape's short form, right or wrong."""
    match = _SHORT.fullmatch(text)
    return match is not None and match["kind"] in SHAPES


def parse_short_form(text: str) -> Topology:
    """Return the topology of a short form such as ``torus2d:8x8@25GB/s,1us``.

    Raises
    ------
    InputError
        When dims, bandwidth or alpha can't be used.
    """
    match = _SHORT.fullmatch(text)
    if match is None or match["kind"] not in SHAPES:
        raise _no_shape(f"{text[:60]!r} is no shape", f"use one of {', '.join(SHAPES)}")
    kind = match["kind"]
    parts = match["dims"].split("x")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise _no_shape(f"{match['dims'][:40]!r} are no dimensions", f"write {kind}:8 or 8x8")
    dims = [int(part) for part in parts]
    if match["rank"] and len(dims) != int(match["rank"][0]):
        raise _no_shape(
            f"{kind}{match['rank']} has {match['rank'][0]} dimensions, got {len(dims)}",
            f"write {kind}{match['rank']}:{'x'.join('4' * int(match['rank'][0]))}",
        )
    problem = _wrong_dims(kind, dims)
    if problem is not None:
        raise _no_shape(*problem)
    row = SHAPES[kind]
    switches, edges = row.build(dims, *_short_costs(match["costs"]))
    name = f"{kind}{match['rank'] or ''}-{match['dims']}"
    ranks = row.ranks(dims)
    return Topology(name, ranks, switches, edges, (0,) * ranks, row.rotations(dims))


def _short_costs(text: str | None) -> tuple[Fraction, Time]:
    """Return beta and alpha of ``25GB/s`` or ``25GB/s,1us``."""
    if text is None:
        return DEFAULT_BETA, DEFAULT_ALPHA
    bandwidth, comma, alpha = text.partition(",")
    try:
        return parse_beta(bandwidth), parse_time(alpha) if comma else DEFAULT_ALPHA
    except InputError as error:
        raise _no_shape(error.problem, error.fix or "") from None


def _no_shape(problem: str, fix: str) -> InputError:
    return InputError(problem, field="topology", fix=fix)


def _wrong_dims(kind: str, dims: Dims) -> tuple[str, str] | None:
    """Return what is wrong with the dims of a shape, and the fix."""
    row, example = SHAPES[kind], EXAMPLES.get(kind, "8x8")
    if not row.fewest <= len(dims) <= row.most:
        return _wrong_number(kind, len(dims))
    if 0 in dims or not 2 <= row.ranks(dims) <= MAX_RANKS:
        problem = f"should make 2 to {MAX_RANKS} ranks, got {'x'.join(map(str, dims))}"
        return problem, f"write smaller dimensions, such as {example}"
    bad, rule = _BAD.get(kind, (None, ""))
    if bad is not None and bad(dims[0]):
        return f"{rule}, got {dims[0]}", f"write {example}"
    if 2 * row.wires(dims) > MAX_EDGES:
        return f"makes more than {MAX_EDGES} edges", "write smaller dimensions"
    return None


def _wrong_number(kind: str, found: int) -> tuple[str, str]:
    row = SHAPES[kind]
    if row.most == 1:
        return f"a {kind} has one dimension, got {found}", f"give {row.what}"
    count = row.most if row.most == row.fewest else f"{row.fewest} to {row.most}"
    fix = f"write {EXAMPLES.get(kind, '8x8')}: {row.what}"
    return f"a {kind} has {count} dimensions, got {found}", fix
