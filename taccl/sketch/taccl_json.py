"""Sketches in the JSON form of TACCL (microsoft/taccl, ``taccl/examples/sketch``).

The meaning is that of TACCL's code: a chunk visits only ranks that lie on hop-count shortest paths
of the logical topology (``shortest_path_sets.py``); keys that TACCL does not read are ignored here,
too, with one warning.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt

from taccl.errors import TacclWarning
from taccl.files import Document, FileModel, field_name, fit_model
from taccl.files.model import MAX_RANKS, Index
from taccl.sketch.native import GpuMap, RelaysField, Sketch


class ForeignModel(FileModel):
    """A record that may hold fields we do not know."""

    model_config = ConfigDict(extra="allow", frozen=True, arbitrary_types_allowed=True)


class IntranodeRecord(ForeignModel):
    """``intranode_sketch``."""

    strategy: Annotated[Literal["none", "switch", "minmax", "maxmin"], Field(examples=['"none"'])]
    switches: Annotated[list[list[Index]], Field(max_length=4096, examples=["[[0, 1]]"])] = Field(
        default_factory=list
    )
    switch_hyperedge_strategy: Annotated[list[str], Field(examples=['["uc-min"]'])] = Field(
        default_factory=list
    )


class InternodeRecord(ForeignModel):
    """``internode_sketch``."""

    strategy: Annotated[Literal["relay"], Field(examples=['"relay"'])]
    internode_conn: Annotated[RelaysField, Field(examples=['{"1": [0]}'])]
    gpus_to_sender_rev_map: Annotated[GpuMap, Field(examples=['{"1": [0, 1]}'])] = ()
    enforce_ordering: StrictBool = False


class HyperparametersRecord(ForeignModel):
    """``hyperparameters``."""

    input_chunkup: Annotated[StrictInt, Field(ge=1, le=4096, examples=[1])]


class TacclSketchFile(ForeignModel):
    """A sketch in TACCL's JSON form."""

    nnodes: Annotated[StrictInt, Field(ge=1, le=MAX_RANKS, examples=[2])]
    intranode_sketch: Annotated[IntranodeRecord, Field(examples=['{"strategy": "none"}'])]
    internode_sketch: InternodeRecord | None = None
    symmetry_offsets: Annotated[
        list[Annotated[list[StrictInt], Field(min_length=2, max_length=2)]],
        Field(max_length=64, examples=["[[8, 16]]"]),
    ] = Field(default_factory=list)
    hyperparameters: Annotated[HyperparametersRecord, Field(examples=['{"input_chunkup": 1}'])]


_FIELDS = {
    "servers": ("nnodes",),
    "policy_members": ("intranode_sketch", "switches"),
    "relays": ("internode_sketch", "internode_conn"),
    "chunk_to_relay": ("internode_sketch", "gpus_to_sender_rev_map"),
    "symmetry": ("symmetry_offsets",),
}
_POLICIES = ("uc-min", "uc-max")


def is_taccl_json(value: object) -> bool:
    """Tell whether a document is a sketch in TACCL's form."""
    return isinstance(value, dict) and "taccl" not in value and "intranode_sketch" in value


def read_taccl_json(document: Document) -> Sketch:
    """Return the sketch of a document in TACCL's form.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, TacclSketchFile)
    names = list(_unknown(record, ()))
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        warnings.warn(
            f"{document.file}: fields that TACCL does not read are ignored:"
            f" {', '.join(names[:5])}{more}",
            TacclWarning,
            stacklevel=2,
        )
    intra, inter = record.intranode_sketch, record.internode_sketch
    if inter is None and record.nnodes > 1:
        raise document.error(
            f"is missing, with {record.nnodes} servers", ("internode_sketch",),
            'add "internode_sketch": {"strategy": "relay", "internode_conn": "direct-map"}',
        )  # fmt: skip
    senders: dict[int, list[int]] = {}
    for sender, gpus in inter.gpus_to_sender_rev_map if inter is not None else ():
        for gpu in gpus:
            senders.setdefault(gpu, []).append(sender)
    return Sketch(
        Path(document.file or "sketch").stem, document, _FIELDS,
        servers=record.nnodes,
        chunks_per_rank=record.hyperparameters.input_chunkup,
        policy_members=_policies(intra, document),
        switch_lists=(
            tuple(map(tuple, intra.switches)) if intra.strategy == "switch" else ()
        ),
        balance=intra.strategy if intra.strategy in ("minmax", "maxmin") else None,
        relays=inter.internode_conn if inter is not None else None,
        chunk_to_relay=tuple((gpu, tuple(senders[gpu])) for gpu in sorted(senders)),
        own_chunks_first=inter is not None and inter.enforce_ordering,
        offsets=tuple((offset, block) for offset, block in record.symmetry_offsets),
        on_shortest_paths=True,
    )  # fmt: skip


def _policies(
    intra: IntranodeRecord, document: Document
) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return the members and the policy of every switch; equal lists are one switch here."""
    if intra.strategy != "switch":
        return ()
    place = ("intranode_sketch", "switches")
    strategies = intra.switch_hyperedge_strategy
    if not intra.switches or len(strategies) not in (0, len(intra.switches)):
        raise document.error(
            f"{len(intra.switches)} switches with {len(strategies)} strategies", place,
            "list the GPUs of every switch, and one switch_hyperedge_strategy for each",
        )  # fmt: skip
    found: dict[tuple[int, ...], str] = {}
    for index, members in enumerate(intra.switches):
        key = tuple(sorted(set(members)))
        shared = [other for other in found if other != key and set(other) & set(key)]
        if shared or not key:
            raise document.error(
                "shares some GPUs, but not all, with another switch" if shared else "is empty",
                (*place, index), "make the lists equal or disjoint",
            )  # fmt: skip
        policy = strategies[index] if strategies else "free"
        found.setdefault(key, policy if policy in _POLICIES else "free")
    return tuple(sorted(found.items()))


def _unknown(record: FileModel, place: tuple[str, ...]) -> Iterator[str]:
    for name in record.model_extra or {}:
        yield field_name((*place, name))
    for name, value in record:
        if isinstance(value, FileModel):
            yield from _unknown(value, (*place, name))
