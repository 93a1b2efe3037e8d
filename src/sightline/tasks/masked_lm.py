"""Masked language modelling: the text with its gaps filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sightline.data.collate import ExampleIds, Ids, masked_lm_ids, padded_batch
from sightline.decoding.request import Request, length_batches
from sightline.recipe import Recipe
from sightline.recipe.data import MASK
from sightline.tasks.base import Prediction, Task, tokens_at_once
from sightline.text.infilling import MASK_TEXT, encode_masked
from sightline.text.tokenizer import PAD, SPECIALS, UNK


class MaskedLMTask(Task):
    """Each text with every `[MASK]` filled by a piece; with n-best, the most probable fillings of all gaps.

    Gaps are filled independently, so the probability of a filling is a product.
    """

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return masked_lm_ids

    def longest_source(self) -> int | None:
        longest = super().longest_source()
        return None if longest is None else longest - 1  # START before it

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        source, words = self.vocabulary.source, self.recipe.tokenizer.kind != "character"
        mark = [source.mark(MASK)]
        return self.checked([encode_masked(source, text, mark, words=words) for text in texts], first)

    def unknown(self, text: str) -> list[str]:
        return super().unknown(text.replace(MASK_TEXT, ""))

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        if any(request.prefix_text is not None or request.phrases is not None for request in requests):
            raise ValueError("masked-lm does not support prefixes or required phrases; leave them out")
        sources = self.encode_requests(requests)
        gaps = [[place for place, token in enumerate(ids) if token == self._mark] for ids in sources]
        logs = self._logs(sources, gaps, tokens_at_once(requests, self.device))
        return [
            [
                self._filled(ids, places, chosen, score)
                for chosen, score in best_fillings(own, request.options.nbest, self._first)
            ]
            for request, ids, places, own in zip(requests, sources, gaps, logs, strict=True)
        ]

    @property
    def _mark(self) -> int:
        return self.vocabulary.source.mark(MASK)

    @property
    def _first(self) -> int:
        """The first id after the special tokens and marks."""
        return len(SPECIALS) + len(self.vocabulary.source.marks)

    def _filled(self, ids: list[int], places: list[int], chosen: Sequence[int], score: float) -> Prediction:
        tokens = list(ids)
        for place, token in zip(places, chosen, strict=True):
            tokens[place] = token
        return Prediction(self.vocabulary.target.decode(tokens), score, tokens, unknown=tokens.count(UNK))

    def _logs(self, sources: Sequence[list[int]], gaps: Sequence[list[int]], tokens: int) -> list[np.ndarray]:
        """(gaps, V − first) log-probabilities of the pieces at the gaps of each text, without special tokens."""
        if self.members:
            every = [each._logs(sources, gaps, tokens) for each in self.members if isinstance(each, MaskedLMTask)]
            return [self._mean(parts) for parts in zip(*every, strict=True)]
        results = [np.empty((0, 1), np.float32)] * len(sources)
        indices = [number for number, places in enumerate(gaps) if places]
        for group in length_batches([len(sources[number]) + 2 for number in indices], tokens):
            numbers = [indices[index] for index in group]
            read = [np.asarray(sources[number], np.int64) for number in numbers]
            masked = [np.where(ids == self._mark, ids, PAD) for ids in read]
            batch = padded_batch(masked_lm_ids(read, masked), np.arange(len(read)))
            batch = batch.to(self.device) if self.device.type != "cpu" else batch
            with torch.inference_mode():
                features = self.model(batch.source, batch.source_layout, batch.decoder_input)  # (gaps of all, D)
                logs = self.model.logits(features).float()[:, self._first :].log_softmax(-1).cpu().numpy()
            ends = np.cumsum([len(gaps[number]) for number in numbers])
            for number, own in zip(numbers, np.split(logs, ends[:-1]), strict=True):
                results[number] = own
        return results


def best_fillings(logs: np.ndarray, count: int, first: int = 0) -> list[tuple[list[int], float]]:
    """The `count` most probable fillings of independent gaps with their log p; logs is (gaps, V)."""
    best: list[tuple[list[int], float]] = [([], 0.0)]
    for row in logs:
        likeliest = np.argsort(-row, kind="stable")[:count].tolist()
        longer = [([*chosen, first + k], score + float(row[k])) for chosen, score in best for k in likeliest]
        best = sorted(longer, key=lambda filling: -filling[1])[:count]
    return best
