"""A server under load: 64 connections, a fifth of which leave in mid-stream, poisoned requests among them, SIGTERM.

    python scripts/soak_load.py                                   # 5 minutes, on random weights in fp64
    python scripts/soak_load.py --checkpoint bundled              # on the bundled model, as it is served
    python scripts/soak_load.py --seconds 10 --connections 8      # the sample that the tests run

Requests go to every API, streamed and whole, in every mode, with tools, grammars, log-probabilities, several choices.
Each must be answered to its end or told to come back (429). Poisoned ones (NaN logits, a grammar that fails in
mid-answer, too long for the context, too large a body) must end alone, with the status that they deserve. Then the
server is sent SIGTERM with the load on: what was started ends, what is new is refused, and the engine holds no request,
page, snapshot or state.

Again and again the load pauses, and the server's memory is read at rest: what is garbage collected, what the allocator
has free given back, less the cache's pools and snapshots, which end at its budget; and the matrix library keeps no
scratch memory. That must be flat in runs of two minutes and more. Memory under load is no measure: it rises in steps to
what the busiest moment so far took, which is no leak, and hides one. `--leaking` shows that it is found: each round of
poison leaves 1 MiB behind, and the run fails.

Prints a report and appends it to a file with --report; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from poisoned_server import GRAMMAR_SEED, LEAK_SEED, NAN_SEED

from fourleaf.measure.memory import growth

LEAVING = 0.2  # of the streams
GRACE = 1.0  # seconds around SIGTERM in which a request may fall on either side
MIN_SECONDS = 120  # from which on memory is judged
NUM_RESTS, MIN_RESTS = 24, 8  # in which it is read; and from which on it can be judged
REST_EVERY = 4.0  # seconds at least
MOST_GROWTH_MIB = 4  # between rests half a run apart: the prefix tree's nodes come to less
# MKL keeps the scratch memory of each thread's largest product: some 4 MiB in each of 16 that come in one by one.
WITHOUT_SCRATCH = {"MKL_DISABLE_FAST_MM": "1"}
SAID = [
    "Open all windows.",
    "Play some jazz, and make it warmer in the back.",
    "What is the tyre pressure?",
    "Turn on the fog lights and set the temperature to twenty one degrees for the driver, please.",
]
SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["front", "rear"]}, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["zone", "level"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "level", "schema": SCHEMA}}
TOOL = {"name": "set_level", "description": "Sets it.", "parameters": SCHEMA}
LAST = ("[DONE]", "message_stop", "response.completed", "response.incomplete", "finish_reason")

Body = dict[str, Any]


def drawn(rng: random.Random, model: str, has_own_tools: bool) -> tuple[str, Body]:
    """A path and a body, as any client might send them."""
    path = rng.choice(("chat/completions",) * 4 + ("chat/events", "completions", "responses", "messages", "systemone"))
    text = rng.choice(SAID) + rng.choice(("", "", " Now!"))
    body: Body = {"model": model, "stream": rng.random() < 0.7}
    if path == "systemone":
        question = {"type": "choice", "instructions": text, "criteria": {"yes": None, "no": None, "later": None}}
        return path, {"model": model, "state": text, "questions": {"q": question}, "x_joint": rng.random() < 0.5}
    body |= {"mode": rng.choice(("ar", "draft", "diffuse", "auto")), "seed": rng.randrange(1000)}
    body |= {"temperature": rng.choice((0, 0, 0.8))}
    limit = rng.choice((4, 16, 40))
    if path == "completions":
        return path, body | {"prompt": text, "max_tokens": limit, "echo": rng.random() < 0.3, "logprobs": 2}
    if path == "responses":
        return path, body | {"input": text, "max_output_tokens": limit}
    body |= {"messages": [{"role": "user", "content": text}], "max_tokens": limit}
    if path != "chat/completions":
        return path, body
    what = rng.random()
    if what < 0.2:
        body |= {"response_format": FORMAT, "max_tokens": 60}
    elif what < 0.35 and not has_own_tools:
        body |= {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required", "max_tokens": 80}
    elif what < 0.35:
        body |= {"tool_choice": "required", "max_tokens": 80}
    elif what < 0.5:
        body |= {"n": 2, "logprobs": True, "top_logprobs": 2, "temperature": 0.8}
    if body["stream"] and rng.random() < 0.3:
        body["diffusing"] = True
    return path, body


class Gate:
    """Where whoever asks waits while it is closed; `async with` it around each request."""

    def __init__(self) -> None:
        self._open, self._empty, self._num_inside = asyncio.Event(), asyncio.Event(), 0
        self._open.set()
        self._empty.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._num_inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._num_inside -= 1
        if not self._num_inside:
            self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """Lets nobody in, and begins when all who were inside have gone."""
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()


def poisons(model: str, is_leaking: bool) -> list[tuple[str, str, Any, tuple[int, ...]]]:
    """(what it is, path, body, statuses that it deserves); a body in bytes is sent as it is."""
    said = [{"role": "user", "content": "Hello."}]
    body: Body = {"model": model, "messages": said, "max_tokens": 30}
    leak = [("leak", "chat/completions", body | {"seed": LEAK_SEED}, (200,))] if is_leaking else []
    return [
        *leak,
        ("NaN", "chat/completions", body | {"seed": NAN_SEED}, (500,)),
        ("grammar", "chat/completions", body | {"seed": GRAMMAR_SEED, "response_format": FORMAT}, (500,)),
        ("over-long", "chat/completions", body | {"messages": [{"role": "user", "content": "a b " * 40_000}]}, (400,)),
        ("too large", "chat/completions", b" " * (5 * 2**20), (413,)),
    ]


@dataclass
class Report:
    """What a run found. wrong: in words; it passes where there is none."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of whole answers
    first: list[float] = field(default_factory=list)  # to a stream's second event, the first that the engine gave
    at_rest: list[dict[str, float]] = field(default_factory=list)  # MiB: own, pools, snapshots
    most_mib: float = 0.0  # that the server held in all, under load
    stopped_at: float = float("inf")


