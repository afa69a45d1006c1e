#!/usr/bin/env bash
# Runs golangci-lint (with .golangci.yml) and govulncheck, both pinned in hack/tools/lint/go.mod.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

module=$ROOT/hack/tools/lint
from=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
build() {
	cd "$module"
	CGO_ENABLED=0 go build -buildvcs=false -o "$OUT/tools/" tool
	echo "$from" >"$OUT/tools/golangci-lint.from"
}
mkdir -p "$OUT/tools"
built_from "$OUT/tools/golangci-lint" "$from" || progress "build the linters" build

cd "$ROOT"
say "golangci-lint …"
"$OUT/tools/golangci-lint" run ./...
say "govulncheck …"
# The database is on the network: where there is none, that is said and is no finding.
out=$OUT/log/govulncheck.log
mkdir -p "$OUT/log"
if "$OUT/tools/govulncheck" ./... >"$out" 2>&1; then
	exit 0
fi
cat "$out" >&2
if grep -qE 'fetching vulnerabilities|vuln\.go\.dev' "$out" && ! grep -q '^Vulnerability #' "$out"; then
	say "SKIPPED govulncheck: its database cannot be reached from here"
	exit 0
fi
exit 1
