"""What only MLX's CPU backend on Linux needs: its own forms of functions, and what keeps its kernels and memory small.

ops/ defines every operation for any backend and asks ops/paths.py when one of these takes over; a reader on a GPU can
leave this folder closed. `fence`, `wait_for_allocations` and `elementwise_streams` do nothing elsewhere.
"""
