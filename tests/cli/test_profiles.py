"""``--profile measured`` of the commands that search."""

import json
import re
from pathlib import Path

from taccl.topology.file import shipped_file
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


def test_protocols_without_measured_costs_are_refused(run: Run, tmp_path: Path) -> None:
    xml = str(tmp_path / "none.xml")
    found = run("synthesize", "mi250", "reduce", "--nodes", "2", "--protocol", "LL128", "-o", xml)
    one_error(
        found,
        "--protocol",
        "mi250 has no measured costs of LL128",
        "use LL or Simple, or --profile",
    )
    # Of Simple alone there is nothing for what hangs with it between servers.
    with_ll = Path(shipped_file("mi250", "topologies", "topology")).read_text("utf-8")
    own = tmp_path / "simple.yaml"
    own.write_text(re.sub(r" +LL: .*\n", "", with_ll), "utf-8")
    found = run("synthesize", str(own), "broadcast", "--nodes", "2", "-o", xml)
    one_error(found, "--profile", "measured costs of Simple alone", "use alpha-beta")
    assert not Path(xml).exists()


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
    replayed = ("evaluate", xml, "--topology", "dgx-h100", "--json")
    measured = ("--profile", "measured", "--size", "64000", "--runtime", "portable")
    (row,) = json.loads(run(*replayed, *measured).out)["rows"]
    assert row["time_us"] == report["replay_us"]
    assert report["bound_us"] <= row["time_us"]
    assert row["alpha_rule"] == row["costs"] == "measured"
    assert json.loads(run(*replayed).out)["rows"][0]["costs"] == "measured"
    for option in ("--profile=alpha-beta", "--alpha-rule=delay", "--protocol-costs"):
        assert json.loads(run(*replayed, option).out)["rows"][0]["costs"] == "alpha-beta"


def test_a_library_says_which_profile_its_times_are_of(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "library"
    asked = ("tune", "dgx-h100", "allgather", "-b", "1K", "-e", "1M", "-f", "1024")
    found = run(*asked, "--candidates", "2", "-o", str(output))
    assert found.status == 0, found.err
    index = json.loads((output / "index.json").read_text())
    assert index["topology"]["profile"] == "measured"
    assert "measured costs" in index["model"]
    assert {one["protocol"] for one in index["collectives"][0]["ranges"]} >= {"LL"}


def test_measured_costs_are_fitted_to_what_nccl_tests_printed(run: Run, tmp_path: Path) -> None:
    # The machine launches kernels in 40 us, its shipped file says something else.
    text = Path(shipped_file("dgx-h100", "topologies", "topology")).read_text("utf-8")
    slow, xml, mine = (tmp_path / name for name in ("slow.yaml", "ring.xml", "mine.yaml"))
    changed = re.sub(r"Simple: {launch: [0-9.]+us", "Simple: {launch: 40us", text)
    assert changed != text
    slow.write_text(changed, "utf-8")
    made = run("synthesize", "dgx-h100", "allgather", "--size", "1M", "--engine", "all-pairs",
               "--protocol", "Simple", "--instances", "1", "--min-bytes", "1K", "--max-bytes", "1G",
               "-o", xml)  # fmt: skip
    assert made.status == 0, made.err
    tables = []
    for name, begin, end in (("small.txt", "64K", "1M"), ("large.txt", "4M", "64M")):
        on = ("--topology", slow, "-b", begin, "-e", end, "--runtime", "msccl")
        (tmp_path / name).write_text(run("evaluate", xml, *on, "--format", "nccl-tests").out)
        tables.append(tmp_path / name)
    asked = ("calibrate", "dgx-h100", "--collective", "allgather", "--program", xml,
             "--profile", "measured", "--measured")  # fmt: skip
    done = run(*asked, *tables, "-o", mine)
    assert done.status == 0, done.err
    assert "\nsupported: " in done.out
    report = json.loads(run(*asked, *tables, "--json").out)
    assert [table["rows"] for table in report["tables"]] == [10, 10]
    for table in report["tables"]:
        # One table tells the launch, so that the other one is known without it.
        errors = [table[f"error_{when}"]["median"] for when in ("before", "after", "left_out")]
        assert errors[1] < 0.02
        assert errors[2] < 0.06 < errors[0]
    sizes = ("-b", "64K", "-e", "64M", "--runtime", "msccl", "--json")
    rows = [json.loads(run("evaluate", xml, "--topology", where, *sizes).out)["rows"]
            for where in (slow, mine)]  # fmt: skip
    for measured, fitted in zip(*rows, strict=True):
        assert fitted["costs"] == "measured"
        assert abs(fitted["time_us"] / measured["time_us"] - 1) < 0.03


def test_a_fit_with_more_costs_than_rows_support_is_told(run: Run, tmp_path: Path) -> None:
    table, lines = tmp_path / "run.txt", []
    # 16 KB take 900 us, which no cost explains alone.
    for size, us in ((16384, 900.0), (1 << 20, 5000.0)):
        algbw = size / us / 1000
        group = f"{us:.1f} {algbw:.3f} {algbw * 7 / 4:.3f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {group} {group}")
    table.write_text("\n".join(lines))
    asked = ("calibrate", "dgx-h100", "--measured", table, "--profile", "measured")
    found = json.loads(
        run(
            *asked, "--collective", "allreduce", "--channels", "1", "--algorithm", "ring", "--json"
        ).out
    )
    assert not found["supported"]
    assert "measure more sizes" in found["verdict"]
    assert found["tables"][0]["error_left_out"] is None


def test_what_can_not_start_or_is_of_the_other_profile_is_one_error(
    run: Run, tmp_path: Path
) -> None:
    table = tmp_path / "run.txt"
    table.write_text("16384 4096 float sum -1 13.85 1.18 1.77 0 13.79 1.19 1.78 0\n")
    asked = ("calibrate", "ring:4", "--collective", "allreduce", "--measured", table)
    for given, told in (
        (("--profile", "measured"), ("--prior", "has no measured costs to start from")),
        (("--profile", "measured", "--fit", "alpha"), ("--fit", "is not for --profile measured")),
        (("--channels", "2"), ("--channels", "is not for --profile alpha-beta")),
        (("--profile", "measured", "--prior", "dgx-h100", "--algorithm", "pairs"),
         ("--algorithm", "pairs has no kernel for allreduce")),
    ):  # fmt: skip
        one_error(run(*asked, *given), *told)
