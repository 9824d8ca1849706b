"""How is a model fine-tuned? LoRA on all linear layers, loss on the answer only, best checkpoint by evaluation loss.

Used by `adapt.py` on the base and by `heal.py` on a pruned model. Source of the parameters: seeds/000.
"""

import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from intentloop.errors import ContractError
from trainer.dataset import IGNORED, Encoded
from trainer.rule import TuneRule
from trainer.step import Metrics

log = logging.getLogger("trainer")

TIED = ("lm_head", "embed_tokens")


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One training run: `work` takes its checkpoints and goes afterwards.

    `teacher` is a frozen model to imitate with its rule `(model, alpha, temperature)`; None trains on labels alone.
    """

    work: Path
    epochs: float
    rule: TuneRule
    teacher: Any = None


class Plan(msgspec.Struct, frozen=True):
    """How many steps does a training run take, and when does it look at the validation set?"""

    steps: int
    eval_steps: int


def plan(samples: int, epochs: float, rule: TuneRule) -> Plan:
    """Clamp `eval_steps` so that at least one evaluation, and with it one save, happens (fault M17)."""
    per_step = rule.per_device_train_batch_size * rule.gradient_accumulation_steps
    steps = max(1, math.ceil(epochs * math.ceil(samples / per_step)))
    return Plan(steps, max(1, min(rule.eval_steps, steps)))


def attach(model: PreTrainedModel, rule: TuneRule) -> Any:
    """Wrap a model so that only LoRA matrices learn.

    Raises:
        ContractError: the target is an embedding that the model ties to its head (fault M04).
    """
    target = rule.lora_target
    names = [name.strip() for name in target.split(",")]
    if getattr(model.config, "tie_word_embeddings", False) and any(name in TIED for name in names):
        raise ContractError(f"lora_target {target!r} names a tied embedding; merging it would destroy the model")
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rule.lora_rank,
        lora_alpha=rule.lora_alpha,
        lora_dropout=rule.lora_dropout,
        target_modules="all-linear" if target == "all" else names,
    )
    return get_peft_model(model, config)


def train(model: Any, data: tuple[list[Encoded], list[Encoded]], course: Course) -> Metrics:
    """Train what can learn in `model`, in place, and leave the best evaluated state in it.

    Args:
        data: Training and validation samples.
    Raises:
        ContractError: no evaluation happened, so "best" would mean nothing.
    """
    training, validation = data
    schedule = plan(len(training), course.epochs, course.rule)
    trainer = _DistillingTrainer(
        teacher=course.teacher,
        model=model,
        args=_arguments(course, schedule),
        train_dataset=[_row(sample) for sample in training],
        eval_dataset=[_row(sample) for sample in validation],
        data_collator=_Collator(model.config.pad_token_id),
        callbacks=[_Progress(schedule.steps)],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    finally:
        shutil.rmtree(course.work, ignore_errors=True)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {"steps": schedule.steps, "eval_steps": schedule.eval_steps, **best(losses)}


def best(losses: Sequence[float]) -> Metrics:
    """Which evaluation won?

    Raises:
        ContractError: none happened, or the best is not a number.
    """
    if not losses:
        raise ContractError("no evaluation happened; without one 'best' is the last; check eval_steps")
    if not math.isfinite(min(losses)):
        raise ContractError(f"evaluation losses {list(losses)} are not numbers; lower the learning rate")
    return {"evaluations": len(losses), "best_eval_loss": min(losses)}


def _arguments(course: Course, schedule: Plan) -> TrainingArguments:
    rule = course.rule
    return TrainingArguments(
        output_dir=str(course.work),
        num_train_epochs=course.epochs,
        learning_rate=rule.learning_rate,
        lr_scheduler_type=rule.lr_scheduler_type,
        warmup_steps=rule.warmup_steps,
        max_grad_norm=rule.max_grad_norm,
        per_device_train_batch_size=rule.per_device_train_batch_size,
        per_device_eval_batch_size=rule.per_device_eval_batch_size,
        gradient_accumulation_steps=rule.gradient_accumulation_steps,
        eval_strategy="steps",
        eval_steps=schedule.eval_steps,
        save_strategy="steps",
        save_steps=schedule.eval_steps,
        save_total_limit=2,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        bf16=rule.bf16,
        use_cpu=not torch.cuda.is_available(),
        optim="adamw_torch",
        seed=rule.seed,
        disable_tqdm=True,
        logging_steps=5,
        dataloader_pin_memory=torch.cuda.is_available(),
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
    )


class _DistillingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that can also imitate a teacher: loss = (1 - α)·CE + α·KL·T² on the supervised tokens."""

    def __init__(self, teacher: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._teacher = teacher

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """Source: seeds/000 (Minitron style), α and T are its `distil_alpha` and `distil_temperature`."""
        if self._teacher is None:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **more)
        teacher, alpha, temperature = self._teacher
        outputs = model(**inputs)
        told = inputs["labels"][:, 1:] != IGNORED
        with torch.no_grad():
            target = teacher(input_ids=inputs["input_ids"]).logits[:, :-1][told] / temperature
        mine = outputs.logits[:, :-1][told] / temperature  # (supervised tokens, vocabulary)
        divergence = torch.nn.functional.kl_div(
            mine.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        loss = (1 - alpha) * outputs.loss + alpha * divergence * temperature**2
        return (loss, outputs) if return_outputs else loss


class _Progress(TrainerCallback):  # type: ignore[misc]
    """One line now and then, so that a person sees the training move."""

    def __init__(self, steps: int) -> None:
        self._every = max(1, steps // 10)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Tell the loss about ten times, and every evaluation."""
        if logs and "eval_loss" in logs:
            log.info("  step %d of %d: evaluation loss %.4f", state.global_step, state.max_steps, logs["eval_loss"])
        elif logs and "loss" in logs and state.global_step % self._every < args.logging_steps:
            log.info("  step %d of %d: loss %.4f", state.global_step, state.max_steps, float(logs["loss"]))


class _Collator:
    """Pads a batch on the right; labels of padding are ignored, also where padding and end mark are one token."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        length = max(row["length"] for row in rows)
        ids = torch.full((len(rows), length), self._pad)  # (batch, tokens)
        labels, mask = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : row["length"]] = torch.tensor(row["input_ids"])
            labels[index, : row["length"]] = torch.tensor(row["labels"])
            mask[index, : row["length"]] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _row(sample: Encoded) -> dict[str, Any]:
    return {"input_ids": sample.input_ids, "labels": sample.labels, "length": len(sample.input_ids)}
