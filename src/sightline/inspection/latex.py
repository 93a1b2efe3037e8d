"""The formulas of taps as LaTeX: they are written in plain signs, and the signs have names."""

from __future__ import annotations

import re

_SIGNS = {
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
    "[": "[",
    ";": r";\,",
}
_FUNCTIONS = ("tanh", "exp", "log", "max", "sin", "cos")
_WORDS = re.compile(r"(?<![\\\w{])([A-Za-zÀ-ž]{2,}(?: [a-zß-ž]{2,})*)")


def latex(formula: str) -> str:
    """`Q Kᵀ / √d_k` → `Q K^{\\top} / \\sqrt{d_{k}}`; words become upright text."""
    text = re.sub(r"√\(([^()]*)\)", r"√{\1}", formula)
    text = re.sub(r"√(\w(?:_\w)?)", r"√{\1}", text)
    text = re.sub(r"_(\w+(?:[−+,]\w+)*)", lambda found: "_{" + found[1] + "}", text)
    text = _WORDS.sub(_latex_word, text)
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    return re.sub(r"\s+", " ", text).strip()


def _latex_word(found: re.Match[str]) -> str:
    word = found[1]
    if word in _FUNCTIONS:
        return f"\\{word} "
    if word.isupper() and len(word) == 2 and word not in ("PE",):
        return word
    return rf"\operatorname{{{word}}}" if " " not in word else rf"\text{{{word}}}"
