"""Train a tokenizer: its vocabulary from text, and its normalizer, pre-tokenizer and decoder from the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from sightline.recipe.tokenizer import (
    AnyTokenizer,
    BpeTokenizer,
    CharacterTokenizer,
    TokenizerSection,
    UnigramTokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)
from sightline.terminal import plural
from sightline.text.tokenizer import OWN_SPACE, SPACE, SPECIALS, UNK, TokenizerError, parts

# A word, or a single punctuation mark or symbol, each with the space before it (which is itself a symbol).
_WORD_OR_MARK = rf"{SPACE}?(?:[^{SPACE}\p{{P}}\p{{S}}]+|[^{SPACE}])|{SPACE}"

# Merging is quadratic in the length of a word: a megabyte without a space (an image as text) would take minutes.
_ENDLESS = re.compile(r"\S{10000}(?=\S)")


def train_tokenizer(section: AnyTokenizer, lines: Iterable[str], specials: list[str]) -> tokenizers.Tokenizer:
    """Train a tokenizer on lines; the `specials` have the first ids."""
    inner, trainer = _blank(section, specials)
    inner.normalizer = _normalizer(section)
    if isinstance(section, CharacterTokenizer):
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
    elif isinstance(section, WhitespaceTokenizer):
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
        lost = decoders.Replace(Regex(rf"\A{SPECIALS[UNK]}\z"), SPACE + SPECIALS[UNK])  # "▁<unk>" is an ordinary word
        inner.decoder = decoders.Sequence([lost, _spaced(), decoders.Replace(OWN_SPACE, SPACE)])
    else:
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False),
                pre_tokenizers.Split(Regex(_WORD_OR_MARK), "isolated"),
            ]
        )
        inner.decoder = _spaced()
        if isinstance(section, WordTokenizer):  # an unknown word lost its space: restore it
            inner.decoder = decoders.Sequence([decoders.Replace(SPECIALS[UNK], SPACE + SPECIALS[UNK]), _spaced()])
    count = 0

    def texts() -> Iterator[str]:
        nonlocal count
        for count, line in enumerate(lines, 1):  # noqa: B007, used in the error message
            for part in parts(line):
                yield _ENDLESS.sub(r"\g<0> ", part) if isinstance(section, BpeTokenizer) else part

    try:
        inner.train_from_iterator(texts(), trainer)
    except Exception as error:
        if type(error) is not Exception:  # the library raises bare exceptions; others come from reading the lines
            raise
        raise TokenizerError(
            f"no {section.kind} vocabulary of tokenizer.size ({section.size}) can be learned: {error}; raise "
            f"tokenizer.size, or take tokenizer.kind: bpe, which leaves rare characters out"
        ) from error
    if inner.get_vocab_size() <= len(specials):
        raise TokenizerError(
            f"no {section.kind} vocabulary can be learned from {plural(count, 'line')} of text: "
            f"nothing in them is frequent enough; check data.train, or lower tokenizer.min_count"
        )
    if isinstance(section, UnigramTokenizer):
        inner.model = _deterministic(inner, len(specials))
    return inner


def _spaced() -> decoders.Decoder:
    """Decodes "▁" as a space, except before the first word."""
    return decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)


def _blank(section: AnyTokenizer, specials: list[str]) -> tuple[tokenizers.Tokenizer, trainers.Trainer]:
    """An untrained model and its trainer."""
    unknown = SPECIALS[UNK]
    if isinstance(section, WordTokenizer | WhitespaceTokenizer | CharacterTokenizer):
        return tokenizers.Tokenizer(models.WordLevel(unk_token=unknown)), trainers.WordLevelTrainer(
            vocab_size=section.size, min_frequency=section.min_count, special_tokens=specials, show_progress=False
        )
    if isinstance(section, BpeTokenizer):
        return tokenizers.Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True)), trainers.BpeTrainer(
            vocab_size=section.size,
            min_frequency=section.min_count,
            special_tokens=specials,
            limit_alphabet=section.size - len(specials),  # a text of many characters would exceed the size
            show_progress=False,
        )
    assert isinstance(section, UnigramTokenizer)
    return tokenizers.Tokenizer(models.Unigram()), trainers.UnigramTrainer(
        vocab_size=section.size, special_tokens=specials, unk_token=unknown, show_progress=False
    )


def _deterministic(inner: tokenizers.Tokenizer, count: int) -> models.Unigram:
    """The trained unigram model with scores that do not depend on the order of hash tables.

    The first `count` pieces are special tokens. The trainer sums in hash order, so scores differ in the last digits
    from training to training, and in this order it gives the characters that it must keep but did not choose scores
    just above the lowest one, in steps of 0.0001.
    """
    model = json.loads(inner.to_str())["model"]
    specials, pieces = model["vocab"][:count], model["vocab"][count:]
    floor = min((score for _, score in pieces), default=0.0)
    near = floor + 0.0001 * (1 + sum(len(piece) == 1 for piece, _ in pieces))
    scored = [(piece, round(floor if len(piece) == 1 and score < near else score, 6)) for piece, score in pieces]
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    return models.Unigram([tuple(pair) for pair in specials] + scored, unk_id=UNK, byte_fallback=False)


def _normalizer(section: TokenizerSection) -> normalizers.Normalizer:
    forms = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
    steps: list[normalizers.Normalizer] = [forms[section.normalize]()] if section.normalize in forms else []
    if section.lowercase:
        steps.append(normalizers.Lowercase())
    steps.append(normalizers.Replace(SPACE, OWN_SPACE if isinstance(section, WhitespaceTokenizer) else "_"))
    if not (isinstance(section, CharacterTokenizer) and section.spaces == "keep"):
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)
