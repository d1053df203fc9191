"""Everything a runtime makes of a file: refusals, breakage, selection, the largest safe size.

The file is read as the runtime reads it. Where it refuses, the tolerant reader of ``xml`` takes
over, so that what the file would do is still looked at.

A runtime serves a call with the first file that fits, and no other call is told why it was not
served: ``ncclTopoGetMSCCLAlgo`` (msccl, ``src/graph/tuning.cc``) and its successor
``mscclInternalSchedulerSelectAlgo`` (executor, rccl, ``src/misc/msccl/msccl_lifecycle.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from taccl.collectives import Collective
from taccl.errors import InputError, ProgramError
from taccl.msccl.expected import everything, expected_of
from taccl.msccl.interpret import find_root, interpret, order_findings
from taccl.msccl.limits import check_limits, network_findings
from taccl.msccl.parser import Document, Parsed, parse, read_document
from taccl.msccl.program import Finding, Program, Severity, errors_of
from taccl.msccl.run import MAX_WORK, Safe, deadlock, safe_size, work_of
from taccl.msccl.runtimes import LOADED_BY, RUNTIMES, UNLIMITED, needs
from taccl.msccl.xml import read_xml


@dataclass(frozen=True, slots=True)
class Selection:
    """What a call must be like to run a file.

    `runtime` selects the file for the NCCL `call` of a communicator of so many `ranks`, at counted
    sizes from `min_bytes` to `max_bytes`, inclusive (None: no upper limit), in `modes` (``in
    place``, ``out of place``), where `divided` (``elements`` or ``bytes``) are a multiple of
    `divisor`. Without the environment `needs` the runtime takes no notice of the file.
    """

    runtime: str
    call: str
    ranks: int
    min_bytes: int
    max_bytes: int | None
    modes: tuple[str, ...]
    divisor: int
    divided: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        span = (
            f"{self.min_bytes} bytes and more"
            if self.max_bytes is None
            else f"{self.min_bytes} to {self.max_bytes} bytes"
        )
        needed = f"; needs {' '.join(self.needs)}" if self.needs else ""
        if self.divisor > 1:
            span += f", {self.divided} divisible by {self.divisor}"
        modes = " or ".join(self.modes) or "no mode"
        return f"{self.call} of {self.ranks} ranks, {modes}, {span}{needed}"


CALLS: Mapping[str, str] = MappingProxyType({
    "allreduce": "AllReduce", "allgather": "AllGather", "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll", "broadcast": "Broadcast", "reduce": "Reduce", "gather": "Gather",
    "scatter": "Scatter", "send": "Send", "recv": "Recv", "alltoallv": "AllToAllv",
    "custom": "CustomCollective",
})  # fmt: skip
"""The NCCL call of a collective."""

_IN_BYTES = frozenset({"allgather", "broadcast", "alltoall"})
"""Calls whose counts msccl turns into bytes first (``src/misc/argcheck.cc``)."""


def selected_for(program: Program, runtime: str) -> Selection:
    """Return what calls `program` serves on `runtime`, a name of RUNTIMES."""
    record = RUNTIMES[runtime]
    modes = (("in place", program.in_place), ("out of place", program.out_of_place))
    in_bytes = record.exclusive_max_bytes and program.collective in _IN_BYTES
    return Selection(
        runtime, CALLS.get(program.collective, program.collective), program.num_ranks,
        max(program.min_bytes, 1), None if program.max_bytes >= UNLIMITED else program.max_bytes,
        tuple(word for word, served in modes if served), program.chunks_per_loop,
        "bytes" if in_bytes else "elements", needs(program, runtime),
    )  # fmt: skip


BEHAVIOUR = frozenset({"connections", "offsets"})
"""Rules of ``limits`` about what a program does, which no parser and no table of a runtime sees."""

ALONE = tuple(name for name in RUNTIMES if name not in LOADED_BY)
"""The runtimes themselves, without what stands for several."""

RESIDENT = 108
"""Streaming multiprocessors of an A100 (an H100 has 132); all threadblocks must run at once."""


_RESULT = frozenset({"result"})
_UNSURE: Mapping[str, frozenset[str]] = MappingProxyType({
    "gather": _RESULT | {"outside"},
    "scatter": _RESULT | {"outside", "undefined"},
})  # fmt: skip
"""What can't be told of collectives that no table knows: of these two, the root's buffer is larger
than the size that runtimes count."""


Known = dict[tuple[Program, bool], list[Finding]]
"""What following a program found in its one mode, with and without sends that post too early."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a file on one runtime.

    `findings` come with the worst first; `selections` are the calls that select it, one for each
    runtime that takes it and has such calls. `safe` is the largest size without deadlock, None when
    that was not looked at, and `program` what was judged, None when none could be read.
    """

    findings: tuple[Finding, ...]
    selections: tuple[Selection, ...]
    safe: Safe | None
    program: Program | None

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None when there is nothing but warnings."""
        found = errors_of(self.findings)
        return found[0].severity if found else None


