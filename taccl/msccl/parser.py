"""What a runtime's own parser makes of a file: refusals with their place, and the program it runs.

The parser is ``mscclGetAlgoFromXMLAndSetAlgo`` (msccl, ``src/graph/topo.cc``) and the pair
``mscclGetAlgoMetaFromXmlFile``, ``mscclGetAlgoFromXmlFile`` (executor and rccl,
``src/misc/msccl/msccl_parser.cc``). They stop at the first thing they refuse; here every element
is looked at, so that a file can be mended in one go.

Of a threadblock, what is left to run is told, too. A nop only hands its dependence to the next step
that is no nop; one without a dependence, or with no step after it, is as if it were not there. So
the positions that dependences count are those of the steps that are left (``runInterpreter``,
``mscclRunInterpreter``).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taccl.errors import ProgramError
from taccl.msccl.elements import (
    MAX_CHILDREN,
    MAX_STORED,
    Attributes,
    Document,
    Element,
    crowded,
    stored_by_rank,
)
from taccl.msccl.program import (
    BUFFER_OF,
    OP_OF,
    RECEIVES,
    SENDS,
    Buffer,
    Finding,
    Gpu,
    Op,
    Program,
    Severity,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import (
    DEFAULT_MAX_BYTES,
    FUSION_CAP,
    MAX_RANKS,
    PROTOCOLS,
    RUNTIMES,
    UNLIMITED,
    Runtime,
)
from taccl.msccl.tokens import is_plain, to_int, to_int64

MAX_FOUND = 200
"""Findings of one severity that are told: plenty of warnings must not hide a refusal."""

Place = tuple[int | None, int | None, int | None]
"""Gpu, threadblock, step; None where there is none."""

NOWHERE: Place = (None, None, None)


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
        severity: Severity = Severity.BREAKS, place: Place = NOWHERE,
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
        self, rule: str, explanation: str, at: int, fix: str, place: Place = NOWHERE
    ) -> None:
        """Add something that the parser refuses."""
        self.add(rule, explanation, at, fix, Severity.REJECTED, place)

    def warn(self, rule: str, explanation: str, at: int, fix: str, place: Place = NOWHERE) -> None:
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
            )
        if missing:
            return None
        for name in names:
            self.note_number(tag, attributes, name, element.at)
        return [to_int(attributes[name]) for name in names]


_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
_WORDS = ("srcbuf", "dstbuf", "type")


@dataclass(slots=True)
class _Line:
    """The parser's registers while it goes through a threadblock.

    ``ends`` counts the threadblocks before it that send (receive) on a channel.
    """

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

    @property
    def place(self) -> Place:
        """The next step."""
        return self.gpu.rank, self.block.id, len(self.steps)

    def refuse(self, rule: str, explanation: str, at: int, fix: str) -> None:
        """Add a refusal at the next step."""
        self.report.refuse(rule, explanation, at, fix, self.place)


def _parse_steps(line: _Line, element: Element) -> list[Step]:
    """Return the steps of a threadblock that the kernel runs."""
    report, limit = line.report, line.report.runtime.max_steps
    for child in element.children:
        _parse_step(line, child)
    if line.waiting:
        report.warn(
            "nops", "nops at the end of a threadblock have no effect", line.waiting[0][1],
            "remove them", line.place,
        )  # fmt: skip
    most = max(line.transfers, line.reductions, line.dependences)
    if most > limit:
        report.add(
            "steps", f"has {most} steps with small numbers, {report.runtime.name} has room for"
            f" {limit} and writes on", element.at, "number the steps in order, and have fewer",
            place=(line.gpu.rank, line.block.id, None),
        )  # fmt: skip
    for number, at in enumerate(line.at):
        report.at[line.gpu.rank, line.block.id, number] = at
    return line.steps


def _parse_step(line: _Line, child: Element) -> None:
    attributes, at, runtime = child.attributes, child.at, line.report.runtime
    missing = [name for name in (*_NUMBERS, *_WORDS) if name not in attributes]
    for name in missing:
        line.refuse("attributes", f"<step> has no {name}", at, f'add {name}="..."')
    if missing:
        return
    kind = attributes["type"]
    if kind not in OP_OF and kind in runtime.extra_types:
        line.report.unspoken = True
        line.report.add(
            "ops", f"{runtime.name} takes {kind} and its kernel returns on it: a hang", at,
            "use other steps", place=line.place,
        )  # fmt: skip
        return
    if kind not in OP_OF:
        line.refuse(
            "ops", f"{runtime.name} does not know the type {kind[:40]!r}", at,
            f"use one of {', '.join(OP_OF)}",
        )  # fmt: skip
    wrong = [attributes[name] for name in ("srcbuf", "dstbuf") if attributes[name] not in BUFFER_OF]
    for text in wrong:
        line.refuse("buffers", f"there is no buffer {text[:40]!r}", at, "use i, o or s")
    if kind not in OP_OF or wrong:
        return
    for name in _NUMBERS:
        line.report.note_number("step", attributes, name, at)
    number, src_at, dst_at, count, depid, deps, posts = (
        to_int(attributes[name]) for name in _NUMBERS
    )
    src = Slot(BUFFER_OF[attributes["srcbuf"]], src_at)
    dst = Slot(BUFFER_OF[attributes["dstbuf"]], dst_at)
    if not 0 <= number < runtime.max_steps:
        line.refuse(
            "steps", f"is step {number}, {runtime.name} allows 0 to {runtime.max_steps - 1}", at,
            "lower --chunks, or raise --channels",
        )  # fmt: skip
    if depid >= 0:
        line.waiting.append((StepRef(depid, deps), at))
        line.dependences += 1
    if OP_OF[kind] is not Op.NOP:
        _transfer(line, Step(OP_OF[kind], src, dst, count, posts=posts == 1), (depid, posts), at)
        return
    if depid < 0:
        line.report.warn(
            "nops", "a nop without dependence is not there, so later steps have lower numbers", at,
            "remove it", line.place,
        )  # fmt: skip
    if posts:
        line.report.warn(
            "nops", "hasdep on a nop is ignored", at, "put hasdep on the step after it", line.place
        )


def _check_transfer(line: _Line, step: Step, posts: int, at: int) -> None:
    op, runtime, block = step.op, line.report.runtime, line.block
    if not 0 <= step.count <= runtime.max_count:
        line.refuse(
            "counts", f"moves {step.count} chunks, allowed are 1 to {runtime.max_count}", at,
            "split the step",
        )  # fmt: skip
    for kind, peer, word in ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv")):
        if op in kind and peer is None:
            line.refuse(
                "missing_peers", f"{op.value} in a threadblock without {word} peer", at,
                f"give the threadblock a {word} peer",
            )  # fmt: skip
        elif op in kind and line.ends.get((word, block.channel), 0) >= (
            runtime.max_blocks_per_channel
        ):
            line.refuse(
                "blocks_per_channel",
                f"more than {runtime.max_blocks_per_channel} threadblocks {word} on channel"
                f" {block.channel}", at, "spread the connections over more channels",
            )  # fmt: skip
    if posts not in {0, 1}:
        line.refuse("attributes", f"hasdep is {posts}", at, "use 0 or 1")
    if op is Op.RECV_REDUCE_COPY:  # whose operands no parser looks at
        return
    # mscclCheckBufferBounds: the first chunk of the operands in use; -1 passes.
    room = line.gpu.room
    for slot in (step.source, step.target):
        if slot is not None and not -1 <= slot.offset < room[slot.buffer]:
            line.refuse(
                "offsets", f"uses chunk {slot.offset} of buffer {slot.buffer.value}, which has"
                f" {room[slot.buffer]}", at, "stay within the buffer",
            )  # fmt: skip


def _transfer(line: _Line, step: Step, told: tuple[int, int], at: int) -> None:
    """Add what the kernel runs: the nops that still matter, and the step.

    ``told`` is what the step says of its dependence (-1: none) and of hasdep.
    """
    depid, posts = told
    _check_transfer(line, step, posts, at)
    source, target = step.source, step.target
    key = None
    if step.op is Op.REDUCE and source is not None and target is not None:
        key = target, source.buffer
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
    line.steps.append(Step(step.op, source, target, step.count, depends, step.posts))
    line.at.append(at)


WARP_SIZE = 32
MOST_THREADS = 512
"""Threads of a block of Simple on msccl, which ``nthreads`` may only lower."""


@dataclass(slots=True)
class Parsed:
    """What a runtime makes of a file.

    `program` is what its kernel runs; None when the parser refuses the file, or when no program can
    say it. `findings` are refusals, things that break whatever the program does, and warnings; `at`
    has the position in the text of (gpu, threadblock, step).
    """

    program: Program | None
    findings: list[Finding]
    at: dict[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Head:
    """The numbers of ``algo`` that the rest needs."""

    ranks: int
    chunks: int
    channels: int
    collective: str
    sizes: tuple[int, int]


def parse(document: Document, runtime: str, *, file: str | None = None) -> Parsed:
    """Return what `runtime`, a name of RUNTIMES, makes of `document`; errors call it `file`.

    Raises ProgramError when ngpus is beyond any cluster.
    """
    report = Report(document, RUNTIMES[runtime])
    if not document.complete:
        return Parsed(None, report.findings)
    algo = document.algo
    head = _head(report)
    if algo is None or head is None:
        return Parsed(None, report.findings)
    if head.ranks > MAX_RANKS:
        raise ProgramError(
            f"ngpus is {head.ranks}, at most {MAX_RANKS} are looked at", file=file,
            line=document.places.of(algo.at)[0], fix="correct ngpus",
        )  # fmt: skip
    first = {to_int(gpu.attributes["id"]): gpu.at for gpu in reversed(report.gpus)}
    for rank, count in sorted(stored_by_rank(document).items()):
        if count >= MAX_STORED:
            report.refuse(
                "nodes", f"has {count} XML elements, the reader holds {MAX_STORED - 1}",
                first[rank], "lower --chunks", (rank, None, None),
            )  # fmt: skip
    for name, element in crowded(document):
        report.add(
            "elements", f"<{name}> holds {len(element.children)} elements, the reader has room"
            f" for {MAX_CHILDREN} and writes on", element.at, "lower --chunks or --instances",
        )  # fmt: skip
    gpus: dict[int, Gpu] = {}
    for element in algo.children:
        rank = to_int(element.attributes["id"])
        report.note_number("gpu", element.attributes, "id", element.at)
        if not 0 <= rank < head.ranks:
            report.warn(
                "ranks", f"no rank reads <gpu id={rank}>", element.at,
                f"use ids from 0 to {head.ranks - 1}",
            )  # fmt: skip
            continue
        if rank in gpus:
            report.warn(
                "ranks", f"gpu {rank} occurs twice: the later one overwrites the earlier",
                element.at, "give every gpu an id of its own",
            )  # fmt: skip
        gpu = _gpu(report, element, rank, head)
        if gpu is not None:
            if rank in gpus and not gpu.threadblocks:  # what a second element of a rank leaves
                gpu = replace(gpu, threadblocks=gpus[rank].threadblocks)
            gpus[rank] = gpu
    refused = any(f.severity is Severity.REJECTED for f in report.findings)
    if refused or report.unspoken:
        return Parsed(None, report.findings, report.at)
    return Parsed(_program(report.runtime, algo.attributes, head, gpus), report.findings, report.at)


def _program(
    runtime: Runtime, attributes: Attributes, head: _Head, gpus: Mapping[int, Gpu]
) -> Program:
    spelled = {spelling: name for name, spelling in runtime.collectives.items()}
    low, high = head.sizes
    in_place = to_int(attributes["inplace"]) != 0
    if runtime.exclusive_max_bytes:
        high -= 1
        # ncclAllToAll of msccl refuses to run in place, and does not look at the flag.
        in_place = in_place and head.collective != "alltoall"
        out_of_place = not in_place
    else:
        high = high or UNLIMITED
        out_of_place = to_int(attributes["outofplace"]) != 0
    return Program(
        attributes.get("name", ""), spelled[head.collective], attributes["proto"], in_place,
        out_of_place, head.channels, head.chunks, low, high,
        tuple(gpus.get(rank, Gpu(rank, 0, 0, 0)) for rank in range(max(head.ranks, 0))),
    )  # fmt: skip


_SIZES = ("minBytes", "maxBytes")
_META = ("nchunksperloop", "nchannels", "ngpus", "coll", *_SIZES, "inplace", "outofplace")
"""What the header pass of executor and rccl wants of the first element."""


def _head(report: Report) -> _Head | None:
    """Look at ``algo``: executor and rccl read the first element first, whatever it is called."""
    document, runtime = report.document, report.runtime
    algo = document.algo
    at = 0 if algo is None else algo.at
    if document.first is None or algo is None:
        report.refuse("reader", "the file has no <algo>", at, "give an MSCCL XML")
        return None
    attributes = algo.attributes
    missing = [name for name in runtime.required if name not in attributes]
    if not runtime.exclusive_max_bytes and document.first != attributes:
        missing += [name for name in _META if name not in document.first]
    for name in missing:
        report.refuse("attributes", f"<algo> has no {name}", at, f'add {name}="..."')
    if missing:
        return None
    for name in ("ngpus", "nchunksperloop", "nchannels", "inplace", "outofplace", *_SIZES):
        report.note_number("algo", attributes, name, at)
    known = runtime.collectives.values()
    if attributes["coll"] not in known:
        report.refuse(
            "collective", f"{runtime.name} does not know {attributes['coll'][:40]}", at,
            f"known are {', '.join(known)}",
        )  # fmt: skip
    if attributes["proto"] not in PROTOCOLS:
        report.refuse(
            "protocol", f"unknown protocol {attributes['proto'][:40]!r}", at,
            f"use one of {', '.join(PROTOCOLS)}",
        )  # fmt: skip
    high = attributes.get("maxBytes")
    sizes = (
        to_int64(attributes.get("minBytes", "0")),
        DEFAULT_MAX_BYTES if high is None else to_int64(high),
    )
    threads = to_int(attributes.get("nthreads", "0"))
    # Only msccl checks the range and nthreads.
    if runtime.exclusive_max_bytes and not 0 <= sizes[0] <= sizes[1]:
        report.refuse(
            "sizes", f"the range of sizes is {sizes[0]} to {sizes[1]} bytes", at,
            "give 0 <= minBytes < maxBytes",
        )  # fmt: skip
    if runtime.exclusive_max_bytes and threads % WARP_SIZE:
        report.refuse(
            "threads", f"nthreads is {threads}", at, f"use a multiple of {WARP_SIZE}"
        )  # fmt: skip
    elif (
        runtime.exclusive_max_bytes and attributes["proto"] == "Simple"
        and 0 < threads < MOST_THREADS and threads.bit_count() > 1
    ):  # fmt: skip
        # computeColl wants a message of 2 MiB to be a multiple of what the threads move at once.
        report.warn(
            "threads", f"nthreads is {threads}, which does not divide a message of Simple: calls"
            " may fail", at, "use a power of two",
        )  # fmt: skip
    head = _Head(
        to_int(attributes["ngpus"]), to_int(attributes["nchunksperloop"]),
        to_int(attributes["nchannels"]), attributes["coll"], sizes,
    )  # fmt: skip
    if head.ranks < 1:
        report.refuse("ranks", f"ngpus is {head.ranks}", at, "give the number of ranks")
    return head


_CHUNKS = ("i_chunks", "o_chunks", "s_chunks")
_BLOCK = ("id", "send", "recv", "chan")


def _gpu(report: Report, element: Element, rank: int, head: _Head) -> Gpu | None:
    place: Place = (rank, None, None)
    counts = report.integers("gpu", element, _CHUNKS, place)
    if counts is None:
        return None
    inputs, outputs, scratch = counts
    if scratch < 0:
        report.refuse("chunks", f"s_chunks is {scratch}", element.at, "give 0 or more", place)
    shares = (
        ("i_chunks", inputs, head.ranks if head.collective == "allgather" else 1),
        ("o_chunks", outputs, head.ranks if head.collective == "reduce_scatter" else 1),
    )
    for label, count, share in shares if report.runtime.checks_chunks else ():
        if count > 0 and count * share != head.chunks:
            report.refuse(
                "chunks", f"{label} is {count}, and nchunksperloop {head.chunks} asks for"
                f" {head.chunks / share:g}", element.at, f"make {label} fit nchunksperloop, or 0",
                place,
            )  # fmt: skip
    full = len(element.children) > MAX_CHILDREN and report.runtime.name != "rccl"
    blocks = {} if full else _blocks(report, element, Gpu(rank, inputs, outputs, scratch), head)
    ids = sorted(blocks)
    if ids and ids != list(range(len(ids))):
        lacking = next(number for number in range(len(ids) + 1) if number not in blocks)
        report.refuse(
            "threadblocks", f"threadblock {lacking} is missing", element.at,
            "number the threadblocks from 0", place,
        )  # fmt: skip
    report.at[place] = element.at
    return Gpu(rank, inputs, outputs, scratch, tuple(blocks[number] for number in ids))


def _blocks(report: Report, element: Element, gpu: Gpu, head: _Head) -> dict[int, Threadblock]:
    """Parse the threadblocks of a rank in the order of the document."""
    found: dict[int, Threadblock] = {}
    ends: dict[tuple[str, int], int] = {}
    for child in element.children:
        numbers = report.integers("tb", child, _BLOCK, (gpu.rank, None, None))
        if numbers is None or _is_refused(report, child, (gpu.rank, *numbers), head):
            continue
        number, send, recv, channel = numbers
        if number in found:
            report.refuse(
                "threadblocks", f"threadblock {number} occurs twice", child.at,
                "number the threadblocks from 0", (gpu.rank, number, None),
            )  # fmt: skip
            continue
        report.at[gpu.rank, number, None] = child.at
        block = Threadblock(
            number, None if send < 0 else send, None if recv < 0 else recv, channel
        )  # fmt: skip
        steps = _parse_steps(_Line(report, gpu, block, ends), child)
        for word, peer in (("send", send), ("recv", recv)):
            if peer >= 0:
                ends[word, channel] = ends.get((word, channel), 0) + 1
        found[number] = replace(block, steps=tuple(steps))
    for (word, channel), count in ends.items():
        if count > report.runtime.max_blocks_per_channel:
            report.add(
                "blocks_per_channel", f"{count} threadblocks {word} on channel {channel}, room is"
                f" for {report.runtime.max_blocks_per_channel}", element.at,
                "spread the connections over more channels", place=(gpu.rank, None, None),
            )  # fmt: skip
    return found


def _is_refused(report: Report, child: Element, found: tuple[int, ...], head: _Head) -> bool:
    """Check a threadblock's rank, id, send, recv and chan, and before them rtype and stype.

    msccl looks for these two in ``algo`` and then takes only nic in a tb.
    """
    runtime, (rank, number, send, recv, channel) = report.runtime, found
    asked = report.document.algo.attributes if report.document.algo else {}
    place: Place = (rank, None, None)
    problems = [
        ("attributes", f"<algo> has {name}, so msccl wants {name}=\"nic\" in every tb",
         f"remove {name} from <algo>")
        for name in ("rtype", "stype")
        if runtime.extra_types and name in asked and child.attributes.get(name) != "nic"
    ]  # fmt: skip
    if not problems:
        place = (rank, number, None)
        if not 0 <= number < runtime.max_threadblocks:
            problems.append((
                "threadblocks", f"{runtime.name} allows {runtime.max_threadblocks} threadblocks",
                "lower --chunks or --instances",
            ))  # fmt: skip
        for peer in (send, recv):
            foreign = peer >= head.ranks and runtime.checks_peers
            if peer == rank or peer < -1 or foreign:
                problems.append((
                    "peers", f"peer {peer} is no other rank",
                    f"use a rank from 0 to {head.ranks - 1}, or -1 for none",
                ))  # fmt: skip
        if not 0 <= channel <= runtime.max_channels:
            problems.append((
                "channels", f"is on channel {channel}, {runtime.name} has {runtime.max_channels}",
                "use a channel below nchannels",
            ))  # fmt: skip
    for rule, explanation, fix in problems:
        report.refuse(rule, explanation, child.at, fix, place)
    return bool(problems)
