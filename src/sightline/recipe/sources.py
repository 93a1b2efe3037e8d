"""Sources of examples: the parts of a recipe's data section that name files and built-in corpora."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.schema import Section, open_union
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
        """True if its examples are plain text, without a source side."""
        return False

    @property
    def sides(self) -> tuple[str, str]:
        """Names of its source and its target text, equal for sources that read the same text."""
        whole = self.model_dump_json(exclude={"weight", "share"})
        return f"source of {whole}", f"target of {whole}"

    def describe(self) -> str:
        """The text in a few words, for model cards."""
        return str(self.model_dump()["kind"])


class FileSource(SourceConfig):
    """Base of sources that read one file."""

    file_keys: ClassVar[tuple[str, ...]] = ("file",)

    file: str = Field(description="its path; .gz, .bz2, .xz and .zst are decompressed")

    def describe(self) -> str:
        return self.file


class TextSource(SourceConfig):
    """Two text files, one example per line."""

    file_keys: ClassVar[tuple[str, ...]] = ("source", "target")

    kind: Literal["text"] = "text"
    source: str = Field(description="the file with one source per line")
    target: str = Field(description="the file with the target of each line")

    @property
    def sides(self) -> tuple[str, str]:
        return self.source, self.target

    def describe(self) -> str:
        return f"{self.source} → {self.target}"


class TsvSource(FileSource):
    """One file of tab-separated columns."""

    kind: Literal["tsv"] = "tsv"
    columns: tuple[Column, Column] = Field((1, 2), description="columns of source and target, counted from 1")
    header: bool | Literal["auto"] = Field(
        "auto",
        description="the first line names the columns; auto: skip it, with a warning, if it looks like a header",
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
    header: bool = Field(True, description="the first line names the columns")

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

    kind: Literal["dates"] = "dates"
    split: Literal["train", "validation", "test"] = Field(description="splits have no source in common")
    examples: int = Field(20_000, ge=1, description="number of examples")
    locales: tuple[str, ...] = Field(
        ("en_US", "en_GB", "de", "fr", "es", "it", "nl", "pt", "sv", "pl"), description="languages, by CLDR names"
    )
    seed: int = Field(1, description="another seed generates other examples")

    def describe(self) -> str:
        return f"built-in dates, part {self.split}, {plural(self.examples, 'example')}"


class SequencesSource(SourceConfig):
    """Built-in corpus: random sequences of letters, to be copied or reversed."""

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

    def describe(self) -> str:
        fewest, most = self.lengths
        return (
            f"built-in sequences of {fewest} to {most} letters, {self.operation}, "
            f"split {self.split}, {plural(self.examples, 'example')}"
        )


class RecallSource(SourceConfig):
    """Built-in corpus: lines that end with the letter they begin with, after N fillers, such as "c x y y = c"."""

    kind: Literal["recall"] = "recall"
    split: Literal["train", "validation", "test"] = Field(description="another sequence of random lines")
    examples: int = Field(10_000, ge=1, description="number of examples")
    fillers: tuple[int, int] = Field(
        (1, 40), description="fewest and most fillers between the letters; all numbers are equally likely"
    )
    symbols: int = Field(8, ge=2, le=23, description="number of letters, from a on")
    seed: int = Field(1, description="another seed generates other examples")

    @model_validator(mode="after")
    def _fillers_are_a_range(self) -> RecallSource:
        if not 0 <= self.fillers[0] <= self.fillers[1]:
            raise ValueError(f"fillers {list(self.fillers)} must be [from, to] with 0 <= from <= to")
        return self

    @property
    def one_sided(self) -> bool:
        return True

    def describe(self) -> str:
        fewest, most = self.fillers
        return (
            f"built-in lines that end with their first letter after {fewest} to {most} fillers, "
            f"split {self.split}, {plural(self.examples, 'example')}"
        )


class PhrasesSource(SourceConfig):
    """The built-in bilingual corpus: English sentences of a small grammar, and what is known of each (data/phrases)."""

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

    def describe(self) -> str:
        fewest, most = self.clauses
        return (
            f"built-in phrases of {fewest} to {most} clauses, {self.target}, "
            f"split {self.split}, {plural(self.examples, 'example')}"
        )


class QuestionsSource(SourceConfig):
    """Built-in corpus: paragraphs of the phrases grammar with a question, and its answer, a span of the paragraph."""

    kind: Literal["questions"] = "questions"
    split: Literal["train", "validation", "test"] = Field(description="splits have no paragraph in common")
    examples: int = Field(20_000, ge=1, description="number of examples")
    sentences: tuple[int, int] = Field(
        (2, 4), description="fewest and most sentences of a paragraph; all numbers are equally likely"
    )
    seed: int = Field(1, description="another seed generates other examples")

    @model_validator(mode="after")
    def _sentences_are_a_range(self) -> QuestionsSource:
        if not 1 <= self.sentences[0] <= self.sentences[1] <= 12:
            raise ValueError(f"sentences {list(self.sentences)} must be [from, to] with 1 <= from <= to <= 12")
        return self

    def describe(self) -> str:
        fewest, most = self.sentences
        return (
            f"built-in questions about {fewest} to {most} sentences, split {self.split}, "
            f"{plural(self.examples, 'example')}"
        )


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
        | RecallSource
        | PhrasesSource
        | QuestionsSource
    )
else:
    AnySource = open_union("source", base=SourceConfig)
