"""Comparisons written as Markdown, LaTeX, CSV, JSON and figures."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sightline.comparison import ComparisonResult, write_comparison
from sightline.comparison.export import Export, ExportError, csv_text, latex, markdown
from sightline.comparison.renderers import latex_text
from sightline.comparison.results import Cost, Difference, SystemResult, Validation
from sightline.comparison.tables import main_table
from sightline.plots import comparison as figures
from sightline.plots.comparison import draw, mean_line, write_figure
from sightline.sweeps.sweep import compare_runs

HOSTILE = "a|b_c & 50% $x^2$ #1 {~} \\end [*] <b>--`"


@pytest.fixture(scope="session")
def hostile(seeded: ComparisonResult) -> ComparisonResult:
    """A comparison with a name that every format must escape."""
    first, *rest = seeded.systems
    return replace(seeded, systems=[replace(first, name=HOSTILE), *rest])


def test_csv_has_a_line_per_system_in_full_precision(seeded: ComparisonResult, hostile: ComparisonResult) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(hostile))))
    assert [row["system"] for row in rows] == [HOSTILE, "none"]
    for row, system in zip(rows, seeded.systems, strict=True):
        for metric in seeded.metrics:
            quality = system.qualities[metric]
            assert float(row[metric]) == quality.value
            assert float(row[f"{metric}_deviation"]) == quality.deviation
            assert (float(row[f"{metric}_low"]), float(row[f"{metric}_high"])) == (quality.low, quality.high)
            assert row[f"{metric}_signature"] == quality.signature
        assert int(row["parameters"]) == system.parameters
        assert float(row["training_flops"]) == system.cost.flops
    verdict = seeded.others[0].verdicts["bleu"]
    assert rows[0]["bleu_p"] == "" and float(rows[1]["bleu_p"]) == verdict.p
    assert float(rows[1]["bleu_p_randomization"]) == verdict.approximate_randomization.p
    assert float(rows[1]["bleu_p_randomization_with_ties"]) == verdict.approximate_randomization.p_with_ties
    assert rows[1]["bleu_significant"] == str(verdict.significant)


def test_json_is_complete_and_strict(seeded: ComparisonResult) -> None:
    plain = json.loads(seeded.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert plain == json.loads(json.dumps(seeded.to_dict()))
    none = plain["systems"][1]
    verdict = seeded.others[0].verdicts["bleu"]
    assert none["verdicts"]["bleu"]["p"] == verdict.p
    assert none["verdicts"]["bleu"]["paired_bootstrap"]["p"] == verdict.paired_bootstrap.p
    assert [run["seed"] for run in none["runs"]] == [1, 2]
    assert none["runs"][0]["outputs"] == seeded.others[0].runs[0].outputs
    assert none["runs"][0]["validations"][0]["step"] == 30
    assert plain["references"] == seeded.references and len(plain["where"]["lengths"]) >= 1
    assert plain["differences"] == [{"key": "model.decoder.attention.kind", "values": ["dot", "none"]}]


def test_markdown_tables_have_as_many_cells_in_every_row(hostile: ComparisonResult) -> None:
    text = markdown(hostile)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1
        assert all(re.fullmatch(r"-{3}:?", cell) for cell in rows[1])
    cells = re.split(r"(?<!\\)\|", tables[0].splitlines()[2])
    assert re.sub(r"\\([\\`*_\[\]<>|#~])", r"\1", cells[1].strip()) == HOSTILE
    assert "<b>" not in text.replace("\\<", "")


def test_latex_escapes_special_characters() -> None:
    assert latex_text(HOSTILE) == (
        r"a\textbar{}b\_c \& 50\% \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} \textbackslash{}end "
        r"{[}{*}] \textless{}b\textgreater{}-{}-`"
    )
    assert latex_text("3 ± 1") == r"3 $\pm$ 1"


def test_latex_is_a_balanced_tabular(hostile: ComparisonResult) -> None:
    text = latex(hostile)
    layout = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert layout is not None
    body = text[layout.end() : text.index(r"\end{tabular}")]
    rows = [row for row in re.split(r"\\\\\n", body.replace("\\hline\n", "").replace("\\hline", "")) if row.strip()]
    assert len(rows) == 3  # the head and two systems
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(layout[1])} == {len(main_table(hostile).columns)}
    assert latex_text(HOSTILE) in rows[1]
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[#~]", bare)
    assert re.search(r"\d\.\d\$\\cdot10\^\{\d+\}\$", text)  # 3.3·10^18 as the published tables have it
    assert text.isascii()


def test_write_comparison_writes_all_files(seeded: ComparisonResult, tmp_path: Path) -> None:
    written = write_comparison(seeded, tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        f"comparison.{suffix}" for suffix in ("html", "md", "tex", "csv", "json", "png")
    ]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(
        path.name for path in written
    )
    assert written[3].read_text(encoding="utf-8") == csv_text(seeded)
    assert written[5].read_bytes().startswith(b"\x89PNG")


def test_write_errors_are_raised_after_the_other_files(
    seeded: ComparisonResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".csv":
            raise OSError(errno.ENOSPC, "No space left on device", str(path.with_name(".c.csv.1-2.tmp")))
        path.write_text(text, encoding="utf-8")

    monkeypatch.setattr("sightline.comparison.export.write_atomically", full)
    export = Export(seeded)
    for form, place in (("csv", tmp_path / "c.csv"), ("latex", tmp_path / "c.tex")):
        export.write(form, place)
    with pytest.raises(ExportError) as refused:
        export.finish()
    message = f"({tmp_path}/c.csv: No space left on device); written: {tmp_path}/c.tex"
    assert str(refused.value) == f"not all could be written or drawn {message}"


def test_comparison_of_a_sweep_names_failed_runs(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.comparison.export.write_comparison", lambda *_: [])
    result = compare_runs([trained["none-seed1"], trained["dot-seed1"]], tmp_path, ["dot-seed2"])
    assert result.notes[-1] == "Failed in training, so not compared: dot-seed2."


def test_mean_line_uses_common_steps(seeded: ComparisonResult) -> None:
    def journal(points: Sequence[tuple[int, int, float]]) -> list[Validation]:
        return [{"step": step, "tokens": tokens, "loss": loss} for step, tokens, loss in points]

    first, second = seeded.systems[0].runs
    members = [
        replace(first, validations=journal([(10, 100, 4.0), (20, 200, 2.0), (30, 300, 1.0)])),
        replace(second, validations=journal([(10, 120, 5.0), (20, 220, float("nan")), (30, 320, 2.0)])),
    ]
    system = replace(seeded.systems[0], runs=members)
    assert mean_line(system, "tokens", "loss") == [(110, 4.5), (310, 1.5)]
    assert mean_line(system, "flops", "loss") == []


def test_figure_format_follows_the_suffix(seeded: ComparisonResult, tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        write_figure(seeded, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"a\.gif: a figure is a \.png, \.svg, \.pdf file"):
        write_figure(seeded, tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()


def test_names_with_formulas_and_twenty_systems_are_drawn(seeded: ComparisonResult) -> None:
    names = ["$\\frac{", "نموذج", *(f"system {number} with a rather long name, and more of it" for number in range(18))]
    systems = [replace(seeded.systems[number % 2], name=name) for number, name in enumerate(names)]
    assert draw(replace(seeded, systems=systems), "png").startswith(b"\x89PNG")


def test_intervals_without_their_value_are_drawn(seeded: ComparisonResult) -> None:
    first, *rest = seeded.systems
    metric = seeded.metrics[0]
    quality = replace(first.qualities[metric], value=0.0, low=1e-15, high=0.4)
    odd = replace(seeded, systems=[replace(first, qualities={**first.qualities, metric: quality}), *rest])
    assert draw(odd, "svg", parts=("costs",)).startswith(b"<?xml")


def test_logarithmic_ticks_are_plain_text(seeded: ComparisonResult) -> None:
    def with_parameters(system: SystemResult, count: int) -> SystemResult:
        return replace(system, runs=[replace(each, parameters=count) for each in system.runs])

    first, second = seeded.systems
    apart = replace(seeded, systems=[with_parameters(first, 3_000_000), with_parameters(second, 40_000_000)])
    drawn = draw(apart, "svg", parts=("costs",)).decode()  # beside its paths, the text of every label is a comment
    assert "<!-- 10⁷ -->" in drawn
    assert "mathdefault" not in drawn


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        ([], "loss (nats a token)"),
        (["model.width", "tokenizer.dropout"], "loss (nats a token)"),
        (["tokenizer.kind", "tokenizer.dropout"], "loss (nats a token;\ntokenizers differ, so do these)"),
    ],
)
def test_loss_label_states_different_tokenizers(pair: ComparisonResult, keys: list[str], label: str) -> None:
    differing = replace(pair, differences=[Difference(key, ["1", "2"]) for key in keys])
    assert figures._shown_values(differing)[0] == ("loss", label)


def without(comparison: ComparisonResult, *keys: str) -> ComparisonResult:
    """Remove logged values and costs."""
    systems = [
        replace(
            system,
            runs=[
                replace(
                    run,
                    cost=Cost(),
                    validations=[{k: v for k, v in each.items() if k not in keys} for each in run.validations],
                )
                for run in system.runs
            ],
        )
        for system in comparison.systems
    ]
    return replace(comparison, systems=systems)


@pytest.mark.parametrize("missing", [(), ("flops",), ("bleu",), ("step", "loss", "bleu")])
def test_curves_are_drawn_for_logged_values(seeded: ComparisonResult, missing: tuple[str, ...]) -> None:
    labels = {"target tokens": "tokens", "training FLOPs": "flops", "steps": "step", "BLEU": "bleu"}
    drawn = draw(without(seeded, *missing), "svg", parts=("curves",)).decode()  # each label is a comment
    for label, key in labels.items():
        assert (f"<!-- {label} -->" in drawn) == (key not in missing and "loss" not in missing)
    assert ("no validation in metrics.jsonl" in drawn) == ("loss" in missing)