class Client:
    """One connection after the other, until a little after the server was told to stop."""

    def __init__(self, url: str, model: str, has_own_tools: bool, report: Report, gate: Gate) -> None:
        self._url, self._model, self._has_own_tools, self._report = url, model, has_own_tools, report
        self._gate = gate

    async def run(self, seed: int) -> None:
        """Asks, one request after the other."""
        rng = random.Random(seed)
        timeout = httpx2.Timeout(300, connect=60)
        async with httpx2.AsyncClient(base_url=f"{self._url}/v1", timeout=timeout) as http:
            while time.monotonic() < self._report.stopped_at + 3 * GRACE:
                path, body = drawn(rng, self._model, self._has_own_tools)
                leaves = bool(body.get("stream")) and rng.random() < LEAVING
                async with self._gate:
                    began = time.monotonic()
                    try:
                        await self._ask(http, path, body, leaves)
                    except httpx2.TransportError as error:
                        if began < self._report.stopped_at - GRACE:
                            self._report.wrong.append(f"{path} {body}: {error!r}")
                        else:
                            self._report.counts["refused after SIGTERM"] += 1
                        await asyncio.sleep(0.2)

    async def _ask(self, http: httpx2.AsyncClient, path: str, body: Body, leaves: bool) -> None:
        report, began = self._report, time.monotonic()
        async with http.stream("POST", path, json=body) as response:
            if response.status_code == 429:
                report.counts["429"] += 1
                assert int(response.headers["retry-after"]) >= 1
                await asyncio.sleep(0.5)
                return
            if response.status_code == 503 and time.monotonic() > report.stopped_at - GRACE:
                report.counts["refused after SIGTERM"] += 1
                await asyncio.sleep(0.2)
                return
            if response.status_code != 200:
                await response.aread()
                report.wrong.append(f"{path} {body}: {response.status_code} {response.text[:200]}")
                return
            if began > report.stopped_at + GRACE:
                report.wrong.append(f"{path}: answered {began - report.stopped_at:.1f} s after SIGTERM")
            text, events = "", 0
            async for piece in response.aiter_text():
                text += piece
                events += 1
                if events == 2:
                    report.first.append(time.monotonic() - began)
                if leaves and events == 2:
                    report.counts["left in mid-stream"] += 1
                    return
        report.seconds.append(time.monotonic() - began)
        report.counts[path] += 1
        report.counts[f"mode {body.get('mode')}"] += 1
        report.wrong += [f"{path} {body}: {fault}" for fault in faults(body, text)]


