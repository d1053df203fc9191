"""``--profile measured`` of the commands that search."""

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_bad_input import one_error


def test_machines_without_measured_costs_are_refused(run: Run, tmp_path: Path) -> None:
    for command in (
        ("synthesize", "ring:4", "allgather", "-o", str(tmp_path / "none.xml")),
        ("compare", "ring:4", "allgather"),
        ("tune", "ring:4", "allgather", "-o", str(tmp_path / "library"), "--time-limit", "5"),
    ):
        found = run(*command, "--profile", "measured")
        one_error(found, "--profile", "ring-4 has no measured costs", "use alpha-beta")
    assert not list(tmp_path.iterdir())


def test_synthesize_says_which_profile_its_times_are_of(run: Run, tmp_path: Path) -> None:
    asked = ("synthesize", "dgx-h100", "allgather", "--size", "64KB", "--engine", "all-pairs")
    xml = str(tmp_path / "all-pairs.xml")
    # A machine that ships measured costs is charged these, unless something else is asked for.
    found = run(*asked, "-o", xml, "--json")
    report = json.loads(found.out)
    assert (report["profile"], report["protocol"]) == ("measured", "LL")
    for other in (("--profile", "alpha-beta"), ("--alpha-rule", "delay"), ("--runtime", "none")):
        assert json.loads(run(*asked, *other, "--json").out)["profile"] == "alpha-beta"
    # The same file takes as long under the same profile on the machine as it is shipped.
    asked = ("evaluate", xml, "--topology", "dgx-h100", "--profile", "measured", "--json")
    (row,) = json.loads(run(*asked, "--size", "64000", "--runtime", "portable").out)["rows"]
    assert row["time_us"] == report["replay_us"]
    assert report["bound_us"] <= row["time_us"]
    assert row["alpha_rule"] == row["costs"] == "measured"
    asked = ("evaluate", xml, "--topology", "dgx-h100", "--json")
    assert json.loads(run(*asked).out)["rows"][0]["costs"] == "measured"
    for other in (("--profile", "alpha-beta"), ("--alpha-rule", "delay"), ("--protocol-costs",)):
        assert json.loads(run(*asked, *other).out)["rows"][0]["costs"] == "alpha-beta"


def test_a_library_says_which_profile_its_times_are_of(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "library"
    asked = ("tune", "dgx-h100", "allgather", "-b", "1K", "-e", "1M", "-f", "1024")
    found = run(*asked, "--candidates", "2", "-o", str(output))
    assert found.status == 0, found.err
    index = json.loads((output / "index.json").read_text())
    assert index["topology"]["profile"] == "measured"
    assert "measured costs" in index["model"]
    assert {one["protocol"] for one in index["collectives"][0]["ranges"]} >= {"LL"}
