"""Measures what a step costs: configurations in processes of their own, in a sweep."""
