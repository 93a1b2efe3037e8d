"""YAML for recipes: values with their lines, and no silent conversion.

PyYAML follows YAML 1.1, where `1e-3` is a string, `no` (Norwegian) is a boolean and the last of two equal keys wins.
Here scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), with one addition,
Python's underscores in integers (`20_000`). Keys are unique strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

Key = str | int
KeyPath = tuple[Key, ...]

# Bounds of a document; aliases count as what they repeat. A resolved recipe has 5 kB and 200 values, six levels deep.
MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1_000_000, 50, 20_000
_MAX_DIGITS = 400  # of a number

_CORE = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, (pattern, starts) in _CORE.items():
        for start in starts:
            table.setdefault(start, []).append((f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z")))
    return table


class _Loader(yaml.SafeLoader):
    """Composes nodes; too deep nesting is an error with its line."""

    yaml_implicit_resolvers = _resolvers()
    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.count += 1
        deep, many = self.depth > MAX_DEPTH + 1, self.count > 2 * MAX_VALUES  # keys are nodes too
        if deep or many:
            what = f"nested more than {MAX_DEPTH} levels deep" if deep else f"more than {MAX_VALUES:,} values"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, what, mark)
        node = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes strings that either version of YAML would read as another type; writes short lists on one line."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own attribute)
        start: _Loader.yaml_implicit_resolvers.get(start, []) + yaml.SafeDumper.yaml_implicit_resolvers.get(start, [])
        for start in {*_Loader.yaml_implicit_resolvers, *yaml.SafeDumper.yaml_implicit_resolvers}
    }

    def represent_sequence(
        self, tag: str, sequence: Iterable[Any], flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        items = list(sequence)
        flat = not any(isinstance(item, dict | list) for item in items)
        return super().represent_sequence(tag, items, flow_style=flat)

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> yaml.ScalarNode:
        """Escape line breaks other than a newline, which would be read as spaces."""
        return super().represent_scalar(tag, value, '"' if set(value) & set("\x85\u2028\u2029") else style)

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass
class Located:
    """A YAML document: its value, the place of each part, and its problems."""

    value: Any = None
    places: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def place(self, path: KeyPath) -> str:
        """The place of a path, or of the nearest part that contains it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "recipe")


def read_yaml(text: str, name: str, *, at: str | None = None) -> Located:
    """Read a text; places are `name:line`, or `at` for a text that is not a file."""
    document = Located()
    if len(text) > MAX_BYTES:
        document.problems.append(f"{at or name}: longer than {MAX_BYTES:,} characters; a recipe is a short text")
        return document
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            document.value = _Reader(loader, document, name, at).value(root, (), 1, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = at or (f"{name}:{mark.line + 1}" if mark else name)
        what = "; ".join(part for part in (error.context, error.problem) if part)
        document.problems.append(f"{place}: this is not YAML: {what}")
    except _TooLarge as error:
        document.value = None
        document.problems.append(str(error))
    except yaml.YAMLError as error:  # a character that YAML does not allow
        document.problems.append(f"{at or name}: this is not YAML: {' '.join(str(error).split())}")
    return document


class _TooLarge(Exception):
    """A document with too many values: aliases of aliases can repeat a few lines billions of times."""


@dataclass
class _Reader:
    """Converts nodes to values, and records places and problems in the document."""

    loader: _Loader
    document: Located
    name: str
    at: str | None
    count: int = 0  # values so far

    def _place(self, line: int) -> str:
        return self.at or f"{self.name}:{line}"

    def value(self, node: yaml.Node | None, path: KeyPath, line: int, around: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _TooLarge(
                f"{self.document.place(path[:1])}: {dotted(path[:1])}: more than {MAX_VALUES:,} values, counting what "
                f"aliases repeat"
            )
        self.document.places[path] = self._place(line)
        if node is None:
            return None
        if id(node) in around:
            self.document.problems.append(f"{self._place(line)}: {dotted(path)}: an alias that contains itself")
            return None
        around = (*around, id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, around)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(item, (*path, index), item.start_mark.line + 1, around)
                for index, item in enumerate(node.value)
            ]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, around: tuple[int, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.problems.append(f"{self._place(line)}: {dotted(path)}: a key must be a plain word")
                continue
            key = str(key_node.value)
            if key in first:
                self.document.problems.append(
                    f"{self._place(line)}: {dotted((*path, key))} is given twice (first on line {first[key]}); keep one"
                )
                continue
            first[key] = line
            values[key] = self.value(value_node, (*path, key), line, around)
        return values

    def _problem(self, path: KeyPath, what: str) -> None:
        self.document.problems.append(f"{self.document.places[path]}: {dotted(path)}: {what}")

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = str(node.value)
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
            self._problem(path, "a NUL or half a surrogate pair, which is not text; remove it")
            return None
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" if len(text) > _MAX_DIGITS:
                self._problem(path, f"a number of {len(text):,} digits")
                return None
            case "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case "str":
                return text
            case tag:
                self._problem(path, f"the tag {tag} is not supported; remove it")
                return None


def write_yaml(value: Any) -> str:
    """A value as YAML, in its order; `read_yaml` reads it back unchanged."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def dotted(path: KeyPath) -> str:
    """`("data", "train", 0, "weight")` as `data.train.0.weight`, the way overrides write it."""
    return ".".join(str(key) for key in path) or "the recipe"
