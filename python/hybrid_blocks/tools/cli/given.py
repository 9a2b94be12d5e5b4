"""Options that were given, and those that say nothing beside others."""

import typer

from hybrid_blocks.errors import InvalidArgumentError


class Given:
    """Which parameters of a command come from its command line."""

    def __init__(self, context: typer.Context) -> None:
        self._context = context
        self._written: dict[str, str] = {}
        for parameter in context.command.params:
            name = str(parameter.name)
            options = parameter.opts
            if context.params.get(name) is False and parameter.secondary_opts:
                options = parameter.secondary_opts
            is_option = parameter.param_type_name == "option"
            self._written[name] = options[0] if is_option else name.upper()

    def __contains__(self, name: str) -> bool:
        source = self._context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    @property
    def all(self) -> set[str]:
        """Names of all parameters that were given."""
        return {name for name in self._written if name in self}

    def names(self, *names: str) -> str:
        """Return which of ``names`` were given, as the user wrote them; "" if none was."""
        return ", ".join(self._written[name] for name in names if name in self)

    def refuse(self, *names: str, why: str) -> None:
        """Refuse ``names`` where they would be ignored; ``why`` continues "--option ".

        Raises:
            InvalidArgumentError: one of them was given.

        """
        if given := self.names(*names):
            raise InvalidArgumentError(f"{given} {why}")

    def all_but(self, *names: str) -> tuple[str, ...]:
        """Return every parameter of the command but ``names``."""
        return tuple(name for name in self._written if name not in names and name != "help")
