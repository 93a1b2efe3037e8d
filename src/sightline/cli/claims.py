"""`sightline inspect claims`: what lectures claim, as small computations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.commands import group
from sightline.cli.inspect_options import Figure, Json, On, Target, check_files, emit

if TYPE_CHECKING:
    from sightline.inspection.claims.table import Claim
    from sightline.run import Run

Width = Annotated[int, typer.Option(min=1, metavar="N", help="Features of a vector.")]
Layers = Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Layers of the encoder.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the random numbers.")]
OptionalRun = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder.")]


def about() -> None:
    """Check what lectures claim by small computations.

    docs/lecture-claims.md has the output of each.

    Examples:
      sightline inspect claims jacobians
      sightline inspect claims mask --json mask.json
    """


def jacobians(
    run: OptionalRun = None,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The input of the run.")] = None,
    target: Target = None,
    cells: Annotated[
        list[str] | None, typer.Option("--cell", metavar="CELL", help="Without a run: elman, gru or lstm (repeatable).")
    ] = None,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Without a run: features of h.")] = 4,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Steps T from h₀ to the loss.")] = 4,
    fresh: Annotated[bool, typer.Option("--fresh", help="The run's model at initialization.")] = False,
    matrices: Annotated[bool, typer.Option("--matrices", help="Print every factor in full.")] = False,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """∂L₄/∂h₀ as the product of the steps' Jacobians, factor by factor.

    With attention, also how far each encoder state is from the loss by recurrence and by the shortcut of attention.

    Examples:
      sightline inspect claims jacobians --cell elman --width 3
      sightline inspect claims jacobians runs/lstm "The students" --steps 8 --figure factors.png
      sightline inspect claims jacobians runs/en-de "A dog runs." --target "Ein Hund" --fresh
    """
    from sightline.inspection.claims.jacobians import CHAINS, fresh_chains, jacobians_claim, run_claim

    check_files(json_file, figure=figure)
    if run is None:
        if target is not None or fresh:
            raise ValueError("--target and --fresh are of a run: sightline inspect claims jacobians RUN TEXT")
        chosen = cells or list(CHAINS)
        for cell in chosen:
            if cell not in CHAINS:
                raise ValueError(f"--cell {cell}: use {', '.join(CHAINS)}")
        claim = jacobians_claim(fresh_chains(chosen, width, steps), matrices=matrices)
    else:
        if text is None:
            raise ValueError('give a text, too: sightline inspect claims jacobians RUN "text"')
        claim = run_claim(_load(run), text, target, steps=steps, fresh=fresh, matrices=matrices)
    _emit(claim, json_file, figure)


def mask(
    words: Annotated[
        str | None, typer.Argument(metavar="[WORDS]", help='Labels of the rows; default "[START] The chef who".')
    ] = None,
    width: Width = 4,
    seed: Seed = 1,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """−∞ before the softmax beside zeros after it, and the mask beside growing keys.

    Examples:
      sightline inspect claims mask
      sightline inspect claims mask "I want to eat" --width 8 --figure mask.png
    """
    from sightline.inspection.claims.masking import WORDS, mask_claim

    check_files(json_file, figure=figure)
    _emit(mask_claim(WORDS if words is None else words.split(), width, seed), json_file, figure)


def lookup(
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="A key from a to e, or degrees on the circle.")] = "d",
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Attention as a soft lookup beside a hard lookup table.

    Examples:
      sightline inspect claims lookup
      sightline inspect claims lookup 200 --figure lookup.png
    """
    from sightline.inspection.claims.lookup import lookup_claim

    check_files(json_file, figure=figure)
    _emit(lookup_claim(query), json_file, figure)


def similarity(
    sentence: Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="Words that end with bank.")] = None,
    steps: Annotated[int, typer.Option(min=0, metavar="N", help="Training steps of the projections.")] = 300,
    seed: Seed = 1,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Whether "bank" attends to "river", by similarity and by learned projections.

    Examples:
      sightline inspect claims similarity
      sightline inspect claims similarity "we went to the old money bank" --figure bank.png
    """
    from sightline.inspection.claims.similarity import SENTENCE, similarity_claim

    check_files(json_file, figure=figure)
    _emit(similarity_claim(SENTENCE if sentence is None else sentence, steps=steps, seed=seed), json_file, figure)


def bigrams(
    source: Annotated[
        Path | None, typer.Argument(metavar="[TEXT|RUN]", help="A text file, or a run that counts n-grams.")
    ] = None,
    sentence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Show this sentence; by default one is drawn.")
    ] = None,
    seed: Seed = 1,
    json_file: Json = None,
) -> None:
    """A sentence as a chain of bigrams, with counts and probabilities.

    Examples:
      sightline inspect claims bigrams --sentence "I want to eat Chinese food"
      sightline inspect claims bigrams corpus.txt --seed 7
      sightline inspect claims bigrams runs/lm-ngram
    """
    from sightline.inspection.claims.bigrams import bigrams_claim, read_text, run_bigrams_claim

    check_files(json_file)
    if source is not None and source.is_dir():
        claim = run_bigrams_claim(_load(str(source)), sentence, seed=seed)
    elif source is not None:
        claim = bigrams_claim(read_text(source), sentence, seed=seed, name=source.name)
    else:
        claim = bigrams_claim(sentence=sentence, seed=seed)
    _emit(claim, json_file)


def relations(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A tagger with self-attention.")],
    on: On = "validation",
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Another treebank (CoNLL-U).")] = None,
    sentences: Annotated[int, typer.Option(min=1, metavar="N", help="Read the first N.")] = 500,
    fewest: Annotated[int, typer.Option(min=1, metavar="N", help="Words that a relation must have.")] = 50,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Attention heads scored by dependency relation, beside a fixed offset.

    Examples:
      sightline inspect claims relations runs/ewt --figure relations.png
      sightline inspect claims relations runs/ewt --on test --sentences 2000
    """
    from sightline.inspection.claims.relations import relations_claim, treebank_of

    check_files(json_file, figure=figure)
    loaded = _load(run)
    treebank = treebank_of(loaded, on) if file is None else file
    _emit(relations_claim(loaded, treebank, most=sentences, fewest=fewest), json_file, figure)


