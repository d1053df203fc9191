"""Whatever a file holds: findings or one error, soon, and in little memory."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import ProgramError
from taccl.msccl.parser import MAX_TAGS, Fault, Node, nodes, parse, read_document
from taccl.msccl.program import Severity
from taccl.msccl.run import deadlock, safe_size
from taccl.msccl.runtimes import MAX_COUNT, RUNTIMES
from taccl.msccl.verdict import judge_text
from tests.msccl.texts import HEAD, algo, block, exchange, gpu, step, swap, trees

NAMES = st.sampled_from(sorted(RUNTIMES))
TAGS = st.sampled_from(["algo", "gpu", "tb", "step", "copy", "!--", "?xml", ""])
KEYS = st.sampled_from([
    "name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace",
    "minBytes", "maxBytes", "nthreads", "rtype", "id", "i_chunks", "o_chunks", "s_chunks", "send",
    "recv", "chan", "s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps",
    "hasdep",
])  # fmt: skip
NUMBERS = st.integers(-(1 << 65), 1 << 65).map(str) | st.sampled_from(
    ["0", "1", "2", "-1", "-2", "71", "72", "0x10", "010", "1e9", "2147483648", "9" * 400, ""]
)
VALUES = NUMBERS | st.sampled_from(["s", "r", "cpy", "re", "rcs", "nop", "ra", "i", "o", "LL"])


def judged(content: bytes, runtime: str, *, structure_only: bool = False) -> None:
    """Judge; anything but a verdict or a ProgramError fails the test."""
    with suppress(ProgramError):
        found = judge_text(content, runtime, 1 << 40, structure_only=structure_only)
        assert all(finding.explanation for finding in found.findings)


@given(st.binary(max_size=300), NAMES)
@settings(max_examples=100)
def test_any_bytes_give_a_verdict_or_an_error(content: bytes, runtime: str) -> None:
    judged(content, runtime)
    judged(HEAD.encode() + content, runtime)


@given(st.data(), NAMES)
@settings(max_examples=150)
def test_any_damage_gives_a_verdict_or_an_error(data: st.DataObject, runtime: str) -> None:
    text = exchange().encode()
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 60))
    judged(text[:at] + data.draw(st.binary(max_size=20)) + text[at + cut :], runtime)


@given(st.data(), NAMES)
@settings(max_examples=80)
def test_any_values_give_a_verdict_or_an_error(data: st.DataObject, runtime: str) -> None:
    parts = exchange().split('"')
    for _ in range(data.draw(st.integers(1, 4))):
        parts[data.draw(st.integers(0, len(parts) // 2 - 1)) * 2 + 1] = data.draw(VALUES)
    judged('"'.join(parts).encode(), runtime)


@given(trees(TAGS, KEYS, VALUES), NAMES)
@settings(max_examples=150)
def test_any_tree_gives_a_verdict_or_an_error(tree: str, runtime: str) -> None:
    judged(tree.encode(), runtime)
    judged(exchange().replace("<gpu", f"{tree}<gpu", 1).encode(), runtime)
    judged(exchange().replace("<step", f"{tree}<step", 1).encode(), runtime)


@given(st.text(alphabet="<>/=\"' \n\tab!-x", max_size=80))
@settings(max_examples=300)
def test_the_reader_comes_to_an_end_of_any_text(text: str) -> None:
    found = list(nodes(text))
    assert all(isinstance(one, Node) for one in found[:-1])
    places = [one.at for one in found]
    assert places == sorted(places) or isinstance(found[-1], Fault)


@given(st.text(alphabet="<>/=\"' \n\tab!-x", max_size=60))
@settings(max_examples=200)
def test_a_file_has_a_program_unless_it_is_refused(text: str) -> None:
    content = (HEAD + text + "</algo>").encode()
    document = read_document(content)
    for name in ("msccl", "executor", "rccl"):
        found = parse(document, name)
        refused = any(
            one.severity is Severity.REJECTED for one in (*document.findings, *found.findings)
        )
        assert (found.program is None) == refused


def test_a_million_steps_are_an_error() -> None:
    text = HEAD + "<step/>\n" * 1_000_000
    with pytest.raises(ProgramError, match=f"more than {MAX_TAGS} tags"):
        judge_text(text.encode(), "portable")


def test_deep_nesting_needs_no_recursion() -> None:
    deep = "<x>" * 50_000 + "</x>" * 50_000
    text = exchange().replace("<gpu", f"{deep}<gpu", 1)
    assert judge_text(text.encode(), "executor", structure_only=True).worst is None


@pytest.mark.parametrize(
    "content",
    [b"<algo" + b" " * (3 << 20), b'<algo name="' + b"x" * (3 << 20), b"<!--" + b"a" * (3 << 20)],
    ids=["spaces", "value", "comment"],
)
def test_a_tag_without_end_is_an_error(content: bytes) -> None:
    with pytest.raises(ProgramError, match="without the end of a tag"):
        judge_text(content, "executor")


def test_a_rank_with_too_many_steps_is_refused_in_little_memory() -> None:
    steps = [step(0, "cpy", dstoff=1)] * 8_000
    content = algo(gpu(0, block(*steps)), gpu(1)).encode()
    tracemalloc.start()
    found = judge_text(content, "executor", structure_only=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.worst is Severity.REJECTED
    assert most < 40 * len(content)


def test_many_warnings_do_not_hide_a_refusal() -> None:
    odd = [step(n, "cpy", dstoff="01", srcoff="00") for n in range(60)]
    refused = block(step(0, "cpy", dstoff=1, cnt=72), number=4)
    blocks = [block(*odd, number=n) for n in range(4)]
    text = algo(gpu(0, *blocks), gpu(1, refused.replace('id="4"', 'id="0"')))
    found = judge_text(text.encode(), "executor", structure_only=True)
    assert found.worst is Severity.REJECTED
    assert sum(finding.severity is Severity.WARNING for finding in found.findings) > 100


def test_many_skipped_elements_do_not_hide_a_step_that_crashes_the_reader() -> None:
    text = exchange().replace("<gpu", "<copy/>" * 60 + "<gpu", 1)
    assert judge_text(text.encode(), "executor", structure_only=True).worst is None
    full = text.replace('hasdep="0"/>', 'hasdep="0"><x/></step>', 1)
    found = judge_text(full.encode(), "executor", structure_only=True)
    assert found.worst is Severity.BREAKS


def test_many_reads_beyond_what_is_known_do_not_hide_an_overlap() -> None:
    # What a scatter reads is not known, so 30 reads beyond the input are none of verify's business.
    reads = [step(n, "cpy", srcoff=2 + n, dstbuf="s", dstoff=n) for n in range(30)]
    shifted = step(30, "cpy", srcbuf="s", dstbuf="s", dstoff=1, cnt=2)
    head = HEAD.replace("allreduce", "scatter").replace('1" outofplace="0', '0" outofplace="1')
    texts = [
        algo(gpu(0, block(*steps), chunks=32, scratch=30), gpu(1), head=head)
        for steps in (reads, [*reads, shifted])
    ]
    fine, wrong = (judge_text(text.encode(), "executor") for text in texts)
    assert fine.worst is None
    assert {f.rule for f in wrong.findings if f.severity is Severity.BREAKS} == {"overlap"}


def test_findings_are_not_endless() -> None:
    steps = [step(n % 60, "q") for n in range(3000)]
    found = judge_text(algo(gpu(0, block(*steps)), gpu(1)).encode(), "executor")
    assert 100 < len(found.findings) < 1000


@given(st.integers(1, MAX_COUNT), st.sampled_from(["Simple", "LL", "LL128"]), st.sampled_from(
    ["msccl", "executor", "rccl"]
))  # fmt: skip
@settings(max_examples=60)
def test_halving_finds_the_cut_that_trying_all_finds(chunks: int, proto: str, runtime: str) -> None:
    program = judge_text(swap(chunks, proto).encode(), runtime, structure_only=True).program
    assert program is not None
    slots = RUNTIMES[runtime].fifo_slots[proto]
    stuck = [held for held in range(1, MAX_COUNT + 1) if deadlock(program, held, slots)]
    expected = None
    if stuck:
        room = RUNTIMES[runtime].message_bytes[proto] // (max(stuck) + 1)
        expected = program.chunks_per_loop * room
    assert safe_size(program, runtime).size == expected
    assert stuck == list(range(1, len(stuck) + 1))
