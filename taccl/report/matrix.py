"""The links of a topology as a matrix, in the manner of ``nvidia-smi topo -m``."""

from taccl.topology import Topology
from taccl.units import gigabytes_per_second, microseconds

MAX_RANKS = 32


def link_matrix(topology: Topology) -> str:
    """Return ranks by ranks: GB/s of the links from row to column, and a legend.

    Parallel links are ``2x25``; ``.`` is no direct link; at most 32 ranks are shown.
    """
    shown = min(topology.num_ranks, MAX_RANKS)
    cells = [[_cell(topology, src, dst) for dst in range(shown)] for src in range(shown)]
    width = max([4, *(len(cell) for row in cells for cell in row)])
    lines = ["GB/s".ljust(6) + "".join(str(dst).rjust(width + 1) for dst in range(shown))]
    lines += [
        str(src).ljust(6) + "".join(cell.rjust(width + 1) for cell in row)
        for src, row in enumerate(cells)
    ]
    if shown < topology.num_ranks:
        lines.append(f"({topology.num_ranks - shown} more ranks)")
    alphas = sorted(set(topology.links.alpha.tolist()))
    lines.append("alpha of links: " + ", ".join(f"{microseconds(a):g} us" for a in alphas))
    return "\n".join(lines)


def _cell(topology: Topology, src: int, dst: int) -> str:
    if src == dst:
        return "X"
    links = topology.links_between(src, dst)
    if not links:
        return "."
    beta = topology.links.max_beta(links[0])
    rate = "free" if not beta else f"{gigabytes_per_second(1000, round(1000 * beta)):.4g}"
    return f"{len(links)}x{rate}" if len(links) > 1 else rate
