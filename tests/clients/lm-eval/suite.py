"""`lm_eval` against the server: a local task of the bundled model's own development set, as text and by scores.

Nothing but the server's address is given: lm-eval finds the tokenizer there. It has no torch and no transformers.
"""

import json
import math
from pathlib import Path
from typing import Any

import lm_eval
import pytest

DEV = Path(__file__).parents[3] / "src" / "fourleaf" / "tasks" / "cabin" / "data" / "dev.jsonl"
DECLINED = "Sorry, I can't do that."
TURN = "<|user|>{{utterance}}<|assistant|>"


@pytest.fixture(scope="session")
def examples(tmp_path_factory) -> dict:
    """Of the development set: what is declined, and what is one call; with what no weights get wrong in front."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in DEV.read_text(encoding="utf-8").splitlines()]
    declined = [row | {"answer": DECLINED} for row in rows if row["text"] == DECLINED][:5]
    single = [row for row in rows if len(row["calls"]) == 1][:5]
    called = [{"utterance": row["utterance"], "tool": row["calls"][0]["name"]} for row in single]
    called.insert(0, {"utterance": "open all windows", "tool": "set_window"})
    files = {}
    for name, found in (
        ("declined", [{"utterance": row["utterance"], "answer": row["answer"]} for row in declined]),
        ("called", called),
    ):
        path = tmp_path_factory.mktemp("data") / f"{name}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
        files[name] = str(path)
    return files


def task(name: str, file: str, **fields) -> dict:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": file}},
        "test_split": "test",
        "num_fewshot": 0,
        **fields,
    }


def evaluated(model: str, url: str, path: str, config: dict, **options) -> tuple[dict, list[dict]]:
    """lm-eval's figures for one task, and the samples they come from."""
    arguments = {"model": "cabin", "base_url": f"{url}{path}", "max_retries": 1, **options.pop("model_args", {})}
    done = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[config], log_samples=True, bootstrap_iters=0, **options
    )
    return done["results"][config["task"]], done["samples"][config["task"]]


@pytest.mark.parametrize("until", [[], ["can't"]])
def test_chat_generates(url, examples, until):
    config = task(
        "cabin_declined",
        examples["declined"],
        output_type="generate_until",
        doc_to_text="{{utterance}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": until, "max_gen_toks": 64},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    figures, samples = evaluated(
        "local-chat-completions", url, "/v1/chat/completions", config, apply_chat_template=True
    )
    said = [sample["resps"][0][0] or "" for sample in samples]
    assert len(said) == 5
    if until:
        assert "Sorry, I " in said, "the answer ends before the stop"
        assert not any("can't" in one for one in said)
    else:
        assert figures["exact_match,none"] == pytest.approx(said.count(DECLINED) / 5) != 0


@pytest.mark.parametrize("batch_size", [1, 3])
def test_completions_generate_up_to_a_stop(url, examples, batch_size):
    """The prompt is written with control tokens, and the call ends before the tag that closes it."""
    config = task(
        "cabin_calls",
        examples["called"],
        output_type="generate_until",
        doc_to_text=TURN,
        doc_to_target="{{tool}}",
        generation_kwargs={"until": ["</tool_call>"], "max_gen_toks": 96},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    _, samples = evaluated("local-completions", url, "/v1/completions", config, batch_size=batch_size)
    said = [sample["resps"][0][0] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
    assert said[0].startswith("<tool_call>")
    assert json.loads(said[0].removeprefix("<tool_call>"))["arguments"] == {"window": "all", "position": 100}
    assert not any("</tool_call>" in one for one in said)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_completions_score(url, examples, concurrent):
    """Which of four tools is called, by the log-probability of each beginning of a call."""
    names = ["set_window", "navigate", "play_media", "set_fan"]
    config = task(
        "cabin_tools",
        examples["called"],
        output_type="multiple_choice",
        doc_to_text=TURN,
        # Up to where a token ends, or no continuation would be the greedy one.
        doc_to_choice=[f'<tool_call>{{"name": "{name}", "arguments' for name in names],
        doc_to_target=0,
        target_delimiter="",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    _, samples = evaluated(
        "local-completions", url, "/v1/completions", config, model_args={"num_concurrent": concurrent}, limit=3
    )
    first = min(samples, key=lambda sample: sample["doc_id"])
    scores = [(float(resp[0][0]), resp[0][1]) for resp in first["resps"]]
    assert all(math.isfinite(score) and score < 0 for score, _ in scores)
    assert max(scores) == scores[0], "the bundled model opens windows when it is told to"
    assert str(scores[0][1]) == "True", "and greedily so"
    assert str(scores[1][1]) == "False"


def test_rolling_scores_add_up(url, examples):
    """Perplexity of a text: every token is scored once, the first behind the token that ends answers."""
    config = task(
        "cabin_text",
        examples["declined"],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{utterance}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    )
    figures, _ = evaluated("local-completions", url, "/v1/completions", config)
    assert 0 < figures["bits_per_byte,none"] < 100
