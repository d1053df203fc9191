"""taccl place: forms of input, files written, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from taccl.imports.measured import read_measurements
from taccl.units import parse_beta, parse_time
from tests.cli.conftest import Run
from tests.cli.test_bad_input import one_error
from tests.sweep import for_each

NEAR, FAR = 3, 20
RACKS = "".join(
    ",".join([name, *("-" if a == b else str(NEAR if a % 2 == b % 2 else FAR) for b in range(4))])
    + "\n"
    for a, name in enumerate(("n0", "n1", "n2", "n3"))
)
MATRIX = f"latency us,n0,n1,n2,n3\n{RACKS}"
FAST = ("--size", "64KB", "--random", "10")


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "latency.csv"
    path.write_text(MATRIX)
    return path


def found(run: Run, *arguments: object) -> dict[str, Any]:
    done = run("place", *arguments, *FAST, "--json")
    assert done.status == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


def test_neighbours_of_a_halving_are_put_into_one_rack(run: Run, matrix: Path) -> None:
    record = found(run, matrix, "--algorithm", "halving-doubling")
    # A distance of one and one of two, forwards and backwards, half and a quarter of the bytes.
    assert record["ended"] == "all"
    assert record["optimal"] is True
    assert record["time_us"] == record["random_best_us"] == pytest.approx(46, abs=0.01)
    assert sorted(record["order"]) == [0, 1, 2, 3]


def test_the_text_says_order_gains_and_bound(run: Run, matrix: Path) -> None:
    done = run("place", matrix, *FAST)
    assert done.status == 0
    for part in ("order ", "x as fast as given", "the mean of 10 orders", "bound ", "replays"):
        assert part in done.out
    assert "none is known" not in done.out


def test_all_files_are_written_and_agree(run: Run, matrix: Path, tmp_path: Path) -> None:
    names = {
        "--rankfile": "ranks", "--hostfile": "hosts", "--placed-topology": "placed.yaml",
        "--placed-xml": "placed.xml",
    }  # fmt: skip
    wanted = [word for option, name in names.items() for word in (option, tmp_path / name)]
    matrix.write_text(MATRIX.replace("latency us,n0,n1,n2,n3", "us,n0:0,n0:1,n1:0,n1:1")
                      .replace("n0,-", "n0:0,-").replace("n1,20", "n0:1,20")
                      .replace("n2,3", "n1:0,3").replace("n3,20", "n1:1,20"))  # fmt: skip
    record = found(run, matrix, "--algorithm", "ring", *wanted)
    order = record["order"]
    seats = [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]
    lines = [f"rank {rank}={seats[p][0]} slot={seats[p][1]}" for rank, p in enumerate(order)]
    assert (tmp_path / "ranks").read_text().splitlines() == lines
    assert (tmp_path / "hosts").read_text().splitlines()[-2:] == [
        f"{host} slots=2" for host in dict.fromkeys(seats[place][0] for place in order)
    ]
    assert run("verify", tmp_path / "placed.xml", "--runtime", "executor").status == 0
    shown = json.loads(run("topology", "show", tmp_path / "placed.yaml", "--json").out)
    assert shown["ranks"] == 4
    assert record["outputs"] == {
        kind: str(tmp_path / name)
        for kind, name in zip(("rankfile", "hostfile", "topology", "xml"), names.values(),
                              strict=True)
    }  # fmt: skip


def test_an_xml_is_placed_on_a_topology(run: Run, tmp_path: Path) -> None:
    xml = tmp_path / "ring.xml"
    ring = ("synthesize", "hub:4", "allgather", "--engine", "ring", "--chunks", "1", "--quiet")
    assert run(*ring, "-o", xml).status == 0
    record = found(run, "--topology", "torus2d:2x2", "--algorithm", xml, "--whole-servers")
    assert record["collective"] == "allgather"
    assert record["routed"] is True


def test_osu_output_and_pairs_join_a_matrix(run: Run, tmp_path: Path) -> None:
    osu = tmp_path / "osu.txt"
    pairs = [(a, b) for a in range(3) for b in range(a + 1, 3)]
    osu.write_text("".join(
        f"# pair: h{a} h{b}\n# OSU MPI Latency Test v7.3\n# Size  Avg Latency(us)\n"
        f"1 {2 + a}\n1048576 {100 + b}\n" for a, b in pairs
    ))  # fmt: skip
    rates = tmp_path / "rates.txt"
    rates.write_text("src dst bandwidth_GB/s\nh0 h1 10\nh1 h2 12.5\nh0 h2 8\n")
    hosts = tmp_path / "hosts"
    hosts.write_text("big slots=2\nsmall\n")
    record = found(run, osu, rates, "--servers", hosts, "--replays", "50")
    assert record["servers"] == 2
    assert [seat["host"] for seat in record["hosts"]].count("big") == 2


@for_each(
    ("text", "said"),
    [
        ("", "is empty"),
        ("1 2\n", "fewer than two hosts"),
        ("us\n1 2 3\n4 5\n", "latency.csv:3: is not square: 2 rows, and 1 cells"),
        ("us,a,b\na,-,1\n", "is not square: 1 rows, 2 names"),
        ("us,a,b\na,-,1\nb,1\n", "latency.csv:3: is not square"),
        ("us,a,b\na,-,nan\nb,1,-\n", "latency.csv:2: a -> b: should be a latency or a bandwidth"),
        ("us,a,b\na,-,-3\nb,1,-\n", "latency.csv:2: a -> b: should be a latency"),
        ("us,a,b\na,-,1e99\nb,1,-\n", "latency.csv:2: a -> b"),
        ("us,a,b\na,-,inf\nb,1,-\n", "latency.csv:2: a -> b"),
        ("GB/s,a,b\na,-,0\nb,1,-\n", "should be greater than 0"),
        ("GB/s us,a,b\na,-,1\nb,1,-\n", "should be one quantity with its unit"),
        ("us@huge,a,b\na,-,1\nb,1,-\n", "should be a size"),
        ("us,a,b\na,-,-\nb,-,-\n", "nothing was measured between a and b"),
        ("us,a,a\na,-,1\na,1,-\n", "names 'a' twice"),
        ("us,a,b\nb,-,1\na,1,-\n", "is the row of 'b', the column is that of 'a'"),
        ("us,a,b c;d\na,-,1\n", "is not square"),
        ("us,a,b!\na,-,1\nb!,1,-\n", "should be the name of a host"),
        ("- 1\n1 -\n", "0 -> 1: has no unit"),
        ("src dst size\na b 1\n", "names neither latency nor bandwidth"),
        ("src to latency src\na b 1 c\n", "should name the column src once"),
        ("src dst bw_mbps\na b 1\n", "latency.csv:1: has an unknown unit 'mbps'"),
        ("src dst latency_parsec\na b 1\n", "has an unknown unit 'parsec'"),
        ("src dst latency_GB/s\na b 1\n", "should be one quantity with its unit"),
        ("src dst latency_us_ms\na b 1\n", "should be one quantity with its unit"),
        ("src dst size_us latency\na b 1 1\n", "should be one quantity with its unit"),
        ("src dst lat_us latency_ms\na b 1 1\n", "names the column latency twice"),
        ("src dst size bytes bw\na b 1 1 1\n", "names the column size twice"),
        ("src dst p9_latency bw\na b 1 1\n", "should name the column latency first"),
        ("latency fortnights,a,b\na,-,1\nb,1,-\n", "has an unknown unit 'fortnights'"),
        (",18,3\n18,,4\n3,4,\n", "latency.csv:1: has numbers that may be names or values"),
        ("src dst latency_us\na b\n", "latency.csv:2: should have 3 columns, got 2"),
        ("src dst latency_us\na b -1\n", "latency.csv:2: latency: should be a latency"),
        ("src dst size latency_us\na b x 1\n", "latency.csv:2: size: should be a size"),
        ("src dst latency_us\na b 1\na c 1\n", "nothing was measured between b and c"),
        ("src dst latency_us\na a 1\n", "fewer than two hosts"),
        ("# OSU MPI Latency Test\n# Size Latency (us)\n1 2\n", "does not say between which hosts"),
        ("# pair: a b\n1 2\n", "latency.csv:2: is in no table of latency"),
        ("# pair: a b\n# Size Latency (us)\n1\n", "latency.csv:3: should be a size and a latency"),
        ("# pair: a b\n# Size Latency (us)\n1 x\n", "latency.csv:3: latency: should be"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_error_and_nothing_is_written(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    path, output = tmp_path / "latency.csv", tmp_path / "ranks"
    path.write_text(text)
    one_error(run("place", path, "--rankfile", output, *FAST), said)
    assert not output.exists()


@for_each(
    ("head", "told"),
    [
        ("bw_MBps", "0.25GB/s"), ("bw(MB/s)", "0.25GB/s"), ("bandwidth_MB/sec", "0.25GB/s"),
        ("BW_Mbps", "0.25Gb/s"), ("bw_Gbps", "250Gb/s"), ("bw[Gbits/sec]", "250Gb/s"),
        ("bandwidth", "250GB/s"), ("avg_bandwidth_in_GBps", "250GB/s"),
        ("latency_msec", "250ms"), ("latency(milliseconds)", "250ms"), ("lat_avg_us", "250us"),
        ("latency", "250us"), ("latency/ns", "250ns"), ("latency_\u03bcs", "250us"),
        ("lat_seconds", "250s"), ("latency_usec", "250us"),
    ],
)  # fmt: skip
def test_a_column_has_the_unit_that_its_name_says(tmp_path: Path, head: str, told: str) -> None:
    path = tmp_path / "pairs.csv"
    for text in (f"src,dst,{head}\na,b,250\n", f"{head},a,b\na,-,250\nb,-,-\n"):
        path.write_text(text)
        read = read_measurements([str(path)])
        kept = (read.latencies.get((0, 1)), read.betas.get((0, 1)))
        assert kept == (
            (None, [parse_beta(told)]) if "/" in told else ([(0, parse_time(told))], None)
        )


def test_sizes_cells_and_the_option_have_units_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("src,dst,size_KB,latency\na,b,64,3 msec\na,b,1MB,5\n")
    read = read_measurements([str(path)])
    assert read.latencies == {(0, 1): [(64_000, 3 * 10**9), (10**6, 5 * 10**6)]}
    path.write_text("@64KB,a,b\na,-,3\nb,-,-\n")
    assert read_measurements([str(path)], "msec").latencies == {(0, 1): [(64_000, 3 * 10**9)]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (",0,1,2\n0,0,18,3\n1,18,0,19\n2,3,19,0\n", "012"),
        (",1,2,3\n1,,18,3\n2,18,,19\n3,3,19,\n", "123"),
        (",4,0,8\n4,0,18,3\n0,18,0,19\n8,3,19,0\n", "408"),
        (",18.5,3.5\n18.5,,4\n3.5,4,\n", "012"),
        ("-,18,3\n18,-,19\n3,19,-\n", "012"),
        ("0,18,3\n18,0,19\n3,19,0\n", "012"),
    ],
)
def test_numbers_are_names_where_the_first_row_and_column_agree(
    tmp_path: Path, text: str, names: str
) -> None:
    """As pandas' ``to_csv`` writes them: the corner is empty."""
    path = tmp_path / "latency.csv"
    path.write_text(text)
    read = read_measurements([str(path)], "us")
    assert "".join(read.names) == names
    times = {time for pairs in read.latencies.values() for _, time in pairs}
    wanted = (18.5, 3.5, 4) if "18.5" in text else (18, 3, 19)
    assert times == {int(us * 10**6) for us in wanted}


