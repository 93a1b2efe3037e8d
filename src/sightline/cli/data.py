"""`sightline data`: the corpora that shipped recipes need."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.commands import group


def about() -> None:
    """List, download and check the corpora that shipped recipes need.

    Corpora are kept in $SIGHTLINE_CORPORA or, where that is not set, in your data folder; recipes find them in both.

    Examples:
      sightline data list
      sightline data get multi30k --yes && sightline train multi30k/laptop
      sightline data get debian-synopsis --packages Translation-en.bz2
      sightline data check
    """


def list_corpora() -> None:
    """List the corpora with their sources, their terms, and which of them are on this machine.

    Examples:
      sightline data list
    """
    from sightline.data.corpora.catalogue import catalogue, corpora_folders

    width = max(map(len, catalogue()))
    for name, corpus in catalogue().items():
        folder = next((folder / name for folder in corpora_folders() if (folder / name).is_dir()), None)
        print(f"{name:<{width}}  {corpus.title}")
        print(f"{'':<{width}}  {corpus.source}; download: {corpus.download}; terms: {corpus.terms or 'none'}")
        if folder is not None:
            whole = all((folder / product.name).is_file() for product in corpus.products)
            print(f"{'':<{width}}  {'here' if whole else 'in part'}: {folder}")
    print(f"corpora are looked for in {', '.join(map(str, corpora_folders()))}", file=sys.stderr)


def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Corpora, as sightline data list names them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the terms without asking.")] = False,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Write to this folder.")] = None,
    packages: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="debian-synopsis: Translation-en or Packages files; default: apt's."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Download from URL/HOST/PATH instead of https://HOST/PATH.")
    ] = None,
    keep_originals: Annotated[
        bool, typer.Option("--keep-originals", help="Keep the downloaded files, in .originals.")
    ] = False,
) -> None:
    """Download corpora, after you accept their terms, and write the files that recipes name.

    The same command resumes an interrupted download.

    Examples:
      sightline data get multi30k
      sightline data get sst2 cmudict --yes
      sightline data get phrases
    """
    from sightline.data.corpora.catalogue import CorpusError, corpus
    from sightline.data.corpora.checking import check
    from sightline.data.corpora.download import destination, get_corpus
    from sightline.progress import shown

    chosen = [corpus(name) for name in dict.fromkeys(names)]
    folder = destination(to)
    for each in chosen:
        if all(file.state == "ok" for file in check(each, folder / each.name)):
            print(f"{each.name}: is in {folder / each.name} already")
            continue
        print(f"{each.name}: {each.title}\n  source: {each.source}")
        print(f"  terms: {each.terms or 'none'}\n  download: {each.download}")
        if each.note:
            print(f"  note: {each.note}")
        if each.terms and not yes:
            if not sys.stdin.isatty():
                raise CorpusError(f"{each.name}: accept its terms ({each.terms}) with --yes")
            if not typer.confirm("Do you accept these terms?"):
                raise CorpusError(f"{each.name}: not downloaded, its terms were not accepted")
        with shown() as progress:
            results = get_corpus(
                each, folder, packages=packages or (), mirror=mirror, keep=keep_originals, progress=progress
            )
        for file in results:
            print(f"  {file.name}: {file.state if file.state != 'ok' else 'as recorded'}, {file.detail}")
        print(f"wrote {folder / each.name}")


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Corpora; default: all on this machine.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--in", metavar="DIR", help="The folder that holds them.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Compare line by line with corpora in this folder.")
    ] = None,
) -> None:
    """Check the files of corpora by SHA-256, or compare them with another folder.

    The exit code is 1 if a file is missing or differs.

    Examples:
      sightline data check multi30k
      sightline data check --in corpora --against other/corpora
    """
    from sightline.data.corpora.catalogue import CorpusError, catalogue, corpora_folders, corpus
    from sightline.data.corpora.checking import check as check_corpus

    folders = corpora_folders() if to is None else [to]
    here = {name: folder / name for folder in reversed(folders) for name in catalogue() if (folder / name).is_dir()}
    wrong = 0
    for name in names or [name for name in catalogue() if name in here]:
        chosen = corpus(name)
        if name not in here:
            raise CorpusError(f"{name} is not in {' or '.join(map(str, folders))}; run: sightline data get {name}")
        for file in check_corpus(chosen, here[name], None if against is None else against / name):
            print(f"{name}/{file.name}: {file.state}, {file.detail}")
            wrong += file.state != "ok"
        if chosen.note:
            print(f"{name}: {chosen.note}")
    if not names and not here:
        raise CorpusError(f"no corpora in {' or '.join(map(str, folders))}; see `sightline data list`")
    if wrong:
        raise typer.Exit(1)


app = group("data", about, {"list": list_corpora, "get": get, "check": check})
