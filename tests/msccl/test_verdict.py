"""What is said of a whole file: severity, place, selection, the largest safe size, every mode."""

import json
from pathlib import Path

import pytest

from taccl.errors import InputError, ProgramError
from taccl.msccl.program import Severity
from taccl.msccl.runtimes import RUNTIMES, UNLIMITED
from taccl.msccl.verdict import Verdict, judge_text
from taccl.msccl.xml import write_xml
from tests.cli.runner import taccl
from tests.msccl.builders import make, mesh, pairs_schedule, ring_schedule
from tests.msccl.texts import SHARED, algo, block, copies, exchange, gpu, step, swap, with_head
from tests.sweep import for_each

CORPUS = sorted((SHARED / "corpus").glob("*.xml"))
MIB = 1 << 20


def judged(text: str, runtime: str = "executor", size: int | None = None) -> Verdict:
    return judge_text(text.encode(), runtime, size)


def rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def runtime_of(path: Path) -> str:
    return "rccl" if path.name.startswith("rccl") else "executor"


SAFE: dict[str, tuple[str, str, int | None]] = {
    # Two messages of 2 MiB: 8 chunks fit while a message holds 4, so 16 chunks of 512 KiB.
    "8 chunks, Simple": (swap(8, "Simple"), "executor", 16 * (512 << 10)),
    "8 chunks, Simple, rccl": (swap(8, "Simple"), "rccl", 16 * (512 << 10)),
    # Eight messages of 32 KiB: 20 chunks fit while a message holds 3 (7 messages; 2 make 10).
    "20 chunks, LL": (swap(20, "LL"), "msccl", 40 * (32768 // 3)),
    "20 chunks, LL, rccl": (swap(20, "LL"), "rccl", 40 * (16384 // 3)),
    "20 chunks, LL, all three": (swap(20, "LL"), "portable", 40 * (16384 // 3)),
    # Eight messages of 576 000 bytes: 9 chunks fit while a message holds 2.
    "9 chunks, LL128": (swap(9, "LL128"), "executor", 18 * (576_000 // 2)),
    # As many chunks as messages fit whatever the size.
    "2 chunks, Simple": (swap(2, "Simple"), "executor", None),
    "8 chunks, LL": (swap(8, "LL"), "executor", None),
    "71 chunks, Simple": (swap(71, "Simple"), "executor", 142 * (2 * MIB // 36)),
}


@for_each("kind", SAFE)
def test_the_largest_safe_size_is_the_predicted_one(kind: str) -> None:
    text, runtime, size = SAFE[kind]
    found = judged(text, runtime)
    assert found.safe is not None
    assert found.safe.size == size


@pytest.mark.parametrize("kind", [kind for kind, (_, _, size) in SAFE.items() if size])
def test_one_byte_more_than_the_largest_safe_size_deadlocks(kind: str) -> None:
    text, runtime, size = SAFE[kind]
    assert size is not None
    limited = text.replace('maxBytes="0"', f'maxBytes="{size}"')
    assert judged(limited, runtime).worst is None
    assert judged(limited, runtime, size).worst is None
    above = judged(limited, runtime, size + 1)
    assert rules(above) == {"deadlock"}
    assert f"above {size} bytes: gpu 0 threadblock 0" in above.findings[0].explanation
    assert above.findings[0].fix == f"set maxBytes to {size} or less"
    assert above.findings[0].line == 4


def test_a_file_without_upper_limit_is_judged_at_any_size() -> None:
    assert rules(judged(swap(8, "Simple"))) == {"deadlock"}
    assert judged(swap(2, "Simple")).worst is None


def test_a_size_below_the_range_deadlocks_no_less() -> None:
    found = judged(swap(71, "Simple", low=1 << 30, high=1 << 31))
    assert rules(found) == {"deadlock"}


@pytest.mark.skipif(not CORPUS, reason="the corpus is not on this machine")
@for_each("path", CORPUS, ids=lambda path: path.stem, quick=6, parts=2)
def test_a_shipped_file_is_right_in_its_mode_and_range(path: Path) -> None:
    found = judge_text(path.read_bytes(), runtime_of(path))
    assert found.findings == ()
    assert len(found.selections) == 1


@pytest.mark.skipif(not CORPUS, reason="the corpus is not on this machine")
def test_a_shipped_file_that_is_forced_open_deadlocks_above_256_mib() -> None:
    path = SHARED / "corpus" / "rccl-allreduce-allpairs-8n-simple.xml"
    text = path.read_text()
    assert judged(text, "rccl", 256 * MIB).worst is None
    for found in (
        judged(text, "rccl", 512 * MIB), judged(text.replace('"11534336"', '"0"'), "rccl"),
    ):  # fmt: skip
        assert rules(found) == {"deadlock"}
        assert found.safe is not None
        assert found.safe.size == 256 * MIB
        assert found.findings[0].explanation.startswith("above 268435456 bytes: gpu 0")


@pytest.mark.skipif(not CORPUS, reason="the corpus is not on this machine")
@pytest.mark.parametrize("name", ["azure-ndv4-ap-1pass", "azure-ndv4-a2a2ll"])
def test_a_shipped_file_is_wrong_in_the_other_mode(name: str) -> None:
    text = (SHARED / "corpus" / f"{name}.xml").read_text()
    turned = text.replace('inplace="1" outofplace="0"', 'inplace="0" outofplace="1"')
    if turned == text:
        turned = text.replace('inplace="0" outofplace="1"', 'inplace="1" outofplace="0"')
    assert judged(turned).worst is Severity.BREAKS


NEVER: dict[str, tuple[str, str, bool]] = {
    "maxBytes 0 on msccl": (with_head(maxBytes="0"), "msccl", True),
    "maxBytes 0 on executor": (with_head(maxBytes="0"), "executor", False),
    "an empty range on msccl": (with_head(minBytes="8", maxBytes="8"), "msccl", True),
    "one size on executor": (with_head(minBytes="8", maxBytes="8"), "executor", False),
    "min above max on executor": (with_head(minBytes="9", maxBytes="8"), "executor", True),
    "max below 0 on rccl": (with_head(maxBytes="-4"), "rccl", True),
    "no multiple of the chunks": (with_head(minBytes="7", maxBytes="7"), "executor", True),
    "no mode on executor": (with_head(inplace="0"), "executor", True),
    "no mode, but msccl does not look": (with_head(inplace="0"), "msccl", False),
    "an alltoall called 2D on msccl": (with_head(name="2D", coll="alltoall"), "msccl", True),
    "an alltoall called 2D on rccl": (with_head(name="2D", coll="alltoall"), "rccl", False),
}


@for_each("kind", NEVER)
def test_what_is_never_selected_is_told(kind: str) -> None:
    text, runtime, never = NEVER[kind]
    found = judged(text, runtime)
    assert (Severity.NEVER in {finding.severity for finding in found.findings}) is never
    assert (found.selections == ()) is never


SELECTED: dict[str, tuple[str, str, str]] = {
    "executor": (
        exchange(), "executor",
        "AllReduce of 2 ranks, in place, 1 to 1048576 bytes, elements divisible by 2",
    ),
    "msccl": (
        exchange(), "msccl",
        "AllReduce of 2 ranks, in place, 1 to 1048575 bytes, elements divisible by 2; needs"
        " NCCL_ALGO=MSCCL,RING,TREE",
    ),
    "rccl": (
        with_head(maxBytes="0"), "rccl",
        "AllReduce of 2 ranks, in place, 1 bytes and more, elements divisible by 2; needs"
        " RCCL_MSCCL_ENABLE=1 RCCL_MSCCL_FORCE_ENABLE=1",
    ),
    "both modes": (
        with_head(outofplace="1", minBytes="64"), "executor",
        "AllReduce of 2 ranks, in place or out of place, 64 to 1048576 bytes, elements divisible"
        " by 2",
    ),
    "bytes": (
        with_head(coll="alltoall"), "msccl",
        "AllToAll of 2 ranks, out of place, 1 to 1048575 bytes, bytes divisible by 2",
    ),
    "LL128": (
        with_head(coll="broadcast", proto="LL128"), "msccl",
        "Broadcast of 2 ranks, in place, 1 to 1048575 bytes, bytes divisible by 2; needs"
        " NCCL_PROTO=Simple,LL,LL128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SELECTED)
def test_the_calls_that_select_a_file_are_told(kind: str) -> None:
    text, runtime, told = SELECTED[kind]
    (selection,) = judged(text, runtime).selections
    assert str(selection) == told


ODD_THREADS = {"96": True, "128": False, "640": False, "0": False, "-32": False}


@pytest.mark.parametrize("threads", ODD_THREADS)
def test_threads_that_do_not_divide_a_message_are_a_warning(threads: str) -> None:
    found = judged(with_head(nthreads=threads), "msccl")
    assert ("threads" in rules(found)) is ODD_THREADS[threads]
    assert "threads" not in rules(judged(with_head(nthreads=threads, proto="LL"), "msccl"))
    assert "threads" not in rules(judged(with_head(nthreads=threads), "executor"))


def test_an_empty_step_is_to_be_removed() -> None:
    found = judged(exchange().replace('cnt="1"', 'cnt="0"'), "msccl")
    assert {f.fix for f in found.findings if f.rule == "counts"} == {"remove the step"}


def test_a_refused_file_is_selected_for_nothing() -> None:
    assert judged(with_head(proto="ll")).selections == ()


@pytest.mark.parametrize("name", ["custom", "send", "recv", "alltoallv"])
def test_of_an_unknown_collective_everything_but_the_result_is_checked(name: str) -> None:
    runtime = "msccl" if name == "custom" else "executor"
    found = judged(with_head(coll=name), runtime)
    assert found.worst is None
    assert rules(found) == {"unknown collective"}
    racing = algo(*(gpu(rank, *copies(2)) for rank in range(2)))
    found = judged(racing.replace("allreduce", name), runtime)
    assert rules(found) == {"unknown collective", "race"}


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_the_larger_buffer_of_a_root_is_no_finding(name: str) -> None:
    # Rank 1 sends from its input; a root's buffer has two chunks for each rank, four in all.
    source = 2 if name == "scatter" else 0
    sender = block(step(0, "s", srcoff=source, cnt=2), send=0)
    receiver = block(step(0, "r", dstbuf="o", dstoff=2 - source, cnt=2), recv=1)
    text = algo(
        gpu(0, receiver, chunks=4), gpu(1, sender, chunks=4),
        head=with_head(coll=name, inplace="0", outofplace="1").splitlines()[0],
    )  # fmt: skip
    found = judged(text)
    assert found.worst is None
    assert rules(found) <= {"unknown collective", "root"}


def test_a_broadcast_says_which_root_it_is_for() -> None:
    text = algo(
        gpu(0, block(step(0, "r", cnt=2), recv=1)),
        gpu(1, block(step(0, "s", cnt=2), send=0)),
        head=with_head(coll="broadcast").splitlines()[0],
    )
    found = judged(text)
    assert found.worst is None
    finding = next(finding for finding in found.findings if finding.rule == "root")
    assert "right for root 1" in finding.explanation
    on_two = judge_text(text.encode(), "executor", servers=(0, 1))
    assert [finding.rule for finding in on_two.findings] == ["network", "root"]
    assert (on_two.worst, on_two.findings[0].line) == (Severity.BREAKS, 8)
    assert rules(judge_text(text.encode(), "executor", servers=2)) == {"root"}


def test_servers_of_other_ranks_are_an_error() -> None:
    with pytest.raises(InputError, match="is for 2 ranks, the topology has 3"):
        judge_text(exchange().encode(), "executor", servers=(0, 0, 1))


def test_more_threadblocks_than_multiprocessors_is_a_warning() -> None:
    def wide(count: int) -> str:
        moving = [block(step(0, "cpy", dstbuf="s"), number=n) for n in range(count)]
        return algo(*(gpu(rank, scratch=1) for rank in range(2))).replace(
            '<gpu id="0" i_chunks="2" o_chunks="2" s_chunks="1">\n',
            '<gpu id="0" i_chunks="2" o_chunks="2" s_chunks="1">\n' + "\n".join(moving) + "\n",
        )

    assert "resident" not in rules(judged(wide(108)))
    assert "resident" in rules(judged(wide(109)))


BREAKS: dict[str, tuple[str, str, int]] = {
    "past the end of a buffer": (
        exchange().replace('dstoff="1" cnt="1"', 'dstoff="1" cnt="2"'), "offsets", 5,
    ),
    "a message that nobody receives": (
        exchange().replace('type="r" srcbuf="i" srcoff="0"', 'type="cpy" srcbuf="i" srcoff="0"'),
        "connections", 4,
    ),
    "a read of what nobody wrote": (
        exchange().replace('s_chunks="0"', 's_chunks="1"').replace('"s" srcbuf="i"',
                                                                   '"s" srcbuf="s"'),
        "undefined", 4,
    ),
    "a wrong sum": (exchange(), "result", 2),
    "a wait in a circle": (
        exchange().replace('type="s"', 'type="x"').replace('type="r"', 'type="s"').replace(
            'type="x"', 'type="r"'
        ), "deadlock", 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BREAKS)
def test_what_breaks_is_told_with_its_line(kind: str) -> None:
    text, rule, line = BREAKS[kind]
    found = judged(text)
    assert found.worst is Severity.BREAKS
    first = next(finding for finding in found.findings if finding.rule == rule)
    assert (first.line or 0) == line


def test_a_refused_file_is_still_looked_at() -> None:
    tabbed = exchange().replace("  <", "\t<")
    found = judged(tabbed)
    assert found.worst is Severity.REJECTED
    assert {"reader", "result"} <= rules(found)


def test_the_worst_comes_first() -> None:
    text = exchange().replace('name="p"', 'name="p" nthreads="7"').replace("<gpu", "<x/><gpu", 1)
    order = [finding.severity for finding in judged(text, "msccl").findings]
    assert order[0] is Severity.REJECTED
    assert order == sorted(order, key=list(Severity).index)


def test_portable_names_the_runtime_that_objects() -> None:
    found = judged(with_head(maxBytes=None), "portable")
    told = [f.explanation for f in found.findings if f.severity is Severity.REJECTED]
    assert told == ["executor and rccl: <algo> has no maxBytes"]


@for_each("collective", ["allgather", "allreduce", "reducescatter"])
@for_each("runtime", RUNTIMES)
def test_what_taccl_writes_is_verified_for_the_runtime(collective: str, runtime: str) -> None:
    text = write_xml(make(ring_schedule(collective, 3, 2)), runtime)
    found = judged(text, runtime)
    assert found.findings == ()
    assert found.safe is not None
    assert found.safe.size is None


@pytest.mark.parametrize("runtime", ["msccl", "portable"])
def test_msccl_runs_an_alltoall_out_of_place_whatever_the_file_says(runtime: str) -> None:
    program = make(pairs_schedule("alltoall", mesh(3)), out_of_place=False)
    assert judged(write_xml(program, "executor"), "executor").worst is None
    found = judged(write_xml(program, runtime), runtime)
    assert found.worst is Severity.BREAKS
    assert all(f.explanation.startswith("out of place: ") for f in found.findings)
    both = make(pairs_schedule("alltoall", mesh(3)))
    assert judged(write_xml(both, runtime), runtime).worst is None


def test_both_spellings_of_a_portable_reducescatter_are_verified() -> None:
    program = make(pairs_schedule("reducescatter", mesh(3)))
    for runtime, names in (("portable", {"executor", "rccl"}), ("msccl", {"msccl"})):
        found = judged(write_xml(program, runtime), "portable")
        assert found.worst is None
        assert {selection.runtime for selection in found.selections} == names


def test_what_is_no_program_is_an_error() -> None:
    with pytest.raises(ProgramError, match="starts with <html>"):
        judged("<html></html>")


def test_an_absurd_number_of_ranks_is_an_error() -> None:
    with pytest.raises(ProgramError, match="at most 65536"):
        judged(with_head(ngpus="70000"))


def test_the_command_tells_severity_and_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "p.xml"
    path.write_text(swap(8, "Simple", high=UNLIMITED))
    done = taccl(capsys, monkeypatch, "verify", str(path), "--runtime", "executor", "--size", "1MB")
    first, second, third, fourth = done.out.splitlines()
    assert done.status == 1
    assert first == f"{path}: accepted, but breaks on executor"
    assert second.startswith("  selected for: AllGather of 2 ranks, in place, 1 bytes and more")
    assert third == "  largest size without deadlock: 8388608 bytes (8 MiB)"
    assert fourth.startswith("  deadlock (breaks at 4:7): gpu 0, threadblock 0")
    words = ("verify", str(path), "--runtime", "portable", "--json")
    (file,) = json.loads(taccl(capsys, monkeypatch, *words).out)["files"]
    assert file["severity"] == "breaks"
    assert (file["largest_safe_bytes"], file["safe_at_any_size"]) == (8388608, False)
    assert [one["runtime"] for one in file["selected_for"]] == ["executor", "rccl", "msccl"]
    assert {"severity", "line", "column"} <= set(file["findings"][0])


@pytest.mark.parametrize("words", [("--size", "1MB"), ("--bitwise-consistent",)])
def test_what_the_structure_does_not_tell_can_not_be_asked_of_it(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    done = taccl(capsys, monkeypatch, "verify", "p.xml", "--structure-only", *words)
    assert done.status == 2
    assert done.err == (
        f"error: {words[0]}: --structure-only follows no data and no waits\n"
        "  fix: leave out one of the two\n"
    )


@pytest.mark.parametrize(
    ("text", "word", "status"),
    [
        (with_head(proto="ll"), "rejected by executor", 1),
        (swap(2, "Simple", low=9, high=8), "never selected by executor", 1),
        (swap(2, "Simple").replace("<gpu", "<x/><gpu", 1), "verified for executor", 0),
    ],
    ids=["rejected", "never", "warning"],
)
def test_the_exit_status_follows_the_worst_finding(
    text: str, word: str, status: int, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "p.xml"
    path.write_text(text)
    done = taccl(capsys, monkeypatch, "verify", str(path), "--runtime", "executor")
    assert (done.status, word in done.out) == (status, True)
