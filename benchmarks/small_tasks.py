"""Generate two tasks with small vocabularies and exact answers, which expose search errors.

    python benchmarks/small_tasks.py sql runs/tasks/sql
    python benchmarks/small_tasks.py commands runs/tasks/commands

`sql` turns commands into SQL, character by character, with names and numbers to copy: "show the name of all customers
older than 42" → "SELECT name FROM customers WHERE age > 42". `commands` is a language like SCAN (Lake and Baroni 2018)
of up to 17 words whose outputs are up to five times as long: "jump around left thrice" → "LTURN JUMP LTURN JUMP …".

Each folder gets train.tsv, validation.tsv, test.tsv and recipe.yaml; sources of the three files are disjoint.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

TABLES = {
    "customers": ("name", "city", "age", "balance"),
    "employees": ("name", "department", "age", "salary"),
    "orders": ("product", "city", "price", "quantity"),
    "books": ("title", "author", "year", "price"),
}
NUMBERS = {"age", "balance", "salary", "price", "quantity", "year"}
COMPARISONS = {"above": ">", "below": "<", "equal to": "="}
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"

ACTIONS = {"walk": "WALK", "look": "LOOK", "run": "RUN", "jump": "JUMP"}
TURNS = {"left": "LTURN", "right": "RTURN"}
TIMES = {"": 1, "twice": 2, "thrice": 3}
LONGEST_SOURCE, LONGEST_RATIO = 17, 5

Pair = tuple[str, str]


def _name(rng: random.Random) -> str:
    """An invented name of two to four syllables, to copy."""
    letters = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 4)))
    return letters.capitalize()


def sql_pair(rng: random.Random) -> Pair:
    """A command and its query."""
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    column, where = rng.choice(columns), rng.choice(columns)
    if rng.random() < 0.2:
        source, target = f"count the {table}", f"SELECT COUNT(*) FROM {table}"
    else:
        source, target = f"show the {column} of all {table}", f"SELECT {column} FROM {table}"
    if where in NUMBERS:
        words, sign = rng.choice(list(COMPARISONS.items()))
        number = rng.randint(1, 9999)
        return f"{source} with {where} {words} {number}", f"{target} WHERE {where} {sign} {number}"
    name = _name(rng)
    return f"{source} whose {where} is {name}", f"{target} WHERE {where} = '{name}'"


def _phrase(rng: random.Random) -> tuple[list[str], list[str]]:
    """One clause of a command without its conjunction, and its actions."""
    verb, side, times = rng.choice([*ACTIONS, "turn"]), rng.choice(list(TURNS)), rng.choice(list(TIMES))
    manner = rng.choice(("", "plain", "opposite", "around")) if verb != "turn" else rng.choice(("opposite", "around"))
    act, turn = [ACTIONS[verb]] if verb in ACTIONS else [], TURNS[side]
    words = {"": [verb], "plain": [verb, side]}.get(manner, [verb, manner, side])
    done = {"": act, "plain": [turn, *act], "opposite": [turn, turn, *act], "around": [turn, *act] * 4}[manner]
    return [*words, *([times] if times else [])], done * TIMES[times]


def command_pair(rng: random.Random) -> Pair:
    """A command of one to five clauses, and the actions; "a after b" does b first."""
    while True:
        words, actions = _phrase(rng)
        for _ in range(rng.randint(0, 4)):
            more, acted = _phrase(rng)
            conjunction = rng.choice(("and", "after"))
            words = [*words, conjunction, *more]
            actions = [*actions, *acted] if conjunction == "and" else [*acted, *actions]
        if len(words) <= LONGEST_SOURCE and len(actions) <= LONGEST_RATIO * len(words):
            return " ".join(words), " ".join(actions)


TASKS: dict[str, tuple[Callable[[random.Random], Pair], str]] = {
    "sql": (
        sql_pair,
        """\
tokenizer: {kind: character, shared: true}
model:
  width: 128
  encoder: {kind: recurrent, cell: lstm, layers: 1, bidirectional: true, dropout: 0.0}
  decoder: {kind: recurrent, cell: lstm, layers: 1, attention: {kind: additive}, dropout: 0.0}
  tie: all
""",
    ),
    "commands": (
        command_pair,
        """\
tokenizer: {kind: word, min_count: 1, shared: false}
model:
  width: 128
  encoder: {kind: recurrent, cell: lstm, layers: 1, bidirectional: true, dropout: 0.0}
  decoder: {kind: recurrent, cell: lstm, layers: 1, attention: {kind: additive}, dropout: 0.0}
  tie: output
""",
    ),
}
RECIPE = """\
task: seq2seq
data:
  folder: {folder}
  train: [{{kind: tsv, file: train.tsv}}]
  validation: {{kind: tsv, file: validation.tsv}}
  tests: {{test: {{kind: tsv, file: test.tsv}}}}
  clean: {{max_tokens: 200}}
{model}training:
  lr: 4e-3
  schedule: {{kind: cosine, warmup: 100, floor: 0.01}}
  label_smoothing: {smoothing}
  batches: {{tokens: 4_096}}
  limits: {{minutes: 4}}
  validate_every: 200
  save_every: 1_000
  stopping: {{monitor: metric}}
decoding: {{max_length: 256, max_ratio: 8.0}}
evaluation: {{metrics: [exact, wer]}}
"""


def generate(task: str, sizes: dict[str, int], seed: int) -> dict[str, list[Pair]]:
    """Disjoint pairs for each part."""
    make, rng = TASKS[task][0], random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < sum(sizes.values()):
        source, target = make(rng)
        pairs.setdefault(source, target)
    rows, parts = iter(pairs.items()), {}
    for part, size in sizes.items():
        parts[part] = [next(rows) for _ in range(size)]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=20_000, help="training pairs")
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = {"test": 1_000, "validation": 1_000, "train": options.examples}
    for part, pairs in generate(options.task, sizes, options.seed).items():
        (options.folder / f"{part}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    recipe = RECIPE.format(
        folder=options.folder.resolve(), model=TASKS[options.task][1], smoothing=options.label_smoothing
    )
    (options.folder / "recipe.yaml").write_text(recipe)


if __name__ == "__main__":
    main()
