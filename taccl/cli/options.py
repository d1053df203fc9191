"""Options that several commands share, and how their texts become values.

The names that options take are read from the source of the tables that are their one place. Help
texts and completion show them, and importing the tables would bring numpy and solvers with them. So
the rows are parsed, not run: a row that is added to a table is a name here.
"""

import ast
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from taccl.cli.help import (
    collective_option,
    listed,
    machine_option,
    output_option,
    say,
    shipped,
    states_of,
    told,
)
from taccl.errors import InputError, OutOfTimeError, did_you_mean
from taccl.timing.deadline import Deadline, hurry
from taccl.units import parse_size, parse_time

ROOT = Path(__file__).parents[1]


def keys_of(source: str, table: str) -> tuple[str, ...]:
    """Return the keys of the mapping, or the items of the tuple, that `source` calls `table`.

    The source is the text of a module; the table is assigned at its top level, with keys or items
    that are plain strings.

    Raises LookupError when there is no such table.
    """
    # Only the assignment is parsed, up to the next line that begins at the margin: it is quick.
    found = re.search(rf"^{table}\b.*?(?=^[^\s)\]}}]|\Z)", source, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"no table {table}")
    for node in ast.walk(ast.parse(found[0])):
        if isinstance(node, ast.Dict):
            return tuple(ast.literal_eval(key) for key in node.keys if key is not None)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"{table} is neither a mapping nor a tuple")


def _listed(*tables: str) -> str:
    """Return the names of tables, each ``path in taccl:NAME``, as help texts show them."""
    names: list[str] = []
    for path, _, table in (each.partition(":") for each in tables):
        names += keys_of((ROOT / path).read_text("utf-8"), table)
    return ", ".join(names)


COLLECTIVE_NAMES = _listed("collectives/__init__.py:COLLECTIVES")
ENGINE_NAMES = _listed(
    "synth/search.py:ENGINES", "synth/templates/classical.py:CLASSICAL",
    "synth/templates/in_network.py:IN_NETWORK",
)  # fmt: skip
RUNTIME_NAMES = _listed("msccl/runtimes.py:RUNTIMES")
PLAN_VERSION_NAMES = _listed("mscclpp/plan.py:VERSIONS")
PROTOCOL_NAMES = f"auto, {_listed('msccl/runtimes.py:PROTOCOLS')}"
RELAY_NAMES = _listed("topology/edit.py:RELAYS")
IN_NETWORK_NAMES = _listed("apps/inputs.py:IN_NETWORK_MODES")
ALPHA_RULE_NAMES = _listed("topology/graph.py:ALPHA_RULES")
PROFILE_NAMES = _listed("replay/cost.py:PROFILES")
RUN_DTYPE_NAMES = _listed("run/job.py:DTYPES")
KERNEL_NAMES = _listed("apps/measured.py:KERNELS_KNOWN")
FIT_NAMES = _listed("apps/calibration.py:FITTED")
RESULT_FORMAT_NAMES = _listed("report/tables.py:WRITERS")
COMPARISON_FORMAT_NAMES = _listed("report/comparison.py:COMPARED")
IMPORT_NAMES = _listed("imports/__init__.py:IMPORTS")
GPU_NAMES = _listed("imports/hosts.py:GPUS")
FABRIC_NAMES = _listed("topology/servers.py:FABRICS")
EXPORT_NAMES = _listed("report/export.py:EXPORTS")
CONVERSION_NAMES = _listed("apps/outputs.py:CONVERSIONS")
TIMES_EXPORT_NAMES = _listed("tuning/exports.py:EXPORTS")
BASE_NAMES = _listed("topology/taccl_costs.py:BASES")
TIME_UNIT_NAMES = _listed("topology/taccl_costs.py:TIME_UNITS")
COST_MODE_NAMES = _listed("topology/graph.py:COST_MODES")


