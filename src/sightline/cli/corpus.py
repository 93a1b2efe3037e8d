"""`sightline inspect --corpus`: the losses of a test set as tables, files and a picture, and its quality by length."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.breakdowns import LengthBucket
    from sightline.inspection.corpus_losses import Counts
    from sightline.inspection.corpus_view import CorpusView, Order
    from sightline.run import Run

_SHOWN = 20  # sentences or tokens of the table


def show_corpus(
    run: Run,
    on: str,
    *,
    order: Order,
    tokens: bool,
    quality: bool,
    csv_file: Path | None,
    json_file: Path | None,
    figure: Path | None,
) -> None:
    """The losses of a test set, sorted, and by length; with `quality` it is decoded and scored by length too."""
    from sightline.evaluation.metrics import METRICS
    from sightline.files import check_place, write_atomically, write_json
    from sightline.inspection.corpus_view import length_table, sentence_table, token_table
    from sightline.plots.corpus import draw_lengths
    from sightline.terminal import console

    if csv_file is not None:
        check_place(csv_file)
    if figure is not None:
        _check_lengths(run, figure)
    if quality:
        _check_quality(run)
    view = corpus_view(run, on)
    screen = console()
    what = f"{plural(len(view.sentences), 'sentence')}, {view.loss:.3f} nats a token"
    screen.print(f"{on}: {what}; {order} first", markup=False, highlight=False)
    screen.print((token_table if tokens else sentence_table)(view, order, _SHOWN))
    if not run.recipe.task_spec.continues_text:  # whose text is cut into equal parts
        screen.print("loss by length", highlight=False)
        screen.print(length_table(view.by_length()))
    qualities = _quality(run, on) if quality else []
    metric = METRICS[run.recipe.evaluation.metrics[0]].label
    if qualities:
        screen.print(_quality_table(qualities, metric))
    if csv_file is not None:
        write_atomically(csv_file, view.to_csv(order))
        print(f"wrote {csv_file}", file=sys.stderr)
    if json_file is not None:
        lengths = [{"low": each.low, "high": each.high, "scores": each.scores} for each in qualities]
        record = {**view.to_dict(order), **({"metric": metric, "quality": lengths} if lengths else {})}
        write_json(json_file, record)
        print(f"wrote {json_file}", file=sys.stderr)
    if figure is not None:
        name = run.folder.name
        draw_lengths(view.by_length(), qualities, figure, name=name, metric=metric, title=f"{name} on {on}")
        print(f"wrote {figure}", file=sys.stderr)


def _check_quality(run: Run) -> None:
    """The same of outputs, and of a metric that looks at them."""
    from sightline.evaluation.metrics import METRICS

    spec, metric = run.recipe.task_spec, run.recipe.evaluation.metrics[0]
    if not spec.maps_text or not METRICS[metric].needs_outputs:
        raise ValueError(f"--quality is of outputs that are texts, not of {spec} by {metric}; leave it out")


def _check_lengths(run: Run, figure: Path) -> None:
    """Before anything is measured: whether there are lengths to draw, and a file for it."""
    from sightline.plots.figure_files import check_figure

    check_figure(figure)
    if run.recipe.task_spec.continues_text:
        raise ValueError(f"--figure {figure} draws losses by length; a language model's text is cut into equal parts")


def corpus_view(run: Run, on: str) -> CorpusView:
    """The same as data."""
    import numpy as np

    from sightline.inspection.corpus_losses import pair_losses, text_losses
    from sightline.text.tokenizer import END

    if run.recipe.data.noise is not None:
        raise ValueError(
            f"--corpus {on}: {run.folder} answers only where a text is spoilt (data.noise), so not every token has a "
            f"loss; `sightline evaluate` scores it"
        )
    counts = _training_counts(run)
    if not run.recipe.task_spec.continues_text:
        examples = list(run.test_examples(on))
        return pair_losses(run.model, run.recipe, run.vocabulary, examples, on=on, counts=counts, device=run.device)
    documents = run.vocabulary.target.encode_many([each.target for each in run.test_examples(on)])
    stream = np.concatenate([np.asarray([*ids, END]) for ids in documents])
    return text_losses(stream, run.text_losses(stream), run.vocabulary, on=on, counts=counts)


def _training_counts(run: Run) -> Counts | None:
    """How often each token stands in the training text, where that is at hand."""
    from sightline.data.preparation import prepare_data
    from sightline.data.sources import DataError
    from sightline.inspection.corpus_losses import token_counts

    try:
        prepared = prepare_data(run.recipe, vocabulary=run.vocabulary)
    except (DataError, OSError) as error:
        print(f"frequencies are not known, the training text is not at hand: {error}", file=sys.stderr)
        return None
    with closing(prepared):
        return token_counts(prepared.train(0), run.vocabulary.target.size)


def _quality(run: Run, on: str) -> list[LengthBucket]:
    """The recipe's first metric by the length of the references, decoded as the recipe says."""
    from sightline.evaluation.breakdowns import quality_by_length
    from sightline.evaluation.metrics import measure

    metric = run.recipe.evaluation.metrics[0]
    test = run.test_set(on)
    outputs = [guesses[0].text for guesses in run.predict_nbest(test.sources)]

    def scorer(some: list[str], references: list[list[str]]) -> float:
        section = run.recipe.evaluation
        return measure(metric, some, references, lowercase=section.lowercase, section=section).value

    return quality_by_length(test.references, {run.folder.name: outputs}, scorer)


def _quality_table(qualities: Sequence[LengthBucket], metric: str) -> Any:
    from rich.table import Table

    table = Table("words", "sentences", metric, title="quality by length", box=None)
    for bucket in qualities:
        table.add_row(bucket.label, str(bucket.sentences), f"{next(iter(bucket.scores.values())):.1f}")
    return table
