"""Copies of the training text that are cut differently (BPE-dropout): while one is learned from, the next is cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sightline.data.store import Store


class Variants:
    """The copies in turns, one for each epoch. Whoever is done with them says so, for a cut of much text takes long."""

    def __init__(self, cut: Callable[[int, threading.Event], Store], count: int) -> None:
        """`cut` makes the store of a copy, and gives up when the event says so (`prepare` in data/store.py)."""
        self.cut, self.count = cut, count
        self.stores: dict[int, Store] = {}
        self.coming: Future[Store] | None = None
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="variants")

    def __call__(self, epoch: int) -> Store:
        """The store of an epoch."""
        variant = epoch % self.count
        if variant not in self.stores:
            if self.coming is not None:
                self.coming.result()
            self.stores[variant] = self.cut(variant, self._closed)  # found in the cache, if it was cut ahead
            following = (epoch + 1) % self.count
            if following not in self.stores and not self._closed.is_set():
                self.coming = self._pool.submit(self.cut, following, self._closed)
        return self.stores[variant]

    def close(self) -> None:
        """Give up the copy that is being cut, and cut no other; those that are there can still be asked for."""
        self._closed.set()
        self._pool.shutdown()
