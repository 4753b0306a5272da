"""The processes of a run. Each is started by `python -m brigade.testing.chaos.crew` with a brief, as JSON."""
