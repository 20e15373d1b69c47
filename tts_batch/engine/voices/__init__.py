"""Reference recordings to voices: loaded, encoded, cached."""
