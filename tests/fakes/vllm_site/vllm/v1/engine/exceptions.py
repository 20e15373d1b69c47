"""The exceptions of an engine."""


class EngineGenerateError(Exception):
    """One request failed."""


class EngineDeadError(Exception):
    """The engine is dead."""
