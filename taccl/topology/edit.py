"""Topologies with less: edges that are slower, edges that are gone, and the machine of a group.

What is left is a plain graph. Its rotations are those that still hold, or a larger group that is
found in it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from taccl.collectives import check_members
from taccl.collectives.groups import relays_of
from taccl.errors import InputError, NoScheduleError
from taccl.files import shown
from taccl.topology.file import unreachable_pair
from taccl.topology.graph import EdgeId, Rank, Topology
from taccl.topology.symmetry import free_group, is_symmetry, kept_powers, search_group

_FACTOR = re.compile(r"(?P<what>.*)=(?P<factor>[0-9]{1,9}(\.[0-9]{1,9})?)")

TWO_RANKS = re.compile(r"(\d{1,6})\s*(->|-)\s*(\d{1,6})")
"""``0->1``, or ``0-1`` for both ways."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What some edges lose.

    `option` is ``--edge`` or ``--link``, and `text` names the edges: a name in which ``*`` is any
    text, or two ranks. `factor` is what is left of the bandwidth, below 1; 0: the edges are gone.
    """

    option: str
    text: str
    factor: Fraction


def read_losses(edges: Sequence[str], links: Sequence[str], factor: str | None) -> list[Loss]:
    """Return what ``--edge``, ``--link`` and ``--factor`` stand for.

    ``edges`` and ``links`` are ``NAME`` or ``NAME=FACTOR`` each; ``factor`` is what is left of
    those without a factor of their own.

    Raises InputError when nothing is named, or a factor is missing, wrong, or for none of them.
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
    """Return the loss that a ``text``, ``NAME`` or ``NAME=FACTOR``, stands for.

    ``option`` is ``--edge`` or ``--link``; ``factor`` is what is left where the text has none.

    Raises InputError when there is no factor, or none below 1.
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
    """Return a ``topology`` after some ``losses``, and what there is to say of it.

    Losses of one edge multiply.

    Raises InputError when there is no such edge, it has no bandwidth to lose, or a rank is cut off.
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
    kept = [
        edge
        if edge.beta is None or edge.id not in left
        else replace(edge, beta=edge.beta / left[edge.id])
        for edge in topology.edges
        if left.get(edge.id) != 0
    ]
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
    # Those that still hold, or as powers, or of a larger group that is found.
    rotations = kept_powers(topology.rotations, partial(is_symmetry, made))
    if rotations != topology.rotations:
        found = search_group(made)
        larger = len(found) > len(free_group(made, rotations))
        rotations = found.generators if larger else rotations
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
    turned, back = {"tx": "rx", "rx": "tx"}, set()
    for edge in (topology.edges[number] for number in edges):
        parts = [topology.vertex_name(v).rpartition(".") for v in (edge.head, edge.tail)]
        # A NIC sends by its tx and receives by its rx.
        ends = [f"{stem}{dot}{turned.get(side, side)}" for stem, dot, side in parts]
        back.add("->".join(ends))
    kept = [edge for edge in topology.edges if edge.name in back - named]
    if loss.option != "--edge" or not kept:
        return []
    names = _names(topology, [edge.id for edge in kept])
    return [f"one way only: {names} as before; name both for both ways"]


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
    """Return the edges of a ``topology`` whose name is ``text``, in which ``*`` is any text."""
    first, *rest = (re.escape(piece) for piece in re.split(r"\*+", text))
    # Each piece between stars is taken where it first is, so that matching is linear.
    between = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    name = re.compile(first + (f"{between}.*{rest[-1]}" if rest else ""), re.DOTALL)
    return [edge.id for edge in topology.edges if name.fullmatch(edge.name)]


def edges_between(topology: Topology, text: str) -> list[EdgeId]:
    """Return the edges of all links of a ``topology`` between the two ranks that ``text`` names.

    ``0-1`` is both ways, ``0->1`` one way.
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


def among(topology: Topology, ranks: Sequence[Rank]) -> tuple[Topology, tuple[EdgeId, ...]]:
    """Return what some `ranks` have of a `topology`, and which of its edges these are.

    They are numbered in their order, and other ranks relay nothing. Of switches and edges they have
    those that their links cross, so that groups that lie alike have the same machine.
    """
    first = topology.num_ranks
    switches = range(first, first + len(topology.switches))
    seen = {*ranks, *switches}
    near = [edge.id for edge in topology.edges if edge.tail in seen and edge.head in seen]
    links = _part(topology, ranks, switches, near).links
    crossed = np.unique(links.crossed_by(np.arange(len(links)))[1]).tolist()
    kept = tuple(near[edge] for edge in crossed)
    used = {end for edge in kept for end in (topology.edges[edge].tail, topology.edges[edge].head)}
    return _part(topology, ranks, [one for one in switches if one in used], kept), kept


def _part(
    topology: Topology, ranks: Sequence[Rank], switches: Sequence[int], edges: Sequence[EdgeId]
) -> Topology:
    """Return some `ranks`, `switches` (as vertices) and `edges` of a `topology`, in their order."""
    number = {vertex: place for place, vertex in enumerate((*ranks, *switches))}
    return replace(
        topology, num_ranks=len(ranks), rotations=(),
        switches=tuple(topology.switches[one - topology.num_ranks] for one in switches),
        server_of=tuple(topology.server_of[rank] for rank in ranks),
        edges=tuple(
            replace(edge, id=place, tail=number[edge.tail], head=number[edge.head])
            for place, edge in enumerate(topology.edges[edge] for edge in edges)
        ),
    )  # fmt: skip


RELAYS = ("members", "all")
"""Who may relay the data of a group: its members only, or every rank."""


def grouped(
    topology: Topology, members: Sequence[Rank], relays: str | Sequence[Rank] = "members"
) -> Topology:
    """Return the machine that the `members` of a group have: rank r of it is the r-th of them.

    Switches carry for everybody. Who relays, holding and wanting nothing, follows: by `relays`, one
    of RELAYS or ranks, all other ranks or some. Of the rotations of the `topology` those are kept
    that keep the group.

    Raises InputError when members are no ranks; NoScheduleError when one can't reach another.
    """
    check_members(members, topology.num_ranks, "--ranks")
    if tuple(members) == tuple(range(topology.num_ranks)):
        return topology
    others = relays_of(members, relays, topology.num_ranks) if isinstance(relays, str) else relays
    ranks, inside = (*members, *others), set(members)
    check_members(ranks, topology.num_ranks, "--relays")
    part, _ = among(topology, ranks)
    cut = unreachable_pair(part)
    if cut is not None:
        raise NoScheduleError(
            f"rank {ranks[cut[1]]} can't be reached from rank {ranks[cut[0]]} in {topology.name}"
            + " over members of the group only" * (not others),
            fix="add edges between them" if relays == "all"
            else "let other ranks relay: --relays all",
        )  # fmt: skip
    number = {rank: place for place, rank in enumerate(ranks)}

    def keeps(rotation: Sequence[Rank]) -> bool:
        return all({rotation[rank] for rank in some} == {*some} for some in (inside, others))

    kept = kept_powers(topology.rotations, keeps)
    turned = (tuple(number[rotation[rank]] for rank in ranks) for rotation in kept)
    return replace(
        part, name=f"{topology.name}[{numbers_text(members)}]", relays=len(others),
        rotations=tuple(each for each in turned if is_symmetry(part, each)),
    )  # fmt: skip


def numbers_text(numbers: Sequence[int]) -> str:
    """Return `numbers` as a file would say them: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
