"""Small random MSCCL++ plans: mostly without deadlock, and with a race more often than not."""

import json
from random import Random
from typing import Any, NamedTuple

Json = dict[str, Any]
Channel = tuple[int, str, int]
Block = tuple[int, int]

_CHUNKS = 2
_MOST = 7


class _Draft(NamedTuple):
    """A plan in the making; ``owners`` says which threadblock waits on a channel."""

    random: Random
    programs: dict[Block, list[Json]]
    partners: dict[Channel, Channel]
    peers: dict[Channel, int]
    owners: dict[Channel, Block]
    unheard: dict[Channel, int]
    fences: float
    packets: list[tuple[int, int]]
    unread: list[tuple[int, int]]


def random_plan(seed: int) -> str:
    """Return the JSON text of a plan of 2 or 3 ranks, each with 1 or 2 threadblocks.

    A threadblock has 3 to 7 operations, and at the end the waits that are still missing. They are
    drawn one after the other in an order in which they can run. Fences (nop) come on top; what
    share of those that are needed is there differs from plan to plan.
    """
    random = Random(seed)
    ranks = random.choice([2, 2, 3])
    blocks = [(rank, tb) for rank in range(ranks) for tb in range(random.choice([1, 2]))]
    wide = random.choice([("memory",), ("memory", "memory"), ("memory", "port"), ("port",)])
    scratch = random.choice([2, 4])
    draft = _draft(random, ranks, blocks, wide, scratch)
    opens, closes = random.random() < 0.5, random.random() < 0.5
    if opens:
        _shake(draft, random.random() < 0.8)
    acts = [_transfer, _transfer, _local, _local, _packet, _meet, _remote_read, _signal, _listen]
    for _ in range(random.randint(ranks, 2 * len(blocks) + 1)):
        random.choice(acts)(draft)
    _settle(draft)
    if closes:
        _shake(draft, False)
        _settle(draft)
    for block in blocks:
        while sum(op["name"] != "nop" for op in draft.programs[block]) < 3:
            _fill(draft, block)
    return json.dumps(_document(draft, ranks, scratch))


def _draft(
    random: Random, ranks: int, blocks: list[Block], kinds: tuple[str, ...], scratch: int
) -> _Draft:
    peers: dict[Channel, int] = {}
    numbers: dict[tuple[int, int, int], Channel] = {}
    for rank in range(ranks):
        count = {"memory": 0, "port": 0}
        for place, kind in enumerate(kinds):
            for peer in range(ranks):
                if peer != rank:
                    channel = rank, kind, count[kind]
                    count[kind] += 1
                    peers[channel] = peer
                    numbers[rank, peer, place] = channel
    return _Draft(
        random=random,
        programs={block: [] for block in blocks},
        partners={one: numbers[peer, rank, place] for (rank, peer, place), one in numbers.items()},
        peers=peers,
        owners={
            one: random.choice([block for block in blocks if block[0] == one[0]]) for one in peers
        },
        unheard=dict.fromkeys(peers, 0),
        fences=random.choice([0.3, 0.7, 0.9, 1.0, 1.0]),
        packets=[(rank, chunk) for rank in range(ranks) for chunk in range(scratch)],
        unread=[],
    )


def _add(draft: _Draft, block: Block, op: Json, before: bool = True, after: bool = True) -> bool:
    """Append an operation to a threadblock, perhaps between fences, unless it has enough."""
    program = draft.programs[block]
    if sum(one["name"] != "nop" for one in program) >= _MOST:
        return False
    if before:
        _fence(draft, program)
    program.append(op)
    if after:
        _fence(draft, program)
    return True


def _fence(draft: _Draft, program: list[Json]) -> None:
    is_fenced = program and program[-1]["name"] == "nop"
    if not is_fenced and draft.random.random() < draft.fences:
        program.append({"name": "nop"})


def _rank_block(draft: _Draft) -> Block:
    return draft.random.choice(list(draft.programs))


def _buffer(draft: _Draft) -> Json:
    """Return a chunk of a buffer of one's own."""
    kind = draft.random.choice(["i", "o", "s"])
    return {"type": kind, "index": draft.random.randrange(_CHUNKS), "size": 1}


