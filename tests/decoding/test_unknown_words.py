"""Unknown words are replaced through the attention: a model that looks where it is told shows by what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sightline.data.sources import Example
from sightline.decoding.request import Request
from sightline.decoding.scoring import attention_to_source, strongest_links
from sightline.decoding.unknown_words import (
    Pairings,
    Translation,
    learn_dictionary,
    read_dictionary,
    replace_unknown,
    write_dictionary,
)
from sightline.layers.layout import Layout
from sightline.layers.tap import TapModule
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe
from sightline.recipe.tokenizer import WordTokenizer
from sightline.run_folder import RunError
from sightline.tasks.base import Prediction, Task, build_task
from sightline.text.tokenizer import END, UNK, Tokenizer
from sightline.text.vocabulary import Vocabulary

# --- links ----------------------------------------------------------------------------------------------------------

SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10], [4, 4]]
TARGETS = [[7, 4], [8, 8, 9, 4, 10, 11], [], [5]]


@pytest.mark.parametrize("tokens", [1, 12, 4096])
def test_the_strongest_links_of_many_are_those_of_each_alone(looking_model: Seq2Seq, tokens: int) -> None:
    result = strongest_links(looking_model, SOURCES, TARGETS, tokens=tokens)
    for source, target, links in zip(SOURCES, TARGETS, result, strict=True):
        weights = attention_to_source(looking_model, source, target)
        assert weights is not None
        assert links.tolist() == weights[: len(target), : len(source)].argmax(-1).tolist()


def test_nothing_links_the_output_of_a_model_without_attention(script: type[Any]) -> None:
    with pytest.raises(ValueError, match="no attention to a source"):
        strongest_links(script(lambda first, prefix: {END: 1.0}), [[5]], [[6]])


# --- the dictionary -------------------------------------------------------------------------------------------------


def test_the_translation_of_a_word_is_its_most_frequent_partner() -> None:
    pairings = Pairings()
    pairings.add(["der", "Hund"], ["the", "dog"], [0, 1])
    pairings.add(["der", "Hund"], ["the", "hound"], [0, 1])
    pairings.add(["ein", "Hund"], ["a", "dog"], [0, 1])
    assert pairings.best(2) == {"Hund": Translation("dog", 2), "der": Translation("the", 2)}
    assert pairings.best(1)["ein"] == Translation("a", 1)
    assert list(pairings.best(1)) == ["Hund", "der", "ein"]  # in the order of the alphabet


@pytest.mark.parametrize("word", ["gadget", "widget"])
def test_of_equally_frequent_partners_the_rarer_word_is_taken(word: str) -> None:
    """It is more likely to be about this word: what is frequent is looked for everywhere."""
    pairings = Pairings()
    pairings.add(["Gerät", "der", "der"], [word, "the", "the"], [0, 1, 2])
    pairings.add(["Gerät"], ["the"], [0])
    assert pairings.best(1)["Gerät"] == Translation(word, 1)


def test_of_equally_rare_ones_it_is_the_first_of_the_alphabet() -> None:
    pairings = Pairings()
    pairings.add(["Gerät", "Gerät"], ["widget", "gadget"], [0, 1])
    assert pairings.best(1)["Gerät"] == Translation("gadget", 1)


def test_numbers_and_words_with_marks_in_them_are_words() -> None:
    pairings = Pairings()
    pairings.add(["1999", "U-Bahn"], ["1999", "o'clock"], [0, 1])
    assert pairings.best(1) == {"1999": Translation("1999", 1), "U-Bahn": Translation("o'clock", 1)}


def test_marks_are_no_words() -> None:
    pairings = Pairings()
    pairings.add(["Gerät", "."], [".", "gadget"], [0, 1])
    assert pairings.best(1) == {}


def test_a_dictionary_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_dictionary(tmp_path) is None
    write_dictionary(tmp_path, {"Gerät": Translation("gadget", 3), "Straße": Translation("street\u2028", 1)})
    assert (tmp_path / "dictionary.tsv").read_text(encoding="utf-8").startswith("Gerät\tgadget\t3\n")
    assert read_dictionary(tmp_path) == {"Gerät": "gadget", "Straße": "street\u2028"}


def test_a_damaged_dictionary_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "dictionary.tsv").write_text("a\tb\t1\nc\td\n")
    with pytest.raises(RunError, match=r"dictionary\.tsv, line 2 has 2 columns, not 3"):
        read_dictionary(tmp_path)
    (tmp_path / "dictionary.tsv").write_text("a\tb\tc\t1\n")
    with pytest.raises(RunError, match=r"dictionary\.tsv, line 1 has 4 columns, not 3"):
        read_dictionary(tmp_path)


# --- a model that looks where it is told -----------------------------------------------------------------------------

GERMAN, ENGLISH = "der Hund sieht die Katze", "the dog sees a cat"
PAIRS = {"der": "the", "Hund": "dog", "sieht": "sees", "die": "a", "Katze": "cat"}


def vocabulary(lowercase: bool = False) -> Vocabulary:
    section = WordTokenizer(min_count=1, shared=False, lowercase=lowercase)
    return Vocabulary(Tokenizer.train(section, [GERMAN]), Tokenizer.train(section, [ENGLISH]), shared=False)


@dataclass(frozen=True)
class PointerState:
    source: Tensor  # (B, S), END behind each sentence
    lengths: Tensor  # (B, W) number of words

    def select(self, parents: Tensor) -> PointerState:
        return replace(self, lengths=self.lengths.gather(1, parents))

    def keep(self, sentences: Tensor) -> PointerState:
        return PointerState(self.source[sentences], self.lengths[sentences])


class Pointer(nn.Module):
    """Translates word by word from the last to the first, and is not quite sure (0.8) of what it knows: or unknown.

    It looks at the end mark most, and then at the word that is due.
    """

    cross_attention_paths = ("attention",)
    longest: int | None = None

    def __init__(self, words: Vocabulary) -> None:
        super().__init__()
        self.attention = TapModule()
        self.size = words.target.size
        self.pairs = {words.source.encode(word)[0]: words.target.encode(PAIRS[word])[0] for word in PAIRS}

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        return source

    def begin(self, memory: Tensor) -> PointerState:
        return PointerState(memory, memory.new_zeros(len(memory), 1))

    def advance(self, tokens: Tensor, state: PointerState, layout: Layout | None = None) -> tuple[Tensor, PointerState]:
        sentences, width = state.lengths.shape
        steps = tokens.shape[1]
        features = torch.full((sentences, width, steps, self.size), float("-inf"))
        weights = torch.zeros(sentences, width, steps, state.source.shape[1])
        for b, w, t in np.ndindex(sentences, width, steps):
            length = state.source[b].tolist().index(END)
            place = length - 1 - int(state.lengths[b, w]) - t
            weights[b, w, t, length] = 0.6
            weights[b, w, t, max(place, 0)] += 0.4
            due = self.pairs.get(int(state.source[b, place]), UNK) if place >= 0 else END
            features[b, w, t, UNK] = np.log(0.2) if place >= 0 else float("-inf")
            features[b, w, t, due] = np.log(0.8) if due not in (UNK, END) else 0.0
        self.attention.tap("weights", weights.flatten(1, 2)[:, None])
        return features.view(-1, steps, self.size), replace(state, lengths=state.lengths + steps)

    def logits(self, features: Tensor) -> Tensor:
        return features.clone()


def recipe(**decoding: Any) -> Recipe:
    source = {"kind": "text", "source": "a", "target": "b"}
    recurrent = {"kind": "recurrent"}
    return Recipe.model_validate(
        {
            "data": {"folder": ".", "train": [source], "validation": source},
            "tokenizer": {"kind": "word", "shared": False},
            "model": {"width": 8, "encoder": recurrent, "decoder": recurrent, "tie": "none"},
            "decoding": {"beam": 1, **decoding},
        }
    )


def answerer(dictionary: dict[str, str] | None = None, lowercase: bool = False, **decoding: Any) -> Task:
    words = vocabulary(lowercase)
    return build_task(recipe(**decoding), words, Pointer(words), torch.device("cpu"), dictionary)


def predicted(task: Task, texts: list[str], prefixes: list[str] | None = None) -> list[list[Prediction]]:
    pairs = zip(texts, prefixes or [None] * len(texts), strict=True)
    return task.predict([Request(text, task.recipe.decoding, prefix_text=prefix) for text, prefix in pairs])


def answers(task: Task, texts: list[str], **more: Any) -> list[list[str]]:
    return [[guess.text for guess in result] for result in predicted(task, texts, **more)]


TEXTS = ["der Hund", "", "Gerät sieht die Züricher Katze", "Ampère", "die  Züricher sieht (Gerät) der Hund Gerät"]


def test_without_replacement_unk_is_shown() -> None:
    assert answers(answerer(), TEXTS[:3]) == [["dog the"], [""], ["cat <unk> a sees <unk>"]]


@pytest.mark.parametrize("batch_tokens", [1, 14, 8192])
def test_an_unknown_word_becomes_the_attended_source_word(batch_tokens: int) -> None:
    result = answers(answerer(replace_unknown="copy", batch_tokens=batch_tokens), TEXTS)
    assert result == [
        ["dog the"],
        [""],
        ["cat Züricher a sees Gerät"],
        ["Ampère"],
        ["Gerät dog the ) Gerät ( sees Züricher a"],
    ]


def test_with_a_lowercase_vocabulary_copied_words_keep_their_case_and_the_dictionary_ignores_it() -> None:
    assert answers(answerer(replace_unknown="copy", lowercase=True), ["DER Gerät"]) == [["Gerät the"]]
    task = answerer({"gerät": "gadget"}, replace_unknown="dictionary", lowercase=True)
    assert answers(task, ["DER Gerät"]) == [["gadget the"]]


def test_words_in_the_dictionary_are_translated_and_other_words_copied() -> None:
    task = answerer({"Gerät": "gadget", "Hund": "hound"}, replace_unknown="dictionary")
    assert answers(task, TEXTS[2:4]) == [["cat Züricher a sees gadget"], ["Ampère"]]


def test_copying_does_not_look_into_the_dictionary() -> None:
    assert answers(answerer({"Gerät": "gadget"}, replace_unknown="copy"), ["Gerät"]) == [["Gerät"]]


def test_every_one_of_the_best_has_its_own_unknown_words() -> None:
    task = answerer({"Hund": "hound"}, replace_unknown="dictionary", beam=4, nbest=4, length_penalty=0.0)
    texts = ["Katze", "der Hund", "Gerät der"]
    result = predicted(task, texts)
    assert {guess.text for guess in result[1]} == {"dog the", "hound the", "dog der", "hound der"}
    assert result[1][0].text == "dog the"
    assert [guess.text for guess in result[0]][:2] == ["cat", "Katze"]
    assert [guess.text for guess in result[2]][:2] == ["the Gerät", "der Gerät"]
    assert [UNK in guess.tokens for guess in result[2]][:2] == [True, True]  # the tokens stay what the model wrote


def test_the_unknown_words_of_a_given_beginning_are_its_own() -> None:
    result = answers(answerer(replace_unknown="copy"), ["Gerät der Hund"], prefixes=["hound"])
    assert result == [["hound the Gerät"]]
    both = answers(answerer(replace_unknown="copy"), ["Hund", "Gerät der Hund"], prefixes=["dog", "hound"])
    assert both == [["dog"], ["hound the Gerät"]]


def test_only_tokens_before_the_cut_are_attended() -> None:
    words = vocabulary()
    result = replace_unknown(Pointer(words), words, ["der Hund Gerät"], [[UNK]], dictionary={}, longest=2)
    assert result == ["Hund"]


def test_without_a_dictionary_the_remedy_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"no dictionary\.tsv .* --resume decoding\.replace_unknown=dictionary, or set"
    ):
        answers(answerer(replace_unknown="dictionary"), ["Gerät"])


def test_a_dictionary_is_learned_from_where_the_model_looks() -> None:
    """The model reads from the last word to the first, whatever the target says."""
    words = vocabulary()
    examples = [
        Example("der Hund sieht Gerät", "gadget sees dog the"),
        Example("Gerät .", ". gadget"),
        Example("Züricher", "Zurich"),
        Example("", "nothing"),
        Example("der der der der der der der der Umlauf", "circulation the the the the the the the the"),
        Example("Umlauf", "circulation the the the the the the the the"),
    ]
    result = learn_dictionary(Pointer(words), words, examples, longest=8)
    expected = {"Gerät": ("gadget", 2), "Züricher": ("Zurich", 1), "der": ("the", 1), "Hund": ("dog", 1)}
    assert result == {word: Translation(*entry) for word, entry in sorted({**expected, "sieht": ("sees", 1)}.items())}
    assert learn_dictionary(Pointer(words), words, examples, longest=4) == result  # the longest of them has four
    assert learn_dictionary(Pointer(words), words, examples, longest=8, least=2) == {"Gerät": Translation("gadget", 2)}


def test_a_dictionary_is_learned_from_cut_sources() -> None:
    words = vocabulary()
    result = learn_dictionary(Pointer(words), words, [Example("der Hund Gerät Katze", "dog the")], longest=2, cut=2)
    assert result == {"der": Translation("the", 1), "Hund": Translation("dog", 1)}
    assert learn_dictionary(Pointer(words), words, [Example("der Hund Gerät", "dog the")], longest=2) == {}


def test_a_dictionary_has_words_as_the_tokenizers_see_them() -> None:
    words = vocabulary(lowercase=True)
    result = learn_dictionary(Pointer(words), words, [Example("DER Gerät", "GADGET The")], longest=8)
    assert result == {"der": Translation("the", 1), "gerät": Translation("gadget", 1)}


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer": {"kind": "bpe"}},
            r"replace_unknown: copy .* tokenizer\.kind: word or whitespace, not seq2seq with bpe",
        ),
        (
            {"model": {"decoder": {"kind": "recurrent", "attention": {"kind": "none"}}}},
            r"needs a decoder with attention",
        ),
    ],
)
def test_replacement_needs_words_and_attention(changes: dict[str, Any], message: str) -> None:
    values = recipe().model_dump()
    for section, own in changes.items():
        values[section] = {**values[section], **own} if section == "model" else own
    values["decoding"]["replace_unknown"] = "copy"
    with pytest.raises(ValueError, match=message):
        Recipe.model_validate(values)
