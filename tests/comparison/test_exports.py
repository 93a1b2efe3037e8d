"""Markdown, LaTeX, CSV and JSON: each is read back, hostile names and all."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sightline.comparison import ComparisonResult, write_comparison
from sightline.comparison.export import Export, ExportError, csv_text, latex, markdown
from sightline.comparison.renderers import latex_text
from sightline.comparison.tables import main_table
from sightline.sweeps.sweep import compare_runs

HOSTILE = "a|b_c & 50% $x^2$ #1 {~} \\end [*] <b>--`"


@pytest.fixture(scope="session")
def hostile(seeded: ComparisonResult) -> ComparisonResult:
    """The same comparison with a name that means something in every format."""
    first, *rest = seeded.systems
    return replace(seeded, systems=[replace(first, name=HOSTILE), *rest])


def test_csv_has_a_line_a_system_with_every_number_in_full(seeded: ComparisonResult, hostile: ComparisonResult) -> None:
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


def test_json_has_everything_and_nothing_that_json_lacks(seeded: ComparisonResult) -> None:
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


def test_a_number_that_is_not_finite_is_null_in_json(seeded: ComparisonResult) -> None:
    first = seeded.systems[0]
    quality = replace(first.qualities["bleu"], low=float("nan"), high=float("inf"))
    broken = replace(
        seeded, systems=[replace(first, qualities={**first.qualities, "bleu": quality}), seeded.systems[1]]
    )
    plain = json.loads(broken.to_json())
    assert plain["systems"][0]["qualities"]["bleu"]["low"] is None
    assert plain["systems"][0]["qualities"]["bleu"]["high"] is None


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


def test_markdown_shows_the_numbers_of_the_table_and_the_signatures(seeded: ComparisonResult) -> None:
    text = markdown(seeded)
    for row in main_table(seeded).rows:
        for cell in row:
            assert cell.replace("*", "\\*") in text
    for quality in seeded.baseline.qualities.values():
        assert f"- {quality.label}: " + quality.signature.replace("|", "\\|").replace("_", "\\_") in text


def test_latex_escapes_every_character_that_means_something() -> None:
    assert latex_text(HOSTILE) == (
        r"a\textbar{}b\_c \& 50\% \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} \textbackslash{}end "
        r"{[}{*}] \textless{}b\textgreater{}-{}-`"
    )
    assert latex_text("3 ± 1") == r"3 $\pm$ 1"


def test_latex_is_a_balanced_tabular_with_as_many_cells_in_every_row(hostile: ComparisonResult) -> None:
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


def test_all_of_it_is_written_into_a_folder(seeded: ComparisonResult, tmp_path: Path) -> None:
    written = write_comparison(seeded, tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        f"comparison.{suffix}" for suffix in ("html", "md", "tex", "csv", "json", "png")
    ]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(
        path.name for path in written
    )
    assert written[3].read_text(encoding="utf-8") == csv_text(seeded)
    assert written[5].read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_is_told_by_its_own_name_once_the_others_are(
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
    told = f"({tmp_path}/c.csv: No space left on device); written: {tmp_path}/c.tex"
    assert str(refused.value) == f"not all could be written or drawn {told}"


def test_what_a_sweep_writes_names_the_runs_that_failed(trained: dict[str, Path], tmp_path: Path) -> None:
    compare_runs([trained["none-seed1"], trained["dot-seed1"]], tmp_path, ["dot-seed2"])
    assert "Failed in training, so not compared: dot-seed2." in (tmp_path / "comparison.md").read_text(encoding="utf-8")
