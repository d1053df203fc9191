"""Reading what users wrote, refusing what is hostile, and writing whole or not at all."""

import errno
import os
import stat
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, StrictInt

from taccl.errors import InputError
from taccl.files import (
    Document,
    FileModel,
    check_apart,
    check_output,
    field_name,
    fit_model,
    load_model,
    parse_document,
    plain_text_is_safe,
    read_document,
    shown,
    write_all_atomic,
    write_atomic,
)
from taccl.files.model import Beta, BetaOrFree, Duration, Name, Numbers, parse_numbers
from tests.sweep import for_each


class Part(FileModel):
    """A part."""

    bandwidth: Annotated[Beta, Field(examples=["25GB/s"])]
    alpha: Duration = 0


class Machine(FileModel):
    """A machine."""

    name: Annotated[Name, Field(examples=["box"])]
    size: Annotated[StrictInt, Field(ge=1, le=8, examples=[4])] = 1
    parts: list[Part] = []  # noqa: RUF012
    gpus: Numbers = None
    local: BetaOrFree = Fraction(0)


def machine(text: str, path: Path) -> Machine:
    file = path / "machine.yaml"
    file.write_text(text)
    return load_model(file, Machine)


def read_or_fix(text: str) -> str | None:
    """Return ``read``, or the fix of the error."""
    try:
        parse_document(text, "f")
    except InputError as error:
        return error.fix
    return "read"


def value(text: str) -> object:
    return parse_document(text, "f").value


def test_yaml_and_json_of_the_same_thing_read_the_same() -> None:
    flow = value('{"name": "a", "list": [1, 2.5, true, null], "deep": {"x": "y"}}')
    block = value("name: a\nlist:\n- 1\n- 2.5\n- true\n- null\ndeep: {x: y}\n")
    assert flow == block == {"name": "a", "list": [1, 2.5, True, None], "deep": {"x": "y"}}


@for_each(
    ("text", "expected"),
    [("a: yes", "yes"), ("a: 1:30", "1:30"), ("a: 2001-01-01", "2001-01-01"), ("a: 010", 10),
     ("a: '1'", "1"), ("a: !!str 1", "1"), ("a: ~", None), ("a: TRUE", True), ("a: -3", -3),
     ("a: 1e3", 1000.0), ("a: .5", 0.5), ("a: inf", "inf"), ("a: 0x10", "0x10")],
)  # fmt: skip
def test_plain_words_follow_the_yaml_core_schema(text: str, expected: object) -> None:
    assert value(text) == {"a": expected}


def test_whole_numbers_can_be_keys() -> None:
    assert value("1: [0]\n3: [2]") == {1: [0], 3: [2]}


def test_a_flow_mapping_without_quotes_is_yaml() -> None:
    assert value("{a: 1, b: [x, y]}") == {"a": 1, "b": ["x", "y"]}


def test_a_flow_mapping_that_is_not_json_is_still_yaml() -> None:
    assert value('{"a": 1, b: 2,}') == {"a": 1, "b": 2}


def test_an_alias_repeats_its_anchor() -> None:
    assert value("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file).value == {"a": 1}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(20)
)

