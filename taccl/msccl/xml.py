"""Programs as MSCCL XML text and back: exact inverses.

What is written satisfies the reader of all runtimes (``src/graph/xml.cc``), which is no XML
parser: one element a line, spaces only, double quotes, no prolog. What is read may be any tool's
file. XML is refused where it could do harm: document types, entities, huge files and numbers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol
from xml.etree.ElementTree import ParseError
from xml.sax.saxutils import quoteattr

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from taccl.errors import ProgramError
from taccl.msccl.elements import ENDLESS
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import PROTOCOLS, RUNTIMES, UNLIMITED
from taccl.msccl.tokens import as_bytes_text, is_endless

MAX_BYTES = 64 << 20
MAX_ELEMENTS = 300_000
"""Gpus, threadblocks and steps; a runtime's reader holds 4095 elements for each rank."""

MAX_RANKS = 65_536
MAX_NUMBER = (1 << 63) - 1
MAX_SMALL = 1_000_000_000
DEFAULT_MAX_BYTES = 1 << 27
"""What msccl takes when maxBytes is missing (``mscclGetAlgoFromXMLAndSetAlgo``)."""

MSCCL_MARK = "written for the msccl runtime: maxBytes is exclusive"
"""Comment that tells the reader how to take maxBytes; the runtimes skip comments."""

_NAMES: Mapping[str, str] = MappingProxyType({
    spelling: name
    for runtime in RUNTIMES.values()
    for name, spelling in runtime.collectives.items()
})  # fmt: skip
_NO_SOURCE = Slot(Buffer.INPUT, 0)
_NO_TARGET = Slot(Buffer.OUTPUT, 0)
_NOP_SOURCE = Slot(Buffer.INPUT, -1)
_NOP_TARGET = Slot(Buffer.OUTPUT, -1)


def write_xml(program: Program, runtime: str = "portable") -> str:
    """Return the text of a program for a runtime.

    Parameters
    ----------
    program
        What is written.
    runtime
        A name of ``RUNTIMES``, or ``portable``: for all that load such a file.
    """
    return "\n".join(_lines(program, runtime)) + "\n"


def _lines(program: Program, runtime: str) -> Iterator[str]:
    exclusive = RUNTIMES[runtime].exclusive_max_bytes
    if exclusive:
        yield f"<!-- {MSCCL_MARK} -->"
    spelling = RUNTIMES[runtime].collectives.get(program.collective, program.collective)
    yield _element(
        "algo", name=program.name, proto=program.protocol, nchannels=program.channels,
        nchunksperloop=program.chunks_per_loop, ngpus=program.num_ranks, coll=spelling,
        inplace=int(program.in_place), outofplace=int(program.out_of_place),
        minBytes=program.min_bytes, maxBytes=program.max_bytes + int(exclusive),
    )  # fmt: skip
    for gpu in program.gpus:
        yield "  " + _element(
            "gpu", id=gpu.rank, i_chunks=gpu.input_chunks, o_chunks=gpu.output_chunks,
            s_chunks=gpu.scratch_chunks,
        )  # fmt: skip
        for block in gpu.threadblocks:
            yield "    " + _element(
                "tb", id=block.id, send=_peer(block.send_to), recv=_peer(block.recv_from),
                chan=block.channel,
            )  # fmt: skip
            yield from (_step_line(number, step) for number, step in enumerate(block.steps))
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _element(tag: str, *, end: str = "", **values: object) -> str:
    attributes = "".join(f" {name}={_quoted(value)}" for name, value in values.items())
    return f"<{tag}{attributes}{end}>"


def _quoted(value: object) -> str:
    if isinstance(value, int):
        return f'"{value}"'
    # quoteattr would switch to single quotes, which the runtimes' reader does not know.
    quoted = quoteattr(str(value), {'"': "&quot;"})
    return quoted if quoted.startswith('"') else f'"{quoted[1:-1]}"'


def _peer(rank: int | None) -> int:
    return -1 if rank is None else rank


def _step_line(number: int, step: Step) -> str:
    nop = step.op is Op.NOP
    src = step.src or (_NOP_SOURCE if nop else _NO_SOURCE)
    dst = step.dst or (_NOP_TARGET if nop else _NO_TARGET)
    depends = step.depends or StepRef(-1, -1)
    return "      " + _element(
        "step", end="/", s=number, type=step.op.value, srcbuf=src.buffer.value, srcoff=src.offset,
        dstbuf=dst.buffer.value, dstoff=dst.offset, cnt=step.count, depid=depends.threadblock,
        deps=depends.step, hasdep=int(step.posts),
    )  # fmt: skip


Attributes = dict[str, str]


class _Expat(Protocol):
    @property
    def CurrentLineNumber(self) -> int: ...  # noqa: N802 - expat's own name