def _remote(draft: _Draft, block: Block, peer: int, kinds: str) -> Json:
    """Return a chunk of a buffer of a peer: the buffers are listed by peer, then i, o, s."""
    others = sorted({one for (rank, _, _), one in draft.peers.items() if rank == block[0]})
    place = 3 * others.index(peer) + "ios".index(draft.random.choice(kinds))
    return {"buffer_id": place, "index": draft.random.randrange(_CHUNKS), "size": 1}


def _sync(name: str, channel: Channel) -> Json:
    return {"name": name, "channel_ids": [channel[2]], "channel_type": channel[1]}


def _tell(draft: _Draft, channel: Channel, relaxed: bool) -> bool:
    """Signal on a channel, mostly from the threadblock that it belongs to."""
    block = draft.owners[channel]
    if draft.random.random() < 0.1:
        block = draft.random.choice([one for one in draft.programs if one[0] == block[0]])
    if not _add(draft, block, _sync("rlxsignal" if relaxed else "signal", channel), after=False):
        return False
    draft.unheard[draft.partners[channel]] += 1
    return True


def _hear(draft: _Draft, channel: Channel, relaxed: bool) -> bool:
    if not draft.unheard[channel]:
        return False
    op = _sync("rlxwait" if relaxed else "wait", channel)
    if not _add(draft, draft.owners[channel], op, before=False):
        return False
    draft.unheard[channel] -= 1
    return True


def _shake(draft: _Draft, relaxed: bool) -> None:
    """Let all pairs of ranks signal to each other, and wait."""
    pairs: dict[tuple[int, int], Channel] = {}
    for channel, peer in draft.peers.items():
        pairs.setdefault((channel[0], peer), channel)
    for channel in pairs.values():
        _tell(draft, channel, relaxed)
    for channel in pairs.values():
        _hear(draft, channel, relaxed)


def _signal(draft: _Draft) -> None:
    channel = draft.random.choice(list(draft.peers))
    _tell(draft, channel, draft.random.random() < 0.3)


def _listen(draft: _Draft) -> None:
    waiting = [channel for channel, number in draft.unheard.items() if number]
    if waiting:
        _hear(draft, draft.random.choice(waiting), draft.random.random() < 0.2)


def _transfer(draft: _Draft) -> None:
    """Put to a peer, mostly with a signal and a wait, and perhaps use what arrived."""
    channel = draft.random.choice(list(draft.peers))
    block, peer = draft.owners[channel], draft.peers[channel]
    op: Json = {"name": "put", "src_buff": [_buffer(draft)], "channel_type": channel[1]}
    op["dst_buff"] = [_remote(draft, block, peer, "oss")]
    if channel[1] == "port":
        op["name"] = draft.random.choice(["put", "pws", "pwsf", "pwsf"])
        op["channel_ids"] = [channel[2]]
    if not _add(draft, block, op):
        return
    if op["name"] != "put":
        draft.unheard[draft.partners[channel]] += 1
    elif draft.random.random() < 0.8:
        _tell(draft, channel, draft.random.random() < 0.2)
    if draft.random.random() < 0.7:
        _hear(draft, draft.partners[channel], draft.random.random() < 0.1)
        if draft.random.random() < 0.5:
            _local(draft, draft.owners[draft.partners[channel]])


def _local(draft: _Draft, block: Block | None = None) -> None:
    _fill(draft, block or _rank_block(draft))


def _fill(draft: _Draft, block: Block) -> None:
    sources = [_buffer(draft) for _ in range(draft.random.choice([1, 2]))]
    op: Json = {"name": "copy" if len(sources) == 1 else "re", "src_buff": sources}
    op["dst_buff"] = [{**_buffer(draft), "type": draft.random.choice("os")}]
    _add(draft, block, op)


def _remote_read(draft: _Draft) -> None:
    memory = [channel for channel in draft.peers if channel[1] == "memory"]
    if not memory:
        return
    channel = draft.random.choice(memory)
    block = draft.owners[channel]
    op: Json = {"name": "rre", "channel_type": "memory"}
    op["src_buff"] = [_buffer(draft), _remote(draft, block, draft.peers[channel], "ios")]
    op["dst_buff"] = [_buffer(draft)]
    _add(draft, block, op)


