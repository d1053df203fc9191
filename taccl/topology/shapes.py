"""Parametric topologies, and their short form on the command line: ``torus2d:8x8@25GB/s,1us``.

Rings, meshes, tori, hypercubes and complete graphs are ranks joined by wires; hubs, leaf-spines,
fat-trees and dragonflies are in :mod:`taccl.topology.shapes`.

Grids of places: which are neighbours, and the moves that keep a grid as it is.

Shapes of ranks and switches: the hub, the leaf-spine, the fat-tree and the dragonfly.

Every cable is an edge in each direction; equal cables side by side are one edge with the bandwidth
of all, as the spines of the server form are. One crossing of a switch takes alpha, half on each of
its two edges (an odd picosecond on the second), so a cable between two switches takes one alpha.

References
----------
M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008, section 3 (fat-tree of k pods). J. Kim, W. Dally, S. Scott, D. Abts,
"Technology-driven, highly-scalable dragonfly topology", ISCA 2008, section 3.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model
from taccl.files.model import MAX_RANKS, Beta, Count, Duration
from taccl.topology.core_form import MAX_EDGES, TopologyHeader, edge_names
from taccl.topology.graph import Edge, Permutation, Switch, Topology
from taccl.units import Time, parse_beta, parse_time

Pairs = Iterator[tuple[int, int]]


def grid_pairs(dims: Sequence[int], *, wrap: bool) -> Pairs:
    """Yield each pair of neighbours of a mesh (a torus when it wraps) once.

    The last dimension varies fastest; in a dimension of two the way round is no second wire.

    Parameters
    ----------
    dims
        Ranks along each dimension.
    wrap
        Whether the ends of a dimension are joined.
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


