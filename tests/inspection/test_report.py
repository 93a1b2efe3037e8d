"""The HTML report: well-formed, self-contained, with notes on omitted parts."""

from __future__ import annotations

import base64
import re
import shutil
import time
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.inspection.lecture_example import lecture_trace
from sightline.inspection.views import Subject
from sightline.models.build import build_model
from sightline.recipe import Recipe, Sampling
from sightline.report.page import gather, report, write_report
from sightline.run import Run
from sightline.text.vocabulary import Vocabulary
from untrained_runs import MODELS, OTHERS, untrained

TEXT = "Zwei Männer spielen Schach, 漢字 und mehr 🙂."
VOID = {"meta", "img", "br"}
HAS = {  # sections besides Output, Attribution and Walk-through
    "transformer": {"Alignment", "Heads", "Beam"},
    "recurrent": {"Alignment", "Heads", "Gates", "Beam"},
    "linear": {"Alignment", "Heads", "Gates", "Beam"},
    "convolutional": {"Alignment", "Heads", "Windows", "Beam"},
    "decoder-only": {"Heads", "Beam"},
    "language-model": {"Heads"},
    "classifier": {"Heads"},
    "tagger": {"Heads"},
    "experts": {"Alignment", "Heads", "Experts", "Beam"},
    "bytenet": {"Windows", "Beam"},
    "bottleneck": {"Gates", "Beam"},
}


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects the URLs of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.urls: list[str] = []
        self.titles: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                self.urls.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.titles.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@cache
def page_of(name: str) -> str:
    text = "a b c d" if name == "tagger" else TEXT
    return report(gather(Subject(untrained(name), text), f"untrained/{name}"))


def test_all_models_are_covered() -> None:
    assert set(HAS) == {*MODELS, *OTHERS, "bottleneck"}


@pytest.mark.parametrize("name", HAS)
def test_a_report_is_well_formed_and_has_what_the_model_has(name: str) -> None:
    reader = read(page_of(name))
    assert set(reader.titles) == {"Output", "Attribution", "Walk-through"} | HAS[name]
    assert len(reader.ids) == len(set(reader.ids))


@pytest.mark.parametrize("name", HAS)
def test_report_loads_nothing(name: str) -> None:
    page = page_of(name)
    reader = read(page)
    assert all(url.startswith(("data:image/png;base64,", "#")) for url in reader.urls)
    assert {url[1:] for url in reader.urls if url.startswith("#")} <= set(reader.ids)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|https?://", page)


def test_the_lecture_example_is_reported_without_a_run(tmp_path: Path) -> None:
    write_report(Subject(recorded=lecture_trace()), tmp_path / "lecture.html", title="lecture-example")
    page = (tmp_path / "lecture.html").read_text(encoding="utf-8")
    assert set(read(page).titles) == {"Output", "Alignment", "Heads", "Walk-through"}
    assert "2.12557" in page  # the loss
    assert '<annotation encoding="application/x-tex">Q K^{\\top} / \\sqrt {d_{k}}</annotation>' in page


def test_numbers_of_small_matrices_can_be_read_without_scripts() -> None:
    page = report(gather(Subject(recorded=lecture_trace()), "lecture-example"))
    weight = float(lecture_trace()["decoder.0.cross_attention.weights"][0, 0, 0, 1])
    assert f'title="&lt;s&gt; → predicts a · flies: {weight:.6g}">{weight:.3g}</td>' in page


def test_numbers_of_a_picture_are_those_of_the_trace() -> None:
    run = untrained("transformer")
    subject = Subject(run, TEXT)
    page = report(gather(subject, "x"))
    found = re.search(
        r'aria-label="encoder\.layers\.0\.attention\.weights, head 1: .*?data-size="(\d+),(\d+)" '
        r'data-range="([^,"]+),([^"]+)" data-sides="\d+,\d+" data-values="([^"]+)"',
        page,
    )
    assert found is not None
    codes = np.frombuffer(base64.b64decode(found[5]), "<u2").reshape(int(found[1]), int(found[2]))
    numbers = float(found[3]) + codes / 65_000 * (float(found[4]) - float(found[3]))
    weights = subject.trace["encoder.layers.0.attention.weights"][0, 1].numpy()
    np.testing.assert_allclose(numbers, weights, atol=2e-5)


