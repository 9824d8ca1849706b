"""What is known of one candidate? As much as was measured before it left the race, or all of it."""

import msgspec

from trainer.quantise import Candidate


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate on `samples` samples of the dev set, in the device engine.

    Accuracies are those of the intent with a 95 % interval. `divergence` is the mean KL to its full-precision model in
    nats a token, None if it was not measured. `long_ttft_ms` is the fastest of several prefills of a long dev prompt;
    the other times are what the answers took. `left` says why the candidate left the race early, empty if it did not.
    """

    candidate: Candidate
    accuracy: float
    exact: float
    faults: float
    divergence: float | None
    artefact_bytes: int
    samples: int = 0
    accuracy_low: float = 0.0
    accuracy_high: float = 1.0
    long_ttft_ms: float = 0.0
    ttft_p50_ms: float = 0.0
    ttft_p95_ms: float = 0.0
    prefill_tokens_s: float = 0.0
    decode_tokens_s: float = 0.0
    left: str = ""

    @property
    def nats(self) -> float:
        """The divergence as a number that can be compared: unknown is infinitely far."""
        return float("inf") if self.divergence is None else self.divergence
