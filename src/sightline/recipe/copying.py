"""Whether a recipe that copies from its sources can do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sightline.recipe.bodies import ByteNetBody, RecurrentDecoder, WindowBody
from sightline.recipe.data import WHOLE_WORDS, AnyTokenizer, Data
from sightline.recipe.model import Model
from sightline.recipe.tasks import TaskSpec

_WHAT = "model.copying: true"


def copies_words(model: Model, tokenizer: AnyTokenizer) -> bool:
    """Whether whole words can be copied that are in no vocabulary."""
    return bool(model.copying) and tokenizer.kind in WHOLE_WORDS


def check_copying(task: TaskSpec, data: Data, tokenizer: AnyTokenizer, model: Model) -> None:
    """Refuse to copy where there is nothing to copy from."""
    if not model.copying:
        return
    decoder = model.decoder
    if not task.maps_text:
        raise ValueError(f"{_WHAT} copies words of a source, and {task} writes from none; leave it out")
    if model.encoder is None:
        raise ValueError(
            f"{_WHAT} looks at the states of an encoder, and this model has none: a decoder that reads the source "
            f"itself can copy by its own attention; leave it out, or add model.encoder"
        )
    blind = isinstance(decoder, RecurrentDecoder) and decoder.attention.kind == "none"
    if blind or isinstance(decoder, ByteNetBody | WindowBody):
        raise ValueError(f"{_WHAT} is for decoders with attention to the source; give it one, or leave it out")
    if not tokenizer.shared:
        raise ValueError(
            f"{_WHAT} writes the tokens it reads, so both sides need one vocabulary: tokenizer.shared: true"
        )
    if data.noise is not None and copies_words(model, tokenizer):
        raise ValueError(
            f"{_WHAT} with tokenizer.kind: {tokenizer.kind} numbers the unknown words of pairs, and data.noise makes "
            f"pairs of ids; take pieces of words (tokenizer.kind: bpe), or leave one out"
        )


def check_rivals_of_copying(rivals: Mapping[str, object]) -> None:
    """Refuse what copying cannot be trained beside, by key, where it is set: other objectives, unpadded batches."""
    for key, value in rivals.items():
        if value:
            raise ValueError(
                f"{_WHAT} has an objective of its own, over padded batches, and cannot be had with {key}; leave one out"
            )


def check_copied_words(replace_unknown: str, forbid: Sequence[str]) -> None:
    """Refuse to search for what knows nothing of words outside the vocabulary, where those are copied."""
    if replace_unknown != "none":
        raise ValueError(
            f"decoding.replace_unknown: {replace_unknown} has nothing to do where {_WHAT} writes unknown words of the "
            f"source itself; set it to none"
        )
    if forbid:
        raise ValueError(
            f"decoding.forbid ({forbid[0]!r}) looks for words of the vocabulary, and {_WHAT} with whole words "
            f"(tokenizer.kind: word or whitespace) writes others too; leave it out, or cut words into pieces "
            f"(tokenizer.kind: bpe)"
        )
