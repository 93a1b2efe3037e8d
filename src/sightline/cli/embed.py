"""`sightline embed`: contextual vectors of tokens, words or sentences, their neighbours, and the senses of a word."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sightline.cli.formats import texts_of
from sightline.cli.lines import InputLength, named, windows
from sightline.cli.options import Device, refuse
from sightline.progress import shown
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.inspection.embeddings import Layer, Nearest, TextVectors, VectorOptions, VectorWriter
    from sightline.run import Run

_TOP, _MOST = 10, 40  # defaults of --top and --most
_BLOCK = 200_000  # characters embedded together
_ACTIONS = "--out FILE, --nearest TEXT, --word WORD --figure FILE, or --export FILE"


def embed(
    run: Annotated[Path, Argument(metavar="RUN", help="A run with an encoder, or a language model.")],
    file: Annotated[Path | None, Argument(metavar="FILE", help="Texts, one per line; default: standard input.")] = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help="Write .npy (and a .tsv that names the rows) or .parquet."),
    ] = None,
    layer: Annotated[str, Option(metavar="LAYER", help="last, embedding, or a number from 0.")] = "last",
    pooling: Annotated[
        str, Option(metavar="HOW", help="Pool pieces by mean, max or first; none: one vector per piece.")
    ] = "mean",
    words: Annotated[bool, Option("--words", help="One vector per word, pooled over its pieces.")] = False,
    nearest: Annotated[str | None, Option(metavar="TEXT", help="Print the lines nearest to this text.")] = None,
    top: Annotated[int | None, Option(metavar="N", help="With --nearest: how many lines (10).")] = None,
    word: Annotated[str | None, Option(metavar="WORD", help="With --figure: the word to compare.")] = None,
    figure: Annotated[Path | None, Option(metavar="FILE", help="Draw the occurrences of --word in each layer.")] = None,
    most: Annotated[int | None, Option(metavar="N", help="With --figure: how many occurrences (40).")] = None,
    export: Annotated[
        Path | None, Option(metavar="FILE", help="Write the input embeddings in word2vec format (text, or .bin).")
    ] = None,
    device: Device = "auto",
) -> None:
    """Write contextual vectors of sentences, words or pieces.

    They are the states of the encoder or, in a language model, of the decoder. Taggers read the words of CoNLL-U and
    column files.

    Examples:
      sightline embed runs/de-en train.de --out sentences.npy
      sightline embed runs/de-en train.de --words --layer 2 --out words.parquet
      sightline embed runs/de-en train.de --nearest "Zwei Hunde spielen." --top 5
      sightline embed runs/en-de news.en --word bank --figure bank.png
      sightline embed runs/de-en --export vectors.txt
    """
    from sightline.run import Run

    if export is not None:
        if any(value is not None for value in (file, out, nearest, figure, word)):
            raise ValueError("--export writes the embedding table, which needs no texts; leave the other options out")
        _export(run, export, device)
        return
    if out is None and nearest is None and figure is None and word is None:
        raise ValueError(f"nothing to do with the vectors; give {_ACTIONS}")
    if nearest is None:
        refuse({f"--top {top}": top}, "needs --nearest TEXT")
    options = _vector_options(layer, pooling, words)
    if word is not None or figure is not None:
        _check_figure(word, figure, options, out, nearest, most)
        assert figure is not None and word is not None
        _draw(Run.load(run, device=device), file, word, figure, _MOST if most is None else most)
        return
    refuse({f"--most {most}": most}, "needs --word WORD --figure FILE")
    _check_vectors(file, out, options, nearest)
    _embed_lines(Run.load(run, device=device), file, options, out, nearest, _TOP if top is None else top)


def _vector_options(layer: str, pooling: str, words: bool) -> VectorOptions:
    from sightline.inspection.embeddings import VectorOptions

    chosen: Layer = int(layer) if layer.isdecimal() else layer  # type: ignore[assignment]
    return VectorOptions(chosen, pooling, words)  # type: ignore[arg-type]


def _check_vectors(file: Path | None, out: Path | None, options: VectorOptions, nearest: str | None) -> None:
    """Refuse options of --out and --nearest that cannot be followed."""
    from sightline.inspection.embeddings import check_vector_file, files_of

    if nearest is not None and (options.words or options.pooling == "none"):
        raise ValueError("--nearest compares lines; leave --words out and use --pooling mean, max or first")
    if nearest is not None and not nearest.strip():
        raise ValueError(f"--nearest {nearest!r} is empty; give some words")
    if out is not None:
        check_vector_file(out)
        if file is not None and file.resolve() in [path.resolve() for path in files_of(out)]:
            raise ValueError(f"--out {out} would overwrite the input {file}; give another name")


def _check_figure(
    word: str | None,
    figure: Path | None,
    options: VectorOptions,
    out: Path | None,
    nearest: str | None,
    most: int | None,
) -> None:
    """Refuse options that a figure does not need."""
    from sightline.plots.figures import check_figure

    if word is None or figure is None:
        raise ValueError("--word and --figure need each other: the word to draw, and the file to draw it to")
    if options != _vector_options("last", "mean", words=False):
        raise ValueError("--figure draws every layer of one word; leave --layer, --pooling and --words out")
    if out is not None or nearest is not None:
        raise ValueError("--figure cannot be combined with --out or --nearest")
    if most is not None and most < 2:
        raise ValueError(f"--most {most} leaves nothing to compare; give 2 or more")
    check_figure(figure)


def _export(run: Path, path: Path, device: str) -> None:
    from sightline.files import check_writable
    from sightline.inspection.embeddings import export_embeddings
    from sightline.run import Run

    check_writable(path)
    count = export_embeddings(Run.load(run, device=device).task, path)
    print(f"wrote {plural(count, 'vector')} to {path}", file=sys.stderr)


def _draw(run: Run, file: Path | None, word: str, figure: Path, most: int) -> None:
    from sightline.inspection.word_senses import find_occurrences
    from sightline.plots.senses import draw_senses

    senses = find_occurrences(run.task, texts_of(run.recipe, file), word, most=most)
    draw_senses(senses, figure, title=f"“{word}” in {len(senses.contexts)} places, as {run.folder.name} reads it")
    print(f"wrote {figure}", file=sys.stderr)


def _embed_lines(
    run: Run, file: Path | None, options: VectorOptions, out: Path | None, text: str | None, top: int
) -> None:
    """Embed all lines in blocks: write the vectors, search them for neighbours of `text`, or both."""
    from sightline.inspection.embeddings import Nearest, embed_texts, layer_width, vector_file
    from sightline.tasks.base import TooLong

    near: Nearest | None = None
    if text is not None:
        try:
            near = Nearest(embed_texts(run.task, [text], options)[0].vectors[0], top)
        except TooLong as error:
            raise error.named("the text of --nearest") from None
    opened: Any = nullcontext() if out is None else vector_file(out, layer_width(run.task, options.layer))
    started = time.monotonic()
    with opened as rows, shown(interval=10.0) as progress:
        done = cut = 0
        limit, name = InputLength.of(run, None), str(named(file) or "standard input")
        for block in (block for window in windows(texts_of(run.recipe, file)) for block in _blocks(window)):
            limit.check(block, name, done)
            _use_vectors(embed_texts(run.task, block, options, first=done), done, rows, near)
            done, cut = done + len(block), cut + run.task.cut_short(block)
            progress("embedding, lines", done, 0)
    seconds = time.monotonic() - started
    speed = f"{done / max(seconds, 1e-9):,.0f} lines/s"
    print(f"embedded {plural(done, 'line')} in {seconds:,.0f} s ({speed})", file=sys.stderr)
    if cut:
        print(f"sightline: {plural(cut, 'line')} cut short (data.clean.truncate_source)", file=sys.stderr)
    for cosine, line, unit in near.best if near is not None else ():
        print(f"{cosine:.4f}\t{line}\t{unit}")
    if out is not None:
        print(f"wrote {out}", file=sys.stderr)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Blocks of lines with at most `_BLOCK` characters; a longer line is a block of its own."""
    block: list[str] = []
    size = 0
    for line in lines:
        if block and size + len(line) > _BLOCK:
            yield block
            block, size = [], 0
        block.append(line)
        size += len(line)
    yield block


def _use_vectors(texts: list[TextVectors], done: int, rows: VectorWriter | None, near: Nearest | None) -> None:
    """Write the vectors of a block of texts and compare them; `done` texts came before."""
    import numpy as np

    lines = [number for number, text in enumerate(texts, done + 1) for _ in text.units]
    units = [unit for text in texts for unit in text.units]
    vectors = np.concatenate([text.vectors for text in texts])
    if rows is not None:
        rows.write(lines, units, vectors)
    if near is not None:
        near.offer(lines, units, vectors)
