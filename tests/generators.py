"""Random and tiny named instances: topologies, problems, and schedules that are correct.

The schedules come from random list scheduling: for every chunk a random tree away from its
sources (where data is copied) or towards its root (where it is summed), then all sends in a
random order that respects the trees. Every correct schedule of these trees can come up, the good
ones and the bad ones alike.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.collectives.slots import Slots, place_chunks
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.topology.graph import Edge, Switch, Topology, whole
from taccl.topology.symmetry import make_group

Hop = tuple[int, int, int, int | None, Fraction | None]
"""tail, head, alpha, overhead, beta."""

BETAS = (Fraction(1), Fraction(3, 2), Fraction(23), Fraction(46), Fraction(1000, 3), Fraction(80))
ALPHAS = (0, 1, 7, 700, 1700)
CHUNK_SIZES = (Fraction(1), Fraction(64), Fraction(1000), Fraction(125, 4), Fraction(1000, 3))


def build(
    name: str,
    num_ranks: int,
    hops: Sequence[Hop],
    *,
    switches: Sequence[Switch] = (),
    server_of: Sequence[int] | None = None,
    rule: str = "occupy",
) -> Topology:
    """Return a topology of hops; every edge is called ``e<id>``."""
    edges = tuple(Edge(i, *hop, f"e{i}") for i, hop in enumerate(hops))
    return Topology(
        name, num_ranks, tuple(switches), edges, tuple(server_of or [0] * num_ranks),
        alpha_rule=rule,
    )  # fmt: skip


def both_ways(a: int, b: int, alpha: int, beta: Fraction | None) -> list[Hop]:
    """Return the hops a -> b and b -> a."""
    return [(a, b, alpha, None, beta), (b, a, alpha, None, beta)]


def pair(rule: str = "occupy") -> Topology:
    """Two ranks, one wire each way: alpha 10 ps, 2 ps a byte."""
    return build("pair", 2, both_ways(0, 1, 10, Fraction(2)), rule=rule)


def ring4(rule: str = "occupy") -> Topology:
    """Four ranks, wires to both neighbours: alpha 10 ps, 1 ps a byte; edge 2r is r -> r+1."""
    hops = [hop for r in range(4) for hop in both_ways(r, (r + 1) % 4, 10, Fraction(1))]
    return build("ring4", 4, hops, rule=rule)


def star5(rule: str = "occupy") -> Topology:
    """Five ranks on one switch; a crossing has alpha 10 ps, up 1 and down 2 ps a byte."""
    hops: list[Hop] = []
    for rank in range(5):
        hops += [(rank, 5, 6, None, Fraction(1)), (5, rank, 4, None, Fraction(2))]
    return build("star5", 5, hops, switches=[Switch("hub")], rule=rule)


def twin2x2(rule: str = "occupy") -> Topology:
    """Two servers of two ranks.

    Wires inside (alpha 10 ps, 1 ps a byte), one NIC a server that its ranks share, and a fabric
    between the NICs (alpha 20 ps a crossing, 4 ps a byte at each NIC).
    """
    tx, rx, fabric = (4, 6), (5, 7), 8
    hops = [*both_ways(0, 1, 10, Fraction(1)), *both_ways(2, 3, 10, Fraction(1))]
    for rank in range(4):
        server = rank // 2
        hops += [(rank, tx[server], 0, None, None), (rx[server], rank, 0, None, None)]
    for server in range(2):
        hops += [(tx[server], fabric, 10, None, Fraction(4)),
                 (fabric, rx[server], 10, None, Fraction(4))]  # fmt: skip
    switches = [Switch(f"s{s}/nic.{side}") for s in range(2) for side in ("tx", "rx")]
    return build(
        "twin2x2", 4, hops, switches=[*switches, Switch("fabric", across_servers=True)],
        server_of=(0, 0, 1, 1), rule=rule,
    )  # fmt: skip


TINY = {"pair": pair, "ring4": ring4, "star5": star5, "twin2x2": twin2x2}


def timed(
    topology: Topology,
    collective: str,
    rows: list[tuple[int, tuple[int, int], int, int, int, bool]],
    *,
    k: int = 1,
    size: int | Fraction = 5,
) -> Schedule:
    """Return a schedule of (chunk, (src, dst), start, end, batch, reduce) rows."""
    links = [topology.links_between(*row[1])[0] for row in rows]
    return Schedule(
        build_collective(collective, topology.num_ranks, k), topology, Fraction(size),
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array(links, dtype=np.int32),
        np.array([row[4] for row in rows], dtype=np.int32),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.array([row[3] for row in rows], dtype=np.int64),
        np.array([row[5] for row in rows], dtype=np.bool_),
    )  # fmt: skip


def random_topology(seed: int) -> Topology:
    """Return a connected network of 2 to 6 ranks, any mix of what topologies can have.

    Every link has at least one edge with a bandwidth, so that no message takes no time.
    """
    rng = random.Random(f"topology {seed}")
    shape = rng.choice((_random_wires, _random_hub, _random_servers))
    num_ranks, switches, hops, server_of = shape(rng)
    for _ in range(rng.randrange(3)):
        a, b = rng.sample(range(num_ranks), 2)
        hops += [_hop(rng, a, b) for _ in range(rng.randint(1, 2))]
    rng.shuffle(hops)
    rule = rng.choice(("occupy", "delay"))
    return build(
        f"random{seed}", num_ranks, hops, switches=switches, server_of=server_of, rule=rule
    )


Shape = tuple[int, list[Switch], list[Hop], list[int]]


def _hop(rng: random.Random, tail: int, head: int, *, free: bool = False) -> Hop:
    alpha = rng.choice(ALPHAS)
    overhead = rng.randint(0, alpha) if rng.random() < 0.15 else None
    return (tail, head, alpha, overhead, None if free else rng.choice(BETAS))


def _random_wires(rng: random.Random) -> Shape:
    """Return a one-way ring, or a tree with wires both ways."""
    n = rng.randint(2, 6)
    if rng.random() < 0.5:
        hops = [_hop(rng, rank, (rank + 1) % n) for rank in range(n)]
    else:
        joins = [(rank, rng.randrange(rank)) for rank in range(1, n)]
        hops = [_hop(rng, *ends) for a, b in joins for ends in ((a, b), (b, a))]
    return n, [], hops, [0] * n


def _random_hub(rng: random.Random) -> Shape:
    """Return one or two parallel switches; on each side of a switch bandwidths may be missing."""
    n = rng.randint(2, 6)
    switches = [Switch(f"hub{i}") for i in range(rng.randint(1, 2))]
    hops = []
    for hub in range(n, n + len(switches)):
        free_up, free_down = rng.choice(((False, False), (True, False), (False, True)))
        for rank in range(n):
            hops.append(_hop(rng, rank, hub, free=free_up))
            hops.append(_hop(rng, hub, rank, free=free_down))
    return n, switches, hops, [0] * n


def _random_servers(rng: random.Random) -> Shape:
    """Return two servers with wires or a hub inside and NICs, often shared, between them."""
    sizes = rng.choice(((1, 1), (1, 2), (2, 2), (3, 3), (2, 3)))
    n = sum(sizes)
    server_of = [server for server, size in enumerate(sizes) for _ in range(size)]
    fabric = n
    switches = [Switch("fabric", across_servers=rng.random() < 0.7)]
    hops: list[Hop] = []
    for server in range(2):
        ranks = [rank for rank in range(n) if server_of[rank] == server]
        hops += [_hop(rng, a, b) for a in ranks for b in ranks if abs(a - b) == 1]
        for nic in range(rng.randint(1, len(ranks))):
            tx, rx = n + len(switches), n + len(switches) + 1
            switches += [Switch(f"s{server}/nic{nic}.tx"), Switch(f"s{server}/nic{nic}.rx")]
            hops += [_hop(rng, tx, fabric), _hop(rng, fabric, rx)]
            for rank in ranks:
                hops.append(_hop(rng, rank, tx, free=rng.random() < 0.8))
                hops.append(_hop(rng, rx, rank, free=rng.random() < 0.8))
    return n, switches, hops, server_of


def random_problem(seed: int, collective: str | None = None) -> Problem:
    """Return any of the table's collectives on a random topology, without symmetry."""
    rng = random.Random(f"problem {seed}")
    topology = random_topology(seed)
    name = collective or rng.choice(tuple(COLLECTIVES))
    root = rng.randrange(topology.num_ranks) if COLLECTIVES[name].has_root else None
    return Problem(
        whole(topology),
        build_collective(name, topology.num_ranks, rng.randint(1, 3), root),
        rng.choice(CHUNK_SIZES),
        make_group(topology, ()),
    )


