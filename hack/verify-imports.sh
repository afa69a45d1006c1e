#!/usr/bin/env bash
# Who imports what, by the rules of hack/deptest/rule.go. A message says which rule, and why.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
go test -count=1 -timeout 5m -run '^TestImportsFollowTheRules$' ./hack/deptest
