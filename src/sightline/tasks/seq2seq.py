"""Answers that are translations: the target of each source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from sightline.decoding.batch import Hypothesis
from sightline.decoding.scoring import log_probabilities
from sightline.decoding.unknown_words import FILE, write_out
from sightline.recipe import Decoding
from sightline.recipe.conflicts import check_copied_words, copies_words
from sightline.recipe.recipe import check_replacing
from sightline.tasks.base import Asked, Prediction, Score, Task, chosen, one_line
from sightline.terminal import plural
from sightline.text.copying import CopyForms, ReadSource, bare, number_copied, read_sources
from sightline.text.tokenizer import SPACE, SPECIALS, UNK


def check_written(task: Task, outputs: Sequence[Sequence[int]], *, first: int, what: str) -> None:
    """Refuse, by its line, what decoders with learned positions cannot write to its end or go on after."""
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

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        if self.recipe.copies_unknown:
            return self._copied(asked, options)
        sources = self.encode(asked.texts, first=asked.first)
        forced = None if asked.prefixes is None else self.vocabulary.target.encode_many(list(asked.prefixes))
        check_written(self, forced or (), first=asked.first, what="prefix")
        found = self._search(sources, options, asked, forced)
        texts_out = iter(self._written(asked, found, options))
        known = options.replace_unknown != "none"  # what is unknown has been replaced
        answers = []
        for guesses in found:
            texts = [one_line(next(texts_out)) for _ in guesses]
            unknown = [0] * len(guesses) if known else None
            answers.append(chosen(texts, guesses, options, unknown, section=self.recipe.evaluation))
        return answers

    def _copied(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        """The same where words of a source may be copied that are in no vocabulary.

        The tokens of a prediction are of the vocabulary: for what was copied, the piece of the source, or UNK.
        """
        words = copies_words(self.recipe.model, self.recipe.tokenizer)
        if asked.phrases is not None and words:
            raise ValueError(
                "phrases are made of words of the vocabulary, and model.copying: true with tokenizer.kind: word writes "
                "others too; leave --require and --forbid out, or cut words into pieces (tokenizer.kind: bpe)"
            )
        if words:
            check_copied_words(options.replace_unknown, options.forbid)
        target = self.vocabulary.target
        sources = self._read(asked.texts, first=asked.first)
        forced = None
        if asked.prefixes is not None:
            ids = target.encode_many(list(asked.prefixes))
            forced = number_copied(target, asked.prefixes, ids, sources, self._forms)
        check_written(self, forced or (), first=asked.first, what="prefix")
        found = self._search([source.ids for source in sources], options, asked, forced)
        answers = []
        for source, guesses in zip(sources, found, strict=True):
            texts = [one_line(self._text(guess.tokens, source)) for guess in guesses]
            unknown = [guess.tokens.count(UNK) for guess in guesses]
            known = [replace(guess, tokens=source.known(guess.tokens, target.size)) for guess in guesses]
            answers.append(chosen(texts, known, options, unknown, section=self.recipe.evaluation))
        return answers

    def _text(self, ids: Sequence[int], source: ReadSource) -> str:
        """The text of an output that may have been copied from a source."""
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
        """The ids of given outputs."""
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

    def judge(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        """Outputs that are told, not searched for, with what the model thinks of them: log p."""
        sources, size = self._read(texts, first=first), self.vocabulary.target.size
        outputs = self._outputs(targets, sources)
        check_written(self, outputs, first=first, what="target")
        scores = log_probabilities(
            self.model, [source.ids for source in sources], outputs, device=self.device, first=first
        )
        told = zip(targets, scores.tolist(), outputs, sources, strict=True)
        return [[Prediction(text, score, source.known(ids, size))] for text, score, ids, source in told]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        return [Score(found.score, len(found.tokens) + 1) for (found,) in self.judge(texts, targets)]

    def _written(self, asked: Asked, found: Sequence[Sequence[Hypothesis]], options: Decoding) -> list[str]:
        """The texts of all hypotheses, one after the other, unknown words replaced if that is asked for."""
        outputs = [guess.tokens for guesses in found for guess in guesses]
        if options.replace_unknown == "none":
            return self.vocabulary.target.decode_many(outputs)
        check_replacing([each.recipe for each in self.members or (self,)], options)
        if options.replace_unknown == "dictionary" and self.dictionary is None:
            raise ValueError(
                f"this run has no {FILE} to replace unknown words by; make it with: sightline train RUN --resume "
                f"decoding.replace_unknown=dictionary, or set decoding.replace_unknown (--replace-unknown) to copy"
            )
        numbers = [number for number, guesses in enumerate(found) for _ in guesses]
        return write_out(
            self.model,
            self.vocabulary,
            [asked.texts[number] for number in numbers],
            outputs,
            dictionary=self.dictionary or {} if options.replace_unknown == "dictionary" else {},
            begun=None if asked.prefixes is None else [asked.prefixes[number] for number in numbers],
            longest=self.recipe.data.clean.truncate_source,
            device=self.device,
        )
