#!/usr/bin/env bash
# One machine with eight GPUs, or the same command on each of several machines (NODES, HOST).
# A process that dies is started again up to ten times, from the last checkpoint.
#
#   ./torchrun.sh DATA OUT [options of vitrail train]
set -euo pipefail

data=$1
out=$2
shift 2
name=$(basename "$out")

exec torchrun \
  --nnodes "${NODES:-1}" \
  --nproc-per-node "${GPUS:-8}" \
  --rdzv-backend c10d \
  --rdzv-endpoint "${HOST:-localhost}:29400" \
  --rdzv-id "$name" \
  --max-restarts 10 \
  --shutdown-timeout 90 \
  -m vitrail train "$data" --out "$out" --resume auto "$@"
