"""``taccl verify``: a row for each runtime, findings in groups, which ranks share a server."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.runner import Done
from tests.msccl.texts import SHARED, algo, block, copies, gpu, step, swap, with_head

AZURE = SHARED / "corpus" / "azure-ndv4-a2a2ll.xml"


Verify = Callable[..., Done]


@pytest.fixture
def verify(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verify:
    monkeypatch.chdir(tmp_path)

    def call(text: str, *words: str) -> Done:
        Path("f.xml").write_text(text)
        return run("verify", "f.xml", *words)

    return call


def broadcast(proto: str = "Simple") -> str:
    return algo(
        gpu(0, block(step(0, "r", cnt=2), recv=1)), gpu(1, block(step(0, "s", cnt=2), send=0)),
        head=with_head(coll="broadcast", proto=proto).splitlines()[0],
    )  # fmt: skip


def test_each_runtime_has_its_own_row(verify: Verify) -> None:
    for text, rows, status in (
        (swap(2, "Simple", high=64), ("right", "right", "right"), 0),
        (swap(2, "Simple"), ("never selected", "right", "right"), 0),
        (swap(2, "Simple", low=9, high=8), ("rejected", "never selected", "never selected"), 1),
        (
            swap(8, "Simple", high=1 << 40),
            ("accepted, breaks on deadlock",) * 3, 1,
        ),
        (with_head(proto="ll"), ("rejected", "rejected", "rejected"), 1),
    ):  # fmt: skip
        done = verify(text)
        told = [line.split(maxsplit=1) for line in done.out.splitlines()]
        found = dict(one for one in told if len(one) == 2)
        assert tuple(found[name] for name in ("msccl", "executor", "rccl")) == rows
        assert done.status == status


def test_a_file_that_one_runtime_runs_is_no_failure_but_for_portable(verify: Verify) -> None:
    only_new = swap(2, "Simple")
    assert (verify(only_new).status, verify(only_new, "--runtime", "portable").status) == (0, 1)


@pytest.mark.skipif(not AZURE.exists(), reason="the corpus is not on this machine")
def test_a_file_of_azure_is_right_on_the_runtime_it_is_for(verify: Verify) -> None:
    done = verify(AZURE.read_text())
    assert done.status == 0
    assert "  executor  right\n" in done.out


def test_json_has_a_verdict_for_each_runtime_or_the_fields_of_one(verify: Verify) -> None:
    text = swap(2, "Simple")
    (record,) = json.loads(verify(text, "--json").out)["files"]
    assert list(record) == ["file", "verified", "verdicts"]
    assert [(one["runtime"], one["severity"]) for one in record["verdicts"]] == [
        ("msccl", "never"), ("executor", None), ("rccl", None),
    ]  # fmt: skip
    (one,) = json.loads(verify(text, "--json", "--runtime", "executor").out)["files"]
    assert one == {"file": "f.xml", **record["verdicts"][1]}


def test_findings_of_one_kind_are_one_entry_with_some_places(verify: Verify) -> None:
    text = algo(*(gpu(rank, *copies(8)) for rank in range(2)))
    done = verify(text, "--runtime", "executor")
    races = [line for line in done.out.splitlines() if "race" in line]
    assert races == [
        "  race (breaks, 14 times at 7:7): gpu 0, threadblock 1, step 0: in place: nothing orders"
        " it and step 0 of threadblock 0, and both use chunk 1 of the buffer that is input and"
        " output (fix: make the later of them depend on the other)"
    ]
    assert (
        "    also gpu 0, threadblock 2, step 0 at 10:7; gpu 0, threadblock 3, step 0 at 13:7;"
        " gpu 0, threadblock 4, step 0 at 16:7; and 10 more"
    ) in done.out.splitlines()
    assert len(verify(text).out.splitlines()) < 20
    (file,) = json.loads(verify(text, "--runtime", "executor", "--json").out)["files"]
    assert sum(finding["rule"] == "race" for finding in file["findings"]) == 14


def test_servers_decide_whether_a_broadcast_of_simple_hangs(verify: Verify) -> None:
    apart = ("--ranks-per-node", "1"), ("--topology", "apart.yaml")
    Path("apart.yaml").write_text(
        "taccl: topology/1\nname: two\nranks: 2\nservers: [[0], [1]]\n"
        "edges: [{from: 0, to: 1, alpha: 1us, bandwidth: 1GB/s}]\n"
    )
    for words, status in (
        ((), 0), *((one, 1) for one in apart), (("--ranks-per-node", "2"), 0),
        (("--topology", "ring:2"), 0),
    ):  # fmt: skip
        assert verify(broadcast(), *words).status == status
        assert verify(broadcast("LL"), *words).status == 0
    assert "network (warning): a broadcast of protocol Simple hangs" in verify(broadcast()).out
    told = verify(broadcast(), *apart[0]).out
    assert "network (breaks at 8:5): gpu 1, threadblock 0: sends to gpu 0 on another" in told
    assert "network" not in verify(broadcast(), "--ranks-per-node", "2").out


def test_bad_words_about_servers_are_errors(verify: Verify) -> None:
    for words, told in (
        (("--nodes", "2"), "--nodes: is for a topology"),
        (("--topology", "ring:2", "--ranks-per-node", "1"), "--ranks-per-node: the topology says"),
        (("--topology", "ring:3"), "f.xml: ngpus: is for 2 ranks, the topology has 3"),
    ):
        done = verify(broadcast(), *words)
        assert (done.status, told in done.err) == (2, True)


def test_ranges_that_hold_no_size_are_never_selected_by_structure_alone(verify: Verify) -> None:
    for text in (
        with_head(minBytes="1", maxBytes="-1"), with_head(minBytes="8", maxBytes="4"),
        with_head(inplace="0", outofplace="0"),
    ):  # fmt: skip
        for name in ("executor", "rccl"):
            done = verify(text, "--structure-only", "--runtime", name)
            assert (done.status, f"f.xml: never selected by {name}" in done.out) == (1, True)
            assert "selected for" not in done.out
