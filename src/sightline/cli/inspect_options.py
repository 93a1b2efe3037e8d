"""What sub-commands of `sightline inspect` share: options, the inspected text, files, flags of earlier versions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from sightline.cli.commands import Group
from sightline.cli.lines import report_unknown_target
from sightline.cli.options import change_run, split_overrides

if TYPE_CHECKING:
    from sightline.inspection.views import InspectionView, Subject

Choice = TypeVar("Choice", bound=str)

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or lecture-example (built in).")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT [KEY=VALUE]", help="The input; then recipe keys to change."),
]
Target = Annotated[str | None, typer.Option(metavar="TEXT", help="Force this output instead of the model's own.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there.")]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it there (.png, .svg or .pdf).")]
Drawn = Annotated[Path, typer.Option(metavar="FILE", help="Draw it there (.png, .svg or .pdf).")]
On = Annotated[str, typer.Option(metavar="NAME", help="A test set of the recipe, or validation.", show_default=False)]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.", show_default=False)]
Hidden = Annotated[Path | None, typer.Option(hidden=True)]  # flags of earlier versions


_SHARED = {  # options of several commands, in the order of --help
    "target": Target,
    "step": Annotated[int | None, typer.Option(metavar="N", help="Only this output token, from 0.")],
    "layer": Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 0.")],
    "head": Annotated[int | None, typer.Option(metavar="N", help="Only this attention head, from 0.")],
    "json_file": Json,
    "figure": Figure,
    "device": Device,
}
View = Callable[..., "InspectionView | None"]


def on_text(options: str, *, printed: bool = False) -> Callable[[View], Callable[..., None]]:
    """Make a sub-command `RUN TEXT [KEY=VALUE]` of a function of a Subject.

    `options` names entries of _SHARED; further parameters of the function are options of this command alone. The view
    that it returns is written to --json and --figure, and printed where there are none (`printed`: always).
    """

    def decorate(function: View) -> Callable[..., None]:
        names = [name for name in _SHARED if name in {*options.split(), "device"}]

        @functools.wraps(function)
        def command(run: str, words: Sequence[str] | None, device: str, target: str | None = None, **own: Any) -> None:
            check_files(own.get("html"), own.get("json_file"), figure=own.get("figure"))
            files = {name: own.pop(name) for name in ("json_file", "figure") if name in names}
            focus = {name: own.pop(name) for name in ("step", "layer", "head") if name in names}
            view = function(subject_of(run, words, target, device, **focus), **own)
            if view is not None:
                emit(view, printed=printed, **files)

        def parameter(name: str, annotation: Any, default: Any = None) -> Parameter:
            return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        hints = get_type_hints(function, localns={"Subject": Any, "InspectionView": Any}, include_extras=True)
        own = [parameter(each.name, hints[each.name], each.default) for each in signature(function).parameters.values()]
        shared = [parameter(name, _SHARED[name], "cpu" if name == "device" else None) for name in names]
        at = names.index("target") + 1 if "target" in names else 0
        text = [parameter("run", Name, Parameter.empty), parameter("words", Words)]
        parameters = [*text, *shared[:at], *own[1:], *shared[at:]]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


# --- text and files -----------------------------------------------------------------------------------------------


def subject_of(run: str, words: Sequence[str] | None, target: str | None, device: str, **focus: Any) -> Subject:
    """The run with overrides, and the text to inspect."""
    from sightline.inspection.lecture_example import LECTURE, lecture_trace
    from sightline.inspection.views import Subject
    from sightline.run import Run

    texts, overrides = split_overrides(words or ())
    if texts[1:]:
        raise ValueError(f"unexpected argument {texts[1]!r}: give one text, in quotes, and overrides as key=value")
    if run == LECTURE:
        if texts or overrides or target is not None:
            raise ValueError(f"{LECTURE} has a fixed text and target; leave yours out, or give a run folder")
        return Subject(name=run, recorded=lecture_trace(), **focus)
    if not texts:
        raise ValueError('give a text to look at: sightline inspect RUN "text"')
    loaded, _ = change_run(Run.load(Path(run), device=device), overrides)
    report_unknown_target(loaded.vocabulary, target)
    return Subject(loaded, texts[0], target, name=run, **focus)


def one_of(choices: Sequence[Choice], option: str, name: str) -> Choice:
    """The choice of that name."""
    for choice in choices:
        if choice == name:
            return choice
    raise ValueError(f"{option} {name}: use {', '.join(choices)}")


def check_files(*files: Path | None, figure: Path | None = None) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    from sightline.files import check_writable
    from sightline.plots.figures import check_figure

    for path in filter(None, files):
        check_writable(path)
    if figure is not None:
        check_figure(figure)


def emit(
    view: InspectionView,
    json_file: Path | None = None,
    figure: Path | None = None,
    csv_file: Path | None = None,
    *,
    printed: bool = False,
) -> None:
    """Write a view to files; print it without any, or always."""
    from sightline.files import write_atomically, write_json
    from sightline.terminal import console

    if printed or (json_file is None and figure is None):
        console().print(view.shown)
    if csv_file is not None and view.to_csv is not None:
        write_atomically(csv_file, view.to_csv())
    if json_file is not None:
        write_json(json_file, view.record(), indent=None)
    if figure is not None:
        view.picture(figure)
    report_written(csv_file, json_file, figure)


def report_written(*paths: Path | None) -> None:
    for path in filter(None, paths):
        print(f"wrote {path}", file=sys.stderr)


# --- flags of earlier versions --------------------------------------------------------------------------------------


class InspectGroup(Group):
    """`inspect RUN TEXT` is `inspect walkthrough RUN TEXT`; flags of earlier versions choose the sub-command."""

    default = "walkthrough"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace flags of earlier versions, unless a sub-command is named; and `gradients RUN...` by gradient-flow."""
        if args[:1] == ["gradients"] and _names_only_runs(args[1:]):
            print("sightline: this is now sightline inspect gradient-flow RUN …", file=sys.stderr)
            args = ["gradient-flow", *args[1:]]
        lecture = args[:1] == ["lecture-example"] and bool({word.partition("=")[0] for word in args} & _WALKTHROUGH)
        if args and (lecture or args[0] not in {*self.commands, "-h", "--help"}):
            args = _without_flags([part for word in args for part in _split(word)], list(self.commands))
            args = [self.default, *args] if args[0] == "lecture-example" else args
        return super().parse_args(ctx, args)


