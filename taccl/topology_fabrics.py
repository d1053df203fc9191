"""What joins servers: one row of :data:`FABRICS` for each kind, and the builder of the graph."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictFloat, StrictInt, model_validator

from taccl.files import FileModel
from taccl.files.fields import BetaOrNone, Count, Duration, refuse
from taccl.topology import Edge, Permutation, Switch
from taccl.topology_graph import edge_names
from taccl.topology_grids import grid_pairs, reflections, translations
from taccl.units import Time

MAX_SERVERS = 8192


def check_overhead(alpha: Time, overhead: Time | None) -> None:
    """Refuse an overhead that is more than the latency it is a part of."""
    if overhead is not None and overhead > alpha:
        raise refuse(
            f"overhead {overhead}ps is more than alpha {alpha}ps",
            "give an overhead of at most alpha",
        )


class Crossing(FileModel):
    """What one crossing of a wire or switch costs."""

    bandwidth: Annotated[BetaOrNone, Field(examples=["25GB/s or 46us/MB"])] = None
    alpha: Annotated[Duration, Field(examples=["0.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.2us"])] = None

    @model_validator(mode="after")
    def _overhead_is_part_of_alpha(self) -> Self:
        check_overhead(self.alpha, self.overhead)
        return self

    def half(self, part: int) -> "Crossing":
        """Return the first (0) or second (1) half of a crossing; an odd ps goes to the second."""
        overhead = None if self.overhead is None else (self.overhead + part) // 2
        return Crossing.model_construct(
            bandwidth=self.bandwidth, alpha=(self.alpha + part) // 2, overhead=overhead
        )


def _as_crossing(value: object) -> object:
    return value if isinstance(value, dict) or value is None else {"bandwidth": value}


Uplink = Annotated[Crossing | None, BeforeValidator(_as_crossing)]
"""A crossing, or only its bandwidth."""


class FabricRecord(FileModel):
    """How the servers are joined; the alpha is that of one whole crossing."""

    kind: Annotated[
        Literal["switch", "rail", "leaf-spine", "torus", "mesh", "none"],
        Field(examples=["switch"]),
    ]
    alpha: Annotated[Duration, Field(examples=["1.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.5us"])] = None
    spine: Annotated[Uplink, Field(examples=["{bandwidth: 100GB/s, alpha: 1us}"])] = None
    leaves: Annotated[StrictInt | None, Field(ge=1, le=MAX_SERVERS, examples=[2])] = None
    uplink: Annotated[Uplink, Field(examples=["100GB/s"])] = None
    oversubscription: Annotated[
        StrictInt | StrictFloat | None, Field(ge=1, le=1000, examples=[2])
    ] = None
    dims: Annotated[list[Count] | None, Field(min_length=1, max_length=8, examples=["[2, 2]"])] = (
        None
    )

    @model_validator(mode="after")
    def _overhead_is_part_of_alpha(self) -> Self:
        check_overhead(self.alpha, self.overhead)
        return self

    def crossing(self, beta: Fraction) -> Crossing:
        """Return the whole crossing from a NIC."""
        return Crossing.model_construct(bandwidth=beta, alpha=self.alpha, overhead=self.overhead)


@dataclass(eq=False)
class Builder:
    """The graph as far as it is built.

    Parameters
    ----------
    num_ranks
        Vertices that are ranks; switches follow.
    switches, edges
        In order.
    nics
        For every server its NICs: vertices tx and rx, and beta.
    """

    num_ranks: int
    switches: list[Switch] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    nics: list[list[tuple[int, int, Fraction]]] = field(default_factory=list)

    def switch(
        self, name: str, *, across: bool = False, multicast: bool = False, reduce: bool = False
    ) -> int:
        """Add a switch and return its vertex."""
        self.switches.append(Switch(name, multicast, reduce, across))
        return self.num_ranks + len(self.switches) - 1

    def _name(self, vertex: int) -> str:
        ranks = self.num_ranks
        return str(vertex) if vertex < ranks else self.switches[vertex - ranks].name

    def edge(self, tail: int, head: int, cost: Crossing, name: str | None = None) -> None:
        """Add one edge."""
        name = name or edge_names(self._name(tail), self._name(head), None)[0]
        self.edges.append(
            Edge(len(self.edges), tail, head, cost.alpha, cost.overhead, cost.bandwidth, name)
        )

    def wire(self, a: int, b: int, cost: Crossing, name: str | None, *, both: bool) -> None:
        """Add an edge and, with ``both``, its reverse."""
        forth, back = edge_names(self._name(a), self._name(b), name)
        self.edge(a, b, cost, forth)
        if both:
            self.edge(b, a, cost, back)

    def port(self, tail: int, head: int, switch: int, cost: Crossing) -> None:
        """Join ``tail`` to a switch and the switch to ``head``, half a crossing each."""
        self.edge(tail, switch, cost.half(0))
        self.edge(switch, head, cost.half(1))


Problem = tuple[str, str, str] | None
NONE: Mapping[int, Fraction] = MappingProxyType({})


def _join_switch(builder: Builder, fabric: FabricRecord) -> None:
    vertex = builder.switch("fabric", across=True)
    for ports in builder.nics:
        for tx, rx, beta in ports:
            builder.port(tx, rx, vertex, fabric.crossing(beta))


def _join_rail(builder: Builder, fabric: FabricRecord) -> None:
    """Join NIC k of all servers by switch k; the spine, if any, joins those switches."""
    rails = [builder.switch(f"rail{k}", across=True) for k in range(max(map(len, builder.nics)))]
    for ports in builder.nics:
        for rail, (tx, rx, beta) in zip(rails, ports, strict=False):
            builder.port(tx, rx, rail, fabric.crossing(beta))
    if fabric.spine is not None and len(rails) > 1:
        _join_spine(builder, rails, fabric.spine)


def _join_spine(
    builder: Builder, lower: Sequence[int], uplink: Crossing, betas: Mapping[int, Fraction] = NONE
) -> None:
    """Join switches by a spine, over uplinks that may have bandwidths of their own."""
    spine = builder.switch("spine", across=True)
    for vertex in lower:
        own = {"bandwidth": betas[vertex]} if vertex in betas else {}
        builder.port(vertex, vertex, spine, uplink.model_copy(update=own))


def _join_leaves(builder: Builder, fabric: FabricRecord) -> None:
    """Spread the servers evenly over leaves, in order; one spine has the pooled bandwidth."""
    count, leaves = len(builder.nics), fabric.leaves or 1
    vertices = [builder.switch(f"leaf{k}", across=True) for k in range(leaves)]
    rates = dict.fromkeys(vertices, Fraction(0))
    for server, ports in enumerate(builder.nics):
        for tx, rx, beta in ports:
            leaf = vertices[server * leaves // count]
            rates[leaf] += 1 / beta
            builder.port(tx, rx, leaf, fabric.crossing(beta))
    if leaves > 1:
        over = fabric.oversubscription
        betas = NONE if over is None else {
            leaf: Fraction(str(over)) / rate for leaf, rate in rates.items() if rate
        }  # fmt: skip
        _join_spine(builder, vertices, fabric.uplink or Crossing(), betas)


def _join_grid(builder: Builder, fabric: FabricRecord) -> None:
    """Join NIC i of every server directly to NIC i of each neighbour."""
    for a, b in grid_pairs(fabric.dims or (), wrap=fabric.kind == "torus"):
        for one, other in zip(builder.nics[a], builder.nics[b], strict=False):
            cost = fabric.crossing(max(one[2], other[2]))
            builder.edge(one[0], other[1], cost)
            builder.edge(other[0], one[1], cost)


def _join_nothing(builder: Builder, fabric: FabricRecord) -> None:
    """Leave the servers apart."""


def _all_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del fabric
    return translations([count])


def _leaf_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    leaves = fabric.leaves or 1
    return () if count % leaves else translations([leaves, count // leaves])


def _grid_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del count
    moves = translations if fabric.kind == "torus" else reflections
    return moves(fabric.dims or ())


def _no_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del fabric, count
    return ()


def _no_problem(fabric: FabricRecord, count: int) -> Problem:
    del fabric, count
    return None


def _leaf_problem(fabric: FabricRecord, count: int) -> Problem:
    if (fabric.leaves or 1) > count:
        return f"{fabric.leaves} leaves for {count} servers", "leaves", "use fewer leaves"
    if fabric.oversubscription is None:
        if fabric.uplink is None:
            fix = "write uplink: 100GB/s, or oversubscription: 2"
            return "is missing for a leaf-spine fabric", "uplink", fix
    elif fabric.uplink is not None and fabric.uplink.bandwidth is not None:
        problem = "is given beside the bandwidth of the uplink, which it stands for"
        return problem, "oversubscription", "remove one of them"
    return None


def _grid_problem(fabric: FabricRecord, count: int) -> Problem:
    made = math.prod(fabric.dims or ())
    if made != count:
        return f"dims make {made} servers, there are {count}", "dims", "make the product fit count"
    return None


@dataclass(frozen=True, slots=True)
class Fabric:
    """A row of the table of fabrics.

    Parameters
    ----------
    join
        Adds switches and edges between the NICs of a builder.
    rotations
        (fabric, count) -> symmetries, as permutations of equal servers.
    problem
        (fabric, count) -> problem, field, fix; or None.
    needs, takes
        Fields that must be, and may be, given.
    """

    join: Callable[[Builder, FabricRecord], None]
    rotations: Callable[[FabricRecord, int], tuple[Permutation, ...]]
    problem: Callable[[FabricRecord, int], Problem] = _no_problem
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


FABRICS: Mapping[str, Fabric] = MappingProxyType({
    "switch": Fabric(_join_switch, _all_turns),
    "rail": Fabric(_join_rail, _all_turns, takes=("spine",)),
    "leaf-spine": Fabric(
        _join_leaves, _leaf_turns, _leaf_problem, ("leaves",), ("uplink", "oversubscription")
    ),
    "torus": Fabric(_join_grid, _grid_turns, _grid_problem, needs=("dims",)),
    "mesh": Fabric(_join_grid, _grid_turns, _grid_problem, needs=("dims",)),
    "none": Fabric(_join_nothing, _no_turns),
})  # fmt: skip
