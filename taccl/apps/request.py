"""What is asked of :func:`taccl.apps.synthesize`, and the problems that it stands for.

From names and files to the network that engines see, and the symmetries they may use.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Event

import numpy as np

from taccl.apps.programs import Target, serves
from taccl.apps.scoring import Scorer, common_size
from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import (
    COLLECTIVES,
    Collective,
    build_collective,
    chunk_counts,
    chunk_size_of,
    collective_name,
)
from taccl.collectives.file import read_collective
from taccl.errors import InputError
from taccl.files import shown
from taccl.model.problem import Options, Problem
from taccl.msccl.runtimes import RUNTIMES
from taccl.sketch import apply_sketch, load_sketch
from taccl.synth.search import Series
from taccl.synth.steps_rounds import chunks_per_rank
from taccl.timing.deadline import Deadline, Either
from taccl.topology.file import has_count, load_topology
from taccl.topology.graph import LogicalTopology, Permutation, Topology, whole
from taccl.topology.symmetry import Group, free_group, make_group, powers, vertex_image
from taccl.topology.symmetry_search import search_group
from taccl.units import MAX_SIZE, Time, exact_size_text

DEFAULT_SIZE = 10**6
"""Bytes, where neither a size is asked for nor the topology has a chunk size."""


def size_of_chunks(chunk_size: Fraction, chunks: int) -> int:
    """Return the bytes of so many chunks.

    Raises
    ------
    InputError
        When they are no whole number of bytes, or too many.
    """
    size = chunk_size * chunks
    if size.denominator != 1 or size > MAX_SIZE:
        raise InputError(
            f"{chunks} chunks of {exact_size_text(chunk_size)}, the topology's chunk_size, make no"
            " size from 1 to 2^50 bytes",
            field="--size",
            fix="give --size",
        )
    return int(size)


def default_size(topology: Topology, collective: Collective) -> int:
    """Return the collective's own size, that of chunks of the topology's size, else 1 MB."""
    if collective.size is not None:
        return collective.size
    if topology.chunk_size is None:
        return DEFAULT_SIZE
    return size_of_chunks(topology.chunk_size, collective.chunks_in_size)


def load_collective(text: str) -> str | Collective:
    """Return the table's name of a collective, or the collective of a file.

    Raises
    ------
    InputError
        When it is neither.
    """
    try:
        return collective_name(text)
    except InputError:
        named = re.search(r"[/\\]|\.(ya?ml|json)$", text)
        if not named and not Path(text[:255]).is_file():
            raise
    return read_collective(text)


def asked_collective(
    wanted: str | Collective, topology: Topology, root: int | None = None
) -> Collective:
    """Return a collective for the ranks of a topology, uncut.

    Raises
    ------
    InputError
        When it has no such root, or is for another number of ranks.
    """
    if isinstance(wanted, str):
        return build_collective(wanted, topology.num_ranks, 1, root)
    if root is not None:
        raise InputError(
            f"{wanted.name} has no root, got {root}", field="--root", fix="leave --root out"
        )
    if wanted.num_ranks != topology.num_ranks:
        raise InputError(
            f"{wanted.name} is for {wanted.num_ranks} ranks, and {topology.name} has"
            f" {topology.num_ranks}",
            field="ranks",
            fix=f"write ranks: {topology.num_ranks}, or give another topology or --nodes",
        )
    return wanted


def load_network(
    topology: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketch: str | None = None,
    alpha_rule: str | None = None,
) -> LogicalTopology:
    """Return a topology as a sketch restricts it, from what the command line names.

    Raises
    ------
    InputError
        When a file or a value can't be used.
    NoScheduleError
        When the sketch cuts ranks off.
    """
    loaded = None if sketch is None else load_sketch(sketch)
    sketched = None if loaded is None else loaded.sketched
    network = load_topology(topology, nodes=nodes, fabric=fabric, sketched=sketched)
    if alpha_rule is not None:
        network = network.with_alpha_rule(alpha_rule)
    return whole(network, network.rotations) if loaded is None else apply_sketch(network, loaded)


def load_machine(
    topology: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketch: str | None = None,
    alpha_rule: str | None = None,
) -> Topology:
    """Return a topology; the sketch only says what TACCL's own costs depend on.

    Raises
    ------
    InputError
        When a file or a value can't be used.
    """
    sketched = None if sketch is None else load_sketch(sketch).sketched
    network = load_topology(topology, nodes=nodes, fabric=fabric, sketched=sketched)
    return network if alpha_rule is None else network.with_alpha_rule(alpha_rule)


def load_both(first: str, second: str, nodes: int | None) -> tuple[Topology, Topology]:
    """Return two topologies; ``nodes`` is for what is made of servers, be it one of them or both.

    Raises
    ------
    InputError
        When one can't be used, or both have their servers in them and ``nodes`` is given.
    """
    fixed = [spec for spec in (first, second) if nodes is not None and not has_count(spec)]
    if len(fixed) == 2:
        raise InputError(
            f"{shown(first)} and {shown(second)} both have their servers in them", field="--nodes",
            fix="leave --nodes out",
        )  # fmt: skip
    one, other = (
        load_machine(spec, nodes=None if spec in fixed else nodes) for spec in (first, second)
    )
    return one, other


def logical_group(logical: LogicalTopology, collective: Collective | None = None) -> Group:
    """Return the largest group found that acts freely and that sketch and collective keep.

    Symmetries that a sketch names must hold; those the topology declares are used as far as
    the sketch and the collective leave them (a rotation that moves the root does not hold).
    Where nothing is declared, symmetries are searched for. Without a collective, those of the
    network alone.

    Raises
    ------
    InputError
        When a named symmetry does not hold; names the edge, link or chunk that breaks it.
    """
    topology = logical.topology
    named = logical.symmetry_asked
    if not (named or topology.rotations):
        # Whatever moves every rank moves the root.
        if collective is not None and collective.root is not None:
            return make_group(topology, ())
        return search_group(topology, lambda found: _is_kept(logical, collective, found))
    kept: list[Permutation] = []
    for declared in logical.symmetry:
        generator: Permutation | None = declared
        if collective is not None and not named:
            generator = _kept_by(collective, declared)
        if generator is None:
            continue
        if collective is not None:
            collective.image(generator)
        vertex_image(topology, generator)
        broken = _broken_link(logical, generator)
        if broken is None:
            kept.append(tuple(generator))
        elif named:
            link = topology.link(broken)
            raise InputError(
                f"the sketch {logical.name} does not have this symmetry: link {link.src} ->"
                f" {link.dst} is allowed or closed unlike its image",
                field="symmetry",
                fix="remove the symmetry, or treat these links alike",
            )
    return free_group(topology, kept)


def _is_kept(
    logical: LogicalTopology, collective: Collective | None, permutation: Permutation
) -> bool:
    """Tell whether sketch and collective have a symmetry of the topology."""
    maps = collective is None or _maps(collective, permutation)
    return maps and _broken_link(logical, permutation) is None


def _kept_by(collective: Collective, permutation: Permutation) -> Permutation | None:
    """Return the first power of a permutation that maps a collective onto itself, if any does."""
    return next((power for power in powers(permutation) if _maps(collective, power)), None)


def _maps(collective: Collective, permutation: Permutation) -> bool:
    """Tell whether a permutation maps a collective onto itself."""
    try:
        collective.image(permutation)
    except InputError:
        return False
    return True


def _broken_link(logical: LogicalTopology, permutation: Permutation) -> int | None:
    """Return a link whose image the sketch treats otherwise, or None."""
    topology = logical.topology
    if not logical.allowed.all() and permutation != tuple(range(topology.num_ranks)):
        links = np.arange(len(topology.links))
        group = Group(topology, (permutation,), (tuple(range(topology.num_ranks)), permutation))
        image = group.link_images(1, links)
        differs = np.flatnonzero(logical.allowed[image] != logical.allowed)
        if len(differs):
            return int(differs[0])
    for rank, senders in logical.leave_by.items():
        moved = frozenset(permutation[sender] for sender in senders)
        if logical.leave_by.get(permutation[rank]) != moved:
            return _first(topology.links.leaving(rank))
    return None


def _first(links: Iterable[int]) -> int:
    return next(iter(links), 0)


CHUNK_COUNTS = (1, 2, 4)
"""What ``--chunks auto`` tries, in order, for collectives from files."""

MOST = 8
"""Chunk counts up to which the one with the least bound is looked for."""

SECOND = 0.1
"""Share of the time, at most, for the bounds of these counts."""

MAX_RANKS = 64
"""Ranks up to which it is."""


def _silent(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of :func:`synthesize`.

    Parameters
    ----------
    logical
        The network under the sketch.
    collective
        A name of COLLECTIVES, or a collective from a file.
    size
        Bytes of the buffer that nccl-tests counts; 0: as many as make chunks of the topology's
        chunk size, else 1 MB.
    chunks
        Chunks for each rank; None: the sketch's, else the best of a series.
    batch
        Whether chunks may travel together.
    engine
        A name of ENGINES or CLASSICAL.
    root
        For the collectives of the table that have one; None: rank 0.
    steps
        Steps and rounds, for engine ``exact`` to answer whether an algorithm exists that has them
        and ``chunks`` chunks (of the whole buffer, for an AllReduce).
    target
        The program wanted; None: stop at the schedule.
    time_limit, seed, workers, deterministic
        For the search, in seconds.
    spent
        Seconds of the time limit that are gone: the program was started, files were read.
    stop, report
        Set to end the search; called with progress.
    """

    logical: LogicalTopology
    collective: str | Collective
    size: int = 0
    chunks: int | None = None
    batch: bool = True
    engine: str = "auto"
    root: int | None = None
    steps: tuple[int, int] | None = None
    target: Target | None = field(default_factory=Target)
    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    spent: float = 0.0
    stop: Event = field(default_factory=Event)
    report: Callable[[str], None] = _silent


