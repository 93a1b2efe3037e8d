"""Back-translation (Sennrich et al. 2016): monolingual target text becomes pairs with synthetic sources.

A model of the opposite direction translates the text. A tag before each synthetic source lets the trained model tell it
from real text (Caswell et al. 2019); sampled sources often teach more than those of a beam (Edunov et al. 2018).
"""

from __future__ import annotations

from pathlib import Path

from sightline.augment.corpus import Part
from sightline.augment.translator import Limits, Translator, make_part, single_line
from sightline.data.text_files import read_lines
from sightline.progress import Progress, silent
from sightline.recipe import Decoding
from sightline.run import Run


def backtranslate(
    run: Run,
    monolingual: Path,
    out: Path,
    options: Decoding,
    *,
    limits: Limits,
    tag: str | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write a pair (synthetic source, real target) for each line; return the number of lines kept and dropped."""
    if tag is not None and (not tag.strip() or single_line(tag) != tag):
        raise ValueError(f"--tag {tag!r} must be a word or more, without tabs, line breaks or spaces around it")
    if monolingual.exists() and not (monolingual.is_file() or monolingual.is_dir()):
        raise ValueError(f"{monolingual} is a pipe, and the text is read twice; write it to a file first")
    before = "" if tag is None else f"{tag} "
    translate = Translator(run, options, limits)

    def work(first: int, lines: list[str]) -> Part:
        outcomes = translate(first, lines)
        pairs = ((before + each.text, single_line(line)) for line, each in zip(lines, outcomes, strict=True))
        return make_part(pairs, outcomes)

    corpus = translate.pair_file(out, "model", read_lines(monolingual), tag=tag)
    return corpus.write(iter(read_lines(monolingual)), work, resume=resume, progress=progress)
