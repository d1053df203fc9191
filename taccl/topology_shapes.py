"""Parametric topologies: rings, meshes, tori, hypercubes, complete graphs and hubs.

All but the hub are grids of ranks joined by wires. The short form of the command line is
``torus2d:8x8@25GB/s,1us``.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model
from taccl.files.fields import MAX_RANKS, Beta, Count, Duration
from taccl.topology import Edge, Permutation, Switch, Topology
from taccl.topology_graph import MAX_EDGES, TopologyHeader, edge_names
from taccl.units import Time, parse_beta, parse_time

DEFAULT_BETA = Fraction(20)
"""50 GB/s."""
DEFAULT_ALPHA = 700_000

_SHORT = re.compile(r"(?P<kind>[a-z]+)(?P<rank>[1-8]d)?:(?P<dims>[^@]*)(?:@(?P<costs>.*))?")

Pairs = Iterator[tuple[int, int]]


def grid_pairs(dims: Sequence[int], *, wrap: bool) -> Pairs:
    """Yield each pair of neighbours of a mesh (a torus when it wraps) once.

    The last dimension varies fastest; in a dimension of two the way round is no second wire.
    """
    strides = _strides(dims)
    for place in range(math.prod(dims)):
        for size, stride in zip(dims, strides, strict=True):
            at = place // stride % size
            if at + 1 < size:
                yield place, place + stride
            elif wrap and size > 2:
                yield place, place - at * stride


def _strides(dims: Sequence[int]) -> list[int]:
    return [math.prod(dims[i + 1 :]) for i in range(len(dims))]


def translations(dims: Sequence[int]) -> tuple[Permutation, ...]:
    """Return for every dimension the step by one, which wraps."""
    total = math.prod(dims)
    return tuple(
        tuple(p + ((p // stride + 1) % size - p // stride % size) * stride for p in range(total))
        for size, stride in zip(dims, _strides(dims), strict=True)
        if size > 1
    )


def reflections(dims: Sequence[int]) -> tuple[Permutation, ...]:
    """Return the point reflection and, of more than one dimension, the mirror of each."""
    total = math.prod(dims)
    mirrors = [
        tuple(p + (size - 1 - 2 * (p // stride % size)) * stride for p in range(total))
        for size, stride in zip(dims, _strides(dims), strict=True)
        if size > 1
    ]
    point = tuple(range(total - 1, -1, -1))
    return (point, *mirrors) if len(mirrors) > 1 else (point,)


def _all_pairs(dims: Sequence[int]) -> Pairs:
    return itertools.combinations(range(dims[0]), 2)


def _cube_pairs(dims: Sequence[int]) -> Pairs:
    return grid_pairs([2] * (dims[0].bit_length() - 1), wrap=False)


def _xors(dims: Sequence[int]) -> tuple[Permutation, ...]:
    bits = range(dims[0].bit_length() - 1)
    return tuple(tuple(rank ^ (1 << bit) for rank in range(dims[0])) for bit in bits)


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table of shapes.

    Parameters
    ----------
    pairs
        dims -> the pairs of ranks that a wire joins; None: all hang on one switch.
    rotations
        dims -> symmetries.
    wires
        dims -> how many pairs there are at most.
    grid
        Whether there may be several dims.
    """

    pairs: Callable[[Sequence[int]], Pairs] | None
    rotations: Callable[[Sequence[int]], tuple[Permutation, ...]]
    wires: Callable[[Sequence[int]], int]
    grid: bool = False


def _per_rank(dims: Sequence[int]) -> int:
    return len(dims) * math.prod(dims)


SHAPES: Mapping[str, Shape] = MappingProxyType({
    "ring": Shape(lambda dims: grid_pairs(dims, wrap=True), translations, _per_rank),
    "mesh": Shape(lambda dims: grid_pairs(dims, wrap=False), reflections, _per_rank, grid=True),
    "torus": Shape(lambda dims: grid_pairs(dims, wrap=True), translations, _per_rank, grid=True),
    "hypercube": Shape(_cube_pairs, _xors, lambda dims: dims[0] * dims[0].bit_length()),
    "full": Shape(_all_pairs, translations, lambda dims: dims[0] * dims[0] // 2),
    "hub": Shape(None, translations, _per_rank),
})  # fmt: skip


class ShapeRecord(FileModel):
    """A parametric shape."""

    kind: Annotated[
        Literal["ring", "mesh", "torus", "hypercube", "full", "hub"], Field(examples=["torus"])
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
    switches, edges = _expand(shape.kind, shape.dims, shape.bandwidth, shape.alpha)
    return Topology(
        record.name, math.prod(shape.dims), switches, edges, (0,) * math.prod(shape.dims),
        SHAPES[shape.kind].rotations(shape.dims), record.alpha_rule, record.local.costs(),
        record.chunk_size, record.costs,
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
    switches, edges = _expand(kind, dims, *_short_costs(match["costs"]))
    ranks = math.prod(dims)
    name = f"{kind}{match['rank'] or ''}-{match['dims']}"
    return Topology(
        name, ranks, switches, edges, (0,) * ranks, SHAPES[kind].rotations(dims)
    )  # fmt: skip


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


def _wrong_dims(kind: str, dims: Sequence[int]) -> tuple[str, str] | None:
    """Return what is wrong with the dims of a shape, and the fix."""
    if not SHAPES[kind].grid and len(dims) > 1:
        return f"a {kind} has one dimension, got {len(dims)}", "give the number of ranks"
    if not 2 <= math.prod(dims) <= MAX_RANKS or len(dims) > 8 or 0 in dims:
        return (
            f"should make 2 to {MAX_RANKS} ranks, got {'x'.join(map(str, dims[:8]))}",
            "write smaller dimensions, such as 8x8",
        )
    if kind == "hypercube" and dims[0] & (dims[0] - 1):
        return f"a hypercube has a power of two of ranks, got {dims[0]}", "write hypercube:16"
    if 2 * SHAPES[kind].wires(dims) > MAX_EDGES:
        return f"makes more than {MAX_EDGES} edges", "write smaller dimensions"
    return None


def _expand(
    kind: str, dims: Sequence[int], beta: Fraction, alpha: Time
) -> tuple[tuple[Switch, ...], tuple[Edge, ...]]:
    pairs = SHAPES[kind].pairs
    if pairs is None:
        ranks = math.prod(dims)
        half = alpha // 2
        edges = [
            edge
            for rank in range(ranks)
            for edge in (
                Edge(2 * rank, rank, ranks, half, None, beta, f"{rank}->hub"),
                Edge(2 * rank + 1, ranks, rank, alpha - half, None, beta, f"hub->{rank}"),
            )
        ]
        return (Switch("hub"),), tuple(edges)
    edges = []
    for a, b in pairs(dims):
        for (tail, head), name in zip(
            ((a, b), (b, a)), edge_names(str(a), str(b), None), strict=True
        ):
            edges.append(Edge(len(edges), tail, head, alpha, None, beta, name))
    return (), tuple(edges)
