"""Text files as lines or as a stream of characters, in the encoding that their first bytes or the user name."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tts_batch.dataset.files import TableFile, os_errors_as_usage
from tts_batch.dataset.sniff import has_controls, sniff
from tts_batch.errors import UsageError

_MARK = "\ufeff"
# (byte order mark, codec that removes it, name): UTF-32 before UTF-16, whose mark its own begins with.
_MARKS: tuple[tuple[bytes, str, str], ...] = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_UNDECODED = re.compile("[\udc80-\udcff]")
_HEAD_BYTES = 1 << 16
_MAX_LINE_CHARS = 1 << 27
_WRITTEN_AS_TEXT = ("page", "pointer", "RTF document", "PDF document")  # kinds of files without control characters
# What a file of another kind is to be called, or made of.
_ADVICE: tuple[tuple[str, str], ...] = (
    ("ZIP", "unpack it, or export the sheet as CSV"),
    ("Excel", "export the sheet as CSV"),
    ("gzip", "let its name end in .gz"),
    ("bzip2", "let its name end in .bz2"),
    ("zstd", "let its name end in .zst"),
    ("Parquet", "call it .parquet"),
    ("Arrow", "call it .arrow"),
    ("LFS", "`git lfs pull` fetches the file"),
    ("document", "save it as plain text"),
    ("web page", "save the table in it as CSV"),
)


class TextFile:
    """A text file. Bytes that its encoding does not know come through as surrogates: see `is_undecoded`.

    `encoding` is that of a file without a byte order mark; None: UTF-8. Raises UsageError for an encoding that does
    not exist and for a file that is clearly not text in it.
    """

    def __init__(self, file: TableFile, encoding: str | None = None) -> None:
        self.file = file
        with os_errors_as_usage(file.name, is_local=file.is_local), file.open() as source:
            head = source.read(_HEAD_BYTES)
        found = next(((codec, name) for mark, codec, name in _MARKS if head.startswith(mark)), None)
        self._codec, self.encoding = found or _checked(encoding or "UTF-8")
        self._is_wide = self._codec.startswith(("utf-16", "utf-32"))
        if not self._is_wide:
            _refuse_binary(head, file.name, self.encoding)
        start = head.decode(self._codec, "ignore")
        num_returns, num_newlines = start.count("\r"), start.count("\n")
        # Old spreadsheets for the Mac end rows with "\r", and lines within a cell with "\n".
        self._line_end = "\r" if num_returns - start.count("\r\n") > num_newlines else "\n"

    @contextmanager
    def open(self, newline: str = "") -> Iterator[io.TextIOWrapper]:
        """Open the file as characters; `newline` as in `io.TextIOWrapper`. Raises UsageError when it cannot be read."""
        errors = "surrogatepass" if self._is_wide else "surrogateescape"
        try:
            with (
                os_errors_as_usage(self.file.name, is_local=self.file.is_local),
                io.TextIOWrapper(self.file.open(), self._codec, errors, newline) as stream,
            ):
                yield stream
        except UnicodeError as error:
            raise UsageError(f"{self.file.name} is not {self.encoding}: {error}.") from error

    def lines(self) -> Iterator[tuple[int, str]]:
        r"""Yield (number from 1, line without its end), skipping blank lines.

        Only "\n" ends a line, or only "\r" in a file that has more of those.
        """
        with self.open(newline=self._line_end) as stream:
            for number, raw in enumerate(self.limited(stream), start=1):
                line = raw.removesuffix("\n").removesuffix("\r")
                if line.strip(" "):
                    yield number, line

    def limited(self, stream: io.TextIOWrapper) -> Iterator[str]:
        """Yield the lines of `stream`, with their ends. Raises UsageError for one too long to be held in memory."""
        for raw in iter(partial(stream.readline, _MAX_LINE_CHARS), ""):
            if len(raw) == _MAX_LINE_CHARS:
                raise UsageError(f"{self.file.name} is no table: a line has {_MAX_LINE_CHARS} characters or more.")
            yield raw.lstrip(_MARK)  # of files put together, which have marks within


def is_undecoded(text: str) -> bool:
    """Whether `text` holds bytes that its file's encoding does not know."""
    return not text.isascii() and _UNDECODED.search(text) is not None


def _checked(encoding: str) -> tuple[str, str]:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"--encoding {encoding!r} is not an encoding: give one that Python knows, as utf-16, cp1252 or shift_jis."
        ) from error
    return codecs.lookup(encoding).name, encoding


def _refuse_binary(head: bytes, name: str, encoding: str) -> None:
    first = head[:2]
    if len(first) == 2 and (first[0] == 0) != (first[1] == 0):
        order = "be" if first[0] == 0 else "le"
        raise UsageError(
            f"{name} is not {encoding}, but UTF-16 without a byte order mark: give --encoding utf-16-{order}."
        )
    found = sniff(head)
    if not found.may_be_text and (has_controls(head) or found.name.endswith(_WRITTEN_AS_TEXT)):
        advice = next((advice for word, advice in _ADVICE if word in found.name), "name the table itself")
        raise UsageError(f"{name} is not text, but {found}: {advice}.")
