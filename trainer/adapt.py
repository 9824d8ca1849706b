"""Adapt: the base learns from the snapshot, as a LoRA adapter beside it."""

import math
from pathlib import Path

from trainer import check, step

NEEDS = ("freeze",)


def adapt(run: step.Run, directory: Path) -> step.Findings:
    """Train an adapter on the frozen training set and save it alone (safetensors).

    Raises:
        ContractError: the base's template differs from ours, too many samples are cut away, or nothing was evaluated.
    """
    from trainer import checkpoint, dataset, tune

    words = checkpoint.tokenizer(run.base)
    dataset.check_template(words)
    rule = run.rule.tune
    read = {name: dataset.read(run.step("freeze") / f"{name}.jsonl") for name in ("train", "validation")}
    training, validation = (dataset.encode(words, read[name], rule.cutoff_len) for name in read)
    model = tune.attach(checkpoint.load(run.base), rule)
    course = tune.Course(work=directory / "checkpoints", epochs=rule.num_train_epochs, rule=rule)
    metrics = tune.train(model, (training, validation), course)
    if step.leads():
        model.save_pretrained(directory, safe_serialization=True)
    dropped = len(read["train"]) - len(training)
    counts = {"samples": len(training), "dropped": dropped, "tokens": sum(len(each.input_ids) for each in training)}
    checks = (
        check.at_most("samples that do not end with the end mark", dataset.without_end(words, training), 0),
        check.at_most("prompts that are not the base's own template", dataset.foreign(words, read["train"]), 0),
        check.at_most("best evaluation loss, guessing is its limit", metrics["best_eval_loss"], math.log(len(words))),
    )
    return step.Findings({**metrics, **counts}, checks)


if __name__ == "__main__":
    step.main("adapt", NEEDS, adapt)
