"""A vocabulary of labels: whole words of a closed set, kept byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from sightline.terminal import plural
from sightline.text.tokenizer import SPECIALS, UNK, Tokenizer, TokenizerError

# A label may be spelled like a special, "<s>" say, and one vocabulary cannot hold both; so such a label has a
# backslash after its "<" there ("<\s>"), one that is spelled so already has one more, and decoding takes it out again.
_NAMES = "(?:" + "|".join(special[1:-1] for special in SPECIALS) + ")"
_ESCAPE = "<\\"


def label_tokenizer(texts: Iterable[str], *, whole: bool) -> Tokenizer:
    """The labels of these texts: each text is one if `whole`, else they are separated by spaces.

    Ids go by falling frequency, ties by code points. Nothing is normalized, cut or joined: what differs in a byte is
    another label, and a label that is not in `texts` is UNK. Decoded labels have single spaces between them.
    """
    counts: Counter[str] = Counter()
    for number, text in enumerate(texts, 1):
        labels = [text] if whole else text.split(" ") if text else []
        if "" in labels:
            raise TokenizerError(f"text {number} ({text!r}) has an empty label; give each a name, or leave it out")
        counts.update(labels)
    if not counts:
        raise TokenizerError("no labels can be learned from texts without any; check data.train")
    labels = [_escaped(label) for label in sorted(counts, key=lambda label: (-counts[label], label))]
    vocabulary = {label: number for number, label in enumerate([*SPECIALS, *labels])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS[UNK]))
    inner.add_special_tokens(list(SPECIALS))
    head, tail = (r"\A", r"\z") if whole else ("(?<![^ ])", "(?![^ ])")
    inner.normalizer = normalizers.Replace(Regex(rf"{head}<(?=\\*{_NAMES}>{tail})"), _ESCAPE)
    plain = decoders.Replace(Regex(rf"\A<\\(?=\\*{_NAMES}>\z)"), "<")
    if whole:
        inner.decoder = plain
    else:
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        spaced = decoders.WordPiece(prefix=" ", cleanup=False)  # a space before each but the first; none begins so
        inner.decoder = decoders.Sequence([plain, spaced])
    return Tokenizer(inner)


def label_id(labels: Tokenizer, name: str) -> int:
    """The id of a label; refused where none has that name."""
    known = {labels.decode([number]): number for number in range(len(SPECIALS), labels.size)}
    if name not in known:
        raise ValueError(f"there is no label {name!r}; there are {', '.join(list(known)[:20])}")
    return known[name]


def between_spaces(text: str) -> list[str]:
    """The words of a text as taggers count them, or its labels; other kinds of space may stand inside one."""
    return [word for word in text.split(" ") if word]


def uneven_labels(text: str, labels: str) -> str | None:
    """What is wrong where a text has more or fewer words, between single spaces, than there are labels for them."""
    words, given = len(text.split(" ")) if text else 0, len(between_spaces(labels))
    if words == given:
        return None
    return (
        f"{plural(given, 'label')} ({labels!r}) for {plural(words, 'word')} ({text!r}); give each word one label, and "
        f"set both apart by single spaces"
    )


def _escaped(label: str) -> str:
    like_special = label[:1] == "<" and "<" + label[1:].lstrip("\\") in SPECIALS
    return _ESCAPE + label[1:] if like_special else label
