"""Ways to ask an engine that several test files share: alone, or on a core among others."""

import random
from collections.abc import Callable

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams


def remade(engine: Engine, **limits) -> Engine:
    """The same model behind an engine of its own, which counts all memory after every step."""
    return Engine(
        engine.name, engine.model, engine.tokenizer, engine.chat, Limits(**{"num_pages": 64, **limits}), checks=True
    )


def alone(engine: Engine, prompt: list[int], params: GenerateParams) -> tuple[list[int], str | None, int]:
    """(tokens, how it ended, tokens counted) on an engine that knows no other request."""
    deltas = list(remade(engine, reuse=False).generate(prompt, params))
    usage = deltas[-1].usage
    assert usage is not None
    return [t for d in deltas for t in d.tokens], deltas[-1].finish_reason, usage.completion_tokens


class Client:
    """A request on a core, and what came of it."""

    def __init__(self, engine: Engine, core: Core, prompt: list[int], params: GenerateParams) -> None:
        self.prompt, self.params = prompt, params
        self.deltas = []
        self.key = core.submit(engine.admit(prompt, params), self.deltas.append)

    @property
    def is_done(self) -> bool:
        return bool(self.deltas) and (
            isinstance(self.deltas[-1], BaseException) or self.deltas[-1].finish_reason is not None
        )

    @property
    def answer(self) -> tuple[list[int], str | None, int]:
        last = self.deltas[-1]
        return [t for d in self.deltas for t in d.tokens], last.finish_reason, last.usage.completion_tokens


def crowd(
    engine: Engine,
    core: Core,
    rng: random.Random,
    draw: Callable[[random.Random], tuple[list[int], GenerateParams]],
    *,
    steps: int,
    coming: float,
    leaving: float,
) -> list[Client]:
    """Requests that come and go by chance (`coming`, `leaving`: before each of `steps` steps), at most 16 at once, run
    to their ends. Gives those that stayed, once it is sure that nothing is left on the core."""
    clients: list[Client] = []
    cancelled = set()
    for _ in range(steps):
        if len(clients) < 16 and rng.random() < coming:
            clients.append(Client(engine, core, *draw(rng)))
        running = [client for client in clients if not client.is_done and client.key not in cancelled]
        if running and rng.random() < leaving:
            client = rng.choice(running)
            core.cancel(client.key)
            cancelled.add(client.key)
        core.step()
    while core.step():
        pass
    assert core.is_idle
    assert core.cache.pages.num_held == 0
    return [client for client in clients if client.key not in cancelled]
