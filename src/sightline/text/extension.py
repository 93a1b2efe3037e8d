"""A vocabulary with more tokens: the old ones keep their numbers, so that weights learned for them still fit."""

from __future__ import annotations

import json
from typing import Any

from sightline.text.tokenizer import Tokenizer, TokenizerError


def extended(old: Tokenizer, new: Tokenizer) -> Tokenizer:
    """`old` with the tokens that `new` has beside its own, numbered from `old.size` on.

    BPE: the merges of `new` come after those of `old`. So what `old` knew is cut as before, but for pieces that now go
    together; and a merge whose parts the old merges never leave side by side stays unused.
    """
    content, other = json.loads(old.content), json.loads(new.content)
    model, more = content["model"], other["model"]
    if model["type"] != more["type"]:
        raise TokenizerError(
            f"a {model['type']} tokenizer cannot be extended by a {more['type']} one; use the same tokenizer.kind"
        )
    if model["type"] == "Unigram":
        known = {piece for piece, _ in model["vocab"]}
        model["vocab"] += [scored for scored in more["vocab"] if scored[0] not in known]
    else:
        _add_tokens(model["vocab"], more["vocab"], old.size)
    if model["type"] == "BPE":
        merges = {tuple(pair) for pair in model["merges"]}
        model["merges"] += [pair for pair in more["merges"] if tuple(pair) not in merges]
    result = Tokenizer.parse(json.dumps(content, ensure_ascii=False))
    if result.pieces(range(old.size)) != old.pieces(range(old.size)):
        raise TokenizerError("this tokenizer cannot be extended: its old tokens would get other numbers")
    return result


def _add_tokens(vocabulary: dict[str, int], more: dict[str, Any], first: int) -> None:
    unknown = [token for token in sorted(more, key=lambda token: more[token]) if token not in vocabulary]
    vocabulary |= {token: first + number for number, token in enumerate(unknown)}
