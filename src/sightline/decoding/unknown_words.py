"""Unknown words of an output, filled in through the attention (PosUnk: Luong et al. 2015).

A vocabulary of words ends somewhere, and what is beyond it is written <unk>. Where the model wrote that, the source
word it looked at most stands for what it meant: its translation in a dictionary, or the word itself as it stands in
the text, which is right for names and numbers.

The dictionary is learned from the training text by the trained model: each target word is paired with the source word
that was looked at most when it was due, and of all partners of a source word the most frequent one is its translation.
Luong et al. take the alignments of another program for that. A run folder keeps it as dictionary.tsv: source word,
translation, how often they were paired.
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
_TOGETHER = 2_000  # pairs read at a time


@dataclass(frozen=True)
class Translation:
    """What a source word became, and how often."""

    word: str
    count: int


@dataclass
class Pairings:
    """How often each source word was looked at for each target word."""

    partners: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    targets: Counter[str] = field(default_factory=Counter)

    def add(self, sources: Sequence[str], targets: Sequence[str], links: Iterable[int]) -> None:
        """The words of a pair of sentences, and which source word each target word looked at. Marks are no words."""
        for target, link in zip(targets, links, strict=True):
            if _is_word(target) and _is_word(sources[link]):
                self.partners[sources[link]][target] += 1
                self.targets[target] += 1

    def best(self, least: int) -> dict[str, Translation]:
        """The most frequent partner of each source word; of equally frequent ones, the one that is rarer in all."""
        found = {}
        for source, partners in sorted(self.partners.items()):
            word = min(partners, key=lambda target: (-partners[target], self.targets[target], target))
            if partners[word] >= least:
                found[source] = Translation(word, partners[word])
        return found


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
    """A translation for each source word of the examples that was paired with it at least `least` times.

    Once is enough where `tokenizer.min_count` makes words unknown: it is those seen but once that are wanted. As in
    training, of a source the first `cut` tokens are read, and pairs with more than `longest` on a side are left out.
    """
    pairings = Pairings()
    for pairs in _chunks(examples):
        sources = [ids[:cut] for ids in vocabulary.source.encode_many([pair.source for pair in pairs])]
        targets = vocabulary.target.encode_many([pair.target for pair in pairs])
        fit = [n for n in range(len(pairs)) if 0 < len(sources[n]) <= longest and 0 < len(targets[n]) <= longest]
        links = strongest_links(model, [sources[n] for n in fit], [targets[n] for n in fit], device=device)
        source_words = _normal_words(vocabulary.source, [pairs[n].source for n in fit])
        target_words = _normal_words(vocabulary.target, [pairs[n].target for n in fit])
        for source, target, found in zip(source_words, target_words, links, strict=True):
            pairings.add(source, target, found.tolist())
    return pairings.best(least)


def write_dictionary(run: Path, entries: Mapping[str, Translation]) -> None:
    """dictionary.tsv of a run folder."""
    write_atomically(run / FILE, "".join(f"{source}\t{e.word}\t{e.count}\n" for source, e in entries.items()))


def read_dictionary(run: Path) -> dict[str, str] | None:
    """What `write_dictionary` wrote: the translation of each source word; None where there is no file."""
    path = run / FILE
    if not path.is_file():
        return None
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        parts = line.split("\t")
        if len(parts) != 3:
            raise RunError(
                f"{path}, line {number} has {len(parts)} columns, not 3; copy it again, or resume the training"
            )
        found[parts[0]] = parts[1]
    return found


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
    """The text of each output (token ids) of a text, no unknown word left in it.

    An empty dictionary copies every word. Unknown words of a prefix are written as in the prefix. Of a text the first
    `longest` tokens were read.
    """
    open_ones = [number for number, tokens in enumerate(outputs) if UNK in tokens]
    asked = [texts[number] for number in open_ones]
    sources, words = [ids[:longest] for ids in vocabulary.source.encode_many(asked)], vocabulary.source.written(asked)
    links = strongest_links(model, sources, [outputs[number] for number in open_ones], device=device)
    begun = [prefixes[number] for number in open_ones] if prefixes is not None else []
    given = vocabulary.target.written(begun) if begun else [[] for _ in asked]
    filled: dict[int, dict[int, str]] = {}
    for number, own, found, beginning in zip(open_ones, words, links, given, strict=True):
        filled[number] = {}
        for place, token in enumerate(outputs[number]):
            if token == UNK:
                word = own[found[place]]
                word = dictionary.get(vocabulary.source.normalize(word), word)
                filled[number][place] = beginning[place] if place < len(beginning) else word
    return [vocabulary.target.decode_filled(tokens, filled.get(n, {})) for n, tokens in enumerate(outputs)]


def _normal_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[str]]:
    """The words of texts as the tokenizer sees them, those too that it does not know."""
    return [[tokenizer.normalize(word) for word in words] for words in tokenizer.written(texts)]


def _is_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    rest = iter(examples)
    while chunk := list(islice(rest, _TOGETHER)):
        yield chunk
