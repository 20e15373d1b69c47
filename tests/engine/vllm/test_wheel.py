"""What our code calls is in the real wheels: tests/data/vllm_0.30.0.json, made by recipes/vllm/check_wheel.py.

The scripted vLLM-Omni of the other tests is held to the same facts.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.engine.asking import ask, voice
from tests.engine.vllm.conftest import ROOT, SITE
from tts_batch.engine.choices import PROFILES
from tts_batch.engine.request import EngineConfig, SamplingParams, SpeechRequest
from tts_batch.engine.vllm import host
from tts_batch.engine.vllm.prompts import Preparer
from tts_batch.engine.vllm.settings import PROFILE_SIZES, deploy_values, resolve_settings
from tts_batch.engine.vllm.versions import TESTED
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny

FACTS: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "vllm_0.30.0.json").read_text())


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(model="", device="cuda", **settings)


def calls(name: str) -> list[ast.Call]:
    """Every call of a function of this name in the host program."""
    tree = ast.parse(inspect.getsource(host))
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in nodes if getattr(node.func, "attr", getattr(node.func, "id", None)) == name]


def test_the_facts_are_of_the_releases_that_are_accepted() -> None:
    assert {name.replace("_", "-"): version for name, version in FACTS["versions"].items()} == dict(TESTED)


def test_the_host_calls_what_there_is() -> None:
    (generate,) = calls("generate")
    arguments = FACTS["functions"]["AsyncOmni.generate"]
    assert arguments[:2] == ["self", "prompt"]
    assert {keyword.arg for keyword in generate.keywords} <= set(arguments)
    (opened,) = calls("AsyncOmni")
    taken = set(FACTS["functions"]["OmniEngineBase.__init__"]) | {"deploy_config"}  # read out of **kwargs
    assert {keyword.arg for keyword in opened.keywords} <= taken
    (estimate,) = calls("_estimate")
    assert {keyword.arg for keyword in estimate.keywords} <= set(
        FACTS["functions"]["estimate_prompt_len_from_additional_information"]
    )
    assert FACTS["functions"]["OmniBase.resolve_sampling_params_list"][:2] == ["self", "sampling_params_list"]
    assert FACTS["properties"] == {"OmniBase.errored": True}
    assert FACTS["bases"]["OmniEngineDeadError"] == ["EngineDeadError"]
    assert FACTS["constants"] == {"NUM_TOKENS_OUT": "num_tokens_out", "STAGE_GEN_TIME": "stage_gen_time"}
    assert all(FACTS["mentioned"].values())
    assert {"outputs", "metrics", "finished"} <= set(FACTS["fields"]["OmniRequestOutput"])
    assert {"num_tokens_out", "stage_gen_time_ms", "finish_reason"} <= set(FACTS["fields"]["StageRequestStats"])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("settings", [{}, {"cuda_graph": False, "runner": "v1", "code2wav_mode": "chunked"}])
def test_a_deploy_file_has_known_keys_alone(profile: str, settings: dict[str, Any]) -> None:
    values = deploy_values(resolve_settings(config(profile=profile, **settings)))
    keys = FACTS["deploy"]["keys"]
    assert values.keys() <= set(FACTS["fields"]["DeployConfig"])
    for stage in values["stages"]:
        own = {"trust_remote_code", "enable_prefix_caching", "dtype"}  # of vLLM itself, and in the shipped files
        assert stage.keys() <= (set(FACTS["fields"]["StageDeployConfig"]) | own) & (set(keys["stage"]) | own)
        assert stage["default_sampling_params"].keys() <= set(keys["default_sampling_params"])
        assert stage.get("subtalker_sampling_params", {}).keys() <= set(keys["subtalker_sampling_params"])
    (connector,) = values["connectors"].values()
    assert connector["extra"].keys() <= set(keys["extra"])
    is_plain = not settings
    assert [stage["enforce_eager"] for stage in values["stages"]] == [not is_plain] * 2
    assert (values["model_runner"], values["async_chunk"]) == (("v2", False) if is_plain else ("v1", True))


def test_the_profiles_are_those_that_come_with_it() -> None:
    files = FACTS["deploy"]["files"]
    sizes = {
        name: (size.max_num_seqs, size.code2wav_seqs, size.code2wav_batch, size.code2wav_graphs)
        for name, size in PROFILE_SIZES.items()
    }
    b2, b4 = files["qwen3_tts_high_concurrency_mrv2"], files["qwen3_tts_high_concurrency_mrv2_b4"]
    b8 = files["qwen3_tts_high_concurrency_mrv2_single_gpu"]
    seqs = tuple(files["qwen3_tts_high_concurrency"]["max_num_seqs"])
    assert files["qwen3_tts_mrv2"]["base_config"] == "qwen3_tts.yaml"
    assert sizes == {
        "basic": (*files["qwen3_tts"]["max_num_seqs"], files["qwen3_tts"]["decode_batch_max_size"], 1),
        "b2": (*seqs, b2["decode_batch_max_size"], max(b2["decode_cudagraph_batch_sizes"])),
        "b4": (*seqs, b4["decode_batch_max_size"], max(b4["decode_cudagraph_batch_sizes"])),
        "throughput": (*b8["max_num_seqs"], b8["decode_batch_max_size"], max(b8["decode_cudagraph_batch_sizes"])),
    }


@cache
def real_functions() -> dict[str, Any]:
    """The functions of the wheel, from their sources."""
    names: dict[str, Any] = {}
    for source in FACTS["sources"].values():
        exec(source, names)
    return names


TEXTS = ["Hi.", "A longer sentence, with 42 numbers and Ünïcödé.", "你好，世界。", "  spaces   inside  ", "e\u0301 NFD"]


@pytest.fixture
def preparers(tmp_path: Path) -> Iterator[dict[str, Preparer]]:
    settings = resolve_settings(config())
    kinds = ("base", "custom_voice", "voice_design")
    made = {
        kind: Preparer(resolve_checkpoint(str(build_tiny("tiny-random", kind))), settings, tmp_path) for kind in kinds
    }
    yield made
    for preparer in made.values():
        preparer.close()


def variants(text: str) -> Iterator[SpeechRequest]:
    base: dict[str, Any] = {"task": "base", "speaker": None, "text": text}
    for non_streaming in (None, False, True):
        for language in (None, "english", "chinese"):
            common = {"non_streaming": non_streaming, "language": language}
            yield ask("vector", **base, **common, reference=voice(seconds=2.01), x_vector_only=True)
            for seconds in (0.05, 0.08, 3.3):
                yield ask("icl", **base, **common, reference=voice(seconds=seconds, text=f"Spoken: {text}"))
            for speaker in ("ryan", "eric", "Dylan"):  # the last two have dialects
                yield ask("preset", text=text, speaker=speaker, **common)
                yield ask("instructed", text=text, speaker=speaker, instruct="Calm, and slow.", **common)
            yield ask("design", text=text, task="voice_design", speaker=None, instruct="A child.", **common)


@pytest.mark.parametrize("text", TEXTS)
def test_b10_prompts_are_as_long_as_the_real_function_says(preparers: dict[str, Preparer], text: str) -> None:
    """B10, B11: for every layout, language, voice and reference; vLLM-Omni's talker would pad or cut any other."""
    estimate = real_functions()["estimate_prompt_len_from_additional_information"]
    number = 0
    for request in variants(text):
        number += 1
        folder = build_tiny("tiny-random", request.task)
        talker = json.loads((folder / "config.json").read_text())["talker_config"]
        prepared = preparers[request.task].prepare(request).request
        length = estimate(
            dict(prepared.information),
            task_type=prepared.information["task_type"][0],
            tokenize_prompt=lambda template, folder=folder: tokenized(folder, template),
            codec_language_id=talker["codec_language_id"],
            spk_is_dialect=talker["spk_is_dialect"],
        )
        assert prepared.prompt_tokens == length, request
    assert number == 99


