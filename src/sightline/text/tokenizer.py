"""Text to ids and back: words, characters, BPE or unigram pieces, on Hugging Face's `tokenizers`.

One tokenizer.json holds normalizer, pre-tokenizer, model and decoder, so any program that reads such files tokenizes
exactly as in training. For every kind, `decode(encode(text))` is the normalized text wherever nothing is unknown: a
space is written as "▁" before the word it precedes (Kudo and Richardson 2018), and punctuation and symbols are split
off one by one, so no piece spans two words or contains a special token.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers

from sightline.files import MAX_JSON, read_bounded, write_atomically
from sightline.recipe.tokenizer import AnyTokenizer
from sightline.registry import Implementations
from sightline.text.bpe_dropout import BpeDropoutEncoder

PAD, UNK, START, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # U+2581; in a text it is read as "_", or it would be decoded as a space
OWN_SPACE = "\U000f2581"  # private use: replaces a "▁" of the text in whitespace tokenizers, which restore it

_SILENT = frozenset((PAD, START, END))


class TokenizerError(ValueError):
    """A tokenizer cannot be trained, read or used."""


class PieceText(NamedTuple):
    """A piece as it is written in a text, and the number of its word."""

    text: str
    word: int


class Tokenizer:
    """Encodes text as ids below `size` and decodes ids. Ids 0 to 3 are PAD, UNK, START and END."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        for number, special in enumerate(SPECIALS):
            if inner.token_to_id(special) != number:
                raise TokenizerError(
                    f"the tokenizer has {special} as id {inner.token_to_id(special)}, and it must be {number}; "
                    f"use a tokenizer that sightline trained"
                )
        inner.encode_special_tokens = True  # "<s>" in a user's text is plain text
        self._inner = inner

    @classmethod
    def train(cls, section: AnyTokenizer, lines: Iterable[str], marks: Sequence[str] = ()) -> Tokenizer:
        """Train on text, streaming: memory holds counts of words, not the text.

        `marks` are special tokens beyond the four, with the ids after them: no text is ever encoded as one.
        """
        return cls(Implementations("tokenizer")[section.kind](section, lines, [*SPECIALS, *marks]))

    @classmethod
    def parse(cls, text: str) -> Tokenizer:
        """The tokenizer in the content of a tokenizer.json."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"not a tokenizer.json: {error}") from error
        return cls(inner)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json."""
        try:
            return cls.parse(read_bounded(path, MAX_JSON).decode("utf-8"))
        except FileNotFoundError as error:
            raise TokenizerError(f"{path} is missing; a run folder needs it") from error
        except ValueError as error:
            raise TokenizerError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        write_atomically(path, self.content)

    @cached_property
    def content(self) -> str:
        """The content of tokenizer.json: tokenizers with the same content are equal."""
        return self._inner.to_str(pretty=True) + "\n"

    @cached_property
    def spells(self) -> bool:
        """True if it first separates the letters of a text (`spell_out`)."""
        return spells(self.content)

    def with_spelling(self, spell: bool) -> Tokenizer:
        """The same tokenizer, with or without spelling out."""
        return self if self.spells == spell else Tokenizer.parse(with_spelling(self.content, spell))

    @property
    def size(self) -> int:
        """The number of ids, with special tokens."""
        return self._inner.get_vocab_size()

    @cached_property
    def marks(self) -> dict[str, int]:
        """The ids of the special tokens beyond the four, by name: those that noise inserts."""
        added = self._inner.get_added_tokens_decoder()
        return {
            token.content: number
            for number, token in sorted(added.items())
            if token.special and token.content not in SPECIALS
        }

    def mark(self, name: str) -> int:
        """The id of a mark."""
        if name not in self.marks:
            known = ", ".join(self.marks) or "none"
            raise TokenizerError(
                f"the vocabulary has no mark {name} (it has {known}); train it with the data.noise that puts it in"
            )
        return self.marks[name]

    def normalize(self, text: str) -> str:
        """The normalized text, which `decode` returns."""
        return self._normalized(text).replace(OWN_SPACE, SPACE)

    def _normalized(self, text: str) -> str:
        normalizer = self._inner.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end tokens."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, encoded in parallel."""
        return encode_texts(self._inner, texts)

    def encode_dropout(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """The ids of many texts under BPE-dropout: a pure function of its arguments.

        Each occurrence of a word is segmented anew; with dropout 0 this is `encode_many`.
        """
        if dropout == 0:
            return self.encode_many(texts)
        return list(self._merges.encode([self.words(text) for text in texts], dropout=dropout, seed=seed))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without pad, start and end tokens; unknown pieces are written <unk>."""
        return self._inner.decode([i for i in ids if i not in _SILENT], skip_special_tokens=False)

    def decode_many(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many sequences of ids."""
        kept = [[i for i in ids if i not in _SILENT] for ids in sequences]
        return self._inner.decode_batch(kept, skip_special_tokens=False)

    def decode_filled(self, ids: Sequence[int], words: Mapping[int, str]) -> str:
        """The text of ids with some pieces replaced by these words, keyed by position."""
        kept = ((place, number) for place, number in enumerate(ids) if number not in _SILENT)
        pieces = [SPACE + words[place] if place in words else self._piece(number) for place, number in kept]
        text: str = self._inner.decoder.decode(pieces)
        return text

    def words(self, text: str) -> list[str]:
        """The pre-tokenized text, which the model segments further: words with the space before them, and punctuation.

        A word tokenizer has one id for each word, known or not.
        """
        pre_tokenizer = self._inner.pre_tokenizer
        assert pre_tokenizer is not None
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(self._normalized(text))]

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """The text of pieces, which may be outside the vocabulary."""
        text: str = self._inner.decoder.decode(list(pieces))
        return text

    def surfaces(self, text: str) -> list[PieceText]:
        """The pieces of a text; a piece outside the vocabulary is its normalized text.

        Joined they are the normalized text, with "▁" for the space before a word.
        """
        (pieces,) = self.surfaces_many([text])
        return pieces

    def surfaces_many(self, texts: Sequence[str]) -> list[list[PieceText]]:
        """The `surfaces` of many texts."""
        encodings = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [self._surfaces(*each) for each in zip(texts, encodings, strict=True)]

    def _surfaces(self, text: str, encoding: tokenizers.Encoding) -> list[PieceText]:
        words = self.words(text) if UNK in encoding.ids else []
        sizes, pieces = Counter(encoding.word_ids) if words else {}, list[PieceText]()
        for number, (start, stop), word in zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True):
            if number != UNK:
                piece = self._piece(number)
            elif word is not None and sizes[word] == 1:
                piece = words[word]
            else:  # of several pieces of a word the first one has its "▁"
                piece = self.normalize(text[start:stop])
            pieces.append(PieceText(piece, word or 0))
        return pieces

    def decode_with(self, ids: Sequence[int], surfaces: Sequence[PieceText]) -> str:
        """The text of ids, the first of which belong to a text with these `surfaces`."""
        pieces = [*(each.text for each in surfaces), *(self._piece(number) for number in ids[len(surfaces) :])]
        kept = [piece for number, piece in zip(ids, pieces, strict=False) if number not in _SILENT]
        text: str = self._inner.decoder.decode(kept)
        return text

    def written(self, texts: Sequence[str]) -> list[list[str]]:
        """The substring that each id of a text covers, unknown words included, without spaces around it."""
        texts = [self._shown(text) for text in texts]
        encodings = self._inner.encode_batch(texts, add_special_tokens=False)
        return [
            [text[start:stop].strip() for start, stop in encoding.offsets]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _shown(self, text: str) -> str:
        """The text to which offsets refer: spelled out, or a letter's offsets would include the letter before it."""
        return spell_out(text) if self.spells else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id in readable form: spaces as "▁", special tokens by name."""
        return [self._piece(number).replace(" ", SPACE).replace(OWN_SPACE, SPACE) for number in ids]

    @cached_property
    def all_pieces(self) -> list[str]:
        """The piece of every id."""
        return [self._piece(number) for number in range(self.size)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The character span [start, stop) of each piece of a text, with the space before it."""
        offsets = self._inner.encode(self._shown(text), add_special_tokens=False).offsets
        if not self.spells:
            return offsets
        places = unspelled_offsets(text)
        return [(places[start], places[stop]) for start, stop in offsets]

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that are not in the vocabulary, in order, as substrings."""
        text = self._shown(text)
        encoding = self._inner.encode(text, add_special_tokens=False)
        spans = (span for number, span in zip(encoding.ids, encoding.offsets, strict=True) if number == UNK)
        return [text[start:stop].strip() for start, stop in spans]

    def show_unknown(self, pieces: Sequence[str], text: str) -> list[str]:
        """The pieces of a text with the text of each unknown one: "<unk 犬>". Later pieces are unchanged."""
        unknown = iter(self.unknown(text))
        return [f"<unk {next(unknown, '')}>".replace(" >", ">") if each == SPECIALS[UNK] else each for each in pieces]

    def _piece(self, number: int) -> str:
        piece = self._inner.id_to_token(int(number))
        if piece is None:
            raise TokenizerError(f"id {number} is not in the vocabulary of {self.size} pieces")
        return piece

    @cached_property
    def _merges(self) -> BpeDropoutEncoder:
        model = json.loads(self.content)["model"]
        if model["type"] != "BPE":
            raise TokenizerError(f"BPE-dropout needs a BPE tokenizer, not {model['type']}; set tokenizer.dropout: 0")
        return BpeDropoutEncoder(vocabulary=model["vocab"], merges=model["merges"], unknown=UNK)


Ids = list[int]

_PART = 1 << 18  # characters of a part; a part without spaces may be longer
_TOGETHER = 1 << 22  # characters passed to the library at once, about
_EDGE = re.compile(r"(?<=\S)[ \r\n]")


def parts(text: str, longest: int = _PART) -> Iterator[str]:
    """The text in parts of about `longest` characters that end before a space; all but the first begin with a space.

    The library needs many times the size of a text to encode it; encoded in parts, the ids are the same.
    """
    start = 0
    while len(text) - start > longest and (edge := _EDGE.search(text, start + longest)) is not None:
        yield text[start : edge.start()]
        start = edge.start()
    yield text[start:]


def _encode(inner: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Ids]:
    return [encoding.ids for encoding in inner.encode_batch_fast(list(texts), add_special_tokens=False)]


def encode_texts(
    inner: tokenizers.Tokenizer, texts: Sequence[str], *, longest: int = _PART, together: int = _TOGETHER
) -> list[Ids]:
    """The ids of each text, without start and end tokens; long texts are encoded in parts."""
    if sum(map(len, texts)) <= together and all(len(text) <= longest for text in texts):
        return _encode(inner, texts)
    split = [list(parts(text, longest)) for text in texts]
    encoded: list[Ids] = []
    group: list[str] = []
    size = 0
    for part in chain.from_iterable(split):
        group.append(part)
        size += len(part)
        if size >= together:
            encoded += _encode(inner, group)
            group, size = [], 0
    encoded += _encode(inner, group)
    # Tokenizers that keep spaces lose the one between two parts, at whose edge it is.
    space: Ids = []
    if inner.normalizer is not None and not inner.normalizer.normalize_str(" "):
        one, two = _encode(inner, ["a", "a a"])
        space = two[len(one) : len(two) - len(one)]
    ids = iter(encoded)
    joined = []
    for each in split:
        first, *rest = [part for part in islice(ids, len(each)) if part] or [[]]
        joined.append([*first, *chain.from_iterable([*space, *part] for part in rest)])
    return joined


SpelledSide = Literal["source", "target", "both"]

_BETWEEN = r"(?<=\S)(?=\S)"
_STEP = {"type": "Replace", "pattern": {"Regex": _BETWEEN}, "content": " "}


def spell_out(text: str) -> str:
    """The text with a space between every two characters: "to be" is "t o b e". Spelled-out text stays the same.

    Sources with `spell: true` train on such text, and the tokenizer of the run does the same to raw text.
    """
    return re.sub(_BETWEEN, " ", text)


def unspelled_offsets(text: str) -> list[int]:
    """The offset in `text` of each character of `spell_out(text)`, and of its end; a new space has that of the next."""
    places, at = list[int](), 0
    for character in spell_out(text):
        places.append(at)
        at += character == text[at]
    return [*places, len(text)]


def spells(content: str) -> bool:
    """Return True if the first normalizer of a tokenizer.json spells out text."""
    return _normalizers(json.loads(content))[:1] == [_STEP]


def with_spelling(content: str, spell: bool) -> str:
    """The content of a tokenizer.json with spelling out added or removed."""
    tokenizer = json.loads(content)
    steps = _normalizers(tokenizer)
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [_STEP, *steps] if spell else steps[1:]}
    return json.dumps(tokenizer, ensure_ascii=False)


def _normalizers(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """The normalizers of a tokenizer.json, in order."""
    normalizer = tokenizer["normalizer"]
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]
