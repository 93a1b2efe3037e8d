"""Chorales as text and as MIDI files."""

from __future__ import annotations

import json
import lzma
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import mido
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data import sources
from sightline.data.music import Chorale, parse_events, read_chorales, to_events, transpose, write_midi
from sightline.data.text_files import DataError
from sightline.recipe.sources import ChoralesSource

FULL = [67, 62, 59, 43]
PIECE = Chorale(((67, 62, 59, 43), (67, 62, None, 43), (69, 62, None, 43), (69, 60, 57, None)))
PITCHES = st.none() | st.integers(0, 127)
CHORALES = st.builds(Chorale, st.lists(st.tuples(PITCHES, PITCHES, PITCHES, PITCHES), max_size=40).map(tuple))
CORPUS = Path(os.environ.get("SIGHTLINE_CORPORA", "")) / "jsb-chorales" / "jsb-chorales-16th.json.xz"


def read(folder: Path, *pieces: Any) -> list[tuple[Any, ...]]:
    path = folder / "music.json"
    path.write_text(json.dumps({"train": list(pieces)}))
    return [chorale.steps for chorale in read_chorales(path, "train")]


# Reading


@pytest.mark.parametrize("rest", [-1, -1.0, None, float("nan")])
def test_notations_of_rests_and_pitches(tmp_path: Path, rest: float | None) -> None:
    assert read(tmp_path, [[67.0, rest, 59, 43], [rest] * 4]) == [((67, None, 59, 43), (None,) * 4)]
    assert all(type(pitch) is int for pitch in read(tmp_path, [[67.0, 62.0, 59.0, 43.0]])[0][0])


def test_crossing_voices_keep_their_order(tmp_path: Path) -> None:
    assert read(tmp_path, [[60, 64, 50, 55]]) == [((60, 64, 50, 55),)]


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ([67, 62, 43], (67, 62, None, 43)),
        ([62, 59, 43], (None, 62, 59, 43)),
        ([67, 59, 43], (67, None, 59, 43)),
        ([67, 62, 59], (67, 62, 59, None)),
        ([45], (None, None, None, 45)),
        ([], (None, None, None, None)),
    ],
)
def test_missing_voice_is_inferred(tmp_path: Path, short: list[int], whole: tuple[int | None, ...]) -> None:
    full = tuple(FULL)
    assert read(tmp_path, [FULL, short, FULL]) == [(full, whole, full)]
    assert read(tmp_path, [short, FULL]) == [(whole, full)]
    assert read(tmp_path, [FULL, short]) == [(full, whole)]


def test_solo_stays_in_one_voice(tmp_path: Path) -> None:
    """The beginning of a training piece: 67 alone would be the alto's, but the line leads to the soprano's 74."""
    (steps,) = read(tmp_path, [[67], [67], [74], [74], [74, 66, 57, 50]])
    assert [step[0] for step in steps] == [67, 67, 74, 74, 74]
    assert steps[0] == (67, None, None, None)


def test_voices_enter_one_after_the_other(tmp_path: Path) -> None:
    (steps,) = read(tmp_path, [[76], [76, 65], [74, 65, 56], [74, 65, 56, 48]])
    assert steps[:3] == ((76, None, None, None), (76, 65, None, None), (74, 65, 56, None))


def test_without_a_full_step_the_voices_are_filled_from_the_top(tmp_path: Path) -> None:
    assert read(tmp_path, [[67, 62], []]) == [((67, 62, None, None), (None,) * 4)]


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ([FULL, [*FULL, 30]], r"music\.json, train, piece 2, step 2: 5 voices, \[67, .*; keep four"),
        ([[67, "x", 59, 43]], r"piece 2, step 1: 'x' is not a whole number; write a MIDI pitch"),
        ([[67, True, 59, 43]], r"piece 2, step 1: True is not a whole number"),
        ([[67, 62.5, 59, 43]], r"piece 2, step 1: 62\.5 is not a whole number"),
        ([[67, float("inf"), 59, 43]], r"piece 2, step 1: inf is not a whole number"),
        ([[67, [62], 59, 43]], r"piece 2, step 1: \[62\] is not a whole number"),
        ([FULL, FULL, [128, 62, 59, 43]], r"piece 2, step 3: 128 is not a MIDI pitch, 0\.\.127"),
        ([[-2, 62, 59, 43]], r"piece 2, step 1: -2 is not a MIDI pitch"),
        ([FULL, 67], r"piece 2, step 2: not a list but 67"),
        ([[-1, 62]], r"piece 2, step 1: \[-1, 62\] has a rest and fewer than four voices"),
        ([], r"train, piece 2: not a list of steps"),
        ({"a": 1}, r"train, piece 2: not a list of steps"),
    ],
)
def test_invalid_piece_is_an_error_with_its_place(tmp_path: Path, piece: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, [FULL], piece)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"train: 67", r"music\.json is not JSON \(.*\); give a file like"),
        (b"\xff\xfe\x00", r"is not JSON"),
        (b"[" * 200_000, r"is not JSON"),
        (b"[[[67]]]", r"not an object but list"),
        (b'{"test": [], "valid": []}', r"no part 'train', only 'test', 'valid'; set part"),
        (b"{}", r"no part 'train', only none"),
        (b'{"train": []}', r"part 'train' is not a list of pieces"),
        (b'{"train": 3}', r"part 'train' is not a list of pieces"),
    ],
)
def test_invalid_music_file_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "music.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_chorales(path, "train"))