REFUSED = {
    "duplicate field": ("a: 1\nb: 2\na: 3\n", r"f:3: field 'a' is given twice"),
    "duplicate number as text": ('1: a\n"1": b\n', r"f:2: field '1' is given twice"),
    "duplicate in json": ('{"a": 1, "a": 2}', r"f: field 'a' is given twice"),
    "tabs": ("a:\n\t- 1\n", r"f:2: is not YAML(.|\n)*fix: indent with spaces"),
    "nan": ("a:\n- .nan\n", r"f:2: a\[0\]: .nan is not accepted"),
    "infinity": ("a: -.inf\n", r"f:1: a: -.inf is not accepted"),
    "nan in json": ('{"a": NaN}', r"f: NaN is not accepted"),
    "infinity in json": ('{"a": -Infinity}', r"f: -Infinity is not accepted"),
    "overflow": ("a: 1e999\n", r"too large a number"),
    "overflow in json": ('{"a": 1e999}', r"too large a number"),
    "digits": ("a: " + "9" * 5000, r"f:1: a: holds a number with too many digits"),
    "digits in json": ('{"a": ' + "9" * 5000 + "}", r"too many digits"),
    "empty": ("", r"f: is empty"),
    "only a comment": ("# nothing\n", r"f: is empty"),
    "depth": ("a: " + "[" * 200, r"f:1: .*nested deeper than 64"),
    "depth of blocks": ("\n".join(" " * i + "a:" for i in range(99)), r"f:65: .*nested deeper"),
    "depth in json": ('{"a":' * 100 + "1" + "}" * 100, r"nested deeper than 64"),
    "depth beyond recursion": ('{"a":' * 99_999 + "1" + "}" * 99_999, r"nested deeper than 64"),
    "bomb": (BOMB, r"f:7: .*more than 2000000 values"),
    "recursive alias": ("a: &a [*a]", r"f:1: a\[0\]: alias \*a stands inside its own anchor"),
    "unknown alias": ("a: *b", r"f:1: .*(undefined|alias \*b)"),
    "two documents": ("a: 1\n---\nb: 2\n", r"f:2: holds several documents"),
    "tag": ("!!python/object/apply:os.system [ls]", r"f:1: tag .* is not accepted"),
    "scalar tag": ("a: !!int 3", r"f:1: a: tag .* is not accepted"),
    "list as key": ("? [a]\n: b\n", r"f:1: a field name should be .* got a list"),
    "bool as key": ("true: 1\n", r"f:1: a field name should be .* got True"),
    "nothing as key": ("~: 1\n", r"f:1: a field name should be .* got nothing"),
    "broken yaml": ("a: [1, 2\nb: 3\n", r"f:2: is not YAML"),
    "broken json": ('{"a": 1,\n "b" 2}', r"f:2: is not JSON: expecting ':' delimiter"),
    "nul": ("a: \x00", r"f: is not YAML: .*control characters"),
}


@for_each("text, match", REFUSED.values(), ids=REFUSED)
def test_what_is_hostile_or_ambiguous_is_one_error_with_its_place(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        value(text)


def test_a_bomb_in_few_levels_is_counted_in_full() -> None:
    # 1500 * 1500 = 2.25 million values from 3000 written ones
    text = f"a: &a [{', '.join(['x'] * 1500)}]\nb: [{', '.join(['*a'] * 1500)}]\n"
    with pytest.raises(InputError, match="more than 2000000 values"):
        value(text)


def test_json_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InputError, match="more than 10 values"):
        parse_document("[" + "1," * 20 + "1]", "f", max_nodes=10)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    with file.open("wb") as stream:
        stream.truncate(100 << 20)
    with pytest.raises(InputError, match=r"big.yaml: is larger than 64 MiB\n  fix: give a smaller"):
        read_document(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.yaml: there is no such file\n  fix: check the path"):
        read_document(tmp_path / "no.yaml")


def test_a_directory_is_no_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory\n  fix: name a file in it"):
        read_document(tmp_path)


def test_a_pipe_is_no_input_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        read_document(tmp_path / "pipe")


def test_a_device_is_no_input() -> None:
    with pytest.raises(InputError, match="/dev/zero: is not a regular file"):
        read_document("/dev/zero")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_a_path_that_can_not_be_is_one_error(path: str) -> None:
    with pytest.raises(InputError, match=r"is no file name|can't be read: file name too long"):
        read_document(path)


def test_text_that_is_not_utf8_names_line_and_byte(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(InputError, match=r"latin.yaml:2: is not UTF-8: byte 0xe9 at position 11"):
        read_document(file)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert read_or_fix(text)


@given(st.text(alphabet="ab:-[]{}&*?!|>'\"#,\n \t%@`1.~", max_size=80))
def test_any_yaml_punctuation_is_read_or_refused(text: str) -> None:
    assert read_or_fix(text)


@pytest.mark.parametrize("text", ["a", "a/b", "1x", "-a"])
def test_plain_text_reads_as_itself(text: str) -> None:
    assert plain_text_is_safe(text)
    assert value(f"x: {text}") == {"x": text}


@pytest.mark.parametrize("text", ["1", "1e5", ".nan", "null", "true", ""])
def test_text_that_would_read_as_something_else_is_not_safe_plain(text: str) -> None:
    assert not plain_text_is_safe(text)


def test_a_field_path_reads_like_the_file() -> None:
    assert field_name(("edges", 3, "bandwidth")) == "edges[3].bandwidth"


@pytest.mark.parametrize(
    ("found", "text"),
    [([1, 2], "a list of 2"), ({}, "a mapping of 0 fields"), (None, "nothing"), ("a", "'a'"),
     (10**50, "a number with too many digits"), ("\x1b[31m", r"'\x1b[31m'")],
)  # fmt: skip
def test_values_are_shown_short_and_printable(found: object, text: str) -> None:
    assert shown(found) == text


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 1000)) == 60


