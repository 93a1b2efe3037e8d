"""Every key of a recipe with its type, default and meaning, as text: `sightline recipes keys [PREFIX]`."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sightline.recipe.recipe import Recipe
from sightline.recipe.schema import OpenUnion, Section, alternatives, open_union_of, sections
from sightline.recipe.yaml import write_yaml

WIDTH = 80
_INDENT = " " * 6
_TYPES = {int: "integer", float: "number", str: "text", bool: "true or false"}


class UnknownKey(ValueError):
    """There is no such key in a recipe."""


@dataclass(frozen=True)
class KeyInfo:
    """One key of a section."""

    path: str  # data.train.N.file
    type: str  # integer ≥ 1
    default: str | None  # in YAML; None: a required key
    meaning: str


@dataclass(frozen=True)
class SectionDoc:
    """The documentation of a section at a path: of one of its kinds, or of the only one."""

    path: str
    kind: str | None
    meaning: str
    keys: list[KeyInfo] = field(default_factory=list)
    kinds: list[tuple[str, str]] = field(default_factory=list)  # the possible kinds, each with its meaning
    same_as: str | None = None  # the path of an earlier part with the same keys

    @property
    def title(self) -> str:
        return self.path + (f" (kind: {self.kind})" if self.kind else "")


def reference(prefix: str = "", width: int = WIDTH) -> str:
    """The keys at and below a prefix, as text of `width` columns."""
    parts = list(chosen_parts(prefix))
    return "\n\n".join(_written(part, width) for part in parts) + "\n"


def chosen_parts(prefix: str = "") -> Iterator[SectionDoc]:
    """The sections with keys at and below a prefix; `data.train.0.file` is `data.train.N.file`."""
    query = prefix.strip().strip(".")
    known = {key.path for part in _parts(Recipe, "", None) for key in part.keys}
    path = next((each for each in _spellings(query, known)), None)
    if path is None:
        near = _nearest(query, sorted(known))
        hint = f"did you mean {' or '.join(near)}?" if near else f"the sections are {', '.join(Recipe.model_fields)}"
        raise UnknownKey(f"a recipe has no key {prefix!r}; {hint}")
    written: dict[type[Section], str] = {}
    for part in _parts(Recipe, "", written, below=path):
        keys = [key for key in part.keys if _is_at_or_below(key.path, path)]
        if keys or (part.same_as and _is_at_or_below(part.path, path)):
            yield replace(part, keys=keys, kinds=part.kinds if _is_at_or_below(part.path, path) else [])


def nearest_keys(query: str) -> list[str]:
    """At most three keys of a recipe similar to this one: `training.lr` for `lr`."""
    known = sorted({key.path for part in _parts(Recipe, "", None) for key in part.keys})
    return [key for key in _nearest(query, known) if key.rsplit(".", 1)[-1] == query or "." not in key]


def _nearest(query: str, known: list[str]) -> list[str]:
    """At most three keys: with this prefix, with the same last name, or with a similar spelling."""
    last = query.rsplit(".", 1)[-1]
    longer = [key for key in known if key.startswith(query)]
    same_name = [key for key in known if key.rsplit(".", 1)[-1] == last]
    similar = difflib.get_close_matches(query, known, n=3, cutoff=0.6)
    return list(dict.fromkeys([*longer, *same_name, *similar]))[:3]


def _spellings(query: str, known: set[str]) -> Iterator[str]:
    """The paths that a query matches: N is any number, NAME the name of a test set."""
    if not query:
        yield ""
        return
    for path in sorted(known, key=len):
        for own in (".".join(path.split(".")[:count]) for count in range(1, path.count(".") + 2)):
            pattern = re.escape(own).replace(r"\.NAME", r"\.[^.]+").replace(r"\.N", r"\.(?:N|\d+)")
            if re.fullmatch(pattern, query):
                yield own


def _is_at_or_below(key: str, path: str) -> bool:
    return not path or key == path or key.startswith(path + ".")


# --- from the classes -------------------------------------------------------------------------------------------------


def _parts(
    section: type[Section],
    path: str,
    written: dict[type[Section], str] | None,
    *,
    kind: str | None = None,
    below: str = "",
    shared: type[Section] = Section,
) -> Iterator[SectionDoc]:
    """A section and those inside it, depth first, without the keys of `shared`.

    A section that was `written` at another path is only named; without `written`, all are listed at every path.
    """
    if written is not None and section in written and path:
        yield SectionDoc(path, kind, _meaning(section), same_as=written[section])
        return
    if written is not None and _is_at_or_below(path, below):
        written[section] = path + (f" (kind: {kind})" if kind else "")
    left_out = {*shared.model_fields, *([] if kind is None else ["kind"])}
    fields = {name: info for name, info in section.model_fields.items() if name not in left_out}
    keys = [_key(f"{path}.{name}" if path else name, info) for name, info in fields.items()]
    yield SectionDoc(path, kind, _meaning(section), keys)
    yield from _inside(fields, path, written, below)


def _inside(
    fields: Mapping[str, FieldInfo], path: str, written: dict[type[Section], str] | None, below: str
) -> Iterator[SectionDoc]:
    """The sections inside these fields."""
    for name, info in fields.items():
        at, annotation = _place(f"{path}.{name}" if path else name, info.annotation)
        members = sections(annotation)
        union = open_union_of(annotation)
        if len(members) == 1 and (union is None or len(union.kinds()) > 1):  # kinds that share a section
            yield from _parts(members[0], at, written, below=below)
        elif members:
            yield from _union(annotation, at, written, below)


def _union(annotation: Any, path: str, written: dict[type[Section], str] | None, below: str) -> Iterator[SectionDoc]:
    """The sections of a union: first the kinds and the keys that all have, then the keys that only some have."""
    union = open_union_of(annotation)
    assert union is not None
    members = {
        " | ".join(kind for kind, belongs in union.kinds().items() if belongs is member): member
        for member in sections(annotation)
    }
    base = union.base if union.base is not None and not union.extra else Section
    common = {name: info for name, info in base.model_fields.items() if name != "kind"}
    kind_key = KeyInfo(f"{path}.kind", " | ".join(members), union.default, "which of these")
    about = [(kind, _meaning(member)) for kind, member in members.items()]
    keys = [kind_key, *(_key(f"{path}.{name}", info) for name, info in common.items())]
    yield SectionDoc(path, None, "one of these kinds.", keys, about)
    yield from _inside(common, path, written, below)
    for kind, member in members.items():
        if member.model_fields.keys() - base.model_fields.keys() - {"kind"}:
            yield from _parts(member, path, written, kind=kind, below=below, shared=base)


def _place(path: str, annotation: Any) -> tuple[str, Any]:
    """The paths of the sections of a key: `data.train.N` of a list, `data.tests.NAME` of a mapping."""
    for leaf in alternatives(annotation):
        origin, arguments = get_origin(leaf), get_args(leaf)
        if origin is tuple and arguments and sections(arguments[0]):
            return f"{path}.N", arguments[0]
        if origin is dict and sections(arguments[1]):
            return f"{path}.NAME", arguments[1]
    return path, annotation


def _key(path: str, info: FieldInfo) -> KeyInfo:
    return KeyInfo(path, _type(info.annotation, info.metadata), _default(info), info.description or "")


def _meaning(section: type[Section]) -> str:
    return " ".join(inspect.getdoc(section).split("\n\n")[0].split()) if section.__doc__ else ""  # type: ignore[union-attr]


def _type(annotation: Any, metadata: Any = ()) -> str:
    """`integer ≥ 1`, `dot | additive`, `list of text, or null`."""
    members = _members(annotation)
    optional = any(member is NoneType for member, _ in members)
    members = [(member, own) for member, own in members if member is not NoneType]
    types = list(dict.fromkeys(_one_type(member, [*metadata, *own]) for member, own in members))
    return " or ".join(types) + (", or null" if optional else "")


def _members(annotation: Any, metadata: tuple[Any, ...] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The members of a union, each with its `Annotated` metadata."""
    if get_origin(annotation) is Annotated:
        inside, *more = get_args(annotation)
        extra = tuple(each for info in more for each in (info.metadata if isinstance(info, FieldInfo) else [info]))
        return _members(inside, (*metadata, *extra))
    if get_origin(annotation) not in (Union, UnionType):
        return [(annotation, metadata)]
    return [pair for member in get_args(annotation) for pair in _members(member, metadata)]


