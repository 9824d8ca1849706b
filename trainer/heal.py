"""Heal: a pruned model learns again what the cut took. LoRA on the same data, or imitation of the unpruned model.

Source: seeds/000: three epochs, since five fit the noise of the cut; distillation with α = 0.9, T = 1.
"""

from pathlib import Path

from trainer import step

NEEDS = ("freeze", "merge", "prune")
CHECKED_PROMPTS = 10


def heal(run: step.Run, directory: Path) -> step.Metrics:
    """Write `drop<K>/`, a plain merged model, for every pruned one; K = 0 has nothing to heal and is copied.

    Raises:
        ContractError: a merge does not survive saving, or nothing was evaluated.
    """
    from trainer import checkpoint, dataset, tune

    rule = run.rule
    words = checkpoint.tokenizer(run.step("merge"))
    read = {name: dataset.read(run.step("freeze") / f"{name}.jsonl") for name in ("train", "validation", "dev")}
    training = dataset.encode(words, read["train"], rule.tune.cutoff_len)
    validation = dataset.encode(words, read["validation"], rule.tune.cutoff_len)
    prompts = [dataset.prompt_text(sample) for sample in read["dev"][:CHECKED_PROMPTS]]
    teacher = None
    if rule.prune.healing == "distil":
        teacher = (checkpoint.load(run.step("merge")), rule.prune.distil_alpha, rule.prune.distil_temperature)
    course = tune.Course(work=directory / "checkpoints", epochs=rule.prune.heal_epochs, rule=rule.tune, teacher=teacher)
    metrics: step.Metrics = {}
    for count in rule.prune.layers_to_drop:
        source = run.step("prune") / f"drop{count}"
        model = checkpoint.load(source)
        if count:
            tuned = tune.attach(model, rule.tune)
            result = tune.train(tuned, (training, validation), course)
            metrics[f"drop{count}_best_eval_loss"] = result["best_eval_loss"]
            model = tuned.merge_and_unload()
        metrics[f"drop{count}_max_logit_change"] = checkpoint.save(model, source, directory / f"drop{count}", prompts)
    return metrics


if __name__ == "__main__":
    step.main("heal", NEEDS, heal)
