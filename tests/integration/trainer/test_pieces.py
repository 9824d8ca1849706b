"""Single steps on the tiny model in this process: each known fault is provoked, and seen."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import Qwen3ForCausalLM

from intentloop.errors import ContractError
from trainer import (
    awq_fold,
    build_tiny,
    check,
    checkpoint,
    dataset,
    influence,
    loss,
    prune,
    quantise,
    rule,
    tiny_corpus,
    tiny_tokenizer,
    tune,
)
from trainer.dataset import IGNORED

from .conftest import BASE

torch.set_num_threads(1)  # the models are tiny

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SAMPLES = tiny_corpus.samples(11, 24, 0.5)
PROMPTS = [dataset.prompt_text(sample) for sample in SAMPLES[:4]]


@pytest.fixture(scope="module")
def words() -> Any:
    return checkpoint.tokenizer(BASE)


@pytest.fixture(scope="module")
def base() -> Any:
    return checkpoint.load(BASE)


@pytest.fixture(scope="module")
def micro(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the tiny model: enough to fold."""
    model = copy.deepcopy(base)
    prune.drop_layers(model, range(1, 7))
    directory = tmp_path_factory.mktemp("micro")
    checkpoint.save(model, BASE, directory, PROMPTS[:1])
    return directory


@pytest.fixture(scope="module")
def rows(words: Any) -> list[list[int]]:
    return [sample.input_ids for sample in dataset.encode(words, SAMPLES, 1024)]


def test_influence_by_hooks_is_the_definition_over_all_hidden_states(base: Any, rows: list[list[int]]) -> None:
    model = copy.deepcopy(base)
    model.model.norm = torch.nn.Identity()  # so that the last state is that of the last block
    changes = torch.zeros(8, dtype=torch.float64)
    with torch.no_grad():
        for row in rows:
            states = model.model(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states
            for index in range(8):
                cosine = torch.nn.functional.cosine_similarity(states[index], states[index + 1], dim=-1)
                changes[index] += (1 - cosine).double().sum()
    expected = (changes / sum(map(len, rows))).tolist()
    assert influence.block_influence(base, rows) == pytest.approx(expected, rel=1e-5)


def test_pruned_layers_are_numbered_anew_and_every_list_is_cut(base: Any, words: Any) -> None:
    model = copy.deepcopy(base)  # M01, M02
    prune.drop_layers(model, (2, 5))
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(6))
    assert (model.config.num_hidden_layers, len(model.config.layer_types), model.config.max_window_layers) == (6, 6, 6)
    prune.check_cache(model, words, PROMPTS)


def test_a_layer_with_its_old_number_is_noticed(base: Any, words: Any) -> None:
    model = copy.deepcopy(base)  # M01
    prune.drop_layers(model, (2, 5))
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ContractError, match="cache"):
        prune.check_cache(model, words, PROMPTS)


def test_a_configuration_with_more_layers_than_weights_is_refused(base: Any, tmp_path: Path) -> None:
    model = copy.deepcopy(base)
    prune.drop_layers(model, (2,))
    checkpoint.save(model, BASE, tmp_path, PROMPTS[:1])
    config = (tmp_path / "config.json").read_text()
    layers = '"full_attention",\n    "full_attention"\n  ]'
    config = config.replace('"full_attention"\n  ]', layers).replace('"num_hidden_layers": 7', '"num_hidden_layers": 8')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ContractError, match="weights and configuration differ"):
        checkpoint.load(tmp_path)


def test_saving_keeps_the_logits_and_the_precision_of_the_source(base: Any, tmp_path: Path) -> None:
    change = checkpoint.save(copy.deepcopy(base), BASE, tmp_path, PROMPTS)
    assert change == 0.0
    assert (tmp_path / "model.safetensors").stat().st_size == (BASE / "model.safetensors").stat().st_size


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_model_that_computes_with_more_than_its_saved_weights_is_told_by_its_logits(
    factor: float, base: Any, tmp_path: Path
) -> None:
    model = copy.deepcopy(base)
    texts: list[int] = []

    def change(layer: Any, given: Any, told: torch.Tensor) -> torch.Tensor:
        texts.append(told.shape[1])
        return told * factor if len(texts) == 2 else told  # what a hook or an adapter adds is in no file

    model.model.norm.register_forward_hook(change)
    found = checkpoint.save(model, BASE, tmp_path, PROMPTS[:3])
    assert len(texts) == 3
    assert not check.at_most("change", found, checkpoint.MAX_LOGIT_CHANGE).holds


