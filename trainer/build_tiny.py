"""Where does the committed tiny base model come from? From this script, on two cores in minutes.

`python -m trainer.build_tiny --out DIRECTORY`, with `OMP_WAIT_POLICY=PASSIVE` where cores are shared.

It trains a Qwen3 of 1.4 million parameters from nothing on clean sessions of our made-up shoppers, so that the whole
model line runs for real without a GPU and without a download. The model knows clean sessions and stumbles over mixed
ones: that is the gap which the loop closes. It can't rank quantisers; KL to fp16 can.

First most steps without the system prompt, since attention learns the task there at half the cost; then the bytes
that phones feed. Muon for matrices, AdamW for the rest: AdamW alone fails at this size.
"""

import argparse
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from intentloop import answer, prompt
from intentloop.training_set import TrainingSample
from trainer import tiny_corpus, tiny_tokenizer

log = logging.getLogger("build-tiny")

IGNORED = -100  # label of a token that is not supervised


class BuildRule(msgspec.Struct, frozen=True, kw_only=True):
    """`bare_steps` go without the system prompt, `full_steps` with it; `batch` samples a step."""

    seed: int = 1
    bare_steps: int = 550
    full_steps: int = 200
    batch: int = 32
    learning_rate: float = 2e-3
    warmup_steps: int = 60
    prefix_ratio: float = 0.25
    threads: int = 2


def build(directory: Path, rule: BuildRule) -> None:
    """Make the tokenizer, train the model, save both as the fixture and log its accuracy."""
    torch.manual_seed(rule.seed)
    torch.set_num_threads(rule.threads)
    torch.set_flush_denormal(True)  # tiny gradients are otherwise ten times slower
    directory.mkdir(parents=True, exist_ok=True)
    corpus = tiny_corpus.samples(rule.seed, 4000, 0.3, rule.prefix_ratio)
    tiny_tokenizer.build((_prompt(sample, prompt.SYSTEM) + _answer(sample) for sample in corpus), directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = Qwen3ForCausalLM(config(tokenizer))
    train(model, tokenizer, rule)
    for name, mixed_ratio in (("clean", 0.0), ("mixed", 1.0)):
        right, exact = evaluate(model, tokenizer, tiny_corpus.samples(999, 300, mixed_ratio))
        log.info("%s sessions: intent accuracy %.3f, exact match %.3f", name, right, exact)
    model.half().save_pretrained(directory)


def config(tokenizer: PreTrainedTokenizerBase, layers: int = 8) -> Qwen3Config:
    """Which architecture? Every `in_features` is a multiple of 128, so that any quantisation block fits."""
    return Qwen3Config(
        vocab_size=tiny_tokenizer.VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        max_window_layers=layers,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, rule: BuildRule) -> None:
    """Learn the answers, and only the answers, of ever new clean sessions."""
    optimisers = _optimisers(model, rule)
    steps = rule.bare_steps + rule.full_steps
    started = time.monotonic()
    for step, samples in enumerate(_batches(rule)):
        system = "" if step < rule.bare_steps else prompt.SYSTEM
        rate = rule.learning_rate * min(1.0, (step + 1) / rule.warmup_steps)
        rate *= 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = _loss(model, *_tensors(tokenizer, samples, system))
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        if step % 50 == 0:
            log.info("step %d of %d: loss %.4f, %.0f s", step, steps, loss.item(), time.monotonic() - started)


def evaluate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, samples: list[TrainingSample]
) -> tuple[float, float]:
    """Which shares of the answers name the right intent, and match to the letter? Greedy, in batches padded left."""
    model.eval()
    tokenizer.padding_side = "left"
    right = exact = 0
    for start in range(0, len(samples), 50):
        batch = samples[start : start + 50]
        inputs = tokenizer([_prompt(sample, prompt.SYSTEM) for sample in batch], return_tensors="pt", padding=True)
        output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
        texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for sample, text in zip(batch, texts, strict=True):
            said = answer.parse(text)
            right += isinstance(said, answer.Answer) and said.intent == sample.intent
            exact += text == prompt.answer_text(sample.intent, sample.keywords)
    return right / len(samples), exact / len(samples)


def _batches(rule: BuildRule) -> Iterator[list[TrainingSample]]:
    """Yield batches of like length: eight are drawn, sorted and shuffled, which halves the padding."""
    random = Random(rule.seed)
    total = rule.bare_steps + rule.full_steps
    for round_ in range(0, total, 8):
        samples = tiny_corpus.samples(10_000 + rule.seed * 1_000 + round_, 8 * rule.batch, 0.0, rule.prefix_ratio)
        samples.sort(key=lambda sample: len(sample.read))
        batches = [samples[start : start + rule.batch] for start in range(0, len(samples), rule.batch)]
        random.shuffle(batches)
        yield from batches[: total - round_]


def _tensors(
    tokenizer: PreTrainedTokenizerBase, samples: list[TrainingSample], system: str
) -> tuple[torch.Tensor, torch.Tensor]:
    prompts = tokenizer([_prompt(sample, system) for sample in samples])["input_ids"]
    answers = tokenizer([_answer(sample) for sample in samples])["input_ids"]
    length = max(len(read) + len(said) for read, said in zip(prompts, answers, strict=True))
    ids = torch.full((len(samples), length), tokenizer.pad_token_id)  # (batch, tokens)
    labels = torch.full_like(ids, IGNORED)
    for row, (read, said) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(read) + len(said)] = torch.tensor(read + said)
        labels[row, len(read) : len(read) + len(said)] = torch.tensor(said)
    return ids, labels


def _loss(model: Qwen3ForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the answers. No attention mask: padding is on the right, where causal attention never looks."""
    model.train()
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]  # (batch, tokens - 1, hidden)
    told = labels[:, 1:] != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[told]), labels[:, 1:][told])


def _optimisers(model: Qwen3ForCausalLM, rule: BuildRule) -> tuple[torch.optim.Optimizer, ...]:
    matrices = [value for name, value in model.named_parameters() if value.ndim == 2 and "embed" not in name]
    chosen = {id(value) for value in matrices}
    others = [value for value in model.parameters() if id(value) not in chosen]
    rate = rule.learning_rate
    return (
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, weight_decay=0.01, betas=(0.9, 0.95)),
    )


def _prompt(sample: TrainingSample, system: str) -> str:
    return prompt.render(prompt.sequence_text(sample.read), system)


def _answer(sample: TrainingSample) -> str:
    return prompt.answer_text(sample.intent, sample.keywords) + prompt.END


def main() -> None:
    """Read the command line and build."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("tiny_qwen3"))
    parser.add_argument("--bare-steps", type=int, default=BuildRule().bare_steps)
    parser.add_argument("--full-steps", type=int, default=BuildRule().full_steps)
    arguments = parser.parse_args()
    build(arguments.out, BuildRule(bare_steps=arguments.bare_steps, full_steps=arguments.full_steps))


if __name__ == "__main__":
    main()