def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json does not exist; check the name"):
        list(read_chorales(tmp_path / "none.json", "train"))
    path = tmp_path / "music.json.xz"
    packed = lzma.compress(json.dumps({"train": [[FULL]]}).encode())
    path.write_bytes(packed)
    assert [chorale.steps for chorale in read_chorales(path, "train")] == [(tuple(FULL),)]
    path.write_bytes(packed[:-20])
    with pytest.raises(DataError, match=r"music\.json\.xz cannot be read or is damaged .*; get the file again"):
        list(read_chorales(path, "train"))


@pytest.mark.corpora
@pytest.mark.skipif(not CORPUS.is_file(), reason="no jsb-chorales in $SIGHTLINE_CORPORA")
def test_the_corpus_is_read_whole() -> None:
    parts = {part: list(read_chorales(CORPUS, part)) for part in ("train", "valid", "test")}
    assert {part: len(pieces) for part, pieces in parts.items()} == {"train": 229, "valid": 76, "test": 77}
    words = {part: [to_events(piece).split() for piece in pieces] for part, pieces in parts.items()}
    assert {part: sum(map(len, lines)) for part, lines in words.items()} == {
        "train": 220_912,
        "valid": 73_632,
        "test": 75_600,
    }
    assert {part: sum(line.count("_") for line in lines) for part, lines in words.items()} == {
        "train": 411,
        "valid": 589,
        "test": 284,
    }
    assert all(parse_events(to_events(piece)).chorale == piece for pieces in parts.values() for piece in pieces)


# Words


def test_a_piece_is_a_line_of_four_words_a_step() -> None:
    assert to_events(PIECE) == "67 62 59 43 67 62 _ 43 69 62 _ 43 69 60 57 _"


@given(CHORALES)
def test_words_and_pieces_are_inverses(chorale: Chorale) -> None:
    text = to_events(chorale)
    salvage = parse_events(text)
    assert (salvage.chorale, salvage.dropped) == (chorale, 0)
    assert to_events(salvage.chorale) == text


def test_invalid_words_of_generated_text_are_counted() -> None:
    salvage = parse_events("67 <unk> 59 43 128 62 -5 43 067 62 59 43 67 blah")
    assert salvage.chorale.steps == ((67, None, 59, 43), (None, 62, None, 43), (None, 62, 59, 43))
    assert (salvage.unknown, salvage.outside, salvage.unfinished, salvage.dropped) == (2, 2, 2, 6)


def test_invalid_word_becomes_a_rest() -> None:
    assert parse_events("x 62 59 43 67 62 59 43").chorale.steps[1] == (67, 62, 59, 43)


