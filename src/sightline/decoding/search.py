"""Greedy search, beam search and sampling over any decoder.

A search holds B sentences with W hypotheses each as tensors (B, W); no Python loop runs over hypotheses. Sentences
that are done leave the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sightline.decoding.banks import BankedBeam
from sightline.decoding.batch import Batch, Considered, Heard, Hypothesis, Stepper, Watch
from sightline.decoding.beam import Beam, Looks
from sightline.decoding.groups import GroupedBeam
from sightline.decoding.ranking import normalized
from sightline.decoding.steps import given_up, next_scores, size_for, staying, truncated
from sightline.decoding.topk import top_k
from sightline.layers.devices import widest
from sightline.layers.tap import is_recorded, on_taps
from sightline.recipe import Decoding, Sampling
from sightline.text.tokenizer import END, PAD, START


def _beam_for(model: Stepper, batch: Batch, options: Decoding) -> Beam:
    """One of a kind: plain, in groups, or with phrases to say."""
    if batch.rules is not None and batch.rules.required is not None:
        return BankedBeam(model, batch, options)
    if options.groups > 1:
        return GroupedBeam(model, batch, options)
    return Beam(model, batch, options)


@torch.inference_mode()
def beam_search(model: Stepper, batch: Batch, options: Decoding, watch: Watch | None = None) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each sentence by a beam of `beam`; `watch` is told of every step.

    Of the 2W best continuations, those among the first W that end are finished, the first W others go on. When a
    sentence is done, `stopping.py` decides. Beams in groups (`groups.py`) and beams with required phrases (`banks.py`)
    have an order of their own.
    """
    if options.coverage_penalty and not model.cross_attention_paths:
        raise ValueError("decoding.coverage_penalty needs a decoder with attention; set it to 0 for this model")
    beam, looks = _beam_for(model, batch, options), Looks(model)
    with on_taps(model, looks.hear, model.cross_attention_paths if options.coverage_penalty else ()):  # type: ignore[arg-type]
        for step in range(int(batch.limits.max())):
            features, beam.state = model.advance(beam.tokens[:, :, -1].reshape(-1, 1), beam.state)
            logs = model.logits(features[:, 0]).float().log_softmax(-1)  # (B·W, V)
            beam.truncated = truncated(logs, beam.batch, step, beam.tokens.shape[1])
            logs = next_scores(logs, beam.batch, step, beam.tokens[:, :, 1:])
            if beam.covered is not None:
                beam.covered = beam.covered + looks.take()
            totals, parents, words = beam.continuations(logs)
            ends = (words == END) & (totals > float("-inf"))
            beam.finish(totals, parents, words, ends)
            scores = None if watch is None else beam.scores(totals, parents)
            done = beam.go_on(totals, parents, words, ends)
            if watch is not None and scores is not None:
                ends[:, options.beam :] = False  # what ends below the first W is not finished
                going = beam.going > float("-inf")
                watch(Considered(step, beam.places, totals, scores, parents, words, ends, beam.slots, going, done))
            unfinished = len(done) - int(done.sum())
            size = size_for(unfinished, len(done), done.device)
            over = unfinished <= given_up(batch, step)
            if size < len(done) or over:
                beam.collect(done)
            if over:
                break
            if size < len(done):
                beam.keep(staying(done, size))
    return beam.results


