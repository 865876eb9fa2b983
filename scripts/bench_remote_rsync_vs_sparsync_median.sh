#!/bin/bash
# Medians of RUNS (5) alternating runs of `scripts/bench remote`; see there for the other variables.
set -euo pipefail
RUNS=${RUNS:-5} exec "$(dirname "$0")/bench" remote "$@"
