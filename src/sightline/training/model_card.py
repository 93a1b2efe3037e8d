"""README.md of a run folder: a model card with architecture, data, scores, usage and samples."""

from __future__ import annotations

from pathlib import Path

from sightline.files import read_json, write_atomically
from sightline.recipe import Recipe
from sightline.registry import version
from sightline.run_folder import read_config, read_metrics, saved_progress
from sightline.terminal import escape_newlines, plural, truncate


def _settings(recipe: Recipe) -> list[tuple[str, str]]:
    """Rows on settings that most recipes do not use."""
    cut, adapters, training = recipe.data.clean.truncate_source, recipe.model.adapters, recipe.training
    rows = []
    if cut is not None:
        rows.append(("sources", f"cut to the first {plural(cut, 'token')}"))
    if recipe.model.copying:
        rows.append(("copying", "words of the source, beside what the decoder writes"))
    if adapters is not None:
        modules = ", ".join(adapters.target_modules)
        rows.append(("adapters", f"rank {adapters.rank}, alpha {adapters.alpha:g}, on {modules}"))
    if training.freeze:
        rows.append(("frozen", ", ".join(training.freeze)))
    if training.layer_lr_decay is not None:
        rows.append(("learning rate", f"times {training.layer_lr_decay:g} from each layer to the one below it"))
    if (guide := training.guided_alignment) is not None:
        layer = "the last layer but one" if guide.layer is None else f"layer {guide.layer}"
        rows.append(("guided alignment", f"{layer}, head {guide.head}, by {guide.file}, weight {guide.weight:g}"))
    if recipe.data.noise is not None:
        rows.append(("noise", f"{recipe.data.noise.kind}, {recipe.data.noise.rate:.0%}"))
    return rows


def _averaged(run: Path, recipe: Recipe) -> list[str]:
    """A row on weights that are an average."""
    averaging = recipe.training.averaging
    if averaging.kind == "none":
        return []
    if averaging.kind == "ema":
        return [f"| weights | a running average (decay {averaging.decay:g}), which validations were of, too |"]
    config = read_config(run) if (run / "config.json").is_file() else {}
    steps = ", ".join(map(str, config.get("steps") or (saved_progress(run) or {}).get("recent", ())))
    of = f"checkpoints of step {steps}" if steps else f"newest {plural(averaging.count, 'checkpoint')}"
    return [f"| weights | the mean of the {of}; no validation or sample is of it |"]


def write_model_card(run: Path, recipe: Recipe, parameters: int, trained: int | None = None) -> None:
    """Write README.md from the recipe and the journal."""
    validations = [record for record in read_metrics(run) if record.get("kind") == "validation"]
    start = read_json(run / "start.json") if (run / "start.json").is_file() else {}
    last = validations[-1] if validations else {}
    best = next((record for record in reversed(validations) if record["best"]), None)
    model, swapped = recipe.model, " (sides exchanged)" if recipe.data.swap else ""
    lines = [
        f"# {run.resolve().name}",
        "",
        f"{recipe.task_spec.description} trained with Sightline {version()}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {side} | {body.describe()} |" for side, body in model.bodies.items()),
        f"| width | {model.width} |",
        f"| parameters | {parameters:,}{'' if trained in (None, parameters) else f', {trained:,} of them trained'} |",
        f"| tokenizer | {recipe.tokenizer.kind}, {'shared' if recipe.tokenizer.shared else 'one for each side'} |",
        f"| trained on | {'; '.join(source.describe() for source in recipe.data.train)}{swapped} |",
        *(f"| start | {line} |" for line in start.get("notes", start.get("told", []))),  # "told": older versions
        *(f"| {name} | {value} |" for name, value in _settings(recipe)),
        *_averaged(run, recipe),
        f"| seed | {recipe.seed} |",
    ]
    if best is not None:
        shown = {key: value for key, value in best.items() if isinstance(value, float) and "seconds" not in key}
        scores = ", ".join(f"{key} {value:.3f}" for key, value in shown.items())
        lines += [
            f"| best validation | step {best['step']}: {scores} |",
            f"| training | {plural(last['step'], 'step')}, {plural(last['tokens'], 'target token')}, "
            f"{last['seconds'] / 60:.1f} minutes |",
        ]
    lines += ["", "## Use", "", "```", f"sightline predict {run.resolve().name} input.txt > output.txt"]
    lines += [f"sightline evaluate {run.resolve().name}", "```", ""]
    if best is not None and best.get("samples"):
        lines += ["## Samples from the validation set", "", "| source | reference | output |", "|---|---|---|"]
        for sample in best["samples"]:
            texts = (truncate(sample["source"]), truncate(sample["reference"]), sample["output"])
            cells = (escape_newlines(text).replace("|", "\\|") for text in texts)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += ["`recipe.yaml` holds everything that made this model, `environment.json` what it was made with.", ""]
    write_atomically(run / "README.md", "\n".join(lines))
