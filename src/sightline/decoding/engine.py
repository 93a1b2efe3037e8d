"""The engine: requests join a running search, advance one token a step, and leave when they are done.

    engine = Engine(model)
    number = engine.add(Request(source=[5, 6], options=Decoding(beam=4)))
    while engine.unfinished:
        engine.step()
        outputs |= engine.collect()

Each request has its own decoding options. Requests with the same search options share a batch; an engine runs batches
of several kinds side by side. A server keeps an engine running: requests join as soon as there is room. `decode` drains
an engine in `bulk` mode: a step for two sentences costs nearly as much as a step for fifty, so the last few sentences
of a batch are set aside and finish together with those of other batches. (If they stayed, every sentence of the next
batch would carry padding for all previous steps.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from sightline.decoding.beam import Beam
from sightline.decoding.constrained_beam import ConstrainedBeam
from sightline.decoding.diverse_beam import DiverseBeam
from sightline.decoding.ensemble import model_limits
from sightline.decoding.greedy import Greedy
from sightline.decoding.processors import processors_of
from sightline.decoding.request import DecodableModel, Hypothesis, Limit, Request, length_batches, pad_tokens
from sightline.decoding.search import Search, size_for, staying
from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule
from sightline.recipe import Decoding

Item = TypeVar("Item")
_FEW = 32  # set aside the last 1/32 of a batch: a step reads all weights, however few rows it has
_ROWS = 8  # or this many rows, of a small batch


def search_for(request: Request) -> type[Search]:
    """The search algorithm for a request."""
    if request.demands is not None and request.demands.required:
        return ConstrainedBeam
    if request.options.sample is None and (request.options.beam > 1 or request.on_step is not None):
        return DiverseBeam if request.options.groups > 1 else Beam
    return Greedy


def shared_options(request: Request) -> Hashable:
    """The options that requests of one batch share; limits, lengths, phrases and seeds may differ."""
    options, kind = request.options, search_for(request)
    rules = processors_of(request), options.no_repeat, request.marks, request.known
    score = options.length_normalization, options.length_penalty
    if kind is Greedy:
        sample = options.sample and (options.sample.temperature, options.sample.top_k, options.sample.top_p)
        return kind, request.width if sample else 1, sample, request.scored, score, rules
    stopping = options.stopping, options.patience, options.candidates
    groups = options.groups, options.diversity
    return kind, request.width, groups, stopping, score, options.coverage_penalty, rules


@dataclass(eq=False)
class _Batch:
    """Requests with the same options: waiting, running, and set aside."""

    waiting: deque[tuple[int, Request]] = field(default_factory=deque)  # with their numbers
    running: Search | None = None
    newest: Search | None = None  # joins `running` after its first step
    aside: Search | None = None
    few: int = 0  # set running rows aside when only this many are left
    most: int = 0  # rows of the last batch that began

    def searches(self) -> list[Search]:
        return [each for each in (self.running, self.newest, self.aside) if each is not None]

    def worth_a_step(self) -> bool:
        """Return True if enough rows are running, or enough have been set aside."""
        running, aside = (0 if each is None else each.live for each in (self.running, self.aside))
        return running > self.few or aside > self.most // 2

    def set_aside(self) -> None:
        """Move the running rows to those set aside."""
        if self.aside is None:
            self.aside = self.running
        elif self.running is not None:
            self.aside.append(self.running)
        self.running = None

    def keep(self, search: Search, rows: Tensor) -> None:
        """Keep only these rows of a search."""
        if len(rows):
            search.keep(rows)
            return
        self.running, self.newest, self.aside = (
            None if each is search else each for each in (self.running, self.newest, self.aside)
        )


class Engine:
    """Decodes requests: `add`, `step` until nothing is `unfinished`, `collect`; `cancel` at any time."""

    def __init__(self, model: DecodableModel, *, device: torch.device | str = "cpu", bulk: bool = False) -> None:
        self.model, self.device, self.bulk = model, torch.device(device), bulk
        self.limits = model_limits(model)
        self.batches: dict[Hashable, _Batch] = {}
        self.outputs: dict[int, list[Hypothesis]] = {}
        self.unfinished: set[int] = set()
        self.added = 0

    def add(self, request: Request) -> int:
        """Add a request and return its number, the key of its outputs in `collect`."""
        check(request, self.limits)
        number, self.added = self.added, self.added + 1
        if request.empty:
            self.outputs[number] = [Hypothesis([], 0.0, 0.0)]
            return number
        self._enqueue(shared_options(request), [(number, request)])
        return number

    def _enqueue(self, key: Hashable, requests: Sequence[tuple[int, Request]]) -> None:
        """Queue checked requests that have the same `shared_options`."""
        self.batches.setdefault(key, _Batch()).waiting.extend(requests)
        self.unfinished.update(number for number, _ in requests)

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """Stop decoding a request; no effect if it is finished."""
        if number not in self.unfinished:
            return
        self.unfinished.remove(number)
        for batch in self.batches.values():
            batch.waiting = deque(waiting for waiting in batch.waiting if waiting[0] != number)
            for search in batch.searches():
                rows = [row for row, other in enumerate(search.numbers) if other != number]
                if len(rows) < search.size:
                    batch.keep(search, torch.tensor(rows, dtype=torch.int64, device=self.device))
                    search.live = int((~search.done).sum())

    def collect(self) -> dict[int, list[Hypothesis]]:
        """The outputs finished since the last call, best first, by request number.

        A request has no outputs if its required phrases cannot be met or the model's scores are NaN.
        """
        outputs, self.outputs = self.outputs, {}
        return outputs

    def drain(self) -> dict[int, list[Hypothesis]]:
        """Step until nothing is unfinished, and collect."""
        while self.unfinished:
            self.step()
        return self.collect()

    @property
    def ready(self) -> bool:
        """In bulk mode: True if the next requests should be added."""
        return not any(batch.waiting or batch.worth_a_step() for batch in self.batches.values())

    @torch.inference_mode()
    def step(self) -> None:
        """Add a token to every running output."""
        for key, batch in list(self.batches.items()):
            if admitted := self._admit(batch):
                requests = [request for _, request in admitted]
                inputs = [request.encoder_input for request in requests]
                layout = Padded.of([len(each) for each in inputs], self.device)
                memory = self.model.encode(pad_tokens(inputs, self.device), layout)
                batch.newest = search_for(requests[0])(self.model, requests, memory, self.limits, self.device)
                batch.newest.numbers = [number for number, _ in admitted]
            for search in (batch.running, batch.newest):
                if search is not None:
                    self._advance(batch, search)
            if batch.running is None:
                batch.running, batch.newest = batch.newest, None
            elif batch.newest is not None:
                batch.running.append(batch.newest)
                batch.newest = None
            if not batch.waiting and not batch.searches():
                del self.batches[key]

    def _admit(self, batch: _Batch) -> list[tuple[int, Request]]:
        """Take the requests that start now from the queue."""
        running = batch.running
        if self.bulk:
            if running is not None and running.live > batch.few:
                return []
            if running is not None and running.live < running.size and (batch.waiting or batch.aside):
                self._release(batch, running, running.live)
            batch.set_aside()
            if not batch.waiting or batch.worth_a_step():
                batch.running, batch.aside = batch.aside, None
                return []
            running = None
        rows = 0 if running is None else running.size
        longest = 0 if running is None else max(len(request.encoder_input) for request in running.requests)
        admitted: list[tuple[int, Request]] = []
        options: Decoding | None = None
        budget = 0
        while batch.waiting:
            _, request = batch.waiting[0]
            if request.options is not options:
                options, budget = request.options, tokens_at_once(request, self.device)
            longest = max(longest, len(request.read) + 1)
            if rows and (rows + 1) * longest > budget:
                break
            admitted.append(batch.waiting.popleft())
            rows += 1
        if self.bulk:
            batch.few, batch.most = few_of(rows, admitted[0][1].width), rows
        return admitted

    def _advance(self, batch: _Batch, search: Search) -> None:
        """Advance a search by one step, and release rows when enough are done."""
        search.done = search.step()
        search.live = search.size - int(search.done.sum())
        size = size_for(search.live, search.size, self.device)
        if size < search.size or (search.live < search.size and not self.bulk):
            self._release(batch, search, size)

    def _release(self, batch: _Batch, search: Search, size: int) -> None:
        """Collect the outputs of finished rows, and keep `size` rows."""
        done = search.done.nonzero()[:, 0].tolist()
        rows = [row for row in done if search.numbers[row] in self.unfinished]
        outputs = search.hypotheses(torch.tensor(rows, dtype=torch.int64, device=self.device)) if rows else []
        for row, hypotheses in zip(rows, outputs, strict=True):
            self.outputs[search.numbers[row]] = hypotheses
            self.unfinished.remove(search.numbers[row])
        if size < search.size:
            batch.keep(search, staying(search.done, size))


def check(request: Request, limits: Sequence[Limit]) -> None:
    """Refuse callbacks that the search never calls, and prefixes that are too long for the model."""
    request.check(limits)
    if request.on_step is None and request.on_token is None:
        return
    if request.on_step is not None and request.options.sample is not None:
        raise ValueError("sampling has no beam to record; leave decoding.sample out")
    if request.on_token is not None and search_for(request) is not Greedy:
        raise ValueError(
            f"beam search (beam {request.options.beam}) cannot report tokens as it runs; use beam 1 or sample"
        )


def few_of(sentences: int, width: int) -> int:
    """The number of remaining sentences at which a batch with `width` hypotheses each is set aside."""
    return max(sentences // _FEW, min(_ROWS // width, sentences // 8))


# --- many requests at once ---------------------------------------------------------------------------------------


def decode(
    model: DecodableModel,
    requests: Sequence[Request],
    options: Decoding | None = None,
    *,
    device: torch.device | str = "cpu",
    on_done: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """The outputs of each request, best first; `options` replace those of all requests.

    An empty source gives an empty hypothesis. A request whose required phrases cannot be met has no hypotheses. Scores
    may be NaN for requests that are not `scored`. `on_done` is called, from any thread, with the number of requests
    finished since the last call.
    """
    if options is not None:
        requests = [request.replace(options=options) for request in requests]
    limits = model_limits(model)
    for request in requests:
        check(request, limits)
    threads = _threads(model, device, requests)
    queue = deque(_plan(requests, torch.device(device), threads))
    results = [[Hypothesis([], 0.0, 0.0)] for _ in requests]
    threads = min(threads, len(queue))
    with on_tensor_cores(device):
        if threads <= 1:
            _drain(Engine(model, device=device, bulk=True), requests, queue, results, on_done)
        else:
            engines = [Engine(model, device=device, bulk=True) for _ in range(threads)]
            side_by_side(lambda engine: _drain(engine, requests, queue, results, on_done), engines, threads=threads)
    for request, hypotheses in zip(requests, results, strict=True):
        if not hypotheses and (request.demands is None or not request.demands.required):
            raise ValueError(
                f"line {request.number + 1}: the scores of the model are NaN, so there is no output; its weights are "
                f"damaged, or its training diverged: use another checkpoint, or train it again"
            )
    return results


def _plan(requests: Sequence[Request], device: torch.device, threads: int) -> list[tuple[Hashable, list[int]]]:
    """Batches of request indices with their shared options, without empty sources."""
    plan = []
    for key, indices in _by_shared_options(requests).items():
        tokens = tokens_at_once(requests[indices[0]], device)
        batches = length_batches([len(requests[index].read) + 1 for index in indices], tokens, threads)
        plan += [(key, [indices[place] for place in places]) for places in batches]
    return plan


def _by_shared_options(requests: Sequence[Request]) -> dict[Hashable, list[int]]:
    """Indices of requests by `shared_options`, which is computed once for each `Decoding` object."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        if not request.empty:
            beam = request.on_step is not None, request.demands is not None and bool(request.demands.required)
            own = request.scored, request.marks, request.known
            groups[id(request.options), beam, own, processors_of(request)].append(index)
    merged: defaultdict[Hashable, list[int]] = defaultdict(list)
    for indices in groups.values():
        merged[shared_options(requests[indices[0]])] += indices
    return {key: sorted(indices) for key, indices in merged.items()}


