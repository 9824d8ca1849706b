"""What would a step of the line be without us? The same libraries called plainly: nothing checked, nothing recorded.

`python -m bench.line_plain STEP RUN OUT` does one step of a finished run as a short script would; `bench.line` times
both. Reads the run's earlier steps, writes to OUT.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import step

Plain = Callable[[step.Run, Path], None]


def adapt(run: step.Run, out: Path) -> None:
    """Fine-tune with peft and the Trainer of transformers, evaluated as often, and save the adapter."""
    from trainer import tune

    model = tune.attach(_load(run.base), run.rule.tune)
    _train(run, model, run.rule.tune.num_train_epochs, out)
    model.save_pretrained(out)


def merge(run: step.Run, out: Path) -> None:
    """Merge the adapter and save."""
    from peft import PeftModel

    PeftModel.from_pretrained(_load(run.base), run.step("adapt")).merge_and_unload().save_pretrained(out)


def prune(run: step.Run, out: Path) -> None:
    """Leave the same layers out and save."""
    from trainer import prune as ours

    for count in run.rule.prune.layers_to_drop:
        model = _load(run.step("merge"))
        ours.drop_layers(model, run.metrics("prune")[f"drop{count}"])
        model.save_pretrained(out / f"drop{count}")


def heal(run: step.Run, out: Path) -> None:
    """Fine-tune the pruned models, merge and save."""
    from trainer import tune

    for count in run.rule.prune.layers_to_drop:
        model = tune.attach(_load(run.step("prune") / f"drop{count}"), run.rule.tune)
        _train(run, model, run.rule.prune.heal_epochs, out)
        model.merge_and_unload().save_pretrained(out / f"drop{count}")


def export(run: step.Run, out: Path) -> None:
    """Convert every candidate, and that is it."""
    import msgspec

    from trainer import converter, quantise

    for each in quantise.read_candidates(run):
        bits = msgspec.structs.replace(run.rule.quant, quant_bit=each.bits, lm_quant_bit=each.head_bits)
        converter.convert(run.directory / each.checkpoint, out / each.name, each.quantiser, each.block, bits)


STEPS: dict[str, Plain] = {"adapt": adapt, "merge": merge, "prune": prune, "heal": heal, "export": export}


def _load(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)


def _train(run: step.Run, model: Any, epochs: float, out: Path) -> None:
    from transformers import Trainer

    from trainer import dataset, tune

    rule = run.rule.tune
    words = _words(run.base)
    rows = [
        [
            tune._row(each)
            for each in dataset.encode(words, dataset.read(run.step("freeze") / f"{name}.jsonl"), rule.cutoff_len)
        ]
        for name in ("train", "validation")
    ]
    course = tune.Course(work=out / "checkpoints", epochs=epochs, rule=rule)
    Trainer(
        model=model,
        args=tune._arguments(course, tune.plan(len(rows[0]), epochs, rule)),
        train_dataset=rows[0],
        eval_dataset=rows[1],
        data_collator=tune._Collator(model.config.pad_token_id),
    ).train()


def _words(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


if __name__ == "__main__":
    step.prepare_process()
    STEPS[sys.argv[1]](step.Run(Path(sys.argv[2])), Path(sys.argv[3]))
    print(step.peak_bytes())
