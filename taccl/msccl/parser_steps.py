"""The steps of a threadblock as a runtime's parser takes them: refusals, and what is left to run.

A nop only hands its dependence to the next step that is no nop; one without a dependence, or with
no step after it, is as if it were not there. So the positions that dependences count are those of
the steps that are left (``runInterpreter``, ``mscclRunInterpreter``).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from taccl.msccl.elements import Attributes, Document, Element
from taccl.msccl.findings import Finding, Severity
from taccl.msccl.numbers import is_plain, to_int
from taccl.msccl.program import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import FUSION_CAP, Runtime

MAX_FOUND = 200
"""Findings of one severity that are told: plenty of warnings must not hide a refusal."""

Place = tuple[int, int | None, int | None]
"""Gpu, threadblock, step; None where there is none."""

NOWHERE: tuple[None, None, None] = (None, None, None)


@dataclass(slots=True)
class Report:
    """What a parser found, and where elements stand in the text.

    ``unspoken`` is set by what parses and no program can say; ``told`` counts findings by
    severity, also those that are left out.
    """

    document: Document
    runtime: Runtime
    findings: list[Finding] = field(default_factory=list)
    at: dict[Place, int] = field(default_factory=dict)
    unspoken: bool = False
    told: Counter[Severity] = field(default_factory=Counter)

    @property
    def gpus(self) -> list[Element]:
        """The gpu elements of the program."""
        return self.document.algo.children if self.document.algo else []

    def add(
        self, rule: str, explanation: str, at: int, fix: str,
        severity: Severity = Severity.BREAKS, place: Place | tuple[None, None, None] = NOWHERE,
    ) -> None:  # fmt: skip
        """Add a finding, unless there are plenty."""
        self.told[severity] += 1
        if self.told[severity] <= MAX_FOUND:
            line, column = self.document.places.of(at)
            gpu, block, step = place
            self.findings.append(
                Finding(rule, explanation, gpu, block, step, fix, severity, line, column)
            )

    def refuse(
        self, rule: str, explanation: str, at: int, fix: str,
        place: Place | tuple[None, None, None] = NOWHERE,
    ) -> None:  # fmt: skip
        """Add something that the parser refuses."""
        self.add(rule, explanation, at, fix, Severity.REJECTED, place)

    def warn(
        self, rule: str, explanation: str, at: int, fix: str,
        place: Place | tuple[None, None, None] = NOWHERE,
    ) -> None:  # fmt: skip
        """Add a warning."""
        self.add(rule, explanation, at, fix, Severity.WARNING, place)

    def note_number(self, tag: str, attributes: Attributes, name: str, at: int) -> None:
        """Warn of a number that the parser reads in its own way."""
        text = attributes.get(name)
        if text is not None and not is_plain(text):
            self.warn(
                "numbers", f"{name}=\"{text[:40]}\" of <{tag}> is read as {to_int(text)}", at,
                "write a decimal number without leading zeros",
            )  # fmt: skip

    def integers(
        self, tag: str, element: Element, names: tuple[str, ...], place: Place
    ) -> list[int] | None:
        """Return attributes as the parser reads them; None when one is missing."""
        attributes = element.attributes
        missing = [name for name in names if name not in attributes]
        for name in missing:
            self.refuse(
                "attributes", f"<{tag}> has no {name}", element.at, f'add {name}="..."', place
            )  # fmt: skip
        if missing:
            return None
        for name in names:
            self.note_number(tag, attributes, name, element.at)
        return [to_int(attributes[name]) for name in names]


_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
_WORDS = ("srcbuf", "dstbuf", "type")
_OPS: Mapping[str, Op] = MappingProxyType({op.value: op for op in Op})
_BUFFERS: Mapping[str, Buffer] = MappingProxyType({buffer.value: buffer for buffer in Buffer})
_UNCHECKED = frozenset({Op.RECV_REDUCE_COPY})
"""Ops whose operands no parser looks at."""


@dataclass(slots=True)
class _Line:
    """The parser's registers while it goes through a threadblock."""

    report: Report
    gpu: Gpu
    block: Threadblock
    ends: Mapping[tuple[str, int], int]
    steps: list[Step] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    waiting: list[tuple[StepRef, int]] = field(default_factory=list)
    run: tuple[Slot, Buffer] | None = None
    transfers: int = 0
    reductions: int = 0
    dependences: int = 0

    def refuse(self, rule: str, explanation: str, at: int, fix: str) -> None:
        """Add a refusal at the position of the next step."""
        place = (self.gpu.rank, self.block.id, len(self.steps))
        self.report.refuse(rule, explanation, at, fix, place)


