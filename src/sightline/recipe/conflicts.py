"""Settings that exclude each other: one table of (A, B, reason, remedy). Checks of values are in checks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sightline.recipe.data import Clean
from sightline.recipe.model import ModelConfig
from sightline.recipe.tokenizer import WHOLE_WORDS, AnyTokenizer

if TYPE_CHECKING:
    from sightline.recipe.decoding import Decoding
    from sightline.recipe.recipe import Recipe


def copies_words(model: ModelConfig, tokenizer: AnyTokenizer) -> bool:
    """True if the model can copy whole words that are not in the vocabulary."""
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
    "a task that cuts text into windows": lambda recipe: recipe.task_spec.cuts_windows,
    "another task than language-model": lambda recipe: not recipe.task_spec.by_sentence,
    "a whole file as one document": lambda recipe: any(
        getattr(source, "document", "line") == "file" for source in (*recipe.data.train, recipe.data.validation)
    ),
    "a label for each word": lambda recipe: recipe.task_spec.labels == "words",
    "several labels for each text": lambda recipe: recipe.task_spec.labels == "several",
    "a task without labels": lambda recipe: recipe.task_spec.labels == "none",
    "a model without an encoder": lambda recipe: recipe.model.encoder is None,
    "a model without attention to a source": lambda recipe: not recipe.model.has_attention,
    "a model without Transformer layers": lambda recipe: not recipe.model.has_transformer_layers,
    "attention without a softmax": lambda recipe: (
        recipe.model.decoder is not None and recipe.model.decoder.attention_kind in ("unnormalized", "unnormalized-dot")
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
    "a masked language model with narrower token embeddings": lambda recipe: (
        recipe.task_spec.fills_gaps and recipe.model.embedding_width_of("encoder") != recipe.model.width_of("encoder")
    ),
    "n-gram counts": lambda recipe: recipe.model.counted,
    "a loss of its own": lambda recipe: recipe.training.loss.kind != "cross-entropy",
    "a carried state": lambda recipe: (
        recipe.task_spec.continues_text
        and not recipe.task_spec.by_sentence
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


def _table(rules: dict[str, list[tuple[str, ...]]]) -> list[Conflict]:
    return [Conflict(one, *rule) for one, several in rules.items() for rule in several]


# Checked wherever a recipe is read: A: [(B, reason, remedy), ...]
CONFLICTS = _table(
    {
        "model.copying": [
            ("a task without a source", "it copies words of a source, and {spec} has none", _LEAVE_OUT),
            (
                "a model without an encoder",
                "it looks at the states of an encoder; a decoder that reads the source itself can copy by its own "
                "attention",
                "leave it out, or add model.encoder",
            ),
            (
                "a model without attention to a source",
                "it is for decoders with attention, which choose the words to copy",
                "set another model.decoder, or leave it out",
            ),
            (
                "tokenizer.shared: false",
                "it writes the tokens it reads, so both sides need one vocabulary",
                "set tokenizer.shared: true",
            ),
        ],
        "data.context: sentence": [
            (
                "another task than language-model",
                "it makes each line of plain text an example, and {spec} learns from others",
                _LEAVE_OUT,
            ),
        ],
        "data.noise": [
            (
                "whole words that are copied",
                "copying with tokenizer.kind: {recipe.tokenizer.kind} numbers the unknown words of pairs, and noise "
                "makes pairs of ids",
                "use pieces of words (tokenizer.kind: bpe), or leave one of them out",
            ),
            (
                "tokenizer.shared: false",
                "a model that restores text reads and writes the same text",
                "set tokenizer.shared: true",
            ),
        ],
        "decoding.replace_unknown": [
            (
                "whole words that are copied",
                "it has nothing to do where model.copying: true writes unknown words of the source itself",
                "set it to none",
            ),
            (
                "a task without a source",
                "it needs task: seq2seq, whose outputs have source words to put in place of unknown ones",
                "set it to none",
            ),
            (
                "a tokenizer of word pieces",
                "it replaces whole words, and needs tokenizer.kind: word or whitespace, not {recipe.task} with "
                "{recipe.tokenizer.kind}",
                "set it to none",
            ),
            (
                "a model without attention to a source",
                "it needs a decoder with attention to an encoder, which points at the word to copy",
                "set it to none",
            ),
        ],
        "decoding.forbid": [
            (
                "whole words that are copied",
                "it looks for words of the vocabulary, and model.copying: true with whole words writes others too",
                "leave it out, or use pieces of words (tokenizer.kind: bpe)",
            ),
        ],
        "decoding.coverage_penalty": [
            ("a model without attention to a source", "it needs a decoder with attention to an encoder", "set it to 0"),
        ],
        "model.tie: all": [
            (
                "separate vocabularies",
                "one matrix for all embeddings needs one vocabulary",
                "set tokenizer.shared: true or model.tie: output",
            ),
        ],
        "model.tie": [
            (
                "a masked language model with narrower token embeddings",
                "the output layer would be the token embeddings, which model.encoder.positions.project: false makes "
                "narrower than the states",
                "set model.tie: none",
            ),
        ],
        "data.noise of a seq2seq model": [
            ("a model without an encoder", "restoring text needs a model with an encoder", "set model.encoder"),
            (
                "a decoder that follows the source",
                "what is missing from the source has no place in it",
                "set another model.decoder.kind",
            ),
            ("model.copying", "the source has marks in place of words to copy"),
            ("decoding.replace_unknown", "the source has marks in place of words to copy"),
        ],
        "data.clean.truncate_source": [
            (
                "a label for each word",
                "it would leave words without their tags",
                "leave it out for task: {recipe.task}",
            ),
            ("a task that reads plain text", "it cuts sources, and plain text has none", _LEAVE_OUT),
        ],
        "model.character_cnn": [
            ("a task without labels", "it is for classifiers and taggers", _LEAVE_OUT),
        ],
        "model.pooling.kind: class": [
            (
                "an encoder that only reads forwards",
                "it looks at the state of the first token, which has seen no other",
                "set it to last, or model.encoder.bidirectional: true",
            ),
        ],
    }
)

# Checked before a training
TRAINING_CONFLICTS = _table(
    {
        "model.copying": [
            ("training.rdrop", "copying has an objective of its own, over padded batches"),
            ("training.reward", "copying has an objective of its own, over padded batches"),
            ("training.guided_alignment", "copying has an objective of its own, over padded batches"),
            ("training.batches.layout: packed", "copying has an objective of its own, over padded batches"),
            ("training.compile: true", "copying has an objective of its own, over padded batches"),
        ],
        "training.guided_alignment": [
            ("training.rdrop", "the alignment loss needs one pass over pairs, not compiled"),
            ("training.reward", "the alignment loss needs one pass over pairs, not compiled"),
            ("training.compile: true", "the alignment loss needs one pass over pairs, not compiled"),
            ("data.noise", "the alignment loss needs one pass over pairs, not compiled"),
            ("a task that writes no pairs", "it needs task: seq2seq and a model with an encoder", _LEAVE_OUT),
            (
                "a model without attention to a source",
                "it guides the attention of a decoder",
                "set another model.decoder.kind or attention.kind, or leave it out",
            ),
            (
                "attention without a softmax",
                "it needs attention weights that sum to one, and model.decoder.attention.kind is "
                "{recipe.model.decoder.attention_kind}",
                "change that, or leave it out",
            ),
        ],
        "training.gradient_checkpointing": [
            ("a model without Transformer layers", "it is for Transformer layers, and this model has none", _LEAVE_OUT),
        ],
        "training.rdrop": [
            ("training.reward", "they are two objectives"),
            ("a loss of its own", "it computes the cross entropy of two passes, not training.loss"),
            ("several labels for each text", "it computes the cross entropy of one label", _LEAVE_OUT),
            (
                "a carried state",
                "it reads every window twice, and this model continues from the state of the window before",
                "set training.batches.carry: false",
            ),
            (
                "a model without dropout",
                "it makes two passes with different dropout agree, and without any they are the same twice",
                "set dropout in the model, or leave training.rdrop out",
            ),
        ],
        "training.reward": [
            ("training.compile: true", "its steps are not compiled", "leave training.compile out"),
            ("a task that writes no pairs", "it needs task: seq2seq and a model with an encoder", _LEAVE_OUT),
            ("training.batches.layout: packed", "it samples from padded batches", "leave training.batches.layout out"),
            (
                "the best loss as the result",
                "it does not lower the loss, so the best loss is not the best model",
                "set training.stopping.monitor: reward (or metric), or training.result: last",
            ),
            ("data.noise", "a model that restores text is trained by likelihood", _LEAVE_OUT),
        ],
        "data.clean": [
            ("a task that cuts text into windows", "data.clean is for pairs of texts, and {spec} has none", _LEAVE_OUT),
        ],
        "data.context: sentence": [
            (
                "a whole file as one document",
                "a file is no sentence",
                "put each sentence on a line of its own and set document: line",
            ),
            ("training.batches.carry", "each sentence starts from the initial state", _LEAVE_OUT),
            ("data.clean.max_ratio", "sentences have no other side", _LEAVE_OUT),
            ("data.clean.drop_copies", "sentences have no other side", _LEAVE_OUT),
            ("data.clean.deduplicate: sources", "sentences have no source", "set it to targets"),
        ],
        "tokenizer.shared: false": [
            (
                "a task that continues text",
                "it is for two vocabularies, and task: {recipe.task} has one text",
                _LEAVE_OUT,
            ),
        ],
        "model.word_vectors": [
            ("n-gram counts", "model.decoder.kind: ngram has no embeddings", _LEAVE_OUT),
        ],
    }
)


def check_conflicts(recipe: Recipe, conflicts: Sequence[Conflict] = CONFLICTS) -> None:
    """Refuse a recipe whose settings exclude each other."""
    for conflict in conflicts:
        if _holds(conflict.one, recipe) and _holds(conflict.other, recipe):
            names = _named(conflict.one, recipe), _named(conflict.other, recipe)
            texts = (text.format(recipe=recipe, spec=recipe.task_spec) for text in (conflict.reason, conflict.remedy))
            raise ValueError(_message(*names, *texts))


def check_decoding(recipe: Recipe, options: Decoding) -> None:
    """Refuse decoding options that exclude settings of the recipe."""
    changed = recipe.model_copy(update={"decoding": options})
    check_conflicts(changed, [each for each in CONFLICTS if each.one.startswith("decoding.")])


def check_copied_words(replace_unknown: str, forbid: Sequence[str]) -> None:
    """Refuse decoding options about words of the vocabulary for a model that copies words that are in none."""
    for key, value in (("decoding.replace_unknown", replace_unknown), ("decoding.forbid", forbid)):
        if value and value != "none":
            conflict = next(each for each in CONFLICTS if each[:2] == (key, "whole words that are copied"))
            raise ValueError(_message(_quoted(key, value), *conflict[1:]))


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
