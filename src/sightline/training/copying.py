"""What training minimizes where words may be copied: −log of the mixture, without ever holding all of it.

    loss = −(1 − ε) log p(y) − ε/V Σ_v log P_vocab(v),  p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{s : x_s = y} a_s

(See et al. 2017, eq. 9.) So label smoothing evens out what is written, never what is copied. In float32.
"""

from __future__ import annotations

from sightline.data.batches import TrainingBatch
from sightline.layers.copying import mixed_log_probability
from sightline.layers.linear import linear
from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.text.tokenizer import PAD
from sightline.training.objectives import Loss


def copying_loss(model: CopyingSeq2Seq, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of a padded batch, summed over its real target tokens."""
    assert batch.source is not None and batch.source_layout is not None and batch.given is not None
    state = model.begin(model.encode(batch.source, batch.source_layout))
    features, copies, _ = model.look(batch.given, state, batch.target_layout)
    real = batch.wanted != PAD  # (B, T)
    wanted, gate = batch.wanted[real], copies.gate[real]  # (R,)
    here = copies.tokens[:, None] == batch.wanted[..., None]  # (B, T, S) where each wanted word stands in the source
    copied = (copies.weights * here).sum(-1)[real]
    scores = linear(features[real], model.output.weight, model.output.bias).float()  # (R, V)
    whole = scores.logsumexp(-1)
    written = scores.gather(1, wanted.clamp(max=model.size - 1)[:, None])[:, 0] - whole
    nll = -mixed_log_probability(written, gate, copied, model.size, wanted).sum()
    if smoothing == 0:
        return Loss(nll, nll.detach())
    uniform = (whole - scores.mean(-1)).sum()
    return Loss((1 - smoothing) * nll + smoothing * uniform, nll.detach())
