"""Text for a person: control characters escaped, long text truncated, counts with the right plural.

A terminal obeys escape sequences in whatever it displays: a line of a corpus could recolour, overwrite or hide what is
around it (and some terminals take a new title or clipboard from it). All that a command prints for a person passes
through `printable_output`; tables and progress bars, whose own sequences are wanted, through `console`.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


# C0 but tab and newline, DEL, C1, line and paragraph separators, embeddings, overrides and isolates of direction
# (Unicode TR36), and lone surrogates, which no encoding has (they stand for undecodable bytes of file names).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OF_LINES = re.compile(_CONTROL.pattern.replace("\x0b-\x1f", "\x0b\x0c\x0e-\x1f"))  # a progress line has \r


def printable(text: str) -> str:
    r"""Replace control characters by their escapes: ESC becomes the four characters `\x1b`."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class _Printable:
    """A text stream that writes control characters as escapes; in all else the stream it wraps."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # rich writes to the stream below: `console` has made its text printable already
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)

    def write(self, text: str) -> int:
        self._stream.write(_CONTROL_OF_LINES.sub(_escape, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def printable_output(*, stdout: bool = True) -> Iterator[None]:
    """Escape control characters in standard error and, unless it carries data (`stdout=False`), standard output."""
    before = sys.stdout, sys.stderr
    ours = cast("TextIO", _Printable(sys.stdout)) if stdout else sys.stdout, cast("TextIO", _Printable(sys.stderr))
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == ours:  # else somebody else has replaced them, and puts them back
            sys.stdout, sys.stderr = before


def console(**options: Any) -> Console:
    """A rich console that shows control characters in texts as escapes; `options` are those of `rich.Console`."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                part if part.control else Segment(printable(part.text), part.style) for part in buffer
            )

    return PrintableConsole(**options)


def plural(number: int, thing: str) -> str:
    """1 line, 2,048 lines; of several words the last is counted: 1 source word, 3 source words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


_MOST = 400  # characters


def truncate(text: str) -> str:
    """A text to be shown beside what was made of it: of a long one (an article), how it begins, and …"""
    return text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"


def escape_newlines(text: str) -> str:
    """A text with its newlines and tabs as signs."""
    return text.replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "⇥")


def short(line: str) -> str:
    """A line of a file as an error shows it, in quotes, cut where it grows long."""
    return repr(line if len(line) <= 60 else line[:57] + "...")


def visible(token: str) -> str:
    """A token as a label: what cannot be seen gets a sign, a lone combining mark gets a circle to sit on."""
    if not token:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
    if token.isspace():
        return "".join(signs.get(character, "␣") for character in token)
    label = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(token.split()))
    return "◌" + label if unicodedata.category(label[0]).startswith("M") else label
