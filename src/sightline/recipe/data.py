"""The sections of a recipe that say where text comes from and how it is cut."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from sightline.recipe.schema import Probability, Section, open_union
from sightline.terminal import plural

Column = Annotated[int, Field(ge=1)]


class SourceConfig(Section):
    """What every source of examples has."""

    file_keys: ClassVar[tuple[str, ...]] = ("file",)  # the keys that name files; text that is made has none

    weight: float = Field(1.0, gt=0, description="how often each example is seen per epoch (0.5: half of them)")
    share: tuple[float, float] | None = Field(
        None, description="keep the examples whose source text hashes into [from, to) of [0, 1): disjoint splits"
    )

    @model_validator(mode="after")
    def _share_is_an_interval(self) -> SourceConfig:
        if self.share is not None and not 0.0 <= self.share[0] < self.share[1] <= 1.0:
            raise ValueError(f"share {list(self.share)} must be [from, to] with 0 <= from < to <= 1")
        return self

    @property
    def one_sided(self) -> bool:
        """Whether its examples are text to model, without a source side."""
        return False

    @property
    def sides(self) -> tuple[str, str]:
        """Names of its source and its target text: whoever takes the same text, as either side, calls it the same."""
        whole = self.model_dump_json(exclude={"weight", "share"})
        return f"source of {whole}", f"target of {whole}"


class TextSource(SourceConfig):
    """Two text files read side by side, line by line."""

    file_keys: ClassVar[tuple[str, ...]] = ("source", "target")

    kind: Literal["text"] = "text"
    source: str = Field(description="the file with a source text on each line")
    target: str = Field(description="the file with the target of each line")

    @property
    def sides(self) -> tuple[str, str]:
        return self.source, self.target


class TsvSource(SourceConfig):
    """One file of tab-separated columns."""

    kind: Literal["tsv"] = "tsv"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    columns: tuple[Column, Column] = Field((1, 2), description="which columns hold source and target, counted from 1")
    header: bool | Literal["auto"] = Field(
        "auto",
        description="whether the first line names the columns; auto: skipped, with a warning, if it evidently does",
    )

    @property
    def sides(self) -> tuple[str, str]:
        source, target = self.columns
        return f"column {source} of {self.file}", f"column {target} of {self.file}"


class CsvSource(SourceConfig):
    """One CSV file: quoted cells, and columns named by its first line."""

    kind: Literal["csv"] = "csv"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    source: str | Column = Field("source", description="the name or number (from 1) of the column of the source")
    target: str | Column = Field("target", description="the name or number (from 1) of the column of the target")
    delimiter: str = Field(",", min_length=1, max_length=1, description='between cells: ";" or "\t" in some files')
    header: bool = Field(True, description="whether the first line names the columns")

    @property
    def sides(self) -> tuple[str, str]:
        return f"column {self.source} of {self.file}", f"column {self.target} of {self.file}"


class JsonLinesSource(SourceConfig):
    """One JSON object a line."""

    kind: Literal["jsonl"] = "jsonl"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    source: str = Field("source", description="the key of the source text")
    target: str = Field("target", description="the key of the target text")

    @property
    def sides(self) -> tuple[str, str]:
        return f"{self.source} of {self.file}", f"{self.target} of {self.file}"


class PatternSource(SourceConfig):
    """One file whose lines match, end to end, a regular expression with the named groups `source` and `target`."""

    kind: Literal["pattern"] = "pattern"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    pattern: str = Field(description="the regular expression, with (?P<source>...) and (?P<target>...)")
    skip: str | None = Field(None, description="lines that have a match of this are passed over (comments)")
    spell: bool = Field(
        False,
        description="put a space between the characters of the source (spelling to sound); where all training sources "
        "do, so does every use of the model: predict takes the raw text, or the spelled one",
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


class PlainSource(SourceConfig):
    """Text to model for itself, not in pairs: each line a document, or the whole file one."""

    kind: Literal["plain"] = "plain"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    document: Literal["line", "file"] = Field("line", description="file: newlines are part of the text")
    part: tuple[float, float] = Field(
        (0.0, 1.0), description="which part of the file's characters or lines: [from, to]"
    )

    @model_validator(mode="after")
    def _part_is_an_interval(self) -> PlainSource:
        if not 0.0 <= self.part[0] < self.part[1] <= 1.0:
            raise ValueError(f"part {list(self.part)} must be [from, to] with 0 <= from < to <= 1")
        return self

    @property
    def one_sided(self) -> bool:
        return True


class ConlluSource(SourceConfig):
    """Words with their tags in a CoNLL-U file."""

    kind: Literal["conllu"] = "conllu"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    column: Literal["lemma", "upos", "xpos", "feats", "deprel"] = Field("upos", description="which column is the tag")


class ColumnsSource(SourceConfig):
    """Words with their tags in columns, a word a line, an empty line between sentences."""

    kind: Literal["columns"] = "columns"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    word: Column = Field(1, description="the column of the words, counted from 1")
    label: Column = Field(2, description="the column of the tags, counted from 1")


class ChoralesSource(SourceConfig):
    """Four-part chorales as JSON, step by step (data/music.py): a language of pitches."""

    kind: Literal["chorales"] = "chorales"
    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")
    split: Literal["train", "valid", "test"] = Field(description="which part of the corpus")
    transpose: tuple[int, ...] = Field((0,), description="each piece moved by each of these numbers of semitones")

    @property
    def one_sided(self) -> bool:
        return True


class DatesSource(SourceConfig):
    """The built-in corpus: dates as people write them, in many languages, and the same dates in ISO 8601."""

    file_keys: ClassVar[tuple[str, ...]] = ()

    kind: Literal["dates"] = "dates"
    split: Literal["train", "validation", "test"] = Field(description="parts have no source text in common")
    examples: int = Field(20_000, ge=1, description="how many are made")
    locales: tuple[str, ...] = Field(
        ("en_US", "en_GB", "de", "fr", "es", "it", "nl", "pt", "sv", "pl"), description="languages, by their CLDR names"
    )
    seed: int = Field(1, description="another seed makes other examples")


class SequencesSource(SourceConfig):
    """The built-in drill: random sequences of letters and the same, copied or reversed (data/synthetic.py)."""

    file_keys: ClassVar[tuple[str, ...]] = ()

    kind: Literal["sequences"] = "sequences"
    operation: Literal["copy", "reverse"] = Field(
        "copy", description="what the target is: the same letters, or from the end"
    )
    split: Literal["train", "validation", "test"] = Field(description="parts have no source text in common")
    examples: int = Field(10_000, ge=1, description="how many are made")
    lengths: tuple[int, int] = Field((1, 40), description="fewest and most letters; every length is as likely")
    symbols: int = Field(26, ge=2, le=26, description="how many letters there are, from a on")
    seed: int = Field(1, description="another seed makes other examples")

    @model_validator(mode="after")
    def _lengths_are_a_range(self) -> SequencesSource:
        if not 1 <= self.lengths[0] <= self.lengths[1]:
            raise ValueError(f"lengths {list(self.lengths)} must be [from, to] with 1 <= from <= to")
        return self

    @property
    def file(self) -> str:
        """What a model card shows in place of a file name."""
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
    split: Literal["train", "validation", "test"] = Field(description="parts have no source text in common")
    examples: int = Field(20_000, ge=1, description="how many are made")
    clauses: tuple[int, int] = Field((1, 3), description="fewest and most clauses of a sentence; each is as likely")
    seed: int = Field(1, description="another seed makes other examples")

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
        """What a model card shows in place of a file name."""
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
    """The most tokens of an input for a model trained on so many: lengths beyond that are not what it learned."""
    return max(4_096, 8 * trained)


def longest_line(tokens: int) -> int:
    """The most bytes of a line of so many tokens: the longest words of any language have fewer in each piece."""
    return 64 * tokens


# --- noise ------------------------------------------------------------------------------------------------------------

MASK = "<mask>"

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


def sentinel(number: int) -> str:
    """The name of a gap's mark: <gap-0> is the first gap of a text."""
    return f"<gap-{number}>"


