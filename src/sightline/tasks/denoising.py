"""Denoising: the text without its noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from sightline.decoding.phrases import PhraseWarning, occurrences
from sightline.decoding.request import Hypothesis, Request
from sightline.tasks.base import Prediction, as_predictions, one_line
from sightline.tasks.seq2seq import Seq2SeqTask
from sightline.text.infilling import MASK_TEXT, encode_masked, fill_spans, split_at_masks
from sightline.text.tokenizer import UNK


class DenoisingTask(Seq2SeqTask):
    """Each text with `[MASK]` filled and other corruption corrected."""

    @property
    def marks(self) -> list[int]:
        """The ids of the marks of gaps."""
        assert self.recipe.data.noise is not None
        return [self.vocabulary.source.mark(mark) for mark in self.recipe.data.noise.marks]

    @property
    def banned_marks(self) -> int:
        return 0 if self._names_gaps else super().banned_marks

    @property
    def _names_gaps(self) -> bool:
        """True if outputs are the contents of gaps after their marks, not the whole text (span corruption)."""
        return self.recipe.data.noise is not None and self.recipe.data.noise.kind == "span-corruption"

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        words, source = self.recipe.tokenizer.kind != "character", self.vocabulary.source
        return self.checked([encode_masked(source, text, self.marks, words=words) for text in texts], first)

    def unknown(self, text: str) -> list[str]:
        return super().unknown(text.replace(MASK_TEXT, ""))

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        if any(request.prefix_text is not None or request.phrases is not None for request in requests):
            raise ValueError("denoising does not support prefixes or required phrases; leave them out")
        requests = self.encoded(requests, self.encode_requests(requests))
        results = self.search(requests)(requests, on_done=on_done)
        predictions = []
        for request, hypotheses in zip(requests, results, strict=True):
            whole = [self._whole(request.source or (), hypothesis) for hypothesis in hypotheses]
            lines = [one_line(text) for text in self.vocabulary.target.decode_many(whole)]
            unknown = [tokens.count(UNK) for tokens in whole]
            section = self.recipe.evaluation
            predictions.append(as_predictions(lines, hypotheses, request.options, unknown, section=section))
            if self._names_gaps:
                self._warn_of_forbidden(request, predictions[-1])
        return predictions

    def _whole(self, source: Sequence[int], hypothesis: Hypothesis) -> list[int]:
        """The tokens of the whole text."""
        return fill_spans(source, hypothesis.tokens, self.marks) if self._names_gaps else hypothesis.tokens

    def score_outputs(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        if self._names_gaps:
            raise ValueError(
                "--target: this model writes what stood in each gap (data.noise.kind: span-corruption), and of a text "
                "the phrases for each gap are not known; leave it out"
            )
        return super().score_outputs(texts, targets, first=first)

    def _warn_of_forbidden(self, request: Request, predictions: Sequence[Prediction]) -> None:
        """Warn about forbidden phrases in the text around gaps, alone or together with a filling.

        The search warns about phrases in fillings.
        """
        target = self.vocabulary.target
        kept = target.decode_many(split_at_masks(request.source or (), self.marks)) if request.options.forbid else []
        for phrase in filter(None, map(target.normalize, request.options.forbid)):
            if not any(
                occurrences(phrase, p.text) and not self._cutter.token_spans(phrase, p.tokens, 0) for p in predictions
            ):
                continue
            in_input = any(occurrences(phrase, text) for text in kept)
            why = "it is in the input" if in_input else "a gap makes it together with the input beside it"
            what = (
                f"line {request.number + 1}: the output contains {phrase!r} all the same: {why}, which is not changed"
            )
            warnings.warn(PhraseWarning(what), stacklevel=2)
