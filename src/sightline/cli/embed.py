"""`sightline embed`: contextual vectors of tokens, words or sentences, their neighbours, and the senses of a word."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.formats import texts_of
from sightline.cli.lines import InputLength, named, windows
from sightline.cli.options import Device
from sightline.progress import shown
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.inspection.embeddings import Layer, Nearest, TextVectors, VectorOptions, VectorWriter
    from sightline.run import Run

_TOP, _MOST = 10, 40  # default numbers of neighbours and of occurrences
_BLOCK = 200_000  # characters embedded together


def embed(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run with an encoder, or a language model.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Texts, one per line; default: standard input.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write .npy (and a .tsv that names the rows) or .parquet."),
    ] = None,
    layer: Annotated[
        str, typer.Option(metavar="LAYER", help="last (default), embedding, or a number from 0.", show_default=False)
    ] = "last",
    pooling: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="mean (default), max or first of a line's pieces; none: all pieces.", show_default=False
        ),
    ] = "mean",
    words: Annotated[bool, typer.Option("--words", help="One vector per word, pooled over its pieces.")] = False,
    nearest: Annotated[str | None, typer.Option(metavar="TEXT", help="Print the lines nearest to this text.")] = None,
    top: Annotated[int | None, typer.Option(metavar="N", help="With --nearest: how many lines (10).")] = None,
    word: Annotated[str | None, typer.Option(metavar="WORD", help="With --figure: the word to compare.")] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the occurrences of --word in a plane, layer by layer.")
    ] = None,
    most: Annotated[int | None, typer.Option(metavar="N", help="With --figure: how many occurrences (40).")] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the input embeddings in word2vec format (text, or .bin)."),
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
    from sightline.inspection.embeddings import check_vector_file, files_of
    from sightline.plots.figures import check_figure
    from sightline.run import Run

    if export is not None:
        if any(value is not None for value in (file, out, nearest, figure, word)):
            raise ValueError("--export writes the embedding table, which needs no texts; leave the other options out")
        _export(run, export, device)
        return
    if out is None and nearest is None and figure is None and word is None:
        raise ValueError(
            "say what to do with the vectors: --out FILE, --nearest TEXT, --word WORD --figure FILE, or --export FILE"
        )
    if (word is None) != (figure is None):
        raise ValueError("--word and --figure go together: whose places are drawn, and where to")
    if nearest is not None and (words or pooling == "none"):
        raise ValueError("--nearest compares whole lines; leave --words out, and pool them by mean, max or first")
    _check_used(nearest, figure, top, most)
    wanted = _wanted(layer, pooling, words)
    if figure is not None and wanted != _wanted("last", "mean", words=False):
        raise ValueError("--figure draws every layer, and the word alone; leave --layer, --pooling and --words out")
    for path, check in ((out, check_vector_file), (figure, check_figure)):
        if path is not None:
            check(path)
    if out is not None and file is not None and file.resolve() in [path.resolve() for path in files_of(out)]:
        raise ValueError(f"--out {out} would be written over the texts themselves ({file}); give it another name")
    loaded = Run.load(run, device=device)
    if figure is not None and word is not None:
        if out is not None or nearest is not None:
            raise ValueError("--figure reads the text for one word alone; leave --out and --nearest out")
        _draw(loaded, file, word, figure, most or _MOST)
        return
    _embed_lines(loaded, file, wanted, out, nearest, _TOP if top is None else top)


def _export(run: Path, path: Path, device: str) -> None:
    from sightline.files import check_writable
    from sightline.inspection.embeddings import export_embeddings
    from sightline.run import Run

    check_writable(path)
    count = export_embeddings(Run.load(run, device=device).task, path)
    print(f"wrote {plural(count, 'vector')} to {path}", file=sys.stderr)


def _check_used(nearest: str | None, figure: Path | None, top: int | None, most: int | None) -> None:
    """Refuse options without the ones they belong to."""
    if nearest is None and top is not None:
        raise ValueError(f"--top {top} says how many neighbours are printed; add --nearest TEXT, or leave it out")
    if figure is None and most is not None:
        raise ValueError(f"--most {most} says how many places are drawn; add --word and --figure, or leave it out")
    if most is not None and most < 2:
        raise ValueError(f"--most {most} leaves nothing to compare; give 2 or more")
    if nearest is not None and not nearest.strip():
        raise ValueError(f"--nearest {nearest!r} is no text, and nothing is near to it; give some words")


def _wanted(layer: str, pooling: str, words: bool) -> VectorOptions:
    from sightline.inspection.embeddings import VectorOptions

    chosen: Layer = int(layer) if layer.isdecimal() else layer  # type: ignore[assignment]
    return VectorOptions(chosen, pooling, words)  # type: ignore[arg-type]


def _embed_lines(
    run: Run, file: Path | None, wanted: VectorOptions, out: Path | None, text: str | None, top: int
) -> None:
    """Embed all lines in blocks: write them, search them for neighbours, or both."""
    from sightline.inspection.embeddings import Nearest, embed_texts, layer_width, vector_file
    from sightline.tasks.base import TooLong

    near: Nearest | None = None
    if text is not None:
        try:
            near = Nearest(embed_texts(run.task, [text], wanted)[0].vectors[0], top)
        except TooLong as error:
            raise error.named("the text of --nearest") from None
    opened: Any = nullcontext() if out is None else vector_file(out, layer_width(run.task, wanted.layer))
    started = time.monotonic()
    with opened as rows, shown(interval=10.0) as progress:
        done = cut = 0
        limit, name = InputLength.of(run, None), str(named(file) or "standard input")
        for block in (block for window in windows(texts_of(run.recipe, file)) for block in _blocks(window)):
            limit.check(block, name, done)
            _hand_over(embed_texts(run.task, block, wanted, first=done), done, rows, near)
            done, cut = done + len(block), cut + run.task.cut_short(block)
            progress("embedding, lines", done, 0)
    seconds = time.monotonic() - started
    speed = f"{done / max(seconds, 1e-9):,.0f} lines/s"
    print(f"embedded {plural(done, 'line')} in {seconds:,.0f} s ({speed})", file=sys.stderr)
    if cut:
        print(f"sightline: {plural(cut, 'line')} cut short (data.clean.truncate_source)", file=sys.stderr)
    for cosine, line, found in near.best if near is not None else ():
        print(f"{cosine:.4f}\t{line}\t{found}")
    if out is not None:
        print(f"wrote {out}", file=sys.stderr)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Blocks of lines with at most `_BLOCK` characters, or one longer line."""
    block: list[str] = []
    size = 0
    for line in lines:
        if block and size + len(line) > _BLOCK:
            yield block
            block, size = [], 0
        block.append(line)
        size += len(line)
    yield block


def _hand_over(found: list[TextVectors], done: int, rows: VectorWriter | None, near: Nearest | None) -> None:
    import numpy as np

    lines = [number for number, each in enumerate(found, done + 1) for _ in each.units]
    units = [unit for each in found for unit in each.units]
    vectors = np.concatenate([each.vectors for each in found])
    if rows is not None:
        rows.write(lines, units, vectors)
    if near is not None:
        near.offer(lines, units, vectors)


def _draw(run: Run, file: Path | None, word: str, figure: Path, most: int) -> None:
    from sightline.inspection.word_senses import find_occurrences
    from sightline.plots.senses import draw_senses

    found = find_occurrences(run.task, texts_of(run.recipe, file), word, most=most)
    draw_senses(found, figure, title=f"“{word}” in {len(found.contexts)} places, as {run.folder.name} reads it")
    print(f"wrote {figure}", file=sys.stderr)
