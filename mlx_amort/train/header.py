"""The header of a run: everything that was resolved, said before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from mlx_amort.config import Config, SourceConfig
from mlx_amort.data.corpus import unit_name
from mlx_amort.train.opening import Run, state_bytes
from mlx_amort.train.wording import as_size

DEFAULT_SOURCES = (SourceConfig("builtin:docs"),)


def header_lines(run: Run) -> Iterator[str]:
    """One line a subject."""
    config = run.config
    yield f"model       {_model(config)}"
    yield f"step        {_step(config)}"
    yield f"run         {_length(run)}"
    yield f"optimizer   {_optimizer(config)}"
    for index, corpus in enumerate(run.corpora):
        unit = unit_name(corpus.dtype)
        share = f"weight {config.data.sources[index].weight:g}, " if len(run.corpora) > 1 else ""
        default = " (the default; --data names your own)" if config.data.sources == DEFAULT_SOURCES else ""
        yield (
            f"data        {corpus.name}{default}: {share}{corpus.train_units:,} {unit}s to train on, "
            f"{corpus.validation_units:,} held out"
        )
    yield f"machine     {_machine(run)}"
    yield f"memory      {_memory(run)}"
    yield f"folder      {run.folder.path}"
    if run.resumed_from is not None:
        yield f"resumed     from {run.resumed_from}"
        yield from (f"  changed   {key.replace(' and ', ' -> ', 1)}" for key in run.changed)
    yield ""


def _model(config: Config) -> str:
    model = config.model
    patched = f", {model.slots} slots" if model.is_patched else ""
    return (
        f"{config.preset or 'no preset'}, {model.trunk} trunk: {len(model.block_kinds)} blocks, "
        f"width {model.hidden}, {model.heads} heads, chunks of {model.seq:,} bytes{patched}; "
        f"{model.parameters:,} parameters"
    )


def _step(config: Config) -> str:
    step = config.step
    accumulated = f"{step.accum} micro-batches × " if step.accum > 1 else ""
    recomputed = ", activations recomputed" if step.activation_checkpointing else ""
    return (
        f"{config.bytes_per_step:,} bytes: {accumulated}{step.batch} rows × {step.chunks} chunks × "
        f"{config.model.seq:,} bytes, gradient through {step.effective_window} ({step.tbptt}); "
        f"{step.precision}{recomputed}"
    )


def _length(run: Run) -> str:
    config = run.config
    steps, settings = config.total_steps, config.run
    kept = f"saves every {settings.save_every:,} steps" if settings.save_every else "saves at the end"
    tried = f"validates every {settings.eval_every:,}" if settings.eval_every else "validates at the end"
    budget = f"{steps * config.bytes_per_step:,} bytes"
    return f"{steps:,} steps, {budget} in all; {tried}, {kept}; seed {settings.seed}"


def _optimizer(config: Config) -> str:
    optimizer, schedule = config.optimizer, config.schedule
    return (
        f"{optimizer.name}, learning rate {schedule.base_lr:g} to {schedule.final_lr:g} ({schedule.name}, "
        f"{schedule.warmup_steps} steps of warm-up), weight decay {optimizer.weight_decay:g}, "
        f"gradient clipped to {optimizer.clip_norm:g}"
    )


def _machine(run: Run) -> str:
    machine = run.machine
    processor = f"{machine['processor']}, {machine['cores']} cores"
    return f"{machine['backend']}, {processor}; {machine['blas']}; mlx {machine['mlx']}"


def _memory(run: Run) -> str:
    total = as_size(run.machine["memory_bytes"])
    state = as_size(state_bytes(run.config))
    return f"{state} of {total} for weights, gradients and optimizer state; activations add to it"
