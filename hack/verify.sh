#!/usr/bin/env bash
# Runs every check that needs no test: format, modules, generated files, lint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

failed=()
for check in "$ROOT"/hack/verify-*.sh; do
	name=$(basename "$check" .sh)
	say "== $name"
	"$check" || failed+=("$name")
done
((${#failed[@]} == 0)) || die "did not pass: ${failed[*]}"
say "all checks pass"
