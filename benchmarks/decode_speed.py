"""Decoding speed, side by side: the same weights in Sightline, transformers' generate() and CTranslate2.

    SIGHTLINE_CORPORA=... python benchmarks/decode_speed.py RUN --json decode_speed.json

Matrix products are in float32; Sightline's also in bfloat16 and CTranslate2's in int8.

RUN is the run folder of a post-norm Sightline Transformer for Multi30k de->en (`--train` makes one first). Work:
the 1,000 sentences of test_2016_flickr, greedy and with a beam of 5, from token ids to token ids. Every contestant
sorts and batches as is best for it (`--scan` tries the choices) and uses all cores. `<pad>` and `<s>` are never
generated, outputs have at most 100 tokens, and scores are divided by the length (generate(), CTranslate2) or by
(5 + length) / 6 (Sightline), so that beams may rank a little differently; with `--length-penalty 0` the searches are
the same. All stop when as many hypotheses as the beam is wide have ended. The table has the share of equal outputs, and
BLEU. Turns: race.py.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from corpus import END, PAD, SPECIALS, read_lines
from exports import to_ctranslate2, to_marian
from race import Worker, add_options, only, print_table, race, save, summarize

LONGEST = 100
TEST = "multi30k/test_2016_flickr"


@dataclass(frozen=True)
class Setting:
    """The settings of one contestant."""

    name: str
    program: str  # sightline, transformers or ctranslate2
    beam: int
    batch: int  # Sightline: source tokens times beam; transformers: sentences; CTranslate2: see batch_type
    batch_type: str = "examples"
    workers: int = 1  # CTranslate2's inter_threads; each has its share of the cores
    keep_memory: bool = False
    mkl: str = ""  # CT2_USE_MKL: which matrix products CTranslate2 uses ("" is its own choice)
    length_penalty: float = 1.0
    precision: str = "float32"  # of matrix products: Sightline has bf16 too, CTranslate2 int8
    run: str = ""
    folder: str = ""  # of sources and outputs
    device: str = "cpu"


class Decoder:
    """Decode all test sentences in each step, and save the outputs of the first."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        folder = Path(setting.folder)
        self.sources: list[list[int]] = json.loads((folder / "sources.json").read_text())
        self.output = folder / f"{setting.name}.json"

    def decode(self) -> list[list[int]]:
        """Token ids without `<s>` and `</s>` for every source, in order."""
        raise NotImplementedError

    def run(self, after_step: Callable[[int], None]) -> None:
        while True:
            outputs = self.decode()
            if not self.output.exists():
                self.output.write_text(json.dumps(outputs))
            after_step(len(outputs))


class SightlineDecoder(Decoder):
    def __init__(self, setting: Setting) -> None:
        from sightline.run import Run

        super().__init__(setting)
        self.loaded = Run.load(setting.run, device="cpu", precision=setting.precision)
        self.options = self.loaded.options(
            beam=setting.beam,
            nbest=1,
            length_penalty=setting.length_penalty,
            max_length=LONGEST + 1,  # its limit counts the end mark
            max_ratio=float(LONGEST),
            batch_tokens=setting.batch,
        )

    def decode(self) -> list[list[int]]:
        from sightline.decoding.engine import decode
        from sightline.decoding.request import make_requests

        request = make_requests(self.sources, scored=False)  # CTranslate2 returns no scores either
        found = decode(self.loaded.model, request, self.options, device=self.loaded.device)
        return [hypotheses[0].tokens for hypotheses in found]


