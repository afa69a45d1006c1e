#!/usr/bin/env bash
# Runs the tests and ends with how many passed, failed and were skipped.
#   hack/test.sh        everything
#   hack/test.sh unit   all but the lab
#   hack/test.sh lab    the lab alone
# Kernel tests run one package at a time: they share two cores and one kernel.
set -eu -o pipefail
cd "$(dirname "$0")/.."
what=${1:-all}

everything=$(go list ./...)
unit=$(grep -v '/e2e/lab' <<<"$everything")
lab=$(grep '/e2e/lab' <<<"$everything" || true)

run() { # events on standard output, errors of the tool itself on standard error
	case $what in
	unit | all) go test -json -race -p 2 -timeout 10m $unit || true ;;
	esac
	case $what in
	lab | all) [ -z "$lab" ] || go test -json -p 1 -timeout 20m $lab || true ;;
	esac
}

case $what in
unit | lab | all) ;;
*) echo "hack/test.sh: unknown part '$what': write unit, lab or nothing" >&2; exit 2 ;;
esac
mkdir -p out/test
go build -o out/bin/testsummary ./hack/testsummary
run | out/bin/testsummary -o out/test/result.json
