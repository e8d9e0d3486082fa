"""Pure functions on arrays: no configuration, no state, nothing of the model.

Axes everywhere: B rows, S bytes of a chunk, N slots, H width, h heads, d head width, C sub-chunk.
"""
