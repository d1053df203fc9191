"""Options that several commands share, and how their texts become values."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from taccl.cli.help import COLLECTIVE, MACHINE, OUTPUT, PROGRAM, listed, shipped
from taccl.cli.names import ALPHA_RULE_NAMES, COLLECTIVE_NAMES, RUNTIME_NAMES
from taccl.cli.output import say, states_of, told
from taccl.errors import InputError, OutOfTimeError, did_you_mean
from taccl.timing.deadline import Deadline, hurry
from taccl.units import parse_size

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
    int | None,
    typer.Option(
        "--nodes", min=1, help="Servers; overrides the file's count.", rich_help_panel=MACHINE
    ),
]
Fabric = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        help="Overrides the file's fabric: switch or rail.",
        rich_help_panel=MACHINE,
    ),
]
AlphaRule = Annotated[
    str | None,
    typer.Option(
        "--alpha-rule",
        help=f"How alpha occupies a link: {ALPHA_RULE_NAMES}.",
        autocompletion=listed(ALPHA_RULE_NAMES),
        rich_help_panel=MACHINE,
    ),
]
Size = Annotated[
    str,
    typer.Option(
        "--size",
        help="Buffer as nccl-tests counts it; 1MB is 1e6 bytes, 1MiB or 1M 2^20.",
        rich_help_panel=COLLECTIVE,
    ),
]
CostSketch = Annotated[
    str | None,
    typer.Option(
        "--sketch",
        help="For imported files with original costs, which depend on it.",
        rich_help_panel=MACHINE,
    ),
]
Begin = Annotated[
    str | None,
    typer.Option(
        "-b", "--begin", help="First size (K, M, G: powers of 2).", rich_help_panel=COLLECTIVE
    ),
]
End = Annotated[
    str | None,
    typer.Option(
        "-e", "--end", help="Last size (K, M, G: powers of 2).", rich_help_panel=COLLECTIVE
    ),
]
Factor = Annotated[
    int,
    typer.Option(
        "-f", "--factor", min=2, max=1024, help="From a size to the next.",
        rich_help_panel=COLLECTIVE,
    ),
]  # fmt: skip
SizeOfChunks = Annotated[
    str | None,
    typer.Option(
        "--size",
        help="Buffer as nccl-tests counts it; 1MB is 1e6 bytes, 1MiB or 1M 2^20. Left out: chunks"
        " of the topology's chunk_size, else 1MB.",
        show_default=False,
        rich_help_panel=COLLECTIVE,
    ),
]
Root = Annotated[
    int | None,
    typer.Option(
        "--root",
        help="The rank that broadcast and scatter start from, and reduce and gather end at; left"
        " out: 0.",
        show_default=False,
        rich_help_panel=COLLECTIVE,
    ),
]
Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help=f"One of {RUNTIME_NAMES}, none.",
        autocompletion=listed(f"{RUNTIME_NAMES}, none"),
        rich_help_panel=PROGRAM,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=OUTPUT)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v",
        help="Every step on stderr, a line each with its seconds, on a terminal, too.",
        rich_help_panel=OUTPUT,
    ),
]  # fmt: skip


def read(option: str, parse: Callable[[object], Value], text: object) -> Value:
    """Return an option's value; errors name the option.

    Parameters
    ----------
    option
        Its name, ``--size``.
    parse
        Turns text into the value; raises InputError.
    text
        What was given.

    Raises
    ------
    InputError
        When the text can't be parsed.
    """
    try:
        return parse(text)
    except InputError as error:
        raise InputError(error.problem, field=option, fix=error.fix) from None


def size_of(text: str) -> int:
    """Return the bytes of ``--size``."""
    return read("--size", parse_size, text)


def sizes_of(begin: str | None, end: str | None, factor: int, size: str) -> list[int]:
    """Return the sizes of a sweep ``-b B -e E -f F`` in nccl-tests' syntax, or the one size.

    Parameters
    ----------
    begin, end
        Text of ``-b`` and ``-e``.
    factor
        Of each size to the one before.
    size
        Text of ``--size``.

    Raises
    ------
    InputError
        When the range is empty or only one end is given.
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


def chosen(option: str, text: str, names: str) -> str:
    """Return one of the comma-separated names, by any case.

    Parameters
    ----------
    option
        Its name.
    text
        What was given.
    names
        Separated by a comma and a space.

    Raises
    ------
    InputError
        When it is none of them.
    """
    known = {name.lower(): name for name in names.split(", ")}
    if text.lower() not in known:
        raise InputError(
            f"should be one of {names}, got {text[:40]!r}", field=option,
            fix=f"{did_you_mean(text, known)}use {names}",
        )  # fmt: skip
    return known[text.lower()]


def chosen_if_given(option: str, text: str | None, names: str) -> str | None:
    """Return one of the comma-separated names, by any case; None where the option is left out.

    Parameters
    ----------
    option, text, names
        As for :func:`chosen`.

    Raises
    ------
    InputError
        When it is none of them, as nothing at all is.
    """
    return None if text is None else chosen(option, text, names)


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of ``--dtype``."""
    return DTYPE_BYTES[chosen("--dtype", dtype, ", ".join(DTYPE_BYTES))]


def chunk_count(text: str) -> int | None:
    """Return the value of ``--chunks``: a number, or None for auto.

    Raises
    ------
    InputError
        When it is neither.
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

    Parameters
    ----------
    outputs
        Files and directories that are written meanwhile: the second Ctrl-C says which were.

    Raises
    ------
    OutOfTimeError
        On the second Ctrl-C.
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
