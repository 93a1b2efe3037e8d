"""Who answers for the model of each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sightline.data.target_lengths import TargetLengths
from sightline.recipe import Recipe
from sightline.tasks.answerer import Answerer
from sightline.tasks.continuing import Continuer
from sightline.tasks.filling import Filling
from sightline.tasks.labelling import Classifying, Tagging
from sightline.tasks.restoring import Restorer
from sightline.tasks.translating import Translator
from sightline.text.tokenizer import Vocabulary

ANSWERERS: dict[str, type[Answerer]] = {
    "seq2seq": Translator,
    "language-model": Continuer,
    "masked-words": Filling,
    "classify": Classifying,
    "tag": Tagging,
}


def build_answerer(
    recipe: Recipe,
    vocabulary: Vocabulary,
    model: Any,
    device: torch.device,
    dictionary: Mapping[str, str] | None = None,
    lengths: TargetLengths | None = None,
) -> Answerer:
    """Who answers for a model."""
    mends = recipe.task_spec.maps_text and recipe.task_spec.plain_text
    who = Restorer if mends else ANSWERERS[recipe.task]
    return who(recipe, vocabulary, model, device, dictionary, lengths=lengths)
