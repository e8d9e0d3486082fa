"""The header of a run: everything that was resolved, said before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from mlx_amort.amounts import counted, format_size
from mlx_amort.backend.kernel_cache import has_compiler
from mlx_amort.config.values import Config
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.parts import left_out
from mlx_amort.data.slots import warn_of_slots
from mlx_amort.optim.schedules import learning_rate, phases
from mlx_amort.train.run import Run, state_bytes


def header_lines(run: Run) -> Iterator[str]:
    """One line a subject."""
    config = run.config
    yield f"model       {_model(run)}"
    yield f"step        {_step(run)}"
    yield f"run         {_length(run)}"
    yield f"optimizer   {_optimizer(config)}"
    yield from _data(run)
    yield f"machine     {_machine(run)}"
    if run.machine["backend"] == "cpu" and not has_compiler():
        yield "warning     no g++ on the PATH, so MLX runs every operation by itself, which is slower; install g++"
    yield f"memory      {_memory(run)}"
    yield f"folder      {run.folder.path}"
    if run.resumed_from is not None:
        yield f"resumed     from {run.resumed_from}"
        yield from (f"  changed   {change.key}: {change.first} -> {change.other}" for change in run.changed)
        if rise := _rise(run):
            yield f"  note      {rise}"


def _data(run: Run) -> Iterator[str]:
    sources = run.config.data.sources
    for index, corpus in enumerate(run.corpora):
        share = f"weight {sources[index].weight:g}, " if len(sources) > 1 else ""
        held_out = f", {corpus.validation_units:,} held out" if corpus.validation_units else ""
        if corpus.validation_units and corpus.place_held_out != corpus.ITS_END:
            held_out += f" ({corpus.place_held_out})"
        yield f"data        {corpus.name}: {share}{corpus.train_units:,} {run.unit}s to train on{held_out}"
        yield from _about(corpus)
        if warning := warn_of_slots(corpus, run.config.model):
            yield f"  note      {warning}"
    for corpus in run.held_out if run.held_out is not run.corpora else ():
        yield f"validation  {corpus.name}: {corpus.validation_units:,} {run.unit}s held out"
        yield from _about(corpus)


def _about(corpus: Corpus) -> Iterator[str]:
    if corpus.skipped:
        yield f"  left out  {left_out(corpus.skipped)}"
    yield from (f"  note      {note}" for note in corpus.notes)


def _model(run: Run) -> str:
    config, model = run.config, run.config.model
    patched = f", {model.slots} slots" if model.is_patched else ""
    return (
        f"{config.preset or 'no preset'}, {model.trunk} trunk: {len(model.block_kinds)} blocks, "
        f"width {model.hidden}, {model.heads} heads, chunks of {model.seq:,} {run.unit}s{patched}; "
        f"{model.parameters:,} parameters"
    )


def _step(run: Run) -> str:
    config, step = run.config, run.config.step
    accumulated = f"{step.accum} micro-batches × " if step.accum > 1 else ""
    cut = f", window {step.window} cut to the chunks of a row" if step.window > step.chunks else ""
    recomputed = ", activations recomputed" if step.activation_checkpointing else ""
    return (
        f"{config.bytes_per_step:,} {run.unit}s: {accumulated}{step.batch} rows × {step.chunks} chunks × "
        f"{config.model.seq:,} {run.unit}s, gradient through {step.effective_window} ({step.tbptt}{cut}); "
        f"{step.precision}{recomputed}"
    )


def _length(run: Run) -> str:
    config = run.config
    steps, settings = config.total_steps, config.run
    kept = f"saves every {settings.save_every:,} steps" if settings.save_every else "saves at the end"
    tried = f"validates every {settings.eval_every:,}" if settings.eval_every else "validates at the end"
    budget = f"{steps * config.bytes_per_step:,} {run.unit}s"
    return f"{steps:,} steps, {budget} in all; {tried}, {kept}; seed {settings.seed}"


def _optimizer(config: Config) -> str:
    optimizer = config.optimizer
    return (
        f"{optimizer.name}, {_schedule(config)}, weight decay {optimizer.weight_decay:g}, "
        f"gradient clipped to {optimizer.clip_norm:g}"
    )


def _schedule(config: Config) -> str:
    """What the rate does in this run: a short one has less warm-up than was asked for."""
    steps, schedule = config.total_steps, config.schedule
    warmup_steps, stable_steps, decay_steps = phases(steps, schedule)
    # Compared as they are shown: warming up rounds the last bit.
    highest = f"{learning_rate(max(0, warmup_steps - 1), steps, schedule):g}"
    last = f"{learning_rate(steps - 1, steps, schedule):g}"
    course = {"of warm-up": warmup_steps, "at that rate": stable_steps, "of decay": decay_steps}
    told = ", ".join(f"{counted(count, 'step')} {what}" for what, count in course.items() if count)
    decayed = f" to {last}" if last != highest else ""
    return f"learning rate {highest}{decayed} ({schedule.name}: {told})"


def _rise(run: Run) -> str | None:
    """What a changed run does to the learning rate, where that goes up, and how to keep it where it was."""
    step, steps, schedule = run.state.step, run.config.total_steps, run.config.schedule
    logged = run.log.steps()
    before = logged[-1].get("lr") if logged else None
    warmup_steps, _, decay_steps = phases(steps, schedule)
    if not run.changed or before is None or not warmup_steps <= step < steps:
        return None
    after = learning_rate(step, steps, schedule)
    if after < before or f"{after:g}" == f"{before:g}":
        return None
    begins = steps - decay_steps
    decay = f"begins anew at step {begins:,}" if step < begins else f"now ends at step {steps:,}"
    course = f": the decay {decay}" if decay_steps else ""
    keep = f"to stay at the last rate, resume with --schedule constant --lr {before:g}"
    return f"learning rate goes from {before:g} back up to {after:g}{course}; {keep}"


def _machine(run: Run) -> str:
    machine = run.machine
    processor = f"{machine['processor']}, {machine['cores']} cores"
    return f"{machine['backend']}, {processor}; {machine['blas']}; mlx {machine['mlx']}"


def _memory(run: Run) -> str:
    total = format_size(run.machine["memory_bytes"])
    state = format_size(state_bytes(run.config))
    return f"{state} of {total} for weights, gradients and optimizer state; activations add to it"
