"""Answers of a model that learned to undo noise: the text, mended."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.answering.answerer import Asked, Prediction, chosen, one_line
from sightline.answering.translating import Translator
from sightline.recipe import Decoding
from sightline.text.gaps import encode_gaps, fill_spans


class Restorer(Translator):
    """Each text mended: what a `[MASK]` in it may have stood for, and whatever else the model finds wrong."""

    @property
    def marks(self) -> list[int]:
        """The ids of the marks that gaps become."""
        assert self.recipe.data.noise is not None
        return [self.vocabulary.source.mark(mark) for mark in self.recipe.data.noise.marks]

    @property
    def unsaid(self) -> int:
        return 0 if self._names_gaps else super().unsaid

    @property
    def _names_gaps(self) -> bool:
        """Whether it writes what stood in each gap behind its mark, and not the whole text."""
        return self.recipe.data.noise is not None and self.recipe.data.noise.kind == "span-corruption"

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        words, source = self.recipe.tokenizer.kind != "character", self.vocabulary.source
        return self._checked([encode_gaps(source, text, self.marks, words=words) for text in texts], first)

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        if asked.prefixes is not None or asked.phrases is not None:
            raise ValueError("a text is mended as it stands: prefixes and phrases have no place; leave them out")
        return self.answer_ids(self.encode(asked.texts, first=asked.first), options, first=asked.first)

    def answer_ids(self, sources: Sequence[list[int]], options: Decoding, *, first: int = 0) -> list[list[Prediction]]:
        """The same for texts as ids, with marks for gaps."""
        found = self._search(sources, options, Asked((), first=first))
        made = []
        for source, guesses in zip(sources, found, strict=True):
            whole = [
                fill_spans(source, guess.tokens, self.marks) if self._names_gaps else guess.tokens for guess in guesses
            ]
            texts = self.vocabulary.target.decode_many(whole)
            made.append([Prediction(one_line(text), g.score, g.tokens) for text, g in zip(texts, guesses, strict=True)])
        return [chosen(guesses, options) for guesses in made]
