#!/usr/bin/env bash
# Formatting of all Go files, and go vet.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
bad=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
[[ -z $bad ]] || die "not formatted, run \`make fmt\`: $bad"
go vet ./...
