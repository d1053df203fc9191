"""Programs as MSCCL XML text and back: exact inverses.

What is written satisfies the reader of all runtimes (``src/graph/xml.cc``), which is no XML
parser: one element a line, spaces only, double quotes, no prolog. What is read may be any tool's
file. XML is refused where it could do harm: document types, entities, huge files and numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import escape

from taccl.errors import ProgramError
from taccl.files.xml import Element, RefusedError, XmlBounds, read_tree
from taccl.msccl.parser import COMMON
from taccl.msccl.program import (
    BUFFER_OF,
    OP_OF,
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
from taccl.msccl.runtimes import DEFAULT_MAX_BYTES, MAX_RANKS, PROTOCOLS, RUNTIMES, UNLIMITED

Word = TypeVar("Word")

MAX_BYTES = 64 << 20
MAX_ELEMENTS = 300_000
"""Gpus, threadblocks and steps; a runtime's reader holds 4095 elements for each rank."""

MAX_NUMBER = (1 << 63) - 1
MAX_SMALL = 1_000_000_000
MSCCL_MARK = "written for the msccl runtime: maxBytes is exclusive"
"""Comment that tells the reader how to take maxBytes; the runtimes skip comments."""

_NAMES: Mapping[str, str] = MappingProxyType({
    spelling: name
    for runtime in RUNTIMES.values()
    for name, spelling in runtime.collectives.items()
})  # fmt: skip


def write_xml(program: Program, runtime: str = "portable") -> str:
    """Return the text of `program` for `runtime`, a name of RUNTIMES; ``portable``: for all."""
    exclusive = RUNTIMES[runtime].exclusive_max_bytes
    lines = [f"<!-- {MSCCL_MARK} -->"] if exclusive else []
    lines.append(_tag(
        "algo", name=program.name, proto=program.protocol, nchannels=program.channels,
        nchunksperloop=program.chunks_per_loop, ngpus=program.num_ranks,
        coll=RUNTIMES[runtime].collectives.get(program.collective, program.collective),
        inplace=int(program.in_place), outofplace=int(program.out_of_place),
        minBytes=program.min_bytes, maxBytes=program.max_bytes + int(exclusive),
    ))  # fmt: skip
    for gpu in program.gpus:
        lines.append("  " + _tag(
            "gpu", id=gpu.rank, i_chunks=gpu.input_chunks, o_chunks=gpu.output_chunks,
            s_chunks=gpu.scratch_chunks,
        ))  # fmt: skip
        for block in gpu.threadblocks:
            lines.append("    " + _tag(
                "tb", id=block.id, send=-1 if block.send_to is None else block.send_to,
                recv=-1 if block.recv_from is None else block.recv_from, chan=block.channel,
            ))  # fmt: skip
            for number, step in enumerate(block.steps):
                none = -1 if step.op is Op.NOP else 0
                src = step.src or Slot(Buffer.INPUT, none)
                dst = step.dst or Slot(Buffer.OUTPUT, none)
                depends = step.depends or StepRef(-1, -1)
                # The many lines of a program: nothing in them needs escapes.
                lines.append(
                    f'      <step s="{number}" type="{step.op.value}" srcbuf="{src.buffer.value}"'
                    f' srcoff="{src.offset}" dstbuf="{dst.buffer.value}" dstoff="{dst.offset}"'
                    f' cnt="{step.count}" depid="{depends.threadblock}" deps="{depends.step}"'
                    f' hasdep="{int(step.posts)}"/>'
                )
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _tag(tag: str, **values: int | str) -> str:
    # The runtimes' reader knows no single quotes, to which quoteattr would switch.
    attributes = (
        f' {key}="{value if isinstance(value, int) else escape(value, _ESCAPES)}"'
        for key, value in values.items()
    )
    return f"<{tag}{''.join(attributes)}>"


_ESCAPES = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
_LEVELS = ("algo", "gpu", "tb", "step")
_PROTOCOLS: Mapping[str, str] = {name: name for name in PROTOCOLS}


def read_xml(text: str | bytes, *, file: str | None = None, runtime: str | None = None) -> Program:
    """Return the program that a text describes.

    Errors call the `text` `file`. `runtime` is whose dialect it is; None: msccl when the file says
    so, spells ``reduce_scatter`` or has no outofplace attribute, else that of the others.

    Raises ProgramError when it is no MSCCL XML, with the line.
    """
    bounds = XmlBounds(
        MAX_BYTES, MAX_ELEMENTS, len(_LEVELS), "gpus, threadblocks and steps",
        "give a program that a runtime could hold", text=True,
    )  # fmt: skip
    try:
        algo, comments = read_tree(text, bounds, _is_known)
        if runtime is None and any(comment.strip() == MSCCL_MARK for comment in comments):
            runtime = "msccl"
        return _program(algo, runtime)
    except RefusedError as error:
        raise ProgramError(str(error), file=file, line=error.line, fix=error.fix) from None
    except ExpatError as error:
        raise ProgramError(
            f"no XML: {error}", file=file, line=error.lineno, fix="give an MSCCL XML"
        ) from None