@given(st.lists(st.sampled_from(["67", "_", "0", "127", "128", "x", "-1"])))
def test_every_word_of_a_generated_text_is_used_or_counted(words: list[str]) -> None:
    salvage = parse_events(" ".join(words))
    assert len(salvage.chorale.steps) * 4 + salvage.unfinished == len(words)
    usable = sum(word in ("67", "_", "0", "127") for word in words[: len(words) // 4 * 4])
    assert usable + salvage.dropped == len(words)


def test_empty_text_is_an_empty_piece() -> None:
    assert parse_events(" \n").chorale == Chorale(())
    assert to_events(Chorale(())) == ""


def test_a_chorale_has_four_voices_that_midi_can_play() -> None:
    with pytest.raises(ValueError, match=r"step 2, tenor: pitch 128 is not in 0\.\.127"):
        Chorale(((67, 62, 59, 43), (67, 62, 128, 43)))
    with pytest.raises(ValueError, match="step 1: 3 voices; give four"):
        Chorale(((67, 62, 59),))  # type: ignore[arg-type]


# Transposition


def test_transposition_keeps_rests() -> None:
    assert to_events(transpose(PIECE, 2)) == "69 64 61 45 69 64 _ 45 71 64 _ 45 71 62 59 _"
    assert transpose(transpose(PIECE, -5), 5) == PIECE


def test_transposition_out_of_range_is_an_error() -> None:
    assert transpose(PIECE, 58).steps[2][0] == 127
    with pytest.raises(ValueError, match=r"step 3, soprano: 69 moved by 59 semitones is 128"):
        transpose(PIECE, 59)
    with pytest.raises(ValueError, match=r"step 1, bass: 43 moved by -44 semitones is -1"):
        transpose(PIECE, -44)


def test_transposition_of_a_recipe_out_of_range_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(json.dumps({"train": [[[67, 62, 59, 43]], [[127, 62, 59, 43]]]}))
    source = ChoralesSource(file="two.json", split="train", transpose=(0, 1))
    with pytest.raises(DataError, match=r"two\.json, train, piece 2, step 1, soprano: 127 moved by 1 semitone is 128"):
        list(sources.read(source, tmp_path))


# MIDI


class Note(NamedTuple):
    """A note in ticks from the start."""

    start: int
    stop: int
    pitch: int


def notes_of(track: mido.MidiTrack) -> list[Note]:
    """The notes of a voice, which sings one at a time."""
    time, started, notes = 0, dict[int, int](), list[Note]()
    for message in track:
        time += message.time
        if message.type == "note_on":
            assert not started
            started[message.note] = time
        elif message.type == "note_off":
            notes.append(Note(started.pop(message.note), time, message.note))
    assert not started
    return notes


def written(chorale: Chorale, folder: Path) -> mido.MidiFile:
    path = folder / "piece.mid"
    write_midi(chorale, path)
    assert [found.name for found in folder.iterdir()] == ["piece.mid"]
    return mido.MidiFile(path)


def test_the_first_track_has_the_tempo_and_the_others_a_voice_each(tmp_path: Path) -> None:
    tempo, *voices = written(PIECE, tmp_path).tracks
    assert [message.tempo for message in tempo if message.type == "set_tempo"] == [750_000]
    assert [(each.numerator, each.denominator) for each in tempo if each.type == "time_signature"] == [(4, 4)]
    assert notes_of(tempo) == []
    assert [track.name for track in voices] == ["Soprano", "Alto", "Tenor", "Bass"]
    assert [each.program for track in voices for each in track if each.type == "program_change"] == [52] * 4


def test_a_pitch_that_repeats_is_one_held_note(tmp_path: Path) -> None:
    piece = written(PIECE, tmp_path)
    sixteenth = piece.ticks_per_beat // 4
    voices = [
        [(note.start / sixteenth, note.stop / sixteenth, note.pitch) for note in notes_of(track)]
        for track in piece.tracks[1:]
    ]
    assert voices == [[(0, 2, 67), (2, 4, 69)], [(0, 3, 62), (3, 4, 60)], [(0, 1, 59), (3, 4, 57)], [(0, 3, 43)]]


@given(chorale=CHORALES.filter(lambda chorale: bool(chorale.steps)))
def test_midi_file_has_the_notes_of_the_piece(tmp_path_factory: pytest.TempPathFactory, chorale: Chorale) -> None:
    piece = written(chorale, tmp_path_factory.mktemp("midi"))
    for index, track in enumerate(piece.tracks[1:]):
        sung: list[int | None] = [None] * len(chorale.steps)
        notes = notes_of(track)
        for note in notes:
            for step in range(note.start * 4 // piece.ticks_per_beat, note.stop * 4 // piece.ticks_per_beat):
                assert sung[step] is None
                sung[step] = note.pitch
        assert sung == [step[index] for step in chorale.steps]
        assert len(notes) == sum(pitch is not None for pitch, _ in groupby(sung))


def test_a_piece_lasts_as_long_as_its_steps(tmp_path: Path) -> None:
    silence = ((None,) * 4,) * 200
    chorale = Chorale(silence + PIECE.steps * 400 + silence)
    piece = written(chorale, tmp_path)
    assert piece.length == pytest.approx(len(chorale.steps) / 4 * 60 / 80, rel=1e-6)
    assert {sum(message.time for message in track) for track in piece.tracks} == {len(chorale.steps) * 120}


def test_without_mido_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mido", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sightline\[viz\]'"):
        write_midi(PIECE, tmp_path / "piece.mid")


def test_a_piece_without_steps_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"piece\.mid: the piece has no steps"):
        write_midi(Chorale(()), tmp_path / "piece.mid")
