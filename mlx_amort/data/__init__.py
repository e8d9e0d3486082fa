"""Corpora and the bytes of a step: numpy only, nothing loaded whole."""
