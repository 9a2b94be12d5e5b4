"""The error of everything that describes or plans a model."""


class PlanError(ValueError):
    """A model, a size or an option that cannot be planned; the message is one line for the user."""
