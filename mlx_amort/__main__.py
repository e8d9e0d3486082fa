"""`python -m mlx_amort` is the command `mlx-amort`."""

from mlx_amort.cli import main

if __name__ == "__main__":
    main()
