"""What `fourleaf bench` measured, as tables and sentences."""

from __future__ import annotations

from fourleaf.measure.goodput import Goodput
from fourleaf.measure.speed import AR, ARMS, AUTO, MIXED, TRANSFORMERS, Benchmark
from fourleaf.measure.tables import percent, points, table, times

_MOST_KINDS = 16  # of forwards that the table shows


def speed_lines(found: Benchmark) -> list[str]:
    """What one at a time gave, as tables."""
    shown = [*table(_arm_rows(found)), "", *table(_decoding_rows(found)), ""]
    rows = [["tokens/s, paired by prompt", "with prefill", "after prefill"]]
    rows += [[pair, times(up.with_prefill), times(up.after_prefill)] for pair, up in found.speed_ups.items()]
    shown += [*table(rows), "", *table(_forward_rows(found)), ""]
    if found.passes:
        shown.append("blocks of diffuse by passes " + ", ".join(f"{p}: {n}" for p, n in found.passes.items()))
    for name in (AUTO, MIXED):
        if name in found.arms and found.arms[name].modes:
            chosen = ", ".join(f"{mode} {count}" for mode, count in sorted(found.arms[name].modes.items()))
            shown.append(f"{name} chose {chosen}")
    for name, pair in found.exact_paired.items():
        shown.append(
            f"{name} - ar, exact match: {points(pair.difference)}; right: both {pair.both}, only ar {pair.only_first}, "
            f"only {name} {pair.only_second}, neither {pair.neither}"
        )
    if found.transformers:
        ways = ", ".join(f"{way} {ms:.2f}" for way, ms in found.transformers["ms_per_token_of_each_way"].items())
        shown.append(
            f"transformers {found.transformers['version']} ran with {found.transformers['attention']} attention by "
            f"{found.transformers['driver']}, the fastest of its ways in ms a token: {ways}"
        )
    return shown


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _arm_rows(found: Benchmark) -> list[list[str]]:
    is_judged = found.arms[AR].exact is not None
    last = "exact match" if is_judged else "nats a token"
    rows = [["arm", "tokens/s", "after prefill", "first token ms", "prefill ms", "as ar", last]]
    for name, arm in found.arms.items():
        same = "-" if arm.same_as_ar is None else f"{arm.same_as_ar} of {found.num_prompts}"
        quality = "-"
        if arm.exact is not None:
            quality = percent(arm.exact)
        elif arm.nats is not None:
            quality = f"{arm.nats.value:.2f} ({arm.nats.low:.2f}-{arm.nats.high:.2f})"
        speeds = (arm.tokens_per_s.value, arm.tokens_per_s_after_prefill.value, arm.first_token_ms, arm.prefill_ms)
        rows.append([name, *(f"{value:.1f}" for value in speeds), same, quality])
    return rows


def _decoding_rows(found: Benchmark) -> list[list[str]]:
    rows = [["arm", "TPF", "break-even TPF", "forward ms", "rows a token", "passes a block", "tokens a block"]]
    rows[0].append("proposals stood")
    for name, arm in found.arms.items():
        if name != TRANSFORMERS:
            counts = (arm.tpf, arm.break_even_tpf, arm.forward_ms, arm.rows_per_token)
            stood = "-" if arm.stood is None else f"{100 * arm.stood:.0f}%"
            rows.append([name, *map(_number, (*counts, arm.passes_per_block, arm.tokens_per_block)), stood])
    return rows


def _forward_rows(found: Benchmark) -> list[list[str]]:
    """Kinds of forwards, those that took longest in all first; the rare ones together."""
    step_ms = found.arms[AR].forward_ms or float("nan")
    rows = [["forward", "mean ms", "median ms", "in the model", "ar steps", "rows", "times"]]
    kinds = list(found.forwards.items())
    for kind, cost in kinds[:_MOST_KINDS]:
        means = [f"{cost.mean_ms:.2f}", f"{cost.median_ms:.2f}", f"{100 * cost.model_ms / cost.mean_ms:.0f}%"]
        rows.append([kind, *means, f"{cost.mean_ms / step_ms:.2f}", f"{cost.rows:.0f}", f"{cost.count}"])
    rest = [cost for _, cost in kinds[_MOST_KINDS:]]
    if rest:
        count = sum(cost.count for cost in rest)
        mean = sum(cost.mean_ms * cost.count for cost in rest) / count
        rows.append([f"({len(rest)} others)", f"{mean:.2f}", "", "", f"{mean / step_ms:.2f}", "", f"{count}"])
    return rows


def goodput_lines(found: Goodput) -> list[str]:
    """One line for each number of clients and arm."""
    head = ["at once", "arm", "goodput", "against ar", "against one", "first block p50 ms", "p95 ms", "late"]
    head += ["rows a forward", "in the model", "ended", *(["exact match"] if found.is_judged else [])]
    rows = [head]
    fewest = found.loads[min(found.loads)]
    for number, arms in found.loads.items():
        for name, load in arms.items():
            base = arms[AR].goodput if AR in arms else 0.0
            against = [load.goodput / one if one else None for one in (base, fewest[name].goodput)]
            waits = [_number(load.wait_ms(quantile), 0) for quantile in (0.5, 0.95)]
            row = [f"{number}", name, f"{load.goodput:.0f}", *map(_number, against), *waits, f"{load.late}"]
            row += [f"{load.rows_per_forward:.1f}", f"{100 * load.model_share:.0f}%", f"{load.ended}"]
            if found.is_judged:
                row.append(f"{100 * load.right / load.ended:.0f}%" if load.ended else "-")
            rows.append(row)
    shown = table(rows)
    for number, arms in found.loads.items():
        if AUTO in arms and len(arms) > 1:
            best = max((arm for arm in arms if arm != AUTO and not ARMS[arm]["grammar"]), key=lambda a: arms[a].goodput)
            if arms[best].goodput:
                ratio = arms[AUTO].goodput / arms[best].goodput
                shown.append(f"auto against {best}, the best single mode, {number} at once: {ratio:.2f}x")
    return shown
