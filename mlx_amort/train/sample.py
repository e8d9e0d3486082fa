"""What the model of a run writes at its end."""

from __future__ import annotations

from mlx_amort.errors import UserError
from mlx_amort.generate import sample
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt, held_signals
from mlx_amort.train.run import Run


@held_signals()
def write_sample(run: Run, console: Console, interrupt: Interrupt) -> None:
    """Let the model continue `run.sample_prompt`, into sample.txt; say so when it cannot."""
    settings = run.config.run
    if interrupt.is_set or settings.sample_bytes == 0:
        return
    prompt = settings.sample_prompt.encode()
    written = bytearray(prompt)
    temperature, every_byte = settings.sample_temperature, 0
    try:
        bytes_drawn = sample(
            run.model,
            run.state.weights,
            prompt,
            settings.sample_bytes,
            temperature,
            every_byte,
            settings.seed,
        )
        for count, byte in enumerate(bytes_drawn, start=1):
            written.append(byte)
            console.progress(f"sample  {count:,} of {settings.sample_bytes:,} bytes")
            if interrupt.is_set:
                break
    except UserError as error:
        console.note(f"no sample: {error}")
        return
    run.folder.sample.write_bytes(written)