class Noise(Section):
    """What every noise has."""

    short_ratio: Probability = Field(
        0.1, description="share of the windows that are cut to a random length, for not all texts are long"
    )


class MaskNoise(Noise):
    """Masked words (Devlin et al. 2019): most chosen tokens become <mask>, some another token, some stay."""

    kind: Literal["mask"] = "mask"
    rate: Rate = Field(0.15, description="share of the tokens that are chosen, to be guessed")
    masked: float = Field(0.8, ge=0, le=1, description="share of the chosen ones that become <mask>")
    random: float = Field(0.1, ge=0, le=1, description="share of them that become any token; the rest stay")
    whole_words: bool = Field(True, description="choose all pieces of a word, or none of them")

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
        """What the vocabulary must have for it, beside its specials."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens: between a start mark and an end mark."""
        return context - 2

    def most(self, length: int) -> int:
        """The most tokens chosen among so many."""
        return min(length, math.ceil(self.rate * length) + 4)  # the last word may reach over the share


class InfillingNoise(Noise):
    """Denoising (Lewis et al. 2020): sentences change places, spans become one <mask> each, tokens go missing."""

    kind: Literal["text-infilling"] = "text-infilling"
    rate: Rate = Field(0.3, description="share of the words that spans cover")
    mean_span_length: float = Field(
        3.0, gt=0, description="mean length of a span, of a Poisson distribution; 0 is a length too"
    )
    whole_words: bool = Field(True, description="spans are of whole words, not of tokens")
    permute_sentences: bool = Field(True, description="put the sentences into random order")
    deletion_ratio: Probability = Field(0.0, description="share of the tokens outside the spans that go missing")

    @property
    def marks(self) -> tuple[str, ...]:
        """What the vocabulary must have for it, beside its specials."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens: before an end mark."""
        return context - 1

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without marks, that a text of `length` tokens becomes."""
        return length, length


class SpanNoise(Noise):
    """Span corruption (Raffel et al. 2020): a mark of its own in place of each span; wanted are marks and spans."""

    kind: Literal["span-corruption"] = "span-corruption"
    rate: Rate = Field(0.15, description="share of the tokens that spans cover")
    mean_span_length: float = Field(3.0, ge=1, description="mean length of a span")
    sentinels: int = Field(100, ge=1, description="marks in the vocabulary: most spans of a text")

    @property
    def marks(self) -> tuple[str, ...]:
        """What the vocabulary must have for it, beside its specials."""
        return tuple(sentinel(number) for number in range(self.sentinels))

    def counts(self, length: int) -> tuple[int, int]:
        """How many of `length` tokens are covered, and by how many spans."""
        covered = min(max(1, round(self.rate * length)), max(1, length - 1))
        spans = min(max(1, round(covered / self.mean_span_length)), covered, max(1, length - covered), self.sentinels)
        return covered, spans

    def window(self, context: int) -> int:
        """Tokens of text that become a source of `context` tokens with its end mark: more than that."""
        length = context - 1
        while max(self.sides(length + 1)) < context:
            length += 1
        return length

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without marks, that up to `length` tokens become (neither falls)."""
        covered, spans = self.counts(length)
        return length - covered + spans, covered + spans


