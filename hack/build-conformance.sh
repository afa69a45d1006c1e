#!/usr/bin/env bash
# Builds what the upstream's tests need on virtual machines.
#   hack/build-conformance.sh         for `make conformance` and `make conformance-storage`: the tests
#                                     (out/bin/e2e.test), the programs of their images, and the images,
#                                     from Debian packages and those programs, out/images/conformance.tar
#   hack/build-conformance.sh policy  for `make conformance-policy`: out/network-policy-api has the tests,
#                                     their names and the definition of ClusterNetworkPolicy, all of the
#                                     module in hack/tools/network-policy-api; their image is
#                                     out/images/conformance-policy.tar, with the program of
#                                     hack/tools/agnhost
#   hack/build-conformance.sh sites FOLDER
#                                     for `make conformance-sites`: FOLDER is a checkout of
#                                     github.com/kubernetes-sigs/mcs-api. Its tests are
#                                     out/mcs-api/conformance.test, and their images
#                                     out/images/conformance-sites.tar, from Debian packages
# 10 minutes on two cores when nothing is cached; what has not changed is kept.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

what=${1:-e2e}
[[ $what =~ ^(e2e|policy|sites)$ ]] ||
	die "no tests are called $what: write policy, sites, or nothing"
"$ROOT/hack/vm/deps.sh"
if [[ $what == sites ]]; then
	[[ -n ${2:-} && -f $2/conformance/go.mod ]] ||
		die "${2:-no folder} is not a checkout of mcs-api with its tests (v0.5.0 or later)"
	suite=$(cd "$2/conformance" && pwd)
else
	programs=(agnhost regression-issue-74839)
	[[ $what == policy ]] || programs+=(kubectl e2e.test)
	"$ROOT/hack/build-kubernetes.sh" "${programs[@]}"
	"$ROOT/hack/build-node.sh"
fi

here=$ROOT/hack/conformance
root=$OUT/images/conformance-root.tar
mkdir -p "$OUT/images"
mapfile -t packages < <(grep -v '^#' "$here/packages")

release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

# The packages are only unpacked: none of them runs anything.
make_root() {
	debian_sources | nice mmdebstrap --variant=extract --include="$(IFS=,; echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' "$release" "$root.new.tar"
	mv "$root.new.tar" "$root"
	echo "$from" >"$root.from"
}
from=$({
	apt-cache policy "${packages[@]}" | awk '/^[a-z]/ {name = $1} /Candidate:/ {print name, $2}'
	cat "$here/packages" "${BASH_SOURCE[0]}"
} | sha256sum | cut -d' ' -f1)
if ! built_from "$root" "$from"; then
	[[ -n $(debian_sources) ]] || die "no Debian archive in this machine's apt configuration: run apt-get update, or add one"
	progress "unpack ${#packages[@]} Debian packages for the images" make_root
fi

if [[ $what == sites ]]; then
	mcs=$OUT/mcs-api
	mkdir -p "$mcs"
	make_suite() {
		cd "$suite"
		CGO_ENABLED=0 GOFLAGS='' nice go test -c -trimpath -buildvcs=false -ldflags '-s -w' \
			-o "$mcs/conformance.test.new" .
		mv "$mcs/conformance.test.new" "$mcs/conformance.test"
		echo "$from" >"$mcs/conformance.test.from"
	}
	from=$({
		go env GOVERSION GOARCH
		cat "$suite"/*.* "$suite"/../go.* "${BASH_SOURCE[0]}"
		find "$suite/../pkg" -name '*.go' -print0 | sort -z | xargs -0 cat
	} | sha256sum | cut -d' ' -f1)
	built_from "$mcs/conformance.test" "$from" || progress "build the tests of mcs-api" make_suite

	# The tests name their images: nodes have ours by these names.
	mapfile -t images < <(sed -nE 's/^\s*Image:\s*"([^"]+)".*/\1/p' "$suite"/*.go | sort -u)
	names=$(IFS=,; echo "${images[*]}")
	archive=$OUT/images/conformance-sites.tar
	make_site_images() {
		cd "$ROOT"
		go run ./hack/conformance --root "$root" --out "$archive" --images "$names"
		echo "$from" >"$archive.from"
	}
	from=$(cat "$root.from" "$here"/*.go <(echo "$names") | sha256sum | cut -d' ' -f1)
	built_from "$archive" "$from" || progress "make the images of mcs-api's tests" make_site_images
	exit
fi

# make_images ARCHIVE AGNHOST MODULE ARGUMENTS...
make_images() {
	local archive=$1 agnhost=$2 module=$3 kubernetes
	shift 3
	kubernetes=$(cd "$module" && GOFLAGS='' go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	cd "$ROOT"
	go run ./hack/conformance --root "$root" --bin "$OUT/bin" --agnhost "$agnhost" --porter "$kubernetes/test/images/agnhost/porter" --out "$archive" "$@"
	echo "$from" >"$archive.from"
}

# need_images ARCHIVE AGNHOST MODULE ARGUMENTS...: makes it, with the program AGNHOST of the Go module in the
# folder MODULE, when its inputs have changed.
need_images() {
	from=$(cat "$root.from" "$2.from" "$OUT"/bin/{regression-issue-74839,coredns}.from "$here"/*.go "$ROOT/e2e/conformance/registry.go" <(echo "${@:4}") | sha256sum | cut -d' ' -f1)
	built_from "$1" "$from" || progress "make the images of the upstream tests" make_images "$@"
}

if [[ $what == e2e ]]; then
	need_images "$OUT/images/conformance.tar" "$OUT/bin/agnhost" "$ROOT/hack/tools/kubernetes"
	exit
fi

module=$ROOT/hack/tools/network-policy-api
# A module has a folder once it is downloaded.
api=$(cd "$module" && GOFLAGS='' go mod download sigs.k8s.io/network-policy-api &&
	GOFLAGS='' go list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
policy=$OUT/network-policy-api

make_policy() {
	cd "$module"
	export CGO_ENABLED=0 GOFLAGS=
	go run ./list "$api/conformance/tests" >"$policy/specs.txt"
	install -m 0644 "$api/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml" "$policy/definition.yaml"
	nice go test -c -buildvcs=false -ldflags '-s -w' -o "$policy/conformance.test.new" .
	mv "$policy/conformance.test.new" "$policy/conformance.test"
	echo "$from" >"$policy/conformance.test.from"
}
from=$(cat "$module"/*.* "$module"/list/* <(go env GOVERSION GOARCH) "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
mkdir -p "$policy"
built_from "$policy/conformance.test" "$from" || progress "build the tests of ClusterNetworkPolicy" make_policy

# The tests name a version of agnhost. A later one's client of SCTP also writes, which fails where the server has
# answered and closed before, as on emulated machines.
old=$ROOT/hack/tools/agnhost
make_agnhost() {
	cd "$old"
	export CGO_ENABLED=0 GOFLAGS=
	go build -buildvcs=false -ldflags '-s -w' -o "$policy/agnhost.new" k8s.io/kubernetes/test/images/agnhost
	mv "$policy/agnhost.new" "$policy/agnhost"
	echo "$from" >"$policy/agnhost.from"
}
from=$(cat "$old"/go.* <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
built_from "$policy/agnhost" "$from" || progress "build agnhost" make_agnhost

# The tests cannot be told of another registry: nodes have our image by the upstream's name.
mapfile -t images < <(awk '$1 == "image:" {print $2}' "$api/conformance/base/manifests.yaml" | sort -u)
need_images "$OUT/images/conformance-policy.tar" "$policy/agnhost" "$old" --images "$(IFS=,; echo "${images[*]}")"
