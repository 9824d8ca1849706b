"""Which parameters does a run of the model line have? All of them, frozen, in one place.

Defaults are those of the published system (seeds/000); where LLaMA-Factory has a name for a parameter, it is that name.
`tiny.yaml` holds what differs for the tiny base model.
"""

from pathlib import Path
from typing import Literal

import msgspec

from intentloop.errors import ContractError
from intentloop.gate import GateRule

InfluenceCriterion = Literal["block", "angular", "perplexity", "taylor"]
Healing = Literal["lora", "distil", "both"]
Quantiser = Literal["rtn", "hqq", "awq"]


class TuneRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fine-tuning. Batches are samples, `learning_rate` is the peak, `eval_steps` is clamped (see fault M17)."""

    cutoff_len: int = 2048
    lora_target: str = "all"
    lora_rank: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    num_train_epochs: float = 5
    learning_rate: float = 5e-5
    lr_scheduler_type: str = "cosine"
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    per_device_train_batch_size: int = 2
    gradient_accumulation_steps: int = 8
    per_device_eval_batch_size: int = 4
    eval_steps: int = 100
    bf16: bool = True
    seed: int = 1


class SplitRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the snapshot is cut: `val_size` of it chooses the best checkpoint, `dev_samples` choose the candidate."""

    val_size: float = 0.05
    dev_samples: int = 300
    dev_ratio: float = 0.2
    calibration_samples: int = 128
    golden_samples: int = 2000


class PruneRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`layers_to_drop` lists how many; each is healed and measured. 0 keeps all. `healing` is LoRA or distillation.

    `both` tries each and keeps the better one by the device engine.
    """

    influence_criterion: InfluenceCriterion = "block"
    layers_to_drop: tuple[int, ...] = (4, 6, 8)
    healing: Healing = "lora"
    heal_epochs: float = 3
    distil_alpha: float = 0.9
    distil_temperature: float = 1.0


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


class LineRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run depends on besides its data and its base model."""

    tune: TuneRule = TuneRule()
    split: SplitRule = SplitRule()
    prune: PruneRule = PruneRule()
    quant: QuantRule = QuantRule()
    measure: MeasureRule = MeasureRule()
    search: SearchRule = SearchRule()
    gate: GateRule = GateRule()
    min_free_bytes: int = 1_000_000_000  # what a phone must have free, on top of nothing


def read(path: Path) -> LineRule:
    """Read a rule file (YAML).

    Raises:
        ContractError: the file names a parameter that does not exist, or gives it a value of the wrong type.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=LineRule)
    except msgspec.DecodeError as error:
        raise ContractError(f"{path}: {error}; the names are those of trainer/rule.py") from error