# View or flag of an earlier version: the sub-command, and what its flags are now (None: left out).
_VIEWS = {"walk": "walkthrough", "ablate": "ablation"}  # other views kept their names
_WALKTHROUGH = {"--view", "--cell", "--layer", "--head", "--step", "--html", "--save", "--numpy", "--figure"}
_ABLATION: dict[str, str | None] = {"--ablate": "--heads", "--corpus": "--on"}
_FLAGS: dict[str, tuple[str, dict[str, str | None]]] = {
    "--ablate": ("ablation", _ABLATION),
    "--attribute": ("attribution", {"--attribute": "--method"}),
    "--gradient-flow": ("gradient-flow", {"--gradient-flow": None, "--beside": None, "--corpus": "--on"}),
    "--layer-norms": ("layer-norms", {"--layer-norms": None}),
    "--expert-shares": ("expert-shares", {"--expert-shares": None}),
    "--corpus": ("corpus", {"--corpus": "--on"}),
}


def _names_only_runs(args: Sequence[str]) -> bool:
    """True for arguments of what `inspect gradients` measured before: run folders, with --on or --figure."""
    flags = {word.partition("=")[0] for word in args}
    words = [word for before, word in pairwise(["", *args]) if not word.startswith("-") and not before.startswith("--")]
    return bool({"--on", "--figure"} & flags) or (bool(words) and all(Path(word).is_dir() for word in words))


def _split(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in {*_FLAGS, "--view", "--beside"} else [word]


def _without_flags(args: list[str], commands: Sequence[str]) -> list[str]:
    """Replace flags of earlier versions by the sub-command that they chose."""
    command, renamed = InspectGroup.default, dict[str, str | None]()
    if "--view" in args[:-1]:
        at = args.index("--view")
        command = _VIEWS.get(args[at + 1], args[at + 1])
        if command not in commands:
            raise ValueError(f"--view {command}: there is no such view; use sightline inspect {'|'.join(commands)}")
        args = [*args[:at], *args[at + 2 :]]
    chosen = next((flag for flag in _FLAGS if flag in args), None)
    if command == "ablation":
        renamed = _ABLATION
    elif chosen is not None:
        command, renamed = _FLAGS[chosen]
    if command == InspectGroup.default:
        return args
    words = [renamed.get(word, word) for word in args]
    print(f"sightline: this spelling is deprecated; write sightline inspect {command} RUN …", file=sys.stderr)
    return [command, *(word for word in words if word is not None)]
