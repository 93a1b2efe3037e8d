"""Text that was cut into tokens and lowercased, brought nearer to what models were trained on: written naturally.

Gold files of tagging, parsing and alignment come tokenized (`mr president , commissioner`). Spaces before commas and
lowercase nouns cut such text into other pieces than a model knows. Only spaces and case are changed here, never a
letter, so each token is found again by counting letters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

_NO_SPACE_BEFORE = frozenset(",.;:!?)]}»%…") | {"n't", "'s", "'re", "'ve", "'ll", "'d", "'m", "...", "’s"}
_NO_SPACE_BEHIND = frozenset("([{«¿¡")
_QUOTES = frozenset("\"'")


def detokenized(words: Sequence[str]) -> str:
    """The words with spaces where a writer would put them; straight quotes open and close in turns."""
    text, glued, opened = "", True, set[str]()
    for word in words:
        closes = word in _QUOTES and word in opened
        if not (glued or closes or word.lower() in _NO_SPACE_BEFORE):
            text += " "
        text += word
        glued = word in _NO_SPACE_BEHIND or (word in _QUOTES and not closes)
        if word in _QUOTES:
            opened ^= {word}
    return text


def learn_casing(lines: Iterable[str]) -> dict[str, str]:
    """How each lowercase word is written most often inside a sentence, where that is not in lower case."""
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        for word in line.split()[1:]:  # the first word says nothing
            plain = word.strip(",.;:!?()[]{}»«\"'„“”…")
            forms[plain.lower()][plain] += 1
    found = {word: counted.most_common(1)[0][0] for word, counted in forms.items()}
    return {word: form for word, form in found.items() if form != word and len(form) == len(word)}


def recased(words: Sequence[str], casing: Mapping[str, str]) -> list[str]:
    """Lowercase words as they are mostly written, and the first one of a sentence with a capital."""
    result, begins = [], True
    for word in words:
        form = casing.get(word, word)
        if begins and len(form[:1].upper()) == 1:
            form = form[:1].upper() + form[1:]
        begins = word in (".", "!", "?") or (begins and not any(map(str.isalnum, word)))
        result.append(form)
    return result
