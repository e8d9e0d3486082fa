"""Loads the fast BLAS before any test imports mlx."""

from __future__ import annotations

from mlx_amort.backend import load_blas

load_blas()
