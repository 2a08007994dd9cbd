#!/usr/bin/env bash
# Start run.sh of this bundle in its image by apptainer, on this node. Variables go in by name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec apptainer exec \
  --no-home \
  --writable-tmpfs \
  --nv \
  --bind="$here":"$here" \
  --bind=/scratch:/scratch \
  --bind=/data:/data:ro \
  --pwd="$here" \
  docker://nvcr.io/nvidia/nemo:26.02 \
  bash "$here"/run.sh