@dataclass(frozen=True)
class Planned:
    """One send of a plan: it comes after the sends ``after``, given by position in the plan."""

    chunk: int
    link: int
    reduce: bool
    after: tuple[int, ...]


def random_decisions(problem: Problem, seed: int, *, packs: bool = False) -> Decisions:
    """Return random decisions that solve a problem, for one chunk of every orbit.

    Without symmetry chunks sometimes travel together. (With it, what is adjacent depends on the
    sends of all orbits.) Those that pack may be any that are ready.
    """
    rng = random.Random(f"decisions {seed}")
    collective, topology = problem.collective, problem.topology
    plan: list[Planned] = []
    for chunk in problem.representatives:
        _plan_chunk(rng, topology, collective, chunk, plan)
    links = [topology.link(send.link) for send in plan]
    hops = [(send.chunk, link.src, link.dst) for send, link in zip(plan, links, strict=True)]
    batches = packs or (len(problem.group) == 1 and rng.random() < 0.7)
    slots = place_chunks(collective, hops) if batches else None
    rows = _sequence(rng, topology, plan, slots, packs=packs)
    return replace(Decisions.of(rows), packs=packs)


def random_schedule(seed: int, collective: str | None = None, *, packs: bool = False) -> Schedule:
    """Return a correct schedule of a random problem."""
    problem = random_problem(seed, collective)
    decisions = random_decisions(problem, seed, packs=packs)
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


