"""The hybrid model of docs/model.md in PyTorch, as a PyTorch user would write it: native kernels, autograd.

Shapes, names and arithmetic are those of mlx_amort/model; losses and gradients are compared before anything is timed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from mlx_amort.config.model import ModelConfig

Weights = dict[str, torch.Tensor]
State = list[tuple[torch.Tensor, torch.Tensor]]

_EPSILON = 1e-5
_SUB_CHUNK = 64
_TAIL = 3


def zero_state(model: ModelConfig, rows: int) -> State:
    """The state of `rows` new streams: S [B, h, d, d] and the convolution's last inputs [B, 3, 3H] a block."""
    width = model.head_width
    blocks = [kind for kind in model.block_kinds if kind == "recurrent"]
    return [
        (torch.zeros(rows, model.heads, width, width), torch.zeros(rows, _TAIL, 3 * model.hidden))
        for _ in blocks
    ]


def window_loss(
    model: ModelConfig, weights: Weights, tokens: torch.Tensor, state: State
) -> tuple[torch.Tensor, State]:
    """Mean cross-entropy of W chunks of each row, run as B·W rows. Shapes: tokens [B, W·S + 1] int64."""
    inputs, targets = tokens[:, :-1].reshape(-1, model.seq), tokens[:, 1:].reshape(-1, model.seq)
    x = F.embedding(inputs, weights["tok"]) + weights["pos"]
    blocks = [_block(weights, index) for index in range(len(model.block_kinds))]
    outer = (len(blocks) - model.layers) // 2
    for own in blocks[:outer]:
        x = _attention_block(own, x, model.heads)
    slot_of_byte, position, valid = _assign(inputs, model)
    rows = torch.arange(len(x))[:, None]
    g = x[rows, position] * valid[..., None] + weights["slot"]
    after: State = []
    for own, before in zip(blocks[outer:-outer], state, strict=True):
        g, block_state = _recurrent_block(own, g, valid, before, model.heads)
        after.append(block_state)
    padded = torch.cat([g, torch.zeros_like(g[:, :1])], dim=1)
    x = x + padded[rows, slot_of_byte]
    for own in blocks[-outer:]:
        x = _attention_block(own, x, model.heads)
    logits = _norm(x, weights["n_out"]) @ weights["tok"].T
    return F.cross_entropy(logits.reshape(-1, model.vocabulary), targets.reshape(-1)), after


def _block(weights: Weights, index: int) -> Weights:
    prefix = f"blocks.{index}."
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, _EPSILON)


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _feed_forward(own: Weights, x: torch.Tensor) -> torch.Tensor:
    return x + F.linear(F.gelu(F.linear(_norm(x, own["n2"]), own["up"])), own["down"])


def _attention_block(own: Weights, x: torch.Tensor, heads: int) -> torch.Tensor:
    q, k, v = (_heads(part, heads) for part in F.linear(_norm(x, own["n1"]), own["qkv"]).chunk(3, dim=-1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return _feed_forward(own, x + F.linear(out, own["proj"]))


def _assign(tokens: torch.Tensor, model: ModelConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slot of every byte (N where it has none), byte of every slot, and which slots are used."""
    lower = tokens | 0x20
    word = (
        ((lower >= 97) & (lower <= 122))
        | ((tokens >= 48) & (tokens <= 57))
        | ((tokens >= 128) & (tokens <= 191))
    )
    boundary = ~word
    if model.boundary_rule == "first":
        boundary[:, 1:] &= word[:, :-1]
    boundary[:, 0] = True
    ordinal = boundary.cumsum(dim=1) - 1
    slot_of_byte = torch.where(boundary & (ordinal < model.slots), ordinal, model.slots)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    table = torch.zeros(len(tokens), model.slots + 1, dtype=torch.int64)
    table.scatter_(1, slot_of_byte, places)
    valid = torch.arange(model.slots) <= ordinal[:, -1:]
    return slot_of_byte, torch.where(valid, table[:, : model.slots], 0), valid


def _recurrent_block(
    own: Weights, g: torch.Tensor, valid: torch.Tensor, state: Any, heads: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    memory, tail = state
    rows, (count, slots, width) = len(memory), g.shape
    u = _norm(g, own["n1"])
    mixed, tail = _convolve(F.linear(u, own["qkv"]), own["conv"], valid, tail)
    q, k, v = (_heads(part.reshape(rows, -1, width), heads) for part in mixed.chunk(3, dim=-1))
    log_decay = -F.softplus(F.linear(u, own["decay_w"]) + own["decay_b"]) * valid[..., None]
    log_decay = log_decay.reshape(rows, -1, heads).transpose(1, 2)
    k = k * valid.reshape(rows, 1, -1, 1)
    out, memory = _chunkwise(q * (width // heads) ** -0.5, k, v, log_decay, memory)
    out = _norm(out.transpose(1, 2).reshape(count, slots, heads, -1), own["o_norm"]).flatten(2)
    g = g + F.linear(out * F.silu(F.linear(u, own["gate"])), own["proj"])
    return _feed_forward(own, g), (memory, tail)


def _convolve(
    z: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor, tail: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The causal convolution along each stream of used slots, chunk after chunk."""
    rows, (_, slots, width) = len(tail), z.shape
    pieces = []
    valid = valid.reshape(rows, -1, slots)
    for chunk, piece in enumerate(z.reshape(rows, -1, slots, width).unbind(1)):
        joined = torch.cat([tail, piece], dim=1)
        pieces.append(F.conv1d(joined.transpose(1, 2), weight[:, None], groups=width).transpose(1, 2))
        used = valid[:, chunk].sum(dim=1)
        tail = joined[torch.arange(rows)[:, None], used[:, None] + torch.arange(_TAIL)]
    return torch.stack(pieces, dim=1).reshape(z.shape), tail


def _chunkwise(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated linear recurrence in sub-chunks, a scan over their states only. Shapes: q [B, h, N, d]."""
    slots = q.shape[2]
    size = min(_SUB_CHUNK, slots)
    padding = -slots % size
    q, k, v = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, size)) for x in (q, k, v))
    decay = F.pad(log_decay, (0, padding)).unflatten(2, (-1, size)).cumsum(-1)
    total = decay[..., -1]
    visible = torch.ones(size, size, dtype=torch.bool).tril()
    inside = (decay[..., :, None] - decay[..., None, :]).masked_fill(~visible, -torch.inf).exp()
    intra = ((q @ k.mT) * inside) @ v
    writes = (k * (total[..., None] - decay).exp()[..., None]).mT @ v
    starts = []
    for index in range(writes.shape[2]):
        starts.append(state)
        state = total[:, :, index].exp()[..., None, None] * state + writes[:, :, index]
    out = intra + (q * decay.exp()[..., None]) @ torch.stack(starts, dim=2)
    return out.flatten(2, 3)[:, :, :slots], state
