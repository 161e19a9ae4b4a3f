"""The script that tells accuracy by how much of a request's wording training drew."""

import json

import script

from fourleaf.tasks.cabin.schema import Call, Example
from fourleaf.tasks.cabin.testsets import build


def test_wording_leaves_out_what_an_answer_copies():
    unseen = script.load("unseen_words")
    calls = (Call("navigate", {"destination": "14 Orchard Lane", "avoid": "tolls"}),)
    said = "Don't dawdle: take me to 14 Orchard Lane avoiding tolls"
    assert unseen.wording(Example(said, calls, "")) == ["don't", "dawdle", "take", "me", "to", "avoiding", "tolls"]


def test_requests_are_sorted_by_what_training_has_not_drawn(monkeypatch, tmp_path, capsys):
    unseen = script.load("unseen_words")
    wrong = build("patterns")[0].utterance
    failures = tmp_path / "failures.jsonl"
    failures.write_text(json.dumps({"set": "patterns", "arm": "ar", "utterance": wrong}) + "\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["unseen_words.py", str(failures), "--examples", "300"])
    unseen.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit() or "%" in line]
    words = [row for row in rows if row[0] in ("0", "1", "2")]
    assert len(words) == 3
    assert sum(int(row[-2]) for row in words) == 1000
    assert sum(float(row[-1].rstrip("%")) < 100 for row in words) == 1
