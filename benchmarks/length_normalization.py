"""Forms and strengths of length normalization, compared by validation scores of the same weights.

    python benchmarks/length_normalization.py runs/m30k:validation runs/cmudict:validation runs/tatoeba:validation

For each run it prints the metrics of its recipe and the ratio of output to reference length, with beam 5.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from beam_stopping import part_of
from sightline.run import Run

FORMS: list[dict[str, Any]] = [
    {"length_normalization": form, "length_penalty": alpha}
    for form, alphas in {
        "gnmt": (0.0, 0.6, 1.0, 1.5, 2.0),
        "length": (0.6, 0.8, 1.0, 1.2, 1.5),
        "reward": (0.2, 0.4, 0.8),
    }.items()
    for alpha in alphas
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="RUN:TEST_SET")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sentences", type=int, help="of each test set, the first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records: list[dict[str, Any]] = []
    for name in options.runs:
        folder, _, on = name.rpartition(":")
        run = Run.load(Path(folder))
        test = part_of(run.test_set(on), options.sentences)
        metrics = run.recipe.evaluation.metrics
        lengths = [len(run.vocabulary.target.encode(references[0])) for references in test.references]
        print(f"\n{run.folder.name} on {on}, {len(test.sources):,} sentences, beam {options.beam}\n")
        print(f"| form | α | {' | '.join(metrics)} | length |\n|---|---|{'---|' * len(metrics)}---|")
        for form in FORMS:
            found = [best for best, *_ in run.predict_nbest(test.sources, run.options(beam=options.beam, **form))]
            texts = [each.text for each in found]
            scores = [run.measure(name, test, texts, lowercase=False).score(bootstrap=2) for name in metrics]
            length = sum(len(each.tokens) for each in found) / max(1, sum(lengths))
            values = " | ".join(f"{each.value:.2f}" for each in scores)
            print(
                f"| {form['length_normalization']} | {form['length_penalty']:g} | {values} | {length:.3f} |", flush=True
            )
            measured = {each.name: each.value for each in scores} | {"length_ratio": length}
            records.append({"run": run.folder.name, "on": on, "beam": options.beam, **form, **measured})
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
