"""What a step costs in time and memory: measured, fitted to c0 + c1 * bytes_per_step, and used to choose."""
