"""The sections of a recipe about its text: sources of examples, cleaning, noise and the tokenizer."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from sightline.recipe.schema import Probability, Section, open_union
from sightline.terminal import plural

Column = Annotated[int, Field(ge=1)]


class SourceConfig(Section):
    """Base of sources of examples."""

    file_keys: ClassVar[tuple[str, ...]] = ()  # the keys that name files

    weight: float = Field(1.0, gt=0, description="how often each example is seen in an epoch (0.5: every second one)")
    share: tuple[float, float] | None = Field(
        None, description="keep the examples whose source hashes into [from, to) of [0, 1), for disjoint splits"
    )

    @model_validator(mode="after")
    def _share_is_an_interval(self) -> SourceConfig:
        if self.share is not None and not 0.0 <= self.share[0] < self.share[1] <= 1.0:
            raise ValueError(f"share {list(self.share)} must be [from, to] with 0 <= from < to <= 1")
        return self

    @property
    def one_sided(self) -> bool:
        """Whether its examples are plain text, without a source side."""
        return False

    @property
    def sides(self) -> tuple[str, str]:
        """Names of its source and its target text, equal for sources that read the same text."""
        whole = self.model_dump_json(exclude={"weight", "share"})
        return f"source of {whole}", f"target of {whole}"


class FileSource(SourceConfig):
    """Base of sources that read one file."""

    file_keys: ClassVar[tuple[str, ...]] = ("file",)

    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")


class TextSource(SourceConfig):
    """Two text files, one example per line."""

    file_keys: ClassVar[tuple[str, ...]] = ("source", "target")

    kind: Literal["text"] = "text"
    source: str = Field(description="the file with one source per line")
    target: str = Field(description="the file with the target of each line")

    @property
    def sides(self) -> tuple[str, str]:
        return self.source, self.target


class TsvSource(FileSource):
    """One file of tab-separated columns."""

    kind: Literal["tsv"] = "tsv"
    columns: tuple[Column, Column] = Field((1, 2), description="columns of source and target, counted from 1")
    header: bool | Literal["auto"] = Field(
        "auto",
        description="whether the first line names the columns; auto: skip it, with a warning, if it evidently does",
    )

    @property
    def sides(self) -> tuple[str, str]:
        source, target = self.columns
        return f"column {source} of {self.file}", f"column {target} of {self.file}"


class CsvSource(FileSource):
    """One CSV file with quoted cells and a header."""

    kind: Literal["csv"] = "csv"
    source: str | Column = Field("source", description="name or number (from 1) of the source column")
    target: str | Column = Field("target", description="name or number (from 1) of the target column")
    delimiter: str = Field(",", min_length=1, max_length=1, description='between cells, such as ";" or "\t"')
    header: bool = Field(True, description="whether the first line names the columns")

    @property
    def sides(self) -> tuple[str, str]:
        return f"column {self.source} of {self.file}", f"column {self.target} of {self.file}"


class JsonLinesSource(FileSource):
    """One JSON object per line."""

    kind: Literal["jsonl"] = "jsonl"
    source: str = Field("source", description="key of the source")
    target: str = Field("target", description="key of the target")

    @property
    def sides(self) -> tuple[str, str]:
        return f"{self.source} of {self.file}", f"{self.target} of {self.file}"


class PatternSource(FileSource):
    """One file whose whole lines match a regular expression with the named groups `source` and `target`."""

    kind: Literal["pattern"] = "pattern"
    pattern: str = Field(description="the regular expression, with (?P<source>...) and (?P<target>...)")
    skip: str | None = Field(None, description="skip lines in which this expression matches (comments)")
    spell: bool = Field(
        False,
        description="put a space between the characters of the source (for pronunciation); if all training sources do, "
        "so does prediction",
    )

    @model_validator(mode="after")
    def _expressions_are_sound(self) -> PatternSource:
        for name, expression in (("pattern", self.pattern), ("skip", self.skip or "")):
            try:
                groups = re.compile(expression).groupindex
            except re.error as error:
                raise ValueError(f"{name} {expression!r} is not a regular expression: {error}") from error
            if name == "pattern" and not {"source", "target"} <= set(groups):
                raise ValueError(f"pattern {expression!r} needs the groups (?P<source>...) and (?P<target>...)")
        return self


class PlainSource(FileSource):
    """Plain text for language models: each line is a document, or the whole file is one."""

    kind: Literal["plain"] = "plain"
    document: Literal["line", "file"] = Field("line", description="file: newlines are part of the text")
    part: tuple[float, float] = Field(
        (0.0, 1.0), description="the part of its characters or lines that is read: [from, to]"
    )

    @model_validator(mode="after")
    def _part_is_an_interval(self) -> PlainSource:
        if not 0.0 <= self.part[0] < self.part[1] <= 1.0:
            raise ValueError(f"part {list(self.part)} must be [from, to] with 0 <= from < to <= 1")
        return self

    @property
    def one_sided(self) -> bool:
        return True


class ConlluSource(FileSource):
    """Tagged words in a CoNLL-U file."""

    kind: Literal["conllu"] = "conllu"
    column: Literal["lemma", "upos", "xpos", "feats", "deprel"] = Field("upos", description="the column of the tags")


class ColumnsSource(FileSource):
    """Tagged words in columns: one word per line, an empty line between sentences."""

    kind: Literal["columns"] = "columns"
    word: Column = Field(1, description="the column of the words, counted from 1")
    label: Column = Field(2, description="the column of the tags, counted from 1")


class ChoralesSource(FileSource):
    """Four-part chorales as JSON, one event per step (data/music.py)."""

    kind: Literal["chorales"] = "chorales"
    split: Literal["train", "valid", "test"] = Field(description="the split of the corpus")
    transpose: tuple[int, ...] = Field((0,), description="transpose each piece by each of these numbers of semitones")

    @property
    def one_sided(self) -> bool:
        return True


class DatesSource(SourceConfig):
    """Built-in corpus: dates as people write them, in many languages, and the same dates in ISO 8601."""

    file_keys: ClassVar[tuple[str, ...]] = ()

    kind: Literal["dates"] = "dates"
    split: Literal["train", "validation", "test"] = Field(description="splits have no source in common")
    examples: int = Field(20_000, ge=1, description="number of examples")
    locales: tuple[str, ...] = Field(
        ("en_US", "en_GB", "de", "fr", "es", "it", "nl", "pt", "sv", "pl"), description="languages, by CLDR names"
    )
    seed: int = Field(1, description="another seed generates other examples")


class SequencesSource(SourceConfig):
    """Built-in corpus: random sequences of letters, to be copied or reversed."""

    file_keys: ClassVar[tuple[str, ...]] = ()

    kind: Literal["sequences"] = "sequences"
    operation: Literal["copy", "reverse"] = Field(
        "copy", description="the target: the same letters, or in reverse order"
    )
    split: Literal["train", "validation", "test"] = Field(description="splits have no source in common")
    examples: int = Field(10_000, ge=1, description="number of examples")
    lengths: tuple[int, int] = Field((1, 40), description="fewest and most letters; all lengths are equally likely")
    symbols: int = Field(26, ge=2, le=26, description="size of the alphabet, from a on")
    seed: int = Field(1, description="another seed generates other examples")

    @model_validator(mode="after")
    def _lengths_are_a_range(self) -> SequencesSource:
        if not 1 <= self.lengths[0] <= self.lengths[1]:
            raise ValueError(f"lengths {list(self.lengths)} must be [from, to] with 1 <= from <= to")
        return self

    @property
    def file(self) -> str:
        """For model cards, in place of a file name."""
        fewest, most = self.lengths
        what = f"built-in sequences of {fewest} to {most} letters, {self.operation}"
        return f"{what}, split {self.split}, {plural(self.examples, 'example')}"


class PhrasesSource(SourceConfig):
    """The built-in bilingual corpus: English sentences of a small grammar, and what is known of each (data/phrases)."""

    file_keys: ClassVar[tuple[str, ...]] = ()

    kind: Literal["phrases"] = "phrases"
    target: Literal["translation", "tags", "sentiment", "text"] = Field(
        "translation",
        description="the target: German; a part of speech for each English word; negative, neutral or positive; or "
        "the English text itself, with no source",
    )
    split: Literal["train", "validation", "test"] = Field(description="splits have no source in common")
    examples: int = Field(20_000, ge=1, description="number of examples")
    clauses: tuple[int, int] = Field(
        (1, 3), description="fewest and most clauses of a sentence; all numbers are equally likely"
    )
    seed: int = Field(1, description="another seed generates other examples")

    @model_validator(mode="after")
    def _clauses_are_a_range(self) -> PhrasesSource:
        if not 1 <= self.clauses[0] <= self.clauses[1] <= 12:
            raise ValueError(f"clauses {list(self.clauses)} must be [from, to] with 1 <= from <= to <= 12")
        return self

    @property
    def one_sided(self) -> bool:
        return self.target == "text"

    @property
    def sides(self) -> tuple[str, str]:
        whole = self.model_dump_json(exclude={"weight", "share", "target"})
        return f"English of {whole}", f"{self.target} of {whole}"

    @property
    def file(self) -> str:
        """For model cards, in place of a file name."""
        fewest, most = self.clauses
        what = f"built-in phrases of {fewest} to {most} clauses, {self.target}"
        return f"{what}, split {self.split}, {plural(self.examples, 'example')}"


if TYPE_CHECKING:
    AnySource = (
        TextSource
        | TsvSource
        | CsvSource
        | JsonLinesSource
        | PatternSource
        | PlainSource
        | ConlluSource
        | ColumnsSource
        | ChoralesSource
        | DatesSource
        | SequencesSource
        | PhrasesSource
    )
else:
    AnySource = open_union("source", base=SourceConfig)


def longest_input(trained: int) -> int:
    """The longest input, in tokens, for a model trained on inputs of some length."""
    return max(4_096, 8 * trained)


def longest_line(tokens: int) -> int:
    """A bound on the bytes of a line of some tokens; pieces are shorter than 64 bytes in any language."""
    return 64 * tokens


# --- noise ------------------------------------------------------------------------------------------------------------

MASK = "<mask>"

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


def sentinel(number: int) -> str:
    """The sentinel of a gap: <gap-0> is the first gap of a text."""
    return f"<gap-{number}>"


class Noise(Section):
    """Base of noise on windows of plain text."""

    short_ratio: Probability = Field(
        0.1, description="share of windows that are cut to a random length, since not all texts are long"
    )


class MaskNoise(Noise):
    """Masked language modelling (Devlin et al. 2019): most chosen tokens become <mask>, some another token."""

    kind: Literal["mask"] = "mask"
    rate: Rate = Field(0.15, description="share of tokens that are chosen and predicted")
    masked: float = Field(0.8, ge=0, le=1, description="share of chosen tokens that become <mask>")
    random: float = Field(
        0.1, ge=0, le=1, description="share of chosen tokens that become a random token; the rest stay"
    )
    whole_words: bool = Field(True, description="choose all pieces of a word, or none")

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskNoise:
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"noise.masked ({self.masked:g}) and noise.random ({self.random:g}) are shares of the same tokens, and "
                f"more than 1 together; lower one of them"
            )
        return self

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens, which also has a start and an end token."""
        return context - 2

    def most(self, length: int) -> int:
        """The most tokens chosen among `length`."""
        return min(length, math.ceil(self.rate * length) + 4)  # the last word may reach over the share