def test_servers_whose_rows_alternate_are_put_together(run: Run, tmp_path: Path) -> None:
    """Everything takes equally long, so that the order as given is not beaten by any."""
    names = ["a:0", "b:0", "a:1", "b:1"]
    path, hosts = tmp_path / "latency.csv", tmp_path / "hosts"
    rows = [",".join([name, *("-" if name == to else "3" for to in names)]) for name in names]
    path.write_text("\n".join([",".join(["us", *names]), *rows]) + "\n")
    for more in ((), ("--replays", "1"), ("--whole-servers",)):
        record = found(run, path, "--hostfile", hosts, *more)
        assert [seat["host"] for seat in record["hosts"]] == ["a", "a", "b", "b"]
        assert hosts.read_text() == "a slots=2\nb slots=2\n"
        assert record["gain_identity"] == 1
    assert "with servers torn apart" in run("place", path, *FAST).out


def test_too_many_hosts_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "latency.csv"
    path.write_text("src dst latency_us\n" + "".join(f"a h{i} 1\n" for i in range(1100)))
    one_error(run("place", path), "there are more than 1024 hosts", "latency.csv:1025")
    path.write_text("1 " * 3 + "\n" * 2 + "1\n" * 1100)
    one_error(run("place", path, "--unit", "us"), "has 1101 rows")


