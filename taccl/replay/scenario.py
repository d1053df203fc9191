"""Scenarios: files that say what disturbs a machine while programs run on it, and their meaning.

A scenario only takes away: edges lose bandwidth, ranks are late or slow, messages are delayed. So
what bounds a collective on the undisturbed machine holds here, too. Bound to a topology, its names
of edges, links and ranks are numbers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, StrictStr, WithJsonSchema

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, read_document, shown
from taccl.files.model import Duration, Name, Numbers, checked
from taccl.files.read import FieldPath
from taccl.topology.edit import TWO_RANKS, edges_called
from taccl.topology.graph import EdgeId, Rank, Topology
from taccl.units import Time, parse_size

MAX_ENTRIES = 1000
"""Entries of each list of a scenario."""

MAX_ALSO = 64
"""Other programs beside the first."""

MAX_RUNS = 10_000

_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?(?:e-?\d)?|\.\d{1,12}(?:e-?\d)?|\d{1,12}/\d{1,12}")


def _between(low: Fraction, high: Fraction, words: str, example: str) -> Callable[..., Fraction]:
    """Return a validator of numbers from ``low`` to ``high``, which it returns exactly."""
    what, fix = f"a number {words}", f"write {example}"

    def parse(value: object) -> Fraction:
        text = str(value).strip().lower()
        exact = _NUMBER.fullmatch(text) and not re.search(r"/0+$", text)
        number = Fraction(text) if exact else None
        if number is None or not low <= number <= high:
            raise InputError(f"should be {what}, got {shown(value)}", fix=fix)
        return number

    return checked(parse, what, fix)


_ONE, _LEAST = Fraction(1), Fraction(1, 10**6)
_UP_TO_ONE = _between(_LEAST, _ONE, "from 0.000001 to 1", "0.5")
_BELOW_ONE = _between(Fraction(0), _ONE - _LEAST, "from 0 to 0.999999", "0.3")
_FROM_ONE = _between(_ONE, _ONE / _LEAST, "from 1 to 1000000", "1.5")
_AS_NUMBER = {"type": ["number", "string"]}

Factor = Annotated[
    Fraction,
    PlainValidator(_UP_TO_ONE),
    WithJsonSchema(
        {**_AS_NUMBER, "description": "a number from 0.000001 to 1, such as 0.5 or 1/3"}
    ),
]
Share = Annotated[
    Fraction,
    PlainValidator(_BELOW_ONE),
    WithJsonSchema({**_AS_NUMBER, "description": "a number from 0 to 0.999999, such as 0.3"}),
]
Slowness = Annotated[
    Fraction,
    PlainValidator(_FROM_ONE),
    WithJsonSchema({**_AS_NUMBER, "description": "a number from 1 to 1000000, such as 1.5"}),
]
Bytes = Annotated[
    int,
    PlainValidator(checked(parse_size, "a size", "write 64KB")),
    WithJsonSchema({"type": ["string", "number"], "description": "bytes, such as 64KB or 1MiB"}),
]
LinkText = Annotated[StrictStr, Field(max_length=40, examples=["0->1, or 0-1 for both ways"])]
EdgeText = Annotated[Name, Field(examples=["0->1"])]


class BackgroundRecord(FileModel):
    """Traffic of others: a share of the bandwidth, or a message again and again."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    share: Annotated[Share | None, Field(examples=["0.3"])] = None
    size: Annotated[Bytes | None, Field(examples=["64KB"])] = None
    period: Annotated[Duration | None, Field(examples=["10us"])] = None
    start: Annotated[Duration, Field(examples=["0us"])] = 0


class StragglerRecord(FileModel):
    """Ranks that are late or slow."""

    ranks: Annotated[Numbers, Field(examples=["3"])]
    late: Annotated[Duration, Field(examples=["50us"])] = 0
    slow: Annotated[Slowness, Field(examples=["1.5"])] = Fraction(1)