def faults(body: Body, text: str) -> list[str]:
    """What is wrong with a whole answer, or a stream's text."""
    if body.get("stream") or "data: " in text[:200]:
        events = [line for line in text.splitlines() if line.startswith(("data: ", "event: "))]
        found = [line for line in events if line == "event: error" or '"error":{' in line]
        is_whole = bool(events) and any(word in events[-1] for word in LAST)
        return [f"an error in the stream: {line}" for line in found] + ([] if is_whole else ["the stream was cut"])
    answer = json.loads(text)
    found = []
    for choice in answer.get("choices", ()):
        if body.get("response_format") and choice["finish_reason"] == "stop":
            level = json.loads(choice["message"]["content"])
            if level.keys() != {"zone", "level"}:
                found.append(f"the grammar does not hold: {level}")
        if body.get("tool_choice") == "required" and choice["finish_reason"] == "stop":
            found.append("no tool was called")
    return found


async def poison(url: str, given: list[tuple[str, str, Any, tuple[int, ...]]], report: Report, gate: Gate) -> None:
    """Sends each poison again and again, until the server was told to stop."""
    async with httpx2.AsyncClient(base_url=f"{url}/v1", timeout=300) as http:
        while report.stopped_at == float("inf"):
            for name, path, body, deserved in given:
                sent = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    async with gate:
                        status = (await http.post(path, content=sent)).status_code
                except httpx2.TransportError:  # the server may hang up on a body that it does not want
                    status = 413 if name == "too large" else 0
                if status not in (*deserved, 429) and report.stopped_at == float("inf"):
                    report.wrong.append(f"poison {name!r} was answered by {status}")
                report.counts[f"poison {name}"] += status in deserved
            await asyncio.sleep(0.5)


async def resident_mib(http: httpx2.AsyncClient) -> float:
    """The server's, of all kinds; 0 where the system does not say."""
    lines = (await http.get("metrics")).text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return round(float(found.get("fourleaf_resident_bytes", 0)) / 2**20, 1)


async def watch(url: str, seconds: float, report: Report, gate: Gate) -> None:
    """Reads the server's memory for so long, under load and at rest."""
    began, every = time.monotonic(), max(REST_EVERY, seconds / NUM_RESTS)
    due = began + every
    # Its connections are idle for long, and a server hangs up on those, perhaps just as the next request is sent.
    fresh = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=fresh) as http:
        while (now := time.monotonic()) < began + seconds:
            await asyncio.sleep(min(1.0, seconds / 20))
            report.most_mib = max(report.most_mib, await resident_mib(http))
            if sys.platform == "linux" and now >= due:
                async with gate.closed():
                    report.at_rest.append((await http.get("at-rest")).raise_for_status().json())
                due = time.monotonic() + every
    await asyncio.sleep(2 * GRACE)  # a rest may have been the last thing: SIGTERM meets load


