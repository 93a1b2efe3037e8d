"""One test set for all runs: the same sources and the same references, read and held against one another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from sightline.comparison.systems import Contestant
from sightline.data.locate import is_reverse_direction
from sightline.data.sources import Example, read
from sightline.data.text_files import DataError
from sightline.evaluation.test_set import TestSet
from sightline.recipe import Recipe
from sightline.recipe.data import ColumnsSource, ConlluSource, PlainSource, TextSource
from sightline.run_folder import RunError
from sightline.terminal import plural, short

_REMEDY = "give a test set that all have with --on, or files with --source and --reference"


def from_files(source: Path | None, reference: Path | None, recipe: Recipe | None = None) -> TestSet:
    """A test set of one's own, for runs of such a recipe (by default one of pairs): two files, line by line.

    Language models have one, the text; it is cut into documents as the validation text is. Taggers may have one too,
    of words and labels as in the files they learned from.
    """
    if recipe is not None and recipe.of_text:
        if source is not None or reference is None:
            raise ValueError("--source: language models read no source; give their text with --reference alone")
        own = recipe.data.validation
        document = own.document if isinstance(own, PlainSource) else "line"
        text = PlainSource(file=str(reference), document=document)
        return TestSet.of(reference.name, read(text, None))
    if recipe is not None and recipe.task_spec.labels == "words" and source is None and reference is not None:
        return TestSet.of(reference.name, read(_as_learned(reference, recipe), None))
    if source is None or reference is None:
        raise ValueError("--source and --reference go together: give both, or neither")
    labelled = recipe is not None and recipe.task_spec.labels == "words"
    pairs = read(TextSource(source=str(source), target=str(reference)), None, labelled=labelled)
    return TestSet.of(source.name, pairs)


def _as_learned(path: Path, recipe: Recipe) -> ConlluSource | ColumnsSource:
    """A file of words with labels, in the columns of the files that were learned from."""
    learned = recipe.data.train[0]
    if not isinstance(learned, ConlluSource | ColumnsSource):
        raise ValueError(
            f"--reference {path} alone is a file of words with their labels, and this run learned from {learned.kind}: "
            f"give --source and --reference, line by line"
        )
    return learned.model_copy(update={"file": str(path), "share": None})


def common_test_set(contestants: Sequence[Contestant], on: str | TestSet | None) -> tuple[TestSet, list[str]]:
    """The test set to compare on, and the names of others that all runs have.

    By default it is the first that all runs have; it is read for every run, and runs whose texts differ are refused.
    """
    _check_direction(contestants)
    if isinstance(on, TestSet):
        _check_not_empty(on)
        return on, []
    first = contestants[0]
    shared = [name for name in _tests(first) if all(name in _tests(other) for other in contestants)]
    name = _first_of(shared, contestants) if on is None else on
    examples = _examples(first, name)
    seen = {_origin(first, name)}
    for other in contestants[1:]:
        origin = _origin(other, name)
        if origin in seen:
            continue
        seen.add(origin)
        _check_same(name, first, examples, other, _examples(other, name))
    test = TestSet.of(name, examples, gathered=all(each.run.recipe.gathers(name) for each in contestants))
    _check_not_empty(test)
    return test, [each for each in shared if each != name]


def _check_direction(contestants: Sequence[Contestant]) -> None:
    """Refuse runs that read what others write: on one text, one of them is lost."""
    first = contestants[0]
    for other in contestants[1:]:
        if is_reverse_direction(first.run.recipe, other.run.recipe):
            raise RunError(
                f"{other.name} learned the other direction of the corpus of {first.name} (data.swap: "
                f"{str(other.run.recipe.data.swap).lower()}), and a comparison is on one text; compare runs of one "
                f"direction"
            )


def _first_of(shared: Sequence[str], contestants: Sequence[Contestant]) -> str:
    """The first test set that all have; where nobody has any, the validation."""
    if shared:
        return shared[0]
    if not any(_tests(contestant) for contestant in contestants):
        return "validation"
    have = "; ".join(f"{each.name} has {', '.join(_tests(each)) or 'none'}" for each in contestants)
    raise RunError(f"the runs have no test set in common ({have}); {_REMEDY}")


def _tests(contestant: Contestant) -> list[str]:
    return list(contestant.run.recipe.data.tests)


def _examples(contestant: Contestant, name: str) -> list[Example]:
    if name not in contestant.run.test_sets():
        has = ", ".join(contestant.run.test_sets())
        raise RunError(f"{contestant.name} has no test set {name!r}; it has {has}; {_REMEDY}")
    try:
        return list(contestant.run.test_examples(name))
    except DataError as error:
        raise RunError(f"the test set {name} of {contestant.name} cannot be read: {error}; or {_REMEDY}") from error


def _origin(contestant: Contestant, name: str) -> str | None:
    """Where the examples come from: what has the same origin need not be read again. None never equals another."""
    data = contestant.run.recipe.data
    source = data.validation if name == "validation" else data.tests.get(name)
    return None if source is None else f"{source.model_dump_json()} {data.folder} {data.swap}"


def _check_same(name: str, first: Contestant, ours: list[Example], other: Contestant, theirs: list[Example]) -> None:
    for number, (one, two) in enumerate(zip_longest(ours, theirs), 1):
        if one == two:
            continue
        if one is None or two is None:
            longer = first if two is None else other
            what = (
                f"{longer.name} has {plural(max(len(ours), len(theirs)), 'line')} there, the other only {number - 1:,}"
            )
        else:
            side = "source" if one.source != two.source else "target"
            what = f"line {number:,} has the {side} {short(getattr(one, side))} and {short(getattr(two, side))}"
        raise RunError(
            f"the test set {name} of {first.name} is not that of {other.name}: {what}. Scores on different texts "
            f"cannot be compared; {_REMEDY}"
        )


def _check_not_empty(test: TestSet) -> None:
    if not test.sources:
        raise RunError(f"the test set {test.name} has no sentences, so there is nothing to compare; {_REMEDY}")
