"""`sightline evaluate`: scores with signatures and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    on: Annotated[
        str | None, typer.Option(help="A test set of the recipe, or `validation`; by default every test.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="A file of source lines, instead of a test set.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The file of right answers, line by line.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Instead of the recipe's, e.g. bleu,chrf,ter.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Alpha of the length penalty.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score in lower case.")] = False,
    outputs: Annotated[Path | None, typer.Option(help="Write the outputs there, one a line.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the scores there.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Score a run, each metric with its signature and 95% interval.

    Examples:

    - `sightline evaluate runs/dates`
    - `sightline evaluate runs/en-de --on test_2016 --beam 5`
    - `sightline evaluate runs/en-de --source my.en --reference my.de --metrics bleu,chrf,ter`
    """
    import json

    from sightline.data.sources import read
    from sightline.files import write_atomically
    from sightline.recipe import Evaluation
    from sightline.recipe_data import TextSource
    from sightline.run import Run, TestSet

    if (source is None) != (reference is None):
        raise ValueError("--source and --reference go together: give both, or neither")
    loaded = Run.load(run, device=device)
    section = loaded.recipe.evaluation
    changed = {"lowercase": lowercase or section.lowercase}
    if metrics is not None:
        changed["metrics"] = tuple(metrics.split(","))  # type: ignore[assignment]
    evaluation = Evaluation.model_validate({**section.model_dump(), **changed})
    loaded.recipe = loaded.recipe.model_copy(update={"evaluation": evaluation})
    if source is not None and reference is not None:
        files = TextSource(source=str(source), target=str(reference))
        tests = [TestSet.of(source.name, read(files, None))]
    else:
        tests = [loaded.test_set(name) for name in ([on] if on else list(loaded.recipe.data.tests) or ["validation"])]
    options = loaded.options(beam=beam, length_penalty=length_penalty)
    reports = [loaded.evaluate(test, options) for test in tests]
    for report in reports:
        print(f"{report.on}: {report.sentences:,} sentences, beam {options.beam}")
        for found in report.scores:
            print(f"  {found}  {found.signature}")
    if outputs is not None:
        write_atomically(outputs, "".join(line + "\n" for report in reports for line in report.outputs))
    if json_file is not None:
        record = [{"run": str(run), "beam": options.beam, **report.to_dict()} for report in reports]
        write_atomically(json_file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