def parse_steps(
    report: Report, element: Element, gpu: Gpu, block: Threadblock,
    ends: Mapping[tuple[str, int], int],
) -> list[Step]:  # fmt: skip
    """Return the steps that the kernel runs.

    ``ends`` counts the threadblocks before this one that send (receive) on a channel.
    """
    line = _Line(report, gpu, block, ends)
    for child in element.children:
        _parse_step(line, child)
    if line.waiting:
        report.warn(
            "nops", "nops at the end of a threadblock have no effect", line.waiting[0][1],
            "remove them", (gpu.rank, block.id, len(line.steps)),
        )  # fmt: skip
    limit = report.runtime.max_steps
    most = max(line.transfers, line.reductions, line.dependences)
    if most > limit:
        report.add(
            "steps", f"has {most} steps with small numbers, {report.runtime.name} has room for"
            f" {limit} and writes on", element.at, "number the steps in order, and have fewer",
            place=(gpu.rank, block.id, None),
        )  # fmt: skip
    for number, at in enumerate(line.at):
        report.at[gpu.rank, block.id, number] = at
    return line.steps


def _parse_step(line: _Line, child: Element) -> None:
    attributes, at = child.attributes, child.at
    missing = [name for name in (*_NUMBERS, *_WORDS) if name not in attributes]
    for name in missing:
        line.refuse("attributes", f"<step> has no {name}", at, f'add {name}="..."')
    if missing or not _check_step_words(line, child):
        return
    for name in _NUMBERS:
        line.report.note_number("step", attributes, name, at)
    number, src_at, dst_at, count, depid, deps, posts = (
        to_int(attributes[name]) for name in _NUMBERS
    )
    op = _OPS[attributes["type"]]
    src = Slot(_BUFFERS[attributes["srcbuf"]], src_at)
    dst = Slot(_BUFFERS[attributes["dstbuf"]], dst_at)
    if not 0 <= number < line.report.runtime.max_steps:
        line.refuse(
            "steps", f"is step {number}, {line.report.runtime.name} allows 0 to"
            f" {line.report.runtime.max_steps - 1}", at, "lower --chunks, or raise --channels",
        )  # fmt: skip
    if depid >= 0:
        line.waiting.append((StepRef(depid, deps), at))
        line.dependences += 1
    if op is Op.NOP:
        _nop(line, (depid, posts), at)
        return
    _check_transfer(line, (op, count, posts), at)
    _check_bounds(line, op, (src, dst), at)
    _transfer(line, Step(op, src, dst, count, None, posts == 1), depid, at)


def _check_step_words(line: _Line, child: Element) -> bool:
    attributes, runtime = child.attributes, line.report.runtime
    kind = attributes["type"]
    if kind not in _OPS and kind in runtime.extra_types:
        line.report.unspoken = True
        line.report.add(
            "ops", f"{runtime.name} takes {kind} and its kernel returns on it: a hang", child.at,
            "use other steps", place=(line.gpu.rank, line.block.id, len(line.steps)),
        )  # fmt: skip
        return False
    if kind not in _OPS:
        line.refuse(
            "ops", f"{runtime.name} does not know the type {kind[:40]!r}", child.at,
            f"use one of {', '.join(_OPS)}",
        )  # fmt: skip
    wrong = [attributes[name] for name in ("srcbuf", "dstbuf") if attributes[name] not in _BUFFERS]
    for text in wrong:
        line.refuse("buffers", f"there is no buffer {text[:40]!r}", child.at, "use i, o or s")
    return kind in _OPS and not wrong