def _packet(draft: _Draft) -> None:
    """Send a packet to scratch that has none yet, and perhaps unpack it at once."""
    memory = [channel for channel in draft.peers if channel[1] == "memory"]
    free = [one for one in draft.packets if any(draft.peers[c] == one[0] for c in memory)]
    if not free:
        return
    rank, chunk = draft.random.choice(free)
    channel = draft.random.choice([c for c in memory if draft.peers[c] == rank])
    block = draft.owners[channel]
    target = {**_remote(draft, block, rank, "s"), "index": chunk}
    op = {"name": "ppkt", "src_buff": [_buffer(draft)], "dst_buff": [target]}
    if _add(draft, block, {**op, "channel_type": "memory"}):
        draft.packets.remove((rank, chunk))
        draft.unread.append((rank, chunk))
        if draft.random.random() < 0.7:
            _unpack(draft)


def _unpack(draft: _Draft) -> None:
    rank, chunk = draft.unread.pop()
    block = draft.random.choice([one for one in draft.programs if one[0] == rank])
    source = {"type": "s", "index": chunk, "size": 1}
    target = {**_buffer(draft), "type": draft.random.choice("io")}
    _add(draft, block, {"name": "upkt", "src_buff": [source], "dst_buff": [target]})


def _meet(draft: _Draft) -> None:
    rank = _rank_block(draft)[0]
    blocks = [one for one in draft.programs if one[0] == rank]
    rest = [sum(op["name"] != "nop" for op in draft.programs[one]) for one in blocks]
    if len(blocks) < 2 or max(rest) >= _MOST:
        return
    for block in blocks:
        op = {"name": "barrier", "barrier_id": 0, "num_threadblocks": len(blocks)}
        draft.programs[block].append(op)


def _settle(draft: _Draft) -> None:
    """Wait for all signals that nobody waited for."""
    for channel, number in list(draft.unheard.items()):
        for _ in range(number):
            op = _sync("wait", channel)
            draft.programs[draft.owners[channel]].append(op)
            _fence(draft, draft.programs[draft.owners[channel]])
        draft.unheard[channel] = 0


def _document(draft: _Draft, ranks: int, scratch: int) -> Json:
    ops = [op for program in draft.programs.values() for op in program]
    has_packets = any(op["name"] == "ppkt" for op in ops)
    return {
        "name": "random",
        "collective": "test",
        "protocol": "LL" if has_packets else "Simple",
        "inplace": False,
        "reuse_resources": False,
        "gpus": [_gpu(draft, rank, ranks, scratch) for rank in range(ranks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": has_packets and draft.random.random() < 0.7,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }


def _gpu(draft: _Draft, rank: int, ranks: int, scratch: int) -> Json:
    kinds = {
        kind: [peer for (one, k, _), peer in draft.peers.items() if (one, k) == (rank, kind)]
        for kind in ("memory", "port")
    }
    others = [peer for peer in range(ranks) if peer != rank]
    ids = {kind: list(range(len(peers))) for kind, peers in kinds.items() if peers}
    buffers = list(range(3 * len(others)))
    return {
        "id": rank,
        "input_chunks": _CHUNKS,
        "output_chunks": _CHUNKS,
        "scratch_chunks": scratch,
        "channels": [
            {"channel_type": kind, "connected_to": peers} for kind, peers in kinds.items() if peers
        ],
        "remote_buffers": [
            {"rank": peer, "type": kind, "access_channel_types": list(ids)}
            for peer in others
            for kind in "ios"
        ],
        "semaphores": [],
        "threadblocks": [
            {
                "id": tb,
                "ops": program,
                "channels": [
                    {"channel_type": kind, "channel_ids": one} for kind, one in ids.items()
                ],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": buffers} for kind in ids
                ],
            }
            for (one_rank, tb), program in draft.programs.items()
            if one_rank == rank
        ],
    }
