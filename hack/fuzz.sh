#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (10s), one after the other. By default the fuzzer would spend up
# to a minute on making one input smaller, and run nothing else meanwhile.
set -eu -o pipefail
cd "$(dirname "$0")/.."
n=0
while IFS=: read -r file name; do
	pkg=./$(dirname "$file")
	echo "fuzz $pkg $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" \
		-fuzzminimizetime 1s "$pkg" | tail -1
	n=$((n + 1))
done < <(git ls-files '*_test.go' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
echo "$n fuzz targets run"
