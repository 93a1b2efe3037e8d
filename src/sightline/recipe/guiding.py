"""Training one attention head towards given word alignments: what a recipe says of it, and whether it can be done."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from sightline.recipe.bodies import ConvolutionalBody, RecurrentDecoder, TransformerBody
from sightline.recipe.model import Model
from sightline.recipe.sections import Section
from sightline.recipe.tasks import TaskSpec

_WHAT = "training.guided_alignment"


class GuidedAlignment(Section):
    """Loss = cross entropy of the words + weight · cross entropy of one head's attention (Garg et al. 2019, §4.2).

    The file has a line for each example of data.train in the order they are read, before cleaning: `0-0 1-2`, source
    word and target word from 0, words being what stands between spaces. `sightline align RUN --training --out FILE`
    writes one from a run that is there.
    """

    file: str = Field(description="word alignments in Pharaoh format; relative names start at data.folder")
    weight: float = Field(0.05, gt=0, description="of the alignment loss beside that of the words")
    layer: int | None = Field(None, ge=0, description="of the decoder, from 0; by default the last but one")
    head: int = Field(0, ge=0, description="of that layer, from 0; recurrent and convolutional decoders have one")
    shift: bool = Field(
        False, description="guide a word's attention where it is read, a step after it is written (Chen et al. 2020)"
    )

    def place(self, layers: int) -> int:
        """The layer whose head is guided, of so many that look at the source."""
        return max(layers - 2, 0) if self.layer is None else self.layer


def check_guiding(guide: GuidedAlignment | None, task: TaskSpec, model: Model, rivals: Mapping[str, object]) -> None:
    """Refuse to guide what is not there, or beside what it cannot be had with: `rivals`, by key, where they are set."""
    if guide is None:
        return
    decoder = model.decoder
    if not task.maps_text or model.encoder is None:
        raise ValueError(f"{_WHAT} needs task: seq2seq and a model with an encoder; leave it out")
    for key, value in rivals.items():
        if value:
            raise ValueError(f"{_WHAT} cannot be had with {key}; leave one of them out")
    if not isinstance(decoder, TransformerBody | RecurrentDecoder | ConvolutionalBody):
        raise ValueError(
            f"{_WHAT} needs a decoder with attention, and {decoder.kind if decoder else 'none'} has none; set "
            f"another model.decoder.kind, or leave it out"
        )
    if not isinstance(decoder, ConvolutionalBody) and decoder.attention.kind in ("none", "linear"):
        raise ValueError(
            f"{_WHAT} needs attention whose weights are shares of one, and model.decoder.attention.kind is "
            f"{decoder.attention.kind}; change that, or leave it out"
        )
    layers = 1 if isinstance(decoder, RecurrentDecoder) else decoder.layers
    heads = decoder.heads if isinstance(decoder, TransformerBody) else 1
    for key, value, count in (("layer", guide.place(layers), layers), ("head", guide.head, heads)):
        if value >= count:
            raise ValueError(f"{_WHAT}.{key} is {value}, and there are {count}, counted from 0; lower it")