class TransformersDecoder(Decoder):
    """generate() on batches of sentences sorted by length, longest first."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.model = load_marian(setting.run)
        self.order = sorted(range(len(self.sources)), key=lambda index: -len(self.sources[index]))

    @torch.inference_mode()
    def decode(self) -> list[list[int]]:
        setting = self.setting
        outputs: list[list[int]] = [[] for _ in self.sources]
        search: dict[str, Any] = {"num_beams": setting.beam, "do_sample": False, "max_new_tokens": LONGEST}
        if setting.beam > 1:
            search |= {"length_penalty": setting.length_penalty, "early_stopping": True}
        for start in range(0, len(self.order), setting.batch):
            chosen = self.order[start : start + setting.batch]
            rows = [[*self.sources[index], END] for index in chosen]
            source = torch.tensor([row + [PAD] * (len(rows[0]) - len(row)) for row in rows])
            found = self.model.generate(input_ids=source, attention_mask=(source != PAD).long(), **search)
            for index, row in zip(chosen, found.tolist(), strict=True):
                outputs[index] = row[1 : row.index(END) if END in row else None]
        return outputs


class CTranslate2Decoder(Decoder):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.mkl:
            os.environ["CT2_USE_MKL"] = setting.mkl  # read when the library is first used
        import ctranslate2

        self.translator = ctranslate2.Translator(
            str(Path(setting.folder) / "ctranslate2"),
            device="cpu",
            compute_type=setting.precision,
            inter_threads=setting.workers,
            intra_threads=max(1, torch.get_num_threads() // setting.workers),
        )
        pieces = json.loads((Path(setting.folder) / "pieces.json").read_text())
        self.texts = [[pieces[token] for token in source] + [SPECIALS[END]] for source in self.sources]
        self.ids = {piece: number for number, piece in enumerate(pieces)}

    def decode(self) -> list[list[int]]:
        setting = self.setting
        found = self.translator.translate_batch(
            self.texts,
            beam_size=setting.beam,
            length_penalty=setting.length_penalty,
            max_decoding_length=LONGEST,
            max_batch_size=setting.batch,
            batch_type=setting.batch_type,
            return_scores=False,
        )
        return [[self.ids[piece] for piece in result.hypotheses[0]] for result in found]


DECODERS = {"sightline": SightlineDecoder, "transformers": TransformersDecoder, "ctranslate2": CTranslate2Decoder}


def build(setting: Setting) -> Decoder:
    """A contestant, ready to run."""
    return DECODERS[setting.program](setting)


def load_marian(run: str) -> Any:
    """The run's weights as a MarianMTModel."""
    from safetensors.torch import load_file

    from sightline.recipe.loading import load_recipe

    heads = load_recipe(Path(run) / "recipe.yaml").model.encoder.heads
    return to_marian(load_file(Path(run) / "model.safetensors"), heads)


# --- preparation ----------------------------------------------------------------------------------------


def prepare(run: str, folder: Path) -> tuple[Any, float]:
    """Write sources, vocabulary and the CTranslate2 model; return the run and its logit difference to Marian."""
    from sightline.run import Run

    loaded = Run.load(run, device="cpu")
    sources = loaded.encode_sources(read_lines(f"{TEST}.de"))
    pieces = loaded.vocabulary.target.pieces(range(loaded.vocabulary.target.size))
    (folder / "sources.json").write_text(json.dumps(sources))
    (folder / "pieces.json").write_text(json.dumps(pieces))
    model = load_marian(run)
    to_ctranslate2(model, pieces, folder / "ctranslate2")
    return loaded, logit_difference(loaded, model, sources[:16])


@torch.inference_mode()
def logit_difference(loaded: Any, model: Any, sources: list[list[int]]) -> float:
    """The largest difference between Sightline's logits and Marian's, over the first tokens of some sentences."""
    from sightline.decoding.engine import decode
    from sightline.decoding.request import make_requests, pad_tokens
    from sightline.layers.layout import Padded

    options, request = loaded.options(beam=1), make_requests(sources)
    outputs = [found[0].tokens for found in decode(loaded.model, request, options, device="cpu")]
    shortest = min(len(output) for output in outputs)
    decoder_input = pad_tokens([[SPECIALS.index("<s>"), *output[:shortest]] for output in outputs], "cpu")
    rows = [[*source, SPECIALS.index("</s>")] for source in sources]
    source = pad_tokens(rows, "cpu")
    state = loaded.model.begin(loaded.model.encode(source, Padded.of([len(row) for row in rows])))
    worst = 0.0
    for step in range(decoder_input.shape[1]):
        features, state = loaded.model.advance(decoder_input[:, step : step + 1], state)
        ours = loaded.model.logits(features[:, 0])
        mask = (source != PAD).long()
        theirs = model(input_ids=source, attention_mask=mask, decoder_input_ids=decoder_input[:, : step + 1])
        worst = max(worst, float((ours - theirs.logits[:, -1])[:, 3:].abs().max()))
    return worst


def compare(workers: list[Worker], loaded: Any, folder: Path) -> dict[str, dict[str, float]]:
    """BLEU, the share of outputs equal to those of the first contestant, and the mean length, by contestant."""
    import sacrebleu

    references = [read_lines(f"{TEST}.en")]
    outputs = {
        worker.setting.name: json.loads((folder / f"{worker.setting.name}.json").read_text()) for worker in workers
    }
    first = outputs[workers[0].setting.name]
    found = {}
    for name, own in outputs.items():
        texts = loaded.vocabulary.target.decode_many(own)
        found[name] = {
            "bleu": sacrebleu.corpus_bleu(texts, references).score,
            "same": sum(a == b for a, b in zip(own, first, strict=True)) / len(own),
            "tokens": sum(len(output) + 1 for output in own) / len(own),
        }
    return found


