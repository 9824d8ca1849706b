"""What can be broken: promises between parts, never expected outcomes (those are values)."""


class IntentloopError(Exception):
    """Base of every error of this project."""


class ContractError(IntentloopError):
    """A caller broke a documented precondition; the message names the value and the limit."""


class ConfigurationError(IntentloopError):
    """The environment cannot work as configured; starting again without a change will fail again."""


class FencedError(IntentloopError):
    """Someone else owns the partition, lease or job now; stop without acknowledging."""


class UnavailableError(IntentloopError):
    """A broker, store or teacher cannot answer now; the same call may succeed later."""
