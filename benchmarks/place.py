"""How good and how fast ``taccl place`` is: ``python -m benchmarks.place``.

Random asymmetric matrices of eight ranks, the best of all 40 320 orders beside what local search
alone finds; 64 ranks in time; and the gain on a cloud of two racks.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

from taccl.apps.placing import Question, program_of
from taccl.imports.measured import Measurements, measured_topology
from taccl.placement import Limits, Order, Replays, search, servers_of
from taccl.replay.cost import model_of
from taccl.topology.graph import Topology
from taccl.units import Time

ALGORITHMS = ("ring", "tree", "halving-doubling")
US = 10**6


def random_matrix(ranks: int, seed: int) -> Topology:
    """Return hosts of which each pair has a latency of 1-30 us and 0.5-25 GB/s of its own."""
    rng = random.Random(seed)

    def costs(_a: int, _b: int) -> tuple[int, Fraction]:
        return rng.randrange(US, 30 * US), Fraction(10_000, rng.randrange(5, 250))

    return measured(ranks, costs)


def two_racks(ranks: int, seed: int) -> Topology:
    """Return hosts of two racks in a random order: 25 and 2.5 GB/s, 3 and 20 us, give or take."""
    rng = random.Random(seed)
    rack = [number % 2 for number in range(ranks)]
    rng.shuffle(rack)

    def costs(a: int, b: int) -> tuple[int, Fraction]:
        noise = rng.randrange(90, 111)
        near = rack[a] == rack[b]
        return (3 if near else 20) * US * noise // 100, Fraction((40 if near else 400) * noise, 100)

    return measured(ranks, costs)


def measured(ranks: int, costs: object) -> Topology:
    """Return the network of hosts whose pairs cost what a function says."""
    found = Measurements(names=[f"host{number}" for number in range(ranks)])
    for pair in ((a, b) for a in range(ranks) for b in range(ranks) if a != b):
        alpha, beta = costs(*pair) if callable(costs) else (0, Fraction(1))
        found.latencies[pair], found.betas[pair] = [(0, alpha)], [beta]
    return measured_topology(found, range(ranks))


class Remembered(Replays):
    """Replays no order twice, so that brute force and search together cost one of them."""

    known: dict[Order, Time] | None = None

    def time(self, order: Sequence[int]) -> Time:
        """Return what the program takes."""
        self.known = {} if self.known is None else self.known
        key = tuple(order)
        if key not in self.known:
            self.known[key] = super().time(key)
        return self.known[key]


def replays_of(topology: Topology, algorithm: str, size: int) -> Replays:
    """Return what replays an algorithm's program on a machine."""
    question = Question(algorithm=algorithm, size=size)
    program, size = program_of(question, topology)
    return Remembered(program, topology, size, model_of(question.runtime))


def eight(matrices: int, algorithm: str) -> str:
    """Return on how many matrices the search and local search alone meet brute force."""
    met = alone = 0
    began = time.process_time()
    for seed in range(matrices):
        replays = replays_of(random_matrix(8, seed), algorithm, 1 << 20)
        least = min(replays.time(order) for order in itertools.permutations(range(8)))
        servers = servers_of(range(8))
        met += search(replays, servers, Limits()).time == least
        alone += search(replays, servers, Limits(samples=0, every=0)).time == least
    spent = (time.process_time() - began) / max(1, matrices)
    return (
        f"8 ranks {algorithm:<17} {met} of {matrices} as brute force, {alone} by local search"
        f" alone ({spent:.2f} s of CPU each)"
    )


def large(ranks: int, seconds: float) -> Iterator[str]:
    """Yield a line for each algorithm on a random matrix and on two racks."""
    for make in (random_matrix, two_racks):
        for algorithm in ALGORITHMS:
            began = time.monotonic()
            topology = make(ranks, 1)
            replays = replays_of(topology, algorithm, 1 << 20)
            left = max(1.0, seconds - (time.monotonic() - began))
            found = search(replays, servers_of(range(ranks)), Limits(left))
            mean = sum(found.random) / len(found.random)
            bound = f"{found.time / found.bound - 1:.2%} above" if found.bound else "no"
            yield (
                f"{make.__name__:<14} {ranks} ranks {algorithm:<17} {time.monotonic() - began:5.1f}"
                f" s {found.replays:6} replays  {found.time / US:10.2f} us"
                f"  {found.identity / found.time:5.2f} x as given  {mean / found.time:5.2f} x the"
                f" mean of {len(found.random)}, {min(found.random) / found.time:5.2f} x the best"
                f"  {bound} bound ({found.ended})"
            )


def main() -> int:
    """Run both parts; return 1 when brute force is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrices", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=25)
    given = parser.parse_args()
    for line in large(given.ranks, given.seconds) if given.ranks else ():
        print(line, flush=True)
    lines = []
    for algorithm in ALGORITHMS if given.matrices else ():
        lines.append(eight(given.matrices, algorithm))
        print(lines[-1], flush=True)
    return 1 if any(f" {given.matrices} of " not in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
