#!/usr/bin/env bash
# go.mod and go.sum are what `go mod tidy` makes of the source.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
go mod tidy -diff >&2 || die "go.mod or go.sum is not tidy: run \`go mod tidy\`"
