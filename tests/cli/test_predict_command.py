"""`sightline predict` for language models, classifiers and taggers."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.cli.lines import escaped
from sightline.run import Run
from sightline.run_folder import seal_run
from task_runs import columns, conllu

Runs = dict[str, Path]


def predict(run: Path, *arguments: str, given: str | bytes | None = None) -> Result:
    command = ["predict", str(run), *arguments, "--device", "cpu"]
    result = CliRunner().invoke(app, command, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


# --- language models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lm-gru", "lm-transformer", "lm-bpe"])
@pytest.mark.parametrize(
    "how",
    [
        ["--beam", "1"],
        ["--sample", "--seed", "3"],
        ["--sample", "--temperature", "0.5", "--top-k", "5"],
        ["--sample", "--top-p", "0.8"],
        ["--beam", "3"],
    ],
    ids=" ".join,
)
def test_what_streams_after_a_prompt_is_the_prediction(tasks: Runs, name: str, how: list[str]) -> None:
    streamed = predict(tasks[name], "--prompt", "ANNA: the", "--max-length", "40", *how).stdout
    line = predict(tasks[name], "--max-length", "40", *how, given="ANNA: the\n").stdout
    assert streamed.startswith("ANNA: the") and streamed.endswith("\n")
    assert escaped(streamed[:-1]) + "\n" == line
    assert streamed == predict(tasks[name], "--prompt", "ANNA: the", "--max-length", "40", *how).stdout


def test_text_comes_token_by_token(tasks: Runs) -> None:
    for name in ("lm-gru", "lm-bpe"):
        run = Run.load(tasks[name], device="cpu")
        parts: list[str] = []
        options = run.options(max_length=30, sample={"seed": 4})
        whole = run.stream("ANNA:", options, write=parts.append)
        assert "".join(parts) == whole.text == run.predict_nbest(["ANNA:"], options)[0][0].text
        assert len(whole.tokens) - 1 <= len(parts) <= len(whole.tokens) and "" not in parts


def test_max_length_counts_new_tokens_and_nothing_is_a_prompt_too(tasks: Runs) -> None:
    run = Run.load(tasks["lm-gru"], device="cpu")
    for prompt in ("", "ANNA: the old dog"):
        found = predict(tasks["lm-gru"], "--prompt", prompt, "--max-length", "7", "--sample").stdout[:-1]
        assert found.startswith(prompt)
        assert len(run.vocabulary.target.encode(found)) <= len(prompt) + 7
        greedy = run.stream(prompt, run.options(beam=1, max_length=7), write=lambda text: None)
        assert len(greedy.tokens) == len(prompt) + 7


def test_every_input_line_gives_one_output_line(tasks: Runs) -> None:
    found = predict(tasks["lm-gru"], "--sample", "--max-length", "90", given="ANNA:\n\nBOHR: a\n").stdout
    assert found.count("\n") == 3 and "\\n" in found and found.split("\n")[1] == ""
    assert escaped("a\\b\nc\r") == "a\\\\b\\nc\\r"


def test_several_continuations_have_their_scores(tasks: Runs) -> None:
    cells = predict(tasks["lm-gru"], "--prompt", "ANNA:", "--sample", "--nbest", "3").stdout.rstrip("\n").split("\t")
    assert len(cells) == 6
    assert sorted(map(float, cells[::2]), reverse=True) == [float(cell) for cell in cells[::2]]


def test_learned_positions_that_end_early_are_told(tasks: Runs) -> None:
    longest = Run.load(tasks["lm-transformer"], device="cpu").task.longest_source()
    assert longest is not None
    found = predict(tasks["lm-transformer"], "--prompt", "A", "--max-length", str(longest), "--sample")
    assert f"learned positions for {longest:,} tokens" in found.stderr


def test_a_prompt_that_is_too_long_is_named_as_what_it_is(tasks: Runs) -> None:
    longest = Run.load(tasks["lm-transformer"], device="cpu").task.longest_source()
    assert longest is not None
    told = rf"^the text of --prompt has {longest + 1:,} tokens and this model takes {longest:,} "
    with pytest.raises(ValueError, match=told):
        predict(tasks["lm-transformer"], "--prompt", "A" * (longest + 1))


def test_lines_that_end_where_the_learned_positions_do_are_counted(tasks: Runs) -> None:
    longest = Run.load(tasks["lm-transformer"], device="cpu").task.longest_source()
    found = predict(tasks["lm-transformer"], "--max-length", str(longest), "--beam", "1", given="A\nANNA:\n")
    assert "sightline: 2 lines ended where the learned positions of this model do\n" in found.stderr
    assert "positions" not in predict(tasks["lm-transformer"], given="A\n").stderr


def test_an_empty_line_gives_an_empty_line_and_takes_no_number_from_others(tasks: Runs) -> None:
    how = ["--sample", "--max-length", "9"]
    found = predict(tasks["lm-gru"], *how, given="ANNA:\n\nBOHR:\n").stdout.split("\n")
    assert found[1] == "" and len(found) == 4
    filled = predict(tasks["lm-gru"], *how, given="ANNA:\nx\nBOHR:\n").stdout.split("\n")
    assert [found[0], found[2]] == [filled[0], filled[2]]
    run = Run.load(tasks["lm-gru"], device="cpu")
    assert run.predict(["", "A"])[0] == "" != run.continuations("", run.options(beam=1, max_length=9))[0].text


# --- music -------------------------------------------------------------------------------------------------------


def test_a_piece_from_nothing_is_written_as_midi(tasks: Runs, tmp_path: Path) -> None:
    path = tmp_path / "piece.mid"
    for start in (["--prompt", ""], []):
        found = predict(tasks["music"], *start, "--sample", "--max-length", "18", "--midi", str(path))
        assert path.read_bytes().startswith(b"MThd")
        assert f"wrote {path}: " in found.stderr
        path.unlink()


def test_what_is_left_of_a_step_is_dropped_and_told(tasks: Runs, tmp_path: Path) -> None:
    start = ("--prompt", "60 57 53 41 60", "--max-length", "1")
    found = predict(tasks["music"], *start, "--sample", "--midi", str(tmp_path / "piece.mid"))
    assert re.search(r"piece\.mid: 1 step; [12] words? dropped \([12] of a last step", found.stderr)


def test_a_piece_begins_with_the_soprano(tasks: Runs) -> None:
    for seed in range(5):
        how = ("--sample", "--temperature", "0.3", "--seed", str(seed), "--max-length", "8")
        voices = list(map(int, predict(tasks["music"], "--prompt", "", *how).stdout.split()))
        assert voices[0] in range(60, 64) and voices[1:4] == [57, 53, 41]


def test_several_pieces_go_into_a_folder(tasks: Runs, tmp_path: Path) -> None:
    given = "60 57 53 41\n60 57 53 41 63 57\n"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(given)
    predict(tasks["music"], str(prompts), "--sample", "--midi", str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.mid")) == ["piece-0001.mid", "piece-0002.mid"]


# --- classifiers -------------------------------------------------------------------------------------------------


def test_a_classifier_gives_a_label_a_line_or_all_with_their_scores(tasks: Runs) -> None:
    given = "the dog good\nthe cat bad\n"
    assert predict(tasks["classify-mean"], given=given).stdout == "positive\nnegative\n"
    rows = [
        line.split("\t") for line in predict(tasks["classify-mean"], "--nbest", "5", given=given).stdout.splitlines()
    ]
    assert [[row[1], row[3]] for row in rows] == [["positive", "negative"], ["negative", "positive"]]
    assert all(float(row[0]) > float(row[2]) for row in rows)


def test_a_classifier_gives_no_label_to_an_empty_line(tasks: Runs) -> None:
    assert predict(tasks["classify-mean"], given="\nthe dog good\n  \n").stdout == "\npositive\n\n"
    assert predict(tasks["classify-mean"], given="\n").stdout == "\n"
    run = Run.load(tasks["classify-mean"], device="cpu")
    assert run.predict(["", "the cat bad"]) == ["", "negative"]
    with pytest.raises(ValueError, match="an empty text has no label"):
        run.trace("")


def test_a_column_of_a_csv_file_is_predicted_row_by_row(tasks: Runs, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,review\n1,"the dog,\ngood"\n2,the cat bad\n3,\n')
    for column in ("review", "2"):
        found = predict(tasks["classify-mean"], str(path), "--column", column).stdout
        assert found == "positive\nnegative\n\n"
    with pytest.raises(ValueError, match=r"in\.csv has the columns id, review; say with --column"):
        predict(tasks["classify-mean"], str(path))
    with pytest.raises(ValueError, match=r"there is no column 'reviw'; did you mean 'review'\?"):
        predict(tasks["classify-mean"], str(path), "--column", "reviw")
    assert predict(tasks["classify-mean"], str(path), "--format", "text").stdout.count("\n") == 5
    path.write_text("words\nthe dog\n")
    assert predict(tasks["tag-gru"], str(path)).stdout == "DET NOUN\n"


# --- taggers -----------------------------------------------------------------------------------------------------


def test_a_tagger_gives_a_label_for_each_word_of_a_line(tasks: Runs) -> None:
    assert predict(tasks["tag-gru"], given="the dog  sees\n\nold cat\n").stdout == "DET NOUN VERB\n\nADJ NOUN\n"


def test_a_conllu_file_comes_out_with_only_its_labels_changed(tasks: Runs, tmp_path: Path) -> None:
    right = "\ufeff" + conllu(12, 9).replace("\n# sent_id = 3", "\n\n# sent_id = 3").replace("\n", "\r\n", 4)
    right += "# the end, and no newline"
    path = tmp_path / "in.conllu"
    path.write_bytes(right.replace("\tDET\t", "\tX\t").replace("\tNOUN\t", "\t_\t").encode())
    assert path.read_bytes() != right.encode()
    assert predict(tasks["tag-gru"], str(path)).stdout_bytes == right.encode()
    piped = predict(tasks["tag-gru"], "--format", "conllu", given=path.read_bytes())
    assert piped.stdout_bytes == right.encode()


def test_a_column_file_has_its_learned_column_replaced(tasks: Runs, tmp_path: Path) -> None:
    right = columns(6, 8)
    path = tmp_path / "in.bio"
    path.write_text(right.replace("B-PER", "?").replace(" x ", "   x "))
    assert predict(tasks["names-gru"], str(path)).stdout == right.replace(" x ", "   x ")


@pytest.mark.parametrize(
    ("name", "file", "row", "known"),
    [
        ("tag-gru", "in.conllu", "{}\t{}\t_\t_\t_\t_\t0\troot\t_\t_\n", "dog"),
        ("names-gru", "in.col", "{1} x O\n", "rome"),
    ],
)
def test_unknown_words_of_a_tagged_file_are_told_as_those_of_a_text(
    tasks: Runs, name: str, file: str, row: str, known: str, tmp_path: Path
) -> None:
    texts = [["unheard", known, "of"], [known], ["of"]]
    sentences = ("".join(row.format(place, word) for place, word in enumerate(words, 1)) for words in texts)
    (tmp_path / file).write_text("".join(f"{sentence}\n" for sentence in sentences))
    told = predict(tasks[name], str(tmp_path / file)).stderr
    assert told == (
        "sightline: read as unknown, for they are not in the vocabulary: 3 pieces in 2 sentences, 'unheard', 'of'\n"
    )


def test_a_column_that_was_not_learned_has_to_be_named(tasks: Runs, tmp_path: Path) -> None:
    path = tmp_path / "in.col"
    path.write_text("the x\ndog x\n")
    with pytest.raises(ValueError, match=r"learned from conllu, so which column of columns .* --column 2"):
        predict(tasks["tag-gru"], str(path))
    assert predict(tasks["tag-gru"], str(path), "--column", "2").stdout == "the DET\ndog NOUN\n"
    assert predict(tasks["tag-gru"], str(path), "--column", "3").stdout == "the x DET\ndog x NOUN\n"


@pytest.mark.parametrize(
    ("name", "file", "options"),
    [
        ("tag-gru", "in.conllu", ["--format", "conllu"]),
        ("tag-gru", "in.conllu.gz", ["--format", "conllu"]),
        ("names-gru", "in.bio", ["--format", "columns"]),
        ("tag-gru", "in.txt", []),
        ("classify-mean", "in.txt", []),
    ],
)
def test_an_empty_file_is_an_error_and_an_empty_pipe_is_none(
    tasks: Runs, name: str, file: str, options: list[str], tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_bytes(gzip.compress(b"") if file.endswith(".gz") else b"")
    with pytest.raises(ValueError, match=rf"{file} is empty; give a file with"):
        predict(tasks[name], str(path))
    assert predict(tasks[name], *options, given="").stdout == ""


def test_a_tagged_file_of_nothing_but_a_byte_order_mark_is_empty_too(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "in.conllu").write_bytes(b"\xef\xbb\xbf")
    with pytest.raises(ValueError, match=r"in\.conllu is empty"):
        predict(tasks["tag-gru"], str(tmp_path / "in.conllu"))
    (tmp_path / "in.conllu").write_bytes(b"\n")
    assert predict(tasks["tag-gru"], str(tmp_path / "in.conllu")).stdout == "\n"


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("tag-gru", ["--prompt", "x"], "--prompt is for task: language-model"),
        ("tag-gru", ["--beam", "3"], "--beam applies to models that generate text"),
        ("tag-gru", ["--nbest", "2"], "a tagger has one answer"),
        ("tag-gru", ["--format", "xml"], "--format xml is unknown; use conllu, columns, text"),
        ("tag-gru", ["--format", "conllu", "--column", "head"], "CoNLL-U has form, lemma, upos"),
        ("classify-mean", ["--format", "conllu"], "--format is for task: tagging"),
        ("classify-mean", ["--alignments", "x"], "has no attention to show"),
        ("lm-gru", ["--temperature", "0.5"], "--temperature applies to sampling; add --sample"),
        ("lm-gru", ["--midi", "x.mid"], "learned from chorales, and this one learned from plain"),
        ("lm-gru", ["x.txt", "--prompt", "y"], "are two inputs"),
        ("music", ["--midi", "x.wav"], "name a file that ends in .mid"),
        ("music", ["--midi", "nowhere/x.mid"], "there is no folder"),
        ("lm-gru", ["--diversity", "0.3"], "needs several groups; add decoding.groups=N"),
        ("lm-gru", ["--ensemble-mean", "logs"], "add --with RUN"),
        ("lm-gru", ["--sample", "--beam", "3"], "--beam and --sample exclude each other; leave one of them out"),
        ("lm-gru", ["--prompt", "the", "--prefixes", "x"], "--prompt is the beginning itself"),
        ("tag-gru", ["--format", "conllu", "--prefixes", "x"], "labels have no beginnings to force"),
        ("tag-gru", ["--column", "upos"], "this one is plain text; leave it out, or say what the file is with"),
        ("lm-gru", ["--beam", "4", "decoding.groups=3"], "do not divide beam"),
        ("lm-gru", ["--beam", "1", "decoding.mbr.candidates=8"], "beam 1 finds one"),
        ("lm-gru", ["decoding.mbr.candidates=1"], "decoding.mbr.candidates: expected greater than or equal to 2"),
        (
            "lm-gru",
            ["decoding.mbr=null", "decoding.mbr.utility=bleu"],
            "decoding.mbr.utility=bleu applies to minimum Bayes risk decoding",
        ),
        ("lm-gru", ["decoding.mbr.utility=bleu"], "minimum Bayes risk decoding; add decoding.mbr.candidates=N"),
        ("lm-gru", ["decoding.mbr.weights=alike"], "decoding.mbr.weights=alike applies to minimum Bayes risk decoding"),
        (
            "lm-gru",
            ["--sample", "decoding.mbr.candidates=4", "decoding.mbr.weights=probability"],
            "mbr.weights: probability is for a beam",
        ),
        ("classify-mean", ["decoding.no_repeat=2"], "decoding.no_repeat=2 applies to models that generate text"),
        ("tag-gru", ["--forbid-everywhere", "x"], "--forbid-everywhere applies to models that generate text"),
        ("lm-gru", ["--prompt", "A", "--forbid", "x"], "--forbid has phrases for each line"),
        ("lm-gru", ["decoding.beem=3"], "override 'decoding.beem=3': unknown key decoding.beem; did you mean beam"),
        ("lm-gru", ["decoding.beam=x"], "override 'decoding.beam=x': decoding.beam: expected an integer, got 'x'"),
        ("lm-gru", ["training.lr=1"], "override 'training.lr=1': training.lr is fixed once a run is trained"),
        ("lm-gru", ["a.txt", "decoding.beam=2", "b.txt"], "unexpected argument 'b.txt': give one file"),
        ("lm-gru", ["--sample", "decoding.beam=3"], "decoding.beam=3 and --sample exclude each other"),
        ("lm-gru", ["decoding.diversity=0.3"], "needs several groups"),
    ],
)
def test_predict_refuses(tasks: Runs, name: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(
        app, ["predict", str(tasks[name]), *arguments, "--device", "cpu"], input="ANNA: the\nBOHR: old\n"
    )
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output


def test_a_tagger_has_one_answer_however_many_its_recipe_asks_for(tasks: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tasks["tag-gru"], tmp_path / "run"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["decoding"] |= {"beam": 4, "nbest": 3}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    seal_run(run)
    path = tmp_path / "in.conllu"
    path.write_text(conllu(4, 9))
    for asked, given in (([], "the dog\n"), ([str(path)], None)):
        assert predict(run, *asked, given=given).stdout == predict(tasks["tag-gru"], *asked, given=given).stdout


def test_json_has_for_each_line_its_output_and_what_is_wrong_with_it(tasks: Runs) -> None:
    run = tasks["classify-mean"]
    records = [json.loads(line) for line in predict(run, "--json", given="a good dog\na bad cat\n").stdout.splitlines()]
    plain = predict(run, given="a good dog\na bad cat\n").stdout.splitlines()
    assert [record["text"] for record in records] == plain
    assert all(record["score"] < 0 and not record["truncated"] and record["unknown"] == 0 for record in records)
    (several,) = predict(run, "--json", "--nbest", "2", given="a good dog\n").stdout.splitlines()
    assert len(json.loads(several)["outputs"]) == 2


def test_an_unknown_piece_of_a_prompt_is_continued_as_it_is_and_not_counted(tasks: Runs) -> None:
    found = predict(tasks["lm-bpe"], "--max-length", "3", "--json", given="ANNA: (犬) the\n")
    record = json.loads(found.stdout)
    assert record["text"].startswith("ANNA: (犬) the") and record["unknown"] == 0
    streamed = predict(tasks["lm-bpe"], "--prompt", "ANNA: (犬) the", "--max-length", "3", "--sample").stdout
    assert streamed.startswith("ANNA: (犬) the")
    assert "<unk> is in" not in found.stderr and "read as unknown" in found.stderr
