#!/usr/bin/env bash
# Builds the Kubernetes programs that the labs run, from their Go module, into
# out/bin. About 5 minutes on two cores when nothing is cached; skipped when
# neither the module nor the Go version has changed since.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

module=$ROOT/hack/tools/kubernetes
version=$(awk '$1 == "k8s.io/kubernetes" {print $2}' "$module/go.mod")
from=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
# What `kubectl version` and the API's /version answer; Go modules do not set it.
pkg=k8s.io/component-base/version
IFS=. read -r major minor _ <<<"${version#v}"
stamp="-X $pkg.gitVersion=$version -X $pkg.gitMajor=$major -X $pkg.gitMinor=$minor"

build() {
	cd "$module"
	CGO_ENABLED=0 GOFLAGS= go build -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/$1.new" "k8s.io/kubernetes/cmd/$1"
	mv "$OUT/bin/$1.new" "$OUT/bin/$1"
	echo "$from" >"$OUT/bin/$1.from"
}

mkdir -p "$OUT/bin"
for program in "${@:-kube-apiserver}"; do
	if built_from "$OUT/bin/$program" "$from"; then
		continue
	fi
	progress "build $program $version" build "$program"
done