class DistributionRecord(FileModel):
    """A random delay."""

    distribution: Annotated[Literal["uniform", "exponential"], Field(examples=["uniform"])]
    mean: Annotated[Duration, Field(examples=["1us"])]


class JitterRecord(FileModel):
    """What is drawn at random, anew in every run."""

    message: Annotated[
        DistributionRecord | None, Field(examples=["{distribution: exponential, mean: 1us}"])
    ] = None
    start: Annotated[
        DistributionRecord | None, Field(examples=["{distribution: uniform, mean: 5us}"])
    ] = None


class DegradedRecord(FileModel):
    """An edge or link that has less bandwidth than it should, or is down."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    factor: Annotated[Factor | None, Field(examples=["0.5"])] = None
    down: StrictBool = False


class ChangeRecord(FileModel):
    """From some time on an edge or link has another part of its bandwidth."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    at: Annotated[Duration, Field(examples=["100us"])]
    factor: Annotated[Factor, Field(examples=["0.25"])]


class AlsoRecord(FileModel):
    """Another program that runs beside the first, on the same edges."""

    program: Annotated[StrictStr, Field(min_length=1, max_length=1000, examples=["other.xml"])]
    size: Annotated[Bytes | None, Field(examples=["4MB"])] = None
    start: Annotated[Duration, Field(examples=["20us"])] = 0
    ranks: Annotated[Numbers, Field(examples=["0-7"])] = None


