"""Answers of a model that learned to undo noise: the text, mended."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from sightline.decoding.phrases import PhraseWarning, occurrences
from sightline.recipe import Decoding
from sightline.tasks.base import Asked, Prediction, chosen, one_line
from sightline.tasks.seq2seq import Seq2SeqTask
from sightline.text.infilling import MASK_TEXT, encode_masked, fill_spans, split_at_masks
from sightline.text.tokenizer import UNK


class DenoisingTask(Seq2SeqTask):
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
        return self.checked([encode_masked(source, text, self.marks, words=words) for text in texts], first)

    def unknown(self, text: str) -> list[str]:
        return super().unknown(text.replace(MASK_TEXT, ""))

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        if asked.prefixes is not None or asked.phrases is not None:
            raise ValueError("a text is mended as it stands: prefixes and phrases have no place; leave them out")
        return self._restored(self.encode(asked.texts, first=asked.first), options, asked)

    def answer_ids(self, sources: Sequence[list[int]], options: Decoding) -> list[list[Prediction]]:
        """The same for texts as ids, with marks for gaps."""
        return self._restored(sources, options, Asked(()))

    def _restored(self, sources: Sequence[list[int]], options: Decoding, asked: Asked) -> list[list[Prediction]]:
        found = self._search(sources, options, asked)
        told = []
        for source, guesses in zip(sources, found, strict=True):
            whole = [
                fill_spans(source, guess.tokens, self.marks) if self._names_gaps else guess.tokens for guess in guesses
            ]
            texts = self.vocabulary.target.decode_many(whole)
            unknown = [tokens.count(UNK) for tokens in whole]
            lines = [one_line(text) for text in texts]
            told.append(chosen(lines, guesses, options, unknown, section=self.recipe.evaluation))
        if self._names_gaps and options.forbid:
            self._tell_forbidden(sources, told, options, asked.first)
        return told

    def judge(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        if self._names_gaps:
            raise ValueError(
                "--target: this model writes what stood in each gap (data.noise.kind: span-corruption), and of a text "
                "nobody knows which words those are; leave it out"
            )
        return super().judge(texts, targets, first=first)

    def _tell_forbidden(
        self, sources: Sequence[list[int]], told: Sequence[list[Prediction]], options: Decoding, first: int
    ) -> None:
        """Warn of what the search could not know: phrases of the text around the gaps, alone or with what fills one.

        What the fillings themselves say all the same, the search has told already.
        """
        target = self.vocabulary.target
        for number, (source, guesses) in enumerate(zip(sources, told, strict=True), first + 1):
            kept = target.decode_many(split_at_masks(source, self.marks))
            for phrase in filter(None, map(target.normalize, options.forbid)):
                if not any(occurrences(phrase, g.text) and not self._cutter.said(phrase, g.tokens, 0) for g in guesses):
                    continue
                stands = any(occurrences(phrase, text) for text in kept)
                why = "it stands in the input" if stands else "a gap makes it together with the input beside it"
                said = f"line {number}: the output contains {phrase!r} all the same: {why}, which is not changed"
                warnings.warn(PhraseWarning(said), stacklevel=2)
