"""The window of docs/memory.md worked out by hand, line by line, in the document's own order and letters."""

from __future__ import annotations

from mlx_amort.config.values import Config


def window_bytes(config: Config, always: int) -> float:
    """Peak of the backward pass on the CPU. Units: bytes; `always` is weights, optimizer and gradients."""
    model, step = config.model, config.step
    B, W, S, H, F, h, V = (
        step.batch,
        step.effective_window,
        model.seq,
        model.hidden,
        model.ffn,
        model.heads,
        model.vocabulary,
    )
    d, R, N = H // h, B * W, S // model.patch_stride
    is_wide, is_pure, is_cut = (
        step.precision == "fp32",
        step.precision == "bf16-pure",
        step.activation_checkpointing,
    )
    c = 4 if is_wide else 2
    recurrent = sum(kind == "recurrent" for kind in model.block_kinds)
    states = 2 * recurrent * B * (4 * H * d + 9 * H * c)
    data = B * (S * W + 1) * (2 if V > 256 else 1)

    def pieces(rows: int, positions: int) -> int:
        return max([p for p in (1, 2, 3, 4) if rows % p == 0 and positions >= 1024 * p] or [1])

    def matrices(numbers: int, p: int) -> int:
        return numbers * (4 if is_wide else 10 if is_pure or (is_cut and p == 1) else 8)

    # (input, keeps, workspace, recomputed workspace, matrices, p, others, sums) of every half
    halves: list[tuple[float, ...]] = []
    keeps: float
    work: float
    again: float
    others: float
    for kind, along in zip(model.block_kinds, model.block_lengths, strict=True):
        L = S if along == "bytes" else N
        entry, array, p = c * R * L * H, 4 * R * L * H, pieces(R, R * L)
        if kind == "attention":
            keeps = R * L * (c * 7 * H + 4 * (1 + h))

            def tiles(count: int, keys: int, L: int = L) -> int:
                return count * 4 * R * h * min(L, 128) * keys

            if L <= 128:
                work = (22.0 if is_wide else 27.0) * array + tiles(3, L)
                again = (17.5 if is_wide else 16.0) * array + tiles(6, L)
            elif L <= 256:
                work = again = (17.5 if is_wide else 21.0) * array + tiles(3, L + L - 128)
            else:
                last = (19.5 if is_wide else 21.0) * array + tiles(3, 128)
                work = again = max(12.0 * array + tiles(3, L + L - 128), last)
            own = matrices(4 * H * H, p)
            halves.append((entry, keeps, work, again, own, p, 2 * entry * (1 - 1 / p), own if p > 1 else 0))
        else:
            streams, C = pieces(B, R * L), min(64, L * W)
            keeps = R * L * (c * (14 if model.is_patched else 13) * H + 4 * (1 + 4 * h)) + R * c * 9 * H
            arrays = (27.2 if W > 1 else 25.9) if is_wide else (23.0 if W > 1 else 24.7)
            scores, of_states = 4 * R * L * h * C, 4 * R * L * H * d / C
            work = arrays * array + 7 * scores + (5.4 if is_wide else 6.1) * of_states
            others = (1.1 if W > 1 else 2.8) if is_wide else (0.4 if W > 1 else 1.2)
            others += (2.7 if is_wide else 2.3) * (1 - 1 / streams)
            sums = 4.4 * H * H * 4 if streams > 1 else 0.0
            halves.append((entry, keeps, work, work, 2.6 * H * H * 4, streams, others * array, sums))
        keeps = R * L * (c * (2 * H + F) + 4)
        work = (4.5 if is_wide else 7.5) * array + (3 if is_wide else 7) * 4 * R * L * F
        again = work if is_wide else work + 2.5 * array
        own = matrices(2 * H * F, p)
        halves.append((entry, keeps, work, again, own, p, 2 * entry * (1 - 1 / p), own if p > 1 else 0))

    worst, before = 0.0, 0.0
    for index, (inputs, keeps, work, again, matrix, cut, others, sums) in enumerate(halves):
        is_last = index == len(halves) - 1
        moment = keeps + work + matrix
        if is_cut:
            moment = inputs + (keeps - inputs + again) / cut + matrix + (0 if is_last else others + sums)
        kept = inputs if is_cut else keeps
        if is_last:
            q = cut if is_cut else 1.0
            array, logits = 4 * R * S * H, 4 * R * S * V
            if is_wide:
                table, early = 4 * V * H, 6 * logits + 4.5 * array + 8 * R * S * F / q
                late = (5 - q / 2) * logits + 4.5 * array if is_cut else 6 * logits + 2.5 * array
            else:
                more = 1 if V % 32 else 0
                table, early = 12 * V * H, (9.3 + more) * logits + 7.5 * array
                late = (max(2, (11 - 2 * q) / 3) + more) * logits + 6 * array
            early += 384 * R * S + (inputs if q > 1 else 0)
            moment = table + max(kept + early, late + moment)
        worst, before = max(worst, before + moment), before + kept
    return always + states + data + worst
