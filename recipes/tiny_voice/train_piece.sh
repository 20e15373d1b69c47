#!/usr/bin/env bash
# One piece of training, on a machine with one GPU and nothing else: about 1.5 minutes more than it trains.
#
#   bash recipes/tiny_voice/train_piece.sh OUT SEED HOURS CODEC_MINUTES TALKER_MINUTES [RESUME]
#
# OUT receives codec-*.safetensors, talker-*.safetensors and logs. RESUME is the OUT of an earlier piece; with it,
# CODEC_MINUTES 0 keeps its codec. Another SEED gives other sentences in other voices. build/ must be there: README.md.
set -euo pipefail
out=$1 seed=$2 hours=$3 codec_minutes=$4 talker_minutes=$5 resume=${6:-}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../.." PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
corpus=$(mktemp -d)
shards=$((hours * 6))
trap 'rm -rf "$corpus"' EXIT

OMP_NUM_THREADS=1 python3 "$here/synthesise.py" --hours "$hours" --seed "$seed" --out "$corpus" &
codec=$resume
if [ "$codec_minutes" != 0 ]; then
    python3 "$here/codec.py" --corpus "$corpus" --shards $((shards < 48 ? shards : 48)) --minutes "$codec_minutes" \
        --out "$out" ${resume:+--resume "$resume"}
    codec=$out
fi
if [ "$talker_minutes" != 0 ]; then
    python3 "$here/talker.py" --corpus "$corpus" --shards "$shards" --minutes "$talker_minutes" --seed "$seed" \
        --codec "$codec" --out "$out" ${resume:+--resume "$resume"}
fi
