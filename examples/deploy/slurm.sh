#!/usr/bin/env bash
# A Ray cluster for one program, inside of a Slurm job: sbatch examples/deploy/slurm.sh program.py
#SBATCH --job-name=dask-exo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=02:00:00
set -euo pipefail
program=$1

# A virtual environment on a file system that all nodes see.
source "$HOME/venv/bin/activate"
ulimit -n 65536
export RAY_USAGE_STATS_ENABLED=0
export MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824
export RAY_preload_python_modules=dask_exo PYTHONHASHSEED=0
export RAY_min_spilling_size=5000000000  # a quarter of the store, written at a time

# The nodes share their network with other users: only who has the token gets in.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.ray/token-$SLURM_JOB_ID"
mkdir -p "$HOME/.ray"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -i | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))
sizes=(--num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory=20000000000
       --object-spilling-directory="${TMPDIR:-/tmp}/spill-$SLURM_JOB_ID")

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
  ray start --head --node-ip-address="$address" --port="$port" "${sizes[@]}" --block &

# joined COUNT: wait until so many nodes have.
joined() {
  srun --nodes=1 --ntasks=1 -w "$head" --overlap python - "$address:$port" "$1" <<'PYTHON'
import sys, time
import ray

for attempt in range(120):
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        break
    except (ConnectionError, RuntimeError):  # the head is starting
        time.sleep(1)
else:
    sys.exit("the head of the Ray cluster has not started in two minutes")
for second in range(300):
    if sum(node["Alive"] for node in ray.nodes()) >= int(sys.argv[2]):
        sys.exit()
    time.sleep(1)
sys.exit(f"fewer than {sys.argv[2]} nodes have joined in five minutes")
PYTHON
}

joined 1
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 -w "$node" --overlap \
    ray start --address="$address:$port" "${sizes[@]}" --block &
done
joined "${#nodes[@]}"

# The program runs on the head; Slurm ends everything with the job.
export DASK_EXO__ADDRESS="$address:$port"
srun --nodes=1 --ntasks=1 -w "$head" --overlap dask exo doctor || true
srun --nodes=1 --ntasks=1 -w "$head" --overlap python "$program"
