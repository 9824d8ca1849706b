"""What must hold of a run at real size: each promise is broken once. The run itself is `make real-size`."""

from typing import Any

import pytest

from trainer import real_size

# docs/model-line.md: one run's own figures
FIGURES: dict[str, Any] = {
    "bytes": 285_608_749,
    "weight_bytes": 282_574_166,
    "expected_weight_bytes": 282_157_056,
    "max_logit_change": 0.0,
    "adapters": {"r8-int8": {"of_full": 6_705_672 / 285_608_749}, "r4-fp16": {"of_full": 5_533_168 / 285_608_749}},
}


def broken(figures: dict[str, Any], published: bool = True) -> set[str]:
    return {each.name for each in real_size.promises(figures, published) if not each.holds}


def test_arithmetic_is_that_of_22_blocks_of_the_published_shape() -> None:
    inner = 22 * (1024 * 128 * (16 + 8 + 8 + 16) + 3 * 1024 * 3072)
    head = 151_936 * 1024
    # half a byte a weight; a zero and a scale of four bytes for every 128
    assert real_size.expected_bytes(22) == (inner + head) // 2 + (inner + head) // 128 * 8 == 282_157_056
    assert broken(FIGURES) == set()


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"weight_bytes": 282_157_056 * 0.997}, "weight file against arithmetic"),
        ({"bytes": 290_000_000}, "size against 283 MB"),
        ({"max_logit_change": 0.002}, "change of a logit by saving and loading"),
        ({"adapters": {"r8-fp16": {"of_full": 9_500_560 / 285_608_749}}}, "r8-fp16: share of the full release"),
    ],
)
def test_a_figure_beyond_its_limit_is_noticed(changed: dict[str, Any], name: str) -> None:
    assert broken({**FIGURES, **changed}) == {name}


def test_another_shape_has_no_published_size() -> None:
    assert broken({**FIGURES, "bytes": 1, "adapters": {"r8-fp16": {"of_full": 0.3}}}, published=False) == set()