def translations(
    dims: Sequence[int], along: Sequence[int] | None = None
) -> tuple[Permutation, ...]:
    """Return for every dimension, or for those asked for, the step by one, which wraps.

    Parameters
    ----------
    dims
        Ranks along each dimension.
    along
        Numbers of dimensions.
    """
    total, strides = math.prod(dims), _strides(dims)
    asked = range(len(dims)) if along is None else along
    return tuple(
        tuple(p + ((p // stride + 1) % size - p // stride % size) * stride for p in range(total))
        for size, stride in ((dims[i], strides[i]) for i in asked)
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


Dims = Sequence[int]
Network = tuple[tuple[Switch, ...], tuple[Edge, ...]]


def _network(
    ranks: int, names: Sequence[str], cables: Iterable[tuple[int, int, Fraction]], alpha: Time
) -> Network:
    """Return switches and edges; a cable is two vertices and its beta."""
    half = alpha // 2
    edges: list[Edge] = []
    for a, b, beta in cables:
        first, second = (str(v) if v < ranks else names[v - ranks] for v in (a, b))
        both = edge_names(first, second, None)
        for (tail, head), name in zip(((a, b), (b, a)), both, strict=True):
            late = (half if head >= ranks else 0) + (alpha - half if tail >= ranks else 0)
            edges.append(Edge(len(edges), tail, head, late, None, beta, name))
    return tuple(Switch(name) for name in names), tuple(edges)


def hub(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return ranks on one switch.

    Parameters
    ----------
    dims
        The number of ranks.
    beta
        Picoseconds a byte of a cable.
    alpha
        Picoseconds of a cable between switches; half of it is on one to a rank.
    """
    (ranks,) = dims
    return _network(ranks, ["hub"], ((rank, ranks, beta) for rank in range(ranks)), alpha)


def leaf_spine(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return leaves of so many ranks, and a spine that pools all spine switches.

    Parameters
    ----------
    dims
        Leaves, ranks of a leaf and, if it is not 1, the oversubscription: what the ranks of a leaf
        can send over what the leaf can send to the spine.
    beta
        Picoseconds a byte of a cable.
    alpha
        Picoseconds of a cable between switches; half of it is on one to a rank.
    """
    leaves, per_leaf, over = (*dims, 1)[:3]
    ranks = leaves * per_leaf
    names = [f"leaf{leaf}" for leaf in range(leaves)] + ["spine"] * (leaves > 1)
    cables = [(rank, ranks + rank // per_leaf, beta) for rank in range(ranks)]
    if leaves > 1:
        uplink = beta * over / per_leaf
        cables += [(ranks + leaf, ranks + leaves, uplink) for leaf in range(leaves)]
    return _network(ranks, names, cables, alpha)


def leaf_spine_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the steps from leaf to leaf, and inside every leaf."""
    return translations(dims[:2])


def fat_tree(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return the fat-tree of k-port switches: k pods of k/2 edge switches of k/2 ranks.

    The k/2 aggregation switches of a pod are one vertex, and so are the (k/2)^2 core switches.

    Parameters
    ----------
    dims
        The number k of ports.
    beta
        Picoseconds a byte of a cable.
    alpha
        Picoseconds of a cable between switches; half of it is on one to a rank.
    """
    (k,) = dims
    half = k // 2
    edge_switches = k * half
    ranks = edge_switches * half
    names = [f"p{n // half}/edge{n % half}" for n in range(edge_switches)]
    names += [f"p{pod}/agg" for pod in range(k)] + ["core"]
    aggregation = ranks + edge_switches
    cables = [(rank, ranks + rank // half, beta) for rank in range(ranks)]
    cables += [(ranks + n, aggregation + n // half, beta / half) for n in range(edge_switches)]
    cables += [(aggregation + pod, aggregation + k, beta / half**2) for pod in range(k)]
    return _network(ranks, names, cables, alpha)


def fat_tree_ranks(dims: Dims) -> int:
    """Return k^3 / 4."""
    return dims[0] ** 3 // 4


def fat_tree_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the steps from pod to pod, from edge switch to edge switch, and inside each."""
    return translations([dims[0], dims[0] // 2, dims[0] // 2])


def dragonfly(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return groups of fully joined routers, one cable between each two groups.

    The cable from group i to group i + d is on router (d - 1) // h of group i, h being the cables
    of a router that lead to other groups: so all groups look alike.

    Parameters
    ----------
    dims
        Groups g, routers of a group a and ranks of a router p. Balanced is a = 2p = 2h, g = ah + 1.
    beta
        Picoseconds a byte of a cable.
    alpha
        Picoseconds of a cable between switches; half of it is on one to a rank.
    """
    groups, routers, per_router = dims
    ranks = groups * routers * per_router
    names = [f"g{n // routers}/r{n % routers}" for n in range(groups * routers)]
    cables = [(rank, ranks + rank // per_router, beta) for rank in range(ranks)]
    cables += [(ranks + a, ranks + b, beta) for a, b in _router_pairs(groups, routers)]
    return _network(ranks, names, cables, alpha)


def _router_pairs(groups: int, routers: int) -> Iterator[tuple[int, int]]:
    for group in range(groups):
        first = group * routers
        for router in range(routers):
            yield from ((first + router, first + other) for other in range(router + 1, routers))
    each = -(-(groups - 1) // routers)
    for group in range(groups):
        for other in range(group + 1, groups):
            ahead, back = other - group - 1, groups - (other - group) - 1
            yield group * routers + ahead // each, other * routers + back // each


def dragonfly_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the step from group to group, and that inside every router."""
    return translations(dims, along=(0, 2))


def dragonfly_wires(dims: Dims) -> int:
    """Return how many cables a dragonfly has."""
    groups, routers, per_router = dims
    return groups * (routers * (2 * per_router + routers - 1) + groups - 1) // 2


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
    "hub": Shape(hub, translations, _per_rank),
    "leaf-spine": Shape(
        leaf_spine, leaf_spine_turns, _per_rank,
        lambda dims: dims[0] * dims[1], 2, 3, "leaves x ranks of a leaf [x oversubscription]",
    ),
    "fat-tree": Shape(
        fat_tree, fat_tree_turns, lambda dims: 2 * fat_tree_ranks(dims),
        fat_tree_ranks, what="the ports of a switch",
    ),
    "dragonfly": Shape(
        dragonfly, dragonfly_turns, dragonfly_wires,
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
