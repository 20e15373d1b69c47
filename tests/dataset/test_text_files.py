"""Text files as bytes: compression, line ends, marks in the middle, and files that are something else."""

from __future__ import annotations

import bz2
import gzip

import pyarrow as pa
import pytest

from tests.dataset.support import ReadRows, reasons
from tts_batch.errors import UsageError

CONTENT = {
    "t.csv": "id,text\na,One.\nb,Two.\n",
    "t.tsv": "id\ttext\na\tOne.\nb\tTwo.\n",
    "t.jsonl": '{"id": "a", "text": "One."}\n{"id": "b", "text": "Two."}\n',
    "t.json": '[{"id": "a", "text": "One."}, {"id": "b", "text": "Two."}]',
    "t.txt": "a1|One.\nb2|Two.\n",
}


def compressed(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":  # in two members, as log rotators and `cat` make
        return gzip.compress(data[:9]) + gzip.compress(data[9:])
    if suffix == ".bz2":
        return bz2.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {".zst": "zstd", ".lz4": "lz4"}[suffix]) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".lz4"])
@pytest.mark.parametrize("name", CONTENT)
def test_compressed_tables_are_read_as_others(read: ReadRows, name: str, suffix: str) -> None:
    rows = read.written(f"{name}{suffix}", compressed(CONTENT[name].encode(), suffix))
    assert [row.text for row in rows] == ["One.", "Two."]
    assert rows[0].source.startswith(f"{name}{suffix}:")
    if name != "t.txt":
        (read.folder / "other").mkdir()
        (read.folder / "other" / f"{name}{suffix.upper()}").write_bytes((read.folder / f"{name}{suffix}").read_bytes())
        if not name.endswith(".json"):
            assert len(read("other")) == 2


@pytest.mark.parametrize("data", [gzip.compress(CONTENT["t.csv"].encode())[:-9], b"id,text\na,One.\n", b"\x1f\x8b\x08"])
def test_a_damaged_archive_is_a_usage_error(read: ReadRows, data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^t\.csv\.gz cannot be read: "):
        read.written("t.csv.gz", data)


def test_a_compressed_parquet_file_is_to_be_unpacked(read: ReadRows) -> None:
    with pytest.raises(UsageError, match=r"unpack it; \.parquet compresses its columns"):
        read.written("t.parquet.gz", gzip.compress(b"PAR1"))
    with pytest.raises(UsageError, match=r"let its name end in \.gz"):
        read.written("t.csv", gzip.compress(b"id,text\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.txt"])
def test_carriage_returns_alone_end_lines_where_nothing_else_does(read: ReadRows, name: str, encoding: str) -> None:
    rows = read.written(name, CONTENT[name].replace("\n", "\r").encode(encoding))
    assert [row.text for row in rows] == ["One.", "Two."]
    if name != "t.csv":
        mixed = read.written("u.txt", "a1|One.\rstill one.\nb2|Two.\n")
        assert [row.text for row in mixed] == ["One.\rstill one.", "Two."]


def test_cells_of_old_spreadsheets_have_newlines_within(read: ReadRows) -> None:
    rows = read.written("t.csv", '"id","text"\r"a","One\nand one."\r"b","Two."\r"c","Three."\r')
    assert [row.text for row in rows] == ["One\nand one.", "Two.", "Three."]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.txt"])
def test_files_put_together_have_marks_within(read: ReadRows, name: str) -> None:
    head = "" if name in {"t.jsonl", "t.txt"} else CONTENT[name].partition("\n")[0] + "\n"
    lines = CONTENT[name].removeprefix(head).splitlines(keepends=True)
    rows = read.written(name, ("\ufeff\ufeff" + head + lines[0] + "\ufeff" + lines[1]).encode())
    assert [(row.id[0], row.text) for row in rows] == [("a", "One."), ("b", "Two.")]


FOREIGN = {
    "Parquet": (b"PAR1\x15\x04", r"a Parquet file: call it \.parquet"),
    "Arrow": (b"ARROW1\0\0", r"an Arrow file: call it \.arrow"),
    "xlsx": (b"PK\x03\x04xl/workbook", "a ZIP archive: unpack it, or export the sheet as CSV"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel or Word document: export the sheet as CSV"),
    "RTF": (b"{\\rtf1\\ansi Hello}", "an RTF document: save it as plain text"),
    "PDF": (b"%PDF-1.4\n%", "a PDF document: save it as plain text"),
    "web page": (b"<!DOCTYPE html>\n<p>text", "a web page: save the table in it as CSV"),
    "sheet as a web page": (b"<html><table><tr><td>text", "a web page"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer: `git lfs pull`"),
    "recording": (b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0", "a WAV file"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\0", r"a zstd archive: let its name end in \.zst"),
    "database": (b"SQLite format 3\0", "an SQLite database"),
}


@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.jsonl"])
@pytest.mark.parametrize(("data", "words"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_kind_is_named(read: ReadRows, name: str, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is not text, but {words}"):
        read.written(name, data)


@pytest.mark.parametrize(
    "line", ["ID3 tags are old.", "BZh is no word.", "<speak>Hello</speak>", "PAR1 is a name.", "{a}"]
)
def test_a_text_may_begin_as_a_file_of_another_kind_does(read: ReadRows, line: str) -> None:
    assert [row.text for row in read.written("t.txt", f"{line}\nBye.\n")] == [line, "Bye."]


def test_a_line_that_no_memory_holds_is_refused(read: ReadRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_batch.dataset.text_files._MAX_LINE_CHARS", 1000)
    for name in ("t.csv", "t.txt", "t.tsv"):
        with pytest.raises(UsageError, match="is no table: a line has 1000 characters or more"):
            read.written(name, "text\n" + "a" * 5000)
        assert reasons(read.written(name, "text\n" + "a" * 900)) == [None]
