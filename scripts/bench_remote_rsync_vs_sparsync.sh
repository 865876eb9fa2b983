#!/bin/bash
# One run of `scripts/bench remote`: pushes by rsync and by sparsync over QUIC and ssh; see there for the variables.
set -euo pipefail
exec "$(dirname "$0")/bench" remote "$@"
