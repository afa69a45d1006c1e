#!/usr/bin/env bash
# The words and the shape of code, texts, documents, manifests and scripts, as far as a program can
# judge them: see hack/wordcheck.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
go run ./hack/wordcheck ||
	die "findings above the ceilings of hack/wordcheck/ceilings.txt: mend them"
