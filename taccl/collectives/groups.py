"""Process groups: files that say which ranks call which collective at once, and all of it as one.

A ``groups/1`` file names groups; each has one instance or more, with no rank in common. What all
instances do together is one collective (:func:`union_of`): their chunks side by side, in buffers
one behind the other. Where one of them sums, a chunk that is copied is a sum with one source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, PlainValidator, StrictStr, WithJsonSchema

from taccl.collectives import (
    MAX_CHUNKS,
    Collective,
    build_collective,
    chunk_size_of,
    collective_name,
)
from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, read_document, shown
from taccl.files.model import (
    MAX_RANKS,
    Count,
    Duration,
    Index,
    Name,
    checked,
    parse_numbers,
    refuse,
)
from taccl.units import Time, parse_size

if TYPE_CHECKING:
    from taccl.collectives.chunks import IntColumn

INDEX = "groups.json"
"""In a directory of programs of groups: the file that says who runs which."""

MAX_GROUPS = 64
MAX_INSTANCES = 1024
OBJECTIVES = ("makespan", "weighted")

_INSIDE = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$"
"""A path below a directory, in plain letters."""

_AS_NUMBER = {"type": ["string", "number"]}


def _instances(value: object) -> tuple[tuple[int, ...] | None, ...]:
    """Return the ranks of each group; they have no rank in common, so they are not many."""
    if not isinstance(value, list) or not value:
        raise refuse(f"should be a list of groups, got {shown(value)}", "write [0-3, 4-7]")
    found: list[tuple[int, ...] | None] = []
    left = MAX_RANKS
    for one in value:
        try:
            found.append(parse_numbers(one))
        except InputError as error:
            raise refuse(error.problem, error.fix or "write [0-3, 4-7]") from None
        left -= len(found[-1] or "1")
        if left < 0:
            raise refuse(f"has more than {MAX_RANKS} ranks", "name each rank once")
    return tuple(found)


class Strides(NamedTuple):
    """Instances of so many `ranks` each that are `stride` apart, which cover all."""

    stride: int
    ranks: int


def _each(value: object) -> object:
    if not isinstance(value, dict):
        return _instances(value)
    right = all(type(one) is int and 1 <= one <= MAX_RANKS for one in value.values())
    if value.keys() != {"stride", "count"} or not right:
        raise refuse(
            f"should be lists of ranks, or a stride and a count, got {shown(value)}",
            "write {stride: 8, count: 2}",
        )
    return Strides(value["stride"], value["count"])


Instances = Annotated[
    tuple[tuple[int, ...] | None, ...] | Strides,
    PlainValidator(_each),
    WithJsonSchema(
        {
            "type": ["array", "object"],
            "description": "[0-3, 4-7], [[0, 4], [1, 5]], [all], or {stride: 8, count: 2}",
        }
    ),
]


def check_instances(
    each: Instances, ranks: int, document: Document, at: tuple[str | int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the members of every instance of a group; None stands for all `ranks`.

    Errors name places below `at` in the `document`.

    Raises InputError when one names a rank that is not there, or two differ in number or overlap,
    or those that are a stride apart do not cover all ranks.
    """
    if isinstance(each, Strides):
        return _strides(each, ranks, document, at)
    found = [tuple(range(ranks)) if one is None else one for one in each]
    for number, one in enumerate(found):
        if max(one) >= ranks:
            raise document.error(
                f"names rank {max(one)}, and there are {ranks}", (*at, number),
                f"name ranks from 0 to {ranks - 1}",
            )  # fmt: skip
    if len({len(one) for one in found}) > 1 or len(set().union(*found)) < sum(map(len, found)):
        raise document.error(
            "instances should have as many ranks each, none of them in two", at, "write [0-3, 4-7]"
        )
    return tuple(found)


def _chunks(value: object) -> int | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise refuse(
            f"should be auto or a number from 1 to 1024, got {shown(value)}", "write chunks: 1"
        )
    return value


