"""What an engine raises: EngineConfigError before it starts, EngineError when it cannot continue."""

from __future__ import annotations


class EngineError(Exception):
    """The engine is dead: requests without a result are neither done nor failed. The message is one sentence."""


class EngineConfigError(EngineError):
    """The engine cannot be opened as configured. The message names the value and what is allowed."""


class DuplicateRequest(Exception):  # noqa: N818 - the contract's name
    """`add_request` got an id that is in flight."""
