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
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from types import MappingProxyType

import numpy as np

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
from taccl.msccl.run import BUFFERS, NEVER, NONE, OPS, Flags, Steps, steps_of
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


def chosen(
    program: Program, steps: Steps, mask: Flags
) -> Iterator[tuple[int, int, Threadblock, int, Step]]:
    """Yield steps of `program` with their numbers, ranks, threadblocks and positions.

    `steps` are its steps as columns, and `mask` says of each whether it is meant.
    """
    blocks = list(program.blocks()) if mask.any() else []
    for number in np.flatnonzero(mask).tolist():
        at = int(steps.block[number])
        rank, block = blocks[at]
        position = number - int(steps.first[at])
        yield number, rank, block, position, block.steps[position]


def _codes(ops: Container[Op]) -> Flags:
    """Tell of every position in OPS whether the op is among some."""
    return np.array([op in ops for op in OPS])


_SENDS, _RECEIVES, _READS, _WRITES = map(_codes, (SENDS, RECEIVES, READS_SOURCE, WRITES_TARGET))


def ops(program: Program, runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check that the kernel of `runtime` can run the steps of `program`.

    ``mscclSetupKernel`` of rccl refuses files with receive-fused steps at the first call.
    """
    for _, rank, block, position, step in chosen(program, steps, ~_codes(runtime.ops)[steps.op]):
        yield Finding(
            "ops", f"{runtime.name} can't run {step.op.value}", rank, block.id, position,
            "use s, r, cpy and re, or another --runtime",
        )  # fmt: skip


def missing_peers(program: Program, _runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check that sends and receives have a peer; the parser refuses those without."""
    peers = [(block.send_to is None, block.recv_from is None) for _, block in program.blocks()]
    lone = np.array(peers, dtype=np.bool_).reshape(-1, 2)[steps.block]
    missing = (_SENDS[steps.op] & lone[:, 0]) | (_RECEIVES[steps.op] & lone[:, 1])
    for _, rank, block, position, step in chosen(program, steps, missing):
        sides = ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv"))
        for kind, peer, word in sides:
            if step.op in kind and peer is None:
                yield Finding(
                    "missing_peers", f"{step.op.value} in a threadblock without {word} peer",
                    rank, block.id, position, f"give the threadblock a {word} peer",
                    Severity.REJECTED,
                )  # fmt: skip


def counts(program: Program, runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check the counts of `program` against MSCCL_MAX_COUNT of `runtime`.

    With a count of 0 a step passes the parser and moves nothing.
    """
    bad = (steps.chunks < 1) | (steps.chunks > runtime.max_count)
    for _, rank, block, position, step in chosen(program, steps, bad & ~_codes({Op.NOP})[steps.op]):
        yield Finding(
            "counts", f"moves {step.count} chunks, allowed are 1 to {runtime.max_count}",
            rank, block.id, position, "split the step" if step.count else "remove the step",
            Severity.REJECTED if step.count else Severity.WARNING,
        )  # fmt: skip


def offsets(program: Program, runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check that operands of `program` lie in their buffers, within the offsets of `runtime`.

    The parser looks at the first chunk only, and lets -1 pass; for ``rrc`` it does not look.
    """
    rooms = np.array([
        [min(gpu.room[buffer], runtime.max_offset + 1) for buffer in BUFFERS]
        for gpu in program.gpus
    ])  # fmt: skip
    bad = np.zeros(len(steps.op), dtype=np.bool_)
    for codes, slots in ((_READS, steps.source), (_WRITES, steps.target)):
        beyond = slots[:, 1] + np.maximum(steps.chunks, 1) > rooms[steps.rank, slots[:, 0]]
        beyond |= slots[:, 1] < 0
        bad |= codes[steps.op] & (beyond | (slots[:, 0] == NONE))
    for _, rank, block, position, step in chosen(program, steps, bad):
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


def dependences(program: Program, runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check that what steps of `program` wait for comes, with ids that `runtime` can hold.

    Nobody checks depid and deps: a wait that no step posts for spins for ever. ``dependentBid`` is
    an int8, and a flag moves only with steps that have hasdep.
    """
    blocks = {(rank, block.id): block for rank, block in program.blocks()}
    for number, rank, block, position, step in chosen(program, steps, steps.awaits != NONE):
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
        elif steps.awaits[number] == NEVER:
            problem = f"waits for step {at} of threadblock {awaited}, and none from there on posts"
        if problem:
            yield Finding(
                "dependences", problem, rank, block.id, position,
                "depend on a step with hasdep, in a threadblock with a low id",
            )  # fmt: skip


def nops(program: Program, _runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Want a dependence on every nop and on the step after it, as the parser does.

    A nop without one shifts the positions that the kernel counts; one at the end has no effect.
    """
    for _, rank, block, position, step in chosen(program, steps, _codes({Op.NOP})[steps.op]):
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


def fused_reductions(program: Program, runtime: Runtime, steps: Steps) -> Iterator[Finding]:
    """Check the ``re`` steps of `program` that the parser of `runtime` merges.

    The last count holds for all of them. MSCCL_MAX_REDUCE_FUSION ends a run only once a
    threadblock, at its 16th ``re``: longer runs overflow an array of executor and msccl, and 16
    sources leave the destination out. rccl adds them one by one, without an array
    (``mscclReduce``, ``msccl_kernel_impl.h``).
    """
    adding = set(steps.block[steps.op == OPS.index(Op.REDUCE)].tolist())
    for number, (rank, block) in enumerate(program.blocks()):
        if number not in adding:
            continue
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


Rule = Callable[[Program, Runtime, Steps], Iterator[Finding]]


def of_whole_program(rule: Callable[[Program, Runtime], Iterator[Finding]]) -> Rule:
    """Return a `rule` that needs no columns, as one that is given some."""
    return lambda program, runtime, _steps: rule(program, runtime)


def check_limits(program: Program, runtime: str, steps: Steps | None = None) -> list[Finding]:
    """Return all about `program` that `runtime`, a name of RUNTIMES, refuses or breaks on.

    `steps` are its :func:`taccl.msccl.run.steps_of`.
    """
    record, columns = RUNTIMES[runtime], steps or steps_of(program)
    return [finding for rule in RULES.values() for finding in rule(program, record, columns)]


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
    **{
        rule.__name__: of_whole_program(rule)
        for rule in (
            name, collective, protocol, modes, sizes, channels, threadblocks, blocks_per_channel,
            steps, nodes, chunks, peers, ends, connections,
        )
    },
    **{
        rule.__name__: rule
        for rule in (
            ops, missing_peers, counts, offsets, dependences, nops, fused_reductions,
        )
    },
})  # fmt: skip
"""Every rule by its name: a new one is one function and one entry.

The second part are those that look at all steps, by their columns.
"""