def train_run(run: Path, minutes: float) -> None:
    """Train a Transformer of 3+3 layers and width 256."""
    import corpus
    from sightline.recipe import Recipe
    from sightline.training.train import train

    body = {
        "kind": "transformer",
        "layers": 3,
        "heads": 4,
        "feedforward": {"kind": "relu", "width": 1024, "dropout": 0.0},
        "norm": {"kind": "layer", "place": "post"},
    }

    recipe = {
        "data": {
            "folder": str(corpus.corpora() / "multi30k"),
            "train": [corpus.pairs("train")],
            "validation": corpus.pairs("val"),
        },
        "tokenizer": {"kind": "bpe", "size": 8_000},
        "model": {"width": 256, "encoder": body, "decoder": body},
        "training": {
            "lr": 1e-3,
            "schedule": {"kind": "warmup-stable-decay", "warmup": 300, "decay": 0.5},
            "batches": {"tokens": 2_048},
            "limits": {"minutes": minutes},
            "precision": "bf16",
        },
    }
    train(Recipe.model_validate(recipe), out=run)


# --- contestants ----------------------------------------------------------------------------------------


def contestants(search: str) -> list[Setting]:
    """All contestants for `greedy` search or a `beam` of 5."""
    beam, sentences = (1, 128) if search == "greedy" else (5, 64)
    name = "greedy" if beam == 1 else f"beam {beam}"
    ours = Setting(f"sightline {name}", "sightline", beam, 8_192)
    ctranslate2 = Setting(f"CTranslate2 {name}", "ctranslate2", beam, sentences, workers=2)
    return [
        ours,
        Setting(f"generate() {name}", "transformers", beam, sentences),
        ctranslate2,
        replace(ours, name=f"sightline bf16 {name}", precision="bf16"),
        replace(ctranslate2, name=f"CTranslate2 int8 {name}", precision="int8"),
    ]


def candidates(settings: list[Setting]) -> list[Setting]:
    """Every contestant with several batch sizes and numbers of workers."""
    found: list[Setting] = []
    for one in settings:
        if one.program == "sightline":
            found += [replace(one, name=f"{one.name}, {n} tokens", batch=n) for n in (2_048, 4_096, 8_192, 16_384)]
        elif one.program == "transformers":
            found += [replace(one, name=f"{one.name}, {n} sentences", batch=n) for n in (32, 64, 128, 256)]
        else:
            found += [
                replace(one, name=f"{one.name}, {n} {kind}, {w} workers", batch=n, batch_type=kind, workers=w)
                for w in (1, 2)
                for kind, sizes in (("examples", (16, 32, 64, 128)), ("tokens", (512, 1_024, 2_048)))
                for n in sizes
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder of a post-norm Transformer with tied embeddings")
    parser.add_argument("--train", type=float, metavar="MINUTES", help="train RUN first, if it does not exist")
    parser.add_argument("--search", choices=("greedy", "beam", "both"), default="both")
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--scan", action="store_true", help="try batch sizes and thread layouts")
    parser.add_argument("--warmup", type=float, default=0.0, help="seconds before it counts (at least one pass)")
    add_options(parser, rounds=7, seconds=0.0)
    options = parser.parse_args()
    if options.train and not Path(options.run).exists():
        train_run(Path(options.run), options.train)
    tables: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for search in ("greedy", "beam"):
        if options.search not in (search, "both"):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            loaded, difference = prepare(options.run, folder)
            print(f"{search}: logits of Sightline and of the converted Marian differ by at most {difference:.1e}")
            settings = contestants(search)
            settings = only(candidates(settings) if options.scan else settings, options.only)
            settings = [
                replace(one, run=options.run, folder=name, length_penalty=options.length_penalty) for one in settings
            ]
            workers = race(build, settings, options)
            found = summarize(workers)
            quality = compare(workers, loaded, folder)
        for row in found:
            row |= quality[row["setting"]["name"]]
            del row["setting"]["run"], row["setting"]["folder"]  # paths on this machine
        tables[search] = {"logit_difference": difference}
        rows += found
        more = {
            "batch": lambda row: f"{row['setting']['batch']:,}",
            "BLEU": lambda row: f"{row['bleu']:.2f}",
            "same output": lambda row: f"{row['same']:.1%}",
            "tokens": lambda row: f"{row['tokens']:.2f}",
        }
        print_table(f"{search}: test sentences a second, median over the rounds", "sentences/s", found, more)
    save(options.json, rows, options, benchmark="decode_speed", searches=tables)


if __name__ == "__main__":
    main()
