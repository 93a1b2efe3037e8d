"""Replacement of unknown words in outputs through attention (PosUnk: Luong et al. 2015).

Each <unk> of an output is replaced by the source word with the largest attention weight: by its translation in a
dictionary, or by the word itself, which is right for names and numbers.

The dictionary is learned from the training text with the model: each target word is paired with the source word
of the largest weight, and the most frequent partner of a source word is its translation. (Luong et al. use
the alignments of another program.) A run folder keeps it as dictionary.tsv: source word, translation, number of pairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from sightline.data.sources import Example
from sightline.decoding.request import DecodableModel
from sightline.decoding.scoring import strongest_links
from sightline.files import write_atomically
from sightline.run_folder import RunError
from sightline.text.tokenizer import UNK, Tokenizer
from sightline.text.vocabulary import Vocabulary

FILE = "dictionary.tsv"
_CHUNK = 2_000  # pairs read at a time


@dataclass(frozen=True)
class Translation:
    """The translation of a source word, and the number of times they were paired."""

    word: str
    count: int


@dataclass
class Pairings:
    """Counts of target words aligned to each source word."""

    partners: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    targets: Counter[str] = field(default_factory=Counter)

    def add(self, sources: Sequence[str], targets: Sequence[str], links: Iterable[int]) -> None:
        """Add a sentence pair; `links` has the source index of each target word. Punctuation is not counted."""
        for target, link in zip(targets, links, strict=True):
            if _is_word(target) and _is_word(sources[link]):
                self.partners[sources[link]][target] += 1
                self.targets[target] += 1

    def best(self, least: int) -> dict[str, Translation]:
        """The most frequent partner of each source word; ties go to the rarer target word."""
        entries = {}
        for source, partners in sorted(self.partners.items()):
            word = min(partners, key=lambda target: (-partners[target], self.targets[target], target))
            if partners[word] >= least:
                entries[source] = Translation(word, partners[word])
        return entries


def learn_dictionary(
    model: DecodableModel,
    vocabulary: Vocabulary,
    examples: Iterable[Example],
    *,
    longest: int,
    cut: int | None = None,
    least: int = 1,
    device: torch.device | str = "cpu",
) -> dict[str, Translation]:
    """A translation of each source word that was paired with it at least `least` times.

    The default of 1 includes words that `tokenizer.min_count` makes unknown. As in training, sources are cut to `cut`
    tokens, and pairs with more than `longest` tokens on a side are left out.
    """
    pairings = Pairings()
    for pairs in _chunks(examples):
        sources = [ids[:cut] for ids in vocabulary.source.encode_many([pair.source for pair in pairs])]
        targets = vocabulary.target.encode_many([pair.target for pair in pairs])
        fit = [n for n in range(len(pairs)) if 0 < len(sources[n]) <= longest and 0 < len(targets[n]) <= longest]
        links = strongest_links(model, [sources[n] for n in fit], [targets[n] for n in fit], device=device)
        source_words = _normal_words(vocabulary.source, [pairs[n].source for n in fit])
        target_words = _normal_words(vocabulary.target, [pairs[n].target for n in fit])
        for source, target, link in zip(source_words, target_words, links, strict=True):
            pairings.add(source, target, link.tolist())
    return pairings.best(least)


def write_dictionary(run: Path, entries: Mapping[str, Translation]) -> None:
    """Write dictionary.tsv of a run folder."""
    write_atomically(run / FILE, "".join(f"{source}\t{e.word}\t{e.count}\n" for source, e in entries.items()))


def read_dictionary(run: Path) -> dict[str, str] | None:
    """Read dictionary.tsv: the translation of each source word; None without the file."""
    path = run / FILE
    if not path.is_file():
        return None
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        parts = line.split("\t")
        if len(parts) != 3:
            raise RunError(
                f"{path}, line {number} has {len(parts)} columns, not 3; copy it again, or resume the training"
            )
        entries[parts[0]] = parts[1]
    return entries


def replace_unknown(
    model: DecodableModel,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    outputs: Sequence[Sequence[int]],
    *,
    dictionary: Mapping[str, str],
    prefixes: Sequence[str] | None = None,
    longest: int | None = None,
    device: torch.device | str = "cpu",
) -> list[str]:
    """The text of each output (token ids) of a text, with its unknown words replaced.

    An empty dictionary copies every word. Unknown words of a prefix are taken from the prefix. Sources were cut to
    `longest` tokens.
    """
    incomplete = [number for number, tokens in enumerate(outputs) if UNK in tokens]
    inputs = [texts[number] for number in incomplete]
    sources, words = [ids[:longest] for ids in vocabulary.source.encode_many(inputs)], vocabulary.source.written(inputs)
    links = strongest_links(model, sources, [outputs[number] for number in incomplete], device=device)
    prefix_words: list[list[str]] = [[] for _ in inputs]
    if prefixes is not None and incomplete:
        prefix_words = vocabulary.target.written([prefixes[number] for number in incomplete])
    filled: dict[int, dict[int, str]] = {}
    for number, source_words, link, prefix in zip(incomplete, words, links, prefix_words, strict=True):
        filled[number] = {}
        for place, token in enumerate(outputs[number]):
            if token == UNK:
                word = source_words[link[place]]
                word = dictionary.get(vocabulary.source.normalize(word), word)
                filled[number][place] = prefix[place] if place < len(prefix) else word
    return [vocabulary.target.decode_filled(tokens, filled.get(n, {})) for n, tokens in enumerate(outputs)]


def _normal_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[str]]:
    """The normalized words of texts, including unknown ones."""
    return [[tokenizer.normalize(word) for word in words] for words in tokenizer.written(texts)]


def _is_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    rest = iter(examples)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
