"""Commands, recipes, keys and links of the documentation, each with its page."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sightline.cli.app import app
from sightline.recipe.loading import shipped_recipes

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VERBS = {command.name: command.callback for command in app.registered_commands if command.callback}
for group in app.registered_groups:
    VERBS |= {group.typer_instance.info.name: group.typer_instance.registered_callback.callback}
    VERBS |= {
        f"{group.typer_instance.info.name} {command.name}": command.callback
        for command in group.typer_instance.registered_commands
    }
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
COMMAND = re.compile(rf"\bsightline (?:{'|'.join(VERBS)})(?= |$).*")

# The only commands that run print their arguments.
SHELL = r"""
exec 3>&1 >/dev/null
record() { printf '%s\037' "$@" >&3; printf '\036' >&3; }
sightline() { record sightline "$@"; }
python() { record python "$@"; }
for block; do eval "$block"; done
"""


@dataclass(frozen=True)
class Snippet:
    """A piece of text and its page."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fenced(*languages: str) -> list[Snippet]:
    """Code blocks in these languages; `""`: no language named."""
    return [
        Snippet(name(page), block)
        for page in PAGES
        for language, block in FENCE.findall(page.read_text(encoding="utf-8"))
        if language in languages
    ]


def spans() -> list[Snippet]:
    """Inline code, each on one line."""
    prose = {page: FENCE.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
    return [Snippet(name(page), " ".join(span.split())) for page, text in prose.items() for span in SPAN.findall(text)]


def headers() -> list[Snippet]:
    """The header comment of each shipped recipe, without `#`."""
    return [
        Snippet(recipe, "\n".join(line.removeprefix("#").strip() for line in _opening(file)))
        for recipe, file in shipped_recipes().items()
    ]


def _opening(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    begins, comment = next(groupby(lines, lambda line: line.startswith("#")))
    return list(comment) if begins else []


def commands(folder: Path) -> list[tuple[str, list[str]]]:
    """All commands in code blocks, inline code, recipe headers and help texts, split by a shell in an empty folder."""
    snippets = fenced("", "bash")
    snippets += [span for span in spans() if COMMAND.match(span.text) or span.text.startswith("python ")]
    for header in headers():
        lines = header.text.replace("\\\n", " ")
        snippets += [Snippet(header.page, re.sub(r" {2,}\(.*", "", result)) for result in COMMAND.findall(lines)]
    for verb, function in VERBS.items():
        lines = (inspect.getdoc(function) or "").splitlines()
        snippets += [
            Snippet(f"sightline {verb} --help", line)
            for line in lines
            if line.startswith("  ") and COMMAND.search(line)
        ]
    snippets.sort(key=lambda one: one.page)
    return [
        (page, words)
        for page, blocks in groupby(snippets, lambda one: one.page)
        for words in _words([block.text for block in blocks], page, folder)
    ]


def _words(blocks: list[str], page: str, folder: Path) -> list[list[str]]:
    texts = [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in blocks]
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", SHELL, "bash", *texts],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/nowhere"},
        check=False,
    )
    assert "syntax error" not in done.stderr, f"{page}: {done.stderr}"
    return [record.split("\037")[:-1] for record in done.stdout.split("\036")[:-1]]
