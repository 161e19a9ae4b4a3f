"""The script that times products: both kinds of it, for each number of rows."""

import script
import torch

from fourleaf.engine.engine import bundled_path


def test_a_line_for_each_number_of_rows(monkeypatch, capsys):
    program = script.load("product_rows")
    threads = str(torch.get_num_threads())
    monkeypatch.setattr("sys.argv", ["product_rows", str(bundled_path()), "--threads", threads, "--seconds", "0"])
    program.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[1] if line.startswith("|") else line.split()[0] for line in lines[:-1]]
    assert [int(row) for row in rows if row.isdigit()] == list(program.ROWS)
    assert lines[-1].startswith("25 products")
