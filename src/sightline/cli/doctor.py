"""`sightline doctor`: versions, devices, threads, and what is missing for which feature."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.inspection.doctor import Finding

_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "missing": "[yellow]○[/]", "broken": "[red]✗[/]"}


def doctor() -> None:
    """Look at this machine: versions, devices, folders, and what is missing for which feature."""
    import typer

    from sightline.inspection.doctor import report

    findings = report()
    if sys.stdout.isatty():
        from sightline.terminal import console

        console().print(_table(findings))
    else:
        for finding in findings:
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            print(f"{finding.group}\t{finding.state}\t{finding.name}\t{finding.value}{remedy}")
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(code=1)


def _table(findings: list[Finding]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    group = ""
    for finding in findings:
        if finding.group != group:
            if group:
                table.add_section()
            group = finding.group
        remedy = f"\n[dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(_MARKS[finding.state], f"[bold]{escape(finding.name)}[/]", escape(finding.value) + remedy)
    return table
