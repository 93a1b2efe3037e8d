"""Texts in, answers out, whatever the task: translations, continuations, labels, a tag for each word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sightline.answerer import Answerer, Prediction
from sightline.decoding.batch import Hypothesis
from sightline.decoding.generate import generate
from sightline.decoding.phrases import Phrases
from sightline.decoding.unknown_words import FILE, write_out
from sightline.filling import Filling
from sightline.labelling import Classifying, Tagging
from sightline.layers.layout import Layout
from sightline.models.counted import CountedModel
from sightline.models.protocol import Memory
from sightline.recipe import Decoding, Recipe, TaskName
from sightline.recipe.copying import check_copied_words
from sightline.recipe.data import PlainSource
from sightline.text.copying import number_copied, number_unknown, without_unknown
from sightline.text.gaps import encode_gaps, fill_spans
from sightline.text.tokenizer import END, START, Vocabulary
from sightline.training.windows import carries


class Translator(Answerer):
    """The target of each source. An empty text gives one empty output."""

    def answer(
        self,
        texts: Sequence[str],
        options: Decoding,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
    ) -> list[list[Prediction]]:
        if self.recipe.copies_unknown:
            return self._copied(texts, options, prefixes, first, phrases)
        sources = self.encode(texts, first=first)
        forced = None if prefixes is None else self.vocabulary.target.encode_many(list(prefixes))
        found = self._search(sources, options, forced, first, phrases)
        texts_out = iter(self._written(texts, found, options, prefixes))
        made = [[Prediction(one_line(next(texts_out)), g.score, g.tokens) for g in guesses] for guesses in found]
        return [_chosen(guesses, options) for guesses in made]

    def _copied(
        self,
        texts: Sequence[str],
        options: Decoding,
        prefixes: Sequence[str] | None,
        first: int,
        phrases: Sequence[Phrases] | None,
    ) -> list[list[Prediction]]:
        """The same where words of a source may be copied that are in no vocabulary: their tokens are told as UNK."""
        if phrases is not None:
            raise ValueError(
                "phrases are made of words of the vocabulary, and model.copying: true with tokenizer.kind: word writes "
                "others too; leave --require and --forbid out, or cut words into pieces (tokenizer.kind: bpe)"
            )
        check_copied_words(options.replace_unknown, options.forbid)
        target = self.vocabulary.target
        sources, words = number_unknown(self.vocabulary.source, texts, self.encode(texts, first=first))
        forced = None
        if prefixes is not None:
            forced = number_copied(target, prefixes, target.encode_many(list(prefixes)), words)
        found = self._search(sources, options, forced, first, None)
        made = [
            [
                Prediction(
                    one_line(target.decode_copied(guess.tokens, own)),
                    guess.score,
                    without_unknown(guess.tokens, target.size),
                )
                for guess in guesses
            ]
            for guesses, own in zip(found, words, strict=True)
        ]
        return [_chosen(guesses, options) for guesses in made]

    def _written(
        self,
        texts: Sequence[str],
        found: Sequence[Sequence[Hypothesis]],
        options: Decoding,
        prefixes: Sequence[str] | None,
    ) -> list[str]:
        """The texts of all hypotheses, one after the other, unknown words replaced if that is asked for."""
        outputs = [guess.tokens for guesses in found for guess in guesses]
        if options.replace_unknown == "none":
            return self.vocabulary.target.decode_many(outputs)
        self.recipe.check_replacing(options)
        if options.replace_unknown == "dictionary" and self.dictionary is None:
            raise ValueError(
                f"this run has no {FILE} to replace unknown words by; make it with: sightline train RUN --resume "
                f"decoding.replace_unknown=dictionary, or set decoding.replace_unknown (--replace-unknown) to copy"
            )
        numbers = [number for number, guesses in enumerate(found) for _ in guesses]
        return write_out(
            self.model,
            self.vocabulary,
            [texts[number] for number in numbers],
            outputs,
            dictionary=self.dictionary or {} if options.replace_unknown == "dictionary" else {},
            begun=None if prefixes is None else [prefixes[number] for number in numbers],
            longest=self.recipe.data.clean.cut_source,
            device=self.device,
        )


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

    def answer(
        self,
        texts: Sequence[str],
        options: Decoding,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
    ) -> list[list[Prediction]]:
        if prefixes is not None or phrases is not None:
            raise ValueError("a text is mended as it stands: prefixes and phrases have no place; leave them out")
        return self.answer_ids(self.encode(texts, first=first), options, first=first)

    def answer_ids(self, sources: Sequence[list[int]], options: Decoding, *, first: int = 0) -> list[list[Prediction]]:
        """The same for texts as ids, with marks for gaps."""
        found = self._search(sources, options, None, first, None)
        made = []
        for source, guesses in zip(sources, found, strict=True):
            whole = [
                fill_spans(source, guess.tokens, self.marks) if self._names_gaps else guess.tokens for guess in guesses
            ]
            texts = self.vocabulary.target.decode_many(whole)
            made.append([Prediction(one_line(text), g.score, g.tokens) for text, g in zip(texts, guesses, strict=True)])
        return [_chosen(guesses, options) for guesses in made]


class Continuer(Answerer):
    """Each text with what may follow it; where it learned from many documents, the text is the beginning of one."""

    def longest_source(self) -> int | None:
        longest = super().longest_source()
        return longest if longest is None or not self.begins else longest - 1  # the end mark before it

    @property
    def begins(self) -> bool:
        """Whether there were beginnings to learn; a count of n-grams has them behind its start mark.

        The models of an ensemble come with their own.
        """
        if self.members:
            return False
        train = self.recipe.data.train
        whole = all(isinstance(source, PlainSource) and source.document == "file" for source in train)
        return not whole and not isinstance(self.model, CountedModel)

    def writer(self) -> Any:
        return _Beginning(self.model, start=not carries(self.recipe)) if self.begins else self.model

    def answer(
        self,
        texts: Sequence[str],
        options: Decoding,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
    ) -> list[list[Prediction]]:
        if prefixes is not None:
            raise ValueError("a language model goes on after the text itself; put the beginning there, not in prefixes")
        prompts = self.encode(texts, first=first)
        found = self._search(None, options, prompts, first, phrases)
        texts_out = iter(self.vocabulary.target.decode_many([guess.tokens for guesses in found for guess in guesses]))
        made = [[Prediction(next(texts_out), g.score, g.tokens) for g in guesses] for guesses in found]
        return [_chosen(guesses, options) for guesses in made]

    def stream(self, text: str, options: Decoding, write: Callable[[str], None]) -> Prediction:
        """Go on after one text and hand over what is new as soon as it is known, the text itself first.

        All that is handed over, one after the other, is the text of the prediction, whatever a token is: a piece of a
        word, or of a character.
        """
        if options.mbr is not None or options.forbid:
            what = "mbr" if options.mbr is not None else "forbid"
            raise ValueError(f"decoding.{what} looks at whole outputs, so nothing can be told before their end")
        options = options.model_copy(update={"nbest": 1})  # which of several is best is known only at their end
        growing = _Growing(self.vocabulary.target.decode, write)
        (prompt,) = self.encode([text])
        ((found, *_),) = generate(
            self.writer(),
            None,
            options,
            device=self.device,
            prefixes=[prompt],
            heard=growing.hear,
            marks=self.unsaid,
        )
        growing.show(found.tokens, whole=True)
        return Prediction(self.vocabulary.target.decode(found.tokens), found.score, found.tokens)


class _Beginning(nn.Module):
    """A language model that writes from the beginning of a text on, not from its midst.

    Windows of the training text begin anywhere, so a start mark says nothing of what comes (and a model that reads on
    from window to window never sees one); it is an end mark that stands before the beginning of a document. So the
    start mark of a search is read as one, behind the start mark of a window where the model knows that.
    """

    def __init__(self, model: Any, *, start: bool) -> None:
        super().__init__()
        self.model, self.start = model, start
        self.looks: tuple[str, ...] = model.looks
        self.longest: int | None = None if model.longest is None else model.longest - start

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        memory: Memory = self.model.encode(source, layout)
        return memory

    def begin(self, memory: Memory) -> Any:
        state = self.model.begin(memory)
        if self.start:
            marks = torch.full((len(memory.states), 1), START, device=memory.states.device)
            _, state = self.model.advance(marks, state)
        return state

    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        found: tuple[Tensor, Any] = self.model.advance(tokens.masked_fill(tokens == START, END), state, layout)
        return found

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.model.logits(features)
        return scores


class _Growing:
    """Tokens that come one by one, as the text that each adds.

    A token need not have a text of its own (the space before it is not written at the start; a character may be made
    of several), so it is always all tokens that are decoded, and only what is new is handed on.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], write: Callable[[str], None]) -> None:
        self.decode, self.write = decode, write
        self.tokens: list[int] = []
        self.shown = 0

    def hear(self, newest: Tensor) -> None:
        self.tokens.append(int(newest[0, 0]))
        self.show(self.tokens)

    def show(self, tokens: Sequence[int], *, whole: bool = False) -> None:
        text = self.decode(tokens)
        if not whole:
            text = text.rstrip("\ufffd")  # a character of which not all bytes have come
        if len(text) > self.shown:
            self.write(text[self.shown :])
            self.shown = len(text)


ANSWERERS: dict[TaskName, type[Answerer]] = {
    "seq2seq": Translator,
    "language-model": Continuer,
    "masked-words": Filling,
    "classify": Classifying,
    "tag": Tagging,
}


def build_answerer(
    recipe: Recipe,
    vocabulary: Vocabulary,
    model: Any,
    device: torch.device,
    dictionary: Mapping[str, str] | None = None,
) -> Answerer:
    """Who answers for a model."""
    mends = recipe.task == "seq2seq" and recipe.data.noise is not None
    who = Restorer if mends else ANSWERERS[recipe.task]
    return who(recipe, vocabulary, model, device, dictionary)


def one_line(text: str) -> str:
    """An output never breaks the line-by-line contract, whatever characters the vocabulary holds."""
    return text.replace("\r", " ").replace("\n", " ")


def _chosen(guesses: list[Prediction], options: Decoding) -> list[Prediction]:
    """The outputs asked for: all there are, or those of the least risk, with their expected utility as score."""
    if options.mbr is None:
        return guesses
    from sightline.decoding.risk import least_risk

    order = least_risk([guess.text for guess in guesses], options.mbr.utility)
    return [Prediction(guesses[place].text, worth, guesses[place].tokens) for place, worth in order[: options.nbest]]
