"""The index of a library: what ``taccl tune`` writes and ``taccl explain`` reads."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from taccl.files import FileModel

Text = Annotated[StrictStr, Field(max_length=4000)]
Count = Annotated[StrictInt, Field(ge=0, le=1 << 62)]
Number = StrictFloat | StrictInt

MAX_ENTRIES = 10_000
"""Entries of each list."""


class LibraryTopology(FileModel):
    """The machine that a library is for."""

    name: Text
    ranks: Count
    servers: Count
    alpha_rule: Text
    sha256: Text


class LibrarySketch(FileModel):
    """A sketch that candidates were made under."""

    name: Text
    sha256: Text


class LibraryRange(FileModel):
    """Sizes that one file serves, or the runtime's own algorithm."""

    min_bytes: Count
    max_bytes: Count
    file: Text | None
    served_by: Literal["file", "nccl", "nothing"]
    why: Text
    engine: Text | None = None
    made_for_bytes: Count | None = None
    chunks: Count | None = None
    batch: bool | None = None
    sketch: Text | None = None
    instances: Count | None = None
    protocol: Text | None = None
    seed: Count | None = None
    effort: Number | None = None
    modes: Annotated[tuple[Text, ...], Field(max_length=2)] = ()
    divisor_bytes: Count | None = None
    safe_up_to_bytes: Count | None = None
    verified_at_bytes: Annotated[tuple[Count, ...], Field(max_length=2)] = ()
    steps: Count | None = None
    threadblocks: Count | None = None
    sha256: Text | None = None


class LibrarySize(FileModel):
    """What was found at one size of the run."""

    size_bytes: Count
    file: Text | None
    time_us: Number | None
    bound_us: Number | None
    bound_kind: Text | None
    gap: Number | None
    best_us: Number | None
    over_best: Number | None
    classical: Text | None
    classical_us: Number | None
    over_classical: Number | None
    bound_over_classical: Number | None
    nccl: Text | None
    nccl_us: Number | None


class LibraryFailure(FileModel):
    """A candidate that cost a worker, or met a fault of an engine."""

    candidate: Text
    reason: Text


class LibraryCandidates(FileModel):
    """How many candidates there were."""

    searched: Count
    classical: Count
    programs: Count
    without_program: Count
    failed: Annotated[tuple[LibraryFailure, ...], Field(max_length=MAX_ENTRIES)] = ()


class LibraryCollective(FileModel):
    """Who serves one collective."""

    collective: Text
    call: Text
    ranges: Annotated[tuple[LibraryRange, ...], Field(max_length=MAX_ENTRIES)]
    sizes: Annotated[tuple[LibrarySize, ...], Field(max_length=MAX_ENTRIES)]
    candidates: LibraryCandidates


class LibraryBudget(FileModel):
    """How much was searched: one of the two."""

    candidates: Count | None = None
    time_limit_s: Number | None = None


class LibraryFile(FileModel):
    """The file ``index.json`` of a library."""

    taccl: Literal["library/1"]
    topology: LibraryTopology
    sketches: Annotated[tuple[LibrarySketch, ...], Field(max_length=MAX_ENTRIES)]
    runtime: Text
    protocols: Annotated[tuple[Text, ...], Field(max_length=10)]
    sizes: Annotated[tuple[Count, ...], Field(max_length=MAX_ENTRIES)]
    slack_percent: Count
    budget: LibraryBudget
    seed: Count
    interrupted: StrictBool
    model: Text
    nccl_model: Text | None
    versions: dict[str, Text]
    code_sha256: Text
    collectives: Annotated[tuple[LibraryCollective, ...], Field(max_length=MAX_ENTRIES)]
