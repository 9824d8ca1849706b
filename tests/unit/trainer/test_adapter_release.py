"""What an adapter's file stands for, and which weights a phone's base has. No engine needed."""

from typing import Any

import numpy as np
import pytest

from intentloop.errors import ContractError
from trainer.adapter_release import base, graph, train
from trainer.rule import TuneRule


def layer(outputs: int, inputs: int, external: list[int], **quantised: int) -> dict[str, Any]:
    return {
        "common": {"outputCount": outputs, "inputCount": inputs},
        "external": external,
        "quanParameter": {"type": 1, "aMaxOrBits": 4, "readType": 1, **quantised},
    }


def test_codes_of_four_bits_become_code_times_scale_plus_zero_in_each_block() -> None:
    # one output, four inputs in blocks of two; codes 0, 15 | 8, 9 mean levels -8, 7 | 0, 1
    pairs = np.array([1.0, 0.5, 10.0, 2.0], "<f4")  # zero and scale of each block
    header = b"\x02" + bytes(21)
    blob = np.frombuffer(b"other" + header + bytes([0x0F, 0x89]) + pairs.tobytes(), np.uint8)
    found = base.dequantise(blob, layer(1, 4, [5, len(header) + 2, 16, 0, 0]))
    assert found.tolist() == [[1 - 8 * 0.5, 1 + 7 * 0.5, 10 + 0 * 2, 10 + 1 * 2]]


def test_symmetric_codes_of_eight_bits_have_a_scale_and_no_zero() -> None:
    blob = np.frombuffer(bytes([128, 130, 0, 255]) + np.array([0.5, 2.0], "<f4").tobytes(), np.uint8)
    found = base.dequantise(blob, layer(2, 2, [0, 4, 8, 0, 0], aMaxOrBits=8, readType=0))
    assert found.tolist() == [[0.0, 1.0], [-256.0, 254.0]]


def test_weights_that_are_not_rounded_are_read_as_halves() -> None:
    blob = np.frombuffer(np.array([0.5, -2.0], "<f2").tobytes(), np.uint8)
    assert base.dequantise(blob, layer(1, 2, [0, 4, 0, 0, 0], type=3)).tolist() == [[0.5, -2.0]]


def test_weights_of_another_number_of_bits_are_refused_with_the_number() -> None:
    with pytest.raises(ContractError, match="2 bits"):
        base.dequantise(np.zeros(64, np.uint8), layer(1, 8, [0, 2, 8, 0, 0], aMaxOrBits=2))


@pytest.mark.parametrize(
    ("operation", "weight"),
    [
        ("/layers.3/mlp/up_proj/Linear", "model.layers.3.mlp.up_proj.weight"),
        ("/layers.12/self_attn/o_proj/Linear", "model.layers.12.self_attn.o_proj.weight"),
        ("/blocks.4/self_attn/q_norm/Mul_1_output_0", "model.layers.4.self_attn.q_norm.weight"),
        ("/blocks.4/post_attention_layernorm/Mul_1_output_0", "model.layers.4.post_attention_layernorm.weight"),
        ("hidden_states", "model.norm.weight"),
        ("/lm/lm_head/Linear", "lm_head.weight"),
    ],
)
def test_each_operation_that_holds_weights_has_its_place_in_the_checkpoint(operation: str, weight: str) -> None:
    assert base.checkpoint_name(operation) == weight
    if operation.startswith("/layers"):
        assert base.operation_name(weight.removesuffix(".weight")) == operation


def test_an_operation_of_an_unknown_kind_is_not_guessed() -> None:
    with pytest.raises(ContractError, match="/experts"):
        base.checkpoint_name("/experts.1/gate/Linear")


def test_rounding_to_int8_gives_each_row_its_largest_number_as_127() -> None:
    levels, scales = graph.quantise_rows(np.array([[1.27, -0.635, 0.0], [-254.0, 2.0, 4.0]], np.float32))
    assert levels.tolist() == [[127, -64, 0], [-127, 1, 2]]  # -0.635 / 0.01 = -63.5, to the even neighbour
    assert scales == pytest.approx([0.01, 2.0])
    assert not graph.quantise_rows(np.zeros((1, 2), np.float32))[0].any()


def toy_graph() -> dict[str, Any]:
    common = {"inputCount": 3, "outputCount": 2}
    return {
        "tensorName": ["in", "out", "back", "product"],
        "oplists": [
            {
                "type": "Convolution",
                "name": "/layers.0/mlp/up_proj/Linear",
                "inputIndexes": [0],
                "outputIndexes": [1],
                "main": {"common": common},
                "defaultDimentionFormat": "NHWC",
            },
            {"type": "ConvertTensor", "name": "post", "inputIndexes": [1], "outputIndexes": [2]},
            {"type": "BinaryOp", "name": "product", "inputIndexes": [2, 1], "outputIndexes": [3]},
        ],
    }


def toy_adapter(inputs: int = 3, name: str = "/layers.0/mlp/up_proj/Linear") -> graph.Adapter:
    return {name: (np.ones((1, inputs), np.float32), np.full((2, 1), 0.5, np.float32))}


def test_what_follows_a_layer_reads_the_sum_of_the_layer_and_its_adapter() -> None:
    made = toy_graph()
    graph.insert(made, toy_adapter(), "fp32")
    operations = {op["name"].rsplit("/", 1)[-1]: op for op in made["oplists"]}
    down, up, total = operations["A"], operations["B"], operations["sum"]
    assert down["inputIndexes"] == [0]
    assert up["inputIndexes"] == down["outputIndexes"]
    assert total["inputIndexes"] == [1, *up["outputIndexes"]]
    assert operations["post"]["inputIndexes"] == total["outputIndexes"]
    assert operations["product"]["inputIndexes"] == [2, *total["outputIndexes"]]  # not only a change of layout
    assert (down["main"]["weight"], up["main"]["weight"]) == ([1.0, 1.0, 1.0], [0.5, 0.5])
    assert (down["main"]["bias"], up["main"]["bias"]) == ([0.0], [0.0, 0.0])


def test_an_adapter_of_another_model_is_refused() -> None:
    with pytest.raises(ContractError, match=r"no layer '/layers\.7"):
        graph.insert(toy_graph(), toy_adapter(name="/layers.7/mlp/up_proj/Linear"), "fp16")
    with pytest.raises(ContractError, match=r"maps \(3, 2\), its adapter is \(1, 5\)"):
        graph.insert(toy_graph(), toy_adapter(inputs=5), "fp16")


def test_another_rank_keeps_the_strength_of_an_adapter() -> None:
    rule = TuneRule(lora_rank=8, lora_alpha=16, learning_rate=1e-3)
    assert [train.ranked(rule, rank).lora_alpha for rank in (4, 8, 32)] == [8, 16, 64]
    assert train.ranked(rule, 4).learning_rate == 1e-3
