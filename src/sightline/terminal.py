"""Text for a person: control characters escaped, long text truncated, counts with the right plural.

A terminal executes escape sequences in any text it displays: a line of a corpus could recolour, overwrite or hide other
output, or set the title or clipboard. So commands print text for people through `printable_output`, and tables and
progress bars, which need escape sequences, through `console`.
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


# C0 except tab and newline, DEL, C1, line and paragraph separators, embeddings, overrides and isolates of direction
# (Unicode TR36), and lone surrogates (undecodable bytes of file names).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OF_LINES = re.compile(_CONTROL.pattern.replace("\x0b-\x1f", "\x0b\x0c\x0e-\x1f"))  # progress lines contain \r


def printable(text: str) -> str:
    r"""Replace control characters by their escapes: ESC becomes the four characters `\x1b`."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class _Printable:
    """Wraps a text stream and writes control characters as escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # rich writes to the wrapped stream: `console` already escapes its text
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
        if (sys.stdout, sys.stderr) == ours:  # else other code replaced them and will restore them
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
    """1 line, 2,048 lines; the last of several words takes the plural: 1 source word, 3 source words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


_MOST = 400  # characters


def truncate(text: str) -> str:
    """A text for display; of a long one only its beginning and …"""
    return text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"


def escape_newlines(text: str) -> str:
    """A text with visible signs for newlines and tabs."""
    return text.replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "⇥")


def short(line: str) -> str:
    """A line of a file for an error message, in quotes, shortened if long."""
    return repr(line if len(line) <= 60 else line[:57] + "...")


def visible(token: str) -> str:
    """A token as a label: invisible characters get signs, a lone combining mark gets a base circle."""
    if not token:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
    if token.isspace():
        return "".join(signs.get(character, "␣") for character in token)
    label = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(token.split()))
    return "◌" + label if unicodedata.category(label[0]).startswith("M") else label
