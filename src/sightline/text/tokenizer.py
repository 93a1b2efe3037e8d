"""Text to ids and back: words, characters, BPE or unigram pieces, on Hugging Face's `tokenizers`.

All of it lives in one tokenizer.json: normalizer, cutting rule, model and decoder, so that any program that reads
such files cuts text exactly as it was cut in training. For every kind, `decode(encode(text))` is the normalized text
again wherever nothing is unknown: a space is written as "▁" at the head of the word it precedes (Kudo and Richardson
2018), and punctuation and symbols are cut off one by one, so no piece ever spans two words or holds a special.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import tokenizers

from sightline.files import MAX_JSON, read_bounded, write_atomically
from sightline.recipe.data import AnyTokenizer
from sightline.text.dropout import MergeDropout
from sightline.text.long_texts import encode_texts
from sightline.text.spelling import Side, spelled, spells, unspelled_places, with_spelling

PAD, UNK, START, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # U+2581; a text's own is read as "_", or it would come back as a space
OWN_SPACE = "\U000f2581"  # what a "▁" of the text is in a whitespace tokenizer, which gives it back: private use

_SILENT = frozenset((PAD, START, END))


class TokenizerError(ValueError):
    """A tokenizer cannot be made, read or used as asked."""


class Surface(NamedTuple):
    """A piece as it is written in a text, and which word of the text it belongs to."""

    text: str
    word: int


class Tokenizer:
    """Cuts text into ids below `size` and puts ids together to text. Ids 0 to 3 are PAD, UNK, START and END."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        for number, special in enumerate(SPECIALS):
            if inner.token_to_id(special) != number:
                raise TokenizerError(
                    f"the tokenizer has {special} as id {inner.token_to_id(special)}, and it must be {number}; "
                    f"use a tokenizer that sightline trained"
                )
        inner.encode_special_tokens = True  # "<s>" in a user's text is text; only we put specials in
        self._inner = inner

    @classmethod
    def train(cls, section: AnyTokenizer, lines: Iterable[str], marks: Sequence[str] = ()) -> Tokenizer:
        """Learn a vocabulary from text. Streams: holds counts of words, never the text.

        `marks` are specials beyond the four, with the ids behind them: no text is ever cut into one.
        """
        from sightline.text.learning import learned

        return cls(learned(section, lines, [*SPECIALS, *marks]))

    @classmethod
    def parse(cls, text: str) -> Tokenizer:
        """The tokenizer that the content of a tokenizer.json describes."""
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
        """The tokenizer.json: two tokenizers with the same content are the same."""
        return self._inner.to_str(pretty=True) + "\n"

    @cached_property
    def spells(self) -> bool:
        """Whether it sets the letters of a text apart first (text/spelling.py)."""
        return spells(self.content)

    def with_spelling(self, spell: bool) -> Tokenizer:
        """The same tokenizer, made to spell text or not to."""
        return self if self.spells == spell else Tokenizer.parse(with_spelling(self.content, spell))

    @property
    def size(self) -> int:
        """How many ids there are, specials included."""
        return self._inner.get_vocab_size()

    @cached_property
    def marks(self) -> dict[str, int]:
        """The specials beyond the four, by name: what noise puts into a text (recipe/data.py), in most none."""
        added = self._inner.get_added_tokens_decoder()
        return {
            token.content: number
            for number, token in sorted(added.items())
            if token.special and token.content not in SPECIALS
        }

    def mark(self, name: str) -> int:
        """The id of one of them."""
        if name not in self.marks:
            known = ", ".join(self.marks) or "none"
            raise TokenizerError(
                f"the vocabulary has no mark {name} (it has {known}); train it with the data.noise that puts it in"
            )
        return self.marks[name]

    def normalize(self, text: str) -> str:
        """The text as the tokenizer sees it, and as `decode` gives it back."""
        return self._normalized(text).replace(OWN_SPACE, SPACE)

    def _normalized(self, text: str) -> str:
        normalizer = self._inner.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, cut by all cores."""
        return encode_texts(self._inner, texts)

    def encode_dropout(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """The ids of many texts under BPE-dropout: a pure function of its arguments.

        Every occurrence of a word is cut anew; with dropout 0 this is `encode_many`.
        """
        if dropout == 0:
            return self.encode_many(texts)
        return list(self._merges.cut([self.words(text) for text in texts], dropout=dropout, seed=seed))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; pad, start and end leave no trace, what was unknown is written <unk>."""
        return self._inner.decode([i for i in ids if i not in _SILENT], skip_special_tokens=False)

    def decode_many(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many sequences of ids."""
        kept = [[i for i in ids if i not in _SILENT] for ids in sequences]
        return self._inner.decode_batch(kept, skip_special_tokens=False)

    def decode_filled(self, ids: Sequence[int], words: Mapping[int, str]) -> str:
        """The text of ids with these words, each by the place of its id, where the vocabulary has none of its own."""
        kept = ((place, number) for place, number in enumerate(ids) if number not in _SILENT)
        pieces = [SPACE + words[place] if place in words else self._piece(number) for place, number in kept]
        text: str = self._inner.decoder.decode(pieces)
        return text

    def words(self, text: str) -> list[str]:
        """What the model cuts further: words with the space before them (as "▁"), and marks.

        The ids of a word tokenizer are one for each of them, known or not.
        """
        cutter = self._inner.pre_tokenizer
        assert cutter is not None
        return [word for word, _ in cutter.pre_tokenize_str(self._normalized(text))]

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """The text of pieces, which need not be in the vocabulary."""
        text: str = self._inner.decoder.decode(list(pieces))
        return text

    def surfaces(self, text: str) -> list[Surface]:
        """The pieces of a text, each as it is in the normalized text where the vocabulary does not have it.

        Together they are the normalized text, with "▁" for a space where pieces hold the space before a word.
        """
        (found,) = self.surfaces_many([text])
        return found

    def surfaces_many(self, texts: Sequence[str]) -> list[list[Surface]]:
        """The same of many texts."""
        cuts = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [self._surfaces(*each) for each in zip(texts, cuts, strict=True)]

    def _surfaces(self, text: str, cut: tokenizers.Encoding) -> list[Surface]:
        words = self.words(text) if UNK in cut.ids else []
        sizes, found = Counter(cut.word_ids) if words else {}, list[Surface]()
        for number, (start, stop), word in zip(cut.ids, cut.offsets, cut.word_ids, strict=True):
            if number != UNK:
                piece = self._piece(number)
            elif word is not None and sizes[word] == 1:
                piece = words[word]
            else:  # of several pieces of a word the first one holds its "▁"
                piece = self.normalize(text[start:stop])
            found.append(Surface(piece, word or 0))
        return found

    def decode_with(self, ids: Sequence[int], surfaces: Sequence[Surface]) -> str:
        """The text of ids of which the first ones are those of a text with these `surfaces`."""
        given = [*(each.text for each in surfaces), *(self._piece(number) for number in ids[len(surfaces) :])]
        kept = [piece for number, piece in zip(ids, given, strict=False) if number not in _SILENT]
        text: str = self._inner.decoder.decode(kept)
        return text

    def written(self, texts: Sequence[str]) -> list[list[str]]:
        """What each id of a text stands for there, letter for letter; unknown words too, and no spaces around them."""
        texts = [self._shown(text) for text in texts]
        cut = self._inner.encode_batch(texts, add_special_tokens=False)
        return [
            [text[start:stop].strip() for start, stop in found.offsets] for text, found in zip(texts, cut, strict=True)
        ]

    def _shown(self, text: str) -> str:
        """The text whose characters offsets count: spelled, or those of a letter would include the one before it."""
        return spelled(text) if self.spells else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id as a reader can look at it: spaces as "▁", specials by name."""
        return [self._piece(number).replace(" ", SPACE).replace(OWN_SPACE, SPACE) for number in ids]

    @cached_property
    def all_pieces(self) -> list[str]:
        """The piece of every id."""
        return [self._piece(number) for number in range(self.size)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each piece of a text stands in it, the space before it included: [start, stop) of characters."""
        offsets = self._inner.encode(self._shown(text), add_special_tokens=False).offsets
        if not self.spells:
            return offsets
        places = unspelled_places(text)
        return [(places[start], places[stop]) for start, stop in offsets]

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary does not know, in order, as they stand in the text."""
        text = self._shown(text)
        cut = self._inner.encode(text, add_special_tokens=False)
        spans = (span for number, span in zip(cut.ids, cut.offsets, strict=True) if number == UNK)
        return [text[start:stop].strip() for start, stop in spans]

    def show_unknown(self, pieces: Sequence[str], text: str) -> list[str]:
        """The pieces of a text with what each <unk> stands for: "<unk 犬>". Those behind the text stay as they are."""
        unknown = iter(self.unknown(text))
        return [f"<unk {next(unknown, '')}>".replace(" >", ">") if each == SPECIALS[UNK] else each for each in pieces]

    def _piece(self, number: int) -> str:
        piece = self._inner.id_to_token(int(number))
        if piece is None:
            raise TokenizerError(f"id {number} is not in the vocabulary of {self.size} pieces")
        return piece

    @cached_property
    def _merges(self) -> MergeDropout:
        model = json.loads(self.content)["model"]
        if model["type"] != "BPE":
            raise TokenizerError(f"BPE-dropout needs a BPE tokenizer, not {model['type']}; set tokenizer.dropout: 0")
        return MergeDropout(vocabulary=model["vocab"], merges=model["merges"], unknown=UNK)


Labels = Literal["none", "one", "words"]  # what targets are: texts, one label each, a label for each word


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both sides; one and the same when `shared`."""

    source: Tokenizer
    target: Tokenizer
    shared: bool = field(default=True)
    labels: Labels = "none"

    @classmethod
    def train(
        cls,
        section: AnyTokenizer,
        pairs: Callable[[], Iterator[tuple[str, str]]],
        labels: Labels = "none",
        marks: Sequence[str] = (),
    ) -> Vocabulary:
        """Learn from pairs of texts; `pairs` is called once for each pass over them. Both sides have the `marks`."""
        if labels != "none":
            from sightline.text.labels import label_tokenizer

            source = Tokenizer.train(section, (pair[0] for pair in pairs()))
            target = label_tokenizer((pair[1] for pair in pairs()), whole=labels == "one")
            return cls(source, target, shared=False, labels=labels)
        if section.shared:
            both = Tokenizer.train(section, chain.from_iterable(pairs()), marks)
            return cls(both, both, shared=True)
        source = Tokenizer.train(section, (pair[0] for pair in pairs()), marks)
        return cls(source, Tokenizer.train(section, (pair[1] for pair in pairs()), marks), shared=False)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, or one file for each side."""
        for name, tokenizer in self._files().items():
            tokenizer.save(folder / name)

    @classmethod
    def load(cls, folder: Path, labels: Labels = "none") -> Vocabulary:
        """Read what `save` wrote."""
        if (folder / "tokenizer.json").exists() or not (folder / "tokenizer.source.json").exists():
            both = Tokenizer.load(folder / "tokenizer.json")
            return cls(both, both, shared=True)
        source = Tokenizer.load(folder / "tokenizer.source.json")
        return cls(source, Tokenizer.load(folder / "tokenizer.target.json"), shared=False, labels=labels)

    def encode_words(self, sentences: Sequence[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[list[int]]]:
        """The pieces of every word (between single spaces) of each sentence; a word of which nothing is left is UNK."""
        sentences = [self.source._shown(sentence) for sentence in sentences]
        words = [sentence.split(" ") if sentence else [] for sentence in sentences]
        flat = iter(self.source.encode_dropout(list(chain.from_iterable(words)), dropout=dropout, seed=seed))
        return [[next(flat) or [UNK] for _ in each] for each in words]

    def encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str], *, dropout: float = 0.0, seeds: tuple[int, int] = (0, 0)
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of examples as a store holds them. Labels of words stand at their first pieces, PAD at the others."""
        if self.labels == "words":
            from sightline.text.labels import uneven_labels

            cut = self.encode_words(sources, dropout=dropout, seed=seeds[0])
            tags = self.target.encode_many(list(targets))
            for pair in zip(sources, targets, strict=True):
                if (wrong := uneven_labels(*pair)) is not None:
                    raise TokenizerError(wrong)
            spread = [
                [number for tag, pieces in zip(own, words, strict=True) for number in (tag, *[PAD] * (len(pieces) - 1))]
                for own, words in zip(tags, cut, strict=True)
            ]
            return [list(chain.from_iterable(words)) for words in cut], spread
        source = self.source.encode_dropout(list(sources), dropout=dropout, seed=seeds[0])
        if self.labels == "one":
            return source, self.target.encode_many(list(targets))
        return source, self.target.encode_dropout(list(targets), dropout=dropout, seed=seeds[1])

    def with_spelling(self, side: Side | None) -> Vocabulary:
        """The vocabulary whose tokenizers spell the texts of this side, and no others. Labels are never spelled."""
        source = self.source.with_spelling(side in ("source", "both"))
        target = self.target if self.labels != "none" else self.target.with_spelling(side in ("target", "both"))
        if self.source is self.target and side in (None, "both"):
            target = source
        return replace(self, source=source, target=target)

    def _files(self) -> dict[str, Tokenizer]:
        if self.shared:  # which side spells is in the recipe
            return {"tokenizer.json": self.source.with_spelling(False)}
        return {"tokenizer.source.json": self.source, "tokenizer.target.json": self.target}
