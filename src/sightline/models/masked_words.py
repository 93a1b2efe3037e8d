"""An encoder that guesses hidden words: what a tagger's or a translator's encoder can begin with."""

from __future__ import annotations

from torch import Tensor

from sightline.layers.embedding import Embedding, Output
from sightline.layers.layout import Layout
from sightline.models.bodies import ENCODERS
from sightline.models.ends import Reading
from sightline.recipe.model import Model


class MaskedWords(Reading):
    """p(token | the text around it) at some places: softmax(W h_t + b) (Devlin et al. 2019).

    Its parts have the names they have in taggers, classifiers and translators.
    """

    def __init__(self, recipe: Model, size: int) -> None:
        super().__init__()
        assert recipe.encoder is not None
        self.source_embedding = Embedding(size, recipe.width)
        self.encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, recipe.width)
        self.output = Output(size, recipe.width, None if recipe.tie == "none" else self.source_embedding)

    def forward(
        self, source: Tensor, layout: Layout, places: Tensor | None = None, target_layout: None = None
    ) -> Tensor:
        """Tokens (B, S) or (N,) → features (…, D); with places (A,) among all tokens of the batch, of those (A, D)."""
        states = self.encode(source, layout).states
        return states if places is None else states.reshape(-1, states.shape[-1]).index_select(0, places)
