"""Reads what `--engine vllm` relies on from unpacked wheels of vLLM and vLLM-Omni, without importing them.

    pip download --no-deps vllm==0.30.0 vllm-omni==0.30.0 && unzip -q -d site '*.whl'
    python recipes/vllm/check_wheel.py site             compare with tests/data/vllm_0.30.0.json; status 1: they differ
    python recipes/vllm/check_wheel.py site --write     write that file

A release that this finds equal is called by our engine as it expects. One that differs must be read.
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

FIXTURE = Path(__file__).parents[2] / "tests" / "data" / "vllm_0.30.0.json"
OMNI = "vllm_omni/entrypoints/omni_base.py"
ASYNC_OMNI = "vllm_omni/entrypoints/async_omni.py"
BUILDER = "vllm_omni/model_executor/models/qwen3_tts/prompt_embeds_builder.py"

FUNCTIONS = {  # arguments in order, keyword-only ones after "*"
    "AsyncOmni.__init__": (ASYNC_OMNI, "AsyncOmni", "__init__"),
    "AsyncOmni.generate": (ASYNC_OMNI, "AsyncOmni", "generate"),
    "OmniBase.resolve_sampling_params_list": (OMNI, "OmniBase", "resolve_sampling_params_list"),
    "OmniEngineBase.__init__": ("vllm_omni/engine/omni_engine_base.py", "OmniEngineBase", "__init__"),
    "estimate_prompt_len_from_additional_information": (
        BUILDER,
        "Qwen3TTSPromptEmbedsBuilder",
        "estimate_prompt_len_from_additional_information",
    ),
}
FIELDS = {  # names of a class's annotated fields
    "SamplingParams": ("vllm/sampling_params.py", "SamplingParams"),
    "RequestOutputKind": ("vllm/sampling_params.py", "RequestOutputKind"),
    "DeployConfig": ("vllm_omni/config/stage_config.py", "DeployConfig"),
    "StageDeployConfig": ("vllm_omni/config/stage_config.py", "StageDeployConfig"),
    "OmniRequestOutput": ("vllm_omni/outputs/__init__.py", "OmniRequestOutput"),
    "StageRequestStats": ("vllm_omni/metrics/stats.py", "StageRequestStats"),
}
PROPERTIES = {"OmniBase.errored": (OMNI, "OmniBase", "errored")}
BASES = {
    "OmniEngineDeadError": (OMNI, "OmniEngineDeadError"),
    "EngineDeadError": ("vllm/v1/engine/exceptions.py", "EngineDeadError"),
}
SOURCES = {  # pure functions, which tests run
    "build_assistant_text": (BUILDER, None, "build_assistant_text"),
    "build_ref_text": (BUILDER, None, "build_ref_text"),
    "build_instruct_text": (BUILDER, None, "build_instruct_text"),
    "estimate_prompt_len_from_additional_information": FUNCTIONS["estimate_prompt_len_from_additional_information"],
}
CONSTANTS = {
    "NUM_TOKENS_OUT": "vllm_omni/metrics/definitions.py",
    "STAGE_GEN_TIME": "vllm_omni/metrics/definitions.py",
}
MENTIONED = {  # names that our code spells as strings, and where vLLM-Omni does
    "VLLM_OMNI_INPUT_WAIT_TIMEOUT_S": "vllm_omni/core/sched/omni_scheduler_mixin.py",
    "tts_local_seed": "vllm_omni/worker/sampling_utils.py",
    "stage_metrics": OMNI,
    "init_timeout": OMNI,
    "stage_init_timeout": OMNI,
    "full_utterance_decode": "vllm_omni/model_executor/stage_input_processors/tts_utils.py",
}
DEPLOY = "vllm_omni/deploy/qwen3_tts*.yaml"


def read_facts(site: Path) -> dict[str, Any]:
    """Everything that our engine relies on, as JSON values."""
    return {
        "source": "vllm 0.30.0 and vllm-omni 0.30.0, Apache-2.0, extracted by recipes/vllm/check_wheel.py",
        "versions": {name: _version(site, name) for name in ("vllm", "vllm_omni")},
        "functions": {name: arguments_of(find(site, *where)) for name, where in FUNCTIONS.items()},
        "fields": {name: fields_of(find(site, file, None, cls)) for name, (file, cls) in FIELDS.items()},
        "properties": {name: is_property(find(site, *where)) for name, where in PROPERTIES.items()},
        "bases": {name: _bases(find(site, file, None, cls)) for name, (file, cls) in BASES.items()},
        "sources": {name: _source(site, *where) for name, where in SOURCES.items()},
        "constants": {name: _constant(site / file, name) for name, file in CONSTANTS.items()},
        "mentioned": {name: name in (site / file).read_text(encoding="utf-8") for name, file in MENTIONED.items()},
        "deploy": _deploy_keys(site),
    }


def _version(site: Path, name: str) -> str:
    (folder,) = site.glob(f"{name}-*.dist-info")
    return folder.name.removeprefix(f"{name}-").removesuffix(".dist-info")


def find(site: Path, file: str, owner: str | None, name: str) -> ast.AST:
    nodes: list[ast.stmt] = ast.parse((site / file).read_text(encoding="utf-8")).body
    for wanted in filter(None, (owner, name)):
        named = [node for node in nodes if getattr(node, "name", None) == wanted]
        if not named:
            raise LookupError(f"{file} has no {wanted}")
        found = named[-1]  # the last: overloads come before
        nodes = getattr(found, "body", [])
    return found


def arguments_of(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    given = node.args
    starred = [f"*{given.vararg.arg}"] if given.vararg else ["*"] if given.kwonlyargs else []
    keywords = [arg.arg for arg in given.kwonlyargs] + ([f"**{given.kwarg.arg}"] if given.kwarg else [])
    return [arg.arg for arg in (*given.posonlyargs, *given.args)] + starred + keywords


def fields_of(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.ClassDef)
    annotated = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)]  # type: ignore[union-attr]
    plain = [item.targets[0].id for item in node.body if isinstance(item, ast.Assign)]  # type: ignore[attr-defined]
    return annotated or plain


def is_property(node: ast.AST) -> bool:
    assert isinstance(node, ast.FunctionDef)
    return any(isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list)


def _bases(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.ClassDef)
    return [ast.unparse(base) for base in node.bases]


def _source(site: Path, file: str, owner: str | None, name: str) -> str:
    node = find(site, file, owner, name)
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    if ast.get_docstring(node):
        node.body.pop(0)
    return ast.unparse(node)


def _constant(file: Path, name: str) -> Any:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)  # type: ignore[union-attr, attr-defined]
    raise LookupError(f"{file} has no {name}")


def _deploy_keys(site: Path) -> dict[str, Any]:
    """Which keys the deploy files of this model use, by place, and the sizes that each of them sets itself."""
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(site.glob(DEPLOY))}
    files = {name: values for name, values in files.items() if "aligner" not in name}
    connectors = [c for values in files.values() for c in values.get("connectors", {}).values()]
    stages = [stage for values in files.values() for stage in values.get("stages", [])]
    places = {
        "top": list(files.values()),
        "connector": connectors,
        "extra": [connector.get("extra", {}) for connector in connectors],
        "stage": stages,
        "default_sampling_params": [stage.get("default_sampling_params", {}) for stage in stages],
        "subtalker_sampling_params": [stage.get("subtalker_sampling_params", {}) for stage in stages],
    }
    keys = {place: sorted({key for values in every for key in values}) for place, every in places.items()}
    return {"keys": keys, "files": {name: _sizes(values) for name, values in files.items()}}


def _sizes(values: dict[str, Any]) -> dict[str, Any]:
    (connector,) = values.get("connectors", {"": {}}).values()
    extra = connector.get("extra", {})
    return {
        "base_config": values.get("base_config"),
        "model_runner": values.get("model_runner"),
        "max_num_seqs": [stage.get("max_num_seqs") for stage in values.get("stages", [])],
        "decode_batch_max_size": extra.get("decode_batch_max_size"),
        "decode_cudagraph_batch_sizes": extra.get("decode_cudagraph_batch_sizes"),
    }


def main(arguments: list[str]) -> int:
    facts = json.dumps(read_facts(Path(arguments[0])), indent=1) + "\n"
    if "--write" in arguments:
        FIXTURE.write_text(facts, encoding="utf-8")
        return 0
    ours = FIXTURE.read_text(encoding="utf-8")
    names = (str(FIXTURE.relative_to(FIXTURE.parents[2])), arguments[0])
    sys.stdout.writelines(difflib.unified_diff(ours.splitlines(True), facts.splitlines(True), *names))
    return int(ours != facts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
