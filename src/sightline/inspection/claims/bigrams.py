"""A sentence as a chain of bigrams with counts and probabilities.

    P(w | v) = count(v w) / count(v),  P(sentence) = Π_t P(w_t | w_{t−1}),  w_0 = <s>, w_{T+1} = </s>

From a text the probabilities are the quotients of the counts. A run of an n-gram model has its own: those of its
smoothing, of its order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from sightline.inspection.claims.table import Claim, ClaimTable
from sightline.text.tokenizer import END, START

if TYPE_CHECKING:
    from sightline.inspection.attention import LoadedRun

FIRST, LAST = "<s>", "</s>"
TEXT = """I want to eat Chinese food
I want to eat lunch
I want to sleep
We want to eat
We eat Chinese food
I eat lunch
They want lunch
They want to eat at home"""
_LONGEST = 40  # words of a drawn sentence
_SHOWN = 4  # alternatives of a word


@dataclass
class Bigrams:
    """Counts of pairs of words, sentence by sentence."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> Bigrams:
        """Count the bigrams of sentences, each between `<s>` and `</s>`."""
        bigrams = cls()
        for words in sentences:
            for before, word in zip((FIRST, *words), (*words, LAST), strict=True):
                bigrams.counts[before][word] += 1
        return bigrams

    def probability(self, before: str, word: str) -> float:
        """count(v w) / count(v); 0 for an unknown v."""
        following = self.counts.get(before, Counter[str]())
        return following[word] / following.total() if following else 0.0

    def draw(self, random: Random) -> list[str]:
        """A sentence: each word by its probability after the one before it, until `</s>`."""
        words: list[str] = []
        while len(words) < _LONGEST:
            following = self.counts[words[-1] if words else FIRST]
            word = random.choices(list(following), list(following.values()))[0]
            if word == LAST:
                break
            words.append(word)
        return words


def bigrams_claim(
    text: str = TEXT, sentence: str | None = None, *, seed: int = 1, name: str = "built-in text"
) -> Claim:
    """The chain of a sentence in a text with one sentence a line, or of one that is drawn from it."""
    sentences = [line.split() for line in text.splitlines() if line.strip()]
    if not sentences:
        raise ValueError(f"{name} has no words to count; give a text with a sentence on each line")
    bigrams = Bigrams.of(sentences)
    drawn = sentence is None
    words = bigrams.draw(Random(seed)) if sentence is None else sentence.split()
    rows: list[list[str | int | float]] = []
    product = 1.0
    for depth, (before, word) in enumerate(zip((FIRST, *words), (*words, LAST), strict=True)):
        following, chance = bigrams.counts.get(before, Counter[str]()), bigrams.probability(before, word)
        product *= chance
        others = "  ".join(f"{each} {count}" for each, count in following.most_common(_SHOWN))
        rows.append(["  " * depth + f"{before} {word}", following[word], following.total(), chance, others])
    columns = ["bigram", "count", "of", "P(w | v)", "what follows v, counted"]
    notes = [f"P(sentence) = {product:.3g}, the product.", f"Counted: {len(sentences)} sentences of the {name}."]
    if product == 0.0:
        notes.append("A bigram that the text does not have gets no probability: this is what smoothing repairs.")
    title = f"{FIRST} {' '.join(words)} {LAST}" + (f" (drawn, seed {seed})" if drawn else "")
    claim = "A bigram model writes by drawing each word after the one before it, by the counts"
    return Claim(claim, [ClaimTable(title, columns, rows)], notes, {"probability": product, "words": words})


def run_bigrams_claim(run: LoadedRun, sentence: str | None = None, *, seed: int = 1) -> Claim:
    """The chain of a sentence in a run of an n-gram model: its own probabilities, and counts of the training data."""
    import numpy as np

    from sightline.data.sources import training_examples
    from sightline.models.ngram import CountedModel

    if not isinstance(run.model, CountedModel):
        raise ValueError(f"{run.folder} counts no n-grams; give a run with model.decoder.kind: ngram, or a text file")
    model, tokenizer = run.model.trained, run.vocabulary.target
    if sentence is None:
        generator, ids = np.random.default_rng(seed), list[int]()
        for token in model.draw(generator):
            ids.append(token)
            if len(ids) == _LONGEST:
                break
    else:
        ids = list(tokenizer.encode(sentence))
    wanted = set(zip((START, *ids), (*ids, END), strict=True))
    pairs: Counter[tuple[int, int]] = Counter()
    histories: Counter[int] = Counter()
    for example in training_examples(run.recipe):
        stream = [START, *tokenizer.encode(example.target), END]
        histories.update(stream[:-1])
        pairs.update(pair for pair in pairwise(stream) if pair in wanted)
    rows: list[list[str | int | float]] = []
    logarithm = 0.0
    names = dict(zip((START, *ids, END), tokenizer.pieces([START, *ids, END]), strict=True))
    for place, (before, word) in enumerate(zip((START, *ids), (*ids, END), strict=True)):
        chances = model.distribution([START, *ids[:place]])
        logarithm += float(np.log(chances[word])) if chances[word] else -float("inf")
        best = [int(each) for each in np.argsort(-chances)[:_SHOWN]]
        others = "  ".join(f"{tokenizer.pieces([each])[0]} {chances[each]:.3f}" for each in best)
        bigram = f"{names[before]} {names[word]}"
        rows.append([bigram, pairs[before, word], histories[before], float(chances[word]), others])
    columns = ["bigram", "count", "of", "P", "likeliest"]
    order = f"the model's, of order {model.order}, given up to {model.order - 1} tokens before"
    notes = [f"P: {order}. Counts: bigrams of the training data.", f"log P(sentence) = {logarithm:.3f} nats"]
    claim = "An n-gram model predicts each word from counts of what followed the words before it"
    return Claim(claim, [ClaimTable(str(run.folder), columns, rows)], notes, {"log_probability": logarithm})


def read_text(path: Path) -> str:
    """A text file, compressed or not."""
    from sightline.data.text_files import read_lines

    return "\n".join(read_lines(path))
