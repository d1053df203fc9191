"""The text that the runtimes' reader takes, and where it gives up, by its own odd rules."""

from collections.abc import Callable

import pytest

from taccl.msccl.parser import Fault, Node, nodes, parse, read_document, to_int, to_int64
from taccl.msccl.program import Severity
from taccl.msccl.verdict import judge_text
from tests.msccl.texts import HEAD, exchange, step
from tests.sweep import for_each

Edit = Callable[[str], str]


def put(old: str, new: str) -> Edit:
    """Return an edit that replaces the first occurrence."""

    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


TAKEN: dict[str, Edit] = {
    "as it is": lambda text: text,
    "carriage returns between elements": put("\n", "\r\n"),
    "everything on one line": lambda text: text.replace("\n", ""),
    "no indentation": lambda text: text.replace("  ", ""),
    "a comment first": lambda text: f"<!-- hello -->\n{text}",
    "a comment last": lambda text: f"{text}<!-- hello -->",
    "a comment with a tag in it": put("<gpu", "<!-- <x> & --><gpu"),
    "a comment without spaces": put("<gpu", "<!--hello--><gpu"),
    "an empty comment": put("<gpu", "<!----><gpu"),
    "a comment of many lines": put("<gpu", "<!-- a\n\tb='c' --><gpu"),
    "a comment in a threadblock": put("      <step", "<!-- x -->      <step"),
    "two spaces between attributes": put(' send="', '  send="'),
    "a space before the end": put('hasdep="0"/>', 'hasdep="0" />'),
    "a space before the end of an opening tag": put('chan="0">', 'chan="0" >'),
    "an open and a closing tag for a step": put('hasdep="0"/>', 'hasdep="0"></step>'),
    "an unknown attribute": put("<step", '<step colour="red"'),
    "an attribute without value": put(' send="', ' loud send="'),
    "an attribute twice": put(' send="1"', ' send="1" send="0"'),
    "an entity in the name": put('name="p"', 'name="a&amp;b"'),
    "a tab in a value": put('name="p"', 'name="a\tb"'),
    "an unknown element": put("  <gpu", "<copy/>  <gpu"),
    "an unknown element with children": put("  <gpu", "<x>\n<y/>\n<z>\n</z></x>  <gpu"),
    "a wrong closing tag in an unknown element": put("  <gpu", "<x><y></z></q>  <gpu"),
    "a second algo": lambda text: f"{text}<algo></algo>",
    "letters before the end of a single tag": put('hasdep="0"/>', 'hasdep="0"/end>'),
    "a name of 253 characters": put("<step", f'<step {"x" * 253}="1"'),
    "a value of 256 characters": put('name="p"', f'name="{"x" * 256}"'),
}

