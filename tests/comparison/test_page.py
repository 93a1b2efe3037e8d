"""The HTML page: complete, self-contained, without scripts, in any script."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sightline.comparison import ComparisonResult
from sightline.comparison.export import html_page
from sightline.comparison.tables import main_table
from sightline.evaluation.word_differences import word_differences
from sightline.plots import comparison as figures

VOID = {"meta", "img", "source", "br"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost tag, text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def all(self, tag: str) -> list[str]:
        return [text for inner, text in self.texts if inner == tag]


@pytest.fixture(scope="module")
def text(seeded: ComparisonResult) -> str:
    return html_page(seeded)


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    return Reader(text)


def test_page_has_every_section(read: Reader) -> None:
    sections = [attributes["id"] for tag, attributes in read.tags if tag == "section"]
    assert sections == ["answer", "table", "significance", "recipes", "curves", "costs", "where", "runs"]
    assert read.all("h2")[0] == "Which is better?"
    heads = read.all("h3")
    assert any("by length of the reference" in head for head in heads)
    assert any("F1 of words" in head for head in heads)
    assert any(head.startswith("N-grams that") for head in heads)
    assert any(head.startswith("Words that") for head in heads)
    assert any(head.startswith("Sentences where none lost most") for head in heads)


def test_page_lists_values_and_runs(seeded: ComparisonResult, text: str, read: Reader) -> None:
    plain = re.sub(r"<[^>]+>", "", text)
    for row in main_table(seeded).rows:
        for cell in row:
            assert cell.replace("^", "").replace("<", "&lt;") in plain
    names = read.all("bdi")
    assert {"dot-seed1", "dot-seed2", "none-seed1", "none-seed2"} <= set(names)


def test_page_marks_differing_words(read: Reader, seeded: ComparisonResult) -> None:
    marked: tuple[list[str], list[str]] = [], []
    result = seeded.where.contrasts[0].sentences
    for each in [*result.improved, *result.worsened]:
        for side, segments in zip(marked, word_differences(each.baseline, each.system), strict=True):
            side += [segment.text for segment in segments if segment.kind != "same"]
    assert len(marked[0]) > 3
    assert (read.all("del"), read.all("ins")) == marked


def test_page_loads_and_runs_nothing(text: str, read: Reader) -> None:
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "srcset", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), tag
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for _, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")
    addresses = re.findall(r"https?://[^\s\"'<]+", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    assert addresses == []


def test_page_escapes_markup(seeded: ComparisonResult, text: str, read: Reader) -> None:
    assert any("<script>" in output for system in seeded.systems for output in system.runs[0].outputs)
    assert "<script" not in text and "&lt;script&gt;" in text
    named = [replace(seeded.systems[0], name='<img src=x onerror="alert(1)">'), *seeded.systems[1:]]
    hostile = Reader(html_page(replace(seeded, systems=named)))
    assert [attributes for tag, attributes in hostile.tags if tag == "img" and attributes.get("src") == "x"] == []
    assert '<img src=x onerror="alert(1)">' in hostile.all("bdi")


def test_page_sets_text_direction(read: Reader) -> None:
    arabic = [text for tag, text in read.texts if "كتاب" in text]
    assert arabic  # else there is nothing to see
    cells = [attributes for tag, attributes in read.tags if tag == "td" and attributes.get("dir") == "auto"]
    assert len(cells) >= 8
    assert all(attributes.get("dir") == "auto" for tag, attributes in read.tags if tag == "bdi")


def test_page_embeds_light_and_dark_figures(text: str) -> None:
    drawn = [base64.b64decode(each) for each in re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", text)]
    assert len(drawn) == 4
    assert all(b"<svg" in each and b"<image" not in each for each in drawn)
    assert [figures.DARK.background.encode() in each for each in drawn] == [True, False, True, False]


def test_page_without_matplotlib(seeded: ComparisonResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.comparison.export.can_draw", lambda: False)
    text = html_page(seeded)
    assert "Figures need matplotlib" in text and "base64" not in text
    assert 'id="where"' in text
