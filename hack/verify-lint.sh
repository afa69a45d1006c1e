#!/usr/bin/env bash
# Runs golangci-lint (with .golangci.yml) and govulncheck, both pinned in hack/versions.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

build() {
	export CGO_ENABLED=0 GOBIN=$OUT/tools
	local lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	go install -buildvcs=false "$lint@$GOLANGCI_LINT_VERSION"
	go install -buildvcs=false "golang.org/x/vuln/cmd/govulncheck@$GOVULNCHECK_VERSION"
	echo "$from" >"$OUT/tools/golangci-lint.from"
}
from="$GOLANGCI_LINT_VERSION $GOVULNCHECK_VERSION $(go env GOVERSION GOARCH | xargs)"
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