class InfillingNoise(Noise):
    """Denoising as in BART (Lewis et al. 2020): permuted sentences, one <mask> for each span, deleted tokens."""

    kind: Literal["text-infilling"] = "text-infilling"
    rate: Rate = Field(0.3, description="share of words that spans cover")
    mean_span_length: float = Field(
        3.0, gt=0, description="mean of the Poisson distribution of span lengths, 0 included"
    )
    whole_words: bool = Field(True, description="spans consist of whole words")
    permute_sentences: bool = Field(True, description="shuffle the sentences")
    deletion_ratio: Probability = Field(0.0, description="share of tokens outside the spans that are deleted")

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens, which also has an end token."""
        return context - 1

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without end tokens, for a text of `length` tokens."""
        return length, length


class SpanNoise(Noise):
    """Span corruption as in T5 (Raffel et al. 2020): spans become sentinels; targets are sentinels and spans."""

    kind: Literal["span-corruption"] = "span-corruption"
    rate: Rate = Field(0.15, description="share of tokens that spans cover")
    mean_span_length: float = Field(3.0, ge=1, description="mean length of a span")
    sentinels: int = Field(100, ge=1, description="sentinels in the vocabulary: most spans of a text")

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return tuple(sentinel(number) for number in range(self.sentinels))

    def counts(self, length: int) -> tuple[int, int]:
        """How many of `length` tokens spans cover, and the number of spans."""
        covered = min(max(1, round(self.rate * length)), max(1, length - 1))
        spans = min(max(1, round(covered / self.mean_span_length)), covered, max(1, length - covered), self.sentinels)
        return covered, spans

    def window(self, context: int) -> int:
        """Tokens of text for a source of `context` tokens with its end token; spans make it shorter than the text."""
        length = context - 1
        while max(self.sides(length + 1)) < context:
            length += 1
        return length

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without end tokens, for a text of up to `length` tokens."""
        covered, spans = self.counts(length)
        return length - covered + spans, covered + spans


if TYPE_CHECKING:
    AnyNoise = MaskNoise | InfillingNoise | SpanNoise
else:
    AnyNoise = open_union("noise", base=Noise)


class Clean(Section):
    """What is dropped from the training text. Dropped examples are counted by reason."""

    truncate_source: int | None = Field(
        None,
        ge=1,
        description="cut longer sources to this many tokens, before the other checks: in training, validation, tests "
        "and prediction alike",
    )
    max_tokens: int = Field(256, ge=2, description="drop pairs with a longer side, in tokens")
    max_ratio: float | None = Field(
        None, gt=1, description="drop pairs with a side this many times longer than the other, in tokens"
    )
    deduplicate: Literal["none", "pairs", "sources", "targets"] = Field(
        "none", description="keep only the first example of each of these"
    )
    drop_copies: bool = Field(False, description="drop pairs with equal sides")

    @property
    def longest_line(self) -> int:
        """The most bytes of a line of pairs that is read; longer lines have far more than max_tokens."""
        return longest_line(longest_input(max(self.max_tokens, self.truncate_source or 0)))


class Data(Section):
    """Sources of examples, and what is done to them."""

    folder: str | None = Field(
        None,
        description="folder of relative file names, beside the recipe or in $SIGHTLINE_CORPORA. Runs store an absolute "
        "path; where it does not exist, the folder of that name in $SIGHTLINE_CORPORA is used",
    )
    train: tuple[AnySource, ...] = Field(min_length=1, description="sources of training examples, used together")
    validation: AnySource = Field(description="evaluated during training, to choose the best weights")
    tests: dict[str, AnySource] = Field(default_factory=dict, description="test sets of `sightline evaluate`, by name")
    swap: bool = Field(False, description="exchange source and target")
    limit: int | None = Field(None, ge=1, description="use only this many training examples")
    validation_limit: int | None = Field(None, ge=1, description="use only this many validation examples")
    clean: Clean = Field(Clean(), description="what is dropped from the training text")
    noise: AnyNoise | None = Field(None, description="corrupt plain text, for the model to restore")

    @model_validator(mode="after")
    def _only_training_is_weighted(self) -> Data:
        held = {"validation": self.validation, **{f"tests.{name}": source for name, source in self.tests.items()}}
        for name, source in held.items():
            if source.weight != 1.0:
                raise ValueError(
                    f"{name}.weight ({source.weight:g}) says how often an example is trained on, and these are not; "
                    f"leave it out"
                )
        return self

    @property
    def spelled_side(self) -> Literal["source", "target"] | None:
        """The side whose characters are separated by spaces in all training sources, and so in prediction."""
        if not all(isinstance(source, PatternSource) and source.spell for source in self.train):
            return None
        return "target" if self.swap else "source"

    def uneven_spelling(self) -> str | None:
        """A warning if only some of the training sources separate characters."""
        spelled = [isinstance(source, PatternSource) and source.spell for source in self.train]
        if len(set(spelled)) == 1:
            return None
        yes, no = spelled.index(True), spelled.index(False)
        return (
            f"data.train[{yes}] has spell: true and data.train[{no}] has not, so texts are read as they are given: put "
            f"spaces between the letters of those that need it, or set spell for all"
        )

    def held_out(self, name: str) -> AnySource:
        """A test set, or `validation`."""
        return self.validation if name == "validation" else self.tests[name]


class Direction(NamedTuple):
    """Which texts are read and which are written, by name (`SourceConfig.sides`)."""

    reads: frozenset[str]
    writes: frozenset[str]

    def is_turned(self, other: Direction) -> bool:
        """Whether each writes what the other reads, and they share nothing else."""
        crossed = self.reads & other.writes and self.writes & other.reads
        return bool(crossed) and not (self.reads & other.reads or self.writes & other.writes)


def direction(data: Data) -> Direction:
    """The direction of the training and validation text."""
    pairs = [source.sides[::-1] if data.swap else source.sides for source in (*data.train, data.validation)]
    read, written = zip(*pairs, strict=True)
    return Direction(frozenset(read), frozenset(written))


# --- tokenizer -----------------------------------------------------------------------------------------------------


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
