"""Errors that the whole package raises."""


class HybridBlocksError(Exception):
    """Base of every error of this package. The call that raised it changed nothing."""


class InvalidArgumentError(HybridBlocksError, ValueError):
    """An argument that makes no sense; the message names the value and what would do."""


class OutOfBlocksError(HybridBlocksError):
    """More blocks were asked for than have no owner. Free or preempt a request and try again."""


class RequestTooLargeError(HybridBlocksError, ValueError):
    """A request that would not fit into the empty cache; the message says what would."""


class UnknownRequestError(HybridBlocksError, LookupError):
    """A handle that names no request: it was freed, or never added."""


class DuplicateRequestError(HybridBlocksError, ValueError):
    """A request id that is in use."""


class BlockError(HybridBlocksError):
    """A block id that is foreign, freed twice, or still owned when it must not be."""


class IntegrityError(HybridBlocksError):
    """The manager broke one of its own promises. This is a bug: please report it."""


class PlanError(HybridBlocksError, ValueError):
    """A model, a size or an option that cannot be planned; the message is one line for the user."""
