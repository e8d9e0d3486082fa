"""Amounts as people write and read them."""

from __future__ import annotations

import pytest

from mlx_amort.amounts import format_duration, format_size, parse_memory, parse_size, percent, printable_lines
from mlx_amort.errors import UserError


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("48GB", 48 * 10**9),
        ("2.006e9", 2_006_000_000),
        ("10m", 10**7),
        ("1.5GiB", 3 * 2**29),
        ("200k", 200_000),
        ("98,304", 98_304),
        (" 4 tb ", 4 * 10**12),
        ("7", 7),
        ("500 bytes", 500),
    ],
)
def test_amounts_are_understood(text: str, amount: int) -> None:
    assert parse_size(text) == amount


@pytest.mark.parametrize("text", ["", "GB", "12 parsecs", "-3GB", "0", "2b", "1e999", "1.2.3", "nan"])
def test_what_is_no_amount_is_refused_by_option(text: str) -> None:
    with pytest.raises(UserError, match="--memory"):
        parse_size(text, "--memory")


@pytest.mark.parametrize("text", ["16", " 48 ", "0.5e3", "999999"])
def test_memory_without_a_unit_is_asked_for_one(text: str) -> None:
    with pytest.raises(UserError, match=r"--memory .* has no unit; write .*GB or .*MB"):
        parse_memory(text, "--memory")


@pytest.mark.parametrize(
    ("text", "amount"), [("16GB", 16 * 10**9), ("8m", 8 * 10**6), ("16000000000", 16 * 10**9)]
)
def test_memory_with_a_unit_or_in_bytes_is_taken(text: str, amount: int) -> None:
    assert parse_memory(text, "--memory") == amount


def test_sizes_keep_three_digits() -> None:
    sizes = (4.2e9, 48e9, 680e6, 999.6e6, 1500, 512, 0)
    shown = ["4.20 GB", "48.0 GB", "680 MB", "1.00 GB", "1.50 kB", "512 B", "0 B"]
    assert [format_size(size) for size in sizes] == shown


def test_durations_are_said() -> None:
    durations = (-1, 0, 41.6, 59.6, 200, 7505)
    shown = ["0 s", "0 s", "42 s", "1 min 0 s", "3 min 20 s", "2 h 5 min"]
    assert [format_duration(seconds) for seconds in durations] == shown


def test_shares_have_a_sign_and_no_negative_zero() -> None:
    assert [percent(share) for share in (0.0123, -0.5, -0.00001)] == ["+1.23 %", "-50.00 %", "+0.00 %"]


def test_printed_text_cannot_drive_the_terminal() -> None:
    assert printable_lines("a\x1b[2Jb\nc\r") == ["a\ufffd[2Jb", "c\ufffd"]


def test_long_durations_are_days() -> None:
    assert [format_duration(3600 * hours) for hours in (3 + 1 / 3, 47.9, 76)] == [
        "3 h 20 min",
        "47 h 54 min",
        "3 d 4 h",
    ]


@pytest.mark.parametrize("text", ["1e400", "9" * 5000, "1e30TB"])
def test_more_bytes_than_there_are_is_said_in_a_line(text: str) -> None:
    with pytest.raises(UserError, match="is more bytes than there are") as refusal:
        parse_size(text)
    assert len(str(refusal.value)) < 200
