"""The documentation: its commands, recipes, keys, files and links exist, and its tables show docs/measurements."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer

from documented import PAGES, ROOT, Snippet, commands, fenced, headers, name, spans
from sightline.cli.app import app
from sightline.recipe import Recipe
from sightline.recipe.checks import check_trainable
from sightline.recipe.loading import load_recipe, shipped_recipes
from sightline.recipe.schema import alternatives, sections
from sightline.recipe.yaml import read_yaml
from sightline.sweeps.grid import as_text, combinations, read_variants

SHIPPED = shipped_recipes()
GROUP = typer.main.get_command(app)
BASE = {"seq2seq": "europarl/transformer", "masked-lm": "pretraining/bert"}
ANY = BASE["seq2seq"]  # stands for a recipe that the documentation leaves open
KEY = re.compile(
    r"(?:data|tokenizer|model|training|decoding|evaluation)(?:\.(?!json|safetensors|py\b)[a-z0-9_]+)+(?=[=: ]|$)"
)
TRAINING = [["train"], ["sweep"], ["distill"], ["baseline"]]
OPTION = re.compile(r'"(--[a-z-]+)"')
FILE = re.compile(r"(?<![\w/$-])[\w-]+/[\w/-]+\.(?:py|md|json|yaml)\b")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    """Every command shown, but verbs that are only named, and without what stands for the reader's own words."""
    found = commands(tmp_path_factory.mktemp("empty"))
    return [(page, [word for word in words if word not in ("…", "OVERRIDES")]) for page, words in found]


def test_every_command_shown_has_its_verb_arguments_and_options(shown: list[tuple[str, list[str]]]) -> None:
    wrong = []
    ours = [(page, words) for page, (program, *words) in shown if program == "sightline"]
    for page, words in ours:
        try:
            command, context = GROUP, None
            while hasattr(command, "commands") and words:
                context = command.make_context(words[0], words, parent=context, resilient_parsing=len(words) == 1)
                _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
            if words:  # else it is only named
                command.make_context(str(command.name), words, parent=context)
        except Exception as error:  # typer's own, wherever this version of it keeps them
            wrong.append(f"{page}: sightline {' '.join(words)}: {error}")
    assert len(ours) > 200
    assert not wrong, "\n".join(wrong)


def recipe_of(words: list[str], mine: Path) -> tuple[str | Path, list[str]]:
    """The recipe and the overrides of a command; what it leaves to the reader is filled in."""
    filled = [re.sub(r"=(M|KIND)$", lambda found: {"M": "=1", "KIND": "=mean"}[found[1]], word) for word in words]
    overrides = [re.sub(r"^\[(.*)\]$", r"\1", word) for word in filled if re.match(r"\[?[a-z_0-9.]+=", word)]
    for word in words:
        for recipe in (word, word.replace("NAME", "transformer"), word.replace("NAME", "transformer-d")):
            if recipe in SHIPPED:
                return recipe, overrides
    return mine if {"mine.yaml", "my.yaml"} & {*words} else ANY, overrides


def test_every_recipe_and_override_shown_can_be_loaded(shown: list[tuple[str, list[str]]], tmp_path: Path) -> None:
    wrong = []
    mine = tmp_path / "mine.yaml"
    mine.write_text(next(block.text for block in fenced("yaml") if block.page == "README.md"), encoding="utf-8")
    trained = [(page, words) for page, words in shown if words[1:2] in TRAINING]
    tried = set()
    for page, (_, verb, *words) in trained:
        recipe, overrides = recipe_of(words, mine)
        if verb == "sweep":
            lists = [ROOT / word for word in words if word.startswith("benchmarks/")]
            variants = [variant for file in lists for variant in read_variants(file)]
            found = [tuple(map(str, combination.overrides)) for combination in combinations(overrides, variants)]
        else:
            found = [tuple(overrides)]
        for values in {*found} - {values for known, values in tried if known == recipe}:
            tried.add((recipe, values))
            try:
                check_trainable(load_recipe(recipe, values))
            except ValueError as error:
                wrong.append(f"{page}: sightline {verb} {' '.join(words)}: {error}")
    assert len(trained) > 80
    assert not wrong, "\n".join(wrong)


