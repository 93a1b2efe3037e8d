"""What a model of chorales wrote, as MIDI files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.data.music import Salvage
    from sightline.recipe import Recipe

_SUFFIXES = (".mid", ".midi")


class Pieces:
    """Takes generated texts one by one: the first becomes the file, or all become files of a folder."""

    def __init__(self, place: Path, recipe: Recipe) -> None:
        from sightline.files import check_place
        from sightline.recipe.data import ChoralesSource

        if not any(isinstance(source, ChoralesSource) for source in recipe.data.train):
            kinds = ", ".join(dict.fromkeys(source.kind for source in recipe.data.train))
            raise ValueError(f"--midi is for runs that learned from chorales, and this one learned from {kinds}")
        self.place, self.several = place, place.is_dir()
        if not self.several and place.suffix.lower() not in _SUFFIXES:
            raise ValueError(f"--midi {place}: name a file that ends in .mid, or a folder that exists for several")
        if not self.several:
            check_place(place)
        self.taken = 0

    def take(self, text: str) -> None:
        """Write a piece, and say on standard error what of it could not be used."""
        from sightline.data.music import salvage_events, write_midi

        self.taken += 1
        if not self.several and self.taken > 1:
            return
        path = self.place / f"piece-{self.taken:04d}.mid" if self.several else self.place
        found = salvage_events(text)
        if not found.chorale.steps:
            what = f"{path}: the text has no whole step of four voices, so there is nothing to hear"
            if not self.several:
                raise ValueError(f"{what}; raise --max-length, or draw again with another --seed")
            print(f"sightline: {what}; not written", file=sys.stderr)
            return
        write_midi(found.chorale, path)
        print(f"wrote {path}: {plural(len(found.chorale.steps), 'step')}{_lost(found)}", file=sys.stderr)


def _lost(found: Salvage) -> str:
    """What was dropped, by reason; nothing, where all could be used."""
    reasons = {
        "neither pitch nor rest": found.unknown,
        "outside MIDI": found.outside,
        "of a last step that is not complete": found.unfinished,
    }
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"; {plural(found.dropped, 'word')} dropped ({told})" if told else ""
