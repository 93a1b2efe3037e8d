"""CSV that is safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and a line for each row; texts that a spreadsheet would run as formulas begin with an apostrophe."""
    content = io.StringIO()
    writer = csv.DictWriter(content, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return content.getvalue()


def _cell(value: Any) -> Any:
    """Formula injection (https://owasp.org/www-community/attacks/CSV_Injection) is of texts; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