def steps(
    architectures: Annotated[
        list[str] | None,
        typer.Option("--architecture", metavar="NAME", help="Only this one (repeatable): recurrent, transformer, …"),
    ] = None,
    length: Annotated[int, typer.Option(min=1, max=40, metavar="N", help="Words of the grids.")] = 6,
    layers: Annotated[int, typer.Option(min=1, max=12, metavar="N", help="Layers.")] = 2,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """The minimum number of sequential steps before each state is computed.

    Examples:
      sightline inspect claims steps --figure steps.png
      sightline inspect claims steps --architecture recurrent --architecture transformer --layers 3
    """
    from sightline.inspection.claims.sequential_steps import steps_claim

    check_files(json_file, figure=figure)
    _emit(steps_claim(architectures or (), length=length, layers=layers), json_file, figure)


def recall(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Language models of lectures/long-dependency.")],
    on: On = "test",
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Limited context: accuracy by distance to the letter that must be recalled.

    Examples:
      sightline inspect claims recall runs/window runs/lstm --figure recall.png
    """
    from sightline.inspection.claims.recall import recall_claim

    check_files(json_file, figure=figure)
    _emit(recall_claim({Path(run).name: _load(run) for run in runs}, on), json_file, figure)


def scaling(
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Dot products and the gradient of their softmax against the width d.

    Examples:
      sightline inspect claims scaling --figure scaling.png
    """
    from sightline.inspection.claims.scaling import scaling_claim

    check_files(json_file, figure=figure)
    _emit(scaling_claim(), json_file, figure)


def collapse(
    layers: Layers = 12,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Whether stacked self-attention makes all positions alike.

    Examples:
      sightline inspect claims collapse --figure collapse.png
    """
    from sightline.inspection.claims.stacks import collapse_claim

    check_files(json_file, figure=figure)
    _emit(collapse_claim(layers=layers), json_file, figure)


def norms(
    layers: Layers = 24,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Ranges of activations and gradients with and without normalization.

    Examples:
      sightline inspect claims norms --figure norms.png
    """
    from sightline.inspection.claims.stacks import norms_claim

    check_files(json_file, figure=figure)
    _emit(norms_claim(layers=layers), json_file, figure)


def parameters(
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Parameters of each architecture against the length of the context.

    Examples:
      sightline inspect claims parameters --figure parameters.png
    """
    from sightline.inspection.claims.context_length import parameters_claim

    check_files(json_file, figure=figure)
    _emit(parameters_claim(), json_file, figure)


def permutation(json_file: Json = None) -> None:
    """Whether encoders notice the order of words, with and without positions.

    Examples:
      sightline inspect claims permutation
    """
    from sightline.inspection.claims.stacks import permutation_claim

    check_files(json_file)
    _emit(permutation_claim(), json_file)


def positions(run: OptionalRun = None, json_file: Json = None, figure: Figure = None) -> None:
    """Training examples of each learned position, of a run or the built-in corpus.

    Examples:
      sightline inspect claims positions
      sightline inspect claims positions runs/en-de --figure positions.png
    """
    from sightline.inspection.claims.context_length import phrases_positions, positions_claim, run_positions

    check_files(json_file, figure=figure)
    if run is None:
        claim = positions_claim(phrases_positions(), "the built-in phrases (words)")
    else:
        claim = positions_claim(run_positions(_load(run)), run)
    _emit(claim, json_file, figure)


def _load(run: str) -> Run:
    from sightline.run import Run

    return Run.load(Path(run), device="cpu")


def _emit(claim: Claim, json_file: Path | None, figure: Path | None = None) -> None:
    emit(claim.view(), json_file, figure)


_COMMANDS = (
    jacobians, mask, lookup, similarity, bigrams, relations, steps, recall,
    scaling, collapse, norms, permutation, positions, parameters,
)  # fmt: skip
claims = group("claims", about, {each.__name__.replace("_", "-"): each for each in _COMMANDS})
