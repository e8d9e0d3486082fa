"""Times the trainer against what a user would pick instead, both in one run: `python -m tools.bench`."""