def test_the_line_of_a_field_is_found_or_that_of_what_is_around_it() -> None:
    document = parse_document("a:\n  b:\n  - x\n  - y: 1\n    z: 2\nc: 3\n", "f")
    lines = [
        document.line(path)
        for path in [(), ("a",), ("a", "b", 1), ("a", "b", 1, "z"), ("a", "b", 1, "no"), ("c",)]
    ]
    # The block sequence item 1 starts on line 4; a missing field has the line of its mapping.
    assert lines == [1, 1, 4, 5, 4, 6]


def test_lines_are_found_in_json_too() -> None:
    assert parse_document('{"a": 1,\n "b": [\n  2,\n  3]}', "f").line(("b", 1)) == 4


def test_a_model_is_read(tmp_path: Path) -> None:
    found = machine("name: box\nsize: 3\nparts: [{bandwidth: 25GB/s, alpha: 0.7us}]\n", tmp_path)
    assert (found.size, found.parts[0].bandwidth, found.parts[0].alpha) == (
        3,
        Fraction(40),
        700_000,
    )


MISFITS = {
    "unknown": ("name: a\nsiez: 3\n", r":2: siez: unknown field\n  fix: did you mean size\?"),
    "unlike any": ("name: a\nqqq: 3\n", r":2: qqq: unknown field\n  fix: use one of name, size"),
    "unknown inside": (
        "name: a\nparts:\n- bandwidth: 1\n- {bandwith: 2}\n",
        r":4: parts\[1\].bandwith: unknown field \(and 1 more\)\n  fix: did you mean bandwidth\?",
    ),
    "missing": ("size: 3\n", r":1: name: is missing\n  fix: write name: box"),
    "missing inside": (
        "name: a\nparts:\n- alpha: 1us\n",
        r":3: parts\[0\].bandwidth: is missing\n  fix: write bandwidth: 25GB/s",
    ),
    "zero": ("name: a\nparts: [{bandwidth: 0}]\n", r":2: parts\[0\].bandwidth: .* greater than 0"),
    "huge": ("name: a\nsize: 99999999999999999999\n", r":2: size: should be at most 8, got 9999"),
    "text": ("name: a\nsize: many\n", r"a whole number, got .many.\n  fix: write size: 4"),
    "bool": ("name: a\nsize: true\n", r"size: should be a whole number, got True"),
    "list": ("- 1\n", r":1: should be a mapping of fields, got a list of 1"),
    "no list": ("name: a\nparts: 7\n", r":2: parts: should be a list, got 7"),
    "number key": ("name: a\n7: 7\n", r":2: \[7\]: unknown field"),
    "control characters": ('name: "a\\eb"\n', r":1: name: should be a name of letters"),
    "list as quantity": ("name: a\nparts: [{bandwidth: [1]}]\n", r"a bandwidth, got a list of 1"),
    "negative rate": ("name: a\nlocal: -1\n", r":2: local: should be greater than 0, got -1"),
    "numbers": ("name: a\ngpus: 5-2\n", r":2: gpus: should be numbers of GPUs, .* got '5-2'"),
}


@for_each("text, match", MISFITS.values(), ids=MISFITS)
def test_a_misfit_names_file_line_field_value_and_fix(
    text: str, match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"machine.yaml{match}" if match[0] == ":" else match):
        machine(text, tmp_path)


def test_a_document_without_text_has_no_lines() -> None:
    with pytest.raises(InputError, match=r"^f: size: should be at least 1"):
        fit_model(Document({"name": "a", "size": 0}, "f"), Machine)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3", (0, 1, 2, 3)), (5, (5,)), ([0, 2], (0, 2)), ("all", None), ("0-1,4", (0, 1, 4)),
     ([0, "2-3"], (0, 2, 3))],
)  # fmt: skip
def test_sets_of_numbers_are_ranges_lists_or_all(text: object, numbers: object) -> None:
    assert parse_numbers(text) == numbers


@for_each(
    "text", ["", "1-", "a", [], [1, 1], "0-3,2", True, -1, 70_000, "0-99999", ["0-65535"] * 99, 1.5]
)
def test_what_is_no_set_of_numbers_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="should be numbers of GPUs, each once"):
        parse_numbers(text)


