"""Adapt: the base learns from the snapshot, as a LoRA adapter beside it."""

from pathlib import Path

from trainer import step

NEEDS = ("freeze",)


def adapt(run: step.Run, directory: Path) -> step.Metrics:
    """Train an adapter on the frozen training set and save it alone (safetensors).

    Raises:
        ContractError: the base's template differs from ours, too many samples are cut away, or nothing was evaluated.
    """
    from trainer import checkpoint, dataset, tune

    words = checkpoint.tokenizer(run.base)
    dataset.check_template(words)
    cutoff = run.rule.tune.cutoff_len
    training, validation = (
        dataset.encode(words, dataset.read(run.step("freeze") / f"{name}.jsonl"), cutoff)
        for name in ("train", "validation")
    )
    model = tune.attach(checkpoint.load(run.base), run.rule.tune)
    rule = run.rule.tune
    course = tune.Course(work=directory / "checkpoints", epochs=rule.num_train_epochs, rule=rule)
    metrics = tune.train(model, (training, validation), course)
    model.save_pretrained(directory, safe_serialization=True)
    return {**metrics, "samples": len(training), "tokens": sum(len(sample.input_ids) for sample in training)}


if __name__ == "__main__":
    step.main("adapt", NEEDS, adapt)
