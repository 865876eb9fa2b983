#!/bin/bash
# Medians of RUNS (5) alternating runs of bench_remote_rsync_vs_sparsync.sh; see there for the other variables.
set -euo pipefail
RUNS=${RUNS:-5} exec "$(dirname "$0")/bench_remote_rsync_vs_sparsync.sh" "$@"
