"""`sightline predict`: lines in, lines out, as they come."""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

_WINDOW = 2048  # most lines decoded together


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    file: Annotated[Path, typer.Argument(help="A text file (may be compressed), or - for standard input.")] = Path("-"),
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs for each line, with their scores, tab-separated.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Alpha of the length penalty.")] = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="Beta of the coverage penalty.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of an output.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: below 1 sharper, above 1 flatter.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="With --sample: only the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With --sample: the likeliest tokens that hold p together.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --sample: the same seed, the same outputs.")] = 1,
    prefixes: Annotated[Path | None, typer.Option(help="A file of what each output must begin with.")] = None,
    alignments: Annotated[
        Path | None, typer.Option(help="Write where the model looked, one JSON object a line, to this file.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default what PyTorch chooses.")] = None,
) -> None:
    """Predict one output line for each input line, in order, as the lines come.

    Examples:

    - `echo "3. März 2015" | sightline predict runs/dates`
    - `sightline predict runs/en-de test.en.xz --beam 5 > test.de`
    - `sightline predict runs/en-de test.en --nbest 5 --beam 8`
    - `sightline predict runs/en-de test.en --sample --top-p 0.9 --seed 7`
    - `sightline predict runs/dates dates.txt --alignments looks.jsonl`
    """
    import warnings

    import torch

    from sightline.run import Run

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = Run.load(run, device=device)
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed} if sample else None
    options = loaded.options(
        beam=beam,
        nbest=nbest,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        max_length=max_length,
        sample=drawing,
    )
    if alignments is not None and not loaded.model.looks:
        raise ValueError(f"{run} has no attention to show (model.decoder.attention.kind is none)")
    unknown = _Unknown()
    beginnings = iter(_lines(prefixes)) if prefixes is not None else None
    with _output(alignments) as looks:
        done = 0
        for window in _windows(_lines(file)):
            forced = None if beginnings is None else _next_prefixes(beginnings, len(window), done, prefixes)
            for text in window:
                unknown.look(loaded, text)
            found = loaded.predict_nbest(window, options, prefixes=forced, first=done)
            for text, guesses in zip(window, found, strict=True):
                print(_shown(guesses, nbest), flush=False)
                if looks is not None:
                    looks.write(json.dumps(_looked(loaded, text, guesses[0]), ensure_ascii=False) + "\n")
            done += len(window)
            sys.stdout.flush()
    if unknown.count:
        warnings.showwarning = lambda message, *_: print(f"sightline: {message}", file=sys.stderr)  # type: ignore[assignment]
        warnings.warn(unknown.message(), stacklevel=1)


def _shown(guesses: list[Any], nbest: int | None) -> str:
    if nbest is None:
        return str(guesses[0].text)
    return "\t".join(f"{guess.score:.4f}\t{guess.text}" for guess in guesses)


def _looked(run: Any, text: str, guess: Any) -> dict[str, Any]:
    source = run.vocabulary.source.encode(text)
    if not source:
        return {"source": [], "target": [], "weights": []}
    found: dict[str, Any] = run.alignment_of(source, guess.tokens).to_dict()
    return found


class _Unknown:
    """Counts what the vocabulary does not know, to say it once at the end."""

    def __init__(self) -> None:
        self.count, self.lines, self.examples = 0, 0, dict[str, None]()

    def look(self, run: Any, text: str) -> None:
        pieces = run.vocabulary.source.unknown(text)
        if pieces:
            self.count += len(pieces)
            self.lines += 1
            for piece in pieces:
                if len(self.examples) < 8:
                    self.examples[piece] = None

    def message(self) -> str:
        shown = ", ".join(repr(piece) for piece in self.examples)
        return f"{self.count} pieces on {self.lines} lines are not in the vocabulary and were read as unknown: {shown}"


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
    else:
        with path.open("w", encoding="utf-8") as file:
            yield file


def _lines(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, split at newlines alone."""
    from sightline.data.sources import read_lines

    if file is not None and str(file) != "-":
        yield from read_lines(file)
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\n").rstrip("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"standard input, line {number}: byte {error.start + 1} is not UTF-8; convert the text, "
                f"e.g. with: iconv -f LATIN1 -t UTF-8"
            ) from error


def _windows(lines: Iterator[str]) -> Iterator[list[str]]:
    """Whatever lines are there, up to a window: one by one from a person, many at once from a file."""
    ready: queue.Queue[str | BaseException | None] = queue.Queue(2 * _WINDOW)

    def work() -> None:
        try:
            for line in lines:
                ready.put(line)
            ready.put(None)
        except BaseException as error:  # handed on, to be raised where it is seen
            ready.put(error)

    threading.Thread(target=work, daemon=True, name="lines").start()
    end: str | BaseException | None = ""
    while isinstance(end, str):
        window: list[str] = []
        end = ready.get()
        while isinstance(end, str):
            window.append(end)
            if len(window) == _WINDOW:
                break
            try:
                end = ready.get(timeout=0.02)
            except queue.Empty:
                break
        if window:
            yield window
    if end is not None:
        raise end


def _next_prefixes(beginnings: Iterator[str], count: int, done: int, path: Path | None) -> list[str]:
    taken = [text for _, text in zip(range(count), beginnings, strict=False)]
    if len(taken) < count:
        raise ValueError(f"{path} has {done + len(taken)} lines, fewer than the input; give one prefix a line")
    return taken