def test_every_recipe_named_is_shipped(shown: list[tuple[str, list[str]]]) -> None:
    folders = {Path(recipe).parent.as_posix() for recipe in SHIPPED} - {"."}
    named = [(page, word) for page, words in shown for word in words if Path(word).parent.as_posix() in folders]
    named += [(snippet.page, snippet.text) for snippet in spans() if Path(snippet.text).parent.as_posix() in folders]
    wrong = [f"{page}: {word}" for page, word in named if word not in SHIPPED and Path(word).name != "NAME"]
    assert len(named) > 100
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("block", fenced("yaml"), ids=lambda block: block.page)
def test_every_piece_of_a_recipe_can_be_loaded(block: Snippet, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if block.page == "docs/plugins.md":
        request.getfixturevalue("plugin")
    document = read_yaml(block.text, block.page)
    assert not document.problems
    whole = "data" in document.value and "model" in document.value
    if whole:
        (tmp_path / "whole.yaml").write_text(block.text, encoding="utf-8")
    task = document.value.pop("task", "seq2seq")
    changes = [
        f"{section}.{key}={as_text(value)}" for section, held in document.value.items() for key, value in held.items()
    ]
    recipe = load_recipe(tmp_path / "whole.yaml") if whole else load_recipe(BASE[task], changes)
    assert recipe.task == task
    check_trainable(recipe)


@pytest.mark.parametrize("block", fenced("python"), ids=lambda block: block.page)
def test_every_piece_of_python_shown_imports_what_it_uses(block: Snippet) -> None:
    held = ast.parse(block.text).body
    imports = [each for each in held if isinstance(each, ast.Import | ast.ImportFrom)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(imports, type_ignores=[]), block.page, "exec"), names)
    made = {each.id for each in ast.walk(ast.Module(held, [])) if isinstance(each, ast.Name)}
    set_here = {target.id for each in held if isinstance(each, ast.Assign) for target in each.targets}  # type: ignore[attr-defined]
    assert made <= {*names, *set_here}


def keys(annotation: Any, before: str = "") -> set[str]:
    """All dotted keys that a recipe can have here, with 0 for every place of a list and * for every name."""
    found = set()
    for section in sections(annotation):
        for field, declared in section.model_fields.items():
            found |= {before + field, *keys(declared.annotation, f"{before}{field}.")}
    for leaf in alternatives(annotation):
        if get_origin(leaf) in (tuple, list, dict):
            place = "*" if get_origin(leaf) is dict else "0"
            found |= {part for argument in get_args(leaf) for part in keys(argument, f"{before}{place}.")}
    return found


def test_every_key_named_is_one_of_a_recipe() -> None:
    known = keys(Recipe)
    named = [(snippet.page, key) for snippet in [*spans(), *headers()] for key in KEY.findall(snippet.text)]
    wrong = [f"{page}: {key}" for page, key in named if key not in known]
    assert len(named) > 100
    assert not wrong, "\n".join(wrong)


def test_every_option_of_a_benchmark_shown_is_one(shown: list[tuple[str, list[str]]]) -> None:
    ours = [(page, words) for page, (program, *words) in shown if program == "python" and "benchmarks/" in words[0]]
    race = (ROOT / "benchmarks" / "race.py").read_text(encoding="utf-8")  # what all races can be asked for
    wrong = [
        f"{page}: {script} {word}"
        for page, (script, *words) in ours
        for word in words
        if word.startswith("--") and f'"{word}"' not in (ROOT / script).read_text(encoding="utf-8") + race
    ]
    assert len(ours) > 5
    assert not wrong, "\n".join(wrong)


def test_every_option_named_is_one_of_a_verb_or_a_benchmark() -> None:
    verbs = [GROUP]
    for group in verbs:  # which grows by the commands of groups in it
        verbs += getattr(group, "commands", {}).values()
    known = {"--help", *(option for verb in verbs for each in verb.params for option in each.opts)}
    known |= {
        option for file in (ROOT / "benchmarks").glob("*.py") for option in OPTION.findall(file.read_text("utf-8"))
    }
    named = [
        (snippet.page, option) for snippet in spans() for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", snippet.text)
    ]
    wrong = [f"{page}: {option}" for page, option in named if option not in known]
    assert len(named) > 80
    assert not wrong, "\n".join(wrong)


