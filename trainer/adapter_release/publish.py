"""Publish: the adapter alone with a signed manifest that names the base it needs."""

from pathlib import Path

from intentloop import prompt
from intentloop.release import BaseArtefact, Manifest, artefact_sha256
from trainer import judge as full_judge
from trainer import publish as full_publish
from trainer import step
from trainer.adapter_release import export, judge, measure, train
from trainer.engine import engine_version

NEEDS = ("freeze", train.NAME, export.NAME, measure.NAME, judge.NAME)
NAME = "adapter-publish"


def publish(run: step.Run, directory: Path) -> step.Findings:
    """Write `release/` with its manifest last."""
    candidate = measure.read_choice(run).candidate
    base = full_publish.read_manifest(Path(run.spec.base_release))
    named = BaseArtefact(version=base.version, sha256=artefact_sha256(base.files))
    lineage = {**full_publish.lineage(run), "base_release": named.sha256, "adapter": candidate.name}
    manifest = Manifest(
        version=full_publish.version(run.spec.number, lineage),
        previous=run.spec.previous,
        base_model=run.spec.base_name,
        prompt_version=prompt.VERSION,
        engine=engine_version(),
        quantiser=f"{base.quantiser}; adapter rank {candidate.rank} {candidate.storage}",
        layers_dropped=base.layers_dropped,
        files=(),
        artefact_bytes=0,
        min_free_bytes=run.rule.adapter.min_free_bytes,
        measured=full_judge.read_report(run.step(judge.NAME) / "candidate.json").measured,
        steps=tuple(full_publish.record(run, name) for name in NEEDS),
        lineage=lineage,
        reason=f"{run.spec.reason}; {'; '.join(full_judge.read_decision(run, judge.NAME).reasons)}",
        created_at_ms=run.spec.created_at_ms,
        kind="adapter",
        base=named,
    )
    done = full_publish.pack(run.step(export.NAME) / "files" / candidate.name, directory / "release", manifest)
    metrics = {
        "version": done.version,
        "artefact_bytes": done.artefact_bytes,
        "of_base": done.artefact_bytes / base.artefact_bytes,
    }
    return step.Findings(metrics, full_publish.promises(directory / "release"))


if __name__ == "__main__":
    step.main(NAME, NEEDS, publish)
