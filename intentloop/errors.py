"""What can be broken: promises between parts, never expected outcomes (those are values)."""

EXIT_BROKEN = 70  # EX_SOFTWARE: a promise was broken or a service is away; starting again goes on where it stood
EXIT_CONFIGURATION = 78  # EX_CONFIG: starting again without a change will fail again


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
