"""What a runtime refuses, or accepts and then breaks on: one function a rule.

Every rule says which function of the runtimes it is from. The parser is
``mscclGetAlgoFromXMLAndSetAlgo`` (msccl, ``src/graph/topo.cc``) and ``mscclGetAlgoFromXmlFile``
(executor and rccl, ``src/misc/msccl/msccl_parser.cc``), called "the parser" below. What is judged
is always `program` on `runtime`.

No rule of one runtime is where protocol Simple hangs on a network: a broadcast or reduce between
servers. A message between servers goes through a proxy of the host. For these two collectives the
host has the proxy move one step a message (``HOST_STEPS``), and the kernel posts four
(``KERNEL_STEPS``), two at a time: the proxy waits for a step that is never posted, at every size,
on all three runtimes. LL and LL128 post one step a message, and within a server there is no proxy.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from types import MappingProxyType

from taccl.msccl.program import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_TARGET,
    Buffer,
    Finding,
    Op,
    Program,
    Severity,
    Step,
    Threadblock,
)
from taccl.msccl.run import releasing_steps
from taccl.msccl.runtimes import FUSION_CAP, HOST_STEPS, PROTOCOLS, RUNTIMES, Runtime

WHY = "the host has the network move one step a message and the kernel posts four"


def hangs_between_servers(collective: str, protocol: str) -> bool:
    """Tell whether messages of `collective` in `protocol` never arrive at another server."""
    return protocol == "Simple" and collective in HOST_STEPS


def network_findings(program: Program, server_of: Sequence[int] | None) -> Iterator[Finding]:
    """Yield the connections between servers on which `program` hangs.

    `server_of` is the server of every rank; None: unknown, which makes a warning of it.
    """
    if not hangs_between_servers(program.collective, program.protocol):
        return
    fix = "use LL or LL128"
    sending = [
        (rank, block)
        for rank, block in program.blocks()
        if block.send_to is not None and any(step.sends for step in block.steps)
    ]
    if server_of is None and sending:
        yield Finding(
            "network", f"a {program.collective} of protocol Simple hangs wherever it crosses"
            f" servers: {WHY}", severity=Severity.WARNING,
            fix=f"{fix}, or say with --topology or --ranks-per-node that it does not",
        )  # fmt: skip
    for rank, block in sending:
        peer = block.send_to
        if server_of is None or peer is None or not 0 <= peer < len(server_of):
            continue
        if server_of[rank] != server_of[peer]:
            yield Finding(
                "network", f"sends to gpu {peer} on another server, and a {program.collective} of"
                f" protocol Simple hangs there: {WHY}", rank, block.id, fix=fix,
            )  # fmt: skip


def each_step(program: Program) -> Iterator[tuple[int, Threadblock, int, Step]]:
    """Yield the steps of a program with rank, threadblock and position."""
    for rank, block in program.blocks():
        for position, step in enumerate(block.steps):
            yield rank, block, position, step


def ops(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check that the kernel of `runtime` can run the steps of `program`.

    ``mscclSetupKernel`` of rccl refuses files with receive-fused steps at the first call.
    """
    for rank, block, position, step in each_step(program):
        if step.op not in runtime.ops:
            yield Finding(
                "ops", f"{runtime.name} can't run {step.op.value}", rank, block.id, position,
                "use s, r, cpy and re, or another --runtime",
            )  # fmt: skip