def tokenized(folder: Path, template: str) -> list[int]:
    """The ids of a chat template, its control tokens one id each."""
    plain = tokenizer(folder)
    parts = template.replace("<|im_start|>", "\0").replace("<|im_end|>", "\0").split("\0")
    return [number for part in parts for number in (-1, *plain.encode(part))][1:]


@cache
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder)


def test_sampling_has_the_names_of_vllm(preparers: dict[str, Preparer]) -> None:
    sampling = SamplingParams(do_sample=False, min_new_tokens=90)
    params = preparers["custom_voice"].prepare(ask(max_frames=20, seed=2**63 - 1, sampling=sampling)).request.sampling
    assert params.keys() <= set(FACTS["fields"]["SamplingParams"])
    assert params == {
        "temperature": 0.0,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "seed": 2**63 - 1,
        "extra_args": {"tts_local_seed": 2**63 - 1},
        "min_tokens": 21,
        "max_tokens": 21,
        "stop_token_ids": [2150],
        "detokenize": False,
    }


def test_the_scripted_omni_has_the_real_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    from vllm.sampling_params import RequestOutputKind
    from vllm_omni.entrypoints.async_omni import AsyncOmni

    assert arguments(AsyncOmni.generate) == FACTS["functions"]["AsyncOmni.generate"]
    assert arguments(AsyncOmni.__init__) == FACTS["functions"]["AsyncOmni.__init__"]
    name = "OmniBase.resolve_sampling_params_list"
    assert arguments(AsyncOmni.resolve_sampling_params_list) == FACTS["functions"][name]
    assert [kind.name for kind in RequestOutputKind] == FACTS["fields"]["RequestOutputKind"]
    for module in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "vllm_omni")]:
        del sys.modules[module]


def arguments(function: Any) -> list[str]:
    kinds = inspect.Parameter
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is kinds.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        names.append(f"{stars}{parameter.name}")
    return names


def load_check_wheel() -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("check_wheel", ROOT / "recipes" / "vllm" / "check_wheel.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_reads_a_wheel_s_sources(tmp_path: Path) -> None:
    """A changed signature or field is a difference: the extraction sees what it is there to see."""
    check = load_check_wheel()
    (tmp_path / "module.py").write_text(
        "class A(B):\n    x: int = 1\n    def f(self, a, *, b=1, **c): ...\n"
        "    @property\n    def g(self): ...\nN: int = 3\n"
    )
    assert check.arguments_of(check.find(tmp_path, "module.py", "A", "f")) == ["self", "a", "*", "b", "**c"]
    assert check.fields_of(check.find(tmp_path, "module.py", None, "A")) == ["x"]
    assert check.is_property(check.find(tmp_path, "module.py", "A", "g"))
    with pytest.raises(LookupError, match="has no h"):
        check.find(tmp_path, "module.py", "A", "h")
