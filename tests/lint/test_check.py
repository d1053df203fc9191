"""Findings have the line and field of the file that the topology is from, as far as can be told."""

from pathlib import Path

import pytest

from taccl.report.tables import findings_fields, findings_text
from taccl.topology.lint import check_topology

HEAD = "taccl: topology/1\nname: made\n"
NODE = (
    "gpus: 4, wires: [{from: 0, to: 1, bandwidth: 25GB/s, alpha: 1us},"
    " {from: 1, to: 2, bandwidth: WIRE, alpha: 1us},"
    " {from: 2, to: 3, bandwidth: 25GB/s, alpha: 1us}],"
    " nics: [{name: ib0, gpus: all, bandwidth: 12GB/s}]"
)
GOOD, BAD = NODE.replace("WIRE", "25GB/s"), NODE.replace("WIRE", "25MB/s")
FABRIC = "fabric: {kind: leaf-spine, leaves: 2, uplink: UPLINK, alpha: 1us}\n"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"node: {{{BAD}}}\ncount: 1\n", "node.wires[1]"),
        (f"nodes:\n- {{{GOOD}}}\n- {{{BAD}}}\nfabric: {{kind: switch, alpha: 1us}}\n",
         "nodes[1].wires[1]"),
        (f"node: {{{GOOD}}}\ncount: 2\n{FABRIC.replace('UPLINK', '12MB/s')}", "fabric"),
        ("shape: {kind: ring, dims: [4], bandwidth: 25MB/s}\n", "shape"),
        ("ranks: 2\nedges:\n- {from: 0, to: 1, bandwidth: 25MB/s, alpha: 1us, both: false}\n"
         "- {from: 1, to: 0, bandwidth: 25MB/s, alpha: 1us, both: false}\n", "edges[0]"),
    ],
)  # fmt: skip
def test_every_form_says_where_a_number_is(text: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(HEAD + text)
    checked = check_topology(str(path))
    (found,) = [f for f in checked.findings if f.rule == "slow-bandwidth"]
    assert (found.file, found.field) == (str(path), field)
    assert found.line is not None


def test_a_short_form_is_in_no_file() -> None:
    (found,) = check_topology("ring:4@25MB/s").findings
    assert (found.rule, found.file, found.line, found.field) == ("slow-bandwidth", None, None, None)
    assert str(found).startswith("warning: edges 0->1, 1->0, 1->2 and 5 more: 0.025 GB/s")


def test_overrides_are_those_of_other_commands() -> None:
    checked = check_topology("dgx-a100", nodes=2, fabric="switch")
    assert checked.topology is not None
    assert checked.topology.num_ranks == 16
    assert check_topology("ring:4", nodes=2).error is not None


def test_what_is_not_there_is_an_error_in_fields_and_in_words() -> None:
    checked = check_topology("no-such-machine")
    assert not checked.usable
    assert findings_text(checked).startswith("error: topology: there is no file")
    fields = findings_fields(checked)
    assert (fields["name"], fields["ranks"], fields["usable"]) == (None, None, False)


def test_a_topology_with_too_many_links_can_not_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.topology.links.MAX_LINKS", 50_000)
    checked = check_topology("hub:4096")
    assert checked.error is not None
    assert "links" in str(checked.error)
