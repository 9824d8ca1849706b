"""How does a LLaMA-Factory file become our rule? Key by key, and no key is dropped in silence.

A flat file of that tool (`stage: sft`, `finetuning_type: lora`, …) reads as it is. What we have under the same name is
honoured; what would change the meaning of a run is refused with its reason; what means nothing here is named in the
rule's `notes`, which every run keeps. What only we have stands in the same file in sections (`prune:`, `quant:`, …).
"""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from intentloop.errors import ContractError

MARKS = frozenset({"stage", "do_train", "finetuning_type", "template", "dataset"})  # keys that only that tool has


class Demand(msgspec.Struct, frozen=True):
    """A key that may only say what holds here anyway: the values that do, and why others cannot be followed."""

    allowed: tuple[Any, ...]
    reason: str


OFF: tuple[Any, ...] = (False, 0, "", "none")

DEMANDS: Mapping[str, Demand] = {
    "stage": Demand(("sft",), "the line fine-tunes on labelled answers"),
    "do_train": Demand((True,), "a run trains"),
    "finetuning_type": Demand(("lora",), "the line merges LoRA adapters; prune, heal and adapter releases need them"),
    "template": Demand(
        ("qwen3",), "phones feed Qwen3's own template with thinking off; other bytes in training would be asked wrongly"
    ),
    "enable_thinking": Demand((False,), "thinking is off in training, calibration and on phones"),
    "quantization_bit": Demand(OFF, "adapters are merged into full-precision weights; rounding is a step of its own"),
    "packing": Demand(OFF, "a packed sample reads its neighbours, a phone's prompt has none"),
    "neat_packing": Demand(OFF, "samples are never joined"),
    "train_on_prompt": Demand(OFF, "only the answer and its end mark are supervised"),
    "eval_strategy": Demand(("steps", "epoch"), "the best checkpoint is chosen by evaluation loss, so it must happen"),
    "optim": Demand(("adamw_torch", "adamw_torch_fused"), "AdamW is the one optimiser that is tested here"),
    "max_steps": Demand((*OFF, -1), "give num_train_epochs; the training set grows from run to run"),
    "adapter_name_or_path": Demand(OFF, "each run starts from the base; adapters in a row are a release kind"),
    "additional_target": Demand(OFF, "Qwen3-0.6B ties head and embedding, training either would destroy the merge"),
    "load_best_model_at_end": Demand((True,), "the best checkpoint is what goes on"),
    **dict.fromkeys(("use_dora", "pissa_init", "loraplus_lr_ratio"), Demand(OFF, "another method than plain LoRA")),
    **dict.fromkeys(("use_galore", "use_apollo", "use_badam", "use_muon"), Demand(OFF, "another optimiser")),
    **dict.fromkeys(("pure_bf16", "fp8"), Demand(OFF, "weights are kept in 32 bits and computed with in mixed ones")),
    **dict.fromkeys(
        ("neftune_noise_alpha", "label_smoothing_factor"), Demand(OFF, "another loss; ours are in `prune`")
    ),
    **dict.fromkeys(("lr_scheduler_kwargs",), Demand(({},), "the schedules are used with their defaults")),
    **dict.fromkeys(
        ("rope_scaling", "add_tokens", "add_special_tokens", "resize_vocab", "shift_attn", "mixture_of_depths"),
        Demand(OFF, "the phone's engine runs the base's own architecture and tokenizer"),
    ),
}

