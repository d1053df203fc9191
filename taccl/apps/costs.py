"""Other costs for a topology: those of its edges by class, and of the work inside ranks.

A class is *inside* servers or *between* them; an edge that only messages between servers cross
belongs to the second. Alphas and bandwidths of a class change by one factor, so that a doubled
wire stays twice as fast. A class whose alphas are all 0 gets one added instead: a whole one for
each wire, half of it for each edge of a switch. What :func:`costly` does to the edges,
:func:`costly_document` does to the fields of a file, so that servers and fabric stay what they are.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from taccl.topology.core_form import topology_document
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import (
    MAX_BETA,
    MAX_TIME,
    MIN_BETA,
    Time,
    beta_text,
    exact_us,
    parse_beta,
    parse_time,
)

Fields = dict[str, object]

INSIDE, BETWEEN = "inside servers", "between servers"
CLASSES = (INSIDE, BETWEEN)


@dataclass(frozen=True, slots=True)
class EdgeCosts:
    """How the costs of a class of edges change.

    Each alpha (and overhead) is multiplied with `alpha`, each beta with `beta`; `added` are
    picoseconds of alpha for a whole crossing, where all alphas are 0.
    """

    alpha: Fraction = Fraction(1)
    beta: Fraction = Fraction(1)
    added: Time = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """How the costs of a topology change: of the edges of each class, and what local work costs."""

    local: LocalCosts
    edges: Mapping[str, EdgeCosts] = field(default_factory=dict)

    def of(self, name: str) -> EdgeCosts:
        """Return the change of a class."""
        return self.edges.get(name, EdgeCosts())


def classes_of(topology: Topology) -> tuple[str, ...]:
    """Return the class of each edge."""
    table, server = topology.links, np.array(topology.server_of)
    owner = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    inside = np.zeros(len(topology.edges), np.bool_)
    used = inside.copy()
    same = server[table.src] == server[table.dst]
    used[table.edge_ids] = True
    inside[table.edge_ids[same[owner]]] = True
    return tuple(
        BETWEEN if crossed and not within else INSIDE
        for crossed, within in zip(used.tolist(), inside.tolist(), strict=True)
    )


def without_alpha(topology: Topology, classes: Sequence[str]) -> frozenset[str]:
    """Return which `classes` of the edges of a `topology` have no edge with an alpha."""
    pairs = zip(classes, topology.edges, strict=True)
    return frozenset(classes) - {name for name, edge in pairs if edge.alpha}


def _crossings(topology: Topology, classes: Sequence[str]) -> Iterator[Fraction]:
    """Yield which part of an added alpha each edge gets: of a fabric only the fabric's edges."""
    first = topology.num_ranks
    across = {first + i for i, switch in enumerate(topology.switches) if switch.across_servers}
    for edge, name in zip(topology.edges, classes, strict=True):
        ends = (edge.tail, edge.head)
        if edge.beta is None or (name == BETWEEN and across and across.isdisjoint(ends)):
            yield Fraction(0)
        else:
            direct = (ends[0] >= first) == (ends[1] >= first) and across.isdisjoint(ends)
            yield Fraction(1) if direct else Fraction(1, 2)


def costly(topology: Topology, classes: Sequence[str], costs: Costs) -> Topology:
    """Return a `topology`, whose edges are of these `classes`, with other `costs`."""
    edges = []
    parts = _crossings(topology, classes)
    for edge, name, part in zip(topology.edges, classes, parts, strict=True):
        change = costs.of(name)
        alpha = round(edge.alpha * change.alpha) + round(change.added * part)
        overhead = edge.overhead and min(round(edge.overhead * change.alpha), alpha)
        beta = edge.beta and edge.beta * change.beta
        edges.append(replace(edge, alpha=alpha, overhead=overhead, beta=beta))
    return topology.with_costs(edges, costs.local)


def costly_document(
    document: Mapping[str, object], topology: Topology, costs: Costs, name: str
) -> dict[str, object]:
    """Return a topology file with other `costs`, in the form of servers where it has it.

    The `document` is the file that `topology` is from, with the costs of the file; in another form
    it becomes a graph. The new one is called `name`.
    """
    if not document.keys() & {"node", "nodes"}:
        graph = topology_document(costly(topology, classes_of(topology), costs))
        return {**graph, "name": name}
    made: dict[str, object] = {**copy.deepcopy(dict(document)), "name": name}
    bare = without_alpha(topology, classes_of(topology))
    for part in _parts(made):
        change = costs.of(part.name)
        if change == EdgeCosts():
            continue
        for key in part.keys:
            value = part.fields.get(key)
            if value not in (None, "none"):
                part.fields[key] = (
                    rate_text(parse_beta(value) * change.beta)
                    if key == "bandwidth"
                    else time_text(round(parse_time(value) * change.alpha))
                )
        if part.crossing and part.name in bare:
            part.fields["alpha"] = time_text(change.added)
    rates = {"copy_bandwidth": costs.local.copy_beta, "reduce_bandwidth": costs.local.reduce_beta}
    local: Fields = {key: rate_text(beta) for key, beta in rates.items() if beta}
    if costs.local.launch:
        local["launch"] = time_text(costs.local.launch)
    if local or "local" in made:
        made["local"] = local
    return made


_ALL = ("alpha", "overhead", "bandwidth")


@dataclass(frozen=True, slots=True)
class _Part:
    """A record of a file that has costs, `fields`, and the `name` of the class of its edges.

    The fields that are costs are `keys`. A `crossing` gets an alpha where the class has none.
    """

    fields: Fields
    name: str
    keys: Sequence[str] = _ALL
    crossing: bool = True


def _parts(document: Fields) -> Iterator[_Part]:
    nodes = document.get("nodes") or [document.get("node")]
    for node in nodes if isinstance(nodes, list) else ():
        for fields in _listed(node, "wires", "switches"):
            yield _Part(fields, INSIDE)
        for nic in _listed(node, "nics"):
            yield _Part(nic, BETWEEN, ("bandwidth",), crossing=False)
            yield from (_Part(pcie, BETWEEN, crossing=False) for pcie in _nested(nic, "pcie"))
    for fabric in _nested(document, "fabric"):
        yield _Part(fabric, BETWEEN, ("alpha", "overhead"))
        yield from (_Part(uplink, BETWEEN) for uplink in _nested(fabric, "spine", "uplink"))


def _listed(node: object, *names: str) -> Iterator[Fields]:
    for name in names:
        entries = node.get(name) if isinstance(node, dict) else None
        yield from (entry for entry in entries or () if isinstance(entry, dict))


def _nested(fields: Fields, *names: str) -> Iterator[Fields]:
    """Yield the records below some names; one that is only a bandwidth becomes a record."""
    for name in names:
        value = fields.get(name)
        if value is not None and not isinstance(value, dict):
            value = fields[name] = {"bandwidth": value}
        if isinstance(value, dict):
            yield value


def time_text(time: Time) -> str:
    """Return a time as a file says it: ``0.7us``, exactly."""
    return f"{exact_us(min(time, MAX_TIME))}us"


def rate_text(beta: Fraction) -> str:
    """Return a beta as a bandwidth of six digits."""
    beta = min(max(beta, MIN_BETA), MAX_BETA)
    text = f"{float(1000 / beta):.6g}GB/s"
    return text if "e" not in text else beta_text(beta)