def _one_type(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    for choices in (each.choices() for each in metadata if hasattr(each, "choices")):  # an open registry
        return " | ".join(choices)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if isinstance(annotation, type) and issubclass(annotation, Section | OpenUnion):
        return "section"
    if origin is dict:
        return f"mapping of names to {_plural(arguments[1])}"
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            least = " (at least one)" if any(isinstance(each, MinLen) for each in metadata) else ""
            return f"list of {_plural(arguments[0])}{least}"
        inner = list(dict.fromkeys(map(_type, arguments)))
        return f"list of {len(arguments)}: {', '.join(inner)}"
    return f"{_TYPES.get(annotation, str(annotation))} {' and '.join(_bounds(metadata))}".rstrip()


def _plural(annotation: Any) -> str:
    return "sections" if sections(annotation) else _type(annotation)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    """`≥ 1`, `> 0`."""
    signs = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
    for each in metadata:
        for bound, name, sign in signs:
            if isinstance(each, bound):
                yield f"{sign} {getattr(each, name):g}"


def _default(info: FieldInfo) -> str | None:
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return None
    if isinstance(value, Section):
        given = {"kind": getattr(value, "kind", None), **value.model_dump(mode="json", exclude_unset=True)}
        value = {key: each for key, each in given.items() if each is not None}
    elif isinstance(value, tuple):
        value = [each.model_dump(mode="json") if isinstance(each, Section) else each for each in value]
    return _one_line(value)


def _one_line(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_one_line(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_one_line, value)) + "]"
    return write_yaml(value).removesuffix("...\n").strip()


# --- as text ----------------------------------------------------------------------------------------------------------


def _written(part: SectionDoc, width: int) -> str:
    lines = textwrap.wrap(f"{part.title or 'recipe'}: {part.meaning}", width)
    longest = max((len(kind) for kind, _ in part.kinds), default=0)
    for kind, meaning in part.kinds:
        lines += textwrap.wrap(
            meaning, width, initial_indent=f"  {kind:<{longest}}  ", subsequent_indent=" " * (longest + 4)
        )
    if part.same_as is not None:
        return "\n".join([*lines, *textwrap.wrap(f"  The same keys as {part.same_as}.", width)])
    for key in part.keys:
        head = f"  {key.path}" + ("  (required)" if key.default is None else f" = {key.default}")
        lines += textwrap.wrap(head, width, subsequent_indent=_INDENT, break_long_words=False)
        said = f"{key.type} — {key.meaning}" if key.meaning else key.type
        lines += textwrap.wrap(said, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    return "\n".join(lines)