@dataclass(frozen=True, slots=True)
class Question:
    """How a file is looked at.

    `size` is bytes at which deadlocks are looked for, too; with `structure_only`, no data and no
    waits are followed, and with `bitwise` ranks must add up in one order. `servers` is the server
    of every rank, or how many ranks are on each (None: unknown), and `file` is named in errors.
    What a custom collective should do, cut to so many chunks, `custom` returns; None: not known.
    """

    size: int | None = None
    structure_only: bool = False
    bitwise: bool = False
    servers: Sequence[int] | int | None = None
    file: str | None = None
    custom: Callable[[int], Collective | None] = lambda _chunks: None


def judge_text(
    content: bytes,
    runtime: str,
    size: int | None = None,
    *,
    structure_only: bool = False,
    bitwise: bool = False,
    servers: Sequence[int] | int | None = None,
) -> Verdict:
    """Return the verdict of `runtime` on a file's `content`, and raise what :func:`judge_for` does.

    `size`, `structure_only`, `bitwise` and `servers` are those of a :class:`Question`.
    """
    return judge_for(content, runtime, Question(size, structure_only, bitwise, servers), {})


def judge_for_each(content: bytes, question: Question) -> dict[str, Verdict]:
    """Return the verdict of every runtime on a file's `content`, by its name; `question` says how.

    Raises what :func:`judge_for` raises.
    """
    known: Known = {}
    return {name: judge_for(content, name, question, known) for name in ALONE}