def _nop(line: _Line, found: tuple[int, int], at: int) -> None:
    depid, posts = found
    place = (line.gpu.rank, line.block.id, len(line.steps))
    if depid < 0:
        line.report.warn(
            "nops", "a nop without dependence is not there, so later steps have lower numbers", at,
            "remove it", place,
        )  # fmt: skip
    if posts:
        line.report.warn(
            "nops", "hasdep on a nop is ignored", at, "put hasdep on the step after it", place
        )  # fmt: skip


def _check_transfer(line: _Line, found: tuple[Op, int, int], at: int) -> None:
    op, count, posts = found
    runtime, block = line.report.runtime, line.block
    if not 0 <= count <= runtime.max_count:
        line.refuse(
            "counts", f"moves {count} chunks, allowed are 1 to {runtime.max_count}", at,
            "split the step",
        )  # fmt: skip
    for kind, peer, word in ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv")):
        if op not in kind:
            continue
        if peer is None:
            line.refuse(
                "missing_peers", f"{op.value} in a threadblock without {word} peer", at,
                f"give the threadblock a {word} peer",
            )  # fmt: skip
        elif line.ends.get((word, block.channel), 0) >= runtime.max_blocks_per_channel:
            line.refuse(
                "blocks_per_channel",
                f"more than {runtime.max_blocks_per_channel} threadblocks {word} on channel"
                f" {block.channel}", at, "spread the connections over more channels",
            )  # fmt: skip
    if posts not in {0, 1}:
        line.refuse("attributes", f"hasdep is {posts}", at, "use 0 or 1")


def _check_bounds(line: _Line, op: Op, slots: tuple[Slot, Slot], at: int) -> None:
    """``mscclCheckBufferBounds``: the first chunk of the operands in use; -1 passes."""
    if op in _UNCHECKED:
        return
    gpu = line.gpu
    room = {
        Buffer.INPUT: gpu.input_chunks,
        Buffer.OUTPUT: gpu.output_chunks,
        Buffer.SCRATCH: gpu.scratch_chunks,
    }
    for kind, slot in ((READS_SOURCE, slots[0]), (WRITES_TARGET, slots[1])):
        if op in kind and not -1 <= slot.offset < room[slot.buffer]:
            line.refuse(
                "offsets", f"uses chunk {slot.offset} of buffer {slot.buffer.value}, which has"
                f" {room[slot.buffer]}", at, "stay within the buffer",
            )  # fmt: skip


def _transfer(line: _Line, step: Step, depid: int, at: int) -> None:
    """Add what the kernel runs: the nops that still matter, and the step."""
    src, dst = step.src, step.dst
    chained = src is not None and dst is not None and step.op is Op.REDUCE
    key = (dst, src.buffer) if chained and src is not None and dst is not None else None
    continues = key is not None and key == line.run and depid == -1
    depends = None
    if not continues:
        if line.waiting and depid < 0:
            line.refuse(
                "nops", "a nop and the step after it both need a dependence", at,
                "put the last dependence on the step itself",
            )  # fmt: skip
        for ref, nop_at in line.waiting[:-1]:
            line.steps.append(Step(Op.NOP, count=0, depends=ref))
            line.at.append(nop_at)
        depends = line.waiting[-1][0] if line.waiting else None
        line.waiting.clear()
        line.transfers += 1
    if key is not None:
        line.reductions += 1
    capped = line.reductions == FUSION_CAP
    line.run = None if key is None or step.posts or capped else key
    line.steps.append(
        Step(
            step.op,
            src if step.op in READS_SOURCE else None,
            dst if step.op in WRITES_TARGET else None,
            step.count,
            depends,
            step.posts,
        )
    )
    line.at.append(at)
