#!/usr/bin/env bash
# Runs the tests and ends with how many passed, failed and were skipped.
#   hack/test.sh        everything
#   hack/test.sh unit   all but the lab
#   hack/test.sh lab    the lab alone
#   hack/test.sh again PACKAGE TEST
#                       one test as above, alone, and its events: hack/testsummary asks for it
# A test that failed by chance is run again, see hack/testsummary.
# KUBEVEIL_LAB_LONG=1 runs what mostly waits, too. With CI=true a skip for a reason that is not
# expected fails; all skips are in out/test/skips.jsonl.
set -eu -o pipefail
cd "$(dirname "$0")/.."
what=${1:-all}

# A cipher or a hash shares nothing. With the race detector in it the header of a volume takes twice
# as long, and tests of volumes make thousands. No package is left out that instantiates a generic
# type of sync or sync/atomic: the linker may take its copy for all, and the detector then sees races
# where there are none. The race detector also checks each unsafe pointer (checkptr), which takes a
# fifth of the time of tests that compare or encode much. The standard library's pointers are left
# out. For a package, the last of these flags that matches it counts.
unwatched="-gcflags=std=-d=checkptr=0
	-gcflags=golang.org/x/crypto/xts=-race=false
	-gcflags=crypto/internal/fips140/...=-race=false"
# A program with the race detector sleeps before it ends, by default a second, and there are a
# hundred. The detector watches whatever still runs in that time: some of it stays.
export GORACE=${GORACE-atexit_sleep_ms=20}

# Thousands of pods are added one by one in the long part.
patience=20m
[ -z "${KUBEVEIL_LAB_LONG:-}" ] || patience=40m

# A test by random cases draws others in each run. The long part draws ten times as many.
export RAPID_CHECKS=${RAPID_CHECKS-30}