def with_stop(request: Request, stop: Event) -> Request:
    """Return the request with an event that ends its search."""
    return replace(request, stop=stop)


def writable(request: Request, collective: Collective) -> Target | None:
    """Return the program wanted; None where no file of the runtime can hold the collective.

    Raises
    ------
    InputError
        When the runtime's reader has no room for so many ranks (``MAX_NODES`` of its xml.cc).
    """
    target = request.target
    if target is None:
        return None
    room = RUNTIMES[target.runtime].max_nodes - 1
    if collective.num_ranks > room:
        raise InputError(
            f"{target.runtime} reads files for {room} ranks at most, got {collective.num_ranks}",
            field="TOPOLOGY",
            fix="use --runtime none for the schedule alone, or fewer --nodes",
        )
    if serves(target.runtime, collective):
        return target
    request.report(f"{target.runtime} has no XML for {collective.name}: schedule only")
    return None


def sized(request: Request, collective: Collective) -> Request:
    """Return the request with the size that it leaves open, and the chunk count that belongs to it.

    Raises
    ------
    InputError
        When chunks of the topology's chunk size make no size, or a file says another one.
    """
    chunk_size = request.logical.topology.chunk_size
    if collective.size is not None:
        if request.size not in (0, collective.size):
            raise InputError(
                f"the file says how many bytes there are, {collective.size} in the largest buffer,"
                f" got {request.size}",
                field="--size",
                fix="leave --size out",
            )
        return replace(request, size=collective.size)
    if request.size or chunk_size is None:
        return replace(request, size=request.size or DEFAULT_SIZE)
    count = request.chunks or request.logical.chunks_per_rank or 1
    size = size_of_chunks(chunk_size, collective.chunks_in_size * count)
    return replace(request, size=size, chunks=count)


