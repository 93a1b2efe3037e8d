"""Answers that are translations: the target of each source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sightline.answering.answerer import Answerer, Asked, Prediction, Score, chosen, one_line
from sightline.decoding.batch import Hypothesis
from sightline.decoding.scoring import log_probabilities
from sightline.decoding.unknown_words import FILE, write_out
from sightline.plural import plural
from sightline.recipe import Decoding
from sightline.recipe.bodies import learned_positions
from sightline.recipe.copying import check_copied_words
from sightline.recipe.recipe import check_replacing
from sightline.text.copying import number_copied, number_unknown, without_unknown
from sightline.text.tokenizer import UNK


def check_written(answerer: Answerer, outputs: Sequence[Sequence[int]], *, first: int, what: str) -> None:
    """Refuse, by its line, what decoders with learned positions cannot write to its end or go on after."""
    decoders = [each.recipe.model.decoder for each in answerer.members or (answerer,) if each.recipe.model.encoder]
    longest = min((places for each in decoders if (places := learned_positions(each)) is not None), default=None)
    for number, tokens in enumerate(outputs, first + 1):
        if longest is not None and len(tokens) >= longest:
            raise ValueError(
                f"line {number} has a {what} of {plural(len(tokens), 'token')}, and this model writes {longest - 1:,} "
                f"(its learned positions); shorten it"
            )


class Translator(Answerer):
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
        """The same where words of a source may be copied that are in no vocabulary: their tokens are told as UNK."""
        if asked.phrases is not None:
            raise ValueError(
                "phrases are made of words of the vocabulary, and model.copying: true with tokenizer.kind: word writes "
                "others too; leave --require and --forbid out, or cut words into pieces (tokenizer.kind: bpe)"
            )
        check_copied_words(options.replace_unknown, options.forbid)
        target = self.vocabulary.target
        sources, words = self._numbered(asked.texts, first=asked.first)
        forced = None
        if asked.prefixes is not None:
            forced = number_copied(target, asked.prefixes, target.encode_many(list(asked.prefixes)), words)
        check_written(self, forced or (), first=asked.first, what="prefix")
        found = self._search(sources, options, asked, forced)
        texts = [
            [one_line(target.decode_copied(guess.tokens, own)) for guess in guesses]
            for guesses, own in zip(found, words, strict=True)
        ]
        known = [[replace(g, tokens=without_unknown(g.tokens, target.size)) for g in guesses] for guesses in found]
        unknown = [[guess.tokens.count(UNK) for guess in guesses] for guesses in found]
        parts = zip(texts, known, unknown, strict=True)
        section = self.recipe.evaluation
        return [chosen(own, guesses, options, counts, section=section) for own, guesses, counts in parts]

    def _numbered(self, texts: Sequence[str], *, first: int = 0) -> tuple[list[list[int]], list[list[str]]]:
        """The ids of sources, and of each the words that only copying writes: the first of them has the id V."""
        sources = self.encode(texts, first=first)
        if not self.recipe.copies_unknown:
            return sources, [[] for _ in texts]
        return number_unknown(self.vocabulary.source, texts, sources)

    def copied_words(self, text: str) -> list[str]:
        """The words of a source that are in no vocabulary and may be written all the same; the first has the id V."""
        _, (words,) = self._numbered([text])
        return words

    def unknown_in(self, target: str, text: str) -> list[str]:
        """The pieces of an output that are not in the vocabulary and cannot be copied from this text either."""
        own = self.vocabulary.target
        (ids,) = number_copied(own, [target], [own.encode(target)], [self.copied_words(text)])
        return [piece for piece, number in zip(own.written([target])[0], ids, strict=True) if number == UNK]

    def judge(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        """Outputs that are told, not searched for, with what the model thinks of them: log p."""
        target = self.vocabulary.target
        sources, words = self._numbered(texts, first=first)
        outputs = number_copied(target, targets, target.encode_many(list(targets)), words)
        check_written(self, outputs, first=first, what="target")
        scores = log_probabilities(self.model, sources, outputs, device=self.device, first=first)
        told = zip(targets, scores.tolist(), outputs, strict=True)
        return [[Prediction(text, score, without_unknown(ids, target.size))] for text, score, ids in told]

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
            longest=self.recipe.data.clean.cut_source,
            device=self.device,
        )
