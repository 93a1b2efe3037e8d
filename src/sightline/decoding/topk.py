"""The k largest of each row, fast on long rows."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(R, V) → values and indices (R, k), largest first: what `torch.topk` gives, in less time.

    The k largest elements stand in the k blocks with the largest maxima, so two small selections replace one over the
    whole row: the pass over all elements is a vectorized maximum. (On a GPU `torch.topk` reads a row many times over, a
    few bits of each element at a time.)
    """
    size = scores.shape[-1]
    blocks = size // _BLOCK
    if blocks <= 2 * k:
        values, indices = scores.topk(k, dim=-1)
        return values, indices
    rows = scores.shape[0]
    whole = blocks * _BLOCK
    head = scores[:, :whole].unflatten(1, (blocks, _BLOCK))  # (R, blocks, 64)
    best = head.amax(-1).topk(k, dim=-1, sorted=False).indices  # (R, k)
    if whole == size:  # whole blocks are rows of a view, which are fetched faster than elements
        lines = (best + torch.arange(rows, device=scores.device)[:, None] * blocks).flatten()
        found = scores.reshape(rows * blocks, _BLOCK).index_select(0, lines).view(rows, -1)  # (R, k · 64)
        values, among = found.topk(k, dim=-1)
        return values, best.gather(1, among // _BLOCK) * _BLOCK + among % _BLOCK
    places = (best[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)  # (R, k · 64)
    tail = torch.arange(whole, size, device=scores.device).expand(rows, -1)
    places = torch.cat([places, tail], dim=1)
    values, among = scores.gather(1, places).topk(k, dim=-1)
    return values, places.gather(1, among)
