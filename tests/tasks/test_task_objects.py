"""What answerers settle before and after a model is asked: how much it takes, what is refused, how text comes out."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sightline.decoding.mbr import UTILITIES, least_risk
from sightline.decoding.request import Hypothesis, Phrases, Request
from sightline.recipe import Decoding, Recipe
from sightline.recipe.tokenizer import CharacterTokenizer, WordTokenizer
from sightline.tasks.base import Task, TooLong, as_predictions, one_line
from sightline.tasks.classification import ClassificationTask
from sightline.tasks.denoising import DenoisingTask
from sightline.tasks.language_model import LanguageModelTask, _FromBeginning, _Growing
from sightline.tasks.masked_lm import MaskedLMTask
from sightline.tasks.seq2seq import check_written
from sightline.tasks.tagging import TaggingTask
from sightline.text.tokenizer import END, START, Tokenizer
from sightline.text.vocabulary import Vocabulary, label_tokenizer

TEXT = {"kind": "text", "source": "a", "target": "b"}
MBR = {"utility": "chrf", "candidates": 4}


def body(longest: int | None = None) -> dict[str, Any]:
    positions = {"kind": "rotary"} if longest is None else {"kind": "learned", "max_positions": longest}
    return {"kind": "transformer", "layers": 1, "heads": 2, "positions": positions}


def recipe(encoder: int | None, decoder: int | None, *, alone: bool = False, **clean: Any) -> Recipe:
    bodies = {"decoder": body(decoder)} | ({} if alone else {"encoder": body(encoder)})
    data = {"folder": ".", "train": [TEXT], "validation": TEXT, "clean": clean}
    return Recipe.model_validate({"data": data, "model": {"width": 8, **bodies}})


def task(made: Recipe, who: type[Task] = Task, **more: Any) -> Any:
    tokenizer = Tokenizer.train(WordTokenizer(min_count=1), ["a b c d"])
    return who(made, Vocabulary(tokenizer, tokenizer), None, torch.device("cpu"), **more)


def test_an_output_stays_in_its_line() -> None:
    assert one_line("a\rb\nc") == "a b c"


def test_a_source_may_have_as_many_tokens_as_positions_less_its_marks() -> None:
    assert task(recipe(9, 20)).longest_source() == 8
    assert task(recipe(None, 20)).longest_source() is None
    assert task(recipe(None, 9, alone=True)).longest_source() == 7  # what is written begins behind its end mark
    members = tuple(task(recipe(longest, None)) for longest in (20, None, 9))
    assert task(recipe(20, None), members=members).longest_source() == 8
    assert task(recipe(20, None), members=members[1:2]).longest_source() is None


def test_a_text_that_is_too_long_is_named_by_its_number_and_what_it_is() -> None:
    made = recipe(5, 20)
    assert task(made).checked([[4] * 4], 10) == [[4] * 4]
    with pytest.raises(TooLong, match=r"line 12 has 5 tokens and this model takes 4 "):
        task(made).checked([[4], [4] * 5], 10)
    with pytest.raises(TooLong, match=r"sentence 1 has 5 tokens"):
        task(made, TaggingTask).checked([[4] * 5], 0)


def test_sources_are_cut_as_the_recipe_says_and_those_are_counted_that_lose_something() -> None:
    made = task(recipe(None, None, truncate_source=2))
    assert [len(ids) for ids in made.encode(["a", "a b", "a b c"])] == [1, 2, 2]
    assert made.cut_short(["a", "a b", "a b c"]) == 1
    assert task(recipe(None, None)).cut_short(["a b c"]) == 0


def test_what_cannot_be_written_to_its_end_is_refused_by_the_line() -> None:
    made = task(recipe(None, 4))
    check_written(made, [[5] * 3], first=10, what="target")
    with pytest.raises(ValueError, match=r"line 12 has a target of 4 tokens, and this model writes 3 "):
        check_written(made, [[5], [5] * 4], first=10, what="target")
    check_written(task(recipe(None, 4, alone=True)), [[5] * 9], first=0, what="prefix")  # told with its source
    members = (task(recipe(None, 9)), task(recipe(None, None)), made)
    with pytest.raises(ValueError, match=r"line 1 has a prefix of 5 tokens, and this model writes 3 "):
        check_written(task(recipe(None, 9), members=members), [[5] * 5], first=0, what="prefix")


@pytest.mark.parametrize(
    ("who", "told"),
    [
        (ClassificationTask, "labels contain no phrases"),
        (TaggingTask, "labels contain no phrases"),
        (MaskedLMTask, "masked-lm does not support prefixes"),
        (DenoisingTask, "denoising does not support prefixes"),
    ],
)
def test_phrases_are_refused_where_nothing_is_searched_for(who: type[Task], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        task(recipe(None, None), who).predict([Request("a", phrases=Phrases())])


@pytest.mark.parametrize("who", [MaskedLMTask, DenoisingTask, ClassificationTask, TaggingTask, LanguageModelTask])
def test_beginnings_are_refused_where_there_are_none(who: type[Task]) -> None:
    with pytest.raises(ValueError, match=r"begin|prefixes"):
        task(recipe(None, None), who).predict([Request("a", prefix_text="a")])


def test_outputs_are_weighed_by_their_log_probability_and_cut_to_the_n_best() -> None:
    texts = ["a cat sat", "a cat sits", "dogs ran", "dogs run"]
    found = [Hypothesis([n], score, log) for n, (score, log) in enumerate([(0, -9), (-1, -8), (-2, -1), (-3, -2)])]
    options = Decoding.model_validate({"beam": 4, "nbest": 2, "mbr": {**MBR, "weights": "probability"}})
    wanted = least_risk(texts, partial(UTILITIES["chrf"], section=None), [each.log_probability for each in found])[:2]
    assert [(guess.tokens, guess.score) for guess in as_predictions(texts, found, options)] == [
        ([n], u) for n, u in wanted
    ]
    assert wanted[0][0] == 2


@pytest.mark.parametrize(("options", "what"), [({"forbid": ["a"]}, "forbid"), ({"mbr": MBR, "beam": 4}, "mbr")])
def test_what_looks_at_whole_outputs_cannot_stream(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=rf"decoding\.{what} compares whole outputs"):
        task(recipe(None, None), LanguageModelTask).stream("a", Decoding.model_validate(options), print)


def test_a_character_is_handed_over_when_all_its_bytes_have_come() -> None:
    texts = {(): "", (5,): "a", (5, 6): "a\ufffd", (5, 6, 7): "a€", (5, 6, 7, END): "a€", (5, 6, 7, 6): "a€\ufffd"}
    shown: list[str] = []
    growing = _Growing(lambda ids: texts[tuple(ids)], shown.append)
    for token in (5, 6, 7, END):
        growing.add(token)
    assert shown == ["a", "€"]
    growing.show([5, 6, 7, 6], whole=True)  # no more will come
    assert shown == ["a", "€", "\ufffd"]


@pytest.mark.parametrize("start", [True, False])
def test_a_text_begins_behind_an_end_mark(start: bool) -> None:
    read: list[list[list[int]]] = []

    def advance(tokens: torch.Tensor, state: Any, layout: Any = None) -> tuple[torch.Tensor, Any]:
        read.append(tokens.tolist())
        return tokens, state

    inner = SimpleNamespace(cross_attention_paths=(), longest=9, begin=lambda memory: None, advance=advance)
    model = _FromBeginning(inner, start=start)
    state = model.begin(SimpleNamespace(states=torch.zeros(2, 1, 4)))  # type: ignore[arg-type]
    model.advance(torch.tensor([[START], [7]]), state)
    assert read == [*([[[START], [START]]] if start else []), [[END], [7]]]
    assert model.longest == (8 if start else 9)


def labels_of(who: type[ClassificationTask], logs: Any) -> Any:
    """An answerer whose model says this of every text: log-probabilities of x, y and z."""

    class Told(who):  # type: ignore[misc, valid-type]
        def _logs(self, sources: Any, tokens: int) -> list[np.ndarray]:
            return [np.log(np.array(logs)) for _ in sources]

    source = Tokenizer.train(CharacterTokenizer(), ["ab c"])
    words = Vocabulary(
        source, label_tokenizer(["x", "x", "x", "y", "y", "z"], whole=who is ClassificationTask), shared=False
    )
    return Told(recipe(None, None), words, None, torch.device("cpu"))


def test_a_classifier_tells_its_labels_by_their_names_tokens_and_log_probabilities() -> None:
    made = labels_of(ClassificationTask, [0.2, 0.5, 0.3])
    for nbest, wanted in ((2, ["y", "z"]), (9, ["y", "z", "x"])):
        (found,) = made.predict([Request("ab", Decoding(beam=9, nbest=nbest))])
        assert [guess.text for guess in found] == wanted
    assert [guess.tokens for guess in found] == [[5], [6], [4]]
    assert [guess.score for guess in found] == pytest.approx(np.log([0.5, 0.3, 0.2]))


def test_a_tagger_tells_what_is_said_at_the_first_piece_of_each_word_and_the_sum_of_it() -> None:
    made = labels_of(TaggingTask, [[0.2, 0.5, 0.3], [0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])
    ((found,),) = made.predict([Request("ab  c")])  # too many spaces make no word
    assert (found.text, found.tokens) == ("y z", [5, 6])
    assert found.score == pytest.approx(np.log(0.5 * 0.7))
