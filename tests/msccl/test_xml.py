"""Reading and writing are exact inverses, and reading takes any bytes without harm."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import ProgramError
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import RUNTIMES, UNLIMITED
from taccl.msccl.xml import read_xml, write_xml
from tests.msccl.builders import make, ring_schedule
from tests.msccl.texts import trees
from tests.sweep import for_each

SMALL = st.integers(0, 99)
SLOTS = st.builds(Slot, st.sampled_from(Buffer), st.integers(-1, 99))
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=9)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    op = draw(st.sampled_from(Op))
    return Step(
        op,
        draw(SLOTS) if op in READS_SOURCE else None,
        draw(SLOTS) if op in WRITES_TARGET else None,
        draw(SMALL),
        draw(st.none() | st.builds(StepRef, SMALL, SMALL)),
        draw(st.booleans()),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    peers = st.none() | SMALL
    gpus = tuple(
        Gpu(
            rank,
            draw(SMALL),
            draw(SMALL),
            draw(SMALL),
            tuple(
                Threadblock(
                    number, draw(peers), draw(peers), draw(SMALL),
                    tuple(draw(st.lists(steps(), max_size=3))),
                )
                for number in range(draw(st.integers(0, 2)))
            ),
        )
        for rank in range(draw(st.integers(1, 3)))
    )  # fmt: skip
    names = ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce"]
    return Program(
        draw(NAMES), draw(st.sampled_from(names)), draw(st.sampled_from(["Simple", "LL", "LL128"])),
        draw(st.booleans()), draw(st.booleans()), draw(SMALL), draw(st.integers(1, 99)),
        draw(SMALL), draw(st.integers(1, UNLIMITED)), gpus,
    )  # fmt: skip


@given(program=programs(), runtime=st.sampled_from(sorted(RUNTIMES)))
@settings(max_examples=150)
def test_reading_what_was_written_gives_the_program(program: Program, runtime: str) -> None:
    assert read_xml(write_xml(program, runtime)) == program


@given(program=programs(), runtime=st.sampled_from(sorted(RUNTIMES)))
@settings(max_examples=50)
def test_bytes_and_a_named_runtime_read_the_same(program: Program, runtime: str) -> None:
    text = write_xml(program, runtime)
    assert read_xml(text.encode(), runtime=runtime) == read_xml(text)


def text_of(**attributes: str | None) -> str:
    """Return a one-rank file with some <algo> attributes changed (None: left out)."""
    head: dict[str, str | None] = {
        "name": "p", "proto": "Simple", "nchannels": "1", "nchunksperloop": "2", "ngpus": "1",
        "coll": "allreduce", "inplace": "1", "outofplace": "1", "minBytes": "0",
        "maxBytes": "1024", **attributes,
    }  # fmt: skip
    inside = " ".join(f'{name}="{value}"' for name, value in head.items() if value is not None)
    return f"<algo {inside}>\n{GPU}\n</algo>\n"


STEP = (
    '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1"'
    ' deps="-1" hasdep="0"/>'
)
GPU = (
    '<gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">\n<tb id="0" send="-1" recv="-1"'
    f' chan="0">\n{STEP}\n</tb>\n</gpu>'
)


def test_msccl_has_its_own_name_for_reducescatter() -> None:
    program = make(ring_schedule("reducescatter", 2))
    assert 'coll="reduce_scatter"' in write_xml(program, "msccl")
    for runtime in ("executor", "rccl", "portable"):
        assert 'coll="reducescatter"' in write_xml(program, runtime)


def test_the_largest_size_is_exclusive_for_msccl() -> None:
    program = make(ring_schedule("allgather", 2), max_bytes=1024)
    assert 'maxBytes="1025"' in write_xml(program, "msccl")
    assert 'maxBytes="1024"' in write_xml(program, "portable")


def test_no_line_has_what_the_runtimes_reader_rejects() -> None:
    for line in write_xml(make(ring_schedule("allreduce", 3))).splitlines():
        assert line.strip().startswith("<")
        assert line.endswith(">")
        assert line.count("<") == 1
        assert not {"\t", "'"} & set(line)


def test_a_file_without_outofplace_is_read_as_msccl_does() -> None:
    program = read_xml(text_of(outofplace=None, maxBytes=None, minBytes=None))
    assert (program.in_place, program.out_of_place) == (True, False)
    assert (program.min_bytes, program.max_bytes) == (0, (1 << 27) - 1)


def test_maxbytes_0_is_no_limit_for_the_executor() -> None:
    assert read_xml(text_of(maxBytes="0")).max_bytes == UNLIMITED


def test_maxbytes_0_is_never_for_msccl() -> None:
    assert read_xml(text_of(maxBytes="0"), runtime="msccl").max_bytes == -1


def test_a_rank_without_element_has_no_threadblocks() -> None:
    assert read_xml(text_of(ngpus="2")).gpus[1] == Gpu(1, 0, 0, 0)


FOREIGN: dict[str, Callable[[str], str]] = {
    "other order of attributes": lambda text: text.replace(
        '<tb id="0" send="-1"', '<tb send="-1" id="0"'
    ),
    "an unknown attribute": lambda text: text.replace("<tb ", '<tb colour="red" '),
    "unknown elements with children": lambda text: text.replace(
        "<gpu", f"<copy><gpu><tb>{STEP}</tb></gpu></copy><gpu", 1
    ),
    "comments": lambda text: f"<!-- by hand -->\n{text}<!-- end -->",
    "single quotes": lambda text: text.replace('"', "'"),
    "a prolog": lambda text: f'<?xml version="1.0" encoding="utf-8"?>\n{text}',
    "tabs and wrapped tags": lambda text: text.replace(" ", "\n\t"),
    "text between elements": lambda text: text.replace("<gpu", "hello <gpu"),
    "an element at the wrong depth": lambda text: text.replace("<gpu", f"{STEP}<gpu", 1),
}


@for_each("kind", FOREIGN)
def test_other_tools_habits_do_not_change_what_is_read(kind: str) -> None:
    assert read_xml(FOREIGN[kind](text_of())) == read_xml(text_of())


def test_threadblocks_are_read_in_order_of_their_ids() -> None:
    two = GPU.replace("</gpu>", '<tb id="1" send="-1" recv="-1" chan="3"></tb></gpu>')
    turned = GPU.replace("<tb id", '<tb id="1" send="-1" recv="-1" chan="3"></tb><tb id', 1)
    assert read_xml(text_of().replace(GPU, two)) == read_xml(text_of().replace(GPU, turned))


BOMB = '<!DOCTYPE algo [<!ENTITY a "xxxxxxxxxx"><!ENTITY b "&a;&a;&a;&a;">]>' + text_of(name="&b;")
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "line 1: no XML: no element found"),
    "no xml": ("hello", "line 1: no XML: syntax error"),
    "another root": ("<html/>", "line 1: the file starts with <html>, not <algo>"),
    "two roots": (text_of() + text_of(), "no XML: junk after document element"),
    "a document type": (BOMB, "document types and entities are refused"),
    "an entity": (text_of(name="&x;"), "no XML: undefined entity"),
    "no text": (b"\xff\xfe\x00", "no XML"),
    "a lone surrogate": ("\ud800", "unreadable text"),
    "an unknown encoding": (b'<?xml version="1.0" encoding="x"?><algo/>', "unknown encoding: x"),
    "no coll": (text_of(coll=None), "line 1: <algo> has no coll"),
    "unknown coll": (text_of(coll="sendrecv"), "line 1: <algo> has an unknown coll 'sendrecv'"),
    "unknown proto": (text_of(proto="ll"), "line 1: <algo> has an unknown proto 'll'"),
    "no ranks": (text_of(ngpus="0"), "ngpus of <algo> should be from 1 to 65536, got 0"),
    "too many ranks": (text_of(ngpus="1000000"), "should be from 1 to 65536, got 1000000"),
    "a huge number": (text_of(nchannels="9" * 5000), "nchannels of <algo> should be a whole"),
    "octal": (text_of(nchannels="010"), "should be a whole number, got '010'"),
    "hexadecimal": (text_of(nchannels="0x10"), "should be a whole number, got '0x10'"),
    "other digits": (text_of(nchannels="\u0663"), "should be a whole number"),
    "a broken step": (text_of().replace('"cpy"', '"ra"'), "line 4: <step> has an unknown type"),
    "a broken buffer": (text_of().replace('"i"', '"x"'), "<step> has an unknown srcbuf 'x'"),
    "no count": (text_of().replace(' cnt="1"', ""), "line 4: <step> has no cnt"),
    "hasdep 2": (text_of().replace('hasdep="0"', 'hasdep="2"'), "line 4: hasdep of <step>"),
    "offset -2": (text_of().replace('srcoff="0"', 'srcoff="-2"'), "line 4: srcoff of <step>"),
    "a rank too many": (text_of().replace('gpu id="0"', 'gpu id="1"'), "line 2: id of <gpu>"),
    "a rank twice": (text_of().replace(GPU, GPU + GPU), "gpu 0 occurs twice"),
    "too large": (" " * ((64 << 20) + 1), "larger than 64 MiB"),
}  # fmt: skip


@for_each("kind", BROKEN)
def test_what_is_wrong_with_a_file_is_said(kind: str) -> None:
    text, message = BROKEN[kind]
    with pytest.raises(ProgramError) as caught:
        read_xml(text)
    assert message in str(caught.value)
    assert caught.value.fix


def test_an_error_names_the_file_and_the_line() -> None:
    with pytest.raises(ProgramError, match=r"a\.xml:4: <step> has no cnt"):
        read_xml(text_of().replace(' cnt="1"', ""), file="a.xml")


def test_too_many_elements_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # algo, gpu, tb and two steps
    monkeypatch.setattr("taccl.msccl.xml.MAX_ELEMENTS", 5)
    assert read_xml(text_of().replace(STEP, STEP * 2)).num_steps == 2
    with pytest.raises(ProgramError, match="more than 5 gpus, threadblocks and steps"):
        read_xml(text_of().replace(STEP, STEP * 3))


def test_depth_needs_no_recursion() -> None:
    deep = "<x>" * 50_000 + "</x>" * 50_000
    assert read_xml(text_of().replace("<gpu", f"{deep}<gpu", 1)) == read_xml(text_of())


def attempt(text: str | bytes) -> None:
    """Read; anything but a program or a ProgramError fails the test."""
    with suppress(ProgramError):
        assert isinstance(read_xml(text), Program)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_give_a_program_or_a_program_error(junk: bytes) -> None:
    attempt(junk)


@given(st.data())
@settings(max_examples=300)
def test_any_damage_to_a_file_gives_a_program_or_a_program_error(data: st.DataObject) -> None:
    text = text_of().encode()
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 40))
    attempt(text[:at] + data.draw(st.binary(max_size=20)) + text[at + cut :])


WORDS = st.sampled_from(
    ["algo", "gpu", "tb", "step", "id", "send", "recv", "chan", "s", "type", "cnt", "coll"]
)
VALUES = st.sampled_from(["0", "1", "-1", "i", "o", "cpy", "nop", "allreduce", "", "9" * 30, "LL"])


@given(trees(WORDS, WORDS, VALUES))
@settings(max_examples=150)
def test_any_tree_gives_a_program_or_a_program_error(tree: str) -> None:
    attempt(tree)
    attempt(text_of().replace("<gpu", f"{tree}<gpu", 1))
    attempt(text_of().replace("<step", f"{tree}<step", 1))


def test_a_nop_is_written_with_the_usual_operands() -> None:
    nop = Step(Op.NOP, count=0, depends=StepRef(0, 0))
    program = read_xml(text_of())
    gpu = program.gpus[0]
    block = replace(gpu.threadblocks[0], steps=(nop, *gpu.threadblocks[0].steps))
    longer = replace(program, gpus=(replace(gpu, threadblocks=(block,)),))
    text = write_xml(longer)
    assert 'type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"' in text
    assert read_xml(text) == longer