REFUSED: dict[str, tuple[Edit, tuple[int, int], str]] = {
    "a prolog": (lambda t: f'<?xml version="1.0"?>\n{t}', (1, 20), "expected '>' in <?xml>"),
    "a document type": (lambda t: f"<!DOCTYPE algo>\n{t}", (1, 1), "<!DOCTYPE> is never closed"),
    "a byte order mark": (lambda t: f"\ufeff{t}", (1, 1), "a byte order mark"),
    "a tab between elements": (put("  <gpu", "\t<gpu"), (2, 1), "a tab stands between"),
    "a tab in a tag": (put(' send="', '\tsend="'), (3, 15), "expected '>' in <tb>, got '\\t'"),
    "a tab after the element": (put("<tb id", "<tb\tid"), (3, 11), "'tb\\tid'"),
    "a line end in a tag": (put(' send="', '\n send="'), (3, 15), "got '\\n'"),
    "a line end after the element": (put("<tb ", "<tb\n"), (3, 8), "got '\\n'"),
    "single quotes": (lambda t: t.replace('"', "'"), (1, 12), "'name' never ends"),
    "no quotes": (put('send="1"', "send=1"), (3, 21), "'send' has no quotes"),
    "no space between attributes": (put('0" send', '0"send'), (3, 15), "got 's'"),
    "a space before the equals sign": (put('send="', 'send ="'), (3, 5), "peer 0 is no other rank"),
    "text in an element": (put("  <gpu", "hello  <gpu"), (2, 1), "expected '<', got 'h'"),
    "text after the end": (lambda t: f"{t}ok\n", (15, 1), "expected '<', got 'o'"),
    "a comment in a tag": (put(' send="', ' <!-- x --> send="'), (3, 27), "expected '<', got 's'"),
    "a comment that stays open": (put("<gpu", "<!-- x <gpu"), (2, 3), "a comment is not closed"),
    "an equals sign in a comment's word": (put("<gpu", "<!--a=1--><gpu"), (2, 8), "a value"),
    "character data": (put("  <gpu", "<![CDATA[x]]>  <gpu"), (1, 1), "<algo> is never closed"),
    "an element that stays open": (put("</algo>\n", ""), (1, 1), "<algo> is never closed"),
    "a file that ends in a tag": (put("  </gpu>\n</algo>\n", "  </gp"), (13, 7), "inside a tag"),
    "a file that ends in a value": (lambda t: t[: t.index("allred")], (1, 79), "'coll' never ends"),
    "elements crossed": (put("    </tb>", "  </gpu>"), (6, 3), "</gpu> stands where </tb> should"),
    "a closing tag too many": (lambda t: f"{t}</algo>", (15, 1), "<algo> is never closed"),
    "a space in a closing tag": (put("</tb>", "</tb >"), (6, 9), "' ' stands in the closing tag"),
    "capital letters": (put("</tb>", "</TB>"), (6, 5), "</TB> stands where </tb> should"),
    "a name of 255 characters": (put("<step", f'<step {"x" * 255}="1"'), (4, 13), "longer than"),
    "a gpu without id": (put('<gpu id="0"', "<gpu"), (2, 3), "<gpu> has no id"),
    "another root": (lambda t: t.replace("algo", "code"), (1, 1), "the file has no <algo>"),
    "the algo in another element": (lambda t: f"<x>{t}</x>", (1, 1), "the file has no <algo>"),
}  # fmt: skip


@for_each("kind", TAKEN)
def test_the_reader_takes(kind: str) -> None:
    text = TAKEN[kind](exchange())
    for runtime in ("msccl", "executor", "rccl"):
        found = judge_text(text.encode(), runtime, structure_only=True)
        assert found.worst is None, found.findings
        plain = judge_text(exchange().encode(), runtime, structure_only=True)
        assert found.program is not None
        assert plain.program is not None
        assert found.program.gpus == plain.program.gpus


@for_each("kind", REFUSED)
def test_the_reader_refuses_and_says_where(kind: str) -> None:
    edit, (line, column), said = REFUSED[kind]
    for runtime in ("msccl", "executor", "rccl"):
        document = read_document(edit(exchange()))
        findings = [*document.findings, *parse(document, runtime).findings]
        first = next(one for one in findings if one.severity is Severity.REJECTED)
        assert said in first.explanation
        assert (first.line, first.column) == (line, column)
        assert first.fix


def test_an_attribute_behind_the_sixteenth_is_forgotten() -> None:
    crowd = "".join(f' z{number}="1"' for number in range(7))
    last = exchange().replace(' maxBytes="1048576"', f'{crowd} maxBytes="1048576"')
    first = exchange().replace("<algo ", "<algo" + crowd + " ")
    for text, missing in ((last, "maxBytes"), (first, "maxBytes")):
        found = judge_text(text.encode(), "executor", structure_only=True)
        said = [finding.explanation for finding in found.findings]
        assert f"<algo> has no {missing}" in said
        assert any("forgets maxBytes" in one for one in said)


def test_an_empty_slot_counts_as_an_attribute() -> None:
    crowd = "".join(f' z{number}="1"' for number in range(6))
    text = exchange().replace(' maxBytes="1048576"', f'{crowd} maxBytes="1048576"')
    assert judge_text(text.encode(), "executor", structure_only=True).worst is None
    spaced = text.replace("<algo ", "<algo  ")
    found = judge_text(spaced.encode(), "executor", structure_only=True)
    assert found.worst is Severity.REJECTED