def _weight(value: object) -> Fraction:
    try:
        number = Fraction(str(value).strip()) if len(str(value)) <= 40 else None
    except (ValueError, ZeroDivisionError):
        number = None
    if number is None or isinstance(value, bool) or not Fraction(1, 10**6) <= number <= 10**6:
        raise refuse(f"should be from 0.000001 to 1000000, got {shown(value)}", "write weight: 2")
    return number.limit_denominator(10**9)


def _relays(value: object) -> str | tuple[int, ...]:
    if value in ("members", "all"):
        return str(value)
    try:
        return parse_numbers(value) or "all"
    except InputError:
        raise refuse(
            f"should be members, all or ranks, got {shown(value)}", "write relays: members"
        ) from None


RelaysField = Annotated[
    str | tuple[int, ...],
    PlainValidator(_relays),
    WithJsonSchema(
        {"type": ["string", "integer", "array"], "description": "members, all, or ranks: 8-9"}
    ),
]
Bytes = Annotated[
    int,
    PlainValidator(checked(parse_size, "a size", "write 64MB")),
    WithJsonSchema({**_AS_NUMBER, "description": "bytes of the buffer that nccl-tests counts"}),
]
Weight = Annotated[
    Fraction,
    PlainValidator(_weight),
    WithJsonSchema({**_AS_NUMBER, "description": "a number above 0, such as 2 or 0.5"}),
]


class GroupRecord(FileModel):
    """Ranks that call a collective together: one instance or more at once."""

    name: Annotated[Name, Field(examples=["tp"])]
    collective: Annotated[StrictStr, Field(max_length=40, examples=["allreduce"])]
    size: Annotated[Bytes, Field(examples=["64MB"])]
    each: Annotated[Instances, Field(examples=["[0-7, 8-15]"])]
    chunks: Annotated[
        int | None,
        PlainValidator(_chunks),
        WithJsonSchema({"type": ["string", "integer"], "description": "auto, or a number"}),
        Field(examples=[1]),
    ] = None
    start: Annotated[Duration, Field(examples=["40us"])] = 0
    weight: Annotated[Weight, Field(examples=["2"])] = Fraction(1)
    root: Annotated[Index | None, Field(examples=[0])] = None
    files: Annotated[
        tuple[Annotated[StrictStr, Field(max_length=300, pattern=_INSIDE)], ...] | None,
        Field(max_length=MAX_INSTANCES, examples=["[programs/tp.xml, programs/tp.xml]"]),
    ] = None


class GroupsFile(FileModel):
    """Process groups whose collectives share a machine."""

    taccl: Annotated[Literal["groups/1"], Field(examples=["groups/1"])]
    name: Annotated[Name, Field(examples=["tp8-dp2"])]
    ranks: Annotated[Count, Field(examples=[16])]
    groups: Annotated[list[GroupRecord], Field(min_length=1, max_length=MAX_GROUPS)]
    relays: Annotated[RelaysField, Field(examples=["members"])] = "members"
    objective: Annotated[Literal["makespan", "weighted"], Field(examples=["makespan"])] = "makespan"