# watched reports whether the tests of a package in a folder run with the race detector, which takes
# four times the CPU. They do where something starts a goroutine, except tools and packages whose
# goroutines are those of their tests: tests of the keeper of policies run its table so. Goroutines
# of the tests in the last line share files and processes, and no memory.
watched() {
	case $1 in
	*/bpf | */e2e | */e2e/* | */hack/* | */pkg/policy/nftables) return 1 ;;
	*/pkg/bench/* | */cmd/veil-tools/*) return 1 ;;
	*/internal/atomicfile | */pkg/wgkey | */pkg/hostnet | */plugins/veil | */csi/kerneltest) return 1 ;;
	esac
	grep -qE '\bgo (func|[a-z]+[.(])|\.Go\(|\.Parallel\(' "$1"/*.go
}

# events runs go test. The last event has its status: there may be no other, if it did not start.
events() {
	local status=0
	go test -json -vet=off "$@" || status=$?
	((status == 0)) || echo "hack/test.sh: go test ended with status $status (see above)" >&2
	printf '{"Action":"exit","Status":%d}\n' "$status"
}

if [ "$what" = again ]; then
	case $2 in
	*/e2e/node/*) events -count=1 -parallel 4 -timeout $patience -run "^$3\$" "$2" ;;
	*)
		race=
		! watched "$(go list -f '{{.Dir}}' "$2")" || race="-race $unwatched"
		events -count=1 $race -timeout 10m -run "^$3\$" "$2"
		;;
	esac
	exit
fi

# packages prints all packages with their folders. Those with the longest tests come first, so that
# none of them runs alone in the end.
packages() {
	local package folder
	go list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package folder; do
		echo "$(cat "$folder"/*_test.go 2>/dev/null | wc -c) $package $folder"
	done | sort -rn | cut -d ' ' -f 2-
}

lab=$(go list ./... | grep '/e2e/node/' | sort -r || true)
unit= raced=
while read -r package folder; do
	case $package in
	*/e2e/node/*) continue ;;
	esac
	if watched "$folder"; then raced+=" $package"; else unit+=" $package"; fi
done < <(packages)

# units runs all packages but those of the lab. Five at a time: they share two cores, and many wait
# for the kernel. Those with the race detector and the others run beside each other, because each
# run of go test ends with a long package that leaves a core idle. They are a pipeline, and not a
# job in the background, so that Ctrl-C ends both. Without go vet, which `make verify` runs.
units() {
	local others=out/test/others.events
	{ [ -z "$unit" ] || events -p 2 -timeout 30m $unit; } >$others |
		{ [ -z "$raced" ] || events -race $unwatched -p 3 -timeout 30m $raced; }
	cat $others
	rm $others
}

# labs runs the packages of the lab. Four labs at a time, of all packages together: they cannot see
# each other, and most of their time is waiting. Two at most start, see nodetest.NewLab. Those tests
# of services that run alone, see nodetest.Alone, come first.
labs() { [ -z "$lab" ] || events -p 4 -parallel 4 -timeout $patience $lab; }

run() { # events on standard output, errors of the tool itself on standard error
	case $what in
	unit) units ;;
	lab) labs ;;
	# Labs leave half of two cores idle, so the other packages run beside them. While both want the
	# CPU, these get a third of the time that a lab gets, because tests in labs measure times. The
	# results of labs are printed at the end.
	all)
		local beside=out/test/labs.events
		labs >$beside | {
			renice -n $(($(nice) + 5)) -p $BASHPID >/dev/null
			units
		}
		cat $beside
		rm $beside
		;;
	esac
	# What the lab's long part has beside the packages of the lab.
	case $what${KUBEVEIL_LAB_LONG:+-long} in
	lab-long)
		events -timeout 20m -run '^TestFirstPackets$' ./pkg/policy/keeper
		events -timeout 20m -run '^TestScanHidesNoDenialOfOthers$' ./pkg/policy/nftables
		events -timeout 30m ./e2e/bench/...
		events -timeout 20m -run '^TestManyBackends$' ./pkg/service/bpfmaps
		events -timeout 30m -run '^TestInstallationOnAnAPIServer$' ./hack/chart
		RAPID_CHECKS=300 events -timeout 40m -p 2 $(
			git grep -l 'rapid\.Check(' -- '*_test.go' | sed 's|^|./|; s|/[^/]*$||' | sort -u)
		;;
	esac
}

case $what in
unit | lab | all) ;;
*) echo "hack/test.sh: unknown part '$what': write unit, lab or nothing" >&2; exit 2 ;;
esac
mkdir -p out/test
export KUBEVEIL_SKIP_LOG=$PWD/out/test/skips.jsonl
: >"$KUBEVEIL_SKIP_LOG"
expected=
# Lab tests that wait for veild's own look each 30 s, or its probe each minute; `make test-lab-long`
# runs them.
[ -n "${KUBEVEIL_LAB_LONG:-}" ] || expected=short
# Root of a container or a machine of somebody else's may lack CAP_SYS_RESOURCE (bit 24), without
# which ext4 does not grow.
(( 0x$(awk '/^CapEff/ {print $2}' /proc/self/status) >> 24 & 1 )) || expected=$expected,no-capability
# Not every kernel has flow tables; `make test-kernel` runs what needs them on one that does.
unshare -n nft 'add table inet t; add flowtable inet t f { hook ingress priority 0; }' 2>/dev/null || expected=$expected,no-flowtable
# Nor has every kernel each kind of route that encapsulates, and IPsec.
lacks() { ! unshare -n sh -c 'ip link set lo up && exec ip "$@"' ip "$@" 2>/dev/null; }
lacks route add fd42::/64 encap ioam6 trace prealloc type 0x800000 ns 0 size 12 dev lo && expected=$expected,no-ioam6
lacks route add fd42::/64 encap rpl segs fd42:9::2 dev lo && expected=$expected,no-rpl
lacks xfrm state add src 198.18.0.1 dst 198.18.0.2 proto esp spi 0x77 mode tunnel auth digest_null '' enc cipher_null '' && expected=$expected,no-esp
# A kernel without WireGuard has the engine's counterpart of the other implementation alone; `make
# test-kernel` has both.
unshare -n ip link add w type wireguard 2>/dev/null || expected=$expected,no-kernel-wireguard
# A shallow clone may lack the last release, which this tree is tried beside.
release=$(sed -n 's/^const lastRelease = "\(.*\)"$/\1/p' e2e/node/network/release_test.go 2>/dev/null || true)
git cat-file -e "$release^{commit}" 2>/dev/null || expected=$expected,no-release
# Only a CPU that has AVX-512 can test that tier of the engine's AEAD.
grep -qw avx512ifma /proc/cpuinfo || expected=$expected,no-avx512
export KUBEVEIL_EXPECTED_SKIPS=${KUBEVEIL_EXPECTED_SKIPS-$expected}
# Labs use out/bin as it is: built here, unless make has just done it.
case $what in
lab | all) [ -n "${KUBEVEIL_LAB_NO_BUILD:-}" ] || hack/build.sh ;;
esac
export KUBEVEIL_LAB_NO_BUILD=1
go build -o out/bin/testsummary ./hack/testsummary
# The name is not that of a suite's whole result, which `make gates` judges; an earlier one of that
# name is of no schema.
rm -f out/test/result.json
# The CPU time of all processes of a run can be compared with other runs, although the machine does
# other work. The summary is printed after it.
{
	run
	times >out/test/cpu
	echo "CPU time of the run: $(tail -n 1 out/test/cpu) (user, system)" >&2
} | out/bin/testsummary -o out/test/tests.json --again hack/test.sh
