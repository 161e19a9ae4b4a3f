"""The models that a server knows by name: loaded, loading, unloaded or failed, each with its own line of requests."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Decoder
from fourleaf.errors import FourleafError, ModelNotFoundError, RequestError
from fourleaf.serve.capabilities import Abilities, abilities
from fourleaf.serve.worker import Worker

log = logging.getLogger(__name__)

Tools = list[dict[str, Any]] | None
Loader = Callable[[], tuple[Decoder, Tools]]


class NotReadyError(RequestError):
    """The model is known and cannot answer now."""


class Served:
    """A loaded model: its engine, the tools in its weights, and the threads that drive it."""

    def __init__(self, engine: Decoder, fixed_tools: Tools, max_waiting: int) -> None:
        self.engine, self.fixed_tools = engine, fixed_tools
        self.able: Abilities = abilities(engine)
        self.worker = Worker(max_waiting, self.able.concurrent)
        if isinstance(engine, Engine):
            engine.start()
        self.worker.start()

    @property
    def cache_bytes(self) -> int:
        """What its requests hold and the prefix cache keeps."""
        return self.engine.core.cache.used_bytes if isinstance(self.engine, Engine) else 0

    @property
    def cache_counts(self) -> dict[str, int]:
        """What the engine's prefix cache and scheduler have done so far; nothing where the engine is another's."""
        if not isinstance(self.engine, Engine):
            return {}
        core = self.engine.core
        counters = core.cache.tree.counters
        return {
            "prefix_lookups_total": counters.num_lookups,
            "prefix_hits_total": counters.num_hits,
            "prefix_hit_tokens_total": counters.num_hit_tokens,
            "prefix_tokens_without_state_total": counters.num_stateless_tokens,
            "evicted_pages_total": counters.num_evicted_pages,
            "preempted_requests_total": core.scheduler.num_preempted,
        }

    def close(self, drain_seconds: float) -> None:
        """Lets what runs come to its end, but no longer than that, then stops."""
        self.worker.drain(drain_seconds)
        self.worker.stop()
        if isinstance(self.engine, Engine):
            self.engine.stop()


@dataclass
class _Slot:
    name: str
    load: Loader
    state: Literal["unloaded", "loading", "loaded", "unloading", "failed"] = "unloaded"
    reason: str = ""
    served: Served | None = None
    created: int = field(default_factory=lambda: int(time.time()))


class Models:
    """Named models; `loaders` load one each.

    on_loaded, on_failure: called in the loading thread, with a model's name, or with what it could not be loaded for.
    """

    def __init__(self, loaders: dict[str, Loader], *, max_waiting: int = 64) -> None:
        self._slots = {name: _Slot(name, load) for name, load in loaders.items()}
        self._max_waiting = max_waiting
        self.on_loaded: Callable[[str], None] | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @classmethod
    def of(cls, engine: Decoder, fixed_tools: Tools, max_waiting: int) -> Models:
        """One model whose engine is there already."""
        return cls({engine.name: lambda: (engine, fixed_tools)}, max_waiting=max_waiting)

    def load(self, name: str) -> None:
        """Begins to load a model; without effect on one that is loaded or on the way. Raises ModelNotFoundError."""
        slot = self._slot(name)
        with self._lock:
            if slot.state in ("loaded", "loading"):
                return
            if slot.state == "unloading":
                raise NotReadyError(f"The model {name!r} is still being unloaded.", param="model", code="model_busy")
            slot.state, slot.reason = "loading", ""
        thread = threading.Thread(target=self._load, args=(slot,), name=f"fourleaf-load-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def load_all(self, *, wait: bool = False) -> None:
        """Begins to load every model; wait: until all are there."""
        for name in self._slots:
            self.load(name)
        if wait:
            for thread in self._threads:
                thread.join()

    def unload(self, name: str, drain_seconds: float) -> None:
        """Takes no more requests for a model, waits for those that run, and frees it. Blocks; raises
        ModelNotFoundError."""
        slot = self._slot(name)
        with self._lock:
            if slot.state != "loaded":
                return
            served, slot.served, slot.state = slot.served, None, "unloading"
        assert served is not None
        served.close(drain_seconds)
        del served
        gc.collect()  # a model's tensors may hang in a cycle
        slot.state = "unloaded"

    def find(self, name: str) -> Served:
        """The model of that name. Raises ModelNotFoundError, and NotReadyError with the reason."""
        slot = self._slot(name)
        if (served := slot.served) is not None:
            return served
        why = {
            "loading": "is being loaded; try again shortly",
            "failed": f"could not be loaded: {slot.reason}",
            "unloading": "is being unloaded",
        }.get(slot.state, "is not loaded; POST /v1/models/load loads it")
        raise NotReadyError(f"The model {name!r} {why}.", param="model", code=f"model_{slot.state}")

    def cards(self) -> list[dict[str, Any]]:
        """Every model as OpenAI's models list has it, with our `status`."""
        return [self._card(slot) for slot in self._slots.values()]

    def card(self, name: str) -> dict[str, Any]:
        return self._card(self._slot(name))

    def served(self) -> list[Served]:
        """The loaded ones."""
        return [slot.served for slot in self._slots.values() if slot.served is not None]

    @property
    def trouble(self) -> str:
        """Why requests cannot be answered now; "" where they can."""
        for slot in self._slots.values():
            if slot.state == "loading":
                return f"loading model {slot.name}"
            if slot.state == "failed":
                return f"model {slot.name} could not be loaded: {slot.reason}"
            if slot.served is not None and not slot.served.worker.alive:
                return f"the engine's thread of {slot.name} has ended"
        return ""

    def close(self) -> None:
        """Stops everything at once."""
        for thread in self._threads:
            thread.join(timeout=10)
        for slot in self._slots.values():
            served, slot.served = slot.served, None
            if served is not None:
                served.close(0)
                slot.state = "unloaded"

    def _load(self, slot: _Slot) -> None:
        try:
            engine, tools = slot.load()
            served = Served(engine, tools, self._max_waiting)
        except Exception as error:  # whatever it is, it is the model's state
            slot.state = "failed"
            slot.reason = str(error) if isinstance(error, FourleafError) else "the server's log says why"
            if not isinstance(error, FourleafError):
                log.error("model %s could not be loaded", slot.name, exc_info=error)
            if self.on_failure is not None:
                self.on_failure(error)
            return
        slot.served, slot.state = served, "loaded"
        if self.on_loaded is not None:
            self.on_loaded(slot.name)

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            known = ", ".join(map(repr, self._slots))
            raise ModelNotFoundError(
                f"The model {name[:100]!r} is not served here; {known} is.", param="model", code="model_not_found"
            )
        return self._slots[name]

    def _card(self, slot: _Slot) -> dict[str, Any]:
        return {
            "id": slot.name,
            "object": "model",
            "created": slot.created,
            "owned_by": "fourleaf",
            "status": slot.state,
        }