def test_of_an_attribute_that_occurs_twice_the_first_counts() -> None:
    text = exchange().replace('cnt="1"', 'cnt="1" cnt="99"')
    assert judge_text(text.encode(), "msccl", structure_only=True).worst is None
    turned = exchange().replace('cnt="1"', 'cnt="99" cnt="1"')
    found = judge_text(turned.encode(), "msccl", structure_only=True)
    assert found.worst is Severity.REJECTED


@pytest.mark.parametrize(("length", "worst"), [(255, None), (256, None), (9000, "breaks")])
def test_a_long_value_runs_over_what_lies_behind_it(length: int, worst: str | None) -> None:
    # 17 slots of 512 bytes: a value in the first may have 255 + 16 * 512 + 4 = 8451 bytes.
    text = exchange().replace('name="p"', f'name="{"x" * length}"')
    found = judge_text(text.encode(), "executor", structure_only=True)
    assert (found.worst and found.worst.value) == worst
    assert any("writes on" in one.explanation for one in found.findings) == (length > 255)


def test_a_child_of_a_step_crashes_the_reader() -> None:
    text = exchange().replace('hasdep="0"/>', 'hasdep="0"><x/></step>', 1)
    (finding,) = judge_text(text.encode(), "rccl", structure_only=True).findings
    assert (finding.severity, finding.line) == (Severity.BREAKS, 4)
    assert "follows a null pointer" in finding.explanation


def test_skipped_elements_are_told() -> None:
    text = exchange().replace("  </gpu>", '  <copy i_off="0"/></gpu>', 1)
    (finding,) = judge_text(text.encode(), "msccl", structure_only=True).findings
    assert (finding.severity, finding.line, finding.column) == (Severity.WARNING, 7, 3)
    assert finding.explanation == "<copy> is skipped with all it holds"


def test_an_element_without_name_is_skipped_and_so_is_its_threadblock() -> None:
    found = judge_text(exchange().replace("<tb ", "< tb ", 1).encode(), "msccl")
    assert found.program is not None
    assert [len(gpu.threadblocks) for gpu in found.program.gpus] == [0, 1]


def test_tags_are_read_alike_on_the_fast_and_on_the_slow_way() -> None:
    text = HEAD + step() + "</algo>"
    slow = text.replace('" ', '"  ', 1)
    fast_nodes, slow_nodes = list(nodes(text)), list(nodes(slow))
    assert len(fast_nodes) == len(slow_nodes) == 3
    for one, two in zip(fast_nodes, slow_nodes, strict=True):
        assert isinstance(one, Node)
        assert isinstance(two, Node)
        assert (one.name, one.kind) == (two.name, two.kind)
        assert one.attributes == tuple(pair for pair in two.attributes if pair != ("", ""))


def test_text_of_other_alphabets_is_bytes() -> None:
    (fault,) = nodes("é".encode().decode("latin-1"))
    assert fault == Fault("expected '<', got '\\xc3'", 0, "remove the text outside of tags")


@for_each(
    ("text", "value"),
    [
        ("7", 7), ("-1", -1), ("010", 8), ("0x10", 16), ("0x", 0), ("08", 0), ("1e6", 1),
        ("abc", 0), ("", 0), (" \t+12x", 12), ("4294967296", 0), ("2147483648", -(1 << 31)),
        ("9" * 5000, -1), ("-" + "9" * 5000, 0), ("0x" + "f" * 40, -1),
    ],
)  # fmt: skip
def test_numbers_are_read_as_strtol_reads_them(text: str, value: int) -> None:
    assert to_int(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("4294967296", 1 << 32), ("9" * 30, (1 << 63) - 1), ("-" + "9" * 30, -(1 << 63))],
)
def test_sizes_are_read_with_64_bits(text: str, value: int) -> None:
    assert to_int64(text) == value


def test_a_number_that_is_read_in_another_way_is_told() -> None:
    text = exchange().replace('nchunksperloop="2"', 'nchunksperloop="02"')
    (finding,) = judge_text(text.encode(), "rccl", structure_only=True).findings
    assert finding.severity is Severity.WARNING
    assert finding.explanation == 'nchunksperloop="02" of <algo> is read as 2'