if TYPE_CHECKING:
    AnyNoise = MaskNoise | InfillingNoise | SpanNoise
else:
    AnyNoise = open_union("noise", base=Noise)


class Clean(Section):
    """What is dropped from the training text before it is learned from; every drop is counted by reason."""

    truncate_source: int | None = Field(
        None,
        ge=1,
        description="cut longer sources to their first so many tokens, before the rest is asked: not dropped but "
        "counted; in training, validation, tests and every use of the model alike",
    )
    max_tokens: int = Field(256, ge=2, description="longest side kept, in tokens")
    max_ratio: float | None = Field(None, gt=1, description="most times longer, in tokens, one side may be")
    deduplicate: Literal["none", "pairs", "sources", "targets"] = Field(
        "none", description="keep only the first example of each of these"
    )
    drop_copies: bool = Field(False, description="drop pairs whose sides are the same text")

    @property
    def longest_line(self) -> int:
        """The most bytes of a line of pairs that is read at all; a line this long has far more than max_tokens."""
        return longest_line(longest_input(max(self.max_tokens, self.truncate_source or 0)))


class Data(Section):
    """Where the examples come from."""

    folder: str | None = Field(
        None,
        description="where relative file names start: beside the recipe, or in $SIGHTLINE_CORPORA; runs save it "
        "absolute, and where that is not, as on another machine, the folder of its name in $SIGHTLINE_CORPORA is taken",
    )
    train: tuple[AnySource, ...] = Field(min_length=1, description="what is trained on, all together")
    validation: AnySource = Field(description="measured during training, to choose the best weights")
    tests: dict[str, AnySource] = Field(default_factory=dict, description="measured by `sightline evaluate`, by name")
    swap: bool = Field(False, description="exchange source and target: the other direction of the same corpus")
    limit: int | None = Field(None, ge=1, description="use only the first so many training examples")
    validation_limit: int | None = Field(None, ge=1, description="use only the first so many validation examples")
    clean: Clean = Field(Clean(), description="what is dropped from the training text")
    noise: AnyNoise | None = Field(None, description="spoil plain text, for the model to learn to mend it")

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
        """The side whose letters the training sources set apart, if they all do: prediction does so too."""
        if not all(isinstance(source, PatternSource) and source.spell for source in self.train):
            return None
        return "target" if self.swap else "source"

    def uneven_spelling(self) -> str | None:
        """What is to be known where only some of the training sources set letters apart; None where that is even."""
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
    """Which texts are read and which are written, by their names (`Source.sides`)."""

    reads: frozenset[str]
    writes: frozenset[str]

    def is_turned(self, other: Direction) -> bool:
        """Whether each writes what the other reads, and they have nothing else in common."""
        crossed = self.reads & other.writes and self.writes & other.reads
        return bool(crossed) and not (self.reads & other.reads or self.writes & other.writes)


