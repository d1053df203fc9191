"""What checking a topology found, as text and as JSON."""

from taccl.lint import Checked, Finding

SEVERITIES = ("error", "warning", "note")


def findings_text(checked: Checked) -> str:
    """Return every finding with its fix, and a line that sums up what was read."""
    topology, lines = checked.topology, [str(finding) for finding in checked.findings]
    if topology is None:
        return "\n".join(lines)
    counts = {s: sum(f.severity == s for f in checked.findings) for s in SEVERITIES}
    found = ", ".join(f"{n} {s}{'' if n == 1 else 's'}" for s, n in counts.items() if n)
    return "\n".join([
        *lines,
        f"{topology.name}: {topology.num_ranks} ranks, {len(topology.edges)} edges,"
        f" {len(topology.links)} links, {len(topology.rotations)} declared symmetries:"
        f" {found or 'no problems found'}",
    ])  # fmt: skip


def findings_fields(checked: Checked) -> dict[str, object]:
    """Return what ``topology validate --json`` prints."""
    topology = checked.topology
    return {
        "name": None if topology is None else topology.name,
        "ranks": None if topology is None else topology.num_ranks,
        "edges": None if topology is None else len(topology.edges),
        "links": None if topology is None else len(topology.links),
        "rotations": None if topology is None else len(topology.rotations),
        "usable": checked.usable,
        "findings": [_fields(finding) for finding in checked.findings],
    }


def _fields(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "field": finding.field,
        "where": finding.where,
        "problem": finding.problem,
        "fix": finding.fix,
    }