@dataclass(frozen=True, slots=True)
class Instance:
    """One call of a collective by the ranks of a group.

    `group`, `number`: its group's name, and which of its instances it is.
    `collective`: a name of COLLECTIVES; `size`: its bytes as nccl-tests counts them; `root`: a
    place among the members.
    `members`: ranks in the order of their communicator.
    `relays`: ranks that may relay for them.
    `chunks`: for each rank; None: any.
    `start`: picoseconds; `weight`: of its end in the objective.
    `file`: of its program, in the directory of the index; None: it has none.
    """

    group: str
    number: int
    collective: str
    size: int
    members: tuple[int, ...]
    relays: tuple[int, ...] = ()
    chunks: int | None = None
    start: Time = 0
    weight: Fraction = Fraction(1)
    root: int | None = None
    file: str | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its data may visit, as a program for them numbers them."""
        return (*self.members, *self.relays)

    def among(self, num_ranks: int, chunks: int) -> Collective:
        """Return the collective in so many `chunks` for a rank, on `num_ranks` ranks."""
        return build_collective(self.collective, num_ranks, chunks, self.root, self.members)


@dataclass(frozen=True, slots=True)
class Groups:
    """What several groups of so many `ranks` call at once, and what is to be short."""

    name: str
    ranks: int
    instances: tuple[Instance, ...]
    objective: str = "makespan"

    def cost(self, ends: Sequence[Time]) -> Fraction:
        """Return what counts of the `ends` of all instances: the last, or their weighted sum."""
        if self.objective == "makespan":
            return Fraction(max(ends))
        weights = (instance.weight for instance in self.instances)
        return sum((weight * end for weight, end in zip(weights, ends, strict=True)), Fraction(0))


def is_groups(path: str) -> bool:
    """Tell whether a file at a `path` says that it is one of groups; False where there is none."""
    try:
        document = read_document(path)
    except InputError:
        return False
    said = document.value.get("taccl") if isinstance(document.value, dict) else None
    return isinstance(said, str) and said.startswith("groups/")


def read_groups(path: str) -> Groups:
    """Read the groups of the YAML or JSON file at a `path`.

    Raises InputError with file, line, field, value and fix.
    """
    document = read_document(path)
    return make_groups(fit_model(document, GroupsFile), document)


def make_groups(record: GroupsFile, document: Document) -> Groups:
    """Return the groups of a ``record``; errors name places in its ``document``."""
    instances: list[Instance] = []
    names: dict[str, int] = {}
    if isinstance(record.relays, tuple) and max(record.relays) >= record.ranks:
        raise document.error(
            f"names rank {max(record.relays)}, and there are {record.ranks}", ("relays",),
            f"name ranks from 0 to {record.ranks - 1}",
        )  # fmt: skip
    for place, group in enumerate(record.groups):
        at = ("groups", place)
        if names.setdefault(group.name, place) != place:
            raise document.error(
                f"{shown(group.name)} is groups[{names[group.name]}] already", (*at, "name"),
                "give it a name of its own",
            )  # fmt: skip
        each = check_instances(group.each, record.ranks, document, (*at, "each"))
        if len(each[0]) < 2:
            raise document.error(
                "a group has two ranks or more", (*at, "each"), "write [[0, 1], [2, 3]]"
            )
        if len(instances) + len(each) > MAX_INSTANCES:
            raise document.error(
                f"there are more than {MAX_INSTANCES} instances", (*at, "each"), "name fewer"
            )
        try:
            name = collective_name(group.collective)
            build_collective(name, len(each[0]), group.chunks or 1, group.root)
        except InputError as error:
            named = "root" if error.field == "--root" else "collective"
            raise document.error(error.problem, (*at, named), error.fix or "") from None
        if group.files is not None and len(group.files) != len(each):
            raise document.error(
                f"should be {len(each)}, one for each instance, got {len(group.files)}",
                (*at, "files"), "name the file of every instance",
            )  # fmt: skip
        instances += [
            Instance(
                group.name, number, name, group.size, members,
                relays_of(members, record.relays, record.ranks), group.chunks, group.start,
                group.weight, group.root, None if group.files is None else group.files[number],
            )
            for number, members in enumerate(each)
        ]  # fmt: skip
    return Groups(record.name, record.ranks, tuple(instances), record.objective)


def relays_of(
    members: Sequence[int], relays: str | Sequence[int], num_ranks: int
) -> tuple[int, ...]:
    """Return which of `num_ranks` ranks may relay for `members`: by a word, or some ranks.

    They come in the order of ranks from the first member on, so that groups that lie alike are
    alike.
    """
    if relays == "members":
        return ()
    others = {*range(num_ranks)} if isinstance(relays, str) else {*relays}
    return tuple(sorted(others - {*members}, key=lambda rank: (rank - members[0]) % num_ranks))


def _strides(
    each: Strides, ranks: int, document: Document, at: tuple[str | int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return instances of ranks r, r + stride, ...: from every rank that is in none yet."""
    found: list[tuple[int, ...]] = []
    left = dict.fromkeys(range(ranks))
    while left:
        first = next(iter(left))
        members = tuple(range(first, first + each.stride * each.ranks, each.stride))
        if not left.keys() >= {*members}:
            raise document.error(
                f"{each.ranks} ranks {each.stride} apart do not cover {ranks} ranks: not from rank"
                f" {first} on", at, "choose a stride and count that do, or list the ranks",
            )  # fmt: skip
        found.append(members)
        for rank in members:
            del left[rank]
    return tuple(found)


