"""Makes clips with the official qwen_tts package. A program of its own: its environment may lack tts_batch.

    python - JOB.json OUTPUTS.npz < run_official.py

The job: {"model", "device", "dtype", "calls": [{"fn", "kwargs"}]}. The outputs: of call i `codes_i` [frames, 16],
`wave_i`, and `margin_i` [frames + 1], the smallest gap between the best and the second best score of the frame, over
the talker's choice and the code predictor's fifteen (the last entry: the choice after the last frame); `versions`.
"""

import json
import sys
from importlib import metadata
from typing import Any


def main(job_path: str, outputs_path: str) -> None:
    import numpy as np
    import torch
    from qwen_tts import Qwen3TTSModel  # type: ignore[import-not-found, unused-ignore]

    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    torch.backends.cudnn.allow_tf32 = False
    place = {} if job["device"] == "cpu" else {"device_map": job["device"]}
    model = Qwen3TTSModel.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]), **place)
    captured: dict[str, list[Any]] = {"codes": [], "talker": [], "predictor": []}

    def capture(module: Any, name: str, **more: Any) -> None:
        generate = module.generate

        def generate_and_capture(**given: Any) -> Any:
            result = generate(**given, **more)
            captured[name].append(result[0][0] if name == "codes" else margins(result.scores))
            return result

        module.generate = generate_and_capture

    def margins(scores: Any) -> Any:
        top = torch.stack(scores)[:, 0].float().topk(2).values
        return (top[:, 0] - top[:, 1]).cpu().numpy()

    capture(model.model, "codes")
    capture(model.model.talker, "talker", output_scores=True)
    capture(model.model.talker.code_predictor, "predictor", output_scores=True)

    packages = ("qwen-tts", "transformers", "torch")
    outputs: dict[str, Any] = {"versions": np.array(", ".join(f"{name} {metadata.version(name)}" for name in packages))}
    for i, call in enumerate(job["calls"]):
        for outputs_of_call in captured.values():
            outputs_of_call.clear()
        (wave,), _ = getattr(model, call["fn"])(**call["kwargs"])
        margin = captured["talker"][0]
        for frame, gaps in enumerate(captured["predictor"]):
            margin[frame] = min(margin[frame], gaps.min())
        outputs |= {f"codes_{i}": captured["codes"][0].cpu().numpy(), f"wave_{i}": wave, f"margin_{i}": margin}
    np.savez(outputs_path, **outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
