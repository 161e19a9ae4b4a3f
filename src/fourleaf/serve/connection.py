"""One client's connection, which may not be kept without asking for anything."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's, with an end to its patience: it waits for ever for the rest of a request's head, and takes in what
    still comes of a body that nobody reads. `Server.body` has the same limit for a body that is read.

    By h11 and not by whatever parser is installed: the limit on headers is h11's.
    """

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._patience: float = config.app.state.server.settings.receive_seconds
        self._seen: object = None  # the request that the last check found
        self._check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check = self.loop.call_later(self._patience, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Hangs up where no request has come since the last look, and none is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.cycle is self._seen and not is_answering:
            self.transport.close()
            return
        self._seen = self.cycle
        self._check = self.loop.call_later(self._patience, self._look)
