"""Which parameters does a run of the model line have? All of them, frozen, in one place.

Defaults are those of the published system (seeds/000); where LLaMA-Factory has a name for a parameter, it is that name.
`line.yaml` documents each, `tiny.yaml` holds what differs for the tiny base model. A LLaMA-Factory file reads as it is.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from intentloop.errors import ContractError
from intentloop.gate import GateRule
from trainer import llama_factory

InfluenceCriterion = Literal["block", "angular", "perplexity", "taylor"]
Healing = Literal["lora", "distil", "both"]
Count = Annotated[int, msgspec.Meta(ge=1)]
Quantiser = Literal["rtn", "hqq", "awq", "llmcompressor"]
AdapterStorage = Literal["fp16", "int8"]


class TuneRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fine-tuning. Batches are samples, `learning_rate` is the peak, `eval_steps` is clamped (see fault M17).

    The global batch is `per_device_train_batch_size` × `gradient_accumulation_steps` × `num_processes`. `warmup_ratio`
    counts only where `warmup_steps` is 0. `bf16` and `fp16` are what is asked for; `tune.precision` says what is used.
    """

    cutoff_len: Count = 2048
    lora_target: str = "all"
    lora_rank: Count = 8
    lora_alpha: Count = 16
    lora_dropout: float = 0.0
    use_rslora: bool = False
    num_train_epochs: float = 5
    learning_rate: float = 5e-5
    lr_scheduler_type: str = "cosine"
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    per_device_train_batch_size: Count = 2
    gradient_accumulation_steps: Count = 8
    per_device_eval_batch_size: Count = 4
    eval_strategy: Literal["steps", "epoch"] = "steps"
    eval_steps: Count = 100
    bf16: bool = True
    fp16: bool = False
    seed: int = 1


class SplitRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the snapshot is cut: `val_size` of it chooses the best checkpoint, `dev_samples` choose the candidate.

    `val_size` is a share under 1 and a number of samples from 1 on.
    """

    val_size: Annotated[float, msgspec.Meta(gt=0)] = 0.05
    dev_samples: int = 300
    dev_ratio: float = 0.2
    calibration_samples: int = 128
    golden_samples: int = 2000


class PruneRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`layers_to_drop` lists how many; each is healed and measured. 0 keeps all. `healing` is LoRA or distillation.

    `both` tries each and keeps the better one by the device engine. The `distil_*` are the weights in `loss.py`.
    """

    influence_criterion: InfluenceCriterion = "block"
    layers_to_drop: tuple[int, ...] = (4, 6, 8)
    healing: Healing = "lora"
    heal_epochs: float = 3
    distil_alpha: float = 0.9
    distil_temperature: float = 1.0
    distil_hidden: float = 0.0
    distil_attention: float = 0.0


class QuantRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Candidates are all pairs of `quantisers` and `quant_blocks` on each pruned model.

    `fallback_bit` is the precision of one plain candidate more for each of them, measured only when all others break
    the gate's limits on faults or accuracy; 0 makes none. `lm_quant_bits` lists head precisions to try, none means
    `lm_quant_bit` alone.
    """

    quantisers: tuple[Quantiser, ...] = ("rtn", "hqq", "awq")
    quant_blocks: tuple[int, ...] = (64,)
    quant_bit: int = 4
    lm_quant_bit: int = 8
    lm_quant_bits: tuple[int, ...] = ()
    fallback_bit: int = 8
    calibration_floor_tokens: int = 4096
    awq_clip: bool = True


class MeasureRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`choice_margin` is the share of dev samples by which accuracies may differ and still count as equal."""

    threads: int = 1
    max_tokens: int = 40
    choice_margin: float = 0.01
    kl_samples: int = 24
    speed_lengths: tuple[int, ...] = (128, 256, 512, 1024)
    stability_runs: int = 200


class SearchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How are hopeless candidates told early? The rules themselves are in trainer/search_race.py.

    `shares` of the dev set after which the race is looked at; `confidence_z` is that of each look, 2.58 for 99 %.
    `divergence_factor`: a sibling as small and so many times nearer to full precision makes a candidate hopeless.
    `probe_slack` is the accuracy that another quantiser may win back against the round-to-nearest probe of a healed
    model. `latency_runs` prefills are timed and the fastest counts, since only other work on the machine adds time.
    """

    shares: tuple[float, ...] = (0.25, 0.5)
    confidence_z: float = 2.58
    divergence_factor: float = 2.0
    probe_slack: float = 0.05
    latency_runs: int = 3


class AdapterRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Releases that are an adapter of the released base. `adapter_release/policy.py` is the rule behind `auto`.

    All pairs of `ranks` and `storages` are measured; training is that of `TuneRule` with the rank in its place.
    """

    release_kind: Literal["full", "adapter", "auto"] = "full"
    ranks: tuple[int, ...] = (4, 8)
    storages: tuple[AdapterStorage, ...] = ("int8", "fp16")
    max_in_row: int = 6
    min_free_bytes: int = 64_000_000


class LineRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run depends on besides its data.

    `model_name_or_path` is the base's directory, empty for the trainer's setting. `num_processes` train together, one a
    GPU. `notes` say which keys of the file have no effect, and why; they are kept with every run.
    """

    model_name_or_path: str = ""
    num_processes: Count = 1
    tune: TuneRule = TuneRule()
    split: SplitRule = SplitRule()
    prune: PruneRule = PruneRule()
    quant: QuantRule = QuantRule()
    measure: MeasureRule = MeasureRule()
    search: SearchRule = SearchRule()
    gate: GateRule = GateRule()
    adapter: AdapterRule = AdapterRule()
    min_free_bytes: int = 1_000_000_000  # what a phone must have free, on top of nothing
    notes: tuple[str, ...] = ()


def read(path: Path) -> LineRule:
    """Read a rule file (YAML), ours or LLaMA-Factory's.

    Raises:
        ContractError: the file names a parameter that does not exist or would change what a run means, or gives it a
            value of the wrong type.
    """
    try:
        raw = msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any] | None) or {}
        return msgspec.convert(llama_factory.arrange(raw, _places()), LineRule, strict=False)
    except (msgspec.DecodeError, ContractError) as error:
        raise ContractError(f"{path}: {error}; the names are those of trainer/line.yaml") from error


def _places() -> dict[str, str]:
    """Where does each name that a file may use belong? The section's name, "" for the top."""
    top = dict.fromkeys(LineRule.__struct_fields__, "")
    del top["notes"]
    return {**dict.fromkeys(TuneRule.__struct_fields__, "tune"), "val_size": "split", **top}