class ScenarioFile(FileModel):
    """What disturbs a machine while programs run on it."""

    taccl: Annotated[Literal["scenario/1"], Field(examples=["scenario/1"])]
    name: Annotated[Name, Field(examples=["busy-nic"])]
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 53, examples=[0])] = 0
    runs: Annotated[StrictInt | None, Field(ge=1, le=MAX_RUNS, examples=[20])] = None
    background: Annotated[list[BackgroundRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    stragglers: Annotated[list[StragglerRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    jitter: JitterRecord | None = None
    degraded: Annotated[list[DegradedRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    changes: Annotated[list[ChangeRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    also: Annotated[
        list[AlsoRecord], Field(max_length=MAX_ALSO, examples=["[{program: other.xml}]"])
    ] = Field(default_factory=list)


MAX_FLOWS = 4096
"""Background senders that the entries may make."""

DEFAULT_RUNS = 20
"""Runs, where something is drawn at random."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A background sender: one message a period, each when it is due or when the last has left.

    A message holds the `edges`, each for the `overhead` and its own time. `size` is bytes, `period`
    and `start` are picoseconds.
    """

    edges: tuple[EdgeId, ...]
    overhead: Time
    size: int
    period: Time
    start: Time


@dataclass(frozen=True, slots=True)
class Change:
    """From a time on, an edge has a part of its bandwidth."""

    at: Time
    edge: EdgeId
    factor: Fraction


@dataclass(frozen=True, eq=False)
class Scenario:
    """A scenario on a topology.

    `name`, `seed`, `runs`: what results call it, and what is drawn how often.
    `factors`: edges to the part of their bandwidth that is left throughout; others have all of it.
    `down`: edges that carry nothing, to their place in the file.
    `flows`, `changes`: background senders, and changes in order of time.
    `late`, `slow`: of some ranks: when they start, and how many times as long their work and sends
    take.
    `message_delay`, `start_delay`: what is drawn for every message, and for every rank: whole
    picoseconds, uniform from 0 to twice the mean, or exponential.
    `also`: other programs, whose paths are relative to the scenario's file.
    `document`: for errors.
    """

    name: str
    seed: int
    runs: int
    factors: Mapping[EdgeId, Fraction]
    down: Mapping[EdgeId, FieldPath]
    flows: tuple[Flow, ...]
    changes: tuple[Change, ...]
    late: Mapping[Rank, Time]
    slow: Mapping[Rank, Fraction]
    message_delay: DistributionRecord | None
    start_delay: DistributionRecord | None
    also: tuple[AlsoRecord, ...]
    document: Document

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn."""
        return self.message_delay is not None or self.start_delay is not None

    @property
    def is_static(self) -> bool:
        """Whether it is the same as another topology."""
        moving = self.flows or self.changes or self.late or self.slow or self.also
        return not moving and not self.is_random


def read_scenario(path: str, topology: Topology) -> Scenario:
    """Return the scenario of the file at ``path`` for a ``topology``.

    Raises InputError with file, line, field, value and fix.
    """
    document = read_document(path)
    return bind(fit_model(document, ScenarioFile), document, topology)


def bind(record: ScenarioFile, document: Document, topology: Topology) -> Scenario:
    """Return what the names of edges, links and ranks in a ``record`` mean on a ``topology``.

    ``document`` knows the places of fields for errors.

    Raises InputError for an edge, link or rank that is not there, or fields that don't go together.
    """
    place = _Place(document, topology)
    factors, down = _factors(record, place)
    late: dict[Rank, Time] = defaultdict(int)
    slow: dict[Rank, Fraction] = defaultdict(lambda: Fraction(1))
    for number, straggler in enumerate(record.stragglers):
        ranks = range(topology.num_ranks) if straggler.ranks is None else straggler.ranks
        if max(ranks) >= topology.num_ranks:
            raise place.no_rank(max(ranks), ("stragglers", number, "ranks"))
        for rank in ranks:
            late[rank] += straggler.late
            slow[rank] *= straggler.slow
    changes = [
        Change(entry.at, edge, entry.factor)
        for number, entry in sorted(enumerate(record.changes), key=lambda e: (e[1].at, e[0]))
        for edge in place.resources(entry, ("changes", number))
    ]
    jitter = record.jitter or JitterRecord()
    random = jitter.message is not None or jitter.start is not None
    if record.runs not in (None, 1) and not random:
        raise document.error(
            f"all {record.runs} runs would be equal, as there is no jitter", ("runs",),
            "leave runs out, or add jitter",
        )  # fmt: skip
    for number, other in enumerate(record.also):
        if other.ranks is not None and max(other.ranks) >= topology.num_ranks:
            raise place.no_rank(max(other.ranks), ("also", number, "ranks"))
    return Scenario(
        record.name, record.seed, record.runs or (DEFAULT_RUNS if random else 1), factors, down,
        tuple(_flows(record, place)), tuple(changes),
        {rank: time for rank, time in late.items() if time},
        {rank: factor for rank, factor in slow.items() if factor != 1},
        jitter.message, jitter.start, tuple(record.also), document,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Place:
    """Where edges and links are looked up, and errors told."""

    document: Document
    topology: Topology

    def edges(self, record: "_OnEdges", path: FieldPath) -> list[EdgeId]:
        """Return the edges that an entry names, in order, each once."""
        if (record.edge is None) == (record.link is None):
            both = record.edge is not None
            raise self.document.error(
                "edge and link are both given" if both else "needs an edge or a link", path,
                "write edge: 0->1, or link: 0-1 for all edges between two ranks",
            )  # fmt: skip
        if record.edge is None:
            links = self.links(record.link or "", (*path, "link"))
            every = (edge for link in links for edge in self.topology.links.edges_of(link))
            return list(dict.fromkeys(every))
        found = edges_called(self.topology, record.edge)
        if not found:
            names = ", ".join(edge.name for edge in self.topology.edges[:4])
            raise self.document.error(
                f"{self.topology.name} has no edge {shown(record.edge)}", (*path, "edge"),
                f"use names as taccl topology expand shows them ({names}, ...); * is any text",
            )  # fmt: skip
        return found

    def links(self, text: str, path: FieldPath) -> list[int]:
        """Return the links between two ranks, one way or both ways."""
        match, ranks = TWO_RANKS.fullmatch(text.strip()), self.topology.num_ranks
        if match is None:
            raise self.document.error(
                f"should be two ranks, got {shown(text)}", path, "write 0->1, or 0-1 for both ways"
            )
        src, dst = int(match[1]), int(match[3])
        if max(src, dst) >= ranks:
            raise self.no_rank(max(src, dst), path)
        ways = [(src, dst)] if match[2] == "->" else [(src, dst), (dst, src)]
        found = [link for way in ways for link in self.topology.links_between(*way)]
        if not found:
            raise self.document.error(
                f"{self.topology.name} has no link {src} -> {dst}", path,
                "name two ranks that are joined by wires or switches",
            )  # fmt: skip
        return found

    def no_rank(self, rank: int, path: FieldPath) -> InputError:
        last = self.topology.num_ranks - 1
        return self.document.error(f"there is no rank {rank}", path, f"use ranks from 0 to {last}")

    def resources(self, record: "_OnEdges", path: FieldPath) -> list[EdgeId]:
        """Return those edges of an entry that have a bandwidth, at least one."""
        named = self.edges(record, path)
        found = [edge for edge in named if self.topology.edges[edge].beta is not None]
        if not found:
            raise self.document.error(
                "has no bandwidth to lose: it only adds alpha", path,
                "name an edge with a bandwidth",
            )  # fmt: skip
        return found


_OnEdges = BackgroundRecord | DegradedRecord | ChangeRecord


def _factors(
    record: ScenarioFile, place: _Place
) -> tuple[dict[EdgeId, Fraction], dict[EdgeId, FieldPath]]:
    """Return what is left of edges throughout, and edges that are down with their places."""
    factors: dict[EdgeId, Fraction] = {}
    for number, flow in enumerate(record.background):
        path: FieldPath = ("background", number)
        messages = (flow.size, flow.period)
        if flow.share is None:
            if None in messages or flow.period == 0:
                raise place.document.error(
                    "needs a share, or a size and a period above 0", path,
                    "write share: 0.3, or size: 64KB and period: 10us",
                )  # fmt: skip
            continue
        if messages != (None, None) or flow.start:
            raise place.document.error(
                "share does not go with size, period and start", (*path, "share"),
                "write a share, or messages: size and period",
            )  # fmt: skip
        for edge in place.resources(flow, path):
            factors[edge] = factors.get(edge, Fraction(1)) - flow.share
            if factors[edge] <= 0:
                raise place.document.error(
                    f"nothing is left of edge {place.topology.edges[edge].name}", (*path, "share"),
                    "let all shares of an edge add up to less than 1",
                )  # fmt: skip
    down: dict[EdgeId, FieldPath] = {}
    for number, entry in enumerate(record.degraded):
        path = ("degraded", number)
        if (entry.factor is None) == (not entry.down):
            raise place.document.error(
                "needs either a factor or down: true", path, "write factor: 0.5, or down: true"
            )
        if entry.factor is None:
            down.update(dict.fromkeys(place.edges(entry, path), path))
            continue
        for edge in place.resources(entry, path):
            factors[edge] = factors.get(edge, Fraction(1)) * entry.factor
    return {edge: factor for edge, factor in factors.items() if factor != 1}, down


def _flows(record: ScenarioFile, place: _Place) -> Iterator[Flow]:
    """Yield a sender for each edge named, and for each link, which holds all its edges."""
    topology, made = place.topology, 0
    for number, flow in enumerate(record.background):
        path: FieldPath = ("background", number)
        if flow.size is None or flow.period is None:
            continue
        named = place.resources(flow, path)
        routes: list[tuple[tuple[EdgeId, ...], Time]] = [
            ((edge,), topology.edge_overhead(topology.edges[edge])) for edge in named
        ]
        if flow.link is not None:
            crossed = place.links(flow.link, (*path, "link"))
            routes = [
                (tuple(e for e in topology.links.edges_of(link) if e in named),
                 int(topology.links.overhead[link]))
                for link in crossed
            ]  # fmt: skip
        made += len(routes)
        if made > MAX_FLOWS:
            raise place.document.error(
                f"makes more than {MAX_FLOWS} senders", path, "name fewer edges"
            )
        for edges, overhead in routes:
            yield Flow(edges, overhead, flow.size, flow.period, flow.start)
