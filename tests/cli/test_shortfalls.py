"""What a model cannot read or write: the answerer says it of each text, and here it is added up and told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.cli.lines import Shortfalls, UnknownPieces, print_notes, report_unknown_target
from sightline.recipe import Decoding
from sightline.recipe.tokenizer import WordTokenizer
from sightline.run import Run
from sightline.tasks.base import Prediction, Task
from sightline.tasks.denoising import DenoisingTask
from sightline.tasks.masked_lm import MaskedLMTask
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary import Vocabulary


class Answering:
    """Knows no word with an x, cuts texts of more than three words and ends answers of more than two tokens."""

    def unknown(self, text: str) -> list[str]:
        return [word for word in text.split() if "x" in word]

    def cut_short(self, texts: list[str]) -> int:
        return sum(len(text.split()) > 3 for text in texts)

    def ended_short(self, answers: list[list[Prediction]]) -> int:
        return sum(len(guesses[0].tokens) > 2 for guesses in answers)


def answered(*lengths: int) -> list[list[Prediction]]:
    return [[Prediction("", 0.0, [4] * length)] for length in lengths]


def test_a_long_piece_is_shown_by_its_beginning() -> None:
    pieces = UnknownPieces("read as unknown")
    pieces.add(["x" * 5_000, "y"])
    assert pieces.notes()[0].endswith(f"2 pieces on 1 line, '{'x' * 39}…', 'y'")


def test_each_count_is_that_of_the_answerer_over_all_texts(capsys: pytest.CaptureFixture[str]) -> None:
    short: Any = Shortfalls(Answering(), Decoding(), unit="sentence")  # type: ignore[arg-type]
    short.add_inputs(["a xa a a", "b"])
    short.add_outputs(answered(3, 2))
    short.add_inputs(["xb a xa a xa"])
    short.add_outputs(answered(5))
    print_notes(short.notes())
    assert capsys.readouterr().err.splitlines() == [
        "sightline: 2 sentences ended where the learned positions of this model do",
        "sightline: 2 sentences cut short (data.clean.truncate_source)",
        "sightline: read as unknown, for they are not in the vocabulary: 4 pieces in 2 sentences, 'xa', 'xb'",
    ]


def test_where_nothing_falls_short_nothing_is_told() -> None:
    short: Any = Shortfalls(Answering(), Decoding())  # type: ignore[arg-type]
    short.add_inputs(["a b", ""])
    short.add_outputs(answered(0, 1))
    assert short.notes() == [] == UnknownPieces("written as unknown").notes()


def test_all_unknown_pieces_are_counted_and_eight_of_them_named() -> None:
    unknown = UnknownPieces("written as unknown")
    unknown.add([str(number) for number in range(20)])
    (note,) = unknown.notes()
    assert "20 pieces on 1 line, '0', '1', '2', '3', '4', '5', '6', '7'" in note
    assert note.endswith("'7'")


def test_what_is_unknown_of_a_forced_output_is_told_by_the_vocabulary_of_outputs_if_they_are_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = (Tokenizer.train(WordTokenizer(min_count=1), [text]) for text in ("ein Hund", "a dog"))
    report_unknown_target(Vocabulary(source, target, shared=False), "a Hund")
    assert capsys.readouterr().err.endswith("not in the vocabulary: 1 piece in 1 text, 'Hund'\n")
    report_unknown_target(Vocabulary(source, target, shared=False, labels="words"), "a Hund")  # refused elsewhere
    report_unknown_target(Vocabulary(source, target, shared=False), None)
    assert capsys.readouterr().err == ""


def test_only_answers_without_room_to_go_on_are_ended_by_it(tasks: dict[str, Path]) -> None:
    writer = Run.load(tasks["lm-transformer"], device="cpu").task
    longest = writer.longest_source()
    assert longest is not None
    assert writer.ended_short(answered(longest - 1, longest, 1, longest)) == 2
    assert Run.load(tasks["lm-gru"], device="cpu").task.ended_short(answered(10_000)) == 0
    assert Run.load(tasks["classify-mean"], device="cpu").task.ended_short(answered(10_000)) == 0


@pytest.mark.parametrize("who", [MaskedLMTask, DenoisingTask])
def test_a_gap_is_no_unknown_word_to_those_who_fill_it(who: type[Task]) -> None:
    words = Tokenizer.train(WordTokenizer(min_count=1), ["a cat sat"])
    both = Vocabulary(words, words, shared=True)
    recipe: Any = None
    filling, other = (each(recipe, both, None, torch.device("cpu")) for each in (who, Task))
    assert filling.unknown("a [MASK] dog sat") == ["dog"]
    assert len(other.unknown("a [MASK] dog sat")) > 1