def missing_peers(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Check that sends and receives have a peer; the parser refuses those without."""
    for rank, block, position, step in each_step(program):
        sides = ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv"))
        for kind, peer, word in sides:
            if step.op in kind and peer is None:
                yield Finding(
                    "missing_peers", f"{step.op.value} in a threadblock without {word} peer",
                    rank, block.id, position, f"give the threadblock a {word} peer",
                    Severity.REJECTED,
                )  # fmt: skip


def counts(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the counts of `program` against MSCCL_MAX_COUNT of `runtime`.

    With a count of 0 a step passes the parser and moves nothing.
    """
    for rank, block, position, step in each_step(program):
        if step.op is not Op.NOP and not 1 <= step.count <= runtime.max_count:
            yield Finding(
                "counts", f"moves {step.count} chunks, allowed are 1 to {runtime.max_count}",
                rank, block.id, position, "split the step" if step.count else "remove the step",
                Severity.REJECTED if step.count else Severity.WARNING,
            )  # fmt: skip


def offsets(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check that operands of `program` lie in their buffers, within the offsets of `runtime`.

    The parser looks at the first chunk only, and lets -1 pass; for ``rrc`` it does not look.
    """
    for rank, block, position, step in each_step(program):
        size = program.gpus[rank].room
        kinds = ((READS_SOURCE, step.src), (WRITES_TARGET, step.dst))
        for slot in (slot for kind, slot in kinds if step.op in kind):
            if slot is None:
                yield Finding(
                    "offsets", f"{step.op.value} without a slot", rank, block.id, position,
                    "give the slot",
                )  # fmt: skip
                continue
            end = slot.offset + max(step.count, 1)
            room = min(size[slot.buffer], runtime.max_offset + 1)
            passes = step.op is Op.RECV_REDUCE_COPY or -1 <= slot.offset < size[slot.buffer]
            if slot.offset < 0 or end > room:
                yield Finding(
                    "offsets",
                    f"uses chunks {slot.offset} to {end - 1} of buffer {slot.buffer.value}, which"
                    f" has {room}",
                    rank, block.id, position, "stay within the buffer",
                    Severity.BREAKS if passes else Severity.REJECTED,
                )  # fmt: skip


def dependences(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check that what steps of `program` wait for comes, with ids that `runtime` can hold.

    Nobody checks depid and deps: a wait that no step posts for spins for ever. ``dependentBid`` is
    an int8, and a flag moves only with steps that have hasdep.
    """
    blocks = {(rank, block.id): block for rank, block in program.blocks()}
    releases = {place: releasing_steps(block) for place, block in blocks.items()}
    for rank, block, position, step in each_step(program):
        if step.depends is None:
            continue
        awaited, at = step.depends
        target = blocks.get((rank, awaited))
        problem = None
        if target is None or not 0 <= at < len(target.steps):
            problem = f"waits for step {at} of threadblock {awaited}, which does not exist"
        elif awaited > runtime.max_dependence_id:
            problem = (
                f"waits for threadblock {awaited}, and ids up to {runtime.max_dependence_id} work"
            )
        elif releases[rank, awaited][at] is None:
            problem = f"waits for step {at} of threadblock {awaited}, and none from there on posts"
        if problem:
            yield Finding(
                "dependences", problem, rank, block.id, position,
                "depend on a step with hasdep, in a threadblock with a low id",
            )  # fmt: skip


def nops(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Want a dependence on every nop and on the step after it, as the parser does.

    A nop without one shifts the positions that the kernel counts; one at the end has no effect.
    """
    for rank, block, position, step in each_step(program):
        if step.op is not Op.NOP:
            continue
        following = block.steps[position + 1] if position + 1 < len(block.steps) else None
        if step.depends is None or following is None or following.depends is None:
            severity = Severity.REJECTED
            if step.depends is None:
                severity = Severity.BREAKS
            elif following is None:
                severity = Severity.WARNING
            yield Finding(
                "nops", "a nop and the step after it both need a dependence", rank, block.id,
                position, "put the last dependence on the step itself", severity,
            )  # fmt: skip
        elif step.posts:
            yield Finding(
                "nops", "hasdep on a nop is ignored", rank, block.id, position,
                "put hasdep on the step after it", Severity.WARNING,
            )  # fmt: skip


def fused_reductions(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the ``re`` steps of `program` that the parser of `runtime` merges.

    The last count holds for all of them. MSCCL_MAX_REDUCE_FUSION ends a run only once a
    threadblock, at its 16th ``re``: longer runs overflow an array of executor and msccl, and 16
    sources leave the destination out. rccl adds them one by one, without an array
    (``mscclReduce``, ``msccl_kernel_impl.h``).
    """
    for rank, block in program.blocks():
        last: Step | None = None
        reductions = length = 0
        for position, step in enumerate(block.steps):
            if step.op is Op.NOP:
                continue
            fuses = (
                last is not None and last.op is step.op is Op.REDUCE
                and step.depends is None and not last.posts and last.dst == step.dst
                and last.src is not None and step.src is not None
                and last.src.buffer == step.src.buffer
            )  # fmt: skip
            length = length + 1 if fuses else 1
            reductions += step.op is Op.REDUCE
            problem = None
            if step.op is Op.REDUCE and length == runtime.max_fused_reductions + 1:
                problem = f"more than {runtime.max_fused_reductions} re steps fuse"
            elif last is not None and fuses and step.count != last.count:
                problem = f"fused re steps have counts {last.count} and {step.count}"
            if problem:
                yield Finding(
                    "fused_reductions", problem, rank, block.id, position,
                    "set hasdep on the step before it",
                )  # fmt: skip
            capped = reductions == FUSION_CAP and step.op is Op.REDUCE
            last = None if capped else step


Rule = Callable[[Program, Runtime], Iterator[Finding]]


def check_limits(program: Program, runtime: str) -> list[Finding]:
    """Return all about `program` that `runtime`, a name of RUNTIMES, refuses or breaks on."""
    record = RUNTIMES[runtime]
    return [finding for rule in RULES.values() for finding in rule(program, record)]


def name(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the name of `program` as `runtime` reads it.

    Names are cut at 63 characters by msccl, and ``xmlGetToken`` knows no entities.
    ``ncclAllToAll`` of msccl runs a routine of its own when an alltoall is called 2D.
    """
    if len(program.name) > runtime.max_name:
        yield Finding(
            "name",
            f"the name has {len(program.name)} characters, the runtime takes {runtime.max_name}",
            fix="give a shorter name", severity=Severity.WARNING,
        )  # fmt: skip
    odd = re.search(r'[^ !#-%(-;=?-~]|[<>&"\']', program.name)
    if odd or not program.name:
        found = f"has the character {odd[0]!r}" if odd else "is empty"
        yield Finding(
            "name", f"the name {found}", fix="use letters, digits, '-', '_' and '.' only",
            severity=Severity.WARNING,
        )  # fmt: skip
    if program.collective == "alltoall" and program.name == "2D" and runtime.checks_chunks:
        yield Finding(
            "name", "msccl never runs an alltoall called 2D", fix="give another name",
            severity=Severity.NEVER,
        )  # fmt: skip


def collective(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check that the parser of `runtime` knows the ``coll`` of `program`."""
    if program.collective not in runtime.collectives:
        yield Finding(
            "collective",
            f"{runtime.name} does not know {program.collective}",
            fix=f"known are {', '.join(runtime.collectives)}", severity=Severity.REJECTED,
        )  # fmt: skip


def protocol(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Check ``proto``: the parser knows Simple, LL and LL128, case and all."""
    if program.protocol not in PROTOCOLS:
        yield Finding(
            "protocol",
            f"unknown protocol {program.protocol!r}",
            fix=f"use one of {', '.join(PROTOCOLS)}", severity=Severity.REJECTED,
        )  # fmt: skip


def modes(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """``mscclInternalSchedulerSelectAlgo`` never picks a file that claims no mode."""
    if not (program.in_place or program.out_of_place):
        yield Finding(
            "modes", "claims neither in-place nor out-of-place calls", fix="claim what it serves",
            severity=Severity.NEVER,
        )  # fmt: skip


def sizes(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the range of sizes of `program` on `runtime`.

    msccl refuses minBytes < 0 or > maxBytes; an empty range is never selected. A call's size is a
    multiple of the chunks, so the range should have one.
    """
    low, high = program.min_bytes, program.max_bytes
    # msccl compares maxBytes as the file has it: the first size too large.
    refused = runtime.checks_chunks and not 0 <= low <= high + runtime.exclusive_max_bytes
    if refused or low > high or high < 1:
        yield Finding(
            "sizes",
            f"the range of sizes is {low} to {high} bytes",
            fix="give 0 <= minBytes <= maxBytes and maxBytes above 0",
            severity=Severity.REJECTED if refused else Severity.NEVER,
        )
    elif program.chunks_per_loop > 0 and high // program.chunks_per_loop * (
        program.chunks_per_loop
    ) < max(low, 1):
        yield Finding(
            "sizes",
            f"no size from {low} to {high} bytes cuts into {program.chunks_per_loop} chunks",
            fix="widen the range, or use fewer chunks", severity=Severity.NEVER,
        )  # fmt: skip


def channels(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the channels of `program` against those of `runtime`.

    ``mscclSetupConnections`` connects channels 0 .. nchannels-1, at most MAXCHANNELS. The parser
    lets chan = MAXCHANNELS and chan >= nchannels pass: an overflow and a hang. The channel of a
    threadblock without peers only has to be one.
    """
    if not 1 <= program.channels <= runtime.max_channels:
        yield Finding(
            "channels",
            f"has {program.channels} channels, {runtime.name} allows 1 to {runtime.max_channels}",
            fix="lower --channels or --instances",
        )
    for rank, block in program.blocks():
        if not 0 <= block.channel < program.channels:
            lonely = block.send_to is None and block.recv_from is None
            severity = Severity.WARNING if lonely else Severity.BREAKS
            if block.channel == runtime.max_channels:
                severity = Severity.BREAKS
            elif not 0 <= block.channel < runtime.max_channels:
                severity = Severity.REJECTED
            yield Finding(
                "channels",
                f"is on channel {block.channel}, and the program has {program.channels}",
                rank, block.id, fix="raise nchannels", severity=severity,
            )  # fmt: skip


def threadblocks(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the threadblocks of `program` against MSCCL_MAX_NUM_THREAD_BLOCKS of `runtime`.

    Their ids are 0 .. k-1, as they become block indices.
    """
    for gpu in program.gpus:
        count = len(gpu.threadblocks)
        if count > runtime.max_threadblocks:
            yield Finding(
                "threadblocks",
                f"has {count} threadblocks, {runtime.name} allows {runtime.max_threadblocks}",
                gpu.rank, fix="lower --chunks or --instances", severity=Severity.REJECTED,
            )  # fmt: skip
        elif count > runtime.max_dependence_id + 1:
            yield Finding(
                "threadblocks", f"has {count} threadblocks, and ids above"
                f" {runtime.max_dependence_id} become negative in dependences", gpu.rank,
                fix="lower --chunks or --instances",
            )  # fmt: skip
        if [block.id for block in gpu.threadblocks] != list(range(count)):
            yield Finding(
                "threadblocks", f"threadblock ids should be 0 to {count - 1}, each once",
                gpu.rank, fix="number the threadblocks from 0", severity=Severity.REJECTED,
            )  # fmt: skip


def blocks_per_channel(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check `program` against MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL of `runtime`.

    The parser tests it as it meets sends and receives.
    """
    for gpu in program.gpus:
        ends = Counter(
            (direction, block.channel)
            for block in gpu.threadblocks
            for direction, peer in (("send", block.send_to), ("receive", block.recv_from))
            if peer is not None
        )
        for (direction, channel), count in sorted(ends.items()):
            if count > runtime.max_blocks_per_channel:
                yield Finding(
                    "blocks_per_channel",
                    f"{count} threadblocks {direction} on channel {channel}, at most"
                    f" {runtime.max_blocks_per_channel} may",
                    gpu.rank, fix="spread the connections over more channels",
                    severity=Severity.REJECTED,
                )  # fmt: skip


def steps(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check threadblocks of `program` against MSCCL_MAX_NUM_STEPS of `runtime`, nops included."""
    for rank, block in program.blocks():
        if len(block.steps) > runtime.max_steps:
            yield Finding(
                "steps",
                f"has {len(block.steps)} steps, {runtime.name} allows {runtime.max_steps}",
                rank, block.id, fix="lower --chunks, or raise --channels",
                severity=Severity.REJECTED,
            )  # fmt: skip


def nodes(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the elements of `program` against MAX_NODES of `runtime` (``xmlAddNode``).

    A rank holds algo, every gpu, and its own threadblocks and steps.
    """
    for gpu in program.gpus:
        own = len(gpu.threadblocks) + sum(len(block.steps) for block in gpu.threadblocks)
        count = 1 + program.num_ranks + own
        if count > runtime.max_nodes:
            yield Finding(
                "nodes", f"has {count} XML elements, the reader holds {runtime.max_nodes}",
                gpu.rank, fix="lower --chunks", severity=Severity.REJECTED,
            )  # fmt: skip


def chunks(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check that ``nchunksperloop`` of `program`, a divisor, is above 0.

    msccl checks i_chunks and o_chunks against it where they are; so does `runtime`, perhaps.
    """
    if program.chunks_per_loop < 1:
        yield Finding("chunks", "nchunksperloop should be above 0", fix="count the chunks")
    if not runtime.checks_chunks:
        return
    ranks, total = program.num_ranks, program.chunks_per_loop
    shares = (
        ("i_chunks", Buffer.INPUT, ranks if program.collective == "allgather" else 1),
        ("o_chunks", Buffer.OUTPUT, ranks if program.collective == "reducescatter" else 1),
    )
    for gpu in program.gpus:
        for label, buffer, share in shares:
            count = gpu.room[buffer]
            if count > 0 and count * share != total:
                yield Finding(
                    "chunks",
                    f"{label} is {count}, and nchunksperloop {total} asks for {total / share:g}",
                    gpu.rank, fix=f"make {label} fit nchunksperloop, or 0",
                    severity=Severity.REJECTED,
                )  # fmt: skip


def peers(program: Program, runtime: Runtime) -> Iterator[Finding]:
    """Check the peers of `program`; the parser of any `runtime` refuses a rank's own number.

    Only msccl refuses those of ngpus and more.
    """
    for rank, block in program.blocks():
        for peer in (block.send_to, block.recv_from):
            if peer is not None and (peer == rank or not 0 <= peer < program.num_ranks):
                taken = peer >= program.num_ranks and not runtime.checks_peers
                yield Finding(
                    "peers", f"peer {peer} is no other rank", rank, block.id,
                    fix=f"use a rank from 0 to {program.num_ranks - 1}",
                    severity=Severity.BREAKS if taken else Severity.REJECTED,
                )  # fmt: skip


def ends(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Two threadblocks on one end advance one step counter (``runInterpreter``): it breaks."""
    for gpu in program.gpus:
        seen: dict[tuple[str, int, int], int] = {}
        for block in gpu.threadblocks:
            for word, peer in (("sends to", block.send_to), ("receives from", block.recv_from)):
                if peer is None:
                    continue
                other = seen.setdefault((word, peer, block.channel), block.id)
                if other != block.id:
                    yield Finding(
                        "ends", f"{word} {peer} on channel {block.channel}, and so does"
                        f" threadblock {other}", gpu.rank, block.id,
                        fix="use another channel",
                    )  # fmt: skip


def connections(program: Program, _runtime: Runtime) -> Iterator[Finding]:
    """Match the k-th send of a connection with its k-th receive; counts are not transmitted.

    Both ranks must name the connection, used or not: each waits for the other to set it up
    (``ncclTransportP2pSetup``, ``mscclSetupConnections``).
    """
    sides: dict[tuple[int, int, int], tuple[list[Threadblock], list[Threadblock]]]
    sides = defaultdict(lambda: ([], []))
    for rank, block in program.blocks():
        if block.send_to is not None:
            sides[rank, block.send_to, block.channel][0].append(block)
        if block.recv_from is not None:
            sides[block.recv_from, rank, block.channel][1].append(block)
    for (src, dst, channel), (sent, received) in sorted(sides.items(), key=itemgetter(0)):
        where = f"from gpu {src} to gpu {dst} on channel {channel}"
        messages = zip_longest(_messages(src, sent, SENDS), _messages(dst, received, RECEIVES))
        for number, (one, two) in enumerate(messages):
            (sends, sender), (receives, receiver) = one or _NEVER, two or _NEVER
            if sends == receives:
                continue
            what = f"has {sends} chunks, and {receives} are received"
            if not sends or not receives:
                what = "is never received" if sends else "is never sent"
            rank, threadblock, step = receiver or sender
            yield Finding(
                "connections", f"message {number} {where} {what}", rank, threadblock, step,
                fix="give both ends the same messages",
            )  # fmt: skip
            break
        else:
            if not (sent and received):
                lacking = f"gpu {dst} has no recv" if sent else f"gpu {src} has no send"
                yield Finding(
                    "connections", f"the connection {where} has one end: {lacking} for it, and"
                    " setting it up hangs", dst if received else src,
                    fix="name the peer on both ranks",
                )  # fmt: skip


_NEVER: tuple[int, tuple[int, ...]] = (0, ())
"""A message that nobody sends, or receives."""


def _messages(
    rank: int, blocks: Sequence[Threadblock], kind: frozenset[Op]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield count and place (rank, threadblock, position) of the steps of a kind."""
    for block in blocks:
        for position, step in enumerate(block.steps):
            if step.op in kind and step.count:
                yield step.count, (rank, block.id, position)


RULES: Mapping[str, Rule] = MappingProxyType({
    rule.__name__: rule
    for rule in (
        name, collective, protocol, modes, sizes, channels, threadblocks, blocks_per_channel,
        steps, nodes, chunks, peers, ends, connections, ops, missing_peers, counts, offsets,
        dependences, nops, fused_reductions,
    )
})  # fmt: skip
"""Every rule by its name: a new one is one function and one entry."""
