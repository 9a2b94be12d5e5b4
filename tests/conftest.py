"""Settings of every test."""

from hypothesis import settings

# Other work on the machine must not fail a property.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
