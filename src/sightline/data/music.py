"""Bach chorales as text, and MIDI files: four voices on a grid of 16th notes, four words for each step.

"67 62 59 43 67 62 59 43 ..." is the serialization of Huang et al. 2018 (Music Transformer): in each step the MIDI
pitch or rest of soprano, alto, tenor and bass, so the position of a word determines its voice. A pitch that repeats
in the next step is held; the corpus does not distinguish held notes from repeated ones.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, cast

from sightline.data.sources import Example, Numbered
from sightline.data.text_files import DataError, LineLimit
from sightline.files import MAX_JSON, READ_ERRORS, open_decompressed, parse_json, write_atomically
from sightline.recipe.sources import ChoralesSource
from sightline.terminal import plural

VOICES = ("soprano", "alto", "tenor", "bass")
REST = "_"
HIGHEST = 127  # the highest MIDI pitch; the lowest is 0

_WORDS: dict[str, int | None] = {REST: None} | {str(pitch): pitch for pitch in range(HIGHEST + 1)}

_NUMBER = re.compile(r"-?[1-9][0-9]*")  # "128" and "-5", but not "067"

_BEAT = 750_000  # microseconds of a quarter note: 80 a minute
_TICKS = 120  # a 16th, of the 480 that a quarter note commonly has
_CHOIR = 52  # "Choir Aahs" in General MIDI, which counts programs from 0 in the file and from 1 in print
_VELOCITY = 80

Step = tuple[int | None, int | None, int | None, int | None]  # from soprano to bass; None is a rest


@dataclass(frozen=True)
class Chorale:
    """A piece: at every 16th note the pitch of each voice."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for number, step in enumerate(self.steps, 1):
            if len(step) != len(VOICES):
                raise ValueError(
                    f"step {number}: {plural(len(step), 'voice')}; give four, with None for one that rests"
                )
            for voice, pitch in zip(VOICES, step, strict=True):
                if pitch is not None and not 0 <= pitch <= HIGHEST:
                    raise ValueError(f"step {number}, {voice}: pitch {pitch} is not in 0..{HIGHEST}")


@dataclass(frozen=True)
class ParsedChorale:
    """The valid part of a generated text, and the number of invalid words."""

    chorale: Chorale
    unknown: int  # words that are neither a pitch nor a rest: replaced by a rest
    outside: int  # numbers that are no MIDI pitch: replaced by a rest
    unfinished: int  # words of an incomplete last step

    @property
    def dropped(self) -> int:
        """All invalid words."""
        return self.unknown + self.outside + self.unfinished


def read_chorales(path: Path, part: str) -> Iterator[Chorale]:
    """The pieces of one part of a JSON file {part: [piece, ...]}, a piece being a list of steps.

    A step holds four pitches from soprano to bass, with -1, null or NaN for a rest; or fewer, if resting voices are
    left out (`jsb-chorales-16th.json`). The file then does not say which voices sing: see `_singing_voices`.
    """
    for number, piece in enumerate(_part(path, part), 1):
        where = f"{path}, {part}, piece {number}"
        if not isinstance(piece, list) or not piece:
            raise DataError(f"{where}: not a list of steps; write it as [[67, 62, 59, 43], ...] or take it out")
        steps = []
        for at, step in enumerate(piece, 1):
            try:
                steps.append(_pitches(step))
            except ValueError as error:
                raise DataError(f"{where}, step {at}: {error}") from error
        yield Chorale(tuple(_with_rests(steps)))


def _part(path: Path, part: str) -> list[Any]:
    remedy = "give a file like jsb-chorales-16th.json"
    try:
        with open_decompressed(path) as file:
            content = file.read(MAX_JSON + 1)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the name in the recipe") from error
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read or is damaged ({error}); get the file again") from error
    if len(content) > MAX_JSON:
        raise DataError(f"{path} has more than {MAX_JSON:,} bytes; {remedy}")
    try:
        parts = parse_json(content)
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); {remedy}") from error
    if not isinstance(parts, dict):
        raise DataError(f'{path}: not an object but {type(parts).__name__}; write {{"train": [pieces], ...}}')
    if part not in parts:
        raise DataError(f"{path}: no part {part!r}, only {', '.join(map(repr, parts)) or 'none'}; set part to one")
    if not isinstance(parts[part], list) or not parts[part]:
        raise DataError(f"{path}: part {part!r} is not a list of pieces; write [[[67, 62, 59, 43], ...], ...]")
    return cast("list[Any]", parts[part])


def _pitches(step: Any) -> list[int | None]:
    """A step of the file with integer pitches: the corpus writes 67.0 in pieces with rests."""
    if not isinstance(step, list):
        raise ValueError(f"not a list but {step!r:.60}; write the pitches of the voices, [67, 62, 59, 43]")
    if len(step) > len(VOICES):
        raise ValueError(f"{plural(len(step), 'voice')}, {step!r:.60}; keep four, soprano, alto, tenor and bass")
    pitches: list[int | None] = []
    for value in step:
        if value is None or (isinstance(value, float) and math.isnan(value)) or value == -1:
            pitches.append(None)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise ValueError(f"{value!r:.60} is not a whole number; write a MIDI pitch, or -1 for a rest")
        elif not 0 <= value <= HIGHEST:
            raise ValueError(f"{value!r:.60} is not a MIDI pitch, 0..{HIGHEST}; correct it, or write -1 for a rest")
        else:
            pitches.append(int(value))
    if len(pitches) < len(VOICES) and None in pitches:
        raise ValueError(
            f"{step!r:.60} has a rest and fewer than four voices, so the voice of the rest is unknown; write all four, "
            f"or leave out every voice that rests"
        )
    return pitches