def _nucleus(logits: Tensor, top_k_: int | None, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Log-scores in falling order (R, ≤V) and their words, cut after k words or once p of the mass is reached."""
    scores, words = (
        logits.sort(dim=-1, descending=True) if top_k_ is None else top_k(logits, min(top_k_, logits.shape[1]))
    )
    if top_p is not None:
        mass = torch.softmax(scores, dim=-1)
        scores = scores.masked_fill(mass.cumsum(-1) - mass >= top_p, float("-inf"))
    return scores, words


def _luck(seed: int, numbers: Sequence[int], samples: int, longest: int) -> Tensor:
    """(B, W, longest) in [0, 1): the luck of each sentence, whatever else is in its batch."""
    draws = [np.random.Generator(np.random.Philox(key=[seed, number])) for number in numbers]
    return torch.from_numpy(np.stack([draw.random((longest, samples)).T for draw in draws]))


def _drawn(logs: Tensor, sampling: Sampling, luck: Tensor) -> Tensor:
    """(R, 1): the word of each row (R, V) that its luck (R, 1) falls on."""
    scores, words = _nucleus(logs / sampling.temperature, sampling.top_k, sampling.top_p)
    mass = torch.softmax(widest(scores), dim=-1).cumsum(-1)
    pick = torch.searchsorted(mass, luck * mass[:, -1:], right=True)
    return words.gather(1, pick.clamp(max=words.shape[1] - 1))


def _scores(logits: Tensor, *, scored: bool, shared: bool) -> Tensor:
    """(R, V) to choose words by, which may be written to; `shared` logits, which others have heard of, may not.

    Log-probabilities, or the logits themselves where nobody asks for a score: the best word has the highest logit.
    """
    if scored:
        return logits.log_softmax(-1)
    return logits.clone() if shared else logits


def _taken(logs: Tensor, sampling: Sampling | None, luck: Tensor | None) -> tuple[Tensor, Tensor]:
    """(R, 1) the score of each row's next word, and the word: the best one, or the one that is drawn."""
    if sampling is None or luck is None:
        return top_k(logs, 1)
    word = _drawn(logs, sampling, luck)
    return logs.gather(1, word), word


@torch.inference_mode()
def walk(model: Stepper, batch: Batch, options: Decoding, heard: Heard | None = None) -> list[list[Hypothesis]]:
    """One token after the other, the best one (greedy) or a drawn one (sampling): `nbest` walks a sentence.

    `heard` is told the tokens of each step as soon as they are chosen, forced ones and end marks too.
    """
    sentences, device, sampling = batch.source.shape[0], batch.source.device, options.sample
    width = options.nbest if sampling is not None else 1
    scored, shared = batch.scored or sampling is not None, is_recorded(model)
    longest = int(batch.limits.max())
    state = model.begin(model.encode(batch.source, batch.layout))
    if width > 1:
        state = state.select(torch.zeros(sentences, width, dtype=torch.int64, device=device))
    luck = None if sampling is None else _luck(sampling.seed, batch.numbers, width, longest)
    luck = luck if luck is None else luck.to(device, torch.float32 if device.type == "mps" else luck.dtype)
    word = torch.full((sentences * width, 1), START, device=device)
    total = torch.zeros(sentences, width, device=device)
    over = torch.zeros(sentences, width, dtype=torch.bool, device=device)
    tokens = torch.full((sentences, width, longest), PAD, device=device)  # all results
    totals = torch.zeros(sentences, width, device=device)
    cut = torch.zeros(sentences, width, dtype=torch.bool, device=device)  # which of them a length limit ended
    places = torch.arange(sentences, device=device)
    for step in range(longest):
        features, state = model.advance(word, state)
        logs = _scores(model.logits(features[:, 0]).float(), scored=scored, shared=shared)  # (B·W, V)
        said = tokens[places, :, :step] if batch.rules else tokens[: len(places), :, :0]  # only rules ask what was said
        if (limited := truncated(logs, batch, step, width)) is not None:
            cut[places] |= limited & ~over
        logs = next_scores(logs, batch, step, said)
        value, word = _taken(logs, sampling, None if luck is None else luck[:, :, step].reshape(-1, 1))
        total = total + value.view(-1, width).masked_fill(over, 0.0)
        chosen = word.view(-1, width).masked_fill(over, PAD)
        tokens[places, :, step] = chosen
        if heard is not None:
            heard(tokens[:, :, step])
        totals[places] = total
        over = over | (chosen == END)
        done = over.all(1)
        unfinished = len(done) - int(done.sum())
        if unfinished <= given_up(batch, step):
            break
        size = size_for(unfinished, len(done), done.device)
        if size < len(done):
            rows = staying(done, size)
            state, batch = state.keep(rows), batch.keep(rows)
            word = word.view(-1, width)[rows].reshape(-1, 1)
            total, over, places = total[rows], over[rows], places[rows]
            luck = None if luck is None else luck[rows]
    return _walks(tokens[:, :, : step + 1], totals, options, scored=scored, cut=cut)


def _walks(
    tokens: Tensor, totals: Tensor, options: Decoding, *, scored: bool, cut: Tensor | None = None
) -> list[list[Hypothesis]]:
    """Tensors (B, W, t) and (B, W) as hypotheses, best first; none of a sentence that was given up.

    Nor of one for which the model had no numbers. Without `scored`, scores are told as NaN.
    """
    results = []
    cut = torch.zeros_like(totals, dtype=torch.bool) if cut is None else cut
    for row_tokens, row_totals, row_cut in zip(tokens.tolist(), totals.tolist(), cut.tolist(), strict=True):
        walks = []
        for sequence, total, limited in zip(row_tokens, row_totals, row_cut, strict=True):
            if END in sequence and math.isfinite(total):
                end, told = sequence.index(END), total if scored else math.nan
                walks.append(Hypothesis(sequence[:end], normalized(told, end + 1, options), told, limited))
        results.append(sorted(walks, key=lambda walk: -walk.score) if len(walks) == len(row_totals) else [])
    return results


def search(
    model: Stepper, batch: Batch, options: Decoding, heard: Heard | None = None, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """Decode a batch the way the options say; a beam knows its words only at the end, so there nothing can be heard.

    What must be said is searched for by a beam, be it of one; so is what is watched.
    """
    if watch is not None and options.sample is not None:
        raise ValueError("there is no beam to watch where words are drawn; leave decoding.sample out")
    required = batch.rules is not None and batch.rules.required is not None
    if (options.sample is not None or options.beam == 1) and not required and watch is None:
        return walk(model, batch, options, heard)
    if heard is not None:
        raise ValueError(f"a beam of {options.beam} has no words to tell before its end; use beam 1, or sample")
    if options.beam == 1:  # as in `walk`: which of both takes a sentence depends on what others of its batch must say
        options = options.model_copy(update={"coverage_penalty": 0.0})
    return beam_search(model, batch, options, watch)
