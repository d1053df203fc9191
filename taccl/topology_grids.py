"""Grids of places: which are neighbours, and the moves that keep a grid as it is."""

import math
from collections.abc import Iterator, Sequence

from taccl.topology import Permutation

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


def translations(
    dims: Sequence[int], along: Sequence[int] | None = None
) -> tuple[Permutation, ...]:
    """Return for every dimension, or for those asked for, the step by one, which wraps."""
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