def _with_rests(steps: Sequence[list[int | None]]) -> Iterator[Step]:
    """The steps with four voices each."""
    start = 0
    for count, group in groupby(steps, key=len):
        run = list(group)
        stop = start + len(run)
        voices: tuple[int, ...] = tuple(range(count))
        if 0 < count < len(VOICES):
            sides = reversed(steps[:start]), steps[stop:]
            nearest = (next((step for step in side if len(step) == len(VOICES)), None) for side in sides)
            voices = _singing_voices(run, [step for step in nearest if step is not None])
        for step in run:
            sung = dict(zip(voices, step, strict=True))
            yield (sung.get(0), sung.get(1), sung.get(2), sung.get(3))
        start = stop


def _singing_voices(run: list[list[int | None]], beside: list[list[int | None]]) -> tuple[int, ...]:
    """The voices of steps in which some rest: those whose pitches are nearest to the full steps before and after.

    Voices keep their order and are the same in consecutive steps of equal size. Of the 128 such steps in the JSB
    chorales, this heuristic gets 120 right according to `Jsb16thSeparated.json`, which has the rests (the other 8 are
    one solo in one validation piece). Filling from the top gets 84 right and assigns a bass solo to the soprano.
    """

    def distance(voices: tuple[int, ...]) -> int:
        return sum(
            min((abs(pitch - sung) for full in beside if (sung := full[voice]) is not None), default=0)
            for step in run
            for voice, pitch in zip(voices, step, strict=True)
            if pitch is not None
        )

    return min(combinations(range(len(VOICES)), len(run[0])), key=distance)


def to_events(chorale: Chorale) -> str:
    """The piece as a line of words, four for every step."""
    return " ".join(REST if pitch is None else str(pitch) for step in chorale.steps for pitch in step)


def parse_events(text: str) -> ParsedChorale:
    """The chorale in a text that a model wrote, with counts of invalid words.

    An invalid word becomes a rest: removing it would shift all later notes to the wrong voice. An incomplete last
    step is dropped.
    """
    words = text.split()
    end = len(words) - len(words) % len(VOICES)
    pitches = [_WORDS.get(word) for word in words[:end]]
    wrong = [word for word in words[:end] if word not in _WORDS]
    outside = sum(_NUMBER.fullmatch(word) is not None for word in wrong)
    steps = tuple(zip(*[iter(pitches)] * len(VOICES), strict=True))
    return ParsedChorale(
        Chorale(cast("tuple[Step, ...]", steps)),
        unknown=len(wrong) - outside,
        outside=outside,
        unfinished=len(words) - end,
    )


def transpose(chorale: Chorale, semitones: int) -> Chorale:
    """The piece transposed up, or down if `semitones` is negative."""
    for number, step in enumerate(chorale.steps, 1):
        for voice, pitch in zip(VOICES, step, strict=True):
            if pitch is not None and not 0 <= pitch + semitones <= HIGHEST:
                raise ValueError(
                    f"step {number}, {voice}: {pitch} moved by {plural(semitones, 'semitone')} is {pitch + semitones}, "
                    f"which is not in 0..{HIGHEST}; move it less"
                )
    steps = tuple(tuple(None if pitch is None else pitch + semitones for pitch in step) for step in chorale.steps)
    return Chorale(cast("tuple[Step, ...]", steps))


def write_midi(chorale: Chorale, path: Path) -> None:
    """Write a standard MIDI file, format 1: a track for the tempo, then one for each voice, on separate channels.

    A pitch that repeats in a voice is one held note. The time signature is 4/4: the corpus has no bars.
    """
    mido = import_mido()
    if not chorale.steps:
        raise ValueError(f"{path}: the piece has no steps, so there is nothing to write")
    length = len(chorale.steps) * _TICKS
    piece = mido.MidiFile(type=1, ticks_per_beat=4 * _TICKS)
    tempo = [mido.MetaMessage("time_signature", numerator=4, denominator=4), mido.MetaMessage("set_tempo", tempo=_BEAT)]
    piece.tracks.append(mido.MidiTrack([*tempo, mido.MetaMessage("end_of_track", time=length)]))
    for channel, name in enumerate(VOICES):
        track = mido.MidiTrack([mido.MetaMessage("track_name", name=name.capitalize())])
        track.append(mido.Message("program_change", channel=channel, program=_CHOIR))
        rest = 0  # ticks since the last note
        for pitch, held in groupby(step[channel] for step in chorale.steps):
            ticks = _TICKS * sum(1 for _ in held)
            if pitch is None:
                rest += ticks
                continue
            note = {"channel": channel, "note": pitch}
            track.append(mido.Message("note_on", **note, velocity=_VELOCITY, time=rest))
            track.append(mido.Message("note_off", **note, velocity=0, time=ticks))
            rest = 0
        track.append(mido.MetaMessage("end_of_track", time=rest))
        piece.tracks.append(track)
    content = io.BytesIO()
    piece.save(file=content)
    write_atomically(path, content.getvalue())


def import_mido() -> Any:
    """The package that writes MIDI files; an error that names the extra where it is not installed."""
    try:
        import mido
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("MIDI files need mido: pip install 'sightline[viz]'", name="mido") from error
    return mido


def read_chorales_source(source: ChoralesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: chorales`: the events of each piece, in each transposition."""
    count = 0
    for piece, chorale in enumerate(read_chorales(paths[0], source.split), 1):
        for semitones in source.transpose:
            count += 1
            try:
                yield count, Example("", to_events(transpose(chorale, semitones)))
            except ValueError as error:
                raise DataError(f"{paths[0]}, {source.split}, piece {piece}, {error} (see transpose)") from error
