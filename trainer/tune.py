"""How is a model fine-tuned? LoRA on all linear layers, loss on the answer only, best checkpoint by evaluation loss.

Used by `adapt.py` on the base and by `heal.py` on a pruned model. Several processes share the work where
`trainer/launch.py` started them. Source of the parameters: seeds/000.
"""

import logging
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from intentloop.errors import ContractError
from trainer import curve, loss, progress, step
from trainer.dataset import IGNORED, Encoded
from trainer.rule import TuneRule
from trainer.step import Metrics

log = logging.getLogger("trainer")

TIED = ("lm_head", "embed_tokens")


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One training run: `work` takes its checkpoints and goes afterwards; `<name>-losses` stay beside it.

    `teacher` is whom to imitate and how; None trains on labels alone.
    """

    work: Path
    epochs: float
    rule: TuneRule
    name: str = "training"
    teacher: loss.Teacher | None = None


class Plan(msgspec.Struct, frozen=True):
    """How many steps does a training run take, and when does it look at the validation set?"""

    steps: int
    eval_steps: int


def plan(samples: int, epochs: float, rule: TuneRule, processes: int = 1) -> Plan:
    """Clamp `eval_steps` so that at least one evaluation, and with it one save, happens (fault M17)."""
    per_step = rule.per_device_train_batch_size * rule.gradient_accumulation_steps * processes
    steps_an_epoch = math.ceil(samples / per_step)
    steps = max(1, math.ceil(epochs * steps_an_epoch))
    wanted = rule.eval_steps if rule.eval_strategy == "steps" else steps_an_epoch
    return Plan(steps, max(1, min(wanted, steps)))


def processes() -> int:
    """How many processes train together?"""
    return int(os.environ.get("WORLD_SIZE", "1"))


def precision(rule: TuneRule) -> str:
    """In which precision are products computed? What the rule asks for where the GPU has it; 32 bits on CPUs."""
    if torch.cuda.is_available() and rule.bf16 and torch.cuda.is_bf16_supported():
        return "bf16"
    return "fp16" if torch.cuda.is_available() and rule.fp16 else "fp32"


def hardware(rule: TuneRule) -> Metrics:
    """On what is trained, how precisely, and by how many processes? Recorded, since weights depend on it."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "precision": precision(rule),
        "processes": processes(),
        "threads": torch.get_num_threads(),
    }


def attach(model: PreTrainedModel, rule: TuneRule) -> Any:
    """Wrap a model so that only LoRA matrices learn; they begin the same for the same seed.

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
        use_rslora=rule.use_rslora,
        target_modules="all-linear" if target == "all" else names,
    )
    set_seed(rule.seed)
    return get_peft_model(model, config)


def train(model: Any, data: tuple[list[Encoded], list[Encoded]], course: Course) -> Metrics:
    """Train what can learn in `model`, in place, and leave the best evaluated state in it.

    Args:
        data: Training and validation samples.
    Raises:
        ContractError: no evaluation happened, so "best" would mean nothing.
    """
    training, validation = data
    schedule = plan(len(training), course.epochs, course.rule, processes())
    record = course.work.parent / f"{course.name}-losses.jsonl"
    trainer = _DistillingTrainer(
        teacher=course.teacher,
        model=model,
        args=_arguments(course, schedule),
        train_dataset=[_row(sample) for sample in training],
        eval_dataset=[_row(sample) for sample in validation],
        data_collator=_Collator(model.config.pad_token_id),
        callbacks=[_Record(record, progress.Advance(course.name, schedule.steps))] if step.leads() else [],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
        trainer.accelerator.wait_for_everyone()  # before the best checkpoint goes, all must have read it
    finally:
        if step.leads():
            shutil.rmtree(course.work, ignore_errors=True)
    model.to("cpu")
    if step.leads():
        curve.draw(record, record.with_suffix(".svg"))
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {"steps": schedule.steps, "eval_steps": schedule.eval_steps, **best(losses), **hardware(course.rule)}


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
        warmup_steps=rule.warmup_steps or rule.warmup_ratio,
        weight_decay=rule.weight_decay,
        adam_beta1=rule.adam_beta1,
        adam_beta2=rule.adam_beta2,
        adam_epsilon=rule.adam_epsilon,
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
        bf16=precision(rule) == "bf16",
        fp16=precision(rule) == "fp16",
        full_determinism=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
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
    """A Trainer that can also imitate a teacher, by `trainer/loss.py`."""

    def __init__(self, teacher: loss.Teacher | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._teacher = teacher
        if teacher is not None:
            loss.prepare(arguments["model"], teacher)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """Weigh a batch by its share of the step's supervised tokens, as the Trainer does without a teacher."""
        if self._teacher is None:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **more)
        found, outputs = loss.distilled(model, inputs, self._teacher)
        found = found * loss.share(inputs["labels"], more.get("num_items_in_batch"), self.accelerator.num_processes)
        return (found, outputs) if return_outputs else found


class _Record(TrainerCallback):  # type: ignore[misc]
    """Keeps every loss as a JSON line, and lets a person see the training move."""

    def __init__(self, path: Path, advance: progress.Advance) -> None:
        self._path, self._advance = path, advance
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Show the bar, if there is one."""
        self._advance.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Take it away."""
        self._advance.__exit__(None, None, None)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Keep what the trainer tells of a step: loss, learning rate, gradient norm, or the evaluation's loss."""
        kept = {key: float(logs[key]) for key in curve.KEPT if key in (logs or {})}
        if not kept:
            return
        with self._path.open("ab") as lines:
            lines.write(msgspec.json.encode({"step": state.global_step, **kept}) + b"\n")
        if "loss" in kept:
            self._advance.to(state.global_step, f"loss {kept['loss']:.4f}")
        elif "eval_loss" in kept:
            log.info("  step %d of %d: evaluation loss %.4f", state.global_step, state.max_steps, kept["eval_loss"])


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