async def load(server: subprocess.Popen[str], url: str, chosen: argparse.Namespace, report: Report) -> None:
    """Everything, up to and a little beyond SIGTERM."""
    # It says where it will listen before it does.
    waiting = httpx2.AsyncHTTPTransport(retries=12)
    async with httpx2.AsyncClient(base_url=f"{url}/v1", timeout=60, transport=waiting) as http:
        card = (await http.get("capabilities")).json()["data"][0]
    gate = Gate()
    client = Client(url, card["id"], card["tools"] == "fixed", report, gate)
    tasks = [asyncio.create_task(client.run(chosen.seed + i)) for i in range(chosen.connections)]
    tasks.append(asyncio.create_task(poison(url, poisons(card["id"], chosen.leaking), report, gate)))
    try:
        await watch(url, chosen.seconds, report, gate)
    finally:
        report.stopped_at = time.monotonic()
    server.send_signal(signal.SIGTERM)
    for fault in await asyncio.gather(*tasks, return_exceptions=True):
        if fault is not None:
            report.wrong.append(f"the load itself failed: {fault!r}")


def percentile(values: list[float], share: float) -> float:
    """By the nearest rank; 0 of none."""
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 3) if values else 0.0


def growing(at_rest: list[float]) -> list[str]:
    """What is wrong with the server's own memory at its rests, in MiB."""
    if len(at_rest) < MIN_RESTS:
        return [
            f"the server was at rest {len(at_rest)} times, {MIN_RESTS} would say whether it leaks: run it for longer"
        ]
    found = growth(at_rest, share=0.0, least=MOST_GROWTH_MIB)
    return [found] if found else []


def run(chosen: argparse.Namespace) -> tuple[Report, dict[str, Any]]:
    """-> what was found, what the engine still held."""
    words = [sys.executable, str(Path(__file__).parent / "poisoned_server.py")]
    words += ["--checkpoint", chosen.checkpoint] if chosen.checkpoint else []
    report, held = Report(), {}
    said = None if chosen.loud else subprocess.DEVNULL  # a traceback for each poisoned request
    surroundings = os.environ | WITHOUT_SCRATCH
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, env=surroundings) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            asyncio.run(load(server, url, chosen, report))
            held = json.loads(server.communicate(timeout=120)[0].splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            report.wrong.append(f"the server did not end as it should: {error!r}")
        except httpx2.HTTPError as error:
            lost = f"exit code {server.poll()}" if server.poll() is not None else "it runs, but does not answer"
            report.wrong.insert(0, f"the server was lost: {error!r}, {lost}")  # the first of what is printed
        finally:
            server.kill()
    report.wrong += [f"{number} {name} are left" for name, number in held.items() if number and name != "forwards"]
    if chosen.seconds >= MIN_SECONDS and sys.platform == "linux":
        report.wrong += growing([found["own"] for found in report.at_rest])
    if not report.counts["left in mid-stream"] or not report.counts["refused after SIGTERM"]:
        report.wrong.append("nobody left in mid-stream, or nobody was refused: the run was too short to say anything")
    return report, held


def main() -> int:
    """Runs it all. -> exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, help="in place of minutes")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", help="'bundled' or a checkpoint folder; random weights without one")
    parser.add_argument("--loud", action="store_true", help="show what the server says, poison's tracebacks included")
    parser.add_argument("--leaking", action="store_true", help="poison leaks, and the run must fail")
    parser.add_argument("--report", type=Path, help="a JSONL file to which the figures are appended")
    chosen = parser.parse_args()
    chosen.seconds = chosen.seconds or 60 * chosen.minutes
    report, held = run(chosen)
    row = {
        "date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "wrong": len(report.wrong),
        "seconds": chosen.seconds, "connections": chosen.connections, "answers": len(report.seconds),
        "p50": percentile(report.seconds, 0.5), "p95": percentile(report.seconds, 0.95),
        "p95_first": percentile(report.first, 0.95), "left": held,
        "most_mib": report.most_mib,
        **{f"{name}_mib": [found[name] for found in report.at_rest] for name in ("own", "pools", "snapshots")},
        **dict(sorted(report.counts.items())),
    }  # fmt: skip
    for name, value in row.items():
        print(f"{name:24} {value}")
    print("\n".join(report.wrong[:20]))
    if chosen.report:
        with chosen.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
