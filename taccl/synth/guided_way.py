"""One way of engine ``guided``: gathers along arcs, or reductions along arcs turned round.

Prices, many runs, and the decisions of the best: without what leads to no target, and played
backwards where chunks are summed.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taccl.errors import NoScheduleError
from taccl.schedule import Decisions, Schedule, retime
from taccl.synth.arcs import Arcs, Wanted, arcs_of, is_restricted, wanted_in, wanted_of
from taccl.synth.greedy import shortest
from taccl.synth.guided_kernel import compiled
from taccl.synth.guided_layout import MOST_PAIRS, Begin, Field, Numbers, Times, field_of
from taccl.synth.guided_runs import Floats, taught_prices
from taccl.synth.guided_search import Effort, Found, search
from taccl.synth.packing import pack
from taccl.synth.plan import in_turn
from taccl.synth.problem import Options, Problem, reduces_and_spreads
from taccl.synth.routes import Network, build_network
from taccl.synth.variants import networks

PACKED = 40_000
"""Pairs of a representative chunk and an arc up to which prices are those of the packing."""


@dataclass(frozen=True)
class Span:
    """Seconds that a part of the search may take, and after which it needs success to go on."""

    seconds: float
    patience: float

    def part(self, share: float) -> "Span":
        """Return a share of both."""
        return Span(share * self.seconds, share * self.patience)


def one_way(
    problem: Problem, options: Options, span: Span, *, reverse: bool, begin: Begin | None = None
) -> list[Schedule]:
    """Return the best schedule for chunks that flow from their roots, or to them.

    Raises
    ------
    NoScheduleError
        When the sketch leaves a chunk without a path to a target.
    """
    arcs = arcs_of(problem, reverse=reverse)
    variants = list(_wants(arcs, options))
    best: Schedule | None = None
    for wanted, hops in variants:
        if best is not None and options.stop.is_set():
            break
        _check_size(arcs, wanted)
        field = field_of(arcs, wanted, begin, hops)
        found = _searched(arcs, wanted, field, options, span.part(1 / len(variants)))
        if found is not None:
            decisions = _decisions(arcs, wanted, found)
            schedule = retime(problem.collective, problem.group, problem.chunk_size, decisions)
            if best is None or schedule.makespan < best.makespan:
                best = schedule
                options.report(f"{_half(arcs)}: {best.makespan / 1e6:.2f} us under guidance")
    if best is None:
        build_network(problem, reverse=reverse)  # says which rank can't be reached
        raise NoScheduleError(
            "no path within the allowed hops serves every chunk",
            fix="raise max_extra_hops in the sketch",
        )
    return [best]


def _check_size(arcs: Arcs, wanted: Wanted) -> None:
    """Refuse what memory is not for.

    Raises
    ------
    NoScheduleError
        With the reason.
    """
    pairs = len(arcs) * len(wanted.chunk)
    partial = not all(row.all() for row in wanted.targets | wanted.roots)
    if pairs > MOST_PAIRS[partial]:
        raise NoScheduleError(
            f"{len(wanted.chunk)} chunks and {len(arcs)} links are too many for engine guided",
            fix="declare symmetries of the topology, use fewer --chunks, or another engine",
        )


def _wants(arcs: Arcs, options: Options) -> Iterator[tuple[Wanted, Numbers | None]]:
    """Yield what the chunks need and the hops they may make, by variants where a sketch asks."""
    problem, logical = arcs.problem, arcs.problem.logical
    if logical.name is None and logical.connections_per_rank is None and not is_restricted(problem):
        yield wanted_of(arcs), None
        return
    extra = logical.max_extra_hops
    for name, network in networks(problem, reverse=arcs.reverse, options=options):
        yield wanted_in(arcs, network), None if extra is None else _hop_limits(network, extra)
        if extra and name == "any way":
            # A detour to one rank may use up the hops that another needs.
            yield wanted_in(arcs, shortest(network)), None


def _hop_limits(network: Network, extra: int) -> Numbers:
    limits = np.zeros((len(network.demands), network.problem.topology.num_ranks), dtype=np.int32)
    for row, demand in zip(limits, network.demands, strict=True):
        row[list(demand.hops)] = np.array(list(demand.hops.values())) + extra
    return limits


def _searched(
    arcs: Arcs, wanted: Wanted, field: Field, options: Options, span: Span
) -> Found | None:
    began = time.monotonic()
    grow = compiled(options.report)
    prices: list[Floats] = []
    proved = 0
    pairs = len(arcs) * len(wanted.chunk)
    if pairs <= PACKED:
        try:
            packing = pack(arcs, wanted, seconds=1e9 if options.deterministic else span.patience)
        except NoScheduleError:
            return None
        prices.append(packing.prices)
        proved = packing.bound
    goal = max(options.floor, options.fixed_floors.get(_half(arcs), 0), proved)
    prices.append(taught_prices(arcs, field, grow))
    spent = time.monotonic() - began
    runs = int(min(250 * options.time_limit, 3e6 * options.time_limit / max(1, pairs)))
    effort = Effort(
        goal=goal,
        seconds=span.seconds - spent,
        patience=span.patience - spent,
        runs=max(8, runs) if options.deterministic else 1 << 40,
        counted=options.deterministic,
        seed=options.seed,
        workers=options.workers,
        stopped=options.stop.is_set,
    )
    return search(arcs, field, prices, grow, effort)


def _half(arcs: Arcs) -> str:
    """Return the collective that the trees on some arcs make up alone."""
    collective = arcs.problem.collective
    if reduces_and_spreads(collective):
        return "reducescatter" if arcs.reverse else "allgather"
    return collective.name


def _decisions(arcs: Arcs, wanted: Wanted, found: Found) -> Decisions:
    """Return what a run decided: without sends that lead to no target, turned where reversed."""
    kept = _needed(arcs, wanted, found)
    chunk, arc = wanted.chunk[found.chunk[kept]], found.arc[kept]
    link, count = arcs.link[arc], len(arc)
    if not arcs.reverse:
        none = np.zeros(count, dtype=np.bool_)
        return Decisions(chunk, link, np.arange(count, dtype=np.int32), none)
    end = found.start[kept] + arcs.arrival()[arc]
    order = np.lexsort((-np.arange(count), -end))
    collective, dst = arcs.problem.collective, arcs.problem.topology.links.dst
    holds: set[tuple[int, int]] = set()
    rows = []
    for c, k in zip(chunk[order].tolist(), link[order].tolist(), strict=True):
        here = (c, int(dst[k]))
        rows.append((c, k, here in holds or collective.is_source(*here)))
        holds.add(here)
    rows = in_turn(arcs.problem, rows)
    return Decisions.of([(c, k, batch, reduce) for batch, (c, k, reduce) in enumerate(rows)])


def _needed(arcs: Arcs, wanted: Wanted, found: Found) -> Times:
    """Return the sends of a run that lead to some target, in its order."""
    if (wanted.targets | wanted.roots).all():
        return np.arange(len(found.chunk))
    needed = wanted.targets.copy()
    tail, head = arcs.tail[found.arc].tolist(), arcs.head[found.arc].tolist()
    kept = []
    for number in range(len(tail) - 1, -1, -1):
        chunk = found.chunk[number]
        if needed[chunk, head[number]]:
            needed[chunk, tail[number]] = True
            kept.append(number)
    return np.array(kept[::-1], dtype=np.int64)