def test_a_head_that_is_no_longer_its_embedding_is_not_saved_as_if_it_were(base: Any, tmp_path: Path) -> None:
    model = copy.deepcopy(base)  # M04: what merging an adapter on a tied head does
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 1.5)
    with pytest.raises(ContractError, match="the weights are two"):
        checkpoint.save(model, BASE, tmp_path, PROMPTS[:1])


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens,q_proj"])
def test_an_adapter_on_a_tied_embedding_is_refused(target: str, base: Any) -> None:
    with pytest.raises(ContractError, match="tied"):  # M04
        tune.attach(base, rule.TuneRule(lora_target=target))


def test_the_last_supervised_token_is_the_end_mark_and_the_prompt_is_not_supervised(words: Any) -> None:
    end = words.convert_tokens_to_ids("<|im_end|>")  # M09
    for sample, encoded in zip(SAMPLES, dataset.encode(words, SAMPLES, 1024), strict=True):
        told = [label for label in encoded.labels if label != IGNORED]
        assert told[-1] == end
        assert words.decode(told) == dataset.answer_text(sample)
        assert words.decode(encoded.input_ids[: -len(told)]) == dataset.prompt_text(sample)


def test_the_end_mark_stays_supervised_when_padding_is_the_same_token(words: Any) -> None:
    end = words.convert_tokens_to_ids("<|im_end|>")  # M09
    encoded = sorted(dataset.encode(words, SAMPLES, 1024), key=lambda sample: len(sample.input_ids))
    batch = tune._Collator(end)([tune._row(encoded[0]), tune._row(encoded[-1])])
    for labels in batch["labels"]:
        assert labels[labels != IGNORED][-1] == end
    assert (batch["labels"][0] == end).sum() == 1


def test_a_long_sample_loses_old_behaviour_and_never_its_answer(words: Any) -> None:
    sample = max(SAMPLES, key=lambda one: len(one.read))  # M06
    long = msgspec.structs.replace(sample, read=sample.read * 20)
    (encoded,) = dataset.encode(words, [long], 300)
    assert len(encoded.input_ids) <= 300
    assert words.decode([label for label in encoded.labels if label != IGNORED]) == dataset.answer_text(sample)
    assert words.decode(encoded.input_ids).count("商详页") < len(long.read)


def test_samples_with_nothing_to_learn_stop_the_run(words: Any) -> None:
    with pytest.raises(ContractError, match="24 of 24 samples have no supervised token"):  # M06
        dataset.encode(words, SAMPLES, 40)


def test_evaluation_steps_are_clamped_to_the_run() -> None:
    published = rule.TuneRule(per_device_train_batch_size=2, gradient_accumulation_steps=8, eval_steps=100)
    assert tune.plan(300, 3, published) == tune.Plan(57, 57)  # M17: 19 steps an epoch
    assert tune.plan(10_300, 5, published).eval_steps == 100


def test_the_best_of_no_evaluation_is_an_error() -> None:
    with pytest.raises(ContractError, match="no evaluation"):  # M17
        tune.best([])
    with pytest.raises(ContractError, match="not numbers"):
        tune.best([float("nan")])
    assert tune.best([0.5, 0.2, 0.4])["best_eval_loss"] == 0.2


def test_another_chat_template_is_refused(words: Any) -> None:
    dataset.check_template(words)
    other = copy.deepcopy(words)  # M08
    other.chat_template = words.chat_template.replace("<think>\\n\\n</think>\\n\\n", "")
    with pytest.raises(ContractError, match="chat template"):
        dataset.check_template(other)


@pytest.mark.parametrize("block", [32, 64, 128])
def test_every_usual_block_fits_the_tiny_model(block: int, base: Any) -> None:
    quantise.check_blocks(base, block)


def test_a_block_that_does_not_divide_a_layer_is_refused(base: Any) -> None:
    with pytest.raises(ContractError, match="not a multiple of the quantisation block 48"):
        quantise.check_blocks(base, 48)


def _logits(model: Any, row: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([row])).logits
    return logits


