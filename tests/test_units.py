"""Quantities: what is accepted, what it means, and exact spellings that are read back."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.units import (
    MAX_BETA,
    MIN_BETA,
    beta_text,
    ceil_time,
    exact_size_text,
    format_size,
    format_time,
    gigabytes_per_second,
    parse_beta,
    parse_exact_size,
    parse_size,
    parse_time,
)
from tests.sweep import for_each


@for_each(
    ("text", "picoseconds"),
    [("0.7us", 700_000), ("700ns", 700_000), ("350000ps", 350_000), (1.7, 1_700_000),
     ("2", 2 * 10**6), ("1ms", 10**9), ("1e-3s", 10**9), (" 3 us ", 3 * 10**6), ("0.4ps", 0)],
)  # fmt: skip
def test_a_time_is_whole_picoseconds_and_plain_numbers_are_microseconds(
    text: object, picoseconds: int
) -> None:
    assert parse_time(text) == picoseconds


@for_each("text", ["-1us", "1001s", "abc", "1 fortnight", True, None, "nan", "1e400us"])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(InputError, match=r"time|unit"):
        parse_time(text)


@for_each(
    ("text", "beta"),
    # 1000 / (GB/s) = us/MB = ps per byte
    [("25GB/s", Fraction(40)), ("200Gb/s", Fraction(40)), (12.5, Fraction(80)),
     ("46us/MB", Fraction(46)), ("1ns/KB", Fraction(1)), ("1/3 ps/B", Fraction(1, 3)),
     ("7/2ps/B", Fraction(7, 2)), ("1MB/s", Fraction(10**6))],
)  # fmt: skip
def test_a_bandwidth_or_a_beta_is_ps_per_byte(text: object, beta: Fraction) -> None:
    assert parse_beta(text) == beta


@pytest.mark.parametrize("text", [0, "-23GB/s", "0us/MB", "0/3 ps/B", "3/0 ps/B"])
def test_a_bandwidth_is_above_0(text: object) -> None:
    with pytest.raises(InputError, match="greater than 0"):
        parse_beta(text)


@pytest.mark.parametrize("text", ["1e12GB/s", "1B/s"])
def test_a_bandwidth_beyond_any_hardware_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="between 1KB/s and 1e9GB/s"):
        parse_beta(text)


def test_a_unit_typo_is_named_with_the_units_there_are() -> None:
    with pytest.raises(
        InputError, match=r"unknown unit 'GBps' in '25GBps'\n  fix: use one of .*GB/s"
    ):
        parse_beta("25GBps")


@given(st.fractions(min_value=MIN_BETA, max_value=MAX_BETA, max_denominator=10**20))
def test_the_text_of_a_beta_is_read_back_exactly(beta: Fraction) -> None:
    assert parse_beta(beta_text(beta)) == beta


def test_a_beta_that_is_a_decimal_is_written_as_one() -> None:
    texts = [beta_text(b) for b in (Fraction(46), Fraction(23, 2), Fraction(1, 3))]
    assert texts == ["46us/MB", "11.5us/MB", "1/3 ps/B"]


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=2**50, max_denominator=10**20))
def test_the_text_of_an_exact_size_is_read_back_exactly(size: Fraction) -> None:
    assert parse_exact_size(exact_size_text(size)) == size


@pytest.mark.parametrize(
    ("text", "size"), [("1MB", 10**6), ("1MiB", 1 << 20), (1000, 1000), ("2kb", 2000)]
)
def test_a_size_in_mb_is_decimal_and_in_mib_binary(text: object, size: int) -> None:
    assert parse_size(text) == parse_exact_size(text) == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5B", "3000TB"])
def test_a_size_is_a_whole_number_from_1_to_2_to_the_50(text: str) -> None:
    with pytest.raises(InputError, match="whole number of bytes"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0/5 B", "1/0 B", f"{2**52}/1 B"])
def test_an_exact_size_is_above_0_and_at_most_2_to_the_50(text: str) -> None:
    with pytest.raises(InputError, match=r"2\^50"):
        parse_exact_size(text)


def test_k_m_g_and_t_alone_are_powers_of_two_as_in_nccl_tests() -> None:
    sizes = {"1K": 1 << 10, "64m": 64 << 20, "1G": 1 << 30, "1T": 1 << 40, "1.5k": 1536, "8": 8}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("0K", "0.3", "0.0001K", "2048T"):
        with pytest.raises(InputError, match="whole number of bytes"):
            parse_size(text)


def test_they_are_no_units_of_a_bandwidth() -> None:
    with pytest.raises(InputError, match="unknown unit 'us/M'"):
        parse_beta("46us/M")


def test_a_duration_is_rounded_up_once() -> None:
    # 10/3 ps a byte * 4 bytes = 13.33 ps
    assert ceil_time(Fraction(10, 3), 4) == 14


def test_numbers_are_printed_short() -> None:
    assert (format_time(12_345_600), format_size(31_250), format_size(8)) == (
        "12.3456 us",
        "31.25KB",
        "8B",
    )


def test_a_size_is_printed_in_the_units_that_say_it_exactly_and_shortest() -> None:
    sizes: dict[int | Fraction, str] = {
        1024: "1KiB", 16384: "16KiB", 1 << 20: "1MiB", 3 << 29: "1.5GiB", 1000448: "977KiB",
        10**6: "1MB", 2_048_000: "2.048MB", 64 * 10**6: "64MB", 1500: "1.5KB", 0: "0B",
        Fraction(125, 4): "31.25B", 10**16: "1e+07GB",
    }  # fmt: skip
    assert {size: format_size(size) for size in sizes} == sizes


def test_a_rate_is_size_over_time_and_0_without_time() -> None:
    # 1000 bytes in 1000 ps = 1 byte a ps = 1000 GB/s
    assert (gigabytes_per_second(1000, 1000), gigabytes_per_second(1000, 0)) == (1000.0, 0.0)


@for_each("text", ["1e308", "1e-300", "1e308GB/s", "1.5.2", "1" * 40, "1e5e5"])
@for_each("parse", [parse_time, parse_size, parse_beta])
def test_a_number_that_goes_on_is_no_number_with_a_unit(
    parse: Callable[[object], object], text: str
) -> None:
    with pytest.raises(InputError, match=r"should be a (time|size|bandwidth), got"):
        parse(text)
