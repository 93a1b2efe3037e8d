"""Damaged recipes, corpora, run folders and command lines: never a traceback, a hang or a silent wrong result.

A few cases of each family run with the other tests; many by `SIGHTLINE_FUZZ=1000 pytest -m fuzz -s`.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Called, Wrong, call, fuzz
from mutations import changed_value, damaged, options

from sightline.data.sources import Example, read
from sightline.data.text_files import LineLimit, LongLine
from sightline.recipe import Recipe
from sightline.recipe.data import Clean
from sightline.recipe.loading import RecipeError, load_recipe, shipped_recipes
from sightline.recipe.recipe import changed
from sightline.recipe.yaml import read_yaml, write_yaml
from task_runs import GRU, columns, conllu, recipe, trained_tasks

pytestmark = pytest.mark.fuzz

# --- recipes -------------------------------------------------------------------------------------------------------

SHIPPED = sorted(shipped_recipes().values())
# Keys that other keys take their defaults from, so that those may change too.
_LEADING = ("task", "kind", "noise", "model", "init_from", "data", "validation", "length_penalty")


def differing(one: Any, other: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths at which two plain values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {*one, *other}:
            if key not in one or key not in other:
                yield (*path, str(key))
            else:
                yield from differing(one[key], other[key], (*path, str(key)))
    elif type(one) is not type(other) or one != other:
        yield path


def check_recipe(path: Path, before: Any, recipe: Recipe | None) -> str:
    """Hold a damaged recipe to the whole one: an error with its place, or a difference only where the YAML has one."""
    after = read_yaml(path.read_text("utf-8-sig"), str(path)) if recipe is not None else None
    if recipe is None or after is None:
        return "refused"
    written = set(differing(before, after.value))
    original = load_recipe(Path(str(path) + ".whole"))
    said = [text.split(":")[0] for text in changed(original.model_dump(mode="json"), recipe.model_dump(mode="json"))]
    if any(set(place) & set(_LEADING) for place in written) or any(place[:1] == ("model",) for place in written):
        return "differs"
    for key in said:
        parts = tuple(key.split("."))
        if not any(parts[: len(place)] == place or place[: len(parts)] == parts for place in written):
            raise Wrong(f"{key} is another, and {['.'.join(place) for place in written]} was changed")
    for place in written:
        value: Any = after.value
        for part in place:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool | int | float | str) and place and not said:
            dumped: Any = recipe.model_dump(mode="json")
            for part in place:
                dumped = dumped.get(part) if isinstance(dumped, dict) else None
            if dumped != value:
                raise Wrong(f"{'.'.join(place)}: {value!r} was written, and {dumped!r} is what is used")
    return "differs" if said else "the same"


def recipe_case(folder: Path, draw: random.Random) -> str:
    whole = draw.choice(SHIPPED)
    text = whole.read_text("utf-8")
    before = read_yaml(text, "whole").value
    path = folder / "recipe.yaml"
    (folder / "recipe.yaml.whole").write_text(text)
    if draw.random() < 0.6:
        value, _, what = changed_value(before, draw)
        try:
            content = write_yaml(value).encode("utf-8")
        except (yaml.YAMLError, UnicodeEncodeError, RecursionError):
            return "not writable"
    else:
        content, what = damaged(text.encode(), draw)
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check_recipe(path, before, load_recipe(path))
    except RecipeError as error:
        if str(path) not in str(error):
            raise Wrong(f"no place in: {error}") from error
        return "refused"
    except BaseException as error:
        error.add_note(f"{whole.name}: {what}")
        raise


def test_recipes(tmp_path: Path) -> None:
    fuzz("recipes", 60, lambda draw: recipe_case(tmp_path, draw))


# --- data ----------------------------------------------------------------------------------------------------------

PAIRS = [("ein Hund", "a dog"), ("zwei Männer – laut", "two men"), ("", ""), ("漢字 🙂", "x"), ("a b c", "c b a")]
_BOUND = LineLimit(4_096)


def corpora() -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
    tsv = "".join(f"{a}\t{b}\n" for a, b in PAIRS)
    lines = "".join(json.dumps({"source": a, "target": b}, ensure_ascii=False) + "\n" for a, b in PAIRS)
    pieces = {"train": [[[67, 62, 59, 43], [67, 62, 59, 43]]], "valid": [[[60, 57, 53, 41]]]}
    return {
        "text": (
            {"kind": "text", "source": "a.txt", "target": "b.txt"},
            {"a.txt": "".join(f"{a}\n" for a, _ in PAIRS), "b.txt": "".join(f"{b}\n" for _, b in PAIRS)},
        ),
        "tsv": ({"kind": "tsv", "file": "a.tsv"}, {"a.tsv": tsv}),
        "jsonl": ({"kind": "jsonl", "file": "a.jsonl"}, {"a.jsonl": lines}),
        "pattern": (
            {"kind": "pattern", "file": "a.dict", "pattern": r"(?P<source>[^\t]*)\t(?P<target>.*)"},
            {"a.dict": tsv},
        ),
        "plain": ({"kind": "plain", "file": "a.txt"}, {"a.txt": "".join(f"{b} {a}\n" for a, b in PAIRS)}),
        "conllu": ({"kind": "conllu", "file": "a.conllu"}, {"a.conllu": conllu(5, 1)}),
        "columns": ({"kind": "columns", "file": "a.col", "label": 3}, {"a.col": columns(5, 1)}),
        "chorales": ({"kind": "chorales", "file": "a.json", "split": "train"}, {"a.json": json.dumps(pieces)}),
    }


def naive(kind: str, files: dict[str, bytes]) -> list[tuple[str, str]] | None:
    """What a few lines of Python read from the same bytes; None for kinds that take more than that."""
    if kind not in ("text", "tsv", "pattern", "jsonl", "plain"):
        return None
    lines = [content.decode("utf-8-sig").split("\n") for content in files.values()]
    lines = [each[:-1] if each[-1] == "" else each for each in lines]
    lines = [[line.removesuffix("\r") for line in each] for each in lines]
    if kind == "text":
        return list(zip(*lines, strict=True))  # type: ignore[arg-type]
    if kind in ("tsv", "pattern"):
        cut = [line.split("\t", 1 if kind == "pattern" else -1) for line in lines[0]]
        return [(cells[0], cells[1]) for cells in cut]
    if kind == "jsonl":
        return [(each["source"], each["target"]) for each in map(json.loads, lines[0])]
    if kind == "plain":
        return [("", line) for line in lines[0] if line.strip()]
    return None


def data_case(folder: Path, draw: random.Random) -> str:
    from pydantic import TypeAdapter

    from sightline.recipe.sources import AnySource

    kind = draw.choice(list(corpora()))
    section, files = corpora()[kind]
    packed = draw.random() < 0.2
    name = draw.choice(list(files))
    contents = {each: text.encode() for each, text in files.items()}
    if packed:  # damage to the stream itself
        section = {key: f"{value}.gz" if value in files else value for key, value in section.items()}
        contents = {f"{each}.gz": gzip.compress(content, mtime=0) for each, content in contents.items()}
        name += ".gz"
    contents[name], what = damaged(contents[name], draw)
    for each, content in contents.items():
        (folder / each).write_bytes(content)
    source = TypeAdapter(AnySource).validate_python(section)
    try:
        labelled = kind in ("conllu", "columns")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = list(read(source, folder, limit=_BOUND, labelled=labelled))
    except ValueError as error:
        if not any(each in str(error) for each in contents):
            raise Wrong(f"{kind}, {what}: no file in: {error}") from error
        return "refused"
    except BaseException as error:
        error.add_note(f"{kind}, {what}")
        raise
    if labelled and any(len(each.source.split(" ")) != len(each.target.split(" ")) for each in result):
        raise Wrong(f"{kind}, {what}: words and labels differ")
    if any(isinstance(each.source, LongLine) for each in result):
        raise Wrong(f"{kind}, {what}: a long line passed as an empty one")
    raw = {
        each: gzip.GzipFile(fileobj=io.BytesIO(content)).read() if packed else content
        for each, content in contents.items()
    }
    expected = naive(kind, raw)
    if expected is not None and [tuple(each) for each in result] != expected:
        raise Wrong(f"{kind}, {what}: read {result[:3]}…, and the file says {expected[:3]}…")
    assert all(isinstance(each, Example) for each in result)
    return "read"


def test_data(tmp_path: Path) -> None:
    assert Clean().longest_line > 0
    fuzz("data", 120, lambda draw: data_case(tmp_path, draw))


# --- run folders and options ---------------------------------------------------------------------------------------

INPUT = "the dog good\n\na cat bad\nold xyz\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Tiny runs of three tasks."""
    decoder = {**GRU, "attention": {"kind": "additive"}}
    with pytest.MonkeyPatch.context() as patch:
        own = {"seq2seq": recipe("seq2seq", "tsv", "tsv", {"encoder": GRU, "decoder": decoder})}
        known = __import__("task_runs").recipes()
        patch.setattr("task_runs.recipes", lambda: known | own)
        folder = tmp_path_factory.mktemp("fuzz")
        (folder / "cwd").mkdir()
        patch.chdir(folder / "cwd")
        with trained_tasks(folder, ["seq2seq", "classify-mean", "lm-gru"]) as result:
            yield list(result.values())