def test_every_link_leads_somewhere() -> None:
    wrong = [
        f"{name(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_of_ours_named_is_there() -> None:
    snippets = [*spans(), *headers()]
    named = [(one.page, path) for one in snippets for path in FILE.findall(one.text)]
    roots = (ROOT, ROOT / "src" / "sightline", ROOT / "docs")
    wrong = [f"{page}: {path}" for page, path in named if not any((root / path).exists() for root in roots)]
    assert len(named) > 20
    assert not wrong, "\n".join(wrong)


def test_every_page_picture_and_measurement_can_be_found() -> None:
    """Some other page links to it, or shows it."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    made = [*(ROOT / "docs").glob("*.*"), *(ROOT / "docs" / "measurements").glob("*.json")]
    lost = [file.name for file in made if not any(file.name in texts[page] for page in texts if page != file.name)]
    assert len(made) > 40
    assert lost == []


# --- tables -------------------------------------------------------------------------------------------------------

MIB, MS = 2**-20, 1e3


def measured(name: str) -> Any:
    return json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text(encoding="utf-8"))


def missing(page: str, rows: Iterable[list[str]]) -> list[list[str]]:
    """Those rows of which no table of the page has all cells; marks of the best and of significance do not count."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("**", "").replace("\\*", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    shown = [{part for cell in line.split("|") for part in (cell.strip(), *_parts(cell.strip()))} for line in lines]
    return [row for row in rows if not any({*row} <= cells for cells in shown)]


def _parts(cell: str) -> list[str]:
    """`37.52 [35.86, 39.14]` and `+0.19 (0.55)` are two numbers each."""
    value, bracket, interval = cell.partition(" [")
    return [value.partition(" (")[0], bracket.strip() + interval]


def signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("ablations", "ablations.md"),
        ("attention_scores", "attention-scores.md"),
        ("translation_table", "translation-table.md"),
        ("distillation_lstm", "translation-table.md"),
        ("distillation_convs2s", "translation-table.md"),
    ],
)
def test_scores_intervals_and_differences_are_those_of_the_comparison(name: str, page: str) -> None:
    rows = []
    for system in measured(name)["systems"]:
        bleu, *others = (system["qualities"][metric] for metric in ("bleu", "chrf", "ter"))
        values = [
            f"{each['value']:.2f}" + (f" ± {each['deviation']:.2f}" if each["deviation"] else "")
            for each in (bleu, *others)
        ]
        differences = [signed(verdict["difference"]) for verdict in system["verdicts"].values()]
        shown = differences[:1] if name == "translation_table" else differences
        rows.append([*values, f"[{bleu['low']:.2f}, {bleu['high']:.2f}]", *shown])
    assert missing(page, rows) == []


@pytest.mark.parametrize(("name", "digits"), [("", 0), ("_cuda", 1), ("_cuda_longer", 1)])
def test_time_and_memory_of_long_inputs_are_those_measured(name: str, digits: int) -> None:
    points: dict[int, list[str]] = {}
    for row in measured(f"long_attention{name}")["rows"]:
        cells = points.setdefault(row["length"], [f"{row['length']:,}"])
        cells += [f"{row['seconds'] * MS:,.{digits}f}", f"{row['peak_bytes'] * MIB:,.0f}"]
    assert missing("long-inputs.md", points.values()) == []


def test_memory_and_time_of_relative_attention_are_those_measured() -> None:
    points: dict[tuple[int, int], list[str]] = {}
    for row in measured("relative_memory")["rows"]:
        cells = points.setdefault((row["batch"], row["length"]), [f"{row['batch']}", f"{row['length']:,}"])
        cells += [f"{row['peak_bytes'] * MIB:,.1f}", f"{row['seconds'] * MS:,.1f}"]
    assert missing("positions.md", points.values()) == []


def test_what_positions_carry_is_what_was_measured() -> None:
    rows = [
        [row["change"], row["positions"], *(_exact(test) for test in row["tests"])]
        for row in measured("length_generalization")["rows"]
    ]
    assert missing("positions.md", rows) == []


def _exact(test: dict[str, Any]) -> str:
    return f"{test['scores']['exact']['value']:.1f}" if "scores" in test else "error"


def test_alignment_errors_are_those_measured() -> None:
    found = [
        each
        for run in measured("alignment_error")
        for each in (run["all"][run["chosen"]], *run["symmetrized"].values())
    ]
    rows = [[f"{each[key]:.3f}" for key in ("AER", "precision", "recall")] for each in found]
    assert missing("alignments.md", rows) == []


def test_what_taps_cost_is_what_was_measured() -> None:
    rows = [
        [model, f"{work['taps']:,}", f"{100 * work['cost']['value']:.2f} %".replace("-", "−")]
        for model, works in measured("tap_cost")["models"].items()
        for work in works.values()
    ]
    assert missing("looking-inside.md", rows) == []


@pytest.mark.parametrize("name", ["train_speed_cpu_scan", "decode_speed_cpu_greedy", "decode_speed_cpu_beam"])
def test_rates_and_ratios_of_a_race_are_those_measured(name: str) -> None:
    first, *others = measured(name)["rows"]
    rows = [
        [f"{row['rate']:,.0f}", f"{row['first_is_faster']:.2f}×", "{:.2f} – {:.2f}".format(*row["quartiles"])]
        for row in others
    ]
    assert missing("speed.md", [[f"{first['rate']:,.0f}"], *rows]) == []
