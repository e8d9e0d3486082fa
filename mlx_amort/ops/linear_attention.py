"""Gated linear attention in three forms of one recurrence, one scalar decay per head and slot:

    S_t = a_t S_{t-1} + k_tᵀ v_t        o_t = q_t S_t        log a_t <= 0

`gla_recurrent` is the definition, `gla_chunkwise` trains, `gla_step` decodes. A slot with k = 0 and log a = 0 leaves
the state as it was. Source: Yang et al. 2023 (Gated Linear Attention), section 4; Dao and Gu 2024 (scalar decay).

Shapes everywhere: q, k, v [B, h, N, d] (step: [B, h, d]); log_decay [B, h, N] (step: [B, h]);
state [B, h, d, d], rows k and columns v. Dtypes: computed in float32; the output as `q`, the state float32.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mlx_amort.ops.constants import SUB_CHUNK
from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.elementary import exp_nonpositive
from mlx_amort.ops.recompute import recomputed

_SMALLEST_LOG_DECAY = -40.0


def gla_step(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """One slot of the recurrence. Shapes: see above, without N; returns (out [B, h, d], state)."""
    decay = mx.exp(log_decay.astype(mx.float32))[..., None, None]
    write = k.astype(mx.float32)[..., :, None] * v.astype(mx.float32)[..., None, :]
    state = decay * state + write
    out = (q.astype(mx.float32)[..., None, :] @ state)[..., 0, :]
    return out.astype(q.dtype), state


def gla_recurrent(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The recurrence slot by slot, as defined; returns (out [B, h, N, d], state)."""
    outs = []
    for t in range(q.shape[2]):
        out, state = gla_step(q[:, :, t], k[:, :, t], v[:, :, t], log_decay[:, :, t], state)
        outs.append(out)
    return mx.stack(outs, axis=2), state


def gla_chunkwise(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array, sub_chunk: int = SUB_CHUNK
) -> tuple[mx.array, mx.array]:
    """The recurrence in sub-chunks of C slots, as batched products; returns (out [B, h, N, d], state).

    With b_t the running sum of log a in a sub-chunk and D[t, s] = exp(b_t - b_s) for s <= t, else 0:
    out = ((Q Kᵀ) ∘ D) V + exp(b) Q S_start, and S_next = exp(b_C) S_start + Σ_s exp(b_C - b_s) k_sᵀ v_s.
    The states at sub-chunk starts are one product with the decays between sub-chunks. The backward pass
    recomputes everything from the arguments (a few percent of a block's work).
    """
    slots = q.shape[2]
    sub_chunk = min(sub_chunk, slots)
    padding = -slots % sub_chunk
    if padding:
        pad = [(0, 0), (0, 0), (0, padding)]
        q, k, v = (mx.pad(x, [*pad, (0, 0)]) for x in (q, k, v))
        log_decay = mx.pad(log_decay, pad)
    out, state = _chunkwise_recomputed(sub_chunk)(q, k, v, log_decay, state)
    return (out[:, :, :slots] if padding else out), state


def _chunkwise_recomputed(sub_chunk: int):  # type: ignore[no-untyped-def]
    def chunkwise(
        q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        return _chunkwise(q, k, v, log_decay, state, sub_chunk)

    return recomputed(chunkwise)


def _masked_decay(
    later: mx.array, earlier: mx.array, visible: mx.array, exp: Callable[[mx.array], mx.array]
) -> mx.array:
    """exp(later - earlier) where visible, else 0; masked before exp so that no gradient is 0 · inf."""
    exponent = mx.where(visible, later - earlier, 0.0)
    return mx.where(visible, fence(exp(exponent)), 0.0)


def _chunkwise(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array, sub_chunk: int
) -> tuple[mx.array, mx.array]:
    rows, heads, slots, width = q.shape
    count = slots // sub_chunk
    split = (rows, heads, count, sub_chunk)
    queries, keys, values = (x.astype(mx.float32).reshape(*split, width) for x in (q, k, v))
    # A slot that keeps less than exp(-40) keeps nothing; larger sums would drown the small gates beside them.
    gates = mx.maximum(log_decay.astype(mx.float32), _SMALLEST_LOG_DECAY)
    decay = mx.cumsum(gates.reshape(split), axis=-1)
    total = decay[..., -1]

    causal = mx.tril(mx.ones((sub_chunk, sub_chunk), dtype=mx.bool_))
    inside = _masked_decay(decay[..., :, None], decay[..., None, :], causal, exp_nonpositive)
    intra = (fence(queries @ keys.swapaxes(-1, -2)) * inside) @ values

    to_end = fence(mx.exp(total[..., None] - decay))[..., None]
    writes = (keys * to_end).swapaxes(-1, -2) @ values
    starts, state = _states_at_starts(writes, total, state)

    from_start = fence(mx.exp(decay))[..., None]
    out = intra + (queries * from_start) @ starts
    return out.reshape(q.shape).astype(q.dtype), state


def _states_at_starts(writes: mx.array, total: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """States before each sub-chunk and after the last, from each sub-chunk's write [B, h, M, d, d].

    starts_j = Σ_{i<j} exp(Σ_{i<l<j} total_l) write_i with the incoming state as write_{-1}.
    """
    rows, heads, count, width, _ = writes.shape
    sources = mx.concatenate([state[:, :, None], writes], axis=2).reshape(
        rows, heads, count + 1, width * width
    )
    running = mx.concatenate([mx.zeros((rows, heads, 1)), mx.cumsum(total, axis=-1)], axis=-1)
    visible = mx.tril(mx.ones((count + 1, count + 1), dtype=mx.bool_))
    decays = _masked_decay(running[..., :, None], running[..., None, :], visible, mx.exp)
    states = (decays @ sources).reshape(rows, heads, count + 1, width, width)
    starts, last = mx.split(states, [count], axis=2)
    # Copied, or the carried state would hold all of them.
    return starts, mx.contiguous(last[:, :, 0])
