"""Command classes: compact help, default sub-commands, and deprecated flags."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Signature
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sightline.terminal import printable_output

# Deprecated flags and the recipe keys that replaced them, in every command that takes overrides.
REPLACED = {
    "--bleu-tokenize": "evaluation.bleu_tokenize",
    "--chrf-word-order": "evaluation.chrf_word_order",
    "--coverage-penalty": "decoding.coverage_penalty",
    "--diversity": "decoding.diversity",
    "--forbid-everywhere": "decoding.forbid",
    "--groups": "decoding.groups",
    "--length-penalty": "decoding.length_penalty",
    "--lowercase": "evaluation.lowercase",
    "--max-length": "decoding.max_length",
    "--max-ratio": "decoding.max_ratio",
    "--mbr": "decoding.mbr.candidates",
    "--mbr-weights": "decoding.mbr.weights",
    "--min-length": "decoding.min_length",
    "--no-lowercase": "evaluation.lowercase",
    "--no-repeat": "decoding.no_repeat",
    "--replace-unknown": "decoding.replace_unknown",
    "--temperature": "decoding.sample.temperature",
    "--top-k": "decoding.sample.top_k",
    "--top-p": "decoding.sample.top_p",
    "--utility": "decoding.mbr.utility",
}
_SWITCHES = {"--lowercase": "true", "--no-lowercase": "false"}  # these take no value


class Flag(str):
    """An override written as a flag; messages name the flag."""

    __slots__ = ("flag",)
    flag: str

    def __new__(cls, key: str, text: Any, flag: str) -> Flag:
        self = super().__new__(cls, f"{key}={text}")
        self.flag = flag
        return self


class Command(TyperCommand):
    """A command with help in two columns that accepts deprecated flags as overrides."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rich_markup_mode = None  # panels take more than one screen
        self.help = _keep_example_lines(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; deprecated flags become overrides."""
        names = {parameter.name for parameter in self.params}
        overrides = next((name for name in ("overrides", "words") if name in names), None)
        args, flags = (args, []) if overrides is None else self._split_deprecated(args)
        rest = super().parse_args(ctx, args)
        if overrides is not None and flags:
            ctx.params[overrides] = [*(ctx.params[overrides] or ()), *flags]
        return rest

    def _split_deprecated(self, args: Sequence[str]) -> tuple[list[str], list[Flag]]:
        """Separate deprecated flags from the arguments and turn them into overrides."""
        own = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        with_value = {name for each in self.params if not getattr(each, "is_flag", False) for name in each.opts}
        kept: list[str] = []
        values: dict[str, list[str]] = {}
        words = iter(args)
        for word in words:
            name, equals, value = word.partition("=")
            if word == "--":
                kept += [word, *words]
            elif name not in REPLACED or name in own or (kept and kept[-1] in with_value):
                kept.append(word)
            elif name in _SWITCHES:
                values[name] = [_SWITCHES[name]]
            elif equals or (value := next(words, "")):
                values.setdefault(name, []).append(value)
            else:
                kept.append(word)  # no value: typer reports it
        flags = [_as_override(name, texts) for name, texts in values.items()]
        for flag in flags:
            print(f"sightline: {flag.flag} is deprecated; write {flag}", file=sys.stderr)
        return kept, flags


def _as_override(name: str, values: list[str]) -> Flag:
    if name == "--forbid-everywhere":
        return Flag(REPLACED[name], json.dumps(values, ensure_ascii=False), name)
    if (name, values[-1]) == ("--mbr", "0"):
        return Flag("decoding.mbr", "null", name)
    return Flag(REPLACED[name], values[-1], name)


def _keep_example_lines(text: str | None) -> str | None:
    """Keep the lines of the examples from being wrapped as a paragraph."""
    return None if text is None else text.replace("\n\nExamples:\n", "\n\n\b\nExamples:\n")


class Group(TyperGroup):
    """A command with sub-commands, one of which is the default: `sightline recipes NAME` is `recipes show NAME`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rich_markup_mode = None
        self.help = _keep_example_lines(self.help)

    default: str | None = None  # sub-command if the first word is none
    alone: str | None = None  # sub-command without any words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default sub-command."""
        if not args and self.alone is not None:
            args = [self.alone]
        elif args and self.default is not None and args[0] not in {*self.commands, "-h", "--help"}:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def group(
    name: str, about: Callable[[], None], commands: Mapping[str, Callable[..., Any]], cls: type[Group] = Group
) -> typer.Typer:
    """A command with sub-commands."""
    app = typer.Typer(name=name, cls=cls, rich_markup_mode=None, no_args_is_help=True, context_settings=SETTINGS)
    app.callback()(about)
    for command, function in commands.items():
        add(app, function, command)
    return app


def add(app: typer.Typer, function: Callable[..., Any], name: str | None = None, **settings: Any) -> None:
    """Add a command to an app, with checks of its numbers and escaped control characters (not in `predict`'s data)."""
    from sightline.cli.options import check_numbers, expand_groups

    parameters, build = expand_groups(function)

    @functools.wraps(function)
    def run(**options: Any) -> None:
        with printable_output(stdout=function.__name__ != "predict"):
            check_numbers(options)
            build(options)
            try:
                function(**options)
            except EOFError as error:  # typer would print "Aborted!"
                raise OSError(f"unexpected end of file: {error}") from error

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(name or function.__name__, cls=Command, context_settings=SETTINGS, **settings)(run)
