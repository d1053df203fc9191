"""A machine, or a program, whose ranks are taken in another order.

Either the machine's places get new numbers and the program stays, or the program's ranks do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from taccl.collectives import COLLECTIVES
from taccl.errors import InputError
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Gpu, Program, Slot, Step, Threadblock
from taccl.topology import Edge, Topology

_MAPPED = {
    "allreduce": frozenset[Buffer](),
    "broadcast": frozenset[Buffer](),
    "reduce": frozenset[Buffer](),
    "allgather": frozenset({Buffer.OUTPUT}),
    "reducescatter": frozenset({Buffer.INPUT}),
    "alltoall": frozenset({Buffer.INPUT, Buffer.OUTPUT}),
}
"""Buffers whose chunks belong to ranks, by their place in the buffer."""


def permuted_topology(topology: Topology, order: Sequence[int]) -> Topology:
    """Return the machine whose rank ``r`` is the given one's ``order[r]``; edge ids stay."""
    number = {place: rank for rank, place in enumerate(order)}

    def vertex(old: int) -> int:
        return number.get(old, old)

    def moved(edge: Edge) -> Edge:
        ends = (vertex(edge.tail), vertex(edge.head))
        plain = f"{topology.vertex_name(edge.tail)}->{topology.vertex_name(edge.head)}"
        name = edge.name
        if name == plain:
            name = f"{topology.vertex_name(ends[0])}->{topology.vertex_name(ends[1])}"
        return replace(edge, tail=ends[0], head=ends[1], name=name)

    return replace(
        topology,
        edges=tuple(map(moved, topology.edges)),
        server_of=tuple(topology.server_of[place] for place in order),
        rotations=tuple(
            tuple(number[rotation[place]] for place in order) for rotation in topology.rotations
        ),
    )


def permuted_program(program: Program, order: Sequence[int]) -> Program:
    """Return the program whose rank ``order[r]`` does what the given one's rank ``r`` does.

    Where chunks belong to ranks (an allgather's output), they move along, which steps of several
    chunks may not survive.

    Raises
    ------
    InputError
        When the collective, or a step, is bound to the ranks as they are.
    """
    mapped = _MAPPED.get(program.collective)
    root = find_root(program) if program.collective in ("broadcast", "reduce") else None
    if mapped is None or (root is not None and order[root] != root):
        what = "is not in a form whose ranks can move" if mapped is None else "would move its root"
        raise _bound(program, what)
    total = program.chunks_per_loop
    share = total // program.num_ranks
    if mapped and (not share or COLLECTIVES[program.collective].has_root):
        raise _bound(program, "has fewer chunks than ranks")

    def offset(slot: Slot | None, count: int) -> Slot | None:
        if slot is None or slot.buffer not in mapped:
            return slot
        chunks = range(slot.offset, slot.offset + max(count, 1))
        places = [order[c // share] * share + c % share for c in chunks]
        if places != list(range(places[0], places[0] + len(places))):
            raise _bound(program, "has steps of several chunks that would no longer be neighbours")
        return Slot(slot.buffer, places[0])

    gpus = sorted((_gpu(gpu, order, offset) for gpu in program.gpus), key=lambda gpu: gpu.rank)
    return replace(program, name=f"{program.name}-placed", gpus=tuple(gpus))


def _gpu(gpu: Gpu, order: Sequence[int], offset: Callable[[Slot | None, int], Slot | None]) -> Gpu:
    def step(old: Step) -> Step:
        return replace(old, src=offset(old.src, old.count), dst=offset(old.dst, old.count))

    def block(old: Threadblock) -> Threadblock:
        ends = [None if end is None else order[end] for end in (old.send_to, old.recv_from)]
        return replace(
            old, send_to=ends[0], recv_from=ends[1], steps=tuple(map(step, old.steps))
        )  # fmt: skip

    return replace(gpu, rank=order[gpu.rank], threadblocks=tuple(map(block, gpu.threadblocks)))


def _bound(program: Program, what: str) -> InputError:
    return InputError(
        f"{program.name} {what}", field="--placed-xml",
        fix="leave --placed-xml out: a rankfile or --placed-topology serves any program",
    )  # fmt: skip
