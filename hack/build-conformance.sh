#!/usr/bin/env bash
# Builds what `make conformance` runs: the upstream tests (out/bin/e2e.test), the programs of their
# images, and the images themselves, from Debian packages and those programs, into
# out/images/conformance.tar. 10 minutes on two cores when nothing is cached; what has not changed is kept.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

"$ROOT/hack/vm/deps.sh"
"$ROOT/hack/build-kubernetes.sh" kubectl e2e.test agnhost regression-issue-74839
"$ROOT/hack/build-node.sh"

here=$ROOT/hack/conformance
root=$OUT/images/conformance-root.tar
archive=$OUT/images/conformance.tar
mkdir -p "$OUT/images"
mapfile -t packages < <(grep -v '^#' "$here/packages")

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

# The packages are only unpacked: none of them runs anything.
make_root() {
	debian_sources | nice mmdebstrap --variant=extract --include="$(IFS=,; echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$root.new.tar"
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

make_images() {
	local kubernetes
	kubernetes=$(cd "$ROOT/hack/tools/kubernetes" && GOFLAGS='' go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	cd "$ROOT"
	go run ./hack/conformance -root "$root" -bin "$OUT/bin" -porter "$kubernetes/test/images/agnhost/porter" -out "$archive"
	echo "$from" >"$archive.from"
}
from=$(cat "$root.from" "$OUT"/bin/{agnhost,regression-issue-74839,coredns}.from "$here"/*.go "$ROOT/e2e/conformance/registry.go" | sha256sum | cut -d' ' -f1)
built_from "$archive" "$from" || progress "make the images of the upstream tests" make_images
