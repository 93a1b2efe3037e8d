"""Formulas of taps as LaTeX and MathML. Layers write them in plain signs: `Q Kᵀ / √d_k`."""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape

_COMMANDS = {
    "ᵀ": r"^{\top}",
    "·": r" \cdot ",
    "∘": r" \odot ",
    "∗": r" \ast ",
    "−": "-",
    "Σ": r"\sum ",
    "√": r"\sqrt ",
    "½": r"\tfrac{1}{2}",
    "…": r"\dots",
    "∞": r"\infty",
    "∂": r"\partial ",
    "≤": r"\le ",
    "μ": r"\mu",
    "σ": r"\sigma",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "∈": r"\in ",
    "×": r"\times ",
    "→": r"\to ",
    "c̃": r"\tilde c",
    "₁": "_1",
    "₂": "_2",
    "₃": "_3",
    "²": "^2",
    ";": r";\,",
    "&": r"\&",
}
_FUNCTIONS = ("tanh", "exp", "log", "max", "sin", "cos")
_SUBSCRIPT = re.compile(r"_([^\Wᵀ]+(?:[−+,][^\Wᵀ]+)*)")
_WORDS = re.compile(r"(?<![\\\w{])([A-Za-zÀ-ž]{2,}(?: [a-zß-ž]{2,})*)")


def latex(formula: str) -> str:
    """`Q Kᵀ / √d_k` → `Q K^{\\top} / \\sqrt{d_{k}}`; words become upright text."""
    text = re.sub(r"√\(([^()]*)\)", r"√{\1}", formula)
    text = re.sub(r"√(\w(?:_\w)?)", r"√{\1}", text)
    text = _SUBSCRIPT.sub(
        lambda match: rf"_{{\text{{{match[1]}}}}}" if len(match[1]) > 2 and match[1].isalpha() else f"_{{{match[1]}}}",
        text,
    )
    text = _WORDS.sub(_word, text)
    for sign, command in _COMMANDS.items():
        text = text.replace(sign, command)
    return re.sub(r"\s+", " ", text).strip()


def _word(match: re.Match[str]) -> str:
    word = match[1]
    if word in _FUNCTIONS:
        return f"\\{word} "
    if word.isupper() and len(word) == 2 and word != "PE":
        return word
    return rf"\operatorname{{{word}}}" if " " not in word else rf"\text{{{word}}}"


@lru_cache(1_024)
def mathml(formula: str) -> str:
    """A formula as a `<math>` element, which browsers set without scripts; its plain text is the alternative."""
    if not formula:
        return ""
    from latex2mathml.converter import convert

    tex = latex(formula)
    body = convert(tex).partition(">")[2].removesuffix("</math>")
    return (
        f'<math alttext="{escape(formula, quote=True)}"><semantics>{body}'
        f'<annotation encoding="application/x-tex">{escape(tex)}</annotation></semantics></math>'
    )
