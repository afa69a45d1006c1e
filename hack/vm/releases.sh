#!/usr/bin/env bash
# Makes what `kvlab test network --releases out/releases` installs, and `kvlab test storage`:
#
#   out/releases/last   the last release, v0.0.1: the commit lastRelease of TestMixedReleases, with
#                       its programs in bin
#   out/releases/this   a release of the commit of this tree, v0.0.2, or of the folder RELEASE
#   out/releases/helm   the program Helm
#
# Tags are made in clones. A key is made for the release and thrown away. What was made from the
# same commit is not made again. Some ten minutes on two cores.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

dest=$OUT/releases
last=$(sed -nE 's/^const lastRelease = "([0-9a-f]{40})"$/\1/p' \
	"$ROOT/e2e/node/network/release_test.go")
git -C "$ROOT" cat-file -e "$last^{commit}" || die "git fetch origin $last"
mkdir -p "$dest"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# clone COMMIT TAG: a clone in $work/TAG, where the commit has the tag.
clone() {
	git clone -q --no-hardlinks --no-checkout "$ROOT" "$work/$2"
	git -C "$work/$2" tag "$2" "$1"
	git -C "$work/$2" checkout -q --detach "$2"
}

# That tree has no `make release`: its release is its image and its manifests.
make_last() {
	clone "$last" v0.0.1
	cd "$work/v0.0.1"
	go run ./hack/image -tag localhost/kubeveil:v0.0.1 -version v0.0.1 \
		-out "$work/last/kubeveil.tar"
	"$OUT/bin/kubectl" kustomize manifests |
		sed 's|localhost/kubeveil:dev|localhost/kubeveil:v0.0.1|' >"$work/last/kubeveil.yaml"
	mv "$work"/last/root-*/usr/local/bin "$work/last/"
	rm -rf "$work"/last/root-* "$dest/last"
	mv "$work/last" "$dest/"
}

make_this() {
	clone HEAD v0.0.2
	ssh-keygen -q -t ed25519 -N '' -f "$work/key"
	make -C "$work/v0.0.2" release VERSION=v0.0.2 KEY="$work/key"
	"$work/v0.0.2/out/release/v0.0.2/verify.sh" --key "$work/key.pub" --version v0.0.2
	rm -rf "$dest/this"
	mv "$work/v0.0.2/out/release/v0.0.2" "$dest/this"
}

make_helm() {
	cd "$ROOT/hack/tools/helm"
	CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -o "$dest/helm" \
		helm.sh/helm/v4/cmd/helm
}

mkdir "$work/last"
if ! built_from "$dest/last" "$last"; then
	progress "make the last release" make_last
	echo "$last" >"$dest/last.from"
fi
if [[ -n ${RELEASE:-} ]]; then
	rm -rf "$dest/this"
	ln -s "$RELEASE" "$dest/this"
	echo "$RELEASE" >"$dest/this.from"
elif ! built_from "$dest/this" "$(git -C "$ROOT" rev-parse HEAD)"; then
	[[ -z $(git -C "$ROOT" status --porcelain) ]] ||
		say "changes that are not committed are not in the release"
	progress "make the release of this tree" make_this
	git -C "$ROOT" rev-parse HEAD >"$dest/this.from"
fi
progress "build Helm" make_helm
