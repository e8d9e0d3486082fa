"""The memory model of a step: estimated part by part, searched within a budget; arithmetic only."""
