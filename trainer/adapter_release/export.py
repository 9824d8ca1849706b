"""Export: every rank and storage becomes the file that a phone would fetch, and a directory that the engine loads."""

from pathlib import Path

import msgspec

from trainer import check, export_checks, publish, step
from trainer.adapter_release import graph, policy, train
from trainer.rule import AdapterStorage

NEEDS = ("freeze", train.NAME)
NAME = "adapter-export"
CANDIDATES = "candidates.json"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter to be measured; `update_bytes` is what a phone with the base fetches."""

    name: str
    rank: int
    storage: AdapterStorage
    update_bytes: int


def export(run: step.Run, directory: Path) -> step.Findings:
    """Write `files/<name>/lora.mnn` and `engines/<name>/`, base and adapter together, for every candidate."""
    base = Path(run.spec.base_release)
    candidates: list[Candidate] = []
    checks: list[check.Check] = []
    for rank in run.rule.adapter.ranks:
        adapter = train.read_adapter(run.step(train.NAME) / f"r{rank}")
        for storage in run.rule.adapter.storages:
            name = f"r{rank}-{storage}"
            files = directory / "files" / name
            files.mkdir(parents=True)
            with export_checks.watched() as events:
                size = graph.write(base, adapter, storage, files).stat().st_size
            checks.append(check.at_most(f"{name}: connections and programs of the converter", len(events), 0))
            policy.assemble(base, files, directory / "engines" / name)
            candidates.append(Candidate(name=name, rank=rank, storage=storage, update_bytes=size))
            step.log.info("  %s: %d bytes", name, size)
    (directory / CANDIDATES).write_bytes(msgspec.json.format(msgspec.json.encode(candidates)))
    full = publish.read_manifest(base).artefact_bytes
    metrics: step.Metrics = {
        candidate.name: {"bytes": candidate.update_bytes, "of_base": candidate.update_bytes / full}
        for candidate in candidates
    }
    return step.Findings(metrics, tuple(checks))


def read_candidates(run: step.Run) -> list[Candidate]:
    """Which adapters did this run make?"""
    return msgspec.json.decode((run.step(NAME) / CANDIDATES).read_bytes(), type=list[Candidate])


def engine_directory(run: step.Run, candidate: Candidate) -> Path:
    """Where do base and this adapter lie together?"""
    return run.step(NAME) / "engines" / candidate.name


if __name__ == "__main__":
    step.main(NAME, NEEDS, export)
