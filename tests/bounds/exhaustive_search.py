"""Whether a tiny problem can be solved faster than a claimed bound, by trying every order of sends.

Messages carry one chunk and start as soon as they may, in order of start; every regular optimum
is among these. Only for a handful of sends: branches that can't stay below the claim are cut off.
"""

from fractions import Fraction

from taccl.collectives import Collective
from taccl.topology.graph import Topology

State = dict[tuple[int, int], int]
NEVER = 1 << 60


def can_beat(topology: Topology, collective: Collective, chunk_size: Fraction, claim: int) -> bool:
    """Tell whether an all-gather, all-to-all or reduce-scatter can end before ``claim``."""
    search = _Search(topology, collective, chunk_size, claim)
    step = search.sums if collective.reduces else search.copies
    return step(search.holders(), {}, frozenset(), (0, 0))


class _Search:
    def __init__(
        self, topology: Topology, collective: Collective, size: Fraction, claim: int
    ) -> None:
        self.collective = collective
        self.claim = claim
        self.seen: set[object] = set()
        self.links = []
        ranks = range(collective.num_ranks)
        self.distance = [[0 if a == b else NEVER for b in ranks] for a in ranks]
        for row in range(len(topology.links)):
            link = topology.link(row)
            edges = [e for e in link.edges if topology.edges[e].beta is not None]
            busy = [(e, topology.busy(row, e, size)) for e in edges]
            duration = topology.arrival(row, size)
            self.links.append((link.src, link.dst, busy, duration))
            best = self.distance[link.src][link.dst]
            self.distance[link.src][link.dst] = min(best, duration)
        for middle in ranks:
            for a in ranks:
                for b in ranks:
                    through = self.distance[a][middle] + self.distance[middle][b]
                    self.distance[a][b] = min(self.distance[a][b], through)

    def holders(self) -> State:
        chunks = range(self.collective.num_chunks)
        return {(c, r): 0 for c in chunks for r in self.collective.sources(c)}

    def copies(
        self,
        at: State,
        free: dict[int, int],
        sent: frozenset[tuple[int, int]],
        last: tuple[int, int],
    ) -> bool:
        """Each chunk goes to ranks that don't have it, until all targets do."""
        collective, chunks = self.collective, range(self.collective.num_chunks)
        missing = [(c, r) for c in chunks for r in collective.targets(c) if (c, r) not in at]
        if not missing:
            return True
        if self.known(at, free, last) or any(self.late(at, c, r, last[0]) for c, r in missing):
            return False
        for number, (src, dst, busy, duration) in enumerate(self.links):
            for chunk in sorted({c for c, _ in missing}):
                if (chunk, src) not in at or (chunk, dst) in at:
                    continue
                start = max([last[0], at[chunk, src], *(free.get(e, 0) for e, _ in busy)])
                if start + duration >= self.claim or (start, number) < last:
                    continue
                there = {**at, (chunk, dst): start + duration}
                held = {**free, **{e: start + time for e, time in busy}}
                if self.copies(there, held, sent, (start, number)):
                    return True
        return False

    def sums(
        self,
        at: State,
        free: dict[int, int],
        sent: frozenset[tuple[int, int]],
        last: tuple[int, int],
    ) -> bool:
        """Each rank but the target hands its partial sum on once, to one that has not."""
        collective, ranks = self.collective, range(self.collective.num_ranks)
        left = [
            (c, r) for c in range(collective.num_chunks) for r in ranks
            if (c, r) not in sent and r not in collective.targets(c)
        ]  # fmt: skip
        if not left:
            return True
        late = any(
            max(at[c, r], last[0]) + self.distance[r][collective.targets(c)[0]] >= self.claim
            for c, r in left
        )
        if late or self.known({**at, **dict.fromkeys(sent, -1)}, free, last):
            return False
        for number, (src, dst, busy, duration) in enumerate(self.links):
            for chunk, rank in left:
                if rank != src or (chunk, dst) in sent:
                    continue
                start = max([last[0], at[chunk, src], *(free.get(e, 0) for e, _ in busy)])
                if start + duration >= self.claim or (start, number) < last:
                    continue
                there = {**at, (chunk, dst): max(at[chunk, dst], start + duration)}
                held = {**free, **{e: start + time for e, time in busy}}
                if self.sums(there, held, sent | {(chunk, src)}, (start, number)):
                    return True
        return False

    def late(self, at: State, chunk: int, target: int, now: int) -> bool:
        """Tell whether a chunk can't reach a target in time any more."""
        arrivals = [
            max(time, now) + self.distance[rank][target]
            for (c, rank), time in at.items() if c == chunk
        ]  # fmt: skip
        return min(arrivals) >= self.claim

    def known(self, at: State, free: dict[int, int], last: tuple[int, int]) -> bool:
        """Tell whether this state was tried before; what is over by now is all alike."""
        now = last[0]
        key = (
            frozenset((k, t if t < 0 else max(t, now)) for k, t in at.items()),
            frozenset((e, t) for e, t in free.items() if t > now),
            last,
        )
        if key in self.seen:
            return True
        self.seen.add(key)
        return False