def series_of(request: Request, collective: Collective, scorer: Scorer) -> Series:
    """Return the problems of a request, by chunk count; the scorer compares these at one size.

    Raises
    ------
    InputError
        When not even the first count leaves a whole element for every chunk.
    """
    group = logical_group(request.logical, collective)
    names = _series(request, collective)
    long = len(names) > len(CHUNK_COUNTS) + 1
    if len(names) > 1 and not long:
        names = _best_second(request, collective, names, scorer.clock.share(SECOND))
    counts = tuple(_counts(request, collective, names))
    if scorer.target is not None:
        chunks = collective.chunks_in_size
        scorer.common = common_size(scorer.target, request.size, chunks, counts)

    @cache
    def asked(count: int) -> tuple[Problem, Options]:
        cut = collective.cut(count)
        problem = Problem(request.logical, cut, chunk_size_of(cut, request.size), group)
        return problem, _options(request, problem, scorer)

    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem, options = asked(count)
        return problem, replace(options, time_limit=seconds)

    problem, options = asked(counts[0])
    most = None if scorer.target is None else scorer.target.message_bytes
    floors = any_bounds(problem.logical, problem.collective, scorer.common or request.size, most)
    floor = best(floors).time
    # Another count may have a lower bound for one chunk to a message.
    floor = max(floor, options.floor) if len(names) == 1 else floor
    return Series(counts, task, floor, long, lambda: scorer.slowest)