def _is_known(level: int, tag: str) -> bool:
    """Tell whether an element means something; runtimes skip others with all they hold."""
    if level == 0 and tag != "algo":
        raise RefusedError(f"the file starts with <{tag[:40]}>, not <algo>", "give an MSCCL XML")
    return level < len(_LEVELS) and tag == _LEVELS[level]


def _program(algo: Element, runtime: str | None) -> Program:
    collective = _word(algo, "coll", _NAMES)
    protocol = _word(algo, "proto", _PROTOCOLS)
    in_place = bool(_integer(algo, "inplace", -MAX_SMALL, MAX_SMALL))
    if "outofplace" not in algo.attributes or algo.attributes["coll"] == "reduce_scatter":
        runtime = runtime or "msccl"
    out_of_place = bool(_integer(algo, "outofplace", -MAX_SMALL, MAX_SMALL, int(not in_place)))
    max_bytes = _integer(algo, "maxBytes", 0, MAX_NUMBER, DEFAULT_MAX_BYTES)
    if RUNTIMES[runtime or "portable"].exclusive_max_bytes:
        max_bytes -= 1
    elif max_bytes == 0:
        max_bytes = UNLIMITED
    ranks = _integer(algo, "ngpus", 1, MAX_RANKS)
    head = Program(
        algo.attributes.get("name", ""), collective, protocol, in_place, out_of_place,
        _integer(algo, "nchannels", 0, MAX_SMALL), _integer(algo, "nchunksperloop", 1, MAX_SMALL),
        _integer(algo, "minBytes", 0, MAX_NUMBER, 0), max_bytes, (),
    )  # fmt: skip
    gpus: dict[int, Gpu] = {}
    for element in algo.children:
        rank = _integer(element, "id", 0, ranks - 1)
        if rank in gpus:
            raise RefusedError(
                f"gpu {rank} occurs twice", "give every gpu an id of its own", element.line
            )
        inputs, outputs, scratch = (
            _integer(element, f"{buffer}_chunks", 0, MAX_SMALL) for buffer in "ios"
        )
        blocks = []
        for child in element.children:
            send, recv, number, channel = (
                _integer(child, name, least, MAX_SMALL)
                for name, least in (("send", -1), ("recv", -1), ("id", 0), ("chan", -1))
            )
            steps = tuple(_step(one) for one in child.children)
            to, source = (None if peer < 0 else peer for peer in (send, recv))
            blocks.append(Threadblock(number, to, source, channel, steps))
        blocks.sort(key=lambda block: block.id)
        gpus[rank] = Gpu(rank, inputs, outputs, scratch, tuple(blocks))
    # The runtimes take a rank without element as one without work.
    return replace(head, gpus=tuple(gpus.get(r, Gpu(r, 0, 0, 0)) for r in range(ranks)))


def _step(element: Element) -> Step:
    _integer(element, "s", 0, MAX_SMALL)
    op = _word(element, "type", OP_OF)
    src = Slot(_word(element, "srcbuf", BUFFER_OF), _integer(element, "srcoff", -1, MAX_SMALL))
    dst = Slot(_word(element, "dstbuf", BUFFER_OF), _integer(element, "dstoff", -1, MAX_SMALL))
    awaited = _integer(element, "depid", -1, MAX_SMALL)
    position = _integer(element, "deps", -1, MAX_SMALL)
    return Step(
        op,
        src if op in READS_SOURCE else None,
        dst if op in WRITES_TARGET else None,
        _integer(element, "cnt", 0, MAX_SMALL),
        None if awaited < 0 else StepRef(awaited, position),
        bool(_integer(element, "hasdep", 0, 1)),
    )


def _integer(element: Element, name: str, low: int, high: int, default: int | None = None) -> int:
    """Return an attribute as a whole number of a range."""
    text = element.attributes.get(name)
    common = COMMON.get(text or "")
    if common is not None and low <= common <= high:
        return common
    if text is None and default is not None:
        return default
    if text is None:
        raise RefusedError(f"<{element.tag}> has no {name}", f'add {name}="..."', element.line)
    if not re.fullmatch(r" *-?(0|[1-9][0-9]{0,18})", text):
        raise RefusedError(
            f"{name} of <{element.tag}> should be a whole number, got {text[:40]!r}",
            "write a decimal number without leading zeros", element.line,
        )  # fmt: skip
    value = int(text)
    if not low <= value <= high:
        raise RefusedError(
            f"{name} of <{element.tag}> should be from {low} to {high}, got {value}",
            "correct the number", element.line,
        )  # fmt: skip
    return value


def _word(element: Element, name: str, known: Mapping[str, Word]) -> Word:
    """Return what a table says for the text of an attribute."""
    text = element.attributes.get(name)
    if text is not None and text in known:
        return known[text]
    found = f"has no {name}" if text is None else f"has an unknown {name} {text[:40]!r}"
    raise RefusedError(f"<{element.tag}> {found}", f"use one of {', '.join(known)}", element.line)