@dataclass(slots=True)
class _OpenBlock:
    """A threadblock whose steps are being read."""

    head: Threadblock
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class _OpenGpu:
    """A gpu whose threadblocks are being read."""

    head: Gpu
    blocks: list[_OpenBlock] = field(default_factory=list)


class _Reader:
    """Target of the XML parser: collects elements one by one, whatever their depth."""

    def __init__(self, file: str | None, runtime: str | None) -> None:
        self.file = file
        self.runtime = runtime
        self.expat: _Expat | None = None
        self.path: list[str] = []
        self.head: Program | None = None
        self.ranks = 0
        self.gpus: dict[int, _OpenGpu] = {}
        self.open: _OpenGpu | None = None
        self.elements = 0

    def error(self, problem: str, fix: str) -> ProgramError:
        """Return an error at the current line."""
        line = None if self.expat is None else self.expat.CurrentLineNumber
        return ProgramError(problem, file=self.file, line=line, fix=fix)

    def comment(self, text: str) -> None:
        """Take the note of our own writer that the file is for msccl."""
        if text.strip() == MSCCL_MARK and self.runtime is None:
            self.runtime = "msccl"

    def start(self, tag: str, attributes: Attributes) -> None:
        """Take an element; unknown ones are skipped with all they hold, as runtimes do."""
        if not self.path and tag != "algo":
            raise self.error(f"the file starts with <{tag[:40]}>, not <algo>", "give an MSCCL XML")
        expected = _LEVELS[len(self.path)] if len(self.path) < len(_LEVELS) else ""
        known = tag == expected and tuple(self.path) == _LEVELS[: len(self.path)]
        self.path.append(tag if known else "")
        if known:
            self.elements += 1
            if self.elements > MAX_ELEMENTS:
                raise self.error(
                    f"more than {MAX_ELEMENTS} gpus, threadblocks and steps",
                    "give a program that a runtime could hold",
                )
            _START[tag](self, attributes)

    def end(self, tag: str) -> None:  # noqa: ARG002 - the parser passes the tag
        """Leave an element."""
        self.path.pop()

    def close(self) -> None:
        """End the document."""

    def integer(
        self, attributes: Attributes, name: str, low: int, high: int, default: int | None = None
    ) -> int:
        """Return an attribute as a whole number of a range."""
        text = attributes.get(name)
        common = _COMMON.get(text) if text is not None else None
        if common is not None and low <= common <= high:
            return common
        element = next((tag for tag in reversed(self.path) if tag), "algo")
        if text is None:
            if default is not None:
                return default
            raise self.error(f"<{element}> has no {name}", f'add {name}="..."')
        if not re.fullmatch(r" *-?(0|[1-9][0-9]{0,18})", text):
            raise self.error(
                f"{name} of <{element}> should be a whole number, got {text[:40]!r}",
                "write a decimal number without leading zeros",
            )
        value = int(text)
        if not low <= value <= high:
            raise self.error(
                f"{name} of <{element}> should be from {low} to {high}, got {value}",
                "correct the number",
            )
        return value

    def word(self, attributes: Attributes, name: str, known: Mapping[str, str]) -> str:
        """Return what a table says for the text of an attribute."""
        text = attributes.get(name)
        if text is None or text not in known:
            found = f"has no {name}" if text is None else f"has an unknown {name} {text[:40]!r}"
            element = next((tag for tag in reversed(self.path) if tag), "algo")
            raise self.error(f"<{element}> {found}", f"use one of {', '.join(known)}")
        return known[text]


_LEVELS = ("algo", "gpu", "tb", "step")
_COMMON: Mapping[str, int] = MappingProxyType({str(number): number for number in range(-1, 4096)})
"""Most numbers of a program, for speed: the others are parsed with care."""


def _start_algo(reader: _Reader, attributes: Attributes) -> None:
    """Read everything of a program but its gpus."""
    integer = partial(reader.integer, attributes)
    name = attributes.get("name", "")
    collective = reader.word(attributes, "coll", _NAMES)
    protocol = reader.word(attributes, "proto", _PROTOCOLS)
    in_place = bool(integer("inplace", -MAX_SMALL, MAX_SMALL))
    if "outofplace" not in attributes or attributes["coll"] == "reduce_scatter":
        reader.runtime = reader.runtime or "msccl"
    exclusive = RUNTIMES[reader.runtime or "portable"].exclusive_max_bytes
    out_of_place = bool(integer("outofplace", -MAX_SMALL, MAX_SMALL, default=int(not in_place)))
    max_bytes = integer("maxBytes", 0, MAX_NUMBER, default=DEFAULT_MAX_BYTES)
    if exclusive:
        max_bytes -= 1
    elif max_bytes == 0:
        max_bytes = UNLIMITED
    reader.ranks = integer("ngpus", 1, MAX_RANKS)
    reader.head = Program(
        name, collective, protocol, in_place, out_of_place,
        integer("nchannels", 0, MAX_SMALL), integer("nchunksperloop", 1, MAX_SMALL),
        integer("minBytes", 0, MAX_NUMBER, default=0), max_bytes, (),
    )  # fmt: skip


