"""The shape of the repository: where packages come from, who may know what, and that the documents tell the truth."""

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from intentloop import topics
from intentloop.adapters import codec

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("intentloop", "gateway", "streams", "workers", "trainer", "demo")
CORE_IMPORTS = {"msgspec", "numpy", "intentloop"}
IMPURE = {"asyncio", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time", "urllib"}
MAX_LINES = 300


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def core_files() -> list[Path]:
    return sorted(
        path for path in (ROOT / "intentloop").glob("*.py") if path.name not in {"__init__.py", "__main__.py"}
    )


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
            if node.module == "intentloop":
                names.update(f"intentloop.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("intentloop."):
                names.add(".".join((node.module or "").split(".")[:2]))
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_of_a_generic_name_comes_from_this_repository(package: str) -> None:
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


@pytest.mark.parametrize("path", core_files(), ids=lambda path: path.name)
def test_the_knowledge_is_pure(path: Path) -> None:
    names = imported(path)
    tops = {name.split(".")[0] for name in names}
    foreign = {top for top in tops if top not in sys.stdlib_module_names and top not in CORE_IMPORTS}
    assert not foreign, f"{path.name} imports {foreign}; the core takes the standard library, numpy and msgspec"
    impure = tops & IMPURE if path.name != "shoppers.py" else (tops & IMPURE) - {"random"}  # takes a Random as argument
    assert not impure, f"{path.name} imports {impure}; clocks, dice, files and networks belong to adapters"
    assert not {"intentloop.adapters", "intentloop.commands"} & names


def test_every_event_has_one_topic_and_one_type() -> None:
    names = [topic.name for topic in topics.ALL]
    assert len(names) == len(set(names))
    events = [topic.event for topic in topics.SOURCES]
    assert len(events) == len(set(events))
    assert set(codec.DECODERS) == set(names)


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_a_topic_is_named_owner_event_version(topic: topics.Topic) -> None:
    assert re.fullmatch(r"(phone|stream|label|loop)\.[a-z]+(-[a-z]+)+\.v\d+(\.dead)?", topic.name)
    assert topic.partitions >= 1


@pytest.mark.parametrize(
    "path", list(sources(*PACKAGES, "tests", "bench")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_file_fits_a_reader(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES, (
        f"{path.relative_to(ROOT)} has {lines} lines, the limit is {MAX_LINES}; cut it by noun or verb"
    )


@pytest.mark.parametrize("path", list(sources(*PACKAGES)), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "__init__.py":
        assert text == "", "an __init__.py stays empty: no re-exports"
    else:
        assert ast.get_docstring(ast.parse(text))


def test_no_module_shadows_a_dependency_or_the_standard_library() -> None:
    for path in sources(*PACKAGES):
        assert path.stem not in {"utils", "helpers", "common", "misc"}
        if path.parent.name in PACKAGES and path.parent.parent == ROOT and path.stem not in {"__init__", "__main__"}:
            assert path.stem not in sys.stdlib_module_names, f"{path.relative_to(ROOT)} shadows the standard library"


def test_every_metric_is_declared_once_with_a_unit() -> None:
    declared: list[str] = []
    for path in sources(*PACKAGES):
        for name in re.findall(r'(?:Counter|Gauge|Histogram)\(\s*"([^"]+)"', path.read_text(encoding="utf-8")):
            assert path.name == "metrics.py", f"{name} is declared in {path.name}; metrics live in adapters/metrics.py"
            declared.append(name)
    assert declared, "the product has metrics"
    assert len(declared) == len(set(declared))
    for name in declared:
        assert re.fullmatch(r"intentloop_[a-z_]+_(total|seconds|bytes|ratio|events|jobs|samples|messages)", name), name


def test_the_readme_tree_is_the_tree_on_disk() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"<!-- tree -->\n```\n(.*?)```", readme, re.DOTALL)
    assert tree is not None, "README.md has no tree between <!-- tree --> and ```"
    named = set(re.findall(r"^([\w.\-]+/?)", tree.group(1), re.MULTILINE))
    ignored = {".git", ".venv", "var", ".gitignore"}
    caches = {
        path.name for path in ROOT.iterdir() if path.name.endswith(("_cache", ".egg-info")) or path.name == "build"
    }
    present = {
        path.name + ("/" if path.is_dir() else "") for path in ROOT.iterdir() if path.name not in ignored | caches
    }
    present -= {".hypothesis/", "__pycache__/"}
    assert named == present


def test_every_dependency_is_accounted_for_in_one_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    documented = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for requirement in wanted:
        name, _, version = requirement.partition("==")
        assert version, f"{requirement} is not pinned"
        assert re.search(rf"\b{re.escape(name)}\b", documented, re.IGNORECASE), (
            f"{name} has no line in docs/dependencies.md"
        )


def test_the_reading_tour_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.split("## The reading tour")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", tour)
    assert len(files) == 10
    for file in files:
        assert (ROOT / file).is_file(), f"the reading tour names {file}, which is not there"


def test_nothing_names_a_machine() -> None:
    for path in [
        *sources(*PACKAGES, "tests", "bench"),
        ROOT / "README.md",
        ROOT / "Makefile",
        *sorted((ROOT / "docs").glob("*.md")),
    ]:
        text = path.read_text(encoding="utf-8")
        found = re.search(r"(?<![\w.])/(?:work|root|home/[a-z]+|mnt)/", text)
        assert found is None or path.name == Path(__file__).name, f"{path.relative_to(ROOT)}: {found}"
