"""Which of NCCL's kernels is fastest where: the replay beside what AWS measured.

``aws-ofi-nccl``'s tuner has regions of (bytes, ranks) in each of which one algorithm and protocol
was the fastest on P5 and P5en (eight H100 or H200, EFA). At points drawn from regions of rings and
trees on servers of eight GPUs, NCCL's kernels are replayed in all protocols, with the measured
costs of dgx-h100 and EFA's latency as the plugin states it. Nothing is fitted to the regions.

What counts are ways in a protocol that some region of the platform names. P5 has no region of LL,
of any count of GPUs a server, and LL128 from 0 bytes on; P5en, P6 and P6-B300 have LL there. So LL
is taken not to have been among what was measured on P5; how many agree where it is, is told, too.
"""

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.sections import replace_section
from benchmarks.truth import DATA, PAGE
from taccl.apps.measured import PROTOCOLS
from taccl.replay.cost import measured_costs, model_of
from taccl.replay.timing import Timing
from taccl.synth.templates.nccl_kernels import KERNELS
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.units import PS_PER_US, format_size

FILE = DATA.parent / "30_aws_best_algorithm_regions.tsv"

EFA_US = {"p5_p5e": 75, "p5en": 35}
"""Latency of a message by platform: ``platform-aws.c``; NCCL counts it twice for Simple."""

RANKS = (16, 32)
CHANNELS = 16
"""NCCL finds eight channels of 48 GB/s on such servers, and doubles them when it connects."""
LEAST, MOST = 1 << 10, 4 << 30
"""Bytes of points."""


class Region(NamedTuple):
    """Where a way, algorithm and protocol, of a collective is the fastest on a platform.

    `corners` are (bytes, ranks); those that the tuner computes by going on beyond what was measured
    are left out.
    """

    platform: str
    collective: str
    way: str
    corners: tuple[tuple[float, float], ...]

    def holds(self, size: float, ranks: float) -> bool:
        """Tell whether a point is inside."""
        inside = False
        for (x, y), (u, v) in zip(self.corners, (*self.corners[1:], self.corners[0]), strict=True):
            if (y > ranks) != (v > ranks) and size < (u - x) * (ranks - y) / (v - y) + x:
                inside = not inside
        return inside


def protocols(path: Path) -> dict[str, frozenset[str]]:
    """Return the protocols that regions of a platform name, for any count of GPUs a server."""
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()[1:]]
    return {
        platform: frozenset(row[5].lower() for row in rows if row[1] == platform)
        for platform in {row[1] for row in rows}
    }


def regions(path: Path) -> Iterator[Region]:
    """Yield the regions of servers of eight GPUs."""
    for line in path.read_text("utf-8").splitlines()[1:]:
        _, platform, condition, collective, algorithm, protocol, text = line.split("\t")
        if platform not in EFA_US or "8 * nNodes" not in condition:
            continue
        text = text.replace("TUNER_MAX_SIZE", "1e12").replace("TUNER_MAX_RANKS", "65536")
        corners = re.findall(r"\{\s*([0-9.e]+)\s*,\s*([0-9]+)\s*\}", text)
        if len(corners) > 2:
            name = f"{algorithm} {protocol}".lower()
            points = tuple((float(x), float(y)) for x, y in corners)
            yield Region(platform, collective.lower(), name, points)


def drawn(known: Sequence[Region], count: int) -> Iterator[tuple[Region, int, int]]:
    """Yield so many regions with a point in each: bytes and ranks."""
    draw = random.Random(0)
    kinds = sorted({(region.platform, region.collective) for region in known})
    while count:
        platform, collective = draw.choice(kinds)
        size = round(LEAST * (MOST / LEAST) ** draw.random())
        ranks = draw.choice(RANKS)
        here = [
            region for region in known
            if region[:2] == (platform, collective) and region.holds(size, ranks + 0.01)
        ]  # fmt: skip
        if len(here) == 1 and here[0].way.split()[0] in ("ring", "tree"):
            count -= 1
            yield here[0], size, ranks


@cache
def machine(platform: str, ranks: int) -> Topology:
    """Return servers of a platform: those of dgx-h100, joined by EFA."""
    topology = load_topology("dgx-h100", nodes=ranks // 8)
    costs = measured_costs(topology)
    rows = {
        name: replace(row, alpha_across=row.alpha_across
                      + EFA_US[platform] * PS_PER_US * (2 if name == "Simple" else 1))
        for name, row in costs.protocols.items()
    }  # fmt: skip
    return replace(topology, measured=replace(costs, protocols=rows))


@cache
def timings(platform: str, collective: str, ranks: int) -> dict[str, Timing]:
    """Return NCCL's rings and trees by their ways."""
    topology, model = machine(platform, ranks), replace(model_of("msccl"), measured=True)
    made = {
        f"{name} {protocol}".lower(): KERNELS[name](topology, collective, CHANNELS, protocol)
        for name in ("ring", "tree") for protocol in PROTOCOLS
    }  # fmt: skip
    return {way: Timing(one, topology, model) for way, one in made.items() if one is not None}


def fastest(platform: str, collective: str, size: int, ranks: int) -> dict[str, int]:
    """Return the times of all ways at a point, the fastest first."""
    found = {}
    for way, timing in timings(platform, collective, ranks).items():
        unit = timing.program.chunks_per_loop * timing.model.element_bytes
        time = timing.at(max(1, round(size / unit)) * unit).time
        if time is not None:
            found[way] = time
    return dict(sorted(found.items(), key=lambda each: each[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many points agree, and what is taken for what."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--file", type=Path, default=FILE, help="the regions")
    parser.add_argument("--write", action="store_true", help="put the result into the docs")
    options = parser.parse_args(arguments)
    if not options.file.exists():
        print(f"{options.file} is not there")
        return 0
    agree, near, among_all, mistaken = 0, 0, 0, Counter[str]()
    measured = protocols(options.file)
    for region, size, ranks in drawn(list(regions(options.file)), options.points):
        times = fastest(region.platform, region.collective, size, ranks)
        among_all += next(iter(times)) == region.way
        known = measured[region.platform]
        times = {way: time for way, time in times.items() if way.split()[1] in known}
        found = next(iter(times))
        agree += found == region.way
        over = times.get(region.way, 0) / times[found] - 1
        near += over <= 0.1
        if found != region.way:
            mistaken[f"{region.collective}: {region.way} taken for {found}"] += 1
        print(f"{region.platform:7} {region.collective:13} {format_size(size):>10} {ranks:3}"
              f" {region.way:12} {found:12} {over:+.0%}", flush=True)  # fmt: skip
    text = (
        f"Made by `python -m benchmarks.regions`: of {options.points} points in regions of rings"
        f" and trees, on {' and '.join(map(str, RANKS))} ranks, the replay has the same algorithm"
        f" and protocol fastest at {agree} ({agree / options.points:.0%}; at"
        f" {among_all / options.points:.0%} where LL counts on P5), and the one that AWS"
        f" measured to be the fastest is within a tenth of it at {near}"
        f" ({near / options.points:.0%}).\n"
        + "".join(f"\n- {what}: {count}" for what, count in mistaken.most_common(8)) + "\n"
    )  # fmt: skip
    print(text)
    if options.write:
        replace_section(PAGE, "regions", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