MAX_UNITS = 64
"""Units that a chunk is cut into, at most, so that all chunks have one size."""


@dataclass(frozen=True, eq=False)
class Union:
    """What several instances do at once.

    The `collective` has the chunks of all, of `unit` bytes each; those of instance i are
    ``first[i]`` to ``first[i + 1]``, and ``parts[i]`` (for each rank) make up its own collective.
    """

    collective: Collective
    unit: Fraction
    first: tuple[int, ...]
    parts: tuple[int, ...]


def union_of(instances: Sequence[Instance], num_ranks: int) -> Union | None:
    """Return what `instances` on `num_ranks` ranks do together; None: sizes have no common unit.

    Instances of one group lie at the same places of buffers. Who may not relay has no part in a
    chunk (``Collective.carrier_set``).
    """
    alone = [one.among(num_ranks, one.chunks or 1) for one in instances]
    sizes = [chunk_size_of(own, one.size) for one, own in zip(instances, alone, strict=True)]
    common = math.lcm(*(size.denominator for size in sizes))
    unit = Fraction(math.gcd(*(int(size * common) for size in sizes)), common)
    parts = [int(size / unit) for size in sizes]
    if max(parts) > MAX_UNITS or sum(
        own.num_chunks * count for own, count in zip(alone, parts, strict=True)
    ) > MAX_CHUNKS:  # fmt: skip
        return None
    cut = [own.cut(count) for own, count in zip(alone, parts, strict=True)]
    reduces = any(own.reduces for own in cut)
    sets: list[tuple[int, ...]] = []
    columns: list[list[IntColumn]] = []
    base: dict[str, tuple[int, int, int]] = {}
    after = (0, 0, 0)
    for one, own in zip(instances, cut, strict=True):
        if one.group not in base:
            base[one.group] = after
            after = (
                after[0] + max(own.input_sizes), after[1] + max(own.output_sizes),
                after[2] + int(own.index.max()) + 1,
            )  # fmt: skip
        at = base[one.group]
        owner = own.owner
        if reduces and not own.reduces:
            # The tree of a sum with one target is rooted there, of others at a source.
            lone = np.array([r[0] if len(r) == 1 else -1 for r in own.rank_sets])[own.target_set]
            owner = np.where(lone >= 0, lone, owner).astype(np.int32)
        columns.append([
            own.source_set + len(sets), own.target_set + len(sets), own.input_at + at[0],
            own.output_at + at[1], owner, own.index + at[2],
            np.full(own.num_chunks, len(sets) + len(own.rank_sets)),
        ])  # fmt: skip
        sets += [*own.rank_sets, tuple(sorted(one.ranks))]
    source, target, inputs_at, outputs_at, owner, index, carriers = (
        np.concatenate(column).astype(np.int32) for column in zip(*columns, strict=True)
    )
    made = Collective(
        "+".join(dict.fromkeys(own.name for own in cut))[:100], num_ranks, 1, reduces, tuple(sets),
        source, target, inputs_at, outputs_at, owner, index,
        carrier_set=None if all(len(one.ranks) == num_ranks for one in instances) else carriers,
    )  # fmt: skip
    size = unit * made.chunks_in_size
    if size.denominator > 1:
        return None
    first = np.concatenate(([0], np.cumsum([own.num_chunks for own in cut]))).tolist()
    parts_of_rank = tuple(own.chunks_per_rank for own in cut)
    return Union(replace(made, size=int(size)), unit, tuple(first), parts_of_rank)
