"""The lists in the documents are those of the code, links lead somewhere, and the README stays short."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import DOCS, ROOT, anchors, code_names, first_names, links, section, table_rows
from tts_batch.config import JobConfig
from tts_batch.dataset.columns import ALIASES, AMBIGUOUS, COLUMNS
from tts_batch.dataset.files import TABLE_SUFFIXES
from tts_batch.engine.request import Engine, Reference, SpeechRequest, SpeechResult
from tts_batch.errors import REASONS, ExitStatus
from tts_batch.export.job import FORMATS
from tts_batch.ipc.messages import CheckLimits
from tts_batch.run.row_requests import NEW_SEED_HELPS
from tts_batch.store.schema import FAILURES_SCHEMA, SCHEMA

README = ROOT / "README.md"
ROOT_PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES = [*(ROOT / name for name in ROOT_PAGES), *sorted(DOCS.glob("*.md"))]
TABLES, MANIFEST, RUNNING = DOCS / "tables.md", DOCS / "manifest.md", DOCS / "running.md"
ENGINE = DOCS / "engine.md"


def _choices(option: str) -> list[str]:
    schema = JobConfig.model_json_schema()["properties"][option]
    found: list[str] = next(part["enum"] for part in (schema, *schema.get("anyOf", ())) if "enum" in part)
    return found


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_linked_from_the_readme() -> None:
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= set(links(README))


# tables.md


def test_formats_of_tables() -> None:
    assert sorted(first_names(section(TABLES, "## Formats"))) == sorted(TABLE_SUFFIXES)


def test_columns() -> None:
    assert tuple(first_names(section(TABLES, "## Columns"))) == COLUMNS
    assert set(first_names(section(README, "## The table"))) < set(COLUMNS)


def test_aliases() -> None:
    rows = table_rows(section(TABLES, "## Names of other tools"))
    assert {code_names(ours)[0]: tuple(code_names(aliases)) for ours, aliases in rows} == ALIASES
    assert set(AMBIGUOUS) <= set(code_names(section(TABLES, "## Names of other tools")))


# manifest.md


def test_manifest_columns() -> None:
    assert first_names(section(MANIFEST, "## Manifest columns")) == SCHEMA.names


def test_fields_of_failed_attempts() -> None:
    attempt = FAILURES_SCHEMA.field("failed_attempts").type.value_type
    documented = first_names(section(MANIFEST, "## Failures columns"))
    assert sorted(documented) == sorted(attempt.field(i).name for i in range(attempt.num_fields))


def test_reasons() -> None:
    assert tuple(first_names(section(MANIFEST, "## Reasons"))) == REASONS


def test_reasons_that_a_retry_draws_anew() -> None:
    assert set(first_names(section(MANIFEST, "### In the draw"))) == set(NEW_SEED_HELPS)


@pytest.mark.parametrize(("page", "heading"), [(README, "## Failures"), (MANIFEST, "## Exit statuses")])
def test_exit_statuses(page: Path, heading: str) -> None:
    documented = [int(row[0]) for row in table_rows(section(page, heading))]
    assert sorted(documented) == sorted(ExitStatus)


# running.md, exports.md, performance.md


def test_checks_and_their_limits() -> None:
    rows = table_rows(section(RUNNING, "## Checks"))
    assert {code_names(name)[0]: float(limit) for name, limit, _ in rows} == CheckLimits().to_dict()


def test_formats_of_clips() -> None:
    assert first_names(section(RUNNING, "## Formats")) == _choices("format")


def test_formats_of_exports() -> None:
    assert first_names((DOCS / "exports.md").read_text(encoding="utf-8")) == list(FORMATS)


def test_profiles() -> None:
    assert sorted(first_names(section(DOCS / "performance.md", "## Profiles"))) == sorted(_choices("profile"))


# engine.md


def test_the_engine_contract() -> None:
    members = {name for name in (*vars(Engine), *Engine.__annotations__) if not name.startswith("_")}
    documented = {name.partition("(")[0] for name in first_names(section(ENGINE, "## The contract").split("###")[0])}
    assert documented == members


def test_fields_of_requests_and_results() -> None:
    assert sorted(first_names(section(ENGINE, "### SpeechRequest"))) == sorted(_names(SpeechRequest))
    assert sorted(first_names(section(ENGINE, "### SpeechResult"))) == sorted(_names(SpeechResult))
    named = {name.partition("(")[0] for name in code_names(section(ENGINE, "### SpeechRequest"))}
    assert set(_names(Reference)) <= named


# CONTRIBUTING.md, .github


def test_the_package_layout_names_every_package() -> None:
    folders = {f"{path.name}/" for path in (ROOT / "tts_batch").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert set(first_names(section(ROOT / "CONTRIBUTING.md", "## Package layout"))) == folders


def test_the_hosted_workflow_runs_ci() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["checks"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.13"]


def test_a_bug_report_asks_for_what_is_needed() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    asked = " ".join(part["attributes"]["label"] for part in form["body"] if "label" in part["attributes"])
    assert all(words in asked for words in ("command", "tts-batch doctor --json", "run.json"))
