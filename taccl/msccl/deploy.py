"""How a file gets to a runtime: environment variables, directories, and what goes wrong there.

The functions behind the rows: ``mscclGetAllAlgoFromXMLFilesAndSetInfo`` and ``ncclTopoTuneModel``
of msccl, ``mscclSchedulerInit``, ``mscclInternalSchedulerInit`` and ``mscclInit`` of executor and
rccl (``src/misc/msccl/msccl_lifecycle.cc``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from taccl.msccl.program import Program
from taccl.msccl.runtimes import LOADED_BY, UNLIMITED


@dataclass(frozen=True, slots=True)
class Note:
    """A variable or a pitfall, and the programs it is for."""

    text: str
    when: Callable[[Program], bool] = lambda _program: True


def _uses_ll128(program: Program) -> bool:
    return program.protocol == "LL128"


@dataclass(frozen=True, slots=True)
class Deployment:
    """How one runtime finds files.

    `variables` are ``NAME=value``, where ``{path}`` and ``{directory}`` stand for the file and its
    directory; without those `needed` the file is silently not used. `pitfalls` are what users run
    into; ``{chunks}`` stands for the file's ``nchunksperloop``. `version` has the versions that run
    files, after a comma; empty: all.
    """

    variables: tuple[Note, ...]
    needed: tuple[Note, ...]
    pitfalls: tuple[Note, ...]
    version: str = ""


_EVERYWHERE = (
    Note("every node needs the same files in the same order: ranks that differ hang"),
    Note(
        "element counts that are not a multiple of {chunks} fall back to NCCL",
        lambda program: program.chunks_per_loop > 1,
    ),
    Note(
        "no file names a root: this one answers calls for every root",
        lambda program: program.collective in {"broadcast", "reduce", "gather", "scatter"},
    ),
    Note(
        "LL128 is right where stores of 128 bytes stay whole, as on NVLink; else use LL",
        _uses_ll128,
    ),
    Note(
        "only one of in place and out of place is served",
        lambda program: program.in_place != program.out_of_place,
    ),
)
_DIRECTORY = (
    Note("keep other files out of MSCCL_ALGO_DIR: the loader stops at the first it can't parse"),
    Note(
        "the range of sizes has no end: files after this one get no call",
        lambda program: program.max_bytes >= UNLIMITED,
    ),
)

ROCM = "ROCm 7.2 or older"
"""RCCL's MSCCL is deprecated and off by default in ROCm 7.11, and gone in 7.13 (RCCL 2.28.3)."""

DEPLOYMENTS: Mapping[str, Deployment] = MappingProxyType({
    "msccl": Deployment(
        (Note("MSCCL_XML_FILES={path}"),),
        (
            Note("NCCL_ALGO=MSCCL,RING,TREE", lambda program: program.collective == "allreduce"),
            Note("NCCL_PROTO=Simple,LL,LL128", _uses_ll128),
        ),
        (
            Note("MSCCL_XML_FILES takes up to 4 paths, with colons between them"),
            *_EVERYWHERE,
        ),
    ),
    "executor": Deployment(
        (Note("MSCCL_ALGO_DIR={directory}"),), (),
        (
            *_DIRECTORY,
            Note("two ranks in one process turn MSCCL off"),
            *_EVERYWHERE,
        ),
    ),
    "rccl": Deployment(
        (Note("MSCCL_ALGO_DIR={directory}"),),
        (Note("RCCL_MSCCL_ENABLE=1"), Note("RCCL_MSCCL_FORCE_ENABLE=1")),
        (
            Note(f"needs {ROCM}: RCCL 2.28.3 (ROCm 7.13) has no MSCCL"),
            *_DIRECTORY,
            Note("files are tried in no fixed order: ranges of sizes must not overlap"),
            Note("several ranks in a process need RCCL_MSCCL_ENABLE_SINGLE_PROCESS=1"),
            *_EVERYWHERE,
        ),
        f", {ROCM}",
    ),
})  # fmt: skip
"""Where every runtime looks for files."""


def needs(program: Program, runtime: str) -> tuple[str, ...]:
    """Return the variables without which `runtime`, of RUNTIMES, takes no notice of `program`."""
    return tuple(note.text for note in DEPLOYMENTS[runtime].needed if note.when(program))


def deployment(program: Program, runtime: str, path: Path) -> dict[str, dict[str, list[str]]]:
    """Return ``environment`` and ``pitfalls`` of a file for each runtime that loads it.

    The file of `program` is written at `path` for a `runtime`, of ``RUNTIMES``, or what several of
    them load; a portable reduce-scatter is written for msccl beside it, too.
    """
    paths = dict.fromkeys(LOADED_BY.get(runtime, (runtime,)), path)
    if runtime in LOADED_BY and program.collective == "reducescatter":
        paths["msccl"] = path.with_suffix(f".msccl{path.suffix}")
    files = set(paths.values())
    return {
        name: {
            "environment": [
                note.text.format(path=file.absolute(), directory=file.absolute().parent)
                for note in (*DEPLOYMENTS[name].variables, *DEPLOYMENTS[name].needed)
                if note.when(program)
            ],
            "pitfalls": [
                *(
                    f"move {other.name} to another directory"
                    for other in files - {file}
                    if name != "msccl"
                ),
                *(
                    note.text.format(chunks=program.chunks_per_loop)
                    for note in DEPLOYMENTS[name].pitfalls
                    if note.when(program)
                ),
            ],
        }
        for name, file in paths.items()
    }


def deployment_lines(program: Program, runtime: str, path: Path) -> list[str]:
    """Return the lines that people read: variables for each runtime, then each pitfall once.

    `program`, `runtime` and `path` are those of :func:`deployment`.
    """
    found = deployment(program, runtime, path)
    lines = [
        f"  load with   {' '.join(row['environment'])} ({name}{DEPLOYMENTS[name].version})"
        for name, row in found.items()
    ]
    told: dict[str, list[str]] = {}
    for name, row in found.items():
        for text in row["pitfalls"]:
            told.setdefault(text, []).append(name)
    for text, names in told.items():
        only = "" if len(names) == len(found) else f" ({', '.join(names)})"
        lines.append(f"  note        {text}{only}")
    return lines