def judge_for(content: bytes, runtime: str, question: Question, known: Known) -> Verdict:
    """Return the verdict of a runtime on a file's content.

    `content` is the bytes of the file, `runtime` a name of RUNTIMES; ``portable``: all that load
    such a file must run it. `question` is how it is looked at, and `known` what was found of the
    same content for other runtimes; added to.

    Raises InputError when the servers are of another number of ranks; ProgramError when it is no
    MSCCL XML at all.
    """
    file, structure_only = question.file, question.structure_only
    document = read_document(content, file=file)
    names = _names(document, runtime)
    parsed = {name: parse(document, name, file=file) for name in names}
    programs = {name: found.program for name, found in parsed.items() if found.program}
    fallback = None if programs else _tolerant(content, document, runtime, file)
    found: dict[str, list[Finding]] = {}
    for name in names:
        program = programs.get(name) or fallback
        found[name] = [*document.findings, *parsed[name].findings]
        if program is not None:
            # What the parser of a runtime refuses is told in its own words.
            told = {finding.rule for finding in parsed[name].findings} if document.complete else ()
            limits = (
                finding
                for finding in check_limits(program, name)
                if not (structure_only and finding.rule in BEHAVIOUR)
                and not (finding.severity is Severity.REJECTED and finding.rule in told)
            )
            found[name] += _placed(limits, parsed[name], document)
    findings = _merged(found)
    program = next(iter(programs.values()), fallback)
    safe = None
    if program is not None and not structure_only:
        both = [program, *programs.values()]
        program = replace(  # it claims every mode in which some runtime would run it
            program,
            in_place=any(one.in_place for one in both),
            out_of_place=any(one.out_of_place for one in both),
            min_bytes=min(one.min_bytes for one in both),
            max_bytes=max(one.max_bytes for one in both),
        )
        safe = safe_size(program, runtime) if work_of(program) <= MAX_WORK else None
        behaviour = [
            *_behaviour(program, names, known, question.custom(program.chunks_per_loop)),
            *network_findings(program, _server_of(program, question)),
            *_sizes(program, safe, question.size),
        ]
        findings += _placed(behaviour, parsed[names[0]], document)
        if question.bitwise and safe is not None:
            findings += order_findings(program)
    selections = tuple(
        selected_for(program, name)
        for name, program in programs.items()
        if all(finding.severity is not Severity.NEVER for finding in found[name])
    )
    order = list(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Verdict(tuple(findings), selections, safe, program)


def _server_of(program: Program, question: Question) -> Sequence[int] | None:
    """Return the server of every rank of a program; None: unknown."""
    servers = question.servers
    if isinstance(servers, int):
        return [rank // servers for rank in range(program.num_ranks)]
    if servers is not None and len(servers) != program.num_ranks:
        raise InputError(
            f"is for {program.num_ranks} ranks, the topology has {len(servers)}",
            file=question.file, field="ngpus", fix="give the topology it was made for (--nodes)",
        )  # fmt: skip
    return servers


def _names(document: Document, runtime: str) -> tuple[str, ...]:
    """Return the runtimes to ask: for a portable reduce-scatter those that know its spelling."""
    names = LOADED_BY.get(runtime, (runtime,))
    spelling = document.algo.attributes.get("coll", "") if document.algo else ""
    if spelling.replace("_", "") != "reducescatter":
        return names
    knowing = tuple(n for n in names if spelling in RUNTIMES[n].collectives.values())
    return knowing or names


def _tolerant(content: bytes, document: Document, runtime: str, file: str | None) -> Program | None:
    """Return what the tolerant reader makes of a file that the runtime refuses, or None."""
    try:
        return read_xml(content, file=file, runtime=runtime)
    except ProgramError:
        if document.algo is None:
            raise
        return None


def _placed(findings: Iterable[Finding], parsed: Parsed, document: Document) -> Iterator[Finding]:
    """Yield findings with the line of their step, threadblock or gpu."""
    for finding in findings:
        gpu, block, step = finding.gpu, finding.threadblock, finding.step
        around = ((gpu, block, step), (gpu, block, None), (gpu, None, None))
        at = next((parsed.at[place] for place in around if place in parsed.at), None)
        if at is None or finding.line is not None:
            yield finding
        else:
            line, column = document.places.of(at)
            yield replace(finding, line=line, column=column)


def _merged(found: dict[str, list[Finding]]) -> list[Finding]:
    """Return the findings of several runtimes once, each with the runtimes it is for."""
    of: dict[Finding, list[str]] = {}
    for name, findings in found.items():
        for finding in dict.fromkeys(findings):
            of.setdefault(finding, []).append(name)
    return [
        finding
        if len(names) == len(found)
        else replace(finding, explanation=f"{' and '.join(names)}: {finding.explanation}")
        for finding, names in of.items()
    ]


def _behaviour(
    program: Program, names: Iterable[str], known: Known, custom: Collective | None
) -> Iterator[Finding]:
    """Yield what is wrong with data, races and waits in every claimed mode."""
    expected = expected_of(program)
    unknown = isinstance(expected, Finding) and expected.rule == "unknown collective"
    asked = custom if unknown and custom and custom.num_ranks == program.num_ranks else None
    unknown = unknown and asked is None
    unsure = _UNSURE.get(program.collective, _RESULT) if unknown else frozenset()
    open_sends = any(program.protocol in RUNTIMES[name].open_sends for name in names)
    if unknown:
        yield Finding(
            "unknown collective",
            f"what {program.collective} should leave in the output is not known: only the rest"
            " was checked", severity=Severity.WARNING,
        )  # fmt: skip
    for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
        if not claimed:
            continue
        # Names, sizes and what a runtime allows change nothing of data and races.
        alike = replace(
            program, name="", min_bytes=0, max_bytes=0, in_place=in_place, out_of_place=not in_place
        )
        if (alike, open_sends) not in known:
            known[alike, open_sends] = interpret(
                program, in_place=in_place, collective=everything(program) if unknown else asked,
                open_sends=open_sends,
            )  # fmt: skip
        yield from (one for one in known[alike, open_sends] if one.rule not in unsure)
    root = find_root(program)
    if root is not None:
        yield Finding(
            "root", f"it is right for root {root}, and answers calls for every root",
            fix="see to it that calls have this root", severity=Severity.WARNING,
        )  # fmt: skip
    if program.num_threadblocks > RESIDENT:
        yield Finding(
            "resident", f"its {program.num_threadblocks} threadblocks must all run at once, and an"
            f" A100 has {RESIDENT} multiprocessors (an H100 132)",
            fix="lower --chunks or --instances", severity=Severity.WARNING,
        )  # fmt: skip


def _sizes(program: Program, safe: Safe | None, size: int | None) -> Iterator[Finding]:
    """Yield deadlocks at the sizes of the declared range, and at one more."""
    if safe is None or safe.stuck is None or deadlock(program, 1 << 30, 1 << 30) is not None:
        return
    sizes = [program.max_bytes] if program.min_bytes <= program.max_bytes else []
    for checked in (*sizes, *([size] if size is not None else [])):
        if not safe.covers(checked):
            limit = f"above {safe.size} bytes" if safe.size else "at every size"
            yield replace(
                safe.stuck, explanation=f"{limit}: {safe.stuck.explanation}",
                fix=f"set maxBytes to {safe.size} or less" if safe.size else safe.stuck.fix,
            )  # fmt: skip
            return
