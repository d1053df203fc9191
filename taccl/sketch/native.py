"""What a sketch says, and its own YAML form (``taccl: sketch/1``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, WithJsonSchema

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import MAX_RANKS, Name, Numbers, parse_numbers, refuse, whole_number_keys
from taccl.topology.graph import Permutation
from taccl.topology.taccl_costs import DIRECT_MAP, FULLY_CONNECTED, Relays, Sketched

MAX_GENERATORS = 64
MAX_PAIRS = 1_000_000
MAX_PATTERNS = 1024


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which links a rule is about.

    `src` and `dst` are numbers of GPUs, None: all. `scope` is ``across`` or ``within`` servers,
    with local numbers; None: any link, global ranks.
    """

    src: tuple[int, ...] | None
    dst: tuple[int, ...] | None
    scope: str | None


@dataclass(frozen=True, slots=True)
class Sketch:
    """What a user knows about a good algorithm; every part is optional.

    `name`: what reports call it.
    `source`: the document, for messages.
    `fields`: how the source calls each part, for messages.
    `servers`: the number of servers it is made for; None: any.
    `chunks_per_rank`: chunk count; None: not said.
    `deny`, `allow`: links that are removed, and those of them that are kept after all.
    `policies`: (switch name, policy) pairs.
    `policy_members`: (local GPUs of a switch, policy) pairs, for switches that the sketch can't
    name.
    `switch_lists`: the local GPUs of every switch, equal lists as often as they are there.
    `balance`: ``minmax`` or ``maxmin``: keep the busiest link light, or use all links alike.
    `relays`, `chunk_to_relay`, `own_chunks_first`: connections between servers, in local numbers;
    which senders a GPU's chunks leave by.
    `offsets`: [offset, block] pairs.
    `generators`: explicit rank permutations.
    `auto_symmetry`: use the rotations of the topology that the sketch keeps.
    `max_extra_hops`, `connections_per_gpu`, `channels`: limits; None: none.
    `on_shortest_paths`: chunks visit only ranks on paths with the fewest hops.
    """

    name: str
    source: Document
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    servers: int | None = None
    chunks_per_rank: int | None = None
    deny: tuple[Pattern, ...] = ()
    allow: tuple[Pattern, ...] = ()
    policies: tuple[tuple[str, str], ...] = ()
    policy_members: tuple[tuple[tuple[int, ...], str], ...] = ()
    switch_lists: tuple[tuple[int, ...], ...] = ()
    balance: str | None = None
    relays: Relays = None
    chunk_to_relay: tuple[tuple[int, tuple[int, ...]], ...] = ()
    own_chunks_first: bool = False
    offsets: tuple[tuple[int, int], ...] = ()
    generators: tuple[tuple[int, ...], ...] = ()
    auto_symmetry: bool = False
    max_extra_hops: int | None = None
    on_shortest_paths: bool = False
    connections_per_gpu: int | None = None
    channels: int | None = None

    @property
    def sketched(self) -> Sketched:
        """What a topology with TACCL's own costs must know."""
        return Sketched(self.name, self.source.file, self.servers, self.switch_lists, self.relays)

    def error(self, problem: str, part: str, *rest: str | int, fix: str) -> InputError:
        """Return an error at a part of the sketch; ``rest`` goes on from there."""
        return self.source.error(problem, (*self.fields.get(part, (part,)), *rest), fix)


class PatternRecord(FileModel):
    """Links from some GPUs to others."""

    src: Annotated[Numbers, Field(alias="from", examples=["0-15"])] = None
    dst: Annotated[Numbers, Field(alias="to", examples=["0-15"])] = None
    across: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None
    within: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None


Patterns = Annotated[
    list[PatternRecord], Field(max_length=MAX_PATTERNS, examples=["[{from: 0, to: 1}]"])
]


class LinksRecord(FileModel):
    """The logical topology: which links may be used."""

    deny: Patterns = Field(default_factory=list)
    allow: Patterns = Field(default_factory=list)


