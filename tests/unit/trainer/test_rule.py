"""Rule files: a LLaMA-Factory file reads as it is, and nothing in it is followed or dropped in silence."""

from pathlib import Path

import msgspec
import pytest

from intentloop.errors import ContractError
from trainer import llama_factory, rule, step

TRAINER = Path(rule.__file__).parent

# A file as a team that fine-tunes Qwen3-0.6B with LLaMA-Factory has it
THEIRS = """
### model
model_name_or_path: models/Qwen3-0.6B
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 32
lora_target: q_proj,v_proj
### dataset
dataset: intents_2026_11
template: qwen3
enable_thinking: false
cutoff_len: 1536
max_samples: 20000
preprocessing_num_workers: 8
packing: false
### output
output_dir: saves/qwen3-0.6b/lora
logging_steps: 10
save_steps: 200
plot_loss: true
overwrite_output_dir: true
### train
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
weight_decay: 0.01
bf16: true
quantization_bit: null
ddp_timeout: 180000000
### eval
val_size: 0.1
per_device_eval_batch_size: 8
evaluation_strategy: steps
eval_steps: 200
"""


def read(tmp_path: Path, text: str) -> rule.LineRule:
    path = tmp_path / "rule.yaml"
    path.write_text(text, encoding="utf-8")
    return rule.read(path)


def test_a_file_of_llama_factory_is_honoured_key_by_key(tmp_path: Path) -> None:
    found = read(tmp_path, THEIRS)
    assert found.model_name_or_path == "models/Qwen3-0.6B"
    assert found.tune == rule.TuneRule(
        cutoff_len=1536,
        lora_target="q_proj,v_proj",
        lora_rank=32,
        lora_alpha=64,  # theirs is twice the rank where the file does not say
        num_train_epochs=3,
        learning_rate=1e-4,  # which YAML 1.1 reads as text
        warmup_ratio=0.1,
        weight_decay=0.01,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=8,
        eval_steps=200,
    )
    assert found.split == rule.SplitRule(val_size=0.1)
    assert (found.prune, found.quant, found.gate) == (rule.PruneRule(), rule.QuantRule(), rule.LineRule().gate)


def test_keys_without_a_meaning_and_defaults_that_differ_are_named(tmp_path: Path) -> None:
    notes = read(tmp_path, THEIRS).notes
    silent = {
        "trust_remote_code", "dataset", "max_samples", "preprocessing_num_workers", "output_dir", "logging_steps",
        "save_steps", "plot_loss", "overwrite_output_dir", "ddp_timeout",
    }  # fmt: skip
    assert {note.split(":")[0] for note in notes if "no effect" in note} == silent
    assert [note for note in notes if "not given" in note] == [
        "seed: not given, so the line's own default holds; LLaMA-Factory's would be 42"
    ]


def test_the_notes_are_kept_with_the_run(tmp_path: Path) -> None:
    found = read(tmp_path, THEIRS)
    step.start(tmp_path, step.RunSpec(number=2, base="", base_name=""), found)
    kept = (tmp_path / "rule-notes.txt").read_text(encoding="utf-8")
    assert kept.splitlines() == list(found.notes)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("finetuning_type: full", "finetuning_type: 'full' cannot be followed: .*LoRA.*set it to lora"),
        ("quantization_bit: 4", "quantization_bit: 4 cannot be followed"),
        ("template: llama3", "thinking off"),
        ("template: qwen3_nothink", "thinking off"),
        ("enable_thinking: true", "thinking is off"),
        ("stage: dpo", "labelled answers"),
        ("packing: true", "reads its neighbours"),
        ("train_on_prompt: true", "only the answer"),
        ('eval_strategy: "no"', "evaluation loss"),
        ("max_steps: 500", "num_train_epochs"),
        ("use_dora: true", "another method"),
        ("pure_bf16: true", "32 bits"),
        ("neftune_noise_alpha: 5", "another loss"),
        ("additional_target: embed_tokens", "ties head"),
        ("val_size: 0", "`float` > 0"),
        ("lora_rank: 0", "`int` >= 1"),
        ("learning_rat: 1.0e-4", "learning_rate is meant"),
        ("prune: 4", "Expected `object`"),
        ("prunes: {layers_to_drop: [4]}", "prunes"),
        ("tune: {seed: 3}\nseed: 4", "given twice"),
    ],
)
def test_what_would_change_the_meaning_is_refused_with_its_reason(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=reason):
        read(tmp_path, line)


@pytest.mark.parametrize("key", list(llama_factory.DEMANDS))
def test_a_key_that_says_what_holds_anyway_is_accepted_without_a_word(key: str, tmp_path: Path) -> None:
    said = msgspec.yaml.encode({key: llama_factory.DEMANDS[key].allowed[0]}).decode()
    notes = read(tmp_path, said).notes
    assert not [note for note in notes if note.startswith(f"{key}:") and "no effect" in note]


def test_no_key_is_both_honoured_and_without_effect() -> None:
    honoured = set(rule.TuneRule.__struct_fields__) | set(rule.LineRule.__struct_fields__) | {"val_size"}
    assert not honoured & set(llama_factory.IGNORED)
    assert not set(llama_factory.DEMANDS) & set(llama_factory.IGNORED)
    assert honoured & set(llama_factory.DEMANDS) == {"eval_strategy"}


def test_an_unknown_key_that_resembles_none_of_ours_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, "freeze_vision_tower: true").notes == (
        "freeze_vision_tower: True has no effect: it is not known here",
    )


def test_the_documented_file_holds_every_parameter_with_its_default() -> None:
    text = (TRAINER / "line.yaml").read_text(encoding="utf-8")
    assert rule.read(TRAINER / "line.yaml") == rule.LineRule(), "trainer/line.yaml must give the defaults of rule.py"
    given = msgspec.yaml.decode(text)
    sections = msgspec.to_builtins(rule.LineRule())
    flat = sections.pop("tune") | {"val_size": sections["split"].pop("val_size")}
    del sections["notes"]
    missing = {name for name in (flat | sections) if name not in given}
    for name, section in sections.items():
        if isinstance(section, dict):
            missing |= {f"{name}.{key}" for key in section if key not in given.get(name, {})}
    assert not missing, "trainer/line.yaml documents every parameter of rule.py"


def test_the_tiny_rule_reads_without_notes() -> None:
    assert rule.read(TRAINER / "tiny.yaml").notes == ()
