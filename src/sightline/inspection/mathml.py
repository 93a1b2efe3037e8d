"""The formulas of taps as MathML, which browsers set without any script: they are written in plain signs.

`Q Kᵀ / √d_k` becomes a fraction with a root below it; `h_t−1` a subscript; words stand upright. LaTeX goes along as an
annotation, the plain text as the alternative.
"""

from __future__ import annotations

import re
from html import escape

from sightline.inspection.latex import latex

_RAISED = {"ᵀ": "<mo>⊤</mo>", "²": "<mn>2</mn>"}
_LOWERED = {"₁": "1", "₂": "2", "₃": "3"}
_OPEN = {"(": ")", "[": "]", "{": "}"}
_ADDED = frozenset("=+−,;…∈→≤")  # what ends the terms above a fraction
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\S[\u0300-\u036f]?")
_WORD = re.compile(r"[A-Za-zÀ-ž]{2,}(?:[ -][a-zß-ž]{2,}(?![(\[]))*")  # a phrase does not swallow a function's name
_SUBSCRIPT = re.compile(r"_(?:\{([^{}]*)\}|([A-Za-z0-9]+(?:[−+,][A-Za-z0-9]+)*))")
_FOLLOWED = re.compile(r" [\w√Σ]")


def mathml(formula: str) -> str:
    """A formula as a `<math>` element; nothing for none."""
    if not formula:
        return ""
    body, _ = _row(formula, 0, "")
    plain, tex = escape(formula, quote=True), escape(latex(formula))
    return (
        f'<math alttext="{plain}"><semantics><mrow>{body}</mrow>'
        f'<annotation encoding="application/x-tex">{tex}</annotation></semantics></math>'
    )


def _row(text: str, at: int, end: str) -> tuple[str, int]:
    """Everything up to the sign that ends it, side by side; gives the place behind that."""
    found: list[str] = []
    while at < len(text):
        sign = text[at]
        if sign == end:
            return "".join(found), at + 1
        if sign.isspace():
            at += 1
        elif sign == "/":
            at = _skip(text, at + 1)
            below, at = _atom(text, at)
            first = next((k + 1 for k in reversed(range(len(found))) if _ends_term(found[k])), 0)
            found[first:] = [f"<mfrac><mrow>{''.join(found[first:])}</mrow><mrow>{below}</mrow></mfrac>"]
        else:
            atom, at = _atom(text, at)
            found.append(atom)
            if sign == ",":
                found.append('<mspace width="0.25em"></mspace>')
    return "".join(found), at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _ends_term(atom: str) -> bool:
    return any(atom == _operator(sign) for sign in _ADDED)


def _operator(sign: str) -> str:
    return f"<mo>{escape(sign)}</mo>"


def _atom(text: str, at: int) -> tuple[str, int]:
    """One thing with what is written below and above it."""
    if at >= len(text):
        return "", at
    sign, word = text[at], _WORD.match(text, at)
    if sign == "√":
        inside, at = _root(text, at + 1)
        return f"<msqrt>{inside}</msqrt>", at
    if sign == "½":
        base, at = "<mfrac><mn>1</mn><mn>2</mn></mfrac>", at + 1
    elif sign in _OPEN:
        inside, at = _row(text, at + 1, _OPEN[sign])
        base = f"<mrow>{_operator(sign)}{inside}{_operator(_OPEN[sign])}</mrow>"
    elif word is not None:
        base, at = _mathml_word(text, word)
    else:
        token = _TOKEN.match(text, at)
        assert token is not None
        base, at = _single(token[0]), token.end()
    return _marked(base, text, at)


def _root(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] == "(":
        return _row(text, at + 1, ")")
    return _atom(text, at)


def _mathml_word(text: str, word: re.Match[str]) -> tuple[str, int]:
    """A name, and in brackets what it is a function of; or a few words."""
    name, at = word[0], word.end()
    space = '<mspace width="0.25em"></mspace>' if _FOLLOWED.match(text, at) else ""
    if " " in name or "-" in name:
        return f"<mtext>{escape(name)}</mtext>{space}", at
    base = f"<mi>{escape(name)}</mi>"
    if text[at : at + 1] in ("(", "["):
        inside, at = _atom(text, at)
        return f"<mrow>{base}{inside}</mrow>", at
    return base + space, at


def _single(token: str) -> str:
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    return f"<mi>{escape(token)}</mi>" if token[0].isalpha() and token[0] not in "ΣΠ" else _operator(token)


def _marked(base: str, text: str, at: int) -> tuple[str, int]:
    below, above = "", ""
    while at < len(text):
        subscript = _SUBSCRIPT.match(text, at)
        if subscript is not None:
            below, at = _row(subscript[1] or subscript[2], 0, "")[0], subscript.end()
        elif text[at] in _LOWERED:
            below, at = f"<mn>{_LOWERED[text[at]]}</mn>", at + 1
        elif text[at] in _RAISED:
            above, at = _RAISED[text[at]], at + 1
        else:
            break
    if below and above:
        return f"<msubsup>{_one(base)}{_one(below)}{above}</msubsup>", at
    if below:
        return f"<msub>{_one(base)}{_one(below)}</msub>", at
    return (f"<msup>{_one(base)}{above}</msup>", at) if above else (base, at)


def _one(parts: str) -> str:
    return f"<mrow>{parts}</mrow>"
