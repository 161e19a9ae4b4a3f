"""What holds for the repository as a whole: budgets, links, declared dependencies. It reads files and imports none."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fourleaf"
FOLDERS = ("src", "tests", "scripts", "docs", ".ci")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CHECKPOINT_BYTES = 16 * 1024 * 1024
# Names that say nothing about what a file holds, so that anything ends up in it.
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
# Modules that come in a distribution of another name.
DISTRIBUTIONS = {"opentelemetry": "opentelemetry-api"}
# What is imported from: the package's modules and subpackages. Folders of data alone are not among them.
PARTS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
# A path that exists on one machine only.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:work|root|home|Users|opt)/\w")


def _files(*suffixes: str) -> list[Path]:
    """Every file of ours with one of `suffixes`, committed or not; all of them where none is given."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in found if not suffixes or path.suffix in suffixes)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _required(requirements: list[str]) -> set[str]:
    names = {_normalised(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in requirements}
    return names - {"fourleaf"}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the modules that `tree` imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module.partition(".")[0]


def _anchors(markdown: str) -> set[str]:
    """The fragment of each heading, as Markdown hosts make it: lower case, no punctuation, dashes for spaces."""
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*#*$", markdown, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or not path.is_relative_to(ROOT):
            yield f"{_name(page)}: {target}: no such file"
        elif fragment and fragment not in _anchors(path.read_text(encoding="utf-8")):
            yield f"{_name(page)}: {target}: no such heading"


def test_files_are_at_most_400_lines():
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in _files(".py", ".sh")}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_at_most_60_lines():
    long = [
        f"{_name(path)}:{function.lineno} {function.name}"
        for path in _files(".py")
        for function in _functions(ast.parse(path.read_text(encoding="utf-8")))
        if function.end_lineno is not None and function.end_lineno - function.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_file_names_say_what_is_inside():
    assert [_name(path) for path in _files(".py") if path.stem.removeprefix("test_") in VAGUE_NAMES] == []


def test_links_between_pages_resolve():
    pages = _files(".md")
    assert pages
    assert [link for page in pages for link in _broken_links(page)] == []


def test_no_file_names_a_path_of_one_machine():
    found = []
    for path in _files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # weights, pictures
            continue
        found += [f"{_name(path)}:{number}" for number, line in enumerate(lines, 1) if MACHINE_PATH.search(line)]
    assert found == []


@pytest.mark.parametrize("part", PARTS, ids=lambda path: path.stem)
def test_each_part_imports_only_what_is_declared_for_it(part: Path):
    project = _project()
    declared = _required(project["dependencies"])
    extras = {
        "serve": ("serve", "otel"), "measure": ("bench",), "checkpoint": ("gguf",), "quant": ("int4",),
        "text": ("grammar",),
    }.get(part.name, ())  # fmt: skip
    for extra in extras:
        declared |= _required(project["optional-dependencies"][extra])
    paths = [part] if part.is_file() else sorted(part.rglob("*.py"))
    imported = {name for path in paths for name in _imported(ast.parse(path.read_text(encoding="utf-8")))}
    names = imported - sys.stdlib_module_names - {"fourleaf"}
    assert {_normalised(DISTRIBUTIONS.get(name, name)) for name in names} - declared == set()


def test_constraints_pin_every_requirement_to_a_plain_version():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\d.]+(\.?(b|post|rc|dev)\d+)?", pin)] == []
    project = _project()
    required = _required(project["dependencies"]).union(*map(_required, project["optional-dependencies"].values()))
    assert required - {_normalised(pin.partition("==")[0]) for pin in pins} == set()


def test_bundled_checkpoints_fit_their_budget():
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for folder in (PACKAGE / "models").glob("*/")
    }
    assert {name: size for name, size in sizes.items() if size > MAX_CHECKPOINT_BYTES} == {}


def test_every_decision_has_a_number_of_its_own_and_a_line_in_the_list():
    """Numbers may be missing: 021 was given to a choice that was not made."""
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    assert [name for name in pages if not re.match(r"\d{3}-[a-z0-9-]+\.md$", name)] == []
    numbers = [name[:3] for name in pages]
    assert len(set(numbers)) == len(numbers)
    listed = re.findall(r"^\| \[(\d{3})\]\(([^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(zip(numbers, pages, strict=True))
