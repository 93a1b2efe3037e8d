"""The tokenizer section of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sightline.recipe.schema import Probability, Section, open_union


class TokenizerSection(Section):
    """Base of tokenizers."""

    shared: bool = Field(True, description="one vocabulary for both sides, or one for each")
    normalize: Literal["none", "nfc", "nfkc"] = Field("nfc", description="Unicode normalization form of all text")
    lowercase: bool = Field(False, description="lowercase all text, on both sides")


class WordTokenizer(TokenizerSection):
    """Words and punctuation marks; rare ones are unknown."""

    kind: Literal["word"] = "word"
    size: int = Field(10_000, ge=8, description="largest size of the vocabulary")
    min_count: int = Field(2, ge=1, description="least frequency of an entry in the training text")


class WhitespaceTokenizer(TokenizerSection):
    """Text between spaces, tabs and newlines, unchanged: for text that is already tokenized."""

    kind: Literal["whitespace"] = "whitespace"
    normalize: Literal["none", "nfc", "nfkc"] = "none"
    size: int = Field(10_000, ge=8, description="largest size of the vocabulary")
    min_count: int = Field(2, ge=1, description="least frequency of an entry in the training text")


class CharacterTokenizer(TokenizerSection):
    """One token per character."""

    kind: Literal["character"] = "character"
    spaces: Literal["squeeze", "keep"] = Field(
        "squeeze", description="keep: newlines and repeated spaces are part of the text"
    )
    size: int = Field(1_000, ge=8, description="largest size of the vocabulary")
    min_count: int = Field(1, ge=1, description="least frequency of an entry in the training text")


class BpeTokenizer(TokenizerSection):
    """Byte-pair encoding (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    size: int = Field(8_000, ge=8, description="largest size of the vocabulary")
    min_count: int = Field(2, ge=1, description="least frequency of an entry in the training text")
    dropout: Probability = Field(0.0, description="BPE-dropout (Provilkov et al. 2020): share of merges skipped")
    variants: int = Field(8, ge=1, description="with dropout: number of segmentations of the text that are stored")


class UnigramTokenizer(TokenizerSection):
    """Unigram language model pieces (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    size: int = Field(8_000, ge=8, description="largest size of the vocabulary")


if TYPE_CHECKING:
    AnyTokenizer = WordTokenizer | WhitespaceTokenizer | CharacterTokenizer | BpeTokenizer | UnigramTokenizer
else:
    AnyTokenizer = open_union("tokenizer", base=TokenizerSection)
WHOLE_WORDS = ("word", "whitespace")  # kinds of tokenizers whose tokens are whole words
