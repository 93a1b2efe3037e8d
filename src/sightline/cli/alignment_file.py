"""The file that `predict --alignments` writes: attention weights as JSON, or word links in Pharaoh format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.inspection.alignment import HeadSelection
    from sightline.run import Run
    from sightline.tasks.base import Prediction

FORMATS = ("json", "pharaoh")


@dataclass(frozen=True)
class AlignmentFile:
    """Path and format of the file; `heads` applies to Pharaoh format."""

    path: Path
    format: str
    heads: HeadSelection

    def lines(self, run: Run, texts: list[str], best: list[Prediction]) -> Iterator[str]:
        """One line per text."""
        from sightline.inspection.alignment import align_outputs

        if self.format == "json":
            for text, output in zip(texts, best, strict=True):
                yield json.dumps(_weights(run, text, output), ensure_ascii=False)
        else:
            for alignment in align_outputs(run, texts, [output.tokens for output in best], self.heads):
                yield alignment.pharaoh()


def check_alignments(path: Path | None, format: str | None, heads: str | None, shift: bool) -> None:
    """Refuse an unknown format, and options without the ones they belong to."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"--alignment-format {format} is not one of {', '.join(FORMATS)}")
    if format is not None and path is None:
        raise ValueError(f"--alignment-format {format} needs a file; add --alignments FILE")
    if _format_of(path, format) != "pharaoh" and (heads is not None or shift):
        raise ValueError("--alignment-heads and --shift apply to word links; add --alignment-format pharaoh")


def alignment_file(
    run: Run, path: Path | None, format: str | None, heads: str | None, shift: bool
) -> AlignmentFile | None:
    """The file to write, if any; heads that the model does not have are refused."""
    from sightline.files import check_writable
    from sightline.inspection.alignment import select_heads

    if path is None:
        return None
    check_writable(path)
    selection = head_selection(heads, shift)
    format = _format_of(path, format)
    if format == "pharaoh":
        select_heads(run.model, selection.heads)
    return AlignmentFile(path, format, selection)


def head_selection(heads: str | None, shift: bool) -> HeadSelection:
    """Heads by name, separated by commas: `decoder.2.cross.1,decoder.2.cross.3`."""
    from sightline.inspection.alignment import HeadSelection

    return HeadSelection(tuple(name.strip() for name in (heads or "").split(",") if name.strip()), shift)


def _format_of(path: Path | None, format: str | None) -> str:
    return format or ("pharaoh" if path is not None and path.suffix == ".pharaoh" else "json")


def _weights(run: Run, text: str, output: Prediction) -> dict[str, Any]:
    (source,) = run.encode_sources([text])
    alignment = run.alignment_of(source, output.tokens) if source else None
    return {"source": [], "target": [], "weights": []} if alignment is None else alignment.to_dict()
