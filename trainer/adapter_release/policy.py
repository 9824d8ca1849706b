"""Does this run make an adapter or a full release? The written rule, and what a run starts from.

`release_kind: adapter` makes adapters as long as the released base can carry one; `auto` does, too, and goes back to a
full release
- when the base was not made from this base model, prompt and engine,
- when `max_in_row` adapters stand on one base,
- when golden samples refused an adapter on this base (where they left it open, or dev refused it and they were not
  asked, the next run may try again),
- and within the run, when the dev set shows that no adapter can reach the gate (`judge.py`): golden is then untouched.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from intentloop import prompt
from intentloop.adapters.registry import Registry
from intentloop.release import Kind, Manifest, check_base
from trainer import publish, step
from trainer.engine import engine_version
from trainer.rule import AdapterRule


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What phones have: the current release, the full one under it, and how many adapters stand on that.

    `refused` says why the gate refused an adapter on this base, `misfit` why the base cannot carry one; else empty.
    """

    current: Manifest
    base: Manifest
    adapters: int
    refused: str
    misfit: str


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts from: its kind with the reason, and directories of incumbent and base, empty where none is."""

    kind: Kind
    reason: str
    previous: str = ""
    incumbent: str = ""
    base_release: str = ""


def choose(rule: AdapterRule, released: Released | None) -> tuple[Kind, str]:
    """Which kind of release does the next run make, and why?"""
    if rule.release_kind == "full":
        return "full", "full releases are asked for"
    if released is None:
        return "full", "nothing is released that could carry an adapter"
    if released.misfit:
        return "full", released.misfit
    if rule.release_kind == "adapter":
        return "adapter", "adapters are asked for"
    if released.refused:
        return "full", f"the gate refused an adapter on {released.base.version}: {released.refused}"
    if released.adapters >= rule.max_in_row:
        return "full", f"{released.adapters} adapters stand on {released.base.version}, at most {rule.max_in_row} do"
    return "adapter", f"{released.base.version} carries {released.adapters} adapters, at most {rule.max_in_row}"


async def survey(registry: Registry, source: Path, rule: AdapterRule, directory: Path) -> Ground:
    """What does a run in `directory` start from?

    Args:
        source: The base model's checkpoint.
    """
    rollout = await registry.current()
    if rollout is None:
        kind, reason = choose(rule, None)
        return Ground(kind=kind, reason=reason)
    current = await registry.manifest(rollout.version)
    base = current
    if current.base is not None:
        base = await registry.manifest(current.base.version)
        check_base(current, base)
    every = [await registry.manifest(version) for version in await registry.versions()]
    released = Released(
        current=current,
        base=base,
        adapters=sum(each.base is not None and each.base.version == base.version for each in every),
        refused=refused(directory.parent, base.version),
        misfit=misfit(base, source),
    )
    home = (await registry.directory(base.version)).resolve()
    incumbent = home
    if current.kind == "adapter":
        incumbent = assemble(home, await registry.directory(current.version), directory / "inputs" / "incumbent")
    kind, reason = choose(rule, released)
    return Ground(
        kind=kind,
        reason=reason,
        previous=current.version,
        incumbent=str(incumbent),
        base_release=str(home) if kind == "adapter" else "",
    )


def misfit(base: Manifest, source: Path) -> str:
    """Why can no adapter be trained on this release? Empty if one can."""
    wanted = (publish.base_sha256(source), prompt.VERSION, engine_version())
    found = (base.lineage.get("base", ""), base.prompt_version, base.engine)
    for name, mine, theirs in zip(("base model", "prompt", "engine"), wanted, found, strict=True):
        if mine != theirs:
            return f"{base.version} was made with another {name} ({theirs[:20]!r}, now {mine[:20]!r})"
    return ""


def assemble(base: Path, adapter: Path, directory: Path) -> Path:
    """Put base and adapter into one directory, as the engine wants them; linked where the disk can, so nearly free."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for source in (base, adapter):
        for path in sorted(source.iterdir()):
            if path.is_file() and path.name != "manifest.json":
                _link(path, directory / path.name)
    return directory.resolve()


def note(work: Path, spec: step.RunSpec, reasons: Sequence[str]) -> None:
    """Remember why golden samples refused a run's adapter, if there are reasons: in `auto` the next run is full."""
    if reasons:
        path = _refusal(work, publish.read_manifest(Path(spec.base_release)).version)
        path.parent.mkdir(parents=True, exist_ok=True)
        step.write_atomically(path, "; ".join(reasons).encode())


def refused(work: Path, base_version: str) -> str:
    """Why did the gate refuse an adapter on this base? Empty if it did not."""
    path = _refusal(work, base_version)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _refusal(work: Path, base_version: str) -> Path:
    return work / "verdicts" / f"gate-refused-adapter-on-{base_version}"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)
