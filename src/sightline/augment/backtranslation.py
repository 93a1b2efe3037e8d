"""Back-translation (Sennrich et al. 2016): text of the target language becomes pairs with synthetic sources.

A model of the other direction translates monolingual target text. With a tag before each synthetic source the model
that learns from it can tell it from real text (Caswell et al. 2019); drawing instead of searching makes sources that
teach more (Edunov et al. 2018).
"""

from __future__ import annotations

from pathlib import Path

from sightline.augment.parts import Corpus, Part, fingerprint, part_size
from sightline.augment.translation import Limits, Writer, counted, digest_of, flat, precision_of
from sightline.data.sources import read_lines
from sightline.progress import Progress, silent
from sightline.recipe import Decoding
from sightline.run import Run


def backtranslate(
    run: Run,
    monolingual: Path,
    out: Path,
    options: Decoding,
    *,
    limits: Limits = Limits(),  # noqa: B008 (it is frozen)
    tag: str | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write (synthetic source, real target) for each line, a pair a line, and return what was kept and dropped."""
    if tag is not None and (not tag.strip() or flat(tag) != tag):
        raise ValueError(f"--tag {tag!r} must be a word or more, without tabs, line breaks or spaces around it")
    if monolingual.exists() and not (monolingual.is_file() or monolingual.is_dir()):
        raise ValueError(f"{monolingual} is a pipe, and the text is read twice; write it to a file first")
    before = "" if tag is None else f"{tag} "
    plan = {
        "model": digest_of(run),
        **fingerprint(read_lines(monolingual)),
        "decoding": options.model_dump(mode="json", exclude={"batch_tokens"}),
        **precision_of(run),
        "max_tokens": limits.max_tokens,
        "max_ratio": limits.max_ratio,
        "tag": tag,
    }
    writer = Writer(run, options, limits)

    def work(first: int, lines: list[str]) -> Part:
        outcomes = writer(first, lines)
        pairs = [
            (before + each.text, flat(line)) for line, each in zip(lines, outcomes, strict=True) if each.dropped is None
        ]
        return Part(pairs, counted(outcomes))

    corpus: Corpus[str] = Corpus(out, plan, part_size(run.device.type))
    return corpus.make(iter(read_lines(monolingual)), work, resume=resume, progress=progress)
