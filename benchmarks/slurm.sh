#!/usr/bin/env bash
# An array of four on a real slurmctld and slurmd, with one `scontrol requeue` in the middle. As root, from the root of
# the repository, with slurm-wlm and munge installed: bash benchmarks/slurm.sh
set -euo pipefail
work=$(mktemp -d) rows=${ROWS:-400}
export SLURM_CONF=$work/slurm.conf PACED_ROWS_PER_S=${PACED_ROWS_PER_S:-8} PACED_CLIP_S=2 LOCK_WAIT_S=1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$work"/{state,spool,munge}
chmod 700 "$work/munge"
end() {
    scancel --quiet --user "$(id -un)" 2>/dev/null || true
    kill $(cat "$work"/*.pid 2>/dev/null) 2>/dev/null || true
    [ "${KEEP:-}" ] || { sleep 1; rm -rf "$work"; }
}
trap end EXIT

head -c 1024 /dev/urandom > "$work/munge/key"
chmod 400 "$work/munge/key"
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed"
cat > "$SLURM_CONF" <<END
ClusterName=bench
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=$(id -un)
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/munge/socket,cred_expire=5
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=5
JobRequeue=1
KillWait=20
ReturnToService=2
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
END
slurmctld && slurmd
for _ in $(seq 60); do [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && break; sleep 0.5; done
sinfo

python - "$work/table.jsonl" "$rows" <<'END'
import json, sys
with open(sys.argv[1], "w") as file:
    for number in range(int(sys.argv[2])):
        file.write(json.dumps({"id": f"row-{number}", "text": f"Sentence {number}."}) + "\n")
END
job=$(sbatch --parsable --export=ALL --array=1-4 --cpus-per-task=1 --output="$work/log-%a" recipes/slurm/job.sbatch \
    "$work/table.jsonl" "$work/run" --engine benchmarks.object_store:engine --device cpu \
    --check too_long_factor=off --check too_short_factor=off --check noise_flatness=off)
done_of_2() { cat "$work"/run/journal/shard-2-of-4-w0/*.jsonl 2>/dev/null | wc -l; }
for _ in $(seq 240); do [ "$(done_of_2)" -gt 8 ] && break; sleep 0.25; done
before=$(done_of_2)
scontrol requeue "${job}_2"
echo "requeued task 2 after $before rows"
for _ in $(seq 600); do [ -z "$(squeue --noheader --job "$job" 2>/dev/null)" ] && break; sleep 0.5; done
squeue

grep -h "rows ok" "$work"/log-* || tail -n 20 "$work"/log-* "$work"/slurm*.log
python - "$work/run" "$rows" "$before" <<'END'
import json, sys
from collections import Counter
from pathlib import Path
import pyarrow.parquet as pq
from tts_batch.store.journal import list_segments, read_outcomes
out, rows, before = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
manifest = pq.read_table(out / "manifest.parquet").to_pylist()
lines = Counter(line.id for segment in list_segments(out / "journal") for line in read_outcomes(segment))
starts = {segment.name.split("-")[0] for segment in (out / "journal" / "shard-2-of-4-w0").glob("*.jsonl")}
assert [row["id"] for row in manifest] == [f"row-{number}" for number in range(rows)], "the manifest has every row once"
assert Counter(row["status"] for row in manifest) == {"ok": rows}
assert set(lines.values()) == {1}, "no row was made twice"
assert len(starts) == 2, "task 2 ran twice"
print(f"{rows} rows ok, each made once; task 2 was requeued after {before} rows and went on.")
END
