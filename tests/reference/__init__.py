"""Float64 oracles, written from the formulas by loops and sharing no code with the package."""
