"""`fourleaf bench`: speed one at a time, goodput of many, and whether drafting is lossless; printed, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from fourleaf.checkpoint.files import write_json
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import DEFAULT_THRESHOLD, GenerateParams
from fourleaf.errors import ConfigError
from fourleaf.measure import equality, goodput, profile, report, speed
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import check_writable
from fourleaf.measure.speed import AR, ARMS, MIXED, feasible
from fourleaf.measure.workloads import Workload, check_workload, workload


@dataclass(frozen=True)
class Asked:
    """What to measure. sets: names of workloads; count: prompts of each. arms: of `speed.ARMS`. goodput_seconds: for
    each arm and number of clients; 0 leaves it out. verified: prompts on which drafting is held against `ar`."""

    sets: tuple[str, ...] = ("patterns",)
    count: int = 50
    arms: tuple[str, ...] = tuple(ARMS)
    threshold: float = DEFAULT_THRESHOLD
    max_tokens: int = 512
    goodput_seconds: float = goodput.SECONDS
    verified: int = 0
    with_transformers: bool = True
    with_profile: bool = False
    seed: int = 0

    def check(self) -> None:
        """Raises ConfigError or RequestError for a setting outside its limits: before anything is loaded."""
        for name in self.sets:
            check_workload(name)
        for arm in self.arms:
            if arm not in ARMS:
                raise ConfigError(f"there is no arm {arm!r}; choose {', '.join(ARMS)}")
        _ = self.params

    @property
    def params(self) -> GenerateParams:
        return GenerateParams(threshold=self.threshold, max_tokens=self.max_tokens)


def measure(engine: Engine, name: str, asked: Asked, out: TextIO, ticker: Ticker) -> dict[str, Any]:
    """One set: everything that is asked for, printed as it comes. -> all of it as JSON has it."""
    found: dict[str, Any] = {}
    work = workload(engine, name, max(asked.count, asked.verified), asked.params)
    few = replace(work, prompts=work.prompts[: asked.count])
    speeds = speed.run(
        engine,
        few,
        arms=asked.arms,
        with_transformers=asked.with_transformers,
        seed=asked.seed,
        progress=ticker,
    )
    found["prompts"], found["speed"] = speeds.num_prompts, speeds.document()
    ticker.close()
    print(f"{_about(few)}, one at a time", "", *report.speed_lines(speeds), "", sep="\n", file=out, flush=True)
    if asked.goodput_seconds:
        arms = [arm for arm in ARMS if arm == AR or (arm in feasible(engine, few, asked.arms) and arm != MIXED)]
        loads = goodput.run(engine, few, seconds=asked.goodput_seconds, arms=arms, progress=ticker)
        found["goodput"] = loads.document()
        ticker.close()
        print(f"{name}, many at once", *report.goodput_lines(loads), "", sep="\n", file=out, flush=True)
    if asked.verified:
        arms = [arm for arm in equality.ARMS_VERIFIED if arm in asked.arms]
        many = replace(work, prompts=work.prompts[: asked.verified])
        equal = equality.verify(engine, many, arms=arms, progress=ticker)
        found["equality"] = [one.document() for one in equal]
        ticker.close()
        print(*equality.lines(name, equal), "", sep="\n", file=out, flush=True)
    return found


def _about(work: Workload) -> str:
    params = work.params
    how = f"temperature {params.temperature:g}" if params.temperature else "greedy"
    return (
        f"{len(work.prompts)} prompts of {work.name}, {how}, threshold {params.threshold:g}; only arms that are called "
        "held are under the grammar of the model's tools"
    )


def main_bench(
    asked: Asked,
    *,
    model: Path | None,
    num_threads: int,
    json_file: Path | None,
    out: TextIO,
    progress: TextIO,
) -> bool:
    """`fourleaf bench`. -> whether drafting was lossless wherever that was verified.

    Raises ConfigError or RequestError for a setting outside its limits.
    """
    asked.check()
    check_writable(json_file)
    path = model or bundled_path()
    engine = Engine.load(path, num_threads=num_threads)
    # So that `auto` goes by costs of this hour, as all arms do, and not by those of a day when the machine was busy.
    engine.folder = None
    about = circumstances(engine, path)
    ticker = Ticker(progress)
    try:
        found = {name: measure(engine, name, asked, out, ticker) for name in asked.sets}
    finally:
        ticker.close()
    document = {**about, **asdict(asked), "sets": found}
    if asked.with_profile:
        prompt = workload(engine, asked.sets[0], 1, asked.params).prompts[0]
        parts = profile.profiles(engine, prompt)
        for part in parts:
            print(*profile.lines(part), "", sep="\n", file=out)
        document["profile"] = [part.document() for part in parts]
    if json_file is not None:
        write_json(json_file, document)
    return all(one["is_lossless"] for each in found.values() for one in each.get("equality", []))
