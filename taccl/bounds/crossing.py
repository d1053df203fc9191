"""Data that must cross a set of edges: what the port, cut, flow and reduce ideas all hand over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taccl.bounds.gates import Gates


@dataclass(frozen=True, slots=True)
class Crossing:
    """An amount that must pass some gates.

    Parameters
    ----------
    kind
        The idea: ``port``, ``cut``, ``flow``, ``reduce`` or ``latency``.
    gates
        What it passes.
    share
        The amount in units of ``size`` (weighted, when the gates are).
    """

    kind: str
    gates: Gates
    share: Fraction


def _block_of_each(inside: int, ranks: int) -> Fraction:
    return Fraction(inside, ranks)


def _block_for_each_other(inside: int, ranks: int) -> Fraction:
    return Fraction(ranks - inside, ranks)


def _everything(_inside: int, _ranks: int) -> Fraction:
    return Fraction(1)


def _block_for_each_pair(inside: int, ranks: int) -> Fraction:
    return Fraction(inside * (ranks - inside), ranks)


LEAVES: Mapping[str, Callable[[int, int], Fraction]] = MappingProxyType({
    "allgather": _block_of_each,
    "reducescatter": _block_for_each_other,
    "allreduce": _everything,
    "alltoall": _block_for_each_pair,
})  # fmt: skip
"""(ranks in a set, all ranks) to what must leave the set, in units of ``size``.

With sums, something that the set contributed to must leave for every piece the others want.
"""


def leaves(name: str, inside: Sequence[int] | frozenset[int], ranks: int) -> Fraction:
    """Return what must leave a set of ranks in a collective, in units of ``size``."""
    if not 0 < len(inside) < ranks:
        return Fraction(0)
    return LEAVES[name](len(inside), ranks)


def between_pair(name: str, ranks: int) -> Fraction:
    """Return what of one rank's data must reach one other rank, in units of ``size``."""
    return Fraction(1) if name == "allreduce" else Fraction(1, ranks)