def predicted(run: Path) -> Called:
    return call(["predict", str(run), "--device", "cpu"], INPUT)


def folder_case(runs: list[Path], place: Path, expected: dict[Path, Called], draw: random.Random) -> str:
    whole = draw.choice(runs)
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("checkpoints"))
    files = [file for file in sorted(run.iterdir()) if file.is_file() and not file.name.startswith(".")]
    file = draw.choice(files)
    what = draw.choice(["damage"] * 6 + ["remove", "folder", "other run", "link"])
    if what == "damage":
        content, what = damaged(file.read_bytes(), draw)
        file.write_bytes(content)
    elif what == "other run":
        other = draw.choice(runs) / file.name
        if other.exists():
            shutil.copyfile(other, file)
    else:
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what == "link":
            file.symlink_to("nowhere")
    if file.is_file() and file.read_bytes() == (whole / file.name).read_bytes():
        what += ", which changed nothing"
    try:
        done = predicted(run)
        done.check(file.name, str(run))
    except BaseException as error:
        error.add_note(f"{whole.name}/{file.name}: {what}")
        raise
    if done.code:
        return "refused"
    if done.out != expected[whole].out and file.name not in done.err:
        raise Wrong(f"{whole.name}/{file.name}: {what}: other outputs, and not a word of it: {done.out!r} {done.err!r}")
    return "the same" if done.out == expected[whole].out else "reported"


