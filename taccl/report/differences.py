"""What two topologies have not in common: facts side by side, then edges and pairs of ranks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.bounds import POINT_TO_POINT, any_bounds, best
from taccl.errors import InputError
from taccl.report.text import aligned, us
from taccl.topology.file import topology_document
from taccl.topology.graph import Topology, whole
from taccl.topology.structure import gigabytes, rank_rates, slowest_edges, unlike
from taccl.topology.symmetry import make_group
from taccl.units import Time, counted, format_time, microseconds

BYTES = 10**6
"""Of each rank: what it gathers to all others, and what it has for all others."""

MAX_BOUND_RANKS = 256
"""Ranks up to which bounds take seconds."""

SHOWN = 8
"""Kinds of differences of one sort that the text names."""

Cost = tuple[Fraction | None, Time, Time | None]
"""Beta, alpha and overhead of an edge."""


@dataclass(frozen=True, slots=True)
class Change:
    """An edge, by the name that both give it, with other ends or costs; None: it is not there."""

    name: str
    before: tuple[str, str, Cost] | None
    after: tuple[str, str, Cost] | None


@dataclass(frozen=True, eq=False)
class Differences:
    """How a second topology differs from a first; `same`: in nothing but the names.

    By what they are, `facts` have the values of both. The `edges` that differ come in order of the
    first, then of the second. Pairs of ranks have links in the second only, `added`, in the first
    only, `removed`, or other links, `changed`.
    """

    names: tuple[str, str]
    same: bool
    facts: Mapping[str, tuple[object, object]]
    edges: tuple[Change, ...]
    added: tuple[tuple[int, int], ...]
    removed: tuple[tuple[int, int], ...]
    changed: tuple[tuple[int, int], ...]


def differences(first: Topology, second: Topology) -> Differences:
    """Compare the topologies `first` and `second`: edges by name, links by pair of ranks."""
    both = (first, second)
    facts = [_facts(topology) for topology in both]
    nameless = [{**topology_document(topology), "name": ""} for topology in both]
    edges = [
        {
            e.name: (t.vertex_name(e.tail), t.vertex_name(e.head), (e.beta, e.alpha, e.overhead))
            for e in t.edges
        }
        for t in both
    ]
    changes = (Change(name, *(own.get(name) for own in edges)) for name in edges[0] | edges[1])
    added, removed, changed = _pairs(first, second)
    return Differences(
        (first.name, second.name), nameless[0] == nameless[1],
        {what: (value, facts[1][what]) for what, value in facts[0].items()},
        tuple(change for change in changes if change.before != change.after),
        added, removed, changed,
    )  # fmt: skip


def _facts(topology: Topology) -> dict[str, object]:
    sizes = Counter(Counter(topology.server_of).values())
    sends, receives = (sorted({float(min(r)), float(max(r))}) for r in rank_rates(topology))
    try:
        symmetries = len(make_group(topology, topology.rotations))
    except InputError:  # too many, or the rotations are none
        symmetries = None
    facts: dict[str, object] = {
        "ranks": topology.num_ranks,
        "servers": ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())),
        "switches": len(topology.switches),
        "edges": len(topology.edges),
        "links": len(topology.links),
        "alpha_rule": topology.rules_stated,
        "symmetries": symmetries,
        "chunk_size": None if topology.chunk_size is None else float(topology.chunk_size),
        "send_gbps": sends,
        "receive_gbps": receives,
    }
    for name, size in (("allgather", topology.num_ranks * BYTES), ("alltoall", BYTES)):
        facts[f"{name}_bound_us"] = (
            microseconds(best(any_bounds(whole(topology), name, size, world=POINT_TO_POINT)).time)
            if topology.num_ranks <= MAX_BOUND_RANKS
            else None
        )
    return facts


Pairs = tuple[tuple[int, int], ...]


def _pairs(first: Topology, second: Topology) -> tuple[Pairs, Pairs, Pairs]:
    """Return the pairs with links in the second only, in the first only, and with other links."""
    size = max(first.num_ranks, second.num_ranks)
    slowest = [slowest_edges(topology) for topology in (first, second)]
    betas = sorted({beta for _, own in slowest for beta in own})
    place = {beta: number for number, beta in enumerate(betas)}
    rows = []
    for topology, (edges, own) in zip((first, second), slowest, strict=True):
        # Betas are counted in a table that both share; its last entry stands for FREE, which is -1.
        shared = np.array([*(place[beta] for beta in own), -1], dtype=np.int64)
        table = topology.links
        key = table.src.astype(np.int64) * size + table.dst
        rows.append(np.stack([key, shared[edges], table.alpha, table.overhead]))
    one, other = rows
    found = np.setdiff1d(other[0], one[0]), np.setdiff1d(one[0], other[0]), unlike(one, other)
    added, removed, changed = (tuple(divmod(key, size) for key in keys.tolist()) for keys in found)
    return added, removed, changed


def differences_fields(found: Differences) -> dict[str, object]:
    """Return what ``topology diff --json`` prints."""
    sorts = {
        "added": [c for c in found.edges if c.before is None],
        "removed": [c for c in found.edges if c.after is None],
        "changed": [c for c in found.edges if c.before is not None and c.after is not None],
    }
    return {
        "a": found.names[0],
        "b": found.names[1],
        "same": found.same,
        "facts": {what: {"a": a, "b": b} for what, (a, b) in found.facts.items()},
        "edges": {
            sort: [
                {
                    "name": change.name,
                    "a": _edge_fields(change.before),
                    "b": _edge_fields(change.after),
                }
                for change in each
            ]
            for sort, each in sorts.items()
        },
        "links": {
            "added": [list(pair) for pair in found.added],
            "removed": [list(pair) for pair in found.removed],
            "changed": [list(pair) for pair in found.changed],
        },
    }


def _edge_fields(edge: tuple[str, str, Cost] | None) -> dict[str, object] | None:
    if edge is None:
        return None
    tail, head, (beta, alpha, overhead) = edge
    return {
        "from": tail, "to": head,
        "bandwidth_gbps": None if beta is None else float(gigabytes(beta)),
        "alpha_us": microseconds(alpha),
        "overhead_us": us(overhead),
    }  # fmt: skip


def differences_text(found: Differences) -> str:
    """Return facts side by side, and the differences by kind."""
    if found.same:
        return "the same" if found.names[0] == found.names[1] else "the same but for the name"
    rows = [("", *found.names)]
    for what, values in found.facts.items():
        a, b = map(_shown, values)
        rows.append((_LABELS.get(what, what), a, b if a == b else f"{b}  <- differs"))
    lines = list(aligned(rows, str.ljust))
    kinds = Counter(_kind(change) for change in found.edges)
    names = {_kind(change): change.name for change in reversed(found.edges)}
    lines += [f"{counted(n, 'edge')} {kind}, such as {names[kind]}"
              for kind, n in kinds.most_common(SHOWN)]  # fmt: skip
    if len(kinds) > SHOWN:
        lines.append(f"{len(kinds) - SHOWN} more kinds of edges that differ: see --json")
    for sort, pairs in (
        ("only in the second", found.added), ("only in the first", found.removed),
        ("with other bandwidth, alpha or number", found.changed),
    ):  # fmt: skip
        if pairs:
            lines.append(f"links of {counted(len(pairs), 'pair')} {sort}, such as"
                         f" {pairs[0][0]} -> {pairs[0][1]}")  # fmt: skip
    if not found.edges and all(a == b for a, b in found.facts.values()):
        lines.append("they differ in what switches can do, declared rotations or local costs only")
    return "\n".join(lines)


_LABELS = {
    "alpha_rule": "alpha rule", "chunk_size": "chunk size (bytes)",
    "send_gbps": "a rank sends (GB/s)", "receive_gbps": "a rank receives (GB/s)",
    "allgather_bound_us": "allgather of 1MB a rank: at least (us)",
    "alltoall_bound_us": "alltoall of 1MB a rank: at least (us)",
}  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " to ".join(f"{number:.6g}" for number in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def _kind(change: Change) -> str:
    before, after = change.before, change.after
    if before is not None and after is not None:
        other_ends = before[:2] != after[:2]
        changed = f"changed: {_cost(before[2])} -> {_cost(after[2])}"
        return "with other ends" if other_ends else changed
    return f"gone: {_cost(before[2])}" if before else f"added: {_cost(after[2])}" if after else ""


def _cost(cost: Cost) -> str:
    beta, alpha, overhead = cost
    rate = "no resource" if beta is None else f"{float(gigabytes(beta)):.6g} GB/s"
    own = "" if overhead is None else f", overhead {format_time(overhead)}"
    return f"{rate}, {format_time(alpha)}{own}"
