#!/usr/bin/env bash
# Documents: links, anchors, columns, sentences, and that what they name exists: paths, tests, Make
# targets, flags of veilctl.
# A message says file and line, and what to write instead.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
go run ./hack/docs
