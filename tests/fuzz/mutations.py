"""Random damage to bytes, recipes and command lines; the same seed, the same damage."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 10**9, -(10**9), 10**20, 2**63, 0.0, 0.5, -0.5, 1e-320, 1e300),
    *(float("nan"), float("inf"), -float("inf"), "", " ", "5", "true", "nan", "=1+1", "\x1b[31m", "‮x", "x" * 5_000),
    *([], [1], [[1]], [True], {}, {"kind": "x"}, {"kind": None}, {"a": 1}, "../../etc/passwd", "a\0b", "\ud800"),
]
PIECES = [
    *(
        b"\0",
        b"\r",
        b"\n",
        b"\n\n",
        b"\t",
        b"\t\t",
        b" ",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x80",
        b"\x96",
        b"\x1b[2J",
        b"\xe2\x80\xae",
    ),
    *(b'"', b"{", b"[", b"[" * 2_000, b"&a ", b"*a", b"#", b"- ", b": ", b"1e999", b"-", b"\xc2\xa0", b"\xe2\x80\xa8"),
    *(b"x" * 20_000, b"\x1f\x8b", b"<unk>", b"</s>", b"\xf0\x9f\x99\x82"),
]


def damaged(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """The content with one thing wrong, and what that is."""
    size = len(content)
    at = draw.randrange(size + 1)
    until = min(size, at + draw.choice([1, 1, 2, 8, 64]))
    kinds: dict[str, Callable[[], bytes]] = {
        "flip a bit": lambda: _flipped(content, at, 1 << draw.randrange(8)),
        "cut off": lambda: content[:at],
        "cut at a line": lambda: b"".join(
            content.splitlines(keepends=True)[: draw.randrange(1 + content.count(b"\n"))]
        ),
        "delete": lambda: content[:at] + content[until:],
        "repeat": lambda: content[:until] + content[at:],
        "insert": lambda: content[:at] + draw.choice(PIECES) + content[at:],
        "drop a line": lambda: _without_line(content, draw),
        "swap lines": lambda: _shuffled(content, draw),
        "line ends": lambda: content.replace(b"\n", draw.choice([b"\r\n", b"\r", b"\n\n", b""])),
        "encoding": lambda: _recoded(content, draw),
        "empty": lambda: b"",
    }
    kind = draw.choice(list(kinds))
    return kinds[kind](), f"{kind} at byte {at} of {size}"


def _flipped(content: bytes, at: int, bit: int) -> bytes:
    at = min(at, len(content) - 1)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :] if content else content


def _without_line(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        lines.pop(draw.randrange(len(lines)))
    return b"".join(lines)


def _shuffled(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        one, other = draw.sample(range(len(lines)), 2)
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _recoded(content: bytes, draw: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-32", "cp1252", "latin1", "cp437"]), "replace")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key and item."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed_value(recipe: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], tuple[Any, ...], str]:
    """The recipe with one key changed, taken away or renamed; its path; what was done."""
    result = copy.deepcopy(recipe)
    path = draw.choice(list(places(result)))
    parent: Any = result
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    action = draw.choice(["replace", "replace", "replace", "nudge", "delete", "rename", "add"])
    if action == "delete":
        del parent[path[-1]]
    elif action == "rename" and isinstance(parent, dict):
        parent[draw.choice(["", "x", str(path[-1]) + "s", "Kind", "\x1b[2J"])] = parent.pop(path[-1])
    elif action == "add" and isinstance(old, dict):
        old[draw.choice(["beam", "width", "", "x", "layers"])] = draw.choice(SCALARS)
    elif action == "nudge" and isinstance(old, int | float) and not isinstance(old, bool):
        parent[path[-1]] = draw.choice([old + 1, old * 2, old / 2, -old, float(old), str(old)])
    else:
        action = "replace"
        parent[path[-1]] = draw.choice(SCALARS)
    return (
        result,
        path,
        f"{action} {'.'.join(map(str, path))} = {parent.get(path[-1]) if isinstance(parent, dict) else '?'!r}",
    )


NUMBERS = ["0", "1", "2", "3", "-1", "nan", "inf", "1e9", "0.5", "99999999999999999999", "100000", "x", "true", "-0"]
COUNTS = ["0", "1", "2", "4", "-1", "nan", "100000000", "99999999999999999999", "x"]
FILES = ["", " ", "x", "../..", "/dev/null/x", "-", "."]
TEXTS = [
    *FILES,
    "cpu",
    "meta",
    "cuda:99",
    "bleu",
    "bf16",
    "test",
    "validation",
    "heads",
    "\x1b[31m",
    "=1",
    "logs",
    "a\tb",
]
OPTIONS: dict[str, list[tuple[list[str] | None, str]]] = {  # values, and the options they are for
    "predict": [
        (NUMBERS, "beam nbest length-penalty groups diversity no-repeat min-length temperature top-k top-p"),
        (NUMBERS, "seed coverage-penalty max-input-length max-ratio"),
        (COUNTS, "mbr threads max-length"),
        (FILES, "prefixes target with alignments require forbid"),
        (
            TEXTS,
            "device precision utility forbid-everywhere replace-unknown alignment-format prompt format column nonsense",
        ),
        (None, "sample shift"),
    ],
    "evaluate": [
        (NUMBERS, "beam length-penalty no-repeat min-length groups diversity"),
        (COUNTS, "mbr"),
        (FILES, "source reference json confusion outputs alignments"),
        (TEXTS, "metrics on device precision"),
        (None, "lowercase"),
    ],
    "inspect": [
        (NUMBERS, "step layer head"),
        (FILES, "json html figure save"),
        (TEXTS, "view cell device corpus target"),
    ],
    "embed": [(NUMBERS, "layer top most"), (TEXTS, "pooling nearest device word"), (FILES, "out")],
    "align": [
        (NUMBERS, "layer head"),
        (TEXTS, "symmetrize device"),
        (FILES, "source target"),
        (None, "training shift"),
    ],
    "average": [(NUMBERS, "count")],
}


def options(draw: random.Random) -> tuple[str, list[str]]:
    """A verb, and one to three of its options with values that are mostly wrong."""
    verb = draw.choice(["predict"] * 4 + list(OPTIONS))
    known = {f"--{name}": values for values, names in OPTIONS[verb] for name in names.split()}
    chosen = draw.sample(list(known), min(draw.choice([1, 1, 1, 2, 3]), len(known)))
    arguments = [[name] if (values := known[name]) is None else [name, draw.choice(values)] for name in chosen]
    return verb, [word for words in arguments for word in words]
