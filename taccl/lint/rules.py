"""The table of rules, and the one function that applies them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from taccl.lint import numbers, structure
from taccl.lint.facts import Facts, Finding, Raw
from taccl.topology import Topology


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules.

    Parameters
    ----------
    severity
        Of its findings.
    find
        Facts -> findings, without rule and severity.
    about
        What it looks for.
    """

    severity: str
    find: Callable[[Facts], Iterator[Raw]]
    about: str


RULES: Mapping[str, Rule] = MappingProxyType({
    "unreachable": Rule("error", structure.unreachable, "a rank that another can't reach"),
    "no-symmetry": Rule(
        "error", structure.no_symmetry, "a declared rotation that is no symmetry"),
    "slow-bandwidth": Rule(
        "warning", numbers.slow_bandwidth, "a bandwidth below 0.1 GB/s: another unit was meant"),
    "fast-rank": Rule(
        "warning", numbers.fast_rank, "a rank with more than 2000 GB/s in one direction"),
    "fast-nic": Rule(
        "warning", numbers.fast_nic, "a NIC with more than 100 GB/s for each of its GPUs"),
    "long-latency": Rule("warning", numbers.long_latency, "a link with an alpha above 1 ms"),
    "no-latency": Rule("warning", numbers.no_latency, "links without alpha"),
    "free-path": Rule("warning", numbers.free_path, "links without any bandwidth"),
    "one-way": Rule(
        "warning", structure.one_way, "pairs of ranks with links in one direction only"),
    "uneven": Rule("warning", structure.uneven, "pairs of ranks whose two directions differ"),
    "slow-rank": Rule(
        "warning", numbers.slow_rank, "a rank with less than half the median of its server"),
    "slow-edge": Rule(
        "warning", numbers.slow_edge,
        "an edge 8 times slower than those of its kind, or with 20 times their alpha"),
    "unused-switch": Rule(
        "warning", structure.unused_switch, "a switch on no shortest way between two ranks"),
    "unused-edge": Rule(
        "warning", structure.unused_edge, "an edge on no shortest way between two ranks"),
    "duplicate": Rule("note", structure.duplicate, "parallel edges of equal cost"),
})  # fmt: skip
"""All rules, the worst first."""


def lint(topology: Topology) -> tuple[Finding, ...]:
    """Return what the rules find, in the order of the table.

    Raises
    ------
    InputError
        When the topology has too many links to hold.
    """
    facts = Facts(topology)
    return tuple(
        Finding(name, rule.severity, *raw)
        for name, rule in RULES.items()
        for raw in rule.find(facts)
    )
