"""Export: every candidate becomes the files that a phone would download."""

from pathlib import Path

import msgspec

from trainer import check, export_checks, step

NEEDS = ("freeze", "quantise")


def export(run: step.Run, directory: Path) -> step.Findings:
    """Write one artefact directory a candidate.

    Raises:
        ContractError: an artefact holds text of the calibration set.
    """
    from intentloop import prompt
    from trainer import converter, dataset, quantise

    frozen = dataset.read(run.step("freeze") / "calibration.jsonl")
    texts = [prompt.sequence_text(sample.read) for sample in frozen]
    metrics: step.Metrics = {"calibration_texts_looked_for": len(texts)}
    checks: list[check.Check] = []
    for candidate in quantise.read_candidates(run):
        target, source = directory / candidate.name, run.directory / candidate.checkpoint
        bits = msgspec.structs.replace(run.rule.quant, quant_bit=candidate.bits, lm_quant_bit=candidate.head_bits)
        with export_checks.watched() as events:
            converter.convert(source, target, candidate.quantiser, candidate.block, bits)
        converter.check_no_text(target, texts)
        checks += export_checks.checks(candidate.name, target, source, events)
        metrics[f"{candidate.name}_bytes"] = sum(path.stat().st_size for path in target.iterdir())
        step.log.info("  %s: %d bytes", candidate.name, metrics[f"{candidate.name}_bytes"])
    return step.Findings(metrics, tuple(checks))


if __name__ == "__main__":
    step.main("export", NEEDS, export)
