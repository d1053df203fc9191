"""Algorithms of switches that copy and add: each a few fans, of which a batch flows together.

For n ranks on one switch, a buffer of S bytes, ports of beta and one whole crossing of alpha:

============== ======================================================================
nvls           allreduce 2 alpha + (1 + 1/n) beta S (own local 2 alpha + beta S); allgather and
               reducescatter alpha + beta S (own local (n-1)/n beta S); broadcast and reduce
               alpha + beta S
nvls-one-shot  allreduce alpha + n beta S (own local (n-1) beta S): all copy to all, then add
sharp          allreduce alpha of the tree + beta' S, one tree over switches that turns in one;
               beta' is that of the slowest port, engine or window
sharp-trees    the same in t trees of S/t each, as many as there are equal switches to turn in
switchml       sharp on one switch with a window W: rtt + S max(beta, rtt/W)
in-rack        sharp-trees that turn in the l leaves: max(beta, 2 (l-1)/l beta_up) S
nvls-rail      allreduce of s servers of g ranks in k rounds, between which NICs carry sums: all to
               partners of a power of two of servers, log2 s S/g a NIC, or in parts, of as many or
               round a ring, 2 (s-1)/s S/g; inside (1 + 1/g) beta S
nvls-sharp     the same with one tree over each rail: S/g a NIC
multicast-tree over several levels of switches, allgather, broadcast and mirrored reducescatter and
               reduce: alpha of the tree + beta S
============== ======================================================================

References
----------
B. Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor
Collectives", ISCA 2020. R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)",
COM-HPC 2016. A. Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation",
NSDI 2021 (SwitchML). N. Gebara et al., "In-network Aggregation for Shared Machine Learning
Clusters" (PANAMA), MLSys 2021.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from taccl.model.problem import Problem
from taccl.model.schedule import Decisions
from taccl.synth.templates.steps import bits, passed, shards
from taccl.topology.fans import Fan, make_fans, wrong_fan
from taccl.topology.graph import Rank, Topology

MOST_ROUNDS = 64
"""Rounds of a pipeline over servers."""

MOST_ROWS = 60_000
"""Rows of one way."""

Row = tuple[int, Fan | tuple[Rank, Rank], int, bool]
"""A chunk, the fan or the ends of the link it takes, its batch, and whether it is added."""


def tree(
    topology: Topology, turn: int, leaves: Sequence[Rank], *, inward: bool
) -> tuple[int, ...] | None:
    """Return the arcs of a tree with the fewest stations between some ranks and a turn.

    They lead `inward`, from the `leaves` to the `turn`, over switches that add, or from it, over
    switches that copy. At a rank as turn the tree has one arc, and what such a switch demands to go
    through it goes through it. None where the switches of the `topology` don't join them.
    """
    table, ranks = topology.arcs, topology.num_ranks
    near, far = (table.dst, table.src) if inward else (table.src, table.dst)
    reached: dict[int, list[int]] = defaultdict(list)
    for arc, vertex in enumerate(near.tolist()):
        reached[vertex].append(arc)

    def able(vertex: int) -> bool:
        switch = topology.switches[vertex - ranks]
        return (switch.reduce if inward else switch.multicast) is not None

    best: tuple[int, ...] | None = None
    # From a rank the tree leaves by one arc: each is tried.
    for door in reached[turn] if turn < ranks else [-1]:
        toward: dict[int, int] = {}
        front = [turn]
        while front:
            coming: dict[int, int] = {}
            for vertex in front:
                for arc in [door] if vertex == turn and door >= 0 else reached[vertex]:
                    end = int(far[arc])
                    if end != turn and end not in toward and (end < ranks or able(end)):
                        coming.setdefault(end, arc)
            toward |= coming
            front = [vertex for vertex in coming if vertex >= ranks]
        arcs: set[int] = set()
        for leaf in leaves:
            at = leaf
            while at != turn and at in toward and toward[at] not in arcs:
                arcs.add(toward[at])
                at = int(near[toward[at]])
        if not {leaf for leaf in leaves if leaf != turn} <= toward.keys():
            continue
        if door >= 0:
            switch = topology.switches[int(far[door]) - ranks]
            ability = switch.reduce if inward else switch.multicast
            if ability is not None and ability.through:
                arcs |= {arc for arc in reached[int(far[door])] if far[arc] == turn}
        if best is None or len(arcs) < len(best):
            best = tuple(sorted(arcs))
    return best


@dataclass(eq=False)
class Way:
    """The rows of one way to do a collective: fans and links, numbered as they come."""

    problem: Problem
    rows: list[Row] = field(default_factory=list)
    batch: int = 0

    def add(
        self, chunks: Sequence[int], by: Fan | tuple[Rank, Rank], *, reduce: bool, on: int = -1
    ) -> None:
        """Add `chunks` that go by a fan or a link, in a batch of their own or in batch `on`."""
        batch = self.batch if on < 0 else on
        self.rows += [(chunk, by, batch, reduce) for chunk in chunks]
        self.batch += on < 0

    def decisions(self, lands: Mapping[int, int] | None = None) -> Decisions | None:
        """Return the rows as decisions; None where a fan or a link does not exist, or too many.

        `lands` has by row the first row that sees what it brings, where that is not the next.
        """
        topology = self.problem.topology
        if len(self.rows) > MOST_ROWS or not self.rows:
            return None
        fans = list(dict.fromkeys(by for _, by, _, _ in self.rows if isinstance(by, Fan)))
        if any(wrong_fan(topology, fan) for fan in fans):
            return None
        number = {fan: len(topology.links) + place for place, fan in enumerate(fans)}
        rows = []
        for chunk, by, batch, reduce in self.rows:
            links = () if isinstance(by, Fan) else topology.links_between(*by)
            if not (isinstance(by, Fan) or links):
                return None
            rows.append((chunk, number[by] if isinstance(by, Fan) else links[0], batch, reduce))
        visible = None
        if lands is not None:
            visible = [lands.get(row, row + 1) for row in range(len(rows))]
        return Decisions.of(rows, visible, make_fans(topology, fans))


def _fan(
    topology: Topology, turn: int, sources: Sequence[Rank] = (), targets: Sequence[Rank] = ()
) -> Fan | None:
    """Return the fan of trees from sources to a turn and from it to targets."""
    into = tree(topology, turn, sources, inward=True) if sources else ()
    out = tree(topology, turn, targets, inward=False) if targets else ()
    return None if into is None or out is None else Fan(turn, into, out)


def _joined(problem: Problem, ranks: Sequence[Rank]) -> bool:
    """Tell whether one switch that copies and adds is next to all of some ranks, both ways."""
    table, count = problem.topology.arcs, problem.topology.num_ranks
    up, down = (
        {(int(a), int(b)) for a, b in zip(*pair, strict=True)}
        for pair in ((table.src, table.dst), (table.dst, table.src))
    )
    return any(
        switch.multicast is not None and switch.reduce is not None
        and all((rank, vertex) in up and (rank, vertex) in down for rank in ranks)
        for vertex, switch in enumerate(problem.topology.switches, count)
    )  # fmt: skip


def _one_batch(problem: Problem) -> Iterator[Decisions]:
    """Yield one batch of one fan for each rank that owns chunks."""
    collective, topology = problem.collective, problem.topology
    everyone = range(topology.num_ranks)
    way = Way(problem)
    turns: dict[Rank, list[int]] = defaultdict(list)
    for chunk, owner in enumerate(collective.owner.tolist()):
        turns[owner if collective.root is None else collective.root].append(chunk)
    for rank, chunks in turns.items():
        others = [other for other in everyone if other != rank]
        fan = _fan(
            topology, rank, others if collective.reduces else (),
            others if collective.name in ("allreduce", "allgather", "broadcast") else (),
        )  # fmt: skip
        if fan is None:
            return
        way.add(chunks, fan, reduce=collective.reduces, on=0)
    made = way.decisions()
    if made is not None:
        yield made


FANNED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


def nvls(problem: Problem) -> Iterator[Decisions]:
    """Yield the `problem` as one batch on one switch that joins all ranks."""
    if problem.collective.name in FANNED and _joined(problem, range(problem.topology.num_ranks)):
        yield from _one_batch(problem)


def multicast_tree(problem: Problem) -> Iterator[Decisions]:
    """Yield the `problem` as one batch of trees over several switches."""
    if problem.collective.name in FANNED[1:] and not _joined(
        problem, range(problem.topology.num_ranks)
    ):
        yield from _one_batch(problem)


def nvls_one_shot(problem: Problem) -> Iterator[Decisions]:
    """Yield an AllReduce (the `problem`) in which all copy to all and add at home."""
    topology, everyone = problem.topology, range(problem.topology.num_ranks)
    if problem.collective.name != "allreduce" or not _joined(problem, everyone):
        return
    way = Way(problem)
    for rank in everyone:
        fan = _fan(topology, rank, targets=[other for other in everyone if other != rank])
        if fan is None:
            return
        way.add(range(problem.collective.num_chunks), fan, reduce=True, on=0)
    made = way.decisions()
    if made is not None:
        yield made


def _rooted(problem: Problem) -> dict[tuple[int, ...], list[Fan]]:
    """Return trees of all ranks by how many are next to the switch where they turn, and by size."""
    topology, everyone = problem.topology, range(problem.topology.num_ranks)
    found: dict[tuple[int, ...], list[Fan]] = defaultdict(list)
    for turn, switch in enumerate(topology.switches, topology.num_ranks):
        if switch.reduce is None or switch.multicast is None or switch.reduce.at_rank:
            continue
        fan = _fan(topology, turn, everyone, everyone)
        if fan is not None and not wrong_fan(topology, fan):
            near = sum(int(topology.arcs.src[arc]) in everyone for arc in fan.into
                       if topology.arcs.dst[arc] == turn)  # fmt: skip
            alpha = int(make_fans(topology, [fan]).alpha[0])
            found[near, len(fan.into), alpha].append(fan)
    return found


def _in_trees(problem: Problem, *, leaves: bool, several: bool) -> Iterator[Decisions]:
    """Yield AllReduces in one batch of trees that turn in like switches, next to ranks or not."""
    limits = [switch.trees for switch in problem.topology.switches if switch.trees is not None]
    for (near, *_), fans in _rooted(problem).items():
        turns = fans[: min([len(fans), problem.collective.num_chunks, *limits])]
        apart = 0 < near < problem.topology.num_ranks
        if apart != leaves or (len(turns) > 1) != several:
            continue
        way, count = Way(problem), problem.collective.num_chunks
        for number, fan in enumerate(turns):
            part = range(number * count // len(turns), (number + 1) * count // len(turns))
            way.add(part, fan, reduce=True, on=0)
        made = way.decisions()
        if made is not None:
            yield made


def _allreduce(
    ways: Callable[[Problem], Iterator[Decisions]],
) -> Callable[..., Iterator[Decisions]]:
    return lambda problem: ways(problem) if problem.collective.name == "allreduce" else iter(())


def _sharp(problem: Problem) -> Iterator[Decisions]:
    for leaves in (False, True):
        yield from _in_trees(problem, leaves=leaves, several=False)


def _switchml(problem: Problem) -> Iterator[Decisions]:
    everyone = range(problem.topology.num_ranks)
    windows = any(switch.engine.window is not None for switch in problem.topology.switches)
    if windows and _joined(problem, everyone):
        yield from _in_trees(problem, leaves=False, several=False)


def _across_rails(problem: Problem, *, fused: bool) -> Iterator[Decisions]:
    """Yield AllReduces in rounds: sums inside servers, across them, and copies inside.

    A batch of each server has the sums of one round and the copies of one some rounds before, so
    that its ports are busy all the time; in between NICs exchange the sums.
    """
    topology, servers = problem.topology, problem.topology.servers
    count, each = problem.collective.num_chunks, len(servers[0])
    if len(servers) < 2 or each < 2 or any(len(ranks) != each for ranks in servers):
        return
    if count % each or not all(_joined(problem, ranks) for ranks in servers):
        return
    inside: dict[Rank, tuple[Fan, Fan]] = {}
    for ranks in servers:
        for rank in ranks:
            others = [other for other in ranks if other != rank]
            fans = _fan(topology, rank, others), _fan(topology, rank, (), others)
            if fans[0] is None or fans[1] is None:
                return
            inside[rank] = fans[0], fans[1]
    rails = [[ranks[place] for ranks in servers] for place in range(each)]
    trees: list[Fan | None] = [None] * each
    if fused:
        rooted = [
            [_fan(topology, turn, rail, rail) for turn in range(
                topology.num_ranks, topology.num_ranks + len(topology.switches))]
            for rail in rails
        ]  # fmt: skip
        for place, fans_of_rail in enumerate(rooted):
            right = [fan for fan in fans_of_rail if fan and not wrong_fan(topology, fan)]
            if not right:
                return
            trees[place] = min(right, key=lambda fan: len(fan.into) + len(fan.out))
    units = count // each
    for rounds in [k for k in range(1, min(units, MOST_ROUNDS) + 1) if units % k == 0]:
        # Whole sums are exchanged by bits; parts are as many as there are servers.
        several = len(servers) > 2 and units // rounds % len(servers) == 0
        for whole, exists in ((True, len(servers).bit_count() == 1), (False, several)):
            if exists if not fused else whole:
                made = _pipelined(problem, inside, rails, trees, rounds, whole=whole)
                if made is not None:
                    yield made


def _pipelined(
    problem: Problem,
    inside: Mapping[Rank, tuple[Fan, Fan]],
    rails: Sequence[Sequence[Rank]],
    trees: Sequence[Fan | None],
    rounds: int,
    *,
    whole: bool,
) -> Decisions | None:
    """Return the pipeline of some rounds, whose copies are two rounds behind their sums."""
    each, count = len(rails), problem.collective.num_chunks
    units = count // each

    def chunks(place: int, number: int) -> range:
        first = place * units + number * units // rounds
        return range(first, first + units // rounds)

    way = Way(problem)
    lands: dict[int, int] = {}
    for step in range(rounds + 2):
        for number in range(len(rails[0])):
            batch = way.batch
            way.batch += 1
            for place, rail in enumerate(rails):
                adds, copies = inside[rail[number]]
                if step < rounds:
                    way.add(chunks(place, step), adds, reduce=True, on=batch)
                if step >= 2:
                    way.add(chunks(place, step - 2), copies, reduce=False, on=batch)
        for place, rail in enumerate(rails) if step < rounds else ():
            part, fan = chunks(place, step), trees[place]
            if fan is not None:
                way.add(part, fan, reduce=True)
            elif whole:
                _swapped(way, part, rail, lands)
            else:
                _parted(way, part, rail)
    return way.decisions(lands)


def _swapped(way: Way, chunks: range, rail: Sequence[Rank], lands: dict[int, int]) -> None:
    """Add exchanges of all that a rail has so far, each time with those of another bit."""
    for bit in bits(len(rail)):
        first = len(way.rows)
        for place, rank in enumerate(rail):
            way.add(chunks, (rank, rail[place ^ bit]), reduce=True)
        # Each sends what it has without what the other sends.
        lands |= dict.fromkeys(range(first, len(way.rows)), len(way.rows))


def _parted(way: Way, chunks: range, rail: Sequence[Rank]) -> None:
    """Add sums of a part at each rank of a rail, and the parts to all: by bits, or round a ring."""
    count = len(rail)
    own = dict(zip(rail, shards(chunks, count), strict=True))
    gather = list(passed(tuple(rail), [own.get(r, ()) for r in range(max(rail) + 1)], count - 1))
    if count & (count - 1) == 0:
        gather = [
            (tuple(c for other in rail[place // bit * bit :][:bit] for c in own[other]),
             rank, rail[place ^ bit], False)
            for bit in bits(count) for place, rank in enumerate(rail)
        ]  # fmt: skip
    for part, src, dst, _ in reversed(gather):
        way.add(part, (dst, src), reduce=True)
    for part, src, dst, _ in gather:
        way.add(part, (src, dst), reduce=False)


IN_NETWORK: Mapping[str, Callable[[Problem], Iterator[Decisions]]] = MappingProxyType({
    "nvls": nvls,
    "nvls-one-shot": nvls_one_shot,
    "sharp": _allreduce(_sharp),
    "sharp-trees": _allreduce(lambda problem: _in_trees(problem, leaves=False, several=True)),
    "switchml": _allreduce(_switchml),
    "in-rack": _allreduce(lambda problem: _in_trees(problem, leaves=True, several=True)),
    "nvls-rail": _allreduce(lambda problem: _across_rails(problem, fused=False)),
    "nvls-sharp": _allreduce(lambda problem: _across_rails(problem, fused=True)),
    "multicast-tree": multicast_tree,
})  # fmt: skip
"""The algorithms by name: each yields the decisions of its ways, or nothing where it can't be."""
