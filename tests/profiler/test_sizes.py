"""Amounts of bytes as people write them."""

from __future__ import annotations

import pytest

from mlx_amort.errors import UserError
from mlx_amort.profiler.sizes import format_size, parse_size


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


def test_formatting_keeps_three_digits() -> None:
    assert [format_size(a) for a in (4.2e9, 48e9, 680e6, 512)] == ["4.20 GB", "48.0 GB", "680 MB", "512 B"]