def _start_gpu(reader: _Reader, attributes: Attributes) -> None:
    integer = partial(reader.integer, attributes)
    rank = integer("id", 0, reader.ranks - 1)
    if rank in reader.gpus:
        raise reader.error(f"gpu {rank} occurs twice", "give every gpu an id of its own")
    inputs, outputs, scratch = (
        integer(name, 0, MAX_SMALL) for name in ("i_chunks", "o_chunks", "s_chunks")
    )
    reader.open = reader.gpus[rank] = _OpenGpu(Gpu(rank, inputs, outputs, scratch))


def _start_block(reader: _Reader, attributes: Attributes) -> None:
    integer = partial(reader.integer, attributes)
    send, recv = (integer(name, -1, MAX_SMALL) for name in ("send", "recv"))
    head = Threadblock(
        integer("id", 0, MAX_SMALL),
        None if send < 0 else send,
        None if recv < 0 else recv,
        integer("chan", -1, MAX_SMALL),
    )
    if reader.open is not None:
        reader.open.blocks.append(_OpenBlock(head))


def _start_step(reader: _Reader, attributes: Attributes) -> None:
    integer = partial(reader.integer, attributes)
    integer("s", 0, MAX_SMALL)
    op = Op(reader.word(attributes, "type", _OPS))
    src, dst = (
        Slot(
            Buffer(reader.word(attributes, f"{end}buf", _BUFFERS)),
            integer(f"{end}off", -1, MAX_SMALL),
        )
        for end in ("src", "dst")
    )
    awaited, position = (integer(name, -1, MAX_SMALL) for name in ("depid", "deps"))
    step = Step(
        op,
        src if op in READS_SOURCE else None,
        dst if op in WRITES_TARGET else None,
        integer("cnt", 0, MAX_SMALL),
        None if awaited < 0 else StepRef(awaited, position),
        bool(integer("hasdep", 0, 1)),
    )
    if reader.open is not None and reader.open.blocks:
        reader.open.blocks[-1].steps.append(step)


_OPS: Mapping[str, str] = MappingProxyType({op.value: op.value for op in Op})
_BUFFERS: Mapping[str, str] = MappingProxyType({buffer.value: buffer.value for buffer in Buffer})
_PROTOCOLS: Mapping[str, str] = MappingProxyType({name: name for name in PROTOCOLS})
_START: Mapping[str, Callable[[_Reader, Attributes], None]] = MappingProxyType({
    "algo": _start_algo, "gpu": _start_gpu, "tb": _start_block, "step": _start_step,
})  # fmt: skip


def read_xml(text: str | bytes, *, file: str | None = None, runtime: str | None = None) -> Program:
    """Return the program that a text describes.

    Parameters
    ----------
    text
        The file's content.
    file
        What errors call it.
    runtime
        Whose dialect it is; None: msccl when the file says so, spells ``reduce_scatter`` or has
        no outofplace attribute, else that of the others.

    Raises
    ------
    ProgramError
        When it is no MSCCL XML, with the line.
    """
    if len(text) > MAX_BYTES:
        raise ProgramError(
            f"the file has more than {MAX_BYTES >> 20} MiB", file=file, fix="give an MSCCL XML"
        )
    if is_endless(as_bytes_text(text)):
        raise ProgramError(ENDLESS, file=file, fix="give an MSCCL XML")
    reader = _Reader(file, runtime)
    try:
        parser = DefusedXMLParser(target=reader, forbid_dtd=True)
        reader.expat = parser.parser
        parser.feed(text)
        parser.close()
    except DefusedXmlException:
        raise reader.error(
            "document types and entities are refused", "remove the DOCTYPE"
        ) from None
    except ParseError as error:
        raise reader.error(f"no XML: {error}", "give an MSCCL XML") from None
    except (ValueError, LookupError) as error:
        raise reader.error(f"unreadable text: {error}", "save the file as UTF-8") from None
    if reader.head is None:
        raise reader.error("the file has no <algo>", "give an MSCCL XML")
    return replace(reader.head, gpus=tuple(_gpu(reader, rank) for rank in range(reader.ranks)))


def _gpu(reader: _Reader, rank: int) -> Gpu:
    """Return a rank's part; the runtimes take a rank without element as one without work."""
    found = reader.gpus.get(rank)
    if found is None:
        return Gpu(rank, 0, 0, 0)
    blocks = sorted(found.blocks, key=lambda block: block.head.id)
    return replace(
        found.head,
        threadblocks=tuple(replace(block.head, steps=tuple(block.steps)) for block in blocks),
    )