def tokens_at_once(request: Request, device: torch.device) -> int:
    """The maximum number of padded source tokens in a batch of such requests."""
    return max(1, request.options.tokens_at_once(device.type) // request.width)


def _drain(
    engine: Engine,
    requests: Sequence[Request],
    queue: deque[tuple[Hashable, list[int]]],
    results: list[list[Hypothesis]],
    on_done: Callable[[int], None] | None,
) -> None:
    """Decode the batches of a queue that threads share."""
    try:
        while True:
            if engine.ready and (batch := _next(queue)) is not None:
                key, indices = batch
                engine._enqueue(key, [(index, requests[index]) for index in indices])
            if not engine.unfinished:
                return
            engine.step()
            outputs = engine.collect()
            for index, hypotheses in outputs.items():
                results[index] = hypotheses
            if outputs and on_done is not None:
                on_done(len(outputs))
    except BaseException:
        queue.clear()  # stop the other threads
        raise


def _next(queue: deque[tuple[Hashable, list[int]]]) -> tuple[Hashable, list[int]] | None:
    try:
        return queue.popleft()
    except IndexError:
        return None


@contextmanager
def on_tensor_cores(device: torch.device | str) -> Iterator[None]:
    """Use TF32 for float32 matrix products on a GPU, as in training: several times faster for large batches."""
    before = torch.get_float32_matmul_precision()
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _threads(model: DecodableModel, device: torch.device | str, requests: Sequence[Request]) -> int:
    """The maximum number of batches to decode in parallel.

    A decoding step is many small operations, so one core per batch is faster on a CPU than all cores per operation.
    A recorded model (also by the coverage penalty) decodes one batch at a time.
    """
    recorded = isinstance(model, nn.Module) and any(isinstance(m, TapModule) and m.recorded for m in model.modules())
    covered = any(request.options.coverage_penalty for request in requests)
    return 1 if torch.device(device).type != "cpu" or covered or recorded else torch.get_num_threads()


def side_by_side(work: Callable[[Item], None], items: Sequence[Item], *, threads: int) -> None:
    """Process items in threads with one core each; after an error (or Ctrl-C) no further item is started."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for future in [pool.submit(work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
