"""The numbers of TACCL's topology files, and the machines that it knows.

Facts: ``topologies/generic.py`` of microsoft/taccl 2.0.0. All numbers are times of one chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from taccl.files import Document, FileModel, shown
from taccl.files.fields import Count, refuse
from taccl.topology import Permutation
from taccl.topology_graph import TopologyHeader

TIME_UNITS = ("1us", "100ns", "10ns")
MAX_AMOUNT = Fraction(10**9)
MAX_MATRIX = 1024
MAX_PARALLEL = 64

Amounts = tuple[tuple[Fraction, ...], ...]
"""One cost for each class of links, as one row; or a matrix [to][from]."""

NDV2_WIRES: Mapping[tuple[int, int], int] = MappingProxyType({
    **dict.fromkeys(((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)), 0),
    **dict.fromkeys(((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)), 1),
})  # fmt: skip
"""Pairs of GPUs that a wire joins, to the class of the wire: 0 is two NVLinks, 1 is one."""

NDV2_TURNS: tuple[Permutation, ...] = ((2, 3, 0, 1, 6, 7, 4, 5), (4, 5, 6, 7, 0, 1, 2, 3))
"""Generators of the symmetries of the mesh, classes of wires included."""


@dataclass(frozen=True, slots=True)
class Base:
    """A row of the table of machines that TACCL knows.

    Parameters
    ----------
    gpus, nics
        Of one server; None: the file says it.
    classes
        How many costs of links the file lists; 0: matrices.
    truncates
        Whether the loader cuts ``node_invbws_list`` to whole units.
    """

    gpus: int | None
    nics: int | None
    classes: int
    truncates: bool


BASES: Mapping[str, Base] = MappingProxyType({
    "NDv2": Base(8, 1, 2, truncates=True),
    "DGX2": Base(None, 8, 1, truncates=True),
    "HubAndSpoke": Base(None, None, 1, truncates=False),
    "custom": Base(None, None, 0, truncates=False),
})  # fmt: skip


def _amount(value: object) -> Fraction:
    """Return a number of time units, exactly as it is written."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse(f"should be a number of time units, got {shown(value)}", "write 2.24")
    if value and not 1 / MAX_AMOUNT <= value <= MAX_AMOUNT:
        raise refuse(f"should be 0, or from 1e-9 to 1e9, got {shown(value)}", "write 2.24")
    return Fraction(repr(value))


def _amounts(value: object) -> Amounts:
    fix = "write a list of numbers, or a matrix [to][from] of them"
    if not isinstance(value, list) or not value or len(value) > MAX_MATRIX:
        raise refuse(f"should be a list of numbers, got {shown(value)}", fix)
    if not isinstance(value[0], list):
        return (tuple(map(_amount, value)),)
    if any(not isinstance(row, list) or len(row) != len(value) for row in value):
        raise refuse(f"should have {len(value)} rows of {len(value)} numbers", fix)
    return tuple(tuple(map(_amount, row)) for row in value)


Amount = Annotated[
    Fraction, PlainValidator(_amount), WithJsonSchema({"type": "number", "minimum": 0})
]
"""Time units, exact."""

AmountList = Annotated[
    Amounts, PlainValidator(_amounts), WithJsonSchema({"type": "array", "minItems": 1})
]


class OriginalRecord(FileModel):
    """TACCL's numbers: times of one chunk, in the time unit."""

    base: Annotated[Literal["NDv2", "DGX2", "HubAndSpoke", "custom"], Field(examples=["NDv2"])]
    gpus: Annotated[Count, Field(examples=[8])]
    nics: Annotated[Count, Field(examples=[1])] = 1
    time_unit: Annotated[Literal["1us", "100ns", "10ns"], Field(examples=["10ns"])]
    alpha: Annotated[Amount, Field(examples=[30])]
    betas: Annotated[AmountList, Field(examples=["[2.24, 4.5]"])]
    invbws: Annotated[AmountList, Field(examples=["[32.25, 34.5]"])]
    links: Annotated[AmountList | None, Field(examples=["[[0, 1], [1, 0]]"])] = None
    remote_alpha: Annotated[Amount | None, Field(examples=[260])] = None
    remote_beta: Annotated[Amount | None, Field(examples=[10.25])] = None


class OriginalFile(TopologyHeader):
    """A topology with the costs of TACCL, which depend on the sketch."""

    original: Annotated[OriginalRecord, Field(examples=["{base: NDv2, gpus: 8}"])]


def check_record(record: OriginalRecord, document: Document, place: Sequence[str | int]) -> None:
    """Refuse numbers that don't fit the machine.

    Raises
    ------
    InputError
        With the field and what it should be.
    """
    base = BASES[record.base]
    for name, wanted, found in (("gpus", base.gpus, record.gpus), ("nics", base.nics, record.nics)):
        if wanted is not None and found != wanted:
            raise document.error(
                f"should be {wanted} for {record.base}, got {found}", (*place, name),
                f"write {wanted}, or use another base",
            )  # fmt: skip
    for name, rows in (("betas", record.betas), ("invbws", record.invbws), ("links", record.links)):
        if name == "links" and base.classes:
            if rows is not None:
                raise document.error(
                    f"{record.base} has its own", (*place, name), "remove it, or use base custom"
                )
            continue
        sizes = (len(rows), len(rows[0])) if rows is not None else (0, 0)
        wanted_sizes = (1, base.classes) if base.classes else (record.gpus, record.gpus)
        if sizes != wanted_sizes:
            what = f"{base.classes} numbers" if base.classes else f"a matrix of {record.gpus} rows"
            raise document.error(
                f"should be {what} for {record.base}", (*place, name), f"give {what}"
            )
    if record.links is not None:
        _check_links(record.links, document, place)


def _check_links(links: Amounts, document: Document, place: Sequence[str | int]) -> None:
    for dst, row in enumerate(links):
        for src, count in enumerate(row):
            if count.denominator != 1 or count > MAX_PARALLEL or (src == dst and count):
                raise document.error(
                    f"should be a whole number of links up to {MAX_PARALLEL}, none of a GPU to"
                    f" itself, got {float(count):g}", (*place, "links", dst, src), "write 0 or 1",
                )  # fmt: skip


def link_classes(record: OriginalRecord) -> dict[tuple[int, int], int]:
    """Return the class of the link of every (source, destination) that has one."""
    if record.base == "NDv2":
        return {ends: kind for (a, b), kind in NDV2_WIRES.items() for ends in ((a, b), (b, a))}
    return {(a, b): 0 for a in range(record.gpus) for b in range(record.gpus) if a != b}
