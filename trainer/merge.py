"""Merge: the adapter goes into the weights, so that everything after this sees one plain model."""

from pathlib import Path

from trainer import check, step

NEEDS = ("freeze", "adapt")
CHECKED_PROMPTS = 10


def merge(run: step.Run, directory: Path) -> step.Findings:
    """Merge and save in the base's precision; the logits of ten prompts must survive saving and loading.

    Raises:
        ContractError: a tied head is no longer its embedding (fault M04).
    """
    from peft import PeftModel

    from trainer import checkpoint, dataset

    model = PeftModel.from_pretrained(checkpoint.load(run.base), run.step("adapt")).merge_and_unload()
    prompts = [dataset.prompt_text(sample) for sample in dataset.read(run.step("freeze") / "dev.jsonl")]
    change = checkpoint.save(model, run.base, directory, prompts[:CHECKED_PROMPTS])
    promise = check.at_most("change of a logit by saving and loading", change, checkpoint.MAX_LOGIT_CHANGE)
    return step.Findings({"max_logit_change": change}, (promise,))


if __name__ == "__main__":
    step.main("merge", NEEDS, merge)
