"""From what was measured between hosts to a network that can be replayed on.

Every pair gets an alpha and a beta. Several latencies are fitted by alpha + beta s, each error
relative to what was measured; bandwidths, where there are any, say beta, and the latency of the
smallest message says alpha then. A pair is an edge of its own between the two hosts' ports:
``HOST.tx`` sends, ``HOST.rx`` receives, one message at a time, as fast as the fastest pair of that
host; alpha belongs to the pair.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from taccl.errors import InputError
from taccl.imports.measured_matrix import Measurements, first_missing
from taccl.topology import Edge, Switch, Topology
from taccl.units import MAX_BETA, MAX_TIME, MIN_BETA, Time, ceil_time

_DIGITS = 10**6
"""Fitted betas are rounded to millionths of a picosecond for each byte."""


def measured_topology(
    found: Measurements, server_of: Sequence[int], *, alpha_rule: str = "occupy"
) -> Topology:
    """Return the network of hosts that everything was measured between.

    Parameters
    ----------
    server_of
        The server of each host; all different where a host is a server.

    Raises
    ------
    InputError
        When nothing was measured between two hosts, in neither direction.
    """
    missing = first_missing(found)
    if missing is not None:
        raise InputError(
            f"nothing was measured between {missing[0]} and {missing[1]}", file=found.file,
            fix="measure every pair in one direction at least, or leave a host out",
        )  # fmt: skip
    hosts = range(len(found.names))
    costs = {(a, b): pair_costs(found, a, b) for a in hosts for b in hosts if a != b}
    sends = [min(costs[a, b][1] for b in hosts if b != a) for a in hosts]
    receives = [min(costs[a, b][1] for a in hosts if a != b) for b in hosts]
    n = len(hosts)
    edges = [Edge(a, a, n + a, 0, None, sends[a], f"{found.names[a]}.send") for a in hosts]
    edges += [
        Edge(n + b, 2 * n + b, b, 0, None, receives[b], f"{found.names[b]}.receive") for b in hosts
    ]
    edges += [
        Edge(2 * n + i, n + a, 2 * n + b, alpha, None, beta, f"{found.names[a]}->{found.names[b]}")
        for i, ((a, b), (alpha, beta)) in enumerate(costs.items())
    ]
    switches = [Switch(f"{name}.{side}") for side in ("tx", "rx") for name in found.names]
    return Topology(
        "measured", n, tuple(switches), tuple(edges), tuple(server_of), alpha_rule=alpha_rule
    )


def pair_costs(found: Measurements, src: int, dst: int) -> tuple[Time, Fraction]:
    """Return alpha and beta of a pair; what was measured the other way serves where nothing else.

    Without any bandwidth, and one size of messages, bytes cost as good as nothing.
    """
    pair, back = (src, dst), (dst, src)
    latencies = found.latencies.get(pair) or found.latencies.get(back) or []
    betas = found.betas.get(pair) or found.betas.get(back) or []
    if betas:
        beta = min(betas)
        size, time = min(latencies, default=(0, 0))
        return max(0, time - ceil_time(beta, size)), beta
    return fit(latencies)


def fit(latencies: Sequence[tuple[int, Time]]) -> tuple[Time, Fraction]:
    """Return the alpha and beta whose times are closest to those measured, error by error."""
    sizes = np.array([size for size, _ in latencies], np.float64)
    times = np.array([time for _, time in latencies], np.float64)
    weights = 1 / np.maximum(times, 1.0)
    if len(set(sizes.tolist())) < 2:
        return round(float(np.mean(times))), MIN_BETA
    columns = np.stack([weights, weights * sizes], axis=1)
    alpha, beta = np.linalg.lstsq(columns, weights * times, rcond=None)[0].tolist()
    if alpha < 0:
        alpha, beta = 0.0, float(np.mean(times[sizes > 0] / sizes[sizes > 0]))
    if beta <= 0:
        alpha, beta = float(np.mean(times)), 0.0
    exact = Fraction(round(beta * _DIGITS), _DIGITS)
    return min(round(alpha), MAX_TIME), min(max(exact, MIN_BETA), MAX_BETA)
