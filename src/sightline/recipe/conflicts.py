"""Combinations of keys that exclude each other, and keys without effect.

The rules of one section are checked wherever a recipe is read. `check_trainable` is called before a training alone: a
run that was trained before one of its rules existed still loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.recipe.data import WHOLE_WORDS, AnyTokenizer, Clean, Data
from sightline.recipe.model import ModelConfig
from sightline.recipe.tasks import TaskSpec, tasks

if TYPE_CHECKING:
    from sightline.recipe.recipe import Recipe
    from sightline.recipe.training import GuidedAlignment

_COPY = "model.copying: true"
_GUIDE = "training.guided_alignment"


def copies_words(model: ModelConfig, tokenizer: AnyTokenizer) -> bool:
    """Whether whole words can be copied that are in no vocabulary."""
    return bool(model.copying) and tokenizer.kind in WHOLE_WORDS


def check_copying(task: TaskSpec, data: Data, tokenizer: AnyTokenizer, model: ModelConfig) -> None:
    """Refuse to copy where there is nothing to copy from."""
    if not model.copying:
        return
    if not task.maps_text:
        raise ValueError(f"{_COPY} copies words of a source, and {task} writes from none; leave it out")
    if model.encoder is None:
        raise ValueError(
            f"{_COPY} looks at the states of an encoder, and this model has none: a decoder that reads the source "
            f"itself can copy by its own attention; leave it out, or add model.encoder"
        )
    if not model.has_attention:
        raise ValueError(f"{_COPY} is for decoders with attention to the source; give it one, or leave it out")
    if not tokenizer.shared:
        raise ValueError(
            f"{_COPY} writes the tokens it reads, so both sides need one vocabulary: tokenizer.shared: true"
        )
    if data.noise is not None and copies_words(model, tokenizer):
        raise ValueError(
            f"{_COPY} with tokenizer.kind: {tokenizer.kind} numbers the unknown words of pairs, and data.noise makes "
            f"pairs of ids; take pieces of words (tokenizer.kind: bpe), or leave one out"
        )


def check_rivals_of_copying(rivals: Mapping[str, object]) -> None:
    """Refuse what copying cannot be trained beside, by key, where it is set: other objectives, unpadded batches."""
    for key, value in rivals.items():
        if value:
            raise ValueError(
                f"{_COPY} has an objective of its own, over padded batches, and cannot be had with {key}; leave one out"
            )


def check_copied_words(replace_unknown: str, forbid: Sequence[str]) -> None:
    """Refuse to search for what knows nothing of words outside the vocabulary, where those are copied."""
    if replace_unknown != "none":
        raise ValueError(
            f"decoding.replace_unknown: {replace_unknown} has nothing to do where {_COPY} writes unknown words of the "
            f"source itself; set it to none"
        )
    if forbid:
        raise ValueError(
            f"decoding.forbid ({forbid[0]!r}) looks for words of the vocabulary, and {_COPY} with whole words "
            f"(tokenizer.kind: word or whitespace) writes others too; leave it out, or cut words into pieces "
            f"(tokenizer.kind: bpe)"
        )


def check_guiding(
    guide: GuidedAlignment | None, task: TaskSpec, model: ModelConfig, rivals: Mapping[str, object]
) -> None:
    """Refuse to guide what is not there, or beside what it cannot be had with: `rivals`, by key, where they are set."""
    if guide is None:
        return
    decoder = model.decoder
    if not task.maps_text or model.encoder is None:
        raise ValueError(f"{_GUIDE} needs task: seq2seq and a model with an encoder; leave it out")
    for key, value in rivals.items():
        if value:
            raise ValueError(f"{_GUIDE} cannot be had with {key}; leave one of them out")
    if decoder is None or (not decoder.attention_layers and not decoder.recurrent):
        raise ValueError(
            f"{_GUIDE} needs a decoder with attention, and {decoder.kind if decoder else 'none'} has none; set "
            f"another model.decoder.kind, or leave it out"
        )
    if decoder.attention_kind in ("none", "linear", "unscaled-linear"):
        raise ValueError(
            f"{_GUIDE} needs attention whose weights are shares of one, and model.decoder.attention.kind is "
            f"{decoder.attention_kind}; change that, or leave it out"
        )
    layers, heads = decoder.attention_layers, decoder.attention_heads
    for key, value, count in (("layer", guide.place(layers), layers), ("head", guide.head, heads)):
        if value >= count:
            raise ValueError(f"{_GUIDE}.{key} is {value}, and there are {count}, counted from 0; lower it")


_SPECIALS = 4  # of every vocabulary: padding, unknown, start, end


def check_noise(recipe: Recipe) -> None:
    """Refuse noise that does not fit the task, the tokenizer or the model."""
    noise, spec = recipe.data.noise, recipe.task_spec
    if noise is None:
        if spec.noise:
            raise ValueError(f"{spec} learns to undo noise; add data.noise: {{kind: {spec.noise[0]}}}")
        return
    what = f"data.noise.kind: {noise.kind}"
    if noise.kind not in spec.noise:
        fits = next(each.name for each in tasks().values() if noise.kind in each.noise)
        raise ValueError(f"{what} is for task: {fits}, not {recipe.task}; change one of them")
    if not recipe.tokenizer.shared:
        raise ValueError(f"{what} reads and writes the same text; set tokenizer.shared: true")
    size, marks = recipe.tokenizer.size, len(noise.marks)
    if size <= _SPECIALS + marks:  # one mark fits into every size; many do not
        raise ValueError(
            f"tokenizer.size ({size}) has no room for text beside data.noise.sentinels ({marks}) and {_SPECIALS} "
            f"specials; raise it, or lower data.noise.sentinels"
        )
    if spec.maps_text:
        _check_parts(recipe, what)


def check_windows(recipe: Recipe) -> None:
    """Refuse trainings that are not of windows of text, where those are learned from."""
    noise, context = recipe.data.noise, recipe.training.batches.context
    what = str(recipe.task_spec) if noise is None else f"data.noise.kind: {noise.kind}"
    if recipe.data.clean != Clean():
        raise ValueError(f"data.clean is for pairs of texts, and {what} has none; leave it out")
    if noise is None:
        return
    if recipe.training.reward is not None:
        raise ValueError(f"{what} is learned by likelihood; leave training.reward out")
    if context < 8:
        raise ValueError(f"training.batches.context ({context}) leaves too little text to spoil; raise it to 8 or more")


def _check_parts(recipe: Recipe, what: str) -> None:
    """Of a model that mends text."""
    model = recipe.model
    if model.encoder is None or (model.decoder is not None and model.decoder.follows_source):
        raise ValueError(
            f"{what} needs a model with an encoder, and a decoder that is not ByteNet's; set model.encoder, and "
            f"model.decoder.kind to another"
        )
    if recipe.decoding.replace_unknown != "none" or model.copying:
        key = "model.copying" if model.copying else "decoding.replace_unknown"
        raise ValueError(f"{what} has marks where words to copy would be; leave {key} out")


def check_sides(recipe: Recipe) -> None:
    """Refuse text without pairs where pairs are learned from, and what is said of two sides where there is one."""
    data = recipe.data
    named = {f"data.train.{number}": source for number, source in enumerate(data.train)}
    named |= {"data.validation": data.validation, **{f"data.tests.{name}": each for name, each in data.tests.items()}}
    for key, source in named.items():
        if not source.one_sided:
            continue
        if not recipe.of_text:
            raise ValueError(
                f"{key}.kind: {source.kind} is text without a source side, and {recipe.task_spec} learns from pairs; "
                f"use text, tsv or jsonl, or task: language-model"
            )
        if data.swap:
            raise ValueError(f"data.swap: true has no sides to exchange in {key}, of kind: {source.kind}; leave it out")
        if source.share is not None:
            raise ValueError(
                f"{key}.share goes by a hash of the source side, and kind: {source.kind} has none, so all or nothing "
                f"would be kept; take a part of the text by {key}.part"
            )
    if recipe.task_spec.continues_text and not recipe.tokenizer.shared:
        raise ValueError(
            "tokenizer.shared: false is of two vocabularies, and task: language-model has one text; leave it out"
        )
    if recipe.model.counted:
        _check_counting(recipe)


def _check_counting(recipe: Recipe) -> None:
    """An n-gram model has no embeddings, and sees every text once."""
    if recipe.model.word_vectors is not None:
        raise ValueError("model.word_vectors: model.decoder.kind: ngram has no embeddings to begin with; leave it out")
    weights = [source.weight for source in recipe.data.train]
    if any(weight != 1.0 for weight in weights):
        raise ValueError(
            f"weights ({', '.join(map(str, weights))}) of data.train: model.decoder.kind: ngram counts every text "
            f"once; leave the weights out"
        )


def check_trainable(recipe: Recipe) -> None:
    """Refuse what cannot be learned, or not as the data and training sections want it; keys without effect too.

    What a model is and what can be asked of it is checked wherever a recipe is read (recipe.py). This is not: a run
    that was trained before one of these checks was there is as good as ever.
    """
    if recipe.model.copying:
        check_rivals_of_copying(_rivals_of_copying(recipe))
    check_guiding(recipe.training.guided_alignment, recipe.task_spec, recipe.model, _rivals_of_guiding(recipe))
    _check_additions(recipe)
    if recipe.of_text:
        check_windows(recipe)
    check_sides(recipe)
    _check_positions(recipe)
    _check_gates(recipe)


def _rivals_of_copying(recipe: Recipe) -> dict[str, object]:
    """What a training cannot have with model.copying, by key, where it is set."""
    training = recipe.training
    return {
        "training.rdrop": training.rdrop is not None,
        "training.reward": training.reward,
        "training.guided_alignment": training.guided_alignment,
        "training.batches.layout: packed": training.batches.layout == "packed",
        "training.compile: true": training.compile,
    }


def _rivals_of_guiding(recipe: Recipe) -> dict[str, object]:
    """What cannot be had beside guided alignment: other objectives, other words, a compiled step."""
    training = recipe.training
    return {
        "training.rdrop": training.rdrop is not None,
        "training.reward": training.reward is not None,
        "training.compile: true": training.compile,
        "model.copying: true": recipe.model.copying,
        "data.noise": recipe.data.noise is not None,
    }


def _check_additions(recipe: Recipe) -> None:
    """Whether what is beyond the likelihood of a training, or beside it, can do its work here."""
    training = recipe.training
    if training.stopping.monitor == "reward" and training.reward is None:
        raise ValueError("training.stopping.monitor: reward needs training.reward; add that section, or stop on loss")
    if training.gradient_checkpointing and not recipe.model.has_transformer_layers:
        raise ValueError(
            "training.gradient_checkpointing: true is for Transformer layers, and this model has none; leave it out"
        )
    if training.reward is not None:
        _check_reward(recipe)
    elif training.rdrop is not None:
        _check_rdrop(recipe)


def _check_rdrop(recipe: Recipe) -> None:
    decoder = recipe.model.decoder
    carried = recipe.task_spec.continues_text and decoder is not None and decoder.recurrent
    if carried and recipe.training.batches.carry is not False:
        raise ValueError(
            "training.rdrop reads every window twice, and this model goes on from the state of the window "
            "before; set training.batches.carry: false"
        )
    if not any(value for key, value in _settings(recipe.model.model_dump()) if key.endswith(("dropout", "noise"))):
        raise ValueError(
            "training.rdrop makes two passes with different dropout agree, and without any they are the same "
            "twice; set dropout in the model, or leave training.rdrop out"
        )


def _check_reward(recipe: Recipe) -> None:
    training = recipe.training
    if training.compile:
        raise ValueError(
            "training.compile: true cannot be had with training.reward, whose steps are not compiled; leave it"
        )
    if training.rdrop is not None:
        raise ValueError("training.rdrop and training.reward are two objectives; leave one of them out")
    if not recipe.task_spec.maps_text or recipe.model.encoder is None:
        raise ValueError("training.reward needs task: seq2seq and a model with an encoder; leave it out")
    if training.batches.layout == "packed":
        raise ValueError("training.reward draws from padded batches; leave training.batches.layout out")
    if training.stopping.monitor == "loss" and training.result == "best":
        raise ValueError(
            "training.reward does not lower the loss, so the best loss is not the best model; set "
            "training.stopping.monitor: reward (or metric), or training.result: last"
        )


def _check_positions(recipe: Recipe) -> None:
    """Whether learned positions reach as far as the longest sequence of the training."""
    longest, what = recipe.longest_sequence()
    for side, body in recipe.model.bodies.items():
        places = body.max_positions
        if places is not None and places < longest:
            raise ValueError(
                f"model.{side}.positions.max_positions ({places}) is less than {what} ({longest}); raise it, or "
                f"lower that"
            )


def _check_gates(recipe: Recipe) -> None:
    """Whether anything teaches the gates of experts: their shares of a token, or the loss on their load."""
    for side, body in recipe.model.bodies.items():
        experts = body.mixture
        if experts is not None and experts.top_k == 1 and not experts.load:
            raise ValueError(
                f"model.{side}: with experts.top_k: 1 and experts.load: 0 nothing teaches the gates, since one expert "
                f"always has all of a token; raise experts.top_k, or experts.load (with experts.noise: true)"
            )


def _settings(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section and of those within it, with their values."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield key, value
