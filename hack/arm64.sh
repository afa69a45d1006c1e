#!/usr/bin/env bash
# Tests for arm64 on a machine of another architecture: go vet of all packages, and under qemu-user
# the unit tests of engine, BPF decoding and plugin. They run without root, so tests that need the
# kernel are skipped, and counted. So are tests of engines with sockets: qemu-user does not support
# all options of sockets, and some options need root. The last line has the numbers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=(./pkg/abi ./pkg/engine ./pkg/engine/{aead,noise,packet,uapi} ./internal/bpfobj ./pkg/drop
	./plugins/... ./pkg/cniplugin)
install_debian "qemu-user-static|command -v qemu-aarch64-static|runs programs for arm64"
cd "$ROOT"
export GOARCH=arm64 CGO_ENABLED=0
# Where CI=true, a skip for any other reason fails its test.
export KUBEVEIL_EXPECTED_SKIPS=no-root
progress "go vet for arm64" go vet ./...

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 skipped=0 failed=()
# Another user than root in a namespace of users, who still reads the tree if it is root's. A Go
# program under qemu-user can hang in a signal that preempts a goroutine. The engine's tests start
# themselves again without the second setting.
run() {
	GODEBUG=asyncpreemptoff=1,gcshrinkstackoff=1 TMPDIR=$work timeout 300 \
		unshare --user --map-user=65534 --map-group=65534 qemu-aarch64-static "$@"
}

# names prints the tests in files.
names() { sed -nE 's/^func ((Test|Fuzz)[A-Za-z0-9]+)\(.*/\1/p' "$@" | grep -vx TestMain; }

# leave_out counts tests that do not run here, and names them.
leave_out() {
	skipped=$((skipped + $(wc -w <<<"$1")))
	say "left out, with sockets of engines: ${1//$'\n'/ }"
}
leave_out "$(names pkg/engine/sock/*_test.go)"

while read -r package dir; do
	test=$work/test log=$work/log which=.
	rm -f "$test"
	go test -vet=off -c -o "$test" "$package"
	[[ -e $test ]] || continue
	if [[ $package == */pkg/engine ]]; then
		mapfile -t files < <(grep -LE 'enginetest\.|[^.a-z]greeted\(' "$dir"/*_test.go)
		which="^($(names "${files[@]}" | paste -sd '|'))\$"
		leave_out "$(comm -23 <(names "$dir"/*_test.go | sort) <(names "${files[@]}" | sort))"
	fi
	(cd "$dir" && run "$test" -test.v -test.short -test.run "$which") >"$log" 2>&1 || {
		failed+=("$package")
		grep -hE '^ *--- FAIL' "$log" >&2 || true
		grep -vE '^(=== |--- PASS|    --- PASS)' "$log" | tail -n 40 >&2
	}
	passed=$((passed + $(grep -c '^--- PASS' "$log" || true)))
	skipped=$((skipped + $(grep -c '^--- SKIP' "$log" || true)))
	sed -nE 's/^--- SKIP: (\S+).*/  skipped: \1/p' "$log" >&2
done < <(go list -f '{{.ImportPath}} {{.Dir}}' "${packages[@]}")
((${#failed[@]} == 0)) || die "arm64: failed: ${failed[*]}"
((passed > 0)) || die "arm64: no test ran"
say "arm64: $passed tests passed, $skipped skipped"