def _lists_by_number(value: object) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return a mapping from a GPU to one or several GPUs as sorted pairs."""
    mapping = whole_number_keys(value)
    if not isinstance(mapping, dict) or not mapping:
        raise refuse(f"should map GPUs to GPUs, got {shown(value)}", "write {1: [0], 3: [2]}")
    pairs, total = [], 0
    for key, item in mapping.items():
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < MAX_RANKS:
            raise refuse(f"should be the number of a GPU, got {shown(key)}", "write {1: [0]}")
        try:
            numbers = parse_numbers(item)
        except InputError as error:
            raise refuse(f"{key}: {error.problem}", error.fix or "") from None
        if numbers is None:
            raise refuse(f"{key}: all is not accepted here", "list the GPUs: 0-7")
        pairs.append((key, numbers))
        total += len(numbers)
        if total > MAX_PAIRS:
            raise refuse(f"names more than {MAX_PAIRS} pairs of GPUs", "name fewer")
    return tuple(sorted(pairs))


def _relays(value: object) -> Relays:
    if isinstance(value, str):
        if value not in (FULLY_CONNECTED, DIRECT_MAP):
            raise refuse(
                f"should be a mapping, fully-connected or direct-map, got {shown(value)}",
                "write {1: [0]}, fully-connected or direct-map",
            )
        return value
    return None if value is None else _lists_by_number(value)


RelaysField = Annotated[
    Relays, PlainValidator(_relays), WithJsonSchema({"type": ["string", "object"]})
]
GpuMap = Annotated[
    tuple[tuple[int, tuple[int, ...]], ...],
    PlainValidator(_lists_by_number),
    WithJsonSchema({"type": "object"}),
]


class InternodeRecord(FileModel):
    """Connections between servers, in local numbers of GPUs."""

    relays: Annotated[RelaysField, Field(examples=["{1: [0], 3: [2]}"])] = None
    chunk_to_relay: Annotated[GpuMap, Field(examples=["{0: 1, 1: 1}"])] = ()
    own_chunks_first: StrictBool = False


class LimitsRecord(FileModel):
    """What the runtime has of."""

    connections_per_gpu: Annotated[StrictInt | None, Field(ge=1, le=MAX_RANKS, examples=[32])] = (
        None
    )
    channels: Annotated[StrictInt | None, Field(ge=1, le=MAX_RANKS, examples=[8])] = None


def _symmetry(value: object) -> str | tuple[tuple[int, ...], ...]:
    """Return ``auto``, or rows of whole numbers."""
    fix = "write auto, [[2, 16]] or permutations of all ranks"
    if value == "auto":
        return "auto"
    if not isinstance(value, list) or len(value) > MAX_GENERATORS:
        raise refuse(f"should be auto or a list of lists, got {shown(value)}", fix)
    for row in value:
        if not isinstance(row, list) or len(row) > MAX_RANKS or len(row) < 2:
            raise refuse(f"should be a list of lists of numbers, got {shown(row)}", fix)
        bad = [n for n in row if isinstance(n, bool) or not isinstance(n, int)]
        bad += [n for n in row if not bad and not 0 <= n <= MAX_RANKS]
        if bad:
            raise refuse(f"should hold numbers from 0 to {MAX_RANKS}, got {shown(bad[0])}", fix)
    return tuple(map(tuple, value))


SymmetryField = Annotated[
    str | tuple[tuple[int, ...], ...],
    PlainValidator(_symmetry),
    WithJsonSchema({"type": ["string", "array"]}),
]


class SketchFile(FileModel):
    """A communication sketch."""

    taccl: Annotated[Literal["sketch/1"], Field(examples=["sketch/1"])]
    name: Annotated[Name, Field(examples=["dgx2-relay"])]
    chunks_per_rank: Annotated[StrictInt | None, Field(ge=1, le=4096, examples=[2])] = None
    links: LinksRecord = LinksRecord()
    switches: Annotated[
        dict[Name, Literal["uc-min", "uc-max", "free"]],
        Field(max_length=MAX_RANKS, examples=["{nvswitch: uc-min}"]),
    ] = Field(default_factory=dict)
    balance: Annotated[Literal["minmax", "maxmin"] | None, Field(examples=["minmax"])] = None
    internode: InternodeRecord = InternodeRecord()
    symmetry: Annotated[SymmetryField, Field(examples=["auto"])] = ()
    max_extra_hops: Annotated[StrictInt | None, Field(ge=0, le=MAX_RANKS, examples=[0])] = None
    on_shortest_paths: Annotated[StrictBool, Field(examples=["true"])] = False
    limits: LimitsRecord = LimitsRecord()


_FIELDS = {
    "deny": ("links", "deny"),
    "allow": ("links", "allow"),
    "relays": ("internode", "relays"),
    "chunk_to_relay": ("internode", "chunk_to_relay"),
    "connections_per_gpu": ("limits", "connections_per_gpu"),
}


def read_native(document: Document) -> Sketch:
    """Return the sketch of a document in the native form.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, SketchFile)
    return Sketch(
        record.name, document, _FIELDS,
        chunks_per_rank=record.chunks_per_rank,
        deny=_patterns(record.links.deny, document, "deny"),
        allow=_patterns(record.links.allow, document, "allow"),
        policies=tuple(sorted(record.switches.items())),
        balance=record.balance,
        relays=record.internode.relays,
        chunk_to_relay=record.internode.chunk_to_relay,
        own_chunks_first=record.internode.own_chunks_first,
        generators=() if isinstance(record.symmetry, str) else record.symmetry,
        auto_symmetry=record.symmetry == "auto",
        max_extra_hops=record.max_extra_hops,
        on_shortest_paths=record.on_shortest_paths,
        connections_per_gpu=record.limits.connections_per_gpu,
        channels=record.limits.channels,
    )  # fmt: skip


def _patterns(records: list[PatternRecord], document: Document, part: str) -> tuple[Pattern, ...]:
    found = []
    for index, record in enumerate(records):
        if record.across and record.within:
            raise document.error(
                "has both across and within", ("links", part, index), "keep one of the two"
            )
        scope = "across" if record.across else "within" if record.within else None
        found.append(Pattern(record.src, record.dst, scope))
    return tuple(found)


def offset_permutation(offset: int, block: int, num_ranks: int) -> Permutation:
    """Return the rotation of ``num_ranks`` by ``offset`` inside every block of ``block`` ranks."""
    return tuple((r % block + offset) % block + r // block * block for r in range(num_ranks))
