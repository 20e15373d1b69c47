#!/usr/bin/env bash
# One piece of training, on a machine with one or two GPUs and nothing else.
#
#   bash recipes/tiny_voice/train_piece.sh OUT SEED HOURS CODES_SECONDS SECONDS [RESUME]
#
# CODES_SECONDS after the start the codes are settled; until SECONDS after it the talker (on the first GPU) and the
# decoder (on the last) learn. RESUME is a folder that an earlier piece left: the talker goes on from there, and learns
# the new codes; with CODES_SECONDS 0 the codes stay too, and the decoder goes on as well. OUT receives piece.tar.aa,
# piece.tar.ab, ... (`cat piece.tar.* | tar x`) and piece.log. In the tar, unjudged/ is the codec as it was before the
# discriminator. Another SEED gives other sentences in other voices. build/ must be there: README.md.
# DECODER_AFTER seconds, the decoder begins, for a GPU that is busy with something else until then. With TALKER_ONLY=1
# and CODES_SECONDS 0 it does not learn at all: the codec comes back as RESUME has it, the talker has the GPU to itself.
# SHARDS_FROM may name a folder of speech. CPU=1 tries everything out on a CPU, in small.
set -uo pipefail
out=$1 seed=$2 hours=$3 codes_seconds=$4 seconds=$5 resume=${6:-}
began=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../.." PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
work=$(mktemp -d)
corpus=$work/corpus shards=$((hours * 6)) few=42 last=$(($(nvidia-smi -L 2>/dev/null | wc -l) - 1))
codes_options=() decoder_options=() talker_options=() jobs=$(($(nproc) > 12 ? $(nproc) - 8 : $(nproc) / 2))
if [ -n "${CPU:-}" ]; then
    shards=2 few=2 jobs=1
    decoder_options=(--device cpu --seconds-per-step 8 --log-every 2) codes_options=("${decoder_options[@]}" --crops 60)
    talker_options=(--device cpu --no-compile --positions 1024 --jobs 1 --log-every 2)
fi
mkdir -p "$out" "$work/voice"
trap 'rm -rf "$work"' EXIT

# A program that fails is started again, more plainly each time.
learn() { # GPU SCRIPT ARGUMENTS...
    local gpu=$1 script=$2 plain tries=("" --no-graph)
    shift 2
    [ "$script" = talker ] && tries+=("--no-graph --no-compile")
    for plain in "${tries[@]}"; do
        # shellcheck disable=SC2086
        CUDA_VISIBLE_DEVICES=$gpu python3 "$here/$script.py" "$@" --corpus "$corpus" --seed "$seed" $plain && break
        echo "$script.py $plain: rc $?"
    done
}

{
    if [ -n "${SHARDS_FROM:-}" ]; then
        cp -r "$SHARDS_FROM" "$corpus"
    else
        OMP_NUM_THREADS=1 nice -n 10 python3 "$here/synthesise.py" --hours "$hours" --seed "$seed" --jobs "$jobs" \
            --out "$corpus" &
        synthesis=$!
    fi
    codec=$resume
    if [ "$codes_seconds" != 0 ]; then
        codec=$work/codes
        learn 0 codes --shards "$few" --until $((began + codes_seconds)) --out "$codec" "${codes_options[@]}" &
        talker_options+=(${resume:+--new-codes})
    else
        decoder_options+=(--alone 0.1 --rate 5e-4) talker_options+=(--rate 8e-4)
    fi
    learners=()
    if [ -z "${TALKER_ONLY:-}" ]; then
        { sleep "${DECODER_AFTER:-0}" && learn "$last" decoder --shards "$few" --until $((began + seconds)) \
            --codec "$codec" --out "$work/decoder" "${decoder_options[@]}"; } &
        learners+=($!)
    fi
    learn 0 talker --shards "$shards" --first-shards "$few" --until $((began + seconds)) \
        --codec "$codec" --out "$work/talker" ${resume:+--resume "$resume"} "${talker_options[@]}" &
    wait "${learners[@]}" $!
    [ -n "${synthesis:-}" ] && kill "$synthesis" 2>/dev/null
} >"$work/piece.log" 2>&1

[ "$codes_seconds" = 0 ] && cp "$resume"/codec-* "$work/voice"
for folder in "$work/codes" "$work/decoder" "$work/talker"; do # the decoder's codec replaces that of the codes
    [ -d "$folder" ] && cp "$folder"/*.log "$folder"/*.safetensors "$work/voice"
done
[ -d "$work/decoder/unjudged" ] && cp -r "$work/decoder/unjudged" "$work/voice"
touch "$work/voice/codec.done"
tar c -C "$work/voice" . | split -b 15000000 - "$out/piece.tar."
tail -n +1 "$work"/piece.log "$work"/voice/*.log >"$out/piece.log"
echo "piece: $(($(date +%s) - began)) s"