def _counts(request: Request, collective: Collective, counts: tuple[int, ...]) -> Iterator[int]:
    """Yield the chunk counts to try; those whose program-level chunk would be empty are left out.

    Raises
    ------
    InputError
        When not even the first count leaves a whole element for every chunk.
    """
    for count in counts:
        chunks = collective.chunks_in_size * count
        if request.target is None or request.target.whole_size(request.size, chunks):
            yield count
        elif count == counts[0]:
            raise InputError(
                f"{request.size} bytes are less than one element for each of {chunks} chunks",
                field="--size",
                fix=f"use at least {request.target.divisor(chunks)} bytes or fewer --chunks",
            )


def _series(request: Request, collective: Collective) -> tuple[int, ...]:
    """Return the chunk count that is asked for, or those of the collective's series."""
    asked = request.chunks or request.logical.chunks_per_rank
    if request.steps and asked:
        asked = chunks_per_rank(collective.name, collective.num_ranks, asked)
    if asked:
        return (asked,)
    servers = len(set(request.logical.topology.server_of))
    known = collective.name in COLLECTIVES
    return chunk_counts(collective.name, servers) if known else CHUNK_COUNTS


def _best_second(
    request: Request, collective: Collective, counts: tuple[int, ...], clock: Deadline
) -> tuple[int, ...]:
    """Return the counts with the one second that has the least bound without batches, if it pays.

    It does where whole chunks share links evenly that have different speeds, or do not divide the
    chunks. It has to be more than a hundredth below what is tried before.
    """
    if collective.name not in COLLECTIVES or collective.num_ranks > MAX_RANKS or request.steps:
        return counts
    bounds = {}
    for count in sorted(
        {*counts, *range(1, MOST + 1)}, key=lambda count: (count not in counts, count)
    ):
        if clock.over:
            return counts
        cut = collective.cut(count)
        bounds[count] = best(
            fixed_bounds(request.logical, cut, chunk_size_of(cut, request.size))
        ).time
    least = min(bounds, key=lambda count: (bounds[count], count))
    before = counts[: counts.index(least)] if least in counts else counts
    if 101 * bounds[least] >= 100 * min((bounds[count] for count in before), default=0):
        return counts
    return (counts[0], least, *(count for count in counts[1:] if count != least))


def _options(request: Request, problem: Problem, scorer: Scorer) -> Options:
    floors = any_bounds(problem.logical, problem.collective, request.size)
    if not request.batch:
        floors += fixed_bounds(problem.logical, problem.collective, problem.chunk_size)
    return Options(
        seed=request.seed,
        workers=request.workers,
        deterministic=request.deterministic,
        batch=request.batch,
        floor=best(floors).time,
        fixed_floors=_fixed_floors(problem),
        rounds=(*request.steps, request.chunks or 1) if request.steps else None,
        score=scorer.score,
        refusal=scorer.refusal,
        starts=scorer.starts,
        stop=Either(request.stop, scorer.clock.passed),
        report=request.report,
    )


def _fixed_floors(problem: Problem) -> dict[str, Time]:
    """Return the bounds for one chunk to a message, for AllReduce those of its halves."""
    own = problem.collective
    parts = [own]
    if own.name == "allreduce":
        halves = ("reducescatter", "allgather")
        parts = [build_collective(name, own.num_ranks, own.chunks_per_rank) for name in halves]
    return {
        part.name: best(fixed_bounds(problem.logical, part, problem.chunk_size)).time
        for part in parts
    }
