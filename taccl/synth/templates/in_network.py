"""Algorithms of switches that copy and add: each a few fans, of which a batch flows together.

For n ranks on one switch, a buffer of S bytes, ports of beta and one whole crossing of alpha:

============== ======================================================================
nvls           allreduce 2 alpha + (1 + 1/n) beta S (own local 2 alpha + beta S); allgather and
               reducescatter alpha + beta S (own local (n-1)/n beta S); broadcast and reduce
               alpha + beta S; what a file asks for alpha (2 of sums) and the busiest port
nvls-one-shot  allreduce alpha + n beta S (own local (n-1) beta S): all copy to all, then add
sharp          allreduce alpha of the tree + beta' S, one tree over switches that turns in one;
               beta' is that of the slowest port, engine or window
sharp-trees    the same in t trees of S/t each, as many as there are equal switches to turn in
switchml       sharp on one switch with a window W: rtt + S max(beta, rtt/W)
in-rack        sharp-trees that turn in the l leaves: max(beta, 2 (l-1)/l beta_up) S
nvls-rail      allreduce of s servers of g ranks in k rounds, between which NICs carry sums: all to
               partners of a power of two of servers, log2 s S/g a NIC, or in parts, of as many or
               round a ring, 2 (s-1)/s S/g; inside (1 + 1/g) beta S. Allgather along the rails,
               (s-1) (alpha' + S/n), and copied in every server, alpha + beta S; in few messages
               copied first, and whole servers by bits, log2 s alpha'. Broadcast log2 s alpha', or
               S/g a NIC and s rounds to fill. Reducescatter and reduce are these played backwards
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from taccl.model.problem import Problem
from taccl.model.schedule import Decisions
from taccl.synth.templates.steps import bits, blocks, passed, shards
from taccl.topology.fans import Fan, make_fans, wrong_fan
from taccl.topology.graph import Rank, Topology

MOST_ROUNDS = 64
"""Rounds of a pipeline over servers."""

MOST_ROWS = 100_000
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
        """Add `chunks` that go by a fan or a link, in a batch of their own or in batch `on`.

        What has too many rows already is not written out.
        """
        batch = self.batch if on < 0 else on
        if len(self.rows) <= MOST_ROWS:
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


def _joined(problem: Problem, groups: Iterable[Sequence[Rank]]) -> bool:
    """Tell whether each of some groups has a switch that copies, adds and is next to all of it."""
    table, count = problem.topology.arcs, problem.topology.num_ranks
    up, down = (
        set(zip(*(ends.tolist() for ends in pair), strict=True))
        for pair in ((table.src, table.dst), (table.dst, table.src))
    )
    able = [switch.multicast is not None and switch.reduce is not None
            for switch in problem.topology.switches]  # fmt: skip
    beside: dict[Rank, set[int]] = defaultdict(set)
    for rank, vertex in up & down:
        if rank < count <= vertex and able[vertex - count]:
            beside[rank].add(vertex)
    return all(set.intersection(*(beside[rank] for rank in ranks)) for ranks in groups)


def _one_batch(problem: Problem) -> Iterator[Decisions]:
    """Yield one batch of a fan for each chunk, which turns at its owner or another of its ranks.

    Chunks of one fan go along it together. Nothing where no chunk is for several, or of several.
    """
    collective, way = problem.collective, Way(problem)
    fans: dict[tuple[Rank, tuple[Rank, ...], tuple[Rank, ...]], list[int]] = defaultdict(list)
    for chunk, owner in enumerate(collective.owner.tolist()):
        sources, targets = collective.sources(chunk), collective.targets(chunk)
        ends = targets if collective.reduces else sources
        turn = owner if owner in ends else min(ends)
        into = {*sources} - {turn} if collective.reduces else set()
        out = {*targets} - {turn} if collective.reduces else {*targets} - {*sources}
        if into or out:
            fans[turn, tuple(sorted(into)), tuple(sorted(out))].append(chunk)
    if not any(len(into) > 1 or len(out) > 1 for _, into, out in fans):
        return
    for (turn, before, after), chunks in fans.items():
        fan = _fan(problem.topology, turn, before, after)
        if fan is None:
            return
        way.add(chunks, fan, reduce=collective.reduces, on=0)
    made = way.decisions()
    if made is not None:
        yield made


def nvls(problem: Problem) -> Iterator[Decisions]:
    """Yield the `problem` as one batch on one switch that joins all ranks."""
    if _joined(problem, [range(problem.topology.num_ranks)]):
        yield from _one_batch(problem)


def multicast_tree(problem: Problem) -> Iterator[Decisions]:
    """Yield the `problem` as one batch of trees over several switches."""
    everyone = range(problem.topology.num_ranks)
    if not problem.topology.copies_or_adds or problem.collective.name == "allreduce":
        return
    if not _joined(problem, [everyone]):
        yield from _one_batch(problem)


def nvls_one_shot(problem: Problem) -> Iterator[Decisions]:
    """Yield an AllReduce (the `problem`) in which all copy to all and add at home."""
    topology, everyone = problem.topology, range(problem.topology.num_ranks)
    if problem.collective.name != "allreduce" or not _joined(problem, [everyone]):
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
    if windows and _joined(problem, [everyone]):
        yield from _in_trees(problem, leaves=False, several=False)


@dataclass(frozen=True)
class Rails:
    """Servers whose switch copies and adds for all their ranks, and what is between them.

    By rank `adds` and `copies` are the fans of its server that turn there, and rail i has the i-th
    rank of every server, in their order.
    """

    problem: Problem
    adds: Mapping[Rank, Fan]
    copies: Mapping[Rank, Fan]
    rails: Sequence[Sequence[Rank]]

    def mirrored(self, way: Way) -> Way:
        """Return a way to copy as a way to add: played backwards, fans and links turned round."""
        against: dict[object, Fan] = {fan: self.adds[rank] for rank, fan in self.copies.items()}
        rows = [
            (chunk, against[by] if isinstance(by, Fan) else by[::-1], way.batch - 1 - batch, True)
            for chunk, by, batch, _ in reversed(way.rows)
        ]
        return Way(self.problem, rows, way.batch)


def _rails(problem: Problem) -> Rails | None:
    """Return the rails between servers that are alike; None where there are none."""
    servers, each = problem.topology.servers, len(problem.topology.servers[0])
    if len(servers) < 2 or each < 2 or any(len(ranks) != each for ranks in servers):
        return None
    if not _joined(problem, servers):
        return None
    adds: dict[Rank, Fan] = {}
    copies: dict[Rank, Fan] = {}
    for ranks in servers:
        for rank in ranks:
            others = [other for other in ranks if other != rank]
            into = _fan(problem.topology, rank, others)
            out = _fan(problem.topology, rank, (), others)
            if into is None or out is None:
                return None
            adds[rank], copies[rank] = into, out
    return Rails(problem, adds, copies, [[ranks[i] for ranks in servers] for i in range(each)])


def _counts(units: int) -> list[int]:
    """Return into how many equal rounds so many chunks can be cut."""
    return [count for count in range(1, min(units, MOST_ROUNDS) + 1) if units % count == 0]


def nvls_rail(problem: Problem) -> Iterator[Decisions]:
    """Yield the `problem` in rounds, inside servers by switches and across them by NICs."""
    rails = _rails(problem) if problem.collective.name in RAILED else None
    if rails is not None:
        for way, lands in RAILED[problem.collective.name](rails):
            made = way.decisions(lands)
            if made is not None:
                yield made


def _nvls_sharp(problem: Problem) -> Iterator[Decisions]:
    """Yield AllReduces with one tree over each rail in place of messages between NICs."""
    rails, topology = _rails(problem), problem.topology
    count, units = problem.collective.num_chunks, len(topology.servers[0])
    if rails is None or count % units:
        return
    trees = []
    for rail in rails.rails:
        fans = [
            _fan(topology, turn, rail, rail)
            for turn in range(topology.num_ranks, topology.num_ranks + len(topology.switches))
        ]
        right = [fan for fan in fans if fan and not wrong_fan(topology, fan)]
        if not right:
            return
        trees.append(min(right, key=lambda fan: len(fan.into) + len(fan.out)))
    for rounds in _counts(count // units):
        way, _ = _pipelined(rails, rounds, lambda way, part, place, _: way.add(
            part, trees[place], reduce=True))  # fmt: skip
        made = way.decisions()
        if made is not None:
            yield made


Lands = dict[int, int]
"""By row the first row that sees what it brings, where that is not the next."""

Across = Callable[[Way, range, int, Lands], None]
"""Adds the rows by which a rail (by its number) sums some chunks and has the sums everywhere."""


def _allreduces(rails: Rails) -> Iterator[tuple[Way, Lands]]:
    """Yield AllReduces that exchange whole sums by bits, or their parts.

    There are as many parts as servers.
    """
    count, units = len(rails.rails[0]), rails.problem.collective.num_chunks // len(rails.rails)

    def swapped(way: Way, chunks: range, place: int, lands: Lands) -> None:
        rail = rails.rails[place]
        for bit in bits(count):
            first = len(way.rows)
            for number, rank in enumerate(rail):
                way.add(chunks, (rank, rail[number ^ bit]), reduce=True)
            # Each sends what it has without what the other sends.
            lands |= dict.fromkeys(range(first, len(way.rows)), len(way.rows))

    def parted(way: Way, chunks: range, place: int, lands: Lands) -> None:
        del lands
        rail = rails.rails[place]
        own = dict(zip(rail, shards(chunks, count), strict=True))
        gather = list(
            passed(tuple(rail), [own.get(r, ()) for r in range(max(rail) + 1)], count - 1)
        )
        if count.bit_count() == 1:
            gather = [
                (tuple(c for other in rail[place // bit * bit :][:bit] for c in own[other]),
                 rank, rail[place ^ bit], False)
                for bit in bits(count) for place, rank in enumerate(rail)
            ]  # fmt: skip
        for part, src, dst, *_ in reversed(gather):
            way.add(part, (dst, src), reduce=True)
        for part, src, dst, *_ in gather:
            way.add(part, (src, dst), reduce=False)

    if rails.problem.collective.num_chunks % len(rails.rails):
        return
    for rounds in _counts(units):
        if count.bit_count() == 1:
            yield _pipelined(rails, rounds, swapped)
        if count > 2 and units // rounds % count == 0:
            yield _pipelined(rails, rounds, parted)


def _pipelined(rails: Rails, rounds: int, across: Across) -> tuple[Way, Lands]:
    """Return an AllReduce in rounds: sums inside servers, across them, and copies inside.

    A batch of each server has the sums of one round and the copies of two rounds before, so that
    its ports are busy all the time; in between NICs exchange the sums.
    """
    units = rails.problem.collective.num_chunks // len(rails.rails)

    def chunks(place: int, number: int) -> range:
        first = place * units + number * units // rounds
        return range(first, first + units // rounds)

    way, lands = Way(rails.problem), dict[int, int]()
    for step in range(rounds + 2):
        for server in zip(*rails.rails, strict=True):
            batch = way.batch
            way.batch += 1
            for place, rank in enumerate(server):
                if step < rounds:
                    way.add(chunks(place, step), rails.adds[rank], reduce=True, on=batch)
                if step >= 2:
                    way.add(chunks(place, step - 2), rails.copies[rank], reduce=False, on=batch)
        for place in range(len(rails.rails) if step < rounds else 0):
            across(way, chunks(place, step), place, lands)
    return way, lands


def _allgathers(rails: Rails) -> Iterator[tuple[Way, Lands]]:
    """Yield AllGathers in rounds, along the rails before servers, or whole servers by bits.

    In rounds each rank tells those of its rail, and then they all their servers. In few messages
    each rank first has all that its server has, which lies side by side and goes along all rails.
    """
    own, way = blocks(rails.problem), Way(rails.problem)
    servers = rails.problem.topology.servers
    has = [tuple(chunk for rank in ranks for chunk in own[rank]) for ranks in servers]
    count = rails.problem.collective.num_chunks
    few = len(own) * count <= MOST_ROWS and len(has).bit_count() == 1
    if few and sum(has, ()) == tuple(range(count)):
        for ranks in servers:
            way.batch += 1
            for rank in ranks:
                way.add(own[rank], rails.copies[rank], reduce=False, on=way.batch - 1)
        for bit in bits(len(has)):
            for rail in rails.rails:
                for place, rank in enumerate(rail):
                    known = sum(has[place // bit * bit :][:bit], ())
                    way.add(known, (rank, rail[place ^ bit]), reduce=False)
        yield way, {}
    for rounds in _counts(rails.problem.collective.chunks_per_rank):
        way = Way(rails.problem)
        for step in range(rounds):
            now = {rank: shards(mine, rounds)[step] for rank, mine in enumerate(own)}
            for rail in rails.rails:
                for hop in range(1, len(rail)):
                    for place, rank in enumerate(rail):
                        to = rail[(place + hop) % len(rail)]
                        way.add(now[rank], (rank, to), reduce=False)
            for ranks in servers:
                way.batch += 1
                for rank, rail in zip(ranks, rails.rails, strict=True):
                    for other in rail:
                        way.add(now[other], rails.copies[rank], reduce=False, on=way.batch - 1)
        yield way, {}


def _broadcasts(rails: Rails) -> Iterator[tuple[Way, Lands]]:
    """Yield broadcasts: the root's server has all copied, and each rail takes a part to others.

    In rounds, along the rail from server to server, or as a binomial tree.
    """
    root, count = rails.problem.collective.root or 0, rails.problem.collective.num_chunks
    home = rails.problem.topology.server_of[root]
    first = next(place for place, rail in enumerate(rails.rails) if root in rail)
    # Of one chunk it is the root's own rail that has it.
    ways = [[*rail[home:], *rail[:home]] for rail in (*rails.rails[first:], *rails.rails[:first])]
    parts = shards(range(count), min(count, len(ways)))
    for rounds in _counts(min(map(len, parts))):
        for tree in (False, True) if len(ways[0]) > 2 else (False,):
            way = Way(rails.problem)
            for step in range(rounds):
                now = [shards(part, rounds)[step] for part in parts]
                way.add([c for part in now for c in part], rails.copies[root], reduce=False)
                for part, rail in zip(now, ways, strict=False):
                    for place in range(1, len(rail)):
                        # In a tree it has its copy from whom it has all bits with but the highest.
                        before = place ^ 1 << place.bit_length() - 1 if tree else place - 1
                        way.add(part, (rail[before], rail[place]), reduce=False)
                for server in list(zip(*ways, strict=True))[1:]:
                    way.batch += 1
                    for part, rank in zip(now, server, strict=False):
                        way.add(part, rails.copies[rank], reduce=False, on=way.batch - 1)
            yield way, {}


def _backwards(
    ways: Callable[[Rails], Iterator[tuple[Way, Lands]]],
) -> Callable[[Rails], Iterator[tuple[Way, Lands]]]:
    return lambda rails: ((rails.mirrored(way), {}) for way, _ in ways(rails))


RAILED: Mapping[str, Callable[[Rails], Iterator[tuple[Way, Lands]]]] = MappingProxyType({
    "allreduce": _allreduces, "allgather": _allgathers, "broadcast": _broadcasts,
    "reducescatter": _backwards(_allgathers), "reduce": _backwards(_broadcasts),
})  # fmt: skip
"""Ways over the rails between servers, by collective."""

IN_NETWORK: Mapping[str, Callable[[Problem], Iterator[Decisions]]] = MappingProxyType({
    "nvls": nvls,
    "nvls-one-shot": nvls_one_shot,
    "sharp": _allreduce(_sharp),
    "sharp-trees": _allreduce(lambda problem: _in_trees(problem, leaves=False, several=True)),
    "switchml": _allreduce(_switchml),
    "in-rack": _allreduce(lambda problem: _in_trees(problem, leaves=True, several=True)),
    "nvls-rail": nvls_rail,
    "nvls-sharp": _allreduce(_nvls_sharp),
    "multicast-tree": multicast_tree,
})  # fmt: skip
"""The algorithms by name: each yields the decisions of its ways, or nothing where it can't be."""
