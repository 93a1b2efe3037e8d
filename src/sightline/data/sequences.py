"""The built-in drill: random sequences of letters, to be copied or reversed.

"q c a" -> "q c a" or "a c q". Nothing is to be known but where each letter stands, so what a model does with sequences
longer than those it was trained on shows what its positions are worth. What a sequence hashes to decides whether it is
for training, validation or test, so none is in two parts, not even a short one that is drawn again and again.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from random import Random

from sightline.data.sources import DataError, Example
from sightline.data.splitting import part_of
from sightline.recipe.data import SequencesSource

_PATIENCE = 10_000  # draws for one example; a part's share of all sequences is at least a tenth


def read_sequences(source: SequencesSource) -> Iterator[Example]:
    """Pairs of a sequence and its copy or its reverse: a pure function of the source.

    Both changes have the same sequences. A length that has no sequence in this part (of the 26 of one letter, few are
    for tests) is passed over; only if none of the lengths has one, it is an error.
    """
    letters = string.ascii_lowercase[: source.symbols]
    random = Random(f"{source.seed}:{source.split}:{source.symbols}:{source.lengths}")
    for _ in range(source.examples):
        sequence = _draw(source, letters, random)
        answer = sequence if source.operation == "copy" else sequence[::-1]
        yield Example(" ".join(sequence), " ".join(answer))


def _draw(source: SequencesSource, letters: str, random: Random) -> str:
    for _ in range(_PATIENCE):
        sequence = "".join(random.choices(letters, k=random.randint(*source.lengths)))
        if part_of(sequence) == source.split:
            return sequence
    raise DataError(
        f"lengths: {list(source.lengths)} of {source.symbols} symbols have no sequence in the {source.split} part; "
        f"raise `lengths` or `symbols`"
    )
