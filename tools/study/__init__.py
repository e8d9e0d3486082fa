"""Choices compared by bits per byte at equal bytes and at equal seconds: `python -m tools.study NAME`."""
