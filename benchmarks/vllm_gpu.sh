#!/usr/bin/env bash
# --engine vllm on a GPU machine without network: unpacks vLLM, makes a random-weight checkpoint of the 1.7B shape, and
# runs one variant of benchmarks/vllm_gpu.py, in at most 9 minutes. Results go to $OUT (summary.json, logs.tar.gz).
#
#   OUT=folder bash benchmarks/vllm_gpu.sh eager|graphs|chunked|tiny
#
# VLLM_PARTS (default /tmp/vllm): the folder of part.*, which `cat part.* | tar xJ` turns into site/; left out where vLLM
# is installed. WORK (default /tmp/vllm_gpu): what later runs on the same machine use again.
set -u
variant=${1:?one of eager, graphs, chunked, tiny}
parts=${VLLM_PARTS:-/tmp/vllm}
work=${WORK:-/tmp/vllm_gpu}
out=${OUT:-$work/out}
started=$(date +%s)
mkdir -p "$work" "$out"
if compgen -G "$parts/part.*" >/dev/null && [ ! -e "$parts/site/.complete" ]; then
  rm -rf "$parts/site"
  cat "$parts"/part.* | xz -dc -T0 | timeout 180 tar xf - -C "$parts" && touch "$parts/site/.complete"
fi
[ -d "$parts/site" ] && export PYTHONPATH="$PWD:$parts/site${PYTHONPATH:+:$PYTHONPATH}" || export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
echo "unpacked after $(($(date +%s) - started)) s"
export TTS_BATCH_CACHE=$work/cache PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-INFO}
left=$((${LIMIT_S:-530} - ($(date +%s) - started)))
timeout -k 15 "$left" python3 benchmarks/vllm_gpu.py "$variant" --work "$work" --out "$out" --limit-s "$((left - 20))"
status=$?
tar czf "$out/logs.tar.gz" -C "$work" logs 2>/dev/null
echo "ended with status $status after $(($(date +%s) - started)) s"
nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader 2>/dev/null
exit "$status"