def test_run_folders(runs: list[Path], tmp_path: Path) -> None:
    expected = {run: predicted(run) for run in runs}
    assert all(each.code == 0 and each.out.count("\n") == 4 for each in expected.values()), expected
    fuzz("run_folders", 25, lambda draw: folder_case(runs, tmp_path, expected, draw))


def option_case(runs: list[Path], draw: random.Random) -> str:
    verb, chosen = options(draw)
    run = draw.choice(runs)
    text = {"inspect": ["the dog"], "average": ["--out", "averaged"]}.get(verb, [])
    command = [verb, str(run), *text, *chosen]
    if "--device" not in chosen and verb != "average":
        command += ["--device", "cpu"]
    try:
        done = call(command, INPUT)
        done.check()
        if verb == "predict" and not done.code and "--prompt" not in chosen and done.out.count("\n") != 4:
            raise Wrong(f"{done.out.count(chr(10))} lines for 4: {done.out!r}")
        if "nan" in done.out.lower().split() or ("inf" in done.out.lower().split()):
            raise Wrong(f"a score that is no number: {done.out!r}")
    except BaseException as error:
        error.add_note(" ".join(map(repr, command)))
        raise
    return f"exit code {done.code}"


def test_options(runs: list[Path]) -> None:
    fuzz("options", 40, lambda draw: option_case(runs, draw))