def test_a_written_file_holds_the_text_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / "out", "päth\n")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out", "päth\n")]


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    out.chmod(0o640)
    write_atomic(out, "new")
    assert (out.read_text(), stat.S_IMODE(out.stat().st_mode)) == ("new", 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_directory_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output: is a directory\n  fix: name a file in it"):
        write_atomic(tmp_path, "x")


@pytest.mark.parametrize("name", ["no/out", "file/out"])
def test_an_output_without_its_directory_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"can't be written: (no such file|not a directory)"):
        write_atomic(tmp_path / name, "x")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_output_path_that_can_not_be_is_one_error(path: str) -> None:
    with pytest.raises(InputError, match=r"is no file name|can't be written: file name too long"):
        write_atomic(path, "x")


def test_a_full_device_is_written_to_and_stays_a_device() -> None:
    with pytest.raises(InputError, match=r"/dev/full: -o: can't be written: no space left on"):
        write_atomic("/dev/full", "x" * 100_000, field="-o")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_the_null_device_takes_everything() -> None:
    write_atomic("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_a_failure_leaves_the_old_file_and_no_other(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    monkeypatch.setattr(os, call, lambda *_: _fail(errno.ENOSPC))
    with pytest.raises(InputError, match=r"no space left on device\n  fix: free some space"):
        write_atomic(out, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out", "old")]


def test_a_failure_to_replace_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *_: _fail(errno.EPERM))
    with pytest.raises(InputError, match="operation not permitted"):
        write_atomic(out, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out", "old")]


def test_a_file_that_may_not_be_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="permission denied"):
        write_atomic(out, "new")
    assert out.read_text() == "old"


def test_of_several_files_none_is_touched_when_one_can_not_be_written(tmp_path: Path) -> None:
    first = tmp_path / "a"
    first.write_text("old")
    with pytest.raises(InputError, match="no such file or directory"):
        write_all_atomic({first: "new", tmp_path / "no" / "b": "new"})
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def test_of_several_files_none_is_touched_when_a_device_is_full(tmp_path: Path) -> None:
    first = tmp_path / "a"
    first.write_text("old")
    with pytest.raises(InputError, match="no space left"):
        write_all_atomic({first: "new", "/dev/full": "x" * 100_000})
    assert first.read_text() == "old"


def test_several_files_are_all_written(tmp_path: Path) -> None:
    write_all_atomic({tmp_path / "a": "1", tmp_path / "b": "2"})
    assert sorted((p.name, p.read_text()) for p in tmp_path.iterdir()) == [("a", "1"), ("b", "2")]


def test_a_name_that_ends_in_a_slash_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't be written: is a directory"):
        write_atomic(f"{tmp_path}/new/", "x")


@pytest.mark.parametrize("name", ["new", "old"])
def test_an_output_is_checked_without_being_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    check_output(tmp_path / name)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("old", "old")]


def test_a_device_passes_the_check_of_an_output() -> None:
    check_output("/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize(
    ("name", "match"),
    [(".", "-o: is a directory"), ("no/out", "-o: can't be written: no such file"),
     ("old/out", "-o: can't be written: not a directory"), ("a\0b", "-o: is no file name")],
)  # fmt: skip
def test_an_output_that_can_not_be_written_is_refused_before_the_work(
    name: str, match: str, tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(InputError, match=match):
        check_output(f"{tmp_path}/{name}", field="-o")


def test_an_output_that_may_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match=r"permission denied\n  fix: choose a place"):
        check_output(tmp_path / "out")


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="can't be written: no such device or address"):
        write_atomic(tmp_path / "pipe", "x")


def test_a_number_too_large_names_its_line() -> None:
    with pytest.raises(InputError, match=r"f\.yaml:2: b: '1e999' is too large a number"):
        parse_document("a: 1\nb: 1e999\n", "f.yaml")


@pytest.mark.parametrize("other", ["out", "./out", "link"])
def test_an_output_that_is_another_file_is_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "out").write_text("kept")
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(InputError, match="is the same file as"):
        check_apart(tmp_path / "out", [tmp_path / other])


def test_two_outputs_may_be_one_device() -> None:
    check_apart("/dev/null", ["/dev/null"])


def test_links_in_a_circle_are_no_file_that_is_used_twice(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    check_apart(tmp_path / "out", [tmp_path / "a"])
    with pytest.raises(InputError, match="too many levels of symbolic links"):
        read_document(tmp_path / "a")