@for_each(
    ("arguments", "said"),
    [
        ((), "give either files that were measured, or --topology"),
        (("latency.csv", "--topology", "ring:4"), "give either files"),
        (("latency.csv", "--unit", "stone"), "--unit: should be a unit"),
        (("latency.csv", "--servers", "3"), "4 ranks are no multiple of 3"),
        (("latency.csv", "--servers", "0"), "--servers: should be from 1 to 65536"),
        (("latency.csv", "--servers", "short"), "short: --servers: has 3 slots, there are 4"),
        (("latency.csv", "--servers", "odd"), "odd:1: should be a host with its slots"),
        (("latency.csv", "--servers", "none"), "none: names no host"),
        (("latency.csv", "--servers", "twice"), "twice:2: names a twice"),
        (("--topology", "ring:4", "--servers", "2"), "does not share the ranks out"),
        (("latency.csv", "--algorithm", "magic"), "--algorithm: unknown algorithm 'magic'"),
        (("latency.csv", "--algorithm", "two-step"), "there is no two-step allreduce"),
        (("latency.csv", "--rankfile", "latency.csv"), "is the same file as latency.csv"),
        (("latency.csv", "--placed-xml", "x", "--runtime", "portable"), "is no single file"),
        (("latency.csv", "--size", "-1"), "--size"),
        (("latency.csv", "--rankfile", "nowhere/ranks"), "--rankfile: can't be written"),
    ],
)
def test_a_bad_option_is_one_error(
    run: Run, matrix: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(matrix.parent)
    texts = {"short": "a slots=3\n", "odd": "a slots=0\n", "none": "# no\n", "twice": "a\na\n"}
    for name, text in texts.items():
        Path(name).write_text(text)
    one_error(run("place", *arguments), said)
    assert not Path("ranks").exists()


def test_what_cannot_be_permuted_leaves_no_file_behind(run: Run, matrix: Path) -> None:
    # The second, larger exchange is between places 0 and 2, which are in different racks.
    matrix.write_text("GB/s\n- 25 1 1\n25 - 1 1\n1 1 - 25\n1 1 25 -\n")
    output = matrix.parent / "ranks"
    done = run(
        "place", matrix, "--algorithm", "halving-doubling", "--collective", "allgather", *FAST,
        "--rankfile", output, "--placed-xml", matrix.parent / "placed.xml",
    )  # fmt: skip
    one_error(done, "would no longer be neighbours", "--placed-xml")
    assert not output.exists()
