"""Topologies with less: edges that are slower, and edges that are gone.

What is left is a plain graph. Its rotations are those that still hold, or a larger group that is
found in it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.errors import InputError
from taccl.files import shown
from taccl.topology.file import unreachable_pair
from taccl.topology.graph import Edge, EdgeId, Permutation, Topology
from taccl.topology.symmetry import free_group, is_symmetry, powers
from taccl.topology.symmetry_search import search_group

_FACTOR = re.compile(r"(?P<what>.*)=(?P<factor>[0-9]{1,9}(\.[0-9]{1,9})?)")

TWO_RANKS = re.compile(r"(\d{1,6})\s*(->|-)\s*(\d{1,6})")
"""``0->1``, or ``0-1`` for both ways."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What some edges lose.

    Parameters
    ----------
    option
        ``--edge`` or ``--link``.
    text
        The edges: a name in which ``*`` is any text, or two ranks.
    factor
        What is left of the bandwidth, below 1; 0: the edges are gone.
    """

    option: str
    text: str
    factor: Fraction


def read_losses(edges: Sequence[str], links: Sequence[str], factor: str | None) -> list[Loss]:
    """Return what ``--edge``, ``--link`` and ``--factor`` stand for.

    Parameters
    ----------
    edges, links
        ``NAME`` or ``NAME=FACTOR``, as on the command line.
    factor
        What is left of those without a factor of their own.

    Raises
    ------
    InputError
        When nothing is named, or a factor is missing, wrong, or for none of them.
    """
    named = [("--edge", text) for text in edges] + [("--link", text) for text in links]
    if not named:
        raise InputError(
            "nothing to degrade is named", field="--edge", fix="write --edge '0->1=0.5' or --link"
        )
    if factor is not None and all(_FACTOR.fullmatch(text) for _, text in named):
        raise InputError(
            f"{shown(factor)} is for nothing: all that is named has a factor of its own",
            field="--factor", fix="leave it out, or leave out the =0.5 of what it is for",
        )  # fmt: skip
    return [read_loss(option, text, factor) for option, text in named]


def read_loss(option: str, text: str, factor: str | None) -> Loss:
    """Return the loss that ``NAME`` or ``NAME=FACTOR`` stands for.

    Parameters
    ----------
    option
        ``--edge`` or ``--link``.
    text
        Its value.
    factor
        What is left where the value has no factor.

    Raises
    ------
    InputError
        When there is no factor, or none below 1.
    """
    own = _FACTOR.fullmatch(text)
    what, left = (own["what"], own["factor"]) if own else (text, factor)
    if left is None:
        raise InputError(
            f"{shown(text)} does not say what is left of the bandwidth", field=option,
            fix=f"write {option} '{text[:40]}=0.5', or --factor 0.5 for all; 0 removes",
        )  # fmt: skip
    match = _FACTOR.fullmatch(f"={left}")
    if match is None or Fraction(left) >= 1:
        raise InputError(
            f"should leave a part from 0 to below 1 of the bandwidth, got {shown(left)}",
            field=option if own else "--factor",
            fix="write 0.5 for half of it, or 0 to remove the edge",
        )
    return Loss(option, what, Fraction(left))


def degrade(topology: Topology, losses: Sequence[Loss]) -> tuple[Topology, list[str]]:
    """Return the topology with slower and without removed edges, and what there is to say of it.

    Losses of one edge multiply.

    Parameters
    ----------
    topology
        The machine.
    losses
        What is left of which edges.

    Raises
    ------
    InputError
        When there is no such edge, it has no bandwidth to lose, or a rank is cut off.
    """
    left: dict[EdgeId, Fraction] = {}
    notes = []
    for loss in losses:
        edges = _edges_of(topology, loss)
        what = f"{float(loss.factor):g} of the bandwidth of" if loss.factor else "without"
        notes.append(f"{what} {_names(topology, edges)}")
        notes += _one_way(topology, loss, edges)
        for edge in edges:
            left[edge] = left.get(edge, Fraction(1)) * loss.factor
    kept = [_slower(edge, left.get(edge.id)) for edge in topology.edges if left.get(edge.id) != 0]
    made = replace(
        topology, name=f"{topology.name}-degraded", rotations=(),
        edges=tuple(replace(edge, id=i) for i, edge in enumerate(kept)),
    )  # fmt: skip
    cut = unreachable_pair(made) if kept else (0, 1)
    if cut is not None:
        raise InputError(
            f"rank {cut[1]} can't be reached from rank {cut[0]} any more",
            field=next(loss.option for loss in losses if not loss.factor),
            fix=f"remove less of {topology.name}",
        )
    rotations = _rotations(topology, made)
    if topology.rotations and rotations != topology.rotations:
        notes.append(
            f"{len(rotations)} rotations in place of {len(topology.rotations)},"
            " as some do not hold any more"
        )
    return replace(made, rotations=rotations), notes


def _names(topology: Topology, edges: Sequence[EdgeId]) -> str:
    more = f" and {len(edges) - 4} more" if len(edges) > 4 else ""
    return ", ".join(topology.edges[edge].name for edge in edges[:4]) + more


def _one_way(topology: Topology, loss: Loss, edges: Sequence[EdgeId]) -> list[str]:
    """Return a note where names have an edge of a pair and not the one that leads back.

    A link ``0->1`` says what it means; a name such as ``s0/ib3.*`` looks like all of a NIC.
    """
    named = {topology.edges[edge].name for edge in edges}
    back = {_turned(topology, topology.edges[edge]) for edge in edges}
    kept = [edge for edge in topology.edges if edge.name in back - named]
    if loss.option != "--edge" or not kept:
        return []
    names = _names(topology, [edge.id for edge in kept])
    return [f"one way only: {names} as before; name both for both ways"]


def _turned(topology: Topology, edge: Edge) -> str:
    """Return what an edge back would be called: a NIC sends by its tx and receives by its rx."""
    turned = {"tx": "rx", "rx": "tx"}
    ends = []
    for vertex in (edge.head, edge.tail):
        stem, dot, side = topology.vertex_name(vertex).rpartition(".")
        ends.append(f"{stem}{dot}{turned.get(side, side)}")
    return "->".join(ends)


def _slower(edge: Edge, factor: Fraction | None) -> Edge:
    if factor is None or edge.beta is None:
        return edge
    return replace(edge, beta=edge.beta / factor)


def _edges_of(topology: Topology, loss: Loss) -> list[EdgeId]:
    """Return the edges that lose something; those without a bandwidth can only be removed."""
    if loss.option == "--edge":
        found = edges_called(topology, loss.text)
        problem, fix = "edge", "use names as taccl topology expand shows them; * is any text"
    else:
        found = edges_between(topology, loss.text)
        problem, fix = "link", "name two ranks that are joined: 0-1, or 0->1 for one way"
    if not found:
        raise InputError(
            f"{topology.name} has no {problem} {shown(loss.text)}", field=loss.option, fix=fix
        )
    used = [edge for edge in found if topology.edges[edge].beta is not None or not loss.factor]
    if not used:
        raise InputError(
            f"{shown(loss.text)} has no bandwidth to lose: it only adds alpha", field=loss.option,
            fix="name an edge with a bandwidth, or remove it with =0",
        )  # fmt: skip
    return used


def edges_called(topology: Topology, text: str) -> list[EdgeId]:
    """Return the edges of a name, in which ``*`` is any text.

    Parameters
    ----------
    topology
        The machine.
    text
        A name, or one with ``*``.
    """
    pieces = re.split(r"\*+", text)
    return [edge.id for edge in topology.edges if _fits(edge.name, pieces)]


def edges_between(topology: Topology, text: str) -> list[EdgeId]:
    """Return the edges of all links between two ranks: ``0-1``, or one way, ``0->1``.

    Parameters
    ----------
    topology
        The machine.
    text
        The two ranks.
    """
    match = TWO_RANKS.fullmatch(text.strip())
    if match is None:
        return []
    src, dst = int(match[1]), int(match[3])
    if max(src, dst) >= topology.num_ranks:
        return []
    ways = [(src, dst)] if match[2] == "->" else [(src, dst), (dst, src)]
    links = [link for way in ways for link in topology.links_between(*way)]
    return list(dict.fromkeys(e for link in links for e in topology.links.edges_of(link)))


def _fits(name: str, pieces: Sequence[str]) -> bool:
    """Tell whether a name is made of pieces with any text between them, in linear time."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return name == first
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in pieces[1:-1]:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _rotations(before: Topology, after: Topology) -> tuple[Permutation, ...]:
    """Return the rotations that still hold, or as powers, or of a larger group that is found."""
    held = (
        next((power for power in powers(rotation) if is_symmetry(after, power)), None)
        for rotation in before.rotations
    )
    kept = tuple(dict.fromkeys(power for power in held if power is not None))
    if kept == before.rotations:
        return kept
    found = search_group(after)
    return found.generators if len(found) > len(free_group(after, kept)) else kept
