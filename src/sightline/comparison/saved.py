"""A comparison read back from the JSON it was written to, to be shown, drawn and written again without any run.

What JSON has no number for (null) is a nan again. A file without texts (`Comparison.without_texts`), or without what
later versions write down, is read as far as it goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from sightline.comparison.journals import Cost
from sightline.comparison.recipe_differences import Difference
from sightline.comparison.results import Comparison, Member, Quality, System, Verdict
from sightline.comparison.seeds import SeedTest
from sightline.comparison.where import Where
from sightline.evaluation.intervals import Score
from sightline.evaluation.significance import Significance
from sightline.evaluation.test_set import TestSet
from sightline.files import MAX_JSON, parse_json, read_bounded

Plain = Mapping[str, Any]
Found = TypeVar("Found")


def read_comparison(path: Path) -> Comparison:
    """The comparison that `sightline compare --json` wrote to this file."""
    try:
        return _comparison(parse_json(read_bounded(path, MAX_JSON)))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); give a file that compare --json wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(_refusal(path, f"{error.title} {place}: {first['msg']}")) from error
    except KeyError as error:
        raise ValueError(_refusal(path, f"there is no {error.args[0]}")) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(_refusal(path, f"{type(error).__name__}: {error}")) from error


def _refusal(path: Path, why: str) -> str:
    return f"{path} is no comparison ({why}); give a file that sightline compare --json wrote, as it was written"


def _comparison(saved: Plain) -> Comparison:
    test, metrics = saved["test"], saved["metrics"]
    systems = [_saved_system(each, test["sentences"]) for each in saved["systems"]]
    nowhere = Where.nowhere(metrics[0], {each.name: each.name for each in systems})
    return Comparison(
        test=TestSet(
            name=test["name"],
            sources=saved.get("sources", []),
            references=saved.get("references", []),
            pairs=test.get("pairs", test["sentences"]),
        ),
        sentences=test["sentences"],
        other_tests=test["others"],
        metrics=metrics,
        systems=systems,
        differences=[_as(Difference, each) for each in saved["differences"]],
        where=_as(Where, saved["where"]) if "where" in saved else nowhere,
        notes=saved["notes"],
        decoded_on=saved["decoded_on"],
        of_text=saved.get("of_text", False),
    )


def _saved_system(saved: Plain, sentences: int) -> System:
    return System(
        name=saved["name"],
        members=[_member(each, sentences) for each in saved["runs"]],
        qualities={metric: _as(Quality, each) for metric, each in _there(saved["qualities"])},
        verdicts={metric: _verdict(metric, each) for metric, each in _there(saved["verdicts"])},
    )


def _member(saved: Plain, sentences: int) -> Member:
    """Files of earlier versions do not say how many sentences a run decoded: all of them, or none."""
    decoded = sentences if saved.get("sentences_per_second") else 0
    every = saved["validations"]
    validations = [{key: math.nan if value is None else value for key, value in each.items()} for each in every]
    known = {field.name for field in fields(Member)}
    values = {key: value for key, value in saved.items() if key in known} | {
        "sentences": saved.get("sentences", decoded),
        "outputs": saved.get("outputs", []),
        "validations": validations,
        "cost": _as(Cost, saved["cost"]),
        "scores": {metric: _as(Score, each) for metric, each in _there(saved["scores"])},
    }
    for field in fields(Member):
        if field.name not in values and field.default is field.default_factory is MISSING:
            raise KeyError(f"{field.name} of a run")
    return Member(**values)


def _verdict(metric: Any, saved: Plain) -> Verdict:
    mcnemar, seeds = saved["mcnemar"], saved["seeds"]
    return Verdict(
        metric=metric,
        randomization=_as(Significance, saved["approximate_randomization"]),
        bootstrap=_as(Significance, saved["paired_bootstrap"]),
        mcnemar=None if mcnemar is None else _as(Significance, mcnemar),
        seeds=None if seeds is None else _as(SeedTest, seeds),
    )


def _there(saved: Plain) -> list[tuple[Any, Plain]]:
    """What is not null."""
    return [(key, value) for key, value in saved.items() if value is not None]


def _as(kind: type[Found], saved: Plain) -> Found:
    """A dataclass from its plain form, with all that lies in it; numbers that are null are nan."""
    floats = {field.name for field in fields(kind) if field.type == "float"}  # type: ignore[arg-type]
    return TypeAdapter(kind).validate_python(
        {key: math.nan if value is None and key in floats else value for key, value in saved.items()}
    )
