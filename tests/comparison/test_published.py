"""The published tables: every number, and how they are shown alone and beside runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.comparison import ComparisonResult
from sightline.comparison.export import html_page, latex, markdown
from sightline.comparison.published import published
from sightline.comparison.results import read_comparison
from sightline.comparison.tables import corpora_table, published_table
from sightline.comparison.terminal import plain_text

# BLEU EN-DE, BLEU EN-FR, FLOPs EN-DE, FLOPs EN-FR
TRANSLATION: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
    "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk Ensemble": (None, 40.4, None, 8.0e20),
    "GNMT + RL Ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S Ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
    "Transformer (base model)": (27.3, 38.1, 3.3e18, None),
    "Transformer (big)": (28.4, 41.8, 2.3e19, None),
}
SUMMARIZATION = {  # test perplexity, ROUGE-L
    "seq2seq-attention, L = 500": (5.04952, 12.7),
    "Transformer-ED, L = 500": (2.46645, 34.2),
    "Transformer-D, L = 4000": (2.22216, 33.6),
    "Transformer-DMCA, no MoE-layer, L = 11000": (2.05159, 36.2),
    "Transformer-DMCA, MoE-128, L = 11000": (1.92871, 37.9),
    "Transformer-DMCA, MoE-256, L = 7500": (1.90325, 38.8),
}


def test_translation_table_is_the_published_one() -> None:
    table = published("translation")
    assert table.columns == ["BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"]
    assert {row.system: tuple(row.values) for row in table.rows} == TRANSLATION
    assert {each.test for each in table.corpora} == {"newstest2014"}
    assert "Vaswani et al. (2017)" in table.source


def test_summarization_table_is_the_published_one() -> None:
    table = published("summarization")
    assert table.columns == ["Test perplexity", "ROUGE-L"]
    assert {row.system: tuple(row.values) for row in table.rows} == SUMMARIZATION
    assert "Liu et al. (2018)" in table.source


def test_the_transformer_is_best_at_a_fraction_of_the_flops_of_every_other_row() -> None:
    rows = {row.system: row.values for row in published("translation").rows}
    big, base = rows.pop("Transformer (big)"), rows.pop("Transformer (base model)")
    others = list(rows.values())
    assert big[:2] == [
        max(28.4, *(bleu for bleu, *_ in others if bleu)),
        max(41.8, *(row[1] for row in others if row[1])),
    ]
    assert base[2] == 3.3e18 and all(base[2] < row[2] / 2 for row in others if row[2])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("translation", ("8.0·10^20", "1.8·10^20", "1.1·10^21", "7.7·10^19", "1.2·10^21")),
        ("summarization", ("1.90325",)),
    ],
)
def test_the_command_prints_a_table_without_runs(name: str, shown: tuple[str, ...], tmp_path: Path) -> None:
    files = {form: tmp_path / f"table.{form}" for form in ("html", "markdown", "latex", "csv", "json")}
    options = [argument for form, path in files.items() for argument in (f"--{form}", str(path))]
    result = CliRunner().invoke(app, ["compare", "--published", name, *options], catch_exceptions=False)
    assert result.exit_code == 0
    table = published(name)
    text = {form: path.read_text(encoding="utf-8") for form, path in files.items()}
    for row in table.rows:
        assert row.system in result.stdout
        assert all(row.system in text[form] for form in ("html", "csv", "json"))
    assert all(each in result.stdout for each in shown)
    assert table.corpora[0].size in result.stdout and table.corpora[0].size in text["markdown"]
    assert json.loads(text["json"])["published"]["rows"][0]["values"] == table.rows[0].values
    assert text["latex"].count(r"\begin{tabular}") == 2
    assert text["html"].startswith("<!doctype html>")


def test_published_numbers_follow_the_runs_with_corpus_and_size_of_both(pair: ComparisonResult, tmp_path: Path) -> None:
    both = replace(pair, published=published("translation"))
    text = plain_text(both)
    assert text.index("Quality and cost") < text.index("Published: English → German") < text.index("Significance")
    rows = corpora_table(published("translation"), pair).rows
    assert [row[0] for row in rows] == ["compared here", "compared here", "published", "published"]
    assert rows[0][2] == "train.tsv (150 examples after cleaning)" and rows[0][3] == "test, 60 texts"
    assert rows[2][2] == "WMT 2014 English-German, about 4.5 million sentence pairs"
    for written in (markdown(both), latex(both), html_page(both)):
        assert "150 examples after cleaning" in written and "about 4.5 million sentence pairs" in written
    assert all(
        "Published" not in written for written in (plain_text(pair), markdown(pair), latex(pair), html_page(pair))
    )
    (tmp_path / "both.json").write_text(both.to_json(), encoding="utf-8")
    assert read_comparison(tmp_path / "both.json") == both


def test_numbers_are_printed_as_published() -> None:
    cells = {row[0]: row[1:5] for row in published_table(published("translation")).rows}
    assert cells["ByteNet"] == ["23.75", "–", "–", "–"]
    assert cells["Transformer (base model)"] == ["27.3", "38.1", "3.3·10^18", "–"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--published", "speech"], "there is no published table 'speech'; choose from translation, summarization"),
        (
            ["--published", "translation", "--beam", "4"],
            "--published alone compares no runs, so --beam can change nothing",
        ),
        (["--published", "translation", "--figure", "a.png"], "--figure draws runs"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