def direction(data: Data) -> Direction:
    """That of the texts a recipe learns from and is validated by."""
    pairs = [source.sides[::-1] if data.swap else source.sides for source in (*data.train, data.validation)]
    read, written = zip(*pairs, strict=True)
    return Direction(frozenset(read), frozenset(written))


# --- tokenizer -----------------------------------------------------------------------------------------------------


class TokenizerSection(Section):
    """What every tokenizer has."""

    shared: bool = Field(True, description="one vocabulary for both sides, or one each")
    normalize: Literal["none", "nfc", "nfkc"] = Field("nfc", description="Unicode normalization form of all text")
    lowercase: bool = Field(False, description="lowercase all text, on both sides")


class WordTokenizer(TokenizerSection):
    """Words and punctuation marks; rare ones are unknown."""

    kind: Literal["word"] = "word"
    size: int = Field(10_000, ge=8, description="most entries of the vocabulary")
    min_count: int = Field(2, ge=1, description="how often an entry must be in the training text")


class WhitespaceTokenizer(TokenizerSection):
    """What stands between spaces, tabs and newlines, kept as it is: for text that is tokenized already."""

    kind: Literal["whitespace"] = "whitespace"
    normalize: Literal["none", "nfc", "nfkc"] = "none"
    size: int = Field(10_000, ge=8, description="most entries of the vocabulary")
    min_count: int = Field(2, ge=1, description="how often an entry must be in the training text")


class CharacterTokenizer(TokenizerSection):
    """One token a character."""

    kind: Literal["character"] = "character"
    spaces: Literal["squeeze", "keep"] = Field("squeeze", description="keep: newlines and runs of spaces are text")
    size: int = Field(1_000, ge=8, description="most entries of the vocabulary")
    min_count: int = Field(1, ge=1, description="how often an entry must be in the training text")


class BpeTokenizer(TokenizerSection):
    """Byte-pair encoding (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    size: int = Field(8_000, ge=8, description="most entries of the vocabulary")
    min_count: int = Field(2, ge=1, description="how often an entry must be in the training text")
    dropout: Probability = Field(0.0, description="BPE-dropout (Provilkov et al. 2020): share of merges left out")
    variants: int = Field(8, ge=1, description="with dropout: how many differently cut copies of the text are made")


class UnigramTokenizer(TokenizerSection):
    """Unigram language model pieces (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    size: int = Field(8_000, ge=8, description="most entries of the vocabulary")


if TYPE_CHECKING:
    AnyTokenizer = WordTokenizer | WhitespaceTokenizer | CharacterTokenizer | BpeTokenizer | UnigramTokenizer
else:
    AnyTokenizer = open_union("tokenizer", base=TokenizerSection)
WHOLE_WORDS = ("word", "whitespace")  # kinds of tokenizers whose tokens are words, known or not
