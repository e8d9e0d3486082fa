"""What a user sees of an error, and what a programmer does of a name that nothing deals with."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_amort.errors import assert_never


def test_a_name_that_nothing_deals_with_is_a_bug() -> None:
    unknown: Any = "spiral"
    with pytest.raises(AssertionError, match="'spiral' is dealt with nowhere"):
        assert_never(unknown)
