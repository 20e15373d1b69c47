"""What an engine raises: EngineConfigError before it starts, EngineError when it cannot go on."""

from __future__ import annotations


class EngineError(Exception):
    """The engine is dead: what it has not returned is neither done nor failed. Its text is one sentence."""


class EngineConfigError(EngineError):
    """The engine cannot be opened as asked. Its text says what was asked and what is allowed."""
