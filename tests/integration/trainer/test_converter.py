"""What the rule asks of the converter reaches the artefact, and the artefact alone: each option on the tiny model."""

import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import checkpoint, converter, export_checks, rule
from trainer.adapter_release import base
from trainer.rule import Quantiser

from .conftest import BASE

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter

BLOCK = 64  # inputs that share a scale
INNER = 8 * (128 * (2 + 1 + 1 + 2) * 64 + 3 * 128 * 256)  # weights of eight blocks: attention, MLP
HEAD = 2048 * 128

Make = Callable[[str, Quantiser, int, int, int], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    directory = tmp_path_factory.mktemp("artefacts")

    def convert(name: str, quantiser: Quantiser, block: int, bits: int, head: int) -> Path:
        quant = rule.QuantRule(quant_bit=bits, lm_quant_bit=head)
        converter.convert(BASE, directory / name, quantiser, block, quant)
        return directory / name

    return convert


@pytest.fixture(scope="module")
def plain(make: Make) -> Path:
    """Round-to-nearest, four bits in blocks of 64, the head in eight."""
    return make("plain", "rtn", BLOCK, 4, 8)


def apart(artefact: Path) -> tuple[float, float]:
    """How far are an artefact's weights from the checkpoint's? Mean squares, of the blocks' layers and of the head."""
    true = {name: value.detach().numpy() for name, value in checkpoint.load(BASE).state_dict().items()}
    found = base.weights(artefact)
    inner = [name for name in found if name.endswith("_proj.weight")]
    total = sum(float(np.square(found[name] - true[name]).sum()) for name in inner)
    head = float(np.square(found["lm_head.weight"] - true["lm_head.weight"]).mean())
    return total / sum(found[name].size for name in inner), head


def size(artefact: Path) -> int:
    return (artefact / base.WEIGHTS).stat().st_size


def test_hqq_is_another_rounding_of_the_same_size_and_nearer_to_the_checkpoint(plain: Path, make: Make) -> None:
    hqq = make("hqq", "hqq", BLOCK, 4, 8)
    assert size(hqq) == size(plain)
    assert (hqq / base.WEIGHTS).read_bytes() != (plain / base.WEIGHTS).read_bytes()
    assert apart(hqq)[0] < 0.99 * apart(plain)[0]


def test_a_smaller_block_takes_more_scales_in_blocks_and_head_and_is_nearer(plain: Path, make: Make) -> None:
    finer = make("finer", "rtn", BLOCK // 2, 4, 8)
    more_scales = (INNER + HEAD) // BLOCK
    assert size(finer) - size(plain) == 8 * more_scales  # four bytes each, and as many for its zero
    assert all(one < 0.95 * other for one, other in zip(apart(finer), apart(plain), strict=True))


def test_the_heads_bits_are_the_heads_alone(plain: Path, make: Make) -> None:
    coarse = make("coarse", "rtn", BLOCK, 4, 4)
    assert size(plain) - size(coarse) == pytest.approx(HEAD / 2, rel=0.01)
    assert apart(coarse)[0] == apart(plain)[0]
    assert apart(coarse)[1] > 5 * apart(plain)[1]


def test_the_blocks_bits_are_the_blocks_alone(plain: Path, make: Make) -> None:
    fine = make("fine", "rtn", BLOCK, 8, 8)
    assert size(fine) - size(plain) == pytest.approx(INNER / 2, rel=0.03)  # the layers' tables of levels grow, too
    assert apart(fine)[0] < 0.2 * apart(plain)[0]
    assert apart(fine)[1] == apart(plain)[1]


class Chatty:
    """A logger like the converter's own, which tells its maker of every conversion; this one goes to a closed door."""

    def put_log(self, *_: Any) -> None:
        with socket.socket() as door:
            door.connect_ex(("127.0.0.1", 9))


@pytest.fixture
def chatty() -> Iterator[None]:
    """MNN's tools as they are without our stub, and not loaded yet."""

    def take_out() -> dict[str, types.ModuleType]:
        names = [name for name in sys.modules if name == "MNN.tools" or name.startswith("MNN.tools.")]
        return {name: sys.modules.pop(name) for name in names}

    loaded = take_out()
    module: Any = types.ModuleType(converter.TELEMETRY)
    module.mnn_logger = Chatty()
    sys.modules[converter.TELEMETRY] = module
    yield
    take_out()
    sys.modules.update(loaded)


@pytest.mark.usefixtures("chatty")
@pytest.mark.parametrize("blocked", [True, False])
def test_a_converter_that_tells_its_maker_is_noticed_and_ours_does_not(
    blocked: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blocked:
        monkeypatch.setattr(converter, "block_telemetry", lambda: None)
    with export_checks.watched() as events:
        artefact = make(f"blocked-{blocked}", "rtn", BLOCK, 4, 8)
    broken = {each.name for each in export_checks.checks("a", artefact, BASE, events) if not each.holds}
    assert broken == (set() if blocked else {"a: connections and programs of the converter"})