DTYPE_BYTES = {
    "int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
"""nccl-tests' data types and their bytes."""

HURRY = 2.0
"""Seconds after which Ctrl-C ends what does not end by itself."""

Value = TypeVar("Value")


@dataclass
class Process:
    """Since when the program runs; None in a process of somebody else's."""

    started: Deadline | None = None

    def spent(self) -> float:
        """Return the seconds since the program began, once: later calls are of another one."""
        started, self.started = self.started, None
        return 0.0 if started is None else started.spent


PROCESS = Process()


def chosen(option: str, text: str, names: str) -> str:
    """Return the `text` of an `option` as one of `names`, separated by ", ", in any case.

    Raises InputError when it is none of them.
    """
    known = {name.lower(): name for name in names.split(", ")}
    if text.lower() not in known:
        raise InputError(
            f"should be one of {names}, got {text[:40]!r}", field=option,
            fix=f"{did_you_mean(text, known)}use one of these",
        )  # fmt: skip
    return known[text.lower()]


def one_of(names: str, option: str, told: str, heading: str = "Options") -> object:
    """Return an `option` that takes, and offers, one of `names`, separated by ", ", in any case.

    Help says what is `told`, with ``{}`` for the names, under a `heading` of GROUPS.
    """

    def callback(text: str | None) -> str | None:
        return None if text is None else chosen(option, text, names)

    return typer.Option(
        option, help=told.format(names), rich_help_panel=heading, callback=callback,
        autocompletion=listed(names),
    )  # fmt: skip


TopologyArgument = Annotated[
    str,
    typer.Argument(
        help="A topology file, the name of a shipped one, or a short form (torus2d:4x4).",
        show_default=False,
        autocompletion=shipped("topologies"),
    ),
]
CollectiveArgument = Annotated[
    str,
    typer.Argument(
        help=f"One of {COLLECTIVE_NAMES}, or a collective file.",
        show_default=False,
        autocompletion=listed(COLLECTIVE_NAMES),
    ),
]
Nodes = Annotated[
    int | None, machine_option("--nodes", min=1, help="Servers; overrides the file's count.")
]
Fabric = Annotated[
    str | None, machine_option("--fabric", help="Overrides the file's fabric: switch or rail.")
]
Ranks = Annotated[
    str | None,
    machine_option(
        "--ranks",
        help="A process group: its members in order (0-7 or 0,8); the machine is what they have.",
        show_default=False,
    ),
]
Relays = Annotated[
    str | None,
    machine_option(
        "--relays",
        help=f"Who may relay, and add, for --ranks: {RELAY_NAMES}, or ranks (8,9); left out:"
        " members.",
        autocompletion=listed(RELAY_NAMES),
        show_default=False,
    ),
]
AlphaRule = Annotated[
    str | None,
    one_of(ALPHA_RULE_NAMES, "--alpha-rule", "How alpha occupies a link: {}.", "Machine"),
]
InNetwork = Annotated[
    str,
    one_of(
        IN_NETWORK_NAMES, "--in-network",
        "Whether switches that can copy and add do: {}.", "Machine",
    ),
]  # fmt: skip
"""``auto``: where what is made can be carried out by the runtime."""
Profile = Annotated[
    str, one_of(PROFILE_NAMES, "--profile", "What messages are charged: {}.", "Machine")
]
DefaultProfile = Annotated[
    str | None,
    one_of(
        PROFILE_NAMES, "--profile",
        "What messages are charged: {}; left out: measured where the machine ships it.", "Machine",
    ),
]  # fmt: skip
Size = Annotated[
    str,
    collective_option(
        "--size", help="Buffer as nccl-tests counts it; 1MB is 1e6 bytes, 1MiB or 1M 2^20."
    ),
]
CostSketch = Annotated[
    str | None,
    machine_option("--sketch", help="For imported files with original costs, which depend on it."),
]
Begin = Annotated[
    str | None, collective_option("-b", "--begin", help="First size (K, M, G: powers of 2).")
]
End = Annotated[
    str | None, collective_option("-e", "--end", help="Last size (K, M, G: powers of 2).")
]
Factor = Annotated[
    int, collective_option("-f", "--factor", min=2, max=1024, help="From a size to the next.")
]
SizeOfChunks = Annotated[
    str | None,
    collective_option(
        "--size",
        help="Buffer as nccl-tests counts it; 1MB is 1e6 bytes, 1MiB or 1M 2^20. Left out: chunks"
        " of the topology's chunk_size, else 1MB.",
        show_default=False,
    ),
]
Root = Annotated[
    int | None,
    collective_option(
        "--root",
        help="The rank that broadcast and scatter start from, and reduce and gather end at; left"
        " out: 0.",
        show_default=False,
    ),
]
ReadyOver = Annotated[
    str | None,
    collective_option(
        "--ready-over",
        help="A producer makes chunk after chunk within so long (407us); the schedule starts on the"
        " first.",
    ),
]
NeededOver = Annotated[
    str | None,
    collective_option(
        "--needed-over",
        help="A consumer works on chunk after chunk for so long in all; the time includes it.",
    ),
]
Runtime = Annotated[str, one_of(f"{RUNTIME_NAMES}, none", "--runtime", "One of {}.", "Program")]
PLAN_RUNTIME = "mscclpp"
"""``--runtime`` that stands for plans of MSCCL++, in place of XML."""

PlanVersion = Annotated[
    str | None,
    one_of(
        PLAN_VERSION_NAMES, "--mscclpp-version", "MSCCL++ that reads plans: {}; left out: the last."
    ),
]
PlanOrRuntime = Annotated[
    str, one_of(f"{RUNTIME_NAMES}, {PLAN_RUNTIME}, none", "--runtime", "One of {}.", "Program")
]
Constants = Annotated[str, one_of(RUNTIME_NAMES, "--runtime", "Whose constants: {}.")]
Json = Annotated[bool, output_option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, output_option("--quiet", "-q", help="No progress on stderr.")]
Verbose = Annotated[
    bool,
    output_option(
        "--verbose",
        "-v",
        help="Every step on stderr, a line each with its seconds, on a terminal, too.",
    ),
]


def read(option: str, parse: Callable[[object], Value], text: object) -> Value:
    """Return the value that `parse` makes of an option's `text`; errors name the `option`.

    Raises InputError when the text can't be parsed.
    """
    try:
        return parse(text)
    except InputError as error:
        raise InputError(error.problem, field=option, fix=error.fix) from None


Group = tuple[tuple[int, ...], str | tuple[int, ...]]


def group_of(ranks: str | None, relays: str | None) -> Group | None:
    """Return the members of ``--ranks``, and who relays for them; None: there is no group.

    Raises InputError when `ranks` are none, or `relays` is given without them.
    """
    from taccl.files.model import parse_numbers

    members = None if ranks is None else read("--ranks", parse_numbers, ranks)
    if members is not None:
        if relays is None or relays.lower() in RELAY_NAMES.split(", "):
            return members, (relays or "members").lower()
        return members, read("--relays", parse_numbers, relays) or "all"
    if relays is not None:
        raise InputError("is for a group", field="--relays", fix="name its members with --ranks")
    return None


def size_of(text: str) -> int:
    """Return the bytes of ``--size``."""
    return read("--size", parse_size, text)


def sizes_of(begin: str | None, end: str | None, factor: int, size: str) -> list[int]:
    """Return the sizes of a sweep ``-b B -e E -f F`` in nccl-tests' syntax, or the one `size`.

    The texts are those of ``-b``, `begin`, ``-e``, `end`, and ``--size``; each size is `factor`
    times the one before.

    Raises InputError when the range is empty or only one end is given.
    """
    if begin is None and end is None:
        return [size_of(size)]
    first = read("-b", parse_size, begin if begin is not None else end)
    last = read("-e", parse_size, end if end is not None else begin)
    if first > last:
        raise InputError(
            f"should be at least -b ({first} bytes), got {last}", field="-e", fix="swap -b and -e"
        )
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


def time_of(option: str, text: str | None) -> int:
    """Return the picoseconds of an `option`; 0 where it is left out."""
    return 0 if text is None else read(option, parse_time, text)


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of ``--dtype``."""
    return DTYPE_BYTES[chosen("--dtype", dtype, ", ".join(DTYPE_BYTES))]


def chunk_count(text: str) -> int | None:
    """Return the value of ``--chunks``: a number, or None for auto.

    Raises InputError when it is neither.
    """
    if text.lower() == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 1024 or len(text) > 6:
        raise InputError(
            f"should be auto or a number from 1 to 1024, got {text[:40]!r}",
            field="--chunks",
            fix="write --chunks auto or --chunks 2",
        )
    return int(text)


@contextmanager
def interruptible(*outputs: Path | None) -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C sets; the second ends the program.

    The files and directories `outputs` are written meanwhile: the second Ctrl-C says which were.

    Raises OutOfTimeError: on the second Ctrl-C.
    """
    stop, before = threading.Event(), states_of(outputs)

    def interrupt(_number: int, _frame: object) -> None:
        if stop.is_set():
            # No error of the tool: engines answer those with their next candidate.
            raise KeyboardInterrupt
        # Set first: the next Ctrl-C may come while this one prints.
        stop.set()
        hurry(HURRY)
        say("interrupted: finishing with the best so far (again to give up)")

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    except KeyboardInterrupt:
        raise OutOfTimeError(told(before, states_of(outputs))) from None
    finally:
        signal.signal(signal.SIGINT, previous)
