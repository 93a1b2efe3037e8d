"""Sequence-to-sequence tasks, such as translation: the target of each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from sightline.data.collate import ExampleIds, Ids, decoder_only_ids, seq2seq_ids
from sightline.decoding.request import Hypothesis, Request
from sightline.decoding.scoring import log_probabilities
from sightline.decoding.unknown_words import FILE, replace_unknown
from sightline.recipe import Decoding, Recipe
from sightline.recipe.conflicts import check_copied_words, copies_words
from sightline.recipe.recipe import check_replacing
from sightline.tasks.base import Prediction, Score, Task, as_predictions, one_line
from sightline.terminal import plural
from sightline.text.copying import CopyForms, ReadSource, bare, number_copied, read_sources
from sightline.text.tokenizer import SPACE, SPECIALS, UNK


def check_written(task: Task, outputs: Sequence[Sequence[int]], *, first: int, what: str) -> None:
    """Refuse outputs that are longer than the learned positions of a decoder, by line."""
    decoders = [each.recipe.model.decoder for each in task.members or (task,) if each.recipe.model.encoder]
    longest = min((places for each in decoders if each and (places := each.max_positions) is not None), default=None)
    for number, tokens in enumerate(outputs, first + 1):
        if longest is not None and len(tokens) >= longest:
            raise ValueError(
                f"line {number} has a {what} of {plural(len(tokens), 'token')}, and this model writes {longest - 1:,} "
                f"(its learned positions); shorten it"
            )


class Seq2SeqTask(Task):
    """The target of each source. An empty text gives one empty output."""

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return seq2seq_ids if recipe.model.encoder is not None else decoder_only_ids

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        if self.recipe.copies_unknown:
            self._check_copying(requests)
        sources = self._read([request.text for request in requests], first=requests[0].number if requests else 0)
        prefixes = self._prefixes(requests, sources)
        requests = self.encoded(requests, [source.ids for source in sources], prefixes)
        results = self.search(requests)(requests, on_done=on_done)
        predictions = self._copied if self.recipe.copies_unknown else self._written
        return predictions(requests, results, sources)

    def _prefixes(self, requests: Sequence[Request], sources: Sequence[ReadSource]) -> list[list[int]] | None:
        """The prefix of each output as token ids."""
        if all(request.prefix_text is None for request in requests):
            return None
        prefixes = self._outputs([request.prefix_text or "" for request in requests], sources)
        check_written(self, prefixes, first=requests[0].number, what="prefix")
        return prefixes

    def _written(
        self, requests: Sequence[Request], results: Sequence[Sequence[Hypothesis]], sources: Sequence[ReadSource]
    ) -> list[list[Prediction]]:
        """Predictions from hypotheses, with unknown words replaced as requested."""
        texts = iter(self._texts(requests, results))
        predictions = []
        for request, hypotheses in zip(requests, results, strict=True):
            lines = [one_line(next(texts)) for _ in hypotheses]
            unknown = None if request.options.replace_unknown == "none" else [0] * len(hypotheses)
            section = self.recipe.evaluation
            predictions.append(as_predictions(lines, hypotheses, request.options, unknown, section=section))
        return predictions

    def _check_copying(self, requests: Sequence[Request]) -> None:
        """Refuse options that exclude copied words, which are not in the vocabulary."""
        if not copies_words(self.recipe.model, self.recipe.tokenizer):
            return
        for request in requests:
            if request.phrases is not None:
                raise ValueError(
                    "phrases are made of words of the vocabulary, and model.copying: true with tokenizer.kind: word "
                    "writes others too; leave --require and --forbid out, or cut words into pieces (tokenizer.kind: "
                    "bpe)"
                )
            check_copied_words(request.options.replace_unknown, request.options.forbid)

    def _copied(
        self, requests: Sequence[Request], results: Sequence[Sequence[Hypothesis]], sources: Sequence[ReadSource]
    ) -> list[list[Prediction]]:
        """Predictions from hypotheses that may contain words copied from the source.

        The tokens of a prediction are ids of the vocabulary: a copied word is its source piece, or UNK.
        """
        size, section, predictions = self.vocabulary.target.size, self.recipe.evaluation, []
        for request, source, hypotheses in zip(requests, sources, results, strict=True):
            texts = [one_line(self._text(each.tokens, source)) for each in hypotheses]
            unknown = [each.tokens.count(UNK) for each in hypotheses]
            known = [replace(each, tokens=source.known(each.tokens, size)) for each in hypotheses]
            predictions.append(as_predictions(texts, known, request.options, unknown, section=section))
        return predictions

    def _text(self, ids: Sequence[int], source: ReadSource) -> str:
        """The text of an output that may contain copied words."""
        target = self.vocabulary.target
        kept = [number for number in ids if number >= len(SPECIALS) or number == UNK]
        pieces, size = target.all_pieces, target.size
        return target.decode_pieces([pieces[n] if n < size else source.text_of(n, size) for n in kept])

    @cached_property
    def _forms(self) -> CopyForms | None:
        return CopyForms.of(self.vocabulary.target.all_pieces) if self.recipe.copies_forms else None

    def _read(self, texts: Sequence[str], *, first: int = 0) -> list[ReadSource]:
        """Sources as the model reads them."""
        ids = self.encode(texts, first=first)
        if not self.recipe.copies_unknown:
            return [ReadSource(own, []) for own in ids]
        return read_sources(self.vocabulary.source, texts, ids, self._forms)

    def read_source(self, text: str) -> ReadSource:
        """A source as the model reads it, with what it can be copied as."""
        (source,) = self._read([text])
        return source

    def _outputs(self, targets: Sequence[str], sources: Sequence[ReadSource]) -> list[list[int]]:
        """The token ids of target texts."""
        own = self.vocabulary.target
        ids = own.encode_many(list(targets))
        return number_copied(own, targets, ids, sources, self._forms) if self.recipe.copies_unknown else ids

    def unknown_in(self, target: str, text: str) -> list[str]:
        """The pieces of an output that are not in the vocabulary and cannot be copied from this text either."""
        (source,), own = self._read([text]), self.vocabulary.target
        there = {each.text for each in source.surfaces}
        if self._forms is not None:
            there |= {form for each in source.surfaces for form in (bare(each.text), SPACE + bare(each.text))}
        return [
            each.text.removeprefix(SPACE)
            for number, each in zip(own.encode(target), own.surfaces(target), strict=True)
            if number == UNK and each.text not in there
        ]

    def score_outputs(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        """Targets as predictions, with log p(target | text) as score."""
        sources, size = self._read(texts, first=first), self.vocabulary.target.size
        outputs = self._outputs(targets, sources)
        check_written(self, outputs, first=first, what="target")
        scores = log_probabilities(
            self.model, [source.ids for source in sources], outputs, device=self.device, first=first
        )
        scored = zip(targets, scores.tolist(), outputs, sources, strict=True)
        return [[Prediction(text, score, source.known(ids, size))] for text, score, ids, source in scored]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        return [Score(each.score, len(each.tokens) + 1) for (each,) in self.score_outputs(texts, targets)]

    def _texts(self, requests: Sequence[Request], results: Sequence[Sequence[Hypothesis]]) -> list[str]:
        """The texts of all hypotheses in order, with unknown words replaced as requested."""
        outputs = [hypothesis.tokens for hypotheses in results for hypothesis in hypotheses]
        owners = [request for request, hypotheses in zip(requests, results, strict=True) for _ in hypotheses]
        texts = self.vocabulary.target.decode_many(outputs)
        for how in {request.options.replace_unknown: request.options for request in requests}.values():
            if how.replace_unknown == "none":
                continue
            self._check_replacing(how)
            chosen = [n for n, owner in enumerate(owners) if owner.options.replace_unknown == how.replace_unknown]
            prefixes = [owners[number].prefix_text or "" for number in chosen]
            replaced = replace_unknown(
                self.model,
                self.vocabulary,
                [owners[number].text for number in chosen],
                [outputs[number] for number in chosen],
                dictionary=(self.dictionary or {}) if how.replace_unknown == "dictionary" else {},
                prefixes=prefixes if any(prefixes) else None,
                longest=self.recipe.data.clean.truncate_source,
                device=self.device,
            )
            for number, text in zip(chosen, replaced, strict=True):
                texts[number] = text
        return texts

    def _check_replacing(self, options: Decoding) -> None:
        check_replacing([each.recipe for each in self.members or (self,)], options)
        if options.replace_unknown == "dictionary" and self.dictionary is None:
            raise ValueError(
                f"this run has no {FILE} to replace unknown words by; make it with: sightline train RUN --resume "
                f"decoding.replace_unknown=dictionary, or set decoding.replace_unknown=copy"
            )