DATA = "the data is the run's frozen snapshot of the training set"
PLACE = "each run has its own directory, with logs, curves and checkpoints' choice"
SPEED = "changes speed or memory only"
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        ("dataset", "dataset_dir", "eval_dataset", "media_dir", "max_samples", "streaming", "buffer_size"), DATA
    ),
    **dict.fromkeys(("mix_strategy", "interleave_probs", "tokenized_path", "overwrite_cache", "mask_history"), DATA),
    **dict.fromkeys(("output_dir", "overwrite_output_dir", "logging_dir", "logging_steps", "plot_loss"), PLACE),
    **dict.fromkeys(("report_to", "run_name", "use_swanlab", "save_only_model", "save_total_limit"), PLACE),
    **dict.fromkeys(("save_steps", "save_strategy"), "a checkpoint is saved at every evaluation (eval_steps)"),
    "resume_from_checkpoint": "a killed run goes on at its first unfinished step by itself",
    **dict.fromkeys(("do_eval", "do_predict", "predict_with_generate"), "measured in the device engine, always"),
    **dict.fromkeys(("preprocessing_num_workers", "preprocessing_batch_size", "dataloader_num_workers"), SPEED),
    **dict.fromkeys(("flash_attn", "use_unsloth", "enable_liger_kernel", "disable_gradient_checkpointing"), SPEED),
    **dict.fromkeys(("gradient_checkpointing", "deepspeed", "fsdp", "ddp_timeout", "low_cpu_mem_usage"), SPEED),
    **dict.fromkeys(
        ("use_fast_tokenizer", "use_reentrant_gc", "upcast_layernorm", "ddp_find_unused_parameters"), SPEED
    ),
    "trust_remote_code": "code that comes with a model is never run",
    **dict.fromkeys(("cache_dir", "model_revision", "hf_hub_token"), "the base is a directory, nothing is downloaded"),
    **dict.fromkeys(("export_dir", "export_size", "export_device", "export_legacy_format"), "see step export"),
    **dict.fromkeys(("export_quantization_bit", "export_quantization_dataset"), "see the section `quant`"),
}
OLD_NAMES: Mapping[str, str] = {"evaluation_strategy": "eval_strategy"}
THEIR_DEFAULTS: Mapping[str, Any] = {
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "val_size": 0.0,
    "seed": 42,
}


def arrange(raw: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """Sort a file's keys into our sections.

    Args:
        raw: The file as it was read.
        own: Where each name belongs: parameter → section, "" for the top, where sections themselves are.
    Returns:
        The sections, with `notes` on keys without a meaning and on defaults that differ.
    Raises:
        ContractError: a key would change what a run means, is given twice, or is probably misspelt.
    """
    sections: dict[str, Any] = {name: dict(value) if isinstance(value, dict) else value for name, value in raw.items()}
    notes: list[str] = []
    for given in raw:
        key = OLD_NAMES.get(given, given)
        if raw[given] is None:  # there, too, it means: as if it were not written
            del sections[given]
            continue
        if key in DEMANDS:
            _check_demand(key, raw[given])
        if key in own:
            _place(sections, own[key], key, sections.pop(given))
        elif key in DEMANDS or key in IGNORED or not isinstance(raw[given], dict):
            notes += _note(key, sections.pop(given), own)
    if MARKS & raw.keys():
        notes += _defaults(sections.get("tune", {}) | sections.get("split", {}))
        _double_alpha(sections)
    return sections | ({"notes": notes} if notes else {})


def _check_demand(key: str, value: Any) -> None:
    demand = DEMANDS[key]
    if value not in demand.allowed:
        ours = str(demand.allowed[0]).lower()
        raise ContractError(f"{key}: {value!r} cannot be followed: {demand.reason}; set it to {ours} or leave it out")


def _place(sections: dict[str, Any], section: str, key: str, value: Any) -> None:
    place = sections.setdefault(section, {}) if section else sections
    if key in place:
        raise ContractError(f"{key} is given twice, by itself and in the section {section!r}; keep one")
    place[key] = value


def _note(key: str, value: Any, own: Mapping[str, str]) -> list[str]:
    """What is to be said of a key that has no place here? Nothing where it only states what holds anyway."""
    if key in IGNORED:
        return [f"{key}: {value!r} has no effect: {IGNORED[key]}"]
    if key in DEMANDS:
        return []
    close = difflib.get_close_matches(key, own, n=1, cutoff=0.85)
    if close:
        raise ContractError(f"{key} is no parameter; {close[0]} is meant? The names are those of trainer/line.yaml")
    return [f"{key}: {value!r} has no effect: it is not known here"]


def _defaults(given: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: not given, so the line's own default holds; LLaMA-Factory's would be {value!r}"
        for key, value in THEIR_DEFAULTS.items()
        if key not in given
    ]


def _double_alpha(sections: dict[str, Any]) -> None:
    """Their adapter's scale is twice the rank where the file does not say."""
    tune = sections.get("tune", {})
    if "lora_rank" in tune and "lora_alpha" not in tune:
        sections["tune"] = tune | {"lora_alpha": 2 * int(tune["lora_rank"])}