def test_text_cannot_break_out_of_the_page() -> None:
    trace = lecture_trace()
    evil = '</script><script>alert(1)</script>"><img src=x onerror=alert(1)>'
    trace.about |= {"text": evil, "source_tokens": [evil, "b", "c"], "notes": [evil]}
    page = report(gather(Subject(recorded=trace), evil))
    assert set(read(page).urls) <= {url for url in read(page).urls if url.startswith(("#", "data:"))}
    assert "<img src=x" not in page
    assert "<script>alert" not in page


def test_a_focus_narrows_the_report() -> None:
    page = report(gather(Subject(untrained("transformer"), TEXT, layer=1, head=0), "x"))
    assert "encoder.layers.0.attention" not in re.sub(r"<p class=\"soft\">from.*?</p>", "", page)
    assert "<strong>head 0</strong>" in page
    assert "<strong>head 1</strong>" not in page


# --- a long text -----------------------------------------------------------------------------------------------------


def long_run(tokens: int) -> tuple[Run, str, str]:
    """Six layers of eight heads with random weights; a text and an output of `tokens` tokens with end marks."""
    words = ["Hund", "漢字", "कुत्ता", "🙂", "كلب", "läuft"]
    text = " ".join(words[place * place % 6] for place in range(tokens - 1))
    body = {"kind": "transformer", "layers": 6, "heads": 8, "feedforward": {"kind": "relu", "width": 16}}
    recipe = Recipe.model_validate(
        {
            "task": "seq2seq",
            "data": {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}},
            "tokenizer": {"kind": "word", "min_count": 1},
            "model": {"width": 16, "tie": "none", "encoder": body, "decoder": body},
            "decoding": {"beam": 2, "max_length": 10},
        }
    )
    vocabulary = Vocabulary.train(recipe.tokenizer, lambda: iter([(text, text)]), "none")
    model: Any = build_model(recipe, vocabulary).eval()
    return Run(Path("long"), recipe, vocabulary, model, torch.device("cpu")), text, text


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "long.html"
    run, text, target = long_run(500)
    write_report(Subject(run, text, target), path, title="a long text")
    return path


def test_a_report_on_500_tokens_stays_small_and_says_what_it_sampled(long_report: Path) -> None:
    assert long_report.stat().st_size < 20e6
    page = long_report.read_text(encoding="utf-8")
    assert page.count("<strong>head ") == 3 * 6 * 8
    assert "sampled: each cell is the largest of 8×8, of 500×500 in all" in page
    assert re.search(r"sampled: 1 in \d+ on axis 2, 1 in \d+ on axis 3 of \[1, 8, 500, 500\]", page)
    assert "Attribution is left out: 500 answers over 1000 tokens" in page


def test_report_on_500_tokens_opens_in_five_seconds(long_report: Path) -> None:
    browsers = pytest.importorskip("playwright.sync_api")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium")
    with browsers.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        took = []
        for _ in range(3):  # the fastest of three: other load only adds time
            start = time.monotonic()
            page.goto(long_report.as_uri())
            took.append(time.monotonic() - start)
        assert min(took) < 5
        page.locator("#heads .map").first.focus()
        page.keyboard.press("ArrowRight")
        message = page.inner_text("#readout")
        browser.close()
    assert re.search(r": 0\.\d+ .*\(row 0, column 1\)", message), message
    assert [url for url in urls if not url.startswith("data:")] == [long_report.as_uri()] * 3


def test_sampling_run_has_report_without_beam() -> None:
    run = untrained("transformer")
    drawing = run.recipe.decoding.model_copy(update={"sample": Sampling(seed=3), "beam": 1})
    recipe = run.recipe.model_copy(update={"decoding": drawing})
    own = Run(Path("none"), recipe, run.vocabulary, run.model, torch.device("cpu"))
    parts = gather(Subject(own, TEXT), "drawn")
    assert parts.beam is None
    assert "this run draws its outputs (decoding.sample), so there is no search to show" in report(parts)