def _plan_chunk(
    rng: random.Random, topology: Topology, collective: Collective, chunk: int,
    plan: list[Planned],
) -> None:  # fmt: skip
    """Append the sends of one chunk: reduce to a root, or spread from the sources, or both."""
    sources, targets = collective.sources(chunk), collective.targets(chunk)
    before: tuple[int, ...] = ()
    if collective.reduces:
        root = rng.choice(targets)
        before = _plan_reduce(rng, topology, chunk, root, plan)
        sources = (root,)
    into = _random_tree(rng, topology, sources, away=True)
    needed: set[int] = set()
    for target in targets:
        while target not in sources and target not in needed:
            needed.add(target)
            target = topology.link(into[target]).src
    arrived: dict[int, int] = {}
    for rank, link in into.items():
        if rank in needed:
            src = topology.link(link).src
            after = (arrived[src],) if src in arrived else before
            arrived[rank] = len(plan)
            plan.append(Planned(chunk, link, reduce=False, after=after))


def _plan_reduce(
    rng: random.Random, topology: Topology, chunk: int, root: int, plan: list[Planned]
) -> tuple[int, ...]:
    """Append sends that sum a chunk at a root; return those that arrive there."""
    out = _random_tree(rng, topology, (root,), away=False)
    arriving: dict[int, list[int]] = {}
    for rank, link in reversed(out.items()):
        dst = topology.link(link).dst
        arriving.setdefault(dst, []).append(len(plan))
        plan.append(Planned(chunk, link, reduce=True, after=tuple(arriving.get(rank, ()))))
    return tuple(arriving.get(root, ()))


def _random_tree(
    rng: random.Random, topology: Topology, roots: Sequence[int], *, away: bool
) -> dict[int, int]:
    """Return for every other rank its link from (or to) the tree, nearest the roots first."""
    ends = topology.links
    near, far = (ends.src, ends.dst) if away else (ends.dst, ends.src)
    tree, inside = {}, set(roots)
    while len(inside) < topology.num_ranks:
        link = rng.choice(
            [i for i in range(len(ends)) if near[i] in inside and far[i] not in inside]
        )
        tree[int(far[link])] = link
        inside.add(int(far[link]))
    return tree


def _sequence(
    rng: random.Random, topology: Topology, plan: list[Planned], slots: Slots | None, *,
    packs: bool,
) -> list[tuple[int, int, int, bool]]:  # fmt: skip
    """Return the plan in a random order; with slots, adjacent chunks may travel together."""
    rows: list[tuple[int, int, int, bool]] = []
    waiting, done, seen = list(range(len(plan))), set[int](), set[tuple[int, int]]()
    batch = 0
    while waiting:
        ready = [i for i in waiting if done.issuperset(plan[i].after)]
        message = [rng.choice(ready)]
        if slots is not None and rng.random() < 0.8:
            message = _extend(topology, plan, slots, seen, message, ready, packs=packs)
        for i in message:
            rows.append((plan[i].chunk, plan[i].link, batch, plan[i].reduce))
            seen.add((plan[i].chunk, topology.link(plan[i].link).dst))
        done.update(message)
        waiting = [i for i in waiting if i not in done]
        batch += 1
    return rows


def _extend(
    topology: Topology, plan: list[Planned], slots: Slots, seen: set[tuple[int, int]],
    message: list[int], ready: list[int], *, packs: bool,
) -> list[int]:  # fmt: skip
    """Append ready sends of the same link while all chunks stay adjacent at both ends, or all."""
    first = plan[message[0]]
    link = topology.link(first.link)
    grown = True
    while grown:
        grown = False
        for i in ready:
            alike = (plan[i].link, plan[i].reduce) == (first.link, first.reduce)
            longer = [*message, i]
            chunks = [plan[j].chunk for j in longer]
            arrived = [(chunk, link.src) in seen for chunk in chunks]
            if not alike or len(set(chunks)) < len(chunks):
                continue
            if packs or slots.adjacent(
                chunks, link.src, link.dst, arrived, reduce=first.reduce
            ):  # fmt: skip
                message, grown = longer, True
    return message


def scaled(topology: Topology, factor: int) -> Topology:
    """Return a topology with every alpha, overhead and beta multiplied."""
    edges = tuple(
        replace(
            edge,
            alpha=edge.alpha * factor,
            overhead=None if edge.overhead is None else edge.overhead * factor,
            beta=None if edge.beta is None else edge.beta * factor,
        )
        for edge in topology.edges
    )
    return replace(topology, edges=edges)
