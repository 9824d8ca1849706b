"""How good would a model in full precision be on a phone? Rounded to nearest, exported and asked, as a first look.

Size and first token do not depend on the weights' values, so a pruned model shows them before it is healed. The probe
of a healed model only says what is hopeless; what is released was measured as itself.
"""

from pathlib import Path

import msgspec

from trainer import converter, step
from trainer.search_device import Contestant
from trainer.search_ledger import Ledger

LEDGER = "measured"
PROBES = "probes"


def smallest(run: step.Run, checkpoint: Path) -> Contestant:
    """The smallest artefact that the rule's grid would make of this checkpoint."""
    quant = run.rule.quant
    return _contestant(run, checkpoint, max(quant.quant_blocks), min(quant.lm_quant_bits or (quant.lm_quant_bit,)))


def plain(run: step.Run, checkpoint: Path) -> Contestant:
    """The artefact of the first block and head precision that the rule names."""
    quant = run.rule.quant
    return _contestant(run, checkpoint, quant.quant_blocks[0], (quant.lm_quant_bits or (quant.lm_quant_bit,))[0])


def _contestant(run: step.Run, checkpoint: Path, block: int, head_bits: int) -> Contestant:
    target = run.directory / PROBES / checkpoint.relative_to(run.directory)
    converter.convert(checkpoint, target, "rtn", block, msgspec.structs.replace(run.rule.quant, lm_quant_bit=head_bits))
    return Contestant(target, run.step("freeze") / "dev.jsonl", None, run.rule, Ledger(run.directory / LEDGER))
