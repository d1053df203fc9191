"""Collectives as rows, and random ones from files: any sources and targets, uneven offsets."""

import random
from typing import Any, NamedTuple

from taccl.collectives import Collective
from taccl.collectives.file import CollectiveFile, make_collective
from taccl.files import Document, fit_model


class Chunk(NamedTuple):
    """One row of a collective; offsets are those of its columns."""

    id: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    input_at: int
    output_at: int


def chunks_of(collective: Collective) -> list[Chunk]:
    """Return the rows of a collective as records."""
    return [
        Chunk(i, collective.sources(i), collective.targets(i), int(at), int(to))
        for i, (at, to) in enumerate(zip(collective.input_at, collective.output_at, strict=True))
    ]


def custom(fields: dict[str, Any]) -> Collective:
    """Return the collective of a file's fields, less the head."""
    document = Document({"taccl": "collective/1", "name": "some", **fields}, "c.yaml")
    return make_collective(fit_model(document, CollectiveFile), document)


def random_custom(seed: int, ranks: int) -> Collective:
    """Return a collective of one to four chunks; every other one sums."""
    rng = random.Random(f"custom {seed}")
    free = {side: {r: rng.sample(range(6), 6) for r in range(ranks)} for side in ("in", "out")}
    chunks = []
    for number in range(rng.randint(1, 4)):
        sources = rng.sample(range(ranks), rng.choice([1, 1, rng.randint(1, ranks)]))
        targets = rng.sample(range(ranks), rng.choice([1, rng.randint(1, ranks)]))
        chunks.append({
            "id": number,
            "input": {rank: free["in"][rank].pop() for rank in sources},
            "output": {rank: free["out"][rank].pop() for rank in targets},
        })  # fmt: skip
    return custom({"ranks": ranks, "reduces": seed % 2 == 0, "chunks": chunks})