def test_awq_scales_keep_what_the_model_says_in_whatever_order_samples_come(
    micro: Path, rows: list[list[int]], tmp_path: Path
) -> None:
    quant = rule.QuantRule(calibration_floor_tokens=100, awq_clip=False)  # M11
    for name, order in (("one", rows[:6]), ("other", rows[:6][::-1])):
        assert awq_fold.fold(micro, tmp_path / name, order, quant, 64) == sum(map(len, rows[:6]))
    source, one, other = (checkpoint.load(path) for path in (micro, tmp_path / "one", tmp_path / "other"))
    scaled = one.model.layers[0].self_attn.q_proj.weight - source.model.layers[0].self_attn.q_proj.weight
    assert scaled.abs().max() > 1e-2
    assert (_logits(one, rows[0]) - _logits(source, rows[0])).abs().max() < 0.05  # two roundings to fp16
    for (name, left), (_, right) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.allclose(left, right, rtol=2e-3, atol=2e-3), name


@pytest.mark.parametrize("lost", ["given", "layers"])
def test_a_calibration_sample_that_autoawq_passes_over_is_not_counted_as_used(
    lost: str, micro: Path, rows: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from awq.quantize import quantizer

    quant = rule.QuantRule(calibration_floor_tokens=100, awq_clip=False)  # M11
    if lost == "given":
        usual = quantizer.get_calib_dataset
        monkeypatch.setattr(quantizer, "get_calib_dataset", lambda **how: usual(**how)[:-1])
        used = awq_fold.fold(micro, tmp_path, rows[:4], quant, 64)
        assert used == sum(map(len, rows[:3]))
        assert not check.at_least("used", used, sum(map(len, rows[:4]))).holds
        return
    usual = quantizer.AwqQuantizer._module_forward
    monkeypatch.setattr(quantizer.AwqQuantizer, "_module_forward", lambda self, x, *more: usual(self, x[:3], *more))
    with pytest.raises(ContractError, match=r"calibrated on \(3, \d+\) \(rows, tokens\), read were \(4, "):
        awq_fold.fold(micro, tmp_path, rows[:4], quant, 64)


def _divergence(teacher: Any, student: Any, data: list[dataset.Encoded]) -> float:
    """Mean KL of the answers' tokens, nats."""
    total = 0.0
    for sample in data:
        told = [index for index, label in enumerate(sample.labels) if label != IGNORED]
        target, said = (_logits(model, sample.input_ids)[0, told[0] - 1 : -1] for model in (teacher, student))
        loss = torch.nn.functional.kl_div(
            said.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="sum"
        )
        total += loss.item() / len(told)
    return total / len(data)


@pytest.mark.parametrize("weights", [{}, {"hidden": 0.5, "attention": 0.5}])
def test_distillation_draws_a_pruned_model_towards_its_teacher(
    weights: dict[str, float], base: Any, words: Any, tmp_path: Path
) -> None:
    student = copy.deepcopy(base)
    prune.drop_layers(student, (2, 4))
    data = dataset.encode(words, SAMPLES, 1024)
    usual = rule.TuneRule(
        learning_rate=2e-3, per_device_train_batch_size=8, gradient_accumulation_steps=1, bf16=False, eval_steps=3
    )
    before = _divergence(base, student, data)
    teacher = loss.Teacher(model=copy.deepcopy(base), alpha=0.9, temperature=1.0, kept=(0, 1, 3, 5, 6, 7), **weights)
    tuned = tune.attach(student, usual)
    course = tune.Course(work=tmp_path / "checkpoints", epochs=2, rule=usual, teacher=teacher)
    tune.train(tuned, (data, data[:8]), course)
    assert not course.work.exists()
    assert _divergence(base, tuned.eval(), data) < before


def test_the_committed_tokenizer_is_what_the_script_builds(tmp_path: Path) -> None:
    build = build_tiny.BuildRule()
    corpus = tiny_corpus.samples(build.seed, 4000, 0.3, build.prefix_ratio)
    texts = (dataset.prompt_text(sample) + dataset.answer_text(sample) for sample in corpus)
    tiny_tokenizer.build(texts, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (BASE / name).read_bytes()


def test_the_build_script_teaches_answers(words: Any) -> None:
    torch.manual_seed(1)
    model = Qwen3ForCausalLM(build_tiny.config(words, layers=2))
    quick = build_tiny.BuildRule(bare_steps=6, full_steps=1, batch=4, warmup_steps=1)
    ids, labels = build_tiny._tensors(words, SAMPLES[:8], "")
    before = build_tiny._loss(model, ids, labels).item()
    build_tiny.train(model, words, quick)
    assert build_tiny._loss(model, ids, labels).item() < before - 0.5
