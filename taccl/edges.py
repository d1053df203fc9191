"""The edges of a topology in columns, for code that looks at all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fractions import Fraction

    from taccl.topology import Edge


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """All edges, one entry each in order of id.

    Parameters
    ----------
    tail, head
        int64 vertices.
    cost
        int64: equal numbers for equal (alpha, overhead, beta), where None is a value of its own.
    is_resource
        bool: whether the edge has a beta.
    """

    tail: NDArray[np.int64]
    head: NDArray[np.int64]
    cost: NDArray[np.int64]
    is_resource: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of edges."""
        return len(self.tail)


def edge_table(edges: Sequence["Edge"]) -> EdgeTable:
    """Return the columns of some edges."""
    # Fractions are slow to hash, and most edges share theirs: number the objects first.
    number: dict[Fraction | None, int] = {}
    by_object = {id(edge.beta): edge.beta for edge in edges}
    beta_of = {key: number.setdefault(beta, len(number)) for key, beta in by_object.items()}
    costs: dict[tuple[int, int | None, int], int] = {}
    cost = [
        costs.setdefault((edge.alpha, edge.overhead, beta_of[id(edge.beta)]), len(costs))
        for edge in edges
    ]
    return EdgeTable(
        np.array([edge.tail for edge in edges], dtype=np.int64),
        np.array([edge.head for edge in edges], dtype=np.int64),
        np.array(cost, dtype=np.int64),
        np.array([edge.beta is not None for edge in edges], dtype=np.bool_),
    )
