"""The configuration of a run: values and defaults, checks, reading and writing, presets."""
