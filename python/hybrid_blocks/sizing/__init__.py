"""The cheapest cards that serve a trace in virtual time."""
