"""Settings that exclude each other: one table of (A, B, reason, remedy), and the checks that do not fit into it.

`check` is run wherever a recipe is read. `check_trainable` is run before a training alone: a finished run that was
trained before one of its rules existed still loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sightline.recipe.data import Clean
from sightline.recipe.model import ModelConfig
from sightline.recipe.tasks import tasks
from sightline.recipe.tokenizer import WHOLE_WORDS, AnyTokenizer

if TYPE_CHECKING:
    from sightline.recipe.decoding import Decoding
    from sightline.recipe.recipe import Recipe

_SPECIALS = 4  # of every vocabulary: padding, unknown, start, end


def copies_words(model: ModelConfig, tokenizer: AnyTokenizer) -> bool:
    """Whether whole words that are in no vocabulary can be copied."""
    return bool(model.copying) and tokenizer.kind in WHOLE_WORDS


class Conflict(NamedTuple):
    """Two settings that exclude each other.

    A setting is a key (`training.rdrop`: it is set), a key with a value (`training.compile: true`) or a name of
    `CONDITIONS`. Reason and remedy may quote the recipe: `{recipe.task}`.
    """

    one: str
    other: str
    reason: str
    remedy: str = "leave one of them out"


CONDITIONS: dict[str, Callable[[Recipe], bool]] = {
    "a task without a source": lambda recipe: not recipe.task_spec.maps_text,
    "a task that writes no pairs": lambda recipe: not recipe.task_spec.maps_text or recipe.model.encoder is None,
    "a task that continues text": lambda recipe: recipe.task_spec.continues_text,
    "a task that reads plain text": lambda recipe: recipe.task_spec.plain_text,
    "a label for each word": lambda recipe: recipe.task_spec.labels == "words",
    "a task without labels": lambda recipe: recipe.task_spec.labels == "none",
    "a model without an encoder": lambda recipe: recipe.model.encoder is None,
    "a model without attention to a source": lambda recipe: not recipe.model.has_attention,
    "a model without Transformer layers": lambda recipe: not recipe.model.has_transformer_layers,
    "attention without a softmax": lambda recipe: (
        recipe.model.decoder is not None and recipe.model.decoder.attention_kind in ("linear", "unscaled-linear")
    ),
    "a decoder that follows the source": lambda recipe: (
        recipe.model.decoder is not None and recipe.model.decoder.follows_source
    ),
    "an encoder that only reads forwards": lambda recipe: (
        recipe.model.encoder is not None and not recipe.model.encoder.reads_backwards
    ),
    "whole words that are copied": lambda recipe: copies_words(recipe.model, recipe.tokenizer),
    "a tokenizer of word pieces": lambda recipe: recipe.tokenizer.kind not in WHOLE_WORDS,
    "separate vocabularies": lambda recipe: recipe.task_spec.maps_text and not recipe.tokenizer.shared,
    "data.noise of a seq2seq model": lambda recipe: recipe.task_spec.maps_text and recipe.data.noise is not None,
    "n-gram counts": lambda recipe: recipe.model.counted,
    "a carried state": lambda recipe: (
        recipe.task_spec.continues_text
        and recipe.model.decoder is not None
        and recipe.model.decoder.recurrent
        and recipe.training.batches.carry is not False
    ),
    "a model without dropout": lambda recipe: (
        not any(value for key, value in _settings(recipe.model.model_dump()) if key.endswith(("dropout", "noise")))
    ),
    "data.clean": lambda recipe: recipe.data.clean != Clean(),
    "the best loss as the result": lambda recipe: (
        recipe.training.stopping.monitor == "loss" and recipe.training.result == "best"
    ),
}

_LEAVE_OUT = "leave it out"

CONFLICTS = (  # checked wherever a recipe is read
    Conflict(
        "model.copying", "a task without a source", "it copies words of a source, and {spec} has none", _LEAVE_OUT
    ),
    Conflict(
        "model.copying",
        "a model without an encoder",
        "it looks at the states of an encoder; a decoder that reads the source itself can copy by its own attention",
        "leave it out, or add model.encoder",
    ),
    Conflict(
        "model.copying",
        "a model without attention to a source",
        "it is for decoders with attention, which choose the words to copy",
        "set another model.decoder, or leave it out",
    ),
    Conflict(
        "model.copying",
        "tokenizer.shared: false",
        "it writes the tokens it reads, so both sides need one vocabulary",
        "set tokenizer.shared: true",
    ),
    Conflict(
        "data.noise",
        "whole words that are copied",
        "copying with tokenizer.kind: {recipe.tokenizer.kind} numbers the unknown words of pairs, and noise "
        "makes pairs of ids",
        "use pieces of words (tokenizer.kind: bpe), or leave one of them out",
    ),
    Conflict(
        "decoding.replace_unknown",
        "whole words that are copied",
        "it has nothing to do where model.copying: true writes unknown words of the source itself",
        "set it to none",
    ),
    Conflict(
        "decoding.forbid",
        "whole words that are copied",
        "it looks for words of the vocabulary, and model.copying: true with whole words writes others too",
        "leave it out, or use pieces of words (tokenizer.kind: bpe)",
    ),
    Conflict(
        "decoding.replace_unknown",
        "a task without a source",
        "it needs task: seq2seq, whose outputs have source words to put in place of unknown ones",
        "set it to none",
    ),
    Conflict(
        "decoding.replace_unknown",
        "a tokenizer of word pieces",
        f"it replaces whole words, and needs tokenizer.kind: {' or '.join(WHOLE_WORDS)}, not {{recipe.task}} with "
        f"{{recipe.tokenizer.kind}}",
        "set it to none",
    ),
    Conflict(
        "decoding.replace_unknown",
        "a model without attention to a source",
        "it needs a decoder with attention to an encoder, which points at the word to copy",
        "set it to none",
    ),
    Conflict(
        "decoding.coverage_penalty",
        "a model without attention to a source",
        "it needs a decoder with attention to an encoder",
        "set it to 0",
    ),
    Conflict(
        "model.tie: all",
        "separate vocabularies",
        "one matrix for all embeddings needs one vocabulary",
        "set tokenizer.shared: true or model.tie: output",
    ),
    Conflict(
        "data.noise of a seq2seq model",
        "a model without an encoder",
        "restoring text needs a model with an encoder",
        "set model.encoder",
    ),
    Conflict(
        "data.noise of a seq2seq model",
        "a decoder that follows the source",
        "what is missing from the source has no place in it",
        "set another model.decoder.kind",
    ),
    Conflict("data.noise of a seq2seq model", "model.copying", "the source has marks in place of words to copy"),
    Conflict(
        "data.noise of a seq2seq model", "decoding.replace_unknown", "the source has marks in place of words to copy"
    ),
    Conflict(
        "data.noise",
        "tokenizer.shared: false",
        "a model that restores text reads and writes the same text",
        "set tokenizer.shared: true",
    ),
    Conflict(
        "data.clean.truncate_source",
        "a label for each word",
        "it would leave words without their tags",
        "leave it out for task: {recipe.task}",
    ),
    Conflict(
        "data.clean.truncate_source",
        "a task that reads plain text",
        "it cuts sources, and plain text has none",
        _LEAVE_OUT,
    ),
    Conflict("model.character_cnn", "a task without labels", "it is for classifiers and taggers", _LEAVE_OUT),
    Conflict(
        "model.pooling.kind: class",
        "an encoder that only reads forwards",
        "it looks at the state of the first token, which has seen no other",
        "set it to last, or model.encoder.bidirectional: true",
    ),
)

TRAINING_CONFLICTS = (  # checked before a training
    *(
        Conflict("model.copying", other, "copying has an objective of its own, over padded batches")
        for other in (
            "training.rdrop",
            "training.reward",
            "training.guided_alignment",
            "training.batches.layout: packed",
            "training.compile: true",
        )
    ),
    *(
        Conflict("training.guided_alignment", other, "the alignment loss needs one pass over pairs, not compiled")
        for other in ("training.rdrop", "training.reward", "training.compile: true", "data.noise")
    ),
    Conflict(
        "training.guided_alignment",
        "a task that writes no pairs",
        "it needs task: seq2seq and a model with an encoder",
        _LEAVE_OUT,
    ),
    Conflict(
        "training.guided_alignment",
        "a model without attention to a source",
        "it guides the attention of a decoder",
        "set another model.decoder.kind or attention.kind, or leave it out",
    ),
    Conflict(
        "training.guided_alignment",
        "attention without a softmax",
        "it needs attention weights that sum to one, and model.decoder.attention.kind is "
        "{recipe.model.decoder.attention_kind}",
        "change that, or leave it out",
    ),
    Conflict(
        "training.gradient_checkpointing",
        "a model without Transformer layers",
        "it is for Transformer layers, and this model has none",
        _LEAVE_OUT,
    ),
    Conflict("training.rdrop", "training.reward", "they are two objectives"),
    Conflict(
        "training.rdrop",
        "a carried state",
        "it reads every window twice, and this model continues from the state of the window before",
        "set training.batches.carry: false",
    ),
    Conflict(
        "training.rdrop",
        "a model without dropout",
        "it makes two passes with different dropout agree, and without any they are the same twice",
        "set dropout in the model, or leave training.rdrop out",
    ),
    Conflict("training.reward", "training.compile: true", "its steps are not compiled", "leave training.compile out"),
    Conflict(
        "training.reward",
        "a task that writes no pairs",
        "it needs task: seq2seq and a model with an encoder",
        _LEAVE_OUT,
    ),
    Conflict(
        "training.reward",
        "training.batches.layout: packed",
        "it samples from padded batches",
        "leave training.batches.layout out",
    ),
    Conflict(
        "training.reward",
        "the best loss as the result",
        "it does not lower the loss, so the best loss is not the best model",
        "set training.stopping.monitor: reward (or metric), or training.result: last",
    ),
    Conflict("training.reward", "data.noise", "a model that restores text is trained by likelihood", _LEAVE_OUT),
    Conflict(
        "data.clean",
        "a task that reads plain text",
        "data.clean is for pairs of texts, and {spec} has none",
        _LEAVE_OUT,
    ),
    Conflict(
        "tokenizer.shared: false",
        "a task that continues text",
        "it is for two vocabularies, and task: {recipe.task} has one text",
        _LEAVE_OUT,
    ),
    Conflict("model.word_vectors", "n-gram counts", "model.decoder.kind: ngram has no embeddings", _LEAVE_OUT),
)


def check(recipe: Recipe) -> None:
    """Refuse a recipe whose settings exclude each other."""
    _check_noise(recipe)
    _refuse(recipe, CONFLICTS)


def check_decoding(recipe: Recipe, options: Decoding) -> None:
    """The same for other decoding options than those of the recipe."""
    changed = recipe.model_copy(update={"decoding": options})
    _refuse(changed, [each for each in CONFLICTS if each.one.startswith("decoding.")])


def check_copied_words(replace_unknown: str, forbid: Sequence[str]) -> None:
    """Refuse decoding options about words of the vocabulary for a model that copies words that are in none."""
    for key, value in (("decoding.replace_unknown", replace_unknown), ("decoding.forbid", forbid)):
        if value and value != "none":
            conflict = next(each for each in CONFLICTS if each[:2] == (key, "whole words that are copied"))
            raise ValueError(_message(_quoted(key, value), *conflict[1:]))


def check_trainable(recipe: Recipe) -> None:
    """Refuse what cannot be trained, and keys without effect."""
    _refuse(recipe, TRAINING_CONFLICTS)
    if recipe.training.stopping.monitor == "reward" and recipe.training.reward is None:
        raise ValueError(
            "training.stopping.monitor: reward needs training.reward; add that section, or set monitor: loss"
        )
    if recipe.data.noise is not None and recipe.training.batches.context < 8:
        raise ValueError(
            f"training.batches.context ({recipe.training.batches.context}) leaves too little text to corrupt; raise it "
            f"to 8 or more"
        )
    _check_guided_head(recipe)
    _check_sources(recipe)
    _check_positions(recipe)
    _check_gates(recipe)


# --- the table --------------------------------------------------------------------------------------------------------


def _refuse(recipe: Recipe, conflicts: Sequence[Conflict]) -> None:
    for conflict in conflicts:
        if _holds(conflict.one, recipe) and _holds(conflict.other, recipe):
            names = _named(conflict.one, recipe), _named(conflict.other, recipe)
            texts = (text.format(recipe=recipe, spec=recipe.task_spec) for text in (conflict.reason, conflict.remedy))
            raise ValueError(_message(*names, *texts))


def _message(one: str, other: str, reason: str, remedy: str) -> str:
    return f"{one} cannot be combined with {other}: {reason}; {remedy}"


def _holds(setting: str, recipe: Recipe) -> bool:
    if setting in CONDITIONS:
        return CONDITIONS[setting](recipe)
    key, _, value = setting.partition(": ")
    return _text(_value(recipe, key)) == value if value else _value(recipe, key) not in (None, False, "none", (), 0)


def _named(setting: str, recipe: Recipe) -> str:
    """A setting for an error, with its value where that is short."""
    if setting in CONDITIONS or ": " in setting:
        return setting
    return _quoted(setting, _value(recipe, setting))


def _quoted(key: str, value: Any) -> str:
    """A key with its value, or with the first one of a list."""
    if isinstance(value, str | int | float):
        return f"{key}: {_text(value)}"
    return f"{key} ({value[0]!r})" if isinstance(value, tuple | list) else key


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section and of those within it, with their values."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield key, value


# --- checks of values -------------------------------------------------------------------------------------------------


def _check_noise(recipe: Recipe) -> None:
    """Whether the task learns to undo this noise, and the vocabulary has room for its marks."""
    noise, spec = recipe.data.noise, recipe.task_spec
    if noise is None:
        if spec.noise:
            raise ValueError(f"{spec} learns to undo noise; add data.noise: {{kind: {spec.noise[0]}}}")
        return
    if noise.kind not in spec.noise:
        fits = next((each.name for each in tasks().values() if noise.kind in each.noise), None)
        fits = f"is for task: {fits}, not" if fits else "is not for task:"
        raise ValueError(f"data.noise.kind: {noise.kind} {fits} {recipe.task}; change one of them")
    size, marks = recipe.tokenizer.size, len(noise.marks)
    if size <= _SPECIALS + marks:  # one mark fits into every size; many do not
        raise ValueError(
            f"tokenizer.size ({size}) has no room for text beside data.noise.sentinels ({marks}) and {_SPECIALS} "
            f"specials; raise it, or lower data.noise.sentinels"
        )


def _check_guided_head(recipe: Recipe) -> None:
    """Whether the guided head exists."""
    guide, decoder = recipe.training.guided_alignment, recipe.model.decoder
    if guide is None or decoder is None:
        return
    layers, heads = decoder.attention_layers, decoder.attention_heads
    for key, value, count in (("layer", guide.place(layers), layers), ("head", guide.head, heads)):
        if value >= count:
            raise ValueError(
                f"training.guided_alignment.{key} is {value}, and there are {count}, counted from 0; lower it"
            )


def _check_sources(recipe: Recipe) -> None:
    """Whether sources have pairs where pairs are learned from, and no options for pairs where they have none."""
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
    weights = [source.weight for source in data.train]
    if recipe.model.counted and any(weight != 1.0 for weight in weights):
        raise ValueError(
            f"weights ({', '.join(map(str, weights))}) of data.train: model.decoder.kind: ngram counts every text "
            f"once; leave the weights out"
        )


def _check_positions(recipe: Recipe) -> None:
    """Whether learned positions reach as far as the longest sequence of the training."""
    longest, what = recipe.longest_sequence()
    for side, body in recipe.model.bodies.items():
        if body.max_positions is not None and body.max_positions < longest:
            raise ValueError(
                f"model.{side}.positions.max_positions ({body.max_positions}) is less than {what} ({longest}); raise "
                f"it, or lower that"
            )


def _check_gates(recipe: Recipe) -> None:
    """Whether the gates of experts have a gradient: from their weights, or from the loss on their load."""
    for side, body in recipe.model.bodies.items():
        if body.mixture is not None and body.mixture.top_k == 1 and not body.mixture.load:
            raise ValueError(
                f"model.{side}: with experts.top_k: 1 and experts.load: 0 nothing teaches the gates, since one expert "
                f"always has all of a token; raise experts.top_k, or experts.load (with experts.noise: true)"
            )
